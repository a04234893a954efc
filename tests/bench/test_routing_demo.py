"""The demo in simulation: shorter than real, and with the outcome that the real one has."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from bench.demo.scenario import BUSY_PROXY, interactive
from bench.routing.demo import POLICIES, chat_requests, main, play
from picker.replay.policies import OURS
from picker.replay.simulation import OK


@pytest.mark.parametrize("policy", POLICIES)
def test_the_busy_proxy_refuses_whom_the_picker_does_not_send_there(policy: str) -> None:
    records = play(policy, 8.0, 1)
    to_busy = np.array(records.endpoint) == BUSY_PROXY
    failed = np.array(records.status) != OK
    assert not failed[~to_busy].any()
    if policy == OURS:
        assert to_busy.mean() < 0.02
    else:
        assert to_busy.mean() > 0.25
        assert failed[to_busy].mean() > 0.5


def test_requests_take_as_long_as_those_of_the_demo() -> None:
    requests, real = chat_requests(30.0, 2), interactive(30.0, 2)
    gaps = np.diff([request.at for request in requests])
    assert gaps == pytest.approx(np.diff([request.at for request in real]))
    lasting = np.array([request.output for request in requests])
    assert lasting.min() >= 50
    assert lasting.max() <= 500


def test_the_table_has_a_row_for_each_balancer() -> None:
    told = CliRunner().invoke(main, ["--seconds", "2", "--seeds", "1"])
    assert told.exit_code == 0, told.output
    lines = told.output.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {policy}" for policy in POLICIES]
    assert lines[-1].endswith("| 0.0% |")
