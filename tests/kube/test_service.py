"""Endpoints by the EndpointSlices of a real API server. They refuse loopback addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from picker.endpoints.service import ServiceSource
from picker.kube.names import ObjectName, ServicePort
from tests.kube.follow import Followed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from picker.kube.client import KubeClient
    from tests.kube.cluster import Namespace

pytestmark = pytest.mark.kube

SLICES = "discovery.k8s.io/v1"
HTTP = {"name": "http", "port": 8000}
ADMIN = {"name": "admin", "port": 9000}


def endpoint(ip: str, pod: str = "", **conditions: bool) -> dict[str, Any]:
    target = {"targetRef": {"kind": "Pod", "name": pod}} if pod else {}
    return {"addresses": [ip], "conditions": conditions, **target}


def put(
    namespace: Namespace,
    name: str,
    endpoints: Sequence[dict[str, Any]],
    ports: Sequence[dict[str, Any]] = (HTTP,),
    family: str = "IPv4",
) -> None:
    """Make a slice of the Service ``llm`` be so."""
    body = {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "llm"}},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": list(ports),
    }
    collection = namespace.path("endpointslices", SLICES)
    names = [item["metadata"]["name"] for item in namespace.server.request("GET", collection)["items"]]
    if name in names:
        namespace.server.request("PUT", f"{collection}/{name}", body)
    else:
        namespace.server.request("POST", collection, body)


def source(client: KubeClient, namespace: Namespace, port: str = "", metrics: int | None = None) -> Any:
    service = ServicePort(ObjectName(namespace.name, "llm"), port)
    return ServiceSource(client, service, metrics_target_port=metrics)


async def test_addresses_that_serve_of_all_slices(client: KubeClient, namespace: Namespace) -> None:
    put(namespace, "a", [endpoint("10.1.0.1", "pod-1", ready=True), endpoint("10.1.0.2", ready=False)])
    put(namespace, "b", [endpoint("10.1.0.3"), endpoint("10.1.0.4", ready=True, terminating=True)])
    async with Followed(source(client, namespace, metrics=8080)) as service:
        await service.shows("10.1.0.1:8000", "10.1.0.3:8000")
        assert service.named("pod-1").metrics_address == "10.1.0.1:8080"
        put(namespace, "a", [endpoint("10.1.0.2", ready=True, serving=True, terminating=False)])
        await service.shows("10.1.0.2:8000", "10.1.0.3:8000")
        # A Service that publishes what is not ready calls it ready.
        put(namespace, "b", [endpoint("10.1.0.3", ready=True, serving=False)])
        await service.shows("10.1.0.2:8000")
        namespace.server.request("DELETE", namespace.path("endpointslices", SLICES, "a"))
        await service.shows()


@pytest.mark.parametrize("port", ["http", "8000"])
async def test_a_port_by_name_or_number(client: KubeClient, namespace: Namespace, port: str) -> None:
    put(namespace, "a", [endpoint("10.1.0.1")], [HTTP, ADMIN, {"name": "dns", "port": 53, "protocol": "UDP"}])
    async with Followed(source(client, namespace, port)) as service:
        await service.shows("10.1.0.1:8000")


async def test_a_port_that_is_not_clear_is_told_once_until_it_is(
    client: KubeClient, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    put(namespace, "a", [endpoint("10.1.0.1")], [HTTP, ADMIN])
    async with Followed(source(client, namespace)) as service:
        await service.shows()
        put(namespace, "a", [endpoint("10.1.0.1"), endpoint("10.1.0.2")], [HTTP, ADMIN])
        put(namespace, "a", [endpoint("10.1.0.1")], [HTTP])
        await service.shows("10.1.0.1:8000")
    (told,) = [vars(record)["fields"] for record in caplog.records if "no such port" in record.message]
    assert told["ports"] == "admin, http"
    assert told["mend"] == f"PICKER_SERVICE={namespace.name}/llm:admin"


async def test_a_service_of_both_families_has_each_server_once(
    client: KubeClient, namespace: Namespace
) -> None:
    put(namespace, "six", [endpoint("fd00::1", "pod-1")], family="IPv6")
    async with Followed(source(client, namespace)) as service:
        await service.shows("[fd00::1]:8000")
        put(namespace, "four", [endpoint("10.1.0.1", "pod-1")])
        await service.shows("10.1.0.1:8000")


async def test_slices_of_names_are_left_out(client: KubeClient, namespace: Namespace) -> None:
    put(namespace, "names", [endpoint("server.example.org")], family="FQDN")
    put(namespace, "a", [endpoint("10.1.0.1")])
    async with Followed(source(client, namespace)) as service:
        await service.shows("10.1.0.1:8000")
