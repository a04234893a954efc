"""What the API server and a whole cluster of pods do to the set of endpoints."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import statistics
import time
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from picker.endpoints.pool import PoolSource
from picker.kube.names import ObjectName
from picker.kube.watch import Pace
from tests.kube.follow import DEADLINE, Followed

if TYPE_CHECKING:
    from collections.abc import Callable

    from picker.kube.client import KubeClient
    from tests.kube.cluster import Namespace
    from tests.support.kube.server import ApiServer

pytestmark = pytest.mark.kube

QUICK = Pace(first_retry=0.1, last_retry=0.5)
CHURN_SECONDS = float(os.environ.get("KUBE_CHURN_SECONDS", "8"))
"""The measurement of the documents took 60."""
PODS = 200
MOST_LATE = 1.0
"""Seconds, of 99 in 100 changes; the machine may be busy with other tests."""
GROWTH = 512 * 1024
"""Bytes; a leaked set of 200 endpoints each time would be tens of megabytes."""


def source(client: KubeClient, namespace: Namespace, pace: Pace = QUICK) -> PoolSource:
    return PoolSource(client, ObjectName(namespace.name, "llm"), pace=pace)


def ip(number: int) -> str:
    return f"127.0.{1 + number // 250}.{1 + number % 250}"


def watches_open() -> int:
    return sum(task.get_name().startswith("watch of") for task in asyncio.all_tasks())


class Churn:
    """Half of the pods come and go; each change is looked for in the set at once."""

    def __init__(self, namespace: Namespace, pool: Followed) -> None:
        self._namespace = namespace
        self._pool = pool
        self._random = random.Random(7)
        self.delays: list[float] = []
        """Seconds from the API server's answer to a change until it was in the set."""
        self.ready = set(range(PODS))

    async def create(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(self._create, number) for number in range(PODS)))

    def _create(self, number: int) -> None:
        self._namespace.pod(f"pod-{number}", ip(number))

    async def change(self, number: int) -> None:
        """Take a pod away in one of three ways and bring it back, each seen in the set in time."""
        way = self._random.randrange(3)
        name = f"pod-{number}"
        if way == 0:
            await asyncio.to_thread(self._namespace.set_ready, name, ip(number), ready=False)
            await self._seen(number, there=False)
            await asyncio.to_thread(self._namespace.set_ready, name, ip(number))
        else:
            if way == 1:
                await asyncio.to_thread(self._namespace.terminate, name)
                await self._seen(number, there=False)
            await asyncio.to_thread(self._namespace.remove, name)
            await self._seen(number, there=False)
            await asyncio.to_thread(self._create, number)
        await self._seen(number, there=True)

    async def _seen(self, number: int, *, there: bool) -> None:
        started = time.monotonic()
        address = f"{ip(number)}:8000"
        while (address in (self._pool.addresses or ())) is not there:
            assert time.monotonic() < started + DEADLINE
            await asyncio.sleep(0.005)
        self.delays.append(time.monotonic() - started)


async def test_two_hundred_pods_of_which_half_come_and_go(
    client: KubeClient, namespace: Namespace, record_property: Callable[[str, object], None]
) -> None:
    namespace.pool(ports=[8000])
    async with Followed(source(client, namespace)) as pool:
        churn = Churn(namespace, pool)
        await churn.create()
        everybody = {f"{ip(number)}:8000" for number in range(PODS)}
        await pool.until(lambda: pool.addresses == everybody)
        end = time.monotonic() + CHURN_SECONDS

        async def go_on(first: int) -> None:
            for number in range(first, PODS, 10):  # of ten workers five have pods of the moving half
                if time.monotonic() > end:
                    return
                await churn.change(number)

        async def work(first: int) -> None:
            while time.monotonic() < end:
                await go_on(first)

        await asyncio.gather(*(work(first) for first in range(5)))
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        end = time.monotonic() + CHURN_SECONDS / 4
        await asyncio.gather(*(work(first) for first in range(5)))
        await pool.until(lambda: pool.addresses == everybody)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert grown < GROWTH
        assert watches_open() == 2, "of the pool and of its pods"
        late = statistics.quantiles(churn.delays, n=100)[98]
        assert late < MOST_LATE
        figures = {"changes": len(churn.delays), "median": statistics.median(churn.delays), "p99": late}
        for name, figure in {**figures, "latest": max(churn.delays), "grown": grown}.items():
            record_property(name, figure)
    assert watches_open() == 0


async def test_changes_during_an_outage_are_seen_after_it(
    server: ApiServer, client: KubeClient, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    namespace.pool(ports=[8000])
    namespace.pod("a", "127.0.0.11")
    namespace.pod("b", "127.0.0.12")
    caplog.set_level("INFO")
    async with Followed(source(client, namespace)) as pool:
        await pool.shows("127.0.0.11:8000", "127.0.0.12:8000")
        for kill in (True, False):
            caplog.clear()
            sets = pool.sets
            await asyncio.to_thread(server.program.stop, kill=kill)
            await told(caplog, "the API server does not answer; what was known last stays in force", 2)
            assert pool.sets == sets, "the last set stays"
            await asyncio.to_thread(server.program.start)
            namespace.remove("a") if kill else namespace.pod("a", "127.0.0.13")
            await pool.shows("127.0.0.12:8000", *([] if kill else ["127.0.0.13:8000"]))
            await told(caplog, "the API server answers again", 2)


async def test_what_the_server_has_forgotten_is_listed_again(
    server: ApiServer, client: KubeClient, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    """After a restart its watch cache begins anew, so that older versions are answered with 410."""
    namespace.pool(ports=[8000])
    namespace.pod("a", "127.0.0.11")
    caplog.set_level("DEBUG", "picker.kube")
    async with Followed(source(client, namespace)) as pool:
        await pool.shows("127.0.0.11:8000")
        sets = pool.sets
        for number in range(20):
            namespace.annotate("a", count=str(number))
        await asyncio.to_thread(server.program.stop)
        await asyncio.to_thread(server.program.start)
        namespace.pod("b", "127.0.0.12")
        await pool.shows("127.0.0.11:8000", "127.0.0.12:8000")
        assert pool.sets == sets + 1, "a new list takes nobody out meanwhile"
        await told(caplog, "the version is too old to go on from; listing anew", 1, more=True)


async def test_a_server_that_is_frozen(
    server: ApiServer, client: KubeClient, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    namespace.pool(ports=[8000])
    namespace.pod("a", "127.0.0.11")
    pace = Pace(first_retry=0.1, last_retry=0.5, watch=1.0, grace=0.5, request=0.5)
    async with Followed(source(client, namespace, pace)) as pool:
        await pool.shows("127.0.0.11:8000")
        sets = pool.sets
        await asyncio.to_thread(server.program.freeze)
        try:
            await told(caplog, "the API server does not answer; what was known last stays in force", 2)
        finally:
            server.program.thaw()
        namespace.pod("b", "127.0.0.12")
        await pool.shows("127.0.0.11:8000", "127.0.0.12:8000")
        assert pool.sets == sets + 1


async def told(caplog: pytest.LogCaptureFixture, message: str, times: int, *, more: bool = False) -> None:
    """Wait for so many lines; unless there may be ``more``, that is all, as each watch tells it once."""
    async with asyncio.timeout(3 * DEADLINE):
        while [record.message for record in caplog.records].count(message) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert more or [record.message for record in caplog.records].count(message) == times
