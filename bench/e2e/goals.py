"""What the picker shall cost, beside the echoes of the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from bench.e2e.measure import ALONE, Measurement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.e2e.measure import Run

Measurements = Mapping[tuple[str, str, str], Measurement]
"""Those of one run by case, subject and mode."""
Time = Callable[[Measurement], float]

MOST_ADDED = 1.3


@dataclass(frozen=True, slots=True)
class Goal:
    """``figure``, of a run with this case in this mode, shall be ``most`` or less."""

    case: str
    mode: str
    measure: str
    unit: str
    most: float
    figure: Callable[[Measurements, str, str], float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal, and the median over the runs."""

    goal: Goal
    seen: float

    @property
    def is_met(self) -> bool:
        """Whether it is reached."""
        return self.seen <= self.goal.most


def verdicts(runs: Sequence[Run]) -> list[Verdict]:
    """Every goal for which all was measured that it needs."""
    by_run = [{(m.case, m.subject, m.mode): m for m in run.measurements} for run in runs]
    found = []
    for goal in GOALS:
        try:
            seen = [goal.figure(run, goal.case, goal.mode) for run in by_run]
        except KeyError:
            continue
        found.append(Verdict(goal, median(seen)))
    return found


def _ratio(run: Measurements, case: str, mode: str) -> float:
    return run[case, "picker", mode].subject_us / run[case, "yardstick", mode].subject_us


def _ratio_to_duplex(run: Measurements, case: str, mode: str) -> float:
    """Against the yardstick in the mode that most gateways use, whatever our own is."""
    return run[case, "picker", mode].subject_us / run[case, "yardstick", "duplex"].subject_us


def _excess(run: Measurements, case: str, mode: str) -> float:
    return run[case, "picker", mode].subject_us - run[case, "own-echo", mode].subject_us


def _added(time: Time) -> Callable[[Measurements, str, str], float]:
    def figure(run: Measurements, case: str, mode: str) -> float:
        alone = time(run[case, ALONE.subject, ALONE.mode])
        echo = time(run[case, "own-echo", mode]) - alone
        # An echo that adds nothing is noise, not an infinite ratio.
        return (time(run[case, "picker", mode]) - alone) / echo if echo > 0 else 1.0

    return figure


def _added_goals(case: str) -> tuple[Goal, Goal]:
    p50, p99 = _added(lambda m: m.first_byte_p50), _added(lambda m: m.first_byte_p99)
    return (
        Goal(case, "duplex", "p50 added / that of own-echo", "", MOST_ADDED, p50),
        Goal(case, "duplex", "p99 added / that of own-echo", "", MOST_ADDED, p99),
    )


_CPU = "CPU / yardstick"
_CPU_DUPLEX = "CPU / yardstick in duplex"
_CPU_ABOVE = "CPU above own-echo"
GOALS = (
    Goal("small", "duplex", _CPU, "", 0.35, _ratio),
    Goal("small-closed", "duplex", _CPU, "", 0.3, _ratio),
    Goal("220kB", "duplex", _CPU, "", 0.45, _ratio),
    Goal("400kB", "duplex", _CPU, "", 0.45, _ratio),
    Goal("streamed", "duplex", _CPU, "", 0.22, _ratio),
    Goal("small", "buffered", _CPU, "", 0.3, _ratio),
    Goal("small", "buffered", _CPU_DUPLEX, "", 0.3, _ratio_to_duplex),
    Goal("220kB", "buffered", _CPU, "", 0.4, _ratio),
    Goal("220kB", "buffered", _CPU_DUPLEX, "", 0.4, _ratio_to_duplex),
    Goal("streamed", "buffered", _CPU_DUPLEX, "", 0.008, _ratio_to_duplex),
    Goal("small", "duplex", _CPU_ABOVE, "µs", 120.0, _excess),
    Goal("400kB", "duplex", _CPU_ABOVE, "µs", 1_000.0, _excess),
    *_added_goals("small"),
    *_added_goals("400kB"),
)
