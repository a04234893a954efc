"""Two programs that end, and whose files vanish, even if whoever started them is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HOST = "127.0.0.1"
_STOP_DEADLINE = 20.0
_TOLD = 15
"""Last lines of a program's log that an error repeats."""

# `cat` returns when the pipe from the Python process closes, however that ended. The programs share this
# shell's process group, which `kill ... 0` addresses.
_LEASH = """
trap '' TERM INT HUP
cat >/dev/null
kill -TERM 0
sleep 1
rm -rf -- "$1"
kill -KILL 0
"""


class StartError(RuntimeError):
    """A program did not start; the message ends with the last lines of its log."""


class Leash:
    """Ends every program of its process group, and removes ``folder``, should this process die."""

    def __init__(self, folder: Path) -> None:
        self._shell = subprocess.Popen(
            ["sh", "-c", _LEASH, "leash", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        self.group = self._shell.pid

    def release(self) -> None:
        """End without any of that."""
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()


class Program:
    """One program. ``ready`` says whether it answers."""

    def __init__(self, args: Sequence[str], folder: Path, group: int, ready: Callable[[], bool]) -> None:
        self._args = list(args)
        self._folder = folder
        self._group = group
        self._ready = ready
        self._log = folder / f"{Path(args[0]).name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, within: float = 120.0) -> None:
        """Start it, again if it was stopped, and wait until it answers. Raises StartError."""
        # etcd takes its settings from ETCD_…: those are another one's.
        env = {name: value for name, value in os.environ.items() if not name.startswith("ETCD")}
        with self._log.open("ab") as out:
            process = self._process = subprocess.Popen(
                self._args,
                cwd=self._folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                process_group=self._group,
            )
        end = time.monotonic() + within
        while not self._ready():
            if process.poll() is not None:
                raise StartError(f"{self._args[0]} ended with {process.returncode}\n{self._tail()}")
            if time.monotonic() > end:
                raise StartError(f"{self._args[0]} is not ready after {within} s\n{self._tail()}")
            time.sleep(0.05)

    def stop(self, *, kill: bool = False) -> None:
        """Ask it to end and wait, or end it at once. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        if not kill:
            process.send_signal(signal.SIGCONT)  # a frozen one would not hear SIGTERM
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_DEADLINE)
        process.kill()
        process.wait()

    def freeze(self) -> None:
        """Connections stay open and are accepted, and nothing answers."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            tasks = Path(f"/proc/{self._process.pid}/task")
            while any(_state(task) != "T" for task in tasks.iterdir()):
                time.sleep(0.001)  # each thread stops in its own time

    def thaw(self) -> None:
        """Go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_TOLD:])


def _state(task: Path) -> str:
    """The state of a thread, as in /proc/PID/stat: T is stopped."""
    with contextlib.suppress(OSError):
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    return "T"  # it ended
