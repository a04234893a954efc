"""The one place that decides: candidates, ladder, profile, and what becomes of each decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from picker.routing.admission import saturated
from picker.routing.breaker import Breaker, verdict
from picker.routing.candidates import Candidates
from picker.routing.clusters import ClusterDraw
from picker.routing.decision import Cause, Decision, Refusal
from picker.routing.eligibility import eligible
from picker.routing.explained import Asked, Explained, Recent
from picker.routing.ledger import Entry, Ledger
from picker.routing.prefixes import Prefixes
from picker.routing.pressure import BackPressure
from picker.routing.speed import Speeds
from scorer.draws import Draws
from scorer.saturation import Utilization

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from picker.inference.question import Question
    from picker.routing.clusters import Turn
    from picker.routing.decision import Answer, Outcome, Ticket, Visibility
    from picker.routing.prefixes import Hits
    from scorer.contract import Rows
    from scorer.fleet import Fleet, Slot
    from scorer.prefix import PrefixIndex
    from scorer.prefix_hash import Blocks
    from scorer.profile import Dropped, Profile
    from scorer.saturation import Saturation

NOBODY = Refusal(503, "rejected-no-endpoints", "failed to find endpoint candidates for serving the request")
"""The pool is empty, or nobody of it is in the subset."""
ALL_FILTERED = Refusal(429, "rejected-saturated", "no endpoints available for the given request")
"""The profile's own filters left nobody."""

CLUSTER_GONE = Refusal(503, "rejected-no-endpoints", "the drawn cluster has no endpoint for the request")
"""Nobody of the cluster whose turn it is can be had, and requests must not spill over to others."""

SHED = Refusal(429, "rejected-saturated", "system saturated, sheddable request dropped")
"""The request may be shed, and the pool has no room."""


START_GRACE = 3.0
"""Seconds after the first question in which an endpoint without a page makes the choice random. Later it
is one that has no pages, and own numbers must do."""


class Router:
    """Answers questions from the fleet, and hears what became of the answers.

    Every method takes ``now`` in seconds of one clock that never goes back. Events of tickets that are
    over, and of endpoints that are gone, are ignored.

    What a profile draws has to come from ``rng`` too: :meth:`explain` puts it back to where it was.
    ``index`` is the prefix index (None: prompts are not compared), ``replicas`` the number of pickers that
    send to these endpoints. ``blocks_of`` gives a question's blocks where they do not come from its prompt.
    """

    def __init__(  # noqa: PLR0913 - what it decides from, and settings by keyword
        self,
        fleet: Fleet,
        profile: Profile,
        rng: Random,
        *,
        fallbacks: int = 0,
        index: PrefixIndex | None = None,
        replicas: int = 1,
        clusters: ClusterDraw | None = None,
        blocks_of: Callable[[Question], Blocks | None] | None = None,
        start_grace: float = START_GRACE,
    ) -> None:
        self.profile = profile
        """May be replaced at any time; the next decision uses it."""
        self.saturation: Saturation = Utilization()
        """How full endpoints are, for requests that may be shed. May be replaced at any time."""
        self.wanted = 1 + fallbacks
        """Endpoints in an answer, where there are as many. May be changed at any time."""
        self.recent = Recent()
        """The last decisions, explained."""
        self._fleet = fleet
        fleet.replicas = replicas
        self._rng = rng
        self._draws = Draws(rng)
        self._start_grace = start_grace
        self._candidates = Candidates(fleet)
        self._clusters = clusters or ClusterDraw(fleet)
        self._ledger = Ledger(fleet)
        self._breaker = Breaker(fleet)
        self._pressure = BackPressure(fleet)
        self._blocks_of = blocks_of
        self._prefixes = Prefixes(fleet, index, blocks_of)
        self._speeds = Speeds(fleet)
        self._version = -1
        self._started: float | None = None

    def compare_by(self, index: PrefixIndex) -> None:
        """Use another, empty index. Only before the first question: what is under way knows the old one."""
        self._prefixes = Prefixes(self._fleet, index, self._blocks_of)

    @property
    def in_flight(self) -> int:
        """Requests that were sent and whose end is awaited."""
        return self._ledger.in_flight

    @property
    def expected_cached_tokens(self) -> int:
        """Of all answers that told their cached tokens: how many were expected."""
        return self._prefixes.expected_tokens

    @property
    def told_cached_tokens(self) -> int:
        """Of the same answers: how many they told."""
        return self._prefixes.told_tokens

    @property
    def prefix_hits(self) -> Hits:
        """How much of the prompts the chosen endpoints were believed to hold."""
        return self._prefixes.hits

    @property
    def indexed_blocks(self) -> int:
        """Pairs of a block of a prompt and an endpoint that is believed to hold it."""
        return self._prefixes.pairs

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
        explained = self._explained(question, now, simplest=simplest)
        offered = () if simplest else self._breaker.offer(now, status_visible=visibility.status)
        entry = None
        try:
            kept = None if replaces is None else _entry(replaces).turn
            rows, blocks = self._decide(question, now, prefer, explained, kept)
            if explained.turn is not None:
                self._clusters.took(explained.turn)
            if explained.refusal is None:
                decision = self._send(rows, question, visibility, now, blocks)
                entry = _entry(decision.ticket)
                entry.turn = explained.turn
                explained.endpoints, explained.matched_tokens = decision.endpoints, entry.matched
        finally:
            if offered:
                self._breaker.settle(offered, entry, now)
        self.recent.add(explained)
        if entry is not None:
            entry.number = explained.number
        return decision if explained.refusal is None else explained.refusal

    def explain(self, question: Question, now: float) -> Explained:
        """What would be answered now, and why; nothing is sent, counted or changed.

        Endpoints that the breaker would offer a trial count as out, and numbers are those of the last
        event or tick.
        """
        fleet = self._fleet
        matched, key, state = fleet.matched_tokens.copy(), fleet.prefix_key, self._rng.getstate()
        explained = self._explained(question, now, simplest=False)
        try:
            rows, _ = self._decide(question, now, -1, explained)
            if explained.refusal is None:
                explained.endpoints = tuple(fleet.addresses[row] for row in rows)
                explained.matched_tokens = float(fleet.matched_tokens[rows[0]])
        finally:
            fleet.matched_tokens[:] = matched
            fleet.prefix_key = key
            self._rng.setstate(state)
        return explained

    def _explained(self, question: Question, now: float, *, simplest: bool) -> Explained:
        return Explained(now, Asked.of(question), addresses=self._fleet.addresses, simplest=simplest)

    def _decide(
        self, question: Question, now: float, prefer: int, explained: Explained, kept: Turn | None = None
    ) -> tuple[tuple[int, ...], Blocks | None]:
        """The chosen rows in order and the prompt's blocks; or none, with the refusal in ``explained``."""
        fleet = self._fleet
        rows = self._candidates.rows(question.subset)
        if not len(rows):
            explained.refusal = NOBODY
            return (), None
        if explained.simplest:
            drawn = self._clusters.draw(rows, rows, kept=kept)
            if len(drawn.rows):
                rows, explained.turn = drawn
            return tuple(self._rng.sample(rows.tolist(), min(self.wanted, len(rows)))), None
        ladder: list[Dropped] = []
        eligible_rows = eligible(fleet, rows, question, now, ladder)
        explained.ladder = tuple(ladder)
        blocks = self._prefixes.look_up(question) if self.profile.uses_prefix else None
        held = self._holders(eligible_rows) if self._clusters.sticky and blocks is not None else None
        rows, explained.turn = self._clusters.draw(rows, eligible_rows, kept=kept, held=held)
        if not len(rows):
            explained.refusal = CLUSTER_GONE
            return (), None
        if question.priority < 0 and saturated(fleet, rows, now, self.saturation):
            explained.refusal = SHED
            return (), None
        explained.unsure = self._is_unsure(rows, now)
        self._draws.drawn.clear()
        choice = explained.choice = self.profile.run(
            fleet,
            rows,
            question,
            now,
            self._draws,
            count=self.wanted,
            prefer=prefer,
            unsure=explained.unsure,
        )
        explained.draws = tuple(self._draws.drawn)
        if not choice.rows:
            explained.refusal = ALL_FILTERED
        return choice.rows, blocks

    def first_token(self, ticket: Ticket, now: float) -> None:
        """The first byte of the answer's body was seen."""
        entry = _entry(ticket)
        if self._ledger.first_token(entry, now):
            self._speeds.first_token(entry.slot, entry.ahead, now - entry.started, now)
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
            if whole and not entry.visibility.first_token:
                self._speeds.ended(served, now - entry.started, now)
        if good is False or outcome.back_pressure:
            self._prefixes.take_back(entry)
        else:
            self._prefixes.served(entry, served, outcome.usage)
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
        self._ledger.page_read(slot, page_time, now)
        self._pressure.page_read(slot, page_time)
        self._prefixes.page_read(slot)

    def restarted(self, slot: Slot) -> None:
        """Another process serves at the endpoint than before: its caches are empty."""
        self._prefixes.restarted(slot)

    def tick(self, now: float) -> None:
        """Let time pass, and take note of what became of the pool.

        No number can go wrong before, since generations tell an endpoint from its row's next tenant.
        """
        if self._version != self._fleet.version:
            self._version = self._fleet.version
            for part in (self._ledger, self._breaker, self._pressure, self._prefixes, self._speeds):
                part.sync()
        self._ledger.advance(now)
        self._speeds.compare(now)

    def _holders(self, rows: Rows) -> Rows:
        """Those of the rows that hold some of the prompt, who holds most first."""
        matched = self._fleet.matched_tokens[rows]
        order = np.argsort(-matched, kind="stable")
        return rows[order[matched[order] > 0.0]]

    def _is_unsure(self, rows: Rows, now: float) -> bool:
        """Whether the pool is new and there is an endpoint of which nothing is known yet."""
        if self._started is None or now - self._started > self._start_grace:
            return False
        return bool((self._fleet.fetched_at[rows] == -np.inf).any())

    def _send(
        self,
        rows: tuple[int, ...],
        question: Question,
        visibility: Visibility,
        now: float,
        blocks: Blocks | None,
    ) -> Decision:
        fleet, first, tokens = self._fleet, rows[0], question.prompt_tokens
        matched = 0.0 if blocks is None else float(fleet.matched_tokens[first])
        slots = tuple([fleet.slot_at(row) for row in rows])
        entry = self._ledger.sent(slots, tokens - matched, visibility, now)
        if blocks is not None:
            entry.prompt_tokens = float(tokens)
            self._prefixes.sent(entry, blocks, matched)
        profile = self.profile
        for sent in profile.observers:
            sent(fleet, first, question, now)
        headers: tuple[tuple[str, str], ...] = ()
        for mark in profile.marks:
            header = mark(fleet, first, question, now)
            if header is not None:
                headers += (header,)
        return Decision(tuple([fleet.addresses[row] for row in rows]), entry, headers)

    def _withdraw(self, entry: Entry, now: float) -> int:
        """Take a decision back; the row to prefer instead, or -1."""
        if not entry.running:
            return -1
        self._ledger.withdraw(entry, now)
        explained = self.recent.numbered(entry.number)
        if explained is not None:
            explained.replaced = True
        self._prefixes.take_back(entry)
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


def _entry(ticket: Ticket) -> Entry:
    if not isinstance(ticket, Entry):
        raise TypeError(f"not a ticket of this router: {ticket!r}")
    return ticket
