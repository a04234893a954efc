"""Whole runs on small traces."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path
from random import Random

import pytest

from picker.replay import cases
from picker.replay.agenda import Agenda
from picker.replay.cases import Case, Source
from picker.replay.engine import EngineModel
from picker.replay.pickers import AtRandom, Fate, LeastRequest, Pick, RoundRobin
from picker.replay.policies import BUILT_IN, OURS, PolicyName
from picker.replay.ray import RayModel
from picker.replay.servers import Engines, Fault
from picker.replay.simulation import Sight, Simulation
from picker.replay.workload import Request, Trace
from tests.replay.support import SEQUENCE, STEP, TOKEN, steady

_SAMPLES = Path(__file__).parents[2] / "picker" / "replay" / "samples"
_MOONCAKE = Source(str(_SAMPLES / "mooncake.jsonl"))
_SESSIONS = Source(str(_SAMPLES / "agentic.jsonl"))


def _case(policy: str = OURS, source: Source = _MOONCAKE) -> Case:
    return Case(source, PolicyName(policy), rate=8.0, requests=150, endpoints=4)


def test_requests_come_at_their_times_and_times_count_from_there() -> None:
    agenda = Agenda()
    servers = Engines(agenda, EngineModel(), 2, block_tokens=16, faults=())
    simulation = Simulation(
        agenda, servers, [RoundRobin(2, Random(0))], sight=Sight(), random=Random(0), requests=4
    )
    simulation.play(steady(4).in_time(2.0, 0))
    simulation.run()
    records = simulation.records
    assert list(records.sent_at) == pytest.approx([0.0, 0.05, 0.1, 0.15])
    assert list(records.first_token) == pytest.approx([STEP + 200 * TOKEN] * 4)
    assert list(records.end) == pytest.approx([STEP + 200 * TOKEN + 4 * (STEP + SEQUENCE)] * 4)
    assert sorted(records.endpoint) == [0, 0, 1, 1]


def test_requests_wait_for_the_decisions_before_theirs() -> None:
    agenda = Agenda()
    servers = Engines(agenda, EngineModel(), 4, block_tokens=16, faults=())
    simulation = Simulation(
        agenda,
        servers,
        [RoundRobin(4, Random(0))],
        sight=Sight(),
        random=Random(0),
        requests=3,
        decision_time=0.08,
    )
    simulation.play(steady(3).in_time(2.0, 0))  # one every 0.05 s
    simulation.run()
    took = STEP + 200 * TOKEN
    assert list(simulation.records.first_token) == pytest.approx([0.08 + took, 0.11 + took, 0.14 + took])


def test_envoys_own_balancers_take_no_time_to_decide() -> None:
    for policy, slower in ((OURS, True), ("llm-d-default", True), ("least-request", False)):
        asked = replace(_case(policy), decision_time=0.05).run()
        assert (asked.ttft[0] > _case(policy).run().ttft[0] + 0.04) is slower


def test_a_session_goes_on_a_pause_after_its_answer_and_then_the_next_one_begins() -> None:
    turns = tuple(Request(pause, 100, 1, session="a") for pause in (0.0, 3.0))
    trace = Trace("two", 16, 1, sessions=(turns,))
    agenda = Agenda()
    servers = Engines(agenda, EngineModel(), 1, block_tokens=16, faults=())
    simulation = Simulation(
        agenda, servers, [RoundRobin(1, Random(0))], sight=Sight(), random=Random(0), requests=3
    )
    simulation.play_sessions(trace.in_turn(3.0, 0), 1)
    simulation.run()
    took = STEP + 100 * TOKEN
    assert list(simulation.records.sent_at) == pytest.approx([0.0, took + 1.0, 2 * took + 1.0])


@pytest.mark.parametrize("policy", BUILT_IN)
@pytest.mark.parametrize("source", [_MOONCAKE, _SESSIONS])
def test_every_policy_serves_every_request(policy: str, source: Source) -> None:
    case = _case(policy, source)
    result = (replace(case, sessions=4) if source is _SESSIONS else case).run()
    assert (result.requests, result.failed) == (150, 0)
    assert sum(result.per_endpoint) == 150
    assert all(time > 0.0 for time in (*result.ttft, *result.end))
    assert 0.0 < result.hit_rate <= result.ideal_hit_rate + 0.05


@pytest.mark.parametrize("policy", BUILT_IN)
def test_a_seed_decides_all(policy: str) -> None:
    first, again, other = (replace(_case(policy), seed=seed).run() for seed in (1, 1, 2))
    assert replace(first, cpu_seconds=0.0) == replace(again, cpu_seconds=0.0, agreement=first.agreement)
    assert first.ttft != other.ttft


def test_ours_waits_less_than_round_robin() -> None:
    ours, plain = (replace(_case(policy), rate=3.0, requests=500).run() for policy in (OURS, "round-robin"))
    assert ours.ttft[1] < plain.ttft[1]
    assert ours.hit_rate > plain.hit_rate


def test_an_endpoint_that_fails_at_once_is_left_alone_by_ours_only() -> None:
    faults = (Fault(fails_from=0.0),)
    ours = replace(_case(), requests=400, faults=faults).run()
    peer = replace(_case("llm-d-default"), requests=400, faults=faults).run()
    assert ours.to_failing < 0.05
    assert ours.failed < peer.failed
    assert peer.to_failing > 0.2


def test_an_endpoint_that_recovers_serves_again() -> None:
    result = replace(_case("round-robin"), faults=(Fault(fails_from=1.0, fails_until=2.0),)).run()
    assert 0 < result.failed < 20


def test_old_pages_renewed_pages_and_hidden_tokens_change_what_is_known() -> None:
    seen = {
        sight: replace(_case(), sight=sight).run().ttft
        for sight in (Sight(), Sight(page_age=10.0), Sight(page_renewal=10.0), Sight(first_token=False))
    }
    assert all(not isnan(time) for times in seen.values() for time in times)
    assert seen[Sight()] != seen[Sight(first_token=False)]


def test_replicas_know_their_own_requests_only() -> None:
    result = replace(_case(), replicas=3).run()
    assert result.failed == 0
    assert 0.0 <= result.agreement <= 1.0
    assert isnan(_case().run().agreement)
    assert isnan(replace(_case("round-robin"), replicas=3).run().agreement)


def test_before_ray_proxies_queues_are_bounded_and_ours_finds_room() -> None:
    ray = RayModel(replicas=1, max_ongoing=2, max_queued=2)
    ours, plain = (
        replace(_case(policy), ray=ray, rate=3.0, sight=Sight(page_renewal=1.0)).run()
        for policy in (OURS, "random")
    )
    assert ours.failed < plain.failed


def test_explaining_says_what_was_chosen_and_changes_nothing() -> None:
    told = replace(_case(), explain=20).run()
    assert replace(told, explanation=(), cpu_seconds=0.0, agreement=0.0) == replace(
        _case().run(), cpu_seconds=0.0, agreement=0.0
    )
    text = "\n".join(told.explanation)
    assert "prompt tokens" in text
    assert "least-work" in text
    assert "chosen: 10.0.0." in text


@pytest.mark.parametrize("policy", ["round-robin", "least-request", "llm-d-optimized"])
def test_the_others_explain_what_there_is(policy: str) -> None:
    assert replace(_case(policy), explain=20).run().explanation


def test_a_policy_file_is_played_as_the_picker_would() -> None:
    content = b"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"
    result = replace(_case(), policy=PolicyName("queue", "queue.yaml", content)).run()
    assert result.failed == 0


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "_read", lambda _source: steady(100))
    told: list[int] = []
    replace(_case("random"), requests=1_200).run(told.append)
    assert told == [500, 1000, 1200]


def test_a_trace_is_played_again_with_new_prompts() -> None:
    trace = Trace("one", 16, 10, (Request(0.0, 32, 1, (3, 4)), Request(1.0, 32, 1, (3, 5))))
    played = trace.in_time(1.0, 1)
    rows = [next(played) for _ in range(3)]
    assert [row.at for row in rows] == [0.0, 1.0, 2.0]
    assert [row.blocks for row in rows] == [(3, 5), (13, 14), (13, 15)]


def test_the_ideal_hit_rate_is_that_of_one_endless_cache() -> None:
    trace = Trace("three", 16, 10, tuple(Request(0.0, 40, 1, blocks) for blocks in ((1, 2), (1, 3), (1, 2))))
    assert trace.ideal_hit_rate(0, 3) == pytest.approx((16 + 32) / 120)
    assert trace.ideal_hit_rate(0, 1) == 0.0


def test_runs_begin_in_different_places() -> None:
    long, short = steady(1000), steady(50)
    assert [long.start_of(seed, 200) for seed in range(3)] == [0, 494, 188]
    assert [short.start_of(seed, 200) for seed in range(3)] == [0, 30, 11]


def test_least_request_counts_what_it_sent() -> None:
    picker = LeastRequest(2, Random(0))
    request = Request(0.0, 10, 1)
    first, second = picker.pick(request, 0.0), picker.pick(request, 0.0)
    assert {first.endpoint, second.endpoint} == {0, 1}
    picker.ended(second.ticket, Fate(200), 1.0)
    assert picker.pick(request, 1.0).endpoint == second.endpoint


def test_round_robin_takes_turns_and_random_none() -> None:
    request = Request(0.0, 10, 1)
    turns = RoundRobin(3, Random(1))
    taken = [turns.pick(request, 0.0).endpoint for _ in range(6)]
    assert taken[:3] == taken[3:]
    assert sorted(taken[:3]) == [0, 1, 2]
    any_ = AtRandom(3, Random(1))
    assert {any_.pick(request, 0.0) for _ in range(50)} == {Pick(number, None) for number in range(3)}
