"""The prompt of a parsed request as bytes, in the order an engine sees it.

Prefixes are compared by these bytes, so a conversation that grows must only add at their end.
Nothing here trusts the shape of what a client sent: what does not fit contributes nothing.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MEDIA: Final = frozenset(
    {
        "image_url",
        "input_image",
        "image",
        "input_audio",
        "audio_url",
        "video_url",
        "input_video",
        "file",
        "input_file",
        "document",
    }
)
"""The types of the parts of a message that are no text."""
_LONGEST: Final = 1 << 20
"""Bytes of a prompt. No text of a body that is parsed is longer, but media stand for more than they take."""
_MEDIA_BYTES: Final = 900
"""225 tokens: an image of 640 by 360 at 1024 pixels a token, which the reference picker assumes too."""
_MEDIA_BEGINNING: Final = 64 << 10
"""Bytes by which media are told apart; a medium may be cut off, or too long to be read as a whole."""


def chat(document: Mapping[str, Any]) -> bytes:
    """Chat completions: tools as JSON, then of each message its role, text parts and tool calls."""
    return _joined(_salt(document), _tools(document), _messages(document.get("messages")))


def completion(document: Mapping[str, Any]) -> bytes:
    """Completions: a text, several texts, token ids or several lists of token ids."""
    return _joined(_salt(document), _text_or_tokens(document.get("prompt")))


def embedding(document: Mapping[str, Any]) -> bytes:
    """Embeddings: like completions, under another name; vLLM also takes messages."""
    return _text_or_tokens(document.get("input")) or _messages(document.get("messages"))


def responses(document: Mapping[str, Any]) -> bytes:
    """Responses: instructions, tools, then the input as a text or as items that are mostly messages."""
    head = _joined(_salt(document), _text(document.get("instructions")), _tools(document))
    asked = document.get("input")
    return _joined(head, _text(asked) if isinstance(asked, str) else _messages(asked))


def chat_or_responses(document: Mapping[str, Any]) -> bytes:
    """Either of them, by what is there."""
    return chat(document) if "messages" in document else responses(document)


def conversation(document: Mapping[str, Any]) -> bytes:
    """Conversations: the items a new one begins with."""
    return _messages(document.get("items"))


def anthropic(document: Mapping[str, Any]) -> bytes:
    """Anthropic's messages: tools, system, messages, which is the order its caching is defined in."""
    system = b"\n".join(_content(document.get("system")))
    return _joined(_tools(document), system, _messages(document.get("messages")))


def vllm_generate(document: Mapping[str, Any]) -> bytes:
    """Token ids, as vLLM's generate takes them."""
    return _joined(_salt(document), _text_or_tokens(document.get("token_ids")))


def sglang_generate(document: Mapping[str, Any]) -> bytes:
    """SGLang's generate: token ids or texts; ``extra_key`` parts its cache."""
    asked = _text_or_tokens(document.get("input_ids")) or _text_or_tokens(document.get("text"))
    return _joined(_text(document.get("extra_key")), asked)


def score(document: Mapping[str, Any]) -> bytes:
    """Score: one text or several, to be compared with others."""
    return _joined(*(_text_or_tokens(document.get(name)) for name in ("text_1", "text_2")))


def vllm_grpc(document: Mapping[str, Any]) -> bytes:
    """Requests of vLLM's gRPC API, as :func:`picker.inference.wire.vllm_request` gives them."""
    tokens = document.get("tokens")
    return tokens if isinstance(tokens, bytes) and tokens else _text(document.get("text"))


def _salt(document: Mapping[str, Any]) -> bytes:
    """What parts vLLM's prefix cache between users: prompts of different salts share nothing."""
    return _text(document.get("cache_salt"))


def _joined(*parts: bytes) -> bytes:
    return b"\n".join(part for part in parts if part)


def _text(value: object) -> bytes:
    # Lone surrogates, which Python's parser lets pass, have to be told apart as well.
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # nested deeper than orjson writes (254), though it reads 1024
        return b""


def _tools(document: Mapping[str, Any]) -> bytes:
    tools = document.get("tools")
    return _json(tools) if tools else b""


def _messages(messages: object) -> bytes:
    if not isinstance(messages, list):
        return b""
    said = (message for message in messages if message and isinstance(message, dict))
    parts: list[bytes] = []
    room = _LONGEST
    for part in chain.from_iterable(map(_message, said)):
        parts.append(part)
        room -= len(part)
        if room < 0:
            break
    return b"\n".join(parts)


def _message(message: Mapping[str, Any]) -> Iterator[bytes]:
    """Role and texts; of an item that is no message (a tool's call or output) all of it as JSON."""
    if "role" not in message:
        yield _json(message)
        return
    yield _text(message["role"])
    yield from _content(message.get("content"))
    if calls := message.get("tool_calls"):
        yield _json(calls)


def _content(content: object, *, nested: bool = False) -> Iterator[bytes]:
    """A text, or parts: texts, media, and what else there is as JSON."""
    if isinstance(content, str):
        yield _text(content)
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict):
                yield from _part(part, nested=nested)


def _part(part: Mapping[str, Any], *, nested: bool) -> Iterator[bytes]:
    kind = part.get("type")
    if isinstance(text := part.get("text"), str):
        yield _text(text)
    elif isinstance(kind, str) and kind in _MEDIA:
        yield _placeholder(part)
    elif kind == "tool_result" and not nested:
        yield from _content(part.get("content"), nested=True)
    else:
        # Clients move the mark of what is to be cached on with every turn. It is nothing an engine sees.
        yield _json({key: value for key, value in part.items() if key != "cache_control"})


def _placeholder(part: Mapping[str, Any]) -> bytes:
    """As many bytes as tokens are made of the medium, and the same ones only for the same medium."""
    digest = blake2b(_json(part)[:_MEDIA_BEGINNING], digest_size=60).digest()
    return digest * (_MEDIA_BYTES // len(digest))


def _text_or_tokens(value: object) -> bytes:
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, list) or not value:
        return b""
    if isinstance(value[0], int):
        return _tokens(value)
    return b"\n".join(_tokens(item) if isinstance(item, list) else _text(item) for item in value)


def _tokens(ids: list[Any]) -> bytes:
    """Token ids at four bytes each, so that the estimate of bytes per token is exact for them."""
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error:  # something in the list is no token id
        return b""
