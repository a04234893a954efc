"""The objects file: what is read, and what an error says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.objects.manifest import ObjectsError, parse_objects
from picker.objects.rules import ModelRewrite, Objective, ObjectSet, Rule, Target

OBJECTIVE = """\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec:
"""
REWRITE = """\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: canary}
spec:
"""
RULES = REWRITE + "  rules:\n"


def read(text: str) -> ObjectSet:
    return parse_objects(text.encode(), "o.yaml")


def complaint(text: str | bytes) -> str:
    with pytest.raises(ObjectsError) as caught:
        parse_objects(text if isinstance(text, bytes) else text.encode(), "o.yaml")
    message = str(caught.value)
    assert message.isprintable()
    return message.removeprefix("o.yaml, ")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("- a\n", "line 1: the object is not a mapping; write it as 'key: value' lines"),
        ("kind: InferenceObjective\n", "line 1: the object has no 'apiVersion'"),
        ("apiVersion: llm-d.ai/v1alpha2\n", "line 1: the object has no 'kind'"),
        (
            "apiVersion: llm-d.ai/v1alpha2\nkind: InferencePool\nmetadata: {name: a}\n",
            "line 2: kind 'InferencePool' cannot be read here; give InferenceModelRewrite or",
        ),
        (
            OBJECTIVE.replace("v1alpha2", "v1alpha1"),
            "line 1: apiVersion 'llm-d.ai/v1alpha1' cannot be read here; give llm-d.ai/v1alpha2 or",
        ),
        (OBJECTIVE.replace("{name: batch}", "{}"), "line 3: metadata has no 'name'"),
        (OBJECTIVE.replace("batch", "''"), "line 3: metadata.name is empty; give a name"),
        (OBJECTIVE.replace("batch", "1"), "line 3: metadata.name '1' is not a text; put it in quotes"),
        (
            OBJECTIVE.replace("name:", "nane: b, name:"),
            "line 3: metadata has an unknown key 'nane'; did you mean 'name'?",
        ),
        (
            OBJECTIVE.replace("spec", "specs"),
            "line 4: the object has an unknown key 'specs'; did you mean 'spec'?",
        ),
        (OBJECTIVE + "  prio: 1\n", "line 5: spec has an unknown key 'prio'; did you mean 'priority'?"),
        (
            OBJECTIVE + "  priority: high\n",
            "line 5: spec.priority 'high' is not a priority; give a number from -2147483648 to 2147483647",
        ),
        (
            OBJECTIVE + "  priority: 2147483648\n",
            "line 5: spec.priority '2147483648' is not a priority; give a number from",
        ),
        (OBJECTIVE + "  priority: '1'\n", "line 5: spec.priority '1' is a text; write it without quotes"),
        (
            OBJECTIVE + "  poolRef: {named: a}\n",
            "line 5: spec.poolRef has an unknown key 'named'; did you mean 'name'?",
        ),
        (
            OBJECTIVE + "  priority: 1\n---\n" + OBJECTIVE + "  priority: 2\n",
            "line 9: there is an InferenceObjective 'batch' already; remove one of the two",
        ),
        (REWRITE + "  poolRef: {name: a}\n", "line 5: spec has no 'rules'"),
        (REWRITE.replace("spec:\n", ""), "line 1: the object has no 'spec'"),
        (
            REWRITE + "  rules: {}\n",
            "line 5: spec.rules is not a list; begin each of its members with '- '",
        ),
        (RULES + "  - matches: []\n", "line 6: spec.rules[0] has no 'targets'"),
        (
            RULES + "  - targets: []\n",
            "line 6: spec.rules[0].targets is empty; give one '- modelRewrite: …' at least",
        ),
        (
            RULES + "  - targets:\n    - model: a\n",
            "line 7: spec.rules[0].targets[0] has an unknown key 'model'; there are only modelRewrite",
        ),
        (
            RULES + "  - targets: [{modelRewrite: a, weight: 0}]\n",
            "line 6: spec.rules[0].targets[0].weight '0' is not a weight; give a number from 1 to 1000000",
        ),
        (
            RULES + "  - targets: [{modelRewrite: a, weight: 1000001}]\n",
            "line 6: spec.rules[0].targets[0].weight '1000001' is not a weight; give a number from 1 to",
        ),
        (
            RULES + "  - targets: [{modelRewrite: a, weight: 0.5}]\n",
            "line 6: spec.rules[0].targets[0].weight '0.5' is not a weight; give a number from 1 to 1000000",
        ),
        (
            RULES + "  - {targets: [{modelRewrite: a}], matches: [{model: {type: Prefix, value: b}}]}\n",
            "line 6: spec.rules[0].matches[0].model.type 'Prefix' cannot be read here; give Exact",
        ),
        (
            RULES + "  - {targets: [{modelRewrite: a}], matches: [{model: {}}]}\n",
            "line 6: spec.rules[0].matches[0].model has no 'value'",
        ),
        (
            RULES + "  - {targets: [{modelRewrite: a}], matches: [{header: {}}]}\n",
            "line 6: spec.rules[0].matches[0] has an unknown key 'header'; there are only model",
        ),
        (
            RULES + f"  - targets: [{{modelRewrite: {'a' * 600}}}]\n",
            f"line 6: spec.rules[0].targets[0].modelRewrite '{'a' * 60}'… is longer than 512 characters",
        ),
        (
            RULES.replace("canary", "canary, creationTimestamp: yesterday") + "    []\n",
            "line 3: metadata.creationTimestamp 'yesterday' is not a time; write it like 2026-01-31T12:00",
        ),
        (
            RULES.replace("canary", "canary, creationTimestamp: '2026-02-31T00:00:00Z'") + "    []\n",
            "line 3: metadata.creationTimestamp '2026-02-31T00:00:00Z' is not a time; write it like",
        ),
        ("a: [\n", "line 2: not YAML: did not find expected node content"),
        (b"\xff", "line 1: not YAML: "),
        ("#" * (1 << 20) + "\n", "line 1: the file is larger than 1 MiB"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_the_mend(text: str | bytes, error: str) -> None:
    assert complaint(text).startswith(error)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n---\n"])
def test_a_file_without_objects_is_fine(text: str) -> None:
    assert read(text) == ObjectSet()


@pytest.mark.parametrize("version", ["llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2"])
def test_both_groups_are_read(version: str) -> None:
    text = OBJECTIVE.replace("llm-d.ai/v1alpha2", version) + "  priority: -1\n"
    assert read(text) == ObjectSet(objectives=(Objective("batch", -1),))


def test_an_objective_without_a_priority_has_0() -> None:
    assert read(OBJECTIVE.replace("spec:\n", "")).objectives == (Objective("batch", 0),)
    assert read(OBJECTIVE + "  poolRef: {name: pool}\n").objectives == (Objective("batch", 0),)


def test_a_stream_as_a_cluster_gives_it() -> None:
    text = """\
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata:
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
  creationTimestamp: 2026-01-31T12:00:00Z
  generation: 1
  name: canary
  namespace: default
  resourceVersion: "7"
  uid: 0f8c-11
spec:
  poolRef: {group: inference.networking.k8s.io, kind: InferencePool, name: pool}
  rules:
  - matches:
    - model: {type: Exact, value: chat}
    - model: {value: chat-latest}
    targets:
    - {modelRewrite: chat-v1, weight: 9}
    - {modelRewrite: chat-v2, weight: 1}
  - targets:
    - modelRewrite: chat-v1
status:
  conditions: [{type: Accepted, status: "True"}]
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: canary, creationTimestamp: null}
spec: {poolRef: {name: pool}, priority: 2}
"""
    exact = Rule(("chat", "chat-latest"), (Target("chat-v1", 9), Target("chat-v2", 1)))
    generic = Rule((), (Target("chat-v1"),))
    assert read(text) == ObjectSet(
        (ModelRewrite("canary", (exact, generic), 1769860800.0),), (Objective("canary", 2),)
    )


@pytest.mark.parametrize(
    ("written", "created"),
    [
        ("1970-01-01T00:00:10Z", 10.0),
        ("'1970-01-01T02:00:10+02:00'", 10.0),
        ("'1970-01-01T00:00:10.5z'", 10.5),
        ("null", math.inf),
    ],
)
def test_times(written: str, created: float) -> None:
    text = REWRITE.replace("canary", f"canary, creationTimestamp: {written}") + "  rules: []\n"
    assert read(text).rewrites == (ModelRewrite("canary", (), created),)


@settings(max_examples=100)
@given(st.binary(max_size=200), st.integers(0, len(RULES)))
def test_whatever_is_in_the_file_the_answer_is_objects_or_one_line(noise: bytes, at: int) -> None:
    raw = (RULES + "  - targets: [{modelRewrite: a, weight: 1}]\n").encode()
    mistake = ""
    try:
        parse_objects(raw[:at] + noise + raw[at:], "o.yaml")
    except ObjectsError as error:
        mistake = str(error)
    assert not mistake or mistake.startswith("o.yaml, line ")
    assert not mistake or mistake.isprintable()
