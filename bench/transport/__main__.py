"""``python -m bench.transport``: what the transports cost without a picker and without Envoy."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from bench.rig.child import Child, ChildError, scratch_directory
from bench.scrape.pages import raise_file_limit
from bench.transport.client import ClientError
from bench.transport.loads import LOADS, bytes_per_open_stream, cost
from bench.transport.whole import ENDPOINTS, Whole, whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

SERVERS = {
    "yardstick": ["bench.transport.yardstick", "--address", "127.0.0.1:0", "--destination", "127.0.0.1:1"],
    "grpcio": ["bench.transport.echo", "--transport", "grpcio"],
    "http2": ["bench.transport.echo", "--transport", "http2"],
}
PICKERS = ("http2", "grpcio")
MEMORY = "bytes per open stream"

Figures = dict[tuple[str, str], list[float]]
"""By load and server, one figure a run."""


@click.command()
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--scale", type=click.FloatRange(0.01), default=1.0, show_default=True, help="Of every load.")
@click.option("--open", "held", type=click.IntRange(1), default=10_000, show_default=True, help="Streams.")
@click.option("--pickers/--no-pickers", "pickers", default=True, help="Whole ones, too.")
def main(*, runs: int, scale: float, held: int, pickers: bool) -> None:
    """Measure the yardstick and both transports, side by side in each run; figures are medians."""
    raise_file_limit()
    figures: Figures = {}
    wholes: dict[tuple[str, int], list[Whole]] = {}
    try:
        for number in range(runs):
            asyncio.run(_run(figures, number, scale, held))
            if pickers:
                asyncio.run(_run_pickers(wholes, sorted({min(1_000, held), held})))
    except (ChildError, ClientError) as error:
        raise click.ClickException(str(error)) from error
    console = Console()
    console.print(_table(figures))
    if pickers:
        console.print(_pickers_table(wholes))


async def _run(figures: Figures, number: int, scale: float, held: int) -> None:
    # Each run begins with another one, so that a drift of the machine does not favour any.
    names = [*SERVERS][number % len(SERVERS) :] + [*SERVERS][: number % len(SERVERS)]
    for name in names:
        async with _serving(name) as (pid, address):
            size = await asyncio.to_thread(bytes_per_open_stream, pid, address, held)
            figures.setdefault((MEMORY, name), []).append(size)
            for load in LOADS:
                found = await asyncio.to_thread(cost, load, pid, address, scale)
                figures.setdefault((f"{load.name}: µs per {load.unit}", name), []).append(found)


async def _run_pickers(wholes: dict[tuple[str, int], list[Whole]], counts: Sequence[int]) -> None:
    for count in counts:
        for name in PICKERS:
            wholes.setdefault((name, count), []).append(await whole(name, count))


@asynccontextmanager
async def _serving(name: str) -> AsyncIterator[tuple[int, str]]:
    async with AsyncExitStack() as stack:
        log_path = scratch_directory(stack, None) / f"{name}.log"

        def listening() -> re.Match[str] | None:
            return re.search(r"^listening on (\S+)\n", child.log_text(), re.MULTILINE)

        async def ready() -> bool:
            return listening() is not None

        child = Child(name, [sys.executable, "-m", *SERVERS[name]], ready=ready, log_path=log_path)
        await stack.enter_async_context(child)
        found = listening()
        yield child.pid, found[1] if found else ""


def _table(figures: Figures) -> Table:
    table = Table("CPU of the server", *SERVERS, "http2 / yardstick")
    for load in dict.fromkeys(load for load, _ in figures):
        row = {name: median(figures[load, name]) for name in SERVERS}
        ratio = row["http2"] / row["yardstick"] if row["yardstick"] else 0.0
        table.add_row(load, *(f"{figure:,.0f}" for figure in row.values()), f"{ratio:.2f}")
    return table


def _pickers_table(wholes: dict[tuple[str, int], list[Whole]]) -> Table:
    table = Table("transport", title=f"A whole picker before {ENDPOINTS} servers")
    titles = ("open streams", "ready s", "of CPU s", "MB when ready", "MB settled", "MB with streams")
    for title in (*titles, "bytes per stream"):
        table.add_column(title, justify="right")
    for (name, count), found in wholes.items():
        held = median(given.held_mb for given in found)
        settled = median(given.settled_mb for given in found)
        table.add_row(
            name,
            f"{count:,}",
            f"{median(given.ready_seconds for given in found):.2f}",
            f"{median(given.ready_cpu_seconds for given in found):.2f}",
            f"{median(given.ready_mb for given in found):.0f}",
            f"{settled:.0f}",
            f"{held:.0f}",
            f"{(held - settled) * 1e6 / count:,.0f}",
        )
    return table


if __name__ == "__main__":
    main()
