"""The watchdog: real processes, some of which really hang."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from picker.watchdog import EXIT_CODE, Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE = 30.0

PROGRAM = """
import asyncio, os, sys, time
from picker.watchdog import Watchdog

def hang_in_here():
    {hang}

async def main():
    with Watchdog(asyncio.get_running_loop(), {limit}):
        await asyncio.sleep(0.05)
        print("watched", flush=True)
        hang_in_here()
        await asyncio.sleep(0.2)
    print("done", flush=True)

asyncio.run(main())
"""


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(
    processes: list[subprocess.Popen[str]], hang: str, limit: float = 0.3, stderr: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    program = PROGRAM.format(hang=hang, limit=limit)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    processes.append(process)
    return process


@pytest.mark.parametrize(
    "hang", ["time.sleep(60)", "while True: pass", "os.read(os.pipe()[0], 1)"], ids=["sleep", "spin", "read"]
)
def test_a_loop_that_hangs_ends_the_process_and_its_stack_is_shown(
    processes: list[subprocess.Popen[str]], hang: str
) -> None:
    process = start(processes, hang)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == EXIT_CODE
    assert out == "watched\n"
    assert err.startswith("serve-picker: the event loop has not turned for 0.3 s and the process ends")
    assert "in hang_in_here" in err


def test_a_standard_error_that_nobody_reads_does_not_keep_it(processes: list[subprocess.Popen[str]]) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 65536)
    except BlockingIOError:
        os.set_blocking(writer, True)
    process = start(processes, "os.write(2, b'x' * 65536)", stderr=writer)
    os.close(writer)
    assert process.wait(DEADLINE) == EXIT_CODE
    os.close(reader)


@pytest.mark.parametrize(("hang", "limit"), [("pass", 0.3), ("time.sleep(1)", 0), ("time.sleep(0.2)", 60)])
def test_a_loop_that_turns_or_is_not_watched_goes_on(
    processes: list[subprocess.Popen[str]], hang: str, limit: float
) -> None:
    process = start(processes, hang, limit)
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out, err) == (0, "watched\ndone\n", "")


def test_a_process_that_was_stopped_as_a_whole_goes_on(processes: list[subprocess.Popen[str]]) -> None:
    process = start(processes, "pass", 5)
    assert process.stdout is not None
    assert process.stdout.readline() == "watched\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(5.5)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out, err) == (0, "done\n", "")


async def test_leaving_does_not_wait_for_the_limit() -> None:
    async with asyncio.timeout(DEADLINE):
        for _ in range(20):
            with Watchdog(asyncio.get_running_loop(), 3600):
                await asyncio.sleep(0)
