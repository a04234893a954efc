"""Several runs side by side, in processes of their own, with news of how far they are."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.sharedctypes import Synchronized
    from types import TracebackType

    from picker.replay.cases import Case
    from picker.replay.result import Result

_NEWS = 0.2
"""Seconds between two looks at how far the workers are."""

_done: Synchronized[int] | None = None
"""In a worker: requests that all workers have played to the end."""


class Pool:
    """A context manager. With one worker everything is done in this process."""

    def __init__(self, workers: int) -> None:
        # Not forked: a parent with threads (a progress bar's, a library's) must not be copied.
        context = multiprocessing.get_context("spawn")
        self._counter = context.Value("q", 0)
        self._executor = None
        if workers > 1:
            self._executor = ProcessPoolExecutor(workers, context, _begin, (self._counter,))

    def __enter__(self) -> Self:
        """Nothing is started before there is something to do."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop what has not begun; what has is waited for."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def run(self, cases: Sequence[Case], progress: Callable[[int], None] | None = None) -> list[Result]:
        """Run the cases; ``progress`` is told how many requests were played since it was told last.

        Raises what a run raises.
        """
        if self._executor is None:
            _begin(self._counter)
            return [_run(case, progress) for case in cases]
        futures = [self._executor.submit(_run, case) for case in cases]
        told = self._counter.value
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, timeout=_NEWS, return_when=FIRST_COMPLETED)
            for future in done:
                if future.exception() is not None:
                    for other in waiting:
                        other.cancel()
                    future.result()
            if progress is not None:
                now = self._counter.value
                progress(now - told)
                told = now
        return [future.result() for future in futures]


def _begin(counter: Synchronized[int]) -> None:
    global _done  # noqa: PLW0603 - a worker process has no other place that its tasks can reach
    _done = counter


def _run(case: Case, progress: Callable[[int], None] | None = None) -> Result:
    before = 0

    def tell(finished: int) -> None:
        nonlocal before
        more, before = finished - before, finished
        if progress is not None:
            progress(more)
        elif _done is not None:
            with _done.get_lock():
                _done.value += more

    return case.run(tell)
