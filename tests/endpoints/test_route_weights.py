"""The weights of RayClusters, as an HTTPRoute splits traffic between their Services."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from picker.endpoints.route_weights import read_route, route_weights
from picker.kube.names import ObjectName
from picker.kube.resource import HTTP_ROUTES
from tests.endpoints.fake_kube import FAST, FakeKube


def route(*backends: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "llm"}, "spec": {"rules": [{"backendRefs": list(backends)}]}}


def service(cluster: str, weight: Any = None, **more: str) -> dict[str, Any]:
    return {"name": f"{cluster}-serve-svc", **({} if weight is None else {"weight": weight}), **more}


@pytest.mark.parametrize(
    ("item", "weights"),
    [
        ({"spec": {}}, {}),
        (route(), {}),
        (route(service("old", 90), service("new", 10)), {"old": 90, "new": 10}),
        (route(service("old"), service("new", 0)), {"old": 1, "new": 0}),
        (route(service("old", kind="Service", group="")), {"old": 1}),
        (route(service("old", kind="InferencePool", group="inference.networking.k8s.io")), {}),
        (route({"name": "other", "weight": 5}, service("old", 3)), {"old": 3}),
        ({"spec": {"rules": [{}, {"backendRefs": [service("old", 2)]}]}}, {"old": 2}),
    ],
)
def test_weights_of_a_route(item: dict[str, Any], weights: dict[str, int]) -> None:
    assert read_route(item) == weights


@pytest.mark.parametrize("weight", [-1, "1", 1_000_001])
def test_a_weight_that_is_none_is_an_error(weight: Any) -> None:
    with pytest.raises(ValueError, match="the weight of old-serve-svc is"):
        read_route(route(service("old", weight)))


async def test_changes_are_followed_and_a_route_that_vanishes_changes_nothing() -> None:
    kube = FakeKube()
    found = route_weights(kube.client, ObjectName("default", "llm"), pace=FAST)
    async with asyncio.timeout(5):
        assert await anext(found) == {}
        kube.put(HTTP_ROUTES, route(service("old", 90), service("new", 10)))
        assert await anext(found) == {"old": 90, "new": 10}
        kube.delete(HTTP_ROUTES, "llm")
        kube.put(HTTP_ROUTES, route(service("old", 90), service("new", 10)))
        kube.put(HTTP_ROUTES, route(service("old", 80), service("new", 20)))
        assert await anext(found) == {"old": 80, "new": 20}
    await found.aclose()
