"""Header blocks: requests are decoded once per distinct block, answers are encoded at import.

A gateway's requests to one service differ in little or nothing. We allow the peer no dynamic table
(SETTINGS_HEADER_TABLE_SIZE=0), so that once it has acknowledged that, a block means the same whenever
it comes, and what it means can be kept under its bytes. Until then HPACK has a state, and every block
goes through the decoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import quote

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple, OversizedHeaderListError

MAX_HEADER_LIST = 65_536
"""Bytes of one decoded header list, and of one block."""

_CACHE_ENTRIES = 256
_CACHED_BLOCK = 2_048
"""Longer blocks are not kept, so that the cache stays below a megabyte."""

_TIMEOUT_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT_DIGITS = 8
_LENGTH_DIGITS = 18
_REQUEST_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_OF_A_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)


class Status(IntEnum):
    """The gRPC status codes that this server gives by itself."""

    OK = 0
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class BlockError(Exception):
    """The block cannot be decoded; nothing after it can, either."""


class BlockTooLargeError(BlockError):
    """The header list is larger than we said we would take."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the headers of a request ask for."""

    path: str
    timeout: float | None = None
    """Seconds the client will wait."""
    content_length: int | None = None
    refusal: bytes = b""
    """A header block to answer with, where this is no gRPC request at all."""
    malformed: bool = False
    """The request breaks RFC 9113, 8.1: a stream error."""


class HeadDecoder:
    """Decodes the blocks of one connection."""

    __slots__ = ("_cache", "_decoder", "_stateless")

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_HEADER_LIST)
        self._stateless = False
        self._cache: dict[bytes, Head] = {}

    def forget_table(self) -> None:
        """The peer acknowledged that there is no dynamic table."""
        self._stateless = True
        self._decoder.max_allowed_table_size = 0
        # The peer must say so, too, at the start of its next block. One that never used the table may
        # not bother, and nothing is lost by that.
        self._decoder.header_table_size = 0

    def request(self, block: bytes) -> Head:
        """The head of a request. Raises ``BlockError``."""
        head = self._cache.get(block)
        if head is None:
            head = _request(self._headers(block))
            if self._stateless and len(block) <= _CACHED_BLOCK:
                if len(self._cache) >= _CACHE_ENTRIES:
                    del self._cache[next(iter(self._cache))]
                self._cache[block] = head
        return head

    def trailers_are_valid(self, block: bytes) -> bool:
        """Whether a block is fit to end a request. Raises ``BlockError``."""
        return not any(_is_malformed(name, value) or name[:1] == b":" for name, value in self._headers(block))

    def _headers(self, block: bytes) -> list[tuple[bytes, bytes]]:
        try:
            return [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as oversized:
            raise BlockTooLargeError(str(oversized)) from None
        except (HPACKError, IndexError, ValueError) as error:  # it looks at bytes that may not be there
            raise BlockError(f"header block: {error}") from None


def _request(headers: list[tuple[bytes, bytes]]) -> Head:
    pseudo: dict[bytes, bytes] = {}
    fields: dict[bytes, bytes] = {}
    malformed = False
    for name, value in headers:
        if name[:1] == b":":
            malformed |= bool(fields) or name in pseudo or name not in _REQUEST_PSEUDO
            pseudo[name] = value
        else:
            malformed |= _is_malformed(name, value)
            fields[name] = value
    path = pseudo.get(b":path", b"")
    malformed |= not path or not pseudo.get(b":scheme") or not pseudo.get(b":method")
    length = fields.get(b"content-length")
    if length is not None and not (length.isdigit() and len(length) <= _LENGTH_DIGITS):
        malformed = True
    refusal = b""
    if not _is_grpc(fields.get(b"content-type", b"")):
        refusal = _NO_GRPC
    elif pseudo.get(b":method") != b"POST":
        refusal = _NO_POST
    return Head(
        path.decode("latin-1"),
        _timeout(fields.get(b"grpc-timeout")),
        int(length) if length is not None and not malformed else None,
        refusal,
        malformed,
    )


def _is_malformed(name: bytes, value: bytes) -> bool:
    if not name or name != name.lower() or name in _OF_A_CONNECTION:
        return True
    if name == b"te":
        return value != b"trailers"
    return any(byte in value for byte in b"\0\r\n")


def _is_grpc(content_type: bytes) -> bool:
    rest = content_type.removeprefix(b"application/grpc")
    return rest != content_type and rest[:1] in (b"", b"+", b";")


def _timeout(value: bytes | None) -> float | None:
    """Seconds of a ``grpc-timeout``; one that cannot be read is as none, the client keeps its own time."""
    if not value or len(value) > _TIMEOUT_DIGITS + 1 or not value[:-1].isdigit():
        return None
    unit = _TIMEOUT_UNITS.get(value[-1:])
    return None if unit is None else int(value[:-1]) * unit


def _block(*headers: tuple[str, str]) -> bytes:
    # Never indexed, so that the block needs no state at the peer and suits every connection.
    return Encoder().encode([NeverIndexedHeaderTuple(*header) for header in headers], huffman=False)


_CONTENT_TYPE = ("content-type", "application/grpc")
_NO_GRPC = _block((":status", "415"))
_NO_POST = _block((":status", "405"), ("allow", "POST"))
ANSWER_HEAD = _block((":status", "200"), _CONTENT_TYPE)
"""The headers before the first message of an answer."""
TRAILERS_OK = _block(("grpc-status", "0"))


def trailers(status: Status, message: str, *, alone: bool) -> bytes:
    """The block that ends an answer; ``alone`` where no head was sent before (Trailers-Only)."""
    told = ("grpc-status", str(int(status))), ("grpc-message", quote(message, safe=" "))
    return _block((":status", "200"), _CONTENT_TYPE, *told) if alone else _block(*told)
