"""What happened on a connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(slots=True)
class StreamOpened:
    """A client began a call."""

    stream_id: int
    path: str


@final
@dataclass(slots=True)
class Message:
    """One whole message of the client."""

    stream_id: int
    data: bytes


@final
@dataclass(slots=True)
class HalfClosed:
    """The client sends nothing more on this stream."""

    stream_id: int


@final
@dataclass(slots=True)
class StreamEnded:
    """A finished stream's last bytes went out."""

    stream_id: int


@final
@dataclass(slots=True)
class StreamLost:
    """The client reset the stream, or broke it so that we did."""

    stream_id: int


@final
@dataclass(slots=True)
class ConnectionEnded:
    """Nothing more is read; what is left to send ends with GOAWAY. Every stream is lost."""

    reason: str


Event = StreamOpened | Message | HalfClosed | StreamEnded | StreamLost | ConnectionEnded
