"""Plugins as a policy makes them, on small fleets."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from scorer.document import Fields, Node
from scorer.fleet import Fleet
from scorer.plugins.plugin import Means, Plugin
from scorer.plugins.registry import PLUGINS
from tests.scorer.support import Asked, all_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scorer.contract import Request

NOW = 100.0


def node(value: Any, line: int = 1) -> Node:
    """A tree of plain values."""
    if isinstance(value, dict):
        return Node({key: node(one, line) for key, one in value.items()}, line)
    if isinstance(value, list):
        return Node([node(one, line) for one in value], line)
    return Node(value, line)


def plugin(name: str, means: Means | None = None, /, **parameters: Any) -> Plugin:
    fields = Fields(node(parameters), "parameters")
    made = PLUGINS[name].make(fields, means or Means(random=Random(1), session_key=b"key"))
    fields.close()
    return made


def fleet(size: int, labels: Sequence[Mapping[str, str]] = (), /, **columns: list[float]) -> Fleet:
    """Endpoints 10.0.0.1:8000 and so on with fresh pages, and columns as given."""
    made = Fleet()
    for number in range(size):
        made.add(f"10.0.0.{number + 1}:8000", labels[number] if labels else None)
    made.fetched_at[:size] = NOW
    for name, values in columns.items():
        getattr(made, name)[:size] = values
    return made


def scores(made: Plugin, fleet: Fleet, request: Request | None = None, now: float = NOW) -> list[float]:
    assert made.score is not None
    given = made.score(fleet, all_rows(fleet), request or Asked(), now)
    assert given is not None
    assert given.dtype == np.float64
    return [round(score, 6) for score in given.tolist()]


def kept(made: Plugin, fleet: Fleet, request: Request | None = None, now: float = NOW) -> list[int]:
    """Rows that a filter keeps."""
    assert made.keep is not None
    rows = all_rows(fleet)
    mask = made.keep(fleet, rows, request or Asked(), now)
    assert mask.dtype == np.bool_
    return list(rows[mask].tolist())
