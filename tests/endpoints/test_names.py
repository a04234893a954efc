"""Names by DNS, against a name server on loopback, and as the system has them."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest

from picker.addresses import HostPort, SrvName
from picker.endpoints import names
from picker.endpoints.names import SYSTEM_TTL, Meaning, Names, UnresolvedError
from tests.endpoints.name_server import name_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.endpoints.name_server import NameServer

POOL = HostPort("pool.test", 8000)
SERVICE = SrvName("_http._tcp.pool.test")
SERVICE_KEY = ("_http._tcp.pool.test.", "SRV")


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    async with name_server() as running:
        yield running


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, list[str]]:
    """What the system's resolver knows; nothing leaves the machine."""
    known: dict[str, list[str]] = {}

    async def getaddrinfo(
        _self: object, host: str, _port: object, **_: Any
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        host.encode("idna")
        if host not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return [(2, 1, 6, "", (ip, 0)) for ip in known[host]]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(names, "HOSTS", tmp_path / "hosts")
    return known


def hosts(meaning: Meaning) -> list[str]:
    return [str(address) for address in meaning.addresses]


def resolver(server: NameServer) -> Names:
    return Names(["127.0.0.1"], server.port)


async def test_addresses_and_how_long_they_are_good_for(server: NameServer) -> None:
    server.records["pool.test.", "A"] = (17, ["10.0.0.2", "10.0.0.1"])
    expected = Meaning((HostPort("10.0.0.1", 8000), HostPort("10.0.0.2", 8000)), 17.0)
    assert await resolver(server).resolve(POOL) == expected
    assert server.asked == [("pool.test.", "A")]


async def test_ipv6_where_there_is_no_ipv4(server: NameServer) -> None:
    server.records["pool.test.", "AAAA"] = (9, ["fd00::1"])
    assert await resolver(server).resolve(POOL) == Meaning((HostPort("fd00::1", 8000),), 9.0)


async def test_an_alias_is_good_for_as_long_as_its_shortest_part(server: NameServer) -> None:
    server.records["pool.test.", "CNAME"] = (3, ["real.test."])
    server.records["real.test.", "A"] = (60, ["10.0.0.1"])
    assert await resolver(server).resolve(POOL) == Meaning((HostPort("10.0.0.1", 8000),), 3.0)


@pytest.mark.parametrize("other", [True, False])
async def test_what_dns_does_not_have_the_system_may_have(
    server: NameServer, system: dict[str, list[str]], other: bool
) -> None:
    if other:
        server.records["pool.test.", "TXT"] = (1, ["text"])
    system["pool.test"] = ["::1", "127.0.0.1"]
    assert await resolver(server).resolve(POOL) == Meaning((HostPort("127.0.0.1", 8000),), SYSTEM_TTL)


async def test_names_of_the_hosts_file_are_the_systems(
    server: NameServer, system: dict[str, list[str]]
) -> None:
    names.HOSTS.write_text("# pool.test\n127.0.0.9 other Pool.test # here\n")
    system["pool.test"] = ["127.0.0.9"]
    assert hosts(await resolver(server).resolve(POOL)) == ["127.0.0.9:8000"]
    assert server.asked == []


def _silent(server: NameServer) -> None:
    server.silent = True


def _broken(server: NameServer) -> None:
    server.broken = True


@pytest.mark.parametrize("member", [POOL, SERVICE])
@pytest.mark.parametrize("fault", [_silent, _broken, lambda _: None], ids=["silent", "broken", "unknown"])
async def test_failures(
    server: NameServer,
    member: HostPort | SrvName,
    fault: Callable[[NameServer], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(names, "_DNS_TIMEOUT", 0.2)
    fault(server)
    with pytest.raises(UnresolvedError) as caught:
        await resolver(server).resolve(member)
    assert str(caught.value).isprintable()


async def test_a_name_service_that_hangs_is_not_waited_for(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "TIMEOUT", 0.05)
    server.silent = True
    with pytest.raises(UnresolvedError, match="no answer in time"):
        await resolver(server).resolve(POOL)


@pytest.mark.parametrize("host", ["x" * 64 + ".test", "a..test", "\u00e9" * 70])
async def test_names_that_are_none(server: NameServer, host: str) -> None:
    with pytest.raises(UnresolvedError):
        await resolver(server).resolve(HostPort(host, 80))


class TestService:
    async def test_tells_hosts_and_ports(self, server: NameServer) -> None:
        server.records[SERVICE_KEY] = (30, ["0 5 8001 b.test.", "0 1 8000 a.test."])
        server.records["a.test.", "A"] = (12, ["10.0.0.1"])
        server.records["b.test.", "AAAA"] = (40, ["fd00::2"])
        meaning = await resolver(server).resolve(SERVICE)
        assert hosts(meaning) == ["10.0.0.1:8000", "[fd00::2]:8001"]
        assert meaning.ttl == 12.0

    async def test_addresses_that_come_along_are_not_asked_for(self, server: NameServer) -> None:
        server.records[SERVICE_KEY] = (30, ["0 0 8000 a.test.", "0 0 8000 b.test."])
        server.additional = [("a.test.", "A", "10.0.0.1"), ("b.test.", "A", "10.0.0.2")]
        assert hosts(await resolver(server).resolve(SERVICE)) == ["10.0.0.1:8000", "10.0.0.2:8000"]
        assert server.asked == [SERVICE_KEY]

    async def test_only_the_first_priority_counts_and_a_dot_is_nobody(self, server: NameServer) -> None:
        server.records[SERVICE_KEY] = (30, ["10 0 8000 a.test.", "20 0 8000 b.test.", "10 0 8000 ."])
        server.records["a.test.", "A"] = (12, ["10.0.0.1"])
        assert hosts(await resolver(server).resolve(SERVICE)) == ["10.0.0.1:8000"]

    async def test_a_target_that_does_not_exist_is_left_out(self, server: NameServer) -> None:
        server.records[SERVICE_KEY] = (30, ["0 0 8000 a.test.", "0 0 8000 gone.test."])
        server.records["a.test.", "A"] = (60, ["10.0.0.1"])
        assert await resolver(server).resolve(SERVICE) == Meaning((HostPort("10.0.0.1", 8000),), 30.0)

    async def test_without_a_target_it_fails(self, server: NameServer) -> None:
        server.records[SERVICE_KEY] = (30, ["0 0 0 a.test."])
        with pytest.raises(UnresolvedError, match="it has no address"):
            await resolver(server).resolve(SERVICE)
