"""The state machine of one ext_proc stream, which is one HTTP request. No I/O, no clock.

The request side goes through the states of :class:`_State`; where it goes depends on the gateway's
body mode for requests:

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
written into the body on the way, and the client's back into the answer: in full where both pass the
picker, in mode BUFFERED as a replaced body. In modes streamed and none the body cannot be changed.

The response side only answers and records. Both sides together give at most one ``Ended``: exactly
one if any decision was given. Messages of the gateway are answered after it too, as long as it
sends any: leaving one unanswered would hold its request up.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from picker.extproc.answer import AnswerBody
from picker.extproc.bodies import HeldBody, splice_chunks
from picker.extproc.effects import Ask, Cancel, Done, Ended, FirstToken, NotRewritten, Send
from picker.extproc.messages import (
    CONTENT_LENGTH,
    REQUEST_BODY_ANSWER,
    REQUEST_BODY_CONTINUE,
    REQUEST_ID,
    REQUEST_TRAILERS_CONTINUE,
    RESPONSE_BODY,
    RESPONSE_HEADERS_CONTINUE,
    RESPONSE_TRAILERS_CONTINUE,
    SERVED_ECHO,
    body_replaced,
    body_to,
    header_dict,
    headers_to,
    headers_with,
    immediate,
    mode_override,
    parse,
    read_body_message,
    response_headers,
    streamed_chunks,
)
from picker.extproc.metadata import is_balanced, served_endpoint, subset_hint
from picker.extproc.modes import (
    BUFFERED,
    BUFFERED_PARTIAL,
    DUPLEX,
    NONE,
    SEND,
    SKIP,
    STREAMED,
    comes_in_pieces,
    describe,
    is_buffered,
    shows_body,
    visibility,
)
from picker.extproc.response import ResponseRecord
from picker.extproc.rewriting import model_restorer, splice_model
from picker.inference.reading import NO_MODEL, follow_model, needs_body, read_body, read_headers
from picker.inference.surfaces import EVERY_SURFACE, UNCLAIMED, surface_named
from picker.inference.usage import usage_reader
from picker.routing.decision import Cause, Refusal, Visibility

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from picker.extproc._generated.base_pb2 import Metadata
    from picker.extproc._generated.external_processor_pb2 import HttpBody, HttpHeaders, ProcessingRequest
    from picker.extproc.bodies import BodyBudget, Splice
    from picker.extproc.effects import Buffer, Effect
    from picker.inference.question import Question
    from picker.inference.scan import Body
    from picker.inference.surfaces import Surfaces
    from picker.routing.decision import Answer

_PASS_REQUEST_BODY: Final = Send((REQUEST_BODY_CONTINUE,))
_PASS_REQUEST_TRAILERS: Final = Send((REQUEST_TRAILERS_CONTINUE,))
_PASS_RESPONSE_HEADERS: Final = Send((RESPONSE_HEADERS_CONTINUE,))
_PASS_RESPONSE_TRAILERS: Final = Send((RESPONSE_TRAILERS_CONTINUE,))
_NOTHING: Final = memoryview(b"")
_NO_MODEL_TEXT: Final = "model not found in request body"
"""As the reference picker says it; clients may look for it."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The bounds of one stream, in bytes, and what it does beside picking.

    ``max_body``: of a request's body that is held; beyond it the decision is made on what was read.
    ``strict_bodies``: refuse (400) what cannot be read on the path of an inference API.
    ``chunk_limit``: of one body message that is sent. Larger chunks are split; below gRPC's default
    receive limit of 4 MiB, and no smaller than what Envoy sends by default, so that nothing is split.
    ``surfaces``: the APIs whose requests are read, and what is made of other paths.
    ``read_usage``: read from answers what they used, where their bodies are seen.
    ``echo_served``: tell the client who served it, as conformance tests of gateways want it.
    """

    max_body: int = 64 << 20
    strict_bodies: bool = False
    chunk_limit: int = 1 << 20
    surfaces: Surfaces = EVERY_SURFACE
    read_usage: bool = False
    echo_served: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a session calls, where it is given; neither may raise.

    ``resolve`` is called once per request, when all of it is known that will be and before it is decided
    about. It may set ``Question.model``, the name the endpoint shall be asked for, and
    ``Question.priority``.
    ``new_request_id`` makes the ``x-request-id`` of a request that comes without.
    """

    resolve: Callable[[Question], None] | None = None
    new_request_id: Callable[[], str] | None = None


_NO_SURROUNDINGS: Final = Surroundings()


class _State(Enum):
    """Of the request side."""

    BEGIN = "no headers yet"
    READING = "duplex: the body is gathered, nothing is answered"
    ASKED = "the header answer waits for the decision"
    BODY_AWAITED = "buffered: the headers are answered with a provisional decision"
    BODY_ASKED = "buffered: the body answer waits for the decision"
    PASSING = "decided; what still comes of the body is passed on"
    OVER = "the end of the request was answered, or the gateway gave the request up"


class _End(Enum):
    """By what the end of the request was told. All request messages after it are ignored."""

    HEADERS = "headers"
    BODY = "body"
    TRAILERS = "trailers"


_UNDECIDED: Final = frozenset((_State.READING, _State.ASKED, _State.BODY_AWAITED, _State.BODY_ASKED))


class Session:
    """One stream. Every method gives what is to be done, in order, and none raises."""

    __slots__ = (
        "_answer",
        "_asked",
        "_body_phase",
        "_destination",
        "_done",
        "_end",
        "_ended",
        "_extra_headers",
        "_half_closed",
        "_held",
        "_metadata",
        "_modes_told",
        "_options",
        "_override",
        "_owed",
        "_question",
        "_request_mode",
        "_response",
        "_response_mode",
        "_splice",
        "_started",
        "_state",
        "_subset",
        "_surroundings",
        "_visibility",
    )

    def __init__(
        self, options: SessionOptions, budget: BodyBudget, surroundings: Surroundings = _NO_SURROUNDINGS
    ) -> None:
        self._options = options
        self._surroundings = surroundings
        # Old Envoys and test clients do not tell their modes. They are those of the protocol.
        self._request_mode: int = DUPLEX
        self._response_mode: int = DUPLEX
        self._started = self._modes_told = False
        self._state = _State.BEGIN
        self._end: _End | None = None
        self._question: Question | None = None
        self._subset: tuple[str, ...] | None = None
        self._visibility = Visibility(status=False, first_token=False, end=False)
        self._asked: Ask | None = None
        self._destination = ""
        self._override = b""
        self._extra_headers: tuple[tuple[str, str], ...] = ()
        self._splice: Splice | None = None
        self._held = HeldBody(options.max_body, budget)
        self._owed = 0
        self._body_phase = False
        self._response = ResponseRecord()
        self._answer: AnswerBody | None = None
        self._metadata = b""
        self._ended = False
        self._half_closed = False
        self._done = False

    # What the surroundings want to know.

    @property
    def question(self) -> Question | None:
        """What is asked, from the request headers on."""
        return self._question

    @property
    def gateway_mode(self) -> str:
        """The gateway's body modes, request/response, for logs and metrics."""
        return describe(self._request_mode, self._response_mode)

    @property
    def carries_body(self) -> bool:
        """Whether ending the stream now would lose body bytes: those handed to us are ours to pass on.

        In duplex mode, where the response counts from the decision on: its first chunks may be under
        way to us already. In the others the gateway keeps the body and goes on without us; not so where
        the model's name has still to be changed in it.
        """
        if self._done:
            return False
        if self._state in (_State.BODY_AWAITED, _State.BODY_ASKED) and self._surroundings.resolve is not None:
            return True
        if self._answer is not None and self._answer.is_changed and not self._response.over:
            return True
        if self._request_mode == DUPLEX and self._state not in (_State.BEGIN, _State.OVER):
            return self._end is not _End.HEADERS
        return (
            self._response_mode == DUPLEX
            and not self._response.over
            and (bool(self._destination) or self._response.begun)
        )

    # What happens to a stream.

    def receive(self, message: bytes) -> list[Effect]:
        """Take one whole ProcessingRequest."""
        if self._done:
            return []
        body = read_body_message(message)
        if body is None:
            return self._receive_parsed(message)
        if body.rest and body.rest != self._metadata:
            request = parse(body.rest)
            if request is None:
                return self._fail()
            self._read_metadata(request.metadata_context)
            # The same context comes with every message; it is read again only when it changes.
            self._metadata = body.rest
        if body.tag == RESPONSE_BODY:
            return self._response_body(body.data, end=body.end_of_stream)
        return self._request_body(body.data, end=body.end_of_stream)

    def decided(self, answer: Answer) -> list[Effect]:
        """Take the answer to the last ``Ask``. One that nobody waits for any more is ignored."""
        if self._asked is None:
            return []
        provisional = self._asked.provisional
        self._asked = None
        if isinstance(answer, Refusal):
            return self._refuse(answer)
        destination, before = ",".join(answer.endpoints), self._destination
        self._destination = destination
        if self._state is _State.BODY_ASKED:
            return self._pass_on([self._buffered_answer(destination if destination != before else "")])
        effects: list[Effect] = [self._header_answer(destination)]
        if provisional and self._end is None and not self._owed:
            self._state = _State.BODY_AWAITED
            return effects
        return self._pass_on(effects)

    def expired(self) -> list[Effect]:
        """The deadline of the last ``Ask`` passed."""
        return self._hurry()

    def closed(self, *, clean: bool) -> list[Effect]:
        """The client half-closed the stream (``clean``), or it was reset or lost.

        Who has said all and half-closes still gets the answer that is pending: some gateways do so
        after each request's last message, and read to the end of the stream.
        """
        if self._done:
            return []
        if clean and self._asked is not None and not self._asked.provisional and self._end is not None:
            self._half_closed = True
            return []
        effects = self._stop(self._cause_of_close(clean=clean))
        if clean:
            effects.append(Done())
        return effects

    # Messages that protobuf reads.

    def _receive_parsed(self, message: bytes) -> list[Effect]:
        request = parse(message)
        if request is None:
            return self._fail()
        if request.HasField("metadata_context"):
            self._read_metadata(request.metadata_context)
        phase = request.WhichOneof("request")
        if phase is None:
            return []
        if not self._started:
            self._start(request)
        return self._phase(phase, request)

    def _start(self, request: ProcessingRequest) -> None:
        """Take the gateway's modes, which only the first message of a stream tells."""
        self._started = True
        if request.HasField("protocol_config"):
            self._modes_told = True
            self._request_mode = request.protocol_config.request_body_mode
            self._response_mode = request.protocol_config.response_body_mode

    def _read_metadata(self, metadata: Metadata) -> None:
        subset = subset_hint(metadata)
        if subset is not None:
            self._subset = subset
            if self._question is not None:
                self._question.subset = subset
        self._response.served = served_endpoint(metadata) or self._response.served
        self._response.balanced = self._response.balanced or is_balanced(metadata)

    def _phase(self, phase: str, request: ProcessingRequest) -> list[Effect]:
        match phase:
            case "request_headers":
                return self._request_headers(request.request_headers)
            case "response_headers":
                return self._response_headers(request.response_headers)
            case "request_body":
                data, end = _unusual_body(request.request_body)
                return self._request_body(data, end=end)
            case "response_body":
                data, end = _unusual_body(request.response_body)
                return self._response_body(data, end=end)
            case "request_trailers":
                return self._request_trailers()
            case _:
                return self._response_trailers()

    # The request.

    def _request_headers(self, message: HttpHeaders) -> list[Effect]:
        if self._question is not None or self._end is not None:
            return []
        headers = header_dict(message.headers)
        if self._surroundings.new_request_id is not None and not headers.get(REQUEST_ID):
            headers[REQUEST_ID] = self._surroundings.new_request_id()
            self._extra_headers = ((REQUEST_ID, headers[REQUEST_ID]),)
        question = self._question = read_headers(headers, self._options.surfaces)
        question.subset = self._subset
        needed = needs_body(question)
        if message.end_of_stream:
            self._end = _End.HEADERS
            if needed:
                read_body(question, b"", complete=True)
                needed = False
        if is_buffered(self._request_mode):
            return self._begin_buffered(headers, needed=needed)
        self._visibility = visibility(self._request_mode, self._response_mode, body_phase=needed)
        if needed and self._request_mode == DUPLEX:
            self._state = _State.READING
            return []
        return [*self._resolve(None), *self._ask(_State.ASKED)]

    def _begin_buffered(self, headers: Mapping[str, str], *, needed: bool) -> list[Effect]:
        """Ask at once; and where the body is not needed, or too long for us, have it not sent.

        Never the other way round: a gateway configured not to send bodies hangs on a long one when
        it is asked to buffer it (Envoy 1.40).
        """
        length = headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > self._options.max_body):  # noqa: PLR2004 - an exabyte
            needed = False
        self._visibility = visibility(self._request_mode, self._response_mode, body_phase=needed)
        if not needed and self._end is None:
            trailers = SEND if self._response_mode == DUPLEX else SKIP
            self._override = mode_override(NONE, self._response_mode, trailers)
        if needed:
            return self._ask(_State.ASKED, provisional=True)
        return [*self._resolve(None), *self._ask(_State.ASKED)]

    def _request_body(self, data: memoryview, *, end: bool) -> list[Effect]:
        state = self._state
        if self._end is not None or state is _State.OVER:
            return []
        if end:
            self._end = _End.BODY
        if state is _State.PASSING or state is _State.BEGIN:
            return self._pass_request_body(data, end=end)
        if state is _State.BODY_AWAITED:
            return self._decide_on_buffered(data, end=end)
        if self._request_mode != DUPLEX:
            self._owed += 1
            return []
        fits = self._held.hold(data) if data else True
        if state is _State.READING and (end or not fits):
            return self._decide_on_held(complete=end)
        # Still undecided, and no room to wait any longer.
        return [] if fits else self._hurry()

    def _request_trailers(self) -> list[Effect]:
        state = self._state
        if self._end is not None or state is _State.OVER:
            return []
        self._end = _End.TRAILERS
        if state is _State.READING:
            return self._decide_on_held(complete=True)
        if state is _State.ASKED or state is _State.BODY_ASKED:
            return []
        self._state = _State.OVER
        return [_PASS_REQUEST_TRAILERS]

    def _decide_on_held(self, *, complete: bool) -> list[Effect]:
        body = self._held.whole()
        if self._question is not None:
            read_body(self._question, body, complete=complete)
        return [*self._resolve(body, complete=complete), *self._ask(_State.ASKED, complete=complete)]

    def _decide_on_buffered(self, data: memoryview, *, end: bool) -> list[Effect]:
        """Decide again, now on the body. Without an end of stream it has trailers, unless it is partial."""
        self._body_phase = True
        complete = end or self._request_mode == BUFFERED
        if self._question is not None:
            read_body(self._question, data, complete=complete)
        # A part of a body cannot be replaced: the gateway would compare it with the length of the whole.
        effects = self._resolve(data if complete else None, complete=complete)
        fits = self._splice is None or self._held.hold(data)
        return effects + self._ask(_State.BODY_ASKED, complete=complete, simplest=not fits)

    def _ask(
        self, state: _State, *, provisional: bool = False, simplest: bool = False, complete: bool = True
    ) -> list[Effect]:
        """Ask, unless what was read completely is unreadable and that is no longer tolerated."""
        question = self._question
        if question is None:
            return []
        strict = self._options.strict_bodies or question.surface == UNCLAIMED
        if strict and complete and question.unreadable:
            text = _NO_MODEL_TEXT if question.unreadable == NO_MODEL else question.unreadable
            return self._refuse(Refusal(400, "unreadable-body", text))
        self._state = state
        self._asked = Ask(question, self._visibility, provisional=provisional, simplest=simplest)
        return [self._asked]

    def _resolve(self, body: Body | None, *, complete: bool = True) -> list[Effect]:
        """Find out which model to ask for. It stays the client's where the body cannot say another.

        ``body``: what its name can still be changed in.
        """
        question = self._question
        if question is None or self._surroundings.resolve is None:
            return []
        incoming = question.incoming_model = question.model
        self._surroundings.resolve(question)
        if question.model == incoming:
            return []
        nameless = question.unreadable == NO_MODEL
        if body is not None and (incoming or nameless):
            self._splice = splice_model(body, question.model, complete=complete, nameless=nameless)
            if self._splice is not None:
                follow_model(question)
                question.unreadable = "" if nameless else question.unreadable
                return []
        question.model = incoming
        if self._end is _End.HEADERS or surface_named(question.surface) is None:
            return []
        if body is not None and not incoming and not question.unreadable:
            return []  # an API whose requests name no model
        return [NotRewritten("the name cannot be placed" if body is not None else "the body is not seen")]

    def _hurry(self) -> list[Effect]:
        """Ask again for an answer that does not wait for anything."""
        if self._asked is None or self._asked.simplest:
            return []
        asked = self._asked
        self._asked = Ask(asked.question, asked.visibility, provisional=asked.provisional, simplest=True)
        return [Cancel(), self._asked]

    def _header_answer(self, destination: str) -> Send:
        extra, splice = self._extra_headers, self._splice
        if splice is not None and self._question is not None:
            length = self._question.headers.get(CONTENT_LENGTH, "")
            if _is_length(length):
                old = self._held.size if self._end is not None else int(length)
                extra += ((CONTENT_LENGTH, str(old + splice.growth)),)
        answer = headers_with(destination, extra) if extra else headers_to(destination)
        return Send((answer, self._override) if self._override else (answer,))

    def _buffered_answer(self, destination: str) -> Send:
        """Answer the one body message; with another destination than before, if one is given."""
        if self._splice is None or self._question is None:
            return Send((body_to(destination),)) if destination else _PASS_REQUEST_BODY
        [body] = self._held.release()
        length: tuple[tuple[str, str], ...] = ()
        if CONTENT_LENGTH in self._question.headers:
            length = ((CONTENT_LENGTH, str(len(body) + self._splice.growth)),)
        segments = self._splice.apply(body)
        return Send(body_replaced(REQUEST_BODY_ANSWER, segments, length, destination=destination))

    def _pass_on(self, effects: list[Effect]) -> list[Effect]:
        """Answer, after the decision, what came of the request while it was waited for."""
        if self._request_mode == DUPLEX:
            self._pass_held(effects)
        elif self._owed:
            effects.extend([_PASS_REQUEST_BODY] * self._owed)
            self._owed = 0
        if self._end is _End.TRAILERS:
            effects.append(_PASS_REQUEST_TRAILERS)
        self._state = _State.PASSING if self._end is None else _State.OVER
        if self._half_closed:
            effects.extend(self._stop(self._cause_of_close(clean=True)))
            effects.append(Done())
        return effects

    def _pass_held(self, effects: list[Effect]) -> None:
        held = self._held.release()
        splice = self._splice
        chunks = [(chunk,) for chunk in held] if splice is None else list(splice_chunks(held, splice))
        ends_here = self._end is _End.BODY
        if not chunks and ends_here:
            chunks.append((_NOTHING,))
        last = len(chunks) - 1
        for index, chunk in enumerate(chunks):
            effects.extend(self._echo(chunk, end=ends_here and index == last))

    def _pass_request_body(self, data: memoryview, *, end: bool) -> list[Effect]:
        self._state = _State.OVER if end else _State.PASSING
        if self._request_mode == DUPLEX:
            return self._echo((data,), end=end)
        if is_buffered(self._request_mode):
            # It was told not to send the body, and did: the stream is held to the end of the answer.
            self._body_phase = True
        return [_PASS_REQUEST_BODY]

    def _echo(self, chunk: Sequence[Buffer], *, end: bool) -> list[Effect]:
        """Pass a chunk on, which is given as its segments."""
        limit = self._options.chunk_limit
        answers = streamed_chunks(REQUEST_BODY_ANSWER, chunk, limit, end_of_stream=end)
        return [Send(segments) for segments in answers]

    # The response.

    def _response_headers(self, message: HttpHeaders) -> list[Effect]:
        response = self._response
        if response.over or response.begun:
            return []
        effects: list[Effect] = []
        headers = header_dict(message.headers)
        override = b""
        if self._state in _UNDECIDED:
            # A reply of the gateway itself: a timeout, or a body that it will not buffer. No endpoint
            # has seen the request, so this status is not one's.
            effects = self._give_up_request()
            self._end_request(effects, Cause.ABORTED)
            response.headers(headers)
        else:
            response.headers(headers)
            override = self._override_for_text(headers)
            if not message.end_of_stream:
                self._answer = self._answer_body(headers)
        effects.append(self._response_header_answer(override))
        if message.end_of_stream:
            self._end_response(effects)
        return effects

    def _answer_body(self, headers: Mapping[str, str]) -> AnswerBody:
        """See what is to be read from the answer's body, and what is to be changed in it."""
        question, mode = self._question, self._response_mode
        reader = restorer = None
        if question is not None and shows_body(mode):
            if self._options.read_usage:
                reader = usage_reader(surface_named(question.surface), headers)
            # A part of a body cannot be replaced, see above.
            if self._splice is not None and mode != BUFFERED_PARTIAL:
                restorer = model_restorer(question, headers)
        return AnswerBody(mode, self._options.chunk_limit, headers, reader=reader, restorer=restorer)

    def _response_header_answer(self, override: bytes) -> Send:
        served = ((SERVED_ECHO, self._response.served_in_words),) if self._options.echo_served else ()
        remove = self._answer.headers_to_remove if self._answer is not None else ()
        if served or remove:
            return Send((response_headers(served, remove), override))
        return Send((RESPONSE_HEADERS_CONTINUE, override)) if override else _PASS_RESPONSE_HEADERS

    def _give_up_request(self) -> list[Effect]:
        self._state = _State.OVER
        self._held.release()
        self._splice = None
        if self._asked is None:
            return []
        self._asked = None
        return [Cancel()]

    def _override_for_text(self, headers: Mapping[str, str]) -> bytes:
        """Have the body of a refusal sent where only its text says whether the endpoint is full.

        Only in buffered mode, where overrides are heeded and the stream is held open anyway.
        """
        wanted = (
            is_buffered(self._request_mode)
            and self._response_mode == NONE
            and self._response.text_would_tell(headers)
        )
        return mode_override(self._request_mode, BUFFERED, SKIP) if wanted else b""

    def _response_body(self, data: memoryview, *, end: bool) -> list[Effect]:
        response = self._response
        if response.over:
            return []
        response.begun = True
        if self._answer is None:
            self._answer = AnswerBody(self._response_mode, self._options.chunk_limit, {})
        effects: list[Effect] = []
        effects += self._answer.pass_on(data, end=end)
        if data and not response.body_seen:
            good = response.first_chunk(data)
            if good and self._open and comes_in_pieces(self._response_mode):
                effects.append(FirstToken())
        if end:
            self._end_response(effects)
        return effects

    def _response_trailers(self) -> list[Effect]:
        if self._response.over:
            return []
        effects: list[Effect] = [*self._answer.rest()] if self._answer is not None else []
        effects.append(_PASS_RESPONSE_TRAILERS)
        self._end_response(effects)
        return effects

    # The end.

    @property
    def _open(self) -> bool:
        """Whether a decision was given whose end was not told yet."""
        return bool(self._destination) and not self._ended

    def _end_response(self, effects: list[Effect]) -> None:
        self._response.over = True
        self._end_request(effects, Cause.COMPLETE)

    def _end_request(self, effects: list[Effect], cause: Cause) -> None:
        if self._open:
            self._ended = True
            usage = self._answer.usage if self._answer is not None else None
            effects.append(Ended(self._response.outcome(cause, usage)))

    def _cause_of_close(self, *, clean: bool) -> Cause:
        """What it means that the stream closes before the end of the response was seen.

        A close and a reset say the same of Envoy, which ends about half of its streams by a reset. But
        who tells no modes and half-closes when all is answered never meant to show the response.
        """
        answered = self._state is _State.OVER and bool(self._destination)
        if clean and answered and not self._modes_told and not self._response.begun:
            return Cause.UNSEEN
        if self._state in _UNDECIDED or shows_body(self._response_mode):
            return Cause.ABORTED
        if self._body_phase:
            return Cause.CLOSED
        if self._state is _State.PASSING and self._request_mode in (DUPLEX, STREAMED):
            return Cause.ABORTED
        return Cause.UNSEEN

    def _refuse(self, refusal: Refusal) -> list[Effect]:
        """Have the gateway reply. A provisional decision before it ends as aborted: nothing was sent."""
        question = self._question
        grpc = question is not None and question.headers.get("content-type", "").startswith(
            "application/grpc"
        )
        effects: list[Effect] = [Send((immediate(refusal, grpc=grpc),))]
        effects.extend(self._stop(Cause.ABORTED))
        effects.append(Done(refusal=refusal))
        return effects

    def _fail(self) -> list[Effect]:
        """Reset the stream: what cannot be decoded cannot be answered, and may have been body."""
        effects = self._stop(Cause.ABORTED)
        effects.append(Done("a message that is no ProcessingRequest"))
        return effects

    def _stop(self, cause: Cause) -> list[Effect]:
        """Leave nothing open: no question, no held byte, no request without an end."""
        effects = self._give_up_request()
        self._done = True
        self._end_request(effects, cause)
        return effects


def _is_length(text: str) -> bool:
    """Whether this is a Content-Length: of 18 digits at most, which is an exabyte."""
    return text.isascii() and text.isdecimal() and len(text) <= 18  # noqa: PLR2004 - see above


def _unusual_body(message: HttpBody) -> tuple[memoryview, bool]:
    return memoryview(message.body), message.end_of_stream or message.end_of_stream_without_message
