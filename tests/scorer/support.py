"""Small fleets for the tests of choosing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from scorer.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scorer.contract import Rows


@dataclass(frozen=True)
class Asked:
    path: str = "/"
    prompt_tokens: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    session_id: str = ""
    multiplexed_model_id: str = ""
    method: str = "POST"


def fleet_of(size: int, *, fetched_at: float = -np.inf) -> Fleet:
    """Endpoints 10.0.0.1:8000, 10.0.0.2:8000 and so on in rows 0, 1 and so on."""
    fleet = Fleet()
    for number in range(size):
        slot = fleet.add(f"10.0.0.{number + 1}:8000")  # may replace the columns
        fleet.fetched_at[slot.row] = fetched_at
    return fleet


def all_rows(fleet: Fleet) -> Rows:
    return fleet.alive.nonzero()[0]
