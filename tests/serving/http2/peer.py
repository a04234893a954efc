"""The client's side of a connection without I/O: frames to send, and what came back, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpack import Decoder, Encoder

from picker.serving.http2.connection import Connection, Limits
from picker.serving.http2.events import Message
from picker.serving.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HEADER_SIZE,
    HEADERS,
    MESSAGE_PREFIX,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    ErrorCode,
    Setting,
    frame,
    integer,
    settings,
)
from picker.serving.http2.messages import Gathering

if TYPE_CHECKING:
    from picker.serving.http2.events import Event

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

REQUEST = {
    ":method": "POST",
    ":scheme": "http",
    ":path": METHOD,
    ":authority": "picker",
    "te": "trailers",
    "content-type": "application/grpc",
}


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def block(**changes: str | None) -> bytes:
    """A request's header block that needs no state.

    ``changes`` are by name, with ``_`` for ``-`` and a leading ``_`` for ``:``; None leaves a header out.
    """
    wanted: dict[str, str | None] = {
        **REQUEST,
        **{
            (":" + name[1:] if name[0] == "_" else name).replace("_", "-"): to for name, to in changes.items()
        },
    }
    return encoded([(name, value) for name, value in wanted.items() if value is not None])


def encoded(headers: list[tuple[str, str]]) -> bytes:
    return Encoder().encode([(name, value, True) for name, value in headers])


def opening(stream_id: int = 1, *, flags: int = END_HEADERS, **changes: str | None) -> bytes:
    return frame(HEADERS, flags, stream_id, block(**changes))


def message(content: bytes, *, compressed: int = 0) -> bytes:
    return MESSAGE_PREFIX.pack(compressed, len(content)) + content


def data(stream_id: int, content: bytes, *, end: bool = False) -> bytes:
    """A message in a frame."""
    return frame(DATA, END_STREAM if end else 0, stream_id, message(content))


def taken_apart(output: bytes) -> list[Frame]:
    frames = []
    at = 0
    while at < len(output):
        high, low, kind, flags, stream_id = FRAME_HEADER.unpack_from(output, at)
        stop = at + HEADER_SIZE + (high << 8 | low)
        assert stop <= len(output), "a frame is cut"
        frames.append(Frame(kind, flags, stream_id, output[at + HEADER_SIZE : stop]))
        at = stop
    return frames


class Peer:
    """A client of one connection, which has said hello."""

    def __init__(
        self,
        *,
        hello: bool = True,
        limits: Limits | None = None,
        unfinished: int = 1 << 30,
        told: dict[Setting, int] | None = None,
    ) -> None:
        self.now = 100.0
        self.gathering = Gathering(unfinished)
        self.connection = Connection(limits or Limits(max_message=1 << 20), self.gathering, self.now)
        if hello:
            self.feed(PREFACE + settings(told or {}) + frame(SETTINGS, ACK, 0))
            self.sent()

    def feed(self, *parts: bytes) -> list[Event]:
        return self.connection.receive(b"".join(parts), self.now)

    def sent(self) -> list[Frame]:
        """All frames of the server since the last look."""
        return taken_apart(b"".join(self.connection.data_to_send()))

    def later(self, seconds: float) -> list[Event]:
        self.now += seconds
        return self.connection.tick(self.now)

    def goaway(self) -> ErrorCode | None:
        """Why the connection ended, if it did."""
        last = [frame for frame in self.sent() if frame.kind == GOAWAY]
        if not last:
            return None
        assert self.connection.ended
        return ErrorCode(integer(last[-1].payload[4:]))

    def reset(self, stream_id: int = 1) -> ErrorCode | None:
        """Why the stream was reset, if it was."""
        assert not self.connection.ended
        codes = [f.payload for f in self.sent() if (f.kind, f.stream_id) == (RST_STREAM, stream_id)]
        return ErrorCode(integer(codes[-1])) if codes else None

    def status(self, stream_id: int = 1) -> dict[str, str]:
        """The headers of all HEADERS frames of a stream."""
        headers: dict[str, str] = {}
        for sent in self.sent():
            if (sent.kind, sent.stream_id) == (HEADERS, stream_id):
                headers.update((str(name), str(value)) for name, value in Decoder().decode(sent.payload))
        return headers


def messages(events: list[Event]) -> list[bytes]:
    return [event.data for event in events if isinstance(event, Message)]
