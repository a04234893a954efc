"""Requests to the members that a Ray head names, as routing chooses among them; no gateway is needed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import aiohttp

from picker.endpoints.roster import Roster
from picker.inference.question import Question
from picker.routing.decision import Cause, Decision, Outcome, Visibility
from picker.routing.router import Router
from scorer.fleet import Fleet
from scorer.profile import built_in_profile
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from picker.endpoints.endpoint import Endpoint
    from picker.endpoints.ray_head import RayHeadSource

RATE = 10.0
"""Requests a second."""
SEES_ALL = Visibility(status=True, first_token=True, end=True)
LONG = 120.0


class Door:
    """Sends requests, and keeps what became of them."""

    def __init__(self, source: RayHeadSource) -> None:
        self._source = source
        self._fleet = Fleet()
        self._roster = Roster(self._fleet, on_added=_none, on_removed=_none, on_changed=_none)
        self._router = Router(self._fleet, built_in_profile(), Random(1))
        self.fates: list[tuple[str, int, int]] = []
        """Address, status and release of each answer; status 0 for none."""

    @property
    def members(self) -> dict[str, Endpoint]:
        return {endpoint.address: endpoint for endpoint in self._roster.endpoints.values()}

    async def follow(self) -> None:
        async for endpoints in self._source.sets():
            self._roster.apply(endpoints)

    async def flow(self) -> None:
        """Requests at a steady rate, each on a connection of its own, until cancelled."""
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as client, asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._send(client))
                await asyncio.sleep(1 / RATE)

    async def _send(self, client: aiohttp.ClientSession) -> None:
        now = asyncio.get_running_loop().time
        decision = self._router.ask(Question(path="/hello"), SEES_ALL, now())
        assert isinstance(decision, Decision)
        address, status, release = decision.endpoints[0], 0, -1
        try:
            async with client.get(f"http://{address}/hello") as response:
                status = response.status
                if status == 200:
                    release = (await response.json())["release"]
        except aiohttp.ClientError:
            pass
        self.fates.append((address, status, release))
        self._router.ended(decision.ticket, Outcome(Cause.COMPLETE, status=status or 503), now())

    @property
    def failures(self) -> list[tuple[str, int, int]]:
        return [fate for fate in self.fates if fate[1] != 200]

    async def served_now(self) -> set[str]:
        """Who gets requests from now on, of three seconds; those under way do not count."""
        await self.more(int(RATE))
        since = len(self.fates)
        await self.more(int(3 * RATE))
        return {address for address, _, _ in self.fates[since:]}

    async def more(self, requests: int) -> None:
        enough = len(self.fates) + requests
        await self.until(lambda: len(self.fates) >= enough)

    async def until(self, holds: Callable[[], bool]) -> None:
        async def held() -> bool:
            return holds()

        await eventually(held, within=LONG, every=0.1)


def _none(*_: object) -> None:
    """The scrape loop, which is not of interest here."""


@asynccontextmanager
async def door(source: RayHeadSource, members: int) -> AsyncIterator[Door]:
    """A door that is open as soon as there are so many members."""
    opened = Door(source)
    tasks = [asyncio.create_task(opened.follow())]
    try:
        await opened.until(lambda: len(opened.members) == members)
        tasks.append(asyncio.create_task(opened.flow()))
        yield opened
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results
