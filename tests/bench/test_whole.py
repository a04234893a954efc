"""A whole picker with many streams open: what it may hold."""

from __future__ import annotations

from bench.transport.whole import whole

MOST_MB = 120.0


async def test_a_thousand_open_streams_fit() -> None:
    found = await whole("http2", 1_000)
    assert 0 < found.ready_mb <= found.held_mb * 1.2
    assert found.held_mb <= MOST_MB
