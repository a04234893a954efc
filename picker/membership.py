"""Who is in the pool, from whichever source the settings name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from picker.endpoints import eds
from picker.endpoints.enriched import EnrichedSource
from picker.endpoints.envoy_admin import UnixSocketAdmin
from picker.endpoints.file import FileSource
from picker.endpoints.fixed import FixedSource
from picker.endpoints.pool import PoolSource
from picker.endpoints.ray_head import RayHead, RayHeadSource, head_details
from picker.endpoints.ray_service import RayClusterSource, RayService
from picker.endpoints.route_weights import route_weights
from picker.endpoints.selected import PodsSource
from picker.endpoints.service import ServiceSource
from picker.settings import MEMBERSHIP

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from picker.endpoints.endpoint import Source
    from picker.kube.client import KubeClient
    from picker.settings import Settings

    Weights = Callable[[], AsyncGenerator[Mapping[str, int], None]]

KUBERNETES = ("pool", "service", "pods", "ray_service", "ray_cluster")
"""The settings that are asked of the Kubernetes API."""
REMOTE = (*KUBERNETES, "ray_head")
"""Those that are asked of another server, whose first answer may take any time."""


class Members(NamedTuple):
    """Where the endpoints come from, and the weights of their clusters, where something tells them."""

    source: Source
    weights: Weights | None = None


def membership(settings: Settings) -> str:
    """The setting that names the endpoints."""
    return next(name for name in MEMBERSHIP if getattr(settings, name) is not None)


def pool_name(settings: Settings) -> str:
    """What metrics call the pool: the name of the object it is made from."""
    service = settings.service.service if settings.service else None
    named = settings.pool or service or settings.ray_service or settings.ray_cluster
    return named.name if named is not None else "default"


def members(settings: Settings, kube: KubeClient | None) -> Members:
    """The sources that the settings name. ``kube`` is there for what is asked of the Kubernetes API."""
    found = _members(settings, kube)
    if settings.eds_file is None:
        return found
    admin = UnixSocketAdmin(settings.envoy_admin, eds.RESOURCE) if settings.envoy_admin else None
    return found._replace(source=eds.PublishedSource(found.source, eds.EdsFile(settings.eds_file), admin))


def _members(settings: Settings, kube: KubeClient | None) -> Members:
    port = settings.metrics_target_port
    named = None if kube is None else _in_kubernetes(settings, kube)
    weights = None
    if kube is not None and settings.http_route is not None:
        weights = partial(route_weights, kube, settings.http_route)
    if kube is not None and settings.ray_service is not None:
        service = RayService(kube, settings.ray_service, metrics_target_port=port)
        source = service if named is None else EnrichedSource(named, service.details)
        return Members(source, weights or service.weights)
    if settings.ray_head is not None:
        head = RayHead(settings.ray_head, token_file=settings.ray_token_file)
        if named is None:
            return Members(RayHeadSource(head, metrics_target_port=port))
        return Members(EnrichedSource(named, lambda: head_details(head)), weights)
    if settings.endpoints_file is not None:
        return Members(FileSource(settings.endpoints_file, metrics_target_port=port))
    return Members(named or FixedSource(settings.endpoints or (), metrics_target_port=port), weights)


def _in_kubernetes(settings: Settings, kube: KubeClient) -> Source | None:
    """The source of members in Kubernetes, other than a RayService, that the settings name."""
    port = settings.metrics_target_port
    if settings.pool is not None:
        return PoolSource(kube, settings.pool, metrics_target_port=port)
    if settings.service is not None:
        return ServiceSource(kube, settings.service, metrics_target_port=port)
    if settings.pods is not None:
        return PodsSource(kube, settings.pods, metrics_target_port=port)
    if settings.ray_cluster is not None:
        return RayClusterSource(kube, settings.ray_cluster, metrics_target_port=port)
    return None
