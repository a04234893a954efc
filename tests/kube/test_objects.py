"""InferenceObjective and InferenceModelRewrite of a real API server, whose kinds come and go."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from picker.kube.names import ObjectName
from picker.kube.watch import Pace
from picker.objects.kube import follow_pool_objects
from picker.objects.rules import ModelRewrite, Objective, ObjectSet, Rule, Target
from tests.kube.follow import DEADLINE
from tests.support.kube.modules import LLM_D_CRDS, crd_folders

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from picker.kube.client import KubeClient
    from tests.kube.cluster import Namespace
    from tests.support.kube.server import ApiServer

pytestmark = pytest.mark.kube

QUICK = Pace(first_retry=0.1, last_retry=0.2, slow_retry=0.2)
NEW, LEGACY = "llm-d.ai", "inference.networking.x-k8s.io"
KINDS = {"InferenceObjective": "inferenceobjectives", "InferenceModelRewrite": "inferencemodelrewrites"}


@pytest.fixture
def kinds(server: ApiServer) -> Iterator[Callable[[str], None]]:
    """Installs the kinds of a group; all are removed at the end."""
    installed: list[str] = []

    def install(group: str) -> None:
        installed.append(group)
        folder = crd_folders()["gateway-api-inference-extension"]
        legacy = [folder / f"{LEGACY}_{plural}.yaml" for plural in KINDS.values()]
        server.install_crds(*([LLM_D_CRDS] if group == NEW else legacy))

    yield install
    for group in installed:
        with contextlib.suppress(Exception):
            remove(server, group)


def remove(server: ApiServer, group: str) -> None:
    for plural in KINDS.values():
        server.remove_crd(f"{plural}.{group}")


def create(namespace: Namespace, group: str, kind: str, name: str, pool: str = "llm", **spec: Any) -> None:
    version = f"{group}/v1alpha2"
    body = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"poolRef": {"name": pool}, **spec},
    }
    namespace.server.request("POST", namespace.path(KINDS[kind], version), body)


class Objects:
    """The present objects of the pool."""

    def __init__(self, client: KubeClient, namespace: Namespace) -> None:
        self._sets = follow_pool_objects(client, ObjectName(namespace.name, "llm"), pace=QUICK)
        self.now: ObjectSet | None = None

    async def until(self, holds: Callable[[ObjectSet], bool]) -> ObjectSet:
        async with asyncio.timeout(DEADLINE):
            while self.now is None or not holds(self.now):
                self.now = await anext(self._sets)
        return self.now


@pytest.fixture
async def objects(client: KubeClient, namespace: Namespace) -> AsyncIterator[Objects]:
    followed = Objects(client, namespace)
    yield followed
    await followed._sets.aclose()


async def test_kinds_that_are_installed_later_and_removed(
    server: ApiServer, namespace: Namespace, kinds: Callable[[str], None], objects: Objects
) -> None:
    assert await objects.until(lambda _: True) == ObjectSet()
    await asyncio.to_thread(kinds, NEW)
    create(namespace, NEW, "InferenceObjective", "batch", priority=-1)
    found = await objects.until(lambda found: bool(found.objectives))
    assert found.objectives == (Objective("batch", -1),)
    await asyncio.to_thread(remove, server, NEW)
    assert await objects.until(lambda found: not found.objectives) == ObjectSet()
    await asyncio.to_thread(kinds, NEW)
    create(namespace, NEW, "InferenceObjective", "again")
    found = await objects.until(lambda found: bool(found.objectives))
    assert found.objectives == (Objective("again", 0),)


async def test_only_objects_of_the_pool_count(
    namespace: Namespace, kinds: Callable[[str], None], objects: Objects
) -> None:
    await asyncio.to_thread(kinds, NEW)
    targets = [{"modelRewrite": "chat-v1", "weight": 9}, {"modelRewrite": "chat-v2", "weight": 1}]
    rule = {"matches": [{"model": {"value": "chat"}}], "targets": targets}
    create(namespace, NEW, "InferenceObjective", "other", pool="other", priority=5)
    create(namespace, NEW, "InferenceModelRewrite", "canary", rules=[rule])
    found = await objects.until(lambda found: bool(found.rewrites))
    assert not found.objectives
    (rewrite,) = found.rewrites
    assert rewrite.rules == (Rule(("chat",), (Target("chat-v1", 9), Target("chat-v2", 1))),)
    assert 1.7e9 < rewrite.created < 1e10
    assert isinstance(rewrite, ModelRewrite)


async def test_what_cannot_be_used_is_told_and_left_out(
    namespace: Namespace,
    kinds: Callable[[str], None],
    objects: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await asyncio.to_thread(kinds, NEW)
    long = {"targets": [{"modelRewrite": "x" * 5000}]}
    create(namespace, NEW, "InferenceModelRewrite", "long", rules=[long])
    create(namespace, NEW, "InferenceModelRewrite", "good", rules=[{"targets": [{"modelRewrite": "a"}]}])
    found = await objects.until(lambda found: bool(found.rewrites))
    assert [rewrite.name for rewrite in found.rewrites] == ["good"]
    told = [vars(record)["fields"] for record in caplog.records if "cannot be used" in record.message]
    assert told[0]["name"] == "long"
    assert "spec.rules[0].targets[0].modelRewrite" in told[0]["error"]


async def test_the_legacy_group_counts_where_the_other_is_not_installed(
    server: ApiServer, namespace: Namespace, kinds: Callable[[str], None], objects: Objects
) -> None:
    await asyncio.to_thread(kinds, LEGACY)
    create(namespace, LEGACY, "InferenceObjective", "legacy", priority=1)
    found = await objects.until(lambda found: bool(found.objectives))
    assert found.objectives == (Objective("legacy", 1),)
    await asyncio.to_thread(kinds, NEW)
    create(namespace, NEW, "InferenceObjective", "new", priority=2)
    await objects.until(lambda found: found.objectives == (Objective("new", 2),))
    await asyncio.to_thread(remove, server, NEW)
    await objects.until(lambda found: found.objectives == (Objective("legacy", 1),))
