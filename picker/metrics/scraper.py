"""The loop that asks every endpoint how busy it is and writes the answers into the columns.

Two kinds of job are due from time to time for an endpoint: its metrics page, and (where its dialect has
probes) a probe of its traffic address. Who works, or gets requests, is asked at its dialect's interval; who
rests ever more seldom, up to a bound. A request that is sent to it ends that within a moment: meanwhile
the picker's own numbers say all there is to know. So they do where the pages of one that works show just the
requests that were sent there from here: its pages are asked for less often, up to a closer bound.

Waking up costs more than a page. So an endpoint's page and probe are asked for together, and before few
endpoints the jobs of all of them are done in some bursts a second. Many are spread evenly, lest a burst keeps
decisions waiting.

Whatever a server does concerns its own row only: its numbers stay as they were and age, it is asked less
often, and the log says so once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from picker.metrics.dialects import DIALECTS, detect
from picker.metrics.fetch import Client, FetchError, Outcome
from picker.metrics.freshness import Freshness
from picker.metrics.reading import fingerprint
from picker.metrics.schedule import Schedule

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from picker.endpoints.endpoint import Endpoint
    from picker.metrics.dialects.dialect import Dialect
    from picker.metrics.http1 import Imprint
    from picker.metrics.reading import ProbeReading, Reading
    from scorer.fleet import Fleet, Slot

log = logging.getLogger(__name__)

AUTO = "auto"
_DEFAULT_PATH = "/metrics"
_PAGE_TYPES = "text/plain;version=0.0.4,*/*;q=0.1"
_OK = 200
_PROBE_LIMIT = 1024 * 1024

_UNKNOWN_INTERVAL = 1.0
"""Least seconds between attempts while the dialect is not known: it may be one to be asked that seldom."""
_MAX_BACKOFF_INTERVALS = 10
_MAX_BACKOFF = 10.0
_MAX_DOUBLINGS = 10
_UNREACHABLE_RETRY = 2.0
"""An endpoint held for unreachable gets no requests, so its return must not be noticed late."""
_JITTER = 0.1
_REST_JITTER = 0.4
"""Of a stretched interval, which is shortened by up to as much. So endpoints spread evenly over it within
a few rounds, however they began; the bound stays one."""

_FEW = 20
"""Endpoints up to which their jobs are gathered in bursts: at most so many pages in one."""
_BURSTS = (1.0, 0.5, 0.25)
"""Seconds between two bursts for jobs that can wait twice as long. Others are done when they are due."""
_PUNCTUAL = 0.1
"""Seconds after a burst in which a job is still taken for one of it."""

_LONGEST_EXPLAINED = 2.0
"""Seconds between two pages that own numbers explain. Others' requests are noticed so late, and the page of a
Ray node is taken to be of about now only if the one before is not much older (``freshness._SHORT_GAP``)."""
_AMPLE_KV = 0.7
"""Share of a KV cache in use up to which some more is no news..."""
_STEADY_KV = 0.05
"""...and how much more is."""

_RECENT = 5.0
"""Seconds after a request was sent in which an endpoint counts as one with traffic."""
_LOOK = 0.25
"""Seconds between two looks for requests sent to endpoints that rest, at the same moments as the bursts."""
_WORTH_COMPRESSING = 128 * 1024
"""Bytes of a page from which on it is asked for compressed. Below, the server spends a millisecond and the
picker as much as on all else to spare a network some packets; a Ray page shrinks from 400 kB to 14."""
_MOST_PAGES = 500.0
"""Pages a second of all endpoints together. A thousand busy ones are asked less often than their
dialects say rather than at the expense of decisions."""
_LOOKS_PER_NEWS = 2
"""Every so many looks see after those, too, that are asked seldom though they work."""

_FAILURES_TO_TELL = 3
_FAILED_CONTACTS = 3
_FAILED_CONTACTS_WITHOUT_PAGE = 2


@dataclass(frozen=True, slots=True)
class ScrapeOptions:
    """``dialect`` a name of :data:`DIALECTS`, or ``auto``: told from each endpoint's page.

    ``interval`` seconds between pages and ``path`` of the page are the dialect's if None. An endpoint
    that rests is asked at least every ``idle_interval`` seconds, unless ``interval`` is longer. The default
    is below the 5 s after which uvicorn, which vLLM and others run on, closes a connection without requests,
    and after which a page counts less (``scorer.scorers.TRUSTED_AGE``).
    ``deadline`` seconds for one fetch as a whole; ``max_page`` bytes, after decompression;
    ``concurrency`` fetches under way at a time.
    """

    dialect: str = AUTO
    interval: float | None = None
    idle_interval: float = 4.0
    path: str | None = None
    deadline: float = 1.0
    max_page: int = 16 * 1024 * 1024
    concurrency: int = 64


@dataclass(slots=True, eq=False)
class _Target:
    """What is known of one watched endpoint. Failures are consecutive ones.

    ``shown``: a fingerprint of what its last page said. ``quiet``: how many pages in a row showed nothing
    new and no work. ``explained``: how many in a row showed nothing but own requests. ``reading`` is that of
    its last page, ``imprint`` what that is known by if it comes again. ``page_due``: when the next one is.
    """

    slot: Slot
    endpoint: Endpoint
    dialect: Dialect | None
    freshness: Freshness = field(default_factory=lambda: Freshness(0.0))
    engine: str = ""
    counter: float = math.nan
    page_bytes: int = 0
    shown: int = 0
    quiet: int = 0
    explained: int = 0
    reading: Reading | None = None
    imprint: Imprint | None = None
    page_due: float = 0.0
    had_page: bool = False
    failures: int = 0
    told: bool = False
    probing: bool = False
    failed_contacts: int = 0
    gone: bool = False

    def restarted(self, reading: Reading) -> bool:
        """Whether another process wrote this page than the last one."""
        if self.engine and reading.engine:
            return self.engine != reading.engine
        return reading.counter < self.counter  # False where either is not said

    def told_as(self, **fields: str) -> dict[str, dict[str, str]]:
        """What a log line about it carries."""
        return {"fields": {"endpoint": self.endpoint.address, **fields}}


class _Job(NamedTuple):
    """``work`` returns after how many seconds from its start it wants to be done again; None is never."""

    target: _Target
    work: Callable[[_Target, Client], Awaitable[float | None]]


def _ignore(_outcome: str, _seconds: float) -> None:
    pass


def _ignore_restart(_slot: Slot) -> None:
    pass


class Scraper:
    """Keeps the scraped columns of a fleet up to date.

    ``on_page(slot, page_time, now)`` is called when a good page is in the columns: they hold what was
    so at ``page_time``, and it arrived ``now``. ``on_restart(slot)`` is called before that where the page
    shows another process than the one before. ``on_scrape(outcome, seconds)`` is called after each attempt
    to get a page. Times are those of ``clock``, seconds. Raises ValueError for a dialect that
    does not exist.
    """

    def __init__(  # noqa: PLR0913 - what it writes to, whom it tells, and what tests replace
        self,
        fleet: Fleet,
        options: ScrapeOptions,
        *,
        on_page: Callable[[Slot, float, float], None],
        on_restart: Callable[[Slot], None] = _ignore_restart,
        on_scrape: Callable[[str, float], None] = _ignore,
        random: random.Random,
        clock: Callable[[], float],
    ) -> None:
        if options.dialect != AUTO and options.dialect not in DIALECTS:
            known = ", ".join([AUTO, *DIALECTS])
            raise ValueError(f"unknown metrics dialect {options.dialect!r}; use one of {known}")
        self._fleet = fleet
        self._options = options
        self._dialect = DIALECTS.get(options.dialect)
        self._on_page = on_page
        self._on_restart = on_restart
        self._on_scrape = on_scrape
        self._random = random
        self._clock = clock
        self._schedule: Schedule[_Job] = Schedule(clock)
        self._targets: dict[Slot, _Target] = {}
        self._resting = np.zeros(fleet.capacity, dtype=np.bool_)
        """Rows of endpoints that are asked less often than their dialect says."""
        self._trusted: set[_Target] = set()
        """Endpoints with traffic whose last page own numbers explain."""
        self._fair_interval = 0.0
        """Seconds between two pages at which those that work share what may be asked in all."""
        self._unattempted: set[_Target] = set()
        self._all_attempted = asyncio.Event()
        self._all_attempted.set()

    def watch(self, slot: Slot, endpoint: Endpoint) -> None:
        """Begin to ask an endpoint, at once. A slot that is watched already is begun anew."""
        self.forget(slot)
        more = self._fleet.capacity - len(self._resting)
        if more > 0:
            self._resting = np.concatenate([self._resting, np.zeros(more, dtype=np.bool_)])
        self._resting[slot.row] = False
        target = _Target(slot, endpoint, self._dialect)
        self._targets[slot] = target
        self._unattempted.add(target)
        self._all_attempted.clear()
        self._schedule.push(self._clock(), _Job(target, self._scrape))
        self._start_probing(target)

    def forget(self, slot: Slot) -> None:
        """Ask no more. Of a fetch that is under way nothing is written."""
        target = self._targets.pop(slot, None)
        if target is not None:
            target.gone = True
            self._trusted.discard(target)
            self._resting[slot.row] = False
            self._note_attempt(target)

    async def first_attempts(self, timeout: float) -> None:  # noqa: ASYNC109 - running out of it is no error
        """Wait until every watched endpoint was asked once, however that ended, or for ``timeout`` s."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._all_attempted.wait()

    async def run(self) -> None:
        """Ask, until cancelled."""
        async with Client() as client, asyncio.TaskGroup() as group:
            group.create_task(self._keep_looking(client))

            async def do(job: _Job) -> None:
                await self._do(job, client)

            await self._schedule.run(do, self._options.concurrency)

    async def _keep_looking(self, client: Client) -> None:
        for number in itertools.count():
            await asyncio.sleep(_LOOK - self._clock() % _LOOK)
            self._look(self._clock())
            if self._trusted and number % _LOOKS_PER_NEWS == 0:
                self._look_at_trusted(client, self._clock())

    def _look(self, now: float) -> None:
        """See how many work, and end the rest of the endpoints that got a request.

        Those that get one at the same time are asked over an interval, not all at once.
        """
        resting = self._resting
        rest = int(np.count_nonzero(resting))
        self._fair_interval = (len(self._targets) - rest) / _MOST_PAGES
        if not rest:
            return
        for row in (resting & (self._fleet.sent_at[: len(resting)] > now - _RECENT)).nonzero()[0].tolist():
            resting[row] = False
            target = self._targets.get(self._fleet.slot_at(row))
            if target is None:
                continue
            target.quiet = 0
            soon = self._aligned(now, self._random.random() * self._interval(target.dialect))
            self._hasten_page(target, soon)
            self._schedule.hasten(soon, _Job(target, self._probe))

    def _look_at_trusted(self, client: Client, now: float) -> None:
        """Ask those at once that are asked seldom though they work, and of which there is news.

        A server that ends closes the kept connection, so that is noticed no later than by asking often; who
        fails or refuses requests is asked as often as ever from now on.
        """
        fleet = self._fleet
        closed = set(client.closed({target.endpoint.metrics_address for target in self._trusted}))
        for target in list(self._trusted):
            row = target.slot.row
            if (
                target.endpoint.metrics_address in closed
                or fleet.breaker_open[row]
                or fleet.full_until[row] > now
            ):
                self._trust_no_more(target)

    def _trust_no_more(self, target: _Target) -> None:
        """Something is not as its last pages had it: ask for the next one now."""
        if target.explained:
            target.explained = 0
            self._trusted.discard(target)
            self._hasten_page(target, self._clock())

    def _hasten_page(self, target: _Target, due: float) -> None:
        target.page_due = min(target.page_due, due)
        self._schedule.hasten(due, _Job(target, self._scrape))

    async def _do(self, job: _Job, client: Client) -> None:
        target = job.target
        if not self._is_watched(target):
            return
        started = self._clock()
        delay: float | None = _MAX_BACKOFF
        try:
            delay = await job.work(target, client)
        except Exception:  # noqa: BLE001 - our own error with one endpoint must not end the asking of the others
            self._tell_failure(target, "internal error", with_traceback=True)
        if delay is not None and self._is_watched(target):
            self._do_again(job, max(self._aligned(started, delay), self._clock()))

    def _do_again(self, job: _Job, due: float) -> None:
        """Schedule it, and page and probe of an endpoint with each other, unless its probes fail."""
        target = job.target
        if job.work == self._scrape:
            target.page_due = due
            if target.probing and not target.failed_contacts:
                self._schedule.move(self._with_page(target, due), _Job(target, self._probe))
        elif not target.failed_contacts:
            due = self._with_page(target, due)
        self._schedule.push(due, job)

    def _with_page(self, target: _Target, due: float) -> float:
        """When a probe that is due at ``due`` is done together with the endpoint's next page.

        Of who rests, at the same time; of who works, so many intervals before it.
        """
        wait = target.page_due - self._clock()
        if wait <= 0.0:  # it is being asked for: when it is there, the probe is moved
            return due
        if target.quiet:
            return target.page_due
        interval = self._interval(target.dialect)
        return target.page_due - max(0, math.floor(wait / interval - 0.5)) * interval

    def _is_watched(self, target: _Target) -> bool:
        if not target.gone and not self._fleet.holds(target.slot):
            self.forget(target.slot)
        return not target.gone

    def _note_attempt(self, target: _Target) -> None:
        self._unattempted.discard(target)
        if not self._unattempted:
            self._all_attempted.set()

    # Pages

    async def _scrape(self, target: _Target, client: Client) -> float:
        started = self._clock()
        outcome: Outcome | None = None
        try:
            dialect, reading = await self._get_page(target, client)
            outcome = Outcome.OK
        except FetchError as error:
            outcome = error.outcome
            return self._page_failed(target, error)
        except Exception:
            outcome = Outcome.INTERNAL
            raise
        finally:
            if outcome is not None:  # a fetch that is cancelled at the end is no attempt
                self._on_scrape(outcome.value, self._clock() - started)
            self._note_attempt(target)
        return self._page_arrived(target, dialect, reading, started)

    async def _get_page(self, target: _Target, client: Client) -> tuple[Dialect, Reading]:
        """Ask for the page and read it, unless it is the last one once more."""
        path = self._options.path or (target.dialect.path if target.dialect else _DEFAULT_PATH)
        answer = await client.get(
            target.endpoint.metrics_address,
            path,
            accept=_PAGE_TYPES,
            deadline=self._options.deadline,
            limit=self._options.max_page,
            compressed=target.page_bytes > _WORTH_COMPRESSING,
            known=target.imprint,
        )
        dialect = target.dialect
        if answer.repeated and dialect is not None and target.reading is not None:
            return dialect, target.reading
        target.page_bytes, target.imprint = len(answer.body), None
        if answer.status != _OK:
            raise FetchError(Outcome.STATUS, f"status {answer.status}")
        if dialect is None or not dialect.matches(answer.body):
            dialect = None if self._dialect else detect(answer.body)
        if dialect is None:
            known = self._dialect.name if self._dialect else " or ".join(DIALECTS)
            raise FetchError(Outcome.FORMAT, f"not a page of {known}")
        reading = dialect.read(answer.body)
        target.imprint = answer.imprint
        return dialect, reading

    def _page_arrived(self, target: _Target, dialect: Dialect, reading: Reading, sent: float) -> float:
        if not self._is_watched(target):
            return 0.0
        now = self._clock()
        if target.dialect is not dialect or not target.had_page:
            log.debug("metrics page found", extra=target.told_as(dialect=dialect.name))
            target.dialect = dialect
            target.freshness = Freshness(dialect.max_lag)
            self._start_probing(target)
        if target.told:
            log.info("metrics page is there again", extra=target.told_as())
        if target.restarted(reading):
            log.info("server was restarted", extra=target.told_as())
            self._on_restart(target.slot)
        first = not target.had_page
        target.had_page, target.told, target.failures = True, False, 0
        target.engine, target.counter = reading.engine or target.engine, reading.counter
        if self._page_is_contact(target):
            self._contact_made(target)
        self._write(target.slot, reading, now)
        self._on_page(target.slot, target.freshness.page_time(reading.marker, sent), now)
        self._note_activity(target, reading, now)
        target.reading = reading
        if first:
            # Endpoints watched at the same moment are all asked at once at first; the second time spreads
            # them over the interval.
            return self._interval(dialect) * (1.0 + self._random.random())
        return self._pace(target)

    def _note_activity(self, target: _Target, reading: Reading, now: float) -> None:
        """See whether the endpoint works. Own requests say so at once, others' by the page."""
        numbers = (reading.load, reading.queue, reading.running, reading.local_running)
        shown = fingerprint((*numbers, reading.kv_usage))
        works = any(number > 0.0 for number in numbers) or shown != target.shown
        target.shown = shown
        has_traffic = self._has_traffic(target, now)
        target.quiet = 0 if works or has_traffic else target.quiet + 1
        self._resting[target.slot.row] = target.quiet > 0
        if has_traffic and self._is_explained(target, reading, now):
            target.explained += 1
            self._trusted.add(target)
        else:
            target.explained = 0
            self._trusted.discard(target)

    def _is_explained(self, target: _Target, reading: Reading, now: float) -> bool:
        """Whether own numbers tell what the page does: nobody else sends there, and nothing is short or new.

        What cannot be seen from here (an end, or that there is room again) is asked for as often as ever.
        """
        fleet, row, last = self._fleet, target.slot.row, target.reading
        if last is None or fleet.untracked[row] or fleet.breaker_open[row] or fleet.full_until[row] > now:
            return False
        return (
            reading.load <= fleet.own_at_page[row]  # False where it is not said
            and not reading.queue > 0.0
            and not (reading.kv_usage > _AMPLE_KV or abs(reading.kv_usage - last.kv_usage) > _STEADY_KV)
            and reading.models == last.models
            and not reading.waiting_models
        )

    def _has_traffic(self, target: _Target, now: float) -> bool:
        fleet, row = self._fleet, target.slot.row
        return bool(fleet.own[row] > 0.0 or fleet.sent_at[row] > now - _RECENT)

    def _write(self, slot: Slot, reading: Reading, now: float) -> None:
        fleet, row = self._fleet, slot.row
        fleet.scraped_load[row] = reading.load
        fleet.queue[row] = reading.queue
        fleet.running[row] = reading.running
        fleet.kv_usage[row] = reading.kv_usage
        fleet.local_running[row] = reading.local_running
        fleet.proxy[row] = reading.proxy
        fleet.set_models(slot, reading.models, reading.waiting_models, reading.max_models)
        fleet.kv_blocks[row], fleet.block_size[row] = reading.kv_blocks, reading.block_size
        fleet.fetched_at[row] = now

    def _page_failed(self, target: _Target, error: FetchError) -> float:
        target.failures += 1
        target.quiet = target.explained = 0
        self._trusted.discard(target)
        self._resting[target.slot.row] = False
        if target.failures >= _FAILURES_TO_TELL:
            self._tell_failure(target, str(error))
        if self._page_is_contact(target) and self._is_watched(target):
            # A page that is slow or broken is no sign against the requests that the same port serves.
            if error.outcome is Outcome.UNREACHABLE:
                self._contact_failed(target)
            else:
                self._contact_made(target)
        interval = self._interval(target.dialect)
        if self._page_is_contact(target) and target.failed_contacts:
            # Three in a row are soon there: the page may have been asked for seldom until now.
            longest = interval if self._fleet.reachable[target.slot.row] else _UNREACHABLE_RETRY
        else:
            longest = min(interval * _MAX_BACKOFF_INTERVALS, _MAX_BACKOFF)
        delay = interval * 2.0 ** min(target.failures, _MAX_DOUBLINGS)
        return max(interval, min(delay, longest)) * (1.0 + self._random.random() * _JITTER)

    def _pace(self, target: _Target) -> float:
        """Seconds until the endpoint is asked again, if nothing is wrong with it."""
        interval = self._interval(target.dialect)
        if target.explained:
            longest = min(_LONGEST_EXPLAINED, self._options.idle_interval)
            interval = max(interval, min(interval * 2.0 ** min(target.explained, _MAX_DOUBLINGS), longest))
        if not target.quiet:
            return interval * (1.0 + self._random.random() * _JITTER)
        stretched = min(interval * 2.0 ** min(target.quiet, _MAX_DOUBLINGS), self._options.idle_interval)
        return max(interval, stretched * (1.0 - self._random.random() * _REST_JITTER))

    def _interval(self, dialect: Dialect | None) -> float:
        """Seconds between two pages of an endpoint that works."""
        if dialect is None:
            return max(self._options.interval or 0.0, _UNKNOWN_INTERVAL)
        return max(self._options.interval or dialect.interval, dialect.min_interval, self._fair_interval)

    def _aligned(self, started: float, delay: float) -> float:
        """When a job is due that began at ``started`` and wants to be done again after ``delay`` seconds.

        Before few endpoints it is done in a burst: the last one that is not later than it wants.
        """
        due = started + delay
        if len(self._targets) <= _FEW:
            for apart in _BURSTS:
                if delay >= 2.0 * apart:
                    return math.floor((due + _PUNCTUAL) / apart) * apart
        return due

    def _tell_failure(self, target: _Target, reason: str, *, with_traceback: bool = False) -> None:
        if not target.told:
            target.told = True
            log.warning(
                "no metrics page; the endpoint is still used, by our own numbers",
                extra=target.told_as(metrics=target.endpoint.metrics_address, error=reason),
                exc_info=with_traceback,
            )

    # The traffic address

    def _start_probing(self, target: _Target) -> None:
        if target.dialect is not None and target.dialect.probes and not target.probing:
            target.probing = True
            self._schedule.push(self._clock(), _Job(target, self._probe))

    async def _probe(self, target: _Target, client: Client) -> float | None:
        dialect = target.dialect
        if dialect is None or not dialect.probes:
            target.probing = False
            return None
        try:
            for path in dialect.probes:
                answer = await client.get(
                    target.endpoint.address,
                    path,
                    accept="*/*",
                    deadline=self._options.deadline,
                    limit=_PROBE_LIMIT,
                )
                if not self._is_watched(target):
                    return None
                self._contact_made(target)
                if self._note_probe(target, dialect.read_probe(path, answer.status, answer.body)):
                    break
        except FetchError as error:
            log.debug("probe failed", extra=target.told_as(error=str(error)))
            if self._is_watched(target):
                self._contact_failed(target)
                interval = self._interval(dialect)
                if not self._fleet.reachable[target.slot.row]:
                    interval = max(interval, _UNREACHABLE_RETRY)
                return interval * (1.0 + self._random.random() * _JITTER)
        return self._pace(target)

    def _note_probe(self, target: _Target, reading: ProbeReading) -> bool:
        """Write what a probe says; returns whether it leaves nothing to ask."""
        fleet, slot = self._fleet, target.slot
        if reading.routes is not None:
            fleet.set_routes(slot, reading.routes)
        if reading.draining is None:
            return False
        if bool(fleet.draining[slot.row]) != reading.draining:
            fleet.draining[slot.row] = reading.draining
            log.info(
                "endpoint is being drained" if reading.draining else "endpoint is drained no more",
                extra=target.told_as(),
            )
        return True

    def _page_is_contact(self, target: _Target) -> bool:
        """Whether getting the page tells that the traffic address answers, for want of a probe."""
        return not target.probing and target.endpoint.metrics_address == target.endpoint.address

    def _contact_made(self, target: _Target) -> None:
        target.failed_contacts = 0
        if not self._fleet.reachable[target.slot.row]:
            self._fleet.reachable[target.slot.row] = True
            log.info("endpoint answers again", extra=target.told_as())

    def _contact_failed(self, target: _Target) -> None:
        """Three failures in a row make an endpoint unreachable, two if its page went away, too."""
        target.failed_contacts += 1
        self._trust_no_more(target)
        page_lost = target.probing and target.had_page and target.failures > 0
        enough = _FAILED_CONTACTS_WITHOUT_PAGE if page_lost else _FAILED_CONTACTS
        if target.failed_contacts >= enough and self._fleet.reachable[target.slot.row]:
            self._fleet.reachable[target.slot.row] = False
            log.warning("endpoint cannot be reached", extra=target.told_as())
