"""``python -m bench.routing.live``: rows of the comparison in real time, through a real Envoy.

The same requests at the same times to the same engine model: once in the replay's simulated time, once over
HTTP with the picker as a process of its own. What differs is all that the simulation leaves out: Envoy, the
picker's own time, reading prompts and estimating their tokens, scraping, and a machine that has other work.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import orjson

from bench.rig.engines import TOKEN_BYTES, Engines
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
    """Milliseconds to the first token at each of the replay's quantiles, and what failed."""

    ttft: tuple[float, ...]
    failed: int


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
                    return figures(await open_loop(Target(address=envoy.address("door")), requests))


def figures(results: Sequence[Result]) -> Figures:
    """Of all requests; a failed one counts as infinitely late."""
    times = first_bytes(results)
    late = tuple(1000 * percentile(times, quantile) for quantile in QUANTILES)
    return Figures(late, sum(not result.ok for result in results))


def simulated(case: Case, policy: str) -> Figures:
    """Play it in simulated time."""
    result = replace(case, policy=PolicyName(policy)).run()
    return Figures(tuple(1000 * seconds for seconds in result.ttft), result.failed)


def row(name: str, policy: str, real: Figures, expected: Figures) -> str:
    """A line of the table."""
    times = (f"{'/'.join(f'{time:,.0f}' for time in side.ttft)}" for side in (real, expected))
    off = f"{real.ttft[1] / expected.ttft[1] - 1:+.0%}"
    return f"| {name} | {policy} | {' | '.join(times)} | {off} | {real.failed} |"


@click.command()
@click.option("--traces", type=click.Path(exists=True, file_okay=False, path_type=Path), default=_TRACES)
@click.option("--requests", type=click.IntRange(10), default=None, help="Of each run.  [as published]")
@click.option("--seed", type=int, default=0, show_default=True)
def main(*, traces: Path, requests: int | None, seed: int) -> None:
    """Play two rows with published figures, with each of Envoy's balancers and with the picker."""
    click.echo("| trace, load | policy | TTFT p50/p90/p99 ms, real | simulated | p90 off | failed |")
    click.echo("|---|---|---|---|---|---|")
    for published in PUBLISHED:
        if (published.trace, published.level) not in ROWS:
            continue
        trace = next(trace for trace in TRACES if trace.name == published.trace)
        case = replace(trace.case(traces, 0), requests=requests or published.requests, seed=seed)
        case = case.at_level(published.level)
        for policy, balancer in BALANCERS.items():
            real = asyncio.run(live(case, balancer))
            click.echo(row(f"{trace.name} {load_of(published)}", policy, real, simulated(case, policy)))


if __name__ == "__main__":
    main()
