"""The picker itself, driven as the process does it: the same router, fleet and profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from picker.inference.question import Question
from picker.inference.usage import Usage
from picker.replay.pickers import Fate, Pick
from picker.routing.decision import Cause, Outcome, Refusal, Visibility
from picker.routing.router import Router
from scorer.fleet import Fleet
from scorer.prefix import PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from picker.replay.engine import Page
    from picker.replay.workload import Request
    from picker.routing.decision import Ticket
    from picker.routing.explained import Explained
    from scorer.prefix_hash import Blocks
    from scorer.profile import Profile

ENGINE_INTERVAL = 0.2
PROXY_INTERVAL = 1.0
"""Seconds between two pages of an endpoint that works, as the metrics dialects of vLLM and of Ray have it."""
INDEX_BYTES = 256 << 20
_SHOWN = 10
"""Candidates that an explanation tells."""


def question_of(request: Request) -> Question:
    """What the picker would have read of the request."""
    return Question(
        method="POST",
        path="/v1/completions",
        surface="completions",
        model="model",
        incoming_model="model",
        stream=True,
        session_id=request.session,
        told_tokens=request.prompt,
        told_blocks=request.blocks,
    )


def fleet_of(endpoints: int) -> Fleet:
    """A fleet with so many endpoints, in the order of their numbers: an endpoint's row is its number."""
    fleet = Fleet()
    for number in range(endpoints):
        fleet.add(f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:8000")
    return fleet


def write_page(fleet: Fleet, row: int, page: Page, now: float) -> None:
    """Into the columns, as the scraper does it."""
    fleet.scraped_load[row] = page.load
    fleet.queue[row] = page.queue
    fleet.running[row] = page.running
    fleet.kv_usage[row] = page.kv_usage
    fleet.local_running[row] = page.local_running
    fleet.kv_blocks[row] = page.kv_blocks
    fleet.block_size[row] = page.block_size
    fleet.fetched_at[row] = now


class OurPicker:
    """One replica of the picker. See :class:`picker.replay.pickers.Picker`.

    It differs from the process in three things: the true lengths of prompts are known instead of estimated,
    prompts are compared by the trace's blocks instead of by text, and nothing takes any time.
    """

    def __init__(  # noqa: PLR0913 - what replicas differ by
        self,
        endpoints: int,
        profile: Profile,
        random: Random,
        *,
        block_tokens: int,
        first_token_visible: bool,
        proxies: bool,
        replicas: int,
    ) -> None:
        self.scrape_interval = PROXY_INTERVAL if proxies else ENGINE_INTERVAL
        self._fleet = fleet_of(endpoints)
        self._fleet.proxy[:endpoints] = proxies
        self._rows = {address: row for row, address in enumerate(self._fleet.addresses)}
        self._slots = [self._fleet.slot_at(row) for row in range(endpoints)]
        self._visibility = Visibility(status=True, first_token=first_token_visible, end=True)
        index = PrefixIndex(INDEX_BYTES, block_tokens=block_tokens)

        def blocks_of(question: Question) -> Blocks:
            return index.blocks_of_ids(question.told_blocks)

        self._router = Router(
            self._fleet, profile, random, index=index, replicas=replicas, blocks_of=blocks_of
        )

    def pick(self, request: Request, now: float) -> Pick | int:
        """Choose, and count the request as sent; or the status with which it is refused."""
        answer = self._router.ask(question_of(request), self._visibility, now)
        if isinstance(answer, Refusal):
            return answer.status
        return Pick(self._rows[answer.endpoints[0]], answer.ticket)

    def first_token(self, ticket: Ticket, now: float) -> None:
        """The first byte of its answer's body came by."""
        self._router.first_token(ticket, now)

    def ended(self, ticket: Ticket, fate: Fate, now: float) -> None:
        """Its answer ended; where bodies are seen it told the usage."""
        usage = None
        if self._visibility.first_token and fate.prompt:
            usage = Usage(prompt_tokens=fate.prompt, cached_tokens=fate.cached)
        outcome = Outcome(Cause.COMPLETE, fate.status, back_pressure=fate.back_pressure, usage=usage)
        self._router.ended(ticket, outcome, now)

    def page(self, endpoint: int, page: Page, page_time: float, now: float) -> None:
        """A page came in that speaks of ``page_time``."""
        write_page(self._fleet, endpoint, page, now)
        self._router.page_read(self._slots[endpoint], page_time, now)

    def preferred(self, request: Request, now: float) -> int:
        """Which endpoint it would choose now, or -1; nothing is counted."""
        explained = self._router.explain(question_of(request), now)
        return self._rows[explained.endpoints[0]] if explained.endpoints else -1

    def explain(self, request: Request, now: float) -> list[str]:
        """Lines that say how it would choose now; nothing is counted."""
        return list(_told(self._router.explain(question_of(request), now)))


def _told(explained: Explained) -> Iterator[str]:
    asked = explained.asked
    yield f"asked at {explained.at:.3f} s: {asked.prompt_tokens} prompt tokens"
    for name, addresses in explained.dropped().items():
        yield f"{name} takes out {', '.join(addresses)}"
    weights = explained.weights()
    if weights:
        yield "weights: " + ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    scores = explained.scores()
    for address, parts in list(scores.items())[:_SHOWN]:
        yield f"{address}: " + ", ".join(f"{name} {value:.3f}" for name, value in parts.items())
    if len(scores) > _SHOWN:
        yield f"and {len(scores) - _SHOWN} with lower totals"
    if explained.draws:
        yield "drawn: " + ", ".join(f"{draw:.4f}" for draw in explained.draws)
    if explained.unsure:
        yield "at random, since pages are missing"
    if explained.endpoints:
        tokens = f"{explained.matched_tokens:.0f}"
        yield f"chosen: {explained.endpoints[0]}, which has {tokens} tokens of the prompt"
    elif explained.refusal is not None:
        yield f"refused with {explained.refusal.status}: {explained.refusal.message}"
