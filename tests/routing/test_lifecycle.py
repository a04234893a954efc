"""Any order of events leaves true numbers, and none when all is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from picker.inference.question import Question
from picker.routing.decision import Cause, Decision, Outcome, Refusal, Ticket, Visibility
from tests.routing.support import Pool

if TYPE_CHECKING:
    from scorer.fleet import Slot

VISIBILITIES = st.builds(Visibility, st.booleans(), st.booleans(), st.booleans())
NUMBERS = st.integers(1, 6)
OUTCOMES = st.builds(
    Outcome,
    cause=st.sampled_from(Cause),
    status=st.sampled_from([0, 200, 404, 408, 500, 503]),
    served=st.sampled_from(["", "10.0.0.1:80", "10.0.0.2:80", "10.7.7.7:80"]),
    back_pressure=st.sampled_from([False, False, True]),
    retry_after=st.sampled_from([None, 0.5, 100.0]),
)


class Requests(RuleBasedStateMachine):
    """Six endpoints that come and go, and the requests to them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(4, fallbacks=1)
        self.running: list[tuple[Ticket, Slot]] = []
        self.over: list[Ticket] = []

    @rule(
        visibility=VISIBILITIES,
        prompt=st.sampled_from([0, 1, 3000, 90_000]),
        replace=st.booleans(),
        simplest=st.booleans(),
    )
    def ask(self, visibility: Visibility, prompt: int, replace: bool, simplest: bool) -> None:
        replaces = None
        if replace and self.running:
            replaces = self.running.pop(0)[0]
            self.over.append(replaces)
        question = Question(path="/", prompt=b"x" * prompt)
        answer = self.pool.router.ask(
            question, visibility, self.pool.now, replaces=replaces, simplest=simplest
        )
        if isinstance(answer, Decision):
            slot = self.pool.fleet.slot_of(answer.endpoints[0])
            assert slot is not None
            self.running.append((answer.ticket, slot))
        else:
            assert isinstance(answer, Refusal)
            assert len(self.pool.fleet) == 0

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 100))
    def first_token(self, pick: int) -> None:
        self.pool.router.first_token(self.running[pick % len(self.running)][0], self.pool.now)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 100), outcome=OUTCOMES)
    def end(self, pick: int, outcome: Outcome) -> None:
        ticket = self.running.pop(pick % len(self.running))[0]
        self.pool.router.ended(ticket, outcome, self.pool.now)
        self.over.append(ticket)

    @precondition(lambda self: self.over)
    @rule(pick=st.integers(0, 100), outcome=OUTCOMES)
    def end_again(self, pick: int, outcome: Outcome) -> None:
        ticket = self.over[pick % len(self.over)]
        self.pool.router.first_token(ticket, self.pool.now)
        self.pool.router.ended(ticket, outcome, self.pool.now)

    @rule(number=NUMBERS, told=st.booleans())
    def leave(self, number: int, told: bool) -> None:
        slot = self.pool.fleet.slot_of(f"10.0.0.{number}:80")
        if slot is not None:
            self.pool.fleet.remove(slot)
            if told:
                self.pool.router.tick(self.pool.now)

    @rule(number=NUMBERS)
    def join(self, number: int) -> None:
        if self.pool.fleet.slot_of(f"10.0.0.{number}:80") is None:
            self.pool.add(f"10.0.0.{number}:80")

    @rule(number=NUMBERS, age=st.floats(0, 15))
    def read_page(self, number: int, age: float) -> None:
        slot = self.pool.fleet.slot_of(f"10.0.0.{number}:80")
        if slot is not None:
            self.pool.fleet.scraped_load[slot.row] = 3.0
            self.pool.router.page_read(slot, self.pool.now - age, self.pool.now)

    @rule(seconds=st.sampled_from([0.001, 0.1, 1.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.pool.now += seconds
        self.pool.router.tick(self.pool.now)

    @invariant()
    def own_is_what_runs_at_the_present_tenants(self) -> None:
        fleet = self.pool.fleet
        expected = np.zeros(fleet.capacity)
        for _, slot in self.running:
            if fleet.holds(slot):
                expected[slot.row] += 1
        assert fleet.own.tolist() == expected.tolist()
        assert self.pool.router.in_flight == len(self.running)

    @invariant()
    def nothing_is_negative_and_no_more_than_half_are_out(self) -> None:
        fleet = self.pool.fleet
        self.pool.router.tick(self.pool.now)
        assert (fleet.untracked >= 0).all()
        assert (fleet.own_tokens >= 0).all()
        assert (fleet.own_at_page >= 0).all()
        assert 2 * fleet.breaker_open.sum() <= len(fleet)
        assert not fleet.breaker_open[~fleet.alive].any()

    def teardown(self) -> None:
        for ticket, _ in self.running:
            self.pool.router.ended(ticket, Outcome(Cause.CLOSED, status=200), self.pool.now)
        self.pool.now += 1000.0
        self.pool.router.tick(self.pool.now)
        fleet = self.pool.fleet
        for column in (fleet.own, fleet.own_tokens, fleet.untracked):
            assert not column.any()
        assert self.pool.router.in_flight == 0


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
