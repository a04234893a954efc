"""``PICKER_CONFIG_FILE``: a policy as YAML, checked before it is used, and watched.

The text is read to a tree that knows its lines; what it means is up to :mod:`scorer.policy`.
"""

from __future__ import annotations

import logging
import math
import re
from random import Random
from typing import TYPE_CHECKING

import yaml

from picker.inference.surfaces import PARSERS
from picker.strict_yaml import NULL, TEXT, Fault, documents, fields, shown
from picker.watched import POLL_INTERVAL, Watch, WatchedFile
from scorer.document import Node, PolicyError, spelt
from scorer.plugins.plugin import Means
from scorer.policy import InUse, Policy, build

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from pathlib import Path

    from scorer.document import Value

log = logging.getLogger(__name__)

_SWITCH = "tag:yaml.org,2002:bool"
_SWITCHES = {"true": True, "false": False}
_INTEGER = "tag:yaml.org,2002:int"
_REAL = "tag:yaml.org,2002:float"
# YAML has more spellings of numbers, of which 010 is 8 and 1:30 is 90; here they are mistakes.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,15})?(?:[eE][-+]?[0-9]{1,2})?")
_DEEPEST = 32


class PolicyFileError(Exception):
    """The policy cannot be used; one line that says in which file, where, what and the mend.

    ``lines`` has this and every further mistake that was found.
    """

    def __init__(self, text: str, *further: str) -> None:
        super().__init__(text)
        self.lines = (text, *further)


def means(random: Random, session_key: bytes) -> Means:
    """What plugins are given in this process."""
    return Means(random=random, session_key=session_key, parsers=PARSERS)


def parse_policy(raw: bytes, file: str, given: Means, previous: Policy | None = None) -> Policy:
    """The policy in ``raw``, which ``previous`` lends its plugins' memory. Raises PolicyFileError."""
    try:
        return build(parse_document(raw), given, previous)
    except Fault as fault:
        raise PolicyFileError(f"{file}, line {fault.line}: {fault.text}") from None
    except PolicyError as error:
        raise PolicyFileError(*(f"{file}, {one}" for one in (error, *error.further))) from None


def parse_document(raw: bytes) -> Node:
    """The one document of a YAML stream, as a tree. Raises Fault."""
    roots = [root for root in documents(raw) if root.tag != NULL]
    if not roots:
        raise Fault(1, "the file is empty; give an EndpointPickerConfig")
    if len(roots) > 1:
        raise Fault(roots[1], "there is a second document; keep one")
    return _Reader().node(roots[0], "the policy")


class _Reader:
    """From YAML's nodes to ours. What an alias repeats is read once and shared."""

    def __init__(self) -> None:
        self._values: dict[int, Value] = {}
        self._open: set[int] = set()

    def node(self, node: yaml.Node, place: str, line: int = 0) -> Node:
        return Node(self._value(node, place), line or node.start_mark.line + 1)

    def _value(self, node: yaml.Node, place: str) -> Value:
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, place)
        known = id(node)
        if known in self._open:
            raise Fault(node, f"{place} contains itself")
        if len(self._open) >= _DEEPEST:
            raise Fault(node, f"{place} is nested too deeply")
        if known not in self._values:
            self._open.add(known)
            self._values[known] = self._members(node, place)
            self._open.remove(known)
        return self._values[known]

    def _members(self, node: yaml.Node, place: str) -> Value:
        if isinstance(node, yaml.SequenceNode):
            return [self.node(one, f"{place}[{index}]") for index, one in enumerate(node.value)]
        lines = {id(value): key.start_mark.line + 1 for key, value in node.value} if node.value else {}
        members = fields(node, place, None)
        return {
            name: self.node(
                value, spelt(name) if place == "the policy" else f"{place}.{spelt(name)}", lines[id(value)]
            )
            for name, value in members.items()
        }


def _scalar(node: yaml.ScalarNode, place: str) -> Value:
    if node.tag == TEXT:
        return str(node.value)
    if node.tag == NULL:
        return None
    if node.tag == _SWITCH and node.value.lower() in _SWITCHES:
        return _SWITCHES[node.value.lower()]
    if node.tag in (_INTEGER, _REAL) and _NUMBER.fullmatch(node.value):
        number = int(node.value) if node.tag == _INTEGER else float(node.value)
        if math.isfinite(number):
            return number
    raise Fault(
        node, f"{place} {shown(node)} is no plain value; write true, false, a decimal number, or quotes"
    )


def follow_policy(
    path: Path,
    given: Means,
    *,
    interval: float = POLL_INTERVAL,
    on_complaint: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[Policy, None]:
    """Give the file's policy at first and after every change that decides otherwise.

    While the file cannot be used the last good policy stays, and each mistake is logged once;
    ``on_complaint`` is told it, and "" when the file can be used again. Raises PolicyFileError instead of the
    first policy.
    """
    last: Policy | None = None

    def parse(raw: bytes) -> Policy:
        nonlocal last
        last = parse_policy(raw, str(path), given, last)
        return last

    watched = WatchedFile(path, parse, PolicyFileError, interval=interval, on_complaint=on_complaint)
    return watched.contents()


def check(path: Path) -> Policy:
    """The policy in a file, for nobody to use. Raises PolicyFileError."""
    given = means(Random(0), b"")  # noqa: S311 - decides nothing
    return Watch(path, lambda raw: parse_policy(raw, str(path), given), PolicyFileError).first()


def log_change(old: Policy | None, new: Policy) -> None:
    """Say in the log what is in force now, or what has changed."""
    for warning in new.warnings:
        log.warning("the policy is not one for production", extra={"fields": {"warning": warning}})
    if old is None:
        log.info("policy in force", extra={"fields": dict(summary(new))})
    else:
        log.info("policy changed", extra={"fields": changes(old, new)})
    for note in new.notes:
        if old is None or note not in old.notes:
            log.info("the policy is read in another way", extra={"fields": {"note": note}})


def summary(policy: Policy) -> Iterator[tuple[str, str]]:
    """What a policy comes to, for people."""
    names = {one.name: one for one in policy.plugins}
    yield "filters", ", ".join(_told(names[one.name]) for one in policy.profile.filters) or "none"
    yield (
        "scorers",
        ", ".join(_told(names[one.name], weighed=True) for one in policy.profile.scorers) or "none",
    )
    yield "picker", _told(policy.plugins[-1])
    yield "endpoints", "as the settings say" if policy.endpoints is None else str(policy.endpoints)
    yield "saturation", str(policy.saturation)
    yield "parsers", "all" if policy.parsers is None else ", ".join(policy.parsers)
    if policy.profile.uses_prefix:
        yield "prompts", f"compared in blocks of {policy.block_tokens} tokens"
    if policy.clusters.weights:
        yield "clusters", str(policy.clusters)


def changes(old: Policy, new: Policy) -> dict[str, str]:
    """What differs, as the fields of a log line: added, removed, changed and the rest by name."""
    before, after = ({one.name: one for one in policy.plugins} for policy in (old, new))
    told = {
        "added": ", ".join(_told(after[name], weighed=True) for name in after if name not in before),
        "removed": ", ".join(spelt(name) for name in before if name not in after),
        "changed": ", ".join(
            change for name in after if name in before for change in _differences(before[name], after[name])
        ),
    }
    order_before, order_after = (
        [name for name in one if name in before and name in after] for one in (before, after)
    )
    if order_before != order_after:
        told["order"] = ", ".join(map(spelt, after))
    for name in ("saturation", "parsers", "endpoints", "clusters"):
        was, is_now = getattr(old, name), getattr(new, name)
        if was != is_now:
            told[name] = f"{was} → {is_now}"
    if old.block_tokens != new.block_tokens:
        told["block_tokens"] = f"{new.block_tokens}, from the next start on"
    return {name: text for name, text in told.items() if text}


def _differences(old: InUse, new: InUse) -> Iterator[str]:
    name = spelt(new.name)
    if old.type != new.type:
        yield f"{name}: {old.type} → {new.type}"
    if old.weight != new.weight and old.weight is not None and new.weight is not None:
        yield f"{name}: weight {old.weight:g} → {new.weight:g}"
    was = dict(old.settings)
    for setting, value in new.settings:
        if was.get(setting) != value:
            yield f"{name}: {setting} {was.get(setting)} → {value}"


def _told(plugin: InUse, *, weighed: bool = False) -> str:
    name = spelt(plugin.name) if plugin.name == plugin.type else f"{spelt(plugin.name)} ({plugin.type})"
    return f"{name} * {plugin.weight:g}" if weighed and plugin.weight is not None else name
