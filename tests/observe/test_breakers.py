"""What the log says of breakers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from picker.observe.breakers import BreakerLog
from scorer.fleet import Fleet

if TYPE_CHECKING:
    import pytest


def test_an_endpoint_goes_out_and_comes_back_with_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fleet = Fleet()
    slot = fleet.add("10.0.0.1:8000")
    gone = fleet.add("10.0.0.2:8000")
    breakers = BreakerLog(fleet)
    breakers.look()
    fleet.breaker_open[[slot.row, gone.row]] = True
    breakers.look()
    breakers.look()
    fleet.remove(gone)
    fleet.breaker_open[slot.row] = False
    breakers.look()
    breakers.look()
    said = [(record.levelno, record.__dict__["fields"]["endpoint"]) for record in caplog.records]
    assert said == [
        (logging.WARNING, "10.0.0.1:8000"),
        (logging.WARNING, "10.0.0.2:8000"),
        (logging.INFO, "10.0.0.1:8000"),
    ]
