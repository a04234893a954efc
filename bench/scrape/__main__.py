"""``python -m bench.scrape``: what asking the endpoints for their metrics pages costs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import uvloop
from rich.console import Console
from rich.progress import Progress

from bench.rig.child import PROJECT, ChildError
from bench.scrape.measure import Plan, idle_shares, page_costs
from bench.scrape.pages import KINDS, raise_file_limit
from bench.scrape.report import LEFT_OUT, as_json, idle_table, pages_table

if TYPE_CHECKING:
    from bench.scrape.measure import IdleShare, PageCost

OUT = PROJECT / "bench" / "out"
IDLE = (100, 1000)


@click.command()
@click.option(
    "--pages", "kinds", multiple=True, type=click.Choice(KINDS), default=("vllm", "ray"), show_default=True
)
@click.option("--endpoints", type=click.IntRange(1), default=100, show_default=True, help="Asked at a pace.")
@click.option("--interval", type=click.FloatRange(0.01), default=0.2, show_default=True, help="Seconds.")
@click.option("--idle", multiple=True, type=click.IntRange(1, 10_000), help="Endpoints of idle pickers.")
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--duration", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds each.")
@click.option("--settle", type=click.FloatRange(0), default=8.0, show_default=True, help="Seconds of rest.")
@click.option("--out", type=click.Path(path_type=Path), default=OUT, help="Folder of the JSON.")
def main(*, out: Path, **options: Any) -> None:  # noqa: ANN401 - checked by click
    """Measure the CPU of scraping beside a plain aiohttp loop, and that of idle pickers."""
    options["idle"] = options["idle"] or IDLE
    plan = Plan(**options)
    raise_file_limit()
    console = Console()
    console.print(f"About {plan.expected_seconds:.0f} s.", highlight=False)
    try:
        costs, shares = uvloop.run(_run(plan, console))
    except ChildError as error:
        console.print(str(error), style="red", markup=False)
        sys.exit(1)
    console.print(pages_table(costs))
    console.print(idle_table(shares))
    console.print(LEFT_OUT, highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"scrape-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_bytes(as_json(plan, costs, shares))
    console.print(f"All figures: {path}", soft_wrap=True)


async def _run(plan: Plan, console: Console) -> tuple[list[PageCost], list[IdleShare]]:
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def progress(what: str) -> None:
            bar.update(task, description=what)

        costs = [cost for run in range(plan.runs) for cost in await page_costs(plan, run, progress)]
        return costs, await idle_shares(plan, progress)


if __name__ == "__main__":
    main()
