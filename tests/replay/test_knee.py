"""The knee finder, on servers whose waiting time is a formula."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from picker.replay import cases
from picker.replay.cases import Case, Source
from picker.replay.knee import KneeError, find_knee
from picker.replay.policies import PolicyName
from picker.replay.servers import Fault
from picker.replay.workload import Request, Trace
from tests.replay.support import steady

if TYPE_CHECKING:
    from picker.replay.result import Result


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setattr(cases, "_read", lambda _source: steady(100))
    return Case(Source("steady"), PolicyName("random"), requests=10).run()


@pytest.mark.parametrize("capacity", [0.5, 20.0, 150.0])
def test_it_is_where_the_wait_is_five_times_that_at_a_fifth(result: Result, capacity: float) -> None:
    """With a wait of 1/(1 - use), that is at (25/5 - 1)/(25/5 - 1/5) of the capacity: 5/6."""
    asked: list[Case] = []

    def run(wanted: list[Case]) -> list[Result]:
        asked.extend(wanted)
        waits = [1.0 / max(1e-9, 1.0 - case.rate / capacity) for case in wanted]
        return [replace(result, ttft=(wait, wait, wait)) for wait in waits]

    case = Case(Source("steady"), PolicyName("ours"), faults=(Fault(slowness=4.0),), replicas=4)
    knee = find_knee(case, [0, 1], run)
    assert knee == pytest.approx(capacity * 5 / 6, rel=0.04)
    assert knee <= capacity * 5 / 6
    assert {(one.policy.name, one.faults, one.replicas, one.seed) for one in asked} == {
        ("round-robin", (), 1, 0),
        ("round-robin", (), 1, 1),
    }


def test_sessions_are_counted_in_whole(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace("sessions", 16, 1, sessions=((Request(0.0, 10, 1),),))
    monkeypatch.setattr(cases, "_read", lambda _source: trace)

    def run(wanted: list[Case]) -> list[Result]:
        waits = [1.0 / max(1e-9, 1.0 - case.sessions / 60) for case in wanted]
        return [replace(result, ttft=(wait, wait, wait)) for wait in waits]

    case = Case(Source("sessions"), PolicyName("ours"), sessions=1)
    assert find_knee(case, [0], run) == pytest.approx(50.0, abs=2.0)


def test_runs_that_never_wait_have_none(result: Result) -> None:
    case = Case(Source("steady"), PolicyName("ours"), requests=10)
    with pytest.raises(KneeError, match="steady: 10 requests are too few"):
        find_knee(case, [0], lambda wanted: [result for _ in wanted])
