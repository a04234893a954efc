"""The orderly end of serving."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from picker.serving.contract import Transport
    from picker.serving.health import Health


class Drain:
    """NOT_SERVING at once; new streams are answered for ``delay`` more seconds; then the transport stops.

    The delay is for gateways that learn late that this picker is going: what they still send is
    answered as ever. ``timeout`` is what streams that carry a body get to end by themselves.
    """

    def __init__(self, health: Health, transport: Transport, *, delay: float, timeout: float) -> None:
        self._health = health
        self._transport = transport
        self._delay = delay
        self._timeout = timeout
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """Skip the delay and reset at once what cannot be closed (a second SIGTERM). Idempotent."""
        self._hurried.set()

    async def run(self, before: Coroutine[Any, Any, None] | None = None) -> None:
        """Go through all phases; returns when every stream is closed.

        While ``before`` runs, the picker is SERVING as ever; hurrying cuts that short, too.
        """
        hurry = asyncio.create_task(self._hurried.wait())
        preparing = asyncio.create_task(before) if before else None
        try:
            if preparing:
                await asyncio.wait({hurry, preparing}, return_when=asyncio.FIRST_COMPLETED)
                preparing.cancel()
            self._health.drain()
            await asyncio.wait({hurry}, timeout=self._delay)
            stop = asyncio.create_task(self._transport.stop(self._timeout))
            await asyncio.wait({stop, hurry}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.done():
                await self._transport.stop(0)
            await stop
        finally:
            hurry.cancel()
            if preparing:
                with contextlib.suppress(asyncio.CancelledError):
                    await preparing
