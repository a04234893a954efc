"""``python -m tests.fuzz``: random cases until the time is over; what fails is printed so as to be kept."""

from __future__ import annotations

import logging
import os
import random
import sys
import time
import traceback

import click

from bench.rig.child import PROJECT
from bench.rig.cpu import resident_bytes
from tests.fuzz.mutate import Case, Maker
from tests.fuzz.world import World

MOST_GROWTH = 48 << 20
"""Bytes of memory that may come after the first thousand cases: caches have filled by then."""
_WARM = 1_000
_OUT = PROJECT / "bench" / "out" / "fuzz"


@click.command()
@click.option("--minutes", type=click.FloatRange(0.01), default=10.0, show_default=True)
@click.option("--seed", type=int, default=None, help="Of the first case; the next has the next one.")
@click.option("--keep-on", is_flag=True, help="Go on after a finding.")
def main(minutes: float, seed: int | None, keep_on: bool) -> None:
    """Play random cases against a picker without sockets. Exit code 1: something was found."""
    logging.getLogger("picker").propagate = False
    seed = random.randrange(1 << 48) if seed is None else seed
    until = time.monotonic() + 60 * minutes
    world, found, played, before = World(), 0, 0, 0
    while time.monotonic() < until:
        if not _play(world, seed + played):
            found += 1
            if not keep_on:
                break
            world.close()
            world = World()
        played += 1
        if played == _WARM:
            before = resident_bytes(os.getpid())
        if played % 10_000 == 0:
            click.echo(f"{played:,} cases, {found} findings, {resident_bytes(os.getpid()) >> 20} MiB")
    grown = resident_bytes(os.getpid()) - before if before else 0
    click.echo(f"{played:,} cases from seed {seed}, {found} findings, memory grew by {grown >> 20} MiB")
    sys.exit(bool(found or grown > MOST_GROWTH))


def _play(world: World, seed: int) -> bool:
    case = Maker(random.Random(seed)).case()
    try:
        world.run(case)
    except Exception:  # noqa: BLE001 - whatever it is, it is what we look for
        click.echo(f"seed {seed}:\n{traceback.format_exc()}")
        _OUT.mkdir(parents=True, exist_ok=True)
        path = _OUT / f"{seed}.py"
        path.write_text(f"STEPS = {_shrunk(case).steps!r}\n")
        click.echo(f"the smallest case found is in {path}")
        return False
    return True


def _shrunk(case: Case) -> Case:
    """The same finding with fewer steps and bytes, by leaving out what is not needed for it."""
    deadline = time.monotonic() + 20
    steps = list(case.steps)
    size = max(1, len(steps) // 2)
    while size and time.monotonic() < deadline:
        for at in range(0, len(steps), size):
            fewer = steps[:at] + steps[at + size :]
            if fewer and _fails(fewer):
                steps = fewer
                break
        else:
            size //= 2
    return Case(steps)


def _fails(steps: list[bytes | str]) -> bool:
    world = World()
    try:
        world.run(Case(steps))
    except Exception:  # noqa: BLE001 - see _play
        return True
    finally:
        world.close()
    return False


if __name__ == "__main__":
    main()
