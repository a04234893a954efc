"""Names of objects as settings give them."""

from __future__ import annotations

import re
from typing import NamedTuple

_LONGEST = 253
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NAMESPACE = re.compile(_LABEL, re.ASCII)
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
