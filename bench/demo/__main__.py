"""``python -m bench.demo``: Envoy's own balancing and the picker before the same Ray Serve proxies."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import click
import uvloop
from rich.console import Console

from bench.demo.play import play
from bench.demo.stage import StageError
from bench.rig.child import ChildError
from bench.rig.ray import RayError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from bench.demo.stage import Backend

FIRST_PORT = 10000
INTERRUPTED = 130
PLAIN_WIDTH = 140
"""Columns where the output is no terminal: the table needs them."""


@click.command()
@click.option("--backend", type=click.Choice(["ray", "sim"]), default="ray", envvar="BACKEND")
@click.option("--seconds", type=click.FloatRange(0.5, 600), default=20.0, help="Of each of the six runs.")
@click.option("--seed", type=int, default=1, help="Of the arrivals and sizes.")
@click.option(
    "--port", type=click.IntRange(1, 65533), default=FIRST_PORT, envvar="PORT", help="First of three."
)
@click.option("--keep", is_flag=True, envvar="KEEP", help="Leave it running afterwards, until Ctrl-C.")
def main(*, backend: Backend, seconds: float, seed: int, port: int, keep: bool) -> None:
    """Compare round robin, least request and the picker; print one table; leave nothing running."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, PLAIN_WIDTH)
    try:
        uvloop.run(until_signal(play(console, backend, seconds, seed, port, keep=keep)))
    except asyncio.CancelledError:
        # By then everything is taken down; where it was kept on purpose, this is its proper end.
        console.print("interrupted: everything is taken down")
        sys.exit(0 if keep else INTERRUPTED)
    except (ChildError, RayError, StageError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


async def until_signal(work: Coroutine[None, None, None]) -> None:
    """Cancel the work at SIGINT or SIGTERM, so that its context managers take everything down."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    await task


if __name__ == "__main__":
    main(prog_name="python -m bench.demo")
