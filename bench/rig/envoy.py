"""A real Envoy for the demo, the benches and the tests: its bootstrap, and its process.

One Envoy can have several listeners, each with its own balancer and its own way to the picker, so
that balancers are compared within one process on the same machine at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
import orjson

from bench.rig.child import Child, ChildError, Program, scratch_directory
from bench.rig.ports import LOOPBACK
from picker.gateway.binary import EnvoyError, envoy_binary, first_error
from picker.gateway.envoy_config import (
    DESTINATION,
    METADATA_NAMESPACE,
    Balancer,
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
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack

Mode = Literal["buffered", "duplex", "duplex_request", "streamed", "headers", "buffered_streamed"]

BUFFER_LIMIT = 64 * 1024 * 1024
"""Bytes of a request body that BUFFERED mode takes; Envoy's default of 1 MiB answers 413 to long prompts."""

HEALTH_SECONDS = 1.0
"""Between two questions whether a picker is ready; kubelets ask every two seconds by our manifests."""

POOL_IDLE_SECONDS = 60
"""Below the 90 s after which a Ray Serve proxy closes an idle connection, so that Envoy closes first."""

PROCESSING_MODES: Mapping[Mode, Json] = {
    "buffered": {"request_body_mode": "BUFFERED", "response_header_mode": "SEND"},
    "buffered_streamed": {
        "request_body_mode": "BUFFERED",
        "response_header_mode": "SEND",
        "response_body_mode": "STREAMED",
    },
    # Envoy refuses FULL_DUPLEX_STREAMED in a direction whose trailers are not sent too.
    "duplex": {
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_header_mode": "SEND",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "response_trailer_mode": "SEND",
    },
    "duplex_request": {
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_header_mode": "SKIP",
    },
    "streamed": {
        "request_body_mode": "STREAMED",
        "response_header_mode": "SEND",
        "response_body_mode": "STREAMED",
    },
    "headers": {"request_body_mode": "NONE", "response_header_mode": "SKIP"},
}
MODES: tuple[Mode, ...] = tuple(PROCESSING_MODES)
BUFFERING: frozenset[Mode] = frozenset({"buffered", "buffered_streamed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtProc:
    """How Envoy asks the picker at ``address`` (``ip:port``).

    ``others``: further pickers. Then the health service of each one says whether it is asked, as the
    readiness of pods does for a Service; where none is ready, none is asked.
    ``failure_mode_allow``: requests go on by the fallback balancer when the picker fails.
    ``message_timeout``: seconds Envoy waits for one answer; it is not armed in the duplex modes.
    """

    address: str
    others: Sequence[str] = ()
    mode: Mode = "buffered"
    tls: bool = False
    failure_mode_allow: bool = False
    message_timeout: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One door: a port, the endpoints (``ip:port``) behind it, and what balances over them.

    Port 0 takes a free one (see ``Envoy.address``). ``ext_proc`` belongs to the balancer "picker" and
    to no other. ``retries`` counts those after a connection failure; the balancer is asked again, the
    picker is not. ``served_by`` names a response header that tells which endpoint answered. ``http2``:
    the endpoints speak HTTP/2 without TLS, as gRPC servers do.
    """

    name: str
    endpoints: Sequence[str]
    balancer: Balancer = "round_robin"
    ext_proc: ExtProc | None = None
    host: str = LOOPBACK
    port: int = 0
    retries: int = 0
    served_by: str = ""
    http2: bool = False

    def __post_init__(self) -> None:
        if (self.balancer == "picker") != (self.ext_proc is not None):
            raise ValueError(
                f"listener {self.name}: ext_proc goes with the balancer 'picker' and only with it"
            )


def bootstrap(listeners: Sequence[Listener], *, access_log: Path | None = None, admin_port: int = 0) -> Json:
    """Give the bootstrap of one Envoy 1.40 with these listeners.

    ``access_log`` gets one JSON object a line. The admin port is on the loopback address, a free one by
    default (``Envoy`` finds out which).
    """
    clusters = [_pool(listener) for listener in listeners]
    clusters += [_picker(listener.name, listener.ext_proc) for listener in listeners if listener.ext_proc]
    return {
        "node": {"id": "rig", "cluster": "rig"},
        "admin": {"address": address(f"{LOOPBACK}:{admin_port}")},
        "static_resources": {
            "listeners": [_listener(listener, access_log) for listener in listeners],
            "clusters": clusters,
        },
    }


class Envoy(Program):
    """Runs the real binary, not its Python wrapper, so that ``pid`` is Envoy's own.

    ``directory`` keeps the configuration and the log; without it they go away at the end.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        directory: Path | None = None,
        concurrency: int = 1,
        log_level: str = "warning",
        ready_timeout: float = 30.0,
    ) -> None:
        self._config = config
        self._directory = directory
        self._concurrency = concurrency
        self._log_level = log_level
        self._ready_timeout = ready_timeout
        self._admin_path = Path()
        self._session: aiohttp.ClientSession
        self._addresses: dict[str, str] = {}

    async def _start(self, stack: AsyncExitStack) -> None:
        directory = scratch_directory(stack, self._directory)
        config_path = directory / "envoy.json"
        config_path.write_bytes(orjson.dumps(self._config, option=orjson.OPT_INDENT_2))
        self._admin_path = directory / "envoy.admin"
        self._admin_path.unlink(missing_ok=True)
        timeout = aiohttp.ClientTimeout(total=5)
        self._session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        self.child = Child(
            "Envoy",
            self._command(config_path),
            ready=self._is_ready,
            log_path=directory / "envoy.log",
            ready_timeout=self._ready_timeout,
        )
        try:
            await stack.enter_async_context(self.child)
        except ChildError as error:
            raise ChildError(first_error(self.child.log_text()) or str(error)) from error
        self._addresses = await self._listening()

    @property
    def log_path(self) -> Path:
        """Where Envoy's log goes."""
        return self.child.log_path

    @property
    def admin_url(self) -> str:
        """``http://ip:port`` of Envoy's admin interface."""
        return f"http://{self._admin_path.read_text().strip()}"

    def address(self, listener: str) -> str:
        """The ``ip:port`` a listener is bound to."""
        return self._addresses[listener]

    async def stats(self, pattern: str = "") -> dict[str, float]:
        """Counters and gauges by name, of those whose name matches the regular expression ``pattern``."""
        query = {"format": "json", "filter": pattern}
        async with self._session.get(f"{self.admin_url}/stats", params=query) as response:
            answer = orjson.loads(await response.read())
        return {stat["name"]: stat["value"] for stat in answer["stats"] if "value" in stat}

    def _command(self, config_path: Path) -> list[str | Path]:
        return [
            _binary(),
            *("--config-path", config_path),
            *("--admin-address-path", self._admin_path),
            *("--concurrency", str(self._concurrency)),
            *("--log-level", self._log_level),
            *("--file-flush-interval-msec", "50"),
            "--disable-hot-restart",
        ]

    async def _is_ready(self) -> bool:
        if not self._admin_path.exists() or not self._admin_path.read_text().strip():
            return False
        try:
            async with self._session.get(f"{self.admin_url}/ready") as response:
                return response.status == HTTPStatus.OK
        except aiohttp.ClientError:
            return False

    async def _listening(self) -> dict[str, str]:
        async with self._session.get(f"{self.admin_url}/listeners", params={"format": "json"}) as response:
            answer = orjson.loads(await response.read())
        sockets = {
            status["name"]: status["local_address"]["socket_address"]
            for status in answer["listener_statuses"]
        }
        return {name: f"{socket['address']}:{socket['port_value']}" for name, socket in sockets.items()}


def _binary() -> Path:
    try:
        return envoy_binary()
    except EnvoyError as error:
        raise ChildError(str(error)) from error


def _listener(listener: Listener, access_log: Path | None) -> Json:
    buffering = listener.ext_proc is not None and listener.ext_proc.mode in BUFFERING
    return {
        "name": listener.name,
        "address": address(f"{listener.host}:{listener.port}"),
        # Otherwise two Envoys share a port in silence instead of the second one refusing to start.
        "enable_reuse_port": False,
        **({"per_connection_buffer_limit_bytes": BUFFER_LIMIT} if buffering else {}),
        "filter_chains": [{"filters": [_connection_manager(listener, access_log)]}],
    }


def _connection_manager(listener: Listener, access_log: Path | None) -> Json:
    filters = [named("envoy.filters.http.router", "extensions.filters.http.router.v3.Router")]
    if listener.ext_proc:
        filters.insert(0, _ext_proc(listener.name, listener.ext_proc))
    return named(
        "envoy.filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=listener.name,
        route_config={
            "name": listener.name,
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_route(listener)]}],
        },
        early_header_mutation_extensions=[strip_destination()],
        http_filters=filters,
        upgrade_configs=[{"upgrade_type": "websocket"}],
        access_log=[_access_log(listener, access_log)] if access_log else [],
    )


def _route(listener: Listener) -> Json:
    route: Json = {"cluster": _pool_name(listener.name), "timeout": "0s"}
    if listener.retries:
        route["retry_policy"] = {
            "retry_on": "connect-failure,refused-stream,reset-before-request",
            "num_retries": listener.retries,
        }
    match: Json = {"match": {"prefix": "/"}, "route": route}
    if listener.served_by:
        header = {"key": listener.served_by, "value": "%UPSTREAM_HOST%"}
        match["response_headers_to_add"] = [
            {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"},
        ]
    return match


def _ext_proc(name: str, ext_proc: ExtProc) -> Json:
    options: Json = {
        "grpc_service": {
            "envoy_grpc": {"cluster_name": _picker_name(name), "authority": "picker"},
        },
        "failure_mode_allow": ext_proc.failure_mode_allow,
        "message_timeout": f"{ext_proc.message_timeout:g}s",
        "processing_mode": {"request_header_mode": "SEND", **PROCESSING_MODES[ext_proc.mode]},
        "metadata_options": metadata_options(),
    }
    if ext_proc.mode in BUFFERING:
        options["allow_mode_override"] = True
    elif ext_proc.mode == "duplex":
        options["allow_content_length_header"] = True
    return named(
        "envoy.filters.http.ext_proc", "extensions.filters.http.ext_proc.v3.ExternalProcessor", **options
    )


def _access_log(listener: Listener, path: Path) -> Json:
    fields = {
        "start": "%START_TIME%",
        "listener": listener.name,
        "method": "%REQ(:METHOD)%",
        "path": "%REQ(:PATH)%",
        "status": "%RESPONSE_CODE%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "flags": "%RESPONSE_FLAGS%",
        "upstream": "%UPSTREAM_HOST%",
        "destination": f"%DYNAMIC_METADATA({METADATA_NAMESPACE}:{DESTINATION})%",
        "duration_ms": "%DURATION%",
        "bytes_received": "%BYTES_RECEIVED%",
        "bytes_sent": "%BYTES_SENT%",
        "ext_proc": "%FILTER_STATE(envoy.filters.http.ext_proc:PLAIN)%",
    }
    return named(
        "envoy.access_loggers.file",
        "extensions.access_loggers.file.v3.FileAccessLog",
        path=str(path),
        log_format={"json_format": fields},
    )


def _pool(listener: Listener) -> Json:
    return {
        "name": _pool_name(listener.name),
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_balancing_policy": balancing(listener.balancer),
        "load_assignment": assignment(_pool_name(listener.name), listener.endpoints),
        **unlimited(),
        # Ray Serve's proxies speak HTTP/1.1 only.
        **protocol(
            "http2_protocol_options" if listener.http2 else "http_protocol_options",
            idle_seconds=POOL_IDLE_SECONDS,
        ),
    }


def _picker(name: str, ext_proc: ExtProc) -> Json:
    cluster: Json = {
        "name": _picker_name(name),
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": assignment(_picker_name(name), [ext_proc.address, *ext_proc.others]),
        **unlimited(),
        **protocol("http2_protocol_options"),
    }
    if ext_proc.others:
        cluster |= _only_ready_ones()
    if ext_proc.tls:
        # An empty validation context: encrypted, but whose certificate it is does not matter.
        cluster["transport_socket"] = named(
            "envoy.transport_sockets.tls",
            "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            common_tls_context={"alpn_protocols": ["h2"], "validation_context": {}},
        )
    return cluster


def _only_ready_ones() -> Json:
    every = f"{HEALTH_SECONDS:g}s"
    check = {
        # Patient with an answer, for a busy machine is no reason to ask another picker.
        "timeout": "10s",
        "interval": every,
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
        "no_traffic_interval": every,
        "grpc_health_check": {},
    }
    return {"health_checks": [check], "common_lb_config": {"healthy_panic_threshold": {"value": 0}}}


def _pool_name(listener: str) -> str:
    return f"pool-{listener}"


def _picker_name(listener: str) -> str:
    return f"picker-{listener}"
