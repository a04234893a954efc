"""The orderly end: who is answered until when, and how each stream is closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types
import pytest

from picker.serving.drain import Drain
from tests.serving.harness import PATIENCE, Echo, Recorder, over, serving, until

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.serving.harness import Served

pytestmark = pytest.mark.usefixtures("transport")


class Body(Recorder):
    """Passes a body on until a message says that it is over; then only the stream's end matters."""

    def received(self, message: bytes) -> None:
        super().received(message)
        self.carries_body = message != b"last"
        self.stream.send([message])


async def within_patience(waiting: Coroutine[Any, Any, None] | asyncio.Task[None]) -> None:
    async with asyncio.timeout(PATIENCE):
        await waiting


async def status(call: Any) -> grpc.StatusCode:
    """How the call ended. Messages are read first: gRPC shows a client no status before them."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return await call.code()


async def draining(served: Served) -> None:
    """Until the stop has begun: the port takes no new connection any more."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            except OSError:
                return
            writer.close()
            await asyncio.sleep(0.001)


async def test_a_stream_kept_for_its_end_only_is_closed_ok_at_once(served: Served) -> None:
    call, handler = await served.opened()
    await within_patience(served.transport.stop(10 * PATIENCE))
    assert await status(call) == grpc.StatusCode.OK
    assert await over(handler) == [True]
    assert served.transport.streams_open == 0


async def test_a_stream_that_carries_a_body_goes_on_to_its_own_end() -> None:
    async with serving(Body) as served:
        call, handler = await served.opened(b"first")
        assert await call.read() == b"first"
        stop = asyncio.create_task(served.transport.stop(10 * PATIENCE))
        await draining(served)
        for n in range(20):
            await call.write(b"%d" % n)
            assert await call.read() == b"%d" % n
        assert not stop.done()
        await call.write(b"last")
        assert await call.read() == b"last"
        assert await call.read() is grpc.aio.EOF
        assert await status(call) == grpc.StatusCode.OK
        await within_patience(stop)
        assert await over(handler) == [True]


async def test_the_end_of_a_body_may_show_in_a_later_answer() -> None:
    async with serving() as served:
        call, handler = await served.opened()
        handler.carries_body = True
        stop = asyncio.create_task(served.transport.stop(10 * PATIENCE))
        await draining(served)
        handler.carries_body = False
        handler.stream.send([b"late"])
        assert [message async for message in call] == [b"late"]
        assert await call.code() == grpc.StatusCode.OK
        await within_patience(stop)


@pytest.mark.parametrize("half_closed", [False, True])
async def test_at_the_deadline_a_body_is_reset_never_closed_ok(
    half_closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Body) as served:
        call, handler = await served.opened(b"first")
        if half_closed:
            await call.done_writing()
            await over(handler)
        await within_patience(served.transport.stop(0.05))
        assert await status(call) == grpc.StatusCode.UNAVAILABLE
        assert await over(handler) == [half_closed]
        assert served.transport.streams_open == 0
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == ["reset 1 streams that were still open at the end of the drain time"]


async def test_a_client_that_does_not_read_cannot_hold_up_the_end() -> None:
    async with serving() as served:
        call, handler = await served.opened()
        handler.carries_body = True
        for _ in range(64):
            handler.stream.send([bytes(1 << 20)])
        await within_patience(served.transport.stop(0.05))
        assert await over(handler) == [False]
        assert await status(call) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_a_stream_without_a_message_yet_is_not_closed_ok() -> None:
    async with serving(Echo) as served:
        await served.opened()
        silent = served.call()
        await silent.wait_for_connection()
        await until(lambda: len(served.handlers) == 2)
        await within_patience(served.transport.stop(0.05))
        assert await status(silent) == grpc.StatusCode.UNAVAILABLE
        assert await over(served.handlers[1]) == [False]


async def test_a_second_stop_shortens_the_first() -> None:
    async with serving(Body) as served:
        call, _ = await served.opened(b"first")
        first = asyncio.create_task(served.transport.stop(10 * PATIENCE))
        await draining(served)
        await within_patience(served.transport.stop(0))
        await within_patience(first)
        assert await status(call) == grpc.StatusCode.UNAVAILABLE


async def test_new_streams_are_answered_in_the_delay() -> None:
    async with serving(Echo) as served:
        served.health.set_ready(True)
        drain = Drain(served.health, served.transport, delay=10 * PATIENCE, timeout=PATIENCE)
        running = asyncio.create_task(drain.run())
        await asyncio.sleep(0)
        assert not served.health.serving
        call, _ = await served.opened(b"in the delay")
        assert await call.read() == b"in the delay"
        await call.done_writing()
        assert await status(call) == grpc.StatusCode.OK
        drain.hurry()
        await within_patience(running)


async def test_serving_goes_on_while_another_picker_is_waited_for() -> None:
    async with serving(Echo) as served:
        served.health.set_ready(True)
        followed = asyncio.Event()
        drain = Drain(served.health, served.transport, delay=0, timeout=PATIENCE)
        running = asyncio.create_task(drain.run(_wait(followed)))
        await asyncio.sleep(0.05)
        assert served.health.serving
        followed.set()
        await within_patience(running)
        assert not served.health.serving


async def test_a_drain_that_is_hurried_waits_for_no_other_picker() -> None:
    async with serving(Echo) as served:
        drain = Drain(served.health, served.transport, delay=10 * PATIENCE, timeout=PATIENCE)
        running = asyncio.create_task(drain.run(_wait(asyncio.Event())))
        await asyncio.sleep(0)
        drain.hurry()
        await within_patience(running)


async def test_a_fault_of_what_comes_before_ends_the_drain_all_the_same() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async with serving(Echo) as served:
        drain = Drain(served.health, served.transport, delay=0, timeout=PATIENCE)
        with pytest.raises(ZeroDivisionError):
            await within_patience(drain.run(fail()))
        assert served.health.draining


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def test_a_drain_that_is_hurried_in_its_delay_skips_it() -> None:
    async with serving(Body) as served:
        call, _ = await served.opened(b"first")
        drain = Drain(served.health, served.transport, delay=10 * PATIENCE, timeout=10 * PATIENCE)
        running = asyncio.create_task(drain.run())
        await asyncio.sleep(0)
        drain.hurry()
        drain.hurry()
        await within_patience(running)
        assert await status(call) == grpc.StatusCode.UNAVAILABLE


async def test_a_drain_that_is_hurried_while_it_waits_resets_what_is_left() -> None:
    async with serving(Body) as served:
        call, _ = await served.opened(b"first")
        drain = Drain(served.health, served.transport, delay=0, timeout=10 * PATIENCE)
        running = asyncio.create_task(drain.run())
        await draining(served)
        drain.hurry()
        await within_patience(running)
        assert await status(call) == grpc.StatusCode.UNAVAILABLE
