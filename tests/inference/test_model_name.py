"""Where the model's name stands in a body: exactly where a parser takes it from."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.inference.model_name import model_span
from picker.inference.scan import LONGEST_PARSED

MANY = b'["s"' + b',"s"' * 3000 + b"]"
"""More strings than are walked over."""


def named(body: bytes, *, complete: bool = True) -> bytes | None:
    span = model_span(body, complete=complete)
    return None if span is None else body[slice(*span)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON",
        b"{}",
        b'["model"]',
        b'{"model"',
        b'{"messages":[{"model":"m"}]}',
        b'{"a":"\\"model\\":\\"m\\""}',
        b'{"models":"m","mode":"l"}',
        b'\0\0\0\0\x0f\x12\x0d{"model":"m"}',
        b'{"x":' + MANY + b"}",
        b'{"x":' + MANY + b',"y":{"model":"m"},"z":' + MANY + b"}",
        b'{"x":' + MANY + b',"model":"m"',
        b'["' + MANY + b'","model"]',
        b'{"x":' + MANY + b',"model":"\xff","y":' + MANY + b"}",
    ],
)
def test_where_no_model_is_named_there_is_nothing(body: bytes) -> None:
    assert named(body) is None


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"model":"m"}', b'"m"'),
        (b' { "model" : "m" , "x" : 1 } ', b'"m"'),
        (rb'{"mod\u0065l":"m\"x"}', rb'"m\"x"'),
        (b'{"model":"a","model":"b"}', b'"b"'),
        (b'{"model":"a","x":{"model":"b"}}', b'"a"'),
        (rb'{"x":"\"model\":\"b\"","model":"a","y":"model"}', b'"a"'),
        (b'{"model":null}', b"null"),
        (b'{"model":""}', b'""'),
    ],
)
@pytest.mark.parametrize("around", ["", "front", "back", "both"])
def test_it_is_the_last_one_on_the_top_level(body: bytes, name: bytes, around: str) -> None:
    inside = body.strip()[1:-1].strip()
    front = b'"front":' + MANY + b"," if around in ("front", "both") else b""
    back = b',"back":' + MANY if around in ("back", "both") else b""
    assert named(b"{" + front + inside + back + b"}" if around else body) == name


def test_members_of_the_same_name_and_value_are_told_apart() -> None:
    nested = b'{"model":"m"},'
    body = b'{"x":' + MANY + b',"model":"m","y":[' + nested * 3 + MANY + b"]}"
    span = model_span(body, complete=True)
    assert span is not None
    assert body[: span[0]].endswith(MANY + b',"model":')
    for too_many in (9, 2000):
        body = b'{"x":' + MANY + b',"model":"m","y":[' + nested * too_many + MANY + b"]}"
        assert model_span(body, complete=True) is None


def test_a_long_body_is_scanned_from_both_ends() -> None:
    text = b'"' + b"a" * LONGEST_PARSED + b'"'
    assert named(b'{"model":"m","x":' + text + b"}") == b'"m"'
    assert named(b'{"x":' + text + b',"model":"m"}') == b'"m"'
    assert named(b'{"model":"m","x":' + text, complete=False) == b'"m"'
    assert named(b'{"model":"m', complete=False) is None


def test_a_body_of_very_many_containers_is_scanned_however_short() -> None:
    lists = b"[" + b"[]," * 40_000 + b"[]]"
    assert named(b'{"model":"m","x":' + lists + b"}") == b'"m"'
    assert named(b'{"x":' + lists + b',"model":"m"}') == b'"m"'
    assert named(b'{"x":' + lists + b',"model":"m","y":' + lists + b"}") is None


_VALUE = st.recursive(
    st.none() | st.integers(0, 9) | st.text(st.sampled_from('m"\\:{}model, '), max_size=6) | st.just("m"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "x", "m"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.lists(st.tuples(st.sampled_from(["model", "x", 'a"model']), _VALUE), max_size=5),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_putting_another_name_there_changes_what_a_parser_sees(
    members: list[tuple[str, Any]], before: bool, behind: bool, spaced: bool
) -> None:
    between = " \n: " if spaced else ":"
    written = [json.dumps(key) + between + json.dumps(value) for key, value in members]
    many = f'"many":{MANY.decode()}'
    body = ("{" + ", ".join([many] * before + written + [many] * behind) + "}").encode()
    span = model_span(body, complete=True)
    document = orjson.loads(body)
    if span is None:
        assert not isinstance(document.get("model"), str)
    else:
        other = orjson.loads(body[: span[0]] + b'"other"' + body[span[1] :])
        assert other == document | {"model": "other"}
