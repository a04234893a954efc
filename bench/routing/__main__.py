"""``python -m bench.routing``: the comparison of policies, over all traces; goes on where it was ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.routing import report
from bench.routing.cache import Results
from bench.routing.matrix import LOADS, REQUESTS, TRACES, cells
from picker.replay.knee import find_knee
from picker.replay.pool import Pool
from picker.replay.report import Row, write_picture

if TYPE_CHECKING:
    from picker.replay.result import Result

_TRACES = Path(__file__).parents[2] / ".." / "shared" / "traces"


@click.command()
@click.option("--traces", type=click.Path(exists=True, file_okay=False, path_type=Path), default=_TRACES)
@click.option("--only", multiple=True, help="A trace's name, or a part of it.")
@click.option("--requests", type=click.IntRange(100), default=REQUESTS, show_default=True)
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench/out/routing"),
    show_default=True,
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench/out"),
    show_default=True,
)
def main(  # noqa: PLR0913 - one for each option
    *, traces: Path, only: tuple[str, ...], requests: int, seeds: int, workers: int, cache: Path, out: Path
) -> None:
    """Compare the policies on all traces, under all loads and with all that can be different."""
    chosen = [trace for trace in TRACES if not only or any(part in trace.name for part in only)]
    knees: dict[str, float] = {}
    runs: dict[report.Key, list[Result]] = {}
    rows: list[Row] = []
    with Pool(workers) as pool:
        results = Results(cache, pool)
        for trace in chosen:
            case = trace.case(traces, requests)
            knees[trace.name] = find_knee(case, range(seeds), results.run)
            wanted = list(cells(trace, case, knees[trace.name]))
            every = [replace(cell.case, seed=seed) for cell in wanted for seed in range(seeds)]
            with click.progressbar(length=len(dict.fromkeys(every)), label=trace.name) as bar:
                results.fill(every, bar.update)
            for cell in wanted:
                found = results.run([replace(cell.case, seed=seed) for seed in range(seeds)])
                runs[report.key_of(cell)] = found
                if not cell.variant and cell.load in {f"{load:g}" for load in LOADS}:
                    rows.append(Row(cell.case, float(cell.load), tuple(found)))
            out.mkdir(parents=True, exist_ok=True)
            (out / "routing.md").write_text(report.markdown(runs, knees, seeds), encoding="utf-8")
            write_picture(rows, out / "routing.svg")
    click.echo(f"written to {out}: routing.md, routing.svg")


if __name__ == "__main__":
    main()
