"""Rows of the comparison in real time: prompts that begin alike where recorded ones do, and a short run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import orjson
import pytest

from bench.rig.engines import TOKEN_BYTES, blocks_of
from bench.routing.live import BALANCERS, live, prompt_of, requests_of, row, simulated
from picker.replay.cases import Case, Source
from picker.replay.policies import OURS, PolicyName

SAMPLES = Path(__file__).parents[2] / "picker" / "replay" / "samples"
CASE = Case(Source(str(SAMPLES / "mooncake.jsonl")), PolicyName(OURS), rate=20.0, requests=25, endpoints=3)


def test_prompts_have_the_recorded_length_and_begin_alike_where_the_recorded_ones_do() -> None:
    trace = CASE.source.read()
    recorded = trace.requests[:200]
    prompts = [prompt_of(request, number, trace.block) for number, request in enumerate(recorded)]
    assert [len(prompt) // TOKEN_BYTES for prompt in prompts] == [request.prompt for request in recorded]
    found = [blocks_of(prompt.encode(), trace.block) for prompt in prompts]
    for (one, other), (one_found, other_found) in zip(pairwise(recorded), pairwise(found), strict=True):
        assert common(one.blocks, other.blocks) == common(one_found, other_found)
    assert max(common(one, other) for one, other in pairwise(found)) > 0


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    shorter = min(len(one), len(other))
    return next((n for n in range(shorter) if one[n] != other[n]), shorter)


def test_what_is_sent_is_what_the_replay_sends() -> None:
    requests = requests_of(CASE)
    assert len(requests) == 25
    assert requests[0].at == 0.0
    assert all(orjson.loads(request.body)["max_tokens"] >= 1 for request in requests)


@pytest.mark.parametrize("policy", BALANCERS)
async def test_a_short_run_is_answered_whole(policy: str) -> None:
    case = replace(CASE, policy=PolicyName(policy))
    real, expected = await live(case, BALANCERS[policy]), simulated(case, policy)
    assert real.failed == expected.failed == 0
    assert 0.0 < real.ttft[0] <= real.ttft[1] <= real.ttft[2] < 60_000
    assert all(0.0 < there < whole for there, whole in zip(real.in_engine, real.ttft, strict=True))
    assert 0.0 < real.busy <= 1.0
    assert row(case, "sample", policy, real, expected).count("|") == 10
