"""The llm-d picker, as far as its choices go: a profile of compatible plugins over scraped pages.

What differs from ours: nothing but the profile decides (no breaker, no back-pressure, no ledger of own
requests, no learned speed). Pages are read every 50 ms, as its data layer does. Its prefix index takes up a
decision at once, as its pre-request hook does, holds 31,250 blocks an endpoint, learns nothing from answers
and takes nothing back. Prompts are compared by the trace's blocks; where these are short that favours it,
since its own have 64 tokens at least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from picker.replay.ours import INDEX_BYTES, fleet_of, question_of, write_page
from picker.replay.pickers import Fate, Pick
from scorer.draws import Draws
from scorer.prefix import PrefixIndex

if TYPE_CHECKING:
    from random import Random

    from picker.inference.question import Question
    from picker.replay.engine import Page
    from picker.replay.workload import Request
    from scorer.policy import Policy
    from scorer.prefix_hash import Blocks
    from scorer.profile import Choice

INTERVAL = 0.05
"""Seconds between two pages of an endpoint."""
ROW_BLOCKS = 31_250
"""What its index holds of an endpoint."""
_NOBODY = 429


class BlendPicker:
    """See :class:`picker.replay.pickers.Picker`."""

    scrape_interval = INTERVAL

    def __init__(
        self, endpoints: int, policy: Policy, random: Random, *, block_tokens: int, proxies: bool
    ) -> None:
        self._fleet = fleet_of(endpoints)
        self._fleet.proxy[:endpoints] = proxies
        self._all = np.arange(endpoints)
        self._profile = policy.profile
        self._draws = Draws(random)
        self._index = PrefixIndex(INDEX_BYTES, block_tokens=block_tokens)
        for row in range(endpoints):
            self._index.set_capacity(row, ROW_BLOCKS)

    def pick(self, request: Request, now: float) -> Pick | int:
        """Choose, and take the prompt for cached there."""
        question, blocks, choice = self._choose(request, now)
        if not choice.rows:
            return _NOBODY
        row = choice.rows[0]
        if len(blocks.hashes):
            self._index.insert(row, blocks)
        for sent in self._profile.observers:
            sent(self._fleet, row, question, now)
        return Pick(row, None)

    def _choose(self, request: Request, now: float) -> tuple[Question, Blocks, Choice]:
        question = question_of(request)
        blocks = self._index.blocks_of_ids(question.told_blocks)
        self._index.match(blocks, self._fleet.matched_tokens)
        self._draws.drawn.clear()
        return question, blocks, self._profile.run(self._fleet, self._all, question, now, self._draws)

    def preferred(self, request: Request, now: float) -> int:
        """Which endpoint it would choose now; nothing is counted."""
        _, _, choice = self._choose(request, now)
        return choice.rows[0] if choice.rows else -1

    def first_token(self, ticket: object, now: float) -> None:
        """Of no interest."""

    def ended(self, ticket: object, fate: Fate, now: float) -> None:
        """Of no interest."""

    def page(self, endpoint: int, page: Page, page_time: float, now: float) -> None:  # noqa: ARG002 - see Picker
        """A page came in."""
        write_page(self._fleet, endpoint, page, now)

    def explain(self, request: Request, now: float) -> list[str]:
        """The totals and scores, best first."""
        _, _, choice = self._choose(request, now)
        return [
            f"{address}: " + ", ".join(f"{name} {value:.3f}" for name, value in parts.items())
            for address, parts in choice.explain().items()
        ]
