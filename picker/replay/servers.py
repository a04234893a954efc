"""What the simulated requests are sent to: endpoints, their faults, and their metrics pages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Protocol

from picker.replay.engine import Engine, EngineModel, Job, Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from picker.replay.agenda import Agenda

FAST_FAILURE = 0.001
"""Seconds after which an endpoint that fails at once has answered."""
UNAVAILABLE = 503
TOO_LONG = 400
"""A model server's answer to what does not fit its context."""


class Call(Job, Protocol):
    """A request on its way, as an endpoint sees it."""

    def refused(self, status: int, *, back_pressure: bool = False) -> None:
        """It got no answer but this status."""


class Servers(Protocol):
    """Endpoints by number."""

    proxy: bool
    """Whether they are proxies before the servers, not servers themselves."""

    def __len__(self) -> int:
        """How many endpoints."""

    def send(self, endpoint: int, call: Call) -> None:
        """Give it a request. It calls back, never before this returns."""

    def page(self, endpoint: int) -> Page:
        """What its metrics page says now."""

    @property
    def preemptions(self) -> int:
        """Times a sequence lost its place."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one endpoint.

    ``slowness``: how many times longer it takes for everything. From ``fails_from`` until ``fails_until``
    (seconds) it answers 503 at once.
    """

    slowness: float = 1.0
    fails_from: float = inf
    fails_until: float = inf

    def fails(self, now: float) -> bool:
        """Whether it answers 503 now."""
        return self.fails_from <= now < self.fails_until


SOUND = Fault()


class Engines:
    """Model servers that are endpoints themselves. ``faults``: of the first endpoints."""

    proxy = False

    def __init__(
        self, agenda: Agenda, model: EngineModel, number: int, *, block_tokens: int, faults: Sequence[Fault]
    ) -> None:
        self._agenda = agenda
        self._faults = [*faults, *[SOUND] * (number - len(faults))]
        self._engines = [
            Engine(agenda, model, block_tokens=block_tokens, slowness=fault.slowness)
            for fault in self._faults
        ]

    def __len__(self) -> int:
        """How many endpoints."""
        return len(self._engines)

    @property
    def preemptions(self) -> int:
        """Of all engines."""
        return sum(engine.preemptions for engine in self._engines)

    def send(self, endpoint: int, call: Call) -> None:
        """See :class:`Servers`."""
        now = self._agenda.now
        if self._faults[endpoint].fails(now):
            self._agenda.at(now + FAST_FAILURE, partial(call.refused, UNAVAILABLE))
        elif not self._engines[endpoint].submit(call):
            self._agenda.at(now + FAST_FAILURE, partial(call.refused, TOO_LONG))

    def page(self, endpoint: int) -> Page:
        """See :class:`Servers`."""
        return self._engines[endpoint].page()
