"""Names of objects as settings give them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.kube.names import parse_object_name, parse_pod_selector, parse_service_port


@pytest.mark.parametrize("text", ["a/b", "team-1/llm.v1", "a/" + "x" * 63])
def test_an_object(text: str) -> None:
    assert str(parse_object_name(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "/",
        "a/",
        "/b",
        "a/b/c",
        "A/b",
        "a/B",
        "a.b/c",
        "a/b_c",
        "a/-b",
        "a/b ",
        "a/" + "x" * 64,
        "ä/b",
    ],
)
def test_no_object(text: str) -> None:
    with pytest.raises(ValueError, match="should be namespace/name"):
        parse_object_name(text)


@pytest.mark.parametrize(("text", "port"), [("a/b", ""), ("a/b:http", "http"), ("a/b:8000", "8000")])
def test_a_service(text: str, port: str) -> None:
    service = parse_service_port(text)
    assert (str(service), service.port) == (text, port)


@pytest.mark.parametrize("text", ["a/b:", "a/b:HTTP", "a/b:a:b", "a:80", ":80", "a/b:" + "x" * 16])
def test_no_service(text: str) -> None:
    with pytest.raises(ValueError, match="should"):
        parse_service_port(text)


@pytest.mark.parametrize(
    "text", ["a/app=llm:8000", "a/app=llm,llm-d.ai/role in (decode, both):8000,8001", "a/!x:1", "a/x!=y:1"]
)
def test_pods(text: str) -> None:
    assert str(parse_pod_selector(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a/b", "a/b=c", "a/b=c:", "a/:80", "/b=c:80", "b=c:80", "A/b=c:80", "a/b=c:x", "a/b=c:0"),
        *("a/b=c:80,", "a/b=c:80,80", "a/b=c:99999", "a/b=c&d:80", "a/b=c:1,2,3,4,5,6,7,8,9"),
    ],
)
def test_no_pods(text: str) -> None:
    with pytest.raises(ValueError, match="should"):
        parse_pod_selector(text)


@given(st.text(alphabet="ab/:=,1 ", max_size=12))
def test_what_is_read_is_written_alike(text: str) -> None:
    for parse in (parse_object_name, parse_service_port, parse_pod_selector):
        with contextlib.suppress(ValueError):
            assert parse(str(parse(text))) == parse(text)
