"""Endpoints by an InferencePool of a real API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from picker.endpoints.pool import PoolSource
from picker.endpoints.selected import PodsSource
from picker.kube.names import ObjectName, PodSelector
from tests.kube.follow import Followed

if TYPE_CHECKING:
    from picker.kube.client import KubeClient
    from tests.kube.cluster import Namespace

pytestmark = pytest.mark.kube


@pytest.fixture
def source(client: KubeClient, namespace: Namespace) -> PoolSource:
    return PoolSource(client, ObjectName(namespace.name, "llm"))


async def test_each_target_port_of_each_ready_pod_is_an_endpoint(
    source: PoolSource, namespace: Namespace
) -> None:
    namespace.pool(ports=[8000, 8001])
    namespace.pod("a", "127.0.0.11", labels={"app": "llm", "llm-d.ai/role": "decode"})
    namespace.pod("b", "::1")
    namespace.pod("pending")
    namespace.pod("other", "127.0.0.13", labels={"app": "other"})
    async with Followed(source) as pool:
        await pool.shows("127.0.0.11:8000", "127.0.0.11:8001", "[::1]:8000", "[::1]:8001")
        endpoint = pool.named("a-rank-1")
        assert (endpoint.address, endpoint.metrics_address) == ("127.0.0.11:8001", "127.0.0.11:8001")
        assert endpoint.namespace == namespace.name
        assert endpoint.labels["llm-d.ai/role"] == "decode"


async def test_a_pod_is_in_it_while_it_is_ready_and_not_being_deleted(
    source: PoolSource, namespace: Namespace
) -> None:
    namespace.pool(ports=[8000])
    namespace.pod("a")
    async with Followed(source) as pool:
        await pool.shows()
        namespace.set_ready("a", "127.0.0.11")
        await pool.shows("127.0.0.11:8000")
        namespace.set_ready("a", "127.0.0.11", ready=False)
        await pool.shows()
        namespace.set_ready("a", "127.0.0.11")
        await pool.shows("127.0.0.11:8000")
        namespace.terminate("a")
        await pool.shows()
        namespace.remove("a")
        namespace.pod("a", "127.0.0.12")
        await pool.shows("127.0.0.12:8000")


async def test_a_pod_says_which_of_its_ports_are_live(source: PoolSource, namespace: Namespace) -> None:
    namespace.pool(ports=[8000, 8001])
    namespace.pod("a", "127.0.0.11", annotations={"inference.networking.k8s.io/active-ports": "8001"})
    async with Followed(source) as pool:
        await pool.shows("127.0.0.11:8001")
        assert pool.named("a-rank-1").address == "127.0.0.11:8001"
        namespace.annotate("a", **{"llm-d.ai/active-ports": " 8000, x,, 99999"})
        await pool.shows("127.0.0.11:8000")


async def test_other_ports_and_another_selector(source: PoolSource, namespace: Namespace) -> None:
    namespace.pool(ports=[8000])
    namespace.pod("a", "127.0.0.11")
    namespace.pod("b", "127.0.0.12", labels={"app": "new"})
    async with Followed(source) as pool:
        await pool.shows("127.0.0.11:8000")
        namespace.change_pool(ports=[9000])
        await pool.shows("127.0.0.11:9000")
        sets = pool.sets
        namespace.change_pool(labels={"app": "new"}, ports=[9000])
        await pool.shows("127.0.0.12:9000")
        assert pool.sets == sets + 1, "from one selector's pods to the other's, with nothing in between"
        namespace.remove("a")
        namespace.pod("c", "127.0.0.13", labels={"app": "new"})
        await pool.shows("127.0.0.12:9000", "127.0.0.13:9000")


async def test_a_pool_that_comes_and_goes(
    source: PoolSource, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    namespace.pod("a", "127.0.0.11")
    caplog.set_level("INFO")
    async with Followed(source) as pool:
        await pool.shows()
        for _ in range(2):
            namespace.pool(ports=[8000])
            await pool.shows("127.0.0.11:8000")
            namespace.delete_pool()
            await pool.shows()
    told = [record.message for record in caplog.records if record.name == "picker.endpoints.pool"]
    missing, exists = (
        "there is no such InferencePool; no endpoints until it exists",
        "the InferencePool exists",
    )
    assert told == [missing, exists, missing, exists, missing]


async def test_pods_of_ray_show_their_metrics_on_a_port_of_their_own(
    source: PoolSource, namespace: Namespace
) -> None:
    namespace.pool(ports=[8000])
    labels = {"app": "llm", "ray.io/cluster": "blue"}
    namespace.pod("worker", "127.0.0.11", labels={**labels, "ray.io/serve": "true"})
    namespace.pod("head", "127.0.0.12", labels={**labels, "ray.io/serve": "false"})
    async with Followed(source) as pool:
        await pool.shows("127.0.0.11:8000")
        assert pool.named("worker-rank-0").metrics_address == "127.0.0.11:8080"


async def test_pods_by_their_labels_alone(client: KubeClient, namespace: Namespace) -> None:
    namespace.pod("a", "127.0.0.11")
    source = PodsSource(client, PodSelector(namespace.name, "app in (llm)", (8000, 8001)))
    async with Followed(source) as pool:
        await pool.shows("127.0.0.11:8000", "127.0.0.11:8001")
        namespace.remove("a")
        await pool.shows()
