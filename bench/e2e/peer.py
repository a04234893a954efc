"""Another ext_proc picker, started by a command, in the picker's place."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.e2e.subject import Subject
from bench.rig.child import Child, scratch_directory
from bench.rig.ports import LOOPBACK, free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

WORDS = ("grpc_port", "health_port", "metrics_port", "endpoints", "endpoint", "endpoints_file")
READY_SECONDS = 60.0


class CommandError(ValueError):
    """The command cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A command with places in it, such as ``{grpc_port}``.

    ``{grpc_port}``, ``{health_port}``, ``{metrics_port}``: free ports to listen on. ``{endpoints}``: all of
    them as ``ip:port,ip:port``; ``{endpoint}``: the first; ``{endpoints_file}``: a YAML file of all
    (``endpoints: [{name, address, port}]``). The command has to become the picker (``exec`` in scripts):
    the CPU and memory of its own process are measured. ``port``: where it listens if it cannot be told.
    """

    name: str
    command: str
    port: int | None = None
    settle: float = 2.0
    """Seconds from its port's opening until it has seen its endpoints."""

    def __post_init__(self) -> None:
        self.arguments(dict.fromkeys(WORDS, "0"))
        if self.port is None and "{grpc_port}" not in self.command:
            raise CommandError("the command has no {grpc_port}: put it in, or say by --port where it listens")

    def arguments(self, values: dict[str, str]) -> list[str]:
        """The words of the command with everything in its place."""
        try:
            words = [word.format_map(values) for word in shlex.split(self.command)]
        except (KeyError, IndexError, ValueError) as error:
            known = ", ".join(f"{{{word}}}" for word in WORDS)
            raise CommandError(f"the command cannot be read ({error}); it may have {known}") from None
        if not words:
            raise CommandError("the command is empty")
        return words

    @asynccontextmanager
    async def running(self, endpoints: Sequence[str]) -> AsyncIterator[Subject]:
        """Start it, and wait until its port is open."""
        async with AsyncExitStack() as stack:
            directory = scratch_directory(stack, None)
            file = directory / "endpoints.yaml"
            file.write_text(_listed(endpoints))
            grpc, health, metrics = free_ports(3)
            port = grpc if self.port is None else self.port
            values = {
                "grpc_port": str(port),
                "health_port": str(health),
                "metrics_port": str(metrics),
                "endpoints": ",".join(endpoints),
                "endpoint": endpoints[0],
                "endpoints_file": str(file),
            }

            async def ready() -> bool:
                return await _is_open(port)

            child = Child(
                self.name,
                self.arguments(values),
                ready=ready,
                log_path=directory / "peer.log",
                ready_timeout=READY_SECONDS,
            )
            await stack.enter_async_context(child)
            await asyncio.sleep(self.settle)
            yield Subject(child.pid, f"{LOOPBACK}:{port}")


def _listed(endpoints: Sequence[str]) -> str:
    lines = ["endpoints:"]
    for number, endpoint in enumerate(endpoints):
        address, _, port = endpoint.rpartition(":")
        lines.append(f"- {{name: server-{number}, address: {address}, port: {port}}}")
    return "\n".join([*lines, ""])


async def _is_open(port: int) -> bool:
    with suppress(OSError):
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.close()
        return True
    return False
