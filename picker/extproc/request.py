"""The request side of a stream: what is asked, when it is decided about, how its body is passed on.

It goes through the states of :class:`_State`; where it goes depends on the gateway's body mode:

duplex
    The header answer is withheld until the decision, and the body held meanwhile. Then the chunks
    are passed on as they came. A body that is not needed is not waited for. One that is needed is
    waited for without a deadline: it is the client that takes its time, and the gateway that ends
    what takes too long (Envoy's ``stream_idle_timeout``). What is held meanwhile is bounded.
buffered
    The headers are answered with a provisional decision. If the body is needed it follows as one
    message, and its answer may replace the decision; else the gateway is told not to send it.
streamed, none
    The decision rests on the headers; body messages are answered one by one.

Where another model is to be asked for than the client named (``Surroundings.resolve``), its name is
written into the body on the way: in full where it passes the picker, in mode BUFFERED as a replaced
body. In modes streamed and none the body cannot be changed.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from picker.extproc.bodies import HeldBody
from picker.extproc.effects import Ask, Cancel, NotRewritten, Send
from picker.extproc.messages import (
    CONTENT_LENGTH,
    REQUEST_ID,
    REQUEST_TRAILERS_CONTINUE,
    mode_override,
)
from picker.extproc.modes import BUFFERED, DUPLEX, NONE, SEND, SKIP, STREAMED, is_buffered, visibility
from picker.extproc.request_answers import (
    LONGEST_LENGTH,
    PASS_BODY,
    pass_chunks,
    pick,
    repick,
    replace,
    spliced_length,
)
from picker.extproc.rewriting import resolve_model
from picker.inference.reading import NO_MODEL, needs_body, read_body, read_headers
from picker.inference.surfaces import UNCLAIMED
from picker.routing.decision import Refusal, Visibility

if TYPE_CHECKING:
    from picker.extproc.bodies import BodyBudget, Splice
    from picker.extproc.effects import Effect
    from picker.extproc.options import SessionOptions, Surroundings
    from picker.inference.question import Question
    from picker.inference.scan import Body
    from picker.routing.decision import Answer

_PASS_TRAILERS: Final = Send((REQUEST_TRAILERS_CONTINUE,))
_NO_MODEL_TEXT: Final = "model not found in request body"
"""As the reference picker says it; clients may look for it."""
_UNSEEN: Final = Visibility(status=False, first_token=False, end=False)


class _State(Enum):
    BEGIN = "no headers yet"
    READING = "duplex: the body is gathered, nothing is answered"
    ASKED = "the header answer waits for the decision"
    BODY_AWAITED = "buffered: the headers are answered with a provisional decision"
    BODY_ASKED = "buffered: the body answer waits for the decision"
    PASSING = "decided; what still comes of the body is passed on"
    OVER = "the end of the request was answered, or the gateway gave the request up"


_UNDECIDED: Final = frozenset((_State.READING, _State.ASKED, _State.BODY_AWAITED, _State.BODY_ASKED))


class _End(Enum):
    """By what the end of the request was told. All request messages after it are ignored."""

    HEADERS = "headers"
    BODY = "body"
    TRAILERS = "trailers"


class RequestSide:
    """Takes the messages of the request and the decisions about it, and says what is to be done.

    ``mode`` is the gateway's body mode for requests, set before anything else happens. ``question`` is
    there from the headers on, ``asked`` while an answer is awaited. ``destination`` is what was decided
    last, "" before; ``response_headers`` what the client is to be told of it. Once there is a
    ``refusal``, nobody is to be asked any more. ``is_held_open``: its body came as one message, and the
    gateway holds the stream to the end of the response.
    """

    __slots__ = (
        "_end",
        "_extra_headers",
        "_held",
        "_options",
        "_override",
        "_owed",
        "_splice",
        "_state",
        "_subset",
        "_surroundings",
        "_visibility",
        "asked",
        "destination",
        "is_held_open",
        "mode",
        "question",
        "refusal",
        "response_headers",
    )

    def __init__(self, options: SessionOptions, budget: BodyBudget, surroundings: Surroundings) -> None:
        self._options = options
        self._surroundings = surroundings
        self.mode: int = DUPLEX
        self.question: Question | None = None
        self.asked: Ask | None = None
        self.destination = ""
        self.response_headers: tuple[tuple[str, str], ...] = ()
        self.is_held_open = False
        self.refusal: Refusal | None = None
        self._state = _State.BEGIN
        self._end: _End | None = None
        self._subset: tuple[str, ...] | None = None
        self._visibility = _UNSEEN
        self._override = b""
        self._extra_headers: tuple[tuple[str, str], ...] = ()
        self._splice: Splice | None = None
        self._held = HeldBody(options.max_body, budget)
        self._owed = 0

    # What the session wants to know.

    @property
    def is_undecided(self) -> bool:
        """Whether it has begun, and what was decided so far is provisional at most."""
        return self._state in _UNDECIDED

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is awaited any more."""
        return self._state is _State.OVER

    @property
    def is_streaming(self) -> bool:
        """Whether more of its body is to come by the stream, although it is decided."""
        return self._state is _State.PASSING and self.mode in (DUPLEX, STREAMED)

    @property
    def awaits_decision_only(self) -> bool:
        """Whether all of it has come, and the answer that is pending is the last word."""
        return self.asked is not None and not self.asked.provisional and self._end is not None

    @property
    def is_rewritten(self) -> bool:
        """Whether it asks for another model than its client named."""
        return self._splice is not None

    @property
    def carries_body(self) -> bool:
        """Whether bytes of its body are ours to pass on.

        So it is in mode duplex. In the others the gateway keeps the body and goes on without us; not so
        where the model's name has still to be changed in it.
        """
        if self._state in (_State.BODY_AWAITED, _State.BODY_ASKED):
            return self._surroundings.resolve is not None
        began = self._state not in (_State.BEGIN, _State.OVER)
        return began and self.mode == DUPLEX and self._end is not _End.HEADERS

    # What happens to it.

    def allow(self, subset: tuple[str, ...]) -> None:
        """Note the endpoints that the gateway allows; the latest hint counts."""
        self._subset = subset
        if self.question is not None:
            self.question.subset = subset

    def headers(self, headers: dict[str, str], response_mode: int, *, end: bool) -> list[Effect]:
        """Take the headers."""
        if self.question is not None or self._end is not None:
            return []
        if self._surroundings.new_request_id is not None and not headers.get(REQUEST_ID):
            headers[REQUEST_ID] = self._surroundings.new_request_id()
            self._extra_headers = ((REQUEST_ID, headers[REQUEST_ID]),)
        question = self.question = read_headers(headers, self._options.surfaces)
        question.subset = self._subset
        needed = needs_body(question)
        if end:
            self._end = _End.HEADERS
            if needed:
                read_body(question, b"", complete=True)
                needed = False
        if is_buffered(self.mode):
            return self._begin_buffered(question, response_mode, needed=needed)
        self._visibility = visibility(self.mode, response_mode, body_phase=needed)
        if needed and self.mode == DUPLEX:
            self._state = _State.READING
            return []
        return [*self._resolve(None), *self._ask(_State.ASKED)]

    def body(self, data: memoryview, *, end: bool) -> list[Effect]:
        """Take a chunk of the body, or all of it."""
        state = self._state
        if self._end is not None or state is _State.OVER:
            return []
        if end:
            self._end = _End.BODY
        if state is _State.PASSING or state is _State.BEGIN:
            return self._pass_body(data, end=end)
        if state is _State.BODY_AWAITED:
            return self._decide_on_buffered(data, end=end)
        if self.mode != DUPLEX:
            self._owed += 1
            return []
        fits = self._held.hold(data) if data else True
        if state is _State.READING and (end or not fits):
            return self._decide_on_held(complete=end)
        # Still undecided, and no room to wait any longer.
        return [] if fits else self.hurry()

    def trailers(self) -> list[Effect]:
        """Take the trailers, which end it."""
        state = self._state
        if self._end is not None or state is _State.OVER:
            return []
        self._end = _End.TRAILERS
        if state is _State.READING:
            return self._decide_on_held(complete=True)
        if state is _State.ASKED or state is _State.BODY_ASKED:
            return []
        self._state = _State.OVER
        return [_PASS_TRAILERS]

    def decided(self, answer: Answer) -> list[Effect]:
        """Take the answer to the last ``Ask``. One that nobody waits for any more is ignored."""
        if self.asked is None:
            return []
        provisional = self.asked.provisional
        self.asked = None
        if isinstance(answer, Refusal):
            self.refusal = answer
            return []
        destination, before = ",".join(answer.endpoints), self.destination
        self.destination = destination
        self.response_headers = answer.response_headers
        if self._state is _State.BODY_ASKED:
            return self._pass_on([self._body_answer(destination if destination != before else "")])
        effects: list[Effect] = [self._header_answer(destination)]
        if provisional and self._end is None and not self._owed:
            self._state = _State.BODY_AWAITED
            return effects
        return self._pass_on(effects)

    def hurry(self) -> list[Effect]:
        """Ask again for an answer that does not wait for anything."""
        asked = self.asked
        if asked is None or asked.simplest:
            return []
        self.asked = Ask(asked.question, asked.visibility, provisional=asked.provisional, simplest=True)
        return [Cancel(), self.asked]

    def give_up(self) -> list[Effect]:
        """Let go of what is held and of what was asked: nothing of it matters any more."""
        self._state = _State.OVER
        self._held.release()
        self._splice = None
        if self.asked is None:
            return []
        self.asked = None
        return [Cancel()]

    # Deciding.

    def _begin_buffered(self, question: Question, response_mode: int, *, needed: bool) -> list[Effect]:
        """Ask at once; and where the body is not needed, or too long for us, have it not sent.

        Never the other way round: a gateway configured not to send bodies hangs on a long one when
        it is asked to buffer it (Envoy 1.40).
        """
        needed = needed and not self._is_too_long(question.headers.get(CONTENT_LENGTH, ""))
        self._visibility = visibility(self.mode, response_mode, body_phase=needed)
        if needed:
            return self._ask(_State.ASKED, provisional=True)
        if self._end is None:
            trailers = SEND if response_mode == DUPLEX else SKIP
            self._override = mode_override(NONE, response_mode, trailers)
        return [*self._resolve(None), *self._ask(_State.ASKED)]

    def _is_too_long(self, length: str) -> bool:
        if not length.isdecimal():
            return False
        return len(length) > LONGEST_LENGTH or int(length) > self._options.max_body

    def _decide_on_held(self, *, complete: bool) -> list[Effect]:
        body = self._held.whole()
        if self.question is not None:
            read_body(self.question, body, complete=complete)
        return [*self._resolve(body, complete=complete), *self._ask(_State.ASKED, complete=complete)]

    def _decide_on_buffered(self, data: memoryview, *, end: bool) -> list[Effect]:
        """Decide again, now on the body. Without an end of stream it has trailers, unless it is partial."""
        self.is_held_open = True
        complete = end or self.mode == BUFFERED
        if self.question is not None:
            read_body(self.question, data, complete=complete)
        # A part of a body cannot be replaced: the gateway would compare it with the length of the whole.
        effects = self._resolve(data if complete else None, complete=complete)
        fits = self._splice is None or self._held.hold(data)
        return effects + self._ask(_State.BODY_ASKED, complete=complete, simplest=not fits)

    def _resolve(self, body: Body | None, *, complete: bool = True) -> list[Effect]:
        """Find out which model to ask for. ``body``: what its name can still be changed in."""
        resolve, question = self._surroundings.resolve, self.question
        if question is None or resolve is None:
            return []
        change = resolve_model(question, resolve, body, complete=complete)
        if not isinstance(change, NotRewritten):
            self._splice = change
        elif self._end is not _End.HEADERS:  # without a body nothing names a model
            return [change]
        return []

    def _ask(
        self, state: _State, *, provisional: bool = False, simplest: bool = False, complete: bool = True
    ) -> list[Effect]:
        """Ask, unless what was read completely is unreadable and that is not tolerated."""
        question = self.question
        if question is None:
            return []
        strict = self._options.strict_bodies or question.surface == UNCLAIMED
        if strict and complete and question.unreadable:
            text = _NO_MODEL_TEXT if question.unreadable == NO_MODEL else question.unreadable
            self.refusal = Refusal(400, "unreadable-body", text)
            return []
        self._state = state
        self.asked = Ask(question, self._visibility, provisional=provisional, simplest=simplest)
        return [self.asked]

    # Answering.

    def _header_answer(self, destination: str) -> Send:
        headers = self._extra_headers
        if self._splice is not None and self.question is not None:
            held = self._held.size if self._end is not None else None
            headers += spliced_length(self.question.headers.get(CONTENT_LENGTH, ""), self._splice, held)
        return pick(destination, headers, self._override)

    def _body_answer(self, destination: str) -> Send:
        """Answer the one body message; with another destination than before, if one is given."""
        if self._splice is None or self.question is None:
            return repick(destination)
        [body] = self._held.release()
        return replace(body, self._splice, destination, length_told=CONTENT_LENGTH in self.question.headers)

    def _pass_on(self, effects: list[Effect]) -> list[Effect]:
        """Answer, after the decision, what came while it was waited for."""
        if self.mode == DUPLEX:
            ends = self._end is _End.BODY
            effects += pass_chunks(self._held.release(), self._splice, self._options.chunk_limit, end=ends)
        elif self._owed:
            effects += [PASS_BODY] * self._owed
            self._owed = 0
        if self._end is _End.TRAILERS:
            effects.append(_PASS_TRAILERS)
        self._state = _State.PASSING if self._end is None else _State.OVER
        return effects

    def _pass_body(self, data: memoryview, *, end: bool) -> list[Effect]:
        self._state = _State.OVER if end else _State.PASSING
        if self.mode == DUPLEX:
            return pass_chunks((data,), None, self._options.chunk_limit, end=end)
        if is_buffered(self.mode):
            # It was told not to send the body, and did.
            self.is_held_open = True
        return [PASS_BODY]
