"""``python -m bench.routing.live``: rows of the comparison in real time, through a real Envoy.

The same requests at the same times to the same engine model: once in the replay's simulated time, once over
HTTP with the picker as a process of its own. What differs is all that the simulation leaves out: Envoy, the
picker's own time, reading prompts and estimating their tokens, scraping, and a machine that has other work.
So of each first token it is also told how much of the time was the engine's own, which is all that choosing
can change, and how busy the processors were: from about half of them on, the rest is waiting for one.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import orjson

from bench.rig.engines import IN_ENGINE, TOKEN_BYTES, Engines
from bench.rig.envoy import Envoy, ExtProc, Listener, bootstrap
from bench.rig.load import Request, Target, first_bytes, open_loop, percentile
from bench.rig.picker import Picker
from bench.rig.servers import SERVED_BY
from bench.routing.matrix import PUBLISHED, TRACES, load_of
from picker.replay.policies import OURS, PolicyName
from picker.replay.result import QUANTILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.rig.load import Result
    from picker.gateway.envoy_config import Balancer
    from picker.replay.cases import Case
    from picker.replay.workload import Request as Recorded

_TRACES = Path(__file__).parents[2] / ".." / "shared" / "traces"
BALANCERS: dict[str, Balancer] = {
    "round-robin": "round_robin",
    "least-request": "least_request",
    OURS: "picker",
}
ROWS = (("Mooncake conversation", 8.0), ("Azure code", 28.0))
_SETTLE = 1.0
"""Seconds for the first pages to come in."""


class Figures(NamedTuple):
    """Milliseconds to the first token at each of the replay's quantiles, and what failed.

    ``in_engine``: the same without the ways there and back. ``busy``: share of all processors' time.
    """

    ttft: tuple[float, ...]
    failed: int
    in_engine: tuple[float, ...]
    busy: float = 0.0


def prompt_of(recorded: Recorded, number: int, block_tokens: int) -> str:
    """A text of as many tokens that begins like another one exactly where the recorded prompts do."""
    size = block_tokens * TOKEN_BYTES
    blocks = "".join(f"{block:x} ".ljust(size, "-") for block in recorded.blocks)
    return blocks + f"{number:x} ".ljust(recorded.prompt * TOKEN_BYTES - len(blocks), "+")


def requests_of(case: Case) -> list[Request]:
    """What the replay sends, as HTTP requests."""
    trace = case.source.read()
    sent = islice(trace.in_time(case.rate, trace.start_of(case.seed, case.sent)), case.sent)
    return [
        Request(
            at=recorded.at,
            path="/v1/completions",
            body=orjson.dumps(
                {
                    "model": "model",
                    "prompt": prompt_of(recorded, number, trace.block),
                    "max_tokens": recorded.output,
                    "stream": True,
                }
            ),
        )
        for number, recorded in enumerate(sent)
    ]


async def live(case: Case, balancer: Balancer) -> Figures:
    """Play it in real time."""
    requests = await asyncio.to_thread(requests_of, case)
    with tempfile.TemporaryDirectory(prefix="routing-") as name:
        directory = Path(name)
        block = case.source.read().block
        async with Engines(case.endpoints, block, directory=directory) as engines:
            env = {"PICKER_ENDPOINTS": ",".join(engines.addresses)}
            async with Picker(env, directory=directory) as picker:
                ask = ExtProc(address=picker.address, mode="duplex") if balancer == "picker" else None
                door = Listener(
                    name="door",
                    endpoints=engines.addresses,
                    balancer=balancer,
                    ext_proc=ask,
                    served_by=SERVED_BY,
                )
                async with Envoy(bootstrap([door]), directory=directory) as envoy:
                    await asyncio.sleep(_SETTLE)
                    # Which engine served is not of interest here, what it says about itself is.
                    target = Target(address=envoy.address("door"), served_by=IN_ENGINE)
                    before = _processors()
                    results = await open_loop(target, requests)
                    return figures(results)._replace(busy=_processors().busy_since(before))


class _Processors(NamedTuple):
    """Time of all processors since the machine was started, in ticks."""

    all: int
    idle: int

    def busy_since(self, before: _Processors) -> float:
        return 1.0 - (self.idle - before.idle) / max(1, self.all - before.all)


def _processors() -> _Processors:
    """See proc(5): user, nice, system, idle, and what else there is."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return _Processors(sum(ticks), ticks[3])


def figures(results: Sequence[Result]) -> Figures:
    """Of all requests; a failed one counts as infinitely late."""
    in_engine = [float(result.served) if result.ok else inf for result in results]
    late, engine_late = (
        tuple(1000 * percentile(times, quantile) for quantile in QUANTILES)
        for times in (first_bytes(results), in_engine)
    )
    return Figures(late, sum(not result.ok for result in results), engine_late)


def simulated(case: Case, policy: str) -> Figures:
    """Play it in simulated time."""
    result = replace(case, policy=PolicyName(policy)).run()
    times = tuple(1000 * seconds for seconds in result.ttft)
    return Figures(times, result.failed, times)


def row(case: Case, load: str, policy: str, real: Figures, expected: Figures) -> str:
    """A line of the table."""
    times = ("/".join(f"{time:,.0f}" for time in side) for side in (real.ttft, real.in_engine, expected.ttft))
    off = f"{real.ttft[1] / expected.ttft[1] - 1:+.0%}"
    cells = (load, policy, str(case.seed), *times, off, f"{real.busy:.0%}", str(real.failed))
    return f"| {' | '.join(cells)} |"


@click.command()
@click.option("--traces", type=click.Path(exists=True, file_okay=False, path_type=Path), default=_TRACES)
@click.option("--requests", type=click.IntRange(10), default=None, help="Of each run.  [as published]")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True)
@click.option("--only", default="", help="Rows whose trace's name has this text.")
@click.option("--policy", "policies", type=click.Choice([*BALANCERS]), multiple=True, help="Only this.")
def main(*, traces: Path, requests: int | None, seeds: int, only: str, policies: tuple[str, ...]) -> None:
    """Play two rows with published figures, with each of Envoy's balancers and with the picker."""
    heads = ("trace, load", "policy", "seed", "TTFT p50/p90/p99 ms, real", "of it in the engine", "simulated")
    click.echo(f"| {' | '.join((*heads, 'p90 off', 'processors busy', 'failed'))} |")
    click.echo("|---|---|---|---|---|---|---|---|---|")
    for published in PUBLISHED:
        if (published.trace, published.level) not in ROWS or only not in published.trace:
            continue
        trace = next(trace for trace in TRACES if trace.name == published.trace)
        case = replace(trace.case(traces, 0), requests=requests or published.requests)
        case = case.at_level(published.level)
        load = f"{trace.name} {load_of(published)}"
        for seeded in (replace(case, seed=seed) for seed in range(seeds)):
            for policy in policies or BALANCERS:
                real = asyncio.run(live(seeded, BALANCERS[policy]))
                click.echo(row(seeded, load, policy, real, simulated(seeded, policy)))


if __name__ == "__main__":
    main()
