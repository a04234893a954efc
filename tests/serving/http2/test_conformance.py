"""RFC 9113 by section, and gRPC over it: the frames a client may send, and those it may not."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from picker.serving.http2.connection import FRAME_SIZE, Limits
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
    GOAWAY,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    ErrorCode,
    Setting,
    frame,
    goaway,
    integer,
    read_settings,
    rst_stream,
    settings,
    window_update,
)
from picker.serving.http2.heads import Status
from tests.serving.http2.peer import METHOD, Peer, block, data, encoded, message, messages, opening

NUMBER = struct.Struct(">I").pack
ANY_PRIORITY = NUMBER(3) + b"\x10"


@pytest.fixture
def peer() -> Peer:
    return Peer()


# 3.4 Preface


def test_says_its_settings_first() -> None:
    first = Peer(hello=False).sent()[0]
    assert first.kind == SETTINGS
    told = dict(read_settings(first.payload))
    assert told[Setting.HEADER_TABLE_SIZE] == 0
    assert told[Setting.INITIAL_WINDOW_SIZE] >= 1 << 24


@pytest.mark.parametrize(
    "wrong", [b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\x03\x01"]
)
def test_another_protocol_ends_the_connection(wrong: bytes) -> None:
    peer = Peer(hello=False)
    assert [type(event) for event in peer.feed(wrong)] == [ConnectionEnded]
    assert peer.goaway() == ErrorCode.PROTOCOL_ERROR
    assert peer.feed(PREFACE) == []


@pytest.mark.parametrize("first", [frame(PING, 0, 0, bytes(8)), opening(), frame(SETTINGS, ACK, 0)])
def test_settings_come_first(first: bytes) -> None:
    peer = Peer(hello=False)
    peer.feed(PREFACE, first)
    assert peer.goaway() == ErrorCode.PROTOCOL_ERROR


# 4 Frames


def test_unknown_frames_and_flags_are_ignored(peer: Peer) -> None:
    events = peer.feed(frame(0xEE, 0xFF, 0, b"what"), frame(PING, 0xFE, 0, b"01234567"), opening())
    assert events == [StreamOpened(1, METHOD)]
    assert [sent.payload for sent in peer.sent() if sent.kind == PING] == [b"01234567"]


def test_the_reserved_bit_is_ignored(peer: Peer) -> None:
    head = block()
    marked = FRAME_HEADER.pack(0, len(head), HEADERS, END_HEADERS, 1 | 1 << 31) + head
    assert peer.feed(marked) == [StreamOpened(1, METHOD)]
    content = message(b"x")
    assert messages(peer.feed(FRAME_HEADER.pack(0, len(content), DATA, 0, 1 | 1 << 31) + content)) == [b"x"]


def test_frames_up_to_the_size_we_told(peer: Peer) -> None:
    content = bytes(FRAME_SIZE - 5)
    assert messages(peer.feed(opening(), data(1, content))) == [content]
    peer.feed(FRAME_HEADER.pack((FRAME_SIZE + 1) >> 8, (FRAME_SIZE + 1) & 0xFF, DATA, 0, 1))
    assert peer.goaway() == ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("kind", "stream_id", "size"),
    [
        (PING, 0, 7),
        (PING, 0, 9),
        (RST_STREAM, 1, 3),
        (RST_STREAM, 1, 5),
        (WINDOW_UPDATE, 0, 3),
        (WINDOW_UPDATE, 1, 5),
        (SETTINGS, 0, 5),
        (GOAWAY, 0, 7),
    ],
)
def test_frames_of_a_wrong_size(peer: Peer, kind: int, stream_id: int, size: int) -> None:
    peer.feed(opening(), frame(kind, 0, stream_id, bytes(size)))
    assert peer.goaway() == ErrorCode.FRAME_SIZE_ERROR


def test_an_acknowledgement_with_content(peer: Peer) -> None:
    peer.feed(frame(SETTINGS, ACK, 0, bytes(6)))
    assert peer.goaway() == ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize("kind", [SETTINGS, PING, GOAWAY])
def test_frames_of_the_connection_on_a_stream(peer: Peer, kind: int) -> None:
    peer.feed(opening(), frame(kind, 0, 1, bytes(8 if kind != SETTINGS else 0)))
    assert peer.goaway() == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "sent",
    [
        frame(DATA, 0, 0, bytes(5)),
        frame(HEADERS, END_HEADERS, 0, block()),
        frame(PRIORITY, 0, 0, ANY_PRIORITY),
        frame(RST_STREAM, 0, 0, bytes(4)),
        frame(CONTINUATION, END_HEADERS, 0, b""),
    ],
)
def test_frames_of_a_stream_on_the_connection(peer: Peer, sent: bytes) -> None:
    peer.feed(sent)
    assert peer.goaway() == ErrorCode.PROTOCOL_ERROR


def test_a_block_that_is_no_hpack(peer: Peer) -> None:
    peer.feed(frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff"))
    assert peer.goaway() == ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize("cut", [b"\x40", b"\x40\x05ab", b"\x00\x01a", b"\x7f", b"\x3f\xe1\x1f", b"\xbe"])
def test_a_block_that_is_cut_or_refers_to_no_table(peer: Peer, cut: bytes) -> None:
    peer.feed(frame(HEADERS, END_HEADERS, 1, cut))
    assert peer.goaway() == ErrorCode.COMPRESSION_ERROR


# 5 Streams


@pytest.mark.parametrize(
    "sent", [frame(DATA, 0, 3, bytes(5)), rst_stream(3, ErrorCode.CANCEL), window_update(3, 1)]
)
def test_frames_on_a_stream_that_was_never_opened(peer: Peer, sent: bytes) -> None:
    peer.feed(opening(), sent)
    assert peer.goaway() == ErrorCode.PROTOCOL_ERROR


def test_numbers_of_streams(peer: Peer) -> None:
    assert peer.feed(opening(5)) == [StreamOpened(5, METHOD)]
    peer.feed(frame(HEADERS, END_HEADERS, 2, block()))
    assert peer.goaway() == ErrorCode.PROTOCOL_ERROR
    peer = Peer()
    peer.feed(opening(5), opening(3))
    assert peer.goaway() in (ErrorCode.PROTOCOL_ERROR, ErrorCode.STREAM_CLOSED)


def test_data_after_the_end_of_a_stream(peer: Peer) -> None:
    assert peer.feed(opening(), data(1, b"", end=True)) == [
        StreamOpened(1, METHOD),
        Message(1, b""),
        HalfClosed(1),
    ]
    assert peer.feed(data(1, b"more")) == [StreamLost(1)]
    assert peer.reset() == ErrorCode.STREAM_CLOSED


def test_headers_after_the_end_of_a_stream(peer: Peer) -> None:
    peer.feed(opening(flags=END_HEADERS | END_STREAM))
    assert peer.feed(frame(HEADERS, END_HEADERS | END_STREAM, 1, encoded([("a", "b")]))) == [StreamLost(1)]
    assert peer.reset() == ErrorCode.STREAM_CLOSED


def test_after_the_client_reset_a_stream(peer: Peer) -> None:
    assert peer.feed(opening(), rst_stream(1, ErrorCode.CANCEL))[-1] == StreamLost(1)
    assert peer.feed(window_update(1, 5), data(1, b"late")) == []
    assert peer.reset() == ErrorCode.STREAM_CLOSED
    peer.feed(opening(1))
    assert peer.goaway() == ErrorCode.STREAM_CLOSED


def test_what_is_under_way_after_we_ended_a_stream_is_ignored(peer: Peer) -> None:
    peer.feed(opening(), data(1, b"first"))
    assert peer.connection.finish(1)
    assert peer.reset() == ErrorCode.NO_ERROR
    assert peer.feed(data(1, b"late"), window_update(1, 1), frame(PRIORITY, 0, 1, ANY_PRIORITY)) == []
    assert peer.feed(frame(DATA, END_STREAM, 1), opening(3)) == [StreamOpened(3, METHOD)]
    assert peer.sent() == []


def test_more_streams_than_allowed_are_refused() -> None:
    peer = Peer(limits=Limits(100, max_streams=2))
    assert len(peer.feed(opening(1), opening(3), opening(5))) == 2
    assert peer.reset(5) == ErrorCode.REFUSED_STREAM
    peer.connection.finish(1)
    assert peer.feed(data(5, b"on its way"), opening(7)) == [StreamOpened(7, METHOD)]


def test_priorities_are_ignored(peer: Peer) -> None:
    with_priority = frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, ANY_PRIORITY + block())
    events = peer.feed(
        frame(PRIORITY, 0, 9, ANY_PRIORITY), with_priority, frame(PRIORITY, 0, 1, ANY_PRIORITY)
    )
    assert events == [StreamOpened(1, METHOD)]
    assert peer.sent() == []
    assert peer.feed(frame(PRIORITY, 0, 1, bytes(4))) == [StreamLost(1)]
    assert peer.reset() == ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    "sent", [window_update(1, 10), frame(PRIORITY, 0, 1, ANY_PRIORITY), rst_stream(1, ErrorCode.CANCEL)]
)
def test_frames_that_a_half_closed_stream_may_have(peer: Peer, sent: bytes) -> None:
    peer.feed(opening(), data(1, b"all", end=True))
    lost = sent == rst_stream(1, ErrorCode.CANCEL)
    assert peer.feed(sent) == ([StreamLost(1)] if lost else [])
    peer.connection.send(1, [b"answer"])
    assert [f.kind for f in peer.sent()] == ([] if lost else [HEADERS, DATA])


@pytest.mark.parametrize(("update", "allowed"), [(b"\x20", True), (b"\x20\x20", True), (b"\x3f\x61", False)])
def test_a_table_as_large_as_we_told(peer: Peer, update: bytes, allowed: bool) -> None:
    """The peer has acknowledged that there is none (RFC 7541, 4.2 and 6.3)."""
    events = peer.feed(frame(HEADERS, END_HEADERS, 1, update + block()))
    assert events[0] == StreamOpened(1, METHOD) if allowed else isinstance(events[0], ConnectionEnded)
    assert peer.goaway() == (None if allowed else ErrorCode.COMPRESSION_ERROR)


# 6 Frames' definitions


@pytest.mark.parametrize("padding", [0, 1, 255])
def test_padding_is_taken_off(peer: Peer, padding: int) -> None:
    padded = frame(HEADERS, END_HEADERS | PADDED, 1, bytes([padding]) + block() + bytes(padding))
    assert peer.feed(padded) == [StreamOpened(1, METHOD)]
    content = bytes([padding]) + message(b"text") + bytes(padding)
    assert peer.feed(frame(DATA, PADDED | END_STREAM, 1, content)) == [Message(1, b"text"), HalfClosed(1)]


@pytest.mark.parametrize("kind", [DATA, HEADERS])
@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x05abcd"])
def test_padding_that_is_more_than_there_is(peer: Peer, kind: int, payload: bytes) -> None:
    peer.feed(opening(), frame(kind, PADDED | END_HEADERS, 1 if kind == DATA else 3, payload))
    assert peer.goaway() == ErrorCode.PROTOCOL_ERROR


def test_a_header_block_in_pieces(peer: Peer) -> None:
    head = block()
    pieces = [
        frame(HEADERS, END_STREAM, 1, head[:10]),
        frame(CONTINUATION, 0, 1, head[10:20]),
        frame(CONTINUATION, END_HEADERS, 1, head[20:]),
    ]
    assert peer.feed(*pieces) == [StreamOpened(1, METHOD), HalfClosed(1)]


@pytest.mark.parametrize(
    "between",
    [
        frame(PING, 0, 0, bytes(8)),
        data(1, b""),
        frame(CONTINUATION, END_HEADERS, 3, b""),
        frame(0xEE, 0, 0),
    ],
)
def test_nothing_comes_between_the_pieces(peer: Peer, between: bytes) -> None:
    peer.feed(opening(1), frame(HEADERS, 0, 5, block()), between)
    assert peer.goaway() == ErrorCode.PROTOCOL_ERROR


def test_continuation_of_nothing(peer: Peer) -> None:
    peer.feed(opening(), frame(CONTINUATION, END_HEADERS, 1, b""))
    assert peer.goaway() == ErrorCode.PROTOCOL_ERROR


def test_clients_do_not_push(peer: Peer) -> None:
    peer.feed(opening(), frame(PUSH_PROMISE, END_HEADERS, 1, NUMBER(2)))
    assert peer.goaway() == ErrorCode.PROTOCOL_ERROR


def test_settings_are_acknowledged(peer: Peer) -> None:
    peer.feed(settings({Setting.MAX_CONCURRENT_STREAMS: 1}) + frame(SETTINGS, ACK, 0))
    assert [(sent.kind, sent.flags) for sent in peer.sent()] == [(SETTINGS, ACK)]


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        (Setting.INITIAL_WINDOW_SIZE, 1 << 31, ErrorCode.FLOW_CONTROL_ERROR),
        (Setting.MAX_FRAME_SIZE, 16_383, ErrorCode.PROTOCOL_ERROR),
        (Setting.MAX_FRAME_SIZE, 1 << 24, ErrorCode.PROTOCOL_ERROR),
        (Setting.ENABLE_PUSH, 2, ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_settings_out_of_bounds(peer: Peer, setting: Setting, value: int, code: ErrorCode) -> None:
    peer.feed(settings({setting: value}))
    assert peer.goaway() == code


def test_pings_are_answered_and_answers_are_not(peer: Peer) -> None:
    peer.feed(frame(PING, 0, 0, b"12345678"), frame(PING, ACK, 0, b"abcdefgh"))
    assert [(sent.flags, sent.payload) for sent in peer.sent()] == [(ACK, b"12345678")]


def test_the_clients_goaway_leaves_its_streams(peer: Peer) -> None:
    assert peer.feed(opening(), goaway(0, ErrorCode.NO_ERROR), data(1, b"on"))[1:] == [Message(1, b"on")]
    assert not peer.connection.ended


@pytest.mark.parametrize("stream_id", [0, 1])
def test_windows_do_not_grow_without_bounds(peer: Peer, stream_id: int) -> None:
    peer.feed(opening(), window_update(stream_id, MAX_WINDOW))
    code = peer.reset() if stream_id else peer.goaway()
    assert code == ErrorCode.FLOW_CONTROL_ERROR


def test_window_updates_of_nothing(peer: Peer) -> None:
    assert peer.feed(opening(), window_update(1, 0))[-1] == StreamLost(1)
    assert peer.reset() == ErrorCode.PROTOCOL_ERROR
    peer.feed(window_update(0, 0))
    assert peer.goaway() == ErrorCode.PROTOCOL_ERROR


# 8 HTTP semantics


@pytest.mark.parametrize(
    "changes",
    [
        {"_path": None},
        {"_path": ""},
        {"_method": None},
        {"_scheme": None},
        {"_status": "200"},
        {"Upper": "case"},
        {"connection": "close"},
        {"transfer_encoding": "chunked"},
        {"te": "gzip"},
        {"x": "line\nbreak"},
        {"content_length": "-1"},
        {"content_length": "1" * 5000},
    ],
)
def test_malformed_requests_are_reset(peer: Peer, changes: dict[str, Any]) -> None:
    assert peer.feed(opening(**changes)) == []
    assert peer.reset() == ErrorCode.PROTOCOL_ERROR
    assert peer.feed(opening(3)) == [StreamOpened(3, METHOD)]


@pytest.mark.parametrize(
    "headers",
    [
        [(":method", "POST"), (":scheme", "http"), ("a", "b"), (":path", METHOD)],
        [(":method", "POST"), (":scheme", "http"), (":path", METHOD), (":path", METHOD)],
    ],
)
def test_pseudo_headers_come_first_and_once(peer: Peer, headers: list[tuple[str, str]]) -> None:
    assert peer.feed(frame(HEADERS, END_HEADERS, 1, encoded(headers))) == []
    assert peer.reset() == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(("told", "clean"), [("5", True), ("6", False), ("4", False), ("0", False)])
def test_content_length_is_held_to(peer: Peer, told: str, clean: bool) -> None:
    events = peer.feed(opening(content_length=told), data(1, b"", end=True))
    assert (events[-1] == HalfClosed(1)) is clean
    assert (peer.reset() is None) is clean


def test_trailers_of_a_request(peer: Peer) -> None:
    trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, encoded([("a", "b")]))
    assert peer.feed(opening(), data(1, b"x"), trailers)[1:] == [Message(1, b"x"), HalfClosed(1)]


@pytest.mark.parametrize(
    ("flags", "headers"), [(END_HEADERS, [("a", "b")]), (END_HEADERS | END_STREAM, [(":path", "/")])]
)
def test_trailers_that_are_none(peer: Peer, flags: int, headers: list[tuple[str, str]]) -> None:
    assert peer.feed(opening(), frame(HEADERS, flags, 1, encoded(headers)))[-1] == StreamLost(1)
    assert peer.reset() == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("changes", "status"),
    [({"content_type": "text/html"}, "415"), ({"content_type": None}, "415"), ({"_method": "GET"}, "405")],
)
def test_requests_that_are_no_grpc_get_an_http_status(
    peer: Peer, changes: dict[str, Any], status: str
) -> None:
    assert peer.feed(opening(**changes), frame(DATA, 0, 1, b"any"), frame(DATA, END_STREAM, 1)) == []
    assert peer.status()[":status"] == status


# gRPC


@pytest.mark.parametrize(
    "content_type", ["application/grpc", "application/grpc+proto", "application/grpc;a=b"]
)
def test_grpc_is_known_by_its_content_type(peer: Peer, content_type: str) -> None:
    assert peer.feed(opening(content_type=content_type)) == [StreamOpened(1, METHOD)]


def test_an_answer_has_headers_messages_and_trailers(peer: Peer) -> None:
    peer.feed(opening(flags=END_HEADERS | END_STREAM))
    peer.connection.send(1, [b"one", memoryview(b"two")])
    peer.connection.send(1, [])
    assert peer.connection.finish(1)
    head, first, second, trailers = peer.sent()
    assert (head.kind, head.flags) == (HEADERS, END_HEADERS)
    assert (first.kind, first.payload) == (DATA, message(b"onetwo"))
    assert (second.kind, second.payload) == (DATA, message(b""))
    assert (trailers.kind, trailers.flags) == (HEADERS, END_HEADERS | END_STREAM)


def test_an_answer_without_messages_is_trailers_alone(peer: Peer) -> None:
    peer.feed(opening())
    peer.connection.reset(1, Status.INTERNAL, "50 % of ü")
    told = peer.status()
    assert told[":status"] == "200"
    assert (told["grpc-status"], told["grpc-message"]) == ("13", "50 %25 of %C3%BC")
    peer.feed(opening(3))
    peer.connection.finish(3)
    assert peer.status(3)["grpc-status"] == "0"


def test_compressed_and_oversized_messages_end_their_stream() -> None:
    peer = Peer(limits=Limits(max_message=10))
    for stream_id, content, status in [
        (1, message(b"z", compressed=1), "12"),
        (3, message(bytes(11)), "8"),
        (5, NUMBER(0xFF) + b"\xff", "8"),
    ]:
        events = peer.feed(opening(stream_id), frame(DATA, 0, stream_id, content))
        assert events == [StreamOpened(stream_id, METHOD), StreamLost(stream_id)]
        assert peer.status(stream_id)["grpc-status"] == status
    assert messages(peer.feed(opening(7), data(7, bytes(10)))) == [bytes(10)]


@pytest.mark.parametrize("cut", [1, 4, 5, 9])
def test_the_last_message_must_be_whole(peer: Peer, cut: int) -> None:
    events = peer.feed(opening(), frame(DATA, END_STREAM, 1, message(b"12345")[:cut]))
    assert events[-1] == StreamLost(1)
    assert peer.status()["grpc-status"] == "13"
    assert peer.gathering.held == 0


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [("1S", 1.0), ("200m", 0.2), ("1M", 60.0), ("1H", 3600.0), ("5u", 0.0), ("5n", 0.0)],
)
def test_deadlines_of_clients(peer: Peer, timeout: str, seconds: float) -> None:
    peer.feed(opening(grpc_timeout=timeout))
    if seconds:
        assert peer.later(seconds * 0.9) == []
        peer.feed(frame(PING, ACK, 0, bytes(8)))  # still there
    peer.sent()
    assert peer.later(seconds * 0.2 + 0.001) == [StreamLost(1)]
    assert peer.status()["grpc-status"] == "4"


@pytest.mark.parametrize("timeout", ["", "S", "1", "1X", "-1S", "123456789S"])
def test_a_deadline_that_cannot_be_read_is_none(peer: Peer, timeout: str) -> None:
    peer.feed(opening(grpc_timeout=timeout))
    assert peer.later(5) == []


def test_an_abort_takes_back_what_was_not_sent_yet(peer: Peer) -> None:
    peer.feed(opening(1), opening(3), data(1, b"a"), data(3, b"b"))
    peer.connection.send(1, [b"dropped"])
    peer.connection.send(3, [b"kept"])
    peer.connection.send(1, [b"", b"dropped", b""])
    peer.connection.reset(1, Status.INTERNAL, "why")
    sent = peer.sent()
    assert [frame.stream_id for frame in sent if frame.kind == DATA] == [3]
    assert [frame.stream_id for frame in sent if frame.flags & END_STREAM] == [1]


# The end of a connection


def test_drain_asks_then_refuses_then_ends(peer: Peer) -> None:
    peer.feed(opening(1))
    peer.connection.drain(peer.now)
    asked, ping = peer.sent()
    assert integer(asked.payload) == MAX_WINDOW
    assert peer.feed(opening(3)) == [StreamOpened(3, METHOD)]
    peer.feed(frame(PING, ACK, 0, ping.payload))
    assert integer(peer.sent()[0].payload) == 3
    assert peer.feed(opening(5)) == []
    assert peer.reset(5) == ErrorCode.REFUSED_STREAM
    peer.connection.finish(1)
    assert not peer.connection.ended
    peer.connection.finish(3)
    assert peer.connection.ended


def test_drain_does_not_wait_for_a_client_that_answers_no_ping(peer: Peer) -> None:
    peer.connection.drain(peer.now)
    peer.later(10)
    assert peer.connection.ended


def test_finish_waits_for_what_is_queued() -> None:
    peer = Peer(told={Setting.INITIAL_WINDOW_SIZE: 3})
    peer.feed(opening(1))
    peer.connection.send(1, [b"12345"])
    assert not peer.connection.finish(1)
    assert peer.feed(window_update(1, 6)) == []
    assert peer.feed(window_update(1, 1)) == [StreamEnded(1)]
    assert [len(sent.payload) for sent in peer.sent() if sent.kind == DATA] == [3, 6, 1]
