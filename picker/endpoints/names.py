"""What names in the list of endpoints stand for, by DNS or as the system has it.

The system's resolver alone would not do: it tells neither how long an answer is good for, nor SRV records.
It does know ``/etc/hosts`` and whatever else a machine is set up with, so it is asked for names that are in
that file, and for those that DNS does not have.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from picker.addresses import HostPort, SrvName, is_port, parse_ip

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dns.asyncresolver import Resolver
    from dns.message import Message
    from dns.resolver import Answer

HOSTS = Path("/etc/hosts")
SYSTEM_TTL = 30.0
"""Seconds that an answer of the system's resolver is good for, which does not say so itself."""
TIMEOUT = 5.0
"""Seconds for all that one name needs."""
_DNS_TIMEOUT = 3.0
"""Seconds for one question, which may go to several name servers."""
_AT_ONCE = 16
"""Targets of one SRV name that are asked for at the same time."""
_DNS_PORT = 53
_MOST_HOSTS_BYTES = 1 << 20


class Meaning(NamedTuple):
    """The addresses a name stands for, and for how many seconds to believe that."""

    addresses: tuple[HostPort, ...]
    ttl: float


class UnresolvedError(Exception):
    """A name cannot be resolved now; one line that says why."""


class Names:
    """Resolves names by the system's name servers, or by those given."""

    def __init__(self, nameservers: Sequence[str] = (), port: int = _DNS_PORT) -> None:
        self._nameservers = list(nameservers)
        self._port = port

    async def resolve(self, member: HostPort | SrvName) -> Meaning:
        """The addresses of a name, in order and without repetition. Raises UnresolvedError."""
        try:
            async with asyncio.timeout(TIMEOUT):
                if isinstance(member, SrvName):
                    meaning = await self._service(member.name)
                else:
                    hosts, ttl = await self._host(member.host)
                    meaning = Meaning(tuple(HostPort(host, member.port) for host in hosts), ttl)
        except TimeoutError:
            raise UnresolvedError("no answer in time") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: names the idna codec refuses
            raise UnresolvedError(str(error) or type(error).__name__) from None
        if not meaning.addresses:
            raise UnresolvedError("it has no address")
        return Meaning(tuple(sorted(set(meaning.addresses))), meaning.ttl)

    async def _host(self, host: str) -> tuple[list[str], float]:
        if not await asyncio.to_thread(_in_hosts_file, host):
            try:
                return await self._dns_host(self._resolver(), host)
            except _MissingError:
                pass  # the system may know names that DNS does not
        answers = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return _of_one_kind(str(address[0]) for *_, address in answers), SYSTEM_TTL

    async def _service(self, name: str) -> Meaning:
        """Hosts and ports of the SRV records with the first priority (RFC 2782).

        Weights are left aside: the picker knows better who has room. A target that does not exist is left
        out, one that cannot be asked for fails the whole, so that the last answer stays.
        """
        resolver = self._resolver()
        try:
            answer = await _ask(resolver, name, "SRV")
        except _MissingError as error:
            raise UnresolvedError(str(error)) from None
        first = min(record.priority for record in answer)
        targets = [
            (record.target, record.port)
            for record in answer
            if record.priority == first and is_port(record.port) and len(record.target) > 1  # not just "."
        ]
        told = _additional(answer.response)
        turn = asyncio.Semaphore(_AT_ONCE)

        async def hosts_of(target: str) -> tuple[list[str], float]:
            async with turn:
                try:
                    return await self._dns_host(resolver, target)
                except _MissingError:
                    return [], _ttl(answer)

        untold = {str(target) for target, _ in targets} - told.keys()
        asked = dict(zip(untold, await asyncio.gather(*map(hosts_of, untold)), strict=True))
        hosts = {**told, **{target: found for target, (found, _) in asked.items()}}
        found = tuple(HostPort(host, port) for target, port in targets for host in hosts[str(target)])
        return Meaning(found, min([_ttl(answer), *(ttl for _, ttl in asked.values())]))

    async def _dns_host(self, resolver: Resolver, host: str) -> tuple[list[str], float]:
        """Raises _MissingError and UnresolvedError."""
        try:
            answer = await _ask(resolver, host, "A")
        except _NoSuchRecordsError:
            answer = await _ask(resolver, host, "AAAA")
        return _of_one_kind(record.address for record in answer), _ttl(answer)

    def _resolver(self) -> Resolver:
        """A new one each time: the system's configuration may have changed."""
        import dns.asyncresolver  # noqa: PLC0415 - a tenth of a second that a list of addresses need not wait
        import dns.resolver  # noqa: PLC0415

        if not self._nameservers:
            try:
                return dns.asyncresolver.Resolver()
            except dns.resolver.NoResolverConfiguration:
                return dns.asyncresolver.Resolver(configure=False)
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.port = self._port
        resolver.nameservers = list(self._nameservers)
        return resolver


class _MissingError(Exception):
    """DNS has no such name, or nothing for it, or there is no DNS."""


class _NoSuchRecordsError(_MissingError):
    """The name exists without such records."""


async def _ask(resolver: Resolver, name: str, kind: str) -> Answer:
    """The records of a name. Raises _MissingError and UnresolvedError."""
    import dns.exception  # noqa: PLC0415 - see Names._resolver
    import dns.resolver  # noqa: PLC0415

    if not resolver.nameservers:
        raise _MissingError("there is no name server")
    try:
        return await resolver.resolve(name, kind, search=True, lifetime=_DNS_TIMEOUT)
    except dns.resolver.NoAnswer:
        raise _NoSuchRecordsError(f"it has no {kind} records") from None
    except dns.resolver.NXDOMAIN:
        raise _MissingError("there is no such name") from None
    except dns.exception.Timeout:
        raise UnresolvedError("no answer in time") from None
    except (dns.exception.DNSException, ValueError) as error:
        raise UnresolvedError(" ".join(str(error).split())[:200] or type(error).__name__) from None


def _ttl(answer: Answer) -> float:
    """Of the whole chain of aliases the least."""
    return float(answer.chaining_result.minimum_ttl)


def _additional(response: Message) -> dict[str, list[str]]:
    """Addresses of targets that came along with the SRV records."""
    import dns.rdatatype  # noqa: PLC0415 - see Names._resolver

    kinds = (dns.rdatatype.A, dns.rdatatype.AAAA)
    told: dict[str, list[str]] = {}
    for rrset in response.additional:
        if rrset.rdtype in kinds:
            told.setdefault(str(rrset.name), []).extend(record.address for record in rrset)
    return {target: _of_one_kind(hosts) for target, hosts in told.items()}


def _of_one_kind(hosts: Iterable[str]) -> list[str]:
    """IPv4 addresses if there are any, else those of IPv6.

    A server with addresses of both kinds is one endpoint, not two; and ``localhost`` has an IPv6 address on
    most machines that servers do not listen on.
    """
    found = [ip for host in hosts if (ip := parse_ip(host))]
    return [ip for ip in found if ":" not in ip] or found


def _in_hosts_file(name: str) -> bool:
    """Whether ``/etc/hosts`` has it. Blocks."""
    try:
        with HOSTS.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_HOSTS_BYTES)
    except OSError:
        return False
    wanted = name.rstrip(".").lower()
    return any(wanted in line.partition("#")[0].lower().split()[1:] for line in text.splitlines())
