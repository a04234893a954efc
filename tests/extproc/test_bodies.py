from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from picker.extproc.bodies import CHUNK_OVERHEAD, BodyBudget, HeldBody, Splice, splice_chunks, split


def test_a_budget_gives_all_or_nothing() -> None:
    budget = BodyBudget(100)
    assert budget.take(60)
    assert not budget.take(41)
    assert budget.used == 60
    assert budget.take(40)
    budget.give(100)
    assert budget.used == 0


def test_one_chunk_is_given_whole_without_a_copy() -> None:
    chunk = memoryview(b"hello")
    held = HeldBody(100, BodyBudget(1000))
    assert held.hold(chunk)
    assert held.whole() is chunk


def test_one_byte_chunks_cost_what_they_cost() -> None:
    budget = BodyBudget(10 * (CHUNK_OVERHEAD + 1))
    held = HeldBody(1 << 20, budget)
    assert [held.hold(memoryview(b"x")) for _ in range(11)] == [True] * 10 + [False]
    assert bytes(held.whole()) == b"x" * 11
    held.release()
    assert budget.used == 0


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(0, 200), st.integers(0, 10_000))
def test_no_byte_is_lost_whatever_the_bounds(chunks: list[bytes], limit: int, total: int) -> None:
    budget = BodyBudget(total)
    held = HeldBody(limit, budget)
    for chunk in chunks:
        held.hold(memoryview(chunk))
        assert budget.used <= total
    assert bytes(held.whole()) == b"".join(chunks)
    assert held.release() == chunks
    assert (budget.used, held.size, held.release()) == (0, 0, [])


@given(st.binary(max_size=100), st.integers(1, 120))
def test_splitting(body: bytes, limit: int) -> None:
    pieces = split(memoryview(body), limit)
    assert b"".join(pieces) == body
    assert all(len(piece) <= limit for piece in pieces)
    assert all(len(piece) == limit for piece in pieces[:-1])


@given(
    st.binary(min_size=1, max_size=60),
    st.lists(st.integers(0, 60), max_size=6),
    st.integers(0, 60),
    st.integers(0, 60),
    st.binary(min_size=1, max_size=5),
)
def test_a_splice_is_the_same_however_the_body_is_cut(
    body: bytes, cuts: list[int], start: int, length: int, text: bytes
) -> None:
    start = min(start, len(body) - 1)
    splice = Splice(start, min(start + length, len(body)), text)
    bounds = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    chunks = [memoryview(body)[begin:end] for begin, end in pairwise(bounds)]
    wanted = body[: splice.start] + text + body[splice.stop :]
    segments = [segment for chunk in splice_chunks(chunks, splice) for segment in chunk]
    assert b"".join(segments) == wanted
    assert b"".join(splice.apply(memoryview(body))) == wanted
    assert len(wanted) == len(body) + splice.growth
    assert all(segment.obj is body for segment in segments if isinstance(segment, memoryview))
