"""What was sent and not yet seen to end, per endpoint: requests, and uncached prompt tokens.

Writes the fleet's columns ``own``, ``own_tokens``, ``untracked``, ``sent``, ``sent_at`` and
``own_at_page``, and its ``mean_tokens``. Every entry is released exactly once, however its stream ends, and
never into a row that meanwhile has another tenant.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from picker.routing.history import History

if TYPE_CHECKING:
    from picker.routing.clusters import Turn
    from picker.routing.decision import Visibility
    from scorer.fleet import Fleet, Slot
    from scorer.prefix import Added
    from scorer.prefix_hash import Blocks

DEFAULT_SERVICE_TIME = 1.0
"""Seconds a request whose end is out of sight is assumed to take while no end was ever seen."""
_SERVICE_TIMES = (0.05, 60.0)
"""Bounds of the learned one. The upper also bounds how many untracked entries can pile up."""
_SERVICE_TIME_GAIN = 0.1

DEFAULT_PREFILL_RATE = 8_000.0
"""Prompt tokens per second an engine of ordinary size works off. Too fast costs little (tokens are
forgotten early), two times too slow costs several times the waiting time, so guesses lean to fast."""
_PREFILL_RATES = (500.0, 200_000.0)
_PREFILL_GAIN_UP = 0.1
_PREFILL_GAIN_DOWN = 0.03
_MEAN_TOKENS_GAIN = 0.02
_TELLING_TOKENS = 256
"""With fewer tokens ahead, the time to the first token is mostly overhead and tells no rate."""
_MAX_DRAIN = 60.0
"""Seconds of assumed prefill an endpoint can have before it; a bound on what a wrong rate can do."""


_FAST_SIDE = 1.25
"""How many times the rate that ends show is assumed, since too slow costs more than too fast."""


class _Ends:
    """How the time to the end of an answer grows with the tokens that were ahead, over all endpoints.

    A line through (tokens, seconds), least squares, older ends counting less: its slope is the time for a
    token, and what answers take beside it (their own length) is where the line begins.
    """

    _MEMORY = 300
    _LEAST = 50
    _LEAST_SPREAD = 256.0
    """Standard deviation of the tokens; with less the slope is chance."""

    def __init__(self) -> None:
        self._count = 0
        self._tokens = self._seconds = self._variance = self._covariance = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self._count = min(self._count + 1, self._MEMORY)
        gain = 1.0 / self._count
        off_tokens, off_seconds = tokens - self._tokens, seconds - self._seconds
        self._tokens += gain * off_tokens
        self._seconds += gain * off_seconds
        self._variance = (1.0 - gain) * (self._variance + gain * off_tokens * off_tokens)
        self._covariance = (1.0 - gain) * (self._covariance + gain * off_tokens * off_seconds)

    def rate(self) -> float | None:
        """Tokens per second, or None while nothing is clear."""
        if self._count < self._LEAST or self._variance < self._LEAST_SPREAD**2 or self._covariance <= 0.0:
            return None
        return self._variance / self._covariance


class Stage(Enum):
    """Where a request is in its life."""

    RUNNING = 1
    UNTRACKED = 2
    OVER = 3


class Entry:
    """One request that was sent: routing's ticket. ``slots`` are its endpoints in order of preference."""

    __slots__ = (
        "added",
        "ahead",
        "blocks",
        "drain_from",
        "drain_until",
        "matched",
        "number",
        "prompt_tokens",
        "slot",
        "slots",
        "stage",
        "started",
        "tokens",
        "turn",
        "visibility",
        "waiting",
    )

    def __init__(
        self, slots: tuple[Slot, ...], tokens: float, visibility: Visibility, started: float
    ) -> None:
        self.slots = slots
        self.slot = slots[0]
        """Where it is counted."""
        self.tokens = tokens
        """Of its prompt, those that are not cached there."""
        self.turn: Turn | None = None
        self.number = -1
        """Of what explains it."""
        """Of its cluster, to be kept by a decision that replaces this one."""
        self.visibility = visibility
        self.started = started
        self.stage = Stage.RUNNING
        self.waiting = False
        """Its tokens are counted until the first one of the answer is seen."""
        self.ahead = 0.0
        """Tokens at the endpoint when it was sent, its own among them."""
        self.drain_from = self.drain_until = -np.inf
        """Otherwise: between which times its tokens are assumed to be worked off."""
        self.blocks: Blocks | None = None
        """Its prompt's, where prompts are compared; with what the index was told, and had foreseen."""
        self.added: Added | None = None
        self.matched = 0.0
        self.prompt_tokens = tokens

    @property
    def running(self) -> bool:
        """Whether its end is awaited."""
        return self.stage is Stage.RUNNING


class Ledger:
    """All entries of a pool. Times never go back."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._history = History(fleet)
        self._version = -1
        self._generations = np.full(fleet.capacity, -1, dtype=np.int64)
        self._waiting = np.zeros(fleet.capacity)
        """Tokens whose first answer will be seen."""
        self._lines: list[OrderedDict[Entry, None]] = [OrderedDict() for _ in range(fleet.capacity)]
        """Whose these are, in the order they were sent. Servers take prompts up in that order."""
        self._head_tokens = np.zeros(fleet.capacity)
        self._head_at = np.zeros(fleet.capacity)
        """Of the first in line: its tokens, and since when they are assumed to be worked off."""
        self._drained_at = np.full(fleet.capacity, -np.inf)
        """When the other tokens will be worked off, if the rate is right."""
        self._rates = np.full(fleet.capacity, DEFAULT_PREFILL_RATE)
        self._waits = 0
        """Requests in all lines."""
        self._draining = False
        self._ends = _Ends()
        self._mean_tokens: float | None = None
        self._service_times: dict[Slot, float] = {}
        self._service_time: float | None = None
        """Of the whole pool, for endpoints at which no end was seen."""
        self._untracked: dict[Slot, set[Entry]] = {}
        self._expiries: list[tuple[float, int, Entry]] = []
        self._order = count()
        self.in_flight = 0
        """Requests that were sent and whose end is awaited."""

    def sync(self) -> None:
        """Forget what belonged to endpoints that are gone, if the fleet changed since the last call."""
        fleet = self._fleet
        if self._version == fleet.version:
            return
        self._version = fleet.version
        more = fleet.capacity - len(self._generations)
        if more:
            self._generations = np.concatenate([self._generations, np.full(more, -1)])
            self._waiting = np.concatenate([self._waiting, np.zeros(more)])
            self._lines += [OrderedDict() for _ in range(more)]
            self._head_tokens = np.concatenate([self._head_tokens, np.zeros(more)])
            self._head_at = np.concatenate([self._head_at, np.zeros(more)])
            self._drained_at = np.concatenate([self._drained_at, np.full(more, -np.inf)])
            self._rates = np.concatenate([self._rates, np.full(more, DEFAULT_PREFILL_RATE)])
        present = np.array(
            [fleet.slot_at(row).generation for row in range(len(fleet.addresses))], dtype=np.int64
        )
        changed = (present != self._generations[: len(present)]).nonzero()[0]
        self._generations[changed] = present[changed]
        self._waiting[changed] = 0.0
        self._head_tokens[changed] = 0.0
        for row in changed.tolist():
            self._waits -= len(self._lines[row])
            self._lines[row].clear()
        self._drained_at[changed] = -np.inf
        others = fleet.alive.copy()
        others[changed] = False
        # A new endpoint most likely is as fast as the others are.
        self._rates[changed] = np.median(self._rates[others]) if others.any() else DEFAULT_PREFILL_RATE
        self._history.reset(changed)
        self._service_times = {s: t for s, t in self._service_times.items() if fleet.holds(s)}
        for slot in [s for s in self._untracked if not fleet.holds(s)]:
            for entry in self._untracked.pop(slot):
                entry.stage = Stage.OVER

    def advance(self, now: float) -> None:
        """Bring the columns up to ``now``: untracked entries whose time is over, tokens worked off.

        Of those whose first answer will be seen, the first in line is worked on, and only it: what it has
        done so far is guessed by the rate, and its answer tells when it is through. Beside the count of
        requests these tokens are what decides, and a long prompt is known to be nearly done before it is.
        Of several pickers each has its part of the line, and so of the rate.
        """
        self.sync()
        while self._expiries and self._expiries[0][0] <= now:
            self._forget(heapq.heappop(self._expiries)[2])
        own_tokens = self._fleet.own_tokens
        if self._waits:
            done = now - self._head_at
            done *= self._rates
            done *= 1.0 / self._fleet.replicas
            np.minimum(done, self._head_tokens, out=done)
            np.subtract(self._waiting, done, out=own_tokens)
        if self._draining:
            left = np.maximum(self._drained_at - now, 0.0)
            self._draining = bool(left.any())
            left *= self._rates
            if self._waits:
                own_tokens += left
            else:
                own_tokens[:] = left

    def sent(self, slots: tuple[Slot, ...], tokens: float, visibility: Visibility, now: float) -> Entry:
        """Count a request at the first of ``slots``, all of which are held; ``tokens`` are uncached ones."""
        self.sync()
        entry = Entry(slots, tokens, visibility, now)
        row = entry.slot.row
        self._history.before_change(now)
        self._fleet.own[row] += 1.0
        self._history.grew(row)
        self._fleet.sent_at[row] = now
        self._fleet.sent[row] += 1.0
        self.in_flight += 1
        self._learn_mean_tokens(tokens)
        if tokens > 0.0:
            if visibility.first_token:
                self._line_up(entry, row, now)
            else:
                self._drain(entry, now)
            self._show_tokens(row, now)
            entry.ahead = float(self._fleet.own_tokens[row])
        return entry

    def first_token(self, entry: Entry, now: float) -> bool:
        """The endpoint is through with the prompt. Whether that is news, and it is still there."""
        if entry.stage is not Stage.RUNNING or not entry.waiting:
            return False
        self.sync()
        if not self._fleet.holds(entry.slot):
            return False
        self._release_tokens(entry, now)
        self._learn_rate(entry, now - entry.started, exact=True)
        return True

    def withdraw(self, entry: Entry, now: float) -> None:
        """As if it had not been sent. Ignored unless it runs."""
        if entry.stage is Stage.RUNNING:
            self._end(entry, now)
            if self._fleet.holds(entry.slot):
                self._fleet.sent[entry.slot.row] -= 1.0

    def ended(self, entry: Entry, now: float, *, served: Slot, telling: bool) -> None:
        """The end was seen. ``telling``: it was a whole answer, so its duration says how long they take."""
        if entry.stage is not Stage.RUNNING:
            return
        self._end(entry, now)
        if telling and self._fleet.holds(served):
            self._learn_service_time(served, now - entry.started)
            if served == entry.slot and not entry.visibility.first_token:
                self._learn_rate(entry, now - entry.started, exact=False)

    def out_of_sight(self, entry: Entry, now: float, *, served: Slot) -> None:
        """It goes on at ``served``, and nothing more will be heard of it."""
        if entry.stage is not Stage.RUNNING:
            return
        tokens_left = entry.waiting or entry.drain_until > now
        self._end(entry, now)
        if not self._fleet.holds(served):
            return
        entry.slot = served
        entry.stage = Stage.UNTRACKED
        self._fleet.untracked[served.row] += 1.0
        self._untracked.setdefault(served, set()).add(entry)
        lifetime = self._service_times.get(served, self._service_time or DEFAULT_SERVICE_TIME)
        heapq.heappush(self._expiries, (entry.started + lifetime, next(self._order), entry))
        if tokens_left:
            self._drain(entry, now)
            self._show_tokens(served.row, now)

    def page_read(self, slot: Slot, page_time: float, now: float) -> None:
        """A page was read that speaks of ``page_time``; untracked requests sent before are in it."""
        self.sync()
        if not self._fleet.holds(slot):
            return
        self._fleet.own_at_page[slot.row] = self._history.most(slot.row, page_time, now)
        for entry in [entry for entry in self._untracked.get(slot, ()) if entry.started < page_time]:
            self._forget(entry)

    def _end(self, entry: Entry, now: float) -> None:
        self.sync()
        entry.stage = Stage.OVER
        self.in_flight -= 1
        if self._fleet.holds(entry.slot):
            self._history.before_change(now)
            self._fleet.own[entry.slot.row] -= 1.0
            self._release_tokens(entry, now)

    def _forget(self, entry: Entry) -> None:
        if entry.stage is not Stage.UNTRACKED:
            return
        entry.stage = Stage.OVER
        entries = self._untracked[entry.slot]
        entries.remove(entry)
        if not entries:
            del self._untracked[entry.slot]
        self._fleet.untracked[entry.slot.row] -= 1.0

    def _drain(self, entry: Entry, now: float) -> None:
        """Line the entry's tokens up behind those that are assumed to be worked on."""
        row = entry.slot.row
        entry.drain_from = max(now, float(self._drained_at[row]))
        until = entry.drain_from + entry.tokens / float(self._rates[row])
        entry.drain_until = max(entry.drain_from, min(until, now + _MAX_DRAIN))
        self._drained_at[row] = entry.drain_until
        self._draining = True

    def _release_tokens(self, entry: Entry, now: float) -> None:
        """Take back what is left of the entry's tokens; its slot is held.

        Of tokens that drain, it is the part of its own time that is still to come. The entries behind
        keep theirs, so ends out of order release early rather than late.
        """
        row = entry.slot.row
        if entry.waiting:
            self._leave_line(entry, row, now)
        elif entry.drain_until > now:
            self._drained_at[row] -= entry.drain_until - max(now, entry.drain_from)
            entry.drain_until = -np.inf
        else:
            return
        self._show_tokens(row, now)

    def _line_up(self, entry: Entry, row: int, now: float) -> None:
        entry.waiting = True
        self._waits += 1
        self._waiting[row] += entry.tokens
        line = self._lines[row]
        line[entry] = None
        if len(line) == 1:
            self._head_tokens[row] = entry.tokens
            self._head_at[row] = now

    def _leave_line(self, entry: Entry, row: int, now: float) -> None:
        entry.waiting = False
        self._waits -= 1
        line = self._lines[row]
        was_head = next(iter(line)) is entry
        del line[entry]
        if not line:
            self._waiting[row] = self._head_tokens[row] = 0.0
            return
        if was_head:
            self._head_tokens[row] = next(iter(line)).tokens
            self._head_at[row] = now
        # Rounding must not leave less than the first one's.
        self._waiting[row] = max(self._waiting[row] - entry.tokens, self._head_tokens[row])

    def _show_tokens(self, row: int, now: float) -> None:
        rate = float(self._rates[row])
        tokens = float(self._waiting[row])
        tokens -= min(
            float(self._head_tokens[row]), (now - float(self._head_at[row])) * rate / self._fleet.replicas
        )
        if self._draining:
            tokens += max(0.0, float(self._drained_at[row]) - now) * rate
        self._fleet.own_tokens[row] = tokens

    def _learn_mean_tokens(self, tokens: float) -> None:
        mean = tokens if self._mean_tokens is None else self._mean_tokens
        self._fleet.mean_tokens = self._mean_tokens = mean + _MEAN_TOKENS_GAIN * (tokens - mean)

    def _learn_service_time(self, slot: Slot, took: float) -> None:
        low, high = _SERVICE_TIMES
        took = min(max(took, low), high)
        before = self._service_times.get(slot, took)
        self._service_times[slot] = before + _SERVICE_TIME_GAIN * (took - before)
        pool = took if self._service_time is None else self._service_time
        self._service_time = pool + _SERVICE_TIME_GAIN * (took - pool)

    def _learn_rate(self, entry: Entry, took: float, *, exact: bool) -> None:
        """From the time it took to work off what was there when the entry was sent.

        That time has other things in it (overhead, others' decoding; after an end all of the own
        decoding), so a sample is a lower bound: it raises the rate readily, lowers it slowly. A mere end (not
        ``exact``) only raises it, unless ends altogether show that it is too high: how they grow with the
        tokens ahead tells prefill from decoding.
        """
        if took <= 0.0:
            return
        if not exact and entry.tokens:
            self._ends.add(entry.ahead, took)
        if entry.ahead < _TELLING_TOKENS:
            return
        row = entry.slot.row
        low, high = _PREFILL_RATES
        rate = float(self._rates[row])
        sample = min(max(entry.ahead / took, low), high)
        if sample > rate:
            self._rates[row] = rate + _PREFILL_GAIN_UP * (sample - rate)
        elif exact:
            self._rates[row] = rate + _PREFILL_GAIN_DOWN * (sample - rate)
        else:
            shown = self._ends.rate()
            if shown is not None and _FAST_SIDE * shown < rate:
                self._rates[row] = max(low, rate + _PREFILL_GAIN_DOWN * (_FAST_SIDE * shown - rate))
