"""Follows the quick starts without Kubernetes by their own lines, on other ports, to a served request."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.rig.child import Child
from bench.rig.ports import free_ports
from picker.endpoints.serve_api import APPLICATIONS_PATH
from picker.settings import Settings
from tests.docs.pages import ROOT, Page, read
from tests.docs.shell import Command, commands

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

pytestmark = pytest.mark.envoy

LOCAL, RAY = read("docs/quickstart-local.md"), read("docs/quickstart-ray.md")
SERVERS = ("127.0.0.1:8001", "127.0.0.1:8002")


def line(page: Page, *words: str) -> Command:
    """The page's first line that begins so."""
    lines = [command for block in page.blocks("sh") for command in commands(block)]
    found = [command for command in lines if command.words[: len(words)] == list(words)]
    assert found, f"{page} has no line {words}"
    return found[0]


class Reader:
    """Types a page's lines, with other addresses."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self._directory = directory
        self._stack = stack
        documented = ("8001", "8002", "8080", "9090", "9091")
        self._ours = dict(zip(documented, map(str, free_ports(len(documented))), strict=True))

    def typed(self, text: str) -> str:
        for documented, ours in self._ours.items():
            text = text.replace(documented, ours)
        return text

    def instead(self, documented: str, ours: str) -> None:
        """Type another thing."""
        self._ours[documented] = ours

    async def start(self, command: Command, *more: str, says: str) -> None:
        """Run a line in a terminal of its own, until it says that it is ready."""
        program, *arguments = map(self.typed, command.words)
        argv = [sys.executable, *(["-m", "picker"] if program == "serve-picker" else []), *arguments, *more]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PICKER_")}
        settings = {
            "PICKER_METRICS_PORT": self._ours["9090"],
            "PICKER_ADMIN_PORT": self._ours["9091"],
            "PICKER_DRAIN_DELAY": "0s",
        }

        async def ready() -> bool:
            return says in child.log_text()

        log = self._directory / f"{len(list(self._directory.iterdir()))}.log"
        child = Child(
            str(command), argv, ready=ready, log_path=log, env={**inherited, **settings}, grace=20.0
        )
        await self._stack.enter_async_context(child)

    async def start_servers(self) -> None:
        await self.start(line(LOCAL, "python", "-m", "bench.rig.servers"), says="listening on")

    async def start_gateway(self, page: Page, *words: str) -> None:
        command = line(page, "serve-picker", "gateway", *words)
        # The page's listens on all addresses, which tests do not.
        await self.start(command, "--listen", self.typed("127.0.0.1:8080"), says="gateway ready")

    async def ask(self, command: Command) -> str:
        """What a line prints that asks the running picker."""
        argv = [sys.executable, "-m", "picker", *command.words[1:], "--admin", self.typed("127.0.0.1:9091")]
        process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(30):
            output, _ = await process.communicate()
        assert process.returncode == 0
        return output.decode()

    async def curl(self, command: Command) -> tuple[int, str, str]:
        """What a line's request is answered: status, who served it, body."""
        words = [self.typed(word) for word in command.words]
        url = next(word for word in words if "://" in word)
        data = words[words.index("-d") + 1] if "-d" in words else None
        async with (
            aiohttp.ClientSession() as client,
            client.request("POST" if data else "GET", url, data=data) as response,
        ):
            return response.status, response.headers.get("x-served-by", ""), await response.text()


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    async with AsyncExitStack() as stack:
        yield Reader(tmp_path, stack)


async def test_the_local_quick_start_leads_to_a_served_request(reader: Reader) -> None:
    await reader.start_servers()
    await reader.start_gateway(LOCAL, "--endpoints")
    status, server, _ = await reader.curl(line(LOCAL, "curl", "-i"))
    assert status == 200
    assert server in map(reader.typed, SERVERS)
    _, _, metrics = await reader.curl(line(LOCAL, "curl", "-s"))
    assert 'picker_decisions_total{outcome="picked"}' in metrics


@pytest.mark.skipif("admin_port" not in Settings.model_fields, reason="there is no admin port to be asked")
async def test_the_local_quick_start_shows_why(reader: Reader) -> None:
    await reader.start_servers()
    await reader.start_gateway(LOCAL, "--endpoints")
    _, server, _ = await reader.curl(line(LOCAL, "curl", "-i"))
    last = await reader.ask(line(LOCAL, "serve-picker", "explain"))
    assert server in last
    assert "/v1/completions" in last
    made_up = await reader.ask(line(LOCAL, "serve-picker", "explain", "--model"))
    assert "chosen: " in made_up
    top = await reader.ask(line(LOCAL, "serve-picker", "top"))
    assert all(reader.typed(server) in top for server in SERVERS)


@asynccontextmanager
async def ray_head(servers: Iterable[str]) -> AsyncIterator[str]:
    """The part of a Ray head's dashboard that names Serve's proxies; gives its URL."""
    targets = [
        {"ip": ip, "port": int(port), "name": f"SERVE_PROXY_ACTOR-{port}"}
        for ip, _, port in (server.partition(":") for server in servers)
    ]
    group = {"protocol": "HTTP", "route_prefix": "/", "app_name": "", "targets": targets}

    async def applications(_request: web.Request) -> web.Response:
        controller = {"actor_id": "controller"}
        return web.json_response({"controller_info": controller, "target_groups": [group]})

    app = web.Application()
    app.router.add_get(APPLICATIONS_PATH, applications)
    async with TestServer(app) as head:
        yield str(head.make_url("")).rstrip("/")


async def test_the_ray_quick_start_leads_to_a_served_request(reader: Reader) -> None:
    await reader.start_servers()
    async with ray_head(map(reader.typed, SERVERS)) as url:
        reader.instead("http://head:8265", url)
        await reader.start_gateway(RAY, "--ray")
        status, server, _ = await reader.curl(line(RAY, "curl", "-i"))
    assert status == 200
    assert server in map(reader.typed, SERVERS)
