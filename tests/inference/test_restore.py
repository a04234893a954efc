"""The client's name of the model is put back, wherever the chunks of an answer end."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.inference.restore import ModelRestorer

if TYPE_CHECKING:
    from collections.abc import Sequence


def restored(
    chunks: Sequence[bytes], target: str = "llama-v2", incoming: str = "llama", *, end_apart: bool = False
) -> bytes:
    restorer = ModelRestorer(target, incoming)
    last = len(chunks) - 1
    pieces = [
        piece
        for index, chunk in enumerate(chunks)
        for piece in restorer.feed(memoryview(chunk), end=index == last and not end_apart)
    ]
    if end_apart:
        pieces += restorer.feed(memoryview(b""), end=True)
    return b"".join(pieces)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no JSON",
        b'{"model":"llama-v2-large"}',
        b'{"model":"other"}',
        b'{"model":7}',
        b'{"model":null}',
        b'{"model":["llama-v2"]}',
        b'{"models":"llama-v2"}',
        b'{"a model":"llama-v2"}',
        rb'{"content":"\"model\":\"llama-v2\""}',
        b'{"content":"llama-v2"}',
        b'{"model"' + b" " * 100 + b':"llama-v2"}',
        b'{"model":"llama-v2',
        b'{"model"',
        b'"mode',
    ],
)
def test_what_is_not_the_targets_name_is_left(answer: bytes) -> None:
    assert restored([answer]) == answer
    assert restored([answer[n : n + 1] for n in range(len(answer))] or [b""]) == answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"model":"llama-v2","x":1}', b'{"model":"llama","x":1}'),
        (b'{"model": "llama-v2"}', b'{"model": "llama"}'),
        (b'{"model"\n\t:\r\n "llama-v2"}', b'{"model"\n\t:\r\n "llama"}'),
        (b'{"response":{"model":"llama-v2"}}', b'{"response":{"model":"llama"}}'),
        (b'data: {"model":"llama-v2"}\n\n' * 3, b'data: {"model":"llama"}\n\n' * 3),
    ],
)
def test_every_member_with_the_targets_name_is_changed(answer: bytes, expected: bytes) -> None:
    assert restored([answer]) == expected
    assert restored([answer], end_apart=True) == expected


def test_names_are_written_as_json_writes_them() -> None:
    target, incoming = 'a"\\/é😀', 'b"\né'
    for ascii_only in (True, False):
        answer = json.dumps({"model": target, "x": 1}, ensure_ascii=ascii_only).encode()
        assert json.loads(restored([answer], target, incoming)) == {"model": incoming, "x": 1}


def test_what_is_not_changed_is_not_copied() -> None:
    chunk = memoryview(bytearray(b'{"id":1,"model":"llama-v2","choices":[]}\n\n'))
    pieces = ModelRestorer("llama-v2", "llama").feed(chunk, end=False)
    assert [piece.obj is chunk.obj for piece in pieces if isinstance(piece, memoryview)] == [True, True]


def test_only_the_beginning_of_a_match_is_held_back() -> None:
    restorer = ModelRestorer("llama-v2", "llama")
    assert b"".join(restorer.feed(memoryview(b'data: {"model":"lla'), end=False)) == b"data: {"
    assert restorer.feed(memoryview(b"ma-"), end=False) == []
    assert b"".join(restorer.feed(memoryview(b'v3"}'), end=False)) == b'"model":"llama-v3"}'
    blank = b'"model"' + b" " * 10_000
    assert b"".join(restorer.feed(memoryview(blank), end=False)) == blank


_PIECES = st.lists(
    st.sampled_from(
        [
            b'"model"',
            b'"',
            b":",
            b" ",
            b"model",
            b'"mo',
            b"m",
            b'"m"',
            b'"\xc3\xa9"',
            b"\\",
            b"{",
            b",",
            b"\n",
        ]
    ),
    max_size=25,
)


@given(_PIECES, st.sampled_from(["m", "model", "é", ""]), st.data())
@settings(max_examples=300, deadline=None)
def test_chunks_may_end_anywhere(pieces: list[bytes], target: str, data: st.DataObject) -> None:
    answer = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    bounds = [0, *cuts, len(answer)]
    chunks = [answer[a:b] for a, b in pairwise(bounds)]
    whole = restored([answer], target, "new")
    assert restored(chunks, target, "new", end_apart=data.draw(st.booleans())) == whole
    assert restored([answer[n : n + 1] for n in range(len(answer))] or [b""], target, "new") == whole
