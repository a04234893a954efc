"""Small simulated servers that look like Ray Serve proxies, or like vLLM, in a process of their own.

Each has a bounded number of slots and a bounded queue, answers as a request's body says, and shows its
load on a metrics page in Ray's words or vLLM's. What it leaves out of a real proxy: slots are its own instead
of the cluster's, and its queue bounds only what really waits, whereas Ray's fills before assignment.

Request body: ``{"sleep": seconds, "stream": bool, "chunks": int, "interval": seconds}``, all optional.
Control: ``POST /-/control`` with ``{"failing": bool, "draining": bool, "busy": int, "busy_sleep": s}``.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, get_args

import aiohttp
import click
import orjson
import uvloop
from aiohttp import web

from bench.rig.child import Child, Program, scratch_directory
from bench.rig.ports import LOOPBACK
from bench.rig.vllmpage import VllmPage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

Pages = Literal["vllm", "ray"]
PAGES: tuple[Pages, ...] = get_args(Pages)
PAGE_BYTES: dict[Pages, int] = {"vllm": 50_000, "ray": 300_000}
"""About what pages of real servers have."""
BODY_LIMIT = 64 * 1024 * 1024
LONGEST_SECONDS = 600.0
MOST_CHUNKS = 100_000
SERVED_BY = "x-served-by"
LISTENING = "listening on "
REJECTED_PAUSE_SECONDS = 0.1
COMMON_LABELS = {
    "Component": "core_worker",
    "NodeAddress": LOOPBACK,
    "SessionName": "session_simulated",
    "Version": "2.60.0",
}
DEPLOYMENT_LABELS = {"application": "default", "deployment": "Simulated"}


class RejectedError(Exception):
    """All slots are taken and the queue is full; the text is Ray Serve's."""

    def __init__(self, queued: int, limit: int) -> None:
        super().__init__(
            "Request dropped due to backpressure "
            f"(num_queued_requests={queued}, max_queued_requests={limit})."
        )


class Slots:
    """At most ``max_ongoing`` at once (0: no limit), at most ``max_queued`` waiting (-1: no limit)."""

    def __init__(self, max_ongoing: int, max_queued: int) -> None:
        self._free = asyncio.Semaphore(max_ongoing) if max_ongoing else None
        self._max_queued = max_queued
        self.ongoing = 0
        self.queued = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it; RejectedError at once if the queue is full."""
        if self._free is not None:
            await self._wait(self._free)
        self.ongoing += 1
        try:
            yield
        finally:
            self.ongoing -= 1
            if self._free is not None:
                self._free.release()

    async def _wait(self, free: asyncio.Semaphore) -> None:
        if free.locked() and 0 <= self._max_queued <= self.queued:
            raise RejectedError(self.queued, self._max_queued)
        self.queued += 1
        try:
            await free.acquire()
        finally:
            self.queued -= 1


@dataclass(frozen=True, slots=True)
class Work:
    """What a request asks for. ``interval``: seconds between two chunks of a streamed answer."""

    sleep: float = 0.0
    stream: bool = False
    chunks: int = 1
    interval: float = 0.0

    @classmethod
    def read(cls, body: bytes) -> Work:
        """Read a request's body; what is not a JSON object asks for nothing. ValueError on bad values."""
        fields = _fields(body)
        return cls(
            sleep=_number(fields, "sleep", 0.0, LONGEST_SECONDS),
            stream=bool(fields.get("stream", False)),
            chunks=int(_number(fields, "chunks", 1, MOST_CHUNKS)),
            interval=_number(fields, "interval", 0.0, LONGEST_SECONDS),
        )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _number(fields: dict[str, Any], name: str, default: float, limit: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= limit:
        raise ValueError(f"{name}: a number from 0 to {limit:g} is expected, not {value!r}")
    return value


@dataclass
class Proxy:
    """One simulated server."""

    name: str
    slots: Slots
    pages: Pages
    page_bytes: int
    report_interval: float
    failing: bool = False
    draining: bool = False
    busy_sleep: float = 1.0
    _others: list[asyncio.Task[None]] = field(default_factory=list)
    _requests: Counter[int] = field(default_factory=Counter)
    _page: bytes = b""
    _padding: bytes = b""
    _vllm: VllmPage | None = None

    def __post_init__(self) -> None:
        if self.pages == "vllm":
            self._vllm = VllmPage(self.page_bytes, time.time())
        else:
            self._padding = _padding(self.page_bytes)

    def application(self) -> web.Application:
        """Give its routes."""
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_get("/-/healthz", self._healthz)
        app.router.add_get("/-/routes", self._routes)
        app.router.add_post("/-/control", self._control)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_route("*", "/{path:.*}", self._serve)
        return app

    async def report(self) -> None:
        """Renew Ray's page now and then, as its reporter does: what is shown is always a bit old."""
        while True:
            self._page = self._render()
            await asyncio.sleep(self.report_interval)

    async def be_busy(self, clients: int) -> None:
        """Let so many other clients keep one request each in here, from now on."""
        for task in self._others:
            task.cancel()
        await asyncio.gather(*self._others, return_exceptions=True)
        self._others = [asyncio.create_task(self._other_client()) for _ in range(clients)]

    async def _other_client(self) -> None:
        while True:
            try:
                async with self.slots.slot():
                    await asyncio.sleep(self.busy_sleep)
            except RejectedError:
                await asyncio.sleep(REJECTED_PAUSE_SECONDS)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return self._drained() or web.Response(text="success")

    async def _routes(self, _request: web.Request) -> web.Response:
        return self._drained() or web.json_response({"/": "default"})

    def _drained(self) -> web.Response | None:
        if not self.draining:
            return None
        return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="This node is being drained.")

    async def _metrics(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        if self._vllm is not None:
            self._page = self._vllm.write(
                running=self.slots.ongoing,
                waiting=self.slots.queued,
                requests=self._requests.total(),
                cpu_seconds=time.process_time(),
            )
        if "gzip" not in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=self._page, headers=headers)
        headers["Content-Encoding"] = "gzip"
        return web.Response(body=gzip.compress(self._page, compresslevel=1), headers=headers)

    async def _control(self, request: web.Request) -> web.Response:
        fields = _fields(await request.read())
        try:
            self.busy_sleep = _number(fields, "busy_sleep", self.busy_sleep, LONGEST_SECONDS)
            busy = int(_number(fields, "busy", len(self._others), MOST_CHUNKS))
        except ValueError as error:
            return web.Response(status=HTTPStatus.BAD_REQUEST, text=str(error))
        self.failing = bool(fields.get("failing", self.failing))
        self.draining = bool(fields.get("draining", self.draining))
        if "busy" in fields:
            await self.be_busy(busy)
        return web.json_response({"failing": self.failing, "draining": self.draining, "busy": busy})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        response = await self._answer(request)
        self._requests[response.status] += 1
        return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {SERVED_BY: self.name}
        if self.failing:
            return web.Response(
                status=HTTPStatus.INTERNAL_SERVER_ERROR, text="Internal Server Error", headers=headers
            )
        try:
            work = Work.read(body)
            async with self.slots.slot():
                await asyncio.sleep(work.sleep)
                if work.stream:
                    return await self._stream(request, work, headers)
                return self._completion(body, headers)
        except RejectedError as error:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=str(error), headers=headers)
        except ValueError as error:
            return web.Response(status=HTTPStatus.BAD_REQUEST, text=str(error), headers=headers)

    def _completion(self, body: bytes, headers: dict[str, str]) -> web.Response:
        message = {"role": "assistant", "content": "ok"}
        completion = {
            "id": "simulated",
            "object": "chat.completion",
            "server": self.name,
            "received_bytes": len(body),
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        return web.Response(body=orjson.dumps(completion), content_type="application/json", headers=headers)

    async def _stream(self, request: web.Request, work: Work, headers: dict[str, str]) -> web.StreamResponse:
        response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        start = asyncio.get_running_loop().time()
        for index in range(work.chunks):
            # Paced by the clock, so that the cost of writing does not add up over a long answer.
            await asyncio.sleep(start + index * work.interval - asyncio.get_running_loop().time())
            delta = {"index": 0, "delta": {"content": f"token {index} "}}
            chunk = {"id": "simulated", "object": "chat.completion.chunk", "choices": [delta]}
            await response.write(b"data: %b\n\n" % orjson.dumps(chunk))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _render(self) -> bytes:
        """Write the page: the series by which the load of a Ray Serve proxy is told, names as of Ray 2.60."""
        slots = self.slots
        loop = {"actor_id": self.name, "application": "", "component": "proxy", "deployment": ""}
        handle = {**DEPLOYMENT_LABELS, "actor_id": self.name, "handle": "handle"}
        replica = {**DEPLOYMENT_LABELS, "replica": "replica"}
        lines = [
            _type("event_loop_scheduling_latency_ms", "histogram"),
            _series("event_loop_scheduling_latency_ms_count", self._requests.total(), loop, loop_type="main"),
            _type("num_ongoing_requests_at_replicas", "gauge"),
            _series("num_ongoing_requests_at_replicas", slots.ongoing, handle),
            _type("deployment_queued_queries", "gauge"),
            _series("deployment_queued_queries", slots.queued, handle),
            _type("replica_processing_queries", "gauge"),
            _series("replica_processing_queries", slots.ongoing, replica),
            _type("num_http_requests_total", "counter"),
        ]
        route = {"application": "default", "method": "POST", "route": "/"}
        for status, count in sorted(self._requests.items()):
            lines.append(_series("num_http_requests_total", count, route, status_code=str(status)))
        return self._padding + "".join(lines).encode()


def _series(name: str, value: float, labels: Mapping[str, str], **more: str) -> str:
    merged = {**COMMON_LABELS, **labels, **more}
    text = ",".join(f'{label}="{merged[label]}"' for label in sorted(merged))
    return f"ray_serve_{name}{{{text}}} {value:.1f}\n"


def _type(name: str, kind: str) -> str:
    return f"# TYPE ray_serve_{name} {kind}\n"


def _padding(size: int) -> bytes:
    """Series of no interest, as most of a Ray node's page is."""
    line = _series("other_bucket", 0, {"le": "+Inf", "route": "/0000"})
    count = size // len(line)
    series = "".join(line.replace("/0000", f"/{index:04}") for index in range(count))
    return (_type("other", "histogram") + series if series else "").encode()


@dataclass
class Servers(Program):
    """An async context manager around one process with ``count`` simulated servers.

    ``pages``: whose words the metrics page is in; ``page_bytes``: its rough size, what is usual if None;
    ``report_interval``: seconds between two states of Ray's page, vLLM's is written when asked for.
    ``ports``: the first servers' ports; the others take free ones.
    """

    count: int = 1
    max_ongoing: int = 0
    max_queued: int = -1
    report_interval: float = 1.0
    pages: Pages = "ray"
    page_bytes: int | None = None
    ports: Sequence[int] = ()
    directory: Path | None = None
    addresses: list[str] = field(default_factory=list, init=False)
    _session: aiohttp.ClientSession = field(init=False)

    async def _start(self, stack: AsyncExitStack) -> None:
        directory = scratch_directory(stack, self.directory)
        self._session = await stack.enter_async_context(aiohttp.ClientSession())
        self.child = Child(
            "the simulated servers",
            self._command(),
            ready=self._is_ready,
            log_path=directory / f"servers-{id(self):x}.log",
        )
        await stack.enter_async_context(self.child)
        self.addresses = self._listening()

    async def control(self, index: int, **state: bool | float) -> None:
        """Change one server's state: ``failing``, ``draining``, ``busy``, ``busy_sleep``."""
        url = f"http://{self.addresses[index]}/-/control"
        async with self._session.post(url, data=orjson.dumps(state)) as response:
            if response.status != HTTPStatus.OK:
                raise ValueError(await response.text())

    def _command(self) -> list[str]:
        options = {
            "--max-ongoing": self.max_ongoing,
            "--max-queued": self.max_queued,
            "--report-interval": self.report_interval,
            "--pages": self.pages,
            "--page-bytes": PAGE_BYTES[self.pages] if self.page_bytes is None else self.page_bytes,
        }
        ports = [*self.ports, *[0] * (self.count - len(self.ports))]
        arguments = [("--port", port) for port in ports] + list(options.items())
        return [sys.executable, "-m", "bench.rig.servers", *(f"{name}={value}" for name, value in arguments)]

    async def _is_ready(self) -> bool:
        return bool(self._listening())

    def _listening(self) -> list[str]:
        match = re.search(f"^{LISTENING}(.*)\n", self.child.log_text(), re.MULTILINE)
        return match[1].split() if match else []


@click.command()
@click.option("--port", "ports", type=click.IntRange(0, 65535), multiple=True, default=(0,))
@click.option("--max-ongoing", type=click.IntRange(0), default=0, help="Slots of each server, 0: no limit.")
@click.option("--max-queued", type=click.IntRange(-1), default=-1, help="Its queue's length, -1: no limit.")
@click.option("--report-interval", type=click.FloatRange(0.01), default=1.0, help="Age of a Ray page.")
@click.option("--pages", type=click.Choice(PAGES), default="ray", help="Whose words they are in.")
@click.option("--page-bytes", type=click.IntRange(0, 10_000_000), default=300_000, help="Their size.")
def main(**options: Any) -> None:  # noqa: ANN401 - checked by click
    """Run one simulated server for each --port (0: a free one) until SIGTERM."""
    uvloop.run(_run(**options))


async def _run(*, ports: Sequence[int], **options: Any) -> None:  # noqa: ANN401 - see main
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(_serving(port, **options)) for port in ports]
        print(LISTENING + " ".join(proxy.name for proxy in proxies), flush=True)
        await ended.wait()


@asynccontextmanager
async def _serving(
    port: int,
    *,
    max_ongoing: int,
    max_queued: int,
    **page: Any,  # noqa: ANN401 - see main
) -> AsyncIterator[Proxy]:
    proxy = Proxy("", Slots(max_ongoing, max_queued), **page)
    runner = web.AppRunner(
        proxy.application(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, port).start()
        proxy.name = "{}:{}".format(*runner.addresses[0][:2])
        reporter = asyncio.create_task(proxy.report())
        try:
            yield proxy
        finally:
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)
            await proxy.be_busy(0)
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    main()
