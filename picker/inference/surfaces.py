"""The API surfaces whose requests can be read. A further one is one more entry in the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from picker.inference import prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PASSTHROUGH = "passthrough"
"""The surface of every other path: not read, still balanced."""


@dataclass(frozen=True, slots=True)
class Surface:
    """One API: the end of its path, and where its JSON body says what is asked.

    ``prompt`` gets the parsed body (or of a long one at least the members in ``prompt_keys``, the
    last of them perhaps cut short). ``output_limits`` are the names of the bound on output tokens,
    the first one present counts.
    """

    name: str
    suffix: str
    prompt_keys: tuple[str, ...]
    prompt: Callable[[Mapping[str, Any]], bytes]
    output_limits: tuple[str, ...] = ()
    usage_key: str = "usage"
    grpc: bool = False


_SURFACES = (
    Surface(
        "chat",
        "/chat/completions",
        ("tools", "messages"),
        prompts.chat,
        ("max_completion_tokens", "max_tokens"),
    ),
    Surface("completions", "/completions", ("prompt",), prompts.completion, ("max_tokens",)),
    Surface("embeddings", "/embeddings", ("input",), prompts.embedding),
    Surface(
        "responses",
        "/responses",
        ("instructions", "tools", "input"),
        prompts.responses,
        ("max_output_tokens",),
    ),
)
_LONGEST_FIRST = sorted(_SURFACES, key=lambda surface: len(surface.suffix), reverse=True)
_BY_NAME = {surface.name: surface for surface in _SURFACES}


def surface_of(path: str) -> str:
    """The name of the surface with the longest suffix that ends ``path`` (given without query)."""
    for surface in _LONGEST_FIRST:
        if path.endswith(surface.suffix):
            return surface.name
    return PASSTHROUGH


def surface_named(name: str) -> Surface | None:
    """The entry of the table; None for what passes through."""
    return _BY_NAME.get(name)
