"""Between a transport and the code that answers: raw message bytes both ways, no gRPC types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Buffer = bytes | memoryview


class Stream(Protocol):
    """One open ``Process`` call, as the transport offers it. All calls are made on the event loop."""

    def send(self, segments: Sequence[Buffer]) -> None:
        """Queue one message, the concatenation of ``segments``. Ignored once the stream is closed.

        The transport stops delivering received messages while much is queued (back-pressure), so
        the queue is bounded by what one received message can cause to be sent.
        """

    def send_soon(self, segments: Sequence[Buffer]) -> None:
        """As ``send``, for one of many that nobody waits for alone: the next may be taken later."""

    def finish(self) -> None:
        """Close with status OK after all that is queued. Idempotent."""

    def abort(self, reason: str) -> None:
        """Close with an error status at once, dropping what is queued. Idempotent."""


class Handler(Protocol):
    """What answers one stream. Its methods never raise."""

    def received(self, message: bytes) -> None:
        """One whole message of the client."""

    def closed(self, *, clean: bool) -> None:
        """Nothing more comes: the client half-closed (``clean``), or the stream was reset or lost.

        Called exactly once per stream. After a clean close the handler may still send; it ends the
        stream by ``finish``.
        """

    @property
    def carries_body(self) -> bool:
        """True while ending the stream would lose bytes of a body; such a stream is never closed OK."""


Accept = Callable[[Stream], Handler]
"""Called by a transport for each new stream."""


class Transport(Protocol):
    """A server of the ``Process`` method on one port."""

    def bind(self) -> int:
        """Take the port, and return it; connections to it wait. Raises ``ServingError`` where it cannot.

        For a process that ends if it cannot serve: what is only bound may keep the port until then.
        """

    async def start(self) -> int:
        """Serve, after binding if that was not done yet; returns the bound port. Raises as ``bind``."""

    async def stop(self, grace: float) -> None:
        """Send GOAWAY, wait up to ``grace`` seconds for the open streams, reset what is left.

        Streams that carry no body are closed OK at once, streams that do never are. May be called
        again while it runs: the shortest deadline wins.
        """

    @property
    def streams_open(self) -> int:
        """Streams whose handler was not told of their end yet."""


class ServingError(Exception):
    """The server cannot be started as configured; the message is one line for the operator."""
