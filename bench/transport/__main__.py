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
from bench.transport.client import ClientError
from bench.transport.loads import LOADS, bytes_per_open_stream, cost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVERS = {
    "yardstick": ["bench.transport.yardstick", "--address", "127.0.0.1:0", "--destination", "127.0.0.1:1"],
    "grpcio": ["bench.transport.echo", "--transport", "grpcio"],
    "http2": ["bench.transport.echo", "--transport", "http2"],
}
MEMORY = "bytes per open stream"

Figures = dict[tuple[str, str], list[float]]
"""By load and server, one figure a run."""


@click.command()
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--scale", type=click.FloatRange(0.01), default=1.0, show_default=True, help="Of every load.")
@click.option("--open", "held", type=click.IntRange(1), default=10_000, show_default=True, help="Streams.")
def main(runs: int, scale: float, held: int) -> None:
    """Measure the yardstick and both transports, side by side in each run; figures are medians."""
    figures: Figures = {}
    try:
        for number in range(runs):
            asyncio.run(_run(figures, number, scale, held))
    except (ChildError, ClientError) as error:
        raise click.ClickException(str(error)) from error
    Console().print(_table(figures))


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


if __name__ == "__main__":
    main()
