"""The end-to-end bench, run small; and that the echoes it compares with are correct pickers."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import orjson
import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.e2e.__main__ import main
from bench.e2e.cases import CASES, Case
from bench.e2e.goals import verdicts
from bench.e2e.measure import Measurement, Plan, Run
from bench.e2e.picture import picture
from bench.e2e.report import as_json, pairs, table
from bench.e2e.subject import KINDS, running
from bench.rig.envoy import MODES, Envoy, ExtProc, Listener, bootstrap
from bench.rig.load import Request, Target, failures, open_loop, shares
from bench.rig.servers import Servers
from bench.transport.yardstick import fields, message, varint

if TYPE_CHECKING:
    from pathlib import Path

    from bench.e2e.subject import Kind


def measurement(subject: str, run: int, cpu: float, first_byte: float) -> Measurement:
    return Measurement(
        case="small",
        subject=subject,
        mode="" if subject == "none" else "duplex",
        run=run,
        requests=100,
        failed=0,
        rate=10.0,
        subject_us=cpu,
        envoy_us=cpu * 2,
        first_byte_p50=first_byte,
        first_byte_p99=first_byte * 3,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bodies_have_the_size_and_no_common_prompt(case: Case) -> None:
    body = case.bodies(seed=1)

    assert {len(body(number)) for number in (0, 7, 123_456)} == {case.size}
    assert body(7) == case.bodies(seed=1)(7)
    prompts = [orjson.loads(body(number))["messages"][0]["content"] for number in (1, 2)]
    assert prompts[0][:2] != prompts[1][:2]


def test_a_case_is_open_or_closed_and_large_enough() -> None:
    with pytest.raises(ValueError, match="give a rate"):
        Case(name="both", rate=1, clients=1)
    with pytest.raises(ValueError, match="give a rate"):
        Case(name="neither")
    with pytest.raises(ValueError, match="size: a request of this kind has"):
        Case(name="tiny", rate=1, size=10)


def run(number: int, *measurements: Measurement) -> Run:
    assert all(m.run == number for m in measurements)
    return Run(measurements, {"picker": 0.0}, {"picker": 0})


def test_each_measurement_stands_beside_the_one_without_a_picker() -> None:
    runs = [
        run(0, measurement("none", 0, 0, 1.0), measurement("picker", 0, 100, 3.0)),
        run(1, measurement("none", 1, 0, 2.0), measurement("picker", 1, 300, math.inf)),
    ]

    ((key, group),) = pairs(runs).items()
    assert key == ("small", "duplex", "picker")
    assert [pair.added_p50 for pair in group] == [2.0, math.inf]
    assert [pair.added_p99 for pair in group] == [6.0, math.inf]

    console = Console(width=150, record=True, file=sys.stderr)
    console.print(table(runs))
    text = console.export_text()
    row = next(line for line in text.splitlines() if "picker" in line).split()
    expected = ["small", "duplex", "picker", "0/100", "10.0", "200", "400/0", "inf/inf", "+inf/+inf"]
    assert row == [*expected, "100", "300"]

    document = orjson.loads(as_json(Plan(cases=CASES, modes=["duplex"]), runs))
    assert document["measurements"][3]["first_byte_p50"] is None
    assert "picker 200" in picture(runs)


def test_goals_are_held_against_the_echoes_of_the_same_run() -> None:
    runs = [
        run(
            number,
            measurement("none", number, 0, 1.0),
            measurement("picker", number, 300 * noise, 4.0),
            measurement("yardstick", number, 1000 * noise, 5.0),
            measurement("own-echo", number, 300 * noise - 200, 3.0),
        )
        for number, noise in enumerate((1, 2))
    ]

    found = {verdict.goal.measure: (verdict.seen, verdict.is_met) for verdict in verdicts(runs)}
    assert found == {
        "CPU / yardstick": (0.3, True),
        "CPU above own-echo": (200.0, False),
        "p50 added / that of own-echo": (1.5, False),
        "p99 added / that of own-echo": (1.5, False),
    }


def test_goals_of_what_was_not_measured_are_left_out() -> None:
    assert verdicts([run(0, measurement("none", 0, 0, 1.0), measurement("picker", 0, 100, 3.0))]) == []


@pytest.mark.envoy
@pytest.mark.parametrize("kind", ["yardstick", "own-echo"])
async def test_the_echoes_keep_every_body_whole_in_every_mode(kind: Kind) -> None:
    async with Servers(count=2, page_bytes=0) as servers, running(kind, servers.addresses) as subject:
        listeners = [
            Listener(
                name=mode,
                endpoints=servers.addresses,
                balancer="picker",
                ext_proc=ExtProc(address=subject.address, mode=mode, message_timeout=20),
            )
            for mode in MODES
        ]
        async with Envoy(bootstrap(listeners)) as envoy:
            requests = [
                Request(b"x" * 3_000_000),
                Request(b'{"stream": true, "chunks": 20}'),
                Request(method="GET", path="/"),
            ]
            sizes = {}
            for mode in MODES:
                results = await open_loop(Target(address=envoy.address(mode), timeout=30), requests)
                assert not failures(results), mode
                assert shares(results) == {servers.addresses[0]: 1.0}, mode
                sizes[mode] = sorted(result.size for result in results)

    assert all(size == sizes["headers"] for size in sizes.values()), sizes


@pytest.mark.envoy
def test_a_quick_run_gives_figures_for_each_mode(tmp_path: Path) -> None:
    arguments = [
        "--quick",
        "--case",
        "small",
        "--servers",
        "2",
        "--out",
        str(tmp_path),
    ]
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 0, result.output
    assert "small: 200 B prompts, 200 requests/s" in result.output
    assert "Left out: " in result.output
    path, image = sorted(tmp_path.iterdir())
    assert image.suffix == ".svg"
    measurements = orjson.loads(path.read_bytes())["measurements"]
    asked = {(subject, mode) for subject in KINDS for mode in ("duplex", "buffered")}
    assert {(m["subject"], m["mode"]) for m in measurements} == {("none", ""), *asked}
    assert {(m["requests"], m["failed"]) for m in measurements} == {(200, 0)}


def test_a_case_of_ones_own_that_makes_no_sense_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["--rate", "10", "--size", "3"])

    assert result.exit_code == 2
    assert "size: a request of this kind has" in result.output


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 1 << 32])
def test_the_yardstick_reads_back_what_it_writes(number: int) -> None:
    encoded = message(2, b"a" * 200) + varint(8 << 3) + varint(number)

    assert list(fields(encoded)) == [(2, b"a" * 200), (8, number)]
