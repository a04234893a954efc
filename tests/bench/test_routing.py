"""The comparison of policies run small: what it writes, what it runs again, and what it does not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from click.testing import CliRunner

from bench.routing import matrix, report
from bench.routing.__main__ import main
from bench.routing.cache import Results, digest_of
from bench.routing.matrix import Published, TraceOf
from picker.replay.cases import Case, Source
from picker.replay.policies import BUILT_IN, OURS, PolicyName
from picker.replay.pool import Pool
from picker.replay.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "picker" / "replay" / "samples"
ROBIN = Case(Source(str(SAMPLES / "mooncake.jsonl")), PolicyName("round-robin"), rate=8.0, requests=60)


class Counting(Pool):
    """Runs in this process, and counts what it runs."""

    def __init__(self) -> None:
        super().__init__(1)
        self.ran: list[Case] = []

    def run(self, cases: Sequence[Case], progress: Callable[[int], None] | None = None) -> list[Result]:
        self.ran += cases
        return super().run(cases, progress)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> TraceOf:
    """One trace, whose knee is known, one load, one row of published figures."""
    trace = TraceOf("Mooncake tiny", "mooncake.jsonl")
    for module in ("bench.routing.matrix", "bench.routing.report", "bench.routing.__main__"):
        monkeypatch.setattr(f"{module}.TRACES", (trace,))
        monkeypatch.setattr(f"{module}.LOADS", (0.8,))
    row = Published(trace.name, 8.0, 60, of_round_robin=1000.0, of_peer=0.0)
    for module in ("bench.routing.matrix", "bench.routing.report"):
        monkeypatch.setattr(f"{module}.PUBLISHED", (row,))
    monkeypatch.setattr(matrix, "VARIED", (trace.name,))
    monkeypatch.setattr("bench.routing.__main__.find_knee", lambda *_: 8.0)
    return trace


def test_results_are_run_once_and_kept(tmp_path: Path) -> None:
    seeds = [replace(ROBIN, seed=seed) for seed in (0, 1)]
    with Counting() as pool:
        first = Results(tmp_path, pool).run(seeds)
        assert pool.ran == seeds
        again = Results(tmp_path, pool).run([*seeds, replace(ROBIN, seed=2)])
        assert pool.ran == [*seeds, replace(ROBIN, seed=2)]
    assert [result.ttft for result in again[:2]] == [result.ttft for result in first]


def test_a_run_that_was_cut_off_leaves_nothing_half_written(tmp_path: Path) -> None:
    class Dying(Counting):
        def run(self, cases: Sequence[Case], progress: Callable[[int], None] | None = None) -> list[Result]:
            if len(self.ran) >= 16:
                raise KeyboardInterrupt
            return super().run(cases, progress)

    many = [replace(ROBIN, seed=seed) for seed in range(20)]
    with Dying() as pool, pytest.raises(KeyboardInterrupt):
        Results(tmp_path, pool).run(many)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}
    assert len(list(tmp_path.iterdir())) == 16
    with Counting() as whole:
        assert len(Results(tmp_path, whole).run(many)) == 20
        assert whole.ran == many[16:]


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("picker/replay/engine.py", BUILT_IN),
        ("scorer/scorers.py", (OURS, "mine")),
        ("picker/routing/ledger.py", (OURS, "mine")),
        ("scorer/prefix.py", (OURS, "mine", "llm-d-default", "llm-d-optimized")),
        ("scorer/plugins/scorers.py", (OURS, "mine", "llm-d-default", "llm-d-optimized")),
        ("picker/extproc/session.py", ()),
    ],
)
def test_a_change_of_code_makes_only_those_anew_that_hang_on_it(
    tmp_path: Path, file: str, changes: tuple[str, ...]
) -> None:
    for part in ("scorer", "picker/replay", "picker/routing", "picker/inference", "picker/extproc"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "samples"))
    shutil.copy(ROOT / "picker/policy_file.py", tmp_path / "picker")
    names = dict.fromkeys((*BUILT_IN, *(("mine",) if "mine" in changes else ())))
    before = {name: digest_of(name, tmp_path) for name in names}
    with (tmp_path / file).open("a") as changed:
        changed.write("\n# changed\n")
    digest_of.cache_clear()
    assert {name for name in names if digest_of(name, tmp_path) != before[name]} == set(changes)


def test_a_whole_comparison_is_written_and_not_run_again(tmp_path: Path, small: TraceOf) -> None:
    options = [
        *("--traces", str(SAMPLES), "--requests", "200", "--seeds", "1", "--workers", "1"),
        *("--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")),
    ]
    told = CliRunner().invoke(main, options, catch_exceptions=False)
    assert told.exit_code == 0, told.output
    text = (tmp_path / "out" / "routing.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith(f"| {small.name} x8"))
    assert "reaches 1000" in row
    assert "misses 0)" in row
    for variant in ("headers at once", "4 pickers", "one fails at once", "pages 10 s old"):
        assert f"### {variant}" in text
    assert "<svg" in (tmp_path / "out" / "routing.svg").read_text()

    cells = sorted((tmp_path / "cache").iterdir())
    written = [path.stat().st_mtime_ns for path in cells]
    CliRunner().invoke(main, options, catch_exceptions=False)
    assert sorted((tmp_path / "cache").iterdir()) == cells
    assert [path.stat().st_mtime_ns for path in cells] == written
    assert (tmp_path / "out" / "routing.md").read_text() == text


def test_a_result_survives_being_kept() -> None:
    result = ROBIN.run()
    again = Result.from_json(orjson.loads(orjson.dumps(result.as_json())))
    assert replace(again, agreement=0.0) == replace(result, agreement=0.0)
    assert again.agreement != again.agreement  # NaN: there was one picker only


def test_each_row_of_published_figures_is_of_a_trace_that_is_played() -> None:
    names = {trace.name for trace in matrix.TRACES}
    assert {row.trace for row in matrix.PUBLISHED} <= names
    assert set(matrix.VARIED) <= names
    assert report.markdown({}, {}, 5)  # nothing run yet: headings, no error
