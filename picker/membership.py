"""Who is in the pool, from whichever source the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from picker.endpoints.file import FileSource
from picker.endpoints.fixed import FixedSource
from picker.endpoints.pool import PoolSource
from picker.endpoints.selected import PodsSource
from picker.endpoints.service import ServiceSource
from picker.settings import MEMBERSHIP

if TYPE_CHECKING:
    from picker.endpoints.endpoint import Source
    from picker.kube.client import KubeClient
    from picker.settings import Settings

KUBERNETES = ("pool", "service", "pods")
"""The settings that are asked of the Kubernetes API."""


def membership(settings: Settings) -> str:
    """The setting that names the endpoints."""
    return next(name for name in MEMBERSHIP if getattr(settings, name) is not None)


def source(settings: Settings, kube: KubeClient | None) -> Source:
    """Where the endpoints come from. ``kube`` is there for what is asked of the Kubernetes API."""
    port = settings.metrics_target_port
    if kube is not None:
        if settings.pool is not None:
            return PoolSource(kube, settings.pool, metrics_target_port=port)
        if settings.service is not None:
            return ServiceSource(kube, settings.service, metrics_target_port=port)
        if settings.pods is not None:
            return PodsSource(kube, settings.pods, metrics_target_port=port)
    if settings.endpoints_file is not None:
        return FileSource(settings.endpoints_file, metrics_target_port=port)
    return FixedSource(settings.endpoints or (), metrics_target_port=port)
