"""The wire: frame types, flags, error codes, settings, and how a frame is put together (RFC 9113, 4, 6)."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of every client (3.4)."""

HEADER_SIZE = 9
PREFIX_SIZE = 5
"""Bytes before each gRPC message: whether it is compressed, and its length."""

# Frame types (6). Plain integers: they are compared for every frame.
DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

# Flags.
END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

DEFAULT_WINDOW = 65_535
"""Initial flow-control window of a stream and of the connection (6.9.2)."""
MAX_WINDOW = (1 << 31) - 1
DEFAULT_FRAME_SIZE = 16_384
"""Largest payload until settings say otherwise, and the least that they may say (6.5.2)."""
LARGEST_FRAME_SIZE = (1 << 24) - 1
MAX_STREAM_ID = (1 << 31) - 1


class Setting(IntEnum):
    """Identifiers of SETTINGS parameters (6.5.2)."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class ErrorCode(IntEnum):
    """Why a stream was reset or a connection ended (7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


FRAME_HEADER = Struct(">HBBBI")
"""A length of 24 bits as 16 and 8, type, flags, stream."""
MESSAGE_PREFIX = Struct(">BI")
MESSAGE_HEAD = Struct(">HBBBIBI")
"""A DATA frame's header and the prefix of the message in it."""
_INTEGER = Struct(">I")
_SETTING = Struct(">HI")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One whole frame."""
    length = len(payload)
    return FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    """Allow the peer to send ``increment`` more bytes; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _INTEGER.pack(increment))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """End a stream in both directions."""
    return frame(RST_STREAM, 0, stream_id, _INTEGER.pack(code))


def goaway(last_stream_id: int, code: ErrorCode, debug: str = "") -> bytes:
    """Streams above ``last_stream_id`` are not and will not be served."""
    return frame(GOAWAY, 0, 0, _INTEGER.pack(last_stream_id) + _INTEGER.pack(code) + debug.encode())


def settings(values: dict[Setting, int]) -> bytes:
    """Tell the peer our parameters."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Identifier and value of each parameter; the length must be a multiple of six."""
    return list(_SETTING.iter_unpack(payload))


def integer(payload: bytes) -> int:
    """The first four bytes as an unsigned number."""
    value: int = _INTEGER.unpack_from(payload)[0]
    return value
