"""What a body that passes the picker takes of memory: one copy, out of the buffer that was received into."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from picker.serving.http2.events import Message
from picker.serving.http2.frames import DATA, Setting, frame, window_update
from picker.serving.http2.transport import _joined
from tests.extproc.gateway import message
from tests.serving.http2.peer import Peer, opening
from tests.serving.http2.peer import message as prefixed
from tests.test_streams import GET, POST, pick, rig

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MEGABYTE = 1_000_000
CHUNK = 16_384 - 64
"""What Envoy writes to a DATA frame, with what stands around it."""


def allocated(step: Callable[[], None]) -> int:
    """The most bytes that a step held at a time beyond those from before."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    step()
    return tracemalloc.get_traced_memory()[1] - before


@pytest.mark.parametrize("phase", ["request_body", "response_body"])
async def test_an_echoed_body_is_copied_once(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(told={Setting.INITIAL_WINDOW_SIZE: 1 << 24})
    peer.feed(window_update(0, 1 << 24), opening())
    it = rig(pick())

    def send(segments: Sequence[bytes | memoryview]) -> None:
        peer.connection.send(1, segments)

    monkeypatch.setattr(it.wire, "send", send)
    monkeypatch.setattr(it.wire, "send_soon", send, raising=False)
    asked = POST if phase == "request_body" else GET
    it.stream.received(message("request_headers", headers=asked, modes="duplex/duplex", end=asked is GET))
    if phase == "request_body":
        it.stream.received(message("request_body", body=b'{"model":"m","prompt":"x"}' + bytes(1 << 20)))
    else:
        it.stream.received(message("response_headers", headers={":status": "200"}))
    peer.sent()
    read = memoryview(frame(DATA, 0, 1, prefixed(message(phase, body=bytes(CHUNK)))))
    sent = 0

    def echo() -> None:
        nonlocal sent
        for event in peer.connection.receive(read, peer.now):
            assert isinstance(event, Message)
            it.stream.received(event.data)
        sent += sum(map(len, _joined(peer.connection.data_to_send())))

    echo()  # what is there once
    sent = 0
    tracemalloc.start()
    try:
        taken = sum(allocated(echo) for _ in range(MEGABYTE // CHUNK))
    finally:
        tracemalloc.stop()
    assert sent > MEGABYTE - CHUNK
    assert taken <= 1.1 * MEGABYTE
