"""Membership from one source, and what another one knows of the members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from picker.endpoints.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from picker.endpoints.endpoint import Source

Enrich = Callable[[Endpoint], Endpoint | None]
"""Gives a member with all that is known of it, or None if it should get no new requests."""

DETAILS_TIMEOUT = 2.0
"""Seconds that the first set waits for the first details."""


class EnrichedSource:
    """The members of ``members``, with what ``details`` tells of them. Nobody else becomes a member.

    Where the details would leave nobody, nobody is left out: membership is not theirs to say. Until there
    are details, and while whoever gives them is silent, the members are taken as they are or were.
    """

    def __init__(self, members: Source, details: Callable[[], AsyncGenerator[Enrich, None]]) -> None:
        self._members = members
        self._details = details

    async def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See :class:`picker.endpoints.endpoint.Source`."""
        members, details = _Latest(self._members.sets()), _Latest(self._details())
        last: tuple[Endpoint, ...] | None = None
        try:
            current: tuple[Endpoint, ...] = await members.next()
            enrich: Enrich = _as_they_are
            done, _ = await asyncio.wait({details.coming}, timeout=DETAILS_TIMEOUT)
            if done:
                enrich = await details.next()
            while True:
                endpoints = _enriched(current, enrich)
                if endpoints != last:
                    last = endpoints
                    yield endpoints
                await asyncio.wait({members.coming, details.coming}, return_when=asyncio.FIRST_COMPLETED)
                if members.coming.done():
                    current = await members.next()
                if details.coming.done():
                    enrich = await details.next()
        finally:
            await details.close()
            await members.close()


class _Latest:
    """A stream whose next value is always being waited for."""

    def __init__(self, values: AsyncGenerator[Any, None]) -> None:
        self._values = values
        self.coming: asyncio.Task[Any] = asyncio.ensure_future(anext(values))

    async def next(self) -> Any:  # noqa: ANN401 - what the stream gives
        """The next value; the one after it is waited for from now on. Raises what the stream raises."""
        value = await self.coming
        self.coming = asyncio.ensure_future(anext(self._values))
        return value

    async def close(self) -> None:
        self.coming.cancel()
        await asyncio.wait({self.coming})
        if not self.coming.cancelled():
            self.coming.exception()  # seen; it ended meanwhile
        await self._values.aclose()


def _as_they_are(endpoint: Endpoint) -> Endpoint:
    return endpoint


def _enriched(members: tuple[Endpoint, ...], enrich: Enrich) -> tuple[Endpoint, ...]:
    known = tuple(found for endpoint in members if (found := enrich(endpoint)) is not None)
    return known or members
