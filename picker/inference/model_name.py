"""Where a body says the model, for the few requests whose model is written anew."""

from __future__ import annotations

import re
from typing import Final

import orjson

from picker.inference.scan import LONGEST_PARSED, Body, find_members

_OPENING: Final = re.compile(rb"[ \t\n\r]*+\{")
_NAMED: Final = re.compile(
    rb'"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"'
    rb'[ \t\n\r]*+:[ \t\n\r]*+("[^"\\]*+(?:\\.[^"\\]*+)*+"|[^\s,"{}\[\]]++)',
    re.DOTALL,
)
"""A member with the name of the model, in all spellings, whose value is a text or a scalar."""
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
    if not found.whole and complete and len(body) <= LONGEST_PARSED:
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
        spans = [match.span(1) for match in _NAMED.finditer(body) if orjson.loads(match[1]) == model]
    except (orjson.JSONDecodeError, TypeError):
        return None
    if len(spans) == 1:
        return spans[0]
    for start, stop in spans[: -_MOST_TRIED - 1 : -1]:
        marked = orjson.loads(body[:start] + _MARK + body[stop:])
        if marked.get("model") == _MARKED:
            return start, stop
    return None
