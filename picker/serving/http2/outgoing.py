"""What a connection sends: messages as the peer's windows allow, and control frames at once."""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING

from picker.serving.http2 import frames, heads
from picker.serving.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HEADER_SIZE,
    HEADERS,
    MESSAGE_HEAD,
    MESSAGE_PREFIX,
    PREFIX_SIZE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from picker.serving.contract import Buffer
    from picker.serving.http2.streams import Stream

_RETRACTED = 256
"""Buffers that are looked through to take back a stream's messages; beyond, the stream is only reset."""


def _fixed(flags: int, block: bytes) -> Callable[[int], bytes]:
    """Make HEADERS frames that differ in nothing but the stream."""
    packer = Struct(f">5sI{len(block)}s")
    head = frames.frame(HEADERS, flags, 0, block)[:5]
    return lambda stream_id: packer.pack(head, stream_id, block)


_answer_head = _fixed(END_HEADERS, heads.ANSWER_HEAD)
trailers_ok = _fixed(END_HEADERS | END_STREAM, heads.TRAILERS_OK)


class Outgoing:
    """The sending half of a connection."""

    __slots__ = (
        "_before",
        "_buffers",
        "_waiting",
        "frame_size",
        "initial_window",
        "paused",
        "queued",
        "window",
    )

    def __init__(self) -> None:
        self.window = self.initial_window = frames.DEFAULT_WINDOW
        self.frame_size = frames.DEFAULT_FRAME_SIZE
        self.paused = False
        """Messages are held back; control frames are not."""
        self.queued = 0
        """Bytes in the outboxes of all streams."""
        self._waiting: dict[int, Stream] = {}  # streams with an outbox, those served longest ago first
        self._buffers: list[Buffer] = []
        self._before = 0  # buffers given away earlier, so that a place in the list has a number for good

    def write(self, frame: bytes) -> None:
        """Send a control frame."""
        self._buffers.append(frame)

    def take(self) -> list[Buffer]:
        """Give away what is to be written now."""
        buffers = self._buffers
        if buffers:
            self._buffers = []
            self._before += len(buffers)
        return buffers

    def send(self, stream: Stream, segments: Sequence[Buffer]) -> None:
        """Send a message, or as much of it as is allowed."""
        length = 0
        for segment in segments:
            length += len(segment)
        total = length + PREFIX_SIZE
        stream_id = stream.stream_id
        buffers = self._buffers
        if not stream.headed:
            stream.headed = True
            buffers.append(_answer_head(stream_id))
        if (
            stream.outbox is None
            and total <= stream.window
            and total <= self.window
            and total <= self.frame_size
            and not self.paused
        ):
            stream.window -= total
            self.window -= total
            if stream.mark < self._before:
                stream.mark = self._before + len(buffers)
            buffers.append(MESSAGE_HEAD.pack(total >> 8, total & 0xFF, DATA, 0, stream_id, 0, length))
            buffers += segments
            return
        if stream.outbox is None:
            stream.outbox = deque()
            self._waiting[stream_id] = stream
        stream.outbox.append(MESSAGE_PREFIX.pack(0, length))
        stream.outbox.extend(segment for segment in segments if len(segment))
        stream.queued += total
        self.queued += total
        self.pump(stream)

    def pump(self, stream: Stream) -> None:
        """Send what the windows allow of a stream's outbox."""
        outbox = stream.outbox
        size = min(stream.window, self.window, stream.queued)
        if outbox is None or size <= 0 or self.paused:
            return
        stream.window -= size
        self.window -= size
        stream.queued -= size
        self.queued -= size
        self._frame_up(outbox, size, stream.stream_id)
        if not outbox:
            stream.outbox = None
            del self._waiting[stream.stream_id]

    def pump_all(self) -> list[Stream]:
        """Do so for all streams in turn; returns those that sent something."""
        pumped = []
        for stream in tuple(self._waiting.values()):
            if self.window <= 0 or self.paused:
                break
            if stream.window > 0:
                self._waiting[stream.stream_id] = self._waiting.pop(stream.stream_id)
                self.pump(stream)
                pumped.append(stream)
        return pumped

    def forget(self, stream: Stream) -> None:
        """Drop the outbox of a stream that is over."""
        if self._waiting.pop(stream.stream_id, None) is not None:
            self.queued -= stream.queued

    def retract(self, stream: Stream) -> bool:
        """Take back the messages that wait to be sent; False if that leaves a part of one.

        A client shows its user no status before it has handed over every message.
        """
        if stream.outbox is not None:
            return False
        buffers = self._buffers
        at = stream.mark - self._before
        if at < 0:
            return True
        if len(buffers) - at > _RETRACTED:
            return False
        while at < len(buffers):
            if not buffers[at]:  # an empty segment, or taken back
                at += 1
                continue
            high, low, kind, _, stream_id = FRAME_HEADER.unpack_from(buffers[at])
            begin, left = at, HEADER_SIZE + (high << 8 | low)
            while left > 0:
                left -= len(buffers[at])
                at += 1
            if kind == DATA and stream_id == stream.stream_id:
                buffers[begin:at] = [b""] * (at - begin)  # places keep their numbers
                self.window += high << 8 | low
        return True

    def _frame_up(self, outbox: deque[Buffer], size: int, stream_id: int) -> None:
        """Move ``size`` bytes off the front into frames, without copying."""
        buffers = self._buffers
        while size:
            length = min(size, self.frame_size)
            size -= length
            buffers.append(FRAME_HEADER.pack(length >> 8, length & 0xFF, DATA, 0, stream_id))
            while length:
                segment = outbox[0]
                if len(segment) > length:
                    view = memoryview(segment)
                    buffers.append(view[:length])
                    outbox[0] = view[length:]
                    break
                buffers.append(segment)
                length -= len(segment)
                outbox.popleft()
