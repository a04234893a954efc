"""A few of the fuzz program's cases, always the same ones: for many, ``python -m tests.fuzz``."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.mutate import Maker, captured
from tests.fuzz.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = 250


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.mark.parametrize("first", range(0, CASES, 50))
def test_a_picker_survives(world: World, first: int) -> None:
    for seed in range(first, first + 50):
        try:
            world.run(Maker(random.Random(seed)).case())
        except Exception as error:
            raise AssertionError(f"python -m tests.fuzz --seed {seed}") from error


def test_there_is_something_to_change() -> None:
    assert {len(frames) > 10 for frames in captured()} == {True}
    assert len(captured()) >= 5
