"""What is sent: how much, how often, and how the answer comes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from bench.rig.load import Request, closed_loop, open_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.rig.load import Result, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of load.

    ``size``: bytes of a request's body. ``rate``: requests a second, evenly spaced (open loop); 0 means
    a closed loop of ``clients``. ``chunks``: pieces of a streamed answer, ``interval`` seconds apart; 0
    means one JSON answer.
    """

    name: str
    size: int = 200
    rate: float = 0.0
    clients: int = 0
    chunks: int = 0
    interval: float = 0.005

    def __post_init__(self) -> None:
        if (self.rate > 0) == (self.clients > 0):
            raise ValueError("give a rate (open loop) or a number of clients (closed loop), one of them")
        if self.size < (least := len(self._body(""))):
            raise ValueError(f"size: a request of this kind has {least} bytes at least")

    def describe(self) -> str:
        """Say it in words."""
        how = f"{self.rate:g} requests/s" if self.rate else f"closed loop of {self.clients}"
        answers = "JSON answers"
        if self.chunks:
            answers = f"answers of {self.chunks} chunks {self.interval * 1000:g} ms apart"
        return f"{self.size} B prompts, {how}, {answers}"

    def bodies(self, seed: int) -> Callable[[int], bytes]:
        """Give what makes the body of the n-th request: of the exact size, no two with the same prompt."""
        rng = random.Random(seed)
        words = " ".join(f"{rng.getrandbits(24):06x}" for _ in range(1 + self.size // 7))
        room = self.size - len(self._body(""))
        return lambda number: self._body(f"{number} {words}"[:room])

    def _body(self, prompt: str) -> bytes:
        fields: dict[str, object] = {"model": "simulated"}
        if self.chunks:
            fields |= {"stream": True, "chunks": self.chunks, "interval": self.interval}
        fields["messages"] = [{"role": "user", "content": prompt}]
        return orjson.dumps(fields)

    async def drive(self, target: Target, *, duration: float, seed: int) -> list[Result]:
        """Send this load for ``duration`` seconds."""
        body = self.bodies(seed)
        if self.clients:
            return await closed_loop(
                target, lambda number: Request(body(number)), clients=self.clients, duration=duration
            )
        count = max(1, round(self.rate * duration))
        requests = [Request(body(number), at=number / self.rate) for number in range(count)]
        return await open_loop(target, requests)


CASES = (
    Case(name="small", size=200, rate=200),
    Case(name="small-closed", size=200, clients=8),
    Case(name="220kB", size=220_000, rate=20),
    Case(name="400kB", size=400_000, rate=10),
    Case(name="streamed", size=200, rate=4, chunks=1000),
)
"""The loads at which other pickers were measured, so that figures stay comparable."""
