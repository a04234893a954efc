"""A watched file of endpoints."""

from __future__ import annotations

import asyncio
import logging
import stat
from typing import TYPE_CHECKING

from picker.endpoints.endpoint import Endpoint, EndpointsError
from picker.endpoints.file_format import MOST_BYTES, parse_endpoints

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

__all__ = ["EndpointsError", "FileSource"]

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.5
"""Seconds between two looks at the file; a change counts when it lasts from one look to the next."""


class FileSource:
    """The members listed in ``PICKER_ENDPOINTS_FILE``.

    The file is polled by its status: that needs no library, and works alike for writing in place, for
    replacing by rename, for the symlinks a Kubernetes ConfigMap is mounted by, and on network mounts.
    """

    def __init__(
        self, path: Path, *, metrics_target_port: int | None = None, interval: float = POLL_INTERVAL
    ) -> None:
        self._path = path
        self._metrics_port = metrics_target_port
        self._interval = interval

    async def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See :class:`picker.endpoints.endpoint.Source`."""
        # Whatever touches the file runs in a thread: a mount can hang, and a long list takes a while.
        watch = _Watch(self._path, self._metrics_port)
        last = await asyncio.to_thread(watch.first)
        yield last
        complaint = ""
        while True:
            await asyncio.sleep(self._interval)
            try:
                endpoints = await asyncio.to_thread(watch.look)
            except EndpointsError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    log.error(  # noqa: TRY400  a mistake in a file, not one of ours: no traceback
                        "endpoints file cannot be used; the last good set stays",
                        extra={"fields": {"error": complaint, "endpoints": len(last)}},
                    )
                continue
            if endpoints is None:
                continue
            if complaint:
                complaint = ""
                log.info("endpoints file can be used again", extra={"fields": {"file": str(self._path)}})
            if endpoints != last:
                last = endpoints
                yield endpoints


class _Watch:
    """Tells from the file's status when to read it again."""

    def __init__(self, path: Path, metrics_port: int | None) -> None:
        self._path = path
        self._metrics_port = metrics_port
        self._read: object = None
        """The status at the last read."""
        self._seen: object = None
        """The status at the last look."""

    def first(self) -> tuple[Endpoint, ...]:
        """Read without waiting for a second look, which reads once more. Raises EndpointsError."""
        self._seen = self._status()
        endpoints = self._load()
        self._read = None
        return endpoints

    def look(self) -> tuple[Endpoint, ...] | None:
        """The endpoints if the file changed since the last read and has settled. Raises EndpointsError.

        A file that is being written can be valid and short of half its members, so it is read only
        once its status is the same in two looks. That there is an interval between the last write
        and the read also makes up for file systems with coarse times.
        """
        status = self._status()
        settled, self._seen = status == self._seen, status
        return self._load() if settled and status != self._read else None

    def _load(self) -> tuple[Endpoint, ...]:
        try:
            raw = self._content()
        except OSError as error:
            self._read = None  # may be better next time, though the status is the same
            raise EndpointsError(f"{self._path} cannot be read: {error.strerror or error}") from None
        self._read = self._seen
        return parse_endpoints(raw, str(self._path), metrics_target_port=self._metrics_port)

    def _content(self) -> bytes:
        if not stat.S_ISREG(self._path.stat().st_mode):  # a pipe would block, a device never end
            raise OSError("it is not a regular file")
        with self._path.open("rb") as file:
            return file.read(MOST_BYTES + 1)

    def _status(self) -> object:
        """What differs when the file was written or replaced; of a missing file why it is."""
        try:
            status = self._path.stat()
        except OSError as error:
            return error.errno
        return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)
