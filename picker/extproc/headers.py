"""Headers messages, read off the wire by hand: every request brings one or two of them.

As with body messages (:mod:`picker.extproc.messages`), what is not exactly of the form that Envoy
writes is left to protobuf, and both ways give the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from picker.extproc.wire import length_at

if TYPE_CHECKING:
    from picker.extproc._generated.base_pb2 import HeaderMap

# Tags of ProcessingRequest: field number << 3 | wire type (2 is length-delimited, 0 a varint).
REQUEST_HEADERS: Final = 0x12
RESPONSE_HEADERS: Final = 0x1A
HEADERS_TAGS: Final = (REQUEST_HEADERS, RESPONSE_HEADERS)
_BESIDE: Final = b"\x42\x4a\x5a"
"""The fields that stand beside a phase: metadata context, attributes, protocol config."""
# Tags of HttpHeaders, HeaderMap and HeaderValue.
_MAP: Final = 0x0A
_HEADER: Final = 0x0A
_KEY: Final = 0x0A
_RAW_VALUE: Final = 0x1A
_END_FALSE: Final = b"\x18\x00"
_END_TRUE: Final = b"\x18\x01"

_MORE: Final = 0x80
"""From here on a byte of a length says that another one follows."""


class HeadersMessage(NamedTuple):
    """A headers message of a request or a response.

    ``tag`` is REQUEST_HEADERS or RESPONSE_HEADERS; ``headers`` as :func:`header_dict` gives them;
    ``rest`` what followed in the message: serialized fields that stand beside the phase.
    """

    tag: int
    headers: dict[str, str]
    end_of_stream: bool
    rest: bytes


def read_headers_message(message: bytes) -> HeadersMessage | None:
    """Read a headers message. None: it is none, or an unusual one.

    Usual is what Envoy writes: the headers, then what stands beside them; in the headers the map, then
    ``end_of_stream``, left out where it is false; of each header the name and its ``raw_value``, left
    out where it is empty.
    """
    if not message or message[0] not in HEADERS_TAGS:
        return None
    stop, at = length_at(message, 1)
    rest = message[stop:] if stop >= 0 else b""
    if stop < 0 or (rest and not _stands_beside(rest)):
        return None
    end = at
    if at < stop and message[at] == _MAP:
        end, at = length_at(message, at + 1)
        if not at <= end <= stop:
            return None
    last = message[end:stop]
    if last and last not in (_END_TRUE, _END_FALSE):
        return None
    headers = _read_map(message, at, end)
    return None if headers is None else HeadersMessage(message[0], headers, last == _END_TRUE, rest)


def _read_map(message: bytes, at: int, stop: int) -> dict[str, str] | None:
    """The headers between two places, or None where one is unusual."""
    text = message.decode("latin-1")  # once for all, each byte a character at the same place
    found: dict[str, str] = {}
    while at < stop:
        # After ``stop`` there may be no byte, but then the entry that claims to be there is too long.
        if message[at] != _HEADER or stop - at < 4:  # noqa: PLR2004 - tag and length of header and name
            return None
        end = at + 2 + message[at + 1]
        key = at + 4
        if message[at + 1] >= _MORE:
            end, key = length_at(message, at + 1)
            key += 2
        if end > stop or key > end or message[key - 2] != _KEY:
            return None
        value = key + message[key - 1]
        name = text[key:value].lower()
        if message[key - 1] >= _MORE or not name.isascii() or value > end:
            return None
        content = ""
        if value < end:
            begin, length = value + 2, message[value + 1] if value + 1 < end else 0
            if length >= _MORE:
                reach, begin = length_at(message, value + 1)
            else:
                reach = begin + length
            if message[value] != _RAW_VALUE or reach != end:
                return None
            content = text[begin:end]
        found[name] = f"{found[name]},{content}" if name in found else content
        at = end
    return found


def _stands_beside(rest: bytes) -> bool:
    """Whether all of it is fields that belong to no phase."""
    at = 0
    while at < len(rest):
        if rest[at] not in _BESIDE:
            return False
        at, _ = length_at(rest, at + 1)
        if at < 0:
            return False
    return True


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
