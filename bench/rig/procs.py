"""Finding and ending processes by what Linux says in /proc, whoever their parent is by now."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
LISTENING = "0A"
PR_SET_CHILD_SUBREAPER = 36
GONE_SECONDS = 10.0
POLL_SECONDS = 0.02


class Process(NamedTuple):
    """The part of /proc/PID/stat that matters here."""

    pid: int
    parent: int
    session: int


def processes() -> list[Process]:
    """All live processes; one that has ended and waits to be reaped is none."""
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # ended meanwhile
            # The name, in parentheses, may itself hold spaces and parentheses.
            state, parent, _, session, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                found.append(Process(int(entry.name), int(parent), int(session)))
    return found


def session_members(session: int) -> list[int]:
    """Every process of a session, which all children of its leader are in unless they left it."""
    return [process.pid for process in processes() if process.session == session]


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs, and so on."""
    children = defaultdict(list)
    for process in processes():
        children[process.parent].append(process.pid)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        family = children[waiting.pop()]
        found += family
        waiting += family
    return found


def listener(port: int) -> int | None:
    """The process that listens on a TCP port of IPv4, if it is one of ours."""
    inodes = set()
    for line in (PROC / "net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for process in processes():
        with suppress(OSError):  # ended meanwhile, or another user's
            for descriptor in (PROC / str(process.pid) / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in inodes:
                        return process.pid
    return None


def kill(pids: list[int]) -> None:
    """Send SIGKILL to each that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that this process can reap it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def reap() -> None:
    """Take the exit codes of all children, killed before this: else they stay in the process table."""
    deadline = time.monotonic() + GONE_SECONDS
    with suppress(ChildProcessError):  # there is none left
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(POLL_SECONDS)


def kill_session(session: int, sparing: int | None = None) -> None:
    """Kill a session's processes until none is left: those just being started come into sight late."""
    deadline = time.monotonic() + GONE_SECONDS
    while left := [pid for pid in session_members(session) if pid != sparing]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} outlive SIGKILL")
        kill(left)
        time.sleep(POLL_SECONDS)
