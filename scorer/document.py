"""A configuration as a tree whose values know their lines, and how it is read strictly.

Whoever reads a member of a mapping asks for it by name, its kind and its bounds; what nobody asked for is
refused in the end. So the code that uses a value is also what says that there is such a value.
"""

from __future__ import annotations

import difflib
import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator

Value = str | int | float | bool | list["Node"] | dict[str, "Node"] | None

_SHOWN = 60
_MOST_SUGGESTED = 8
_MOST_ITEMS = 1000
"""Of one list. Nobody writes that many, and each may be an alias of the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value and its line; for a member of a mapping that of its key."""

    value: Value
    line: int


class PolicyError(Exception):
    """Why a policy cannot be used: one line that says where, what and the mend.

    ``further`` are other mistakes in the same document.
    """

    def __init__(self, line: int, path: str, text: str) -> None:
        super().__init__(f"line {line}: {path or 'the policy'} {text}")
        self.line = line
        self.further: tuple[PolicyError, ...] = ()


class Mistakes:
    """Collects what is wrong, so that all of it can be told at once."""

    def __init__(self) -> None:
        self._found: list[PolicyError] = []

    def __bool__(self) -> bool:
        """Whether anything is wrong so far."""
        return bool(self._found)

    def add(self, mistake: PolicyError) -> None:
        """Note one."""
        self._found.append(mistake)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Note the mistake that ends the block, and go on after it."""
        try:
            yield
        except PolicyError as mistake:
            self.add(mistake)

    def tell(self) -> None:
        """Raise the first one, with the others, if there are any."""
        if self._found:
            first, *further = sorted(self._found, key=lambda mistake: mistake.line)
            first.further = tuple(further)
            raise first


def nearest(name: str, known: Collection[str]) -> str:
    """The known name that was probably meant, or which there are."""
    close = difflib.get_close_matches(name[:_SHOWN], known, n=1)
    if close:
        return f"did you mean '{spelt(close[0])}'?"
    if not known:
        return "there are none"
    more = ", …" if len(known) > _MOST_SUGGESTED else ""
    return f"there are only {', '.join(map(spelt, list(known)[:_MOST_SUGGESTED]))}{more}"


def spelt(name: str, limit: int = _SHOWN) -> str:
    """A name that is the document's own as a message repeats it: without quotes, and not all of a long one.

    What does not print (line breaks of all kinds, terminal escapes, direction marks) becomes an escape.
    """
    head = name[:limit]
    if not head.isprintable():
        head = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in head)
    return head if len(name) <= limit else f"{head}…"


def shown(value: Value) -> str:
    """A value as an error repeats it."""
    if isinstance(value, list | dict):
        return "(a list or mapping)"
    text = repr(value) if isinstance(value, str) else str(value).lower()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


class Fields:
    """The members of one mapping, read by name. An absent mapping, or null, has none.

    Each reader raises PolicyError for a value of another kind; ``default`` is for a member that is absent.
    """

    def __init__(self, node: Node | None, path: str, line: int = 1) -> None:
        self.path = path
        self.line = node.line if node is not None else line
        self._members: dict[str, Node] = {}
        self._asked: dict[str, Hashable] = {}
        self._inner: list[Fields] = []
        self.references: list[tuple[Node, str, str]] = []
        """Names of other plugins: the value, its path, and of which type that plugin has to be."""
        if node is None or node.value is None:
            return
        if not isinstance(node.value, dict):
            raise PolicyError(node.line, path, "is not a mapping; write it as 'key: value' lines")
        self._members = node.value

    @property
    def settings(self) -> tuple[tuple[str, Hashable], ...]:
        """All that was read, defaults too: equal for two mappings that mean the same."""
        return tuple(self._asked.items())

    def error(self, text: str, name: str = "") -> PolicyError:
        """What is wrong with a member, or with the mapping."""
        node = self._members.get(name)
        if not name:
            return PolicyError(self.line, self.path, text)
        return PolicyError(node.line if node else self.line, self._place(name), text)

    def node(self, name: str) -> Node | None:
        """A member as it is; None if it is absent or null."""
        self._asked.setdefault(name, None)
        node = self._members.get(name)
        return None if node is None or node.value is None else node

    def text(self, name: str, default: str = "", choices: Collection[str] = ()) -> str:
        """A text that is not empty, one of ``choices`` if there are any."""
        node = self.node(name)
        value = default if node is None else self._text(node, self._place(name))
        if node is not None and choices and value not in choices:
            raise self.error(f"{shown(value)} is unknown; {nearest(value, choices)}", name)
        self._asked[name] = value
        return value

    def needed(self, name: str, choices: Collection[str] = ()) -> str:
        """A text that may not be absent."""
        if self.node(name) is None:
            raise self.error(f"has no '{name}'")
        return self.text(name, choices=choices)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty if it is absent."""
        values = tuple(self._text(node, place) for node, place in self.items(name))
        self._asked[name] = values
        return values

    def number(self, name: str, default: float, low: float = 0.0, high: float = math.inf) -> float:
        """A number from ``low`` to ``high``."""
        node = self.node(name)
        value = default if node is None else self._number(node, name, low, high)
        self._asked[name] = value
        return float(value)

    def integer(self, name: str, default: int, low: int = 0, high: int = 1_000_000_000) -> int:
        """A whole number from ``low`` to ``high``."""
        node = self.node(name)
        value = default if node is None else self._number(node, name, low, high)
        if value != int(value):
            raise self.error(f"{value:g} is not a whole number", name)
        self._asked[name] = int(value)
        return int(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        node = self.node(name)
        value = default if node is None else node.value
        if not isinstance(value, bool):
            raise self.error(f"{shown(value)} is not a switch; give true or false", name)
        self._asked[name] = value
        return value

    def reference(self, name: str, type_: str) -> str:
        """The name of another plugin, which has to be of that type; empty if absent."""
        value = self.text(name)
        if value:
            self.references.append((self._members[name], self._place(name), type_))
        return value

    def fields(self, name: str) -> Fields:
        """A mapping inside this one."""
        inner = Fields(self.node(name), self._place(name), self.line)
        self._inner.append(inner)
        return inner

    def mappings(self, name: str) -> tuple[Fields, ...]:
        """A list of mappings; empty if it is absent."""
        inner = tuple(Fields(node, place) for node, place in self.items(name))
        self._inner.extend(inner)
        return inner

    def map(self, name: str) -> dict[str, Node]:
        """A mapping with keys of the writer's choice; empty if it is absent."""
        node = self.node(name)
        if node is None:
            return {}
        if not isinstance(node.value, dict):
            raise self.error("is not a mapping; write it as 'key: value' lines", name)
        return node.value

    def disregard(self) -> None:
        """Take all members for asked for, whatever they are."""
        self._asked |= dict.fromkeys(self._members)

    def note(self, name: str, value: Hashable) -> None:
        """Say what a member means that was read as it is, for comparing."""
        self._asked[name] = value

    def items(self, name: str) -> list[tuple[Node, str]]:
        """The members of a list with their paths; empty if it is absent."""
        node = self.node(name)
        if node is None:
            return []
        if not isinstance(node.value, list):
            raise self.error("is not a list; begin each of its members with '- '", name)
        if len(node.value) > _MOST_ITEMS:
            raise self.error(f"has more than {_MOST_ITEMS} members", name)
        return [(item, f"{self._place(name)}[{place}]") for place, item in enumerate(node.value)]

    def close(self, *, deep: bool = True) -> None:
        """Refuse what nobody asked for, ``deep``: also in the mappings inside. Raises PolicyError."""
        for name, node in self._members.items():
            if name not in self._asked:
                text = f"has an unknown field {shown(name)}; {nearest(name, self._asked)}"
                raise PolicyError(node.line, self.path, text)
        if not deep:
            return
        for inner in self._inner:
            inner.close()
            self.references += inner.references
            self._asked[inner.path] = inner.settings

    def _place(self, name: str) -> str:
        return f"{self.path}.{spelt(name)}" if self.path else spelt(name)

    def _text(self, node: Node, place: str) -> str:
        if not isinstance(node.value, str):
            raise PolicyError(node.line, place, f"{shown(node.value)} is not a text; put it in quotes")
        if not node.value:
            raise PolicyError(node.line, place, "is empty; give a name or remove the line")
        return node.value

    def _number(self, node: Node, name: str, low: float, high: float) -> float:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{shown(value)} is not a number; write one without quotes", name)
        if not low <= value <= high:
            bounds = f"from {low:g} to {high:g}" if high < math.inf else f"of {low:g} or more"
            raise self.error(f"{shown(value)} is out of bounds; give a number {bounds}", name)
        return value
