"""Whatever happens between, a reflector knows in the end what the API server has."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.kube.client import KubeError
from picker.kube.resource import PODS
from picker.kube.watch import Pace, Reflector, State

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from picker.kube.client import Json, KubeClient

Step = tuple[str, Any]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.tuples(st.sampled_from("abcd"), st.integers(0, 2))),
        st.tuples(st.just("delete"), st.sampled_from("abcd")),
        st.tuples(st.just("cut"), st.none()),
        st.tuples(st.just("end"), st.none()),
        st.tuples(st.just("forget"), st.none()),
        st.tuples(st.just("bookmark"), st.none()),
        st.tuples(st.just("refuse"), st.sampled_from([0, 403, 404, 410, 429, 500, 504])),
        st.tuples(st.just("answer"), st.none()),
        st.tuples(st.just("wait"), st.integers(1, 10)),
    ),
    max_size=40,
)


class ModelServer:
    """Objects with a number, their history, and what may go wrong."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self._history: list[tuple[str, Json]] = []
        self._forgotten = 0
        self._refusal: int | None = None
        self._generation = 0
        """Watches of earlier ones are over: (error)."""
        self._ending = ""
        self._news = asyncio.Event()

    def take(self, step: Step) -> None:
        what, value = step
        if what == "put":
            name, number = value
            self._note("MODIFIED", {"metadata": {"name": name}, "number": number})
        elif what == "delete" and value in self.objects:
            self._note("DELETED", self.objects[value])
        elif what in ("cut", "end"):
            self._generation, self._ending = self._generation + 1, what
        elif what == "forget":
            self._forgotten = len(self._history)
        elif what == "bookmark":
            self._history.append(("BOOKMARK", {"metadata": {}}))
        elif what == "refuse":
            self._refusal = value
        elif what == "answer":
            self._refusal = None
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _note(self, kind: str, item: Json) -> None:
        version = {**item["metadata"], "resourceVersion": str(len(self._history) + 1)}
        item = {**item, "metadata": version}
        self._history.append((kind, item))
        if kind == "DELETED":
            self.objects.pop(item["metadata"]["name"])
        else:
            self.objects[item["metadata"]["name"]] = item

    async def get(self, _path: str, query: Mapping[str, str], *, within: float) -> Json:
        """Pages of two; a list that goes on sees what was when it began."""
        del within
        self._refuse()
        version, begun = len(self._history), 0
        if "continue" in query:
            version, begun = map(int, query["continue"].split("-"))
            if version < self._forgotten:
                raise KubeError("expired", 410)
        items = list(self._at(version).values())
        more = f"{version}-{begun + 2}" if begun + 2 < len(items) else ""
        metadata = {"resourceVersion": str(version), "continue": more}
        return {"metadata": metadata, "items": items[begun : begun + 2]}

    def _at(self, version: int) -> dict[str, Json]:
        objects: dict[str, Json] = {}
        for kind, item in self._history[:version]:
            if kind == "DELETED":
                objects.pop(item["metadata"]["name"])
            elif kind != "BOOKMARK":
                objects[item["metadata"]["name"]] = item
        return objects

    @asynccontextmanager
    async def lines(
        self, _path: str, query: Mapping[str, str], *, deadline: float
    ) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        del deadline
        self._refuse()
        lines = self._watch(int(query["resourceVersion"]))
        try:
            yield lines
        finally:
            await lines.aclose()

    async def _watch(self, at: int) -> AsyncGenerator[bytes, None]:
        generation = self._generation
        while True:
            if at < self._forgotten:
                yield orjson.dumps({"type": "ERROR", "object": {"code": 410, "message": "gone"}})
                return
            for kind, item in self._history[at:]:
                at += 1
                version = {**item["metadata"], "resourceVersion": str(at)}
                yield orjson.dumps({"type": kind, "object": {**item, "metadata": version}})
            if self._generation != generation:
                if self._ending == "cut":
                    raise KubeError("cut")
                return
            news = self._news
            await news.wait()

    def _refuse(self) -> None:
        if self._refusal is not None:
            raise KubeError("refused", self._refusal)


def number(item: Json) -> int | None:
    """Twos are not wanted."""
    found: int = item["number"]
    return None if found == 2 else found


async def settle(times: int = 200) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_in_the_end_it_knows_what_there_is(steps: list[Step]) -> None:
    async def play() -> None:
        server = ModelServer()
        now = 0.0

        async def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds
            await asyncio.sleep(0)

        seen: list[Mapping[str, int]] = []
        reflector = Reflector(
            cast("KubeClient", server),
            PODS,
            "default",
            number,
            on_change=lambda: seen.append(reflector.items),
            random=random.Random(1),
            clock=lambda: now,
            sleep=sleep,
            pace=Pace(),
        )
        task = asyncio.create_task(reflector.run())
        try:
            for step in steps:
                server.take(step)
                if step[0] == "wait":
                    await settle(step[1])
            server.take(("answer", None))
            await settle()
            assert not task.done()
            assert reflector.state is State.SYNCED
            truth = {name: item["number"] for name, item in server.objects.items() if item["number"] != 2}
            assert reflector.items == truth
            assert not seen or seen[-1] == truth, "told of the last change"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(play())
