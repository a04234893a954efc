"""One stream between a fake transport and a fake routing: late, failing and refused decisions."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from picker.extproc.bodies import BodyBudget
from picker.extproc.session import SessionOptions, Surroundings
from picker.routing.decision import Cause, Decision, Outcome, Refusal
from picker.streams import ExtProcStream, Streams
from tests.extproc.gateway import BODY, message, resolve
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from picker.inference.question import Question
    from picker.routing.decision import Answer, Pending, Ticket, Visibility

TIMEOUT = 0.02
POST = {":method": "POST", ":path": "/v1/chat/completions"}
GET = {":method": "GET", ":path": "/"}


@dataclass
class Wire:
    """The transport's end of a stream."""

    sent: list[bytes] = field(default_factory=list)
    end: str = ""

    def send(self, segments: Sequence[bytes | memoryview]) -> None:
        self.sent.append(b"".join(segments))

    send_soon = send

    def finish(self) -> None:
        self.end = self.end or "finished"

    def abort(self, reason: str) -> None:
        self.end = self.end or f"aborted: {reason}"

    async def answered(self) -> None:
        """Wait until something is sent: a deadline is the event loop's own."""

        async def sent() -> bool:
            return bool(self.sent)

        await eventually(sent)


@dataclass
class Later:
    """A decision that waits for the test."""

    callback: Callable[[Answer], None] | None = None
    cancelled: bool = False

    def then(self, callback: Callable[[Answer], None]) -> None:
        self.callback = callback

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Routing:
    """Answers with what it was given, in order, and remembers what it was told."""

    answers: list[Answer | Pending | Exception]
    asked: list[tuple[bool, Ticket | None]] = field(default_factory=list)
    told: list[tuple[Ticket, object]] = field(default_factory=list)

    def ask(
        self,
        _question: Question,
        _visibility: Visibility,
        _now: float,
        *,
        replaces: Ticket | None = None,
        simplest: bool = False,
    ) -> Answer | Pending:
        self.asked.append((simplest, replaces))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def first_token(self, ticket: Ticket, _now: float) -> None:
        self.told.append((ticket, "first token"))

    def ended(self, ticket: Ticket, outcome: Outcome, _now: float) -> None:
        self.told.append((ticket, outcome.cause))


@dataclass
class Observer:
    """A list of what was counted."""

    counted: list[str] = field(default_factory=list)

    def stream_opened(self) -> None:
        self.counted.append("opened")

    def stream_closed(self) -> None:
        self.counted.append("closed")

    def decided(self, _seconds: float, *, simplest: bool) -> None:
        self.counted.append("simplest" if simplest else "picked")

    def refused(self, reason: str) -> None:
        self.counted.append(reason)

    def unreadable(self, reason: str) -> None:
        self.counted.append(f"unreadable: {reason}")

    def rewritten(self) -> None:
        self.counted.append("rewritten")

    def used(self, *, prompt: int, cached: int, completion: int) -> None:
        self.counted.append(f"used: {prompt} {cached} {completion}")

    def not_rewritten(self, reason: str) -> None:
        self.counted.append(f"not rewritten: {reason}")

    def internal_error(self, where: str) -> None:
        self.counted.append(f"internal error: {where}")


@dataclass
class Rig:
    wire: Wire
    routing: Routing
    observer: Observer
    streams: Streams
    stream: ExtProcStream = field(init=False)

    def __post_init__(self) -> None:
        self.stream = self.stream_again()

    def stream_again(self) -> ExtProcStream:
        return self.streams.accept(self.wire)


def rig(
    *answers: Answer | Pending | Exception, strict: bool = False, surroundings: Surroundings | None = None
) -> Rig:
    wire, routing, observer = Wire(), Routing(list(answers)), Observer()
    streams = Streams(
        routing=routing,
        observer=observer,
        loop=asyncio.get_running_loop(),
        options=SessionOptions(strict_bodies=strict),
        budget=BodyBudget(1 << 20),
        decision_timeout=TIMEOUT,
        surroundings=surroundings or Surroundings(),
    )
    return Rig(wire, routing, observer, streams)


def pick(address: str = "10.0.0.1:8000") -> Decision:
    return Decision((address,), ticket=object())


async def test_a_request_is_answered_and_its_end_told() -> None:
    decision = pick()
    it = rig(decision)
    it.stream.received(message("request_headers", headers=GET, end=True))
    assert b"10.0.0.1:8000" in it.wire.sent[0]
    it.stream.received(message("response_headers", headers={":status": "200"}, end=True))
    it.stream.closed(clean=True)
    assert it.routing.told == [(decision.ticket, Cause.COMPLETE)]
    assert it.observer.counted == ["opened", "picked", "closed"]
    assert it.wire.end == "finished"


async def test_a_decision_that_comes_later_is_sent_when_it_comes() -> None:
    later = Later()
    it = rig(later)
    it.stream.received(message("request_headers", headers=GET, end=True))
    assert it.wire.sent == []
    assert later.callback is not None
    later.callback(pick())
    assert b"10.0.0.1:8000" in it.wire.sent[0]


async def test_a_decision_that_comes_too_late_is_replaced_by_the_simplest() -> None:
    later = Later()
    it = rig(later, pick("10.0.0.2:8000"))
    it.stream.received(message("request_headers", headers=GET, end=True))
    await it.wire.answered()
    assert later.cancelled
    assert b"10.0.0.2:8000" in it.wire.sent[0]
    assert it.routing.asked == [(False, None), (True, None)]
    assert it.observer.counted == ["opened", "simplest"]


async def test_a_client_that_leaves_cancels_what_is_pending() -> None:
    later = Later()
    it = rig(later)
    it.stream.received(message("request_headers", headers=GET, end=True))
    it.stream.closed(clean=False)
    assert later.cancelled
    assert it.routing.told == []
    assert it.observer.counted == ["opened", "closed"]


async def test_when_choosing_fails_the_simplest_policy_picks(caplog: pytest.LogCaptureFixture) -> None:
    it = rig(ZeroDivisionError(), pick())
    it.stream.received(message("request_headers", headers=GET, end=True))
    assert b"10.0.0.1:8000" in it.wire.sent[0]
    assert it.observer.counted == ["opened", "internal error: routing", "picked"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_when_even_that_fails_only_this_stream_is_reset(caplog: pytest.LogCaptureFixture) -> None:
    it = rig(ZeroDivisionError(), ZeroDivisionError())
    it.stream.received(message("request_headers", headers=GET, end=True))
    assert it.wire.end == "aborted: internal error"
    it.stream.closed(clean=False)
    assert it.observer.counted[-1] == "closed"
    assert len(caplog.records) == 2


async def test_the_decision_on_the_body_replaces_the_provisional_one() -> None:
    provisional, final = pick("10.0.0.1:8000"), pick("10.0.0.2:8000")
    it = rig(provisional, final)
    it.stream.received(message("request_headers", headers=POST, modes="buffered/none"))
    it.stream.received(message("request_body", body=b'{"model": "m", "messages": ["hello"]}', end=True))
    assert b"10.0.0.2:8000" in it.wire.sent[1]
    assert it.routing.asked == [(False, None), (False, provisional.ticket)]
    it.stream.closed(clean=False)
    assert it.routing.told == [(final.ticket, Cause.CLOSED)]
    assert it.observer.counted == ["opened", "picked", "closed"]


async def test_a_refusal_is_counted_and_logged_with_what_identifies_the_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = rig(Refusal(503, "rejected-no-endpoints", "none"))
    headers = GET | {"x-request-id": "1-2-3"}
    it.stream.received(message("request_headers", headers=headers, end=True))
    assert it.wire.end == "finished"
    assert it.observer.counted == ["opened", "rejected-no-endpoints"]
    [record] = caplog.records
    assert record.__dict__["fields"]["request_id"] == "1-2-3"


@dataclass
class Told:
    """Takes spans, and what is counted by model."""

    told: list[tuple[object, ...]] = field(default_factory=list)
    error: Exception | None = None

    def decided(self, asked: Question, _seconds: float, *, endpoint: str, refused: str) -> None:
        self.told.append((asked.path, endpoint, refused))
        if self.error is not None:
            raise self.error

    def picked(self, asked: Question, endpoint: str, _began: float) -> Told:
        self.told.append((asked.model, endpoint))
        return self

    def refused(self, asked: Question | None, status: int) -> None:
        self.told.append((asked and asked.model, status))

    def first_token(self) -> None:
        self.told.append(("first token",))

    def ended(self, end: Outcome) -> None:
        self.told.append((end.cause,))


async def test_a_decision_that_stays_is_one_span() -> None:
    it, spans = rig(pick("10.0.0.1:8000"), pick("10.0.0.2:8000")), Told()
    it.streams.traces = spans
    it.stream.received(message("request_headers", headers=POST, modes="buffered/none"))
    assert spans.told == []
    it.stream.received(message("request_body", body=b'{"model": "m", "messages": ["hello"]}', end=True))
    it.stream.closed(clean=False)
    assert spans.told == [("/v1/chat/completions", "10.0.0.2:8000", "")]


@pytest.mark.parametrize("strict", [False, True])
async def test_a_refusal_is_one_span_whoever_refuses(strict: bool) -> None:
    it, spans = rig(Refusal(503, "rejected-no-endpoints", "none"), strict=strict), Told()
    it.streams.traces = spans
    it.stream.received(message("request_headers", headers=POST))
    it.stream.received(message("request_body", body=b"not json", end=True))
    reason = "unreadable-body" if strict else "rejected-no-endpoints"
    assert spans.told == [("/v1/chat/completions", "", reason)]


async def test_a_span_that_cannot_be_made_is_not_the_requests_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it, spans = rig(pick()), Told(error=ZeroDivisionError())
    it.streams.traces = spans
    it.stream.received(message("request_headers", headers=GET, end=True))
    assert b"10.0.0.1:8000" in it.wire.sent[0]
    assert it.observer.counted == ["opened", "picked", "internal error: traces"]
    assert caplog.messages == ["a span could not be made"]


async def test_requests_are_counted_from_the_decision_to_the_end() -> None:
    it, counts = rig(pick()), Told()
    it.streams.requests = counts
    it.stream.received(message("request_headers", headers=POST))
    it.stream.received(message("request_body", body=BODY, end=True))
    it.stream.received(message("response_headers", headers={":status": "200"}))
    it.stream.received(message("response_body", body=b"a"))
    it.stream.received(message("response_body", body=b"b"))
    assert (it.streams.received, it.streams.echoed) == (5, 1)
    it.stream.received(message("response_body", body=b"c", end=True))
    it.stream.closed(clean=True)
    assert counts.told == [("llama", "10.0.0.1:8000"), ("first token",), (Cause.COMPLETE,)]


async def test_decisions_are_logged_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    it = rig(pick(), pick())
    headers = GET | {"x-request-id": "1-2-3"}
    it.stream.received(message("request_headers", headers=headers, end=True))
    assert caplog.records == []
    caplog.set_level(logging.DEBUG, "picker.streams")
    it.stream_again().received(message("request_headers", headers=headers, end=True))
    (record,) = [record for record in caplog.records if record.name == "picker.streams"]
    assert vars(record)["sampled"] is True
    assert vars(record)["fields"]["request_id"] == "1-2-3"
    assert vars(record)["fields"]["endpoints"] == "10.0.0.1:8000"


async def test_what_cannot_be_read_is_counted_and_routed_all_the_same() -> None:
    it = rig(pick())
    it.stream.received(message("request_headers", headers=POST))
    it.stream.received(message("request_body", body=b"not json", end=True))
    assert it.observer.counted[1].startswith("unreadable: not JSON")
    assert it.observer.counted[2] == "picked"


async def test_what_cannot_be_read_is_counted_once_also_where_the_decision_is_late() -> None:
    it = rig(Later(), pick())
    it.stream.received(message("request_headers", headers=POST))
    it.stream.received(message("request_body", body=b"not json", end=True))
    await it.wire.answered()
    assert [counted for counted in it.observer.counted if counted.startswith("unreadable")] == [
        it.observer.counted[1]
    ]
    assert it.observer.counted[-1] == "simplest"


async def test_in_strict_mode_it_is_refused_without_asking() -> None:
    it = rig(strict=True)
    it.stream.received(message("request_headers", headers=POST))
    it.stream.received(message("request_body", body=b"not json", end=True))
    assert b"inference error: BadRequest" in it.wire.sent[0]
    assert it.observer.counted == ["opened", "unreadable-body"]
    assert it.wire.end == "finished"


async def test_garbage_resets_the_stream_without_a_word_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    it = rig()
    it.stream.received(b"\xff\xff\xff")
    assert it.wire.end.startswith("aborted")
    assert caplog.records == []


async def test_a_gateway_that_half_closes_after_its_last_message_gets_the_answer() -> None:
    later, decision = Later(), pick()
    it = rig(later)
    it.stream.received(message("request_headers", headers=GET, end=True))
    it.stream.closed(clean=True)
    assert (it.wire.end, later.cancelled) == ("", False)
    assert later.callback is not None
    later.callback(decision)
    assert b"10.0.0.1:8000" in it.wire.sent[0]
    assert it.wire.end == "finished"
    assert it.routing.told == [(decision.ticket, Cause.UNSEEN)]


async def test_rules_rewrite_what_they_can_and_the_rest_is_counted() -> None:
    it = rig(pick(), pick(), surroundings=Surroundings(resolve=resolve))
    it.stream.received(message("request_headers", headers=POST))
    it.stream.received(message("request_body", body=BODY, end=True))
    assert b'"model":"llama-v2"' in it.wire.sent[1]
    other = it.stream_again()
    other.received(message("request_headers", headers=POST, modes="none/none"))
    assert it.observer.counted == [
        "opened",
        "picked",
        "rewritten",
        "opened",
        "not rewritten: the body is not seen",
        "picked",
    ]


async def test_rules_that_fail_leave_the_request_as_it_came(caplog: pytest.LogCaptureFixture) -> None:
    def failing(question: Question) -> None:
        question.model = "half done"
        raise ZeroDivisionError

    it = rig(pick(), surroundings=Surroundings(resolve=failing))
    it.stream.received(message("request_headers", headers=POST))
    it.stream.received(message("request_body", body=BODY, end=True))
    assert BODY in it.wire.sent[1]
    assert it.observer.counted == ["opened", "internal error: resolve", "picked"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
