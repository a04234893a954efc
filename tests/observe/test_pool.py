"""What is read off the fleet and the router when a page is asked for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from picker.inference.question import Question
from picker.observe.lag import LoopLag
from picker.observe.pool import PoolSeries
from picker.routing.decision import Decision, Visibility
from picker.routing.router import Router
from scorer.fleet import CLUSTER_LABEL, Fleet
from scorer.prefix import PrefixIndex
from scorer.profile import built_in_profile
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

PLUGIN = {"plugin_name": "prefix-cache-scorer", "plugin_type": "prefix-cache-scorer"}
SEEN = Visibility(status=True, first_token=True, end=True)


@dataclass
class Messages:
    received: int = 10
    echoed: int = 7


@dataclass
class Rig:
    fleet: Fleet = field(default_factory=Fleet)
    weights: dict[str, int] = field(default_factory=dict)
    ready: bool = True

    def __post_init__(self) -> None:
        self.router = Router(
            self.fleet, built_in_profile(), Random(1), index=PrefixIndex(1 << 20, block_tokens=16)
        )
        self.registry = CollectorRegistry()
        self.registry.register(
            PoolSeries(
                self.fleet,
                self.router,
                Messages(),
                pool="llm",
                version="1.2",
                weights=lambda: self.weights,
                ready=lambda: self.ready,
            )
        )

    def value(self, name: str, labels: Mapping[str, str] | None = None) -> float | None:
        return self.registry.get_sample_value(name, dict(labels or {}))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_averages_are_of_endpoints_that_tell(rig: Rig) -> None:
    rows = [rig.fleet.add(f"10.0.0.1:{port}").row for port in (1, 2, 3)]
    rig.fleet.queue[rows[0]], rig.fleet.queue[rows[1]] = 2, 6
    rig.fleet.draining[rows[2]] = True
    pool = {"name": "llm"}
    assert rig.value("llm_d_epp_average_queue_size", pool) == 4
    assert rig.value("llm_d_epp_std_dev_queue_size", pool) == 2
    assert rig.value("llm_d_epp_average_kv_cache_utilization", pool) is None
    assert rig.value("llm_d_epp_ready_endpoints", pool) == 2


def test_an_empty_pool(rig: Rig) -> None:
    assert rig.value("llm_d_epp_ready_endpoints", {"name": "llm"}) == 0
    assert b"nan" not in generate_latest(rig.registry).lower()


def test_how_much_of_prompts_was_held(rig: Rig) -> None:
    rig.fleet.add("10.0.0.1:1")
    question = Question(model="llama", prompt=b"x" * 640)
    for _ in range(2):
        assert isinstance(rig.router.ask(question, SEEN, 1.0), Decision)
    ratio = "llm_d_epp_prefix_indexer_hit_ratio"
    assert rig.value(f"{ratio}_count", PLUGIN) == 2
    assert rig.value(f"{ratio}_bucket", {**PLUGIN, "le": "0.0"}) == 1
    assert rig.value(f"{ratio}_sum", PLUGIN) == 1.0
    assert rig.value("llm_d_epp_prefix_indexer_hit_bytes_sum", PLUGIN) == 640
    assert rig.value("llm_d_epp_prefix_indexer_size", PLUGIN) == 10


def test_clusters_as_wanted_and_as_they_are(rig: Rig) -> None:
    for port, name in ((1, "old"), (2, "old"), (3, "new")):
        rig.fleet.add(f"10.0.0.1:{port}", {CLUSTER_LABEL: name})
    rig.fleet.add("10.0.0.2:1")
    rig.fleet.draining[0] = True
    rig.weights = {"old": 90, "new": 10}
    assert rig.value("picker_cluster_wanted_ratio", {"cluster": "old"}) == 0.9
    assert rig.value("picker_cluster_endpoints", {"cluster": "old"}) == 2
    assert rig.value("picker_cluster_eligible_endpoints", {"cluster": "old"}) == 1


def test_the_process_itself(rig: Rig) -> None:
    assert rig.value("picker_ready") == 1
    rig.ready = False
    assert rig.value("picker_ready") == 0
    assert rig.value("llm_d_epp_info", {"commit": "unknown", "build_ref": "serve-picker 1.2"}) == 1
    assert (rig.value("picker_messages_total"), rig.value("picker_messages_echoed_total")) == (10, 7)


async def test_how_late_the_loop_is() -> None:
    registry = CollectorRegistry()
    lag = LoopLag(registry)
    lag.late(-0.001)
    lag.late(0.3)
    assert registry.get_sample_value("picker_event_loop_lag_seconds_sum") == 0.3
    task = asyncio.create_task(lag.sample())

    async def sampled() -> bool:
        return registry.get_sample_value("picker_event_loop_lag_seconds_count") == 3

    await eventually(sampled)
    task.cancel()
