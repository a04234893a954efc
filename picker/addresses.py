"""``host:port`` as text and as its parts."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

LAST_PORT = 65535

_SHOWN = 80
"""Characters of a wrong address that an error repeats."""
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
# The last label of a name is never all digits (RFC 1123 2.1), so that no mistyped IPv4 address passes.
_NAME = re.compile(rf"(?:{_LABEL}\.)*(?![0-9]+\.?\Z){_LABEL}\.?", re.ASCII)
_LONGEST_NAME = 254
_SRV_PREFIX = "srv+"
_SRV_NAME = re.compile(r"_[^.:]+\._(?:tcp|udp)\.[^:]+", re.ASCII | re.IGNORECASE)
_BRACKETED = re.compile(r"\[([^\[\]]*)\](?::(.*))?", re.DOTALL)


class AddressError(ValueError):
    """Not an address; the text is one line that names it and the mend."""


class HostPort(NamedTuple):
    """``host`` is an IP address in its usual spelling, without brackets, or a DNS name."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class SrvName(NamedTuple):
    """The name of DNS records (SRV) that tell hosts and their ports."""

    name: str

    def __str__(self) -> str:
        return f"{_SRV_PREFIX}{self.name}"


def parse_member(text: str) -> HostPort | SrvName:
    """Read ``host:port``, or an SRV name: ``_http._tcp.name``, ``srv+name``. Raises AddressError."""
    bare = text.removeprefix(_SRV_PREFIX)
    if bare != text or _SRV_NAME.fullmatch(text):
        name = _name(bare)
        if not name or parse_ip(name):
            raise AddressError(
                f"{_shown(text)} is not the name of an SRV record, e.g. _http._tcp.example.com"
            )
        return SrvName(name)
    return parse_host_port(text)


def parse_host_port(text: str) -> HostPort:
    """Read ``10.0.0.1:8000``, ``[fd00::1]:8000`` or ``name:8000``. Raises AddressError."""
    host, port = _split(text)
    if port is None or host is None:
        raise AddressError(f"{_shown(text)} is not host:port, e.g. {_example(text)}:8000")
    return HostPort(host, port)


def parse_host(text: str, default_port: int) -> HostPort:
    """Read a host with or without a port; a bare IPv6 address needs no brackets. Raises AddressError."""
    address = parse_ip(text)
    if address:
        return HostPort(address, default_port)
    host, port = _split(text if _has_port(text) else f"{text}:{default_port}")
    if port is None or host is None:
        raise AddressError(f"{_shown(text)} is not host or host:port, e.g. {_example(text)}:8000")
    return HostPort(host, port)


def parse_ip(text: str) -> str:
    """An IP address in its usual spelling; empty for everything else.

    Addresses with a scope (``fe80::1%eth0``) are none: no gateway could send a request there.
    """
    try:
        return "" if "%" in text else str(ipaddress.ip_address(text))
    except ValueError:
        return ""


def is_port(number: int) -> bool:
    """Whether something can listen there."""
    return 1 <= number <= LAST_PORT


def _has_port(text: str) -> bool:
    bracketed = _BRACKETED.fullmatch(text)
    return bracketed[2] is not None if bracketed else ":" in text


def _split(text: str) -> tuple[str | None, int | None]:
    """Host and port, None in the place of one that is not valid."""
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed:
        host, port = bracketed[1], bracketed[2] or ""
        name = parse_ip(host) if ":" in host else ""
    else:
        host, _, port = text.rpartition(":")
        name = "" if ":" in host else parse_ip(host) or _name(host)
    # Only ASCII digits: str.isdigit takes those of all scripts, and int() even spaces and underscores.
    number = int(port) if re.fullmatch(r"[0-9]{1,5}", port) else 0
    return name or None, number if is_port(number) else None


def _name(text: str) -> str:
    if len(text) > _LONGEST_NAME or not _NAME.fullmatch(text):
        return ""
    return text.lower()


def _example(text: str) -> str:
    """The host that was probably meant, so that the error shows the mend and not some address."""
    host = parse_ip(text.strip("[]"))
    if host:
        return f"[{host}]" if ":" in host else host
    return _split(f"{text.rpartition(':')[0] or text}:1")[0] or "10.0.0.1"


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"
