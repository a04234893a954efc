"""Ray's proxies, as seen by running Ray 2.60."""

from __future__ import annotations

from random import Random

import pytest

from picker.replay.agenda import Agenda
from picker.replay.engine import EngineModel
from picker.replay.ray import ASSIGNMENT, REFUSAL, RayCluster, RayModel
from picker.replay.servers import FAST_FAILURE, Fault
from tests.replay.support import Noted

# A request with n tokens of answer takes n times 0.1 s, whatever else is done.
_SLEEPING = EngineModel(chunk=1_000_000, step=0.1, token=0.0, sequence=0.0, kv_tokens=1_000_000)


def _cluster(agenda: Agenda, *, nodes: int, faults: tuple[Fault, ...] = (), **ray: int) -> RayCluster:
    return RayCluster(
        agenda, _SLEEPING, RayModel(**ray), nodes, block_tokens=16, faults=faults, random=Random(1)
    )


def _send(cluster: RayCluster, agenda: Agenda, proxy: int, output: int) -> Noted:
    call = Noted(agenda, 1, output)
    cluster.send(proxy, call)
    return call


def test_a_burst_is_refused_though_there_is_room() -> None:
    agenda = Agenda()
    cluster = _cluster(agenda, nodes=3, replicas=1, max_ongoing=4, max_queued=8)
    calls = [_send(cluster, agenda, 0, 1) for _ in range(12)]
    agenda.run(while_=lambda: True)
    assert [call.refusals for call in calls] == [[]] * 8 + [[(503, True, REFUSAL)]] * 4


def test_a_free_replica_of_the_own_node_is_taken_first() -> None:
    agenda = Agenda()
    cluster = _cluster(agenda, nodes=3, max_ongoing=2)
    call = _send(cluster, agenda, 1, 10)
    agenda.at(0.5, lambda: pages.extend(cluster.page(proxy) for proxy in range(3)))
    pages: list[object] = []
    agenda.run(while_=lambda: True)
    assert call.end_at == pytest.approx(ASSIGNMENT + 1.0)
    assert [page.local_running for page in pages] == [0.0, 1.0, 0.0]  # type: ignore[attr-defined]


def test_a_full_node_sends_to_the_others() -> None:
    agenda = Agenda()
    cluster = _cluster(agenda, nodes=2, max_ongoing=1)
    calls = [_send(cluster, agenda, 0, 10) for _ in range(2)]
    agenda.run(while_=lambda: True)
    assert [call.end_at for call in calls] == [pytest.approx(ASSIGNMENT + 1.0, abs=0.01)] * 2


def test_a_slot_that_falls_free_is_found_by_the_next_look_only() -> None:
    agenda = Agenda()
    cluster = _cluster(agenda, nodes=1, max_ongoing=1)
    _send(cluster, agenda, 0, 10)
    waiting = _send(cluster, agenda, 0, 1)
    agenda.run(while_=lambda: True)
    # Free after 1.002 s; looked for at 0.002 s and then 0.025, 0.05, 0.1, 0.2, 0.4 and 0.5 s later each.
    assert waiting.end_at == pytest.approx(ASSIGNMENT + 1.275 + 0.1)


def test_a_page_tells_what_waits_and_what_replicas_have() -> None:
    agenda = Agenda()
    cluster = _cluster(agenda, nodes=1, max_ongoing=2)
    for _ in range(5):
        _send(cluster, agenda, 0, 10)
    agenda.at(0.5, lambda: pages.append(cluster.page(0)))
    pages: list[object] = []
    agenda.run(while_=lambda: True)
    page = pages[0]
    assert (page.load, page.queue, page.running) == (5.0, 3.0, 2.0)  # type: ignore[attr-defined]
    assert cluster.page(0).load == 0.0


def test_a_failing_proxy_answers_at_once() -> None:
    agenda = Agenda()
    cluster = _cluster(agenda, nodes=1, faults=(Fault(fails_from=0.0, fails_until=1.0),))
    call = _send(cluster, agenda, 0, 1)
    agenda.run(while_=lambda: True)
    assert call.refusals == [(503, False, FAST_FAILURE)]


def test_what_no_replica_can_take_is_refused() -> None:
    agenda = Agenda()
    cluster = _cluster(agenda, nodes=1)
    call = Noted(agenda, 1_000_000, 1)
    cluster.send(0, call)
    agenda.run(while_=lambda: True)
    assert [status for status, _, _ in call.refusals] == [400]
    assert cluster.page(0).load == 0.0
