"""Pieces of Envoy's configuration, as plain dictionaries in the JSON form of its protobuf messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]
Balancer = Literal["round_robin", "least_request", "picker"]

DESTINATION = "x-gateway-destination-endpoint"
"""The endpoint picker protocol's name for the chosen endpoint: a header, and a key of the metadata."""
SERVED = f"{DESTINATION}-served"
"""Metadata key in which Envoy says which endpoint really got the request."""
METADATA_NAMESPACE = "envoy.lb"

MANY = 1_000_000
"""Circuit breakers out of the way: by default, of more than 1,024 ext_proc streams the rest get 500."""


def named(name: str, kind: str, **fields: Any) -> Json:  # noqa: ANN401 - fields of any protobuf message
    """An extension by its name and the type of its configuration (below ``type.googleapis.com/envoy.``)."""
    return {"name": name, "typed_config": {"@type": f"type.googleapis.com/envoy.{kind}", **fields}}


def address(endpoint: str) -> Json:
    """``ip:port`` (IPv6 in brackets) as an Envoy address."""
    host, _, port = endpoint.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}


def assignment(cluster: str, endpoints: Iterable[str]) -> Json:
    """A ClusterLoadAssignment of equal endpoints."""
    return {
        "cluster_name": cluster,
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(at)}} for at in endpoints]}],
    }


def unlimited() -> Json:
    """Fields of a cluster without circuit breakers."""
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"circuit_breakers": {"thresholds": [dict.fromkeys(limits, MANY)]}}


def protocol(version: str, idle_seconds: int | None = None) -> Json:
    """Fields of a cluster that speaks ``http_protocol_options`` (1.1) or ``http2_protocol_options``."""
    options: Json = {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {version: {}},
    }
    if idle_seconds is not None:
        options["common_http_protocol_options"] = {"idle_timeout": f"{idle_seconds}s"}
    return {
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options
        }
    }


def balancing(balancer: Balancer) -> Json:
    """The load balancing policy of a cluster; ``picker`` takes the picker's choice, else round robin."""
    if balancer == "least_request":
        return _policy(balancer, "least_request.v3.LeastRequest")
    if balancer == "round_robin":
        return _policy(balancer, "round_robin.v3.RoundRobin")
    # Metadata as the only source: a client cannot set it, and with the header as a second source a
    # retry would go to the same endpoint again, since Envoy joins both lists.
    return _policy(
        "override_host",
        "override_host.v3.OverrideHost",
        override_host_sources=[{"metadata": _metadata(DESTINATION)}],
        selected_host_key=_metadata(SERVED),
        fallback_policy=balancing("round_robin"),
    )


def _policy(name: str, kind: str, **fields: Any) -> Json:  # noqa: ANN401 - fields of any protobuf message
    extension = named(
        f"envoy.load_balancing_policies.{name}", f"extensions.load_balancing_policies.{kind}", **fields
    )
    return {"policies": [{"typed_extension_config": extension}]}


def _metadata(key: str) -> Json:
    return {"key": METADATA_NAMESPACE, "path": [{"key": key}]}


def strip_destination() -> Json:
    """An early header mutation that keeps clients from choosing their endpoint.

    A route's own header removal would not do: it runs after ext_proc and takes away the picker's answer.
    """
    return named(
        "strip-destination",
        "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=[{"remove": DESTINATION}],
    )


def metadata_options() -> Json:
    """Which metadata the picker sees and may set; what is not listed is dropped without a word."""
    return {
        "forwarding_namespaces": {"untyped": [METADATA_NAMESPACE, f"{METADATA_NAMESPACE}.subset_hint"]},
        "receiving_namespaces": {"untyped": [METADATA_NAMESPACE]},
    }
