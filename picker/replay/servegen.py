"""ServeGen's clients: arrivals that follow a process, which changes every few minutes, and drawn lengths.

``chunk-N-trace.csv`` has a line for each stretch of time: its begin (s), requests a second, the gaps'
coefficient of variation, the law of the gaps and its two parameters. ``chunk-N-dataset.json`` has the
distributions of lengths by the time of day.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from picker.replay.lines import TraceError, counted, json_value, lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

GENERATED = 20_000
"""Requests that are drawn."""
TRACE_SUFFIX = "-trace.csv"
_LENGTHS_SUFFIX = "-dataset.json"


@dataclass(frozen=True, slots=True)
class _Window:
    """For a time from ``start`` (s): requests a second, and the law of the gaps between them."""

    start: float
    rate: float
    law: str
    shape: float
    scale: float

    def gaps(self, random: np.random.Generator, number: int) -> NDArray[np.float64]:
        """Seconds between requests, on average as the rate says."""
        if self.law == "Weibull":
            drawn = random.weibull(self.shape, number)
        elif self.law == "Gamma":
            drawn = random.gamma(self.shape, size=number)
        else:
            drawn = random.exponential(size=number)
        return drawn * self.scale


@dataclass(frozen=True, slots=True)
class _Lengths:
    """A distribution of token numbers."""

    tokens: NDArray[np.float64]
    chances: NDArray[np.float64]

    def draw(self, random: np.random.Generator, number: int) -> NDArray[np.float64]:
        return random.choice(self.tokens, size=number, p=self.chances)


def generate(path: Path, seed: int) -> list[tuple[float, float, float]]:
    """Time (s), prompt tokens and answer tokens of requests, by time.

    ``path`` is one client's ``chunk-N-trace.csv``, or a folder of clients, whose requests are mixed. Raises
    TraceError.
    """
    files = sorted(path.glob(f"*{TRACE_SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise TraceError(f"{path}: has no file chunk-N{TRACE_SUFFIX}")
    clients = [(_windows(file), _length_windows(file)) for file in files]
    begin = min((window.start for windows, _ in clients for window in windows), default=0.0)
    drawn: list[tuple[float, float, float]] = []
    for number, (windows, lengths) in enumerate(clients):
        drawn.extend(_client(windows, lengths, np.random.default_rng([seed, number]), begin))
    drawn.sort()
    return drawn[:GENERATED]


def _client(
    windows: list[_Window],
    lengths: dict[float, tuple[_Lengths, _Lengths]],
    random: np.random.Generator,
    begin: float,
) -> Iterator[tuple[float, float, float]]:
    """The requests of one client by time, at most as many as are wanted of all."""
    left = GENERATED
    width = min((after.start - before.start for before, after in pairwise(windows)), default=600.0)
    for window in windows:
        if left <= 0 or window.start < begin:
            continue
        number = min(left, max(1, int(window.rate * width)))
        times = window.start + window.gaps(random, number).cumsum()
        times = times[times < window.start + width]
        start = max((start for start in lengths if start <= window.start), default=min(lengths))
        prompts, outputs = (which.draw(random, len(times)).tolist() for which in lengths[start])
        yield from zip(times.tolist(), prompts, outputs, strict=True)
        left -= len(times)


def _windows(path: Path) -> list[_Window]:
    """Those in which there are requests."""
    windows = []
    for number, line in counted(path, lines(path)):
        cells = line.split(",")
        try:
            start, rate, _, shape, scale = (float(cells[place]) for place in (0, 1, 2, 4, 5))
        except (IndexError, ValueError):
            raise TraceError(
                f"{path}:{number}: six cells are expected, of which the fourth is a name"
            ) from None
        if not all(0.0 <= one < np.inf for one in (start, rate, shape, scale)):
            raise TraceError(f"{path}:{number}: a number is negative or none")
        if rate > 0.0 and shape > 0.0 and scale > 0.0:
            windows.append(_Window(start, rate, cells[3], shape, scale))
    return windows


def _length_windows(trace: Path) -> dict[float, tuple[_Lengths, _Lengths]]:
    """By the second they begin: lengths of prompts and of answers, where both are known."""
    path = trace.with_name(trace.name.removesuffix(TRACE_SUFFIX) + _LENGTHS_SUFFIX)
    document = json_value(path, 1, "\n".join(line for _, line in lines(path)))
    found: dict[float, tuple[_Lengths, _Lengths]] = {}
    try:
        for start, laws in document.items():
            prompts = _law(laws["input_tokens"] if "input_tokens" in laws else laws["text_tokens"])
            outputs = _law(laws["output_tokens"])
            if prompts is not None and outputs is not None:
                found[float(start)] = prompts, outputs
    except (AttributeError, KeyError, TypeError, ValueError, SyntaxError) as error:
        raise TraceError(f"{path}: not ServeGen's distributions of lengths: {error!r}") from None
    if not found:
        raise TraceError(f"{path}: has no lengths of prompts and answers")
    return found


def _law(text: str) -> _Lengths | None:
    """From a Python dictionary of chances by token number, written as text; None if it is empty."""
    law = ast.literal_eval(text)
    if not law:
        return None
    tokens = np.array(list(law), dtype=np.float64)
    chances = np.array(list(law.values()), dtype=np.float64)
    if not (
        np.isfinite(chances).all()
        and (chances >= 0.0).all()
        and chances.sum() > 0.0
        and (tokens >= 0.0).all()
    ):
        raise ValueError("chances that are none")
    return _Lengths(tokens, chances / chances.sum())
