"""Processes of the rig: what is said when one does not start, and that none is left."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from bench.rig.child import Child, ChildError
from bench.rig.picker import Picker

if TYPE_CHECKING:
    from pathlib import Path

WAIT_FOREVER = "import time; print('up', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT_FOREVER}"


def python(code: str, tmp_path: Path, *, ready_timeout: float = 20.0, grace: float = 20.0) -> Child:
    async def ready() -> bool:
        return "up" in child.log_text()

    child = Child(
        "a test program",
        [sys.executable, "-c", code],
        ready=ready,
        log_path=tmp_path / "log",
        ready_timeout=ready_timeout,
        grace=grace,
    )
    return child


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    async def ready() -> bool:
        return True

    with pytest.raises(ChildError, match=r"nothing cannot be started: .*No such file"):
        async with Child("nothing", [tmp_path / "nothing"], ready=ready, log_path=tmp_path / "log"):
            pass


async def test_a_program_that_ends_early_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="a test program ended with code 3: the port is taken"):
        async with python("print('the port is taken'); raise SystemExit(3)", tmp_path):
            pass


async def test_a_program_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    child = python("import time; time.sleep(600)", tmp_path, ready_timeout=0.1)

    with pytest.raises(ChildError, match=r"a test program was not ready after 0.1 s: it wrote nothing"):
        await child.__aenter__()
    assert not is_alive(child.pid)


@pytest.mark.parametrize(("code", "grace", "signal"), [(WAIT_FOREVER, 20, 15), (DEAF, 0.1, 9)])
async def test_leaving_ends_the_program(tmp_path: Path, code: str, grace: float, signal: int) -> None:
    async with python(code, tmp_path, grace=grace) as child:
        assert is_alive(child.pid)

    assert child.returncode == -signal
    assert not is_alive(child.pid)


async def test_an_exit_code_can_be_waited_for(tmp_path: Path) -> None:
    async with python(WAIT_FOREVER, tmp_path) as child:
        with pytest.raises(TimeoutError):
            await child.wait(0.01)
        child.terminate()
        assert await child.wait(20) == -15


async def test_a_child_that_is_not_started_says_so(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="a test program is not started"):
        _ = python("", tmp_path).pid


async def test_a_picker_that_cannot_start_is_quoted() -> None:
    with pytest.raises(ChildError, match=r"the picker ended with code 2: .*PICKER_ENDPOINTS"):
        async with Picker({"PICKER_ENDPOINTS": "nonsense"}):
            pass
