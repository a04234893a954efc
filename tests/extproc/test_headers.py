"""Headers read by hand are those that protobuf reads, and whatever is unusual is left to it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from picker.extproc._generated.external_processor_pb2 import ProcessingRequest
from picker.extproc.headers import header_dict, read_headers_message
from picker.extproc.metadata import beside, read_beside
from tests.extproc.gateway import message

names = st.text("abcXYZ-:", min_size=1, max_size=12) | st.text("ab", min_size=127, max_size=130)
values = st.binary(max_size=12) | st.integers(110, 300).map(bytes)
fields = st.lists(st.tuples(names, values), max_size=6)
contexts = st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=5), st.text(max_size=5)))


def written(
    phase: str, entries: list[tuple[str, bytes]], *, end: bool, metadata: dict[str, dict[str, str]]
) -> bytes:
    request = ProcessingRequest()
    part = getattr(request, phase)
    part.SetInParent()
    for key, raw in entries:
        part.headers.headers.add(key=key, raw_value=raw)
    part.end_of_stream = end
    return request.SerializeToString() + message("request_headers", metadata=metadata)[2:]


@given(st.sampled_from(["request_headers", "response_headers"]), fields, st.booleans(), contexts)
def test_what_envoy_writes_is_read_without_protobuf(
    phase: str, entries: list[tuple[str, bytes]], end: bool, metadata: dict[str, dict[str, str]]
) -> None:
    raw = written(phase, entries, end=end, metadata=metadata)
    parsed = ProcessingRequest.FromString(raw)
    read = read_headers_message(raw)
    if any(len(key) > 127 for key, _ in entries):
        assert read is None
        return
    assert read is not None
    assert read.headers == header_dict(getattr(parsed, phase).headers)
    assert (read.tag, read.end_of_stream) == ({"request_headers": 0x12, "response_headers": 0x1A}[phase], end)
    assert read_beside(read.rest) == beside(parsed)


pieces = st.one_of(
    st.binary(max_size=6),
    st.sampled_from(
        [
            b"\x12\x0d\x0a\x0b\x0a\x09\x0a\x03key\x1a\x02ab",
            b"\x0a\x09\x0a\x03key\x1a\x02ab",
            b"\x0a\x07\x0a\x03key\x12\x00",
            b"\x0a\x05\x0a\x03Key",
            b"\x0a\x04\x1a\x02ab",
            b"\x18\x01",
            b"\x12",
            b"\x1a",
            b"\x0a",
            b"\x42\x00",
        ]
    ),
)
nested = st.lists(pieces, max_size=5).map(b"".join)


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """Messages whose outer frames fit, most of the time, and whose inner ones may not."""
    entries = draw(nested)
    inner = bytes((0x0A, len(entries) & 0x7F)) + entries + draw(pieces)
    return bytes((draw(st.sampled_from([0x12, 0x1A])), len(inner) & 0x7F)) + inner + draw(nested)


@given(nested | broken())
@example(b"")
@example(b"\x12\x00")
@example(b"\x12\x04\x0a\x02\x0a\x00")
@example(b"\x12\x06\x0a\x04\x0a\x02\x0a\x00")
def test_what_is_read_by_hand_is_what_protobuf_reads(raw: bytes) -> None:
    read = read_headers_message(raw)
    if read is None:
        return
    try:
        parsed = ProcessingRequest.FromString(raw)
    except ValueError:
        # Of what stands beside the headers only the frames are read by hand.
        assert read_beside(read.rest) is None
        return
    phase = "request_headers" if read.tag == 0x12 else "response_headers"
    assert parsed.WhichOneof("request") == phase
    assert read.headers == header_dict(getattr(parsed, phase).headers)
    assert read.end_of_stream == getattr(parsed, phase).end_of_stream


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "empty"),
        (b"\x12", "no length"),
        (b"\x12\x05\x0a\x03ab", "cut off"),
        (b"\x12\x02\x0a\x05", "the map is longer than its message"),
        (b"\x12\x02\x18\x02", "a true that is not 1"),
        (b"\x12\x0b\x0a\x09\x0a\x07\x0a\x03key\x12\x00", "a plain value"),
        (b"\x12\x08\x0a\x06\x0a\x04\x1a\x02ab", "no name"),
        (b"\x12\x0a\x0a\x08\x0a\x06\x0a\x02\xc3\xa9\x1a\x00", "a name that is not ASCII"),
        (b"\x12\x00\x12\x00", "two of them"),
        (b"\x22\x00", "a body"),
    ],
)
def test_anything_unusual_is_left_to_protobuf(raw: bytes, why: str) -> None:
    assert read_headers_message(raw) is None, why


def test_header_names_and_values_of_other_gateways() -> None:
    request = ProcessingRequest()
    headers = request.request_headers.headers
    headers.headers.add(key="X-Model", value="plain")
    headers.headers.add(key="x-both", value="plain", raw_value=b"raw")
    headers.headers.add(key="x-many", raw_value=b"1")
    headers.headers.add(key="X-Many", raw_value=b"2")
    headers.headers.add(key="x-bytes", raw_value=b"caf\xe9")
    assert header_dict(headers) == {
        "x-model": "plain",
        "x-both": "raw",
        "x-many": "1,2",
        "x-bytes": "café",
    }


def test_what_stands_beside_is_decoded_or_nothing() -> None:
    assert read_beside(b"\x42\x01\xff") is None
    assert read_beside(b"\x42\x01\xff" * 1_000) is None
