"""The endpoints file, from YAML text to endpoints, with errors that say where and how to mend.

The text is composed to nodes and never constructed to objects: nodes know their lines, tell a
quoted from a plain scalar, keep repeated keys, and share what an alias repeats.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

import yaml

from picker.endpoints.addresses import AddressError, HostPort, is_port, parse_host, parse_ip
from picker.endpoints.endpoint import Endpoint, EndpointsError

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_BYTES = 1 << 20
MOST_ENDPOINTS = 10_000

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT = "tag:yaml.org,2002:str"
_NUMBER = "tag:yaml.org,2002:int"
_NULL = "tag:yaml.org,2002:null"
_DECIMAL = re.compile(r"[1-9][0-9]{0,4}")
_SHOWN = 60

Fields = dict[str, yaml.Node]


def parse_endpoints(raw: bytes, file: str, *, metrics_target_port: int | None = None) -> tuple[Endpoint, ...]:
    """The endpoints that ``raw`` lists. Raises EndpointsError, which begins with ``file`` and the line.

    Metrics are on ``metricsHost``; where that names no port, or is not given, on
    ``metrics_target_port``, or else on the port of the traffic.
    """
    try:
        root = _compose(raw)
        listed = _list(_fields(root, "the file", ("endpoints",)).get("endpoints"), root)
        return tuple(_endpoints(listed, metrics_target_port))
    except _Fault as fault:
        raise EndpointsError(f"{file}, line {fault.line}: {fault.text}") from None


class _Fault(Exception):  # noqa: N818  becomes an EndpointsError once the file's name is known
    def __init__(self, where: yaml.Node | int, text: str) -> None:
        super().__init__(text)
        self.line = where if isinstance(where, int) else where.start_mark.line + 1
        self.text = text


def _compose(raw: bytes) -> yaml.Node:
    if len(raw) > MOST_BYTES:
        raise _Fault(1, f"the file is larger than {MOST_BYTES >> 20} MiB")
    try:
        root = yaml.compose(raw, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _Fault(mark.line + 1 if mark else 1, f"not YAML: {_line(error.problem)}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: undecodable bytes, which come without a mark
        raise _Fault(1, f"not YAML: {_line(error)}") from None
    if root is None:
        raise _Fault(1, "the file is empty; write 'endpoints: []' for an empty pool")
    return root


def _line(text: object) -> str:
    return " ".join(str(text).split())[:200]


def _list(node: yaml.Node | None, root: yaml.Node) -> list[yaml.Node]:
    if node is None:
        raise _Fault(root, "'endpoints' is missing; write 'endpoints:' and under it one '- address: …' each")
    if not isinstance(node, yaml.SequenceNode):
        raise _Fault(node, "'endpoints' is not a list; begin each endpoint with '- '")
    if len(node.value) > MOST_ENDPOINTS:
        raise _Fault(
            node, f"{len(node.value)} endpoints are more than the {MOST_ENDPOINTS} that one pool can have"
        )
    return list(node.value)


def _endpoints(listed: list[yaml.Node], metrics_port: int | None) -> Iterator[Endpoint]:
    lines: dict[str, int] = {}
    for index, node in enumerate(listed):
        endpoint = _endpoint(node, f"endpoints[{index}]", metrics_port)
        if endpoint.address in lines:
            first = lines[endpoint.address]
            raise _Fault(node, f"{endpoint.address} is listed on line {first} already; remove one of the two")
        lines[endpoint.address] = node.start_mark.line + 1
        yield endpoint


_KEYS = ("address", "port", "name", "namespace", "metricsHost", "labels")


def _endpoint(node: yaml.Node, place: str, metrics_port: int | None) -> Endpoint:
    fields = _fields(node, place, _KEYS)
    for key in ("address", "port"):
        if key not in fields:
            raise _Fault(node, f"{place} has no '{key}'")
    address = fields["address"]
    ip = parse_ip(_text(address, f"{place}.address"))
    if not ip:
        # A name could mean several endpoints, or others tomorrow; PICKER_ENDPOINTS takes names.
        raise _Fault(address, f"{place}.address {_shown(address)} is not an IP address, e.g. 10.0.0.1")
    port = _port(fields["port"], f"{place}.port")
    metrics = HostPort(ip, metrics_port or port)
    if "metricsHost" in fields:
        metrics = _metrics(fields["metricsHost"], f"{place}.metricsHost", metrics.port)
    name, namespace = (
        _text(fields[key], f"{place}.{key}") if key in fields else "" for key in ("name", "namespace")
    )
    labels = _labels(fields["labels"], f"{place}.labels") if "labels" in fields else {}
    return Endpoint(str(HostPort(ip, port)), str(metrics), name, namespace, labels)


def _metrics(node: yaml.Node, place: str, port: int) -> HostPort:
    try:
        return parse_host(_text(node, place), port)
    except AddressError as error:
        raise _Fault(node, f"{place} {error}") from None


def _port(node: yaml.Node, place: str) -> int:
    if node.tag == _TEXT and str(node.value).isdecimal():
        raise _Fault(node, f"{place} {_shown(node)} is a text; write it without quotes")
    # YAML has more spellings, of which 010 is 8 and 1:30 is 90; in a port they are mistakes.
    if node.tag != _NUMBER or not _DECIMAL.fullmatch(node.value) or not is_port(int(node.value)):
        raise _Fault(node, f"{place} {_shown(node)} is not a port; give a number from 1 to 65535")
    return int(node.value)


def _labels(node: yaml.Node, place: str) -> dict[str, str]:
    return {key: _text(value, f"{place}.{key}") for key, value in _fields(node, place, None).items()}


def _text(node: yaml.Node, place: str) -> str:
    if isinstance(node, yaml.ScalarNode):
        if node.tag == _TEXT:
            return str(node.value)
        if node.tag == _NULL:
            raise _Fault(node, f"{place} has no value; give one or remove the line")
        raise _Fault(node, f"{place} {_shown(node)} is not a text; put it in quotes")
    raise _Fault(node, f"{place} is not a text; give it as one value")


def _fields(node: yaml.Node, place: str, known: tuple[str, ...] | None) -> Fields:
    """The members of a mapping, of which no key is repeated, or unknown where only some are known."""
    if not isinstance(node, yaml.MappingNode):
        raise _Fault(node, f"{place} is not a mapping; write it as 'key: value' lines")
    fields: Fields = {}
    for key_node, value in node.value:
        key = _text(key_node, f"a key of {place}")
        if known is not None and key not in known:
            raise _Fault(key_node, f"{place} has an unknown key {_shown(key_node)}; {_meant(key, known)}")
        if key in fields:
            raise _Fault(key_node, f"{place} has the key {_shown(key_node)} twice; remove one of the two")
        fields[key] = value
    return fields


def _meant(key: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(key[:_SHOWN], known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"there are only {', '.join(known)}"


def _shown(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        return "(a list or mapping)"
    return repr(node.value) if len(node.value) <= _SHOWN else f"{node.value[:_SHOWN]!r}…"
