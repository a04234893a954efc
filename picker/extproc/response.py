"""The response side of a stream: it is answered, and shows what became of the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from picker.extproc.effects import Send
from picker.extproc.messages import (
    CONTENT_LENGTH,
    RESPONSE_HEADERS_CONTINUE,
    RESPONSE_TRAILERS_CONTINUE,
    SERVED_ECHO,
    mode_override,
    response_headers,
)
from picker.extproc.modes import (
    BUFFERED,
    BUFFERED_PARTIAL,
    DUPLEX,
    NONE,
    SKIP,
    comes_in_pieces,
    is_buffered,
    shows_body,
)
from picker.extproc.response_body import ResponseBody
from picker.extproc.rewriting import model_restorer
from picker.inference.surfaces import surface_named
from picker.inference.usage import usage_reader
from picker.routing.decision import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from picker.extproc.effects import Effect
    from picker.extproc.options import SessionOptions
    from picker.inference.question import Question
    from picker.routing.decision import Cause

_PASS_HEADERS: Final = Send((RESPONSE_HEADERS_CONTINUE,))
_PASS_TRAILERS: Final = Send((RESPONSE_TRAILERS_CONTINUE,))
_REFUSED: Final = (429, 503)
"""Statuses by which a server may say that it is full."""
_RAY_BACK_PRESSURE: Final = b"Request dropped due to backpressure"
"""How the body of a Ray Serve proxy's 503 begins when a queue is full (Ray 2.60)."""
_FIRST_ERROR: Final = 400
_NO_METADATA: Final = "fail: missing envoy lb metadata"
_NOT_SERVED: Final = "fail: missing destination endpoint served metadata"
"""What conformance tests expect to be told instead of an endpoint."""
LONGEST_REFUSAL: Final = 64 << 10
"""Bytes of a refusal's body that are worth being buffered for its text."""


class ResponseSide:
    """Takes the messages of the response, answers them, and remembers what they say.

    ``mode`` is the gateway's body mode for responses, set before anything else happens. Whoever reads
    the metadata sets ``served``, and ``balanced`` where they are a load balancer's at all. ``told``:
    headers to set on it for the client. Who sees the response end sets ``is_over``. Until ``body_seen``,
    the first bytes go to :meth:`first_chunk` too. ``size`` counts the body's bytes that passed by.
    """

    __slots__ = (
        "_back_pressure",
        "_body",
        "_options",
        "_retry_after",
        "_status",
        "balanced",
        "begun",
        "body_seen",
        "is_over",
        "mode",
        "served",
        "size",
        "told",
    )

    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self.mode: int = DUPLEX
        self.served = ""
        self.told: tuple[tuple[str, str], ...] = ()
        self.balanced = False
        self.begun = False
        self.is_over = False
        self._status = 0
        self._back_pressure = False
        self._retry_after: float | None = None
        self._body: ResponseBody | None = None
        self.body_seen = False
        self.size = 0

    @property
    def is_awaited(self) -> bool:
        """Whether the end of its body will pass, so that a stream without it was broken off."""
        return shows_body(self.mode)

    def carries_body(self, *, picked: bool) -> bool:
        """Whether bytes of its body are ours to pass on, and not the gateway's.

        In mode duplex that is so once a pick was made: its first chunks may be under way to us already.
        """
        if self.is_over:
            return False
        if self._body is not None and self._body.is_changed:
            return True
        return self.mode == DUPLEX and (picked or self.begun)

    @property
    def is_echoed(self) -> bool:
        """Whether its body is on its way, and we only pass its chunks on as they are."""
        return self.body_seen and self._body is not None and self._body.is_echoed

    def outcome(self, cause: Cause) -> Outcome:
        """How the request ended."""
        usage = self._body.usage if self._body is not None else None
        return Outcome(
            cause, self._status, self.served, self._back_pressure, self._retry_after, usage, self.size
        )

    # What happens to it.

    def local_reply(self, headers: Mapping[str, str]) -> Send:
        """Take the headers of a reply that the gateway itself makes."""
        self._note(headers)
        return self._header_answer(b"")

    def headers(
        self,
        headers: Mapping[str, str],
        question: Question | None,
        request_mode: int,
        *,
        rewritten: bool,
        end: bool,
    ) -> Send:
        """Take the headers. ``rewritten``: the client's name of the model is to be put back."""
        self._note(headers)
        override = self._override_for_text(headers, request_mode)
        if not end:
            self._body = self._new_body(headers, question, rewritten=rewritten)
        return self._header_answer(override)

    def body(self, data: memoryview, *, end: bool) -> list[Effect]:
        """Take a piece of the body."""
        self.begun = True
        self.size += len(data)
        if self._body is None:
            self._body = ResponseBody(self.mode, self._options.chunk_limit, {})
        return self._body.pass_on(data, end=end)

    def first_chunk(self, data: memoryview) -> bool:
        """Note the first bytes of the body. True if they are an answer's first token, not an error's."""
        self.body_seen = True
        if self._status in _REFUSED and _RAY_BACK_PRESSURE in bytes(data[:LONGEST_REFUSAL]):
            self._back_pressure = True
        return self._status < _FIRST_ERROR and comes_in_pieces(self.mode)

    def trailers(self) -> list[Effect]:
        """Take the trailers."""
        answers = self._body.rest() if self._body is not None else []
        answers.append(_PASS_TRAILERS)
        return answers

    def _note(self, headers: Mapping[str, str]) -> None:
        """Note status and Retry-After. Test clients write ``status`` for ``:status``."""
        self.begun = True
        self._status = _number(headers.get(":status") or headers.get("status", "")) or 0
        retry_after = headers.get("retry-after")
        if retry_after is not None and self._status in _REFUSED:
            self._back_pressure = True
            self._retry_after = _number(retry_after)

    def _new_body(
        self, headers: Mapping[str, str], question: Question | None, *, rewritten: bool
    ) -> ResponseBody:
        """See what is to be read from the body, and what is to be changed in it."""
        reader = restorer = None
        read_usage = self._options.read_usage
        if question is not None and (read_usage or rewritten) and shows_body(self.mode):
            if read_usage:
                reader = usage_reader(surface_named(question.surface), headers)
            # A part of a body cannot be replaced: the gateway would compare it with the length of the whole.
            if rewritten and self.mode != BUFFERED_PARTIAL:
                restorer = model_restorer(question, headers)
        return ResponseBody(self.mode, self._options.chunk_limit, headers, reader=reader, restorer=restorer)

    def _override_for_text(self, headers: Mapping[str, str], request_mode: int) -> bytes:
        """Have the body of a refusal sent where only its text says whether the endpoint is full.

        Only in buffered mode, where overrides are heeded and the stream is held open anyway.
        """
        wanted = self.mode == NONE and is_buffered(request_mode) and self._text_would_tell(headers)
        return mode_override(request_mode, BUFFERED, SKIP) if wanted else b""

    def _text_would_tell(self, headers: Mapping[str, str]) -> bool:
        """Whether only the body can say if this refusal means *full*, and is short enough to be had."""
        if self._status not in _REFUSED or self._back_pressure:
            return False
        length = _number(headers.get(CONTENT_LENGTH, ""))
        return length is not None and 0 < length <= LONGEST_REFUSAL

    def _header_answer(self, override: bytes) -> Send:
        told = self.told
        if self._options.echo_served:
            told = (*told, (SERVED_ECHO, self._served_in_words()))
        remove = self._body.headers_to_remove if self._body is not None else ()
        if told or remove:
            return Send((response_headers(told, remove), override))
        return Send((RESPONSE_HEADERS_CONTINUE, override)) if override else _PASS_HEADERS

    def _served_in_words(self) -> str:
        """Who served, or why that is not known."""
        return self.served or (_NOT_SERVED if self.balanced else _NO_METADATA)


def _number(text: str) -> int | None:
    """A header's value as a whole number; None for anything else, such as an HTTP date."""
    return int(text) if len(text) <= 9 and text.isascii() and text.isdigit() else None  # noqa: PLR2004 - nobody means more digits
