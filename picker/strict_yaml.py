"""Reading a YAML file strictly, with errors that say where and how to mend.

The text is composed to nodes and never constructed to objects: nodes know their lines, tell a
quoted from a plain scalar, keep repeated keys, and share what an alias repeats.

Every function takes the ``place`` of a node, as its error names it, and raises :class:`Fault`.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

import yaml

from scorer.document import spelt

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_BYTES = 1 << 20
"""Of a file."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TEXT = "tag:yaml.org,2002:str"
NULL = "tag:yaml.org,2002:null"
NUMBER = "tag:yaml.org,2002:int"
# YAML has more spellings, of which 010 is 8 and 1:30 is 90; in a file of ours they are mistakes.
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}")
_SHOWN = 60
_MOST_SUGGESTED = 8

Fields = dict[str, yaml.Node]


class Fault(Exception):  # noqa: N818  becomes an error of its room once the file's name is known
    """What is wrong, and on which line of the file."""

    def __init__(self, where: yaml.Node | int, text: str) -> None:
        super().__init__(text)
        self.line = where if isinstance(where, int) else where.start_mark.line + 1
        self.text = text


def documents(raw: bytes) -> Iterator[yaml.Node]:
    """The root of each document of the stream."""
    if len(raw) > MOST_BYTES:
        raise Fault(1, f"the file is larger than {MOST_BYTES >> 20} MiB")
    try:
        yield from yaml.compose_all(raw, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Fault(mark.line + 1 if mark else 1, f"not YAML: {_line(error.problem)}") from None
    except RecursionError:
        raise Fault(1, "not usable: its values are nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: undecodable bytes, which come without a mark
        raise Fault(1, f"not YAML: {_line(error)}") from None


def fields(
    node: yaml.Node, place: str, known: tuple[str, ...] | None, needed: tuple[str, ...] = ()
) -> Fields:
    """The members of a mapping.

    No key of it is repeated, none of ``needed`` missing, and where only some are ``known`` no other is there.
    """
    if not isinstance(node, yaml.MappingNode):
        raise Fault(node, f"{place} is not a mapping; write it as 'key: value' lines")
    found: Fields = {}
    for key_node, value in node.value:
        key = text(key_node, f"a key of {place}")
        if known is not None and key not in known:
            raise Fault(key_node, f"{place} has an unknown key {shown(key_node)}; {meant(key, known)}")
        if key in found:
            raise Fault(key_node, f"{place} has the key {shown(key_node)} twice; remove one of the two")
        found[key] = value
    for key in needed:
        if key not in found:
            raise Fault(node, f"{place} has no '{key}'")
    return found


def items(node: yaml.Node, place: str) -> list[yaml.Node]:
    """The members of a list."""
    if not isinstance(node, yaml.SequenceNode):
        raise Fault(node, f"{place} is not a list; begin each of its members with '- '")
    return list(node.value)


def text(node: yaml.Node, place: str) -> str:
    """A scalar that YAML takes for a text."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag == TEXT:
            return str(node.value)
        if node.tag == NULL:
            raise Fault(node, f"{place} has no value; give one or remove the line")
        raise Fault(node, f"{place} {shown(node)} is not a text; put it in quotes")
    raise Fault(node, f"{place} is not a text; give it as one value")


def integer(node: yaml.Node, place: str, low: int, high: int, kind: str = "a number") -> int:
    """A decimal number from ``low`` to ``high``; ``kind`` says what number it should be."""
    plain = isinstance(node, yaml.ScalarNode) and _DECIMAL.fullmatch(node.value)
    if plain and node.tag == TEXT:
        raise Fault(node, f"{place} {shown(node)} is a text; write it without quotes")
    if not plain or node.tag != NUMBER or not low <= int(node.value) <= high:
        raise Fault(node, f"{place} {shown(node)} is not {kind}; give a number from {low} to {high}")
    return int(node.value)


def meant(key: str, known: tuple[str, ...]) -> str:
    """The known word that was probably meant, or which there are."""
    close = difflib.get_close_matches(key[:_SHOWN], known, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    more = ", …" if len(known) > _MOST_SUGGESTED else ""
    return f"there are only {', '.join(known[:_MOST_SUGGESTED])}{more}"


def shown(node: yaml.Node) -> str:
    """The value as an error repeats it."""
    if not isinstance(node, yaml.ScalarNode):
        return "(a list or mapping)"
    return repr(node.value) if len(node.value) <= _SHOWN else f"{node.value[:_SHOWN]!r}…"


def _line(text: object) -> str:
    return spelt(" ".join(str(text).split()), 200)
