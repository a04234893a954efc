"""Several kinds of objects watched at once, and one signal that something of them changed."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, TypeVar

from picker.kube.watch import Pace, Reflector

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from picker.kube.client import Json, KubeClient
    from picker.kube.resource import Resource

T = TypeVar("T")

COALESCING = 0.05
"""Seconds between two signals: the first change is told at once, a burst of them in few."""


class Watches:
    """Owns the reflectors of one consumer, as an async context manager; all end with it.

    ::

        async with Watches(client) as watches:
            pods = watches.add(PODS, "default", keep, selector="app=llm")
            while True:
                await watches.changed()
                if pods.synced:
                    ...  # pods.items
    """

    def __init__(self, client: KubeClient, *, pace: Pace | None = None) -> None:
        self._client = client
        self._pace = pace or Pace()
        self._random = random.Random()  # noqa: S311 - spreads requests over time, guards nothing
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[Reflector[Any], asyncio.Task[None]] = {}
        self._dropped: set[asyncio.Task[None]] = set()
        self._signal = asyncio.Event()
        self._told_at = float("-inf")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        tasks = [*self._tasks.values(), *self._dropped]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def add(
        self,
        resource: Resource,
        namespace: str,
        keep: Callable[[Json], T | None],
        *,
        selector: str = "",
        name: str = "",
    ) -> Reflector[T]:
        """Begin to watch; see :class:`~picker.kube.watch.Reflector`."""
        reflector: Reflector[T] = Reflector(
            self._client,
            resource,
            namespace,
            keep,
            selector=selector,
            name=name,
            on_change=self._signal.set,
            random=self._random,
            clock=self._loop.time,
            sleep=asyncio.sleep,
            pace=self._pace,
        )
        task = asyncio.create_task(reflector.run(), name=f"watch of {resource}")
        task.add_done_callback(lambda _: self._signal.set())
        self._tasks[reflector] = task
        return reflector

    def drop(self, reflector: Reflector[Any]) -> None:
        """Watch it no more; what it knows stays as it is. One that is not watched is ignored."""
        task = self._tasks.pop(reflector, None)
        if task is not None:
            self._dropped.add(task)
            task.add_done_callback(self._dropped.discard)
            task.cancel()

    async def changed(self) -> None:
        """Wait until something changed since the last call. Raises what ended a watch, if something did."""
        await self._signal.wait()
        wait = self._told_at + COALESCING - self._loop.time()
        if wait > 0.0:
            await asyncio.sleep(wait)
        self._signal.clear()
        self._told_at = self._loop.time()
        for task in self._tasks.values():
            if task.done():
                task.result()
