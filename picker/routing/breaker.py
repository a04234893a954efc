"""Takes an endpoint out whose answers fail while the others' do not, and lets it back in.

A breaker that merely counts failures takes out everybody when a shared backend fails or one client keeps
sending a request that always fails. This one asks how likely the endpoint's failures would be if it were
like the rest of the pool. Writes the fleet's column ``breaker_open``.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

from picker.routing.decision import Cause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from picker.routing.decision import Outcome
    from picker.routing.ledger import Entry
    from scorer.fleet import Fleet, Slot

LEAST_FAILURES = 3
"""In a row, before anything is concluded."""
CHANCE = 1e-5
"""An endpoint is out when its failures in a row would be rarer than this for one like the rest. With a
rest that answers well this is 3 to 5 failures; with every third request poisoned it would be about 10."""
MEMORY = 30.0
"""Seconds after which an answer counts 1/e as much for what the rest of the pool was like, and after
which a row of failures without a further one is forgotten."""
_MEMORY_WEIGHT = 5.0
"""What the rest was like before the row of failures began counts as up to so many answers. Few, so that
what it does *since* then decides: in an outage of all, all begin to fail at once."""
COMMON = 1 / 3
"""Where so many answers of the others fail, a failed trial is no reason to stay out: if all fail by now,
holding one out only puts its load on the others."""

FIRST_HOLD = 1.0
LONGEST_HOLD = 30.0
"""Seconds an endpoint is out: the first time, and at most, doubling with each failed trial."""
UNREACHABLE_WAIT = 60.0
"""Seconds a trial waits for the endpoint's probes to succeed, at most."""
TRIAL_TIMEOUT = 60.0
"""Seconds after which a trial that has come to nothing makes room for the next."""
ANSWERING = 1.0
"""Seconds. An answer that still goes on so long after its first byte is no error page."""

_INTERNAL_ERROR = 500
_NO_VERDICT = (0, 408, 499)
"""Not seen; the client's time was up (Ray says 408); the client went away. They say nothing either way."""


def verdict(outcome: Outcome) -> bool | None:
    """Whether the endpoint did its work (True) or failed (False); None where the outcome says neither.

    4xx is the client's fault and so proves a working endpoint. Back-pressure and aborts prove nothing. A
    status proves something also where the end of the answer is out of sight.
    """
    if outcome.back_pressure:
        return None
    if outcome.status >= _INTERNAL_ERROR:
        return False
    if outcome.status in _NO_VERDICT or outcome.cause is Cause.ABORTED:
        return None
    return True


class _Tally:
    """Good and bad answers, older ones counting less."""

    __slots__ = ("at", "bad", "good")

    def __init__(self) -> None:
        self.good = self.bad = self.at = 0.0

    def add(self, now: float, *, good: bool) -> None:
        self.fade(now)
        if good:
            self.good += 1.0
        else:
            self.bad += 1.0

    def fade(self, now: float) -> None:
        factor = exp((self.at - now) / MEMORY)
        self.good *= factor
        self.bad *= factor
        self.at = now

    def bad_share(self) -> float:
        """Share of bad answers, 0 where there are none at all."""
        return self.bad / (self.good + self.bad) if self.bad > 0.0 else 0.0

    def take_away(self, part: _Tally) -> None:
        """Take ``part``, which is up to date and was counted in here, out of this and empty it."""
        self.good = max(0.0, self.good - part.good)
        self.bad = max(0.0, self.bad - part.bad)
        part.good = part.bad = 0.0


class _State:
    """One endpoint's breaker."""

    __slots__ = (
        "answering_since",
        "closed_at",
        "hold",
        "last_failure",
        "opened_at",
        "rest_before",
        "rest_seen",
        "run",
        "slot",
        "tally",
        "trial",
        "trial_at",
        "until",
    )

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.tally = _Tally()
        self.run = 0
        """Failures in a row."""
        self.last_failure = 0.0
        self.rest_before = (0.0, 0.0)
        """Good and bad answers of the rest as remembered when the row began."""
        self.rest_seen = (0, 0)
        """The pool's counters then."""
        self.hold = FIRST_HOLD
        self.opened_at = self.closed_at = float("-inf")
        self.until: float | None = None
        """When a trial is due; None while closed."""
        self.trial: Entry | None = None
        self.trial_at = 0.0
        self.answering_since: float | None = None


class Breaker:
    """The breakers of all endpoints of a pool. Endpoints that never answered have no state."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._version = fleet.version
        self._states: dict[Slot, _State] = {}
        self._open: dict[Slot, _State] = {}
        self._pool = _Tally()
        self._good = self._bad = 0
        """All answers ever, for differences between two times."""

    def sync(self) -> None:
        """Forget endpoints that are gone; if too many of those left are out, the longest out come back."""
        if self._version == self._fleet.version:
            return
        self._version = self._fleet.version
        self._states = {slot: state for slot, state in self._states.items() if self._fleet.holds(slot)}
        self._open = {slot: state for slot, state in self._open.items() if self._fleet.holds(slot)}
        for state in sorted(self._open.values(), key=lambda state: state.opened_at):
            if 2 * len(self._open) <= len(self._fleet):
                break
            self._close(state, state.opened_at)

    def offer(self, now: float, *, status_visible: bool) -> Sequence[Slot]:
        """Show endpoints whose trial is due as closed, for one decision; :meth:`settle` ends that.

        A request whose status will not be seen cannot tell how a trial went. It is offered one only when
        none that can has come for long.
        """
        if not self._open:
            return ()
        for state in list(self._open.values()):
            if state.answering_since is not None and state.answering_since + ANSWERING <= now:
                self._close(state, now)
        due = [slot for slot, state in self._open.items() if self._is_due(state, now, status_visible)]
        for slot in due:
            self._fleet.breaker_open[slot.row] = False
        return due

    def settle(self, offered: Sequence[Slot], entry: Entry | None, now: float) -> None:
        """The decision was made; if an offered endpoint got the request, that is its trial."""
        for slot in offered:
            self._fleet.breaker_open[slot.row] = True
            if entry is not None and entry.slots[0] == slot:
                state = self._open[slot]
                state.trial, state.trial_at, state.answering_since = entry, now, None

    def first_token(self, entry: Entry, now: float) -> None:
        """The first byte of the answer's body was seen."""
        state = self._open.get(entry.slots[0])
        if state is not None and state.trial is entry and state.answering_since is None:
            state.answering_since = now

    def no_verdict(self, entry: Entry) -> None:
        """The request said nothing about its endpoint; if it was a trial, the next may go."""
        state = self._open.get(entry.slots[0])
        if state is not None and state.trial is entry:
            state.trial = state.answering_since = None

    def succeeded(self, slot: Slot, entry: Entry, now: float) -> None:
        """``slot`` answered the request as it should. One sent since it was taken out brings it back."""
        state = self._state(slot)
        if state is None:
            return
        if state.until is not None:
            if entry.started < state.opened_at:
                return
            self._close(state, now)
        self._good += 1
        self._pool.add(now, good=True)
        state.tally.add(now, good=True)
        state.run = 0

    def failed(self, slot: Slot, entry: Entry, now: float) -> None:
        """``slot`` failed the request. While it is out only the trial's failure has effect."""
        state = self._state(slot)
        if state is None:
            return
        if state.until is None:
            self._count_failure(state, now)
            self._bad += 1
            self._pool.add(now, good=False)
            state.tally.add(now, good=False)
            if self._stands_out(state) and 2 * (len(self._open) + 1) <= len(self._fleet):
                again = now - state.closed_at <= LONGEST_HOLD
                self._take_out(state, now, 2 * state.hold if again else FIRST_HOLD)
                self._pool.take_away(state.tally)
        elif state.trial is entry:
            if self._pool.bad_share() < COMMON:
                self._take_out(state, now, 2 * state.hold)
            else:
                self._close(state, now)

    def _state(self, slot: Slot) -> _State | None:
        self.sync()
        state = self._states.get(slot)
        if state is None and self._fleet.holds(slot):
            state = self._states[slot] = _State(slot)
        return state

    def _is_due(self, state: _State, now: float, status_visible: bool) -> bool:
        if state.until is None or now < state.until:
            return False
        if state.trial is not None and now < state.trial_at + TRIAL_TIMEOUT:
            return False
        can_tell = status_visible and bool(self._fleet.reachable[state.slot.row])
        return can_tell or now >= state.until + UNREACHABLE_WAIT

    def _count_failure(self, state: _State, now: float) -> None:
        if state.run == 0 or now - state.last_failure > MEMORY:
            state.run = 0
            self._pool.fade(now)
            state.tally.fade(now)
            state.rest_before = (self._pool.good - state.tally.good, self._pool.bad - state.tally.bad)
            state.rest_seen = (self._good, self._bad)
        state.run += 1
        state.last_failure = now

    def _stands_out(self, state: _State) -> bool:
        """Whether its row of failures is too unlikely for one that is like the rest.

        How often the rest fails is estimated from its answers, and where that does not suffice from how
        many of its endpoints failed last: two broken ones that swallow all requests would otherwise be
        each other's proof that everybody fails.
        """
        if state.run < LEAST_FAILURES:
            return False
        return (
            self._bad_answers_of_rest(state) ** state.run <= CHANCE
            or self._bad_endpoints_of_rest() ** state.run <= CHANCE
        )

    def _bad_answers_of_rest(self, state: _State) -> float:
        before_good, before_bad = state.rest_before
        before = before_good + before_bad
        remembered = min(before, _MEMORY_WEIGHT)
        bad_before = remembered * before_bad / before if before > 0.0 else 0.0
        good_since = self._good - state.rest_seen[0]
        bad_since = self._bad - state.rest_seen[1] - state.run
        return (bad_before + bad_since + 0.5) / (remembered + good_since + bad_since + 1.0)

    def _bad_endpoints_of_rest(self) -> float:
        """Share of endpoints that failed last.

        The asking one and one more are counted in, since in a small pool it happens that none of the
        others failed last though every second request fails.
        """
        rotation = [state.run > 0 for state in self._states.values() if state.until is None]
        return min(1.0, (sum(rotation) + 1) / len(rotation))

    def _take_out(self, state: _State, now: float, hold: float) -> None:
        state.hold = min(hold, LONGEST_HOLD)
        state.opened_at = now
        state.until = now + state.hold
        state.trial = state.answering_since = None
        self._open[state.slot] = state
        self._fleet.breaker_open[state.slot.row] = True

    def _close(self, state: _State, now: float) -> None:
        state.until = None
        state.trial = state.answering_since = None
        state.run = 0
        state.closed_at = now
        del self._open[state.slot]
        self._fleet.breaker_open[state.slot.row] = False
