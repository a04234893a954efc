"""Any cut of any stream of bytes means the same, and no bytes at all do harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from picker.serving.http2.connection import Limits
from picker.serving.http2.events import Message, StreamOpened
from picker.serving.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    SETTINGS,
    ErrorCode,
    Setting,
    frame,
    rst_stream,
    window_update,
)
from picker.serving.http2.frames import settings as settings_frame
from picker.serving.http2.heads import Status
from tests.serving.http2.peer import Peer, block, encoded, message, opening, taken_apart

if TYPE_CHECKING:
    from collections.abc import Callable

    from picker.serving.http2.events import Event

LARGEST = 70_000

sizes = st.one_of(st.integers(0, 40), st.integers(0, 40), st.sampled_from([16_000, 16_384, 65_536, LARGEST]))


@st.composite
def calls(draw: st.DrawFn, stream_id: int) -> list[bytes]:
    """The frames of one call, cut and padded in any way that is allowed."""
    head = block(x_odd=draw(st.sampled_from(["a", "b", None])))
    split = draw(st.integers(0, len(head)))
    frames = draw(
        st.sampled_from(
            [
                [frame(HEADERS, END_HEADERS, stream_id, head)],
                [
                    frame(HEADERS, 0, stream_id, head[:split])
                    + frame(CONTINUATION, END_HEADERS, stream_id, head[split:])
                ],
            ]
        )
    )
    contents = draw(st.lists(sizes, max_size=4))
    body = b"".join(message(bytes([n]) * size) for n, size in enumerate(contents))
    while body:
        size = draw(st.sampled_from([1, 4, 5, 6, 100, 16_384, 80_000]))
        padding = draw(st.sampled_from([None, None, 0, 7]))
        part, body = body[:size], body[size:]
        if padding is None:
            frames.append(frame(DATA, 0, stream_id, part))
        else:
            frames.append(frame(DATA, PADDED, stream_id, bytes([padding]) + part + bytes(padding)))
    ending = draw(st.sampled_from(["data", "trailers", "reset", "none"]))
    if ending == "data":
        frames.append(frame(DATA, END_STREAM, stream_id))
    elif ending == "trailers":
        frames.append(frame(HEADERS, END_HEADERS | END_STREAM, stream_id, encoded([("t", "v")])))
    elif ending == "reset":
        frames.append(rst_stream(stream_id, ErrorCode.CANCEL))
    return frames


@st.composite
def connections(draw: st.DrawFn) -> bytes:
    """What a well-behaved client sends on several streams at once."""
    waiting = [draw(calls(1)), draw(calls(3)), draw(calls(5))]
    sent = [
        PREFACE,
        settings_frame({Setting.INITIAL_WINDOW_SIZE: draw(st.sampled_from([10, 65_535, 1 << 20]))}),
    ]
    opened = 0
    while any(waiting):
        # Streams are opened in the order of their numbers.
        choices = [n for n, left in enumerate(waiting) if left and n <= opened]
        chosen = draw(st.sampled_from(choices or [n for n, left in enumerate(waiting) if left][:1]))
        opened = max(opened, chosen + 1)
        sent.append(waiting[chosen].pop(0))
        sent.append(
            draw(
                st.sampled_from(
                    [b"", b"", frame(PING, 0, 0, bytes(8)), frame(SETTINGS, ACK, 0), window_update(0, 9)]
                )
            )
        )
    return b"".join(sent)


def run(chunks: list[bytes]) -> tuple[list[Event], bytes]:
    """Events of a server that echoes, and all that it sent."""
    peer = Peer(hello=False, limits=Limits(max_message=LARGEST))
    events: list[Event] = []
    output = []
    for chunk in chunks:
        view = memoryview(bytearray(chunk))  # as from a buffer that is used again
        events += peer.connection.receive(view, 0.0)
        view[:] = bytes(len(view))
        output += [bytes(buffer) for buffer in peer.connection.data_to_send()]
    assert peer.gathering.held <= 3 * LARGEST
    return events, b"".join(output)


@settings(max_examples=60, deadline=None)
@given(connections(), st.data())
def test_any_cut_of_a_valid_stream_gives_the_same(sent: bytes, draw: st.DataObject) -> None:
    whole, answered = run([sent])
    assert sum(isinstance(event, StreamOpened) for event in whole) == 3
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(sent)), max_size=30)))
    pieces = [sent[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert run(pieces) == (whole, answered)


@settings(max_examples=20, deadline=None)
@given(connections())
def test_byte_by_byte_gives_the_same(sent: bytes) -> None:
    sent = sent[:3_000]
    assert run([sent[n : n + 1] for n in range(len(sent))]) == run([sent])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=8), st.booleans())
def test_no_bytes_do_harm(chunks: list[bytes], hello: bool) -> None:
    peer = Peer(hello=hello)
    for chunk in chunks:
        peer.feed(chunk)
    taken_apart(b"".join(peer.connection.data_to_send()))


any_frame = st.builds(
    frame,
    st.integers(0, 10),
    st.one_of(st.sampled_from([0, 1, 4, 5]), st.integers(0, 255)),
    st.sampled_from([0, 1, 1, 1, 2, 3, 5, 7, (1 << 31) - 1]),
    st.one_of(
        st.binary(max_size=40),
        st.just(block()),
        st.binary(max_size=30).map(message),
        st.integers(0, (1 << 32) - 1).map(lambda number: number.to_bytes(4, "big")),
        st.tuples(st.integers(0, 8), st.integers(0, (1 << 32) - 1)).map(
            lambda pair: pair[0].to_bytes(2, "big") + pair[1].to_bytes(4, "big")
        ),
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(any_frame, st.just(opening(1)), st.just(opening(3))), max_size=25), st.data())
def test_no_frames_do_harm(frames: list[bytes], draw: st.DataObject) -> None:
    """Whatever comes, and whatever the handlers of streams do meanwhile."""
    peer = Peer()
    opened: set[int] = set()
    deeds: dict[str, Callable[[int], object]] = {
        "send": lambda stream_id: peer.connection.send(stream_id, [b"text", b""]),
        "finish": peer.connection.finish,
        "reset": lambda stream_id: peer.connection.reset(stream_id, Status.UNAVAILABLE, "x"),
        "pause": lambda _: peer.connection.pause(),
        "resume": lambda _: peer.connection.resume(),
        "tick": lambda _: peer.later(1),
        "drain": lambda _: peer.connection.drain(peer.now),
        "nothing": lambda _: None,
    }
    for sent in frames:
        for event in peer.feed(sent):
            if isinstance(event, StreamOpened):
                assert event.stream_id not in opened
                opened.add(event.stream_id)
            if isinstance(event, Message):
                peer.connection.send(event.stream_id, [event.data])
        deeds[draw.draw(st.sampled_from(sorted(deeds)))](draw.draw(st.sampled_from([1, 3, 5])))
    if draw.draw(st.booleans()):
        peer.sent()
    peer.connection.close("enough")
    peer.sent()
    assert peer.gathering.held == 0
