"""Every setting of the process: environment variables ``PICKER_…`` and flags of the same names.

Plain pydantic and not pydantic-settings: reading ``os.environ`` is a dozen lines here, the import
costs a tenth of the second a start may take, and its errors name a field where an operator needs
the variable, or the flag, and the mend.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    ValidationError,
    model_validator,
)

from picker.addresses import AddressError, HostPort, SrvName, parse_host, parse_member
from picker.kube.names import (
    ObjectName,
    PodSelector,
    ServicePort,
    parse_object_name,
    parse_pod_selector,
    parse_service_port,
)

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

PREFIX = "PICKER_"
MEMBERSHIP = (
    "endpoints",
    "endpoints_file",
    "pool",
    "service",
    "pods",
    "ray_service",
    "ray_cluster",
    "ray_head",
)
"""The settings that say who is in the pool; exactly one is given."""
ENRICHED, ENRICHING = ("pool", "service", "pods"), ("ray_service", "ray_head")
"""But one of the second may come with one of the first, and then says what is known of its members."""
LEASED = ("pool", "service", "ray_service", "ray_cluster")
"""Those of them whose object gives the Lease its name."""

_SECONDS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", re.ASCII)
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SHORTEST_KEY = 16
_PORTS = {"http": 80, "https": 443}
_SHOWN = 80
"""Characters of a wrong value that an error repeats."""


class SettingsError(Exception):
    """The settings do not make a process; the text is one line that names the setting and the mend."""


def _duration(value: object) -> object:
    """Seconds from ``150ms``, ``5s``, ``2m``, ``1h``, ``1m30s`` or a plain number of seconds."""
    if not isinstance(value, str):
        return value
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    if not value or _DURATION.sub("", value):
        raise ValueError("should be a duration in ms, s, m or h")
    return sum(float(amount) * _UNIT_SECONDS[unit] for amount, unit in _DURATION.findall(value))


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _comma_separated(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _member(value: str) -> HostPort | SrvName:
    try:
        return parse_member(value)
    except AddressError:
        raise ValueError("should be host:port, or the name of an SRV record") from None


def _ip_address(value: str) -> str:
    """An address to listen on; a name could mean several, or one that changes."""
    bare = value.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        raise ValueError("should be an IP address") from None
    return bare


def _http_url(value: str) -> str:
    """``http://host:port`` without anything that a log should not show."""
    scheme, _, rest = value.strip().partition("://")
    try:
        return f"{scheme.lower()}://{parse_host(rest.removesuffix('/'), _PORTS[scheme.lower()])}"
    except (AddressError, KeyError):
        raise ValueError("should be http://host:port") from None


def _readable_file(value: Path) -> Path:
    try:
        with value.open("rb"):
            return value
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None


def _http_auth(value: str) -> str:
    """``none``, ``kubernetes``, or ``token:`` and a file that can be read."""
    kind, _, file = value.partition(":")
    kind = kind.strip().lower()
    if kind == "token" and file.strip():
        return f"token:{_readable_file(Path(file.strip()))}"
    if kind in ("none", "kubernetes") and not file:
        return kind
    raise ValueError("should be none, token:FILE or kubernetes")


def _writable_folder(value: Path) -> Path:
    if not os.access(value.parent, os.W_OK | os.X_OK):
        raise ValueError("should be in a folder that can be written to")
    return value


def _certificate_folder(value: Path) -> Path:
    for name in ("tls.crt", "tls.key"):
        try:
            _readable_file(value / name)
        except ValueError as error:
            raise ValueError(f"should be a folder with tls.crt and tls.key, but {name} {error}") from None
    return value


def _long_enough(value: SecretStr) -> SecretStr:
    """Not as other settings are refused: an error never shows a secret."""
    if len(value.get_secret_value()) < _SHORTEST_KEY:
        name = variable("session_key")
        raise SettingsError(f"{name} is too short; give {_SHORTEST_KEY} characters or more")
    return value


Seconds = Annotated[float, BeforeValidator(_duration), Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[Seconds, Field(gt=0)]
PositiveBytes = Annotated[ByteSize, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]
PoolMember = Annotated[HostPort | SrvName, PlainValidator(_member)]
KubernetesObject = Annotated[ObjectName, PlainValidator(parse_object_name)]
KubernetesService = Annotated[ServicePort, PlainValidator(parse_service_port)]
KubernetesPods = Annotated[PodSelector, PlainValidator(parse_pod_selector)]


class Settings(BaseModel):
    """What the process was told. Durations are seconds, sizes bytes.

    The descriptions are the documentation (``serve-picker serve --help``); the examples are what an
    error offers as the mend. An empty variable counts as not set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bind: Annotated[str, AfterValidator(_ip_address)] | None = Field(
        None, description="IP address to listen on [all]", examples=["127.0.0.1"]
    )
    grpc_port: Port = Field(9002, description="port of ext_proc and gRPC health", examples=["9002"])
    health_port: Port = Field(9003, description="port of gRPC health alone", examples=["9003"])
    metrics_port: Port = Field(9090, description="port of /metrics, /healthz, /readyz", examples=["9090"])
    admin: bool = Field(default=True, description="serve the live page, explain and top", examples=["false"])
    admin_port: Port = Field(9091, description="port of the live page, explain and top", examples=["9091"])
    admin_bind: Annotated[str, AfterValidator(_ip_address)] = Field(
        "127.0.0.1", description="IP address of the live page", examples=["127.0.0.1"]
    )
    http_auth: Annotated[str, AfterValidator(_http_auth)] = Field(
        "none",
        description="whom HTTP answers: none (all), token:FILE, kubernetes",
        examples=["token:/etc/picker/token"],
    )

    endpoints: Annotated[tuple[PoolMember, ...], BeforeValidator(_comma_separated)] | None = Field(
        None,
        min_length=1,
        description="the pool: host:port,… or SRV names",
        examples=["10.0.0.1:8000,10.0.0.2:8000"],
    )
    endpoints_file: Annotated[Path, AfterValidator(_readable_file)] | None = Field(
        None, description="the pool: a YAML file, watched", examples=["endpoints.yaml"]
    )
    pool: KubernetesObject | None = Field(
        None, description="the pool: namespace/name of an InferencePool", examples=["default/llm"]
    )
    service: KubernetesService | None = Field(
        None,
        description="the pool: namespace/name[:port] of a Service",
        examples=["default/llm:http"],
    )
    pods: KubernetesPods | None = Field(
        None,
        description="the pool: namespace/label=value,…:port,…",
        examples=["default/app=llm:8000"],
    )
    ray_service: KubernetesObject | None = Field(
        None,
        description="the pool, or more on it: a RayService's name",
        examples=["default/llm"],
    )
    ray_cluster: KubernetesObject | None = Field(
        None, description="the pool: a RayCluster's name", examples=["default/llm-raycluster"]
    )
    ray_head: Annotated[str, AfterValidator(_http_url)] | None = Field(
        None,
        description="the pool, or more on it: http://host:8265",
        examples=["http://10.0.0.1:8265"],
    )
    ray_token_file: Annotated[Path, AfterValidator(_readable_file)] | None = Field(
        None, description="token of that Ray head, read each time", examples=["/etc/ray/auth_token"]
    )
    http_route: KubernetesObject | None = Field(
        None,
        description="weights of clusters: an HTTPRoute's name",
        examples=["default/llm-httproute"],
    )
    leader_election: bool = Field(
        default=False,
        description="one replica of several is ready, by a Lease",
        examples=["true"],
    )
    objects_file: Annotated[Path, AfterValidator(_readable_file)] | None = Field(
        None, description="model rewrites and objectives, watched", examples=["objects.yaml"]
    )

    eds_file: Annotated[Path, AfterValidator(_writable_folder)] | None = Field(
        None, description="write the pool here for Envoy's file EDS", examples=["/run/picker/pool.json"]
    )
    envoy_admin: Path | None = Field(
        None,
        description="Unix socket of that Envoy's admin: choose what it has",
        examples=["/run/picker/admin.sock"],
    )
    config_file: Annotated[Path, AfterValidator(_readable_file)] | None = Field(
        None, description="policy: a YAML file, watched [built in]", examples=["policy.yaml"]
    )
    config_text: str | None = Field(
        None, description="the policy itself, as YAML", examples=["{apiVersion: …}"]
    )
    session_key: Annotated[SecretStr, AfterValidator(_long_enough)] | None = Field(
        None,
        description="signs session tokens [random]",
        examples=["0123456789abcdef"],
    )

    strict_bodies: bool = Field(
        default=False, description="400 for unreadable inference bodies", examples=["true"]
    )
    fallbacks: int = Field(
        0, ge=0, le=15, description="further endpoints in the answer, in order", examples=["1"]
    )
    read_usage: bool = Field(
        default=False, description="count the tokens that answers tell", examples=["true"]
    )
    echo_served: bool = Field(default=False, description="tell clients who served them", examples=["true"])

    replicas: int = Field(
        1, ge=1, le=64, description="active pickers of this pool, this one included", examples=["2"]
    )
    index_max: PositiveBytes = Field(
        ByteSize(256 * 2**20), description="memory of the index of prompt prefixes", examples=["256MiB"]
    )

    transport: Annotated[Literal["auto", "grpcio", "http2"], BeforeValidator(_lower)] = Field(
        "auto", description="gRPC server: http2 (our own) or grpcio [http2]", examples=["grpcio"]
    )
    secure_serving: bool = Field(default=True, description="TLS on the ext_proc port", examples=["false"])
    cert_path: Annotated[Path, AfterValidator(_certificate_folder)] | None = Field(
        None,
        description="folder of tls.crt and tls.key [self-signed]",
        examples=["/etc/picker/tls"],
    )

    client_ca: Annotated[Path, AfterValidator(_readable_file)] | None = Field(
        None,
        description="PEM file; ext_proc wants clients it signed",
        examples=["/etc/picker/clients.crt"],
    )

    metrics_interval: PositiveSeconds | None = Field(
        None, description="time between two scrapes [per dialect]", examples=["1s"]
    )
    metrics_idle_interval: PositiveSeconds = Field(
        4.0, description="the same while an endpoint has nothing new to tell, at most", examples=["4s"]
    )
    metrics_path: str | None = Field(
        None, pattern="^/", description="path of the metrics page [per dialect]", examples=["/metrics"]
    )
    metrics_target_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        None, description="port of the metrics page [per dialect]", examples=["8080"]
    )
    metrics_dialect: Annotated[Literal["auto", "ray_serve", "haproxy", "vllm"], BeforeValidator(_lower)] = (
        Field("auto", description="its names: auto, ray_serve, haproxy or vllm", examples=["ray_serve"])
    )

    decision_timeout: PositiveSeconds = Field(
        0.15, description="after it the simplest policy decides", examples=["150ms"]
    )
    drain_delay: Seconds = Field(5.0, description="still answering after SIGTERM", examples=["5s"])
    drain_timeout: Seconds = Field(300.0, description="then waiting for running requests", examples=["300s"])
    watchdog: Seconds = Field(10.0, description="a hang so long ends the process; 0: off", examples=["10s"])

    # No more than the gateway of docs/envoy.yaml buffers: what is longer passes by, and is not refused there.
    max_body: PositiveBytes = Field(
        ByteSize(64 * 2**20), description="body bytes held per request", examples=["64MiB"]
    )
    max_buffered: PositiveBytes = Field(
        ByteSize(512 * 2**20), description="body bytes held in all", examples=["512MiB"]
    )

    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        "info", description="debug, info, warning or error", examples=["info"]
    )
    log_format: Annotated[Literal["auto", "text", "json"], BeforeValidator(_lower)] = Field(
        "auto", description="text, json, or text on a terminal only", examples=["json"]
    )

    @model_validator(mode="after")
    def _own_ports(self) -> Self:
        seen: dict[int, str] = {}
        for name in ("grpc_port", "health_port", "metrics_port", *(("admin_port",) if self.admin else ())):
            port: int = getattr(self, name)
            if port and port in seen:
                raise SettingsError(
                    f"{variable(name)} is {port}, which is also {variable(seen[port])}; give it another port"
                )
            seen[port] = name
        return self

    @model_validator(mode="after")
    def _certificates_need_tls(self) -> Self:
        if self.client_ca is not None and not self.secure_serving:
            raise SettingsError(
                f"{variable('client_ca')} needs TLS, which {variable('secure_serving')}=false turns off;"
                " unset one"
            )
        return self

    @model_validator(mode="after")
    def _one_membership(self) -> Self:
        named = [name for name in MEMBERSHIP if getattr(self, name) is not None]
        if len(named) == 2 and named[0] in ENRICHED and named[1] in ENRICHING:  # noqa: PLR2004 - a pair
            return self
        if not named:
            choice = " or ".join(_example(name) for name in MEMBERSHIP)
            raise SettingsError(f"no endpoints: set {choice}")
        if len(named) > 1:
            both = " and ".join(variable(name) for name in named)
            raise SettingsError(f"{both} both name the endpoints; unset all but one")
        return self

    @model_validator(mode="after")
    def _one_policy(self) -> Self:
        if self.config_file is not None and self.config_text is not None:
            both = f"{variable('config_file')} and {variable('config_text')}"
            raise SettingsError(f"{both} both give the policy; unset one")
        return self

    @model_validator(mode="after")
    def _token_is_for_a_head(self) -> Self:
        if self.ray_token_file is not None and self.ray_head is None:
            raise SettingsError(
                f"{variable('ray_token_file')} is for a Ray head: set {_example('ray_head')}, or unset it"
            )
        return self

    @model_validator(mode="after")
    def _route_is_in_kubernetes(self) -> Self:
        if self.http_route is not None and all(getattr(self, name) is None for name in LEASED):
            choice = " or ".join(_example(name) for name in LEASED)
            raise SettingsError(
                f"{variable('http_route')} is for a pool in Kubernetes: set {choice}, or unset it"
            )
        return self

    @model_validator(mode="after")
    def _lease_has_a_name(self) -> Self:
        if self.leader_election and all(getattr(self, name) is None for name in LEASED):
            choice = " or ".join(_example(name) for name in LEASED)
            raise SettingsError(
                f"{variable('leader_election')} needs an object to be named after: set {choice}"
            )
        return self

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        if self.max_body > self.max_buffered:
            raise SettingsError(
                f"{variable('max_body')} ({self.max_body} bytes) is above {variable('max_buffered')} "
                f"({self.max_buffered} bytes); lower the first or raise the second"
            )
        return self


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def flag(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def default(name: str) -> str:
    """The default of a setting as an operator would write it; empty where it is not set."""
    value = Settings.model_fields[name].default
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, ByteSize):
        return f"{value / 2**20:g}MiB"
    if isinstance(value, float):
        return f"{value:g}s" if value >= 1 else f"{value * 1000:g}ms"
    return "" if value is None else str(value)


def _example(name: str) -> str:
    return f"{variable(name)}={_examples(name)[0]}"


def _examples(name: str) -> list[str]:
    field: FieldInfo = Settings.model_fields[name]
    return [str(example) for example in field.examples or ()]


def load(overrides: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings from the environment, with flags (by setting's name) going before.

    An empty variable or flag means: as if not set. Raises SettingsError.
    """
    overrides = overrides or {}
    environ = os.environ if environ is None else environ
    values = {name: environ.get(variable(name), "") for name in Settings.model_fields}
    for name, value in values.items():
        if _SERVICE_LINK.match(value):
            values[name] = ""
    values.update(overrides)
    try:
        return Settings.model_validate({name: value for name, value in values.items() if value.strip()})
    except ValidationError as error:
        raise SettingsError(_one_line(error.errors()[0], flags=overrides.keys())) from None


def _one_line(detail: ErrorDetails, flags: Container[str]) -> str:
    """Name the setting as it was given, the wrong part of its value, what is wrong, and a right one."""
    name = str(detail["loc"][0])
    given = flag(name) if name in flags else variable(name)
    wrong = ascii(str(detail["input"]))
    if len(wrong) > _SHOWN:
        wrong = wrong[:_SHOWN] + "…"
    reason = detail["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
    separator = " " if given.startswith("--") else "="
    return f"{given} is {wrong}: {reason}; for example {given}{separator}{_examples(name)[0]}"


# Kubernetes gives every container variables for each Service of its namespace, in the shape of Docker's
# links. A Service called `picker` makes PICKER_PORT, one called `picker-metrics` even PICKER_METRICS_PORT.
_SERVICE_LINK = re.compile(r"(?:tcp|udp|sctp)://", re.IGNORECASE)
_SERVICE_LINK_NAME = re.compile(
    r"PICKER_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables with our prefix that set nothing, each with the nearest name that does ("" if none is near).

    What Kubernetes sets for a Service whose name begins with ``picker`` is left out.
    """
    environ = os.environ if environ is None else environ
    known = [variable(name) for name in Settings.model_fields]
    unknown: dict[str, str] = {}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in known:
            continue
        if _SERVICE_LINK_NAME.fullmatch(name) or _SERVICE_LINK.match(environ[name]):
            continue
        stem = name.removeprefix(PREFIX).lower()
        near = difflib.get_close_matches(stem, Settings.model_fields, n=1, cutoff=0.7)
        unknown[name] = variable(near[0]) if near else ""
    return unknown


def with_hint(message: str, environ: Mapping[str, str] | None = None) -> str:
    """A message, and of the first unknown variable the one that was probably meant."""
    for name, nearest in unknown_variables(environ).items():
        if nearest:
            return f"{message} ({name} is not known; did you mean {nearest}?)"
    return message
