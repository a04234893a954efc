"""``python -m bench.routing.demo``: what ``make demo`` plays with real Ray Serve, in the replay's simulation.

The same arrivals, batch clients, slots and queues, so that the one can be held against the other. What is
added to the replay's Ray Serve is what the demo has beside it: clients that talk straight to one proxy, and
adapters, of which each replica has one. A routing task of a proxy stays with the request that it looks for
room for, as Ray's do with multiplexed models; so those for the batch job's full replica keep chat waiting.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import click
import numpy as np
import orjson

from bench.demo.scenario import (
    BATCH_CLIENTS,
    BATCH_PAUSE,
    BATCH_SECONDS,
    BUSY_PROXY,
    IN_TIME,
    PROXIES,
    QUEUE,
    SLOTS,
    interactive,
)
from picker.replay.agenda import Agenda
from picker.replay.engine import EngineModel
from picker.replay.policies import OURS, PolicyName, picker_for
from picker.replay.ray import ASSIGNMENT, FIRST_BACKOFF, LONGEST_BACKOFF, RayCluster, RayModel
from picker.replay.simulation import OK, Records, Sight, Simulation
from picker.replay.workload import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from picker.replay.ray import Proxy
    from picker.replay.servers import Call

POLICIES = ("round-robin", "random", "least-request", OURS)
_WARM_UP = 15.0
"""Seconds before the first chat request: a page is up to ten seconds old."""
_SLEEPING = EngineModel(
    chunk=1 << 20, step=0.001, token=0.0, sequence=0.0, sequences=SLOTS, kv_tokens=1 << 20
)
"""A replica that sleeps: an answer of so many tokens takes as many milliseconds."""
_PAGE_RENEWAL = 10.0


class _Batch:
    """One client of the batch job, with one request after the other. See :class:`servers.Call`."""

    blocks: Sequence[int] = ()
    prompt = 1
    output = round(1000 * BATCH_SECONDS)

    def __init__(self, cluster: DemoCluster, agenda: Agenda, random: Random) -> None:
        self._cluster = cluster
        self._agenda = agenda
        self._random = random
        agenda.at(random.uniform(0, BATCH_SECONDS), self._send)

    def _send(self) -> None:
        self._cluster.send(BUSY_PROXY, self)

    def first_token(self) -> None:
        """Of no interest."""

    def ended(self, cached: int) -> None:  # noqa: ARG002 - see Call
        """Go on with the next one."""
        self._agenda.at(self._agenda.now, self._send)

    def refused(self, status: int, *, back_pressure: bool = False) -> None:  # noqa: ARG002 - see Call
        """Try again after a pause."""
        self._agenda.at(self._agenda.now + BATCH_PAUSE * self._random.uniform(0.5, 1.5), self._send)


class DemoCluster(RayCluster):
    """Proxies before replicas: that of the busy proxy has the batch job's adapter, the others have chat's."""

    def __init__(self, agenda: Agenda, random: Random) -> None:
        model = RayModel(replicas=1, max_ongoing=SLOTS, max_queued=QUEUE)
        super().__init__(agenda, _SLEEPING, model, PROXIES, block_tokens=16, faults=(), random=random)
        self._held: set[Call] = set()
        """Calls that a routing task looks for room for."""

    def _look(self, proxy: Proxy, backoff: float) -> None:
        call = next((call for call in proxy.queue if call not in self._held), None)
        if call is None:
            proxy.tasks -= 1
            return
        self._held.add(call)
        self._route(proxy, call, backoff)

    def _route(self, proxy: Proxy, call: Call, backoff: float) -> None:
        batch = isinstance(call, _Batch)
        able = [replica for n, replica in enumerate(self._replicas) if (n == BUSY_PROXY) is batch]
        near = [replica for replica in able if replica in proxy.local]
        replica = (self._free(near) if near and backoff == FIRST_BACKOFF else None) or self._free(able)
        if replica is None:
            later = partial(self._route, proxy, call, min(2 * backoff, LONGEST_BACKOFF))
            self._agenda.at(self._agenda.now + backoff, later)
            return
        self._held.remove(call)
        proxy.queue.remove(call)
        proxy.queue.appendleft(call)
        self._place(proxy, replica)
        self._agenda.at(self._agenda.now + ASSIGNMENT, partial(self._look, proxy, FIRST_BACKOFF))


def chat_requests(seconds: float, seed: int) -> list[Request]:
    """The demo's, as the replay has them."""
    requests = []
    for sent in interactive(seconds, seed):
        work = orjson.loads(sent.body)
        takes = work["sleep"] + work.get("chunks", 0) * work.get("interval", 0.0)
        requests.append(Request(_WARM_UP + sent.at, 1, round(1000 * takes)))
    return requests


def play(policy: str, seconds: float, seed: int) -> Records:
    """One run."""
    agenda = Agenda()
    cluster = DemoCluster(agenda, Random(f"{seed} ray"))
    picker = picker_for(
        PolicyName(policy),
        PROXIES,
        Random(f"{seed} picker"),
        block_tokens=16,
        first_token_visible=True,
        proxies=True,
        replicas=1,
    )
    clients = Random(f"{seed} batch")
    for _ in range(BATCH_CLIENTS):
        _Batch(cluster, agenda, clients)
    requests = chat_requests(seconds, seed)
    simulation = Simulation(
        agenda,
        cluster,
        [picker],
        sight=Sight(page_renewal=_PAGE_RENEWAL),
        random=Random(f"{seed} stage"),
        requests=len(requests),
    )
    simulation.play(iter(requests))
    simulation.run()
    return simulation.records


def row(policy: str, runs: Sequence[Records]) -> str:
    """A line of the table, over all runs; a failed request counts as infinitely late, as in the demo."""
    good = np.concatenate([np.array(run.status) == OK for run in runs])
    took = np.where(good, np.concatenate([np.array(run.end) for run in runs]), np.inf)
    to_busy = np.concatenate([np.array(run.endpoint) == BUSY_PROXY for run in runs])
    late = np.percentile(took, (50, 90, 99), method="higher") * 1000
    cells = (
        policy,
        str(len(good)),
        f"{np.count_nonzero(~good)} ({np.mean(~good):.1%})",
        *("∞" if np.isinf(time) else f"{time:,.0f}" for time in late),
        f"{np.mean(took <= IN_TIME):.1%}",
        f"{np.mean(to_busy):.1%}",
    )
    return f"| {' | '.join(cells)} |"


@click.command()
@click.option("--seconds", type=click.FloatRange(1, 600), default=20.0, show_default=True)
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True)
def main(*, seconds: float, seeds: int) -> None:
    """Print the demo's table as the simulation has it."""
    click.echo("| balancer | requests | failed | p50 ms | p90 ms | p99 ms | within 1 s | to the busy proxy |")
    click.echo("|---|---|---|---|---|---|---|---|")
    for policy in POLICIES:
        click.echo(row(policy, [play(policy, seconds, seed) for seed in range(seeds)]))


if __name__ == "__main__":
    main()
