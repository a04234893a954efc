"""What is in flight where, and that it is taken back exactly once."""

from __future__ import annotations

from random import Random

import pytest

from picker.routing.decision import Cause, Outcome
from picker.routing.history import STEP
from picker.routing.ledger import DEFAULT_PREFILL_RATE, DEFAULT_SERVICE_TIME
from tests.routing.support import OK, SEES_ALL, SEES_NOTHING, SEES_STATUS, UNSEEN, Pool

PROMPT = b"x" * 4 * 8000
TOKENS = 8000.0


def test_a_request_counts_from_its_decision_to_its_end_and_once() -> None:
    pool = Pool(1)
    ticket = pool.send_to(1)
    assert pool.fleet.own[0] == pool.router.in_flight == 1
    for outcome in (OK, OK, UNSEEN, Outcome(Cause.ABORTED)):
        pool.router.ended(ticket, outcome, pool.now)
    assert pool.fleet.own[0] == pool.router.in_flight == pool.fleet.untracked[0] == 0


def test_the_mean_prompt_begins_with_the_first_and_follows_slowly() -> None:
    pool = Pool(1)
    assert pool.fleet.mean_tokens == 0
    pool.send_to(1, prompt=PROMPT)
    assert pool.fleet.mean_tokens == TOKENS
    for _ in range(300):
        pool.send_to(1, prompt=PROMPT[: len(PROMPT) // 2])
    assert pool.fleet.mean_tokens == pytest.approx(TOKENS / 2, rel=0.01)


@pytest.mark.parametrize("cause", [Cause.COMPLETE, Cause.CLOSED, Cause.ABORTED])
def test_tokens_go_with_the_first_token_or_with_the_end(cause: Cause) -> None:
    pool = Pool(1)
    first, second = pool.send_to(1, prompt=PROMPT), pool.send_to(1, prompt=PROMPT)
    assert pool.fleet.own_tokens[0] == 2 * TOKENS
    pool.router.first_token(first, pool.now)
    pool.router.first_token(first, pool.now)
    assert pool.fleet.own_tokens[0] == TOKENS
    pool.router.ended(second, Outcome(cause), pool.now)
    pool.router.ended(first, OK, pool.now)
    assert pool.fleet.own_tokens[0] == 0
    pool.router.first_token(second, pool.now)
    assert pool.fleet.own_tokens[0] == 0


def test_the_first_in_line_is_worked_on_and_only_it() -> None:
    pool = Pool(1)
    first, second, third = (pool.send_to(1, prompt=PROMPT) for _ in range(3))
    pool.router.tick(pool.now + 0.5)
    assert pool.fleet.own_tokens[0] == pytest.approx(3 * TOKENS - DEFAULT_PREFILL_RATE / 2)
    pool.now += 5.0
    pool.router.tick(pool.now)
    assert pool.fleet.own_tokens[0] == 2 * TOKENS, "its answer is late, and nobody else's turn"
    pool.router.ended(second, Outcome(Cause.ABORTED), pool.now)
    assert pool.fleet.own_tokens[0] == TOKENS, "who gives up in the line does not change who is first"
    pool.router.first_token(first, pool.now)
    assert pool.fleet.own_tokens[0] == TOKENS
    pool.router.tick(pool.now + 0.25)
    assert pool.fleet.own_tokens[0] == pytest.approx(TOKENS - DEFAULT_PREFILL_RATE / 4, rel=0.01)
    pool.router.ended(third, OK, pool.now + 0.25)
    assert pool.fleet.own_tokens[0] == 0


def test_of_several_pickers_each_has_a_part_of_what_is_done() -> None:
    pool = Pool(1)
    pool.fleet.replicas = 4
    pool.send_to(1, prompt=PROMPT)
    pool.router.tick(pool.now + 0.5)
    assert pool.fleet.own_tokens[0] == pytest.approx(TOKENS - DEFAULT_PREFILL_RATE / 8)


def test_lines_and_draining_tokens_add_up() -> None:
    pool = Pool(1)
    seen = pool.send_to(1, prompt=PROMPT)
    pool.send_to(1, SEES_STATUS, PROMPT)
    assert pool.fleet.own_tokens[0] == pytest.approx(2 * TOKENS)
    pool.now += 0.5
    pool.router.tick(pool.now)
    assert pool.fleet.own_tokens[0] == pytest.approx(2 * TOKENS - DEFAULT_PREFILL_RATE)
    pool.router.first_token(seen, pool.now)
    assert pool.fleet.own_tokens[0] == pytest.approx(TOKENS - DEFAULT_PREFILL_RATE / 2)


def test_tokens_whose_first_answer_is_out_of_sight_drain() -> None:
    pool = Pool(2)
    pool.send_to(1, SEES_STATUS, PROMPT)
    pool.send_to(1, SEES_STATUS, PROMPT)
    assert pool.fleet.own_tokens[0] == pytest.approx(2 * TOKENS)
    pool.router.tick(pool.now + 0.5)
    assert pool.fleet.own_tokens[0] == pytest.approx(2 * TOKENS - DEFAULT_PREFILL_RATE / 2)
    pool.router.tick(pool.now + 2.5)
    assert pool.fleet.own_tokens[0] == 0


def test_an_early_end_takes_only_its_own_rest_of_draining_tokens() -> None:
    pool = Pool(1)
    first, second = pool.send_to(1, SEES_STATUS, PROMPT), pool.send_to(1, SEES_STATUS, PROMPT)
    pool.now += 0.25
    pool.router.ended(first, OK, pool.now)
    assert pool.fleet.own_tokens[0] == pytest.approx(TOKENS)
    pool.router.ended(second, OK, pool.now)
    assert pool.fleet.own_tokens[0] == pytest.approx(0)


def test_the_drain_is_learned_from_first_tokens() -> None:
    slow, fast = Pool(1), Pool(1)
    for _ in range(200):
        for pool, seconds in ((slow, 4.0), (fast, 0.25)):
            ticket = pool.send_to(1, prompt=PROMPT)
            pool.now += seconds
            pool.router.first_token(ticket, pool.now)
            pool.router.ended(ticket, OK, pool.now)
    for pool, rate in ((slow, 2_000), (fast, 32_000)):
        pool.send_to(1, SEES_STATUS, PROMPT)
        pool.router.tick(pool.now + 0.1)
        assert pool.fleet.own_tokens[0] == pytest.approx(TOKENS - 0.1 * rate, rel=0.02)


def test_an_end_only_ever_shows_a_faster_drain() -> None:
    pool = Pool(1)
    for _ in range(100):
        ticket = pool.send_to(1, SEES_STATUS, PROMPT)
        pool.now += 30  # mostly the answer's own length
        pool.router.ended(ticket, OK, pool.now)
    pool.send_to(1, SEES_STATUS, PROMPT)
    pool.router.tick(pool.now + 0.5)
    assert pool.fleet.own_tokens[0] == pytest.approx(TOKENS - DEFAULT_PREFILL_RATE / 2)


def drain_of(pool: Pool, number: int = 1) -> float:
    """Tokens a second by which those of a new request drain."""
    row = pool.slot(number).row
    pool.router.tick(pool.now)
    assert pool.fleet.own_tokens[row] == 0
    pool.send_to(number, SEES_STATUS, PROMPT)
    pool.router.tick(pool.now + 0.1)
    return float(TOKENS - pool.fleet.own_tokens[row]) * 10


@pytest.mark.parametrize(
    ("seconds_per_token", "expected"),
    [
        (1 / 2000, 2500.0),
        (0.0, DEFAULT_PREFILL_RATE),
        (1 / 32_000, DEFAULT_PREFILL_RATE),
    ],
)
def test_ends_show_a_slower_drain_by_how_they_grow_with_the_tokens(
    seconds_per_token: float, expected: float
) -> None:
    pool, rng = Pool(1), Random(1)
    for _ in range(600):
        tokens = rng.randrange(100, 8000)
        ticket = pool.send_to(1, SEES_STATUS, b"x" * 4 * tokens)
        pool.now += tokens * seconds_per_token + rng.uniform(3, 6)  # the answer's own length
        pool.router.ended(ticket, OK, pool.now)
    assert drain_of(pool) == pytest.approx(expected, rel=0.1)


def test_a_new_endpoint_is_taken_to_be_as_fast_as_the_others() -> None:
    pool = Pool(3)
    for _ in range(200):
        for number in (1, 2, 3):
            ticket = pool.send_to(number, prompt=PROMPT)
            pool.router.first_token(ticket, pool.now + 0.25)
            pool.router.ended(ticket, OK, pool.now + 0.25)
        pool.now += 0.3
    pool.add("10.0.0.4:80")
    assert drain_of(pool, 4) == pytest.approx(32_000, rel=0.02)


def assert_forgotten_at(pool: Pool, time: float, *numbers: int) -> None:
    """One request out of sight at each of these endpoints counts up to then, and no longer."""
    rows = [pool.slot(number).row for number in numbers]
    pool.router.tick(time - 0.01)
    assert pool.fleet.untracked[rows].tolist() == [1] * len(rows)
    pool.router.tick(time + 0.001)
    assert pool.fleet.untracked[rows].tolist() == [0] * len(rows)


def test_out_of_sight_it_is_assumed_to_run_for_a_while() -> None:
    pool = Pool(1)
    ticket = pool.send_to(1, SEES_NOTHING)
    pool.router.ended(ticket, UNSEEN, pool.now)
    assert pool.fleet.own[0] == pool.router.in_flight == 0
    assert pool.fleet.untracked[0] == 1
    assert_forgotten_at(pool, pool.now + DEFAULT_SERVICE_TIME, 1)


def test_that_while_is_learned_from_the_ends_that_are_seen() -> None:
    pool = Pool(2)
    pool.answer(1, OK, after=10.0)
    for number in (1, 2):  # the second endpoint, of which no end was seen, by the pool's
        ticket = pool.send_to(number, SEES_NOTHING)
        pool.router.ended(ticket, UNSEEN, pool.now)
    assert_forgotten_at(pool, pool.now + 10.0, 1, 2)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(Cause.ABORTED, status=200),
        Outcome(Cause.COMPLETE, status=500),
        Outcome(Cause.COMPLETE, status=503, back_pressure=True),
    ],
)
def test_failures_and_aborts_teach_no_service_time(outcome: Outcome) -> None:
    pool = Pool(1)
    pool.answer(1, outcome, after=0.1)
    pool.router.ended(pool.send_to(1, SEES_NOTHING), UNSEEN, pool.now)
    assert_forgotten_at(pool, pool.now + DEFAULT_SERVICE_TIME, 1)


def test_a_newer_page_speaks_for_what_is_out_of_sight() -> None:
    pool = Pool(1)
    for _ in range(3):
        pool.router.ended(pool.send_to(1, SEES_NOTHING), UNSEEN, pool.now)
        pool.now += 0.2
    pool.router.page_read(pool.slot(1), pool.now - 0.3, pool.now)
    assert pool.fleet.untracked[0] == 1, "two were sent before the time of the page"
    assert_forgotten_at(pool, pool.now - 0.2 + DEFAULT_SERVICE_TIME, 1)


def test_tokens_of_a_request_out_of_sight_go_on_draining() -> None:
    pool = Pool(1)
    pool.router.ended(pool.send_to(1, SEES_NOTHING, PROMPT), UNSEEN, pool.now)
    assert pool.fleet.own_tokens[0] == pytest.approx(TOKENS)
    pool.router.page_read(pool.slot(1), pool.now + 0.25, pool.now + 0.25)
    assert pool.fleet.own_tokens[0] == pytest.approx(TOKENS * 3 / 4)


def test_own_at_the_time_of_an_old_page_is_remembered() -> None:
    pool = Pool(1)
    start = pool.now
    tickets = []
    for second in range(30):
        pool.now = start + second
        tickets.append(pool.send_to(1))
    for age in (0.0, 2.0, 7.0, 11.0):
        pool.router.page_read(pool.slot(1), pool.now - age + 2 * STEP, pool.now)
        assert pool.fleet.own_at_page[0] == 30 - age
    pool.router.page_read(pool.slot(1), pool.now - 25, pool.now)
    assert pool.fleet.own_at_page[0] == 17, "beyond what is kept: the oldest that is"
    pool.now += 60
    pool.router.page_read(pool.slot(1), pool.now - 10, pool.now)
    assert pool.fleet.own_at_page[0] == 30, "nothing changed since long"


def test_own_requests_sent_while_a_page_is_fetched_are_not_others() -> None:
    pool = Pool(1)
    asked_at = pool.now
    tickets = []
    for _ in range(8):
        pool.now += 0.02
        tickets.append(pool.send_to(1))
    for ticket in tickets:
        pool.now += 0.02
        pool.router.ended(ticket, OK, pool.now)
    pool.router.page_read(pool.slot(1), asked_at, pool.now)
    assert pool.fleet.own_at_page[0] == 8
    pool.now += 5.0
    pool.router.page_read(pool.slot(1), pool.now, pool.now)
    assert pool.fleet.own_at_page[0] == 0
    pool.send_to(1)
    pool.router.page_read(pool.slot(1), pool.now - 4.0, pool.now)
    assert pool.fleet.own_at_page[0] == 0, "an old page is no long fetch"


def test_the_next_tenant_of_a_row_starts_with_nothing() -> None:
    pool = Pool(1)
    for _ in range(50):
        ticket = pool.send_to(1, prompt=PROMPT)
        pool.now += 0.1
        pool.router.first_token(ticket, pool.now)
        pool.router.ended(ticket, OK, pool.now)
    running = [pool.send_to(1, visibility, PROMPT) for visibility in (SEES_ALL, SEES_STATUS, SEES_NOTHING)]
    pool.router.ended(running[2], UNSEEN, pool.now)
    old = pool.slot(1)
    pool.fleet.remove(old)
    new = pool.add("10.0.0.1:80")
    assert new.row == old.row

    pool.now += 0.05
    ticket = pool.send_to(1, SEES_STATUS, PROMPT)
    pool.router.first_token(running[0], pool.now)
    for late in running:
        pool.router.ended(late, OK, pool.now)
    pool.router.page_read(old, pool.now, pool.now)
    assert pool.fleet.own[0] == pool.router.in_flight == 1
    assert pool.fleet.untracked[0] == 0
    assert pool.fleet.own_tokens[0] == pytest.approx(TOKENS)
    pool.router.page_read(new, pool.now - 1.0, pool.now)
    assert pool.fleet.own_at_page[0] == 0
    pool.router.tick(pool.now + 0.5)
    assert pool.fleet.own_tokens[0] == pytest.approx(TOKENS / 2), "the rate is not the old tenant's"
    pool.router.ended(ticket, OK, pool.now + 1)
    assert pool.router.in_flight == 0
