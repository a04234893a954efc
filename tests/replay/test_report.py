"""What is written of many runs."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from picker.replay import cases, report
from picker.replay.cases import Case, Source
from picker.replay.chart import Chart, Line, svg
from picker.replay.policies import PolicyName
from picker.replay.servers import Fault
from tests.replay.support import steady

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[report.Row]:
    monkeypatch.setattr(cases, "_read", lambda _source: steady(100))
    case = Case(Source("steady"), PolicyName("random"), requests=20)
    result = case.run()
    slow = replace(result, ttft=(0.5, 1.5, 2.5))
    nothing = replace(result, ttft=(float("nan"),) * 3, failed=20)
    return [
        report.Row(case, 0.5, (result, slow)),
        report.Row(replace(case, rate=2.0), 1.0, (slow, slow)),
        report.Row(replace(case, policy=PolicyName("<mine>")), 0.5, (nothing, nothing)),
    ]


def test_the_table_has_a_line_a_case_with_means_and_range(rows: list[report.Row]) -> None:
    lines = report.table(rows).splitlines()
    assert len(lines) == 4
    assert lines[0].split()[:3] == ["trace", "load", "policy"]
    first = rows[0].results[0].ttft[1] * 1000
    assert f"{(first + 1500) / 2:,.0f} ({first:,.0f}-1,500)" in lines[1]
    assert "2x (1 of the knee)" in lines[2]
    assert " - " in lines[3]
    assert "to failing" not in lines[0]


def test_what_concerns_few_is_shown_where_it_does(rows: list[report.Row]) -> None:
    failing = rows[0]._replace(case=replace(rows[0].case, faults=(Fault(fails_from=0.0),), replicas=2))
    heading = report.table([failing]).splitlines()[0]
    assert "to failing" in heading
    assert "agree" in heading


def test_csv_and_json_have_every_run(rows: list[report.Row], tmp_path: Path) -> None:
    report.write_csv(rows, tmp_path / "replay.csv")
    with (tmp_path / "replay.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["policy"], line["seed"]) for line in lines[:2]] == [("random", "0"), ("random", "1")]
    assert float(lines[1]["ttft_p90_ms"]) == 1500.0
    assert lines[-1]["ttft_p90_ms"] == ""
    report.write_json(rows, tmp_path / "replay.json")
    document = json.loads((tmp_path / "replay.json").read_text())
    assert [len(row["runs"]) for row in document] == [2, 2, 2]
    assert document[0]["runs"][1]["ttft"] == [0.5, 1.5, 2.5]
    assert document[0]["runs"][0]["agreement"] is None
    assert document[-1]["runs"][0]["ttft"] == [None, None, None]


def test_the_picture_has_four_charts_a_trace(rows: list[report.Row], tmp_path: Path) -> None:
    report.write_picture(rows, tmp_path / "replay.svg")
    root = ET.parse(tmp_path / "replay.svg").getroot()  # noqa: S314 - our own
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{space}text")]
    assert sum(str(text).startswith("steady: ") for text in texts) == 4
    assert "<mine>" in texts
    assert len(list(root.iter(f"{space}polyline"))) >= 8


@pytest.mark.parametrize("logarithmic", [True, False])
@pytest.mark.parametrize("values", [(0.0, 0.0), (5.0, 5.0), (0.001, 9e6), (0.999, 1.001)])
def test_charts_stay_in_their_frames(values: tuple[float, float], *, logarithmic: bool) -> None:
    points = tuple((float(across), value, value, value) for across, value in enumerate(values))
    root = ET.fromstring(svg([Chart("a", "b", (Line("c", points),), logarithmic)], columns=1))  # noqa: S314
    for dot in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 <= float(dot.get("cx", "")) <= 320
        assert 0 <= float(dot.get("cy", "")) <= 240


def test_an_empty_chart_is_drawn_empty() -> None:
    assert "<polyline" not in svg([Chart("a", "b", (Line("c", ()),))], columns=4)
