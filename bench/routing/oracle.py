"""``python -m bench.routing.oracle``: what a choice reaches that knows all there is to know.

For each request every engine is copied as it is, the request given to the copy, and the copy played until
the first token is out; where that is soonest it goes. So caches, queues and steps are known exactly and
nothing has to be learned; only what is still to come is not known. *Shared* engines have moreover at once and
for ever what any of them was ever asked: then nobody computes anything twice, and choosing is no more than
keeping lines even. What is not reached there is not for any policy to reach.
"""

# ruff: noqa: SLF001 - a copy has to take what is inside of an engine

from __future__ import annotations

from collections import OrderedDict, deque
from copy import copy
from dataclasses import replace
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click

from bench.routing.matrix import PUBLISHED, TRACES, load_of
from bench.routing.report import p90
from picker.replay.agenda import Agenda
from picker.replay.pickers import Blind, Pick
from picker.replay.result import result_of
from picker.replay.servers import Engines
from picker.replay.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from picker.replay.cases import Case
    from picker.replay.engine import Engine, Job, _Sequence
    from picker.replay.kvcache import KvCache
    from picker.replay.result import Result
    from picker.replay.servers import Call
    from picker.replay.workload import Request

_TRACES = Path(__file__).parents[2] / ".." / "shared" / "traces"
LOST = 1.0
"""How many tokens' time a token counts that is cached elsewhere: what is best for the future is not known, so
this is the built-in policy's."""
TIE = 1e-9
"""Seconds."""


class _Probe:
    """A request in a copy of an engine. Only its first token is waited for."""

    __slots__ = ("_agenda", "blocks", "first_at", "output", "prompt")

    def __init__(self, job: Job | Request, agenda: Agenda) -> None:
        self.prompt = job.prompt
        self.output = job.output
        self.blocks: Sequence[int] = job.blocks
        self.first_at = inf
        self._agenda = agenda

    def first_token(self) -> None:
        self.first_at = self._agenda.now

    def ended(self, cached: int) -> None:
        """Of no interest."""


def seconds_to_first_token(engine: Engine, job: Job | Request) -> float:
    """What it would be if the engine got nothing else from now on. The engine stays as it is."""
    agenda = Agenda()
    now = agenda.now = engine._agenda.now
    twin = _twin(engine, agenda)
    probe = _Probe(job, agenda)
    if not twin.submit(probe):
        return inf
    agenda.run(while_=lambda: probe.first_at == inf)
    return probe.first_at - now


def _twin(engine: Engine, agenda: Agenda) -> Engine:
    """A copy in an agenda of its own, which tells nobody outside."""
    known: dict[_Sequence, _Sequence] = {}

    def of(sequence: _Sequence) -> _Sequence:
        if sequence not in known:
            known[sequence] = copy(sequence)
            known[sequence].job = _Probe(sequence.job, agenda)
        return known[sequence]

    twin = copy(engine)
    twin._agenda = agenda
    twin._cache = _copied(engine._cache)
    twin._ages = count(1 << 60)
    twin._waiting = deque(map(of, engine._waiting))
    twin._prefilling = deque(map(of, engine._prefilling))
    twin._decoding = [(step, age, of(sequence)) for step, age, sequence in engine._decoding]
    twin._chunks = [(of(sequence), tokens) for sequence, tokens in engine._chunks]
    if twin._steps:
        agenda.at(twin._due, twin._wake)
    return twin


def _copied(cache: KvCache) -> KvCache:
    twin = copy(cache)
    twin._held = dict(cache._held)
    twin._idle = OrderedDict(cache._idle)
    return twin


class _Rest:
    """What is left to be computed of a request. See :class:`picker.replay.servers.Call`."""

    def __init__(self, call: Call, prompt: int) -> None:
        self.prompt = prompt
        self.output = call.output
        self.blocks: Sequence[int] = ()
        self.first_token = call.first_token
        self.ended = call.ended
        self.refused = call.refused


class Fleet(Engines):
    """Engines, as one sees them who knows them. ``shared``: what one has, all have, and for ever."""

    def __init__(self, agenda: Agenda, case: Case, block_tokens: int, *, shared: bool) -> None:
        super().__init__(agenda, case.model, case.endpoints, block_tokens=block_tokens, faults=())
        self._shared = shared
        self._block = block_tokens
        self._seen: set[int] = set()

    def costs(self, request: Request) -> list[float]:
        """Seconds that the request would take at each, and those that are lost where it was not."""
        if self._shared:
            left = replace(request, prompt=self._left_of(request), blocks=())
            return [seconds_to_first_token(engine, left) for engine in self._engines]
        held = [engine._cache.match(request.blocks) * self._block for engine in self._engines]
        most = max(held)
        return [
            seconds_to_first_token(engine, request) + LOST * (most - there) / engine.model.prefill_rate
            for engine, there in zip(self._engines, held, strict=True)
        ]

    def send(self, endpoint: int, call: Call) -> None:
        """See :class:`picker.replay.servers.Servers`."""
        if not self._shared:
            super().send(endpoint, call)
            return
        super().send(endpoint, _Rest(call, self._left_of(call)))
        self._seen.update(call.blocks)

    def _left_of(self, job: Job | Request) -> int:
        blocks = job.blocks
        known = next((place for place, block in enumerate(blocks) if block not in self._seen), len(blocks))
        return max(1, job.prompt - known * self._block)


class Knowing(Blind):
    """One that knows. See :class:`picker.replay.pickers.Picker`."""

    def __init__(self, fleet: Fleet, random: Random) -> None:
        self._fleet = fleet
        self._random = random

    def pick(self, request: Request, now: float) -> Pick:  # noqa: ARG002 - see Picker
        """See :class:`picker.replay.pickers.Picker`."""
        costs = self._fleet.costs(request)
        least = min(costs) + TIE
        return Pick(self._random.choice([place for place, cost in enumerate(costs) if cost <= least]), None)


def play(case: Case, *, shared: bool) -> Result:
    """Play a case."""
    trace = case.source.read()
    agenda = Agenda()
    fleet = Fleet(agenda, case, trace.block, shared=shared)
    knowing = Knowing(fleet, Random(f"{case.seed} picker 0"))
    random = Random(f"{case.seed} stage")
    simulation = Simulation(agenda, fleet, [knowing], sight=case.sight, random=random, requests=case.sent)
    start = trace.start_of(case.seed, case.sent)
    if trace.sessions:
        simulation.play_sessions(trace.in_turn(case.rate, start), case.sessions)
    else:
        simulation.play(trace.in_time(case.rate, start))
    simulation.run()
    return result_of(
        simulation.records,
        endpoints=case.endpoints,
        faults=(),
        goal=case.goal,
        ideal_hit_rate=0.0,
        preemptions=fleet.preemptions,
        cpu_seconds=0.0,
        agreement=0.0,
        explanation=[],
    )


@click.command()
@click.option("--traces", type=click.Path(exists=True, file_okay=False, path_type=Path), default=_TRACES)
@click.option("--only", default="", help="Rows whose trace's name has this text.")
@click.option("--requests", type=click.IntRange(10), default=None, help="Of each run.  [as published]")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True)
def main(*, traces: Path, only: str, requests: int | None, seeds: int) -> None:
    """Play the rows that have a goal against the llm-d picker; some 20 s of CPU for each run."""
    click.echo("| trace, load | knows all: TTFT p90 ms, settled | caches shared: TTFT p90 ms, settled |")
    click.echo("|---|---|---|")
    for row in PUBLISHED:
        if row.of_peer is None or only not in row.trace:
            continue
        trace = next(trace for trace in TRACES if trace.name == row.trace)
        case = replace(trace.case(traces, 0), requests=requests or row.requests).at_level(row.level)
        cells = []
        for shared in (False, True):
            results = [play(replace(case, seed=seed), shared=shared) for seed in range(seeds)]
            cells.append(f"{p90(results):,.0f}, {p90(results, settled=True):,.0f}")
        click.echo(f"| {row.trace} {load_of(row)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
