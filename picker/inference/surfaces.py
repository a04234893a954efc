"""The API surfaces whose requests can be read. A further one is one more entry in the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from picker.inference import prompts, wire
from picker.inference.scan import Body

if TYPE_CHECKING:
    from collections.abc import Collection


PASSTHROUGH: Final = "passthrough"
"""The surface of every other path: not read, still balanced."""


@dataclass(frozen=True, slots=True)
class Surface:
    """One API: the end of its path, and where its JSON body says what is asked.

    ``parser`` is the name under which a policy file lists it. ``prompt`` gets the parsed body (or of a
    long one at least the members in ``prompt_keys``, the last of them perhaps cut short); None where
    the engine computes nothing that a prefix cache would keep. ``output_limits`` are the names of the
    bound on output tokens, a dot between a member and one inside it; the first one present counts.
    A body without a model, or with none of ``required``, counts as unreadable.
    ``usage_key`` names the object of the answer that says what was used; empty where none does.
    ``unwrap`` gets the message of a gRPC request, and gives the body in it or what a body would say.
    """

    name: str
    parser: str
    suffix: str
    prompt_keys: tuple[str, ...] = ()
    prompt: Callable[[Mapping[str, Any]], bytes] | None = None
    output_limits: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    needs_model: bool = True
    exact: bool = False
    usage_key: str = "usage"
    unwrap: Callable[[memoryview], Body | dict[str, Any]] | None = None


_OPENAI: Final = "openai-parser"
_ANTHROPIC: Final = "anthropic-parser"
_VLLM: Final = "vllmhttp-parser"
_SGLANG: Final = "sglanghttp-parser"
_VLLM_GRPC: Final = "vllmgrpc-parser"
_VERTEX: Final = "vertexai-parser"
_RAY: Final = "rayserve-parser"
"""Ours; the reference picker knows no Ray Serve. Transcriptions are multipart and pass through."""
PASSTHROUGH_PARSER: Final = "passthrough-parser"

_CHAT_LIMITS: Final = ("max_completion_tokens", "max_tokens")
_CHAT_KEYS: Final = ("cache_salt", "tools", "messages")
_RESPONSES_KEYS: Final = ("instructions", "tools", "input")

_SURFACES: Final = (
    Surface(
        "chat", _OPENAI, "/chat/completions", _CHAT_KEYS, prompts.chat, _CHAT_LIMITS, required=("messages",)
    ),
    Surface(
        "completions",
        _OPENAI,
        "/completions",
        ("cache_salt", "prompt"),
        prompts.completion,
        ("max_tokens",),
        required=("prompt", "prompt_embeds"),
    ),
    Surface("chat-render", _OPENAI, "/chat/completions/render", required=("messages",), usage_key=""),
    Surface("completions-render", _OPENAI, "/completions/render", required=("prompt",), usage_key=""),
    Surface(
        "embeddings",
        _OPENAI,
        "/embeddings",
        ("input", "messages"),
        prompts.embedding,
        required=("input", "messages"),
    ),
    Surface(
        "responses",
        _OPENAI,
        "/responses",
        ("cache_salt", *_RESPONSES_KEYS),
        prompts.responses,
        ("max_output_tokens",),
        required=("input",),
    ),
    Surface(
        "conversations",
        _OPENAI,
        "/conversations",
        ("items",),
        prompts.conversation,
        required=("items",),
    ),
    Surface("images", _OPENAI, "/images/generations", ("prompt",), prompts.completion, required=("prompt",)),
    Surface(
        "messages",
        _ANTHROPIC,
        "/messages",
        ("tools", "system", "messages"),
        prompts.anthropic,
        ("max_tokens",),
        required=("messages",),
    ),
    Surface("count-tokens", _ANTHROPIC, "/messages/count_tokens", required=("messages",), usage_key=""),
    Surface(
        "vllm-generate",
        _VLLM,
        "/inference/v1/generate",
        ("cache_salt", "token_ids"),
        prompts.vllm_generate,
        ("sampling_params.max_tokens",),
        required=("token_ids",),
        needs_model=False,
    ),
    Surface(
        "sglang-generate",
        _SGLANG,
        "/generate",
        ("extra_key", "text", "input_ids"),
        prompts.sglang_generate,
        ("sampling_params.max_new_tokens",),
        required=("input_ids", "text"),
        needs_model=False,
        exact=True,
        usage_key="meta_info",
    ),
    Surface("score", _RAY, "/v1/score", ("text_1", "text_2"), prompts.score, needs_model=False),
    Surface("tokenize", _RAY, "/tokenize", needs_model=False, usage_key=""),
    Surface("detokenize", _RAY, "/detokenize", needs_model=False, usage_key=""),
    *(
        Surface(
            f"vllm-grpc-{method.lower()}",
            _VLLM_GRPC,
            f"/vllm.grpc.engine.VllmEngine/{method}",
            prompt=prompts.vllm_grpc,
            output_limits=("max_tokens",),
            required=("tokens", "text"),
            needs_model=False,
            exact=True,
            usage_key="",
            unwrap=wire.vllm_request,
        )
        for method in ("Generate", "Embed")
    ),
    *(
        Surface(
            f"vertex-{name}",
            _VERTEX,
            f"/google.cloud.aiplatform.{version}.PredictionService/{method}",
            (*_CHAT_KEYS, "instructions", "input"),
            prompts.chat_or_responses,
            (*_CHAT_LIMITS, "max_output_tokens"),
            required=("messages", "input"),
            exact=True,
            unwrap=wire.vertex_body,
        )
        for version in ("v1", "v1beta1")
        for method, name in (
            ("ChatCompletions", "chat"),
            ("RawPredict", "raw"),
            ("StreamRawPredict", "stream"),
        )
    ),
)
_BY_NAME: Final = {surface.name: surface for surface in _SURFACES}
PARSERS: Final = frozenset({PASSTHROUGH_PARSER, *(surface.parser for surface in _SURFACES)})
"""The names that a policy file may list."""


class Surfaces:
    """The surfaces that are read: those of the parsers listed, by default of all.

    Without the passthrough parser a path that no other one takes is ``unclaimed``.
    """

    __slots__ = ("_by_last_segment", "_other")

    def __init__(self, parsers: Collection[str] = PARSERS) -> None:
        if unknown := sorted(set(parsers) - PARSERS):
            raise ValueError(f"unknown parser {unknown[0]!r}; there are {', '.join(sorted(PARSERS))}")
        self._other = PASSTHROUGH if PASSTHROUGH_PARSER in parsers else UNCLAIMED
        self._by_last_segment: dict[str, list[Surface]] = {}
        for surface in sorted(_SURFACES, key=lambda surface: len(surface.suffix), reverse=True):
            if surface.parser in parsers:
                segment = surface.suffix.rpartition("/")[2]
                self._by_last_segment.setdefault(segment, []).append(surface)

    def of(self, path: str) -> str:
        """The name of the surface with the longest suffix that ends ``path`` (given without query)."""
        for surface in self._by_last_segment.get(path.rpartition("/")[2], ()):
            if path == surface.suffix if surface.exact else path.endswith(surface.suffix):
                return surface.name
        return self._other


UNCLAIMED: Final = "unclaimed"
"""The surface of a path that no parser takes where what is unclaimed does not pass through."""
EVERY_SURFACE: Final = Surfaces()


def surface_named(name: str) -> Surface | None:
    """The entry of the table; None for what is not read."""
    return _BY_NAME.get(name)
