"""What has to change in bodies where another model is asked for than the client named.

The request's body is never parsed and written anew: that would round long numbers and change the
order of keys, and with it the prompt that a chat template makes of its tools. Only the name's bytes
change. In the answer the client's name is put back, so that it does not see the difference.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import orjson

from picker.extproc.bodies import Splice
from picker.extproc.effects import NotRewritten
from picker.inference.model_name import model_span
from picker.inference.reading import NO_MODEL, follow_model
from picker.inference.restore import ModelRestorer
from picker.inference.scan import find_members, quick_to_parse
from picker.inference.surfaces import surface_named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from picker.inference.question import Question
    from picker.inference.scan import Body

_OPENING: Final = re.compile(rb"[ \t\n\r]*+\{")
_EMPTY: Final = re.compile(rb"[ \t\n\r]*+\}")
_NAMING: Final = ("application/json", "text/event-stream", "application/x-ndjson")
"""Content types of answers that name the model. All of them end by a bracket or a line's end."""


def resolve_model(
    question: Question, resolve: Callable[[Question], None], body: Body | None, *, complete: bool
) -> Splice | NotRewritten | None:
    """Find out which model to ask for, and what that changes in the body; None: nothing.

    ``body``: what the name can still be changed in. It stays the client's where the body cannot say another.
    """
    incoming = question.incoming_model = question.model
    resolve(question)
    if question.model == incoming:
        return None
    nameless = question.unreadable == NO_MODEL
    if body is not None and (incoming or nameless):
        splice = splice_model(body, question.model, complete=complete, nameless=nameless)
        if splice is not None:
            follow_model(question)
            question.unreadable = "" if nameless else question.unreadable
            return splice
    question.model = incoming
    if surface_named(question.surface) is None:
        return None
    if body is None:
        return NotRewritten("the body is not seen")
    if not incoming and not question.unreadable:
        return None  # an API whose requests name no model
    return NotRewritten("the name cannot be placed")


def splice_model(body: Body, model: str, *, complete: bool, nameless: bool) -> Splice | None:
    """The change that makes the body name ``model``. None: it cannot be made.

    A body that names a model is changed where it does so. One that should and does not (``nameless``)
    gets the name as its first member, if that is surely the only one: of two parsers take the last.
    """
    name = json.dumps(model).encode()
    span = model_span(body, complete=complete)
    if span is not None:
        return Splice(*span, name)
    opening = _OPENING.match(body)
    if not nameless or opening is None or not complete or not _names_none(body):
        return None
    at = opening.end()
    comma = b"" if _EMPTY.match(body, at) else b","
    return Splice(at, at, b'"model":' + name + comma)


def _names_none(body: Body) -> bool:
    found = find_members(body, ("model",), complete=True)
    if found.whole or not quick_to_parse(body):
        return found.whole and "model" not in found.members
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and "model" not in document


def model_restorer(question: Question, headers: Mapping[str, str]) -> ModelRestorer | None:
    """Puts the client's name into an answer with these headers. None: there is nothing to put or to find.

    Other content than JSON is left alone: in mode STREAMED nothing can be sent any more once trailers
    have come, and only JSON is known not to end in what could be the beginning of a member.
    """
    if not question.incoming_model or question.incoming_model == question.model:
        return None
    if headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        return None
    if not headers.get("content-type", "").lstrip().lower().startswith(_NAMING):
        return None
    return ModelRestorer(question.model, question.incoming_model)
