"""Reading a Prometheus text page by searching for the few families that are wanted.

A Ray page has 300-600 kB and a thousand lines, of which a dozen matter. A full parse of it costs
tens of milliseconds of Python; ``bytes.find`` per family costs well under a tenth of one. So there is no
parser here: :func:`samples` jumps from hit to hit and reads only the lines it lands on, and labels
are taken apart only where they are asked for. :class:`Families` spares the searches where many families
are wanted.

What is read is the text exposition format 0.0.4 and OpenMetrics 1.0 (timestamps and exemplars are
skipped). A page is whatever a server sends, so nothing here raises on bad input: a line that is not a
sample is passed over, bytes that are not UTF-8 become U+FFFD in label values, and a last line without
its line feed is not believed, because of a page that was cut off it may show ``1`` of ``12``.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_AMOUNT = 1e15
"""No server has so many requests; sums of amounts below it can neither overflow nor lose units."""
MAX_SAMPLES = 10_000
"""Samples of one family that are looked at; a page with more is hostile or broken."""

_MAX_FAMILIES = 10_000
_NOWHERE = (1, 1)

# What follows the name on a line: labels, value, then timestamp or exemplar up to the line's end. The
# quantifiers are possessive, so that no line can make the match backtrack. Python's float() also takes
# underscores, which the format does not have.
_REST = re.compile(
    rb"(?=[ \t{])"
    rb'(?:[ \t]*+\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\[^\n])*+")*+)\})?'
    rb'[ \t]*+([^\s{}"_]++)(?:[ \t][^\n]*+|\r)?\n'
)
_PAIR = re.compile(rb'[ \t,]*+([A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_ESCAPE = re.compile(r'\\[\\n"]')
_ESCAPES = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}


class Sample(NamedTuple):
    """One line of a family: its value, and its label pairs as they stand between the braces."""

    value: float
    pairs: bytes

    def label(self, name: bytes) -> str | None:
        """The unescaped value of a label, or None if the sample does not have it."""
        pairs = self.pairs
        start = pairs.find(name + b'="')
        # Usually the first hit is the label. It is none if it is inside a value, that is, behind an odd
        # number of quotes; where quotes are escaped or blanks stand around "=" the pairs are walked.
        if start >= 0 and b"\\" not in pairs and (start == 0 or pairs[start - 1] in b", \t"):
            if pairs.count(b'"', 0, start) % 2 == 0:
                start += len(name) + 2
                return _unescape(pairs[start : pairs.index(b'"', start)])
        elif name not in pairs:
            return None
        position = 0
        while pair := _PAIR.match(pairs, position):
            if pair[1] == name:
                return _unescape(pair[2])
            position = pair.end()
        return None


def samples(page: bytes, name: bytes, limit: int = MAX_SAMPLES) -> Iterator[Sample]:
    """The samples called exactly ``name``, in page order, at most ``limit``.

    ``name`` is a sample's name, not a family's: of a histogram ask for ``…_count`` or ``…_sum``.
    """
    return _samples(page, name, limit, 0, len(page))


def _samples(page: bytes, name: bytes, limit: int, start: int, stop: int) -> Iterator[Sample]:
    for position in _positions(page, name, start, stop):
        rest = _REST.match(page, position, stop)
        if rest is None:
            continue
        try:
            value = float(rest[2])
        except ValueError:
            continue
        if limit <= 0:
            return
        limit -= 1
        yield Sample(value, rest[1] or b"")


def _positions(page: bytes, name: bytes, start: int, stop: int) -> Iterator[int]:
    """Where ``name`` ends, for every line that begins with it in this part of the page."""
    if not start and page.startswith(name):
        yield len(name)
    needle = b"\n" + name
    start = page.find(needle, start, stop)
    while start >= 0:
        end = start + len(needle)
        yield end
        start = page.find(needle, end, stop)


def family(page: bytes, name: bytes) -> bytes:
    """The part of a page that has the family ``name``; empty if it has none.

    Goes by the ``# TYPE`` line and the format's rule that a family is one group of lines, so that of a
    family at the page's beginning the rest is not searched. A page without such lines is given as it is.
    """
    start = page.find(b"# TYPE " + name + b" ")
    if start < 0:
        return b"" if b"# TYPE " in page else page
    end = page.find(b"\n# TYPE ", start)
    return page[start:] if end < 0 else page[start : end + 1]


class Families:
    """The families whose names share a prefix, found in one pass over the page.

    Cheaper than :func:`samples` from the second family on, and for those the page does not have. It
    goes by the ``# TYPE`` lines and the format's rule that a family is one group of lines: on a page
    that has such lines, a family without one is not found. A page with none at all is searched
    family by family.
    """

    def __init__(self, page: bytes, prefix: bytes) -> None:
        mark = b"\n# TYPE " + prefix
        self._page = page
        # Where they are and not what: copying a page costs as much as searching it.
        self._sections: dict[bytes, tuple[int, int]] = {}
        first = page.startswith(mark[1:])
        at = -1 if first else page.find(mark)
        if at < 0 and not first:
            return
        for _ in range(_MAX_FAMILIES):
            start = at + len(mark) - len(prefix)
            following = page.find(mark, start)
            stop = len(page) if following < 0 else following + 1
            self._sections.setdefault(page[start : page.find(b" ", start, stop)], (start, stop))
            if following < 0:
                return
            at = following

    def samples(self, name: bytes, limit: int = MAX_SAMPLES) -> Iterator[Sample]:
        """As :func:`samples`, for a name that begins with the prefix."""
        if not self._sections:
            return samples(self._page, name, limit)
        start, stop = self._sections.get(name) or self._sections.get(name.rpartition(b"_")[0], _NOWHERE)
        return _samples(self._page, name, limit, start, stop)


def total(measured: Iterable[Sample]) -> float:
    """The sum of counts or gauges that cannot be negative; NaN if there is none.

    Values that are no amount (negative, infinite, absurd, NaN) are left out: one of them would make the sum
    worthless to whoever compares endpoints by it.
    """
    amounts = _amounts(measured)
    return math.fsum(amounts) if amounts else math.nan


def mean(measured: Iterable[Sample]) -> float:
    """The mean of the amounts, with the same omissions as :func:`total`; NaN if there is none."""
    amounts = _amounts(measured)
    return math.fsum(amounts) / len(amounts) if amounts else math.nan


def _amounts(measured: Iterable[Sample]) -> list[float]:
    return [sample.value for sample in measured if 0.0 <= sample.value < _MAX_AMOUNT]


def _unescape(raw: bytes) -> str:
    text = raw.decode("utf-8", errors="replace")
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda escape: _ESCAPES[escape[0]], text)
