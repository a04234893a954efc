"""The one place that decides: candidates, ladder, profile, and what becomes of each decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from picker.routing.admission import saturated
from picker.routing.breaker import Breaker, verdict
from picker.routing.candidates import Candidates
from picker.routing.decision import Cause, Decision, Refusal
from picker.routing.eligibility import eligible
from picker.routing.ledger import Entry, Ledger
from picker.routing.pressure import BackPressure

if TYPE_CHECKING:
    from random import Random

    from picker.inference.question import Question
    from picker.routing.decision import Answer, Outcome, Ticket, Visibility
    from scorer.contract import Rows
    from scorer.fleet import Fleet, Slot
    from scorer.profile import Profile

NOBODY = Refusal(503, "rejected-no-endpoints", "failed to find endpoint candidates for serving the request")
"""The pool is empty, or nobody of it is in the subset."""
ALL_FILTERED = Refusal(429, "rejected-saturated", "no endpoints available for the given request")
"""The profile's own filters left nobody."""

SHED = Refusal(429, "rejected-saturated", "system saturated, sheddable request dropped")
"""The request may be shed, and the pool has no room."""


START_GRACE = 3.0
"""Seconds after the first question in which an endpoint without a page makes the choice random. Later it
is one that has no pages, and own numbers must do."""


class Router:
    """Answers questions from the fleet, and hears what became of the answers.

    Every method takes ``now`` in seconds of one clock that never goes back. Events of tickets that are
    over, and of endpoints that are gone, are ignored.
    """

    def __init__(
        self,
        fleet: Fleet,
        profile: Profile,
        rng: Random,
        *,
        fallbacks: int = 0,
        start_grace: float = START_GRACE,
    ) -> None:
        self.profile = profile
        """May be replaced at any time; the next decision uses it."""
        self._fleet = fleet
        self._rng = rng
        self._wanted = 1 + fallbacks
        self._start_grace = start_grace
        self._candidates = Candidates(fleet)
        self._ledger = Ledger(fleet)
        self._breaker = Breaker(fleet)
        self._pressure = BackPressure(fleet)
        self._started: float | None = None

    @property
    def in_flight(self) -> int:
        """Requests that were sent and whose end is awaited."""
        return self._ledger.in_flight

    def ask(
        self,
        question: Question,
        visibility: Visibility,
        now: float,
        *,
        replaces: Ticket | None = None,
        simplest: bool = False,
    ) -> Answer:
        """Choose, and count the request as sent to the first endpoint of the answer.

        ``replaces`` withdraws an earlier decision for the same request before choosing; its endpoint wins
        ties. ``simplest`` draws among all candidates, for when the profile failed or its time is over;
        nothing is shed then.
        Whatever a scorer raises passes through; nothing has been counted then, and a decision to be
        replaced stays withdrawn.
        """
        if self._started is None:
            self._started = now
        prefer = -1 if replaces is None else self._withdraw(_entry(replaces), now)
        self.tick(now)
        rows = self._candidates.rows(question.subset)
        if not len(rows):
            return NOBODY
        if simplest:
            chosen = self._rng.sample(rows.tolist(), min(self._wanted, len(rows)))
            return self._send(chosen, question, visibility, now)
        offered = self._breaker.offer(now, status_visible=visibility.status)
        entry = None
        try:
            rows = eligible(self._fleet, rows, question, now)
            if question.priority < 0 and saturated(self._fleet, rows, now):
                return SHED
            chosen = self._choose(rows, question, now, prefer)
            if not chosen:
                return ALL_FILTERED
            decision = self._send(chosen, question, visibility, now)
            entry = _entry(decision.ticket)
        finally:
            self._breaker.settle(offered, entry, now)
        return decision

    def first_token(self, ticket: Ticket, now: float) -> None:
        """The first byte of the answer's body was seen."""
        entry = _entry(ticket)
        self._ledger.first_token(entry, now)
        self._breaker.first_token(entry, now)

    def ended(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        """The request is over, as far as can be seen. Only the first call for a ticket has effect."""
        entry = _entry(ticket)
        if not entry.running:
            return
        served, skipped = self._served(entry, outcome)
        good = verdict(outcome)
        if outcome.cause is Cause.UNSEEN:
            self._ledger.out_of_sight(entry, now, served=served)
        else:
            whole = outcome.cause is not Cause.ABORTED and good is not False and not outcome.back_pressure
            self._ledger.ended(entry, now, served=served, telling=whole)
        for slot in skipped:
            self._breaker.failed(slot, entry, now)
        if good is True:
            self._breaker.succeeded(served, entry, now)
            self._pressure.succeeded(served, entry.started)
        elif good is False:
            self._breaker.failed(served, entry, now)
        elif outcome.back_pressure:
            self._pressure.refused(served, entry.started, outcome.retry_after, now)
        self._breaker.no_verdict(entry)

    def page_read(self, slot: Slot, page_time: float, now: float) -> None:
        """A page of the endpoint was written to the columns; it speaks of ``page_time``."""
        self.tick(now)
        self._ledger.page_read(slot, page_time)
        self._pressure.page_read(slot, page_time)

    def tick(self, now: float) -> None:
        """Let time pass, and take note of what became of the pool.

        No number can go wrong before, since generations tell an endpoint from its row's next tenant.
        """
        self._sync()
        self._ledger.advance(now)

    def _choose(self, rows: Rows, question: Question, now: float, prefer: int) -> list[int]:
        choice = self.profile.run(
            self._fleet,
            rows,
            question,
            now,
            self._rng,
            count=self._wanted,
            prefer=prefer,
            unsure=self._is_unsure(rows, now),
        )
        return list(choice.rows)

    def _is_unsure(self, rows: Rows, now: float) -> bool:
        """Whether the pool is new and there is an endpoint of which nothing is known yet."""
        if self._started is None or now - self._started > self._start_grace:
            return False
        return bool((self._fleet.fetched_at[rows] == -np.inf).any())

    def _send(self, rows: list[int], question: Question, visibility: Visibility, now: float) -> Decision:
        slots = tuple(self._fleet.slot_at(row) for row in rows)
        entry = self._ledger.sent(slots, question.prompt_tokens, visibility, now)
        for sent in self.profile.observers:
            sent(self._fleet, entry.slot.row, question, now)
        headers = (mark(self._fleet, entry.slot.row, question, now) for mark in self.profile.marks)
        return Decision(
            tuple(self._fleet.addresses[row] for row in rows),
            entry,
            tuple(header for header in headers if header is not None),
        )

    def _withdraw(self, entry: Entry, now: float) -> int:
        """Take a decision back; the row to prefer instead, or -1."""
        if not entry.running:
            return -1
        self._ledger.withdraw(entry, now)
        self._breaker.no_verdict(entry)
        return entry.slot.row if self._fleet.holds(entry.slot) else -1

    def _served(self, entry: Entry, outcome: Outcome) -> tuple[Slot, tuple[Slot, ...]]:
        """Who served, and who was skipped for it.

        An address that is not of this pool is a gateway's other spelling, and says nothing.
        """
        if not outcome.served or outcome.served == self._fleet.addresses[entry.slot.row]:
            return entry.slot, ()
        served = self._fleet.slot_of(outcome.served)
        if served is None or served == entry.slot:
            return entry.slot, ()
        if served in entry.slots:
            return served, entry.slots[: entry.slots.index(served)]
        return served, entry.slots

    def _sync(self) -> None:
        self._ledger.sync()
        self._breaker.sync()
        self._pressure.sync()


def _entry(ticket: Ticket) -> Entry:
    if not isinstance(ticket, Entry):
        raise TypeError(f"not a ticket of this router: {ticket!r}")
    return ticket
