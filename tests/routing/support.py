"""A router over a small pool, driven by an explicit time."""

from __future__ import annotations

from random import Random

import numpy as np

from picker.inference.question import Question
from picker.routing.decision import Cause, Decision, Outcome, Ticket, Visibility
from picker.routing.router import Router
from scorer.fleet import Fleet, Slot
from scorer.profile import built_in_profile

SEES_ALL = Visibility(status=True, first_token=True, end=True)
SEES_STATUS = Visibility(status=True, first_token=False, end=True)
SEES_NOTHING = Visibility(status=False, first_token=False, end=False)

OK = Outcome(Cause.COMPLETE, status=200)
BROKEN = Outcome(Cause.COMPLETE, status=500)
FULL = Outcome(Cause.COMPLETE, status=503, back_pressure=True)
UNSEEN = Outcome(Cause.UNSEEN)


class Pool:
    """Endpoints a, b, c … as 10.0.0.1:80, 10.0.0.2:80 and so on, whose pages are in."""

    def __init__(self, size: int, *, fallbacks: int = 0, seed: int = 1) -> None:
        self.fleet = Fleet()
        for number in range(size):
            self.add(f"10.0.0.{number + 1}:80")
        self.router = Router(self.fleet, built_in_profile(), Random(seed), fallbacks=fallbacks)
        self.now = 100.0

    def add(self, address: str) -> Slot:
        slot = self.fleet.add(address)
        self.fleet.fetched_at[slot.row] = 100.0
        return slot

    def slot(self, number: int) -> Slot:
        slot = self.fleet.slot_of(f"10.0.0.{number}:80")
        assert slot is not None
        return slot

    def decide(
        self,
        question: Question | None = None,
        visibility: Visibility = SEES_ALL,
        *,
        replaces: Ticket | None = None,
        simplest: bool = False,
    ) -> Decision:
        question = question or Question(path="/")
        answer = self.router.ask(question, visibility, self.now, replaces=replaces, simplest=simplest)
        assert isinstance(answer, Decision)
        return answer

    def send_to(self, number: int, visibility: Visibility = SEES_ALL, prompt: bytes = b"") -> Ticket:
        """One request to endpoint ``number``, by a subset of one."""
        subset = (f"10.0.0.{number}:80",)
        return self.decide(Question(path="/", prompt=prompt, subset=subset), visibility).ticket

    def answer(self, number: int, outcome: Outcome, *, after: float = 0.01) -> None:
        """One request to endpoint ``number`` that ends ``after`` seconds with ``outcome``."""
        ticket = self.send_to(number)
        self.now += after
        self.router.ended(ticket, outcome, self.now)

    def open_breakers(self) -> list[int]:
        return [int(row) + 1 for row in np.flatnonzero(self.fleet.breaker_open)]

    def first_choices(self, count: int = 40) -> set[str]:
        """Where the next request may go; nothing is left behind."""
        chosen = set()
        for _ in range(count):
            decision = self.decide(visibility=SEES_NOTHING)
            chosen.add(decision.endpoints[0])
            self.router.ended(decision.ticket, Outcome(Cause.ABORTED), self.now)
        return chosen
