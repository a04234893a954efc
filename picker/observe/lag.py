"""How late the event loop comes to what is due: what every request waits for, whatever it asks."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from prometheus_client import Histogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

INTERVAL = 0.25
"""Seconds between two samples: four timers a second cost nothing, and a hang of one is seen at least once."""
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LoopLag:
    """Samples of how much later than asked for a sleep ends."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "picker_event_loop_lag_seconds",
            "How late the event loop came to a timer.",
            buckets=_BUCKETS,
            registry=registry,
        )

    async def sample(self) -> None:
        """Take samples for ever."""
        while True:
            due = time.perf_counter() + INTERVAL
            await asyncio.sleep(INTERVAL)
            self.late(time.perf_counter() - due)

    def late(self, seconds: float) -> None:
        """Count one; a loop's own clock of milliseconds can be early by one."""
        self._seconds.observe(max(0.0, seconds))
