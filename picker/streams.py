"""Carries one ext_proc stream: the session's effects to routing and to the transport, and back.

This is the whole way of a request in one place. Everything here runs on the event loop and does not
wait; the only timer is the deadline of a decision that is pending.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from picker.extproc.bodies import BodyBudget
from picker.extproc.effects import Ask, Cancel, Done, Ended, FirstToken, Send
from picker.extproc.session import Session, SessionOptions, Surroundings
from picker.routing.decision import Cause, Decision, Outcome, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from picker.extproc.effects import Effect
    from picker.inference.question import Question
    from picker.routing.decision import Answer, Pending, Ticket, Visibility
    from picker.serving.contract import Stream

log = logging.getLogger(__name__)


class Routing(Protocol):
    """The part of :class:`picker.routing.router.Router` that a stream needs. ``now`` is in seconds."""

    def ask(
        self,
        question: Question,
        visibility: Visibility,
        now: float,
        *,
        replaces: Ticket | None = None,
        simplest: bool = False,
    ) -> Answer | Pending:
        """Decide, or say that the decision takes its time."""

    def first_token(self, ticket: Ticket, now: float) -> None:
        """Note that the first byte of the answer's body was seen."""

    def ended(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        """Note the end of the request."""


class Observer(Protocol):
    """Who counts what happens to streams."""

    def stream_opened(self) -> None:
        """A stream was opened."""

    def stream_closed(self) -> None:
        """A stream was closed, however."""

    def decided(self, seconds: float, *, simplest: bool) -> None:
        """An endpoint was picked, by the profile or by the simplest policy."""

    def refused(self, reason: str) -> None:
        """The gateway was told to refuse a request."""

    def unreadable(self, reason: str) -> None:
        """A body told no model."""

    def rewritten(self) -> None:
        """A request was sent that asks for another model than its client named."""

    def not_rewritten(self, reason: str) -> None:
        """Another model should have been asked for, but its name could not be written into the body."""

    def used(self, *, prompt: int, cached: int, completion: int) -> None:
        """An answer told the tokens of its prompt, those of them that were cached, and its own."""

    def internal_error(self, where: str) -> None:
        """A fault of the picker itself was caught."""


class Counted(Protocol):
    """A request that was sent, for whoever counts requests."""

    def first_token(self) -> None:
        """The first byte of the answer's body was seen."""

    def ended(self, end: Outcome) -> None:
        """Its end was seen, or will not be seen. Called once."""


class Requests(Protocol):
    """Who counts requests by what they ask for."""

    def picked(self, asked: Question, endpoint: str, began: float) -> Counted:
        """A request was sent to ``endpoint``; its first message came at ``began`` of ``perf_counter``."""

    def refused(self, asked: Question | None, status: int) -> None:
        """A request was refused."""


class Traces(Protocol):
    """Who sends a span for each decision."""

    def decided(self, asked: Question, seconds: float, *, endpoint: str, refused: str) -> None:
        """A decision was made just now; where there is no endpoint, ``refused`` says why."""


@dataclass(slots=True)
class Streams:
    """What all streams of a process share; a transport calls it for each new stream.

    A fault in ``surroundings.resolve`` leaves the request as its client wrote it. ``received`` counts the
    gateway's messages, ``echoed`` those of them that went straight back, unread.
    """

    routing: Routing
    observer: Observer
    loop: asyncio.AbstractEventLoop
    options: SessionOptions
    budget: BodyBudget
    decision_timeout: float
    surroundings: Surroundings = field(default_factory=Surroundings)
    requests: Requests | None = None
    traces: Traces | None = None
    received: int = 0
    echoed: int = 0

    def __post_init__(self) -> None:
        resolve = self.surroundings.resolve
        if resolve is not None:
            self.surroundings = replace(self.surroundings, resolve=self._guard(resolve))

    def _guard(self, resolve: Callable[[Question], None]) -> Callable[[Question], None]:
        def guarded(question: Question) -> None:
            try:
                resolve(question)
            except Exception:
                log.exception("the rules for models failed; the request stays as it came")
                self.observer.internal_error("resolve")
                question.model = question.incoming_model

        return guarded

    def accept(self, stream: Stream) -> ExtProcStream:
        """Make the handler of a new stream."""
        self.observer.stream_opened()
        return ExtProcStream(self, stream)


class ExtProcStream:
    """The handler of one stream (see :class:`picker.serving.contract.Handler`)."""

    __slots__ = (
        "_began",
        "_counted",
        "_pending",
        "_session",
        "_shared",
        "_stream",
        "_ticket",
        "_timer",
        "_traced",
    )

    def __init__(self, shared: Streams, stream: Stream) -> None:
        self._shared = shared
        self._stream = stream
        self._session = Session(shared.options, shared.budget, shared.surroundings)
        self._ticket: Ticket | None = None
        self._pending: Pending | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began = time.perf_counter()
        self._counted: Counted | None = None
        self._traced = False

    @property
    def carries_body(self) -> bool:
        """Whether ending the stream now would lose bytes of a body."""
        return self._session.carries_body

    def received(self, message: bytes) -> None:
        """Take one message of the gateway."""
        self._shared.received += 1
        try:
            self._carry_out(self._session.receive(message))
        except Exception:  # noqa: BLE001 - logged there
            self._failed()

    def closed(self, *, clean: bool) -> None:
        """Take the end of the gateway's messages."""
        self._guarded(lambda: self._session.closed(clean=clean))
        self._shared.observer.stream_closed()

    def _guarded(self, step: Callable[[], list[Effect]]) -> None:
        """Run one step of the session; a fault of ours resets this stream and nothing else."""
        try:
            self._carry_out(step())
        except Exception:  # noqa: BLE001 - logged there
            self._failed()

    def _failed(self) -> None:
        log.exception("a stream is reset because of an internal error")  # noqa: LOG004 - called where it is caught
        self._shared.observer.internal_error("stream")
        self._cancel()
        self._ended(Outcome(Cause.ABORTED))
        self._stream.abort("internal error")

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:  # grows while it runs: an answered question causes further effects
            if type(effect) is Send:
                if effect.soon:
                    self._shared.echoed += 1
                    self._stream.send_soon(effect.segments)
                else:
                    self._stream.send(effect.segments)
            elif type(effect) is Ask:
                effects += self._ask(effect)
            elif type(effect) is FirstToken:
                self._first_token()
            elif type(effect) is Ended:
                self._ended(effect.outcome)
            elif type(effect) is Done:
                self._finish(effect)
            elif type(effect) is Cancel:
                self._cancel()
            else:
                self._shared.observer.not_rewritten(effect.reason)

    def _first_token(self) -> None:
        if self._ticket is not None:
            self._shared.routing.first_token(self._ticket, self._shared.loop.time())
        if self._counted is not None:
            self._counted.first_token()

    def _ask(self, ask: Ask) -> list[Effect]:
        shared = self._shared
        self._cancel()
        # Once a request: a provisional question is asked again with the body, a late one again as it is.
        if ask.question.unreadable and not (ask.provisional or ask.simplest):
            shared.observer.unreadable(ask.question.unreadable)
        began = time.perf_counter()
        answer = self._answer(ask)
        if isinstance(answer, Decision | Refusal):
            return self._take(answer, ask, time.perf_counter() - began)
        self._pending = answer
        self._timer = shared.loop.call_later(shared.decision_timeout, self._expired)
        answer.then(lambda late: self._guarded(lambda: self._decided_late(late, ask, began)))
        return []

    def _answer(self, ask: Ask) -> Answer | Pending:
        """Ask routing; a fault in choosing becomes a pick by the simplest policy."""
        shared = self._shared
        now = shared.loop.time()
        if not ask.simplest:
            try:
                return shared.routing.ask(ask.question, ask.visibility, now, replaces=self._ticket)
            except Exception:
                log.exception("choosing failed; the simplest policy is used instead")
                shared.observer.internal_error("routing")
        return shared.routing.ask(ask.question, ask.visibility, now, replaces=self._ticket, simplest=True)

    def _take(self, answer: Answer, ask: Ask, seconds: float) -> list[Effect]:
        if isinstance(answer, Decision):
            self._ticket = answer.ticket
            if not ask.provisional:
                self._decided(answer, ask, seconds)
        else:
            self._ticket = None
            self._trace(ask.question, seconds, refused=answer.reason)
        return self._session.decided(answer)

    def _decided(self, decision: Decision, ask: Ask, seconds: float) -> None:
        """Tell everybody of a decision that stays."""
        shared, question, endpoint = self._shared, ask.question, decision.endpoints[0]
        shared.observer.decided(seconds, simplest=ask.simplest)
        resolved = shared.surroundings.resolve is not None
        if resolved and question.model != question.incoming_model:
            shared.observer.rewritten()
        if shared.requests is not None:
            self._counted = shared.requests.picked(question, endpoint, self._began)
        if shared.traces is not None:
            self._trace(question, seconds, endpoint=endpoint)
        if log.isEnabledFor(logging.DEBUG):
            _log_decision(decision, question, seconds)

    def _trace(self, question: Question, seconds: float, *, endpoint: str = "", refused: str = "") -> None:
        """Send the request's span; a fault there is not the request's."""
        if self._shared.traces is None:
            return
        self._traced = True
        try:
            self._shared.traces.decided(question, seconds, endpoint=endpoint, refused=refused)
        except Exception:
            log.exception("a span could not be made")
            self._shared.observer.internal_error("traces")

    def _decided_late(self, answer: Answer, ask: Ask, began: float) -> list[Effect]:
        self._pending = None
        self._cancel()
        return self._take(answer, ask, time.perf_counter() - began)

    def _expired(self) -> None:
        self._guarded(self._session.expired)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None

    def _ended(self, outcome: Outcome) -> None:
        usage = outcome.usage
        if usage is not None:
            self._shared.observer.used(
                prompt=usage.prompt_tokens or 0,
                cached=usage.cached_tokens or 0,
                completion=usage.completion_tokens or 0,
            )
        if self._counted is not None:
            counted, self._counted = self._counted, None
            counted.ended(outcome)
        if self._ticket is not None:
            ticket, self._ticket = self._ticket, None
            self._shared.routing.ended(ticket, outcome, self._shared.loop.time())

    def _finish(self, done: Done) -> None:
        if done.refusal is not None:
            self._refused(done.refusal, self._session.question)
        if done.error:
            self._stream.abort(done.error)
        else:
            self._stream.finish()

    def _refused(self, refusal: Refusal, question: Question | None) -> None:
        """Tell everybody of a refusal, which may be the session's own, before any decision."""
        self._shared.observer.refused(refusal.reason)
        if self._shared.requests is not None:
            self._shared.requests.refused(question, refusal.status)
        if question is not None and not self._traced:
            self._trace(question, 0.0, refused=refusal.reason)
        _log_refusal(refusal, question)


def _log_decision(decision: Decision, question: Question, seconds: float) -> None:
    """Say what was chosen; of many that are logged, a few a second are written."""
    fields = {
        "endpoints": ",".join(decision.endpoints),
        "path": question.path,
        "model": question.model,
        "prompt_tokens": question.prompt_tokens,
        "microseconds": round(seconds * 1e6),
        "request_id": question.headers.get("x-request-id", ""),
    }
    log.debug("request is sent", extra={"fields": fields, "sampled": True})


def _log_refusal(refusal: Refusal, question: Question | None) -> None:
    fields: dict[str, object] = {"status": refusal.status, "reason": refusal.reason, "error": refusal.message}
    if question is not None:
        fields |= {
            "method": question.method,
            "path": question.path,
            "request_id": question.headers.get("x-request-id", ""),
        }
    log.warning("request refused", extra={"fields": fields})
