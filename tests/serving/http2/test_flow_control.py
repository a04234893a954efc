"""Windows both ways, and what happens when a client does not take its answers."""

from __future__ import annotations

import pytest

from picker.serving.http2.connection import (
    CONNECTION_BACKLOG,
    CONNECTION_WINDOW,
    STREAM_BACKLOG,
    STREAM_WINDOW,
    Limits,
)
from picker.serving.http2.events import ConnectionEnded, StreamEnded, StreamLost
from picker.serving.http2.frames import (
    DATA,
    MAX_WINDOW,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
    frame,
    integer,
    rst_stream,
    settings,
    window_update,
)
from picker.serving.http2.heads import Status
from tests.serving.http2.peer import Frame, Peer, data, message, messages, opening

MIB = 1 << 20
WIDE = {Setting.INITIAL_WINDOW_SIZE: MAX_WINDOW}


def credited(sent: list[Frame], stream_id: int) -> int:
    """Bytes that the server allows more."""
    return sum(integer(f.payload) for f in sent if (f.kind, f.stream_id) == (WINDOW_UPDATE, stream_id))


def payload(sent: list[Frame], stream_id: int) -> bytes:
    return b"".join(f.payload for f in sent if (f.kind, f.stream_id) == (DATA, stream_id))


def test_answers_keep_to_the_streams_window_and_the_frame_size() -> None:
    peer = Peer(told={Setting.INITIAL_WINDOW_SIZE: 20_000})
    peer.feed(opening())
    body = bytes(range(256)) * 200
    peer.connection.send(1, [body[:100], memoryview(body)[100:]])
    first = peer.sent()
    assert [len(sent.payload) for sent in first if sent.kind == DATA] == [16_384, 3_616]
    peer.feed(window_update(1, 1))
    second = peer.sent()
    peer.feed(settings({Setting.INITIAL_WINDOW_SIZE: 60_000, Setting.MAX_FRAME_SIZE: 1 << 20}))
    third = peer.sent()
    assert [len(sent.payload) for sent in second + third if sent.kind == DATA] == [1, len(body) + 5 - 20_001]
    assert payload(first + second + third, 1) == message(body)


def test_a_window_may_become_negative() -> None:
    peer = Peer()
    peer.feed(opening())
    peer.connection.send(1, [bytes(10_000)])
    peer.sent()
    peer.feed(settings({Setting.INITIAL_WINDOW_SIZE: 5}))
    peer.connection.send(1, [b"12345"])
    peer.feed(window_update(1, 10_000 + 5 - 5))
    assert payload(peer.sent(), 1) == b""
    peer.feed(window_update(1, 10))
    assert payload(peer.sent(), 1) == message(b"12345")


def test_streams_take_turns_at_the_connections_window() -> None:
    peer = Peer(told=WIDE)
    peer.feed(opening(1), opening(3), opening(5))
    for stream_id in (1, 3, 5):
        peer.connection.send(stream_id, [bytes(100_000)])
    sent = peer.sent()
    assert len(payload(sent, 1)) == 65_535
    for _ in range(30):
        peer.feed(window_update(0, 10_000))
        sent += peer.sent()
    assert {stream_id: len(payload(sent, stream_id)) for stream_id in (1, 3, 5)} == dict.fromkeys(
        (1, 3, 5), 100_005
    )


def test_the_client_is_allowed_more_long_before_it_must_wait() -> None:
    peer = Peer(told=WIDE)
    peer.feed(opening())
    sent = []
    allowed = STREAM_WINDOW
    for _ in range(200):
        peer.feed(data(1, bytes(MIB - 5)))
        sent += peer.sent()
        allowed += -MIB + credited(sent, 1)
        assert allowed >= STREAM_WINDOW // 2
        sent = [f for f in sent if f.stream_id == 0]
    assert credited(sent, 0) >= 200 * MIB - CONNECTION_WINDOW // 2


def test_a_client_that_sends_more_than_allowed_loses_the_stream() -> None:
    peer = Peer(told={Setting.INITIAL_WINDOW_SIZE: 0})
    peer.feed(opening())
    peer.connection.send(1, [bytes(2 * STREAM_BACKLOG)])
    events = []
    for _ in range(STREAM_WINDOW // MIB + 1):
        events += peer.feed(data(1, bytes(MIB - 5)))
    assert StreamLost(1) in events
    assert peer.reset() == ErrorCode.FLOW_CONTROL_ERROR


def test_a_stream_that_takes_no_answers_may_send_no_more_until_it_does() -> None:
    peer = Peer(told={Setting.INITIAL_WINDOW_SIZE: 0})
    peer.feed(opening())
    for _ in range(STREAM_WINDOW // MIB):
        for content in messages(peer.feed(data(1, bytes(MIB - 5)))):
            peer.connection.send(1, [content])
    assert credited(peer.sent(), 1) == 0
    peer.feed(window_update(0, 2 * STREAM_WINDOW), window_update(1, STREAM_WINDOW))
    assert credited(peer.sent(), 1) == STREAM_WINDOW


@pytest.mark.parametrize("relief", ["window", "reset", "abort"])
def test_a_connection_that_takes_no_answers_may_send_no_more_until_it_does(relief: str) -> None:
    peer = Peer(told={Setting.INITIAL_WINDOW_SIZE: 0})
    streams = range(1, 2 * CONNECTION_BACKLOG // MIB + 2, 2)
    for stream_id in streams:  # each below its own bound
        peer.feed(opening(stream_id))
        peer.connection.send(stream_id, [bytes(CONNECTION_BACKLOG // len(streams) + 1)])
    other = streams[-1] + 2
    peer.feed(opening(other))
    for _ in range(CONNECTION_WINDOW // MIB // 2):
        peer.feed(data(other, bytes(MIB - 5)))
    sent = peer.sent()
    assert credited(sent, 0) == 0
    assert credited(sent, other) > 0
    if relief == "window":
        peer.feed(settings(WIDE))
        peer.feed(window_update(0, CONNECTION_BACKLOG))
    elif relief == "reset":
        peer.feed(rst_stream(1, ErrorCode.CANCEL))
    else:
        peer.connection.reset(1, Status.UNAVAILABLE, "")
    assert credited(peer.sent(), 0) == CONNECTION_WINDOW // 2


def test_the_connections_window_is_held_to() -> None:
    peer = Peer(told={Setting.INITIAL_WINDOW_SIZE: 0}, limits=Limits(max_message=64 * MIB))
    peer.feed(opening(1))
    peer.connection.send(1, [bytes(CONNECTION_BACKLOG + 1)])
    events = []
    for stream_id in range(3, 3 + 2 * CONNECTION_WINDOW // MIB + 2, 2):
        events += peer.feed(opening(stream_id), data(stream_id, bytes(MIB - 5)))
        if peer.connection.ended:
            break
    assert isinstance(events[-1], ConnectionEnded)
    assert peer.goaway() == ErrorCode.FLOW_CONTROL_ERROR


def test_nothing_but_control_frames_is_sent_while_paused() -> None:
    peer = Peer()
    peer.feed(opening(1), opening(3))
    peer.connection.pause()
    peer.connection.send(1, [b"one"])
    peer.connection.send(1, [b"two"])
    assert not peer.connection.finish(1)
    peer.connection.send(3, [b"three"])
    peer.feed(window_update(1, 10), window_update(0, 10))
    assert payload(peer.sent(), 1) == b""
    assert peer.connection.resume() == [StreamEnded(1)]
    sent = peer.sent()
    assert payload(sent, 1) == message(b"one") + message(b"two")
    assert payload(sent, 3) == message(b"three")


def test_aborting_a_stream_in_the_middle_of_a_message_resets_it() -> None:
    peer = Peer(told={Setting.INITIAL_WINDOW_SIZE: 3})
    peer.feed(opening(1), opening(3))
    peer.connection.send(1, [b"12345"])
    peer.connection.send(3, [b"12345"])
    peer.connection.reset(1, Status.INTERNAL, "lost with the rest")
    assert peer.reset() == ErrorCode.INTERNAL_ERROR
    peer.connection.reset(3, Status.UNAVAILABLE, "")
    assert peer.reset(3) == ErrorCode.CANCEL


def test_unfinished_messages_have_a_bound_over_all_streams() -> None:
    peer = Peer(unfinished=3 * MIB)
    half = message(bytes(MIB))[: MIB // 2]
    lost = []
    for stream_id in range(1, 41, 2):
        lost += [
            e
            for e in peer.feed(opening(stream_id), frame(DATA, 0, stream_id, half))
            if isinstance(e, StreamLost)
        ]
        assert peer.gathering.held <= 3 * MIB
    assert len(lost) == 14
    assert peer.status(39)["grpc-status"] == "8"
    peer.feed(*(rst_stream(stream_id, ErrorCode.CANCEL) for stream_id in range(1, 13, 2)))
    assert peer.gathering.held == 0
    rest = message(bytes(MIB))[MIB // 2 :]
    assert messages(peer.feed(opening(41), frame(DATA, 0, 41, half), frame(DATA, 0, 41, rest))) == [
        bytes(MIB)
    ]
