"""A child process that is started again when it ends, or when it no longer answers."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from picker.gateway.binary import first_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

log = logging.getLogger(__name__)

START_TIMEOUT = 20.0
"""Seconds a child is given to get ready."""
LOOK = 0.02
"""Seconds between two looks whether a child is ready."""
CHECK_INTERVAL = 0.5
CHECK_TIMEOUT = 2.0
"""Seconds between two looks at a child that runs, and how long it may take to answer one."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds before a child is started again, doubling while it ends at once."""
STEADY = 10.0
"""Seconds after which a child that ended counts as one that ran well."""
WRONG_CALL = 2
"""Exit code of a picker that was told something wrong, and has said what."""
LINES_KEPT = 200
"""Of what a child says, to find the reason when it ends at once."""
_PR_SET_PDEATHSIG = 1


class StartFailedError(Exception):
    """A child did not get ready; the text is one line that says why."""


def _die_with_parent() -> None:
    """Linux: be ended when the parent is gone, however that was ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(slots=True)
class Supervised:
    """One child process and its life.

    ``answers`` asks it whether it is well; OSError, TimeoutError or False is no. A running child that does
    not answer for ``frozen_after`` seconds (0: is never asked) is killed and so started again. One that is
    ``patient`` may take any time to get ready: it waits for another server, and says so. What it writes
    to stdout is ours, and with ``log_stderr`` what it writes to stderr becomes lines of our log. ``prepare``
    lays out the files it reads, anew for each start.
    """

    name: str
    argv: Sequence[str]
    answers: Callable[[], Awaitable[bool]]
    env: Mapping[str, str] | None = None
    frozen_after: float = 0.0
    patient: bool = False
    prepare: Callable[[], None] = lambda: None
    log_stderr: bool = False
    _said: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT), init=False)
    _reader: asyncio.Task[None] | None = field(default=None, init=False)
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """The present process; 0 if there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else 0

    async def start(self) -> None:
        """Start it and wait until it answers. Raises StartFailedError."""
        await self._spawn()
        await self._until_ready()

    async def keep(self) -> None:
        """Start it again whenever it ends, until cancelled."""
        pause = FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            code = await self._watch()
            pause = FIRST_PAUSE if loop.time() - began > STEADY else min(2 * pause, LONGEST_PAUSE)
            fields = {"process": self.name, "code": code, "again_in_s": pause}
            log.error("a process ended and is started again", extra={"fields": fields})
            await asyncio.sleep(pause)
            try:
                await self.start()
            except StartFailedError as error:
                log.error(  # noqa: TRY400 - one line says it all
                    "a process did not start", extra={"fields": {"process": self.name, "error": str(error)}}
                )
                await self._kill()

    async def stop(self, grace: float) -> None:
        """End it: SIGTERM, and SIGKILL if it is still there after ``grace`` seconds."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(grace):
                await process.wait()
        except TimeoutError:
            await self._kill()

    async def _spawn(self) -> None:
        try:
            self.prepare()
            self._process = await asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE if self.log_stderr else None,
                env=self.env,
                # A terminal's Ctrl-C is for us alone: we end the children in order.
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        except OSError as error:
            raise StartFailedError(f"{self.name} cannot be started: {error}") from None
        if self._process.stderr is not None:
            self._said.clear()
            self._reader = asyncio.create_task(self._read(self._process.stderr), name=f"{self.name} log")

    async def _read(self, stderr: asyncio.StreamReader) -> None:
        """Log what it says, until it ends. Lines longer than the reader's buffer are cut."""
        while True:
            try:
                line = await stderr.readline()
            except ValueError:
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._said.append(text)
            log.info("said", extra={"fields": {"process": self.name, "line": text}})

    async def _until_ready(self) -> None:
        process = self._running()
        try:
            async with asyncio.timeout(None if self.patient else START_TIMEOUT):
                while not await self._is_well():
                    if process.returncode is not None:
                        raise StartFailedError(await self._why_ended(process.returncode))
                    await asyncio.sleep(LOOK)
        except TimeoutError:
            raise StartFailedError(f"{self.name} is not ready after {START_TIMEOUT:g} s") from None

    async def _why_ended(self, code: int) -> str:
        if code == WRONG_CALL and not self.log_stderr:
            return ""  # it has said itself what to mend
        if self._reader is not None:
            await self._reader
        reason = first_error("\n".join(self._said)) or "\n".join(list(self._said)[-1:])
        return f"{self.name} ended with code {code}" + (f": {reason}" if reason else "")

    async def _watch(self) -> int:
        """Wait for its end, and bring that about if it is frozen; returns the exit code."""
        process = self._running()
        ended = asyncio.ensure_future(process.wait())
        loop = asyncio.get_running_loop()
        well_at = loop.time()
        while not ended.done():
            await asyncio.wait({ended}, timeout=CHECK_INTERVAL)
            if ended.done() or not self.frozen_after:
                continue
            if await self._is_well():
                well_at = loop.time()
            elif loop.time() - well_at > self.frozen_after:
                fields = {"process": self.name, "silent_s": round(loop.time() - well_at, 1)}
                log.error("a process does not answer and is killed", extra={"fields": fields})
                await self._kill()
        return ended.result()

    async def _is_well(self) -> bool:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                return await self.answers()
        except (OSError, TimeoutError):
            return False

    async def _kill(self) -> None:
        process = self._running()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise StartFailedError(f"{self.name} was not started")
        return self._process
