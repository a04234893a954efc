"""``serve-picker top``: the live page's core in a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from picker.commands.admin_client import AdminClient, Json, admin_option, token_option
from picker.commands.explain import printable, table

if TYPE_CHECKING:
    from pathlib import Path

_HOME_AND_CLEAR = "\x1b[H\x1b[J"
_SHOWN = ("address", "cluster", "state", "in_flight", "load", "queue", "tokens", "kv", "page_age", "share")
_LINES_AROUND = 5
"""Lines of the screen that are not endpoints."""


@click.command("top", short_help="Watch a running picker's endpoints in the terminal.")
@click.option("--interval", type=click.FloatRange(0.2, 3600), default=1.0, help="seconds between looks [1]")
@click.option("--once", is_flag=True, help="print one look and end")
@admin_option
@token_option
def command(*, interval: float, once: bool, admin: str, token_file: Path | None) -> int:
    """Show the endpoints, busiest first, until Ctrl-C."""
    client = AdminClient(admin, token_file)
    while True:
        state = client.get("/api/state")
        if once or not sys.stdout.isatty():
            click.echo(screen(state, len(state["endpoints"])))
            if once:
                return 0
        else:
            lines = shutil.get_terminal_size().lines - _LINES_AROUND
            click.echo(_HOME_AND_CLEAR + screen(state, max(1, lines)), nl=False)
        time.sleep(interval)


def screen(state: Json, most: int) -> str:
    """One look: a line of numbers, clusters where there are some, and up to ``most`` endpoints."""
    rates = state["rates"]
    took = f"decision p50 {_number(rates['decision_p50_us'])} µs, p99 {_number(rates['decision_p99_us'])} µs"
    policy = f"policy {printable(state['policy']['name'])}"
    parts = [f"{rates['requests']:.1f} requests/s   {took}   {rates['streams']:.0f} streams   {policy}"]
    if state["policy"]["problem"]:
        parts.append(f"not loaded: {printable(state['policy']['problem'])}")
    parts += [
        f"cluster {printable(one['name'])}: wanted {_share(one['wanted'])}, served {_share(one['served'])}"
        for one in state["clusters"]
    ]
    places = [state["columns"].index(name) for name in _SHOWN]
    busy = state["columns"].index("in_flight")
    rows = sorted(state["endpoints"], key=lambda row: -row[busy])
    lines = [
        [_cell(name, row[place]) for name, place in zip(_SHOWN, places, strict=True)] for row in rows[:most]
    ]
    parts += ["", table([name.replace("_", " ") for name in _SHOWN], lines)]
    if len(rows) > most:
        parts.append(f"and {len(rows) - most} more")
    return "\n".join(parts)


def _cell(name: str, value: object) -> str:
    if isinstance(value, str):
        return printable(value)
    number = value if isinstance(value, int | float) else None
    if name in ("kv", "share"):
        return _share(number)
    return _number(number, 1 if name in ("load", "page_age") else 0)


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
