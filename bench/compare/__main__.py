"""``python -m bench.compare --picker CMD``: any ext_proc picker beside ours, through Envoy and at rest."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import uvloop
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.e2e.cases import CASES
from bench.e2e.measure import Plan, run_once
from bench.e2e.peer import CommandError, Peer
from bench.e2e.picture import picture
from bench.e2e.report import as_json, conclusion, introduction, table
from bench.e2e.subject import running
from bench.rig.child import PROJECT, ChildError
from bench.rig.envoy import MODES
from bench.scrape.measure import Plan as RestPlan
from bench.scrape.measure import idle_share
from bench.scrape.pages import KINDS, PageServers, raise_file_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.e2e.measure import Run
    from bench.rig.envoy import Mode
    from bench.scrape.measure import IdleShare
    from bench.scrape.pages import Kind

OUT = PROJECT / "bench" / "out"
FILE_WIDTH = 150
"""Columns of what is not printed on a terminal."""
QUICK_SECONDS = 1.0
OURS: Final = "picker"
MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Rest:
    """One picker before servers that rest."""

    subject: str
    share: IdleShare


@click.command()
@click.option("--picker", "command", required=True, help="The command, with places such as {grpc_port}.")
@click.option(
    "--port", type=click.IntRange(1, 65_535), help="Where it listens, if that cannot be told to it."
)
@click.option("--name", default="peer", show_default=True, help="What it is called in the tables.")
@click.option("--case", "names", multiple=True, type=click.Choice([case.name for case in CASES]))
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), default=("duplex", "buffered"))
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--duration", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Of each load.")
@click.option("--servers", type=click.IntRange(1), default=8, show_default=True)
@click.option("--pages", "kinds", multiple=True, type=click.Choice(KINDS), default=("vllm",))
@click.option("--endpoints", multiple=True, type=click.IntRange(1, 10_000), default=(100,), help="At rest.")
@click.option("--quick", is_flag=True, help="One short run: shows that all works, not what it costs.")
@click.option("--out", type=click.Path(path_type=Path), default=OUT, help="Folder of JSON and picture.")
def main(  # noqa: PLR0913 - one argument an option
    *,
    command: str,
    port: int | None,
    name: str,
    names: Sequence[str],
    modes: Sequence[Mode],
    runs: int,
    duration: float,
    servers: int,
    kinds: Sequence[Kind],
    endpoints: Sequence[int],
    quick: bool,
    out: Path,
) -> None:
    """Measure another picker and ours, side by side.

    \b
    Places in the command: {grpc_port}, {health_port}, {metrics_port}: free ports;
    {endpoints}: ip:port,ip:port; {endpoint}: the first; {endpoints_file}: YAML.
    It has to become the picker itself (exec), which serves ext_proc in plaintext.
    """
    try:
        peer = Peer(name, command, port)
    except CommandError as error:
        raise click.UsageError(str(error)) from error
    cases = [case for case in CASES if not names or case.name in names]
    if quick:
        runs, duration = 1, QUICK_SECONDS
    plan = Plan(
        cases=cases,
        modes=modes,
        subjects=(OURS,),
        peers=(peer,),
        runs=runs,
        duration=duration,
        servers=servers,
    )
    rest = RestPlan(kinds=kinds, idle=endpoints, duration=min(duration, 5.0), settle=min(duration, 8.0))
    raise_file_limit()
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    console.print(introduction(plan), highlight=False)
    try:
        measured, rests = uvloop.run(_run(plan, rest, console))
    except ChildError as error:
        console.print(str(error), style="red", markup=False)
        sys.exit(1)
    console.print(table(measured))
    console.print(rest_table(rests))
    console.print(conclusion(measured), highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"compare-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_bytes(as_json(plan, measured, at_rest=[asdict(given) for given in rests]))
    path.with_suffix(".svg").write_text(picture(measured))
    console.print(f"All figures: {path}, and a picture beside it", soft_wrap=True)


async def _run(plan: Plan, rest: RestPlan, console: Console) -> tuple[list[Run], list[Rest]]:
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("starting", total=plan.steps + 2 * len(rest.kinds) * len(rest.idle))

        def progress(what: str) -> None:
            bar.update(task, description=what, advance=1)

        runs = [await run_once(plan, run, progress) for run in range(plan.runs)]
        return runs, await at_rest(plan.peers, rest, progress)


async def at_rest(peers: Sequence[Peer], plan: RestPlan, progress: Callable[[str], None]) -> list[Rest]:
    """Ours and the others, each alone before servers of its own: what asking for their pages takes."""
    rests = []
    for kind in plan.kinds:
        for count in plan.idle:
            progress(f"{OURS} at rest, {count} endpoints")
            async with PageServers(kind, count) as servers, running(OURS, servers.addresses) as ours:
                rests.append(Rest(OURS, await idle_share(plan, servers, ours.pid)))
            for peer in peers:
                progress(f"{peer.name} at rest, {count} endpoints")
                async with PageServers(kind, count) as servers, peer.running(servers.addresses) as theirs:
                    rests.append(Rest(peer.name, await idle_share(plan, servers, theirs.pid)))
    return rests


def rest_table(rests: Sequence[Rest]) -> Table:
    """What a picker takes without a request."""
    grid = Table("pages", title="Before servers that rest", box=SIMPLE)
    grid.add_column("endpoints", justify="right")
    grid.add_column("subject")
    for title in ("core", "pages/s", "µs/page"):
        grid.add_column(title, justify="right")
    for given in rests:
        share = given.share
        each = f"{share.core / share.pages_per_second * MICRO:,.0f}" if share.pages_per_second else "-"
        figures = (f"{share.core:.3f}", f"{share.pages_per_second:.1f}", each)
        grid.add_row(share.kind, str(share.endpoints), given.subject, *figures)
    return grid


if __name__ == "__main__":
    main()
