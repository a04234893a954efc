"""Results of many runs, as a table, CSV, JSON and a picture."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from math import isnan, nan
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import orjson

from picker.replay.chart import Chart, Line, svg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from picker.replay.cases import Case
    from picker.replay.result import Result


class Row(NamedTuple):
    """The runs of one case with all its seeds."""

    case: Case
    load: float | None
    """As a share of the knee, where that was asked for."""
    results: tuple[Result, ...]

    @property
    def setting(self) -> str:
        """What it is a row of, for people."""
        case = self.case
        amount = f"{case.sessions} sessions" if case.sessions else f"{case.rate:.3g}x"
        return amount if self.load is None else f"{amount} ({self.load:g} of the knee)"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of a run: how it is called in files and in the table, and how it is written there."""

    name: str
    heading: str
    of: Callable[[Result], float]
    form: str


FIGURES = (
    Figure("ttft_p50_ms", "TTFT p50", lambda result: 1000 * result.ttft[0], ",.0f"),
    Figure("ttft_p90_ms", "p90", lambda result: 1000 * result.ttft[1], ",.0f"),
    Figure("ttft_p99_ms", "p99 ms", lambda result: 1000 * result.ttft[2], ",.0f"),
    Figure("end_p50_ms", "end p50", lambda result: 1000 * result.end[0], ",.0f"),
    Figure("end_p90_ms", "p90", lambda result: 1000 * result.end[1], ",.0f"),
    Figure("end_p99_ms", "p99 ms", lambda result: 1000 * result.end[2], ",.0f"),
    Figure("goodput", "good/s", lambda result: result.goodput, ".1f"),
    Figure("hit_rate", "hit", lambda result: result.hit_rate, ".3f"),
    Figure("ideal_hit_rate", "ideal", lambda result: result.ideal_hit_rate, ".3f"),
    Figure("spread", "max/mean", lambda result: result.spread, ".2f"),
    Figure("failed", "failed", lambda result: float(result.failed), ",.0f"),
    Figure("to_failing", "to failing", lambda result: result.to_failing, ".3f"),
    Figure("agreement", "agree", lambda result: result.agreement, ".3f"),
)
_NOT_ALWAYS = ("to_failing", "agreement")


def spread_of(figure: Figure, row: Row) -> tuple[float, float, float]:
    """Mean, least and most over the seeds; NaN where no run says."""
    values = [value for value in map(figure.of, row.results) if not isnan(value)]
    return (fmean(values), min(values), max(values)) if values else (nan, nan, nan)


def table(rows: Sequence[Row]) -> str:
    """For a terminal: means over the seeds, and of the TTFT p90 the least and most behind it."""
    figures = [
        figure for figure in FIGURES if figure.name not in _NOT_ALWAYS or _is_of_interest(figure, rows)
    ]
    cells = [
        ["trace", "load", "policy", *(figure.heading for figure in figures)],
        *([*_names(row), *(_cell(figure, row) for figure in figures)] for row in rows),
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)  # noqa: PLR2004 - the names
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def _names(row: Row) -> tuple[str, str, str]:
    return _trace(row.case), row.setting, row.case.policy.name


def _is_of_interest(figure: Figure, rows: Sequence[Row]) -> bool:
    return any(row.case.faults and figure.name == "to_failing" for row in rows) or any(
        row.case.replicas > 1 and figure.name == "agreement" for row in rows
    )


def _cell(figure: Figure, row: Row) -> str:
    mean, least, most = spread_of(figure, row)
    if isnan(mean):
        return "-"
    if figure.name == "ttft_p90_ms" and len(row.results) > 1:
        return f"{mean:{figure.form}} ({least:{figure.form}}-{most:{figure.form}})"
    return f"{mean:{figure.form}}"


def _trace(case: Case) -> str:
    return case.source.read().name


def write_csv(rows: Iterable[Row], path: Path) -> None:
    """One line for each run."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["trace", "policy", "load", "level", "seed", *(figure.name for figure in FIGURES)])
        for row in rows:
            for seed, result in enumerate(row.results):
                values = (figure.of(result) for figure in FIGURES)
                lines.writerow(
                    [
                        _trace(row.case),
                        row.case.policy.name,
                        "" if row.load is None else f"{row.load:g}",
                        f"{row.case.level:g}",
                        row.case.seed + seed,
                        *("" if isnan(value) else f"{value:.6g}" for value in values),
                    ]
                )


def write_json(rows: Iterable[Row], path: Path) -> None:
    """All that is known of each run; times in seconds."""
    document = [
        {
            "trace": _trace(row.case),
            "policy": row.case.policy.name,
            "load": row.load,
            "level": row.case.level,
            "runs": [
                {"seed": row.case.seed + seed, **result.as_json()} for seed, result in enumerate(row.results)
            ],
        }
        for row in rows
    ]
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


_DRAWN = (
    ("TTFT p90, ms", "ttft_p90_ms", True),
    ("goodput, good answers/s", "goodput", False),
    ("hit rate (dashed: ideal)", "hit_rate", False),
    ("spread, max/mean requests", "spread", False),
)


def write_picture(rows: Sequence[Row], path: Path) -> None:
    """Four charts a trace, each over the load, with a band from the least to the most of the seeds."""
    charts = []
    for trace in dict.fromkeys(_trace(row.case) for row in rows):
        of_trace = [row for row in rows if _trace(row.case) == trace]
        for title, name, logarithmic in _DRAWN:
            figure = next(figure for figure in FIGURES if figure.name == name)
            lines = [
                _line(policy, figure, [row for row in of_trace if row.case.policy.name == policy])
                for policy in dict.fromkeys(row.case.policy.name for row in of_trace)
            ]
            if name == "hit_rate":
                ideal = next(figure for figure in FIGURES if figure.name == "ideal_hit_rate")
                first = [row for row in of_trace if row.case.policy.name == of_trace[0].case.policy.name]
                lines.append(_line("", ideal, first))
            charts.append(Chart(f"{trace}: {title}", _across(of_trace), tuple(lines), logarithmic))
    path.write_text(svg(charts, columns=len(_DRAWN)), encoding="utf-8")


def _across(rows: Sequence[Row]) -> str:
    if all(row.load is not None for row in rows):
        return "load, knee = 1"
    return "sessions at once" if rows[0].case.sessions else "times as fast as recorded"


def _line(name: str, figure: Figure, rows: Sequence[Row]) -> Line:
    points = []
    for row in rows:
        across = row.case.level if row.load is None else row.load
        points.append((across, *spread_of(figure, row)))
    return Line(name, tuple(sorted(point for point in points if not isnan(point[1]))))
