"""The scanner against a real parser, on documents nobody would write by hand."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.inference.scan import find_members, parse_beginning, quick_to_parse

WANTED = ("model", "stream", "messages")
_TEXT = st.text(st.sampled_from('ab"\\{}[]:, \n\té漢😀'), max_size=8)
_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**6) | st.floats(-1e9, 1e9) | _TEXT,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(_TEXT | st.sampled_from(WANTED), inner, max_size=4)
    ),
    max_leaves=15,
)
_DOCUMENT = st.dictionaries(st.sampled_from(WANTED) | _TEXT, _VALUE, max_size=6)


def written(document: dict[str, Any], ascii_only: bool, indent: int | None) -> bytes:
    return json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()


@given(_DOCUMENT, st.booleans(), st.sampled_from([None, 1]))
@settings(max_examples=60, deadline=None)
def test_it_finds_what_a_parser_finds(document: dict[str, Any], ascii_only: bool, indent: int | None) -> None:
    body = written(document, ascii_only, indent)
    members, whole = find_members(body, WANTED, complete=False)
    assert whole
    found = {key: orjson.loads(body[start:stop]) for key, (start, stop) in members.items()}
    assert found == {key: value for key, value in orjson.loads(body).items() if key in WANTED}


@given(_DOCUMENT, st.booleans(), st.sampled_from([None, 1]))
@settings(max_examples=60, deadline=None)
def test_what_the_front_does_not_reach_is_found_from_the_end(
    document: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    # The front stops at a number that is too long for it; what comes after can be seen from the end only.
    rest = written(document, ascii_only, indent)
    body = b'{"model": "first", "in the way": ' + b"1" * 5000 + (b"," + rest[1:] if document else b"}")
    members, whole = find_members(body, WANTED, complete=True)
    assert not whole
    found = {key: orjson.loads(body[start:stop]) for key, (start, stop) in members.items()}
    expected = {key: value for key, value in orjson.loads(rest).items() if key in WANTED}
    assert found == {"model": "first"} | expected


def test_the_end_stops_at_a_quote_whose_backslashes_it_can_not_count() -> None:
    members, whole = find_members(
        b'{"in the way": ' + b"1" * 5000 + b',"a":"' + b"\\" * 600 + b'"}', WANTED, complete=True
    )
    assert (members, whole) == ({}, False)


def test_names_with_escapes_are_the_names_they_mean() -> None:
    members, _ = find_members(rb'{"mod\u0065l": 1, "\ud800": 2, "model\"": 3}', WANTED, complete=True)
    assert list(members) == ["model"]


def test_of_repeated_members_the_last_counts() -> None:
    body = b'{"model": 1, "model": 2, "in the way": ' + b"1" * 5000 + b', "model": 3, "model": 4}'
    for end, value in ((b"", 4), (b" ", 4), (b"]", 2)):
        start, stop = find_members(body + end, WANTED, complete=True).members["model"]
        assert body[start:stop] == str(value).encode()


@given(_DOCUMENT, st.data())
@settings(max_examples=60, deadline=None)
def test_truncation_and_damage_never_raise(document: dict[str, Any], data: st.DataObject) -> None:
    body = written(document, ascii_only=False, indent=None)
    cut = data.draw(st.integers(0, len(body)))
    damage = data.draw(st.binary(max_size=3))
    for broken in (body[:cut], body[cut:], body[:cut] + damage + body[cut:]):
        for complete in (True, False):
            for start, stop in find_members(broken, WANTED, complete=complete).members.values():
                assert 0 <= start < len(broken)
                assert stop is None or start < stop <= len(broken)
        parse_beginning(broken)


@given(_VALUE, st.data())
@settings(max_examples=60, deadline=None)
def test_the_beginning_of_a_value_is_a_value_that_begins_like_it(value: Any, data: st.DataObject) -> None:
    raw = written(value, ascii_only=data.draw(st.booleans()), indent=None)
    cut = raw[: data.draw(st.integers(1, len(raw)))]
    if isinstance(value, (list, dict, str)):
        assert begins(parse_beginning(cut), value)


def begins(part: Any, whole: Any) -> bool:
    """Whether ``part`` is ``whole`` cut in reading order: equal but for its last leaf."""
    if isinstance(part, str) and isinstance(whole, str):
        return whole.startswith(part)
    if isinstance(part, list) and isinstance(whole, list):
        pairs = list(zip(part, whole, strict=False))
        ok = len(part) <= len(whole)
    elif isinstance(part, dict) and isinstance(whole, dict):
        pairs = list(zip(part.values(), whole.values(), strict=False))
        ok = list(part) == list(whole)[: len(part)]
    else:
        return bool(part == whole)
    return ok and all(a == b for a, b in pairs[:-1]) and all(begins(a, b) for a, b in pairs[-1:])


@pytest.mark.parametrize(
    ("body", "quick"),
    [
        (b'{"messages":[' + b'{"content":"a"},' * 5_000 + b'{}],"model":"m"}', True),
        (b'{"messages":[' + b'{"content":"a"},' * 10_000 + b'{}],"model":"m"}', False),
        (b'{"stop":[' + b'"a",' * 20_000 + b'"a"],"model":"m"}', True),
        (b'{"stop":[' + b'"a",' * 40_000 + b'"a"],"model":"m"}', False),
        (b'{"prompt":"' + b"a" * (1 << 20) + b'"}', False),
    ],
    ids=["messages", "too many messages", "strings", "too many strings", "too long"],
)
def test_a_body_that_would_take_long_to_parse_is_not(body: bytes, quick: bool) -> None:
    assert quick_to_parse(body) is quick
    assert quick_to_parse(memoryview(body)) is quick
