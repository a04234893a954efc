"""Reading one HTTP/1 answer from whatever bytes a server sends. No I/O.

Why not a library: a page is asked for very often, and of an answer only the status, the framing and the
body count here. Made for one GET at a time on a connection; the framing rules are those of RFC 9112,
and what breaks them, or goes beyond a bound, ends the answer and with it the connection.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from isal import isal_zlib  # inflates two to three times as fast as zlib

if TYPE_CHECKING:
    from collections.abc import Iterator

OK: Final = 200
_LONGEST_HEAD: Final = 32 * 1024
"""Bytes of status line and headers, or of trailers."""
_LONGEST_LINE: Final = 1024
"""Bytes of a line that tells a chunk's size."""
_ERROR_BODY: Final = 64 * 1024
"""As much of an answer other than 200 is read; its text tells why."""
_STEP: Final = 512 * 1024
"""Decompressed bytes made at a time, so that a compression bomb neither fills memory nor stalls the loop.
Most pages are one step: the next would be another turn of the loop, and one more copy of the page."""

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?(?:\r\n|\Z)")
_TELLING: Final = re.compile(
    rb"\r\n(content-length|transfer-encoding|content-encoding|connection):[ \t]*+([^\r]*)", re.IGNORECASE
)
"""The headers that say how to read on; what else there is may be what it likes."""
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")
_TRAILER: Final = 8
"""Bytes at the end of a gzip stream."""
_INTERIM: Final = (100, 102, 103)
_BODILESS: Final = (204, 304)


def _headers_of(head: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Those that tell how to read on, in lower case."""
    for name, value in _TELLING.findall(head):
        yield name.lower(), value.strip().lower()


class BrokenError(ValueError):
    """No answer by the rules; the text says why in a few words of our own."""


class TooLargeError(ValueError):
    """A page beyond the bound."""


class Imprint(NamedTuple):
    """What tells two gzip streams apart without decompressing them (RFC 1952 2.3).

    ``size`` in bytes, and the ``trailer``: CRC-32 and length of what is compressed. The header is not looked
    at, since it has the time of compressing.
    """

    size: int
    trailer: bytes


class Response:
    """One answer, fed with bytes as they come; a 200 has at most ``limit`` bytes of body, decompressed.

    ``known`` is the imprint of the answer before. A body that bears it is not decompressed: ``repeated`` says
    so, and there is no body.
    """

    __slots__ = (
        "_chunked",
        "_cut",
        "_ending_chunk",
        "_head",
        "_held",
        "_inflater",
        "_known",
        "_left",
        "_limit",
        "_packed",
        "_pieces",
        "_rest",
        "_size",
        "_trailer",
        "_trailers",
        "_undecoded",
        "_whole",
        "begun",
        "repeated",
        "reusable",
        "status",
    )

    def __init__(self, limit: int, known: Imprint | None = None) -> None:
        self.status = 0
        """0 until the headers are here."""
        self.begun = False
        """Whether any byte of an answer came."""
        self.reusable = False
        """Whether the connection can carry a further request; of use when the answer is complete."""
        self.repeated = False
        """Whether the body is the known one; of use when the answer is complete."""
        self._limit = limit
        self._known = known
        self._head = b""
        self._left: int | None = None
        """Bytes that are to come, of the body or of the present chunk; None: up to the connection's end."""
        self._chunked = self._ending_chunk = self._trailers = self._whole = False
        self._rest = b""
        self._inflater: isal_zlib.Decompress | None = None
        self._undecoded = b""
        self._packed = 0
        """Bytes of the compressed body so far."""
        self._trailer = b""
        self._held: list[bytes] = []
        """The compressed body, as long as it may be the known one; so it is never longer than that."""
        self._pieces: list[bytes] = []
        self._size = 0
        self._cut = False
        """Whether enough of an error's body is here."""

    @property
    def pending(self) -> bool:
        """Whether there is something left to be decompressed: call ``feed`` again before giving it more."""
        return bool(self._undecoded)

    @property
    def complete(self) -> bool:
        """Whether all of the answer is here that will be read."""
        return self._whole and not self._undecoded

    @property
    def imprint(self) -> Imprint | None:
        """That of the compressed body when it is complete; None where it is not compressed."""
        return None if self._inflater is None else Imprint(self._packed, self._trailer)

    def body(self) -> bytes:
        """The body. Raises BrokenError where its compression has no end."""
        if self._inflater is not None and not (self._inflater.eof or self._cut or self.repeated):
            raise BrokenError("a gzip stream that is cut off")
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    def feed(self, data: bytes = b"") -> bool:
        """Take what came; returns whether it is complete. Raises BrokenError and TooLargeError."""
        if self._undecoded:
            self._inflate(b"")
        if data:
            self.begun = True
            if not self.status:
                data = self._read_head(data)
            if self.status and (data or not self._left):
                self._read_body(data)
                if self._whole and self._held:
                    self._compare()
        return self.complete

    def end(self) -> bool:
        """Take the end of the connection; returns whether that completes the answer."""
        if self.status and self._left is None and not self._chunked:
            self._whole = True
        return self.complete

    # Head

    def _read_head(self, data: bytes) -> bytes:
        """Read the head when it is whole; gives what follows it."""
        data = self._head + data
        while True:
            head, blank, rest = data.partition(b"\r\n\r\n")
            if not blank or len(head) > _LONGEST_HEAD:
                break
            if self._understand(head):
                self._head = b""
                return rest
            data = rest
        if len(head) > _LONGEST_HEAD:
            raise BrokenError("a head that is too long")
        if not b"HTTP/1.".startswith(data[:7]):
            raise BrokenError("not HTTP/1")
        self._head = data
        return b""

    def _understand(self, head: bytes) -> bool:
        """Note what the head says; False where the real answer is still to come."""
        match = _STATUS_LINE.match(head)
        if match is None:
            raise BrokenError("not HTTP/1")
        status = int(match[2])
        if status in _INTERIM:
            return False
        if status < OK:
            raise BrokenError("an upgrade that was not asked for")
        told: dict[bytes, bytes] = {}
        for name, value in _headers_of(head):
            told[name] = told[name] + b"," + value if name in told else value
        self.status = status
        self._frame(told, persistent=match[1] == b"1")
        self._decode_by(told.get(b"content-encoding", b""))
        if status != OK or self._inflater is None or (self._left is None and not self._chunked):
            self._known = None  # what ends with its connection is not held back until there is no more turn
        if status != OK:
            self._limit = _ERROR_BODY
        elif self._inflater is None and self._left is not None and self._left > self._limit:
            raise TooLargeError
        return True

    def _frame(self, told: dict[bytes, bytes], *, persistent: bool) -> None:
        """Find out where the body ends (RFC 9112 6.3), and whether the connection stays (9.3)."""
        options = told.get(b"connection", b"")
        self.reusable = b"close" not in options if persistent else b"keep-alive" in options
        coding, length = told.get(b"transfer-encoding"), told.get(b"content-length")
        if self.status in _BODILESS:
            self._left = 0
        elif coding is not None:
            if coding != b"chunked":
                raise BrokenError("a transfer coding that was not asked for")
            self._chunked, self._left = True, 0
            self.reusable = self.reusable and length is None
        elif length is not None:
            lengths = {one.strip() for one in length.split(b",")}
            if len(lengths) != 1 or not _LENGTH.fullmatch(next(iter(lengths))):
                raise BrokenError("a length that is none")
            self._left = int(lengths.pop())
        else:
            self.reusable = False

    def _decode_by(self, encoding: bytes) -> None:
        if encoding in (b"gzip", b"x-gzip"):
            self._inflater = isal_zlib.decompressobj(wbits=16 + isal_zlib.MAX_WBITS)
        elif encoding not in (b"", b"identity"):
            raise BrokenError("an encoding that was not asked for")

    # Body

    def _read_body(self, data: bytes) -> None:
        if self._chunked:
            behind = self._read_chunks(data)
        elif self._left is None:
            self._take(data)
            return
        else:
            behind = data[self._left :]
            data = data[: self._left]
            self._left -= len(data)
            if data:
                self._take(data)
            self._whole = self._whole or not self._left
        if behind:  # nobody asked for it
            self.reusable = False

    def _read_chunks(self, data: bytes) -> bytes:
        """Take the chunks in ``data``; gives what stands behind the last one's trailers."""
        data, position = self._rest + data, 0
        self._rest = b""
        while not self._whole:
            if self._left:
                piece = data[position : position + self._left]
                position += len(piece)
                self._left -= len(piece)
                if piece:
                    self._take(piece)
                if self._left:
                    return b""
                self._ending_chunk = True
            longest = _LONGEST_HEAD if self._trailers else _LONGEST_LINE
            end = data.find(b"\r\n", position)
            if end < 0 or end - position > longest:
                if len(data) - position > longest:
                    raise BrokenError("a chunk that is none")
                self._rest = data[position:]
                return b""
            self._read_chunk_line(data[position:end])
            position = end + 2
        return data[position:]

    def _read_chunk_line(self, line: bytes) -> None:
        if self._ending_chunk:
            if line:
                raise BrokenError("a chunk that is longer than it says")
            self._ending_chunk = False
        elif self._trailers:
            self._whole = not line
        else:
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise BrokenError("a chunk that is none")
            self._left = int(match[1], 16)
            self._trailers = not self._left

    def _take(self, data: bytes) -> None:
        if self._inflater is None:
            self._keep(data)
            return
        self._packed += len(data)
        self._trailer = (self._trailer + data[-_TRAILER:])[-_TRAILER:]
        if self._known is not None:
            self._held.append(data)
            if self._packed > self._known.size:
                self._release()
        else:
            self._inflate(data)

    def _compare(self) -> None:
        """See whether the whole body is the known one, which need not be decompressed."""
        self.repeated = self.imprint == self._known
        if not self.repeated:
            self._release()

    def _release(self) -> None:
        """It is not the known body: decompress what was held."""
        held, self._held, self._known = b"".join(self._held), [], None
        self._inflate(held)

    def _inflate(self, data: bytes) -> None:
        """Decompress one step; the rest waits for the next call."""
        inflater = self._inflater
        if inflater is None or self._cut:
            return
        if inflater.eof:  # zlib would hoard what follows
            raise BrokenError("more behind the end of its gzip stream")
        try:
            piece = inflater.decompress(self._undecoded + data, _STEP)
        except isal_zlib.error:  # type: ignore[misc]  # its stubs say an Exception, not a class of them
            raise BrokenError("a gzip stream that is damaged") from None
        self._undecoded = inflater.unconsumed_tail
        if inflater.unused_data:
            raise BrokenError("more behind the end of its gzip stream")
        self._keep(piece)

    def _keep(self, piece: bytes) -> None:
        room = self._limit - self._size
        if len(piece) > room:
            if self.status == OK:
                raise TooLargeError
            piece = piece[:room]
            self._cut = self._whole = True
            self._undecoded = b""
            self.reusable = False
        if piece:
            self._size += len(piece)
            self._pieces.append(piece)
