"""CPU per request as bars, an SVG without a library: a row of bars a case and mode, its longest one full."""

from __future__ import annotations

from html import escape
from statistics import median
from typing import TYPE_CHECKING

from bench.e2e.report import pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.e2e.measure import Run

_COLOURS = {"picker": "#1b6ca8", "own-echo": "#7fb6d9", "yardstick": "#c9a227"}
_OTHER = "#888888"
_LINE, _GAP, _LEFT, _BAR, _WIDTH = 16, 10, 190, 440, 760
_TOP = 44


def picture(runs: Sequence[Run]) -> str:
    """The medians over the runs."""
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for (case, mode, subject), group in pairs(runs).items():
        bars = groups.setdefault((case, mode), {})
        bars[subject] = median(pair.asked.subject_us for pair in group)
    parts: list[str] = []
    y = _TOP
    for (case, mode), bars in sorted(groups.items(), key=lambda item: list(groups).index(item[0])):
        parts.append(_text(8, y + _LINE - 4, f"{case}, {mode}"))
        most = max(bars.values())
        for subject, used in bars.items():
            width = max(1.0, used / most * _BAR) if most else 1.0
            colour = _COLOURS.get(subject, _OTHER)
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_LINE - 3}" fill="{colour}"/>'
            )
            parts.append(_text(_LEFT + width + 6, y + _LINE - 5, f"{subject} {used:,.0f}"))
            y += _LINE
        y += _GAP
    title = _text(
        8, 24, "CPU of the ext_proc server, µs per request (each row to its own scale)", "bold 14px"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}">'
        f'<rect width="100%" height="100%" fill="white"/>{title}{"".join(parts)}</svg>\n'
    )


def _text(x: float, y: float, text: str, font: str = "12px") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" style="font: {font} sans-serif">{escape(text)}</text>'
