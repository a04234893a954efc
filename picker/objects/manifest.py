"""InferenceModelRewrite and InferenceObjective objects from a YAML stream.

Read as strictly as an API server with strict field validation does, for there is none in between: a
mistyped field would else be a rule that silently does nothing. ``poolRef`` is checked and otherwise not
looked at: whoever gives the file means the pool of this picker.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import TYPE_CHECKING

import yaml

from picker.inference.reading import LONGEST_NAME
from picker.objects.rules import ModelRewrite, Objective, ObjectSet, Rule, Target
from picker.strict_yaml import NULL, Fault, documents, fields, integer, items, shown, text

if TYPE_CHECKING:
    from picker.strict_yaml import Fields

_API_VERSIONS = ("llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2")
_REWRITE = "InferenceModelRewrite"
_OBJECTIVE = "InferenceObjective"
_KINDS = (_REWRITE, _OBJECTIVE)
_OBJECT_KEYS = ("apiVersion", "kind", "metadata", "spec", "status")
_METADATA_KEYS = (
    "name",
    "namespace",
    "labels",
    "annotations",
    "creationTimestamp",
    "generateName",
    "uid",
    "resourceVersion",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
    "managedFields",
    "selfLink",
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_LONGEST_OBJECT_NAME = 253
_HEAVIEST = 1_000_000
_PRIORITIES = (-(2**31), 2**31 - 1)


class ObjectsError(ValueError):
    """Objects cannot be used; one line that says what, where and the mend."""


def parse_objects(raw: bytes, file: str) -> ObjectSet:
    """The objects in ``raw``. Raises ObjectsError, which begins with ``file`` and the line."""
    try:
        return _objects(raw)
    except Fault as fault:
        raise ObjectsError(f"{file}, line {fault.line}: {fault.text}") from None


def parse_object(raw: bytes) -> ObjectSet:
    """The one object that ``raw`` is the JSON text of. Raises ObjectsError, which names no place."""
    try:
        return _objects(raw)
    except Fault as fault:
        raise ObjectsError(fault.text) from None


def _objects(raw: bytes) -> ObjectSet:
    rewrites: dict[str, ModelRewrite] = {}
    objectives: dict[str, Objective] = {}
    for root in documents(raw):
        if root.tag != NULL:  # nothing between two separators
            _read(root, rewrites, objectives)
    return ObjectSet(tuple(rewrites.values()), tuple(objectives.values()))


def _read(root: yaml.Node, rewrites: dict[str, ModelRewrite], objectives: dict[str, Objective]) -> None:
    members = fields(root, "the object", _OBJECT_KEYS, needed=("apiVersion", "kind", "metadata"))
    kind = _choice(members["kind"], "kind", _KINDS)
    _choice(members["apiVersion"], "apiVersion", _API_VERSIONS)
    metadata = fields(members["metadata"], "metadata", _METADATA_KEYS, needed=("name",))
    name = _short(metadata["name"], "metadata.name", _LONGEST_OBJECT_NAME)
    if name in (rewrites if kind == _REWRITE else objectives):
        raise Fault(metadata["name"], f"there is an {kind} {name!r} already; remove one of the two")
    if kind == _OBJECTIVE:
        objectives[name] = Objective(name, _priority(members.get("spec")))
    else:
        if "spec" not in members:
            raise Fault(root, "the object has no 'spec'")
        rewrites[name] = ModelRewrite(name, _rules(members["spec"]), _created(metadata))


def _created(metadata: Fields) -> float:
    node = metadata.get("creationTimestamp")
    if node is None or node.tag == NULL:  # as generators write it
        return math.inf
    written = node.value.upper() if isinstance(node, yaml.ScalarNode) else ""
    try:
        if _TIME.fullmatch(written):
            return datetime.fromisoformat(written).timestamp()
    except ValueError:  # the 31st of February
        pass
    raise Fault(
        node, f"metadata.creationTimestamp {shown(node)} is not a time; write it like 2026-01-31T12:00:00Z"
    )


def _priority(spec: yaml.Node | None) -> int:
    if spec is None:
        return 0
    members = fields(spec, "spec", ("poolRef", "priority"))
    _check_pool(members)
    if "priority" not in members:
        return 0
    return integer(members["priority"], "spec.priority", *_PRIORITIES, "a priority")


def _rules(spec: yaml.Node) -> tuple[Rule, ...]:
    members = fields(spec, "spec", ("poolRef", "rules"), needed=("rules",))
    _check_pool(members)
    listed = items(members["rules"], "spec.rules")
    return tuple(_rule(node, f"spec.rules[{index}]") for index, node in enumerate(listed))


def _check_pool(spec: Fields) -> None:
    if "poolRef" in spec:
        for key, node in fields(spec["poolRef"], "spec.poolRef", ("group", "kind", "name")).items():
            text(node, f"spec.poolRef.{key}")


def _rule(node: yaml.Node, place: str) -> Rule:
    members = fields(node, place, ("matches", "targets"), needed=("targets",))
    matches = items(members["matches"], f"{place}.matches") if "matches" in members else []
    models = tuple(_match(match, f"{place}.matches[{index}]") for index, match in enumerate(matches))
    targets = items(members["targets"], f"{place}.targets")
    if not targets:
        raise Fault(members["targets"], f"{place}.targets is empty; give one '- modelRewrite: …' at least")
    return Rule(
        models, tuple(_target(target, f"{place}.targets[{index}]") for index, target in enumerate(targets))
    )


def _match(node: yaml.Node, place: str) -> str:
    model = fields(node, place, ("model",), needed=("model",))["model"]
    place = f"{place}.model"
    members = fields(model, place, ("type", "value"), needed=("value",))
    if "type" in members:
        _choice(members["type"], f"{place}.type", ("Exact",))
    return _short(members["value"], f"{place}.value", LONGEST_NAME)


def _target(node: yaml.Node, place: str) -> Target:
    members = fields(node, place, ("modelRewrite", "weight"), needed=("modelRewrite",))
    model = _short(members["modelRewrite"], f"{place}.modelRewrite", LONGEST_NAME)
    if "weight" not in members:
        return Target(model)
    return Target(model, integer(members["weight"], f"{place}.weight", 1, _HEAVIEST, "a weight"))


def _choice(node: yaml.Node, place: str, known: tuple[str, ...]) -> str:
    chosen = text(node, place)
    if chosen not in known:
        raise Fault(node, f"{place} {shown(node)} cannot be read here; give {' or '.join(known)}")
    return chosen


def _short(node: yaml.Node, place: str, most: int) -> str:
    name = text(node, place)
    if not name:
        raise Fault(node, f"{place} is empty; give a name")
    if len(name) > most:
        raise Fault(node, f"{place} {shown(node)} is longer than {most} characters")
    return name
