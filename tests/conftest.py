"""What holds for all tests.

``NO_SKIPS=1`` (set by ``.ci/run``) turns each skip into a failure, so that a layer whose needs are
missing cannot pass unseen. Only what lies beside a checkout, in ``../shared``, may be missing: a
clone elsewhere has none, and the tests that read it repeat others on more material.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

_NO_SKIPS = os.environ.get("NO_SKIPS") == "1"


def pytest_configure() -> None:
    """Keep the settings of whoever runs the tests out of them, and out of the processes they start."""
    for name in [name for name in os.environ if name.startswith("PICKER_")]:
        del os.environ[name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):
        _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many message sequences of the protocol were played."""
    names = [report.nodeid for report in terminalreporter.getreports("passed")]
    pure = sum("::test_playbook[" in name for name in names)
    wired = sum("::test_sequence[" in name for name in names)
    if pure or wired:
        terminalreporter.write_line(f"sequences of the protocol: {pure} on paper, {wired} over gRPC")


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if _NO_SKIPS and report.skipped:
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if "shared/" not in reason:
            report.outcome = "failed"
            report.longrepr = f"NO_SKIPS=1 forbids it: {reason}"
