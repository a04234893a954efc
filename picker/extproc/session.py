"""The state machine of one ext_proc stream, which is one HTTP request. No I/O, no clock.

The session reads what the gateway sends and tells the two sides of the stream, which say what is to be
answered: :mod:`picker.extproc.request`, which asks for the decision, and :mod:`picker.extproc.response`,
which only answers and records. What concerns both is here: metadata, refusals, and the end.

Both sides together give at most one ``Ended``: exactly one if any decision was given. Messages of the
gateway are answered after it too, as long as it sends any: leaving one unanswered would hold its
request up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from picker.extproc.effects import Done, Ended, FirstToken, Send
from picker.extproc.messages import (
    ECHO_BYTES,
    HEADERS_TAGS,
    REQUEST_HEADERS,
    RESPONSE_BODY,
    echo_of_chunk,
    header_dict,
    immediate,
    parse,
    read_body_message,
)
from picker.extproc.metadata import beside, read_beside
from picker.extproc.options import SessionOptions, Surroundings
from picker.extproc.request import RequestSide
from picker.extproc.response import ResponseSide
from picker.extproc.wire import length_at
from picker.routing.decision import Cause

if TYPE_CHECKING:
    from collections.abc import Mapping

    from picker.extproc._generated.external_processor_pb2 import HttpBody, ProcessingRequest
    from picker.extproc.bodies import BodyBudget
    from picker.extproc.effects import Effect
    from picker.extproc.metadata import Beside
    from picker.inference.question import Question
    from picker.routing.decision import Answer

__all__ = ["Session", "SessionOptions", "Surroundings"]

_NO_SURROUNDINGS: Final = Surroundings()


class Session:
    """One stream. Every method gives what is to be done, in order, and none raises."""

    __slots__ = (
        "_beside",
        "_done",
        "_echoing",
        "_ended",
        "_half_closed",
        "_modes_told",
        "_request",
        "_response",
        "_started",
    )

    def __init__(
        self, options: SessionOptions, budget: BodyBudget, surroundings: Surroundings = _NO_SURROUNDINGS
    ) -> None:
        # Old Envoys and test clients do not tell their modes. The sides begin with those of the protocol.
        self._request = RequestSide(options, budget, surroundings)
        self._response = ResponseSide(options)
        self._started = self._modes_told = False
        self._beside = b""
        self._half_closed = False
        self._ended = False
        self._done = False
        self._echoing = (
            False  # chunks of the response, of which nothing more is to be learned, go straight back
        )

    # What the surroundings want to know.

    @property
    def question(self) -> Question | None:
        """What is asked, from the request headers on."""
        return self._request.question

    @property
    def carries_body(self) -> bool:
        """Whether ending the stream now would lose body bytes: those handed to us are ours to pass on."""
        if self._done:
            return False
        return self._request.carries_body or self._response.carries_body(
            picked=bool(self._request.destination)
        )

    # What happens to a stream.

    def receive(self, message: bytes) -> list[Effect]:
        """Take one whole ProcessingRequest."""
        if self._echoing:
            answer = echo_of_chunk(message, self._beside)
            if answer is not None:
                self._response.size += sum(map(len, answer)) - ECHO_BYTES
                return [Send(answer, soon=True)]
        if self._done:
            return []
        body = read_body_message(message, self._beside)
        if body is None:
            return self._receive_other(message)
        tag, data, end, rest = body
        if rest and rest != self._beside and not self._read_beside(rest):
            return self._fail()
        if tag == RESPONSE_BODY:
            return self._response_body(data, end=end)
        return self._unless_refused(self._request.body(data, end=end))

    def decided(self, answer: Answer) -> list[Effect]:
        """Take the answer to the last ``Ask``. One that nobody waits for any more is ignored."""
        if self._request.asked is None:
            return []
        effects = self._unless_refused(self._request.decided(answer))
        if self._half_closed and not self._done:
            effects.extend(self._stop(self._cause_of_close(clean=True)))
            effects.append(Done())
        return effects

    def expired(self) -> list[Effect]:
        """The deadline of the last ``Ask`` passed."""
        return self._request.hurry()

    def closed(self, *, clean: bool) -> list[Effect]:
        """The client half-closed the stream (``clean``), or it was reset or lost.

        Who has said all and half-closes still gets the answer that is pending: some gateways do so
        after each request's last message, and read to the end of the stream.
        """
        if self._done:
            return []
        if clean and self._request.awaits_decision_only:
            self._half_closed = True
            return []
        effects = self._stop(self._cause_of_close(clean=clean))
        if clean:
            effects.append(Done())
        return effects

    def _receive_other(self, message: bytes) -> list[Effect]:
        """Have protobuf read it; of headers what stands behind them only where it is new."""
        stop, _ = length_at(message, 1) if message[:1] in HEADERS_TAGS else (-1, 0)
        fields = message[stop:] if stop > 0 else b""
        if stop < 0 or (fields and fields != self._beside and not self._read_beside(fields)):
            return self._receive_parsed(message)
        request = parse(message[:stop])
        if request is None:
            return self._fail()
        self._started = True
        return self._phase(
            "request_headers" if message[0] == REQUEST_HEADERS else "response_headers", request
        )

    def _read_beside(self, fields: bytes) -> bool:
        """Take what stands beside a phase. The same comes with every message; it is taken once.

        False: it cannot be decoded, or is more than that.
        """
        told = read_beside(fields)
        if told is None or told.phase is not None:
            return False
        self._beside = fields
        self._told(told)
        return True

    def _told(self, told: Beside) -> None:
        # Only the first message of a stream tells the gateway's modes.
        if told.modes is not None and not self._started:
            self._modes_told = True
            self._request.mode, self._response.mode = told.modes
        if told.subset is not None:
            self._request.allow(told.subset)
        response = self._response
        response.served = told.served or response.served
        response.balanced = response.balanced or told.balanced

    # Messages that protobuf reads.

    def _receive_parsed(self, message: bytes) -> list[Effect]:
        request = parse(message)
        if request is None:
            return self._fail()
        told = beside(request)
        if told.phase is None:
            self._told(told._replace(modes=None))
            return []
        self._told(told)
        self._started = True
        return self._phase(told.phase, request)

    def _phase(self, phase: str, request: ProcessingRequest) -> list[Effect]:
        match phase:
            case "request_headers":
                read = request.request_headers
                return self._request_headers(header_dict(read.headers), end=read.end_of_stream)
            case "response_headers":
                read = request.response_headers
                return self._response_headers(header_dict(read.headers), end=read.end_of_stream)
            case "request_body":
                data, end = _unusual_body(request.request_body)
                return self._unless_refused(self._request.body(data, end=end))
            case "response_body":
                data, end = _unusual_body(request.response_body)
                return self._response_body(data, end=end)
            case "request_trailers":
                return self._unless_refused(self._request.trailers())
            case _:
                return self._response_trailers()

    def _request_headers(self, headers: dict[str, str], *, end: bool) -> list[Effect]:
        return self._unless_refused(self._request.headers(headers, self._response.mode, end=end))

    # The response, and what it means for the request.

    def _response_headers(self, headers: Mapping[str, str], *, end: bool) -> list[Effect]:
        request, response = self._request, self._response
        if response.is_over or response.begun:
            return []
        effects: list[Effect] = []
        if request.is_undecided:
            # A reply of the gateway itself: a timeout, or a body that it will not buffer. No endpoint
            # has seen the request, so this status is not one's.
            self._give_up_request(effects)
            effects.append(response.local_reply(headers))
        else:
            response.told = request.response_headers
            effects.append(
                response.headers(
                    headers, request.question, request.mode, rewritten=request.is_rewritten, end=end
                )
            )
        if end:
            self._end_response(effects)
        return effects

    def _response_body(self, data: memoryview, *, end: bool) -> list[Effect]:
        response = self._response
        if response.is_over:
            return []
        effects: list[Effect] = []
        self._give_up_request(effects)
        effects += response.body(data, end=end)
        if data and not response.body_seen:
            if response.first_chunk(data) and self._is_open:
                effects.append(FirstToken())
            self._echoing = response.is_echoed
        if end:
            self._end_response(effects)
        return effects

    def _response_trailers(self) -> list[Effect]:
        if self._response.is_over:
            return []
        effects: list[Effect] = []
        self._give_up_request(effects)
        effects += self._response.trailers()
        self._end_response(effects)
        return effects

    # The end.

    @property
    def _is_open(self) -> bool:
        """Whether a decision was given whose end was not told yet."""
        return bool(self._request.destination) and not self._ended

    def _give_up_request(self, effects: list[Effect]) -> None:
        """A request that is answered before it was decided about is decided about no more.

        Nobody would tell the end of such a decision.
        """
        if self._request.is_undecided:
            effects += self._request.give_up()
            self._end_request(effects, Cause.ABORTED)

    def _end_response(self, effects: list[Effect]) -> None:
        self._response.is_over = True
        self._echoing = False
        self._end_request(effects, Cause.COMPLETE)

    def _end_request(self, effects: list[Effect], cause: Cause) -> None:
        if self._is_open:
            self._ended = True
            effects.append(Ended(self._response.outcome(cause)))

    def _cause_of_close(self, *, clean: bool) -> Cause:
        """What it means that the stream closes before the end of the response was seen.

        A close and a reset say the same of Envoy, which ends about half of its streams by a reset. But
        who tells no modes and half-closes when all is answered never meant to show the response.
        """
        request, response = self._request, self._response
        answered = request.is_over and bool(request.destination)
        if clean and answered and not self._modes_told and not response.begun:
            return Cause.UNSEEN
        if request.is_undecided or response.is_awaited:
            return Cause.ABORTED
        if request.is_held_open:
            return Cause.CLOSED
        return Cause.ABORTED if request.is_streaming else Cause.UNSEEN

    def _unless_refused(self, effects: list[Effect]) -> list[Effect]:
        """What the request side wants, and then the gateway's own reply where there is a refusal.

        A provisional decision before it ends as aborted: nothing was sent.
        """
        refusal = self._request.refusal
        if refusal is None:
            return effects
        question = self._request.question
        grpc = question is not None and question.headers.get("content-type", "").startswith(
            "application/grpc"
        )
        effects.append(Send((immediate(refusal, grpc=grpc),)))
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
        effects = self._request.give_up()
        self._done = True
        self._echoing = False
        self._end_request(effects, cause)
        return effects


def _unusual_body(message: HttpBody) -> tuple[memoryview, bool]:
    return memoryview(message.body), message.end_of_stream or message.end_of_stream_without_message
