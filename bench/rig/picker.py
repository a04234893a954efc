"""The picker as users run it: ``python -m picker serve`` in a process of its own."""

from __future__ import annotations

import os
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING

import aiohttp

from bench.rig.child import Child, Program, scratch_directory
from bench.rig.ports import LOOPBACK, free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack
    from pathlib import Path

PREFIX = "PICKER_"


class Picker(Program):
    """An async context manager around one picker.

    By default it is plaintext, on the loopback address, and ends without a drain delay. ``env`` are its
    environment variables; the ``PICKER_`` ones of this process are not handed on.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        directory: Path | None = None,
        ready_timeout: float = 30.0,
        grace: float = 10.0,
    ) -> None:
        grpc, health, metrics = (str(port) for port in free_ports(3))
        self._env = {
            "PICKER_BIND": LOOPBACK,
            "PICKER_GRPC_PORT": grpc,
            "PICKER_HEALTH_PORT": health,
            "PICKER_METRICS_PORT": metrics,
            "PICKER_ADMIN_PORT": "0",
            "PICKER_SECURE_SERVING": "false",
            "PICKER_DRAIN_DELAY": "0s",
            "PICKER_DRAIN_TIMEOUT": "5s",
            **env,
        }
        self._directory = directory
        self._ready_timeout = ready_timeout
        self._grace = grace
        self._session: aiohttp.ClientSession

    async def _start(self, stack: AsyncExitStack) -> None:
        directory = scratch_directory(stack, self._directory)
        timeout = aiohttp.ClientTimeout(total=5)
        self._session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        self.child = Child(
            "the picker",
            [sys.executable, "-m", "picker", "serve"],
            ready=self._is_ready,
            log_path=directory / "picker.log",
            env={**inherited, **self._env},
            ready_timeout=self._ready_timeout,
            grace=self._grace,
        )
        await stack.enter_async_context(self.child)

    @property
    def address(self) -> str:
        """The ``ip:port`` of its ext_proc server."""
        return f"{self._env['PICKER_BIND']}:{self._env['PICKER_GRPC_PORT']}"

    @property
    def health_address(self) -> str:
        """The ``ip:port`` of its health service."""
        return f"{self._env['PICKER_BIND']}:{self._env['PICKER_HEALTH_PORT']}"

    @property
    def metrics_url(self) -> str:
        """``http://ip:port`` of its ``/metrics`` and ``/readyz``."""
        return f"http://{self._env['PICKER_BIND']}:{self._env['PICKER_METRICS_PORT']}"

    async def metrics(self) -> str:
        """The picker's own metrics page."""
        async with self._session.get(f"{self.metrics_url}/metrics") as response:
            return await response.text()

    async def _is_ready(self) -> bool:
        try:
            async with self._session.get(f"{self.metrics_url}/readyz") as response:
                return response.status == HTTPStatus.OK
        except aiohttp.ClientError:
            return False
