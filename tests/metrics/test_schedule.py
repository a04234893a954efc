"""Jobs are done when they are due, the longest overdue first, a bounded number at a time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from picker.metrics.schedule import Schedule
from tests.metrics.rig import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@contextlib.asynccontextmanager
async def running(
    schedule: Schedule[str], do: Callable[[str], Awaitable[None]], workers: int
) -> AsyncIterator[None]:
    run = asyncio.create_task(schedule.run(do, workers))
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def test_what_is_due_is_done_in_the_order_it_was_due_and_nothing_early() -> None:
    now, done, enough = 10.0, [], asyncio.Event()
    schedule: Schedule[str] = Schedule(lambda: now)

    async def do(job: str) -> None:
        done.append(job)
        if len(done) == 3:
            enough.set()

    for due, job in [(9.0, "b"), (10.0, "c"), (8.0, "a"), (10.001, "not yet")]:
        schedule.push(due, job)
    async with running(schedule, do, workers=1):
        await enough.wait()
    assert done == ["a", "b", "c"]


async def test_a_job_pushed_later_but_due_earlier_is_not_slept_over() -> None:
    clock, done = asyncio.get_running_loop().time, asyncio.Event()
    schedule: Schedule[str] = Schedule(clock)

    async def do(job: str) -> None:
        if job == "tomorrow":
            raise AssertionError(job)
        if job == "first":
            schedule.push(clock() + 0.01, "soon")
        else:
            done.set()

    schedule.push(clock() + 86_400, "tomorrow")
    async with running(schedule, do, workers=2):
        schedule.push(clock(), "first")
        await done.wait()


async def test_a_job_that_is_hastened_is_done_once_and_earlier() -> None:
    now, done, enough = 10.0, [], asyncio.Event()
    schedule: Schedule[str] = Schedule(lambda: now)

    async def do(job: str) -> None:
        done.append(job)
        schedule.hasten(0.0, job)  # it is being done: has no effect
        if job == "last":
            enough.set()

    schedule.push(20.0, "hastened")
    schedule.hasten(9.0, "hastened")
    schedule.hasten(9.5, "hastened")  # is due before
    schedule.hasten(9.0, "does not wait")
    schedule.push(9.8, "last")
    async with running(schedule, do, workers=1):
        await enough.wait()
        now = 30.0
        enough.clear()
        schedule.push(0.0, "last")
        await enough.wait()
    assert done == ["hastened", "last", "last"]


async def test_a_job_that_waits_can_be_moved_and_one_that_is_due_cannot() -> None:
    now, done, enough = 10.0, [], asyncio.Event()
    schedule: Schedule[str] = Schedule(lambda: now)

    async def do(job: str) -> None:
        done.append(job)
        if job == "last":
            enough.set()

    schedule.push(20.0, "moved forward")
    schedule.move(9.0, "moved forward")
    schedule.push(11.0, "moved back")
    schedule.move(20.0, "moved back")
    schedule.push(9.5, "due")
    schedule.move(20.0, "due")
    schedule.move(9.0, "does not wait")
    schedule.push(9.8, "last")
    async with running(schedule, do, workers=1):
        await enough.wait()
        now = 12.0
        enough.clear()
        schedule.push(11.5, "last")
        await enough.wait()
    assert done == ["moved forward", "due", "last", "last"]


async def test_no_more_are_done_at_a_time_than_there_are_workers() -> None:
    busy, most, go_on, finished = 0, 0, asyncio.Event(), asyncio.Event()
    left = 20
    schedule: Schedule[str] = Schedule(asyncio.get_running_loop().time)

    async def do(_job: str) -> None:
        nonlocal busy, most, left
        busy += 1
        most = max(most, busy)
        if busy == 3:
            go_on.set()
        await go_on.wait()
        busy -= 1
        left -= 1
        if not left:
            finished.set()

    for number in range(left):
        schedule.push(0.0, f"due at the same time as all others, {number}")
    async with running(schedule, do, workers=3):
        await finished.wait()
    assert most == 3
