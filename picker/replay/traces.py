"""Public trace formats, read into :class:`picker.replay.workload.Trace`.

* ``mooncake``: ``{"timestamp": ms, "input_length", "output_length", "hash_ids"}``; blocks of 512 tokens,
  cumulative.
* ``agentic``: ``{"session", "session_t_ms", "input_chars", "output_chars", "hash_ids"}``; blocks of 256
  characters, cumulative.
* ``sharegpt``: ``{"t_ms", "input_length", "output_length", "hash_ids"}``; blocks of 16 tokens, each for
  itself.
* ``azure``: ``TIMESTAMP,ContextTokens,GeneratedTokens``.
* ``vidur``: ``num_prefill_tokens,num_decode_tokens,…``, without times: one a second on average, at random.
* ``servegen``: arrival processes and distributions of lengths, see :mod:`picker.replay.servegen`.

Lengths are divided by a :class:`Scale`, since the simulated server is a small one. Errors name file and line.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from picker.replay import servegen
from picker.replay.lines import TraceError, csv_rows, json_rows, json_value, lines
from picker.replay.workload import Request, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

SMALLEST_BLOCK = 16
"""Tokens. Shorter blocks, as they come about by dividing lengths, are joined."""
CHARACTERS_PER_TOKEN = 4
_MOST_TOKENS = 100_000_000
_COARSEST = 3.0
"""Seconds. No recorder's clock is coarser."""


@dataclass(frozen=True, slots=True)
class Scale:
    """By what the lengths of prompts and answers are divided."""

    prompt: int = 8
    output: int = 8

    def prompt_tokens(self, tokens: float) -> int:
        """At least one: there is always something to begin with."""
        return max(1, int(tokens / self.prompt))

    def output_tokens(self, tokens: float) -> int:
        """At least one."""
        return max(1, int(tokens / self.output))


@dataclass(frozen=True, slots=True)
class _Blocks:
    """How a format's blocks become ours: every ``step``-th id, each standing for ``tokens`` tokens."""

    step: int
    tokens: int
    recorded: int
    """Tokens a block has in the trace."""

    @classmethod
    def of(cls, recorded: int, scale: Scale) -> _Blocks:
        step = 1
        while recorded * step % scale.prompt or recorded * step // scale.prompt < SMALLEST_BLOCK:
            step += 1
        return cls(step, recorded * step // scale.prompt, recorded)

    def ids(self, ids: Sequence[int], tokens: float) -> tuple[int, ...]:
        """Those of whole blocks only: servers cache no others."""
        whole = int(tokens / self.recorded)
        return tuple(ids[:whole][self.step - 1 :: self.step])


class _Strict(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False, frozen=True)


_Tokens = Annotated[int, Field(ge=0, le=_MOST_TOKENS)]
_Ids = list[Annotated[int, Field(ge=0, lt=1 << 40)]]
_Milliseconds = Annotated[float, Field(ge=0.0, le=1e12)]


class _Mooncake(_Strict):
    timestamp: _Milliseconds
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: _Ids


class _Agentic(_Strict):
    session: str
    session_t_ms: _Milliseconds
    input_chars: _Tokens
    output_chars: _Tokens
    hash_ids: _Ids


class _ShareGpt(_Strict):
    t_ms: _Milliseconds
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: _Ids


class _Azure(_Strict):
    TIMESTAMP: datetime
    ContextTokens: _Tokens
    GeneratedTokens: _Tokens


class _Vidur(_Strict):
    num_prefill_tokens: _Tokens
    num_decode_tokens: _Tokens


def read_trace(path: Path, format_: str | None = None, scale: Scale | None = None, *, seed: int = 0) -> Trace:
    """Read a trace; which format it has is told from its first line, unless given. Raises TraceError.

    ``seed`` is for what a trace does not say and is drawn therefore. ``scale`` is the format's own if None.
    """
    name = format_ or _detect(path)
    if name not in FORMATS:
        raise TraceError(f"{path}: there is no trace format {name!r}; known are {', '.join(FORMATS)}")
    trace = FORMATS[name](path, scale, seed)
    if not len(trace):
        raise TraceError(f"{path}: the trace is empty")
    return trace


def _detect(path: Path) -> str:
    if path.is_dir():
        return "servegen"
    number, first = next(lines(path), (1, ""))
    if first.startswith("{"):
        row = json_value(path, number, first)
        keys = set(row) if isinstance(row, dict) else set()
        for name, key in (("mooncake", "timestamp"), ("agentic", "session"), ("sharegpt", "t_ms")):
            if key in keys:
                return name
    elif first.startswith("TIMESTAMP,"):
        return "azure"
    elif first.startswith("num_prefill_tokens,"):
        return "vidur"
    elif path.name.endswith(servegen.TRACE_SUFFIX):
        return "servegen"
    raise TraceError(f"{path}:{number}: no known trace format; name it with --format ({', '.join(FORMATS)})")


# Formats


def _mooncake(path: Path, scale: Scale | None, seed: int) -> Trace:
    scale = scale or Scale()
    blocks = _Blocks.of(512, scale)
    rows = sorted(json_rows(path, _Mooncake), key=lambda row: row.timestamp)
    times = _spread([row.timestamp / 1000 for row in rows], seed)
    return _by_time(
        path,
        blocks.tokens,
        [
            Request(
                time,
                scale.prompt_tokens(row.input_length),
                scale.output_tokens(row.output_length),
                blocks.ids(row.hash_ids, row.input_length),
            )
            for time, row in zip(times, rows, strict=True)
        ],
    )


def _spread(times: list[float], seed: int) -> list[float]:
    """Let those of one time come at random until the next time.

    The conversation trace tells time in steps of three seconds. Taken as it stands, ten requests would come
    at once, before a page could show what became of the first, and who lives on pages would do half as well.
    """
    random = Random(seed)  # noqa: S311 - simulation
    spread: list[float] = []
    while len(spread) < len(times):
        time = times[len(spread)]
        following = bisect_right(times, time, lo=len(spread))
        number = following - len(spread)
        gap = min(_COARSEST, times[following] - time) if following < len(times) else 0.0
        spread.extend([time] if number == 1 else sorted(time + gap * random.random() for _ in range(number)))
    return spread


def _sharegpt(path: Path, scale: Scale | None, _seed: int) -> Trace:
    scale = scale or Scale()
    blocks = _Blocks.of(16, scale)
    known: dict[tuple[int, int], int] = {}

    def cumulative(ids: Iterable[int]) -> list[int]:
        """Ids that stand for a block and all before it, from such that stand for a block."""
        chained: list[int] = []
        for block in ids:
            before = chained[-1] if chained else -1
            chained.append(known.setdefault((before, block), len(known)))
        return chained

    rows = sorted(json_rows(path, _ShareGpt), key=lambda row: row.t_ms)
    return _by_time(
        path,
        blocks.tokens,
        [
            Request(
                row.t_ms / 1000,
                scale.prompt_tokens(row.input_length),
                scale.output_tokens(row.output_length),
                blocks.ids(cumulative(row.hash_ids), row.input_length),
            )
            for row in rows
        ],
    )


def _agentic(path: Path, scale: Scale | None, _seed: int) -> Trace:
    # By 4, a recorded block becomes one of 16 tokens, the size servers use.
    scale = scale or Scale(prompt=4, output=8)
    blocks = _Blocks.of(256 // CHARACTERS_PER_TOKEN, scale)
    sessions: dict[str, list[_Agentic]] = {}
    for row in json_rows(path, _Agentic):
        sessions.setdefault(row.session, []).append(row)
    turns = []
    for name, rows in sessions.items():
        rows.sort(key=lambda row: row.session_t_ms)
        times = [rows[0].session_t_ms, *(row.session_t_ms for row in rows)]
        turns.append(
            tuple(
                Request(
                    (now - before) / 1000,
                    scale.prompt_tokens(row.input_chars / CHARACTERS_PER_TOKEN),
                    scale.output_tokens(row.output_chars / CHARACTERS_PER_TOKEN),
                    blocks.ids(row.hash_ids, row.input_chars / CHARACTERS_PER_TOKEN),
                    name,
                )
                for row, (before, now) in zip(rows, pairwise(times), strict=True)
            )
        )
    ids = _above(request for session in turns for request in session)
    return Trace(path.stem, blocks.tokens, ids, sessions=tuple(turns))


def _azure(path: Path, scale: Scale | None, _seed: int) -> Trace:
    scale = scale or Scale()
    try:
        rows = sorted(csv_rows(path, _Azure), key=lambda row: row.TIMESTAMP)
    except TypeError:
        raise TraceError(f"{path}: some times have a time zone and some have none") from None
    return _by_time(
        path,
        SMALLEST_BLOCK,
        [
            Request(
                (row.TIMESTAMP - rows[0].TIMESTAMP).total_seconds(),
                scale.prompt_tokens(row.ContextTokens),
                scale.output_tokens(row.GeneratedTokens),
            )
            for row in rows
        ],
    )


def _vidur(path: Path, scale: Scale | None, seed: int) -> Trace:
    scale = scale or Scale()
    rows = list(csv_rows(path, _Vidur))
    times = np.random.default_rng(seed).exponential(size=len(rows)).cumsum()
    return _by_time(
        path,
        SMALLEST_BLOCK,
        [
            Request(
                time, scale.prompt_tokens(row.num_prefill_tokens), scale.output_tokens(row.num_decode_tokens)
            )
            for time, row in zip(times.tolist(), rows, strict=True)
        ],
    )


def _by_time(path: Path, block: int, requests: list[Request]) -> Trace:
    """A trace of requests that are in order, beginning at 0."""
    begin = requests[0].at if requests else 0.0
    moved = tuple(
        Request(request.at - begin, request.prompt, request.output, request.blocks) for request in requests
    )
    return Trace(path.stem, block, _above(moved), moved)


def _above(requests: Iterable[Request]) -> int:
    return 1 + max((max(request.blocks) for request in requests if request.blocks), default=0)


def _servegen(path: Path, scale: Scale | None, seed: int) -> Trace:
    scale = scale or Scale()
    return _by_time(
        path,
        SMALLEST_BLOCK,
        [
            Request(time, scale.prompt_tokens(prompt), scale.output_tokens(output))
            for time, prompt, output in servegen.generate(path, seed)
        ],
    )


FORMATS: dict[str, Callable[[Path, Scale | None, int], Trace]] = {
    "mooncake": _mooncake,
    "agentic": _agentic,
    "azure": _azure,
    "servegen": _servegen,
    "vidur": _vidur,
    "sharegpt": _sharegpt,
}
