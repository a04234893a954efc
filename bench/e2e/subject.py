"""What is measured: the picker, and what stands in its place to compare it with."""

from __future__ import annotations

import re
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from bench.rig.child import Child, scratch_directory
from bench.rig.picker import Picker
from bench.rig.ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

Kind = Literal["picker", "yardstick", "own-echo"]
"""``yardstick``: an echo on ``grpc.aio``; ``own-echo``: the same on the picker's own transport."""
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Subject:
    """A running ext_proc server: its process, and its ``ip:port``."""

    pid: int
    address: str


@asynccontextmanager
async def running(kind: Kind, endpoints: Sequence[str]) -> AsyncIterator[Subject]:
    """Run it with its built-in policy over ``endpoints``; the echoes know the first one only."""
    destination = ["--destination", endpoints[0]]
    if kind == "yardstick":
        arguments = ["bench.transport.yardstick", "--address", f"{LOOPBACK}:0", *destination]
        async with _echo(kind, arguments) as subject:
            yield subject
    elif kind == "own-echo":
        async with _echo(kind, ["bench.e2e.own_echo", *destination]) as subject:
            yield subject
    else:
        env = {"PICKER_ENDPOINTS": ",".join(endpoints), "PICKER_LOG_LEVEL": "warning"}
        async with Picker(env) as picker:
            yield Subject(picker.pid, picker.address)


@asynccontextmanager
async def _echo(name: str, arguments: Sequence[str]) -> AsyncIterator[Subject]:
    async with AsyncExitStack() as stack:
        log_path = scratch_directory(stack, None) / f"{name}.log"

        def listening() -> re.Match[str] | None:
            return re.search(r"^listening on (\S+)\n", child.log_text(), re.MULTILINE)

        async def ready() -> bool:
            return listening() is not None

        child = Child(f"the {name}", [sys.executable, "-m", *arguments], ready=ready, log_path=log_path)
        await stack.enter_async_context(child)
        found = listening()
        yield Subject(child.pid, found[1] if found else "")
