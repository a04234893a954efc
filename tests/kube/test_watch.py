"""List and watch, in every way that an API server, or what is in between, can answer."""

from __future__ import annotations

import asyncio
import contextlib
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.kube.client import KubeError, parse
from picker.kube.resource import PODS, Resource
from picker.kube.watch import Pace, Reflector, State
from picker.kube.watches import Watches
from tests.kube.fake_api import (
    Answer,
    FakeApi,
    bookmark,
    error,
    event,
    listed,
    refused,
    serving,
    thing,
    watched,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from picker.kube.client import Json

    Watch = Callable[..., AbstractAsyncContextManager["Watched"]]

DEADLINE = 10.0
THINGS = Resource("example.org", "v1", "things")
SOON = Pace(watch=1.0, grace=0.3, request=0.3, first_retry=1.0, last_retry=8.0, slow_retry=100.0)


def value(item: Json) -> int | None:
    """What is kept of a thing; negative ones are not wanted."""
    number: int = item["value"]
    if number == 13:
        raise ValueError("unlucky")
    return number if number >= 0 else None


class Watched:
    """A reflector of things before a fake server. Nobody sleeps; ``slept`` is for how long they would."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.slept: list[float] = []
        self.changes = 0
        self._changed = asyncio.Event()
        self.reflector: Reflector[int]

    def note(self) -> None:
        self.changes += 1
        self._changed.set()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._changed.set()
        await asyncio.sleep(0)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not holds():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.05)

    async def shows(self, **items: int) -> None:
        await self.until(lambda: self.reflector.items == items)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Watch:
    """Watches things of a server with a script."""

    @asynccontextmanager
    async def follow(*script: Answer, name: str = "", selector: str = "") -> AsyncIterator[Watched]:
        api = FakeApi(*script)
        async with serving(api, monkeypatch, tmp_path) as client:
            found = Watched(api)
            found.reflector = Reflector(
                client,
                THINGS,
                "default",
                value,
                name=name,
                selector=selector,
                on_change=found.note,
                random=random.Random(1),
                clock=asyncio.get_running_loop().time,
                sleep=found.sleep,
                pace=SOON,
            )
            task = asyncio.create_task(found.reflector.run())
            try:
                yield found
            finally:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    return follow


async def test_what_there_is_and_what_becomes_of_it(watch: Watch) -> None:
    events = [
        event("ADDED", thing("c", 3)),
        event("MODIFIED", thing("a", 10)),
        event("DELETED", thing("b", 2)),
        event("MODIFIED", thing("c", -1)),
    ]
    async with watch(listed(thing("a", 1), thing("b", 2), thing("x", -1)), watched(*events)) as things:
        await things.shows(a=10)
        assert things.reflector.state is State.SYNCED
        assert things.changes == 5, "the list, and four events"


async def test_what_is_not_kept_changes_nothing(watch: Watch) -> None:
    events = [event("MODIFIED", {**thing("a", 1), "status": number}) for number in range(10)]
    async with watch(listed(thing("a", 1)), watched(*events, event("ADDED", thing("b", 2)))) as things:
        await things.shows(a=1, b=2)
        assert things.changes == 2


async def test_an_object_that_cannot_be_read_is_told_and_left_out(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = {"metadata": {"name": "broken", "resourceVersion": "1"}}
    events = [event("MODIFIED", thing("a", 13)), event("ADDED", thing("b", 2))]
    async with watch(listed(thing("a", 1), broken), watched(*events)) as things:
        await things.shows(b=2)
    told = [vars(record)["fields"] for record in caplog.records]
    assert [(fields["name"], fields["error"]) for fields in told] == [
        ("broken", "KeyError: 'value'"),
        ("a", "ValueError: unlucky"),
    ]


async def test_pages_of_a_list_are_one_set(watch: Watch) -> None:
    pages = [
        listed(thing("a", 1), more="t1"),
        listed(thing("b", 2), more="t2"),
        listed(thing("c", 3), version=7),
    ]
    async with watch(*pages, watched()) as things:
        await things.shows(a=1, b=2, c=3)
        assert things.changes == 1
        await things.until(lambda: len(things.api.asked) == 4)
        assert [query.get("continue") for query in things.api.asked] == [None, "t1", "t2", None]
        assert things.api.asked[0]["limit"] == str(SOON.page)
        assert things.api.asked[3]["resourceVersion"] == "7"


async def test_a_page_that_has_expired_begins_the_list_again(watch: Watch) -> None:
    pages = [listed(thing("a", 1), more="t1"), refused(410), listed(thing("b", 2))]
    async with watch(*pages) as things:
        await things.shows(b=2)
        assert things.slept == [0.0]


async def test_one_object_or_those_with_a_label(watch: Watch) -> None:
    async with watch(listed(), name="a", selector="x=y") as things:
        await things.until(lambda: len(things.api.asked) == 2)
        for query in things.api.asked:
            assert query["fieldSelector"] == "metadata.name=a"
            assert query["labelSelector"] == "x=y"


async def test_a_watch_goes_on_from_where_the_last_one_ended(watch: Watch) -> None:
    script = [
        watched(event("ADDED", thing("a", 1, version=5)), bookmark(9), then="cut"),
        watched(then="cut"),
        watched(event("ADDED", thing("b", 2, version=11))),
    ]
    async with watch(listed(), *script) as things:
        await things.shows(a=1, b=2)
        assert [query.get("resourceVersion") for query in things.api.asked] == [None, "1", "9", "9"]
        assert things.api.asked[1]["allowWatchBookmarks"] == "true"
        assert things.api.asked[1]["timeoutSeconds"] == "1"


async def test_a_version_that_is_too_old_is_listed_at_once_and_nobody_is_gone_meanwhile(
    watch: Watch,
) -> None:
    script = [watched(error(410), then="end"), listed(thing("a", 1), thing("b", 2))]
    async with watch(listed(thing("a", 1)), *script) as things:
        await things.shows(a=1, b=2)
        assert things.changes == 2
        assert things.slept == [0.0]


async def test_a_version_that_is_always_too_old_is_no_busy_loop(watch: Watch) -> None:
    script = [answer for _ in range(8) for answer in (listed(), watched(error(410), then="end"))]
    async with watch(*script) as things:
        await things.until(lambda: len(things.slept) == 8)
        assert things.slept[0] == 0.0
        assert all(delay >= 1.0 for delay in things.slept[1:])


@pytest.mark.parametrize(
    "broken",
    [
        Answer((b"<html>",)),
        Answer((b"[]",)),
        Answer((b'{"metadata": {}}',)),
        Answer((b'{"items": [], "metadata": {}}',)),
        Answer((b'{"items": [1], "metadata": {"resourceVersion": "1"}}',)),
        Answer((b'{"items": 1, "metadata": {"resourceVersion": "1"}}',)),
        Answer((b'{"items": [',), then="cut"),
        Answer((b"{",), then="hang"),
        Answer(headers=False, then="hang"),
        Answer((b"\xff\xfe",), status=502),
        Answer((b"x" * 100_000,), status=500),
        refused(500),
        refused(429),
    ],
)
async def test_a_list_that_does_not_come_is_asked_for_again(
    watch: Watch, broken: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    async with watch(broken, broken, listed(thing("a", 1)), watched()) as things:
        await things.shows(a=1)
        assert [round(delay) for delay in things.slept] in ([1, 1], [1, 2])
        assert caplog.messages == ["the API server does not answer; what was known last stays in force"]


@pytest.mark.parametrize(
    "broken",
    [
        watched(b"<html>\n", then="end"),
        watched(b"\n", then="end"),
        watched(b"{}\n", then="end"),
        watched(b"[1]\n", then="end"),
        watched(b'{"type": "ADDED"}\n', then="end"),
        watched(b'{"type": "ADDED", "object": 1}\n', then="end"),
        watched(b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "1"}}}\n', then="end"),
        watched(b'{"type": "ERROR", "object": 1}\n', then="end"),
        watched(b'{"type": "ERROR", "object": {"code": "x"}}\n', then="end"),
        watched(b'{"type": "ADDED"', then="cut"),
        watched(b"x" * 5_000_000, then="hang"),
        watched(error(500), then="end"),
        watched(then="end"),
        watched(then="cut"),
        refused(500),
        Answer(headers=False, then="hang"),
    ],
)
async def test_a_watch_that_breaks_is_begun_again_and_what_was_known_stays(
    watch: Watch, broken: Answer
) -> None:
    after = [listed(thing("a", 1), thing("b", 2)), watched(event("ADDED", thing("b", 2)))]
    async with watch(listed(thing("a", 1)), broken, broken, *after) as things:
        await things.until(lambda: len(things.slept) == 2)
        assert things.reflector.items == {"a": 1}
        assert all(0.5 <= delay <= 2.0 for delay in things.slept)


async def test_a_watch_without_an_end_is_taken_for_lost(watch: Watch) -> None:
    """A frozen server, or one behind a connection that nobody closed."""
    async with watch(listed(thing("a", 1)), watched(), watched(event("ADDED", thing("b", 2)))) as things:
        await things.shows(a=1, b=2)
        assert len(things.slept) == 1


async def test_retries_come_ever_later_up_to_a_bound(watch: Watch) -> None:
    async with watch(*[refused(503)] * 12, listed()) as things:
        await things.until(lambda: things.reflector.synced)
        bounds = [1.0, 2.0, 4.0, *[8.0] * 9]
        assert len(things.slept) == 12
        assert all(most / 2 <= delay <= most for delay, most in zip(things.slept, bounds, strict=True))
        assert len({round(delay, 6) for delay in things.slept}) == 12, "not in step with other pickers"


@pytest.mark.parametrize("status", [401, 403])
async def test_what_is_refused_is_told_once_and_asked_for_seldom(
    watch: Watch, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    async with watch(*[refused(status, "why")] * 5, listed(thing("a", 1)), watched()) as things:
        await things.until(lambda: things.reflector.refused)
        assert things.reflector.state is State.UNKNOWN
        await things.shows(a=1)
        assert not things.reflector.refused
        assert all(delay >= SOON.slow_retry / 2 for delay in things.slept)
    (told,) = [vars(record)["fields"] for record in caplog.records if record.levelname == "ERROR"]
    assert (told["verb"], told["error"]) == ("list", "why")
    if status == 403:
        assert told["mend"] == "give the service account the verb 'list' on 'things.example.org' by a Role"


async def test_where_only_watching_is_forbidden_it_is_listed_from_time_to_time(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    script = [listed(thing("a", 1)), refused(403), listed(thing("b", 2)), refused(403), listed(thing("c", 3))]
    async with watch(*script) as things:
        await things.shows(c=3)
        assert not things.reflector.refused
        assert things.slept == [pytest.approx(delay, rel=0.5) for delay in (75.0, 75.0)]
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


async def test_a_kind_that_is_not_installed_is_absent_and_looked_for(watch: Watch) -> None:
    script = [refused(404), refused(404), listed(thing("a", 1)), watched()]
    async with watch(*script) as things:
        await things.until(lambda: things.reflector.state is State.ABSENT)
        assert things.reflector.synced
        await things.shows(a=1)
        assert things.reflector.state is State.SYNCED
        assert all(delay >= SOON.slow_retry / 2 for delay in things.slept)


async def test_one_404_takes_nobody_out(watch: Watch) -> None:
    """The API server removes all objects of a kind before the kind; a proxy may err."""
    async with watch(listed(thing("a", 1)), refused(404), listed(thing("a", 1)), watched()) as things:
        await things.until(lambda: len(things.api.asked) == 4)
        assert things.changes == 1


async def test_a_kind_that_is_removed_with_all_its_objects(watch: Watch) -> None:
    async with watch(listed(thing("a", 1)), refused(404), refused(404)) as things:
        await things.until(lambda: things.reflector.state is State.ABSENT)
        assert things.reflector.items == {}


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_an_error_of_ours(raw: bytes) -> None:
    with contextlib.suppress(KubeError):
        assert isinstance(parse(raw), dict)


# Several at once


async def test_one_signal_for_all_that_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    api = FakeApi(listed(thing("a", 1)), watched(), listed(thing("a", 1)), watched())
    async with serving(api, monkeypatch, tmp_path) as client, Watches(client) as watches:
        async with asyncio.timeout(DEADLINE):
            things = watches.add(THINGS, "default", value)
            while not (things.synced and len(api.asked) == 2):  # noqa: ASYNC110
                await asyncio.sleep(0)
            pods = watches.add(PODS, "default", value)
            while not pods.synced:
                await watches.changed()
        watches.drop(things)
        watches.drop(things)
        async with asyncio.timeout(DEADLINE):
            while len(named_tasks()) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert not named_tasks()


async def test_a_fault_of_ours_reaches_whoever_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fault(_item: Json) -> int:
        raise ZeroDivisionError

    api = FakeApi(listed(thing("a", 1)))
    async with serving(api, monkeypatch, tmp_path) as client, Watches(client, pace=SOON) as watches:
        watches.add(THINGS, "default", fault)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(watches.changed(), DEADLINE)
    assert not named_tasks()


def named_tasks() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("watch of")]
