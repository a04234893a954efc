"""gRPC messages out of a stream of bytes that is cut anywhere."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from picker.serving.http2.frames import MESSAGE_PREFIX, PREFIX_SIZE
from picker.serving.http2.heads import Status

if TYPE_CHECKING:
    from picker.serving.contract import Buffer


class MessageError(Exception):
    """The stream cannot go on; the client is told ``status`` and the text."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class Gathering:
    """Bytes of unfinished messages, over all streams that share this account, and how many there may be."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.held = 0
        self.limit = limit


class MessageReader:
    """Reads the messages of one stream."""

    __slots__ = ("_account", "_body", "_limit", "_missing", "_prefix")

    def __init__(self, limit: int, account: Gathering) -> None:
        self._limit = limit
        self._account = account
        self._prefix = b""
        self._body: BytesIO | None = None
        self._missing = 0

    @property
    def partial(self) -> bool:
        """Whether a message has begun and not ended."""
        return self._body is not None or bool(self._prefix)

    def feed(self, part: Buffer) -> list[bytes]:
        """Take the next bytes; returns the messages they complete. Raises ``MessageError``."""
        view = memoryview(part)
        messages = []
        at = 0
        while at < len(view):
            if self._body is None:
                at = self._begin(view, at)
            if self._body is not None:
                at = self._gather(self._body, view, at)
                if not self._missing:
                    messages.append(self._take(self._body))
        return messages

    def release(self) -> None:
        """Give up what was gathered."""
        if self._body is not None:
            self._account.held -= self._body.tell()
            self._body = None

    def _begin(self, view: memoryview, at: int) -> int:
        """Read a prefix, as far as it is there; returns where it ends."""
        stop = at + PREFIX_SIZE - len(self._prefix)
        self._prefix += view[at:stop]
        if len(self._prefix) < PREFIX_SIZE:
            return len(view)
        self._missing = check_prefix(self._prefix, 0, self._limit)
        self._prefix = b""
        # Unlike other buffers it grows without a copy and gives itself away as bytes without one. It
        # is not made as large as the prefix claims: that is for the client to prove.
        self._body = BytesIO()
        return stop

    def _gather(self, body: BytesIO, view: memoryview, at: int) -> int:
        taken = body.write(view[at : at + self._missing])
        self._missing -= taken
        self._account.held += taken
        if self._missing and self._account.held > self._account.limit:
            raise MessageError(Status.RESOURCE_EXHAUSTED, "too many unfinished messages")
        return at + taken

    def _take(self, body: BytesIO) -> bytes:
        self.release()
        return body.getvalue()


def check_prefix(data: Buffer, at: int, limit: int) -> int:
    """The length of the message whose prefix is at ``at``. Raises ``MessageError``."""
    compressed, length = MESSAGE_PREFIX.unpack_from(data, at)
    if compressed:
        raise MessageError(Status.UNIMPLEMENTED, "compressed messages are not supported")
    if length > limit:
        raise MessageError(
            Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes is larger than the limit of {limit}"
        )
    return int(length)
