"""What is known of one open stream."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque

    from picker.serving.contract import Buffer
    from picker.serving.http2.heads import Head
    from picker.serving.http2.messages import MessageReader


class Stream:
    """The state that ``Connection`` and ``Outgoing`` share; there may be tens of thousands."""

    __slots__ = (
        "content_left",
        "deadline",
        "finishing",
        "half_closed",
        "headed",
        "mark",
        "outbox",
        "queued",
        "reader",
        "refusal",
        "simple",
        "stream_id",
        "uncredited",
        "window",
    )

    def __init__(self, stream_id: int, window: int, head: Head, now: float) -> None:
        self.stream_id = stream_id
        self.deadline = inf if head.timeout is None else now + head.timeout

        # What comes.
        self.uncredited = 0  # bytes received since the client was last allowed more
        self.half_closed = False
        self.reader: MessageReader | None = None
        self.content_left = head.content_length
        self.refusal = head.refusal
        # The next DATA frame may be read by the short way: no message is unfinished, nothing is odd.
        self.simple = not head.refusal and head.content_length is None

        # What goes.
        self.window = window
        self.headed = False  # the answer's headers are sent
        self.finishing = False
        self.outbox: deque[Buffer] | None = None
        self.queued = 0  # bytes in it
        self.mark = -1  # where its messages begin in what is written next; see `Outgoing.retract`
