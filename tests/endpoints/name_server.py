"""A DNS server on loopback, with records under the test's hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class NameServer(asyncio.DatagramProtocol):
    """Answers from ``records``: by name (with its last dot) and type, a TTL and texts.

    A name that is in none of them does not exist. ``silent`` answers nothing, ``broken`` SERVFAIL.
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self.additional: list[tuple[str, str, str]] = []
        """Name, type and text of what comes along with every answer."""
        self.silent = False
        self.broken = False
        self.asked: list[tuple[str, str]] = []
        self.port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        name, kind = query.question[0].name.to_text(), dns.rdatatype.to_text(query.question[0].rdtype)
        self.asked.append((name, kind))
        if not self.silent:
            self._transport.sendto(self._answer(query, name, kind).to_wire(), addr)

    def _answer(self, query: dns.message.Message, name: str, kind: str) -> dns.message.Message:
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        if self.broken:
            response.set_rcode(dns.rcode.SERVFAIL)
            return response
        if name not in {known for known, _ in self.records}:
            response.set_rcode(dns.rcode.NXDOMAIN)
            return response
        while (name, "CNAME") in self.records:
            ttl, [target] = self.records[name, "CNAME"]
            response.answer.append(dns.rrset.from_text(name, ttl, "IN", "CNAME", target))
            name = target
        ttl, texts = self.records.get((name, kind), (0, []))
        if texts:
            response.answer.append(dns.rrset.from_text(name, ttl, "IN", kind, *texts))
            for other, what, text in self.additional:
                response.additional.append(dns.rrset.from_text(other, ttl, "IN", what, text))
        return response


@asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(
        NameServer, local_addr=("127.0.0.1", 0)
    )
    try:
        yield server
    finally:
        transport.close()
