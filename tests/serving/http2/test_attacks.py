"""Clients that mean harm: the connection ends or stays cheap, and memory has bounds."""

from __future__ import annotations

import tracemalloc

import pytest

from picker.serving.http2.connection import HELLO_DEADLINE, KEEPALIVE_DEADLINE, KEEPALIVE_IDLE, Limits
from picker.serving.http2.events import ConnectionEnded, StreamLost, StreamOpened
from picker.serving.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    SETTINGS,
    ErrorCode,
    Setting,
    frame,
    rst_stream,
    settings,
    window_update,
)
from tests.serving.http2.peer import METHOD, Peer, block, data, messages, opening

MIB = 1 << 20


@pytest.mark.parametrize(
    "idle",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS, 0, 0),
        frame(PRIORITY, 0, 1, bytes(5)),
        frame(DATA, 0, 1),
        frame(0xEE, 0, 0),
        rst_stream(1, ErrorCode.CANCEL) + data(1, b""),
    ],
)
def test_floods_of_frames_that_say_nothing_end_the_connection(idle: bytes) -> None:
    peer = Peer()
    peer.feed(opening())
    peer.feed(idle * 3_000)
    assert peer.goaway() == ErrorCode.ENHANCE_YOUR_CALM


def test_the_same_frames_over_time_do_not() -> None:
    peer = Peer()
    for _ in range(20):
        peer.feed(frame(PING, 0, 0, bytes(8)) * 500)
        peer.later(1)
    assert not peer.connection.ended


def test_a_header_block_without_end() -> None:
    for piece in (b"", b"\x00\x01a\x01b" * 100, bytes(16_000)):
        peer = Peer()
        peer.feed(frame(HEADERS, 0, 1, block()))
        for _ in range(100):
            peer.feed(frame(CONTINUATION, 0, 1, piece))
        assert peer.goaway() == ErrorCode.ENHANCE_YOUR_CALM


def test_a_header_frame_that_is_too_large_is_not_waited_for() -> None:
    peer = Peer()
    peer.feed(FRAME_HEADER.pack(0x0FFF, 0xFF, HEADERS, END_HEADERS, 1))
    assert peer.goaway() == ErrorCode.ENHANCE_YOUR_CALM


def test_a_small_block_that_means_a_huge_list() -> None:
    peer = Peer(hello=False)
    peer.feed(PREFACE, settings({}))
    # Before our settings are acknowledged there is a table to refer to: one entry, named over and over.
    peer.feed(
        frame(HEADERS, END_HEADERS, 1, block() + b"\x40\x01a\x7f\x81\x1e" + bytes(3_968) + b"\xbe" * 10_000)
    )
    assert peer.goaway() == ErrorCode.ENHANCE_YOUR_CALM


def test_distinct_blocks_do_not_fill_memory() -> None:
    peer = Peer()
    tracemalloc.start()
    try:
        for n in range(1, 4_000, 2):
            peer.feed(opening(n, x_filler=f"{n:01000}"), rst_stream(n, ErrorCode.CANCEL))
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_a_hundred_thousand_resets_leave_nothing() -> None:
    """The connection lives: a gateway passes on what its clients do. The transport slows such a peer down."""
    peer, head = Peer(), block()
    tracemalloc.start()
    try:
        for first in range(1, 200_000, 2_000):
            pairs = (
                frame(HEADERS, END_HEADERS, n, head) + rst_stream(n, ErrorCode.CANCEL)
                for n in range(first, first + 2_000, 2)
            )
            events = peer.feed(*pairs)
            assert sum(isinstance(event, StreamLost) for event in events) == 1_000
            assert peer.sent() == []
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
    assert peer.connection.unanswered_resets == 100_000
    assert peer.feed(opening(200_001)) == [StreamOpened(200_001, METHOD)]


def test_streams_that_were_answered_may_be_reset_at_will() -> None:
    peer = Peer()
    for n in range(1, 2_000, 2):
        peer.feed(opening(n), data(n, b"headers"))
        peer.connection.send(n, [b"answer"])
        peer.feed(rst_stream(n, ErrorCode.CANCEL))
    assert peer.connection.unanswered_resets == 0


def test_streams_that_we_end_early_are_remembered_only_so_long() -> None:
    peer, head = Peer(), block()
    tracemalloc.start()
    try:
        for n in range(1, 40_000, 2):
            peer.feed(frame(HEADERS, END_HEADERS, n, head))
            peer.connection.finish(n)
            peer.connection.data_to_send()
        assert tracemalloc.get_traced_memory()[0] < 2 * MIB
    finally:
        tracemalloc.stop()


def test_a_client_that_says_nothing_has_little_time() -> None:
    for beginning in (b"", PREFACE[:10], PREFACE, PREFACE + frame(SETTINGS, 0, 0, bytes(60))[:20]):
        peer = Peer(hello=False)
        peer.feed(beginning)
        assert peer.later(HELLO_DEADLINE * 0.9) == []
        peer.feed(b"")
        assert isinstance(peer.later(HELLO_DEADLINE * 0.2)[-1], ConnectionEnded)
        assert peer.goaway() == ErrorCode.SETTINGS_TIMEOUT


def test_a_header_block_has_little_time_to_end() -> None:
    peer = Peer()
    peer.feed(frame(HEADERS, 0, 1, block()))
    peer.later(HELLO_DEADLINE * 0.9)
    peer.feed(frame(CONTINUATION, 0, 1, b""))
    peer.later(HELLO_DEADLINE * 0.2)
    assert peer.goaway() == ErrorCode.ENHANCE_YOUR_CALM


def test_a_silent_client_is_asked_and_then_given_up() -> None:
    peer = Peer()
    peer.feed(opening())
    assert peer.later(KEEPALIVE_IDLE + 1) == []
    assert [sent.kind for sent in peer.sent()] == [PING]
    peer.later(KEEPALIVE_DEADLINE * 0.9)
    assert not peer.connection.ended
    peer.feed(frame(PING, 1, 0, bytes(8)))
    peer.later(KEEPALIVE_IDLE + 1)
    peer.later(KEEPALIVE_DEADLINE + 1)
    assert peer.goaway() == ErrorCode.NO_ERROR


def test_window_updates_by_single_bytes_cost_single_frames() -> None:
    peer = Peer(told={Setting.INITIAL_WINDOW_SIZE: 0})
    peer.feed(opening())
    peer.connection.send(1, [bytes(1_000)])
    peer.sent()
    for _ in range(1_005):
        peer.feed(window_update(1, 1))
    assert sum(len(sent.payload) for sent in peer.sent()) == 1_005
    assert not peer.connection.ended


def test_many_settings_of_windows() -> None:
    peer = Peer(limits=Limits(100, max_streams=2_000))
    peer.feed(*(opening(n) for n in range(1, 4_000, 2)))
    peer.feed(frame(SETTINGS, 0, 0, (b"\0\4\0\0\0\1" + b"\0\4\0\0\0\2") * 50))
    assert peer.goaway() == ErrorCode.ENHANCE_YOUR_CALM


def test_a_claimed_length_takes_no_memory_before_it_comes() -> None:
    peer = Peer(limits=Limits(max_message=512 * MIB))
    tracemalloc.start()
    try:
        for n in range(1, 200, 2):
            peer.feed(opening(n), frame(DATA, 0, n, b"\0" + (500 * MIB).to_bytes(4, "big") + b"x"))
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


def test_the_bound_of_unfinished_messages_is_one_of_memory() -> None:
    """Buffers are made larger than what has come; that counts, too."""
    peer = Peer(limits=Limits(max_message=64 * MIB), unfinished=2 * MIB)
    part = bytes(16_000)
    tracemalloc.start()
    try:
        for n in range(1, 80, 2):
            peer.feed(opening(n), frame(DATA, 0, n, b"\0" + (60 * MIB).to_bytes(4, "big") + part))
            for _ in range(5):
                peer.feed(frame(DATA, 0, n, part))
        assert tracemalloc.get_traced_memory()[1] < 3 * MIB
    finally:
        tracemalloc.stop()


def test_a_message_takes_its_own_size_and_little_more() -> None:
    peer = Peer(limits=Limits(max_message=64 * MIB))
    peer.feed(opening())
    body = bytes(16 * MIB)
    content = b"\0" + len(body).to_bytes(4, "big") + body
    frames = [frame(DATA, 0, 1, content[at : at + 16_384]) for at in range(0, len(content), 16_384)]
    tracemalloc.start()
    try:
        events = []
        for sent in frames:
            events += peer.connection.receive(sent, 0.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert messages(events) == [body]
    assert peak < 1.1 * len(body)


def test_blocks_are_understood_alike_with_and_without_the_table() -> None:
    peer = Peer(hello=False)
    peer.feed(PREFACE, settings({}))
    indexed = b"\x40\x01a\x01b"  # adds an entry, as long as there is a table
    assert peer.feed(frame(HEADERS, END_HEADERS, 1, block() + indexed)) == [StreamOpened(1, METHOD)]
    assert peer.feed(frame(HEADERS, END_HEADERS, 3, block() + b"\xbe")) == [StreamOpened(3, METHOD)]
    peer.feed(frame(SETTINGS, 1, 0))
    for n in (5, 7):
        assert peer.feed(frame(HEADERS, END_HEADERS, n, b"\x20" + block() + indexed)) == [
            StreamOpened(n, METHOD)
        ]
    peer.feed(frame(HEADERS, END_HEADERS | END_STREAM, 9, block() + b"\xbe"))
    assert peer.goaway() == ErrorCode.COMPRESSION_ERROR


def test_the_cache_does_not_confuse_requests() -> None:
    peer = Peer()
    for n in range(1, 2_000, 2):
        path = f"/service/method-{n % 700}"
        assert peer.feed(opening(n, _path=path), rst_stream(n, ErrorCode.CANCEL))[0] == StreamOpened(n, path)
