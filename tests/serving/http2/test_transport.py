"""The transport around the connection: what only shows on real sockets."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import TYPE_CHECKING, Any

import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types
import pytest
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # nor does this

from picker.serving.contract import ServingError
from picker.serving.http2 import transport as transport_module
from picker.serving.http2.frames import (
    ACK,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    MAX_WINDOW,
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
from picker.serving.http2.transport import Http2Transport
from picker.serving.listening import Address, open_sockets
from picker.serving.tls import ServerTls, self_signed
from tests.serving import harness
from tests.serving.harness import PATIENCE, Echo, serving, until
from tests.serving.http2.peer import block, data, opening, taken_apart

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MIB = 1 << 20
HELLO = PREFACE + settings({}) + frame(SETTINGS, ACK, 0)


@pytest.fixture(autouse=True)
def http2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "make", Http2Transport)


@pytest.fixture
async def echo() -> AsyncIterator[harness.Served]:
    async with serving(Echo) as served:
        yield served


async def connected(port: int, hello: bytes = HELLO) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    writer.write(hello)
    return reader, writer


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All bytes up to the end of the connection."""
    async with asyncio.timeout(PATIENCE):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


class Trickle(harness.Recorder):
    """Sends back what it gets; what is no word of hurry may wait for the next."""

    def received(self, message: bytes) -> None:
        super().received(message)
        send = self.stream.send if message == b"now" else self.stream.send_soon
        send([message])


def reads(served: harness.Served) -> bool:
    """Whether the only connection is being read."""
    assert isinstance(served.transport, Http2Transport)
    (protocol,) = served.transport.protocols
    return protocol._transport is not None and protocol._transport.is_reading()


async def test_where_chunks_come_often_they_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "_GATHER", 1000 * PATIENCE)
    async with serving(Trickle) as served:
        call, _ = await served.opened(b"the first never waits")
        assert await call.read() == b"the first never waits"
        assert reads(served)
        await call.write(b"the second is answered at once, and what comes then waits")
        assert (await call.read()).startswith(b"the second")
        assert not reads(served)


@pytest.mark.parametrize(("word", "pause"), [(b"now", 1000 * PATIENCE), (b"seldom", 0.0)])
async def test_for_other_messages_and_rare_chunks_nothing_waits(
    word: bytes, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "_GATHER", pause)
    async with serving(Trickle) as served:
        call, _ = await served.opened(word)
        assert await call.read() == word
        for _ in range(3):
            await call.write(word)
            assert await call.read() == word
            assert reads(served)


async def test_messages_that_may_wait_wait_only_a_moment() -> None:
    async with serving(Trickle) as served:
        call, _ = await served.opened(b"0")
        for word in (b"1", b"2", b"3"):
            await call.write(word)
        assert [await call.read() for _ in range(4)] == [b"0", b"1", b"2", b"3"]


async def test_a_broken_client_is_told_why_and_others_go_on(echo: harness.Served) -> None:
    call, _ = await echo.opened()
    reader, writer = await connected(echo.port)
    writer.write(frame(PING, 0, 0, b"short"))
    last = taken_apart(await rest(reader))[-1]
    assert (last.kind, integer(last.payload[4:])) == (GOAWAY, ErrorCode.FRAME_SIZE_ERROR)
    writer.close()
    assert await call.read() == b"headers"
    await call.write(b"still here")
    assert await call.read() == b"still here"
    call.cancel()


async def test_an_http1_client_is_sent_away(echo: harness.Served) -> None:
    reader, writer = await connected(echo.port, b"GET / HTTP/1.1\r\n\r\n")
    assert taken_apart(await rest(reader))[-1].kind == GOAWAY
    writer.close()


async def test_everything_answered_in_one_read_leaves_in_one_write(echo: harness.Served) -> None:
    reader, writer = await connected(echo.port)
    await reader.readexactly(9)  # its hello is on its way
    writer.write(b"".join(opening(n) + data(n, b"x", end=True) for n in range(1, 65, 2)))
    received = b""
    async with asyncio.timeout(PATIENCE):
        while received.count(b"grpc-status") < 32:
            received += await reader.read(1 << 20)
    assert [handler.ends for handler in echo.handlers] == [[True]] * 32
    writer.close()


async def test_a_client_that_makes_us_answer_and_reads_nothing_is_cut(
    echo: harness.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "_CONTROL_LIMIT", 4_096)
    _, writer = await connected(echo.port, HELLO + settings({Setting.INITIAL_WINDOW_SIZE: MAX_WINDOW}))
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # the type is of the base class
    writer.write(window_update(0, MAX_WINDOW - 65_535) + opening(1))
    for _ in range(16):
        writer.write(data(1, bytes(MIB - 5)))
    ping = frame(PING, 0, 0, bytes(8)) * 500
    await until(lambda: bool(echo.handlers and echo.handlers[0].messages))
    async with asyncio.timeout(PATIENCE):
        while not echo.handlers[0].ends:
            writer.write(ping)
            await asyncio.sleep(0.2)
    assert echo.handlers[0].ends == [False]
    writer.transport.abort()


async def test_rapid_resets_slow_their_client_down_and_nobody_else(
    echo: harness.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "_UNANSWERED_RESETS", 100.0)
    reader, writer = await connected(echo.port)
    head = block()

    def pair(n: int) -> bytes:
        return frame(HEADERS, END_HEADERS, n, head) + rst_stream(n, ErrorCode.CANCEL)

    writer.write(b"".join(pair(n) for n in range(1, 4_000, 2)))
    await until(lambda: len(echo.handlers) >= 100)
    call = echo.call()  # on a connection of its own
    await call.write(b"meanwhile")
    assert await call.read() == b"meanwhile"
    call.cancel()
    assert not reader.at_eof()
    assert all(handler.ends == [False] for handler in echo.handlers[:100])
    writer.transport.abort()


async def test_silent_connections_end(echo: harness.Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picker.serving.http2.connection.HELLO_DEADLINE", 0.01)
    reader, writer = await connected(echo.port, PREFACE[:5])
    assert taken_apart(await rest(reader))[-1].kind == GOAWAY
    writer.close()


async def test_a_client_that_half_closes_its_connection_is_gone(echo: harness.Served) -> None:
    reader, writer = await connected(echo.port)
    writer.write(opening(1) + data(1, b"x"))
    await until(lambda: bool(echo.handlers))
    writer.write_eof()
    await rest(reader)
    await until(lambda: echo.handlers[0].ends == [False])
    writer.close()


async def test_large_echoes_over_tls(tmp_path: Path) -> None:
    chain, key = self_signed()
    (tmp_path / "tls.crt").write_bytes(chain)
    (tmp_path / "tls.key").write_bytes(key)
    credentials = grpc.ssl_channel_credentials(root_certificates=chain)
    body = bytes(range(256)) * (20 * MIB // 256)
    async with serving(Echo, tls=ServerTls(tmp_path), credentials=credentials) as served:
        call = served.call()
        await call.write(body)
        assert await call.read() == body
        await call.done_writing()
        assert await call.code() == grpc.StatusCode.OK


async def test_plain_text_on_a_tls_port_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Echo, tls=ServerTls()) as served:
        reader, writer = await connected(served.port)
        await rest(reader)
        writer.close()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=context)
        writer.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_stop_closes_idle_connections_with_goaway(echo: harness.Served) -> None:
    reader, writer = await connected(echo.port)
    head = await reader.readexactly(9)  # so that it is known there
    await echo.transport.stop(PATIENCE)
    kinds = [sent.kind for sent in taken_apart(head + await rest(reader))]
    assert GOAWAY in kinds
    writer.close()


# Health


def _health(method: str, served: harness.Served) -> Any:
    return served.channel.unary_stream(f"/grpc.health.v1.Health/{method}")


@pytest.mark.parametrize("method", ["Check", "List", "Watch"])
async def test_a_health_request_that_cannot_be_read(echo: harness.Served, method: str) -> None:
    call = _health(method, echo)(b"\xff\xff", timeout=PATIENCE)
    assert await call.code() == grpc.StatusCode.INTERNAL


async def test_a_health_call_without_a_request(echo: harness.Served) -> None:
    call = echo.channel.stream_stream("/grpc.health.v1.Health/Check")(timeout=PATIENCE)
    await call.done_writing()
    assert await call.code() == grpc.StatusCode.INTERNAL
    assert echo.transport.streams_open == 0


async def test_a_second_watch_request_is_ignored(echo: harness.Served) -> None:
    call = echo.channel.stream_stream("/grpc.health.v1.Health/Watch")(timeout=PATIENCE)
    request = health_pb2.HealthCheckRequest(service="liveness").SerializeToString()
    await call.write(request)
    await call.write(request)
    answer = health_pb2.HealthCheckResponse.FromString(await call.read())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await echo.transport.stop(PATIENCE)
    assert await call.code() == grpc.StatusCode.UNAVAILABLE


# Sockets


def test_all_addresses_share_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def both(_host: str | None, port: int, **options: Any) -> list[Any]:
        found = []
        for loopback in ("127.0.0.1", "::1"):
            try:
                found += real(loopback, port, **options)
            except OSError:
                continue
        return found

    monkeypatch.setattr(socket, "getaddrinfo", both)
    sockets = open_sockets(Address("", 0, "PICKER_GRPC_PORT"))
    assert len({opened.getsockname()[1] for opened in sockets}) == 1
    with pytest.raises(ServingError, match="PICKER_GRPC_PORT"):
        open_sockets(Address("", sockets[0].getsockname()[1], "PICKER_GRPC_PORT"))
    for opened in sockets:
        opened.close()


def test_an_address_family_that_is_off_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real_socket, real_lookup = socket.socket, socket.getaddrinfo

    def no_ipv6(family: int, *arguments: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real_socket(family, *arguments)

    def loopback(_host: str | None, port: int, **options: Any) -> list[Any]:
        six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))
        return [six, *real_lookup("127.0.0.1", port, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", loopback)
    monkeypatch.setattr(socket, "socket", no_ipv6)
    (opened,) = open_sockets(Address("", 0, "PICKER_GRPC_PORT"))
    assert opened.getsockname()[0] == "127.0.0.1"
    opened.close()
