"""An API server in memory: as much of one as sources of members ask for."""

from __future__ import annotations

import asyncio
import copy
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import orjson

from picker.kube.client import KubeError
from picker.kube.watch import Pace

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from picker.kube.client import Json, KubeClient
    from picker.kube.resource import Resource

FAST = Pace(first_retry=0.01, last_retry=0.02, slow_retry=0.02)
NAMESPACE = "default"


class FakeKube:
    """Objects of one namespace by resource and name; ``down`` refuses everything."""

    def __init__(self) -> None:
        self.down = False
        self._objects: dict[str, dict[str, Json]] = {}
        self._events: list[tuple[str, Json, Json | None]] = []
        self._news = asyncio.Event()

    @property
    def client(self) -> KubeClient:
        return cast("KubeClient", self)

    def put(self, resource: Resource, item: Json) -> None:
        path, item = resource.path(NAMESPACE), copy.deepcopy(item)
        item["metadata"]["namespace"] = NAMESPACE
        self._objects.setdefault(path, {})[item["metadata"]["name"]] = item
        self._note(path, item, item)

    def delete(self, resource: Resource, name: str) -> None:
        path = resource.path(NAMESPACE)
        self._note(path, self._objects[path].pop(name), None)

    def break_watches(self) -> None:
        """End the watches as a server does that stops."""
        self._news.set()

    async def get(self, path: str, query: Mapping[str, str], *, within: float) -> Json:
        del within
        self._refuse()
        items = [item for item in self._objects.get(path, {}).values() if _selected(item, query)]
        return {"metadata": {"resourceVersion": str(len(self._events))}, "items": items}

    @asynccontextmanager
    async def lines(
        self, path: str, query: Mapping[str, str], *, deadline: float
    ) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        del deadline
        self._refuse()
        lines = self._watch(path, query, int(query["resourceVersion"]))
        try:
            yield lines
        finally:
            await lines.aclose()

    async def _watch(self, path: str, query: Mapping[str, str], at: int) -> AsyncGenerator[bytes, None]:
        while not self.down:
            for number, (where, item, now) in enumerate(self._events[at:], start=at + 1):
                if where == path and _selected(item, query):
                    shown = now if now is not None and _selected(now, query) else item
                    kind = "MODIFIED" if shown is now else "DELETED"
                    version = {"metadata": {**shown["metadata"], "resourceVersion": str(number)}}
                    yield orjson.dumps({"type": kind, "object": {**shown, **version}})
            at = len(self._events)
            news = self._news
            await news.wait()

    def _note(self, path: str, item: Json, now: Json | None) -> None:
        self._events.append((path, item, now))
        self._news.set()
        self._news = asyncio.Event()

    def _refuse(self) -> None:
        if self.down:
            raise KubeError("down")


def _selected(item: Json, query: Mapping[str, str]) -> bool:
    metadata = item["metadata"]
    wanted = [part.split("=") for part in query.get("labelSelector", "").split(",") if part]
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    labels: dict[str, Any] = metadata.get("labels") or {}
    return (not name or metadata["name"] == name) and all(labels.get(key) == value for key, value in wanted)
