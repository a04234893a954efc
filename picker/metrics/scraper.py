"""The loop that asks every endpoint how busy it is and writes the answers into the columns.

Two kinds of job are due from time to time for an endpoint: its metrics page, and (where its dialect has
probes) a probe of its traffic address.

Whatever a server does concerns its own row only: its numbers stay as they were and age, it is asked less
often, and the log says so once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from picker.metrics.dialects import DIALECTS, detect
from picker.metrics.fetch import FetchError, Outcome, fetch, open_session
from picker.metrics.freshness import Freshness
from picker.metrics.schedule import Schedule

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    import aiohttp

    from picker.endpoints.endpoint import Endpoint
    from picker.metrics.dialects.dialect import Dialect
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

_FAILURES_TO_TELL = 3
_FAILED_CONTACTS = 3
_FAILED_CONTACTS_WITHOUT_PAGE = 2


@dataclass(frozen=True, slots=True)
class ScrapeOptions:
    """``dialect`` a name of :data:`DIALECTS`, or ``auto``: told from each endpoint's page.

    ``interval`` seconds between pages and ``path`` of the page are the dialect's if None.
    ``deadline`` seconds for one fetch as a whole; ``max_page`` bytes, after decompression;
    ``concurrency`` fetches under way at a time.
    """

    dialect: str = AUTO
    interval: float | None = None
    path: str | None = None
    deadline: float = 1.0
    max_page: int = 16 * 1024 * 1024
    concurrency: int = 64


@dataclass(slots=True, eq=False)
class _Target:
    """What is known of one watched endpoint. Failures are consecutive ones."""

    slot: Slot
    endpoint: Endpoint
    dialect: Dialect | None
    freshness: Freshness = field(default_factory=lambda: Freshness(0.0))
    engine: str = ""
    had_page: bool = False
    failures: int = 0
    told: bool = False
    probing: bool = False
    failed_contacts: int = 0
    gone: bool = False

    def told_as(self, **fields: str) -> dict[str, dict[str, str]]:
        """What a log line about it carries."""
        return {"fields": {"endpoint": self.endpoint.address, **fields}}


class _Job(NamedTuple):
    """``work`` returns after how many seconds from its start it wants to be done again; None is never."""

    target: _Target
    work: Callable[[_Target, aiohttp.ClientSession], Awaitable[float | None]]


def _ignore(_outcome: str, _seconds: float) -> None:
    pass


class Scraper:
    """Keeps the scraped columns of a fleet up to date.

    ``on_page(slot, page_time, now)`` is called when a good page is in the columns: they hold what was
    so at ``page_time``, and it arrived ``now``. ``on_scrape(outcome, seconds)`` is called after each
    attempt to get a page. Times are those of ``clock``, seconds. Raises ValueError for a dialect that
    does not exist.
    """

    def __init__(  # noqa: PLR0913 - what it writes to, whom it tells, and what tests replace
        self,
        fleet: Fleet,
        options: ScrapeOptions,
        *,
        on_page: Callable[[Slot, float, float], None],
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
        self._on_scrape = on_scrape
        self._random = random
        self._clock = clock
        self._schedule: Schedule[_Job] = Schedule(clock)
        self._targets: dict[Slot, _Target] = {}
        self._unattempted: set[_Target] = set()
        self._all_attempted = asyncio.Event()
        self._all_attempted.set()

    def watch(self, slot: Slot, endpoint: Endpoint) -> None:
        """Begin to ask an endpoint, at once. A slot that is watched already is begun anew."""
        self.forget(slot)
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
            self._note_attempt(target)

    async def first_attempts(self, timeout: float) -> None:  # noqa: ASYNC109 - running out of it is no error
        """Wait until every watched endpoint was asked once, however that ended, or for ``timeout`` s."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._all_attempted.wait()

    async def run(self) -> None:
        """Ask, until cancelled."""
        async with open_session() as session:

            async def do(job: _Job) -> None:
                await self._do(job, session)

            await self._schedule.run(do, self._options.concurrency)

    async def _do(self, job: _Job, session: aiohttp.ClientSession) -> None:
        target = job.target
        if not self._is_watched(target):
            return
        started = self._clock()
        delay: float | None = _MAX_BACKOFF
        try:
            delay = await job.work(target, session)
        except Exception:  # noqa: BLE001 - our own error with one endpoint must not end the asking of the others
            self._tell_failure(target, "internal error", with_traceback=True)
        if delay is not None and self._is_watched(target):
            self._schedule.push(max(started + delay, self._clock()), job)

    def _is_watched(self, target: _Target) -> bool:
        if not target.gone and not self._fleet.holds(target.slot):
            self.forget(target.slot)
        return not target.gone

    def _note_attempt(self, target: _Target) -> None:
        self._unattempted.discard(target)
        if not self._unattempted:
            self._all_attempted.set()

    # Pages

    async def _scrape(self, target: _Target, session: aiohttp.ClientSession) -> float:
        started = self._clock()
        outcome: Outcome | None = None
        try:
            dialect, page = await self._get_page(target, session)
            reading = dialect.read(page)
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

    async def _get_page(self, target: _Target, session: aiohttp.ClientSession) -> tuple[Dialect, bytes]:
        path = self._options.path or (target.dialect.path if target.dialect else _DEFAULT_PATH)
        answer = await fetch(
            session,
            f"http://{target.endpoint.metrics_address}{path}",
            accept=_PAGE_TYPES,
            deadline=self._options.deadline,
            limit=self._options.max_page,
        )
        if answer.status != _OK:
            raise FetchError(Outcome.STATUS, f"status {answer.status}")
        dialect = target.dialect
        if dialect is None or not dialect.matches(answer.body):
            dialect = None if self._dialect else detect(answer.body)
        if dialect is None:
            known = self._dialect.name if self._dialect else " or ".join(DIALECTS)
            raise FetchError(Outcome.FORMAT, f"not a page of {known}")
        return dialect, answer.body

    def _page_arrived(self, target: _Target, dialect: Dialect, reading: Reading, sent: float) -> float:
        interval = self._interval(dialect)
        if not self._is_watched(target):
            return interval
        now = self._clock()
        if target.dialect is not dialect or not target.had_page:
            log.debug("metrics page found", extra=target.told_as(dialect=dialect.name))
            target.dialect = dialect
            target.freshness = Freshness(dialect.max_lag)
            self._start_probing(target)
        if target.told:
            log.info("metrics page is there again", extra=target.told_as())
        if target.engine and reading.engine and target.engine != reading.engine:
            log.info("server was restarted", extra=target.told_as())
        first = not target.had_page
        target.had_page, target.told, target.failures = True, False, 0
        target.engine = reading.engine or target.engine
        if self._page_is_contact(target):
            self._contact_made(target)
        self._write(target.slot, reading, now)
        self._on_page(target.slot, target.freshness.page_time(reading.marker, sent), now)
        # Endpoints watched at the same moment are all asked at once at first; the second time spreads them
        # over the interval.
        return interval * (1.0 + self._random.random() * (1.0 if first else _JITTER))

    def _write(self, slot: Slot, reading: Reading, now: float) -> None:
        fleet, row = self._fleet, slot.row
        fleet.scraped_load[row] = reading.load
        fleet.queue[row] = reading.queue
        fleet.running[row] = reading.running
        fleet.kv_usage[row] = reading.kv_usage
        fleet.local_running[row] = reading.local_running
        fleet.proxy[row] = reading.proxy
        fleet.fetched_at[row] = now

    def _page_failed(self, target: _Target, error: FetchError) -> float:
        target.failures += 1
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
            longest = _UNREACHABLE_RETRY
        else:
            longest = min(interval * _MAX_BACKOFF_INTERVALS, _MAX_BACKOFF)
        delay = interval * 2.0 ** min(target.failures, _MAX_DOUBLINGS)
        return max(interval, min(delay, longest)) * (1.0 + self._random.random() * _JITTER)

    def _interval(self, dialect: Dialect | None) -> float:
        if dialect is None:
            return max(self._options.interval or 0.0, _UNKNOWN_INTERVAL)
        return max(self._options.interval or dialect.interval, dialect.min_interval)

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

    async def _probe(self, target: _Target, session: aiohttp.ClientSession) -> float | None:
        dialect = target.dialect
        if dialect is None or not dialect.probes:
            target.probing = False
            return None
        interval = self._interval(dialect)
        try:
            for path in dialect.probes:
                answer = await fetch(
                    session,
                    f"http://{target.endpoint.address}{path}",
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
                if not self._fleet.reachable[target.slot.row]:
                    interval = max(interval, _UNREACHABLE_RETRY)
        return interval * (1.0 + self._random.random() * _JITTER)

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
        page_lost = target.probing and target.had_page and target.failures > 0
        enough = _FAILED_CONTACTS_WITHOUT_PAGE if page_lost else _FAILED_CONTACTS
        if target.failed_contacts >= enough and self._fleet.reachable[target.slot.row]:
            self._fleet.reachable[target.slot.row] = False
            log.warning("endpoint cannot be reached", extra=target.told_as())
