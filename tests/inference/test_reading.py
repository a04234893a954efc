"""What is read from headers and bodies, and that nothing a client sends raises."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.inference.reading import PROMPT_WINDOW, needs_body, read_body, read_headers
from picker.inference.scan import LONGEST_PARSED

if TYPE_CHECKING:
    from picker.inference.question import Question

CHAT = {":method": "POST", ":path": "/v1/chat/completions"}


def asked(
    document: Any, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None
) -> Question:
    return asked_raw(json.dumps(document).encode(), path, headers)


def asked_raw(
    body: bytes,
    path: str = "/v1/chat/completions",
    headers: dict[str, str] | None = None,
    *,
    complete: bool = True,
) -> Question:
    question = read_headers({":method": "POST", ":path": path, **(headers or {})})
    read_body(question, body, complete=complete)
    return question


# Bad input first: the request goes on, routed by its headers.


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "the body is empty"),
        (b"no json", "not JSON"),
        (b'{"model": "m"', "not JSON"),
        (b'{"model": "m", "temperature": nan}', "not JSON"),
        (b'{"model": "m", "temperature": NaN, "user": "' + b"u" * (256 << 10) + b'"}', "not JSON"),
        (b'{"model": NaN}', "the model is not a string"),
        (rb'{"model": "\ud800"}', "the model is not a text"),
        (b'{"n": NaN, "x": ' + b"[" * 5_000, "not JSON"),
        (b'\xef\xbb\xbf{"model": "m"}', "not JSON"),
        (b'{"model": "\xff"}', "not JSON"),
        (b"[" * 3000, "not JSON"),
        (b'["model"]', "not a JSON object"),
        (b'"model"', "not a JSON object"),
        (b"{}", "no model"),
        (b'{"model": ""}', "no model"),
        (b'{"model": null}', "no model"),
        (b'{"nested": {"model": "m"}}', "no model"),
        (b'{"model": 7}', "the model is not a string"),
        (b'{"model": {"model": "m"}}', "the model is not a string"),
        (b'{"model": "' + b"m" * 513 + b'"}', "the model's name is longer than 512 characters"),
        (b'{"messages": [{"model": "m"}]}', "no model"),
    ],
)
def test_an_unreadable_body_says_why_and_gives_no_model(body: bytes, why: str) -> None:
    question = asked_raw(body)
    assert question.unreadable.startswith(why)
    assert question.model == ""
    assert question.body_bytes == len(body)


@pytest.mark.parametrize(
    ("header", "value", "why"),
    [
        ("content-encoding", "gzip", "the body is compressed"),
        ("content-type", "multipart/form-data; boundary=x", "the body is multipart"),
        ("content-type", "application/grpc+proto", "the body is gRPC"),
        ("upgrade", "websocket", "an upgraded connection has no body"),
        (":protocol", "websocket", "an upgraded connection has no body"),
    ],
)
def test_bodies_that_can_not_be_json_are_not_asked_for(header: str, value: str, why: str) -> None:
    question = read_headers({**CHAT, header: value})
    assert not needs_body(question)
    assert question.unreadable == why
    read_body(question, b'{"model": "m"}', complete=True)
    assert (question.unreadable, question.model) == (why, "")


@given(st.binary(max_size=60), st.booleans())
@settings(max_examples=60, deadline=None)
def test_garbage_never_raises(garbage: bytes, complete: bool) -> None:
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/completions"):
        asked_raw(garbage, path, complete=complete)
        asked_raw(b'{"model":"m","messages":' + garbage + b"}", path, complete=complete)


_ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "text", "type", "tool_calls", "input"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "model",
                "stream",
                "messages",
                "prompt",
                "input",
                "tools",
                "instructions",
                "max_tokens",
                "max_output_tokens",
            ]
        ),
        _ODD,
    ),
    st.sampled_from(["chat/completions", "completions", "embeddings", "responses"]),
)
@settings(max_examples=60, deadline=None)
def test_values_of_any_shape_are_taken_or_left(document: dict[str, Any], surface: str) -> None:
    question = asked(document, "/v1/" + surface)
    assert isinstance(question.prompt, bytes)
    assert isinstance(question.model, str)
    assert question.unreadable if not question.model else question.unreadable[:3] in ("", "no ")


def test_tools_nested_too_deep_to_write_are_left_out_of_the_prompt() -> None:
    tools = b"[" * 600 + b"]" * 600
    question = asked_raw(b'{"model":"m","tools":' + tools + b',"messages":[{"role":"user","content":"hi"}]}')
    assert question.prompt == b"user\nhi"


# Headers.


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "CONNECT", "DELETE"])
def test_only_a_post_asks_for_inference(method: str) -> None:
    question = read_headers({":method": method, ":path": "/v1/chat/completions"})
    assert question.surface == "passthrough"
    assert not needs_body(question)


@pytest.mark.parametrize(
    ("headers", "path", "surface"),
    [
        ({"x-original-path": "/v1/embeddings?x"}, "/v1/embeddings", "embeddings"),
        ({"x-forwarded-path": "/v1/responses"}, "/v1/responses", "responses"),
        ({":path": "/v1/embeddings", "x-original-path": "/v1/responses"}, "/v1/embeddings", "embeddings"),
        ({}, "", "completions"),
    ],
)
def test_where_the_path_is_missing_others_stand_in(headers: dict[str, str], path: str, surface: str) -> None:
    question = read_headers(headers)
    assert (question.path, question.surface) == (path, surface)
    assert needs_body(question)


@pytest.mark.parametrize(
    "name", ["serve_multiplexed_model_id", "serve-multiplexed-model-id", "serve-multiplexed_model-id"]
)
def test_ray_serves_model_header_in_all_its_spellings(name: str) -> None:
    assert read_headers({**CHAT, name: "adapter"}).multiplexed_model_id == "adapter"


@pytest.mark.parametrize("name", ["x-session-id", "x_session_id", "x-session_id"])
def test_ray_serves_session_header_in_all_its_spellings(name: str) -> None:
    assert read_headers({**CHAT, name: "me"}).session_id == "me"


def test_an_id_of_absurd_length_is_none() -> None:
    question = read_headers({**CHAT, "x-session-id": "s" * 513, "serve_multiplexed_model_id": "m" * 513})
    assert (question.session_id, question.multiplexed_model_id) == ("", "")


# Bodies.


def test_what_pythons_parser_takes_is_read() -> None:
    question = asked_raw(
        rb'{"model":"a","model":"m","temperature":NaN,"tools":[NaN,"\ud83d"],'
        rb'"messages":[{"role":"user","content":"cut \ud83d"},{"role":"x","content":[{"text":"\ude00"}]}]}'
    )
    assert (question.model, question.unreadable) == ("m", "")
    assert question.prompt == b"user\ncut \xed\xa0\xbd\nx\n\xed\xb8\x80"
    assert asked_raw(rb'{"model":"m","prompt":["\ud83d"]}', "/v1/completions").prompt == b"\xed\xa0\xbd"


def test_a_passthrough_body_is_only_measured() -> None:
    question = asked({"model": "m"}, "/predict")
    assert (question.model, question.unreadable, question.body_bytes) == ("", "", 14)


def test_a_chat_as_the_engine_sees_it() -> None:
    question = asked(
        {
            "model": "m",
            "stream": True,
            "max_tokens": 5,
            "max_completion_tokens": 7,
            "tools": [{"type": "function"}],
            "messages": [
                {"role": "system", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is it?"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    ],
                },
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            ],
        }
    )
    assert question.model == "m"
    assert question.stream
    assert question.max_output_tokens == 7
    assert question.unreadable == ""
    before = b'[{"type":"function"}]\nsystem\nBe brief.\nuser\nWhat is it?\n'
    after = b'\nassistant\n[{"id":"1"}]'
    assert question.prompt.startswith(before)
    assert question.prompt.endswith(after)
    assert len(question.prompt) == len(before) + 900 + len(after)  # an image is 225 tokens


def test_a_growing_conversation_only_adds_to_its_prompt() -> None:
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    first = asked({"model": "m", "messages": messages})
    second = asked({"model": "m", "messages": [*messages, {"role": "user", "content": "three"}]})
    assert second.prompt.startswith(first.prompt)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("héllo", "héllo".encode()),
        (["a", "b"], b"a\nb"),
        ([1, 2, 70000], struct.pack("<3I", 1, 2, 70000)),
        ([[1], [2]], struct.pack("<I", 1) + b"\n" + struct.pack("<I", 2)),
        ([1, -2], b""),
        ([1, "x"], b""),
        ([], b""),
        (None, b""),
    ],
)
def test_the_prompt_of_completions_and_embeddings(prompt: Any, expected: bytes) -> None:
    assert asked({"model": "m", "prompt": prompt}, "/v1/completions").prompt == expected
    assert asked({"model": "m", "input": prompt}, "/v1/embeddings").prompt == expected


def test_token_ids_are_counted_exactly() -> None:
    assert asked({"model": "m", "prompt": list(range(100))}, "/v1/completions").prompt_tokens == 100


def test_the_prompt_of_responses() -> None:
    document: dict[str, Any] = {"model": "m", "instructions": "Do.", "tools": [{}], "max_output_tokens": 3}
    text = asked({**document, "input": "hi"}, "/v1/responses")
    assert (text.prompt, text.max_output_tokens) == (b"Do.\n[{}]\nhi", 3)
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call_output", "output": "x"},
    ]
    assert asked({**document, "input": items}, "/v1/responses").prompt == (
        b'Do.\n[{}]\nuser\nhi\n{"type":"function_call_output","output":"x"}'
    )


@pytest.mark.parametrize("limit", [True, -1, 1.5, "7", None, 1 << 40])
def test_an_output_limit_that_is_none_is_left(limit: Any) -> None:
    assert asked({"model": "m", "max_tokens": limit}).max_output_tokens is None


def test_serve_llm_multiplexes_only_adapters() -> None:
    assert asked({"model": "base:lora:v2"}).multiplexed_model_id == "base:lora:v2"
    assert asked({"model": "base"}).multiplexed_model_id == ""
    said = asked({"model": "base:lora"}, headers={"serve-multiplexed-model-id": "other"})
    assert said.multiplexed_model_id == "other"


def test_the_last_of_repeated_members_counts() -> None:
    assert asked_raw(b'{"model":"a","model":"b"}').model == "b"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("size", [10, 2 * LONGEST_PARSED])
def test_every_kind_of_buffer_short_or_long(kind: type, size: int) -> None:
    question = read_headers(CHAT)
    document = {"messages": [{"role": "user", "content": "a" * size}], "model": "m", "stream": True}
    read_body(question, kind(json.dumps(document).encode()), complete=True)
    assert (question.model, question.stream, question.unreadable) == ("m", True, "")
    assert question.prompt.startswith(b"user\naaaa")


# Long bodies.


@pytest.mark.parametrize("first", [True, False])
def test_a_long_body_gives_the_beginning_of_the_same_prompt(first: bool) -> None:
    turns = [{"role": "user", "content": f'Turn {n}, "quoted" \\ and\né 漢 😀'} for n in range(100_000)]
    small = {"model": "base:lora", "stream": True, "max_tokens": 9}
    long = {**small, "messages": turns} if first else {"messages": turns, **small}
    question = asked(long)
    assert (question.model, question.stream, question.max_output_tokens) == ("base:lora", True, 9)
    assert question.multiplexed_model_id == "base:lora"
    assert 1000 < len(question.prompt) <= PROMPT_WINDOW
    whole = asked({**small, "messages": turns[:5000]}).prompt
    assert whole.startswith(question.prompt)


def test_a_long_text_that_is_cut_is_kept_up_to_the_cut() -> None:
    text = "".join(f"line {n}\n" for n in range(200_000))
    question = asked({"model": "m", "prompt": text}, "/v1/completions")
    assert len(question.prompt) > PROMPT_WINDOW // 2
    assert text.encode().startswith(question.prompt)


def test_the_window_of_a_long_body_is_shared_by_its_parts() -> None:
    tools = [{"text": "t" * PROMPT_WINDOW}]
    question = asked(
        {"tools": tools, "messages": [{"role": "user", "content": "a" * LONGEST_PARSED}], "model": "m"}
    )
    assert question.prompt.startswith(b'[{"text":"tttt')
    assert len(question.prompt) < PROMPT_WINDOW + 10  # the closing brackets come on top


def test_a_long_body_without_model_says_so() -> None:
    assert asked({"prompt": "a" * 2 * LONGEST_PARSED}).unreadable == "no model"


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[' + b"[" * 2 * LONGEST_PARSED,
        b"{" + b" " * 2 * LONGEST_PARSED + b'"model":"m"' + b" " * LONGEST_PARSED + b"}",
        b'{"a":' + b"1" * 2 * LONGEST_PARSED + b"}",
        b"\xff" * 2 * LONGEST_PARSED,
        b'{"a":"' + b"\\" * 2 * LONGEST_PARSED,
        b"[" + b'{"model":"m"},' * LONGEST_PARSED + b"{}]",
    ],
    ids=["brackets", "blanks", "digits", "not UTF-8", "backslashes", "a list"],
)
def test_a_long_body_that_is_odd_is_given_up(body: bytes) -> None:
    question = asked_raw(body)
    assert question.unreadable == "no model in the part that was scanned"
    assert question.model == ""


def test_a_body_of_very_many_containers_is_scanned_however_short() -> None:
    question = asked_raw(b'{"model":"m","messages":[' + b"[]," * 100_000 + b"[]]}")
    assert (question.model, question.unreadable) == ("m", "")


def test_the_beginning_of_a_body_tells_what_it_has() -> None:
    body = json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "one two"}]}
    ).encode()
    question = asked_raw(body[:-8], complete=False)
    assert (question.model, question.stream, question.prompt) == ("m", True, b"user\none")
    assert asked_raw(b'{"messages": [', complete=False).unreadable == "no model in the part that was scanned"


def test_the_beginning_of_a_model_is_no_model() -> None:
    assert asked_raw(b'{"model":"mod', complete=False).model == ""
    assert asked_raw(b'{"model":"mod"', complete=False).model == "mod"
    long = b'{"model":"' + b"m" * 2 * LONGEST_PARSED + b'"}'
    assert asked_raw(long).unreadable == "the model's name is longer than 512 characters"
