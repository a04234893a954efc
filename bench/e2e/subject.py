"""What is measured: the picker, or the yardstick in its place."""

from __future__ import annotations

import re
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.rig.child import Child, scratch_directory
from bench.rig.picker import Picker
from bench.rig.ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

Kind = Literal["picker", "yardstick"]


@dataclass(frozen=True, slots=True)
class Subject:
    """A running ext_proc server: its process, and its ``ip:port``."""

    pid: int
    address: str


@asynccontextmanager
async def running(kind: Kind, endpoints: Sequence[str]) -> AsyncIterator[Subject]:
    """Run it with its built-in policy over ``endpoints``; the yardstick knows the first one only."""
    if kind == "yardstick":
        async with _yardstick(endpoints[0]) as subject:
            yield subject
        return
    async with Picker({"PICKER_ENDPOINTS": ",".join(endpoints), "PICKER_LOG_LEVEL": "warning"}) as picker:
        yield Subject(picker.pid, picker.address)


@asynccontextmanager
async def _yardstick(destination: str) -> AsyncIterator[Subject]:
    arguments = ["--address", f"{LOOPBACK}:0", "--destination", destination]
    async with AsyncExitStack() as stack:
        log_path = scratch_directory(stack, None) / "yardstick.log"

        def listening() -> re.Match[str] | None:
            return re.search(r"^listening on (\S+)\n", child.log_text(), re.MULTILINE)

        async def ready() -> bool:
            return listening() is not None

        child = Child(
            "the yardstick",
            [sys.executable, "-m", "bench.transport.yardstick", *arguments],
            ready=ready,
            log_path=log_path,
        )
        await stack.enter_async_context(child)
        found = listening()
        yield Subject(child.pid, found[1] if found else "")
