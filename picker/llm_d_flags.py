"""The flags of the llm-d endpoint picker, so that its deployments start with this one's image.

Those that mean a setting set it, those without meaning here are accepted and told. What both pickers
call alike (``--grpc-port``, ``--config-file``, …) is in :mod:`picker.settings`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ALIASES: Final = {
    "grpc-health-port": "health_port",
    "refresh-metrics-interval": "metrics_interval",
    "ha-enable-leader-election": "leader_election",
}
"""Flags by the setting they mean."""

POOL: Final = ("pool-name", "pool-namespace", "endpoint-selector", "endpoint-target-ports")
"""Flags that together mean a setting."""

ASKS_FOR_AUTH: Final = "metrics-endpoint-auth"
"""The flag by which that picker, unless told otherwise, asks who reads its metrics."""

_OWN_METRICS = "the metrics page is plain HTTP; see PICKER_HTTP_AUTH and PICKER_BIND"
_OWN_LOGS = "see PICKER_LOG_LEVEL and PICKER_LOG_FORMAT"
_OWN_TLS = "TLS is 1.2 or later with gRPC's ciphers"
_OWN_LIMITS = "messages are bounded by PICKER_MAX_BODY"

IGNORED: Final = {
    "pool-group": "pools are those of inference.networking.k8s.io",
    "disable-endpoint-subset-filter": "the gateway's subset is always heeded",
    "emit-endpoint-scores": "no scores are sent to the gateway",
    "enable-cert-reload": "certificates are always reloaded",
    "tls-min-version": _OWN_TLS,
    "tls-cipher-suites": _OWN_TLS,
    "health-checking": "health is always on both ports",
    "refresh-prometheus-metrics-interval": "gauges are read when the page is asked for",
    "metrics-staleness-threshold": "old pages are discounted step by step",
    "metrics-cert-dir": _OWN_METRICS,
    "metrics-client-ca-file": _OWN_METRICS,
    "grpc-max-recv-msg-size": _OWN_LIMITS,
    "grpc-max-send-msg-size": _OWN_LIMITS,
    "enable-grpc-stream-metrics": "streams are always counted",
    "enable-pprof": "there is no Go to be profiled",
    "tracing": "the standard variables OTEL_… turn traces on",
    "allow-experimental-plugins": "a policy may name every plugin there is",
    "v": _OWN_LOGS,
    "zap-devel": _OWN_LOGS,
    "zap-encoder": _OWN_LOGS,
    "zap-log-level": _OWN_LOGS,
    "zap-stacktrace-level": _OWN_LOGS,
    "zap-time-encoding": _OWN_LOGS,
}
"""Flags by what is so instead."""

# A single dash and more than one letter; -v3 is the flag v with its value.
_SINGLE_DASH: Final = re.compile(r"-(?!v\d)[A-Za-z][A-Za-z0-9_-]+(?==|$)")


class FlagsError(Exception):
    """Flags do not go together; one line."""


def with_double_dashes(args: Iterable[str]) -> list[str]:
    """Go takes ``-grpc-port`` for ``--grpc-port``."""
    return [f"-{arg}" if _SINGLE_DASH.match(arg) else arg for arg in args]


def parameter(flag: str) -> str:
    """The name that a flag's value is passed by."""
    return flag.replace("-", "_")


def asks_for_auth(given: Mapping[str, str]) -> bool:
    """Whether the flags, by :func:`parameter`, ask for tokens of those who read metrics."""
    return given.get(parameter(ASKS_FOR_AUTH), "false").strip().lower() not in ("false", "f", "0")


def translate(
    given: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """From all flags, by :func:`parameter`, to those of settings; and the ignored ones with the reason.

    Raises FlagsError.
    """
    settings = dict(given)
    settings.pop(parameter(ASKS_FOR_AUTH), None)
    _translate_pool(settings, os.environ if environ is None else environ)
    for flag, setting in ALIASES.items():
        value = settings.pop(parameter(flag), None)
        if value is None:
            continue
        _set_once(settings, setting, value, flag)
    ignored = {flag: why for flag, why in IGNORED.items() if settings.pop(parameter(flag), None) is not None}
    return settings, ignored


def _translate_pool(settings: dict[str, str], environ: Mapping[str, str]) -> None:
    """Put the settings in the place of the flags that name an InferencePool, or pods by their labels."""
    name, namespace, selector, ports = (settings.pop(parameter(flag), "").strip() for flag in POOL)
    namespace = namespace or environ.get("NAMESPACE", "") or "default"
    if selector or ports:
        if not (selector and ports):
            raise FlagsError("--endpoint-selector and --endpoint-target-ports need each other; give both")
        if name:
            raise FlagsError(
                "--pool-name and --endpoint-selector both name the endpoints; give one of the two"
            )
        _set_once(settings, "pods", f"{namespace}/{selector}:{ports}", "endpoint-selector")
    elif name:
        _set_once(settings, "pool", f"{namespace}/{name}", "pool-name")


def _set_once(settings: dict[str, str], setting: str, value: str, flag: str) -> None:
    if setting in settings:
        own = setting.replace("_", "-")
        raise FlagsError(f"--{flag} and --{own} are the same setting; give one of the two")
    settings[setting] = value
