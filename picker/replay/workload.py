"""What is asked of the simulated servers, and when."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, count, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``at``: seconds since the trace's first one; in a session, since the one before.

    ``prompt`` and ``output`` are tokens, at least one each. ``blocks`` are ids of the whole blocks of the
    prompt, each standing for all of the prompt up to that block's end.
    """

    at: float
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()
    session: str = ""

    def copied(self, nth: int, seconds: float, ids: int) -> Request:
        """As it is sent when the trace is played once more: later, and with a prompt that is new."""
        if nth == 0:
            return self
        blocks = tuple(block + nth * ids for block in self.blocks)
        session = f"{self.session}/{nth}" if self.session else ""
        return Request(self.at + nth * seconds, self.prompt, self.output, blocks, session)


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded requests: ``requests`` in order of time, or ``sessions``, whose requests follow each other.

    ``block``: how many tokens a block stands for; ``ids``: a number above every block's id.
    """

    name: str
    block: int
    ids: int
    requests: tuple[Request, ...] = ()
    sessions: tuple[tuple[Request, ...], ...] = ()

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.requests) + sum(map(len, self.sessions))

    @property
    def requests_per_second(self) -> float:
        """As recorded; of sessions nothing of the kind can be told (0)."""
        return len(self.requests) / self._period if self.requests else 0.0

    @property
    def _period(self) -> float:
        """Seconds after which it may begin anew, with a usual gap between its last and its first request."""
        last = self.requests[-1].at
        return last + (last / (len(self.requests) - 1) if last else 1.0)

    def in_time(self, rate: float, start: int) -> Iterator[Request]:
        """Its requests, ``rate`` times as fast, from the ``start``-th on and over and over again."""
        begin = self.requests[start].at
        for nth in count():
            for request in islice(self.requests, start if nth == 0 else 0, None):
                copy = request.copied(nth, self._period, self.ids)
                yield Request((copy.at - begin) / rate, copy.prompt, copy.output, copy.blocks, copy.session)

    def in_turn(self, rate: float, start: int) -> Iterator[Sequence[Request]]:
        """Its sessions, with pauses ``rate`` times as short, from the ``start``-th on, again and again."""
        for nth in count():
            for session in islice(self.sessions, start if nth == 0 else 0, None):
                copies = (request.copied(nth, 0.0, self.ids) for request in session)
                yield [Request(copy.at / rate, *_what(copy)) for copy in copies]

    def start_of(self, seed: int, requests: int) -> int:
        """Where a run with this seed begins: each sees another part of the trace.

        Steps of the golden ratio spread any number of beginnings evenly.
        """
        if self.sessions:
            return int(seed * _GOLDEN * len(self.sessions)) % len(self.sessions)
        free = len(self.requests) - requests
        return int(seed * _GOLDEN % 1.0 * (free if free > 0 else len(self.requests)))

    def ideal_hit_rate(self, start: int, requests: int) -> float:
        """Share of prompt tokens that one server with an endless cache would not have to compute."""
        order: Iterable[Request] = self.requests[start:] + self.requests[:start]
        if self.sessions:
            order = chain.from_iterable(self.sessions[start:] + self.sessions[:start])
        seen: set[int] = set()
        prompt = cached = 0
        for request in islice(order, requests):
            matched = next(
                (n for n, block in enumerate(request.blocks) if block not in seen), len(request.blocks)
            )
            cached += min(matched * self.block, request.prompt - 1)
            prompt += request.prompt
            seen.update(request.blocks)
        return cached / prompt if prompt else 0.0


_GOLDEN = 0.6180339887498949


def _what(request: Request) -> tuple[int, int, tuple[int, ...], str]:
    return request.prompt, request.output, request.blocks, request.session
