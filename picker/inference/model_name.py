"""Where a body says the model, for the few requests whose model is written anew."""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

import orjson

from picker.inference.scan import Body, find_members, quick_to_parse

_OPENING: Final = re.compile(rb"[ \t\n\r]*+\{")
_VALUE: Final = rb'[ \t\n\r]*+:[ \t\n\r]*+("[^"\\]*+(?:\\.[^"\\]*+)*+"|[^\s,"{}\[\]]++)'
_NAMED: Final = re.compile(rb'"model"' + _VALUE, re.DOTALL)
"""A member with the name of the model whose value is a text or a scalar."""
_NAMED_ANYHOW: Final = re.compile(
    rb'"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"' + _VALUE, re.DOTALL
)
"""The same in all spellings; it takes ten times as long to find."""
_MOST_NAMED: Final = 1_000
"""Members of the name that are looked at."""
_MOST_TRIED: Final = 4
"""Members of the same name and value that are told apart; each takes one more parsing of the body."""
_MARK: Final = b'"\\u0000picker"'
_MARKED: Final = "\0picker"


def model_span(body: Body, *, complete: bool) -> tuple[int, int] | None:
    """Byte offsets of the value (a text with its quotes) of the last top-level ``model``.

    None where there is none, or it can not be told which one it is. ``complete`` as in ``read_body``:
    the same is found that reading has found.
    """
    if not _OPENING.match(body):  # a body in a gRPC frame may end like JSON
        return None
    found = find_members(body, ("model",), complete=complete)
    if not found.whole and complete and quick_to_parse(body):
        return _span_in_parsed(bytes(body))
    start, stop = found.members.get("model", (0, None))
    return None if stop is None else (start, stop)


def _span_in_parsed(body: bytes) -> tuple[int, int] | None:
    """Of a body with too many parts to walk over: ask the parser.

    The member that is looked for must look like one, and have the value that the parser gives.
    """
    try:
        document = orjson.loads(body)
        if "model" not in document:
            return None
        model = document["model"]
        named = (_NAMED_ANYHOW if b"\\u006" in body else _NAMED).finditer(body)
        spans = [match.span(1) for match in islice(named, _MOST_NAMED) if orjson.loads(match[1]) == model]
        if next(named, None):
            return None
    except (orjson.JSONDecodeError, TypeError):
        return None
    if len(spans) == 1:
        return spans[0]
    for start, stop in spans[: -_MOST_TRIED - 1 : -1]:
        marked = orjson.loads(body[:start] + _MARK + body[stop:])
        if marked.get("model") == _MARKED:
            return start, stop
    return None
