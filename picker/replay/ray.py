"""Ray Serve: proxies that queue requests for the replicas of the whole cluster.

As of Ray 2.60. Every node has a proxy and some replicas. A request waits in its proxy's queue, which is
bounded (beyond: 503 within milliseconds); that it is about to be given to a free replica does not yet make it
leave the queue, so a burst is refused though there is room. Routing tasks, at most twice as many as there are
replicas, look for room: of two replicas drawn at random the less busy one that works on fewer than
``max_ongoing`` requests, first among those of the proxy's own node, then at once among all, then again and
again after 25, 50, … 500 ms. So a slot that falls free may stay idle for up to half a second.

What is left out: proxies remember how busy replicas are for up to ten seconds and are corrected by a replica
that refuses; here they know.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from picker.replay.engine import Engine, EngineModel, Page
from picker.replay.servers import FAST_FAILURE, SOUND, TOO_LONG, UNAVAILABLE, Fault

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from picker.replay.agenda import Agenda
    from picker.replay.servers import Call

ASSIGNMENT = 0.002
"""Seconds a request is in the proxy's queue at least."""
REFUSAL = 0.004
"""Seconds after which a proxy with a full queue has said so."""
FIRST_BACKOFF = 0.025
LONGEST_BACKOFF = 0.5
"""Seconds between two looks for room, doubling from the first on."""
_MOST_TASKS = 50


@dataclass(frozen=True, slots=True)
class RayModel:
    """``replicas`` of each node; how many requests one works on, and a proxy queues (-1: any)."""

    replicas: int = 1
    max_ongoing: int = 5
    max_queued: int = -1


@dataclass(slots=True)
class _Replica:
    engine: Engine
    ongoing: int = 0


@dataclass(slots=True)
class Proxy:
    """One node's, with the replicas of that node."""

    local: list[_Replica]
    fault: Fault
    queue: deque[Call] = field(default_factory=deque)
    tasks: int = 0
    at_replicas: int = 0


class _Placed:
    """A call that a replica works on."""

    __slots__ = ("_call", "_proxy", "_replica", "blocks", "output", "prompt")

    def __init__(self, call: Call, proxy: Proxy, replica: _Replica) -> None:
        self.prompt = call.prompt
        self.output = call.output
        self.blocks = call.blocks
        self._call = call
        self._proxy = proxy
        self._replica = replica

    def first_token(self) -> None:
        self._call.first_token()

    def ended(self, cached: int) -> None:
        self.leave()
        self._call.ended(cached)

    def leave(self) -> None:
        self._proxy.at_replicas -= 1
        self._replica.ongoing -= 1


class RayCluster:
    """The endpoints are its proxies. See :class:`picker.replay.servers.Servers`."""

    proxy = True

    def __init__(  # noqa: PLR0913 - the parts of a cluster
        self,
        agenda: Agenda,
        model: EngineModel,
        ray: RayModel,
        nodes: int,
        *,
        block_tokens: int,
        faults: Sequence[Fault],
        random: Random,
    ) -> None:
        self._agenda = agenda
        self._ray = ray
        self._random = random
        self._replicas: list[_Replica] = []
        self._proxies: list[Proxy] = []
        for fault in [*faults, *[SOUND] * (nodes - len(faults))]:
            local = [
                _Replica(Engine(agenda, model, block_tokens=block_tokens, slowness=fault.slowness))
                for _ in range(ray.replicas)
            ]
            self._replicas.extend(local)
            self._proxies.append(Proxy(local, fault))
        self._most_tasks = min(_MOST_TASKS, 2 * len(self._replicas))

    def __len__(self) -> int:
        """How many proxies."""
        return len(self._proxies)

    @property
    def preemptions(self) -> int:
        """Of all replicas."""
        return sum(replica.engine.preemptions for replica in self._replicas)

    def send(self, endpoint: int, call: Call) -> None:
        """Give a request to a proxy."""
        proxy = self._proxies[endpoint]
        now = self._agenda.now
        if proxy.fault.fails(now):
            self._agenda.at(now + FAST_FAILURE, partial(call.refused, UNAVAILABLE))
        elif 0 <= self._ray.max_queued <= len(proxy.queue):
            self._agenda.at(now + REFUSAL, partial(call.refused, UNAVAILABLE, back_pressure=True))
        else:
            proxy.queue.append(call)
            if proxy.tasks < self._most_tasks:
                proxy.tasks += 1
                self._agenda.at(now + ASSIGNMENT, partial(self._look, proxy, FIRST_BACKOFF))

    def page(self, endpoint: int) -> Page:
        """What the page of the proxy's node says."""
        proxy = self._proxies[endpoint]
        queued = len(proxy.queue)
        return Page(
            load=float(queued + proxy.at_replicas),
            queue=float(queued),
            running=float(proxy.at_replicas),
            kv_usage=float("nan"),
            local_running=float(sum(replica.ongoing for replica in proxy.local)),
        )

    def _look(self, proxy: Proxy, backoff: float) -> None:
        """Look for room, as a routing task of a proxy. One that began afresh tries its own node first."""
        if not proxy.queue:
            proxy.tasks -= 1
            return
        replica = self._free(proxy.local) if backoff == FIRST_BACKOFF else None
        replica = replica or self._free(self._replicas)
        if replica is None:
            self._agenda.at(
                self._agenda.now + backoff, partial(self._look, proxy, min(2 * backoff, LONGEST_BACKOFF))
            )
            return
        self._place(proxy, replica)
        if proxy.tasks <= min(len(proxy.queue), self._most_tasks):
            self._agenda.at(self._agenda.now + ASSIGNMENT, partial(self._look, proxy, FIRST_BACKOFF))
        else:
            proxy.tasks -= 1

    def _free(self, replicas: list[_Replica]) -> _Replica | None:
        """The less busy of two, if it has room."""
        drawn = self._random.sample(replicas, 2) if len(replicas) > 1 else replicas
        replica = min(drawn, key=lambda replica: replica.ongoing)
        return replica if replica.ongoing < self._ray.max_ongoing else None

    def _place(self, proxy: Proxy, replica: _Replica) -> None:
        """Give the request that waited longest to a replica."""
        call = proxy.queue.popleft()
        placed = _Placed(call, proxy, replica)
        proxy.at_replicas += 1
        replica.ongoing += 1
        if not replica.engine.submit(placed):
            placed.leave()
            self._agenda.at(self._agenda.now + FAST_FAILURE, partial(call.refused, TOO_LONG))
