"""The hand-written paths give what protobuf gives, for every input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.extproc import messages
from picker.extproc._generated.base_pb2 import HeaderValue
from picker.extproc._generated.external_processor_pb2 import (
    CommonResponse,
    ProcessingRequest,
    ProcessingResponse,
)
from picker.routing.decision import Refusal
from tests.extproc.gateway import message

bodies = st.binary(max_size=300) | st.integers(120, 70_000).map(bytes)
contexts = st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=5), st.text(max_size=5)))


@given(bodies, st.booleans(), st.sampled_from(["request_body", "response_body"]), contexts)
def test_what_envoy_writes_is_read_without_protobuf(
    body: bytes, end: bool, phase: str, context: dict[str, dict[str, str]]
) -> None:
    raw = message(phase, body=body, end=end, metadata=context)
    read = messages.read_body_message(raw)
    assert read is not None
    tag, data, ends, rest = read
    assert (bytes(data), ends) == (body, end)
    assert tag == {"request_body": 0x22, "response_body": 0x2A}[phase]
    assert ProcessingRequest.FromString(rest) == ProcessingRequest.FromString(
        message(phase, metadata=context)[2:]
    )


def test_the_body_is_not_copied() -> None:
    raw = message("request_body", body=b"hello")
    read = messages.read_body_message(raw)
    assert read is not None
    assert read[1].obj is raw


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "empty"),
        (b"\x22", "no length"),
        (b"\x22\x05\x0a\x03ab", "cut off"),
        (b"\x22\x02\x0a\x05", "the body is longer than its message"),
        (b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a length beyond everything"),
        (b"\x22\x80\x80\x80\x80\x80\x00", "a length of six bytes"),
        (b"\x22\x02\x18\x01", "end_of_stream_without_message"),
        (b"\x22\x05\x10\x01\x0a\x01a", "fields in another order"),
        (b"\x22\x02\x10\x02", "a true that is not 1"),
        (b"\x22\x00\x22\x00", "two bodies"),
        (b"\x22\x00\x5a\x02\x08\x04", "the first message of a stream"),
        (b"\x12\x00", "headers"),
    ],
)
def test_anything_unusual_is_left_to_protobuf(raw: bytes, why: str) -> None:
    assert messages.read_body_message(raw) is None, why


pieces = st.one_of(
    st.binary(max_size=8),
    st.sampled_from(
        [b"\x22", b"\x2a", b"\x0a", b"\x10\x01", b"\x10\x00", b"\x02", b"\x42\x00", b"\x22\x04\x0a\x02ab"]
    ),
)


@given(st.lists(pieces, max_size=8).map(b"".join))
def test_what_is_read_by_hand_is_what_protobuf_reads(raw: bytes) -> None:
    read = messages.read_body_message(raw)
    if read is None:
        return
    tag, data, ends, rest = read
    parsed = messages.parse(raw)
    # Of the metadata only the frame is read by hand; the session parses it when it is new.
    if parsed is None:
        assert rest
        assert messages.parse(rest) is None
        return
    body = parsed.request_body if tag == messages.REQUEST_BODY else parsed.response_body
    assert parsed.WhichOneof("request") == (
        "request_body" if tag == messages.REQUEST_BODY else "response_body"
    )
    assert (bytes(data), ends) == (body.body, body.end_of_stream)


@given(bodies, st.booleans(), st.sampled_from([messages.REQUEST_BODY_ANSWER, messages.RESPONSE_BODY_ANSWER]))
def test_a_streamed_answer_is_what_protobuf_writes(body: bytes, end: bool, tag: int) -> None:
    wanted = ProcessingResponse()
    answer = wanted.request_body if tag == messages.REQUEST_BODY_ANSWER else wanted.response_body
    streamed = answer.response.body_mutation.streamed_response
    streamed.body = body
    streamed.end_of_stream = end
    if not body and not end:
        streamed.SetInParent()
    view = memoryview(body)
    segments = messages.streamed(tag, view, end_of_stream=end)
    assert b"".join(segments) == wanted.SerializeToString()
    assert not body or any(segment is view for segment in segments)


@given(bodies, st.booleans(), st.sampled_from(["request_body", "response_body"]), contexts, st.booleans())
def test_the_echo_of_a_chunk_is_the_streamed_answer(
    body: bytes, end: bool, phase: str, context: dict[str, dict[str, str]], known: bool
) -> None:
    raw = message(phase, body=body, end=end, metadata=context)
    beside = message(phase, metadata=context)[2:]
    echo = messages.echo_of_chunk(raw, beside if known else b"")
    usual = phase == "response_body" and 0 < len(body) < (16 << 10) - 8 and not end
    if usual and (known or not beside):
        answer = messages.streamed(messages.RESPONSE_BODY_ANSWER, body, end_of_stream=False)
        assert echo is not None
        assert b"".join(echo) == b"".join(answer)
    elif not usual and len(body) not in range((16 << 10) - 8, 16 << 10):
        assert echo is None


@given(st.lists(pieces, max_size=8).map(b"".join), st.sampled_from([b"", b"\x42\x00"]))
def test_what_is_echoed_is_a_whole_chunk(raw: bytes, beside: bytes) -> None:
    echo = messages.echo_of_chunk(raw, beside)
    if echo is not None:
        read = messages.read_body_message(raw)
        assert read is not None
        tag, data, ends, rest = read
        assert (tag, ends) == (messages.RESPONSE_BODY, False)
        assert rest in (b"", beside)
        answer = messages.streamed(messages.RESPONSE_BODY_ANSWER, data, end_of_stream=False)
        assert ProcessingResponse.FromString(b"".join(echo)) == ProcessingResponse.FromString(
            b"".join(answer)
        )


@given(st.lists(bodies, max_size=4))
def test_a_chunk_may_come_in_segments(segments: list[bytes]) -> None:
    parts = messages.streamed(messages.REQUEST_BODY_ANSWER, *segments, end_of_stream=True)
    whole = memoryview(b"".join(segments))
    assert b"".join(parts) == b"".join(
        messages.streamed(messages.REQUEST_BODY_ANSWER, whole, end_of_stream=True)
    )


@given(
    st.lists(bodies, max_size=4),
    st.sampled_from([messages.REQUEST_BODY_ANSWER, messages.RESPONSE_BODY_ANSWER]),
    st.sampled_from([(), (("content-length", "7"),)]),
    st.sampled_from(["", "10.0.0.1:8000"]),
)
def test_a_replaced_body_is_what_protobuf_writes(
    segments: list[bytes], tag: int, headers: tuple[tuple[str, str], ...], destination: str
) -> None:
    wanted = ProcessingResponse()
    part = wanted.request_body if tag == messages.REQUEST_BODY_ANSWER else wanted.response_body
    part.response.body_mutation.body = b"".join(segments)
    for name, value in ((messages.DESTINATION, destination), *headers):
        if value:
            part.response.header_mutation.set_headers.add(append_action=2).header.MergeFrom(
                HeaderValue(key=name, raw_value=value.encode())
            )
    if destination:
        wanted.dynamic_metadata.update({"envoy.lb": {messages.DESTINATION: destination}})
    parts = messages.body_replaced(tag, segments, headers, destination=destination)
    assert ProcessingResponse.FromString(b"".join(parts)) == wanted
    assert all(any(part is segment for part in parts) for segment in segments)


texts = st.text(max_size=5) | st.text("abc", min_size=120, max_size=140)


@given(st.sampled_from(["10.0.0.1:8000", "[::1]:1,10.0.0.2:8000"]), st.dictionaries(texts, texts, max_size=3))
def test_answers_to_headers_are_what_protobuf_writes(destination: str, headers: dict[str, str]) -> None:
    to_request, to_body, to_response = ProcessingResponse(), ProcessingResponse(), ProcessingResponse()
    _set(to_request.request_headers.response, {messages.DESTINATION: destination, **headers})
    _set(to_body.request_body.response, {messages.DESTINATION: destination})
    for answer in (to_request, to_body):
        answer.dynamic_metadata.update({"envoy.lb": {messages.DESTINATION: destination}})
    _set(to_response.response_headers.response, headers)
    to_response.response_headers.response.header_mutation.remove_headers.append("content-length")

    raw = messages.headers_with(destination, headers.items())
    assert ProcessingResponse.FromString(raw) == to_request
    assert ProcessingResponse.FromString(messages.body_to(destination)) == to_body
    raw = messages.response_headers(headers.items(), ["content-length"])
    assert ProcessingResponse.FromString(raw) == to_response


def _set(response: CommonResponse, headers: dict[str, str]) -> None:
    for name, value in headers.items():
        visible = "".join(char if " " <= char <= "~" else "?" for char in value)
        response.header_mutation.set_headers.add(append_action=2).header.MergeFrom(
            HeaderValue(key=name, raw_value=visible.encode())
        )


def test_what_is_set_cannot_break_a_header() -> None:
    raw = messages.headers_with("10.0.0.1:8000", [("x-request-id", "a\r\nb: \u00e9\udc80")])
    _, header = ProcessingResponse.FromString(raw).request_headers.response.header_mutation.set_headers
    assert header.header.raw_value == b"a??b: ??"


@pytest.mark.parametrize(
    ("raw", "phase"),
    [
        (messages.RESPONSE_HEADERS_CONTINUE, "response_headers"),
        (messages.REQUEST_BODY_CONTINUE, "request_body"),
        (messages.RESPONSE_BODY_CONTINUE, "response_body"),
    ],
)
def test_plain_answers(raw: bytes, phase: str) -> None:
    wanted = ProcessingResponse()
    getattr(wanted, phase).response.SetInParent()
    assert raw == wanted.SerializeToString()


@pytest.mark.parametrize(
    ("raw", "phase"),
    [
        (messages.REQUEST_TRAILERS_CONTINUE, "request_trailers"),
        (messages.RESPONSE_TRAILERS_CONTINUE, "response_trailers"),
    ],
)
def test_plain_answers_to_trailers(raw: bytes, phase: str) -> None:
    wanted = ProcessingResponse()
    getattr(wanted, phase).SetInParent()
    assert raw == wanted.SerializeToString()


def test_header_names_and_values_of_other_gateways() -> None:
    request = ProcessingRequest()
    headers = request.request_headers.headers
    headers.headers.add(key="X-Model", value="plain")
    headers.headers.add(key="x-both", value="plain", raw_value=b"raw")
    headers.headers.add(key="x-many", raw_value=b"1")
    headers.headers.add(key="X-Many", raw_value=b"2")
    headers.headers.add(key="x-bytes", raw_value=b"caf\xe9")
    assert messages.header_dict(headers) == {
        "x-model": "plain",
        "x-both": "raw",
        "x-many": "1,2",
        "x-bytes": "café",
    }


@pytest.mark.parametrize(
    ("status", "name", "grpc_status"),
    [
        (400, "BadRequest", 3),
        (429, "ResourceExhausted", 8),
        (503, "ServiceUnavailable", 14),
        (418, "Unknown", 2),
    ],
)
def test_a_refusal_says_what_the_reference_picker_says(status: int, name: str, grpc_status: int) -> None:
    refusal = Refusal(status, "rejected-saturated", "system saturated, sheddable request dropped")
    reply = ProcessingResponse.FromString(messages.immediate(refusal, grpc=True)).immediate_response
    assert reply.status.code == status
    assert reply.body.decode() == f"inference error: {name} - system saturated, sheddable request dropped"
    assert reply.grpc_status.status == grpc_status
    assert reply.details == "rejected-saturated"
    [header] = reply.headers.set_headers
    assert (header.header.key, header.header.raw_value) == (
        "x-llm-d-request-dropped-reason",
        b"rejected-saturated",
    )


def test_a_refusal_to_a_plain_client_sets_no_grpc_status() -> None:
    reply = ProcessingResponse.FromString(
        messages.immediate(Refusal(503, "", "x"), grpc=False)
    ).immediate_response
    assert not reply.HasField("grpc_status")
    assert not reply.headers.set_headers
    assert reply.details == "picker_ServiceUnavailable"


def test_what_is_wrong_with_a_request_is_no_reason_to_drop_it() -> None:
    raw = messages.immediate(Refusal(400, "unreadable-body", "no model"), grpc=False)
    reply = ProcessingResponse.FromString(raw).immediate_response
    assert not reply.headers.set_headers
    assert reply.details == "unreadable-body"


def test_a_reason_cannot_break_the_header() -> None:
    reply = messages.immediate(Refusal(503, "rejected-a b\r\nx: é", "\udc80"), grpc=False)
    [header] = ProcessingResponse.FromString(reply).immediate_response.headers.set_headers
    assert header.header.raw_value == b"rejected-a_b__x___"
