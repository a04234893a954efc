"""One run: requests of a trace, pickers that choose, servers that answer, in simulated time."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from picker.replay.pickers import Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from picker.replay.agenda import Agenda
    from picker.replay.engine import Page
    from picker.replay.pickers import Picker
    from picker.replay.servers import Servers
    from picker.replay.workload import Request

OK = 200
_COMPARED = 10
"""Of so many requests one is also shown to another replica, to see whether it would choose alike."""
_REPORTED = 500
"""Requests between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the pickers get to see.

    ``first_token``: the first byte of an answer's body, and with it the usage at its end; otherwise an
    answer's status at once and its end. A page is ``page_age`` seconds old when it arrives; the servers renew
    it every ``page_renewal`` seconds only (0: it is written as it is asked for).
    """

    first_token: bool = True
    page_age: float = 0.0
    page_renewal: float = 0.0


class Records:
    """What became of the requests, one entry each, in the order they were sent.

    Times are seconds, from the sending on; NaN where it never came to that. Tokens of the prompt.
    """

    def __init__(self) -> None:
        self.sent_at = array("d")
        self.first_token = array("d")
        self.end = array("d")
        self.endpoint = array("l")
        """-1: it was refused by the picker."""
        self.status = array("l")
        self.prompt = array("l")
        self.cached = array("l")
        self.output = array("l")

    def __len__(self) -> int:
        """Number of requests sent so far."""
        return len(self.sent_at)

    def add(self, request: Request, now: float) -> int:
        """Begin a request's entry; returns its number."""
        self.sent_at.append(now)
        self.first_token.append(_NAN)
        self.end.append(_NAN)
        self.endpoint.append(-1)
        self.status.append(0)
        self.prompt.append(request.prompt)
        self.cached.append(0)
        self.output.append(request.output)
        return len(self.sent_at) - 1


_NAN = float("nan")


class _Call:
    """One request on its way: what the servers work on, and who is told of it."""

    __slots__ = ("_done", "_number", "_picker", "_simulation", "_ticket", "blocks", "output", "prompt")

    def __init__(  # noqa: PLR0913 - made once, in one place
        self,
        simulation: Simulation,
        request: Request,
        *,
        number: int,
        picker: Picker,
        ticket: object,
        done: Callable[[], None] | None,
    ) -> None:
        self.prompt = request.prompt
        self.output = request.output
        self.blocks = request.blocks
        self._simulation = simulation
        self._number = number
        self._picker = picker
        self._ticket = ticket
        self._done = done

    def first_token(self) -> None:
        simulation = self._simulation
        now = simulation.agenda.now
        records = simulation.records
        records.first_token[self._number] = now - records.sent_at[self._number]
        if simulation.sight.first_token:
            self._picker.first_token(self._ticket, now)

    def ended(self, cached: int) -> None:
        self._simulation.records.cached[self._number] = cached
        self._over(Fate(OK, self.prompt, cached))

    def refused(self, status: int, *, back_pressure: bool = False) -> None:
        self._over(Fate(status, back_pressure=back_pressure))

    def _over(self, fate: Fate) -> None:
        simulation = self._simulation
        now = simulation.agenda.now
        self._picker.ended(self._ticket, fate, now)
        simulation.finished(self._number, fate.status)
        if self._done is not None:
            self._done()


class Simulation:
    """Servers, pickers (replicas of one, each knowing only its own requests), and what came of it.

    ``requests``: how many are sent in all. ``watched``: the number of the one to be explained.
    ``decision_time``: seconds that each request keeps its picker and the gateway from the next.
    """

    def __init__(  # noqa: PLR0913 - the parts of the stage
        self,
        agenda: Agenda,
        servers: Servers,
        pickers: Sequence[Picker],
        *,
        sight: Sight,
        random: Random,
        requests: int,
        decision_time: float = 0.0,
        watched: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.agenda = agenda
        self.sight = sight
        self.records = Records()
        self.explanation: list[str] = []
        self.compared = self.agreed = 0
        """Requests that were also shown to another replica, and for how many it would have chosen alike."""
        self._servers = servers
        self._pickers = pickers
        self._random = random
        self._wanted = requests
        self._decision_time = decision_time
        self._busy_until = dict.fromkeys(pickers, 0.0)
        self._watched = watched
        self._progress = progress
        self._finished = 0

    def run(self) -> None:
        """From the first request to the end of the last one. What is to be sent was noted before."""
        self._begin_pages()
        self.agenda.run(while_=lambda: self._finished < self._wanted)

    # Requests

    def play(self, requests: Iterator[Request]) -> None:
        """Send each at its time, whatever became of those before."""
        wanted = islice(requests, self._wanted)

        def send(request: Request) -> None:
            self._note_next(wanted, send)
            self._send(request, None)

        self._note_next(wanted, send)

    def _note_next(self, requests: Iterator[Request], send: Callable[[Request], None]) -> None:
        following = next(requests, None)
        if following is not None:
            self.agenda.at(following.at, partial(send, following))

    def play_sessions(self, sessions: Iterator[Sequence[Request]], at_once: int) -> None:
        """Keep so many sessions going.

        A session sends its next request a pause after the answer to the last one, and the next session
        begins when one is over.
        """
        for _ in range(at_once):
            self._play_session(sessions, iter(next(sessions)))

    def _play_session(self, sessions: Iterator[Sequence[Request]], turns: Iterator[Request]) -> None:
        following = next(turns, None)
        if following is None:
            turns = iter(next(sessions))
            following = next(turns)

        def send(request: Request) -> None:
            if len(self.records) < self._wanted:
                self._send(request, partial(self._play_session, sessions, turns))

        self.agenda.at(self.agenda.now + following.at, partial(send, following))

    def _send(self, request: Request, done: Callable[[], None] | None) -> None:
        now = self.agenda.now
        number = self.records.add(request, now)
        pickers = self._pickers
        picker = pickers[0] if len(pickers) == 1 else self._random.choice(pickers)
        if not self._decision_time:
            self._decide(picker, request, number, done)
            return
        decided = max(now, self._busy_until[picker]) + self._decision_time
        self._busy_until[picker] = decided
        self.agenda.at(decided, partial(self._decide, picker, request, number, done))

    def _decide(self, picker: Picker, request: Request, number: int, done: Callable[[], None] | None) -> None:
        now = self.agenda.now
        if number == self._watched:
            self.explanation = picker.explain(request, now)
        pick = picker.pick(request, now)
        if isinstance(pick, int):
            self.finished(number, pick)
            if done is not None:
                done()
            return
        self.records.endpoint[number] = pick.endpoint
        if len(self._pickers) > 1 and number % _COMPARED == 0:
            self._compare(pick.endpoint, picker, request)
        call = _Call(self, request, number=number, picker=picker, ticket=pick.ticket, done=done)
        self._servers.send(pick.endpoint, call)

    def _compare(self, endpoint: int, picker: Picker, request: Request) -> None:
        other = self._pickers[(self._pickers.index(picker) + 1) % len(self._pickers)]
        preferred = other.preferred(request, self.agenda.now)
        if preferred >= 0:
            self.compared += 1
            self.agreed += preferred == endpoint

    def finished(self, number: int, status: int) -> None:
        """A request's life is over."""
        records = self.records
        records.end[number] = self.agenda.now - records.sent_at[number]
        records.status[number] = status
        self._finished += 1
        if self._progress is not None and (self._finished % _REPORTED == 0 or self._finished == self._wanted):
            self._progress(self._finished)

    # Pages

    def _begin_pages(self) -> None:
        """Each picker asks each endpoint in a rhythm of its own."""
        renewal = self.sight.page_renewal
        exported: list[tuple[float, Page]] = []
        if renewal:
            exported = [(0.0, self._servers.page(endpoint)) for endpoint in range(len(self._servers))]
            for endpoint in range(len(self._servers)):
                self.agenda.at(self._random.random() * renewal, partial(self._export, endpoint, exported))
        for picker in self._pickers:
            interval = picker.scrape_interval
            if interval is None:
                continue
            for endpoint in range(len(self._servers)):
                self._scrape(picker, endpoint, interval * self._random.random(), interval, exported)

    def _export(self, endpoint: int, exported: list[tuple[float, Page]]) -> None:
        exported[endpoint] = (self.agenda.now, self._servers.page(endpoint))
        self.agenda.at(self.agenda.now + self.sight.page_renewal, partial(self._export, endpoint, exported))

    def _scrape(
        self,
        picker: Picker,
        endpoint: int,
        wait: float,
        interval: float,
        exported: list[tuple[float, Page]],
    ) -> None:
        """Ask for a page now, and again after ``wait`` and then every ``interval`` seconds."""
        agenda = self.agenda
        age = self.sight.page_age

        def ask() -> None:
            now = agenda.now
            written, page = exported[endpoint] if exported else (now, self._servers.page(endpoint))
            if age:
                agenda.at(now + age, lambda: picker.page(endpoint, page, written, agenda.now))
            else:
                picker.page(endpoint, page, written, now)
            agenda.at(now + interval, ask)

        now = agenda.now
        picker.page(endpoint, self._servers.page(endpoint), now, now)
        agenda.at(now + wait, ask)
