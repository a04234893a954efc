"""The plugins that a document declares, made and found by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from scorer.document import Fields, Node, PolicyError, nearest, shown, spelt
from scorer.plugins.filters import IN_FLIGHT_PRODUCER, PREFIX_PRODUCER
from scorer.plugins.plugin import Plugin
from scorer.plugins.producers import LACKING
from scorer.plugins.registry import PLUGINS
from scorer.saturation import Saturation

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from scorer.document import Mistakes
    from scorer.plugins.plugin import Means

Settings = tuple[tuple[str, "Hashable"], ...]
INJECTED = (PREFIX_PRODUCER, IN_FLIGHT_PRODUCER)
"""What may be referred to without being declared: it is added by itself."""


class Key(NamedTuple):
    """What makes two plugins the same, so that the later one goes on with what the earlier remembers."""

    name: str
    type: str
    settings: Settings
    saturation: Saturation


class Declared:
    """One plugin of the document. ``plugin`` is None until it is made, and if it could not be."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self.type = fields.needed("type")
        self.name = fields.text("name", self.type)
        self.parameters = fields.fields("parameters")
        self.plugin: Plugin | None = None

    def close(self) -> None:
        """Refuse what nobody asked for. Raises PolicyError."""
        self._fields.close()

    def error(self, text: str, name: str = "type") -> PolicyError:
        """What is wrong with it."""
        return self._fields.error(text, name)


class Plugins:
    """All plugins of a document.

    ``previous`` are those of the policy before: what is declared as it was there is taken from it.
    """

    def __init__(self, mistakes: Mistakes, previous: Mapping[Key, Plugin]) -> None:
        self._mistakes = mistakes
        self._previous = previous
        self._declared: dict[str, Declared] = {}
        self.made: dict[Key, Plugin] = {}
        self.notes: list[str] = []

    def declare(self, root: Fields) -> None:
        """Read names and types."""
        for node, place in root.items("plugins"):
            with self._mistakes.collected():
                declared = Declared(Fields(node, place))
                if declared.name in self._declared:
                    raise declared.error(f"{shown(declared.name)} is the name of another plugin", "name")
                self._declared[declared.name] = declared

    def declares(self, name: str) -> bool:
        """Whether there is a plugin of that name."""
        return name in self._declared

    def make_all(self, means: Means) -> None:
        """Make those that are not made yet."""
        for name in self._declared:
            self.make(name, means)

    def make(self, name: str, means: Means) -> Plugin | None:
        """The plugin of that name; None if it is not declared, or has a mistake."""
        declared = self._declared.get(name)
        if declared is None:
            return None
        if declared.plugin is None:
            with self._mistakes.collected():
                plugin = self._new(declared, means)
                declared.close()
                self._check(declared.parameters.references)
                declared.plugin = self._kept(declared, plugin, means)
                if plugin.told:
                    self.notes.append(f"{spelt(declared.name)}: {plugin.told}")
        return declared.plugin

    def inject(self, type_: str, means: Means) -> Plugin:
        """A plugin that is not declared, with its default parameters."""
        declared = Declared(Fields(_typed(type_), type_))
        return self._kept(declared, self._new(declared, means), means)

    def usable(self) -> dict[str, Plugin]:
        """Those that could be made, by name in the order of the document."""
        return {name: one.plugin for name, one in self._declared.items() if one.plugin is not None}

    def key_of(self, plugin: Plugin) -> Key:
        """Under which name, and with what parameters, a plugin was made."""
        return next(key for key, made in self.made.items() if made is plugin)

    def find(self, fields: Fields, name: str = "pluginRef") -> Declared:
        """The plugin that a member names. Raises PolicyError."""
        wanted = fields.needed(name)
        if wanted not in self._declared:
            raise fields.error(
                f"{shown(wanted)} is not among the plugins; {nearest(wanted, self._declared)}", name
            )
        return self._declared[wanted]

    def _new(self, declared: Declared, means: Means) -> Plugin:
        type_ = declared.type
        if type_ in PLUGINS:
            return PLUGINS[type_].make(declared.parameters, means)
        if type_ in means.parsers:
            return Plugin(parser=type_)
        if type_ in LACKING:
            raise declared.error(
                f"{shown(type_)} is a plugin of the llm-d picker that this one does not have; "
                f"{LACKING[type_]}"
            )
        raise declared.error(
            f"{shown(type_)} is unknown; {nearest(type_, (*PLUGINS, *sorted(means.parsers)))}"
        )

    def _kept(self, declared: Declared, plugin: Plugin, means: Means) -> Plugin:
        key = Key(declared.name, declared.type, declared.parameters.settings, means.saturation)
        self.made[key] = self._previous.get(key, plugin)
        return self.made[key]

    def _check(self, references: list[tuple[Node, str, str]]) -> None:
        for node, place, type_ in references:
            wanted = str(node.value)
            declared = self._declared.get(wanted)
            if declared is None and not (wanted == type_ and wanted in INJECTED):
                known = [name for name, one in self._declared.items() if one.type == type_]
                text = (
                    f"{shown(wanted)} is not among the plugins of the type {type_}; {nearest(wanted, known)}"
                )
                raise PolicyError(node.line, place, text)
            if declared is not None and declared.type not in (type_, *LACKING):  # of which there is a mistake
                text = f"{shown(wanted)} is a {spelt(declared.type)}; it has to be a {type_}"
                raise PolicyError(node.line, place, text)


def _typed(type_: str) -> Node:
    return Node({"type": Node(type_, 1)}, 1)
