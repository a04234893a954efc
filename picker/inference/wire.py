"""The two gRPC requests that can be read: vLLM's engine and Vertex AI's prediction service.

Only the few fields that tell the prompt are read off the protobuf wire; the definitions of those
services are large, and foreign. Field numbers are those of ``vllm/grpc/vllm_engine.proto``, of
``google/cloud/aiplatform/v1/prediction_service.proto`` and ``google/api/httpbody.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from picker.inference.scan import Body

_HEAD: Final = 5
"""Bytes before a gRPC message: whether it is compressed, and its length."""
_MOST_FIELDS: Final = 1_000
"""Fields of one message that are read; each takes about a microsecond."""
_LONGEST_VARINT: Final = 10
_MORE: Final = 0x80
"""The bit of a varint's byte that tells that another one follows."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_TOKENS: Final = 256 << 10
"""Bytes of token ids that are read; decoding so many takes a few milliseconds."""


class UnreadableError(Exception):
    """What keeps a message from being read, in a few words."""


def message(body: Body) -> memoryview:
    """The one message of a gRPC request's body."""
    view = memoryview(body)
    if len(view) < _HEAD or view[0] > 1:
        raise UnreadableError("not a gRPC message")
    if view[0]:
        raise UnreadableError("the gRPC message is compressed")
    length = int.from_bytes(view[1:_HEAD])
    if length != len(view) - _HEAD:
        raise UnreadableError("not exactly one gRPC message")
    return view[_HEAD:]


def vllm_request(request: memoryview) -> dict[str, Any]:
    """Of a GenerateRequest or EmbedRequest its ``text`` or ``tokens`` (each four bytes, little-endian)."""
    fields = dict(_fields(request))
    document: dict[str, Any] = {"stream": fields.get(5) == 1}
    if isinstance(tokenized := fields.get(2), memoryview):
        packed = (ids for ids in _values(tokenized, 2) if isinstance(ids, memoryview))
        document["tokens"] = _uint32s(b"".join(packed)[:_LONGEST_TOKENS])
    if isinstance(text := fields.get(3), memoryview):
        document["text"] = str(text, "utf-8", "replace")
    if isinstance(sampling := fields.get(4), memoryview):
        document["max_tokens"] = next(_values(sampling, 8), None)
    return document


def vertex_body(request: memoryview) -> Body:
    """The HTTP body inside a request of the prediction service: an OpenAI request as JSON."""
    http_body = dict(_fields(request)).get(2)
    data = dict(_fields(http_body)).get(2) if isinstance(http_body, memoryview) else None
    return data if isinstance(data, memoryview) else b""


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field of a protobuf message, but not of those of a fixed width."""
    position = 0
    for _ in range(_MOST_FIELDS):
        if position == len(data):
            return
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, position = _varint(data, position)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind, len(data) + 1)
        start, position = position, position + length
        if position > len(data):
            raise UnreadableError("not a protobuf message")
        if kind == _BYTES:
            yield tag >> 3, data[start:position]
    if position != len(data):
        raise UnreadableError("a protobuf message of too many fields")


def _values(data: memoryview, number: int) -> Iterator[int | memoryview]:
    return (value for field, value in _fields(data) if field == number)


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """The number that begins at ``position``, and where it ends."""
    value = 0
    for index, byte in enumerate(data[position : position + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < _MORE:
            return value, position + index + 1
    raise UnreadableError("not a protobuf message")


def _uint32s(packed: bytes) -> bytes:
    """Packed varints as numbers of four bytes; all at once, as a prompt may have very many of them."""
    data = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(data < _MORE)
    if not len(ends):
        return b""
    starts = np.concatenate(([0], ends[:-1] + 1))
    values = np.zeros(len(ends), np.uint32)
    for index in range(min(5, int((ends - starts).max()) + 1)):  # 32 bits take five bytes at most
        at = starts + index
        part = data[np.minimum(at, ends)].astype(np.uint32) & (_MORE - 1)
        values |= np.where(at <= ends, part << np.uint32(7 * index), 0).astype(np.uint32)
    return values.astype("<u4").tobytes()
