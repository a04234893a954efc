"""The fixed list: literals as they are, names resolved again and again."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from picker.addresses import HostPort, SrvName, parse_member
from picker.endpoints import fixed
from picker.endpoints.endpoint import Endpoint
from picker.endpoints.fixed import FixedSource
from picker.endpoints.names import Meaning, UnresolvedError
from tests.endpoints.follow import Follower

if TYPE_CHECKING:
    import pytest

INTERVAL = 0.01


class Names:
    """A name service under the test's hand: addresses of each name, or why it has none."""

    def __init__(self, **answers: list[str] | str) -> None:
        self.answers = answers
        self.asked = asyncio.Condition()
        self.count = 0
        self.ttl = 0.0

    async def resolve(self, member: HostPort | SrvName) -> Meaning:
        async with self.asked:
            self.count += 1
            self.asked.notify_all()
        answer = self.answers[member.name.partition(".")[0] if isinstance(member, SrvName) else member.host]
        if isinstance(answer, str):
            raise UnresolvedError(answer)
        port = 8000 if isinstance(member, SrvName) else member.port
        return Meaning(tuple(HostPort(host, port) for host in answer), self.ttl)

    async def rounds(self, number: int) -> None:
        """Wait until the names were asked for that many times more."""
        until = self.count + number
        async with asyncio.timeout(5), self.asked:
            await self.asked.wait_for(lambda: self.count >= until)


def members(*addresses: str) -> list[HostPort | SrvName]:
    return [parse_member(address) for address in addresses]


def source(*addresses: str, names: Names) -> FixedSource:
    return FixedSource(members(*addresses), resolve=names.resolve, least_interval=INTERVAL)


async def test_literals_are_taken_as_they_are_and_once() -> None:
    sets = FixedSource(members("10.0.0.1:80", "[FD00::1]:80", "10.0.0.1:80", "10.0.0.1:81")).sets()
    assert await anext(sets) == (
        Endpoint("10.0.0.1:80", "10.0.0.1:80"),
        Endpoint("[fd00::1]:80", "[fd00::1]:80"),
        Endpoint("10.0.0.1:81", "10.0.0.1:81"),
    )
    await sets.aclose()


async def test_the_port_of_the_metrics_can_be_another() -> None:
    names = Names(head=["10.0.0.2"])
    pool = members("10.0.0.1:80", "head:80")
    sets = FixedSource(pool, metrics_target_port=8080, resolve=names.resolve).sets()
    assert await anext(sets) == (
        Endpoint("10.0.0.1:80", "10.0.0.1:8080"),
        Endpoint("10.0.0.2:80", "10.0.0.2:8080", name="head"),
    )
    await sets.aclose()


async def test_a_literal_set_ends_only_by_cancellation() -> None:
    async with Follower(FixedSource(members("10.0.0.1:80"))) as follower:
        await follower.next()
        assert not follower._task.done()


async def test_names_are_resolved_again() -> None:
    names = Names(pool=["10.0.0.1", "10.0.0.2"])
    async with Follower(source("pool:80", "10.0.0.9:80", names=names)) as follower:
        assert await follower.next() == ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.9:80"]
        await names.rounds(3)
        assert follower.unread == 0
        names.answers["pool"] = ["10.0.0.3"]
        assert await follower.next() == ["10.0.0.3:80", "10.0.0.9:80"]


async def test_a_name_is_asked_for_again_by_its_ttl() -> None:
    names = Names(pool=["10.0.0.1"])
    for ttl, interval in ((0.0, 5.0), (30.0, 30.0), (86_400.0, 300.0)):
        names.ttl = ttl
        once = FixedSource(members("pool:80"), resolve=names.resolve)
        sets = once.sets()
        await anext(sets)
        await sets.aclose()
        assert once._interval(HostPort("pool", 80)) == interval


async def test_one_that_fails_is_asked_for_again_soon_whatever_its_ttl_was() -> None:
    names = Names(pool=["10.0.0.1"])
    names.ttl = 300.0
    fails = FixedSource(members("pool:80"), resolve=names.resolve)
    [pool] = members("pool:80")
    names.answers["pool"] = "down"
    await fails._refresh(pool)
    assert fails._interval(pool) == fixed.UNRESOLVED_INTERVAL
    names.answers["pool"] = ["10.0.0.1"]
    await fails._refresh(pool)
    names.answers["pool"] = "down"
    await fails._refresh(pool)
    assert fails._interval(pool) == fixed.LEAST_INTERVAL


async def test_two_names_of_one_server_are_one_endpoint() -> None:
    names = Names(a=["10.0.0.1"], b=["10.0.0.1"])
    async with Follower(source("a:80", "b:80", "10.0.0.1:80", names=names)) as follower:
        assert await follower.next() == ["10.0.0.1:80"]


async def test_a_service_record_tells_the_port() -> None:
    names = Names(_http=["10.0.0.1", "10.0.0.2"])
    sets = source("_http._tcp.llm.svc", names=names).sets()
    assert await anext(sets) == (
        Endpoint("10.0.0.1:8000", "10.0.0.1:8000", name="_http._tcp.llm.svc"),
        Endpoint("10.0.0.2:8000", "10.0.0.2:8000", name="_http._tcp.llm.svc"),
    )
    await sets.aclose()


async def test_a_failing_resolution_keeps_the_last_answer_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "picker.endpoints")
    names = Names(pool=["10.0.0.1"])
    async with Follower(source("pool:80", names=names)) as follower:
        assert await follower.next() == ["10.0.0.1:80"]
        names.answers["pool"] = "no answer in time"
        await names.rounds(4)
        assert follower.unread == 0
        names.answers["pool"] = ["10.0.0.2"]
        assert await follower.next() == ["10.0.0.2:80"]
    messages = [record.message for record in caplog.records]
    assert messages == [
        "name cannot be resolved; its last addresses stay in the pool",
        "name resolved again",
    ]


async def test_a_name_that_is_not_known_yet_is_left_out_till_it_is() -> None:
    names = Names(late="unknown")
    async with Follower(source("late:80", "10.0.0.1:80", names=names)) as follower:
        assert await follower.next() == ["10.0.0.1:80"]
        names.answers["late"] = ["10.0.0.2"]
        assert await follower.next() == ["10.0.0.2:80", "10.0.0.1:80"]


async def test_the_systems_resolver() -> None:
    async with Follower(FixedSource(members("localhost:80"))) as follower:
        assert await follower.next() in (["127.0.0.1:80"], ["[::1]:80"])
