"""Follows the local quick start by its own lines, on other ports, to a request that is served."""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest

from bench.rig.child import Child
from bench.rig.ports import free_ports
from tests.docs.pages import read
from tests.docs.shell import Command, commands

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.envoy

LINES = [command for block in read("docs/quickstart-local.md").blocks("sh") for command in commands(block)]


class Reader:
    """Types the page's lines, with other ports."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self._directory = directory
        self._stack = stack
        documented = ("8001", "8002", "8080", "9090", "9091")
        self._ports = dict(zip(documented, map(str, free_ports(len(documented))), strict=True))

    def typed(self, text: str) -> str:
        for documented, ours in self._ports.items():
            text = text.replace(documented, ours)
        return text

    async def start(self, command: Command, *more: str, says: str) -> Child:
        """Run a line in a terminal of its own, until it says that it is ready."""
        program, *arguments = map(self.typed, command.words)
        argv = [sys.executable, *(["-m", "picker"] if program == "serve-picker" else []), *arguments, *more]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PICKER_")}
        ports = {"PICKER_METRICS_PORT": self._ports["9090"], "PICKER_ADMIN_PORT": self._ports["9091"]}

        async def ready() -> bool:
            return says in child.log_text()

        log = self._directory / f"{len(list(self._directory.iterdir()))}.log"
        child = Child(str(command), argv, ready=ready, log_path=log, env={**inherited, **ports}, grace=20.0)
        return await self._stack.enter_async_context(child)


def line(*words: str) -> Command:
    """The page's one line that begins so."""
    found = [command for command in LINES if command.words[: len(words)] == list(words)]
    assert found, f"no line {words}"
    return found[0]


@asynccontextmanager
async def quick_start(directory: Path) -> AsyncIterator[Reader]:
    """The servers and the gateway up."""
    async with AsyncExitStack() as stack:
        reader = Reader(directory, stack)
        await reader.start(line("python", "-m", "bench.rig.servers"), says="listening on")
        listen = reader.typed("127.0.0.1:8080")
        gateway = line("serve-picker", "gateway", "--endpoints")
        # Of any address in the page: the tests listen on loopback only.
        await reader.start(gateway, "--listen", listen, says="gateway ready")
        yield reader


async def test_the_local_quick_start_leads_to_a_served_request(tmp_path: Path) -> None:
    request = line("curl", "-i").words
    url, body = request[2], request[request.index("-d") + 1]
    async with quick_start(tmp_path) as reader, aiohttp.ClientSession() as client:
        async with client.post(reader.typed(url), data=body) as response:
            assert response.status == 200
            assert response.headers["x-served-by"] in reader.typed("127.0.0.1:8001 127.0.0.1:8002").split()
        async with client.get(reader.typed(line("curl", "-s").words[2])) as response:
            assert 'picker_decisions_total{outcome="picked"}' in await response.text()
