"""Which sources the settings make."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from picker.endpoints.enriched import EnrichedSource
from picker.endpoints.file import FileSource
from picker.endpoints.fixed import FixedSource
from picker.endpoints.pool import PoolSource
from picker.endpoints.ray_head import RayHeadSource
from picker.endpoints.ray_service import RayClusterSource, RayService
from picker.endpoints.selected import PodsSource
from picker.endpoints.service import ServiceSource
from picker.membership import KUBERNETES, members, membership
from picker.settings import MEMBERSHIP, load

if TYPE_CHECKING:
    from pathlib import Path

    from picker.kube.client import KubeClient

GIVEN = {
    "endpoints": "10.0.0.1:8000",
    "pool": "default/llm",
    "service": "default/llm",
    "pods": "default/app=llm:8000",
    "ray_service": "default/llm",
    "ray_cluster": "default/llm",
    "ray_head": "http://head:8265",
}
KUBE = cast("KubeClient", object())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("endpoints", FixedSource),
        ("endpoints_file", FileSource),
        ("pool", PoolSource),
        ("service", ServiceSource),
        ("pods", PodsSource),
        ("ray_service", RayService),
        ("ray_cluster", RayClusterSource),
        ("ray_head", RayHeadSource),
    ],
)
async def test_each_setting_has_its_source(name: str, kind: type, tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    file.touch()
    settings = load({name: GIVEN.get(name, str(file))}, {})
    assert membership(settings) == name
    found = members(settings, KUBE if name in KUBERNETES else None)
    assert type(found.source) is kind
    assert (found.weights is not None) == (name == "ray_service")


@pytest.mark.parametrize("ray", ["ray_service", "ray_head"])
@pytest.mark.parametrize("name", ["pool", "service", "pods"])
async def test_what_ray_knows_is_added_to_the_members_of_another_source(name: str, ray: str) -> None:
    settings = load({name: GIVEN[name], ray: GIVEN[ray]}, {})
    assert membership(settings) == name
    found = members(settings, KUBE)
    assert type(found.source) is EnrichedSource
    assert (found.weights is not None) == (ray == "ray_service")


def test_every_source_is_tried_here() -> None:
    assert {*GIVEN, "endpoints_file"} == set(MEMBERSHIP)
