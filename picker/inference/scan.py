"""Find a few top-level members of a long JSON object without parsing all of it.

A body of many megabytes would stall the event loop if it were parsed. Here strings are crossed by
``bytes.find``, containers by counting brackets, and all work is counted and bounded. What is not
reached from the front is looked for from the end, as most clients write the short members
(``model``, ``stream``) after the long one: JSON can be read backwards without ambiguity, since
outside strings there are no backslashes, and inside a quote ends the string exactly if an even
number of them stands before it.

What is found is what a parser would find in a valid document. An invalid one may give anything a
lenient reader could see in it, but never an exception.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import orjson

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Body = bytes | bytearray | memoryview

LONGEST_PARSED = 1 << 20
"""Bytes of a body that is parsed as a whole; a longer one is only scanned."""
MOST_CONTAINERS = 6_000
"""Opening brackets of a body that is parsed: each may be a message, which costs about a microsecond to make
and to read."""
MOST_STRINGS = 30_000
"""Strings of it; making and reading one costs about a tenth of that."""
_REACH = 4 << 20
"""Bytes looked at from the front; ``find`` crosses them in about half a millisecond."""
_TAIL = 128 << 10
"""Bytes looked at from the end."""
_STEPS = 1_200
"""Strings and brackets crossed from either end, and again in a prompt; each takes about 0.4 microseconds."""
_BYTES_PER_STEP = 64
"""The next bracket is searched slower than the next quote: that many bytes take as long as a step."""
_STEPS_PER_MEMBER = 5
_LONGEST_RUN = 256
"""Backslashes in a row before a quote that are still counted."""
_LONGEST_KEY = 128
"""Bytes of a member's name that are looked at; the wanted ones are far shorter."""

_BLANK = re.compile(rb"[ \t\n\r]{0,4096}+")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]{1,4096}+")
_STRUCTURE = re.compile(rb'["\[\]{}]')
_BACKSLASHES = re.compile(rb"\\{0,%d}+" % _LONGEST_RUN)
_QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE = b'"\\:,{}'
_UPPER, _UPPER_OPEN = 0xDF, 0x5B
"""``[`` and ``{`` differ in one bit, and no other byte is like them without it."""
_COUNTED = 64 << 10
"""Bytes that are counted at a time, so that what is made of them stays in the processor's cache."""


class Span(NamedTuple):
    """Where a member's value is; ``stop`` is None where only its beginning is known."""

    start: int
    stop: int | None


class Found(NamedTuple):
    """``whole`` tells that every top-level member was seen, so that a missing one is not there."""

    members: dict[str, Span]
    whole: bool


def find_members(body: Body, wanted: Collection[str], *, complete: bool) -> Found:
    """Where the values of ``wanted`` are; of a repeated member the last one seen, as parsers do.

    ``complete``: the body's end is the document's end, so it can be read from there too.
    """
    members: dict[str, Span] = {}
    names = {name.encode(): name for name in wanted}
    front = bytes(body[:_REACH]) if isinstance(body, memoryview) else body
    try:
        _Forward(front).collect(names, members)
    except _Stopped:
        pass
    else:
        return Found(members, whole=True)
    if complete:
        last = len(body)
        later: dict[str, Span] = {}
        whole = True
        try:
            _Backward(bytes(body[-_TAIL:])[::-1]).collect(names, later)
        except _Stopped:
            whole = False
        members |= {key: Span(last - stop, last - start) for key, (start, stop) in later.items() if stop}
        return Found(members, whole)
    return Found(members, whole=False)


def quick_to_parse(body: Body) -> bool:
    """Whether a whole body may be parsed without stalling other streams."""
    if len(body) <= MOST_CONTAINERS:
        return True
    if len(body) > LONGEST_PARSED:
        return False
    # By numpy since it takes many bytes at a time: ``bytes.count`` takes longer than the parser itself.
    data = np.frombuffer(body, np.uint8)
    quotes = containers = 0
    for start in range(0, len(data), _COUNTED):
        part = data[start : start + _COUNTED]
        quotes += int(np.count_nonzero(part == _QUOTE))
        containers += int(np.count_nonzero(part & _UPPER == _UPPER_OPEN))
    return containers <= MOST_CONTAINERS and quotes <= 2 * MOST_STRINGS


class _Stopped(Exception):  # noqa: N818  it is the way out, not an error
    """The end of what may be looked at, or something that is not JSON."""


class _Walk(ABC):
    """Crosses values in one direction and counts the work."""

    opening = b"[{"

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = data
        self.end = min(len(data), _REACH)
        self.steps = _STEPS

    def blank(self, position: int) -> int:
        """Past white space, to a byte that is there."""
        match = _BLANK.match(self.data, position, self.end)
        if match is None or match.end() == self.end:
            raise _Stopped
        return match.end()

    def byte(self, position: int, expected: int) -> int:
        """Past white space and then the expected byte."""
        position = self.blank(position)
        if self.data[position] != expected:
            raise _Stopped
        return position + 1

    def value(self, position: int) -> int:
        """Past the value that begins here."""
        first = self.data[position]
        if first == _QUOTE:
            return self.string(position)
        if first in self.opening:
            return self.container(position)
        match = _SCALAR.match(self.data, position, self.end)
        if match is None or match.end() == self.end:
            raise _Stopped
        return match.end()

    def container(self, position: int) -> int:
        data, end, opening = self.data, self.end, self.opening
        depth = 0
        while True:
            match = _STRUCTURE.search(data, position, min(end, position + self.steps * _BYTES_PER_STEP))
            if match is None:
                raise _Stopped
            found = match.start()
            self.spend(1 + (found - position) // _BYTES_PER_STEP)
            position = found + 1
            if data[found] == _QUOTE:
                position = self.string(found)
            elif data[found] in opening:
                depth += 1
            else:
                depth -= 1
                if not depth:
                    return position

    def string(self, position: int) -> int:
        """Past the string whose quote is at ``position``."""
        while True:
            quote = self.data.find(b'"', position + 1, self.end)
            if quote < 0:
                raise _Stopped
            self.spend(1)
            if not self.escaped(quote):
                return quote + 1
            position = quote

    def key(self, start: int, stop: int) -> bytes:
        """The name of a member without quotes and escapes; empty for one that cannot be wanted."""
        self.spend(_STEPS_PER_MEMBER)
        if stop - start > _LONGEST_KEY:
            return b""
        raw = self.text(start, stop)
        if b"\\" not in raw:
            return raw[1:-1]
        try:
            return str(orjson.loads(raw)).encode()
        except orjson.JSONDecodeError:
            return b""

    @abstractmethod
    def collect(self, names: Mapping[bytes, str], into: dict[str, Span]) -> None:
        """Note where the values of the named members are, and return when all members were met."""

    @abstractmethod
    def text(self, start: int, stop: int) -> bytes:
        """What stands there, in the order it was written."""

    @abstractmethod
    def escaped(self, quote: int) -> bool:
        """Whether an odd number of backslashes stands before the quote (in reading direction)."""

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise _Stopped


class _Forward(_Walk):
    def collect(self, names: Mapping[bytes, str], into: dict[str, Span]) -> None:
        position = self.byte(0, _OPEN)
        if self.data[self.blank(position)] == _CLOSE:
            return
        while True:
            start = self.blank(position)
            if self.data[start] != _QUOTE:
                raise _Stopped
            stop = self.string(start)
            name = names.get(self.key(start, stop))
            position = self.blank(self.byte(stop, _COLON))
            if name:
                into[name] = Span(position, None)
            stop = self.value(position)
            if name:
                into[name] = Span(position, stop)
            position = self.blank(stop)
            if self.data[position] == _CLOSE:
                return
            position = self.byte(position, _COMMA)

    def text(self, start: int, stop: int) -> bytes:
        return bytes(self.data[start:stop])

    def escaped(self, quote: int) -> bool:
        if self.data[quote - 1] != _BACKSLASH:
            return False
        if self.data[quote - 2] != _BACKSLASH:  # the usual case, without the copy below
            return True
        before = self.data[max(0, quote - _LONGEST_RUN) : quote]
        run = len(before) - len(before.rstrip(b"\\"))
        if run == _LONGEST_RUN:
            raise _Stopped
        return run % 2 == 1


class _Backward(_Walk):
    """Over the reversed end of a body. The latest member of a name is met first and counts."""

    opening = b"]}"

    def collect(self, names: Mapping[bytes, str], into: dict[str, Span]) -> None:
        position = _BLANK.match(self.data).end()  # type: ignore[union-attr]  # matches the empty string too
        position = self.byte(position, _CLOSE)
        while True:
            start = self.blank(position)
            stop = self.value(start)
            position = self.blank(self.byte(stop, _COLON))
            if self.data[position] != _QUOTE:
                raise _Stopped
            end = self.string(position)
            name = names.get(self.key(position, end))
            if name:
                into.setdefault(name, Span(start, stop))
            position = self.blank(end)
            if self.data[position] == _OPEN:
                return
            position = self.byte(position, _COMMA)

    def text(self, start: int, stop: int) -> bytes:
        return bytes(self.data[start:stop])[::-1]

    def escaped(self, quote: int) -> bool:
        match = _BACKSLASHES.match(self.data, quote + 1)
        run = match.end() - match.start() if match else 0
        if run == _LONGEST_RUN or quote + 1 + run == self.end:
            raise _Stopped  # there may be more of them, out of sight
        return run % 2 == 1


_ESCAPE = (
    rb'\\(?:["\\/bfnrt]|u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
_TOKEN = re.compile(rb'"[^"\\]*+(?:' + _ESCAPE + rb'[^"\\]*+)*+("?+)|[\[\]{}]')
_IN_SCALARS = b"-+.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BETWEEN = b" \t\n\r,"


def parse_beginning(raw: bytes) -> object:
    """The value of which ``raw`` is the beginning, as far as it goes; None where that is nothing.

    What is open is closed: a cut text is kept up to the cut; a cut number, name or escape is dropped.
    """
    # Of a character that is cut in two the first half is dropped, and so is what is not UTF-8.
    raw = raw.decode("utf-8", "ignore").encode()
    try:
        return orjson.loads(_closed(raw))
    except orjson.JSONDecodeError:
        return None


def _closed(raw: bytes) -> bytes:
    closers = bytearray()
    start = end = 0
    text = cut = False
    for match in islice(_TOKEN.finditer(raw), _STEPS):
        start, end = match.span()
        text = raw[start] == _QUOTE
        cut = text and not match[1]
        if cut:
            break
        if raw[start] in b"[{":
            closers.append(raw[start] + 2)  # in ASCII "]" and "}" stand two after "[" and "{"
        elif not text:
            del closers[-1:]
        if not closers:
            return raw[:end]
    if cut:
        kept = raw[:end] + b'"'
    else:
        following = _STRUCTURE.search(raw, end)
        kept = raw[: following.start() if following else None].rstrip(_IN_SCALARS).rstrip(_BETWEEN)
    if closers[-1:] == b"}" and (kept.endswith(b":") or (text and _is_key(raw, start, kept))):
        kept = kept[:start].rstrip(_BETWEEN)
    return kept + closers[::-1]


def _is_key(raw: bytes, start: int, kept: bytes) -> bool:
    """Whether the text at ``start``, the last thing kept, is a member's name without its value."""
    return kept.endswith(b'"') and raw[:start].rstrip(b" \t\n\r")[-1:] in (b"{", b",")
