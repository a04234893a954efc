"""Policies as files: what loads, what is refused and how, and what a change does."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from picker.policy_file import (
    PolicyFileError,
    changes,
    follow_policy,
    log_change,
    means,
    parse_policy,
    summary,
)
from scorer.plugins.producers import LACKING
from scorer.plugins.registry import PLUGINS
from scorer.saturation import Concurrency, Utilization
from tests.scorer.support import Asked, fleet_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from scorer.policy import Policy
    from scorer.profile import Profile

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
GIVEN = means(Random(1), b"key")


def policy(text: str, previous: Policy | None = None, head: str = HEAD) -> Policy:
    return parse_policy((head + text).encode(), "policy.yaml", GIVEN, previous)


def mistakes(text: str, head: str = HEAD) -> list[str]:
    with pytest.raises(PolicyFileError) as caught:
        policy(text, head=head)
    assert str(caught.value) == caught.value.lines[0]
    assert not any("\n" in line for line in caught.value.lines)
    return [line.removeprefix("policy.yaml, ") for line in caught.value.lines]


def scorers(profile: Profile) -> dict[str, float]:
    return {weighted.name: weighted.weight for weighted in profile.scorers}


def filters(profile: Profile) -> list[str]:
    return [named.name for named in profile.filters]


# What is added where something is missing


LLM_D_DEFAULT = {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}


@pytest.mark.parametrize("head", [HEAD, HEAD.replace("llm-d.ai", "inference.networking.x-k8s.io")])
def test_a_policy_that_says_nothing_is_the_default_of_the_llm_d_picker(head: str) -> None:
    made = policy("", head=head)
    assert scorers(made.profile) == LLM_D_DEFAULT
    assert filters(made.profile) == []
    assert [one.name for one in made.plugins][-1] == "max-score-picker"
    assert made.profile.uses_prefix
    assert (made.saturation, made.parsers, made.endpoints) == (Utilization(5.0, 0.8), None, None)


def test_plugins_without_a_profile_are_all_in_it() -> None:
    made = policy("plugins: [{type: decode-filter}, {type: queue-scorer}, {type: random-picker}]")
    assert filters(made.profile) == ["decode-filter"]
    assert scorers(made.profile) == {"queue-scorer": 1}
    assert made.plugins[-1].type == "random-picker"


def test_plugins_that_do_not_say_whom_to_prefer_get_the_default_scorers() -> None:
    made = policy("plugins: [{type: decode-filter}, {type: openai-parser}]")
    assert filters(made.profile) == ["decode-filter"]
    assert scorers(made.profile) == LLM_D_DEFAULT


def test_a_profile_without_a_picker_gets_the_first_one_there_is() -> None:
    text = (
        "plugins: [{type: queue-scorer}%s]\n"
        "schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer}]}]"
    )
    assert policy(text % "").plugins[-1].type == "max-score-picker"
    assert policy(text % ", {type: random-picker}").plugins[-1].type == "random-picker"


def test_a_profile_may_be_a_filter_alone() -> None:
    made = policy(
        "plugins: [{type: decode-filter}]\n"
        "schedulingProfiles: [{name: p, plugins: [{pluginRef: decode-filter}]}]"
    )
    assert (filters(made.profile), scorers(made.profile)) == (["decode-filter"], {})


def test_a_plugin_that_filters_and_scores_does_both() -> None:
    made = policy("plugins: [{type: context-length-aware, parameters: {enableFiltering: true}}]")
    assert filters(made.profile) == list(scorers(made.profile)) == ["context-length-aware"]


def test_the_testing_filter_outweighs_everything_and_is_warned_of() -> None:
    made = policy("plugins: [{type: header-based-testing-filter}, {type: queue-scorer}]")
    assert scorers(made.profile) == {"header-based-testing-filter": 1e6, "queue-scorer": 1}
    assert made.warnings[0].startswith("header-based-testing-filter: clients choose their endpoint")


def test_our_own_scorers_stand_beside_the_others() -> None:
    made = policy("plugins: [{type: least-work}, {type: ray-load}, {type: lora-affinity-scorer}]")
    assert list(scorers(made.profile)) == ["least-work", "ray-load", "lora-affinity-scorer"]


# Well-known configurations of llm-d: what needs no more than is here loads

OPTIMIZED_BASELINE = """
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: no-hit-lru-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: no-hit-lru-scorer, weight: 2}
"""

TIERED = """
plugins:
- type: token-producer
- type: approx-prefix-cache-producer
  name: cpu-producer
  parameters: {autoTune: false, lruCapacityPerServer: 1000}
- type: prefix-cache-scorer
  name: gpu
- type: prefix-cache-scorer
  name: cpu
  parameters: {prefixMatchInfoProducerName: cpu-producer}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: gpu, weight: 1.0}
  - {pluginRef: cpu, weight: 1.0}
"""

PAYLOAD_AGNOSTIC = """
plugins:
- type: passthrough-parser
- type: active-request-scorer
- type: session-affinity-scorer
requestHandler:
  parsers:
  - pluginRef: passthrough-parser
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: active-request-scorer, weight: 1}
  - {pluginRef: session-affinity-scorer, weight: 1}
"""

DISAGGREGATED = """
plugins:
- type: disagg-headers-handler
- type: disagg-profile-handler
  parameters: {deciders: {prefill: always-disagg-pd-decider}}
- type: always-disagg-pd-decider
- type: prefill-filter
- type: decode-filter
- type: prefix-cache-scorer
- type: max-score-picker
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: prefix-cache-scorer, weight: 3}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: prefix-cache-scorer}, {pluginRef: max-score-picker}]
"""

FLOW_CONTROL = """
featureGates:
- flowControl
plugins:
- type: queue-scorer
- type: round-robin-fairness-policy
- type: fcfs-ordering-policy
- type: concurrency-detector
  parameters: {maxConcurrency: 132, concurrencyMode: requests, headroom: 0.0}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 2}]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  maxBytes: 10Gi
  defaultRequestTTL: 60s
  priorityBands: [{priority: 100, maxRequests: "500", fairnessPolicyRef: round-robin-fairness-policy}]
"""

PREDICTED_LATENCY = """
plugins:
- type: metrics-data-source
  parameters: {insecureSkipVerify: true, path: /metrics, scheme: http}
- type: core-metrics-extractor
- type: predicted-latency-producer
- type: prefix-cache-affinity-filter
  name: strict
  parameters: {affinityThreshold: 0.99}
- type: latency-scorer
- type: weighted-random-picker
schedulingProfiles:
- name: default
  plugins: [{pluginRef: strict}, {pluginRef: latency-scorer}, {pluginRef: weighted-random-picker}]
"""


def test_the_optimized_baseline() -> None:
    made = policy(OPTIMIZED_BASELINE)
    assert scorers(made.profile) == {**LLM_D_DEFAULT, "no-hit-lru-scorer": 2}
    assert len(made.profile.observers) == 1
    assert made.notes == ()


def test_the_tiered_prefix_cache() -> None:
    made = policy(TIERED)
    assert scorers(made.profile) == {"gpu": 1, "cpu": 1}
    assert [note.split(":")[0] for note in made.notes] == ["token-producer", "cpu-producer"]


def test_the_payload_agnostic_one() -> None:
    made = policy(PAYLOAD_AGNOSTIC)
    assert made.parsers == ("passthrough-parser",)
    assert not made.profile.uses_prefix
    assert len(made.profile.marks) == 1


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (
            DISAGGREGATED,
            "line 5: plugins[0].type 'disagg-headers-handler' is a plugin of the llm-d picker that this",
        ),
        (
            FLOW_CONTROL,
            "line 4: featureGates flowControl is a part of the llm-d picker that this one does not have",
        ),
        (
            PREDICTED_LATENCY,
            "line 8: plugins[2].type 'predicted-latency-producer' is a plugin of the llm-d picker",
        ),
    ],
)
def test_what_needs_more_is_told_what_is_lacking(text: str, first: str) -> None:
    assert mistakes(text)[0].startswith(first)


def test_flow_control_without_its_gate_has_a_detector_and_no_other_effect() -> None:
    made = policy(FLOW_CONTROL.replace("- flowControl", "- flowControl=false"))
    assert made.saturation == Concurrency(most_requests=132)
    assert "flowControl.maxBytes: has no effect without flow control" in made.notes


# The rest of the document


def test_the_saturation_detector() -> None:
    text = (
        "plugins:\n- type: utilization-detector\n"
        "  parameters: {queueDepthThreshold: 9, kvCacheUtilThreshold: 0.5}"
    )
    assert policy(text).saturation == Utilization(9.0, 0.5)
    named = f"{text}\n  name: mine\nsaturationDetector: {{pluginRef: mine}}"
    assert policy(named).saturation == Utilization(9.0, 0.5)
    assert policy(f"{text}\n  name: mine").saturation == Utilization()


def test_the_data_layer_is_accepted_and_told() -> None:
    made = policy(
        "plugins: [{type: metrics-data-source}, {type: core-metrics-extractor}, {type: file-discovery}]\n"
        "dataLayer:\n  injectDefaults: false\n  discovery: {pluginRef: file-discovery}\n"
        "  sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}]"
    )
    assert "dataLayer: membership and scraping are as the settings say" in made.notes


def test_the_endpoints_of_an_answer() -> None:
    assert policy("plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}]").endpoints == 3


def test_the_size_of_blocks_has_a_floor() -> None:
    text = "plugins: [{type: approx-prefix-cache-producer, parameters: {blockSizeTokens: %d}}]"
    assert policy(text % 16).block_tokens == 64
    assert policy(text % 128).block_tokens == 128


def test_clusters_are_ours() -> None:
    made = policy("clusters: {weights: {new: 10, old: 90}, sticky: true}")
    assert made.clusters.weights == (("new", 10), ("old", 90))
    assert (made.clusters.sticky, made.clusters.spill) == (True, True)


PROFILE = "plugins: [{type: queue-scorer}, {type: random-picker}, {type: openai-parser}]\n"
REF = "line 4: schedulingProfiles[0].plugins[0]."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plugin: []", "line 3: the policy has an unknown field 'plugin'; did you mean 'plugins'?"),
        ("plugins: {}", "line 3: plugins is not a list; begin each of its members with '- '"),
        ("plugins: [1]", "line 3: plugins[0] is not a mapping; write it as 'key: value' lines"),
        ("plugins: [{name: x}]", "line 3: plugins[0] has no 'type'"),
        (
            "plugins:\n- type: qeue-scorer",
            "line 4: plugins[0].type 'qeue-scorer' is unknown; did you mean 'queue",
        ),
        (
            "plugins:\n- type: queue-scorer\n  weight: 2",
            "line 5: plugins[0] has an unknown field 'weight'; there are only type, name, parameters",
        ),
        (
            "plugins:\n- type: load-aware-scorer\n  parameters:\n    treshold: 3",
            "line 6: plugins[0].parameters has an unknown field 'treshold'; did you mean 'threshold'?",
        ),
        (
            "plugins:\n- type: load-aware-scorer\n  parameters:\n    threshold: 2.5",
            "line 6: plugins[0].parameters.threshold 2.5 is not a whole number",
        ),
        (
            "plugins:\n- type: load-aware-scorer\n  parameters: {threshold: true}",
            "line 5: plugins[0].parameters.threshold true is not a number; write one without quotes",
        ),
        (
            "plugins: [{type: queue-scorer}, {type: queue-scorer}]",
            "line 3: plugins[1].name 'queue-scorer' is the name of another plugin",
        ),
        (
            "plugins: [{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: x}}]",
            "line 3: plugins[0].parameters.prefixMatchInfoProducerName 'x' is not among the plugins of the",
        ),
        (
            PROFILE + "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorrer}]}]",
            REF + "pluginRef 'queue-scorrer' is not among the plugins; did you mean 'queue-scorer'?",
        ),
        (
            PROFILE + "schedulingProfiles: [{name: a, plugins: [{pluginRef: openai-parser}]}]",
            REF + "pluginRef 'openai-parser' is no filter, scorer or picker",
        ),
        (
            PROFILE + "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: -1}]}]",
            REF + "weight -1 is out of bounds; give a number from 0 to 10000",
        ),
        (
            PROFILE + "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, wait: 1}]}]",
            "line 4: schedulingProfiles[0].plugins[0] has an unknown field 'wait'; did you mean 'weight'?",
        ),
        (
            PROFILE + "schedulingProfiles: [{name: a, plugins: []}, {name: b, plugins: []}]",
            "line 4: schedulingProfiles[1].name 'b' is a further profile, and nothing here chooses among",
        ),
        (
            "featureGates: [flowContol]",
            "line 3: featureGates 'flowContol' is unknown; did you mean 'flowControl",
        ),
        (
            PROFILE + "requestHandler: {parsers: [{pluginRef: queue-scorer}]}",
            "line 4: requestHandler.parsers[0].pluginRef 'queue-scorer' is no parser",
        ),
        (
            PROFILE + "saturationDetector: {pluginRef: queue-scorer}",
            "line 4: saturationDetector.pluginRef 'queue-scorer' is no saturation detector",
        ),
        (
            "clusters: {weights: {a: heavy}}",
            "line 3: clusters.weights.a 'heavy' is not a number; write one without quotes",
        ),
        ("plugins: *x", "line 3: not YAML: found undefined alias"),
        ("plugins: [{type: &a [*a]}]", "line 3: plugins[0].type[0] contains itself"),
        (
            "plugins: [{parameters: {a: 010}}]",
            "line 3: plugins[0].parameters.a '010' is no plain value; write",
        ),
        ("---\nkind: x", "line 4: there is a second document; keep one"),
        ("kind: x", "line 3: the policy has the key 'kind' twice; remove one of the two"),
    ],
)
def test_what_a_policy_may_not_be(text: str, expected: str) -> None:
    (line,) = mistakes(text)
    assert line.startswith(expected)


def test_a_policy_says_what_it_is() -> None:
    assert mistakes("kind: Pod", head="") == [
        "line 1: kind 'Pod' is unknown; there are only EndpointPickerConfig"
    ]
    assert mistakes("kind: EndpointPickerConfig\napiVersion: llm-d.ai/v2", head="") == [
        "line 2: apiVersion 'llm-d.ai/v2' is unknown; did you mean 'llm-d.ai/v1alpha1'?"
    ]
    assert mistakes("", head="") == ["line 1: the file is empty; give an EndpointPickerConfig"]


def test_all_mistakes_are_told_in_the_order_of_the_file_and_nothing_follows_from_another() -> None:
    text = """plugins:
- type: queue-scorrer
- type: latency-scorer
- type: load-aware-scorer
  parameters: {threshold: 0}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: latency-scorer
  - pluginRef: load-aware-scorer
  - pluginRef: gone
clusterz: {}
"""
    assert [line.split(":")[0] for line in mistakes(text)] == [
        "line 4",
        "line 5",
        "line 7",
        "line 13",
        "line 14",
    ]


@pytest.mark.parametrize("name", sorted(LACKING))
def test_a_plugin_that_is_lacking_is_named_as_such(name: str) -> None:
    (line,) = mistakes(f"plugins: [{{type: {name}}}]")
    assert line == (
        f"line 3: plugins[0].type '{name}' is a plugin of the llm-d picker that this one does not have; "
        f"{LACKING[name]}"
    )
    assert name not in PLUGINS


def test_what_refers_to_a_lacking_plugin_is_no_further_mistake() -> None:
    text = """plugins:
- type: precise-prefix-cache-producer
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
schedulingProfiles: [{name: p, plugins: [{pluginRef: prefix-cache-scorer}]}]
"""
    (line,) = mistakes(text)
    assert line.startswith("line 4: plugins[0].type 'precise-prefix-cache-producer' is a plugin of the llm-d")


# Changes


def test_plugins_that_stay_the_same_go_on_with_what_they_remember() -> None:
    text = """plugins:
- type: session-affinity-scorer
  parameters: {strategy: session_id, sessionIdConfig: {evictionTtlSeconds: %d}}
- type: queue-scorer
"""
    fleet, asked = fleet_of(2), Asked(headers={"x-session-id": "s"})
    before = policy(text % 300)
    before.profile.observers[0](fleet, 1, asked, 0.0)

    def homes(made: Policy) -> list[float]:
        given_scores = made.profile.scorers[0].scorer(fleet, fleet.alive.nonzero()[0], asked, 1.0)
        assert given_scores is not None
        return list(given_scores.tolist())

    assert homes(policy(text % 300 + "- type: decode-filter\n", before)) == [0.0, 1.0]
    assert homes(policy(text % 301, before)) == [0.0, 0.0]


def test_blocks_of_another_size_are_for_the_next_start() -> None:
    producer = "plugins: [{type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 128}}]"
    assert changes(policy(""), policy(producer)) == {"block_tokens": "128, from the next start on"}


def test_two_policies_that_decide_alike_are_equal() -> None:
    assert policy(OPTIMIZED_BASELINE) == policy("# a comment\n" + OPTIMIZED_BASELINE)
    assert policy(OPTIMIZED_BASELINE) != policy(OPTIMIZED_BASELINE.replace("weight: 3", "weight: 4"))


def test_a_change_is_told_by_what_differs() -> None:
    before = policy("plugins: [{type: queue-scorer}, {type: load-aware-scorer}, {type: least-work}]")
    after = policy(
        "plugins: [{type: queue-scorer}, {type: load-aware-scorer, parameters: {threshold: 9}},"
        " {type: ray-load}, {type: random-picker, parameters: {maxNumOfEndpoints: 2}}]\n"
        "schedulingProfiles: [{name: p, plugins: [{pluginRef: load-aware-scorer},"
        " {pluginRef: queue-scorer, weight: 0.5}, {pluginRef: ray-load}]}]"
    )
    assert changes(before, after) == {
        "added": "ray-load * 1, random-picker",
        "removed": "least-work, max-score-picker",
        "changed": "load-aware-scorer: threshold 128 → 9, queue-scorer: weight 1 → 0.5",
        "order": "load-aware-scorer, queue-scorer, ray-load, random-picker",
        "endpoints": "None → 2",
    }


def test_the_log_says_what_is_in_force_and_what_changed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    before = policy("plugins: [{type: header-based-testing-filter}, {type: token-producer}]")
    log_change(None, before)
    log_change(
        before, policy(OPTIMIZED_BASELINE.replace("plugins:\n", "plugins:\n- type: token-producer\n", 1))
    )
    assert [record.message for record in caplog.records] == [
        "the policy is not one for production",
        "policy in force",
        "the policy is read in another way",
        "policy changed",
    ]


def test_a_summary_for_people() -> None:
    assert dict(summary(policy(OPTIMIZED_BASELINE + "clusters: {weights: {a: 1}}"))) == {
        "filters": "none",
        "scorers": "queue-scorer * 2, kv-cache-utilization-scorer * 2, prefix-cache-scorer * 3,"
        " no-hit-lru-scorer * 2",
        "picker": "max-score-picker",
        "endpoints": "as the settings say",
        "saturation": "5 waiting requests or 80% of the KV cache",
        "parsers": "all",
        "prompts": "compared in blocks of 64 tokens",
        "clusters": "a 1; not sticky, spilling",
    }


async def test_a_file_is_followed_and_the_last_good_policy_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def complained() -> bool:
        return bool(caplog.records)

    file = tmp_path / "policy.yaml"
    file.write_text(HEAD)
    following = follow_policy(file, GIVEN, interval=0.01)
    async with asyncio.timeout(30):
        assert scorers((await anext(following)).profile) == LLM_D_DEFAULT
        change = asyncio.ensure_future(anext(following))
        file.write_text(HEAD + "plugins: [{type: wrong}]")
        await eventually(complained)
        assert "plugins[0].type 'wrong' is unknown" in vars(caplog.records[0])["fields"]["error"]
        file.write_text(HEAD + "plugins: [{type: least-work}]")
        assert scorers((await change).profile) == {"least-work": 1}
    await following.aclose()


async def test_without_a_first_policy_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match=r"gone\.yaml cannot be read: No such file"):
        await anext(follow_policy(tmp_path / "gone.yaml", GIVEN))


# Whatever is in the file


_FIELDS = [
    "plugins",
    "type",
    "name",
    "parameters",
    "schedulingProfiles",
    "pluginRef",
    "weight",
    "featureGates",
    "dataLayer",
    "sources",
    "extractors",
    "flowControl",
    "saturationDetector",
    "clusters",
    "weights",
    "requestHandler",
    "parsers",
    "matchLabels",
    "matchExpressions",
    "key",
    "operator",
    "values",
    "In",
    "strategy",
    "session_id",
    "sessionIdConfig",
    "conditions",
    "metric",
    "maxValue",
    "threshold",
    "default",
]
_WORDS = st.sampled_from([*PLUGINS, *LACKING, *_FIELDS])
_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), _WORDS, st.text(max_size=8)
)
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(_WORDS, st.text(max_size=5)), inner, max_size=4),
    ),
    max_leaves=20,
)
_SPECS = st.fixed_dictionaries(
    {"type": st.one_of(_WORDS, _TREES)}, optional={"name": _TREES, "parameters": _TREES}
)
_REFERENCES = st.fixed_dictionaries({"pluginRef": st.one_of(_WORDS, _TREES)}, optional={"weight": _TREES})
_READ = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}
_DOCUMENTS = st.fixed_dictionaries(
    {name: st.just(value) for name, value in _READ.items()},
    optional={
        "plugins": st.one_of(st.lists(_SPECS, max_size=4), _TREES),
        "schedulingProfiles": st.one_of(
            st.lists(
                st.fixed_dictionaries({"name": _WORDS, "plugins": st.lists(_REFERENCES, max_size=3)}),
                max_size=2,
            ),
            _TREES,
        ),
        "saturationDetector": _TREES,
        "requestHandler": _TREES,
        "parser": _TREES,
        "flowControl": _TREES,
        "dataLayer": _TREES,
        "featureGates": _TREES,
        "clusters": _TREES,
    },
)


@settings(max_examples=150, deadline=None)
@example({"(\x91\nÊm": 1.3510798882109892e16})
@example({"a\x85b": {"c\u2028": {"d" * 1000: [2**70]}}})
@example({"clusters": {"weights": {"a\nb": "c"}}})
@example({"plugins": [{"type": "decode\nfilter", "name": "x\ny"}, {"type": "decode-filter", "name": "x\nz"}]})
@example({"plugins": [{"type": "label-selector-filter", "parameters": {"matchLabels": {"a\nb": 1}}}]})
@example(
    {
        **_READ,
        "plugins": [{"type": "queue-scorer", "name": "a\x1b[1m\nb"}],
        "clusters": {"weights": {"a\nb": 1}},
    }
)
@given(st.one_of(_TREES, _DOCUMENTS))
def test_no_tree_raises_anything_but_one_line(tree: object) -> None:
    try:
        made = parse_policy(yaml.safe_dump(tree).encode(), "policy.yaml", GIVEN)
    except PolicyFileError as error:
        lines = error.lines
    else:
        lines = (*(f"{name}: {text}" for name, text in summary(made)), *made.notes, *made.warnings)
    assert lines
    assert all(line.isprintable() for line in lines)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.text("&*a-: {}[],'\"\n?!|>%", max_size=60).map(str.encode))
def test_no_bytes_raise_anything_but_one_line(raw: bytes) -> None:
    with pytest.raises(PolicyFileError) as refused:
        parse_policy(raw, "policy.yaml", GIVEN)
    assert all(line.isprintable() for line in refused.value.lines)
