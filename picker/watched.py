"""Following what a file says: first at the start, then at each change."""

from __future__ import annotations

import asyncio
import logging
import stat
from typing import TYPE_CHECKING, Generic, TypeVar

from picker.strict_yaml import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.5
"""Seconds between two looks at the file; a change counts when it lasts from one look to the next."""

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """A file that is read again when it changes; while it cannot be used, the last good content stays.

    ``parse`` makes the content of the file's bytes; of a file that is too large it gets one byte more than
    :data:`~picker.strict_yaml.MOST_BYTES`. ``error`` is what ``parse`` raises, and what is raised where the
    file cannot be read: one line that names the file.

    The file is polled by its status: that needs no library, and works alike for writing in place, for
    replacing by rename, for the symlinks a Kubernetes ConfigMap is mounted by, and on network mounts.

    ``on_complaint`` is told why the file cannot be used, and "" when it can be again.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[bytes], T],
        error: type[Exception],
        *,
        interval: float = POLL_INTERVAL,
        on_complaint: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._error = error
        self._complain = on_complaint
        self._interval = interval
        self._watch = Watch(path, parse, error)

    async def contents(self) -> AsyncGenerator[T, None]:
        """Give the content at first and after every change; never the same twice in a row.

        Each distinct mistake in the file is logged once. Raises ``error`` instead of the first content.
        """
        # Whatever touches the file runs in a thread: a mount can hang, and a long file takes a while.
        last = await asyncio.to_thread(self._watch.first)
        yield last
        complaint = ""
        while True:
            await asyncio.sleep(self._interval)
            try:
                content = await asyncio.to_thread(self._watch.look)
            except self._error as error:
                if str(error) != complaint:
                    complaint = str(error)
                    self._complain(complaint)
                    log.error(  # noqa: TRY400  a mistake in a file, not one of ours: no traceback
                        "a watched file cannot be used; its last good content stays",
                        extra={"fields": {"error": complaint}},
                    )
                continue
            if content is None:
                continue
            if complaint:
                complaint = ""
                self._complain("")
                log.info("a watched file can be used again", extra={"fields": {"file": str(self._path)}})
            if content != last:
                last = content
                yield content


class Watch(Generic[T]):
    """Tells from the file's status when to read it again. Blocks; see :class:`WatchedFile`."""

    def __init__(self, path: Path, parse: Callable[[bytes], T], error: type[Exception]) -> None:
        self._path = path
        self._parse = parse
        self._error = error
        self._read: object = None
        """The status at the last read."""
        self._seen: object = None
        """The status at the last look."""

    def first(self) -> T:
        """Read without waiting for a second look, which reads once more. Raises ``error``."""
        self._seen = self._status()
        content = self._load()
        self._read = None
        return content

    def look(self) -> T | None:
        """The content if the file changed since the last read and has settled. Raises ``error``.

        A file that is being written can be valid and short of half its members, so it is read only
        once its status is the same in two looks. That there is an interval between the last write
        and the read also makes up for file systems with coarse times.
        """
        status = self._status()
        settled, self._seen = status == self._seen, status
        return self._load() if settled and status != self._read else None

    def _load(self) -> T:
        try:
            raw = self._bytes()
        except OSError as error:
            self._read = None  # may be better next time, though the status is the same
            raise self._error(f"{self._path} cannot be read: {error.strerror or error}") from None
        self._read = self._seen
        return self._parse(raw)

    def _bytes(self) -> bytes:
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
