"""A whole picker without sockets and without a clock of its own, and what must hold for it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
from typing import TYPE_CHECKING, Any, cast

from bench.micro.fixtures import pool
from picker.extproc.bodies import BodyBudget
from picker.extproc.session import SessionOptions, Surroundings
from picker.observe.prometheus import Metrics
from picker.routing.router import Router
from picker.serving.health import Health
from picker.serving.http2.frames import ACK, DATA, END_STREAM, GOAWAY, HEADERS, PING, frame
from picker.serving.http2.transport import Http2Transport, _Protocol
from picker.serving.listening import Address
from picker.serving.options import TransportOptions
from picker.streams import Streams
from scorer.profile import built_in_profile
from tests.extproc.gateway import BODY, message
from tests.serving.http2.peer import data, opening, taken_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.fuzz.mutate import Case

MAX_MESSAGE = 1 << 20
MAX_BODY = 1 << 18
MAX_BUFFERED = 1 << 20
DECISION_TIMEOUT = 0.15
AFTERMATH = 600.0
"""Seconds after which routing has forgotten every request whose end it cannot see."""
AMPLIFICATION = 40
"""Bytes that may be sent for one received, beyond ``FREE``: an answer to few bytes is largest."""
FREE = 1 << 20
MARKER = b"still on"
SHARING = 0.01
"""Seconds that answers may wait at most for others to share their write."""


class FoundError(AssertionError):
    """Something that must never happen did."""


class Loop:
    """As much of an event loop as the transport uses; its time moves only when it is told to."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._due: list[tuple[float, int, asyncio.Handle]] = []
        self._count = itertools.count()

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: object) -> asyncio.Handle:
        return self.call_at(self._now, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> asyncio.Handle:
        return self.call_at(self._now + max(0.0, delay), callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, cast("asyncio.AbstractEventLoop", self))
        heapq.heappush(self._due, (when, next(self._count), handle))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise FoundError(context["message"]) from context.get("exception")

    def run(self, seconds: float = 0.0) -> None:
        """Let time pass, and do all that falls due."""
        until = self._now + seconds
        while self._due and self._due[0][0] <= until:
            when, _, handle = heapq.heappop(self._due)
            self._now = max(self._now, when)
            if not handle.cancelled():
                handle._run()
        self._now = until


class Wire:
    """The system's end of a connection."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = self.cut = False
        self._reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, buffers: Iterable[bytes]) -> None:
        self.written += b"".join(buffers)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.cut = True

    def is_closing(self) -> bool:
        return self.closed or self.cut

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, _name: str) -> None:
        return None


class _Complaints(logging.Handler):
    """Keeps what was logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class World:
    """A picker that lives through many cases, so that what one leaves behind shows."""

    def __init__(self) -> None:
        self.loop = Loop()
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.fleet = pool(3, random.Random(1), self.loop.time())
        self.metrics = Metrics(self.fleet, self.loop.time)
        self.router = Router(self.fleet, built_in_profile(), random.Random(2))
        self.budget = BodyBudget(MAX_BUFFERED)
        streams = Streams(
            routing=self.router,
            observer=self.metrics,
            loop=loop,
            options=SessionOptions(max_body=MAX_BODY, read_usage=True, echo_served=True),
            budget=self.budget,
            decision_timeout=DECISION_TIMEOUT,
            surroundings=Surroundings(new_request_id=lambda: "id"),
        )
        options = TransportOptions(Address("127.0.0.1", 0, ""), MAX_MESSAGE, max_unfinished=MAX_BUFFERED)
        self.health = Health()
        self.health.set_ready(True)
        self.server = Http2Transport(streams.accept, self.health, options)
        self.complaints = _Complaints()
        logging.getLogger("picker").addHandler(self.complaints)
        self.series = 0

    def close(self) -> None:
        """Listen to the log no more."""
        logging.getLogger("picker").removeHandler(self.complaints)

    def run(self, case: Case) -> None:
        """Play a case against the picker. Raises ``FoundError``, or whatever the picker raised."""
        neighbour = Client(self)
        neighbour.ask()
        client = Client(self)
        for step in case.steps:
            if client.wire.is_closing():
                break
            client.act(step)
        client.check_end()
        client.leave()
        neighbour.check_answer()
        neighbour.leave()
        self._check_left()

    def _check_left(self) -> None:
        """Nothing of the case is left."""
        if self.complaints.records:
            record = self.complaints.records.pop()
            raise FoundError(record.getMessage()) from (record.exc_info[1] if record.exc_info else None)
        for what, left in {
            "streams": self.server.streams_open,
            "connections": len(self.server.protocols),
            "bytes of unfinished messages": self.server.gathering.held,
            "bytes of bodies": self.budget.used,
            "watches": len(self.server._health._watches),
            "requests under way": float(self.fleet.own.sum()),
        }.items():
            if left:
                raise FoundError(f"{left} {what} left")
        self.loop.run(AFTERMATH)
        self.fleet.fetched_at[:] = self.loop.time()
        self.router.tick(self.loop.time())
        if self.fleet.untracked.sum() or self.fleet.own_tokens.sum():
            raise FoundError("requests that are never forgotten")


class Client:
    """One connection to the picker."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.protocol = _Protocol(world.server, cast("asyncio.AbstractEventLoop", world.loop))
        self.wire = Wire()
        self._received = 0
        self.protocol.connection_made(cast("asyncio.BaseTransport", self.wire))

    def act(self, step: bytes | str) -> None:
        """Send bytes, or do what the word says."""
        loop = self._world.loop
        if isinstance(step, bytes):
            self._feed(step)
        elif step == "pause":
            if not self.protocol._paused:
                self.protocol.pause_writing()
        elif step == "resume":
            if self.protocol._paused:
                self.protocol.resume_writing()
        elif step == "tick":
            loop.run(1.0)
            self.protocol.tick(loop.time())
        elif step == "wait":
            loop.run(2 * DECISION_TIMEOUT)
        elif step == "health":
            self._world.health.set_ready(not self._world.health.ready)
        loop.run()

    def _feed(self, part: bytes) -> None:
        view = memoryview(part)
        while view and not self.wire.is_closing():
            if not self.wire.is_reading():
                self._world.loop.run(1.0)
            buffer = self.protocol.get_buffer(-1)
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            self._received += size
            view = view[size:]
            self.protocol.buffer_updated(size)

    def check_end(self) -> None:
        """The connection answers still, or was ended with a GOAWAY."""
        self.act("resume")
        connection = self.protocol.connection
        between = not (connection._tail or connection._data_left or connection._block is not None)
        if not self.wire.is_closing() and between and connection._settled:
            self._feed(frame(PING, 0, 0, MARKER))
            self._world.loop.run(SHARING)
        sent = taken_apart(bytes(self.wire.written))
        if len(self.wire.written) > FREE + AMPLIFICATION * self._received:
            raise FoundError(f"{len(self.wire.written)} bytes sent for {self._received}")
        ended = any(sent_frame.kind == GOAWAY for sent_frame in sent)
        if self.wire.closed and not ended:
            raise FoundError("closed without GOAWAY")
        answered = any((f.kind, f.flags, f.payload) == (PING, ACK, MARKER) for f in sent)
        if between and connection._settled and not (self.wire.is_closing() or answered):
            raise FoundError("a PING is not answered")

    def leave(self) -> None:
        """Lose the connection."""
        self.protocol.connection_lost(None)
        self._world.loop.run()

    def ask(self) -> None:
        """Open a request as a sound gateway would."""
        self._feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(4, ACK, 0))
        self._feed(opening() + data(1, message("request_headers", headers=_POST, modes="duplex/none")))

    def check_answer(self) -> None:
        """Finish it: whatever another client does meanwhile, this one is served."""
        self._feed(data(1, message("request_body", body=BODY, end=True), end=True))
        self._world.loop.run(2 * DECISION_TIMEOUT)
        sent = taken_apart(bytes(self.wire.written))
        kinds = [(f.kind, f.flags) for f in sent if f.stream_id == 1]
        if kinds != [(HEADERS, 4), (DATA, 0), (DATA, 0), (HEADERS, 4 | END_STREAM)]:
            raise FoundError(f"a neighbour is not served: {kinds}")


_POST = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
