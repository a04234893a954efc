"""The answers of routing, and what the rest of the picker tells it about their fate."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from picker.inference.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable


class Visibility(NamedTuple):
    """What of a request's fate the gateway's body modes let the picker see."""

    status: bool
    first_token: bool
    end: bool


class Cause(Enum):
    """How a request ended, from the picker's point of view."""

    COMPLETE = "complete"
    """The end of the answer was seen."""
    CLOSED = "closed"
    """The stream was held to the end, where a normal end and a client's abort look alike."""
    ABORTED = "aborted"
    """The client or the upstream broke off before the end of the answer."""
    UNSEEN = "unseen"
    """The gateway closed the stream after the pick; the request goes on out of sight."""


# Looking a member up in its class takes longer than all that is done with it.
_COMPLETE, _CLOSED = Cause.COMPLETE, Cause.CLOSED


@dataclass(slots=True, frozen=True)
class Outcome:
    """How a request ended and what its answer said. ``status`` is 0 where it was not seen.

    ``served`` is the ``ip:port`` that the gateway reports to have served ("" if it does not say).
    ``back_pressure`` is true where the endpoint said that it is full (Ray's back-pressure text, or
    a 503/429 with Retry-After); ``retry_after`` is then in seconds, if given. ``usage`` is what the
    answer's body says it used, where bodies are seen and say so. ``body_bytes`` of the answer passed by
    (of many small chunks, up to a few bytes too many for each).
    """

    cause: Cause
    status: int = 0
    served: str = ""
    back_pressure: bool = False
    retry_after: float | None = None
    usage: Usage | None = None
    body_bytes: int = 0

    @property
    def whole(self) -> bool:
        """Whether the end was seen, and was not one by breaking off, as far as can be told."""
        return self.cause is _COMPLETE or self.cause is _CLOSED


class Ticket(Protocol):
    """Routing's own mark on one decision; opaque to everybody else."""


class Decision(NamedTuple):
    """The chosen endpoints as ``ip:port`` in order of preference (never empty).

    ``response_headers`` are to be set on the answer to the client, where the gateway lets us see it (a
    session's token).
    """

    endpoints: tuple[str, ...]
    ticket: Ticket
    response_headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, frozen=True)
class Refusal:
    """No endpoint is given: the HTTP status, why (`x-llm-d-request-dropped-reason`), and a text."""

    status: int
    reason: str
    message: str


Answer = Decision | Refusal


class Pending(Protocol):
    """A decision that takes its time (it waits in a queue)."""

    def then(self, callback: Callable[[Answer], None]) -> None:
        """Call back once with the answer, from the event loop, unless cancelled before."""

    def cancel(self) -> None:
        """Forget the question; no call-back follows. Idempotent."""
