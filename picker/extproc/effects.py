"""What a session wants done. The session itself does no I/O and keeps no time.

Nobody changes an effect; they are not frozen since making a frozen one takes three times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from picker.inference.question import Question
from picker.routing.decision import Outcome, Refusal, Visibility

Buffer = bytes | memoryview


@final
@dataclass(slots=True)
class Send:
    """Send one ProcessingResponse: the concatenation of ``segments``, which are never copied here.

    ``soon``: it is one of many chunks of an answer, and may wait a moment for the next.
    """

    segments: Sequence[Buffer]
    soon: bool = False


@final
@dataclass(slots=True)
class Ask:
    """Ask routing, and bring the answer by ``Session.decided``.

    ``provisional``: must be answered at once; a later ``Ask`` of the same session may replace it.
    ``simplest``: the deadline is over, take the simplest policy and answer at once.
    Every ``Ask`` after the first replaces the session's decision before.
    """

    question: Question
    visibility: Visibility
    provisional: bool = False
    simplest: bool = False


@final
@dataclass(slots=True)
class Cancel:
    """The last ``Ask`` needs no answer any more."""


@final
@dataclass(slots=True)
class NotRewritten:
    """Another model should be asked for, but the body cannot be made to name it: the client's name stays."""

    reason: str


@final
@dataclass(slots=True)
class FirstToken:
    """The first byte of the answer's body was seen (never: response headers)."""


@final
@dataclass(slots=True)
class Ended:
    """The request is over as far as the picker can see. At most once, only after a decision."""

    outcome: Outcome


@final
@dataclass(slots=True)
class Done:
    """Close the stream: OK where ``error`` is empty, else reset it (a body may be in flight).

    ``refusal`` is what the gateway was told to reply, where the request was refused.
    """

    error: str = ""
    refusal: Refusal | None = None


Effect = Send | Ask | Cancel | NotRewritten | FirstToken | Ended | Done
