"""What a Ray head's dashboard says about Serve, from its JSON.

``GET /api/serve/applications/`` names the proxies with their states, and the *targets* a load balancer
should know: usually the healthy proxies, each of which serves every application; with direct ingress the
running replicas of each application's first deployment, each with a port of its own and with the
application's route only. An application that has no running replica has the proxies as targets then.

The port of a proxy is the global one: what ``RAY_SERVE_WORKER_PROXY_HTTP_PORT`` says for one node is not
in there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from picker.addresses import HostPort, is_port, parse_ip

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

APPLICATIONS_PATH = "/api/serve/applications/"
METRICS_PATH = "/api/prometheus/sd"
MOST_TARGETS = 10_000

_PROXY = "SERVE_PROXY_ACTOR-"
_REPLICA = "SERVE_REPLICA::"


class ServeApiError(ValueError):
    """Not an answer of Serve's API; one line."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests can be sent. ``routes`` are those of a replica's application; None: it is a proxy.

    ``name`` is that of its actor, ``node`` the id of its node ("" if not told).
    """

    address: HostPort
    name: str
    node: str = ""
    application: str = ""
    routes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ServeState:
    """What Serve said at one time.

    ``controller`` is the actor that runs it ("" while none does); ``proxies`` the state of each proxy
    (HEALTHY, DRAINING, …) by the IP address of its node.
    """

    controller: str
    targets: tuple[Target, ...]
    proxies: Mapping[str, str]


def parse_applications(raw: bytes) -> ServeState:
    """Read the answer of ``/api/serve/applications/``. Raises ServeApiError."""
    root = _json(raw, dict)
    proxies = _mapping(root, "proxies")
    applications = _mapping(root, "applications")
    controller = _text(_mapping(root, "controller_info"), "actor_id")
    nodes = _replica_nodes(applications)
    groups = root.get("target_groups")
    if isinstance(groups, list):
        found = _targets(groups, nodes)
    else:  # before about Ray 2.47
        found = _healthy_proxies(proxies, _mapping(root, "http_options").get("port"))
    states = {
        ip: _text(proxy, "status")
        for proxy in proxies.values()
        if isinstance(proxy, dict) and (ip := parse_ip(_text(proxy, "node_ip")))
    }
    return ServeState(controller, _merged(found), states)


def parse_metrics_targets(raw: bytes) -> dict[str, HostPort]:
    """The metrics page of each node by its IP address, from the answer of ``/api/prometheus/sd``.

    Nodes come first in it; after them come ports of the head's other programs. Raises ServeApiError.
    """
    pages: dict[str, HostPort] = {}
    for group in _json(raw, list):
        targets = group.get("targets") if isinstance(group, dict) else None
        for text in targets[:MOST_TARGETS] if isinstance(targets, list) else ():
            host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
            ip = parse_ip(host.removeprefix("[").removesuffix("]"))
            if ip and port.isascii() and port.isdecimal() and is_port(int(port[:6])):
                pages.setdefault(ip, HostPort(ip, int(port)))
    return pages


def _targets(groups: list[Any], nodes: Mapping[str, str]) -> Iterator[Target]:
    for group in groups:
        if not isinstance(group, dict) or group.get("protocol") != "HTTP":
            continue
        prefix, application = _text(group, "route_prefix"), _text(group, "app_name")
        targets = group.get("targets")
        for target in targets if isinstance(targets, list) else ():
            if not isinstance(target, dict):
                continue
            address = _address(target.get("ip"), target.get("port"))
            if address is None:
                continue
            name = _text(target, "name")
            if name.startswith(_REPLICA):
                routes = (prefix,) if prefix.startswith("/") else None
                yield Target(address, name, nodes.get(name, ""), application, routes)
            else:
                yield Target(address, name, name.removeprefix(_PROXY) if name.startswith(_PROXY) else "")


def _healthy_proxies(proxies: Mapping[str, Any], port: object) -> Iterator[Target]:
    for node, proxy in proxies.items():
        if isinstance(proxy, dict) and proxy.get("status") == "HEALTHY":
            address = _address(proxy.get("node_ip"), port)
            if address is not None:
                yield Target(address, _text(proxy, "actor_name"), node)


def _merged(targets: Iterator[Target]) -> tuple[Target, ...]:
    """Each address once, in an order that does not change from answer to answer.

    Raises ServeApiError if there are more than one pool can have.
    """
    by_address: dict[HostPort, Target] = {}
    for target in targets:
        by_address.setdefault(target.address, target)
        if len(by_address) > MOST_TARGETS:
            raise ServeApiError(f"more than {MOST_TARGETS} targets")
    return tuple(by_address[address] for address in sorted(by_address))


def _replica_nodes(applications: Mapping[str, Any]) -> dict[str, str]:
    """The node of each replica by its actor's name."""
    nodes: dict[str, str] = {}
    for application in applications.values():
        for deployment in _mapping(application, "deployments").values():
            replicas = deployment.get("replicas") if isinstance(deployment, dict) else None
            for replica in replicas if isinstance(replicas, list) else ():
                if isinstance(replica, dict):
                    nodes[_text(replica, "actor_name")] = _text(replica, "node_id")
    return nodes


def _address(ip: object, port: object) -> HostPort | None:
    host = parse_ip(ip) if isinstance(ip, str) else ""
    if not host or not isinstance(port, int) or not is_port(port):
        return None
    return HostPort(host, port)


def _json(raw: bytes, kind: type[Any]) -> Any:  # noqa: ANN401 - of the kind that was asked for
    try:
        root = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise ServeApiError("the answer is not JSON") from None
    if not isinstance(root, kind):
        raise ServeApiError("the answer is not what Serve's API gives")
    return root


def _mapping(parent: object, key: str) -> Mapping[str, Any]:
    value = parent.get(key) if isinstance(parent, dict) else None
    return value if isinstance(value, dict) else {}


def _text(parent: Mapping[str, Any], key: str) -> str:
    value = parent.get(key)
    return value if isinstance(value, str) else ""
