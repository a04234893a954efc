"""A model server as a discrete-event model: continuous batching, chunked prefill, a paged KV cache.

A server works in steps. A step takes up to ``chunk`` prompt tokens, first come first served, and one
token of every sequence that decodes; it takes a fixed time, more with each prompt token and with each
decoding sequence. A sequence's first token is out at the end of the step that takes its last prompt
token. Prompts are known as *blocks* of equal length; blocks stay cached when their sequence has ended, until
the room is needed, least recently used first.

What is left out: the KV cache has no block fragmentation (it is counted in tokens), answers are not
cached, and a sequence that is preempted loses what it had computed of its prompt unless its prefill was
complete.

Steps between which nothing changes are taken as one event, a *phase*.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import ceil, inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

from picker.replay.kvcache import KvCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from picker.replay.agenda import Agenda

_WHOLE = 1e-9
"""Of a step: float rounding that must not make an arrival at a step's end one within the next."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What a server can do. The defaults are those of the rig that the calibration compares with.

    ``chunk`` prompt tokens a step takes; ``step`` seconds it takes at least, ``token`` and ``sequence``
    seconds more for each prompt token and each decoding sequence; ``sequences`` at once;
    ``kv_tokens`` its KV cache holds.
    """

    chunk: int = 256
    step: float = 0.006
    token: float = 1e-4
    sequence: float = 60e-6
    sequences: int = 48
    kv_tokens: int = 60_000

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second where nothing else is to do."""
        return self.chunk / (self.step + self.chunk * self.token)


class Page(NamedTuple):
    """What a metrics page says; NaN: it does not. Names as in :class:`scorer.fleet.Fleet`."""

    load: float
    queue: float
    running: float
    kv_usage: float
    local_running: float = float("nan")
    kv_blocks: float = float("nan")
    block_size: float = float("nan")


class Job(Protocol):
    """A request, as a server sees it. ``blocks`` are ids that stand for its prompt up to there."""

    @property
    def prompt(self) -> int:
        """Prompt tokens, at least 1."""

    @property
    def output(self) -> int:
        """Tokens of the answer, at least 1."""

    @property
    def blocks(self) -> Sequence[int]:
        """Whole blocks of the prompt."""

    def first_token(self) -> None:
        """The first token is out."""

    def ended(self, cached: int) -> None:
        """The last one is; so many prompt tokens were in the cache."""


class _Sequence:
    """A job in a server."""

    __slots__ = (
        "age",
        "cached",
        "decodes_from",
        "ends_at",
        "generated",
        "job",
        "matched",
        "private",
        "to_do",
    )

    def __init__(self, job: Job, age: int) -> None:
        self.job = job
        self.age = age
        self.to_do = 0
        """Prompt tokens that are still to be computed."""
        self.cached = -1
        """Prompt tokens that were in the cache when it was taken up first."""
        self.matched = 0
        """So many of its first blocks are held for it."""
        self.private = 0
        """Further tokens it has in the cache, but for those of its decoding."""
        self.generated = 0
        """Tokens that were out when it last began to decode or lost its place."""
        self.decodes_from = self.ends_at = 0
        """Numbers of the steps before its decoding and with its last token."""


class Engine:
    """One simulated model server. ``slowness``: how many times longer each of its steps takes."""

    def __init__(
        self, agenda: Agenda, model: EngineModel, *, block_tokens: int, slowness: float = 1.0
    ) -> None:
        self.model = model
        self.preemptions = 0
        """Times a sequence lost its place because the KV cache was full."""
        self._agenda = agenda
        self._slowness = slowness
        self._cache = KvCache(model.kv_tokens, block_tokens)
        self._ages = count()
        self._waiting: deque[_Sequence] = deque()
        self._prefilling: deque[_Sequence] = deque()
        self._decoding: list[tuple[int, int, _Sequence]] = []
        """A heap by the step of their last token."""
        self._steps_done = 0
        self._began = 0.0
        self._step = 0.0
        """Seconds of one step of this phase."""
        self._steps = 0
        """Steps of this phase; 0: there is nothing to do."""
        self._chunks: list[tuple[_Sequence, int]] = []
        """Who gets how many of its prompt tokens computed in each of them."""
        self._open = False
        """Whether an arrival could begin with the next step."""
        self._due = inf

    def submit(self, job: Job) -> bool:
        """Take a request; False if it can never fit."""
        if job.prompt + job.output > self.model.kv_tokens:
            return False
        self._waiting.append(_Sequence(job, next(self._ages)))
        if self._steps == 0:
            self._plan()
        elif self._open:
            self._cut()
        return True

    def page(self) -> Page:
        """What its metrics page says now."""
        running = len(self._prefilling) + len(self._decoding)
        steps = int((self._agenda.now - self._began) / self._step + _WHOLE) if self._steps else 0
        used = self._cache.used + steps * len(self._decoding)
        return Page(
            load=float(running + len(self._waiting)),
            queue=float(len(self._waiting)),
            running=float(running),
            kv_usage=min(1.0, used / self._cache.capacity),
            kv_blocks=float(self._cache.capacity // self._cache.block),
            block_size=float(self._cache.block),
        )

    def _cut(self) -> None:
        """End this phase with the step that is under way."""
        self._open = False
        steps = max(1, ceil((self._agenda.now - self._began) / self._step - _WHOLE))
        if steps < self._steps:
            self._steps = steps
            self._wake_at(self._began + steps * self._step)

    def _wake_at(self, time: float) -> None:
        self._due = time
        self._agenda.at(time, self._wake)

    def _wake(self) -> None:
        if self._agenda.now != self._due:  # the phase was cut since
            return
        news = self._finish_phase()
        self._plan()
        for tell in news:  # last, since who is told may submit the next request at once
            tell()

    # The end of a phase

    def _finish_phase(self) -> list[Callable[[], None]]:
        """Take the phase's steps; returns the calls that tell what came of them."""
        news: list[Callable[[], None]] = []
        steps = self._steps
        self._steps_done += steps
        self._cache.grow(steps * len(self._decoding))
        while self._decoding and self._decoding[0][0] <= self._steps_done:
            self._leave(heapq.heappop(self._decoding)[2], news)
        for sequence, tokens in self._chunks:
            sequence.to_do -= steps * tokens
            if sequence.to_do == 0:
                self._prefilling.popleft()
                self._prefilled(sequence, news)
        return news

    def _prefilled(self, sequence: _Sequence, news: list[Callable[[], None]]) -> None:
        """Its prompt is computed, and with it the next token."""
        job = sequence.job
        fresh = job.blocks[sequence.matched :]
        self._cache.register(fresh)
        sequence.private -= len(fresh) * self._cache.block
        sequence.matched = len(job.blocks)
        sequence.generated += 1
        sequence.decodes_from = self._steps_done
        sequence.ends_at = self._steps_done + job.output - sequence.generated
        if sequence.generated == 1:
            news.append(job.first_token)
        if sequence.generated == job.output:
            self._leave(sequence, news)
        else:
            heapq.heappush(self._decoding, (sequence.ends_at, sequence.age, sequence))

    def _leave(self, sequence: _Sequence, news: list[Callable[[], None]]) -> None:
        self._release(sequence, sequence.ends_at - sequence.decodes_from)
        news.append(partial(sequence.job.ended, sequence.cached))

    def _release(self, sequence: _Sequence, decoded: int) -> None:
        self._cache.release(sequence.job.blocks[: sequence.matched], sequence.private + decoded)

    # The beginning of a phase

    def _plan(self) -> None:
        """See what the next steps do, and how many of them are alike."""
        preempted = self._make_room()
        budget = self._share_out()
        if not preempted and budget and self._waiting:
            budget = self._admit(budget)
        decoding = len(self._decoding)
        if not decoding and not self._chunks:
            self._steps, self._due = 0, inf
            return
        self._steps = 1 if preempted else self._like_steps(decoding)  # nobody is taken up in such a step
        self._open = budget > 0 and not self._waiting and decoding < self.model.sequences
        model = self.model
        tokens = model.chunk - budget
        self._step = self._slowness * (model.step + tokens * model.token + decoding * model.sequence)
        self._began = self._agenda.now
        self._wake_at(self._began + self._steps * self._step)

    def _make_room(self) -> bool:
        """Let the latest sequences lose their places until those that decode can go on a step."""
        preempted = False
        while self._cache.room < len(self._decoding):
            preempted = True
            self.preemptions += 1
            if self._prefilling:
                victim = self._prefilling.pop()
                self._release(victim, 0)
            else:
                place = max(range(len(self._decoding)), key=lambda place: self._decoding[place][1])
                victim = self._decoding.pop(place)[2]
                heapq.heapify(self._decoding)
                self._release(victim, self._steps_done - victim.decodes_from)
                victim.generated += self._steps_done - victim.decodes_from
            victim.matched = 0
            self._waiting.appendleft(victim)
        return preempted

    def _share_out(self) -> int:
        """Give the step's prompt tokens to those that have begun; returns what is left of them."""
        budget = self.model.chunk
        self._chunks = []
        for sequence in self._prefilling:
            if budget == 0:
                break
            tokens = min(budget, sequence.to_do)
            self._chunks.append((sequence, tokens))
            budget -= tokens
        return budget

    def _admit(self, budget: int) -> int:
        """Take up those that wait while there is something for them; returns the prompt tokens left."""
        cache = self._cache
        running = len(self._decoding) + len(self._prefilling)
        while budget and self._waiting and running < self.model.sequences:
            sequence = self._waiting[0]
            job = sequence.job
            matched = cache.match(job.blocks)
            total = job.prompt + sequence.generated
            private = total - matched * cache.block
            if not cache.take(job.blocks[:matched], private, spare=len(self._decoding)):
                break
            self._waiting.popleft()
            running += 1
            sequence.matched, sequence.private = matched, private
            if sequence.cached < 0:
                sequence.cached = min(matched * cache.block, job.prompt - 1)
            sequence.to_do = max(1, private)  # the last token's state is needed for the next one
            self._prefilling.append(sequence)
            tokens = min(budget, sequence.to_do)
            self._chunks.append((sequence, tokens))
            budget -= tokens
        return budget

    def _like_steps(self, decoding: int) -> int:
        """After how many steps somebody ends, is through with the prompt, or finds the cache full."""
        steps = inf
        if self._chunks:
            sequence, tokens = self._chunks[0]
            # Chunks of several change from step to step, and so does the last one of a prompt.
            steps = max(1, sequence.to_do // tokens) if len(self._chunks) == 1 else 1
        if decoding:
            steps = min(steps, self._decoding[0][0] - self._steps_done, self._cache.room // decoding)
        return int(steps)
