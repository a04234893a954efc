"""``python -m bench.attacks``: a picker under attack: what it holds, what it takes, whom it still serves."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import TYPE_CHECKING

import click
import uvloop
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from bench.attacks.attacker import ATTACKS
from bench.attacks.witness import Witness
from bench.rig.child import ChildError
from bench.rig.cpu import cpu_seconds, resident_bytes
from bench.rig.picker import Picker
from bench.scrape.pages import raise_file_limit

if TYPE_CHECKING:
    from bench.attacks.attacker import Attack

FILE_WIDTH = 150
SETTLE_SECONDS = 1.0
SAMPLE_SECONDS = 0.02
MB = 1e6


@click.command()
@click.option("--only", default="", help="Attacks whose name has this text.")
@click.option("--transport", type=click.Choice(["http2", "grpcio"]), default="http2", show_default=True)
def main(only: str, transport: str) -> None:
    """Attack a picker with its default settings, one attack after the other, all the same process."""
    raise_file_limit()
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    table = Table("attack", "its end", title="A picker under attack", box=SIMPLE)
    for title in ("seconds", "CPU s", "MB before", "most", "after", "others served", "slowest ms"):
        table.add_column(title, justify="right")
    try:
        served = uvloop.run(_run(table, only, transport))
    except ChildError as error:
        console.print(str(error), style="red", markup=False)
        sys.exit(1)
    console.print(table)
    sys.exit(not served)


async def _run(table: Table, only: str, transport: str) -> bool:
    settings = {"PICKER_ENDPOINTS": "127.0.0.1:1,127.0.0.1:2", "PICKER_LOG_LEVEL": "error"}
    async with Picker({**settings, "PICKER_TRANSPORT": transport}) as picker:
        all_served = True
        for attack in ATTACKS:
            if only in attack.name:
                all_served &= await _suffer(picker, attack, table)
    return all_served


async def _suffer(picker: Picker, attack: Attack, table: Table) -> bool:
    before, used, began = resident_bytes(picker.pid), cpu_seconds(picker.pid), time.monotonic()
    over = threading.Event()
    witness = Witness(picker.address)
    watching = asyncio.create_task(asyncio.to_thread(witness.watch, over))
    attacking = asyncio.create_task(asyncio.to_thread(attack.run, picker.address))
    most = before
    while not attacking.done():
        most = max(most, resident_bytes(picker.pid))
        await asyncio.sleep(SAMPLE_SECONDS)
    seconds, used = time.monotonic() - began, cpu_seconds(picker.pid) - used
    await asyncio.sleep(SETTLE_SECONDS)
    over.set()
    await watching
    memory = (before / MB, most / MB, resident_bytes(picker.pid) / MB)
    table.add_row(
        attack.name,
        await attacking,
        f"{seconds:.1f}",
        f"{used:.2f}",
        *(f"{figure:.0f}" for figure in memory),
        f"{witness.served} of {witness.asked}",
        f"{witness.slowest * 1_000:.0f}",
    )
    return witness.served == witness.asked > 0


if __name__ == "__main__":
    main()
