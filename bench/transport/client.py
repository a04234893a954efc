"""A gRPC client that costs little and sends exactly the frames a load needs; it blocks."""

from __future__ import annotations

import socket
from typing import Self

from hpack import Encoder

from bench.transport.yardstick import SERVICE
from picker.serving.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HEADER_SIZE,
    HEADERS,
    MAX_WINDOW,
    MESSAGE_PREFIX,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Setting,
    frame,
    integer,
    read_settings,
    settings,
    window_update,
)

FRAME = 16_384
"""The largest payload Envoy sends."""
PATIENCE = 60.0
_STEP = 1 << 30

REQUEST = Encoder().encode(
    [
        (name, value, True)  # never indexed: the same bytes for every stream
        for name, value in (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/{SERVICE}/Process"),
            (":authority", "picker"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("x-forwarded-for", "127.0.0.1"),
        )
    ]
)


class ClientError(Exception):
    """The server ended the connection, or a stream otherwise than with an answer."""


class Client:
    """One connection. What is to be sent is given as frames; what comes back is only counted."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tail = b""
        self._next_id = 1
        self._credited = 0
        self._settled = False
        self._window = self._stream_window = 65_535
        self._initial_window = 65_535
        self.data = 0
        """Bytes of DATA so far."""
        self.answers = 0
        """Streams that were answered to the end."""
        self.send(
            PREFACE
            + settings({Setting.INITIAL_WINDOW_SIZE: MAX_WINDOW, Setting.HEADER_TABLE_SIZE: 0})
            + window_update(0, MAX_WINDOW - 65_535)
        )
        while not self._settled:
            self.receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()

    def open(self) -> tuple[int, bytes]:
        """A new stream's number, and the frame that opens it."""
        stream_id = self._next_id
        self._next_id += 2
        self._stream_window = self._initial_window
        return stream_id, frame(HEADERS, END_HEADERS, stream_id, REQUEST)

    def send(self, data: bytes) -> None:
        """Send frames as they are."""
        self._socket.sendall(data)

    def send_message(self, stream_id: int, message: bytes) -> None:
        """Send one message on the stream opened last, in Envoy's frames, as the windows allow."""
        data = MESSAGE_PREFIX.pack(0, len(message)) + message
        at = 0
        while at < len(data):
            stop = at + min(len(data) - at, self._window, self._stream_window)
            if stop <= at:
                self.receive()
                continue
            self._window -= stop - at
            self._stream_window -= stop - at
            cuts = range(at, stop, FRAME)
            self.send(b"".join(frame(DATA, 0, stream_id, data[cut : min(cut + FRAME, stop)]) for cut in cuts))
            at = stop

    def until_answered(self, count: int) -> None:
        """Wait for the ends of that many streams in all."""
        while self.answers < count:
            self.receive()

    def until_received(self, size: int) -> None:
        """Wait for that many bytes of DATA in all."""
        while self.data < size:
            self.receive()

    def receive(self) -> None:
        """Take what is there, or wait for it."""
        received = self._socket.recv(1 << 20)
        if not received:
            raise ClientError("the server closed the connection")
        data = self._tail + received
        at = 0
        while len(data) - at >= HEADER_SIZE:
            high, low, kind, flags, stream_id = FRAME_HEADER.unpack_from(data, at)
            stop = at + HEADER_SIZE + (high << 8 | low)
            if stop > len(data):
                break
            if kind == DATA:
                self.data += stop - at - HEADER_SIZE
            else:
                self._take(kind, flags, stream_id, data[at + HEADER_SIZE : stop])
            at = stop
        self._tail = data[at:]
        if self.data - self._credited > _STEP:
            self.send(window_update(0, self.data - self._credited))
            self._credited = self.data

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == HEADERS and flags & END_STREAM:
            self.answers += 1
        elif kind == WINDOW_UPDATE:
            if stream_id:
                self._stream_window += integer(payload)
            else:
                self._window += integer(payload)
        elif kind == SETTINGS and not flags & ACK:
            self._settled = True
            self._initial_window = dict(read_settings(payload)).get(
                Setting.INITIAL_WINDOW_SIZE, self._initial_window
            )
            self.send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY or (kind == RST_STREAM and integer(payload)):
            raise ClientError(f"frame {kind} on stream {stream_id}: {payload!r}")
