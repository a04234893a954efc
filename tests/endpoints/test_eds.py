"""Envoy has an endpoint before it is chosen, and as long as it may be."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import pytest

from picker.endpoints import eds
from picker.endpoints.eds import EdsFile, PublishedSource
from picker.endpoints.endpoint import Endpoint
from picker.endpoints.envoy_admin import UnixSocketAdmin
from tests.endpoints.follow import Follower
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable
    from pathlib import Path


A, B, C = (f"10.0.0.{number}:8000" for number in (1, 2, 3))


class Told:
    """A source that gives what the test tells it."""

    def __init__(self, *first: str) -> None:
        self._sets: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
        self.tell(*first)

    def tell(self, *addresses: str) -> None:
        self._sets.put_nowait(addresses)

    async def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        while True:
            yield tuple(Endpoint(address, address) for address in await self._sets.get())


class Envoy:
    """An Envoy that reads the file when the test lets it; None: it is not running."""

    def __init__(self, known: Iterable[str] | None = ()) -> None:
        self.known = None if known is None else frozenset(known)
        self.asked = asyncio.Event()

    async def hosts(self) -> frozenset[str] | None:
        self.asked.set()
        return self.known


def written(path: Path) -> list[str]:
    """The endpoints of the file."""
    (resource,) = json.loads(path.read_text())["resources"]
    assert resource["cluster_name"] == "pool"
    (locality,) = resource["endpoints"]
    places = [endpoint["endpoint"]["address"]["socket_address"] for endpoint in locality["lb_endpoints"]]
    return [f"{place['address']}:{place['port_value']}" for place in places]


async def test_a_new_endpoint_is_put_up_when_envoy_has_it(tmp_path: Path) -> None:
    envoy = Envoy(known=[A])
    source = Told(A, B)
    async with Follower(PublishedSource(source, EdsFile(tmp_path / "pool.json"), envoy)) as follower:
        await asyncio.wait_for(envoy.asked.wait(), 5)
        assert written(tmp_path / "pool.json") == [A, B]
        assert follower.unread == 0, "Envoy does not have B yet"
        envoy.known = frozenset([A, B])
        assert await follower.next() == [A, B]


async def test_one_that_leaves_stays_in_the_file_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    source = Told(A, B)
    published = PublishedSource(source, EdsFile(path), Envoy(None), leave_after=0.05)
    async with Follower(published) as follower:
        await follower.next()
        source.tell(A)
        assert await follower.next() == [A]
        assert written(path) == [A, B], "a decision made a moment ago may still name B"

        async def out() -> bool:
            return written(path) == [A]

        await eventually(out)


async def test_one_that_returns_in_time_is_not_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    source = Told(A, B)
    published = PublishedSource(source, EdsFile(path), Envoy(None), leave_after=60.0)
    async with Follower(published) as follower:
        await follower.next()
        source.tell(A)
        await follower.next()
        source.tell(A, B, C)
        assert await follower.next() == [A, B, C]
        assert written(path) == [A, B, C]


async def test_an_envoy_that_does_not_follow_is_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(eds, "CONFIRM_TIMEOUT", 0.05)
    async with Follower(
        PublishedSource(Told(A), EdsFile(tmp_path / "pool.json"), Envoy(known=[]))
    ) as follower:
        assert await follower.next() == [A]
    assert "Envoy did not take over the endpoints" in caplog.text


async def test_a_file_that_cannot_be_written_is_told_once_and_the_pool_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Told(A)
    gone = tmp_path / "gone" / "pool.json"
    with caplog.at_level(logging.ERROR):
        async with Follower(PublishedSource(source, EdsFile(gone), Envoy(None))) as follower:
            assert await follower.next() == [A]
            source.tell(A, B)
            assert await follower.next() == [A, B]
    assert [record.message for record in caplog.records] == [
        "the endpoints cannot be written for Envoy; it keeps those it has"
    ]


async def test_a_file_that_could_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eds, "LOOK_INTERVAL", 0.01)
    folder = tmp_path / "eds"
    published = PublishedSource(Told(A, B), EdsFile(folder / "pool.json"), None, leave_after=0.0)
    async with Follower(published) as follower:
        assert await follower.next() == [A, B]
        await asyncio.sleep(0.05)
        folder.mkdir()

        async def is_written() -> bool:
            return (folder / "pool.json").exists()

        await eventually(is_written)
        assert written(folder / "pool.json") == [A, B]


def test_an_ipv6_address_is_written_without_its_brackets(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    EdsFile(path).write(["[fd00::1]:8000"])
    assert written(path) == ["fd00::1:8000"]
    assert list(tmp_path.iterdir()) == [path], "nothing else is left in the folder"


async def test_an_envoy_that_is_not_there_knows_nobody(tmp_path: Path) -> None:
    assert await UnixSocketAdmin(tmp_path / "admin.sock", "pool").hosts() is None


def take_away(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    """As after a file of another writer that was given the number of ours, which was gone by then."""
    number = path.stat().st_ino
    path.write_text("{}")
    assert path.stat().st_ino == number


@pytest.mark.parametrize("happens", [take_away, empty])
async def test_a_file_that_is_not_as_it_was_written_is_written_again(
    happens: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eds, "LOOK_INTERVAL", 0.01)
    path = tmp_path / "pool.json"
    async with Follower(PublishedSource(Told(A), EdsFile(path), Envoy(None))) as follower:
        await follower.next()
        happens(path)

        async def is_there() -> bool:
            return path.exists() and path.read_text() not in ("", "{}")

        await eventually(is_there)
        assert written(path) == [A]
