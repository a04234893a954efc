"""gRPC messages out of a stream of bytes that is cut anywhere."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from picker.serving.http2.frames import MESSAGE_PREFIX, PREFIX_SIZE
from picker.serving.http2.heads import Status

if TYPE_CHECKING:
    from picker.serving.contract import Buffer


_RESERVE_LEAST = 64 * 1024
_RESERVE_FACTOR = 4


class MessageError(Exception):
    """The stream cannot go on; the client is told ``status`` and the text."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class Gathering:
    """Bytes reserved for unfinished messages, over all streams that share this account, and their bound."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.held = 0
        self.limit = limit


class MessageReader:
    """Reads the messages of one stream."""

    __slots__ = ("_account", "_body", "_limit", "_prefix", "_reserved", "missing")

    def __init__(self, limit: int, account: Gathering) -> None:
        self._limit = limit
        self._account = account
        self._prefix = b""
        self._body: BytesIO | None = None
        self._reserved = 0  # how large the buffer is, at most the message
        self.missing = 0
        """Bytes of the message begun that are still to come; 0 where that is not known yet."""

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
                part = view[at : at + self.missing]
                self.extend(part)
                at += len(part)
                if not self.missing:
                    messages.append(self._take(self._body))
        return messages

    def extend(self, part: Buffer) -> None:
        """Take fewer bytes than are ``missing``: ``feed`` for where much comes. Raises ``MessageError``."""
        if self._body is not None:
            if self._body.tell() + len(part) > self._reserved:
                self._reserve(self._body, len(part))
            self.missing -= self._body.write(part)

    def release(self) -> None:
        """Give up what was gathered."""
        if self._body is not None:
            self._account.held -= self._reserved
            self._body = None

    def _begin(self, view: memoryview, at: int) -> int:
        """Read a prefix, as far as it is there; returns where it ends."""
        stop = at + PREFIX_SIZE - len(self._prefix)
        self._prefix += view[at:stop]
        if len(self._prefix) < PREFIX_SIZE:
            return len(view)
        self.missing = check_prefix(self._prefix, 0, self._limit)
        self._prefix = b""
        # Unlike other buffers it gives itself away as bytes without a copy.
        self._body = BytesIO()
        self._reserved = 0
        return stop

    def _reserve(self, body: BytesIO, coming: int) -> None:
        """Make the buffer larger: in few steps, but not by much more than the client has proved to send."""
        have = body.tell()
        wanted = max(_RESERVE_FACTOR * have, have + coming, _RESERVE_LEAST)
        whole = have + self.missing
        # All of it from its half on: a small last step would make BytesIO reserve more than the whole.
        wanted = wanted if 2 * wanted < whole else whole
        account = self._account
        account.held += wanted - self._reserved
        self._reserved = wanted
        if account.held > account.limit:
            raise MessageError(Status.RESOURCE_EXHAUSTED, "too many unfinished messages")
        if wanted:
            body.seek(wanted - 1)
            body.write(b"\0")
            body.seek(have)

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
