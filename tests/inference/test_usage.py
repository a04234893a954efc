"""What an answer says it used is read from every API's answers, wherever their chunks end."""

from __future__ import annotations

import gc
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.inference.surfaces import surface_named
from picker.inference.usage import Usage, UsageReader, usage_reader

if TYPE_CHECKING:
    from collections.abc import Iterable

SSE = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}


def read(chunks: Iterable[bytes], key: str = "usage") -> Usage | None:
    reader = UsageReader(key)
    for chunk in chunks:
        reader.feed(memoryview(chunk))
    return reader.end()


def events(*documents: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(document).encode() + b"\n\n" for document in documents)


# Bad input first.


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no JSON",
        b'{"usage"',
        b'{"usage":',
        b'{"usage":{',
        b'{"usage":{"prompt_tokens":1',
        b'{"usage":null}',
        b'{"usage":[]}',
        b'{"usage":{}}',
        b'{"usage":{"prompt_tokens":"7","completion_tokens":true,"prompt_tokens_details":7}}',
        b'{"usage":{"prompt_tokens":-1,"completion_tokens":1.5,"cached_tokens":' + b"9" * 40 + b"}}",
        b'{"usage":{"prompt_tokens":' + b"9" * 5000 + b"}}",
        b'{"usage":' + b'{"a":' * 5000,
        b'{"usage":{"a":"' + b"a" * 20_000 + b'","prompt_tokens":7}}',
        rb'{"content":"\"usage\":{\"prompt_tokens\":7}"}',
        b'{"usage":{"prompt_tokens":\xff\xfe}}',
    ],
)
def test_where_nothing_is_said_nothing_was_used(answer: bytes) -> None:
    assert read([answer]) is None


@given(st.lists(st.sampled_from([b'"usage"', b":", b" ", b"{", b'"prompt_tokens":3', b"}", b"\xff", b'"'])))
@settings(max_examples=100, deadline=None)
def test_nothing_raises(pieces: list[bytes]) -> None:
    assert read(pieces) == read([b"".join(pieces)])


@pytest.mark.parametrize(
    ("surface", "headers"),
    [
        ("chat", {}),
        ("chat", {"content-type": "text/html"}),
        ("chat", {"content-type": "application/grpc"}),
        ("chat", {**JSON, "content-encoding": "gzip"}),
        ("tokenize", JSON),
        ("passthrough", JSON),
    ],
)
def test_what_can_not_say_it_is_not_read(surface: str, headers: dict[str, str]) -> None:
    assert usage_reader(surface_named(surface), headers) is None


@pytest.mark.parametrize(
    ("surface", "headers"),
    [
        ("chat", SSE),
        ("messages", JSON),
        ("completions", {"content-type": "Application/JSON", "content-encoding": "identity"}),
        ("vertex-chat", {"content-type": "application/grpc"}),
    ],
)
def test_what_may_say_it_is_read(surface: str, headers: dict[str, str]) -> None:
    assert usage_reader(surface_named(surface), headers) is not None


# The answers of the APIs.

OPENAI = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
}
RESPONSES = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
}
META = {"id": "x", "finish_reason": {"type": "stop", "matched": "}"}, "prompt_tokens": 11, "cached_tokens": 4}
ALL = Usage(11, 7, 4)
ANSWERS = {
    "chat": (json.dumps({"choices": [{"message": {"content": "usage"}}], "usage": OPENAI}).encode(), ALL),
    "indented": (json.dumps({"choices": [], "usage": OPENAI}, indent=2).encode(), ALL),
    "no details": (
        b'{"usage":{"prompt_tokens":1,"completion_tokens":2,"prompt_tokens_details":null}}',
        Usage(1, 2),
    ),
    "embedding": (b'{"data":[],"usage":{"prompt_tokens":0}}', Usage(0)),
    "stream": (
        events({"choices": [1], "usage": None}, {"choices": [], "usage": OPENAI}) + b"data: [DONE]\n\n",
        ALL,
    ),
    "usage in every event": (
        events(*({"usage": OPENAI | {"completion_tokens": n}} for n in (1, 4, 7)), {"usage": None}),
        ALL,
    ),
    "responses": (json.dumps({"object": "response", "usage": RESPONSES}).encode(), ALL),
    "responses stream": (
        b"event: response.created\n"
        + events({"response": {"usage": None}})
        + b"event: response.completed\n"
        + events({"type": "response.completed", "response": {"output": ["a" * 9000], "usage": RESPONSES}}),
        ALL,
    ),
    "anthropic": (
        b'{"usage":{"input_tokens":5,"cache_read_input_tokens":4,"cache_creation_input_tokens":2,"output_tokens":7}}',
        ALL,
    ),
    "anthropic stream": (
        b"event: message_start\n"
        + events(
            {"message": {"usage": {"input_tokens": 7, "cache_read_input_tokens": 4, "output_tokens": 1}}},
            {"type": "content_block_delta", "delta": {"text": "usage"}},
            {"type": "message_delta", "usage": {"output_tokens": 7}},
            {"type": "message_stop"},
        ),
        ALL,
    ),
}


@pytest.mark.parametrize(("answer", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_usage_in_answers(answer: bytes, expected: Usage) -> None:
    assert read([answer]) == expected
    assert read(answer[n : n + 1] for n in range(len(answer))) == expected


@pytest.mark.parametrize("count", [1, 3])
def test_sglang_says_it_in_the_meta_info_of_every_event(count: int) -> None:
    answer = events(
        *(
            {"text": "a", "meta_info": META | {"completion_tokens": 7 * n // count}}
            for n in range(1, count + 1)
        )
    )
    surface = surface_named("sglang-generate")
    reader = usage_reader(surface, SSE)
    assert reader is not None
    reader.feed(memoryview(answer))
    assert reader.end() == ALL


@given(st.sampled_from(sorted(ANSWERS)), st.data())
@settings(max_examples=60, deadline=None)
def test_chunks_may_end_anywhere(name: str, data: st.DataObject) -> None:
    answer, expected = ANSWERS[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=5)))
    bounds = [0, *cuts, len(answer)]
    assert read(answer[a:b] for a, b in pairwise(bounds)) == expected


def test_a_long_answer_is_not_kept() -> None:
    reader = UsageReader()
    for _ in range(100):
        reader.feed(memoryview(b'{"usage":{' + b" " * 100_000))
    kept = gc.get_referents(reader)
    assert sum(len(value) for value in kept if isinstance(value, (bytes, bytearray))) < 40_000
    reader.feed(memoryview(b'"usage":{"prompt_tokens":3}'))
    assert reader.end() == Usage(3)


def test_of_very_many_names_the_last_counts() -> None:
    assert read([b'{"usage":null,' * 5000 + b'"usage":{"prompt_tokens":3}}']) == Usage(3)
