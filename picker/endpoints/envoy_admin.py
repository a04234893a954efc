"""Asks a running Envoy which hosts it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
import orjson

from picker.addresses import HostPort

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT = 1.0
"""Seconds; Envoy's admin interface answers from its main thread, within milliseconds."""


class UnixSocketAdmin:
    """Envoy's admin interface behind a Unix socket (see :class:`picker.endpoints.eds.EnvoyAdmin`)."""

    def __init__(self, socket: Path, cluster: str) -> None:
        self._socket = socket
        self._cluster = cluster

    async def hosts(self) -> frozenset[str] | None:
        """``ip:port`` of the cluster's hosts; None if Envoy cannot be asked."""
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(str(self._socket)),
                    timeout=aiohttp.ClientTimeout(total=_TIMEOUT),
                ) as session,
                session.get(
                    "http://envoy/clusters", params={"format": "json", "filter": f"^{self._cluster}$"}
                ) as response,
            ):
                answer = orjson.loads(await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError):
            return None
        return frozenset(
            str(HostPort(place["address"], place["port_value"]))
            for cluster in answer.get("cluster_statuses", ())
            if cluster["name"] == self._cluster
            for host in cluster.get("host_statuses", ())
            if (place := host["address"].get("socket_address"))
        )
