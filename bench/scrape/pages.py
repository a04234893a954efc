"""Many servers that show one metrics page, in a process of their own: ``python -m bench.scrape.pages``.

They do as little as can be done (a few pages are made beforehand, compressed or not, and shown in turn), so
that most of what the machine does is the asking, which is what is measured. A Ray node's page comes as from a
Ray node: HTTP/1.0, and the connection is closed behind it. vLLM's is another one each time, if only by the
CPU that it took; Ray's is renewed every ten seconds, as by default, or each time, too.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import resource
import signal
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Literal, Self, cast, get_args

import aiohttp
import click
import uvloop

from bench.rig.child import Child, scratch_directory
from bench.rig.ports import LOOPBACK
from bench.rig.vllmpage import VllmPage

if TYPE_CHECKING:
    from types import TracebackType

Kind = Literal["small", "vllm", "ray"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SIZES: dict[Kind, int] = {"small": 800, "vllm": 50_000, "ray": 300_000}
"""Bytes of the pages, about."""
RENEWED_SECONDS: dict[Kind, float] = {"small": 0.0, "vllm": 0.0, "ray": 10.0}
"""Between two states of a page; 0: each answer shows another one."""
LISTENING = "listening on "
_STATES = 7  # prime, so that a server's next page is another one, whatever the number of servers
_BACKLOG = 64

_PROCESS = (
    b"# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n"
    b"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.79602249305e+09\n"
    b"process_cpu_seconds_total %d\n"
)
_STARTED = 1.79602249305e09
_VLLM_FAMILIES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
)
_RAY_FAMILIES = (
    "ray_serve_event_loop_scheduling_latency_ms_count",
    "ray_serve_num_ongoing_requests_at_replicas",
    "ray_serve_deployment_queued_queries",
    "ray_serve_num_http_requests_total",
)


def page(kind: Kind, state: int = 0) -> bytes:
    """An idle server's page: vLLM's gauges come first, those of a Ray proxy in the midst of others."""
    if kind == "vllm":
        return VllmPage(SIZES[kind], _STARTED).write(running=0, waiting=0, requests=0, cpu_seconds=state)
    if kind == "ray":
        labels = 'actor_id="p",application="",component="proxy",deployment="",NodeAddress="10.0.0.1"'
        families, other = _RAY_FAMILIES, "ray_node_other"
    else:
        labels = 'engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"'
        families, other = _VLLM_FAMILIES, "vllm:other_seconds"
    wanted = [
        f"# HELP {name} Text.\n# TYPE {name} gauge\n{name}{{{labels}}} 0.0\n".encode() for name in families
    ]
    wanted[0] = wanted[0].replace(b"} 0.0\n", b"} %d.0\n" % state) if kind == "ray" else wanted[0]
    wanted.insert(0, _PROCESS % state)
    filling = _histograms(other, labels, SIZES[kind] - sum(map(len, wanted)))
    middle = len(filling) // 2 if kind == "ray" else 0
    return b"".join([*filling[:middle], *wanted, *filling[middle:]])


def _histograms(name: str, labels: str, size: int) -> list[bytes]:
    parts: list[bytes] = []
    while size > 0:
        family = f"{name}_{len(parts)}"
        lines = [f"# HELP {family} Text.", f"# TYPE {family} histogram"]
        lines += [f'{family}_bucket{{le="{bound / 1000}",{labels}}} {bound * 7.0}' for bound in range(1, 20)]
        part = ("\n".join(lines) + "\n").encode()
        parts.append(part[: part.rfind(b"\n", 0, size) + 1] if len(part) > size else part)
        size -= len(part)
    return parts


class Site:
    """What every port answers, and how often the page was asked for."""

    def __init__(self, kind: Kind, renewed: float) -> None:
        self.pages = 0
        self.closes = kind == "ray"
        self._renewed = renewed
        bodies = [page(kind, state) for state in range(_STATES)]
        self._plain = [self._answer(body) for body in bodies]
        self._compressed = [self._answer(gzip.compress(body), "Content-Encoding: gzip") for body in bodies]

    def answer(self, head: bytes) -> tuple[bytes, bool]:
        """The answer to a request, and whether the connection is closed behind it."""
        if head.startswith(b"GET /metrics "):
            self.pages += 1
            state = int(time.monotonic() / self._renewed) if self._renewed else self.pages
            answers = self._compressed if b"gzip" in head else self._plain
            return answers[state % _STATES], self.closes
        if head.startswith(b"GET /-/routes "):
            return b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"/":"default"}'[:-1], False
        if head.startswith(b"GET /-/pages "):
            count = b"%d" % self.pages
            return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(count), count), False
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", False

    def _answer(self, body: bytes, *headers: str) -> bytes:
        version = "1.0" if self.closes else "1.1"
        lines = [
            f"HTTP/{version} 200 OK",
            "Date: Mon, 30 Nov 2026 12:00:00 GMT",
            "Server: simulated",
            "Content-Type: text/plain; version=0.0.4; charset=utf-8",
            f"Content-Length: {len(body)}",
            *headers,
            "",
            "",
        ]
        return "\r\n".join(lines).encode() + body


class _Visit(asyncio.Protocol):
    """One connection. A client sends a request only when it has the answer to the last."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._head = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" in self._head:
            answer, closes = self._site.answer(self._head)
            self._head = b""
            self._transport.write(answer)
            if closes:
                self._transport.close()


class PageServers:
    """An async context manager around one process with ``count`` servers of one kind of page.

    ``renewed``: seconds between two states of it, 0: each answer shows another; what is usual if None.
    """

    def __init__(self, kind: Kind, count: int, renewed: float | None = None) -> None:
        self.kind = kind
        self._renewed = RENEWED_SECONDS[kind] if renewed is None else renewed
        self._count = count
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession
        self._child: Child
        self.addresses: list[str] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._session = await stack.enter_async_context(aiohttp.ClientSession())
            arguments = [f"--kind={self.kind}", f"--count={self._count}", f"--renewed={self._renewed}"]
            self._child = Child(
                "the page servers",
                [sys.executable, "-m", "bench.scrape.pages", *arguments],
                ready=self._is_ready,
                log_path=scratch_directory(stack, None) / "pages.log",
            )
            await stack.enter_async_context(self._child)
            self.addresses = self._listening()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def pid(self) -> int:
        """The process id of the servers."""
        return self._child.pid

    async def pages(self) -> int:
        """How many pages all of them have given so far."""
        async with self._session.get(f"http://{self.addresses[0]}/-/pages") as response:
            return int(await response.text())

    async def _is_ready(self) -> bool:
        return bool(self._listening())

    def _listening(self) -> list[str]:
        match = re.search(f"^{LISTENING}(.*)\n", self._child.log_text(), re.MULTILINE)
        return match[1].split() if match else []


def raise_file_limit() -> None:
    """Let this process, and those it starts, have as many connections as they may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@click.command()
@click.option("--kind", type=click.Choice(KINDS), required=True)
@click.option("--count", type=click.IntRange(1, 10_000), required=True, help="Servers, a port each.")
@click.option("--renewed", type=click.FloatRange(0), required=True, help="Seconds between two states.")
def main(kind: Kind, count: int, renewed: float) -> None:
    """Serve until SIGTERM."""
    raise_file_limit()
    uvloop.run(_run(kind, count, renewed))


async def _run(kind: Kind, count: int, renewed: float) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    site = Site(kind, renewed)
    servers = [
        await loop.create_server(lambda: _Visit(site), LOOPBACK, 0, backlog=_BACKLOG) for _ in range(count)
    ]
    addresses = ["{}:{}".format(*server.sockets[0].getsockname()) for server in servers]
    print(LISTENING + " ".join(addresses), flush=True)
    await ended.wait()


if __name__ == "__main__":
    main()
