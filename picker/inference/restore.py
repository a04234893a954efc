"""Puts the client's name of the model back into an answer, whose endpoint was asked for another one."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY: Final = b'"model"'
_BLANKS: Final = 64
"""White space on either side of the colon that is still crossed; without a bound, all might be held back."""
_BLANK: Final = rb"[ \t\n\r]{0,%d}+" % _BLANKS
_BEFORE_NAME: Final = re.compile(_KEY + _BLANK + b":" + _BLANK)
_BEFORE_COLON: Final = re.compile(_KEY + _BLANK)


class ModelRestorer:
    """Replaces the value ``target`` of every member ``model`` by ``incoming``, byte by byte.

    It changes members on any level, since APIs nest the name, but no text that looks like one: there
    the quotes are escaped. What is not replaced comes out as slices of what went in; only what could
    be the beginning of a match is kept until the next chunk.
    """

    __slots__ = ("_held", "_longest", "_match", "_names", "_replacement")

    def __init__(self, target: str, incoming: str) -> None:
        self._names = _spellings(target)
        names = b"|".join(re.escape(name) for name in self._names)
        self._match = re.compile(b"(" + _BEFORE_NAME.pattern + b")(?:" + names + b")")
        self._replacement = json.dumps(incoming).encode()
        self._longest = len(_KEY) + 2 * _BLANKS + 1 + max(map(len, self._names))
        self._held = b""

    def feed(self, chunk: memoryview, *, end: bool) -> list[bytes | memoryview]:
        """The next bytes of the answer, all that is left with ``end``; maybe none."""
        data = memoryview(self._held + chunk) if self._held else chunk
        pieces: list[bytes | memoryview] = []
        position = 0
        for match in self._match.finditer(data):
            pieces += (data[position : match.end(1)], self._replacement)
            position = match.end()
        stop = len(data) if end else self._open(data, position)
        if position < stop:
            pieces.append(data[position:stop])
        self._held = bytes(data[stop:])
        return pieces

    def _open(self, data: memoryview, start: int) -> int:
        """Where the last bytes begin that may turn out to match; the end if there are none."""
        start = max(start, len(data) - self._longest)
        tail = bytes(data[start:])
        found = tail.rfind(_KEY)
        if found >= 0 and _may_match(tail[found:], self._names):
            return start + found
        for length in range(min(len(tail), len(_KEY) - 1), 0, -1):
            if tail.endswith(_KEY[:length]):
                return start + len(tail) - length
        return len(data)


def _spellings(name: str) -> Sequence[bytes]:
    """The name as JSON text, as the usual encoders write it: with and without escapes beyond ASCII."""
    plain = json.dumps(name, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return list(dict.fromkeys((plain, json.dumps(name).encode())))


def _may_match(tail: bytes, names: Sequence[bytes]) -> bool:
    """Whether something that begins with ``tail``, the key and perhaps more, can match."""
    match = _BEFORE_NAME.match(tail)
    if match is None:
        match = _BEFORE_COLON.match(tail)
        return match is not None and match.end() == len(tail)
    rest = tail[match.end() :]
    return any(name.startswith(rest) for name in names)
