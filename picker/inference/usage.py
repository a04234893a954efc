"""What a model server says it used, read from the answer as it passes by.

Answers are JSON of any length or server-sent events, and their chunks end anywhere. Neither lines nor
documents are put together here: the ``usage`` objects are found by a search for their name, and of
those only the first and the last are kept, each up to a bound. That suits every API: most say it once at
the end (the Responses API inside ``response``), some in every event, Anthropic's says what went in
first and what came out last. A name inside a text can not be taken for it, as its quotes are escaped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from json import JSONDecoder
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from picker.inference.surfaces import Surface

_LONGEST: Final = 16 << 10
"""Bytes of one object that are kept. Usual are a few hundred; SGLang's may hold log probabilities."""
_MOST_TRIES: Final = 1_000
"""Names in one chunk that are looked at, before the search goes on at the last one."""
_OBJECT: Final = re.compile(rb"[ \t\r\n]{0,16}+:[ \t\r\n]{0,16}+(?=\{)")
_LONGEST_COLON: Final = 16 + 1 + 16
_MOST_TOKENS: Final = 1 << 40
_DECODER: Final = JSONDecoder()
_READABLE: Final = ("text/event-stream", "application/json", "application/x-ndjson")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the answer's ``usage`` says; ``None`` where it does not say.

    ``prompt_tokens`` includes ``cached_tokens``, those the engine did not have to compute.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


def usage_reader(surface: Surface | None, headers: Mapping[str, str]) -> UsageReader | None:
    """A reader for an answer with these headers; None where nothing could be read of it."""
    if surface is None or not surface.usage_key:
        return None
    if headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        return None
    content = headers.get("content-type", "").lstrip().lower()
    # Vertex sends the same JSON in gRPC messages, where it can be found as well.
    if content.startswith(_READABLE) or (surface.unwrap and content.startswith("application/grpc")):
        return UsageReader(surface.usage_key)
    return None


class UsageReader:
    """Looks at the chunks of one answer. Never changes them, keeps none of them, and never raises."""

    __slots__ = ("_first", "_last", "_name", "_seam", "_wants_more")

    def __init__(self, key: str = "usage") -> None:
        self._name = f'"{key}"'.encode()
        self._seam = b""
        self._first = b""
        self._last = bytearray()
        self._wants_more = False

    def feed(self, chunk: memoryview) -> None:
        """Look at the next bytes of the answer."""
        seam = self._seam
        data = seam + bytes(chunk)
        if self._wants_more:
            self._last += data[len(seam) : len(seam) + _LONGEST - len(self._last)]
            self._wants_more = len(self._last) < _LONGEST
        start = self._objects(data)
        self._seam = data[max(start, len(data) - len(self._name) - _LONGEST_COLON) :]

    def end(self) -> Usage | None:
        """What was used according to what was fed; None where nothing was said."""
        last = _parsed(self._last)
        first = _parsed(self._first) if self._first else last
        usage = Usage(
            _either(_prompt_tokens, last, first),
            _either(_completion_tokens, last, first),
            _either(_cached_tokens, last, first),
        )
        return None if usage == Usage() else usage

    def _objects(self, data: bytes) -> int:
        """Keep the last object that begins in ``data``; where the search for the next has to go on."""
        name, position, latest = self._name, 0, -1
        tries = _MOST_TRIES
        while (found := data.find(name, position) if tries else data.rfind(name, position)) >= 0:
            tries = max(0, tries - 1)
            position = found + len(name)
            match = _OBJECT.match(data, position)
            if match is None:
                if len(data) - position <= _LONGEST_COLON and not data[position:].strip(b": \t\r\n"):
                    position = found  # the next chunk may tell
                    break
                continue
            position = match.end()
            if latest < 0 and self._last and not self._first:
                self._first = bytes(self._last)
            elif latest >= 0 and not self._first:
                self._first = data[latest : latest + _LONGEST]
            latest = position
        if latest >= 0:
            self._last = bytearray(data[latest : latest + _LONGEST])
            self._wants_more = len(self._last) < _LONGEST
        return position


def _parsed(raw: bytes | bytearray) -> Mapping[str, Any]:
    """The object at the beginning of ``raw``, whatever follows it; empty if it is cut or no JSON."""
    try:
        value, _ = _DECODER.raw_decode(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _either(
    count: Callable[[Mapping[str, Any]], int | None], last: Mapping[str, Any], first: Mapping[str, Any]
) -> int | None:
    value = count(last)
    return count(first) if value is None else value


def _prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    asked = _count(usage, "prompt_tokens", "input_tokens")
    # Anthropic's input_tokens are only those that came neither from the cache nor went into it.
    cache = [_count(usage, name) for name in ("cache_read_input_tokens", "cache_creation_input_tokens")]
    return None if asked is None else asked + sum(filter(None, cache))


def _completion_tokens(usage: Mapping[str, Any]) -> int | None:
    return _count(usage, "completion_tokens", "output_tokens")


def _cached_tokens(usage: Mapping[str, Any]) -> int | None:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict) and (cached := _count(details, "cached_tokens")) is not None:
            return cached
    return _count(usage, "cached_tokens", "cache_read_input_tokens")


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS:
            return value
    return None
