"""A whole picker on either transport: how soon it is ready, and what it holds with many streams open."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from bench.micro.fixtures import DUPLEX, HEADERS, body, chat, headers
from bench.rig.cpu import cpu_seconds, resident_bytes
from bench.rig.picker import Picker
from bench.scrape.pages import PageServers
from bench.transport.client import Client
from bench.transport.loads import in_a_frame

ENDPOINTS = 100
SETTLE_SECONDS = 3.0
MB = 1e6

_HEAD = headers("request_headers", HEADERS, (DUPLEX, DUPLEX))
_BODY = body("request_body", chat(200), end=True)


@dataclass(frozen=True, slots=True)
class Whole:
    """A picker before 100 servers: seconds of time and CPU from its start to ``/readyz``, memory in MB."""

    ready_seconds: float
    ready_cpu_seconds: float
    ready_mb: float
    settled_mb: float
    held_mb: float
    """With the streams open: each was decided about and waits for its response."""


async def whole(transport: str, held: int) -> Whole:
    """Start a picker, let it rest, and open ``held`` streams."""
    async with PageServers("vllm", ENDPOINTS) as servers:
        environment = {
            "PICKER_ENDPOINTS": ",".join(servers.addresses),
            "PICKER_TRANSPORT": transport,
            "PICKER_LOG_LEVEL": "warning",
        }
        began = time.monotonic()
        async with Picker(environment) as picker:
            seconds, used = time.monotonic() - began, cpu_seconds(picker.pid)
            ready = resident_bytes(picker.pid)
            await asyncio.sleep(SETTLE_SECONDS)
            settled = resident_bytes(picker.pid)
            full = await asyncio.to_thread(_with_streams, picker, held)
    return Whole(seconds, used, ready / MB, settled / MB, full / MB)


def _with_streams(picker: Picker, count: int) -> int:
    """Bytes held once so many streams wait for their responses."""
    with Client(picker.address) as client:
        for _ in range(count):
            stream_id, opening = client.open()
            expected = client.data + 1  # at least the beginning of its answer
            client.send(opening + in_a_frame(stream_id, _HEAD) + in_a_frame(stream_id, _BODY))
            client.until_received(expected)
        return resident_bytes(picker.pid)
