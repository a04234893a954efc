"""Ends a process whose event loop hangs, so that whoever supervises it can start another.

A gateway that asks a hung picker waits its whole timeout for each request, and health that nobody
answers is found out slowly. A process that is gone is refused at once.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType
    from typing import Self

EXIT_CODE: Final = 1
"""Also what the last resort (see ``_end``) exits with, which cannot be told another one."""
_STDERR: Final = 2
_SLICES: Final = 10
_DUMP_DEADLINE: Final = 2.0
"""Seconds that writing the stacks may take."""


class Watchdog:
    """While entered, watches that ``loop`` turns at least every ``limit`` seconds; 0 watches nothing.

    A thread has the loop call it back, and waits for that. It needs Python to switch threads: a hang
    inside of a C function that never lets go of the interpreter's lock is not noticed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float) -> None:
        self._loop = loop
        self._limit = limit
        self._turned = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        if self._limit > 0:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._turned.set()
        if self._limit > 0:
            self._thread.join()

    def _watch(self) -> None:
        """Ask the loop again and again. This order of clearing and looking misses no stop."""
        while not self._stopped.wait(self._limit / _SLICES):
            self._turned.clear()
            if self._stopped.is_set():
                return
            self._loop.call_soon_threadsafe(self._turned.set)
            if not self._turns():
                self._end()

    def _turns(self) -> bool:
        """Wait in slices, of which a time when the whole process stands still takes only one.

        After a SIGSTOP or in a thawed container the loop has the others to catch up.
        """
        return any(self._turned.wait(self._limit / _SLICES) for _ in range(_SLICES))

    def _end(self) -> None:
        """Say where it hangs, and exit without any cleaning up, which may hang as well.

        Perhaps it hangs because nobody reads standard error, and the words and stacks cannot be written
        either: a second watch, which needs neither Python nor standard error, ends the process then.
        """
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - as short as it can be
            faulthandler.dump_traceback_later(_DUMP_DEADLINE, exit=True, file=nowhere)
            os.write(_STDERR, b"%s\n" % self._words().encode())
            faulthandler.dump_traceback(_STDERR, all_threads=True)
            os._exit(EXIT_CODE)

    def _words(self) -> str:
        return (
            f"serve-picker: the event loop has not turned for {self._limit:g} s and the process ends; "
            "the stack of every thread follows (PICKER_WATCHDOG=0 turns this off)"
        )
