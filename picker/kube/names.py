"""Names of objects as settings give them."""

from __future__ import annotations

import re
from typing import NamedTuple

from picker.addresses import is_port

MOST_PORTS = 8
"""Of a pod, as an InferencePool can have."""

_LONGEST = 253
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NAMESPACE = re.compile(_LABEL, re.ASCII)
# All that label selectors are written with; what it means is for the API server to say.
_SELECTOR = re.compile(r"[-A-Za-z0-9_./=!,() ]+", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,5}", re.ASCII)
_PORT = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,13}[a-z0-9])?", re.ASCII)


class ObjectName(NamedTuple):
    """An object of a namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ServicePort(NamedTuple):
    """A Service, and which of its ports by name or number; empty: its only one."""

    service: ObjectName
    port: str = ""

    def __str__(self) -> str:
        return f"{self.service}:{self.port}" if self.port else str(self.service)


def parse_object_name(text: str) -> ObjectName:
    """Read ``namespace/name``. Raises ValueError."""
    namespace, slash, name = text.partition("/")
    if not slash or len(name) > _LONGEST or not (_NAMESPACE.fullmatch(namespace) and _NAME.fullmatch(name)):
        raise ValueError("should be namespace/name")
    return ObjectName(namespace, name)


def parse_service_port(text: str) -> ServicePort:
    """Read ``namespace/name`` or ``namespace/name:port``. Raises ValueError."""
    service, colon, port = text.partition(":")
    try:
        name = parse_object_name(service)
    except ValueError:
        raise ValueError("should be namespace/name or namespace/name:port") from None
    if colon and not _PORT.fullmatch(port):
        raise ValueError("should have the name or number of a port after the colon")
    return ServicePort(name, port)


class PodSelector(NamedTuple):
    """The pods of a namespace with certain labels, and the ports that each serves on."""

    namespace: str
    selector: str
    ports: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.selector}:{','.join(map(str, self.ports))}"


def parse_pod_selector(text: str) -> PodSelector:
    """Read ``namespace/label=value,label=value:port,port``. Raises ValueError."""
    pods, _, ports = text.rpartition(":")
    namespace, _, selector = pods.partition("/")
    numbers = [int(port) for port in ports.split(",") if _NUMBER.fullmatch(port.strip())]
    known = _NAMESPACE.fullmatch(namespace) and _SELECTOR.fullmatch(selector)
    if not known or len(numbers) != ports.count(",") + 1 or not all(map(is_port, numbers)):
        raise ValueError("should be namespace/label=value,…:port,…")
    if len(numbers) > MOST_PORTS or len(set(numbers)) != len(numbers):
        raise ValueError(f"should have 1 to {MOST_PORTS} different ports")
    return PodSelector(namespace, selector, tuple(numbers))
