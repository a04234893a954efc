"""Simulated model servers in real time: the engine of the replay behind HTTP, in a process of their own.

``POST /v1/completions`` with ``{"prompt": text, "max_tokens": n}`` is answered as a stream: headers and a
first chunk when the engine has the first token, and one more with ``usage`` at its end, which is all that a
picker looks at. Four bytes of a prompt are a token. A header tells how long the engine took for the first
token by its own clock. ``GET /metrics`` is a page in vLLM's words.
"""

from __future__ import annotations

import asyncio
import heapq
import re
import signal
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from http import HTTPStatus
from typing import TYPE_CHECKING

import click
import orjson
import uvloop
from aiohttp import web

from bench.rig.child import Child, Program, scratch_directory
from bench.rig.ports import LOOPBACK
from bench.rig.servers import BODY_LIMIT, LISTENING
from picker.replay.agenda import Agenda
from picker.replay.engine import Engine, EngineModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

TOKEN_BYTES = 4
IN_ENGINE = "x-seconds-in-engine"
"""The header with the seconds from a request's arrival to its first token."""


class Clock(Agenda):
    """An agenda whose time is real. What comes late by some milliseconds still counts at its own time."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._began = time.perf_counter()
        self._timer: asyncio.TimerHandle | None = None

    def catch_up(self) -> None:
        """Call what is due, and see to it that the next call comes."""
        while self._entries and self._entries[0][0] <= self._elapsed():
            self.now, _, do = heapq.heappop(self._entries)
            do()
        self.now = max(self.now, self._elapsed())
        if self._timer is not None:
            self._timer.cancel()
        if self._entries:
            self._timer = self._loop.call_later(max(0.0, self._entries[0][0] - self.now), self.catch_up)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began


@dataclass(eq=False)
class _Job:
    """One request. See :class:`picker.replay.engine.Job`."""

    prompt: int
    output: int
    blocks: tuple[int, ...]
    clock: Clock
    cached: int = 0
    first_at: float = 0.0
    began: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def first_token(self) -> None:
        self.first_at = self.clock.now
        self.began.set()

    def ended(self, cached: int) -> None:
        self.cached = cached
        self.over.set()


def blocks_of(prompt: bytes, block_tokens: int) -> tuple[int, ...]:
    """A number for each whole block, which stands for all of the prompt up to there."""
    size = block_tokens * TOKEN_BYTES
    digest = blake2b(digest_size=8)
    blocks = []
    for start in range(0, len(prompt) - size + 1, size):
        digest.update(prompt[start : start + size])
        blocks.append(int.from_bytes(digest.copy().digest(), "little"))
    return tuple(blocks)


class Server:
    """One engine and its routes."""

    def __init__(self, block_tokens: int) -> None:
        self._clock = Clock()
        self._block = block_tokens
        self._engine = Engine(self._clock, EngineModel(), block_tokens=block_tokens)

    def application(self) -> web.Application:
        """Give its routes."""
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        fields = orjson.loads(await request.read())
        prompt = fields["prompt"].encode()
        blocks = blocks_of(prompt, self._block)
        job = _Job(max(1, len(prompt) // TOKEN_BYTES), fields["max_tokens"], blocks, self._clock)
        self._clock.catch_up()
        arrived_at = self._clock.now
        if not self._engine.submit(job):
            return web.Response(status=HTTPStatus.BAD_REQUEST, text="the prompt is too long")
        self._clock.catch_up()
        await job.began.wait()
        seconds = f"{job.first_at - arrived_at:.6f}"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", IN_ENGINE: seconds})
        await response.prepare(request)
        await response.write(b'data: {"object":"text_completion","choices":[{"index":0,"text":"ok"}]}\n\n')
        await job.over.wait()
        usage = {
            "prompt_tokens": job.prompt,
            "completion_tokens": job.output,
            "prompt_tokens_details": {"cached_tokens": job.cached},
        }
        end = {"object": "text_completion", "choices": [], "usage": usage}
        await response.write(b"data: %b\n\ndata: [DONE]\n\n" % orjson.dumps(end))
        await response.write_eof()
        return response

    async def _metrics(self, _request: web.Request) -> web.Response:
        self._clock.catch_up()
        page = self._engine.page()
        config = f'block_size="{page.block_size:.0f}",num_gpu_blocks="{page.kv_blocks:.0f}"'
        lines = (
            f"vllm:num_requests_running {page.running}",
            f"vllm:num_requests_waiting {page.queue}",
            f"vllm:kv_cache_usage_perc {page.kv_usage}",
            f"vllm:cache_config_info{{{config}}} 1.0",
        )
        return web.Response(text="\n".join(lines) + "\n")


@dataclass
class Engines(Program):
    """An async context manager around one process with ``count`` engines."""

    count: int
    block_tokens: int
    directory: Path | None = None
    addresses: list[str] = field(default_factory=list, init=False)

    async def _start(self, stack: AsyncExitStack) -> None:
        directory = scratch_directory(stack, self.directory)
        command = [sys.executable, "-m", "bench.rig.engines", str(self.count), str(self.block_tokens)]
        self.child = Child(
            "the engines", command, ready=self._is_ready, log_path=directory / f"engines-{id(self):x}.log"
        )
        await stack.enter_async_context(self.child)
        self.addresses = self._listening()

    async def _is_ready(self) -> bool:
        return bool(self._listening())

    def _listening(self) -> list[str]:
        match = re.search(f"^{LISTENING}(.*)\n", self.child.log_text(), re.MULTILINE)
        return match[1].split() if match else []


@click.command()
@click.argument("count", type=click.IntRange(1, 100))
@click.argument("block_tokens", type=click.IntRange(1, 4096))
def main(count: int, block_tokens: int) -> None:
    """Run so many engines, on free ports, until SIGTERM."""
    uvloop.run(_run(count, block_tokens))


async def _run(count: int, block_tokens: int) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        addresses = [
            await stack.enter_async_context(_serving(lambda: Server(block_tokens))) for _ in range(count)
        ]
        print(LISTENING + " ".join(addresses), flush=True)
        await ended.wait()


@asynccontextmanager
async def _serving(make: Callable[[], Server]) -> AsyncIterator[str]:
    runner = web.AppRunner(make().application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        yield "{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    main()
