"""A program in a process of its own: started, watched while it gets ready, ended by its pid."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import picker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

POLL_SECONDS = 0.02
LOG_TAIL_BYTES = 4000
PROJECT = Path(__file__).resolve().parents[2]
SOURCES = Path(picker.__path__[0]).parent
"""Where programs find the packages of this process: the project, or a tree beside it (``make compiled``)."""


class ChildError(RuntimeError):
    """The program did not start, or ended when it should not have."""


@dataclass(eq=False)
class Child:
    """An async context manager around one process; its output goes to ``log_path``.

    ``ready`` is polled until it gives true. ``env`` is the whole environment (None: this process's own).
    The working directory is the project's, so that ``python -m`` finds its packages. On leaving, the
    process gets SIGTERM and, ``grace`` seconds later, SIGKILL.
    """

    name: str
    argv: Sequence[str | Path]
    ready: Callable[[], Awaitable[bool]]
    log_path: Path
    env: Mapping[str, str] | None = None
    ready_timeout: float = 30.0
    grace: float = 5.0
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """The process id; valid once started, also after the process has ended."""
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        """The exit code, None while the process runs."""
        return self._started().returncode

    def log_text(self) -> str:
        """All that the process wrote so far."""
        with contextlib.suppress(FileNotFoundError):
            return self.log_path.read_text(errors="replace")
        return ""

    async def __aenter__(self) -> Self:
        with self.log_path.open("wb") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *map(str, self.argv),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.env,
                    cwd=SOURCES,
                )
            except OSError as error:
                raise ChildError(f"{self.name} cannot be started: {error}") from error
        try:
            await self._wait_ready()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def terminate(self) -> None:
        """Send SIGTERM and return at once."""
        if self._started().returncode is None:
            self._started().terminate()

    async def wait(self, timeout: float) -> int:  # noqa: ASYNC109 - the deadline is the caller's
        """Give the exit code once the process has ended; TimeoutError if it lives on."""
        async with asyncio.timeout(timeout):
            return await self._started().wait()

    async def stop(self) -> None:
        """End the process: SIGTERM, and SIGKILL if it is still there after the grace. Idempotent."""
        process = self._started()
        if process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(self.grace):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _wait_ready(self) -> None:
        try:
            async with asyncio.timeout(self.ready_timeout):
                while not await self.ready():
                    if self.returncode is not None:
                        raise ChildError(f"{self.name} ended with code {self.returncode}: {self._tail()}")
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise ChildError(
                f"{self.name} was not ready after {self.ready_timeout:g} s: {self._tail()}"
            ) from error

    def _tail(self) -> str:
        return self.log_text()[-LOG_TAIL_BYTES:].strip() or "it wrote nothing"

    def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise ChildError(f"{self.name} is not started")
        return self._process


class Program(ABC):
    """An async context manager around a child and what belongs to it, all of which ends with it."""

    child: Child
    _stack: AsyncExitStack

    @property
    def pid(self) -> int:
        """The process id of the program itself."""
        return self.child.pid

    @abstractmethod
    async def _start(self, stack: AsyncExitStack) -> None:
        """Set ``child``, and enter it and all it needs on ``stack``."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()


def scratch_directory(stack: AsyncExitStack, given: Path | None) -> Path:
    """``given``, made if it is missing, or else a temporary directory that goes away with ``stack``."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        return given
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rig-")))
