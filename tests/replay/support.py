"""Jobs that note when they were told what."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from picker.replay.agenda import Agenda
from picker.replay.engine import Engine, EngineModel
from picker.replay.workload import Request, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

STEP = 0.006
TOKEN = 1e-4
SEQUENCE = 60e-6


@dataclass(eq=False)
class Noted:
    agenda: Agenda
    prompt: int
    output: int = 1
    blocks: tuple[int, ...] = ()
    first_at: float | None = None
    end_at: float | None = None
    cached: int | None = None
    refusals: list[tuple[int, bool, float]] = field(default_factory=list)

    def first_token(self) -> None:
        assert self.first_at is None
        self.first_at = self.agenda.now

    def ended(self, cached: int) -> None:
        assert self.end_at is None
        self.end_at, self.cached = self.agenda.now, cached

    def refused(self, status: int, *, back_pressure: bool = False) -> None:
        self.refusals.append((status, back_pressure, self.agenda.now))


class Rig:
    """One engine."""

    def __init__(self, model: EngineModel = EngineModel(), *, slowness: float = 1.0, block: int = 16) -> None:  # noqa: B008 - frozen
        self.agenda = Agenda()
        self.engine = Engine(self.agenda, model, block_tokens=block, slowness=slowness)
        self.jobs: list[Noted] = []

    def at(self, time: float, prompt: int, output: int = 1, blocks: Sequence[int] = ()) -> Noted:
        job = Noted(self.agenda, prompt, output, tuple(blocks))
        self.jobs.append(job)
        self.agenda.at(time, partial(self._submit, job))
        return job

    def _submit(self, job: Noted) -> None:
        assert self.engine.submit(job)

    def run(self) -> None:
        self.agenda.run(while_=lambda: True)


def steady(requests: int, *, gap: float = 0.1, prompt: int = 200, output: int = 5) -> Trace:
    """A trace of equal requests in equal distances, without common prefixes."""
    rows = tuple(Request(number * gap, prompt, output) for number in range(requests))
    return Trace("steady", 16, 1, rows)
