"""A transport as a gRPC client and a handler see it."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types
import pytest

from picker.serving.contract import ServingError
from picker.serving.health import Health
from picker.serving.listening import Address, bind
from picker.serving.options import TransportOptions, message_limit
from tests.serving import harness
from tests.serving.harness import METHOD, PATIENCE, Echo, Recorder, Served, over, serving, until

if TYPE_CHECKING:
    from picker.serving.contract import Stream

pytestmark = pytest.mark.usefixtures("transport")

MIB = 1 << 20


async def until_idle(served: Served) -> None:
    await until(lambda: served.transport.streams_open == 0)


async def test_answers_and_finishes_after_half_close() -> None:
    async with serving(Echo) as served:
        call = served.call()
        for message in (b"one", b"", b"three"):
            await call.write(message)
            assert await call.read() == message
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK
        assert await over(served.handlers[0]) == [True]
        assert served.transport.streams_open == 0


async def test_large_messages_pass_whole() -> None:
    body = bytes(range(256)) * (20 * MIB // 256)
    async with serving(Echo) as served:
        call = served.call()
        for _ in range(2):
            await call.write(body)
            assert await call.read() == body
        await call.done_writing()
        assert await call.code() == grpc.StatusCode.OK


async def test_segments_are_one_message(served: Served) -> None:
    call, handler = await served.opened()
    handler.stream.send([b"head", memoryview(b"body"), b""])
    handler.stream.finish()
    assert [message async for message in call] == [b"headbody"]
    assert await call.code() == grpc.StatusCode.OK
    assert await over(handler) == [True]


async def test_a_message_above_the_limit_ends_only_its_stream() -> None:
    async with serving(Echo, max_message=MIB) as served:
        call = served.call()
        await call.write(b"headers")
        assert await call.read() == b"headers"
        await call.write(bytes(MIB + 1))
        assert await call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await over(served.handlers[0]) == [False]
        other = served.call()
        await other.write(b"still here")
        assert await other.read() == b"still here"
        other.cancel()


async def test_holds_many_streams_at_once() -> None:
    async with serving(Echo) as served:
        calls = [served.call() for _ in range(1500)]
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(call.write(b"%d" % n) for n, call in enumerate(calls)))
            answers = await asyncio.gather(*(call.read() for call in calls))
        assert answers == [b"%d" % n for n in range(1500)]
        assert served.transport.streams_open == 1500
        await asyncio.gather(*(call.done_writing() for call in calls))
        assert {await call.code() for call in calls} == {grpc.StatusCode.OK}
        await until_idle(served)
        assert [handler.ends for handler in served.handlers] == [[True]] * 1500


async def test_an_answer_decided_later_goes_out_while_the_client_waits(served: Served) -> None:
    call, handler = await served.opened()
    asyncio.get_running_loop().call_later(0.01, handler.stream.send, [b"decided"])
    assert await call.read() == b"decided"
    await call.write(b"more")
    await call.done_writing()
    assert await over(handler) == [True]
    # After the half-close too, and then the handler ends the stream.
    asyncio.get_running_loop().call_soon(handler.stream.send, [b"late"])
    assert await call.read() == b"late"
    asyncio.get_running_loop().call_soon(handler.stream.finish)
    assert await call.code() == grpc.StatusCode.OK
    assert handler.messages == [b"headers", b"more"]
    assert handler.ends == [True]


async def test_later_answers_keep_their_order(served: Served) -> None:
    call, handler = await served.opened()
    loop = asyncio.get_running_loop()
    sent = [b"%d" % n for n in range(200)]
    for message in sent:
        loop.call_soon(handler.stream.send, [message])
    loop.call_soon(handler.stream.finish)
    assert [message async for message in call] == sent
    assert await call.code() == grpc.StatusCode.OK


async def test_finish_ends_a_stream_whose_client_is_silent(served: Served) -> None:
    call, handler = await served.opened()
    handler.stream.finish()
    handler.stream.finish()
    handler.stream.send([b"ignored"])
    assert await call.read() is grpc.aio.EOF
    assert await call.code() == grpc.StatusCode.OK
    assert await over(handler) == [True]
    handler.stream.abort("ignored, it is over")


async def test_abort_resets_and_drops_what_is_queued(served: Served) -> None:
    call, handler = await served.opened()
    handler.stream.abort("cannot go on")
    handler.stream.abort("ignored")
    handler.stream.send([b"ignored"])
    handler.stream.finish()
    assert await call.code() == grpc.StatusCode.INTERNAL
    assert await call.details() == "cannot go on"
    assert await over(handler) == [False]


class AbortsAtOnce(Recorder):
    def received(self, message: bytes) -> None:
        super().received(message)
        self.stream.send([b"dropped"])
        self.stream.abort("first message")


class FinishesAtOnce(Recorder):
    def received(self, message: bytes) -> None:
        super().received(message)
        self.stream.send([b"answer"])
        self.stream.finish()


async def test_a_handler_may_end_its_stream_while_it_gets_a_message() -> None:
    async with serving(AbortsAtOnce) as served:
        call, handler = await served.opened()
        assert await call.code() == grpc.StatusCode.INTERNAL
        assert await over(handler) == [False]
    async with serving(FinishesAtOnce) as served:
        call, handler = await served.opened()
        assert [message async for message in call] == [b"answer"]
        assert await call.code() == grpc.StatusCode.OK
        assert await over(handler) == [True]


async def test_nothing_is_read_while_answers_cannot_be_written() -> None:
    async with serving(Echo) as served:
        call = served.call()
        body = bytes(MIB)

        async def upload() -> None:
            for _ in range(64):
                await call.write(body)
            await call.done_writing()

        uploading = asyncio.create_task(upload())
        await until(lambda: bool(served.handlers and served.handlers[0].messages))
        for _ in range(200):  # the client reads nothing, so the windows fill, and the echo must stall
            await asyncio.sleep(0.001)
        assert len(served.handlers[0].messages) < 64
        received = [len(message) async for message in call]
        assert received == [MIB] * 64
        await uploading
        assert await call.code() == grpc.StatusCode.OK


async def test_aborting_a_stream_whose_client_does_not_read() -> None:
    async with serving() as served:
        call, handler = await served.opened()
        for _ in range(64):
            handler.stream.send([bytes(MIB)])
        await asyncio.sleep(0.01)
        handler.stream.abort("stuck")
        assert await over(handler) == [False]
        assert served.transport.streams_open == 0
        call.cancel()


class Failing(Recorder):
    def received(self, message: bytes) -> None:
        super().received(message)
        raise LookupError(message)


async def test_a_handler_that_raises_costs_only_its_stream(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Failing) as served:
        call, handler = await served.opened()
        assert await call.code() == grpc.StatusCode.INTERNAL
        assert await call.details() == "internal error"
        assert await over(handler) == [False]
        assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
            "the handler of a stream failed"
        ]


async def test_other_methods_are_unimplemented(served: Served) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await served.channel.unary_unary(METHOD.replace("Process", "Other"))(b"", timeout=PATIENCE)
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


class Slow(Recorder):
    """Answers each message after a while, and at the end, as a handler with a pending decision does."""

    def received(self, message: bytes) -> None:
        super().received(message)
        asyncio.get_running_loop().call_later(0.005, self.stream.send, [message])

    def closed(self, *, clean: bool) -> None:
        super().closed(clean=clean)
        asyncio.get_running_loop().call_later(0.005, self.stream.send, [b"end"])
        asyncio.get_running_loop().call_later(0.005, self.stream.finish)


PHASES = [
    "before any message",
    "after headers",
    "while an answer comes",
    "after an answer",
    "after half-close",
]


@pytest.mark.parametrize("make", [Recorder, Echo, Slow])
async def test_a_client_that_aborts_in_any_phase_is_told_once_and_not_logged(
    make: type[Recorder], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(make) as served:
        for round_ in range(60):
            phase = PHASES[round_ % len(PHASES)]
            call = served.call()
            if phase == "before any message":
                await call.wait_for_connection()
            else:
                await call.write(b"headers")
            if phase == "while an answer comes":
                await asyncio.sleep(0.0005 * (round_ % 10))
            if phase == "after an answer" and make is not Recorder:
                assert await call.read() == b"headers"
            if phase == "after half-close":
                await call.done_writing()
            call.cancel()
        await until_idle(served)
        # Streams still on their way when they were cancelled may never have been seen.
        for handler in served.handlers:
            ends = await over(handler)
            assert len(ends) == 1
        assert len(served.handlers) >= 12
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_an_abort_is_hardly_ever_mistaken_for_a_half_close() -> None:
    async with serving(Echo) as served:
        for _ in range(100):
            call = served.call()
            await call.write(b"headers")
            assert await call.read() == b"headers"
            call.cancel()
        await until_idle(served)
        ends = [handler.ends for handler in served.handlers]
        # Not every time: gRPC may tell of the reset too late on a busy machine.
        assert ends.count([False]) >= 90
        assert all(len(told) == 1 for told in ends)


async def test_a_lost_connection_ends_all_its_streams(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Echo) as served:
        relay = await asyncio.start_server(lambda r, w: _relay(r, w, served.port), "127.0.0.1", 0)
        port = relay.sockets[0].getsockname()[1]
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        calls = [channel.stream_stream(METHOD)(timeout=PATIENCE) for _ in range(5)]
        for call in calls:
            await call.write(b"headers")
            assert await call.read() == b"headers"
        relay.close()
        for writer in tuple(_RELAYED):
            writer.transport.abort()
        assert {await call.code() for call in calls} == {grpc.StatusCode.UNAVAILABLE}
        await until_idle(served)
        assert [handler.ends for handler in served.handlers] == [[False]] * 5
        await channel.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


_RELAYED: set[asyncio.StreamWriter] = set()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Pass bytes both ways until a test cuts the connections in ``_RELAYED``."""
    upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
    _RELAYED.update((writer, upstream_writer))

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
        except OSError:
            pass
        finally:
            sink.close()
            _RELAYED.discard(sink)

    await asyncio.gather(pump(reader, upstream_writer), pump(upstream_reader, writer))


def _options(host: str, port: int) -> TransportOptions:
    return TransportOptions(Address(host, port, "PICKER_GRPC_PORT"), message_limit(MIB))


def _accept(stream: Stream) -> Recorder:
    return Recorder(stream)


async def test_a_bound_port_lets_clients_wait_until_it_is_served() -> None:
    options = TransportOptions(Address("127.0.0.1", 0, "PICKER_GRPC_PORT"), message_limit(MIB))
    handlers: list[Echo] = []

    def accept(stream: Stream) -> Echo:
        handlers.append(Echo(stream))
        return handlers[-1]

    transport = harness.make(accept, Health(), options)
    port = transport.bind()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream(METHOD)(timeout=PATIENCE)
            early = asyncio.create_task(call.write(b"early"))
            await asyncio.wait([early], timeout=0.1)
            assert not handlers
            assert await transport.start() == port
            await early
            assert await call.read() == b"early"
            call.cancel()
    finally:
        await transport.stop(0)


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
async def test_a_taken_port_is_one_line_that_names_the_setting(host: str) -> None:
    async with serving() as served:
        with pytest.raises(ServingError) as raised:
            await harness.make(_accept, Health(), _options(host, served.port)).start()
    line = str(raised.value)
    assert "PICKER_GRPC_PORT" in line
    assert "in use" in line
    assert "\n" not in line


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
async def test_an_address_that_is_not_ours_is_an_error(host: str) -> None:
    with pytest.raises(ServingError, match=r"PICKER_BIND") as raised:
        await harness.make(_accept, Health(), _options(host, 0)).start()
    assert host in str(raised.value)


async def test_no_address_means_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # This test alone would listen beyond the loopback, so it only looks at where it would.
    assert str(Address("", 9002, "PICKER_GRPC_PORT")) == "[::]:9002"
    assert str(Address("::1", 9002, "PICKER_GRPC_PORT")) == "[::1]:9002"
    assert str(Address("127.0.0.1", 9002, "PICKER_GRPC_PORT")) == "127.0.0.1:9002"
    asked: list[str] = []

    class Listening:
        def add_insecure_port(self, address: str) -> int:
            asked.append(address)
            return 9002

    def no_ipv6(family: int, *rest: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *rest)

    real = socket.socket
    monkeypatch.setattr(socket, "socket", no_ipv6)
    assert bind(Listening(), Address("", 0, "PICKER_GRPC_PORT")) == 9002
    assert asked == ["[::]:0"]


async def test_stop_before_start_does_nothing() -> None:
    await harness.make(_accept, Health(), _options("127.0.0.1", 0)).stop(1)
