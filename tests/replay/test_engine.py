"""The engine model, on cases that can be computed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.replay.engine import Engine, EngineModel
from tests.replay.support import SEQUENCE, STEP, TOKEN, Noted, Rig

if TYPE_CHECKING:
    from collections.abc import Sequence

close = pytest.approx


def test_a_short_prompt_takes_one_step() -> None:
    rig = Rig()
    job = rig.at(1.0, 100)
    rig.run()
    assert job.first_at == close(1.0 + STEP + 100 * TOKEN)
    assert job.end_at == job.first_at
    assert job.cached == 0


def test_a_long_prompt_is_computed_in_chunks_and_answered_token_by_token() -> None:
    rig = Rig()
    job = rig.at(0.0, 600, output=3)
    rig.run()
    assert job.first_at == close(3 * STEP + 600 * TOKEN)
    assert job.end_at == close(3 * STEP + 600 * TOKEN + 2 * (STEP + SEQUENCE))


def test_two_prompts_share_a_step_first_come_first_served() -> None:
    rig = Rig()
    first, second = rig.at(0.0, 100), rig.at(0.0, 200)
    rig.run()
    # The first began alone: the second arrived when its step was under way.
    assert first.first_at == close(STEP + 100 * TOKEN)
    assert second.first_at == close(2 * STEP + 300 * TOKEN)


def test_what_the_head_of_the_queue_leaves_of_a_step_goes_to_the_next() -> None:
    rig = Rig()
    rig.at(0.0, 10)
    second, third = rig.at(0.001, 300), rig.at(0.001, 100)
    rig.run()
    begin = STEP + 10 * TOKEN
    assert second.first_at == close(begin + 2 * STEP + (256 + 144) * TOKEN)
    assert third.first_at == second.first_at


def test_an_arrival_joins_with_the_next_step_and_slows_those_that_decode() -> None:
    rig = Rig()
    decoding = rig.at(0.0, 10, output=100)
    arrival = rig.at(0.1, 50)
    rig.run()
    prefilled, step = STEP + 10 * TOKEN, STEP + SEQUENCE
    boundary = prefilled
    while boundary < 0.1:
        boundary += step
    longer = STEP + 50 * TOKEN + SEQUENCE
    assert arrival.first_at == close(boundary + longer)
    assert decoding.end_at == close(prefilled + 98 * step + longer)


def test_a_cached_prefix_is_not_computed_again() -> None:
    rig = Rig()
    rig.at(0.0, 40, blocks=(1, 2))
    again = rig.at(1.0, 40, blocks=(1, 2))
    longer = rig.at(2.0, 70, blocks=(1, 2, 3, 4))
    other = rig.at(3.0, 40, blocks=(9, 2))
    rig.run()
    assert (again.cached, longer.cached, other.cached) == (32, 32, 0)
    assert again.first_at == close(1.0 + STEP + 8 * TOKEN)


def test_of_a_wholly_cached_prompt_one_token_is_computed() -> None:
    rig = Rig()
    rig.at(0.0, 32, blocks=(1, 2))
    again = rig.at(1.0, 32, blocks=(1, 2))
    rig.run()
    assert again.cached == 31
    assert again.first_at == close(1.0 + STEP + TOKEN)


def test_the_least_recently_used_blocks_make_room() -> None:
    rig = Rig(EngineModel(kv_tokens=100))
    rig.at(0.0, 40, blocks=(1, 2))
    rig.at(1.0, 40, blocks=(3, 4))
    rig.at(2.0, 40, blocks=(1, 2))  # used again
    rig.at(3.0, 60, blocks=(5, 6, 7))  # needs the room of the others
    kept, lost = rig.at(4.0, 16, blocks=(1,)), rig.at(5.0, 16, blocks=(3,))
    rig.run()
    assert kept.cached == 15
    assert lost.cached == 0


def test_a_request_waits_until_the_cache_has_room() -> None:
    rig = Rig(EngineModel(kv_tokens=100))
    first = rig.at(0.0, 80, output=10)
    second = rig.at(0.001, 50)
    rig.run()
    assert first.end_at is not None
    assert second.first_at == close(first.end_at + STEP + 50 * TOKEN)


def test_no_more_sequences_than_allowed_run_at_once() -> None:
    rig = Rig(EngineModel(sequences=2))
    for _ in range(3):
        rig.at(0.0, 10, output=20)
    rig.agenda.at(0.05, lambda: pages.append(rig.engine.page()))
    pages: list[object] = []
    rig.run()
    page = rig.engine.page()
    assert page.load == 0.0
    assert (pages[0].running, pages[0].queue) == (2.0, 1.0)  # type: ignore[attr-defined]


def test_the_latest_loses_its_place_when_the_cache_is_full_and_goes_on_later() -> None:
    rig = Rig(EngineModel(kv_tokens=100))
    first = rig.at(0.0, 40, output=30)
    second = rig.at(0.0, 40, output=30)
    rig.run()
    assert rig.engine.preemptions == 1
    assert first.end_at is not None
    assert second.end_at is not None
    assert second.first_at is not None
    # The second's prompt and what it had said are computed again when the first is through.
    assert second.end_at > first.end_at + STEP + 40 * TOKEN


def test_a_slow_engine_takes_longer_for_everything() -> None:
    rig = Rig(slowness=4.0)
    job = rig.at(0.0, 100, output=2)
    rig.run()
    assert job.end_at == close(4 * (2 * STEP + 100 * TOKEN + SEQUENCE))


def test_what_can_never_fit_is_not_taken() -> None:
    rig = Rig(EngineModel(kv_tokens=100))
    assert not rig.engine.submit(Noted(rig.agenda, 90, 11))


def test_a_page_tells_what_is_so_in_the_middle_of_many_like_steps() -> None:
    rig = Rig(EngineModel(kv_tokens=1000))
    rig.at(0.0, 100, output=200)
    seen: list[float] = []
    for time in (0.02, 0.5):
        rig.agenda.at(time, lambda: seen.append(rig.engine.page().kv_usage))
    rig.run()
    decoded = int((0.5 - STEP - 100 * TOKEN) / (STEP + SEQUENCE))
    assert seen == close([0.1, (100 + decoded) / 1000])
    page = rig.engine.page()
    assert (page.load, page.kv_usage, page.kv_blocks, page.block_size) == (0.0, 0.0, 62.0, 16.0)


_ODD = 0.010_031_7
"""Seconds. No sum of steps, so that nothing arrives just as a step ends, where rounding decides."""
_jobs = st.lists(
    st.tuples(
        st.integers(0, 40), st.integers(1, 60), st.integers(1, 30), st.lists(st.integers(0, 4), max_size=3)
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(_jobs)
def test_many_steps_taken_at_once_are_the_same_as_one_by_one(
    jobs: list[tuple[int, int, int, list[int]]],
) -> None:
    assert _ends(jobs, Engine._like_steps) == close(_ends(jobs, lambda _engine, _decoding: 1))


def _ends(jobs: Sequence[tuple[int, int, int, list[int]]], like_steps: object) -> list[float]:
    usual = Engine._like_steps
    try:
        Engine._like_steps = like_steps  # type: ignore[method-assign,assignment]
        rig = Rig(EngineModel(kv_tokens=120, chunk=32, sequences=3), block=8)
        for tick, prompt, output, path in jobs:
            # Whole blocks of 8 tokens, each id for the path up to it.
            ids = [hash((*path[: place + 1], place)) for place in range(min(len(path), prompt // 8))]
            rig.at(tick * _ODD, prompt, output, ids)
        rig.run()
    finally:
        Engine._like_steps = usual  # type: ignore[method-assign]
    return [
        time
        for job in rig.jobs
        for time in (job.first_at or -1.0, job.end_at or -1.0, float(job.cached or 0))
    ]
