"""``serve-picker gateway``: runs Envoy and the picker, and ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import orjson

from picker.addresses import parse_host_port
from picker.endpoints.eds import EdsFile
from picker.gateway.binary import EnvoyError, envoy_binary
from picker.gateway.bootstrap import GatewayConfig, bootstrap
from picker.gateway.envoy_admin import EnvoyAdmin
from picker.gateway.ports import free_port
from picker.gateway.supervised import StartFailedError, Supervised
from picker.settings import load, variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from picker.gateway.envoy_config import Json
    from picker.settings import Settings

log = logging.getLogger(__name__)

DEFAULT_FALLBACKS = "2"
"""Here Envoy can retry, so the picker names two further endpoints unless told otherwise."""
PICKER_GRACE = 3.0
ENVOY_GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL, when no request is under way any more."""
_PICKER_DRAIN = {"drain_delay": "0s", "drain_timeout": "2s"}
"""The picker is told to end when Envoy has: there is nothing left to wait for."""
_POLL = 0.1
_OK = 200


class GatewayError(Exception):
    """The gateway cannot run as it was told; the text is one line that says what to mend.

    It is empty where the picker itself has said so already.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """What the command was told.

    ``settings`` are the picker's, by name, as text; they go before the environment. ``directory`` takes the
    configuration and sockets; a temporary one by default. ``access_log``: a path, ``-`` for stdout, empty
    for none.
    """

    listen: str
    settings: Mapping[str, str]
    envoy: Path | None = None
    directory: Path | None = None
    access_log: str = "-"
    certificate: tuple[Path, Path] | None = None
    workers: int = 1


class Gateway:
    """One Envoy and one picker."""

    def __init__(self, options: GatewayOptions, directory: Path) -> None:
        self._options = options
        self._directory = directory
        self.overrides = _overrides(options, directory)
        self.settings: Settings = load(self.overrides)
        self._admin_socket = directory / "envoy-admin.sock"

    def config(self) -> Json:
        """Envoy's configuration."""
        access_log = self._options.access_log
        return bootstrap(
            GatewayConfig(
                listen=self._options.listen,
                picker=f"127.0.0.1:{self.settings.grpc_port}",
                eds_path=_eds_path(self._directory),
                admin_socket=self._admin_socket,
                access_log=access_log or None,
                certificate=self._options.certificate,
                retries=self.settings.fallbacks,
            )
        )

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises GatewayError if it cannot start."""
        self._prepare()
        stop = _Stop(asyncio.get_running_loop())
        async with contextlib.AsyncExitStack() as stack:
            admin = await stack.enter_async_context(EnvoyAdmin(self._admin_socket))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            picker = self._picker(session)
            envoy = self._envoy(admin)
            stack.push_async_callback(picker.stop, PICKER_GRACE)
            stack.push_async_callback(envoy.stop, ENVOY_GRACE)
            if not await _started(stop, picker, envoy):
                return
            keeping = [asyncio.create_task(child.keep()) for child in (picker, envoy)]
            log.info("gateway ready", extra={"fields": {"listen": self._options.listen}})
            await stop.first.wait()
            log.info("gateway is draining")
            await self._drain(admin, stop)
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)

    def _prepare(self) -> None:
        require_free(self._options.listen, "--listen", "another address")
        # Another picker that listens there would be taken for ours.
        for name in ("metrics_port", *(("admin_port",) if self.settings.admin else ())):
            if getattr(self.settings, name):
                require_free(f"127.0.0.1:{getattr(self.settings, name)}", variable(name), "another port")

    def _lay_out(self) -> None:
        """Write what Envoy reads at its start. The folder may have been tidied up since the last time."""
        eds = _eds_path(self._directory)
        if not eds.exists():
            EdsFile(eds).write(())  # the picker fills it
        config = orjson.dumps(self.config(), option=orjson.OPT_INDENT_2)
        (self._directory / "envoy.json").write_bytes(config)

    def _picker(self, session: aiohttp.ClientSession) -> Supervised:
        async def answers() -> bool:
            try:
                async with session.get(f"http://127.0.0.1:{self.settings.metrics_port}/readyz") as response:
                    return response.status == _OK
            except aiohttp.ClientError as error:
                raise OSError(str(error)) from error

        given = {variable(name): value for name, value in {**self.overrides, **_PICKER_DRAIN}.items()}
        return Supervised(
            "picker",
            [sys.executable, "-m", "picker", "serve"],
            answers,
            env={**os.environ, **given},
            frozen_after=self.settings.watchdog,
            patient=True,
        )

    def _envoy(self, admin: EnvoyAdmin) -> Supervised:
        try:
            binary = self._options.envoy or envoy_binary()
        except EnvoyError as error:
            raise GatewayError(f"{error} (the extra [gateway] has it), or give --envoy PATH") from None
        argv = [
            str(binary),
            *("--config-path", str(self._directory / "envoy.json")),
            *("--concurrency", str(self._options.workers)),
            *("--log-level", "warning"),
            *("--drain-time-s", str(max(1, round(self.settings.drain_delay)))),
            *("--drain-strategy", "immediate"),
            *("--file-flush-interval-msec", "500"),  # of the access log; ten seconds by default
            "--disable-hot-restart",  # Envoy's own would end it with its parent, without a drain
        ]
        return Supervised("envoy", argv, admin.ready, log_stderr=True, prepare=self._lay_out)

    async def _drain(self, admin: EnvoyAdmin, stop: _Stop) -> None:
        """Take nothing new, and wait for what is under way."""
        try:
            await admin.drain()
            async with asyncio.timeout(self.settings.drain_delay + self.settings.drain_timeout):
                await stop.hurry_or(self.settings.drain_delay)
                while await admin.active_requests() and not stop.second.is_set():
                    await stop.hurry_or(_POLL)
        except TimeoutError:
            log.warning("requests were still under way at the end of the drain timeout")
        except OSError as error:
            log.warning("Envoy cannot be drained", extra={"fields": {"error": str(error)}})


async def _started(stop: _Stop, picker: Supervised, envoy: Supervised) -> bool:
    """Start both, as long as that takes; False if the gateway is to stop instead. Raises GatewayError."""

    async def start() -> None:
        # The picker first: what Envoy is asked before would be balanced blindly.
        await picker.start()
        await envoy.start()

    starting, stopped = asyncio.create_task(start()), asyncio.create_task(stop.first.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return False
    try:
        starting.result()
    except StartFailedError as error:
        raise GatewayError(str(error)) from None
    return True


class _Stop:
    """The first signal begins the end, the second cuts it short."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    async def hurry_or(self, seconds: float) -> None:
        """Wait so long, or until the second signal."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.second.wait()


def run(options: GatewayOptions, configure_logs: Callable[[Settings], None]) -> int:
    """Run the gateway until it is told to stop. Raises GatewayError and SettingsError."""
    with contextlib.ExitStack() as stack:
        directory = options.directory or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="serve-picker-"))
        )
        gateway = Gateway(options, directory)
        configure_logs(gateway.settings)
        asyncio.run(gateway.run())
    return 0


def configuration(options: GatewayOptions) -> str:
    """Envoy's configuration as YAML, for reading. Raises SettingsError."""
    import yaml  # noqa: PLC0415 - only here

    with tempfile.TemporaryDirectory(prefix="serve-picker-") as scratch:
        config = Gateway(options, options.directory or Path(scratch)).config()
    text: str = yaml.safe_dump(config, sort_keys=False)
    return text


def require_free(listen: str, setting: str, instead: str) -> None:
    """Say at once and clearly that an address cannot be listened on. Raises GatewayError."""
    host, port = parse_host_port(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what lingers does not count
        try:
            probe.bind((host, port))
        except OSError as error:
            mend = f"give {instead}"
            if error.errno == errno.EADDRINUSE:
                mend = f"stop what listens there or give {instead}"
            raise GatewayError(f"{setting} {listen}: {error.strerror}; {mend}") from None


def _overrides(options: GatewayOptions, directory: Path) -> dict[str, str]:
    """The picker's settings: what follows from its being behind this Envoy, and what it was given."""
    ours = {
        "bind": "127.0.0.1",
        "secure_serving": "false",
        "eds_file": str(_eds_path(directory)),
        "envoy_admin": str(directory / "envoy-admin.sock"),
    }
    for name in ("grpc_port", "health_port"):
        # Nobody but Envoy asks there, so that two gateways of one machine do not meet.
        if not os.environ.get(variable(name)):
            ours[name] = str(free_port())
    if not os.environ.get(variable("fallbacks")):
        ours["fallbacks"] = DEFAULT_FALLBACKS
    return {name: value for name, value in {**ours, **options.settings}.items() if value}


def _eds_path(directory: Path) -> Path:
    # In a folder of its own: Envoy looks at it anew whenever a file is moved into the folder.
    folder = directory / "eds"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "pool.json"
