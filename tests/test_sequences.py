"""Every play-book of the protocol once more: over a real gRPC connection, through the stream's conductor."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types
import pytest

from bench.rig import picker as rig
from picker.extproc._generated.external_processor_pb2 import ProcessingResponse
from picker.extproc.bodies import BodyBudget
from picker.extproc.effects import Ask, Cancel, Ended, FirstToken, NotRewritten
from picker.extproc.session import SessionOptions, Surroundings
from picker.routing.decision import Cause, Outcome, Refusal
from picker.streams import Streams
from tests.extproc import test_playbooks, test_rewriting
from tests.extproc.gateway import (
    ADDRESSES,
    BODY,
    CHAT,
    decision,
    describe,
    describe_effect,
    lines,
    message,
    refusal,
    resolve,
    write,
)
from tests.serving.harness import CLIENT_OPTIONS, METHOD, PATIENCE, serving, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from picker.inference.question import Question
    from picker.routing.decision import Answer, Ticket, Visibility
    from picker.serving.contract import Stream

NEVER = 1000.0
"""Seconds of a deadline that play-books let pass themselves."""
MESSAGES = ("R", "S", "reply")
ENDS = ("done", "reset")


class Picker:
    """Routing that waits for the play-book's decision, and an observer; notes what both are told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.answer: Callable[[Answer], None] | None = None
        self.replaces: Ticket | None = None

    # Routing, and the decision that is pending.

    def ask(
        self,
        question: Question,
        visibility: Visibility,
        _now: float,
        *,
        replaces: Ticket | None = None,
        simplest: bool = False,
    ) -> Picker:
        self.replaces = replaces
        self.told.append(describe_effect(Ask(question, visibility, simplest=simplest)))
        return self

    def then(self, callback: Callable[[Answer], None]) -> None:
        self.answer = callback

    def decide(self, answer: Answer) -> bool:
        """Answer what is asked; False where nothing is."""
        callback, self.answer = self.answer, None
        if callback is None:
            return False
        callback(answer)
        if isinstance(answer, Refusal) and self.replaces is not None:
            # Routing ends by itself what a refusal replaces.
            self.told.append(describe_effect(Ended(Outcome(Cause.ABORTED))))
        return True

    def cancel(self) -> None:
        self.answer = None
        self.told.append(describe_effect(Cancel()))

    def first_token(self, _ticket: Ticket, _now: float) -> None:
        self.told.append(describe_effect(FirstToken()))

    def ended(self, _ticket: Ticket, outcome: Outcome, _now: float) -> None:
        self.told.append(describe_effect(Ended(outcome)))

    # The observer.

    def not_rewritten(self, reason: str) -> None:
        self.told.append(describe_effect(NotRewritten(reason)))

    def internal_error(self, where: str) -> None:
        self.told.append(f"internal error: {where}")

    def ignored(self, *_args: object, **_fields: object) -> None:
        """What is counted and no play-book tells."""

    stream_opened = stream_closed = decided = refused = unreadable = rewritten = used = ignored


class Handler:
    """The stream's own handler; counts what has arrived."""

    def __init__(self, streams: Streams, stream: Stream) -> None:
        self.inner = streams.accept(stream)
        self.seen = 0
        self.closed_once = False

    @property
    def carries_body(self) -> bool:
        return self.inner.carries_body

    def received(self, raw: bytes) -> None:
        self.inner.received(raw)
        self.seen += 1

    def closed(self, *, clean: bool) -> None:
        self.inner.closed(clean=clean)
        self.closed_once = True


class Gateway:
    """The client of one stream."""

    def __init__(self, call: Any, picker: Picker, handlers: list[Any], modes: str) -> None:
        self.call = call
        self.picker = picker
        self.handlers = handlers
        self.modes = modes
        self.sent = 0

    async def play(self, book: str) -> None:
        for event, wanted in lines(book):
            # Whether an answer is provisional is the session's own affair.
            items = [item.replace("ask provisional", "ask") for item in wanted.split(", ") if item]
            if event == "lose" and self.handlers and self.handlers[0].closed_once:
                return  # a transport tells one end only
            if not await self.do(event):
                assert not items
                continue
            told = [item for item in items if not item.startswith(MESSAGES) and item not in ENDS]
            for item in items:
                if item.startswith(MESSAGES) and item not in ENDS:
                    raw = await self.call.read()
                    assert raw is not grpc.aio.EOF, f"{event} -> {item}"
                    assert describe(ProcessingResponse.FromString(raw)) == item, event
            await until(lambda: len(self.picker.told) >= len(told))  # noqa: B023 - it is awaited here
            assert self.picker.told == told, event
            self.picker.told.clear()
            if items and items[-1] in ENDS:
                assert await self.call.read() is grpc.aio.EOF
                assert await self.call.code() is grpc.StatusCode.OK

    async def do(self, event: str) -> bool:
        """Let it happen; False where the stream is over, so that it cannot."""
        word, *rest = event.split()
        match word:
            case "decide" | "refuse":
                return self.picker.decide(decision(rest[0]) if word == "decide" else refusal(rest[0]))
            case "expire" if self.handlers:
                self.handlers[0].inner._expired()
            case _ if self.call.done() or word == "expire":
                return False
            case "close":
                await self.call.done_writing()
                await self.closed()
            case "lose":
                self.call.cancel()
                await self.closed()
            case _:
                modes, self.modes = self.modes, ""
                await self.call.write(write(event, modes))
                self.sent += 1
                await until(lambda: bool(self.handlers) and self.handlers[0].seen == self.sent)
        return True

    async def closed(self) -> None:
        # A stream that is lost before its first message is never shown to a handler.
        await until(lambda: not self.sent or self.handlers[0].closed_once)


@pytest.mark.sequence("over gRPC")
@pytest.mark.parametrize(
    ("modes", "book", "options", "surroundings"),
    [
        pytest.param(*case.values, options, surroundings, id=str(case.id))
        for cases, options, surroundings in (
            (test_playbooks.ALL, SessionOptions(), Surroundings()),
            (test_playbooks.STRICT_ALL, SessionOptions(strict_bodies=True), Surroundings()),
            (test_rewriting.ALL, SessionOptions(), Surroundings(resolve=resolve)),
        )
        for case in cases
    ],
)
async def test_sequence(modes: str, book: str, options: SessionOptions, surroundings: Surroundings) -> None:
    picker = Picker()
    streams = Streams(
        routing=picker,
        observer=picker,
        loop=asyncio.get_running_loop(),
        options=options,
        budget=BodyBudget(1 << 20),
        decision_timeout=NEVER,
        surroundings=surroundings,
    )
    async with serving(lambda stream: Handler(streams, stream)) as served, asyncio.timeout(PATIENCE):
        gateway = Gateway(served.call(), picker, served.handlers, modes)
        await gateway.play(book)
        gateway.call.cancel()
        await gateway.closed()
        assert streams.budget.used == 0


async def alone(address: str, messages: list[bytes]) -> list[ProcessingResponse]:
    """One request of a gateway that has a connection for each, half-closes, and reads to the end."""
    async with grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS) as channel:
        call = channel.stream_stream(METHOD)(timeout=PATIENCE)
        for raw in messages:
            await call.write(raw)
        await call.done_writing()
        answers = [ProcessingResponse.FromString(raw) async for raw in call]
        assert await call.code() is grpc.StatusCode.OK
    return answers


@pytest.mark.sequence("over gRPC")
async def test_a_gateway_that_half_closes_and_waits_for_the_end_is_served_by_the_real_picker() -> None:
    post = [
        message("request_headers", headers={":method": "POST", ":path": CHAT}),
        message("request_body", body=BODY[:20]),
        message("request_body", body=BODY[20:], end=True),
    ]
    get = [message("request_headers", headers={":method": "GET", ":path": "/v1/models"}, end=True)]
    async with rig.Picker({"PICKER_ENDPOINTS": ADDRESSES["a"]}) as picker:
        for headers, *chunks in await asyncio.gather(*(alone(picker.address, post) for _ in range(20))):
            assert describe(headers).startswith("RH a ")
            assert [describe(chunk) for chunk in chunks] == ["RB(20)", f"RB*({len(BODY) - 20})"]
        for answers in await asyncio.gather(*(alone(picker.address, get) for _ in range(20))):
            assert [describe(answer).partition(" x-request-id=")[0] for answer in answers] == ["RH a"]
