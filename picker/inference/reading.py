"""From the headers and the body of one HTTP request to the question choosing has to answer.

What cannot be read is no error here: the request is routed by the rest, and the upstream answers as
it would have (``Question.unreadable`` says why, for the counter and for strict mode).
"""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import orjson

from picker.inference.question import Question
from picker.inference.scan import find_members, parse_beginning, quick_to_parse
from picker.inference.surfaces import EVERY_SURFACE, UNCLAIMED, surface_named
from picker.inference.wire import UnreadableError, message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from picker.inference.scan import Body, Span
    from picker.inference.surfaces import Surface, Surfaces

PROMPT_WINDOW = 128 << 10
"""Bytes of a long body that are read as its prompt."""
_LONGEST_LENIENT = 256 << 10
"""Bytes of a body that is parsed again by a slower parser, in some milliseconds."""
_SHORT_VALUE = 4 << 10
"""Bytes of any other member that are read."""
LONGEST_NAME = 512
"""Characters of a model name or an id. What is longer is no name, and would fill logs and tables."""
_MOST_TOKENS = 1 << 31

NO_MODEL = "no model"
"""What is unreadable about a body that could be read, but names no model."""

_DEFAULT_PATH = "/v1/completions"
"""What the reference picker assumes where the gateway does not say the path."""


def _spellings(*words: str) -> tuple[str, ...]:
    """Ray Serve takes ``-`` and ``_`` in its header names for the same."""
    return tuple(
        words[0] + "".join(f"{mark}{word}" for mark, word in zip(marks, words[1:], strict=True))
        for marks in product("-_", repeat=len(words) - 1)
    )


_MULTIPLEXED = _spellings("serve", "multiplexed", "model", "id")
_SESSION = _spellings("x", "session", "id")


def read_headers(headers: Mapping[str, str], surfaces: Surfaces = EVERY_SURFACE) -> Question:
    """What the headers alone tell. Names are lower-case; pseudo headers may be missing."""
    path = headers.get(":path") or headers.get("x-original-path") or headers.get("x-forwarded-path") or ""
    path = path.partition("?")[0]
    question = Question(
        method=headers.get(":method", ""),
        path=path,
        headers=headers,
        session_id=_named(headers, _SESSION),
        multiplexed_model_id=_named(headers, _MULTIPLEXED),
    )
    # Only test clients leave out the method; theirs are inference requests.
    if question.method in ("POST", ""):
        question.surface = surfaces.of(path or _DEFAULT_PATH)
        if question.surface == UNCLAIMED:
            question.unreadable = "no parser takes the path"
        elif surface := surface_named(question.surface):
            question.unreadable = _obstacle(headers, surface)
    return question


def needs_body(question: Question) -> bool:
    """Whether the body can tell the model and the prompt, so that deciding should wait for it.

    To be asked of what :func:`read_headers` gave, which has noted what stands in the way.
    """
    return not question.unreadable and surface_named(question.surface) is not None


def read_body(question: Question, body: Body, *, complete: bool) -> None:
    """Fill in what the body tells. Never raises.

    ``complete``: the whole body is here; else it is the beginning of one that is too long to keep.
    Sets ``question.unreadable``, empty when all was found that the surface asks for.
    """
    question.body_bytes = len(body)
    surface = surface_named(question.surface)
    if surface is None:
        return
    obstacle = _obstacle(question.headers, surface)
    if obstacle:
        question.unreadable = obstacle
    elif not body:
        question.unreadable = "the body is empty"
    elif surface.unwrap is None:
        _read_json(question, surface, body, complete=complete)
    else:
        try:
            content = surface.unwrap(message(body))
        except UnreadableError as error:
            question.unreadable = str(error)
            return
        if isinstance(content, dict):
            _read_document(question, surface, content)
        else:
            _read_json(question, surface, content, complete=True)


def _read_json(question: Question, surface: Surface, body: Body, *, complete: bool) -> None:
    if complete and quick_to_parse(body):
        _read_short(question, surface, body)
    else:
        _read_long(question, surface, body, complete=complete)


def _read_short(question: Question, surface: Surface, body: Body) -> None:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        document = _leniently_parsed(body)
        if document is None:
            question.unreadable = f"not JSON: {error.msg} at byte {error.pos}"
            return
    if not isinstance(document, dict):
        question.unreadable = "not a JSON object"
        return
    _read_document(question, surface, document)


def _leniently_parsed(body: Body) -> object:
    """What Python's servers take beyond JSON: NaN, and halves of characters. None if they do not."""
    if len(body) > _LONGEST_LENIENT:
        return None
    try:
        return json.loads(str(body, "utf-8"))
    except (ValueError, RecursionError):
        return None


def _read_long(question: Question, surface: Surface, body: Body, *, complete: bool) -> None:
    others = ("model", "stream", *(name.partition(".")[0] for name in surface.output_limits))
    found = find_members(body, (*others, *surface.prompt_keys), complete=complete)
    members = found.members
    # Of a short member only the whole value counts: the beginning of a model's name is another name.
    document = {
        key: _value(body, members[key], _SHORT_VALUE)
        for key in others
        if key in members and members[key].stop is not None
    }
    room = PROMPT_WINDOW
    for key in surface.prompt_keys:
        if key in members and room > 0:
            document[key] = _value(body, members[key], room)
            start, stop = members[key]
            room -= (len(body) if stop is None else stop) - start
    _read_members(question, surface, document)
    if found.whole or question.unreadable != NO_MODEL:
        return
    question.unreadable = "no model in the part that was scanned"


def _value(body: Body, span: Span, most: int) -> object:
    start, stop = span
    if stop is None or stop - start > most:
        return parse_beginning(bytes(body[start : start + most]))
    try:
        return orjson.loads(body[start:stop])
    except orjson.JSONDecodeError:
        return None


def _read_document(question: Question, surface: Surface, document: Mapping[str, Any]) -> None:
    _read_members(question, surface, document)
    if not question.unreadable and surface.required and not any(map(document.get, surface.required)):
        question.unreadable = f"no {surface.required[0]}"


def _read_members(question: Question, surface: Surface, document: Mapping[str, Any]) -> None:
    question.stream = document.get("stream") is True
    question.prompt = surface.prompt(document) if surface.prompt else b""
    question.max_output_tokens = _output_limit(document, surface.output_limits)
    model = document.get("model")
    question.unreadable = ""
    if model is None or model == "":
        question.unreadable = NO_MODEL if surface.needs_model else ""
    elif not isinstance(model, str):
        question.unreadable = "the model is not a string"
    elif not _is_text(model):
        question.unreadable = "the model is not a text"
    elif len(model) > LONGEST_NAME:
        question.unreadable = f"the model's name is longer than {LONGEST_NAME} characters"
    else:
        question.model = model
        follow_model(question)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def follow_model(question: Question) -> None:
    """Bring in step what follows from ``question.model``, when it was read and when it was replaced."""
    # Serve LLM makes a multiplexed request of "base:adapter" and, on purpose, of nothing else.
    if not _named(question.headers, _MULTIPLEXED):
        question.multiplexed_model_id = question.model if ":" in question.model else ""


def _output_limit(document: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        member, _, inner = name.partition(".")
        limit = document.get(member)
        if inner:
            limit = limit.get(inner) if isinstance(limit, dict) else None
        if isinstance(limit, int) and not isinstance(limit, bool) and 0 <= limit < _MOST_TOKENS:
            return limit
    return None


def _named(headers: Mapping[str, str], spellings: tuple[str, ...]) -> str:
    for name in spellings:
        value = headers.get(name)
        if value and len(value) <= LONGEST_NAME:
            return value
    return ""


def _obstacle(headers: Mapping[str, str], surface: Surface) -> str:  # noqa: PLR0911 - one for each
    """Why a body with these headers can not be read as the surface's; empty where it may be."""
    if "upgrade" in headers or ":protocol" in headers:
        return "an upgraded connection has no body"
    encoding = headers.get("content-encoding")
    if encoding and encoding.strip().lower() not in ("", "identity"):
        return "the body is compressed"
    content = headers.get("content-type", "")
    if content == "application/json" and not surface.unwrap:  # nearly always
        return ""
    content = content.partition(";")[0].strip().lower()
    if surface.unwrap:
        return "" if content in ("application/grpc", "application/grpc+proto") else "the body is not gRPC"
    if content.startswith("multipart/"):
        return "the body is multipart"
    if content.startswith("application/grpc"):
        return "the body is gRPC"
    return ""
