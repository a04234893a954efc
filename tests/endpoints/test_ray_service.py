"""RayServices and RayClusters: who serves, and the weights while an upgrade goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import pytest

from picker.addresses import HostPort
from picker.endpoints.endpoint import Endpoint
from picker.endpoints.enriched import EnrichedSource
from picker.endpoints.fixed import FixedSource
from picker.endpoints.ray_pods import read_ray_pod
from picker.endpoints.ray_service import RayClusterSource, RayService, Status, read_ray_service
from picker.kube.names import ObjectName
from picker.kube.resource import PODS, RAY_SERVICES
from tests.endpoints.fake_kube import FAST, FakeKube
from tests.endpoints.follow import Follower
from tests.endpoints.ray_objects import ray_pod, ray_service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

NAME = ObjectName("default", "llm")


def service(kube: FakeKube, **options: Any) -> RayService:
    return RayService(kube.client, NAME, pace=FAST, **options)


def cluster(kube: FakeKube, name: str, number: int, **options: Any) -> None:
    """Two workers of a cluster, 10.0.<number>.1 and .2."""
    for worker in (1, 2):
        kube.put(PODS, ray_pod(f"{name}-{worker}", f"10.0.{number}.{worker}", name, **options))


OLD = ["10.0.1.1:8000", "10.0.1.2:8000"]
NEW = ["10.0.2.1:8000", "10.0.2.2:8000"]


class TestStatus:
    @pytest.mark.parametrize(
        ("item", "clusters", "serving", "weights"),
        [
            (ray_service(), (), (), {}),
            (ray_service("a"), ("a",), ("a",), {"a": 100}),
            (ray_service("", "b"), ("b",), ("b",), {"b": 100}),
            (ray_service("a", "b"), ("a", "b"), ("a",), {"a": 100}),
            (ray_service("a", "b", (90, 10)), ("a", "b"), ("a", "b"), {"a": 90, "b": 10}),
            (ray_service("a", "b", (None, 10)), ("a", "b"), ("a", "b"), {"a": 90, "b": 10}),
            (ray_service("a", "b", (100, None)), ("a", "b"), ("a", "b"), {"a": 100, "b": 0}),
            (ray_service("a", "", (40, None)), ("a",), ("a",), {"a": 100}),
            (ray_service("a", "a", (40, 60)), ("a",), ("a",), {"a": 100}),
        ],
    )
    def test_who_serves_and_how_much(
        self,
        item: dict[str, Any],
        clusters: tuple[str, ...],
        serving: tuple[str, ...],
        weights: dict[str, int],
    ) -> None:
        status = read_ray_service(item)
        assert (status.clusters, status.serving, status.weights) == (clusters, serving, weights)

    def test_a_new_service_has_no_status(self) -> None:
        assert read_ray_service({"metadata": {"name": "llm"}}) == Status()

    @pytest.mark.parametrize("percent", [-1, 101, "50", 1.5])
    def test_percents_that_are_none_are_an_error(self, percent: Any) -> None:
        with pytest.raises(ValueError, match="trafficRoutedPercent of activeServiceStatus is"):
            read_ray_service(ray_service("a", "b", (percent, 0)))


class TestPod:
    @pytest.mark.parametrize(
        ("ports", "env", "serve_port", "metrics_port"),
        [
            ({"serve": 8001, "metrics": 9000}, {}, 8001, 9000),
            ({"dashboard": 8265, "serve-http": 8002}, {}, 8002, 8080),
            ({"server": 1}, {}, 8000, 8080),
            ({}, {"RAY_SERVE_ENABLE_HA_PROXY": "1"}, 8000, 9101),
            ({}, {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_HAPROXY_METRICS_PORT": "9200"}, 8000, 9200),
            ({}, {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_HAPROXY_METRICS_PORT": "x"}, 8000, 9101),
            ({"metrics": 9000}, {"RAY_SERVE_ENABLE_HA_PROXY": "0"}, 8000, 9000),
        ],
    )
    def test_its_ports(
        self, ports: dict[str, int], env: dict[str, str], serve_port: int, metrics_port: int
    ) -> None:
        pod = read_ray_pod(ray_pod("a", "10.0.0.1", "c", ports=ports, env=env))
        assert (pod.serve_port, pod.metrics_port) == (serve_port, metrics_port)

    def test_a_container_without_ports_or_environment(self) -> None:
        item = ray_pod("a", "fd00::1", "c")
        item["spec"]["containers"] = [{"name": "ray"}]
        assert read_ray_pod(item).endpoint().address == "[fd00::1]:8000"


async def test_the_members_are_the_active_clusters_pods_that_are_ready_and_may_serve() -> None:
    kube = FakeKube()
    kube.put(RAY_SERVICES, ray_service("old"))
    cluster(kube, "old", 1)
    cluster(kube, "stranger", 9)
    kube.put(PODS, ray_pod("old-3", "10.0.1.3", "old", ready=False))
    kube.put(PODS, ray_pod("old-head", "10.0.1.9", "old", head=True, serve="false"))
    async with Follower(service(kube)) as follower:
        assert await follower.next() == OLD
        kube.put(PODS, ray_pod("old-head", "10.0.1.9", "old", head=True, serve="true"))
        assert await follower.next() == [*OLD, "10.0.1.9:8000"]


async def test_metrics_names_and_labels() -> None:
    kube = FakeKube()
    kube.put(RAY_SERVICES, ray_service("old"))
    kube.put(PODS, ray_pod("pod", "10.0.1.1", "old"))
    labels = {"ray.io/cluster": "old", "ray.io/node-type": "worker", "ray.io/is-ray-node": "yes"}
    expected = Endpoint(
        "10.0.1.1:8000", "10.0.1.1:8080", "pod", "default", labels={**labels, "ray.io/serve": "true"}
    )
    for port, metrics in ((None, "10.0.1.1:8080"), (7, "10.0.1.1:7")):
        sets = service(kube, metrics_target_port=port).sets()
        [endpoint] = await anext(sets)
        await sets.aclose()
        assert endpoint.metrics_address == metrics
        assert port or endpoint == expected


async def test_with_head_only_the_head_alone_serves() -> None:
    kube = FakeKube()
    kube.put(RAY_SERVICES, ray_service("old"))
    cluster(kube, "old", 1, ready=False)
    kube.put(PODS, ray_pod("old-head", "10.0.1.9", "old", head=True))
    async with Follower(service(kube)) as follower:
        assert await follower.next() == ["10.0.1.9:8000"]


async def test_an_upgrade_that_flips_never_leaves_nobody() -> None:
    kube = FakeKube()
    kube.put(RAY_SERVICES, ray_service("old"))
    cluster(kube, "old", 1)
    async with Follower(service(kube)) as follower:
        assert await follower.next() == OLD
        cluster(kube, "new", 2)
        kube.put(RAY_SERVICES, ray_service("old", "new"))
        kube.put(RAY_SERVICES, ray_service("new"))
        assert await follower.next() == NEW
        kube.delete(PODS, "old-1")
        kube.delete(PODS, "new-1")
        assert await follower.next() == NEW[1:]


class Weights:
    """The weights a service gives, read as the app does."""

    def __init__(self, followed: RayService) -> None:
        self._service = followed
        self.queue: asyncio.Queue[Mapping[str, int]] = asyncio.Queue()

    async def follow(self) -> None:
        async for weights in self._service.weights():
            self.queue.put_nowait(weights)

    async def next(self) -> Mapping[str, int]:
        async with asyncio.timeout(5):
            return await self.queue.get()


@contextlib.asynccontextmanager
async def followed(kube: FakeKube) -> AsyncIterator[tuple[Follower, Weights]]:
    one = service(kube)
    weights = Weights(one)
    task = asyncio.create_task(weights.follow())
    try:
        async with Follower(one) as follower:
            yield follower, weights
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_an_incremental_upgrade_and_its_rollback() -> None:
    kube = FakeKube()
    kube.put(RAY_SERVICES, ray_service("old"))
    cluster(kube, "old", 1)
    async with followed(kube) as (members, weights):
        assert await weights.next() == {}
        assert await weights.next() == {"old": 100}
        assert await members.next() == OLD
        cluster(kube, "new", 2)
        kube.put(RAY_SERVICES, ray_service("old", "new", (100, 0)))
        assert await weights.next() == {"old": 100, "new": 0}
        assert await members.next() == [*NEW, *OLD]  # by the pods' names
        for percent in (10, 50, 25):
            kube.put(RAY_SERVICES, ray_service("old", "new", (100 - percent, percent)))
            assert await weights.next() == {"old": 100 - percent, "new": percent}
        kube.put(RAY_SERVICES, ray_service("new"))
        assert await weights.next() == {"new": 100}
        assert await members.next() == NEW


async def test_a_service_that_is_missing_is_waited_for_and_one_that_vanishes_is_remembered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "picker.endpoints.ray_service")
    kube = FakeKube()
    cluster(kube, "old", 1)
    async with Follower(service(kube)) as follower:
        assert await follower.next() == []
        kube.put(RAY_SERVICES, ray_service("old"))
        assert await follower.next() == OLD
        kube.delete(RAY_SERVICES, "llm")
        kube.delete(PODS, "old-1")
        assert await follower.next() == OLD[1:]
        kube.delete(PODS, "old-2")
        assert await follower.next() == []
    told = [record.message for record in caplog.records if "weights" not in record.message]
    assert [message.partition(";")[0] for message in told] == [
        "there is no such RayService",
        "the RayService exists",
        "there is no such RayService",
    ]


async def test_a_service_with_an_impossible_status_counts_as_missing_and_the_last_one_stays() -> None:
    kube = FakeKube()
    kube.put(RAY_SERVICES, ray_service("old"))
    cluster(kube, "old", 1)
    async with Follower(service(kube)) as follower:
        assert await follower.next() == OLD
        kube.put(RAY_SERVICES, ray_service("old", "new", (500, 0)))
        kube.delete(PODS, "old-1")
        assert await follower.next() == OLD[1:]


async def test_a_ray_cluster_without_a_service() -> None:
    kube = FakeKube()
    cluster(kube, "plain", 1, serve=None)
    kube.put(PODS, ray_pod("plain-head", "10.0.1.9", "plain", head=True, serve=None))
    source = RayClusterSource(kube.client, ObjectName("default", "plain"), pace=FAST)
    async with Follower(source) as follower:
        assert await follower.next() == [*OLD, "10.0.1.9:8000"]
        kube.delete(PODS, "plain-1")
        assert await follower.next() == [OLD[1], "10.0.1.9:8000"]


async def test_a_ray_cluster_that_is_not_there_has_no_members() -> None:
    source = RayClusterSource(FakeKube().client, NAME, pace=FAST)
    async with Follower(source) as follower:
        assert await follower.next() == []


class TestBesideAnotherSource:
    def enriched(self, kube: FakeKube, *hosts: str) -> EnrichedSource:
        members = FixedSource([HostPort(host, 8000) for host in hosts])
        return EnrichedSource(members, service(kube).details)

    async def test_members_get_cluster_and_metrics_and_nobody_is_added(self) -> None:
        kube = FakeKube()
        kube.put(RAY_SERVICES, ray_service("old", "new", (50, 50)))
        cluster(kube, "old", 1)
        cluster(kube, "new", 2)
        sets = self.enriched(kube, "10.0.1.1", "10.0.2.1", "10.0.3.1").sets()
        old, new, stranger = await anext(sets)
        await sets.aclose()
        assert (old.labels["ray.io/cluster"], old.metrics_address) == ("old", "10.0.1.1:8080")
        assert new.labels["ray.io/cluster"] == "new"
        assert stranger == Endpoint("10.0.3.1:8000", "10.0.3.1:8000")

    async def test_a_head_that_may_not_serve_is_left_out(self) -> None:
        kube = FakeKube()
        kube.put(RAY_SERVICES, ray_service("old"))
        cluster(kube, "old", 1)
        kube.put(PODS, ray_pod("old-head", "10.0.1.9", "old", head=True, serve="false"))
        async with Follower(self.enriched(kube, "10.0.1.1", "10.0.1.9")) as follower:
            assert await follower.next() == ["10.0.1.1:8000"]
            kube.put(PODS, ray_pod("old-head", "10.0.1.9", "old", head=True, serve="true"))
            assert await follower.next() == ["10.0.1.1:8000", "10.0.1.9:8000"]
