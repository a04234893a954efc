"""Cases: what real clients sent and what is put together at random, changed in any way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from picker.serving.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HEADER_SIZE,
    HEADERS,
    MESSAGE_PREFIX,
    PADDED,
    PREFACE,
    PREFIX_SIZE,
    SETTINGS,
    Setting,
    frame,
    settings,
)
from tests.extproc.gateway import BODY, MODES, message
from tests.serving.http2.peer import Frame, block

if TYPE_CHECKING:
    from random import Random

CAPTURES = Path(__file__).with_name("captures")
_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFFFF, 0x1_0000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)
_PATHS = ("/v1/chat/completions", "/v1/completions", "/", "*", "/v1/embeddings?a=b", "/%ff/\xe9")
_METHODS = ("POST", "GET", "CONNECT", "OPTIONS", "")
_BODIES = (
    BODY,
    b"{",
    b"[]",
    b'{"model":7,"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}',
    b'{"model":"a","prompt":["a","b",[1,2,3]],"stream":true}',
    b"\xff\xfe\x00",
    b'{"messages":' + b"[" * 3_000,
    b'{"model":"llama","model":"other","messages":[]}',
    b'data: {"usage":{"prompt_tokens":7,"completion_tokens":1e400}}\n\ndata: [DONE]\n\n',
    b'{"usage":{"prompt_tokens":7,"completion_tokens":3}}',
)
_METHODS_SERVED = (
    None,
    None,
    None,
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.health.v1.Health/List",
    "/no/such",
)


@dataclass
class Case:
    """What a client does: bytes it sends, or a word of ``world.Client.act``."""

    steps: list[bytes | str]


class Maker:
    """Makes cases."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def case(self) -> Case:
        """One more."""
        rng = self._rng
        if self._chance(0.5):
            frames = list(rng.choice(captured()))
            start = rng.randrange(3)
            frames = frames[: start + rng.randrange(1, len(frames) + 1)]
        else:
            frames = self._made_up()
        for _ in range(rng.choice((0, 1, 1, 2, 3, 8, 20))):
            self._mutate(frames)
        sent = PREFACE + b"".join(map(_written, frames))
        if self._chance(0.2):
            sent = self._mangled(sent)
        return Case(self._cut(sent))

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    # From nothing.

    def _made_up(self) -> list[Frame]:
        """Calls of a client that is sound but for the order of its messages."""
        rng = self._rng
        told = {Setting(rng.choice((1, 3, 4, 5))): rng.choice((*_NUMBERS, 16_384, 65_535)) for _ in range(2)}
        first = settings(told if self._chance(0.3) else {})[HEADER_SIZE:]
        frames = [Frame(SETTINGS, 0, 0, first), Frame(SETTINGS, ACK, 0, b"")]
        open_ids: list[int] = []
        next_id = 1
        for _ in range(rng.randrange(1, 30)):
            if not open_ids or self._chance(0.3):
                changes = {"_path": path} if (path := rng.choice(_METHODS_SERVED)) else {}
                if self._chance(0.1):
                    changes["grpc_timeout"] = rng.choice(("1n", "50m", "1S", "99999999H", "x"))
                frames.append(Frame(HEADERS, END_HEADERS, next_id, block(**changes)))
                open_ids.append(next_id)
                next_id += 2
            else:
                stream_id = rng.choice(open_ids)
                ends = END_STREAM if self._chance(0.1) else 0
                frames.append(Frame(DATA, ends, stream_id, _prefixed(self._message())))
        return frames

    def _message(self) -> bytes:
        rng = self._rng
        side, part = (
            rng.choice(("request", "request", "response")),
            rng.choice(("headers", "body", "body", "trailers")),
        )
        modes = f"{rng.choice(list(MODES))}/{rng.choice(list(MODES))}" if self._chance(0.4) else ""
        headers = {":method": rng.choice(_METHODS), ":path": rng.choice(_PATHS)}
        if side == "response":
            headers = {":status": rng.choice(("200", "429", "503", "abc", ""))}
        if self._chance(0.5):
            headers["content-type"] = rng.choice(
                ("application/json", "text/event-stream", "application/grpc", "")
            )
        body = rng.choice(_BODIES)
        if self._chance(0.1):
            body *= rng.randrange(2_000)
        cut = rng.randrange(len(body) + 1) if self._chance(0.5) else 0
        return message(f"{side}_{part}", headers=headers, body=body[cut:], end=self._chance(0.4), modes=modes)

    # Changes of frames.

    def _mutate(self, frames: list[Frame]) -> None:
        rng = self._rng
        if not frames:
            return
        at = rng.randrange(len(frames))
        old = frames[at]
        match rng.randrange(12):
            case 0 | 1 | 2:
                self._move(frames, at)
            case 3:
                frames[at] = Frame(rng.randrange(11), old.flags, old.stream_id, old.payload)
            case 4:
                frames[at] = Frame(old.kind, old.flags ^ 1 << rng.randrange(8), old.stream_id, old.payload)
            case 5:
                stream_id = rng.choice(
                    (0, 1, 2, 3, 5, old.stream_id + 2, (1 << 31) - 1, 1 << 31 | old.stream_id)
                )
                frames[at] = Frame(old.kind, old.flags, stream_id, old.payload)
            case 6:
                frames[at] = Frame(old.kind, old.flags, old.stream_id, self._mangled(old.payload))
            case 7:
                frames.insert(at, self._control(old.stream_id))
            case 8:
                frames[at : at + 1] = self._split(old)
            case _:
                self._mutate_message(frames, at)

    def _move(self, frames: list[Frame], at: int) -> None:
        """Leave a frame out, send it twice, or in place of another."""
        old, other = frames[at], self._rng.randrange(len(frames))
        match self._rng.randrange(3):
            case 0:
                del frames[at]
            case 1:
                frames.insert(other, old)
            case _:
                frames[at], frames[other] = frames[other], old

    def _control(self, stream_id: int) -> Frame:
        """A frame that is allowed, or nearly."""
        rng = self._rng
        number = rng.choice(_NUMBERS).to_bytes(4, "big")
        setting = rng.randrange(1, 9).to_bytes(2, "big") + number
        kind, payload = rng.choice(
            (
                (2, number + b"\x10"),
                (3, number),
                (SETTINGS, setting * rng.choice((1, 1, 3, 70))),
                (5, number),
                (6, bytes(8)),
                (7, bytes(8)),
                (8, number),
                (8, number),
                (CONTINUATION, block()),
                (HEADERS, block()),
                (rng.randrange(256), bytes(rng.randrange(20))),
            )
        )
        where = 0 if kind in (SETTINGS, 6, 7) else rng.choice((0, stream_id, stream_id))
        return Frame(kind, rng.choice((0, 0, 1, 4, 5)), where, payload)

    def _split(self, old: Frame) -> list[Frame]:
        rng = self._rng
        cut = rng.randrange(len(old.payload) + 1)
        first, second = old.payload[:cut], old.payload[cut:]
        if old.kind == HEADERS:
            rest = Frame(CONTINUATION, old.flags & END_HEADERS, old.stream_id, second)
            return [Frame(HEADERS, old.flags & ~END_HEADERS, old.stream_id, first), rest]
        if old.kind == DATA and self._chance(0.5):
            padding = rng.randrange(256)
            first = bytes([padding]) + first + bytes(padding)
            return [
                Frame(DATA, PADDED, old.stream_id, first),
                Frame(DATA, old.flags, old.stream_id, second),
            ]
        return [
            Frame(old.kind, old.flags & ~END_STREAM, old.stream_id, first),
            Frame(old.kind, old.flags, old.stream_id, second),
        ]

    def _mutate_message(self, frames: list[Frame], at: int) -> None:
        """Change a message and keep its frame whole, so that it reaches the session."""
        whole = [n for n, given in enumerate(frames) if _is_message(given)]
        if not whole:
            return
        at = min(whole, key=lambda n: abs(n - at))
        old = frames[at]
        other = frames[self._rng.choice(whole)]
        changed = self._message_mutated(old.payload[PREFIX_SIZE:], other.payload[PREFIX_SIZE:])
        frames[at] = Frame(DATA, old.flags, old.stream_id, _prefixed(changed))

    def _message_mutated(self, old: bytes, other: bytes) -> bytes:
        rng = self._rng
        match rng.randrange(6):
            case 0:
                return old + other
            case 1:
                return other
            case 2:
                return self._mangled(old)
            case _:
                return self._within(old, rng.randrange(1, 6))

    def _within(self, encoded: bytes, depth: int) -> bytes:
        """Change something in one of the fields, with all lengths around it right."""
        rng = self._rng
        fields = _protobuf(encoded)
        if not fields or depth == 0:
            return self._mangled(encoded)
        at = rng.randrange(len(fields))
        tag, value = fields[at]
        if self._chance(0.15):
            fields.insert(rng.randrange(len(fields)), fields[at])
        elif self._chance(0.1):
            del fields[at]
        elif isinstance(value, bytes):
            fields[at] = tag, self._within(value, depth - 1)
        else:
            fields[at] = tag, rng.choice((*_NUMBERS, 1 << 63, (1 << 64) - 1))
        if self._chance(0.05):
            rng.shuffle(fields)
        return b"".join(
            _varint(t) + (_varint(len(v)) + v if isinstance(v, bytes) else _varint(v)) for t, v in fields
        )

    # Changes of bytes.

    def _mangled(self, old: bytes) -> bytes:
        rng = self._rng
        changed = bytearray(old)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(changed) + 1)
            match rng.randrange(5):
                case 0:
                    changed[at : at + 1] = bytes([rng.randrange(256)])
                case 1:
                    del changed[at : at + rng.choice((1, 1, 4, 100))]
                case 2:
                    changed[at:at] = rng.randbytes(rng.choice((1, 1, 3, 9, 50)))
                case 3:
                    changed[at:at] = changed[at : at + rng.choice((1, 9, 100, 1_000))]
                case _:
                    changed[at : at + 4] = rng.choice(_NUMBERS).to_bytes(4, "big")
        return bytes(changed)

    def _cut(self, sent: bytes) -> list[bytes | str]:
        """Pieces as the system may deliver them, and what else happens between them."""
        rng = self._rng
        largest = rng.choice((7, 100, 1_000, 1_000, 20_000, 70_000, 1_000_000))
        if largest < 1_000:  # few bytes in steps of their own say as much as many
            sent = sent[: rng.randrange(4_000)]
        steps: list[bytes | str] = []
        eventful = self._chance(0.3)
        at = 0
        while at < len(sent):
            size = rng.randrange(1, largest + 1)
            steps.append(sent[at : at + size])
            at += size
            if eventful and self._chance(0.2):
                steps.append(rng.choice(("pause", "resume", "resume", "tick", "wait", "health")))
        return steps


@cache
def captured() -> list[list[Frame]]:
    """What real clients sent, by ``python -m tests.fuzz.capture``."""
    return [_frames(path.read_bytes()) for path in sorted(CAPTURES.glob("*.bin"))]


def _frames(captured: bytes) -> list[Frame]:
    """The frames behind the preface; what is cut at the end is left out."""
    frames = []
    at = len(PREFACE)
    while at + HEADER_SIZE <= len(captured):
        high, low, kind, flags, stream_id = FRAME_HEADER.unpack_from(captured, at)
        start, at = at + HEADER_SIZE, at + HEADER_SIZE + (high << 8 | low)
        if at <= len(captured):
            frames.append(Frame(kind, flags, stream_id, captured[start:at]))
    return frames


def _written(given: Frame) -> bytes:
    return frame(given.kind, given.flags & 0xFF, given.stream_id & 0xFFFF_FFFF, given.payload)


def _prefixed(content: bytes) -> bytes:
    return MESSAGE_PREFIX.pack(0, len(content)) + content


def _is_message(given: Frame) -> bool:
    if given.kind != DATA or len(given.payload) < PREFIX_SIZE:
        return False
    return bool(MESSAGE_PREFIX.unpack_from(given.payload) == (0, len(given.payload) - PREFIX_SIZE))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _protobuf(encoded: bytes) -> list[tuple[int, int | bytes]]:
    """The fields, as far as they are varints and of a length; none where it is no protobuf."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(encoded):
        numbers = []
        for _ in range(2):
            value = shift = 0
            while True:
                if at >= len(encoded) or shift > 63:
                    return []
                byte = encoded[at]
                at += 1
                value |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            numbers.append(value)
        tag, value = numbers
        if tag & 7 == 2:  # of a length
            if at + value > len(encoded):
                return []
            fields.append((tag, encoded[at : at + value]))
            at += value
        elif tag & 7 == 0:
            fields.append((tag, value))
        else:
            return []
    return fields
