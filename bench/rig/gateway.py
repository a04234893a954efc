"""The gateway command as users run it: one process, with Envoy and the picker as its children."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from bench.rig.child import Child, Program, scratch_directory
from bench.rig.picker import PREFIX
from bench.rig.ports import LOOPBACK, free_ports
from bench.rig.procs import descendants

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack

_SERVER_ERROR = 500


class Gateway(Program):
    """An async context manager around one ``serve-picker gateway``.

    ``flags`` are the command's own, ``env`` variables of the picker; the ``PICKER_`` ones of this process are
    not handed on. It listens at ``address``, a free one by default, and is ready when it answers there.
    """

    def __init__(
        self,
        flags: Sequence[str],
        env: Mapping[str, str],
        *,
        address: str = "",
        scheme: str = "http",
        directory: Path | None = None,
    ) -> None:
        metrics, admin = free_ports(2)
        self.address = address or f"{LOOPBACK}:{free_ports(1)[0]}"
        self.url = f"{scheme}://{self.address}"
        self.metrics_url = f"http://{LOOPBACK}:{metrics}"
        self.admin = f"{LOOPBACK}:{admin}"
        self._flags = flags
        self._env = {
            "PICKER_METRICS_PORT": str(metrics),
            "PICKER_ADMIN_PORT": str(admin),
            "PICKER_DRAIN_DELAY": "1s",
            **env,
        }
        self._directory = directory
        self._session: aiohttp.ClientSession

    async def _start(self, stack: AsyncExitStack) -> None:
        directory = scratch_directory(stack, self._directory)
        self._session = await stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=5), connector=aiohttp.TCPConnector(ssl=False)
            )
        )
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        self.child = Child(
            "the gateway",
            [sys.executable, "-m", "picker", "gateway", "--listen", self.address, *self._flags],
            ready=self._is_ready,
            log_path=directory / "gateway.log",
            env={**inherited, **self._env},
            grace=20.0,
        )
        await stack.enter_async_context(self.child)

    async def _is_ready(self) -> bool:
        if "gateway ready" not in self.child.log_text():  # until then it takes Envoy's end for a failed start
            return False
        try:
            async with self._session.get(f"{self.url}/-/routes") as response:
                return response.status < _SERVER_ERROR
        except aiohttp.ClientError:
            return False

    def process(self, name: str) -> int:
        """The process id of its child ``envoy`` or ``picker``; 0 if there is none at the moment."""
        for pid in descendants(self.child.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"/envoy") == (name == "envoy"):
                return pid
        return 0
