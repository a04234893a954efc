"""Which API a path belongs to, and what is read of each API's bodies."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.inference.reading import needs_body, read_body, read_headers
from picker.inference.scan import LONGEST_PARSED
from picker.inference.surfaces import PARSERS, Surfaces, surface_named

if TYPE_CHECKING:
    from picker.inference.question import Question

TOKENS = struct.pack("<3I", 1, 2, 70_000)


def asked(path: str, body: bytes | dict[str, Any], **headers: str) -> Question:
    question = read_headers({":method": "POST", ":path": path, **headers})
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    read_body(question, raw, complete=True)
    return question


# Paths.


@pytest.mark.parametrize(
    ("path", "surface"),
    [
        ("/", "passthrough"),
        ("", "completions"),
        ("/predict", "passthrough"),
        ("/v1/mycompletions", "passthrough"),
        ("/chat/completions/", "passthrough"),
        ("/v1/audio/transcriptions", "passthrough"),
        ("/v1/conversations/1/items", "passthrough"),
        ("/v1/chat/completions", "chat"),
        ("/app/prefix/v1/chat/completions?key=1", "chat"),
        ("/v1/completions", "completions"),
        ("/v1/chat/completions/render", "chat-render"),
        ("/v1/completions/render", "completions-render"),
        ("/render", "passthrough"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/responses", "responses"),
        ("/v1/conversations", "conversations"),
        ("/v1/images/generations", "images"),
        ("/v1/generations", "passthrough"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", "count-tokens"),
        ("/inference/v1/generate", "vllm-generate"),
        ("/app/inference/v1/generate", "vllm-generate"),
        ("/generate", "sglang-generate"),
        ("/app/generate", "passthrough"),
        ("/v1/score", "score"),
        ("/score", "passthrough"),
        ("/tokenize", "tokenize"),
        ("/app/detokenize", "detokenize"),
        ("/vllm.grpc.engine.VllmEngine/Generate", "vllm-grpc-generate"),
        ("/vllm.grpc.engine.VllmEngine/Embed", "vllm-grpc-embed"),
        ("/vllm.grpc.engine.VllmEngine/HealthCheck", "passthrough"),
        ("/google.cloud.aiplatform.v1.PredictionService/ChatCompletions", "vertex-chat"),
        ("/google.cloud.aiplatform.v1beta1.PredictionService/RawPredict", "vertex-raw"),
        ("/google.cloud.aiplatform.v1.PredictionService/StreamRawPredict", "vertex-stream"),
        ("/google.cloud.aiplatform.v1.PredictionService/Predict", "passthrough"),
    ],
)
def test_the_surface_is_told_by_the_longest_end_of_the_path(path: str, surface: str) -> None:
    question = read_headers({":method": "POST", ":path": path})
    assert question.surface == surface
    assert "?" not in question.path
    grpc = {"content-type": "application/grpc"} if surface.startswith(("vllm-grpc", "vertex")) else {}
    assert needs_body(read_headers({":method": "POST", ":path": path, **grpc})) == (surface != "passthrough")


def test_a_list_of_parsers_reads_exactly_those() -> None:
    surfaces = Surfaces(["anthropic-parser", "sglanghttp-parser"])
    headers = {":method": "POST", ":path": "/v1/messages"}
    assert read_headers(headers, surfaces).surface == "messages"
    question = read_headers({**headers, ":path": "/v1/chat/completions"}, surfaces)
    assert (question.surface, question.unreadable) == ("unclaimed", "no parser takes the path")
    assert not needs_body(question)
    read_body(question, b'{"model":"m"}', complete=True)
    assert (question.model, question.unreadable) == ("", "no parser takes the path")
    assert read_headers({":method": "GET", ":path": "/v1/models"}, surfaces).unreadable == ""


def test_the_passthrough_parser_takes_the_rest() -> None:
    surfaces = Surfaces(["anthropic-parser", "passthrough-parser"])
    question = read_headers({":method": "POST", ":path": "/v1/chat/completions"}, surfaces)
    assert (question.surface, question.unreadable) == ("passthrough", "")


def test_a_parser_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match=r"^unknown parser 'gemini-parser'; there are anthropic-parser, .*"):
        Surfaces(["gemini-parser", "openai-parser"])
    assert len(PARSERS) == 8


# Bodies. Bad ones first.


@pytest.mark.parametrize(
    ("path", "document", "why"),
    [
        ("/v1/chat/completions", {"model": "m"}, "no messages"),
        ("/v1/chat/completions", {"model": "m", "messages": []}, "no messages"),
        ("/v1/completions", {"model": "m", "prompt": ""}, "no prompt"),
        ("/v1/completions", {"model": "m", "prompt": []}, "no prompt"),
        ("/v1/responses", {"model": "m"}, "no input"),
        ("/v1/conversations", {"model": "m"}, "no items"),
        ("/v1/embeddings", {"model": "m"}, "no input"),
        ("/v1/images/generations", {"model": "m"}, "no prompt"),
        ("/v1/messages", {"model": "m"}, "no messages"),
        ("/v1/messages/count_tokens", {"messages": [1]}, "no model"),
        ("/inference/v1/generate", {"model": "m"}, "no token_ids"),
        ("/generate", {"input_ids": []}, "no input_ids"),
    ],
)
def test_a_body_without_what_its_api_needs_is_unreadable(
    path: str, document: dict[str, Any], why: str
) -> None:
    question = asked(path, document)
    assert (question.unreadable, question.model) == (why, document.get("model", ""))


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/inference/v1/generate", {"token_ids": [1]}),
        ("/generate", {"text": "hi"}),
        ("/v1/score", {"text_1": "a", "text_2": ["b"]}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
def test_some_apis_need_no_model(path: str, document: dict[str, Any]) -> None:
    assert asked(path, document).unreadable == ""
    assert asked(path, document | {"model": "m"}).model == "m"


@pytest.mark.parametrize(
    ("path", "document", "prompt", "limit"),
    [
        (
            "/v1/messages",
            {
                "tools": [{}],
                "system": "Be.",
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 3,
            },
            b"[{}]\nBe.\nuser\nhi",
            3,
        ),
        (
            "/v1/messages",
            {
                "system": [{"type": "text", "text": "Be.", "cache_control": {"type": "ephemeral"}}],
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "input": {}, "cache_control": {}}],
                    },
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "content": [
                                    {"type": "text", "text": "ok"},
                                    {"type": "tool_result", "content": "deep"},
                                ],
                            },
                            {"type": "tool_result", "content": "ok", "cache_control": {}},
                            "no part",
                            7,
                        ],
                    },
                ],
            },
            b"\n".join(
                [
                    b"Be.",
                    b"assistant",
                    b'{"type":"tool_use","input":{}}',
                    b"user",
                    b"ok",
                    b'{"type":"tool_result","content":"deep"}',
                    b"ok",
                ]
            ),
            None,
        ),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}, b"", None),
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "hi"}]}, b"", None),
        ("/v1/completions", {"cache_salt": "me", "prompt": "hi"}, b"me\nhi", None),
        ("/v1/conversations", {"items": [{"role": "user", "content": "hi"}]}, b"user\nhi", None),
        ("/v1/images/generations", {"prompt": "a cat"}, b"a cat", None),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "hi"}]}, b"user\nhi", None),
        (
            "/inference/v1/generate",
            {"token_ids": [1, 2, 70_000], "sampling_params": {"max_tokens": 4}},
            TOKENS,
            4,
        ),
        (
            "/generate",
            {"input_ids": [1, 2, 70_000], "extra_key": "me", "sampling_params": {"max_new_tokens": 4}},
            b"me\n" + TOKENS,
            4,
        ),
        ("/generate", {"text": ["a", "b"], "sampling_params": [4]}, b"a\nb", None),
        ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}, b"a\nb\nc", None),
        ("/tokenize", {"prompt": "a"}, b"", None),
    ],
)
def test_the_prompt_and_the_output_limit_of_each_api(
    path: str, document: dict[str, Any], prompt: bytes, limit: int | None
) -> None:
    short = asked(path, document | {"model": "m"})
    assert (short.prompt, short.max_output_tokens, short.unreadable) == (prompt, limit, "")
    long = asked(path, document | {"model": "m", "user": "u" * LONGEST_PARSED})
    assert (long.prompt, long.max_output_tokens, long.unreadable) == (prompt, limit, "")


def test_media_are_told_apart_by_placeholders() -> None:
    def prompt(url: str, kind: str = "image_url") -> bytes:
        content = [{"type": kind, kind: {"url": url}}, {"type": "text", "text": "What?"}]
        document = {"model": "m", "messages": [{"role": "user", "content": content}]}
        return asked("/v1/chat/completions", document).prompt

    assert prompt("data:a") == prompt("data:a")
    assert prompt("data:a") != prompt("data:b")
    assert len(prompt("data:" + "a" * 500_000)) == len(prompt("data:a")) == len(b"user\n\nWhat?") + 900
    assert len(prompt("data:a", "video_url")) == len(prompt("data:a"))


def test_very_many_media_make_no_endless_prompt() -> None:
    content = [{"type": "image", "source": {}}] * 2_500
    question = asked("/v1/messages", {"model": "m", "messages": [{"role": "user", "content": content}]})
    assert 1 << 20 < len(question.prompt) < (1 << 20) + 4_000


# gRPC.

GRPC = {"content-type": "application/grpc"}
GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
VERTEX = "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions"


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def framed(message: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(message).to_bytes(4) + message


def tokens(*ids: int) -> bytes:
    return field(2, field(1, b"text") + field(2, b"".join(map(varint, ids))))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\0\0", "not a gRPC message"),
        (b'{"model":"m"}', "not a gRPC message"),
        (framed(b"", 1), "the gRPC message is compressed"),
        (framed(field(3, b"hi"))[:-1], "not exactly one gRPC message"),
        (framed(field(3, b"hi")) * 2, "not exactly one gRPC message"),
        (framed(b"\x1a\x05hi"), "not a protobuf message"),
        (framed(b"\x1a" + b"\xff" * 11), "not a protobuf message"),
        (framed(b"\x1b"), "not a protobuf message"),
        (framed(b"\x08"), "not a protobuf message"),
        (framed(field(1, 1) * 1001), "a protobuf message of too many fields"),
        (framed(b""), "no tokens"),
        (framed(field(2, b"")), "no tokens"),
        (framed(field(2, 7) + field(3, 7) + field(4, 7)), "no tokens"),
    ],
)
def test_a_grpc_body_that_can_not_be_read_says_why(body: bytes, why: str) -> None:
    question = asked(GENERATE, body, **GRPC)
    assert (question.unreadable, question.prompt, question.model) == (why, b"", "")


@pytest.mark.parametrize(
    "content", ["application/json", "", "application/grpc-web", "application/grpc-web+proto"]
)
def test_grpc_paths_need_grpc(content: str) -> None:
    question = read_headers({":method": "POST", ":path": GENERATE, "content-type": content})
    assert not needs_body(question)
    assert question.unreadable == "the body is not gRPC"


@pytest.mark.parametrize(
    ("request_message", "prompt", "limit", "stream"),
    [
        (field(1, b"id") + field(3, b"hi"), b"hi", None, False),
        (tokens(1, 2, 70_000), TOKENS, None, False),
        (tokens(1, 2, 70_000) + field(4, b"\x0d\0\0\0\0" + field(8, 9)) + field(5, 1), TOKENS, 9, True),
        (b"\x31" + b"\0" * 8 + field(3, b"hi") + field(99, b"new"), b"hi", None, False),
        (field(3, b"\xff"), "�".encode(), None, False),
    ],
)
def test_vllms_engine(request_message: bytes, prompt: bytes, limit: int | None, stream: bool) -> None:
    question = asked(GENERATE, framed(request_message), **GRPC)
    assert (question.prompt, question.max_output_tokens, question.stream) == (prompt, limit, stream)
    assert question.unreadable == ""


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_token_ids_of_every_length(ids: list[int]) -> None:
    path = "/vllm.grpc.engine.VllmEngine/Embed"
    assert asked(path, framed(tokens(*ids)), **GRPC).prompt == struct.pack(f"<{len(ids)}I", *ids)


@pytest.mark.parametrize(
    ("document", "prompt", "why"),
    [
        (b"", b"", "not JSON"),
        (b"no JSON", b"", "not JSON"),
        (b"{}", b"", "no model"),
        (b'{"model":"m"}', b"", "no messages"),
        (b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', b"user\nhi", ""),
        (b'{"model":"m","input":"hi"}', b"hi", ""),
    ],
)
def test_vertex_wraps_what_openai_takes(document: bytes, prompt: bytes, why: str) -> None:
    http_body = field(1, b"application/json") + field(2, document)
    question = asked(VERTEX, framed(field(1, b"projects/p/endpoints/e") + field(2, http_body)), **GRPC)
    assert question.unreadable.startswith(why)
    assert question.prompt == prompt
    assert bool(question.model) == (b"model" in document)


@given(st.binary(max_size=40), st.booleans())
@settings(max_examples=100, deadline=None)
def test_no_bytes_raise(message: bytes, complete: bool) -> None:
    for path in (GENERATE, VERTEX):
        for body in (message, framed(message), framed(field(2, message)), framed(tokens() + message)):
            question = read_headers({":method": "POST", ":path": path, **GRPC})
            read_body(question, body, complete=complete)
            assert isinstance(question.prompt, bytes)


def test_surfaces_that_are_not_read_have_no_entry() -> None:
    assert surface_named("passthrough") is None
    assert surface_named("unclaimed") is None
