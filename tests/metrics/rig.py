"""Servers that answer by script, well or badly, and a scraper to set on them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from picker.endpoints.endpoint import Endpoint
from picker.metrics.scraper import ScrapeOptions, Scraper
from scorer.fleet import Fleet, Slot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

PATIENCE = 10.0
"""Seconds until a wait is given up; what is waited for takes a tenth of it at most."""

VLLM_PAGE = (
    b"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"
    b"process_start_time_seconds 1\n"
)


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Server:
    """Listens on 127.0.0.1 and answers each request for a path by what ``answers`` has for it.

    An answer is bytes, or a coroutine function that writes them; after one without keep-alive (the
    latter kind) the connection is closed. Counts the requests by path and the connections at once.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.answers: dict[str, bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]] = {}
        self.requests: list[str] = []
        self.heads: list[bytes] = []
        self.connections = 0
        self.open_now = 0
        self.most_open = 0
        self.port = 0
        self._changed = changed
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for task in self._busy:
                task.cancel()
            await asyncio.gather(*self._busy, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)
        self.connections += 1
        # A client that hangs up and a stop of the server end a connection as well as any.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ")[1].decode()
                self.requests.append(path)
                self.heads.append(head)
                self.open_now += 1
                self.most_open = max(self.most_open, self.open_now)
                self._changed()
                try:
                    answer = self.answers.get(path, http(b"no such path", "404 Not Found"))
                    if not isinstance(answer, bytes):
                        await answer(writer)
                        break
                    writer.write(answer)
                    await writer.drain()
                finally:
                    self.open_now -= 1
        writer.close()


@dataclass
class Rig:
    """A fleet, a scraper that runs, and what it told."""

    fleet: Fleet
    scraper: Scraper
    pages: list[tuple[Slot, float, float]] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    restarts: list[Slot] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _servers: list[Server] = field(default_factory=list)

    async def server(self, **answers: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]) -> Server:
        """Start a server; ``metrics=…`` is its answer for ``/metrics``."""
        server = Server(self._changed.set)
        server.answers = {f"/{path}": answer for path, answer in answers.items()}
        await server.start()
        self._servers.append(server)
        return server

    def watch(self, server: Server, *, traffic: Server | None = None) -> Slot:
        address = (traffic or server).address
        slot = self.fleet.add(address)
        self.scraper.watch(slot, Endpoint(address, server.address))
        return slot

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, looked at after every request, page and attempt."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def load(self, slot: Slot) -> float:
        return float(self.fleet.scraped_load[slot.row])


@contextlib.asynccontextmanager
async def running_rig(options: ScrapeOptions) -> AsyncIterator[Rig]:
    fleet = Fleet()

    def on_page(slot: Slot, page_time: float, now: float) -> None:
        rig.pages.append((slot, page_time, now))
        rig._changed.set()

    restarts: list[Slot] = []

    def on_scrape(outcome: str, seconds: float) -> None:
        assert seconds >= 0
        rig.outcomes.append(outcome)
        rig._changed.set()

    scraper = Scraper(
        fleet,
        options,
        on_page=on_page,
        on_restart=restarts.append,
        on_scrape=on_scrape,
        random=random.Random(7),
        clock=time.monotonic,
    )
    rig = Rig(fleet, scraper, restarts=restarts)
    run = asyncio.create_task(scraper.run())
    try:
        yield rig
        assert not run.done(), "the scraper ended by itself"
    finally:
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run
        for server in rig._servers:
            await server.stop()
