"""Scenarios of the llm-d picker's integration tests: queue, KV, prefix and LoRA scorers, of one weight."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from scorer.plugins.plugin import Means
from scorer.policy import build
from tests.scorer.plugins.support import NOW, fleet, node
from tests.scorer.support import Asked, all_rows

SCORERS = ("queue-scorer", "kv-cache-utilization-scorer", "prefix-cache-scorer", "lora-affinity-scorer")
POLICY = node(
    {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [{"type": name} for name in SCORERS],
    }
)


class Pod(NamedTuple):
    queue: float
    kv_usage: float
    models: str = ""


@pytest.mark.parametrize(
    ("model", "pods", "chosen"),
    [
        ("my-model-12345", [Pod(3, 0.2), Pod(0, 0.1), Pod(10, 0.2)], 1),
        (
            "sql-lora-1fdg2",
            [Pod(0, 0.2, "foo,bar"), Pod(0, 0.1, "foo,sql-lora-1fdg2"), Pod(10, 0.2, "foo")],
            1,
        ),
        # The adapter outweighs a fuller cache.
        ("sql-lora-1fdg2", [Pod(10, 0.2, "foo"), Pod(10, 0.4, "foo,sql-lora-1fdg2"), Pod(10, 0.3, "foo")], 1),
        # The adapter and a free cache outweigh an empty queue.
        ("sql-lora-1fdg2", [Pod(6, 0.2, "foo,sql-lora-1fdg2"), Pod(0, 0.85, "foo"), Pod(10, 0.9, "foo")], 0),
        ("sql-lora-1fdg3", [Pod(4, 0.2, "foo,sql-lora-1fdg3"), Pod(4, 0.85, "foo,sql-lora-1fdg3")], 0),
    ],
)
def test_the_endpoint_that_the_reference_chooses(model: str, pods: list[Pod], chosen: int) -> None:
    pool = fleet(len(pods), queue=[pod.queue for pod in pods], kv_usage=[pod.kv_usage for pod in pods])
    for row, pod in enumerate(pods):
        pool.set_models(pool.slot_at(row), frozenset(pod.models.split(",")), most=0)
    profile = build(POLICY, Means(Random(1))).profile
    assert profile.run(pool, all_rows(pool), Asked(model=model), NOW, Random(1)).rows == (chosen,)
