"""The figures, as a table for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

import orjson
from rich.box import SIMPLE
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.scrape.measure import IdleShare, PageCost, Plan

LEFT_OUT = (
    "Left out: TLS, networks, servers that take their time (a Ray node: 20 ms and more). The servers share "
    "this machine's cores, so trust ratios within a run more than absolute figures."
)


def pages_table(costs: Sequence[PageCost]) -> Table:
    """Every run and the median: the picker's scraping beside the plain loop."""
    table = Table("pages", "run", title="What a page costs", box=SIMPLE)
    for title in ("pages/s", "picker µs/page", "plain loop µs/page", "ratio"):
        table.add_column(title, justify="right")
    for kind in dict.fromkeys(cost.kind for cost in costs):
        rows: list[tuple[float, float, float, float]] = []
        for run in sorted({cost.run for cost in costs}):
            ways = {cost.who: cost for cost in costs if (cost.kind, cost.run) == (kind, run)}
            picker, plain = ways["picker"], ways["plain"]
            ratio = picker.us_per_page / plain.us_per_page
            rows.append((picker.pages_per_second, picker.us_per_page, plain.us_per_page, ratio))
            table.add_row(kind, str(run + 1), *_cells(rows[-1]))
        if len(rows) > 1:
            medians = [median(column) for column in zip(*rows, strict=True)]
            table.add_row(kind, "median", *_cells(medians), style="bold")
        table.add_section()
    return table


def _cells(figures: Sequence[float]) -> list[str]:
    forms = ("{:.0f}", "{:.0f}", "{:.0f}", "{:.2f}")
    return [form.format(figure) for form, figure in zip(forms, figures, strict=True)]


def idle_table(shares: Sequence[IdleShare]) -> Table:
    """What idle pickers take."""
    table = Table("pages", title="A whole picker before servers that rest", box=SIMPLE)
    for title in ("endpoints", "pages/s", "core"):
        table.add_column(title, justify="right")
    for share in shares:
        cells = f"{share.endpoints}", f"{share.pages_per_second:.1f}", f"{share.core:.3f}"
        table.add_row(share.kind, *cells)
    return table


def as_json(plan: Plan, costs: Sequence[PageCost], shares: Sequence[IdleShare]) -> bytes:
    """All that was measured, and on what."""
    document: dict[str, Any] = {
        "plan": asdict(plan),
        "machine": {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "pages": [asdict(cost) for cost in costs],
        "idle": [asdict(share) for share in shares],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)
