"""Small line charts as SVG, side by side: no reason to install a plotting library."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Distinct also for those who see red and green alike (Okabe and Ito).
_COLOURS = ("#d55e00", "#999999", "#e69f00", "#56b4e9", "#0072b2", "#009e73", "#cc79a7", "#000000")
_WIDTH, _HEIGHT = 320, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 28, 36
_LEGEND = 26
_TICKS = 4


@dataclass(frozen=True, slots=True)
class Line:
    """Points: x, y, and the least and the most that y was. Without a name it is dashed, not in the legend."""

    name: str
    points: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """``across`` says what x is; y begins at 0 unless it is ``logarithmic``."""

    title: str
    across: str
    lines: tuple[Line, ...]
    logarithmic: bool = False


class _Axis:
    """From values to pixels."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, *, logarithmic: bool, zero: bool
    ) -> None:
        self._logarithmic = logarithmic
        positive = [value for value in values if value > 0.0] or [1.0]
        if logarithmic:
            self._low = float(floor(log10(min(positive))))
            self._high = float(ceil(log10(max(positive)) + 1e-9))
        else:
            self._low = 0.0 if zero else min(values, default=0.0)
            self._high = max([*values, self._low + 1e-9])
        if self._high - self._low < 1e-6:  # noqa: PLR2004 - one value only
            self._low, self._high = self._low - 0.5, self._high + 0.5
        self._start, self._scale = start, (end - start) / (self._high - self._low)

    def place(self, value: float) -> float:
        """The pixel of a value."""
        if self._logarithmic:
            value = log10(max(value, 10.0**self._low))
        return self._start + (value - self._low) * self._scale

    def ticks(self) -> Iterator[float]:
        """Round values along it."""
        if self._logarithmic:
            yield from (10.0**exponent for exponent in range(int(self._low), int(self._high) + 1))
            return
        rough = (self._high - self._low) / _TICKS
        step = 10.0 ** floor(log10(rough))
        step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= rough)
        number = ceil(self._low / step - 1e-9)
        while number * step <= self._high * (1 + 1e-9):
            yield number * step
            number += 1


def svg(charts: Sequence[Chart], *, columns: int) -> str:
    """A whole document; the charts in rows, under a legend of all lines' names."""
    names = list(dict.fromkeys(line.name for chart in charts for line in chart.lines if line.name))
    rows = -(-len(charts) // columns)
    width, height = columns * _WIDTH, _LEGEND + rows * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">',
        '<g font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    left = 12.0
    for name in names:
        parts.append(f'<rect x="{left:.0f}" y="9" width="14" height="4" fill="{_colour(name, names)}"/>')
        parts.append(f'<text x="{left + 18:.0f}" y="15">{escape(name)}</text>')
        left += 34 + 6.5 * len(name)
    for number, chart in enumerate(charts):
        down, along = divmod(number, columns)
        parts.append(f'<g transform="translate({along * _WIDTH},{_LEGEND + down * _HEIGHT})">')
        parts.extend(_chart(chart, names))
        parts.append("</g>")
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _chart(chart: Chart, names: list[str]) -> Iterator[str]:
    points = [point for line in chart.lines for point in line.points]
    x = _Axis([point[0] for point in points], _LEFT, _WIDTH - _RIGHT, logarithmic=False, zero=False)
    ups = [value for point in points for value in point[1:]]
    y = _Axis(ups, _HEIGHT - _BOTTOM, _TOP, logarithmic=chart.logarithmic, zero=True)
    bottom = _HEIGHT - _BOTTOM
    yield f'<text x="{_LEFT}" y="16" font-weight="bold">{escape(chart.title)}</text>'
    yield f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(chart.across)}</text>'
    for value in y.ticks():
        place = y.place(value)
        yield f'<path d="M{_LEFT} {place:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 4}" y="{place + 4:.1f}" text-anchor="end">{value:,g}</text>'
    for value in x.ticks():
        place = x.place(value)
        yield f'<path d="M{place:.1f} {bottom}v4" stroke="#888"/>'
        yield f'<text x="{place:.1f}" y="{bottom + 15}" text-anchor="middle">{value:g}</text>'
    yield f'<path d="M{_LEFT} {bottom}H{_WIDTH - _RIGHT}" stroke="#888"/>'
    for line in chart.lines:
        yield from _drawn(line, x, y, _colour(line.name, names))


def _drawn(line: Line, x: _Axis, y: _Axis, colour: str) -> Iterator[str]:
    if not line.points:
        return
    places = [
        (x.place(across), y.place(mean), y.place(least), y.place(most))
        for across, mean, least, most in line.points
    ]
    if line.name:
        there = " ".join(f"{across:.1f},{most:.1f}" for across, _, _, most in places)
        back = " ".join(f"{across:.1f},{least:.1f}" for across, _, least, _ in reversed(places))
        yield f'<polygon points="{there} {back}" fill="{colour}" opacity="0.15"/>'
    dashes = "" if line.name else ' stroke-dasharray="4 3"'
    route = " ".join(f"{across:.1f},{mean:.1f}" for across, mean, _, _ in places)
    yield f'<polyline points="{route}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>'
    for across, mean, _, _ in places:
        yield f'<circle cx="{across:.1f}" cy="{mean:.1f}" r="2.2" fill="{colour}"/>'


def _colour(name: str, names: list[str]) -> str:
    return _COLOURS[names.index(name) % len(_COLOURS)] if name else "#444444"
