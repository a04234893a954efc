"""What a session learns from the response phases of its request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from picker.routing.decision import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from picker.inference.usage import Usage
    from picker.routing.decision import Cause

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


class ResponseRecord:
    """The response as far as it was seen.

    Whoever reads the metadata sets ``served``, and ``balanced`` where they are a load balancer's at all.
    """

    __slots__ = (
        "_back_pressure",
        "_retry_after",
        "balanced",
        "begun",
        "body_seen",
        "over",
        "served",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        self.served = ""
        self.balanced = False
        self.begun = False
        self.body_seen = False
        self.over = False
        self._back_pressure = False
        self._retry_after: float | None = None

    def headers(self, headers: Mapping[str, str]) -> None:
        """Note status and Retry-After. Test clients write ``status`` for ``:status``."""
        self.begun = True
        self.status = _number(headers.get(":status") or headers.get("status", "")) or 0
        retry_after = headers.get("retry-after")
        if retry_after is not None and self.status in _REFUSED:
            self._back_pressure = True
            self._retry_after = _number(retry_after)

    @property
    def served_in_words(self) -> str:
        """Who served, or why that is not known."""
        return self.served or (_NOT_SERVED if self.balanced else _NO_METADATA)

    def first_chunk(self, data: memoryview) -> bool:
        """Note the first bytes of the body. True if they are the first of an answer, not of an error."""
        self.body_seen = True
        if self.status in _REFUSED and _RAY_BACK_PRESSURE in bytes(data[:LONGEST_REFUSAL]):
            self._back_pressure = True
        return self.status < _FIRST_ERROR

    def text_would_tell(self, headers: Mapping[str, str]) -> bool:
        """Whether only the body can say if this refusal means *full*, and is short enough to be had."""
        if self.status not in _REFUSED or self._back_pressure:
            return False
        length = _number(headers.get("content-length", ""))
        return length is not None and 0 < length <= LONGEST_REFUSAL

    def outcome(self, cause: Cause, usage: Usage | None) -> Outcome:
        """How the request ended."""
        return Outcome(cause, self.status, self.served, self._back_pressure, self._retry_after, usage)


def _number(text: str) -> int | None:
    """A header's value as a whole number; None for anything else, such as an HTTP date."""
    return int(text) if len(text) <= 9 and text.isascii() and text.isdigit() else None  # noqa: PLR2004 - nobody means more digits
