"""The bound of the comparison: looking ahead says what then happens, and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.routing.oracle import play, seconds_to_first_token
from picker.replay.cases import Case, Source
from picker.replay.policies import PolicyName
from picker.replay.workload import Request
from tests.replay.support import Rig

SAMPLES = Path(__file__).parents[2] / "picker" / "replay" / "samples"
CASE = Case(Source(str(SAMPLES / "mooncake.jsonl")), PolicyName("ours"), rate=16.0, requests=80, endpoints=3)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30), st.floats(0.0, 2.0))
def test_the_copy_does_what_the_engine_then_does(seed: int, before: int, asked_at: float) -> None:
    random = Random(seed)
    looked, plain = Rig(), Rig()
    ids = count(1000)
    for _ in range(before):
        shared = random.randrange(10)
        blocks = tuple(range(shared)) + tuple(next(ids) for _ in range(random.randrange(10)))
        time, prompt, output = random.uniform(0.0, asked_at), 16 * len(blocks) + 5, random.randint(1, 40)
        for rig in (looked, plain):
            rig.at(time, prompt, output, blocks)
    job = Request(0.0, 165, 3, tuple(range(10)))
    foreseen: list[float] = []
    looked.agenda.at(asked_at, lambda: foreseen.append(seconds_to_first_token(looked.engine, job)))
    for rig in (looked, plain):
        rig.at(asked_at, job.prompt, job.output, job.blocks)
        rig.run()
    first_at = looked.jobs[-1].first_at
    assert first_at is not None
    assert abs(first_at - asked_at - foreseen[0]) < 1e-9
    assert [told.end_at for told in looked.jobs] == [told.end_at for told in plain.jobs]


def test_who_knows_is_ahead_and_who_shares_further() -> None:
    knowing, sharing = (play(CASE, shared=shared).ttft[1] for shared in (False, True))
    assert sharing < knowing < replace(CASE, policy=PolicyName("round-robin")).run().ttft[1]


def test_sessions_are_played_too() -> None:
    case = Case(
        Source(str(SAMPLES / "agentic.jsonl")), PolicyName("ours"), rate=30.0, sessions=2, requests=30
    )
    assert play(case, shared=True).failed == 0
