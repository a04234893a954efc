"""What holds for all tests.

``NO_SKIPS=1`` (set by ``.ci/run``) turns each skip into a failure, so that a layer whose needs are
missing cannot pass unseen. Only what lies beside a checkout, in ``../shared``, may be missing: a
clone elsewhere has none, and the tests that read it repeat others on more material.

``pytest -n 2`` runs two tests at a time, as ``make test`` does. What shares a server or fills the machine by
itself is one after the other, see ``_in_turn``.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from xdist.scheduler.protocol import Scheduling  # type: ignore[import-untyped]

# Not how long a test takes, only what it finds: a machine may be as busy as it likes.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# grpc.aio has one poller for all event loops of a process, and each test has a loop of its own: what came for
# the last one's is told here, as an error of nobody's.
logging.getLogger("asyncio").addFilter(lambda record: "PollerCompletionQueue" not in record.getMessage())

_ROOMS = ("ray", "kube")
"""Each Ray cluster is a machine's work, and all tests with Kubernetes have one API server."""
_LONG = (
    *_ROOMS,
    "tests/test_frame.py",
    *(f"tests/envoy/test_{name}.py" for name in ("faults", "protocol", "modes", "shutdown")),
    "tests/gateway/test_command.py",
    "tests/bench/test_demo.py",
    "tests/test_start.py",
    "tests/test_app.py",
)

SEQUENCE = "sequence"
_NO_SKIPS = os.environ.get("NO_SKIPS") == "1"


def pytest_configure() -> None:
    """Keep the settings of whoever runs the tests out of them, and out of the processes they start."""
    for name in [name for name in os.environ if name.startswith("PICKER_")]:
        del os.environ[name]
    # Hundreds of processes are started; each would compile all modules, which is a quarter of its start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have what takes longest begin first, so that nobody waits for it in the end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        places = {name: place for place, name in enumerate(_LONG)}
        items.sort(key=lambda item: places.get(_in_turn(item.nodeid), len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    """Give each process all that is to run in turn."""
    from xdist.scheduler import loadscope  # type: ignore[import-untyped]  # noqa: PLC0415 - only where it is used

    class InTurn(loadscope.LoadScopeScheduling):  # type: ignore[misc]  # see there for what is overridden
        def _split_scope(self, nodeid: str) -> str:
            return _in_turn(nodeid)

    config.option.loadscopereorder = False  # it would begin with what has most tests
    return InTurn(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.user_properties.extend((SEQUENCE, marker.args[0]) for marker in item.iter_markers(SEQUENCE))
    if not hasattr(report, "wasxfail"):
        _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many sequences of ext_proc messages ran well, and how."""
    passed = terminalreporter.stats.get("passed", ())
    ways = Counter(way for report in passed for name, way in report.user_properties if name == SEQUENCE)
    if ways:
        counts = ", ".join(f"{count} {way}" for way, count in sorted(ways.items()))
        terminalreporter.write_line(f"ext_proc sequences: {counts}")


def _in_turn(nodeid: str) -> str:
    """With which others a test may not run at the same time: those of its file, or of its room."""
    file = nodeid.partition("::")[0]
    room = next((room for room in _ROOMS if file.startswith(f"tests/{room}/")), "")
    return room or file


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if _NO_SKIPS and report.skipped:
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if "shared/" not in reason:
            report.outcome = "failed"
            report.longrepr = f"NO_SKIPS=1 forbids it: {reason}"
