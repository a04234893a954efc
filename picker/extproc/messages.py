"""The messages of one stream on the wire: reading what the gateway sent, building what it is told.

Body messages are most of the traffic and all of its volume, so they are read by hand and their
bytes are passed on as a view of the message they came in; answers are put together from their bytes.
Everything else, and every body message that is not exactly of the form Envoy writes, goes through
protobuf. Both ways give the same. (Headers read by hand in Python take half as long again as by
protobuf, which is in C: 1.0 against 0.65 microseconds each.)

Envoy's rules kept here (Envoy 1.40, seen by running it):

* Header values count only as ``raw_value``; ``value`` would go out empty.
* In FULL_DUPLEX_STREAMED mode a body answer must be a ``streamed_response``, a plain one gives 500.
* A response without a set oneof gives 500, so an empty answer still holds an empty message.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from picker.extproc._generated.external_processor_pb2 import (
    ImmediateResponse,
    ProcessingRequest,
    ProcessingResponse,
)
from picker.extproc.bodies import split
from picker.extproc.wire import enclosed, length_at, varint

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from picker.extproc._generated.base_pb2 import HeaderMap
    from picker.extproc.effects import Buffer
    from picker.routing.decision import Refusal

DESTINATION: Final = "x-gateway-destination-endpoint"
DROPPED_REASON: Final = "x-llm-d-request-dropped-reason"
CONTENT_LENGTH: Final = "content-length"
REQUEST_ID: Final = "x-request-id"
SERVED_ECHO: Final = "x-conformance-test-served-endpoint"
_NAMESPACE: Final = "envoy.lb"

# Tags of ProcessingRequest: field number << 3 | wire type (2 is length-delimited, 0 a varint).
REQUEST_HEADERS: Final = 0x12
HEADERS_TAGS: Final = (b"\x12", b"\x1a")
REQUEST_BODY: Final = 0x22
RESPONSE_BODY: Final = 0x2A
_BODY_TAGS: Final = (REQUEST_BODY, RESPONSE_BODY)
_METADATA_CONTEXT: Final = 0x42
# Tags of HttpBody.
_BODY: Final = 0x0A
_END_TRUE: Final = b"\x10\x01"
_END_FALSE: Final = b"\x10\x00"

_MORE: Final = 0x80
"""From here on a byte of a length says that another one follows."""
_LONG: Final = _MORE + 2

# Whole answers that say "go on" for one phase: an empty CommonResponse, or an empty TrailersResponse.
RESPONSE_HEADERS_CONTINUE: Final = b"\x12\x02\x0a\x00"
REQUEST_BODY_CONTINUE: Final = b"\x1a\x02\x0a\x00"
RESPONSE_BODY_CONTINUE: Final = b"\x22\x02\x0a\x00"
REQUEST_TRAILERS_CONTINUE: Final = b"\x2a\x00"
RESPONSE_TRAILERS_CONTINUE: Final = b"\x32\x00"

# Tags of the body answers in ProcessingResponse, for `streamed`.
REQUEST_BODY_ANSWER: Final = 0x1A
RESPONSE_BODY_ANSWER: Final = 0x22
_REQUEST_HEADERS_ANSWER: Final = 0x0A
_RESPONSE_HEADERS_ANSWER: Final = 0x12
# Tags inside of answers: HeadersResponse and BodyResponse, CommonResponse, HeaderMutation,
# HeaderValueOption, HeaderValue.
_COMMON: Final = 0x0A
_HEADER_MUTATION: Final = 0x12
_BODY_MUTATION: Final = 0x1A
_SET_HEADERS: Final = 0x0A
_REMOVE_HEADERS: Final = 0x12
_HEADER: Final = 0x0A
_OVERWRITE: Final = b"\x18\x02"
_COPIED: Final = 1024
"""Bytes of a chunk below which one buffer costs less than two."""
_KEY: Final = 0x0A
_RAW_VALUE: Final = 0x1A


BodyMessage = tuple[int, memoryview, bool, bytes]
"""A request or response body message: its tag (REQUEST_BODY or RESPONSE_BODY), a view of the body in the
received message, whether it ends the stream, and what followed the body: the serialized metadata context,
or nothing."""


def read_body_message(message: bytes, known: bytes = b"") -> BodyMessage | None:  # noqa: PLR0911 - one for each thing that may be unusual
    """Read a body message without copying the body. None: it is no body message, or an unusual one.

    Usual is what Envoy writes: the body, then at most the metadata context; in the body the bytes,
    then ``end_of_stream``, either left out where it is empty or false, and lengths in their
    shortest form or not. ``known``: a metadata context that was read before.
    """
    if len(message) < 2 or message[0] not in _BODY_TAGS:  # noqa: PLR2004 - tag and length
        return None
    # Lengths of one byte are read in place: they are those of nearly all chunks of answers.
    position = 2
    stop = message[1] + 2
    if stop >= _LONG or stop > len(message):
        stop, position = length_at(message, 1)
        if stop < 0:
            return None
    rest = message[stop:]
    if rest and rest != known and not _is_metadata_context(rest):
        return None
    begin = end = position
    if position < stop and message[position] == _BODY:
        begin = position + 2
        end = begin + message[position + 1] if begin <= stop else -1
        if end - begin >= _MORE:
            end, begin = length_at(message, position + 1)
        if not begin <= end <= stop:
            return None
    if end == stop:
        return message[0], memoryview(message)[begin:end], False, rest
    last = message[end:stop]
    if last not in (_END_FALSE, _END_TRUE):
        return None
    return message[0], memoryview(message)[begin:end], last == _END_TRUE, rest


def _is_metadata_context(rest: bytes) -> bool:
    return rest[0] == _METADATA_CONTEXT and length_at(rest, 1)[0] == len(rest)


ECHO_BYTES: Final = 10
"""What :func:`echo_of_chunk` puts around a chunk, at least; around one of 118 bytes or more a few further."""


def echo_of_chunk(message: bytes, beside: bytes) -> tuple[bytes | memoryview, ...] | None:
    """The streamed answer that passes a response's chunk on as it came. None: it is not the usual one.

    Usual is a chunk that is not empty, does not end the body, is shorter than 16 KiB, and has the
    metadata ``beside`` it or none. HttpBody and StreamedBodyResponse number their fields alike, so that
    all between the tags stays as it is. It is copied only where it is short.
    """
    if len(message) < 5 or message[0] != RESPONSE_BODY:  # noqa: PLR2004 - tags, lengths, and one byte
        return None
    size, start = message[1], 2
    if size >= _MORE:
        size, start = size & 0x7F | message[2] << 7, 3
        if size >= _MORE << 7:
            return None
    if message[start] != _BODY:
        return None
    stop = start + size
    # What the body's length says, in one byte or two, must be what is left.
    length, begin = message[start + 1], start + 2
    if length >= _MORE:
        length, begin = length & 0x7F | message[start + 2] << 7, start + 3
    if not length or begin + length != stop or (stop != len(message) and message[stop:] != beside):
        return None
    if size < _COPIED:
        return (_echo_prefix(size) + message[start:stop],)
    return _echo_prefix(size), memoryview(message)[start:stop]


@lru_cache(maxsize=4096)
def _echo_prefix(size: int) -> bytes:
    return enclosed(b"", size, 0x1A, _BODY_MUTATION, _COMMON, RESPONSE_BODY_ANSWER)


def parse(message: bytes) -> ProcessingRequest | None:
    """Read any message by protobuf. None: it cannot be decoded."""
    try:
        return ProcessingRequest.FromString(message)
    except DecodeError:
        return None


def header_dict(headers: HeaderMap) -> dict[str, str]:
    """Headers by lower-case name, the values of a repeated one joined by a comma.

    Envoy fills ``raw_value`` and writes names in lower case; test clients and other gateways may
    fill ``value`` and write names as they like. Bytes are read as Latin-1, which never fails.
    """
    found: dict[str, str] = {}
    for header in headers.headers:
        name = header.key.lower()
        value = header.raw_value.decode("latin-1") or header.value
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def streamed(tag: int, *segments: Buffer, end_of_stream: bool) -> tuple[Buffer, ...]:
    """A body answer that passes ``segments`` on as one chunk, for FULL_DUPLEX_STREAMED.

    ``tag``: a ``*_BODY_ANSWER``.
    """
    size = len(segments[0]) if len(segments) == 1 else sum(map(len, segments))
    if not end_of_stream:
        return (_streamed_prefix(tag, size, 0), *segments)
    if size:
        return (_streamed_prefix(tag, size, 2), *segments, _END_TRUE)
    return (_streamed_prefix(tag, 0, 2), _END_TRUE)


def streamed_chunks(
    tag: int, chunk: Sequence[Buffer], limit: int, *, end_of_stream: bool
) -> list[tuple[Buffer, ...]]:
    """Body answers that pass a chunk on, which is given as its segments; none longer than ``limit``.

    Usually one; none at all for an empty chunk that ends nothing.
    """
    size = sum(map(len, chunk))
    if size <= limit:
        return [streamed(tag, *chunk, end_of_stream=end_of_stream)] if size or end_of_stream else []
    pieces = [piece for segment in chunk for piece in split(memoryview(segment), limit)]
    last = pieces.pop()
    answers = [streamed(tag, piece, end_of_stream=False) for piece in pieces]
    answers.append(streamed(tag, last, end_of_stream=end_of_stream))
    return answers


@lru_cache(maxsize=4096)
def _streamed_prefix(tag: int, size: int, trailing: int) -> bytes:
    """All that comes before the bytes of a streamed body; token chunks are often equally long.

    ``trailing``: how many bytes of the StreamedBodyResponse follow the body.
    """
    prefix = b"\x0a" + varint(size) if size else b""
    # streamed_response, body_mutation, response, and the answer's own field.
    return enclosed(prefix, size + trailing, 0x1A, 0x1A, 0x0A, tag)


def headers_with(destination: str, headers: Collection[tuple[str, str]]) -> bytes:
    """The answer to request headers that sends the request to ``destination`` and sets further headers."""
    option, metadata = _destination(destination)
    return (
        enclosed(option + _options(headers), 0, _HEADER_MUTATION, _COMMON, _REQUEST_HEADERS_ANSWER) + metadata
    )


def body_to(destination: str) -> bytes:
    """The answer to a BUFFERED request body that sends the request to ``destination`` instead."""
    option, metadata = _destination(destination)
    return enclosed(option, 0, _HEADER_MUTATION, _COMMON, REQUEST_BODY_ANSWER) + metadata


def body_replaced(
    tag: int, segments: Sequence[Buffer], headers: Collection[tuple[str, str]] = (), *, destination: str = ""
) -> tuple[Buffer, ...]:
    """The answer to a STREAMED or BUFFERED body message that puts ``segments`` in its place.

    ``tag``: a ``*_BODY_ANSWER``. Only in mode BUFFERED the headers have not left yet: there it may set
    ``headers``, and for a request another ``destination``; and must set the length where one stands.
    """
    size = sum(map(len, segments))
    option, metadata = _destination(destination) if destination else (b"", b"")
    options = option + _options(headers)
    common = enclosed(options, 0, _HEADER_MUTATION) if options else b""
    mutation = enclosed(b"\x0a" + varint(size), size, _BODY_MUTATION)
    prefix = enclosed(common + mutation, size, _COMMON, tag)
    return (prefix, *segments, metadata)


def response_headers(set_headers: Collection[tuple[str, str]], remove: Collection[str]) -> bytes:
    """The answer to response headers that changes some of them."""
    mutation = _options(set_headers) + b"".join(
        enclosed(name.encode(), 0, _REMOVE_HEADERS) for name in remove
    )
    return enclosed(mutation, 0, _HEADER_MUTATION, _COMMON, _RESPONSE_HEADERS_ANSWER)


@lru_cache(maxsize=4096)
def _destination(destination: str) -> tuple[bytes, bytes]:
    """What tells the gateway where to, twice: as a header to set, and as metadata."""
    response = ProcessingResponse()
    response.dynamic_metadata.update({_NAMESPACE: {DESTINATION: destination}})
    return _option(DESTINATION, destination), response.SerializeToString()


def _options(headers: Collection[tuple[str, str]]) -> bytes:
    return b"".join(_option(*header) for header in headers) if headers else b""


def _option(name: str, value: str) -> bytes:
    """One entry of ``HeaderMutation.set_headers``."""
    # Overwriting is said, not left to the default: other gateways append where it is unset, and a
    # value the client sent must never stay in force.
    raw = _visible(value)
    header = enclosed(name.encode(), 0, _KEY) + (enclosed(raw, 0, _RAW_VALUE) if raw else b"")
    return enclosed(enclosed(header, 0, _HEADER) + _OVERWRITE, 0, _SET_HEADERS)


def _visible(value: str) -> bytes:
    """A header's value in visible ASCII; for any other byte Envoy may reject the whole mutation."""
    if value.isascii() and value.isprintable():
        return value.encode()
    return "".join(char if " " <= char <= "~" else "?" for char in value).encode()


@lru_cache(maxsize=64)
def mode_override(request_body: int, response_body: int, response_trailers: int) -> bytes:
    """The field ``mode_override``, to be sent behind an answer to headers.

    An override replaces the whole mode, so the phases that shall stay as they are must be named.
    The response headers always stay: their status is what breakers live on.
    """
    response = ProcessingResponse()
    mode = response.mode_override
    mode.response_header_mode = mode.SEND
    # The generated enums are plain integers; the stubs know only their names.
    mode.request_body_mode = request_body  # type: ignore[assignment]
    mode.response_body_mode = response_body  # type: ignore[assignment]
    mode.response_trailer_mode = response_trailers  # type: ignore[assignment]
    return response.SerializeToString()


# What the reference picker calls the statuses in its texts, and the gRPC status of the same meaning.
_REFUSALS: Final = {
    400: ("BadRequest", 3),
    401: ("Unauthorized", 16),
    403: ("Forbidden", 7),
    404: ("NotFound", 5),
    412: ("PreconditionFailed", 9),
    429: ("ResourceExhausted", 8),
    500: ("Internal", 13),
    503: ("ServiceUnavailable", 14),
}
_UNKNOWN: Final = ("Unknown", 2)
_DROPPED: Final = ("rejected-", "evicted")
"""How the reasons begin that the drop-reason header knows; what is wrong with a request is no such reason."""


def immediate(refusal: Refusal, *, grpc: bool) -> bytes:
    """The answer that makes the gateway reply itself. ``grpc``: the client speaks gRPC."""
    name, grpc_status = _REFUSALS.get(refusal.status, _UNKNOWN)
    reply = ImmediateResponse(body=f"inference error: {name} - {refusal.message}".encode("utf-8", "replace"))
    reply.status.code = refusal.status  # type: ignore[assignment]  # a plain integer, see above
    reason = _token(refusal.reason)
    if reason.startswith(_DROPPED):
        reply.headers.MergeFromString(_option(DROPPED_REASON, reason))
    # Shown by the gateway's access log as %RESPONSE_CODE_DETAILS%.
    reply.details = reason or f"picker_{name}"
    if grpc:
        reply.grpc_status.status = grpc_status
    return ProcessingResponse(immediate_response=reply).SerializeToString()


def _token(text: str) -> str:
    """``text`` with what may not stand in a header's token replaced: Envoy rejects the whole mutation."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "_" for char in text)
