"""The Envoy configuration of ``serve-picker gateway`` (Envoy 1.40)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from picker.gateway.envoy_config import (
    DESTINATION,
    METADATA_NAMESPACE,
    Json,
    address,
    assignment,
    balancing,
    metadata_options,
    named,
    protocol,
    strip_destination,
    unlimited,
)

if TYPE_CHECKING:
    from pathlib import Path

POOL = "pool"
"""Name of the endpoints in the EDS file, and of the cluster that speaks HTTP/1.1 to them."""
GRPC_POOL = "pool-grpc"
"""The same endpoints for gRPC requests, which need HTTP/2."""
LISTENER = "gateway"
STDOUT = "-"
"""The access log's path that means standard output."""

BUFFER_LIMIT = 64 * 1024 * 1024
"""Bytes of a request body that are held for the picker; Envoy's default of 1 MiB would refuse long prompts
with 413. As many as the picker takes (PICKER_MAX_BODY): what is longer by its content-length passes by."""
MESSAGE_TIMEOUT = 1.0
"""Seconds Envoy waits for the picker before the request goes on by round robin. Far above the picker's own
deadline for a decision, so that only a picker that hangs is passed over."""
HEALTH_INTERVAL = 0.5
"""Seconds between two checks of the picker. Two failures, and requests no longer wait for it at all."""
UPSTREAM_IDLE = 60
"""Seconds; below the 90 s after which a Ray Serve proxy closes an idle connection, so Envoy closes first."""
CLIENT_IDLE = 3600
"""Seconds without a byte in either direction until a request is given up; a long prefill is silent too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """What the bootstrap is made from.

    ``listen`` and ``picker`` are ``ip:port``; ``eds_path`` the file that names the endpoints;
    ``admin_socket`` a Unix socket for Envoy's admin interface; ``access_log`` a path, ``-`` for standard
    output or None for no log; ``certificate`` the files of a certificate chain and its key; ``retries`` how
    many further endpoints of the picker's answer are tried when one cannot be connected to.
    """

    listen: str
    picker: str
    eds_path: Path
    admin_socket: Path
    access_log: str | None = None
    certificate: tuple[Path, Path] | None = None
    retries: int = 2


def bootstrap(config: GatewayConfig) -> Json:
    """Give the whole configuration."""
    return {
        "node": {"id": "serve-picker-gateway", "cluster": "serve-picker"},
        "admin": {"address": {"pipe": {"path": str(config.admin_socket), "mode": 0o600}}},
        "static_resources": {
            "listeners": [_listener(config)],
            "clusters": [_pool(config, POOL), _pool(config, GRPC_POOL), _picker(config)],
        },
    }


def _listener(config: GatewayConfig) -> Json:
    chain: Json = {"filters": [_connection_manager(config)]}
    if config.certificate:
        chain["transport_socket"] = _tls(*config.certificate)
    return {
        "name": LISTENER,
        "address": address(config.listen),
        # Otherwise two gateways share a port in silence instead of the second one refusing to start.
        "enable_reuse_port": False,
        "per_connection_buffer_limit_bytes": BUFFER_LIMIT,
        "filter_chains": [chain],
    }


def _connection_manager(config: GatewayConfig) -> Json:
    return named(
        "envoy.filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=LISTENER,
        stream_idle_timeout=f"{CLIENT_IDLE}s",
        early_header_mutation_extensions=[strip_destination()],
        route_config={
            "name": LISTENER,
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": _routes(config)}],
        },
        http_filters=[
            _ext_proc(),
            named("envoy.filters.http.router", "extensions.filters.http.router.v3.Router"),
        ],
        upgrade_configs=[{"upgrade_type": "websocket"}],
        access_log=[_access_log(config.access_log)] if config.access_log else [],
    )


def _routes(config: GatewayConfig) -> list[Json]:
    def route(cluster: str) -> Json:
        return {
            "cluster": cluster,
            "timeout": "0s",
            # Only where nothing was sent: the endpoint never saw the request.
            "retry_policy": {"retry_on": "connect-failure,refused-stream", "num_retries": config.retries},
        }

    return [
        {"match": {"prefix": "/", "grpc": {}}, "route": route(GRPC_POOL)},
        {"match": {"prefix": "/"}, "route": route(POOL)},
    ]


def _ext_proc() -> Json:
    return named(
        "envoy.filters.http.ext_proc",
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker", "authority": "picker"}},
        failure_mode_allow=True,
        message_timeout=f"{MESSAGE_TIMEOUT:g}s",
        # The picker turns the body's mode to NONE where it needs none. Never the other way round: bodies
        # above the buffer limit hang then.
        allow_mode_override=True,
        processing_mode={
            "request_header_mode": "SEND",
            "request_body_mode": "BUFFERED",
            "response_header_mode": "SEND",
        },
        metadata_options=metadata_options(),
    )


def _pool(config: GatewayConfig, name: str) -> Json:
    """The endpoints of the EDS file; the picker's choice among them, else round robin."""
    version = "http2_protocol_options" if name == GRPC_POOL else "http_protocol_options"
    return {
        "name": name,
        "type": "EDS",
        "connect_timeout": "1s",
        "eds_cluster_config": {
            "service_name": POOL,
            "eds_config": {
                "resource_api_version": "V3",
                "path_config_source": {
                    "path": str(config.eds_path),
                    "watched_directory": {"path": str(config.eds_path.parent)},
                },
            },
        },
        "load_balancing_policy": balancing("picker"),
        **unlimited(),
        **protocol(version, idle_seconds=UPSTREAM_IDLE),
    }


def _picker(config: GatewayConfig) -> Json:
    return {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": assignment("picker", [config.picker]),
        # With no healthy picker a request goes on at once, with its body; panic would let it wait.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [
            {
                "timeout": f"{HEALTH_INTERVAL}s",
                "interval": f"{HEALTH_INTERVAL}s",
                "no_traffic_interval": f"{HEALTH_INTERVAL}s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "grpc_health_check": {},
            }
        ],
        **unlimited(),
        **protocol("http2_protocol_options"),
    }


def _tls(chain: Path, key: Path) -> Json:
    return named(
        "envoy.transport_sockets.tls",
        "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        common_tls_context={
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_certificates": [
                {"certificate_chain": {"filename": str(chain)}, "private_key": {"filename": str(key)}}
            ],
        },
    )


def _access_log(path: str) -> Json:
    fields = {
        "time": "%START_TIME%",
        "method": "%REQ(:METHOD)%",
        "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH):1024%",
        "status": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "picked": f"%DYNAMIC_METADATA({METADATA_NAMESPACE}:{DESTINATION})%",
        "endpoint": "%UPSTREAM_HOST%",
        "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "duration_ms": "%DURATION%",
        "first_byte_ms": "%RESPONSE_DURATION%",
        "bytes_received": "%BYTES_RECEIVED%",
        "bytes_sent": "%BYTES_SENT%",
        "request_id": "%REQ(X-REQUEST-ID)%",
    }
    log_format = {"json_format": fields}
    if path == STDOUT:
        # Not /dev/stdout: opened anew it has an offset of its own, and where output goes to a file Envoy's
        # lines and the picker's would overwrite each other.
        kind = "extensions.access_loggers.stream.v3.StdoutAccessLog"
        return named("envoy.access_loggers.stdout", kind, log_format=log_format)
    kind = "extensions.access_loggers.file.v3.FileAccessLog"
    return named("envoy.access_loggers.file", kind, path=path, log_format=log_format)
