"""Sessions stay where they are, unless that endpoint is no candidate or is full."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.document import PolicyError
from scorer.plugins import sessions
from scorer.plugins.plugin import Means
from scorer.plugins.sessions import IdSessions
from tests.scorer.plugins.support import NOW, fleet, kept, plugin, scores
from tests.scorer.support import Asked

BY_ID = {"strategy": "session_id"}
NAMES = ("session-affinity-filter", "session-affinity-scorer")


def token(row: int, means: Means | None = None, **parameters: Any) -> tuple[str, str]:
    made = plugin("session-affinity-scorer", means, **parameters)
    assert made.mark is not None
    header = made.mark(fleet(3), row, Asked(), NOW)
    assert header is not None
    return header


def test_a_token_leads_back_in_every_replica_with_the_key() -> None:
    header, value = token(1)
    assert header == "x-session-token"
    back = Asked(headers={header: value})
    assert scores(plugin("session-affinity-scorer"), fleet(3), back) == [0.0, 1.0, 0.0]
    assert kept(plugin("session-affinity-filter"), fleet(3), back) == [1]


def test_a_token_tells_and_proves_nothing_without_the_key() -> None:
    _, value = token(1)
    assert "10.0" not in value
    assert len(value) == 32
    assert value != token(1, Means(Random(1), b"another"))[1]
    for forged in ("", "10.0.0.2:8000", "MTAuMC4wLjI6ODAwMA==", value[:-1] + "A", value + "," + value):
        back = Asked(headers={"x-session-token": forged})
        assert scores(plugin("session-affinity-scorer"), fleet(3), back) == [0.0, 0.0, 0.0]
        assert kept(plugin("session-affinity-filter"), fleet(3), back) == [0, 1, 2]


def test_the_header_of_the_token_is_a_parameter() -> None:
    header, value = token(2, encodedEndpointHeaderConfig={"header": "X-Seat"})
    assert header == "x-seat"
    made = plugin("session-affinity-filter", encodedEndpointHeaderConfig={"header": "X-Seat"})
    assert kept(made, fleet(3), Asked(headers={"x-seat": value})) == [2]


@pytest.mark.parametrize("name", NAMES)
def test_a_saturated_endpoint_is_not_kept_to(name: str) -> None:
    back = Asked(headers=dict([token(1)]))
    pool = fleet(3, queue=[0, 5, 0], kv_usage=[0, 0.1, 0])
    made = plugin(name)
    if made.keep is not None:
        assert kept(made, pool, back) == [0, 1, 2]
    else:
        assert scores(made, pool, back) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", NAMES)
def test_who_is_no_candidate_is_not_kept_to(name: str) -> None:
    pool = fleet(3)
    back = Asked(headers=dict([token(1)]))
    pool.remove(pool.slot_at(1))
    made = plugin(name)
    if made.keep is not None:
        assert kept(made, pool, back) == [0, 2]
    else:
        assert scores(made, pool, back) == [0.0, 0.0]


def test_an_id_is_remembered_where_it_was_sent_last_for_some_time_of_silence() -> None:
    made, pool = plugin("session-affinity-scorer", **BY_ID), fleet(2)
    assert made.mark is None
    assert made.sent is not None
    asked = Asked(headers={"x-session-id": "s"})
    assert scores(made, pool, asked) == [0.0, 0.0]
    made.sent(pool, 1, asked, NOW)
    assert scores(made, pool, asked, NOW + 300) == [0.0, 1.0]
    assert scores(made, pool, asked, NOW + 301) == [0.0, 0.0]
    made.sent(pool, 1, asked, NOW + 200)
    assert scores(made, pool, asked, NOW + 500) == [0.0, 1.0]
    made.sent(pool, 0, asked, NOW + 500)
    assert scores(made, pool, asked, NOW + 500) == [1.0, 0.0]
    assert scores(made, pool, Asked(headers={"x-session-id": "t"}), NOW + 500) == [0.0, 0.0]
    pool.remove(pool.slot_at(0))
    pool.add("10.0.0.9:80")
    assert scores(made, pool, asked, NOW + 500) == [0.0, 0.0]


def test_sources_of_an_id_in_their_order() -> None:
    made = plugin(
        "session-affinity-filter",
        strategy="session_id",
        sessionIdConfig={"sources": [{"header": "X-Mine"}, {"attribute": "agent-identity"}]},
    )
    assert made.sent is not None
    pool = fleet(2)
    made.sent(pool, 0, Asked(headers={"x-mine": "a", "session-id": "b"}), NOW)
    made.sent(pool, 1, Asked(headers={"x-claude-code-session-id": "b"}), NOW)
    assert kept(made, pool, Asked(headers={"x-mine": "a", "session-id": "b"})) == [0]
    assert kept(made, pool, Asked(headers={"session-id": "b"})) == [1]
    assert kept(made, pool, Asked(headers={"x-session-id": "a"})) == [0, 1]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"strategy": "cookie"},
            "parameters.strategy 'cookie' is unknown; there are only encoded_endpoint_header",
        ),
        ({"sessionIdConfig": {"sources": [{}]}}, "parameters.sessionIdConfig.sources[0] needs either"),
        (
            {"sessionIdConfig": {"sources": [{"attribute": "x"}]}},
            "'x' is unknown; there are only agent-identity",
        ),
        ({"sessionIdConfig": {"ttl": 1}}, "parameters.sessionIdConfig has an unknown field 'ttl'"),
        ({"encodedEndpointHeaderConfig": {"header": ""}}, "header is empty"),
    ],
)
def test_what_parameters_may_not_be(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        plugin("session-affinity-scorer", **parameters)
    assert message in str(caught.value)


def test_ids_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 10)
    remembered, pool = IdSessions(("id",), 300.0), fleet(1)
    for number in range(50):
        remembered.sent(pool, 0, Asked(headers={"id": str(number)}), NOW)
    assert len(remembered) == 10
    assert remembered.row(pool, Asked(headers={"id": "49"}), NOW) == 0
    assert remembered.row(pool, Asked(headers={"id": "0"}), NOW) == -1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 2), st.floats(0, 40)), min_size=1, max_size=40
    )
)
def test_ids_are_what_a_plain_table_remembers(steps: list[tuple[str, int, float]]) -> None:
    remembered, pool = IdSessions(("id",), 60.0), fleet(3)
    plain: dict[str, tuple[int, float]] = {}
    now = 0.0
    for name, row, pause in steps:
        now += pause
        asked = Asked(headers={"id": name})
        last_row, last_seen = plain.get(name, (-1, -math.inf))
        assert remembered.row(pool, asked, now) == (last_row if now - last_seen <= 60.0 else -1)
        remembered.sent(pool, row, asked, now)
        plain[name] = (row, now)
