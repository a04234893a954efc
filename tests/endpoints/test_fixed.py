"""The fixed list: literals as they are, names resolved again and again."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

import pytest

from picker.addresses import HostPort, parse_host_port
from picker.endpoints import fixed
from picker.endpoints.endpoint import Endpoint
from picker.endpoints.fixed import FixedSource
from tests.endpoints.follow import Follower

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERVAL = 0.01


class Names:
    """A name service under the test's hand: an exception instead of an answer is raised."""

    def __init__(self, **answers: list[str] | Exception) -> None:
        self.answers = answers
        self.asked = asyncio.Condition()
        self.count = 0

    async def resolve(self, host: str) -> Sequence[str]:
        async with self.asked:
            self.count += 1
            self.asked.notify_all()
        answer = self.answers[host]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def rounds(self, number: int) -> None:
        """Wait until the names were asked for that many times more."""
        until = self.count + number
        async with asyncio.timeout(5), self.asked:
            await self.asked.wait_for(lambda: self.count >= until)


def members(*addresses: str) -> list[HostPort]:
    return [parse_host_port(address) for address in addresses]


def source(*addresses: str, names: Names) -> FixedSource:
    return FixedSource(members(*addresses), interval=INTERVAL, resolve=names.resolve)


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
    async with Follower(FixedSource(members("10.0.0.1:80"), interval=0.0)) as follower:
        await follower.next()
        assert not follower._task.done()


async def test_names_are_resolved_again() -> None:
    names = Names(pool=["10.0.0.2", "10.0.0.1"])
    async with Follower(source("pool:80", "10.0.0.9:80", names=names)) as follower:
        assert await follower.next() == ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.9:80"]
        names.answers["pool"] = ["10.0.0.1", "10.0.0.2"]  # in another order, which changes nothing
        await names.rounds(3)
        assert follower.unread == 0
        names.answers["pool"] = ["10.0.0.3"]
        assert await follower.next() == ["10.0.0.3:80", "10.0.0.9:80"]


async def test_two_names_of_one_server_are_one_endpoint() -> None:
    names = Names(a=["10.0.0.1"], b=["10.0.0.1"])
    async with Follower(source("a:80", "b:80", "10.0.0.1:80", names=names)) as follower:
        assert await follower.next() == ["10.0.0.1:80"]


async def test_a_server_with_addresses_of_both_kinds_is_one_endpoint() -> None:
    names = Names(both=["::1", "127.0.0.1"], six=["fd00::1", "fe80::1%eth0"])
    async with Follower(source("both:80", "six:80", names=names)) as follower:
        assert await follower.next() == ["127.0.0.1:80", "[fd00::1]:80"]


@pytest.mark.parametrize(
    "failure", [socket.gaierror(-3, "Temporary failure"), UnicodeError("label too long"), TimeoutError(), []]
)
async def test_a_failing_resolution_keeps_the_last_answer_and_is_told_once(
    failure: list[str] | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "picker.endpoints")
    names = Names(pool=["10.0.0.1"])
    async with Follower(source("pool:80", names=names)) as follower:
        assert await follower.next() == ["10.0.0.1:80"]
        names.answers["pool"] = failure
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
    names = Names(late=OSError("unknown"))
    async with Follower(source("late:80", "10.0.0.1:80", names=names)) as follower:
        assert await follower.next() == ["10.0.0.1:80"]
        names.answers["late"] = ["10.0.0.2"]
        assert await follower.next() == ["10.0.0.2:80", "10.0.0.1:80"]


async def test_a_name_service_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed, "RESOLVE_TIMEOUT", 0.01)

    async def hang(_host: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    async with Follower(FixedSource(members("pool:80", "10.0.0.1:80"), resolve=hang)) as follower:
        assert await follower.next() == ["10.0.0.1:80"]


async def test_the_systems_resolver() -> None:
    async with Follower(FixedSource(members("localhost:80"))) as follower:
        assert await follower.next() in (["127.0.0.1:80"], ["[::1]:80"])
