"""Prompts go where their beginning is, and the index learns what became of them."""

from __future__ import annotations

from random import Random

import pytest

from picker.inference.question import Question
from picker.inference.usage import Usage
from picker.routing.decision import Cause, Decision, Outcome, Ticket
from picker.routing.router import Router
from scorer.fleet import Slot
from scorer.prefix import PrefixIndex
from tests.routing.support import BROKEN, FULL, OK, SEES_ALL, SEES_STATUS, UNSEEN, Pool

BLOCK = 256
"""Bytes of a block of 64 tokens."""


def text(name: str, blocks: int = 20) -> bytes:
    """A prompt of so many blocks."""
    return Random(name).randbytes(blocks * BLOCK)


class Prompts(Pool):
    """A pool whose router compares prompts."""

    def __init__(self, size: int, *, replicas: int = 1, fallbacks: int = 0) -> None:
        super().__init__(size)
        self.index = PrefixIndex(1 << 22)
        self.router = Router(
            self.fleet,
            self.router.profile,
            Random(1),
            index=self.index,
            replicas=replicas,
            fallbacks=fallbacks,
        )

    def ask(
        self, prompt: bytes, *, number: int = 0, replaces: Ticket | None = None, model: str = ""
    ) -> Decision:
        subset = (f"10.0.0.{number}:80",) if number else None
        question = Question(path="/", prompt=prompt, subset=subset, model=model)
        return self.decide(question, SEES_ALL, replaces=replaces)

    def warm(self, number: int, prompt: bytes) -> None:
        """The endpoint serves the prompt, and is idle again."""
        self.router.ended(self.ask(prompt, number=number).ticket, OK, self.now)

    def held(self, prompt: bytes) -> list[float]:
        """Tokens of the prompt that each endpoint is believed to hold."""
        column = self.fleet.matched_tokens.copy()
        self.index.match(self.index.blocks(prompt), column)
        return list(column[: len(self.fleet)].tolist())

    def goes_to(self, prompt: bytes, model: str = "") -> set[str]:
        """Where the prompt would go; nothing is left behind."""
        question = Question(path="/", prompt=prompt, model=model)
        return {self._try(question) for _ in range(20)}

    def _try(self, question: Question) -> str:
        decision = self.decide(question)
        again = self.router.ask(Question(path="/", subset=()), SEES_ALL, self.now, replaces=decision.ticket)
        assert not isinstance(again, Decision)
        return decision.endpoints[0]


def test_a_prompt_follows_its_beginning_and_only_the_rest_counts() -> None:
    pool = Prompts(4)
    pool.warm(3, text("a"))
    pool.fleet.own[:4] = 1
    decision = pool.ask(text("a") + text("b", 2))
    assert decision.endpoints == ("10.0.0.3:80",)
    assert pool.fleet.own_tokens[2] == 2 * 64


def test_requests_of_one_burst_meet() -> None:
    pool = Prompts(8)
    first = pool.ask(text("a", 100))
    assert pool.ask(text("a", 100) + text("b", 1)).endpoints == first.endpoints
    assert pool.ask(text("c", 100)).endpoints != first.endpoints


def test_models_share_no_cache() -> None:
    pool = Prompts(4)
    for model in ("m", "n"):
        pool.router.ended(pool.ask(text("a"), number=2, model=model).ticket, OK, pool.now)
    assert pool.goes_to(text("a"), "m") == {"10.0.0.2:80"}
    assert len(pool.goes_to(text("a"), "other")) > 1


@pytest.mark.parametrize("outcome", [BROKEN, FULL, Outcome(Cause.COMPLETE, 429, back_pressure=True)])
def test_what_was_not_computed_is_taken_back(outcome: Outcome) -> None:
    pool = Prompts(2)
    pool.warm(1, text("a"))
    pool.router.ended(pool.ask(text("a") + text("b"), number=1).ticket, outcome, pool.now)
    assert pool.held(text("a") + text("b")) == [20 * 64, 0]


@pytest.mark.parametrize("outcome", [OK, UNSEEN, Outcome(Cause.ABORTED), Outcome(Cause.COMPLETE, 404)])
def test_what_may_have_been_computed_stays(outcome: Outcome) -> None:
    pool = Prompts(2)
    pool.router.ended(pool.ask(text("a"), number=1).ticket, outcome, pool.now)
    assert pool.held(text("a")) == [20 * 64, 0]


def test_a_withdrawn_decision_leaves_nothing_and_a_refused_one_neither() -> None:
    pool = Prompts(2)
    provisional = pool.ask(text("a"), number=1)
    pool.ask(text("b"), number=2, replaces=provisional.ticket)
    assert pool.held(text("a")) == [0, 0]
    pool.router.ask(Question(prompt=text("c"), subset=()), SEES_ALL, pool.now)
    assert pool.index.pairs == 20


def test_a_redirected_answer_moves_to_where_it_was_served() -> None:
    pool = Prompts(2, fallbacks=1)
    ticket = pool.ask(text("a")).ticket
    first = 0 if pool.held(text("a"))[0] else 1
    served = f"10.0.0.{2 - first}:80"
    pool.router.ended(ticket, Outcome(Cause.COMPLETE, 200, served=served), pool.now)
    assert pool.held(text("a"))[first] == 0
    assert pool.held(text("a"))[1 - first] == 20 * 64


@pytest.mark.parametrize("way", ["removed", "restarted"])
def test_an_endpoint_that_is_gone_or_restarted_holds_nothing(way: str) -> None:
    pool = Prompts(2)
    pool.warm(1, text("a"))
    late = pool.ask(text("b"), number=1).ticket
    slot = pool.slot(1)
    if way == "restarted":
        pool.router.restarted(slot)
    else:
        pool.fleet.remove(slot)
        slot = pool.add("10.0.0.1:80")
        pool.router.tick(pool.now)
    assert pool.held(text("a")) == pool.held(text("b")) == [0, 0]
    pool.warm(1, text("b"))
    pool.router.ended(late, BROKEN, pool.now)
    assert pool.held(text("b")) == [20 * 64, 0], "what came after is not the late answer's to take back"


def test_a_restart_of_an_endpoint_that_was_never_used_is_nothing() -> None:
    pool = Prompts(1)
    pool.router.restarted(pool.slot(1))
    pool.router.restarted(Slot(0, 99))


def test_it_holds_as_much_as_its_page_says() -> None:
    pool = Prompts(1)
    pool.warm(1, text("a"))
    pool.fleet.kv_blocks[0], pool.fleet.block_size[0] = 80, 16
    pool.router.page_read(pool.slot(1), pool.now, pool.now)
    pool.warm(1, text("b", 10))
    assert pool.index.pairs == 20
    assert pool.held(text("b", 10)) == [10 * 64]


def told(cached: int, prompt: int = 20 * 64) -> Outcome:
    return Outcome(Cause.COMPLETE, 200, usage=Usage(prompt_tokens=prompt, cached_tokens=cached))


def test_answers_tell_how_well_it_was_foreseen() -> None:
    pool = Prompts(1)
    pool.warm(1, text("a"))
    pool.router.ended(pool.ask(text("a")).ticket, told(20 * 32), pool.now)
    assert (pool.router.expected_cached_tokens, pool.router.told_cached_tokens) == (20 * 64, 20 * 32)
    for usage in (Usage(), Usage(prompt_tokens=0, cached_tokens=5), Usage(prompt_tokens=5)):
        pool.router.ended(pool.ask(text("a")).ticket, Outcome(Cause.COMPLETE, 200, usage=usage), pool.now)
    assert pool.router.expected_cached_tokens == 20 * 64


def test_what_goes_on_from_a_dropped_block_is_dropped_too() -> None:
    pool = Prompts(1)
    pool.warm(1, text("a") + text("b"))
    pool.router.ended(pool.ask(text("a")).ticket, told(0), pool.now)
    assert pool.held(text("a") + text("b")) == [20 * 64]


def test_an_endpoint_that_caches_nothing_draws_nothing() -> None:
    pool = Prompts(3)
    for _ in range(60):
        pool.router.ended(pool.ask(text("a"), number=1).ticket, told(0), pool.now)
    assert len(pool.goes_to(text("a"))) == 3
    for _ in range(60):
        pool.router.ended(pool.ask(text("a"), number=2).ticket, told(20 * 64), pool.now)
    assert pool.goes_to(text("a")) == {"10.0.0.2:80"}


def test_before_proxies_prompts_are_not_compared() -> None:
    pool = Prompts(2)
    pool.warm(1, text("a"))
    pool.fleet.proxy[:2] = True
    decision = pool.ask(text("a"), number=1)
    assert pool.fleet.own_tokens[0] == 20 * 64
    assert not pool.fleet.matched_tokens.any()
    pool.ask(text("b"), number=2)
    assert pool.index.pairs == 20
    pool.router.ended(decision.ticket, BROKEN, pool.now)
    assert pool.index.pairs == 20


def test_short_prompts_and_no_prompts_are_not_compared() -> None:
    pool = Prompts(2)
    pool.warm(1, text("a"))
    for prompt in (b"", b"x", b"x" * (BLOCK - 1)):
        pool.decide(Question(path="/", prompt=prompt))
    assert not pool.fleet.matched_tokens.any()
    assert pool.index.pairs == 20


def test_several_pickers_have_the_same_key_for_all_turns_of_a_conversation() -> None:
    keys = set()
    system = text("system", 4)
    for seen in range(3):
        pool = Prompts(4, replicas=3)
        for number in range(1, 5):
            pool.warm(number, system)
        for turn in range(1, 1 + seen):
            pool.warm(2, system + text("talk", 3 * turn))
        pool.decide(Question(path="/", prompt=system + text("talk", 12)))
        keys.add(pool.fleet.prefix_key)
    assert len(keys) == 1
    assert keys != {0}


def test_without_sight_of_the_first_token_the_rest_drains() -> None:
    pool = Prompts(1)
    pool.warm(1, text("a"))
    pool.decide(Question(path="/", prompt=text("a") + text("b")), SEES_STATUS)
    assert pool.fleet.own_tokens[0] == pytest.approx(20 * 64)
    pool.router.tick(pool.now + 10)
    assert pool.fleet.own_tokens[0] == 0
