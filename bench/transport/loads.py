"""What is asked of a transport, and in which unit its CPU is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.rig.cpu import cpu_seconds, resident_bytes
from bench.transport.client import Client
from bench.transport.yardstick import (
    FULL_DUPLEX_STREAMED,
    PROTOCOL_CONFIG,
    REQUEST_BODY,
    REQUEST_HEADERS,
    message,
    varint,
)
from picker.serving.http2.frames import DATA, END_STREAM, MESSAGE_PREFIX, frame

if TYPE_CHECKING:
    from collections.abc import Callable


def _header(name: str, value: str) -> bytes:
    return message(1, message(1, name.encode()), message(3, value.encode()))


def _body(content: bytes) -> bytes:
    return message(REQUEST_BODY, message(1, content))


_DUPLEX = message(
    PROTOCOL_CONFIG, b"\x08", varint(FULL_DUPLEX_STREAMED), b"\x10", varint(FULL_DUPLEX_STREAMED)
)
_HEADERS = (
    message(
        REQUEST_HEADERS,
        message(1, *(_header(f"x-header-number-{n}", "value of a usual length") for n in range(10))),
    )
    + _DUPLEX
)
_SMALL_BODY = _body(bytes(200))
_CHUNK = _body(bytes(180))
_LARGE_BODY = _body(bytes(400_000))


def in_a_frame(stream_id: int, content: bytes, flags: int = 0) -> bytes:
    """One message in one DATA frame."""
    return frame(DATA, flags, stream_id, MESSAGE_PREFIX.pack(0, len(content)) + content)


def _streams(client: Client, count: int, at_once: int) -> None:
    """Short streams: headers and a small body, both answered, in bursts of ``at_once``."""
    for _ in range(count // at_once):
        burst = []
        for _ in range(at_once):
            stream_id, opening = client.open()
            burst += [opening, in_a_frame(stream_id, _HEADERS)]
            burst.append(in_a_frame(stream_id, _SMALL_BODY, END_STREAM))
        expected = client.answers + at_once
        client.send(b"".join(burst))
        client.until_answered(expected)


def one_by_one(client: Client, amount: int) -> None:
    """Streams, each opened when the one before is over."""
    _streams(client, amount, 1)


def in_bursts(client: Client, amount: int) -> None:
    """Streams, 32 at a time."""
    _streams(client, amount, 32)


def chunks(client: Client, amount: int) -> None:
    """Small messages of one stream, each sent when the one before was echoed."""
    stream_id, opening = client.open()
    client.send(opening + in_a_frame(stream_id, _HEADERS))
    packet = in_a_frame(stream_id, _CHUNK)
    echo = len(packet) // 2
    for _ in range(amount):
        expected = client.data + echo
        client.send(packet)
        client.until_received(expected)
    _end(client, stream_id)


def megabytes(client: Client, amount: int) -> None:
    """Bodies of 400 kB on one stream, in frames of 16 KiB, each echoed before the next."""
    stream_id, opening = client.open()
    client.send(opening + in_a_frame(stream_id, _HEADERS))
    for _ in range(round(amount * 1_000_000 / len(_LARGE_BODY))):
        expected = client.data + len(_LARGE_BODY)
        client.send_message(stream_id, _LARGE_BODY)
        client.until_received(expected)
    _end(client, stream_id)


def _end(client: Client, stream_id: int) -> None:
    expected = client.answers + 1
    client.send(frame(DATA, END_STREAM, stream_id))
    client.until_answered(expected)


@dataclass(frozen=True, slots=True)
class Load:
    """Something to do in an amount of its unit."""

    name: str
    unit: str
    amount: int
    run: Callable[[Client, int], None]


LOADS = (
    Load("streams one by one", "stream", 4_000, one_by_one),
    Load("streams in bursts of 32", "stream", 16_000, in_bursts),
    Load("chunks one by one", "chunk", 6_000, chunks),
    Load("400-kB bodies", "MB", 200, megabytes),
)


def cost(load: Load, pid: int, address: str, scale: float) -> float:
    """CPU microseconds of the process per unit of the load."""
    amount = max(64, round(load.amount * scale))
    with Client(address) as client:
        load.run(client, amount // 8)  # warm up
        before = cpu_seconds(pid)
        load.run(client, amount)
        return (cpu_seconds(pid) - before) / amount * 1e6


def bytes_per_open_stream(pid: int, address: str, count: int) -> float:
    """What a stream that got its first answer and waits takes of memory."""
    with Client(address) as client:
        _hold(client, count // 2)  # into what the process still had from its start
        before = resident_bytes(pid)
        _hold(client, count)
        return (resident_bytes(pid) - before) / count


def _hold(client: Client, count: int) -> None:
    for _ in range(count):
        stream_id, opening = client.open()
        expected = client.data + 1  # at least the beginning of its answer
        client.send(opening + in_a_frame(stream_id, _HEADERS))
        client.until_received(expected)
