"""What one HTTP request asks for, as far as it could be read from its headers and body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BYTES_PER_TOKEN = 4
"""Rule of thumb where no tokenizer is at hand; the reference picker estimates the same way."""


@dataclass(slots=True)
class Question:
    """One request, as choosing sees it. Fields that could not be read keep their empty default.

    ``headers`` has lower-case names and, for a repeated header, its values joined by ``,``.
    ``path`` is without the query. ``prompt`` is what prefixes are compared by, in the order an
    engine sees it. ``unreadable`` says in a few words why the body gave no model, or nothing to do for
    it; it is empty where no body had to be read. ``subset`` is the gateway's list of allowed endpoints
    (``None``: no restriction; empty: nothing is allowed).

    ``incoming_model`` is what the client named; ``model`` what is asked of the endpoint, which a rewrite
    rule may have changed (where it has to be written: :func:`picker.inference.model_name.model_span`).
    ``told_tokens`` and ``told_blocks`` are the length of the prompt and the ids of its blocks where they
    are told instead of read: a replay has no text.
    ``priority`` comes from an InferenceObjective; below zero the request may be shed.
    """

    method: str = ""
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    surface: str = "passthrough"
    model: str = ""
    incoming_model: str = ""
    priority: int = 0
    prompt: bytes = b""
    stream: bool = False
    max_output_tokens: int | None = None
    session_id: str = ""
    multiplexed_model_id: str = ""
    subset: tuple[str, ...] | None = None
    body_bytes: int = 0
    unreadable: str = ""
    told_tokens: int | None = None
    told_blocks: tuple[int, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt in tokens, estimated unless told; 0 where no prompt was read."""
        if self.told_tokens is not None:
            return self.told_tokens
        return -(-len(self.prompt) // BYTES_PER_TOKEN)
