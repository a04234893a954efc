"""One run, described by what it needs and nothing else, so that it can be sent to another process."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import nan
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from picker.replay.agenda import Agenda
from picker.replay.engine import EngineModel
from picker.replay.policies import picker_for
from picker.replay.ray import RayCluster, RayModel
from picker.replay.result import result_of
from picker.replay.servers import Engines
from picker.replay.simulation import Sight, Simulation
from picker.replay.traces import Scale, read_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from picker.replay.policies import PolicyName
    from picker.replay.result import Result
    from picker.replay.servers import Fault, Servers
    from picker.replay.workload import Trace

SESSION_RATE = 30.0
"""Recorded pauses are those of people and tools; so many times shorter they suit the small servers."""

_TURNS = 20
"""Requests for each of the sessions at once."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a trace is, and how to read it (None: see :func:`picker.replay.traces.read_trace`)."""

    path: str
    format: str | None = None
    scale: Scale | None = None

    def read(self) -> Trace:
        """The trace; each is read once in a process. Raises TraceError."""
        return _read(self)


@lru_cache(maxsize=16)
def _read(source: Source) -> Trace:
    return read_trace(Path(source.path), source.format, source.scale)


@dataclass(frozen=True, slots=True)
class Case:
    """``rate``: how many times as fast as recorded; ``sessions`` at once, for traces that have some.

    ``goal``: seconds to the first token that count as good. ``explain``: the number of a request.
    ``decision_time``: see :class:`picker.replay.simulation.Simulation`; Envoy's own balancers take none.
    """

    source: Source
    policy: PolicyName
    rate: float = 1.0
    sessions: int = 0
    requests: int = 2_000
    seed: int = 0
    endpoints: int = 8
    replicas: int = 1
    sight: Sight = field(default_factory=Sight)
    faults: tuple[Fault, ...] = ()
    model: EngineModel = field(default_factory=EngineModel)
    ray: RayModel | None = None
    goal: float = 1.0
    decision_time: float = 0.0
    explain: int | None = None

    @property
    def sent(self) -> int:
        """Requests in all: of sessions at least so many that most get beyond their beginning."""
        return max(self.requests, _TURNS * self.sessions)

    @property
    def level(self) -> float:
        """How much is asked, in the trace's own measure: sessions at once, or how many times as fast."""
        return float(self.sessions) if self.sessions else self.rate

    def at_level(self, level: float) -> Case:
        """The same with more or less asked."""
        if self.sessions:
            return replace(self, sessions=max(1, round(level)))
        return replace(self, rate=level)

    def run(self, progress: Callable[[int], None] | None = None) -> Result:
        """Do it. Raises TraceError and PolicyFileError."""
        began = time.process_time()
        trace = self.source.read()
        agenda = Agenda()
        servers = self._servers(agenda, trace)
        pickers = [
            picker_for(
                self.policy,
                self.endpoints,
                Random(f"{self.seed} picker {number}"),  # noqa: S311 - simulation
                block_tokens=trace.block,
                first_token_visible=self.sight.first_token,
                proxies=servers.proxy,
                replicas=self.replicas,
            )
            for number in range(self.replicas)
        ]
        simulation = Simulation(
            agenda,
            servers,
            pickers,
            sight=self.sight,
            random=Random(f"{self.seed} stage"),  # noqa: S311 - simulation
            requests=self.sent,
            decision_time=self.decision_time if self.policy.asks else 0.0,
            watched=self.explain,
            progress=progress,
        )
        start = trace.start_of(self.seed, self.sent)
        if trace.sessions:
            simulation.play_sessions(trace.in_turn(self.rate, start), self.sessions or self.endpoints)
        else:
            simulation.play(trace.in_time(self.rate, start))
        simulation.run()
        return result_of(
            simulation.records,
            endpoints=self.endpoints,
            faults=self.faults,
            goal=self.goal,
            ideal_hit_rate=trace.ideal_hit_rate(start, self.sent),
            preemptions=servers.preemptions,
            cpu_seconds=time.process_time() - began,
            agreement=simulation.agreed / simulation.compared if simulation.compared else nan,
            explanation=simulation.explanation,
        )

    def _servers(self, agenda: Agenda, trace: Trace) -> Servers:
        if self.ray is None:
            return Engines(agenda, self.model, self.endpoints, block_tokens=trace.block, faults=self.faults)
        return RayCluster(
            agenda,
            self.model,
            self.ray,
            self.endpoints,
            block_tokens=trace.block,
            faults=self.faults,
            random=Random(f"{self.seed} ray"),  # noqa: S311 - simulation
        )
