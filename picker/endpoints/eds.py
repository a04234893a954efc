"""The pool as a file for Envoy's endpoint discovery (EDS): Envoy and the picker agree on who is in it.

Envoy takes the picker's choice only if it knows the endpoint. So a new one is written first and put up for
choosing when Envoy has it, and one that leaves is no longer chosen before it is taken out of the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import orjson

from picker.addresses import parse_host_port

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from picker.endpoints.endpoint import Endpoint, Source

log = logging.getLogger(__name__)

RESOURCE = "pool"
"""The name by which the clusters of the configuration ask for these endpoints."""
CONFIRM_TIMEOUT = 2.0
"""Seconds Envoy is given to take over a new file. One that is not running has nothing to be waited for."""
CONFIRM_INTERVAL = 0.02
LEAVE_AFTER = 2.0
"""Seconds an endpoint stays in the file after it was chosen last: Envoy asks for the endpoint only after the
whole decision, and once more for each retry."""
LOOK_INTERVAL = 2.0
"""Seconds between two looks at the file, which is written again where it could not be or is not ours."""
_TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


class EnvoyAdmin(Protocol):
    """The part of Envoy's admin interface that tells who is in a cluster."""

    async def hosts(self) -> frozenset[str] | None:
        """``ip:port`` of all hosts of the pool; None if Envoy cannot be asked."""


class EdsFile:
    """Writes the file, as a whole and at once, as Envoy's file subscription wants it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = 0
        self._written: object = None

    def is_ours(self) -> bool:
        """Whether it is as it was written last."""
        try:
            return _status(self._path) == self._written
        except OSError:
            return False

    def write(self, addresses: Iterable[str]) -> None:
        """Replace the file by one with these ``ip:port``. Raises OSError."""
        self._version += 1
        document = {
            "version_info": f"{os.getpid()}-{self._version}",
            "resources": [
                {
                    "@type": _TYPE,
                    "cluster_name": RESOURCE,
                    "endpoints": [{"lb_endpoints": [_endpoint(address) for address in addresses]}],
                }
            ],
        }
        # Envoy watches for the move: it would read half of a file that is written in place.
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(orjson.dumps(document))
            self._written = _status(Path(name))
            Path(name).replace(self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _status(path: Path) -> object:
    """What differs in another file. Not its inode alone: that of a removed file is given to a new one."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _endpoint(address: str) -> dict[str, object]:
    host, port = parse_host_port(address)
    return {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}


class PublishedSource:
    """A source whose sets are in force only when Envoy has them (see the module)."""

    def __init__(
        self, source: Source, file: EdsFile, admin: EnvoyAdmin | None, *, leave_after: float = LEAVE_AFTER
    ) -> None:
        self._source = source
        self._file = file
        self._admin = admin
        self._leave_after = leave_after
        self._written: tuple[str, ...] = ()
        self._told = False

    async def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See :class:`picker.endpoints.endpoint.Source`."""
        leaving: asyncio.Task[None] | None = None
        try:
            async with contextlib.aclosing(self._source.sets()) as sets:
                async for endpoints in sets:
                    if leaving is not None:
                        leaving.cancel()
                    wanted = tuple(endpoint.address for endpoint in endpoints)
                    await self._publish(tuple(dict.fromkeys((*wanted, *self._written))))
                    yield endpoints
                    leaving = asyncio.create_task(self._keep(wanted), name="eds")
        finally:
            if leaving is not None:
                leaving.cancel()

    async def _publish(self, addresses: tuple[str, ...]) -> None:
        """Write, and wait until Envoy has read it."""
        if not self._write(addresses) or self._admin is None:
            return
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT):
                while True:
                    hosts = await self._admin.hosts()
                    if hosts is None or hosts.issuperset(addresses):
                        return
                    await asyncio.sleep(CONFIRM_INTERVAL)
        except TimeoutError:
            fields = {"endpoints": len(addresses), "waited_s": CONFIRM_TIMEOUT}
            log.warning(
                "Envoy did not take over the endpoints; it balances by itself till then",
                extra={"fields": fields},
            )

    async def _keep(self, wanted: tuple[str, ...]) -> None:
        """Take out those that left, after a while; then see to it that the file is there and is ours.

        A disk that is full now may not be later, and temporary folders are tidied up.
        """
        if set(wanted) != set(self._written):
            await asyncio.sleep(self._leave_after)
        while True:
            self._write(wanted)
            await asyncio.sleep(LOOK_INTERVAL)

    def _write(self, addresses: tuple[str, ...]) -> bool:
        if set(addresses) == set(self._written) and self._file.is_ours():
            return False
        try:
            self._file.write(addresses)
        except OSError as error:
            if not self._told:
                self._told = True
                log.error(  # noqa: TRY400 - one line says it all
                    "the endpoints cannot be written for Envoy; it keeps those it has",
                    extra={"fields": {"error": str(error)}},
                )
            return False
        self._told = False
        self._written = addresses
        return True
