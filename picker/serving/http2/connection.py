"""One server-side HTTP/2 connection without I/O: bytes in, events out; messages in, bytes out.

Written for few connections with very many short streams, as a gateway makes them: what happens for
every frame is kept inline in one loop, and everything else is out of its way. Section numbers are
those of RFC 9113.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from picker.serving.http2 import frames, heads
from picker.serving.http2.events import (
    ConnectionEnded,
    HalfClosed,
    Message,
    StreamEnded,
    StreamLost,
    StreamOpened,
)
from picker.serving.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HEADER_SIZE,
    HEADERS,
    MAX_STREAM_ID,
    MAX_WINDOW,
    MESSAGE_PREFIX,
    PADDED,
    PING,
    PREFIX_SIZE,
    SETTINGS,
    WITH_PRIORITY,
    ErrorCode,
    Setting,
)
from picker.serving.http2.heads import HeadDecoder, Status
from picker.serving.http2.messages import Gathering, MessageError, MessageReader
from picker.serving.http2.outgoing import Outgoing, trailers_ok
from picker.serving.http2.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from picker.serving.contract import Buffer
    from picker.serving.http2.events import Event

STREAM_WINDOW = 16 << 20
"""What a client may send on a stream ahead of us. Envoy's own is as large."""
CONNECTION_WINDOW = 64 << 20
FRAME_SIZE = 1 << 20
"""The largest frame we take. Clients that use it save us work; Envoy never exceeds 16 KiB."""

_STREAM_STEP = STREAM_WINDOW // 4
_CONNECTION_STEP = CONNECTION_WINDOW // 4
"""Received bytes after which the peer is allowed as many again: rarely, but long before it must wait."""

STREAM_BACKLOG = 1 << 20
CONNECTION_BACKLOG = 16 << 20
"""Bytes waiting to be sent, above which the peer is not allowed to send more."""

_EARLY_ENDS = 4_096
"""Streams we ended before the client did, whose last frames may still be on their way."""

_IDLE_FRAMES = 1_000
"""Frames in one second that ask for nothing of use: pings, settings, empty data, unknown types."""
_CONTINUATIONS = 32
_SETTINGS_PARAMETERS = 64

HELLO_DEADLINE = 10.0
"""Seconds for the preface and the first settings, and for the rest of a header block once begun."""
KEEPALIVE_IDLE = 30.0
"""Seconds of silence after which the peer is asked whether it is still there."""
KEEPALIVE_DEADLINE = 20.0
_DRAIN_PING_DEADLINE = 2.0

_PRIORITY_SIZE = 5
_GOAWAY_SIZE = 8

_DRAIN_PING = b"draining"
_ALIVE_PING = b"alive???"

_OUR_SETTINGS = {
    Setting.HEADER_TABLE_SIZE: 0,
    Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    Setting.MAX_FRAME_SIZE: FRAME_SIZE,
    Setting.MAX_HEADER_LIST_SIZE: heads.MAX_HEADER_LIST,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may do."""

    max_message: int
    max_streams: int = 65_536


class _FaultError(Exception):
    """The peer broke the protocol so that the connection must end."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Connection:
    """See the module. ``now`` is in seconds of any monotonic clock.

    After every call ``data_to_send`` may have something. Streams that are over are not known any more,
    and what is asked for them is ignored.
    """

    __slots__ = (
        "_block",
        "_block_began",
        "_block_flags",
        "_block_frames",
        "_block_stream",
        "_data_ends",
        "_data_left",
        "_data_stream",
        "_decoder",
        "_drain_began",
        "_early_ends",
        "_ended",
        "_events",
        "_gathering",
        "_heard",
        "_idle_frames",
        "_last_id",
        "_last_served",
        "_limits",
        "_need",
        "_now",
        "_opened",
        "_outgoing",
        "_pinged",
        "_preface",
        "_readers",
        "_settings_acknowledged",
        "_settled",
        "_streams",
        "_tail",
        "_uncredited",
        "unanswered_resets",
    )

    def __init__(self, limits: Limits, gathering: Gathering, now: float) -> None:
        self._limits = limits
        self._gathering = gathering
        self._events: list[Event] = []
        self._streams: dict[int, Stream] = {}
        self._last_id = 0
        self._early_ends: OrderedDict[int, None] = OrderedDict()  # a dict is slow to lose its oldest entry
        self.unanswered_resets = 0
        """Streams that the client reset before it got any answer; whoever reads it may set it back."""

        # Incoming: what is read next.
        self._preface = frames.PREFACE  # what of it is still missing
        self._settled = False  # the peer's first settings are here
        self._settings_acknowledged = False
        self._tail = bytearray()  # the beginning of a frame
        self._need = HEADER_SIZE  # how long that must be to go on
        self._data_left = 0  # payload bytes of a DATA frame that are still to come
        self._data_stream: Stream | None = None
        self._data_ends = False
        self._block: bytearray | None = None  # a header block that CONTINUATION goes on with
        self._block_began = 0.0
        self._block_flags = self._block_frames = self._block_stream = 0
        self._decoder = HeadDecoder()
        self._uncredited = 0
        self._idle_frames = 0

        self._readers = {
            DATA: self._padded_data,  # other DATA is read as it comes
            HEADERS: self._headers,
            frames.PRIORITY: self._priority,
            frames.RST_STREAM: self._rst_stream,
            SETTINGS: self._settings,
            frames.PUSH_PROMISE: self._push_promise,
            PING: self._ping,
            frames.GOAWAY: self._goaway,
            frames.WINDOW_UPDATE: self._window_update,
            CONTINUATION: self._continuation,
        }

        # Outgoing.
        limits_told = {**_OUR_SETTINGS, Setting.MAX_CONCURRENT_STREAMS: limits.max_streams}
        self._outgoing = Outgoing()
        self._outgoing.write(frames.settings(limits_told))
        self._outgoing.write(frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW))

        # Time, and the end.
        self._opened = self._heard = self._now = now
        self._pinged: float | None = None
        self._drain_began: float | None = None
        self._last_served: int | None = None  # what the last GOAWAY said
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the connection is to be closed once everything is sent."""
        return self._ended or (self._last_served is not None and not self._streams)

    # Calls of the transport: bytes and time.

    def receive(self, data: Buffer, now: float) -> list[Event]:
        """Take bytes of the peer. Never raises, and keeps no reference to ``data``."""
        if self._ended:
            return []
        self._now = self._heard = now
        self._pinged = None
        if self._tail:
            self._tail += data
            if len(self._tail) < self._need:
                return []
            data = bytes(self._tail)
            self._tail.clear()
        try:
            position = self._read_preface(data) if self._preface else 0
            position = self._read(data, position)
            if self._uncredited > CONNECTION_WINDOW:
                raise _FaultError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window was exceeded")  # noqa: TRY301
        except _FaultError as fault:
            self._end(fault.code, str(fault))
        except heads.BlockTooLargeError as too_large:
            self._end(ErrorCode.ENHANCE_YOUR_CALM, str(too_large))
        except heads.BlockError as error:
            self._end(ErrorCode.COMPRESSION_ERROR, str(error))
        else:
            if position < len(data):
                self._tail += data[position:]
            self._credit_connection()
        return self._take_events()

    def data_to_send(self) -> list[Buffer]:
        """What is to be written now, in order. The buffers must not change until they are written."""
        return self._outgoing.take()

    def pause(self) -> None:
        """Hold messages back: the peer does not take what was written. Control frames still come."""
        self._outgoing.paused = True

    def resume(self) -> list[Event]:
        """Send messages again."""
        self._outgoing.paused = False
        self._pump_all()
        return self._take_events()

    def tick(self, now: float) -> list[Event]:
        """Look at what has its time; to be called about once a second."""
        if self._ended:
            return []
        self._now = now
        self._idle_frames = 0
        if not self._settled and now - self._opened > HELLO_DEADLINE:
            self._end(ErrorCode.SETTINGS_TIMEOUT, "no preface and settings in time")
        elif self._block is not None and now - self._block_began > HELLO_DEADLINE:
            self._end(ErrorCode.ENHANCE_YOUR_CALM, "a header block did not end in time")
        else:
            self._keep_alive(now)
        for stream in [stream for stream in self._streams.values() if stream.deadline <= now]:
            self._fail(stream, Status.DEADLINE_EXCEEDED, "the deadline of the client is over")
        if self._drain_began is not None and now - self._drain_began > _DRAIN_PING_DEADLINE:
            self._refuse_new_streams()
        return self._take_events()

    def drain(self, now: float) -> None:
        """Ask the peer to open no more streams (6.8). Those that are on their way are still served."""
        if self._drain_began is None and not self._ended:
            self._drain_began = now
            self._outgoing.write(frames.goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR))
            # When it comes back, the peer has seen the GOAWAY, and everything sent before is here.
            self._outgoing.write(frames.frame(PING, 0, 0, _DRAIN_PING))

    def close(self, reason: str) -> list[Event]:
        """End the connection."""
        self._end(ErrorCode.NO_ERROR, reason)
        return self._take_events()

    # Calls of the streams' owners.

    def send(self, stream_id: int, segments: Sequence[Buffer]) -> None:
        """Send one message, the concatenation of ``segments`` (views must be of bytes)."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.finishing:
            self._outgoing.send(stream, segments)

    def finish(self, stream_id: int) -> bool:
        """Close with status OK after what was sent; False if that has to wait (``StreamEnded`` comes)."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return True
        stream.finishing = True
        if stream.outbox is not None:
            return False
        self._close_ok(stream)
        return True

    def reset(self, stream_id: int, status: Status, message: str) -> None:
        """Close with an error at once, dropping what is not sent yet. No event follows."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if self._outgoing.retract(stream):
            block = heads.trailers(status, message, alone=not stream.headed)
            self._answer_last(stream, frames.frame(HEADERS, END_HEADERS | END_STREAM, stream_id, block))
        else:
            # Part of a message may be out, after which no status is read by a client.
            code = ErrorCode.INTERNAL_ERROR if status is Status.INTERNAL else ErrorCode.CANCEL
            self._drop(stream)
            self._reset_early(stream_id, code)

    # Reading frames.

    def _take_events(self) -> list[Event]:
        events = self._events
        if events:
            self._events = []
        return events

    def _read_preface(self, data: Buffer) -> int:
        part = bytes(data[: len(self._preface)])
        if not self._preface.startswith(part):
            raise _FaultError(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2 with prior knowledge")
        self._preface = self._preface[len(part) :]
        return len(part)

    def _read(self, data: Buffer, position: int) -> int:  # noqa: C901, PLR0912 - the hot loop, in one piece
        """Read all frames that are there, and of a DATA frame also its beginning; returns where that ends."""
        end = len(data)
        streams = self._streams
        unpack_header, unpack_prefix = FRAME_HEADER.unpack_from, MESSAGE_PREFIX.unpack_from
        max_message = self._limits.max_message
        while True:
            if self._data_left:
                if position == end:
                    return end
                position = self._read_payload(data, position)
                continue
            start = position + HEADER_SIZE
            if start > end:
                self._need = HEADER_SIZE
                return position
            high, low, kind, flags, stream_id = unpack_header(data, position)
            length = high << 8 | low
            stop = start + length
            if kind == DATA and flags <= END_STREAM and stop <= end and length >= PREFIX_SIZE:
                # The usual case: a frame that is one message, or the last one.
                stream = streams.get(stream_id)
                if stream is None or self._block is not None:
                    pass
                elif stream.simple:
                    compressed, size = unpack_prefix(data, start)
                    if size == length - PREFIX_SIZE and not compressed and size <= max_message:
                        self._uncredited += length
                        stream.uncredited += length
                        message = bytes(data[start + PREFIX_SIZE : stop])
                        self._events.append(Message(stream_id, message))
                        position = stop
                        if flags:
                            self._half_close(stream)
                        elif stream.uncredited > _STREAM_STEP:
                            self._credit(stream)
                        continue
                elif stream.reader is not None and stream.reader.missing > length and not flags:
                    # The next usual: one of the frames in the middle of a large message.
                    self._uncredited += length
                    stream.uncredited += length
                    self._extend(stream, stream.reader, data[start:stop])
                    position = stop
                    continue
            stream_id &= MAX_STREAM_ID
            self._check(kind, flags, stream_id, length)
            if kind == DATA and not flags & PADDED:
                self._begin_data(flags, stream_id, length)
                position = start
            elif stop <= end:
                self._frame(kind, flags, stream_id, bytes(data[start:stop]))
                position = stop
            else:
                self._need = HEADER_SIZE + length
                return position

    def _check(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Look at a frame's header, before its payload is waited for."""
        if length > FRAME_SIZE:
            raise _FaultError(ErrorCode.FRAME_SIZE_ERROR, "a frame is larger than we allowed")
        if not self._settled and (kind != SETTINGS or flags & ACK):
            raise _FaultError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if self._block is not None and (kind != CONTINUATION or stream_id != self._block_stream):
            raise _FaultError(ErrorCode.PROTOCOL_ERROR, "another frame within a header block")
        if kind in (HEADERS, CONTINUATION) and length > heads.MAX_HEADER_LIST:
            raise _FaultError(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        read = self._readers.get(kind)
        if read is None:
            self._idle_frame()
        else:
            read(flags, stream_id, payload)

    def _idle_frame(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > _IDLE_FRAMES:
            raise _FaultError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that say nothing")

    # DATA

    def _begin_data(self, flags: int, stream_id: int, length: int) -> None:
        """Account for a DATA frame whose payload follows."""
        self._uncredited += length
        stream = self._data_target(stream_id, flags)
        if stream is not None:
            stream.uncredited += length
            if stream.uncredited > _STREAM_STEP and not self._credit(stream):
                stream = None
        if length:
            self._data_left = length
            self._data_stream = stream
            self._data_ends = bool(flags & END_STREAM)
        elif not flags & END_STREAM:
            self._idle_frame()
        elif stream is not None:
            self._half_close(stream)

    def _data_target(self, stream_id: int, flags: int) -> Stream | None:
        """The stream that a DATA frame is for, or None if it is to be ignored."""
        stream = self._streams.get(stream_id)
        if stream is None:
            self._require_known(stream_id)
            if stream_id not in self._early_ends:
                self._idle_frame()
                self._outgoing.write(frames.rst_stream(stream_id, ErrorCode.STREAM_CLOSED))
            elif flags & END_STREAM:
                del self._early_ends[stream_id]
        elif stream.half_closed:
            self._lose(stream, ErrorCode.STREAM_CLOSED)
            return None
        return stream

    def _read_payload(self, data: Buffer, position: int) -> int:
        stop = min(position + self._data_left, len(data))
        self._data_left -= stop - position
        stream = self._data_stream
        if stream is None or not self._absorb(stream, data[position:stop]):
            return stop
        if self._data_ends and not self._data_left:
            self._half_close(stream)
        return stop

    def _padded_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        content = _without_padding(payload)
        self._begin_data(flags, stream_id, len(payload))
        self._data_left = 0
        stream = self._data_stream
        if stream is not None and self._absorb(stream, content) and self._data_ends:
            self._half_close(stream)

    def _absorb(self, stream: Stream, part: Buffer) -> bool:
        """Read messages the long way; False if the stream is over."""
        stream_id = stream.stream_id
        if self._streams.get(stream_id) is not stream:  # since the frame began
            return False
        if stream.content_left is not None:
            stream.content_left -= len(part)
            if stream.content_left < 0:
                self._lose(stream, ErrorCode.PROTOCOL_ERROR)
                return False
        if stream.refusal:
            return True
        if stream.reader is None:
            stream.reader = MessageReader(self._limits.max_message, self._gathering)
        try:
            for message in stream.reader.feed(part):
                self._events.append(Message(stream_id, message))
        except MessageError as error:
            self._fail(stream, error.status, str(error))
            return False
        stream.simple = stream.content_left is None and not stream.reader.partial
        return True

    def _extend(self, stream: Stream, reader: MessageReader, part: Buffer) -> None:
        """Read what belongs to a message and does not end it."""
        if stream.content_left is not None:
            self._absorb(stream, part)
            return
        try:
            reader.extend(part)
        except MessageError as error:
            self._fail(stream, error.status, str(error))
        else:
            if stream.uncredited > _STREAM_STEP:
                self._credit(stream)

    def _half_close(self, stream: Stream) -> None:
        stream.half_closed = True
        stream.simple = False
        if stream.content_left:
            self._lose(stream, ErrorCode.PROTOCOL_ERROR)
        elif stream.refusal:
            # Sent only now, as servers of plain HTTP do, since nobody waits for it earlier.
            refusal = frames.frame(HEADERS, END_HEADERS | END_STREAM, stream.stream_id, stream.refusal)
            self._answer_last(stream, refusal)
        elif stream.reader is not None and stream.reader.partial:
            self._fail(stream, Status.INTERNAL, "the last message is not complete")
        else:
            self._events.append(HalfClosed(stream.stream_id))

    # Headers

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise _FaultError(ErrorCode.PROTOCOL_ERROR, "a stream of a client has an odd number")
        if flags & PADDED:
            payload = _without_padding(payload)
        if flags & WITH_PRIORITY:
            if len(payload) < _PRIORITY_SIZE:
                raise _FaultError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS is too short for its priority")
            if frames.integer(payload) & MAX_STREAM_ID == stream_id:
                raise _FaultError(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
            payload = payload[_PRIORITY_SIZE:]
        if flags & END_HEADERS:
            self._head(flags, stream_id, payload)
        else:
            self._block = bytearray(payload)
            self._block_began = self._now
            self._block_flags = flags
            self._block_frames = 0
            self._block_stream = stream_id

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise _FaultError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        block += payload
        self._block_frames += 1
        if len(block) > heads.MAX_HEADER_LIST or self._block_frames > _CONTINUATIONS:
            raise _FaultError(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")
        if flags & END_HEADERS:
            self._block = None
            self._head(self._block_flags, stream_id, bytes(block))

    def _head(self, flags: int, stream_id: int, block: bytes) -> None:
        if stream_id > self._last_id:
            self._open(flags, stream_id, self._decoder.request(block))
            return
        valid = self._decoder.trailers_are_valid(block)  # decoded in any case, for HPACK's state
        stream = self._streams.get(stream_id)
        if stream is not None:
            if stream.half_closed:
                self._lose(stream, ErrorCode.STREAM_CLOSED)
            elif valid and flags & END_STREAM:
                self._half_close(stream)
            else:
                self._lose(stream, ErrorCode.PROTOCOL_ERROR)
        elif stream_id not in self._early_ends:
            raise _FaultError(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")
        elif flags & END_STREAM:
            del self._early_ends[stream_id]

    def _open(self, flags: int, stream_id: int, head: heads.Head) -> None:
        self._last_id = stream_id
        if head.malformed:
            self._reset_early(stream_id, ErrorCode.PROTOCOL_ERROR)
        elif self._last_served is not None or len(self._streams) >= self._limits.max_streams:
            self._reset_early(stream_id, ErrorCode.REFUSED_STREAM)
        else:
            stream = Stream(stream_id, self._outgoing.initial_window, head, self._now)
            self._streams[stream_id] = stream
            if not head.refusal:
                self._events.append(StreamOpened(stream_id, head.path))
            if flags & END_STREAM:
                self._half_close(stream)

    # The other frames

    def _priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise _FaultError(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
        self._idle_frame()
        if len(payload) != _PRIORITY_SIZE:
            self._break(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        elif frames.integer(payload) & MAX_STREAM_ID == stream_id:
            self._break(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        _require_size(payload, 4)
        self._require_known(stream_id)
        stream = self._streams.get(stream_id)
        if stream is not None:
            if not stream.headed:
                self.unanswered_resets += 1
            self._drop(stream)
            self._events.append(StreamLost(stream_id))
        elif stream_id in self._early_ends:
            del self._early_ends[stream_id]
        else:
            self._idle_frame()

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise _FaultError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        self._idle_frame()
        if flags & ACK:
            _require_size(payload, 0)
            if not self._settings_acknowledged:
                self._settings_acknowledged = True
                self._decoder.forget_table()
            return
        if len(payload) % 6:
            raise _FaultError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS is cut")
        parameters = frames.read_settings(payload)
        if len(parameters) > _SETTINGS_PARAMETERS:
            raise _FaultError(ErrorCode.ENHANCE_YOUR_CALM, "too many settings")
        for parameter, value in parameters:
            self._apply(parameter, value)
        self._settled = True
        self._outgoing.write(frames.frame(SETTINGS, ACK, 0))
        self._pump_all()

    def _apply(self, parameter: int, value: int) -> None:
        if parameter == Setting.INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise _FaultError(ErrorCode.FLOW_CONTROL_ERROR, "the initial window is too large")
            change = value - self._outgoing.initial_window
            self._outgoing.initial_window = value
            for stream in self._streams.values():
                stream.window += change
                if stream.window > MAX_WINDOW:
                    raise _FaultError(ErrorCode.FLOW_CONTROL_ERROR, "a window became too large")
        elif parameter == Setting.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME_SIZE <= value <= frames.LARGEST_FRAME_SIZE:
                raise _FaultError(ErrorCode.PROTOCOL_ERROR, "a maximum frame size out of bounds")
            self._outgoing.frame_size = value
        elif parameter == Setting.ENABLE_PUSH and value > 1:
            raise _FaultError(ErrorCode.PROTOCOL_ERROR, "a setting to push that is neither on nor off")

    def _push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise _FaultError(ErrorCode.PROTOCOL_ERROR, "clients do not push")

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _require_size(payload, 8)
        if stream_id:
            raise _FaultError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        self._idle_frame()
        if not flags & ACK:
            self._outgoing.write(frames.frame(PING, ACK, 0, payload))
        elif payload == _DRAIN_PING and self._drain_began is not None:
            self._refuse_new_streams()

    def _goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        # The client will open no more streams, and closes the connection by itself.
        if stream_id:
            raise _FaultError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < _GOAWAY_SIZE:
            raise _FaultError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is cut")
        self._idle_frame()

    def _window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        _require_size(payload, 4)
        increment = frames.integer(payload) & MAX_WINDOW
        if not stream_id:
            self._outgoing.window += increment
            if not increment:
                raise _FaultError(ErrorCode.PROTOCOL_ERROR, "a window update of nothing")
            if self._outgoing.window > MAX_WINDOW:
                raise _FaultError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large")
            self._pump_all()
            return
        self._require_known(stream_id)
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.window += increment
        if not increment:
            self._lose(stream, ErrorCode.PROTOCOL_ERROR)
        elif stream.window > MAX_WINDOW:
            self._lose(stream, ErrorCode.FLOW_CONTROL_ERROR)
        elif stream.outbox is not None:
            self._outgoing.pump(stream)
            self._pumped(stream)
            self._credit_connection()

    def _require_known(self, stream_id: int) -> None:
        """Refuse frames on the connection itself, and on streams that nobody opened."""
        if stream_id > self._last_id or not stream_id & 1:
            raise _FaultError(
                ErrorCode.PROTOCOL_ERROR, f"a frame on stream {stream_id}, which was never opened"
            )

    # Flow control of what comes

    def _credit(self, stream: Stream) -> bool:
        """Allow more on a stream, unless it does not take our answers; False if it took more than allowed."""
        if stream.uncredited > STREAM_WINDOW:
            self._lose(stream, ErrorCode.FLOW_CONTROL_ERROR)
            return False
        if stream.queued <= STREAM_BACKLOG:
            self._outgoing.write(frames.window_update(stream.stream_id, stream.uncredited))
            stream.uncredited = 0
        return True

    def _credit_connection(self) -> None:
        """Allow more on the connection, unless too many answers are not taken."""
        if self._uncredited > _CONNECTION_STEP and self._outgoing.queued <= CONNECTION_BACKLOG:
            self._outgoing.write(frames.window_update(0, self._uncredited))
            self._uncredited = 0

    # What goes

    def _pump_all(self) -> None:
        for stream in self._outgoing.pump_all():
            self._pumped(stream)
        self._credit_connection()

    def _pumped(self, stream: Stream) -> None:
        """Do what waited for a stream's messages to be sent."""
        if stream.outbox is None and stream.finishing:
            self._close_ok(stream)
            self._events.append(StreamEnded(stream.stream_id))
        elif stream.uncredited > _STREAM_STEP and not stream.half_closed:
            self._credit(stream)

    # Ends

    def _close_ok(self, stream: Stream) -> None:
        stream_id = stream.stream_id
        if stream.headed:
            self._answer_last(stream, trailers_ok(stream_id))
        else:
            block = heads.trailers(Status.OK, "", alone=True)
            self._answer_last(stream, frames.frame(HEADERS, END_HEADERS | END_STREAM, stream_id, block))

    def _answer_last(self, stream: Stream, ending: bytes) -> None:
        self._outgoing.write(ending)
        self._drop(stream)
        if not stream.half_closed:  # tell the client that we read no more (8.1)
            self._reset_early(stream.stream_id, ErrorCode.NO_ERROR)

    def _reset_early(self, stream_id: int, code: ErrorCode) -> None:
        self._outgoing.write(frames.rst_stream(stream_id, code))
        self._early_ends[stream_id] = None
        if len(self._early_ends) > _EARLY_ENDS:
            self._early_ends.popitem(last=False)

    def _fail(self, stream: Stream, status: Status, message: str) -> None:
        """End a stream by a gRPC status, and tell its owner."""
        self.reset(stream.stream_id, status, message)
        self._events.append(StreamLost(stream.stream_id))

    def _lose(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream whose client broke the protocol, and tell its owner."""
        self._drop(stream)
        self._reset_early(stream.stream_id, code)
        self._events.append(StreamLost(stream.stream_id))

    def _break(self, stream_id: int, code: ErrorCode) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._lose(stream, code)
        else:
            self._outgoing.write(frames.rst_stream(stream_id, code))

    def _drop(self, stream: Stream) -> None:
        del self._streams[stream.stream_id]
        if stream.reader is not None:
            stream.reader.release()
        if stream.outbox is not None:
            self._outgoing.forget(stream)
            self._credit_connection()

    def _refuse_new_streams(self) -> None:
        if self._last_served is None:
            self._last_served = self._last_id
            self._outgoing.write(frames.goaway(self._last_id, ErrorCode.NO_ERROR))

    def _keep_alive(self, now: float) -> None:
        if self._pinged is not None:
            if now - self._pinged > KEEPALIVE_DEADLINE:
                self._end(ErrorCode.NO_ERROR, "the peer is silent")
        elif now - self._heard > KEEPALIVE_IDLE:
            self._pinged = now
            self._outgoing.write(frames.frame(PING, 0, 0, _ALIVE_PING))

    def _end(self, code: ErrorCode, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._outgoing.write(frames.goaway(self._last_id, code, reason))
        for stream in tuple(self._streams.values()):
            self._drop(stream)
        self._tail.clear()
        self._block = None
        self._events.append(ConnectionEnded(reason))


def _require_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise _FaultError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {len(payload)} bytes, not {size}")


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise _FaultError(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]
