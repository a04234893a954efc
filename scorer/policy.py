"""From an ``EndpointPickerConfig`` to a profile and what else a policy decides.

The schema, its defaults and what is added where something is missing are those of the llm-d picker
(``llm-d.ai/v1alpha1``), so that its files can be used here; docs/policies.md says what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from scorer.document import Fields, Mistakes, nearest, shown, spelt
from scorer.plugins.choosers import max_score
from scorer.plugins.declared import Key, Plugins, Settings
from scorer.plugins.detectors import UTILIZATION
from scorer.plugins.plugin import Plugin
from scorer.plugins.producers import BLOCK_TOKENS
from scorer.profile import NamedFilter, Profile, Weighted
from scorer.saturation import Saturation, Utilization

if TYPE_CHECKING:
    from scorer.document import Node
    from scorer.plugins.plugin import Means

API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
KIND = "EndpointPickerConfig"
DEFAULT_SCORERS = (("queue-scorer", 2.0), ("kv-cache-utilization-scorer", 2.0), ("prefix-cache-scorer", 3.0))
"""Of a policy that names no profile, no scorer and no picker."""
DEFAULT_PICKER = "max-score-picker"
MOST_WEIGHT = 10_000.0
_FLOW_CONTROL = "flowControl"
_GATES = (_FLOW_CONTROL, "haPopulateNonLeaderDatastore")
_FLOW_FIELDS = (
    "maxBytes",
    "maxRequests",
    "defaultRequestTTL",
    "noEndpointRequestTTL",
    "defaultPriorityBand",
    "defaultNegativePriorityBand",
    "priorityBands",
    "usageLimitPolicyPluginRef",
    "enableEviction",
)


@dataclass(frozen=True, slots=True)
class Clusters:
    """How requests are divided between the clusters of a pool: ours, the llm-d picker has no such thing.

    ``weights`` by the name of the cluster. ``sticky``: a session stays in its cluster. ``spill``: a cluster
    that is full or gone lends its share to the others.
    """

    weights: tuple[tuple[str, int], ...] = ()
    sticky: bool = False
    spill: bool = True

    def __str__(self) -> str:
        """For people."""
        shares = ", ".join(f"{spelt(name)} {weight}" for name, weight in self.weights) or "no weights"
        return (
            f"{shares}; {'sticky' if self.sticky else 'not sticky'}, {'spilling' if self.spill else 'strict'}"
        )


class InUse(NamedTuple):
    """A plugin in the profile, as it is told and compared. ``weight`` is a scorer's."""

    name: str
    type: str
    settings: Settings = ()
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """All that a document decides. Two are equal if they decide alike.

    ``plugins`` are those of the profile in its order, the picker last. ``parsers`` are the names of those
    that read requests (None: all there are). ``endpoints`` is how many an answer names (None: as the
    settings say), ``block_tokens`` the size of the blocks that prompts are compared by. ``notes`` tell what
    is accepted and done in another way here, ``warnings`` what nobody wants in production. ``made`` is for
    the next policy, which goes on with those of its plugins that stay the same.
    """

    profile: Profile = field(compare=False)
    plugins: tuple[InUse, ...]
    saturation: Saturation = field(default_factory=Utilization)
    parsers: tuple[str, ...] | None = None
    endpoints: int | None = None
    block_tokens: int = BLOCK_TOKENS
    clusters: Clusters = field(default_factory=Clusters)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    made: Mapping[Key, Plugin] = field(default_factory=dict, compare=False, repr=False)


def build(document: Node, means: Means, previous: Policy | None = None) -> Policy:
    """Make the policy that a document describes.

    Plugins that are declared as in ``previous`` (same name, type and parameters) are taken from there, with
    what they remember. Raises PolicyError, with as many mistakes as can be found at once.
    """
    return _Builder({} if previous is None else previous.made).build(Fields(document, ""), means)


class _Entry(NamedTuple):
    """A plugin's place in the profile."""

    name: str
    plugin: Plugin
    weight: float = 1.0


class _Builder:
    def __init__(self, previous: Mapping[Key, Plugin]) -> None:
        self._mistakes = Mistakes()
        self._plugins = Plugins(self._mistakes, previous)

    def build(self, root: Fields, means: Means) -> Policy:
        collected = self._mistakes.collected
        with collected():
            root.needed("kind", (KIND,))
            root.needed("apiVersion", API_VERSIONS)
        with collected():
            self._plugins.declare(root)
        saturation: Saturation = Utilization()
        with collected():
            saturation = self._saturation(root, means)
        means = replace(means, saturation=saturation)
        self._plugins.make_all(means)
        for read in (self._gates, self._data_layer):
            with collected():
                read(root)
        parsers, clusters = None, Clusters()
        entries: list[_Entry] = []
        with collected():
            parsers = self._parsers(root)
        with collected():
            clusters = _clusters(root)
        with collected():
            entries = self._entries(root, means)
        with collected():
            root.close(deep=not self._mistakes)
        self._mistakes.tell()
        return self._policy(entries, means, parsers, clusters)

    def _policy(
        self,
        entries: list[_Entry],
        means: Means,
        parsers: tuple[str, ...] | None,
        clusters: Clusters,
    ) -> Policy:
        picker = self._picker(entries, means)
        self._note_unused({entry.name for entry in (*entries, picker)})
        made = self._plugins.usable().values()
        return Policy(
            _profile(entries, picker.plugin),
            plugins=tuple(self._in_use(entry) for entry in (*entries, picker)),
            saturation=means.saturation,
            parsers=parsers,
            endpoints=picker.plugin.most,
            block_tokens=next((one.block_tokens for one in made if one.block_tokens), BLOCK_TOKENS),
            clusters=clusters,
            notes=tuple(self._plugins.notes),
            warnings=tuple(
                f"{spelt(entry.name)}: {entry.plugin.warning}" for entry in entries if entry.plugin.warning
            ),
            made=self._plugins.made,
        )

    def _note_unused(self, used: set[str]) -> None:
        for name, plugin in self._plugins.usable().items():
            if plugin.chooses and not plugin.detector and name not in used:
                self._plugins.notes.append(f"{spelt(name)}: is in no profile")

    def _in_use(self, entry: _Entry) -> InUse:
        key = self._plugins.key_of(entry.plugin)
        weight = None if entry.plugin.score is None else _weight(entry)
        return InUse(key.name, key.type, key.settings, weight)

    def _picker(self, entries: list[_Entry], means: Means) -> _Entry:
        """Take the picker out of the profile; without one the first that is declared, or the default."""
        for place, entry in enumerate(entries):
            if entry.plugin.choose is not None:
                return entries.pop(place)
        for name, plugin in self._plugins.usable().items():
            if plugin.choose is not None:
                return _Entry(name, plugin)
        return _Entry(DEFAULT_PICKER, self._plugins.inject(DEFAULT_PICKER, means))

    # What stands beside the plugins

    def _entries(self, root: Fields, means: Means) -> list[_Entry]:
        """The profile, its picker included if it names one."""
        profiles = root.mappings("schedulingProfiles")
        names = [profile.needed("name") for profile in profiles]
        if not profiles:
            return self._unprofiled(means)
        if len(profiles) > 1:
            raise profiles[1].error(
                f"{shown(names[1])} is a further profile, and nothing here chooses among profiles: prefill "
                "and decode endpoints are not chosen separately; keep one",
                "name",
            )
        entries: list[_Entry] = []
        for reference in profiles[0].mappings("plugins"):
            with self._mistakes.collected():
                entries += self._entry(reference)
        pickers = [entry.name for entry in entries if entry.plugin.choose is not None]
        if len(pickers) > 1:
            raise profiles[0].error(f"has several pickers, {' and '.join(map(shown, pickers))}; keep one")
        return entries

    def _unprofiled(self, means: Means) -> list[_Entry]:
        """Every filter, scorer and picker; where none says whom to prefer, the default scorers."""
        every = [_Entry(name, one) for name, one in self._plugins.usable().items() if one.chooses]
        if not any(entry.plugin.score or entry.plugin.choose for entry in every):
            for name, weight in DEFAULT_SCORERS:
                every.append(_Entry(name, self._plugins.inject(name, means), weight))
        return every

    def _entry(self, reference: Fields) -> list[_Entry]:
        weighted = reference.node("weight") is not None
        weight = reference.number("weight", 1.0, 0.0, MOST_WEIGHT)
        declared = self._plugins.find(reference)
        plugin = declared.plugin
        if plugin is None or plugin.told:  # with a mistake of its own; or at work wherever it is named
            return []
        if not plugin.chooses:
            raise reference.error(f"{shown(declared.name)} is no filter, scorer or picker", "pluginRef")
        if weighted and plugin.score is None:
            self._plugins.notes.append(f"{spelt(declared.name)}: has a weight, which only scorers have")
        return [_Entry(declared.name, plugin, weight)]

    def _gates(self, root: Fields) -> None:
        for gate in root.texts("featureGates"):
            name, _, value = gate.partition("=")
            if name not in _GATES or value not in ("", "true", "false"):
                raise root.error(f"{shown(gate)} is unknown; {nearest(name, _GATES)}", "featureGates")
            if name == _FLOW_CONTROL and value != "false":
                raise root.error(
                    "flowControl is a part of the llm-d picker that this one does not have: requests do not "
                    "wait in the picker; remove the gate",
                    "featureGates",
                )

    def _saturation(self, root: Fields, means: Means) -> Saturation:
        flow = root.fields(_FLOW_CONTROL)
        for name in _FLOW_FIELDS:
            if flow.node(name) is not None:
                self._plugins.notes.append(f"flowControl.{name}: has no effect without flow control")
        detectors = [flow.fields("saturationDetector"), root.fields("saturationDetector")]
        for detector in detectors:
            name = detector.text("pluginRef")
            if not name or (name == UTILIZATION and not self._plugins.declares(name)):
                continue
            declared = self._plugins.find(detector)
            plugin = self._plugins.make(declared.name, means)
            if plugin is None:
                return Utilization()
            if plugin.detector is None:
                raise detector.error(f"{shown(name)} is no saturation detector", "pluginRef")
            return plugin.detector
        plugin = self._plugins.make(UTILIZATION, means)
        return plugin.detector if plugin and plugin.detector else Utilization()

    def _parsers(self, root: Fields) -> tuple[str, ...] | None:
        listed = [*root.fields("requestHandler").mappings("parsers")]
        if root.node("parser") is not None:
            listed = listed or [root.fields("parser")]
        parsers = []
        for reference in listed:
            declared = self._plugins.find(reference)
            if declared.plugin is not None and not declared.plugin.parser:
                raise reference.error(f"{shown(declared.name)} is no parser", "pluginRef")
            parsers.append(declared.type)
        return tuple(parsers) or None

    def _data_layer(self, root: Fields) -> None:
        layer = root.fields("dataLayer")
        layer.flag("injectDefaults", default=True)
        references = []
        for source in layer.mappings("sources"):
            references += [source, *source.mappings("extractors")]
        for name in ("discovery", "peerDiscovery"):
            if layer.node(name) is not None:
                references.append(layer.fields(name))
        for reference in references:
            self._plugins.find(reference)
        if layer.text("crossReplicaSyncerPluginRef"):
            self._plugins.find(layer, "crossReplicaSyncerPluginRef")
        layer.text("crossReplicaSyncInterval")
        if root.node("dataLayer") is not None:
            self._plugins.notes.append("dataLayer: membership and scraping are as the settings say")


def _clusters(root: Fields) -> Clusters:
    fields = root.fields("clusters")
    weights = fields.fields("weights")
    names = sorted(fields.map("weights"))
    return Clusters(
        tuple((name, weights.integer(name, 0, 0, 1_000_000)) for name in names),
        fields.flag("sticky", default=False),
        fields.flag("spill", default=True),
    )


def _profile(entries: list[_Entry], picker: Plugin) -> Profile:
    plugins = [entry.plugin for entry in entries]
    choose = picker.choose or max_score
    return Profile(
        scorers=tuple(
            Weighted(entry.name, _weight(entry), entry.plugin.score)
            for entry in entries
            if entry.plugin.score is not None
        ),
        filters=tuple(
            NamedFilter(entry.name, entry.plugin.keep) for entry in entries if entry.plugin.keep is not None
        ),
        chooser=choose,
        unsure=choose,  # the document says how to choose, at the start too
        observers=tuple(plugin.sent for plugin in plugins if plugin.sent is not None),
        marks=tuple(plugin.mark for plugin in plugins if plugin.mark is not None),
        uses_prefix=any(plugin.uses_prefix for plugin in plugins),
    )


def _weight(entry: _Entry) -> float:
    return entry.weight if entry.plugin.weight is None else entry.plugin.weight
