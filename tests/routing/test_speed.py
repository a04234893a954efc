"""An endpoint that takes clearly longer for the same work is known for it, and not for ever."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from picker.routing.speed import MEMORY, MOST
from tests.routing.support import BROKEN, OK, SEES_ALL, SEES_STATUS, Pool

if TYPE_CHECKING:
    from picker.routing.decision import Visibility

RATE = 8000.0


def serve(pool: Pool, slow: dict[int, float], *, rounds: int = 40, visibility: Visibility = SEES_ALL) -> None:
    """Each endpoint gets a prompt and answers in time; those of ``slow`` take as many times longer."""
    rng = Random(1)
    for _ in range(rounds):
        for number in range(1, len(pool.fleet) + 1):
            tokens = rng.randrange(300, 3000)
            ticket = pool.send_to(number, visibility, b"x" * 4 * tokens)
            began = pool.now
            pool.now += slow.get(number, 1.0) * tokens / RATE * rng.uniform(0.9, 1.1)
            pool.router.first_token(ticket, pool.now)
            pool.router.ended(ticket, OK, pool.now)
            pool.now = began + 0.01
    pool.now += 1.0
    pool.router.tick(pool.now)


def slowness(pool: Pool) -> list[float]:
    return list(pool.fleet.slowness[: len(pool.fleet)].tolist())


@pytest.mark.parametrize("visibility", [SEES_ALL, SEES_STATUS])
@pytest.mark.parametrize("size", [2, 5])
def test_a_slow_one_is_known_by_first_tokens_or_by_ends(size: int, visibility: Visibility) -> None:
    pool = Pool(size)
    serve(pool, {2: 4.0}, rounds=120, visibility=visibility)
    assert slowness(pool)[1] == pytest.approx(4.0, rel=0.3)
    assert [times for row, times in enumerate(slowness(pool)) if row != 1] == [1.0] * (size - 1)


def test_small_differences_are_noise_and_a_fast_one_makes_nobody_slow() -> None:
    pool = Pool(5)
    serve(pool, {1: 1.15, 2: 0.2})
    assert slowness(pool) == [1.0] * 5


def test_it_is_bounded() -> None:
    pool = Pool(3)
    serve(pool, {1: 1000.0})
    assert slowness(pool)[0] <= MOST


def test_a_few_samples_prove_little() -> None:
    pool = Pool(3)
    serve(pool, {1: 1.6}, rounds=1)
    assert slowness(pool) == [1.0] * 3


def test_without_requests_it_is_forgotten_within_a_minute() -> None:
    pool = Pool(3)
    serve(pool, {1: 4.0})
    assert slowness(pool)[0] > 3
    pool.now += 6 * MEMORY
    pool.router.tick(pool.now)
    assert slowness(pool) == [1.0] * 3


def test_a_single_endpoint_has_nobody_to_be_compared_with() -> None:
    pool = Pool(1)
    serve(pool, {1: 4.0})
    assert slowness(pool) == [1.0]


def test_failures_are_not_fast() -> None:
    pool = Pool(3)
    for _ in range(100):
        for number in (1, 2, 3):
            pool.answer(number, BROKEN if number == 1 else OK, after=0.001 if number == 1 else 1.0)
    pool.router.tick(pool.now + 1)
    assert slowness(pool) == [1.0] * 3


def test_the_next_tenant_of_a_row_is_as_fast_as_any() -> None:
    pool = Pool(3)
    serve(pool, {1: 4.0})
    pool.fleet.remove(pool.slot(1))
    pool.add("10.0.0.9:80")
    assert slowness(pool)[0] == 1.0
    pool.router.tick(pool.now + 1)
    assert slowness(pool)[0] == 1.0


def test_answers_of_milliseconds_tell_no_speed() -> None:
    pool = Pool(2)
    for _ in range(200):
        for number, took in ((1, 0.002), (2, 0.010)):
            ticket = pool.send_to(number, SEES_STATUS)
            pool.now += took
            pool.router.ended(ticket, OK, pool.now)
    pool.now += 1.0
    pool.router.tick(pool.now)
    assert slowness(pool) == [1.0, 1.0]
