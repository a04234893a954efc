"""The objects of an InferencePool, where their kinds are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import orjson

from picker.kube.resource import Resource
from picker.kube.watch import State
from picker.kube.watches import Watches
from picker.objects.manifest import parse_object
from picker.objects.rules import ModelRewrite, Objective, ObjectSet

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from picker.kube.client import Json, KubeClient
    from picker.kube.names import ObjectName
    from picker.kube.watch import Pace, Reflector

T = TypeVar("T")

_GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""The second is the legacy one, which counts only where the first is not installed."""
_VERSION = "v1alpha2"
_POOL_GROUP = "inference.networking.k8s.io"

# The fields that are read. What a newer version of the API has beside them is left to newer pickers.
Known = dict[str, "Known"]
_REWRITE_SPEC: Known = {
    "rules": {"matches": {"model": {"type": {}, "value": {}}}, "targets": {"modelRewrite": {}, "weight": {}}}
}
_OBJECTIVE_SPEC: Known = {"priority": {}}


async def follow_pool_objects(
    client: KubeClient, pool: ObjectName, *, pace: Pace | None = None
) -> AsyncGenerator[ObjectSet, None]:
    """Give the objects of the pool at first and after every change; never twice the same in a row.

    Kinds that are not installed, or that may not be listed, have no objects, until that changes. An
    object that cannot be used is told in the log and left out. Where the API server cannot be asked the
    last set stays, and the first one is waited for.
    """

    def read_rewrite(item: Json) -> ModelRewrite | None:
        found = _read("InferenceModelRewrite", item, _REWRITE_SPEC, pool.name)
        return found.rewrites[0] if found else None

    def read_objective(item: Json) -> Objective | None:
        found = _read("InferenceObjective", item, _OBJECTIVE_SPEC, pool.name)
        return found.objectives[0] if found else None

    last: ObjectSet | None = None
    async with Watches(client, pace=pace) as watches:
        rewrites = _Kind(watches, "inferencemodelrewrites", pool.namespace, read_rewrite)
        objectives = _Kind(watches, "inferenceobjectives", pool.namespace, read_objective)
        while True:
            await watches.changed()
            found = rewrites.items(), objectives.items()
            if found[0] is None or found[1] is None:
                continue
            objects = ObjectSet(tuple(found[0].values()), tuple(found[1].values()))
            if objects != last:
                last = objects
                yield objects


class _Kind(Generic[T]):
    """One kind of objects, in whichever of the groups it is installed."""

    def __init__(
        self, watches: Watches, plural: str, namespace: str, read: Callable[[Json], T | None]
    ) -> None:
        self._watches = watches
        self._namespace = namespace
        self._read = read
        present, self._legacy_resource = (Resource(group, _VERSION, plural) for group in _GROUPS)
        self._new = watches.add(present, namespace, read)
        self._legacy: Reflector[T] | None = None

    def items(self) -> Mapping[str, T] | None:
        """Its objects by name; None while they are not known."""
        if self._new.state is State.SYNCED:
            if self._legacy is not None:
                self._watches.drop(self._legacy)
                self._legacy = None
            return self._new.items
        if not _settled(self._new):
            return None
        if self._legacy is None:
            self._legacy = self._watches.add(self._legacy_resource, self._namespace, self._read)
        return self._legacy.items if _settled(self._legacy) else None


def _settled(reflector: Reflector[Any]) -> bool:
    return reflector.synced or reflector.refused


def _read(kind: str, item: Json, known: Known, pool: str) -> ObjectSet | None:
    """The object as a file would have it; None for one of another pool. Raises ObjectsError."""
    spec = item["spec"]
    reference = spec["poolRef"]
    if (reference["name"], reference.get("group", _POOL_GROUP)) != (pool, _POOL_GROUP):
        return None
    metadata = {key: item["metadata"][key] for key in ("name", "creationTimestamp")}
    text = {
        "apiVersion": f"{_GROUPS[0]}/{_VERSION}",
        "kind": kind,
        "metadata": metadata,
        "spec": _only(spec, known),
    }
    return parse_object(orjson.dumps(text))


def _only(value: object, known: Known) -> object:
    """The known fields of an object, or of all objects of a list."""
    if isinstance(value, list):
        return [_only(member, known) for member in value]
    if isinstance(value, dict):
        return {key: _only(value[key], inside) for key, inside in known.items() if key in value}
    return value
