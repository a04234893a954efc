"""``python -m bench.e2e``: what the picker and the echoes cost, side by side, through a real Envoy."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import uvloop
from rich.console import Console
from rich.progress import Progress

from bench.e2e.cases import CASES, Case
from bench.e2e.measure import Plan, run_once
from bench.e2e.picture import picture
from bench.e2e.report import as_json, conclusion, goals, introduction, table
from bench.e2e.subject import KINDS
from bench.rig.child import PROJECT, ChildError
from bench.rig.envoy import MODES
from bench.rig.servers import PAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.e2e.measure import Run

QUICK_SECONDS = 1.0
FILE_WIDTH = 150
"""Columns of what is not printed on a terminal."""

OUT = PROJECT / "bench" / "out"


@click.command()
@click.option("--case", "names", multiple=True, type=click.Choice([case.name for case in CASES]))
@click.option("--rate", type=click.FloatRange(0), help="Requests a second of a case of your own.")
@click.option("--clients", type=click.IntRange(0), help="Its closed loop, instead of a rate.")
@click.option("--size", type=click.IntRange(1), default=200, show_default=True, help="Its prompts, in bytes.")
@click.option("--chunks", type=click.IntRange(0), default=0, help="Chunks of its streamed answers.")
@click.option("--interval", type=click.FloatRange(0), default=0.005, help="Seconds between two of them.")
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), default=("duplex", "buffered"))
@click.option("--subject", "subjects", multiple=True, type=click.Choice(KINDS), default=KINDS)
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--duration", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Of each load.")
@click.option(
    "--warm-up", type=click.FloatRange(0), default=4.0, show_default=True, help="Seconds, not counted."
)
@click.option("--servers", type=click.IntRange(1), default=8, show_default=True)
@click.option("--pages", type=click.Choice(PAGES), default="vllm", show_default=True, help="Their words.")
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Envoy's workers.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--quick", is_flag=True, help="One short run: shows that all works, not what it costs.")
@click.option("--out", type=click.Path(path_type=Path), default=OUT, help="Folder of JSON and picture.")
def main(*, quick: bool, out: Path, **options: Any) -> None:  # noqa: ANN401 - checked by click
    """Measure CPU and added time to first byte of each subject beside the same Envoy without any.

    Without a case, or figures of your own, all the built-in cases are run.
    """
    try:
        options["cases"] = _cases(options.pop("names"), **{name: options.pop(name) for name in OWN})
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if quick:
        options |= {"runs": 1, "duration": QUICK_SECONDS, "warm_up": 0.0}
    plan = Plan(**options)
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    console.print(introduction(plan), highlight=False)
    try:
        runs = uvloop.run(_run(plan, console))
    except ChildError as error:
        console.print(str(error), style="red", markup=False)
        sys.exit(1)
    console.print(table(runs))
    console.print(goals(runs))
    console.print(conclusion(runs), highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"e2e-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_bytes(as_json(plan, runs))
    path.with_suffix(".svg").write_text(picture(runs))
    console.print(f"All figures: {path}, and a picture beside it", soft_wrap=True)


OWN = ("rate", "clients", "size", "chunks", "interval")


def _cases(names: Sequence[str], *, rate: float | None, clients: int | None, **shape: Any) -> list[Case]:  # noqa: ANN401
    if rate or clients:
        return [Case(name="own", rate=rate or 0.0, clients=clients or 0, **shape)]
    return [case for case in CASES if not names or case.name in names]


async def _run(plan: Plan, console: Console) -> list[Run]:
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("starting", total=plan.steps)

        def progress(what: str) -> None:
            bar.update(task, description=what, advance=1)

        return [await run_once(plan, run, progress) for run in range(plan.runs)]


if __name__ == "__main__":
    main()
