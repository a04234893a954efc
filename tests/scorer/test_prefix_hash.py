"""One number per prefix: the same everywhere, another for every other prompt, place and salt."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.prefix_hash import BlockHasher, hashes_of_ids

_TEXT = bytes(range(256)) * 2
_OF_TEXT = [0x885ACBDD091E5523, 0xFE761837A47AB5CC]
_OF_IDS = [0xDD4C44D2FB3DF31B, 0xA12C6B7A85433B5E, 0x9BC63CB56FA08BFA]


def _hashes(prompt: bytes, salt: bytes = b"", block: int = 16) -> list[int]:
    hashes: list[int] = BlockHasher(block).of_bytes(prompt, salt).tolist()
    return hashes


def test_the_numbers_never_change() -> None:
    # Replicas of different versions and machines have to agree.
    assert _hashes(_TEXT, b"llama", block=256) == _OF_TEXT
    assert hashes_of_ids(np.array([1, 2, 3], dtype=np.uint64), b"").tolist() == _OF_IDS


def test_another_process_gives_the_same() -> None:
    code = (
        "from scorer.prefix_hash import BlockHasher\n"
        "print(BlockHasher(16).of_bytes(b'The quick brown fox jumps over it', b'm').tolist())"
    )
    for seed in ("1", "2"):
        said = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert said.stdout.strip() == str(_hashes(b"The quick brown fox jumps over it", b"m"))


@pytest.mark.parametrize("block", [0, -8, 12])
def test_a_block_is_made_of_whole_words(block: int) -> None:
    with pytest.raises(ValueError, match=f"a positive multiple of 8 bytes, not {block}"):
        BlockHasher(block)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: type[bytes]) -> None:
    assert _hashes(kind(_TEXT)) == _hashes(_TEXT)


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=8))
def test_hashes_are_equal_as_far_as_the_prompts_are(prompt: bytes, other: bytes, salt: bytes) -> None:
    mine, theirs = _hashes(prompt, salt), _hashes(other, salt)
    assert len(mine) == len(prompt) // 16
    for place, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        end = (place + 1) * 16
        assert (a == b) == (prompt[:end] == other[:end])


@given(st.binary(min_size=16, max_size=200), st.binary(max_size=100))
def test_what_follows_changes_nothing_before(prompt: bytes, more: bytes) -> None:
    known = _hashes(prompt)
    assert _hashes(prompt + more)[: len(known)] == known


@given(st.binary(min_size=16, max_size=100), st.binary(max_size=8), st.binary(max_size=8))
def test_salts_keep_prompts_apart(prompt: bytes, salt: bytes, other: bytes) -> None:
    assert (_hashes(prompt, salt) == _hashes(prompt, other)) == (salt == other)
    if salt != other:
        assert not set(_hashes(prompt, salt)) & set(_hashes(prompt, other))


def test_equal_blocks_differ_by_their_place() -> None:
    assert len(set(_hashes(bytes(16 * 1000)))) == 1000


@pytest.mark.parametrize("text", [bytes(64), random.Random(1).randbytes(64)], ids=["zeros", "noise"])
def test_any_two_high_bits_changed_change_the_hash(text: bytes) -> None:
    # The weak spot of sums of products: high bits of two words that cancel each other.
    flips = [1 << 64 * word + bit for word in range(8) for bit in range(48, 64)]
    number = int.from_bytes(text, "little")
    variants = {
        number,
        *(number ^ flip for flip in flips),
        *(number ^ a ^ b for a, b in combinations(flips, 2)),
    }
    assert len({_hashes(variant.to_bytes(64, "little"), block=64)[0] for variant in variants}) == len(
        variants
    )


def test_texts_that_differ_little_have_hashes_of_their_own() -> None:
    texts = {f"user {number:>8}: hello".encode().ljust(64) for number in range(20_000)}
    found = {_hashes(text, block=64)[0] for text in texts}
    assert len(found) == len(texts)
    ones = sum(number.bit_count() for number in found) / len(found)
    assert 31 < ones < 33, "bits are set as often as not"
    assert len({number & 0xFFFF for number in found}) > 17_000, "and low bits spread over buckets"
    # 20,000 balls in 65,536 bins fill 65,536 (1 - e^-0.305) = 17,230 of them.


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_identifiers_are_hashed_like_blocks(ids: list[int], others: list[int]) -> None:
    mine = hashes_of_ids(np.array(ids, dtype=np.uint64), b"").tolist()
    theirs = hashes_of_ids(np.array(others, dtype=np.uint64), b"").tolist()
    for place, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        assert (a == b) == (ids[: place + 1] == others[: place + 1])
