"""``python -m bench.micro``: CPU time of each step of a request's way through the picker."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click
import orjson
import uvloop
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from bench.micro.steps import steps
from bench.rig.child import PROJECT

if TYPE_CHECKING:
    from bench.micro.steps import Step

OUT = PROJECT / "bench" / "out"
FILE_WIDTH = 120
"""Columns of what is not printed on a terminal."""

MICRO = 1e6
_FIRST_REPEATS = 20


@click.command()
@click.option("--only", default="", help="Steps whose name has this text.")
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(0.01), default=0.3, show_default=True, help="Per step and run."
)
@click.option("--out", type=click.Path(path_type=Path), default=OUT, help="Folder of the JSON.")
def main(only: str, runs: int, seconds: float, out: Path) -> None:
    """Measure every step in turn, as often as there are runs."""
    figures = uvloop.run(_run(only, runs, seconds))
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    console.print(_table(figures, runs))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"micro-{time.strftime('%Y%m%d-%H%M%S')}.json"
    machine = {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    path.write_bytes(orjson.dumps({"machine": machine, "us_per_step": figures}, option=orjson.OPT_INDENT_2))
    console.print(f"All figures: {path}", soft_wrap=True)


async def _run(only: str, runs: int, seconds: float) -> dict[str, list[float]]:
    chosen = [step for step in steps() if only in step[0]]
    figures: dict[str, list[float]] = {name: [] for name, _ in chosen}
    for _ in range(runs):
        for step in chosen:
            figures[step[0]].append(_measure(step, seconds))
            await asyncio.sleep(0)
    return figures


def _measure(step: Step, seconds: float) -> float:
    """CPU microseconds of doing it once. Garbage of other steps is not counted, its own is."""
    do = step[1]
    gc.collect()
    began = time.process_time()
    for _ in range(_FIRST_REPEATS):
        do()
    once = max((time.process_time() - began) / _FIRST_REPEATS, 1e-7)
    repeats = max(_FIRST_REPEATS, int(seconds / once))
    began = time.process_time()
    for _ in range(repeats):
        do()
    return (time.process_time() - began) / repeats * MICRO


def _table(figures: dict[str, list[float]], runs: int) -> Table:
    table = Table(title="CPU µs of each step", box=SIMPLE)
    table.add_column("step", no_wrap=True)
    for run in range(runs):
        table.add_column(f"run {run + 1}", justify="right")
    table.add_column("median", justify="right", style="bold")
    table.add_column("best", justify="right")
    for name, values in figures.items():
        table.add_row(name, *(f"{value:.1f}" for value in (*values, median(values), min(values))))
    return table


if __name__ == "__main__":
    main()
