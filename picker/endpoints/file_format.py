"""The endpoints file, from YAML text to endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from picker.addresses import LAST_PORT, AddressError, HostPort, parse_host, parse_ip
from picker.endpoints.endpoint import Endpoint, EndpointsError
from picker.strict_yaml import NULL, Fault, documents, fields, integer, shown, text
from scorer.document import spelt

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_ENDPOINTS = 10_000


def parse_endpoints(raw: bytes, file: str, *, metrics_target_port: int | None = None) -> tuple[Endpoint, ...]:
    """The endpoints that ``raw`` lists. Raises EndpointsError, which begins with ``file`` and the line.

    Metrics are on ``metricsHost``; where that names no port, or is not given, on
    ``metrics_target_port``, or else on the port of the traffic.
    """
    try:
        root = _root(raw)
        listed = _list(fields(root, "the file", ("endpoints",)).get("endpoints"), root)
        return tuple(_endpoints(listed, metrics_target_port))
    except Fault as fault:
        raise EndpointsError(f"{file}, line {fault.line}: {fault.text}") from None


def _root(raw: bytes) -> yaml.Node:
    roots = list(documents(raw))
    if not roots or roots[0].tag == NULL:
        raise Fault(1, "the file is empty; write 'endpoints: []' for an empty pool")
    if len(roots) > 1:
        raise Fault(roots[1], "the file has a second document; write one list of endpoints, without '---'")
    return roots[0]


def _list(node: yaml.Node | None, root: yaml.Node) -> list[yaml.Node]:
    if node is None:
        raise Fault(root, "'endpoints' is missing; write 'endpoints:' and under it one '- address: …' each")
    if not isinstance(node, yaml.SequenceNode):
        raise Fault(node, "'endpoints' is not a list; begin each endpoint with '- '")
    if len(node.value) > MOST_ENDPOINTS:
        raise Fault(
            node, f"{len(node.value)} endpoints are more than the {MOST_ENDPOINTS} that one pool can have"
        )
    return list(node.value)


def _endpoints(listed: list[yaml.Node], metrics_port: int | None) -> Iterator[Endpoint]:
    lines: dict[str, int] = {}
    for index, node in enumerate(listed):
        endpoint = _endpoint(node, f"endpoints[{index}]", metrics_port)
        if endpoint.address in lines:
            first = lines[endpoint.address]
            raise Fault(node, f"{endpoint.address} is listed on line {first} already; remove one of the two")
        lines[endpoint.address] = node.start_mark.line + 1
        yield endpoint


_KEYS = ("address", "port", "name", "namespace", "metricsHost", "labels")


def _endpoint(node: yaml.Node, place: str, metrics_port: int | None) -> Endpoint:
    members = fields(node, place, _KEYS, needed=("address", "port"))
    address = members["address"]
    ip = parse_ip(text(address, f"{place}.address"))
    if not ip:
        # A name could mean several endpoints, or others tomorrow; PICKER_ENDPOINTS takes names.
        raise Fault(address, f"{place}.address {shown(address)} is not an IP address, e.g. 10.0.0.1")
    port = integer(members["port"], f"{place}.port", 1, LAST_PORT, "a port")
    metrics = HostPort(ip, metrics_port or port)
    if "metricsHost" in members:
        metrics = _metrics(members["metricsHost"], f"{place}.metricsHost", metrics.port)
    name, namespace = (
        text(members[key], f"{place}.{key}") if key in members else "" for key in ("name", "namespace")
    )
    labels = _labels(members["labels"], f"{place}.labels") if "labels" in members else {}
    return Endpoint(str(HostPort(ip, port)), str(metrics), name, namespace, labels)


def _metrics(node: yaml.Node, place: str, port: int) -> HostPort:
    try:
        return parse_host(text(node, place), port)
    except AddressError as error:
        raise Fault(node, f"{place} {error}") from None


def _labels(node: yaml.Node, place: str) -> dict[str, str]:
    return {key: text(value, f"{place}.{spelt(key)}") for key, value in fields(node, place, None).items()}
