"""The prompt of a parsed request as bytes, in the order an engine sees it.

Prefixes are compared by these bytes, so a conversation that grows must only add at their end.
Nothing here trusts the shape of what a client sent: what does not fit contributes nothing.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def chat(document: Mapping[str, Any]) -> bytes:
    """Chat completions: tools as JSON, then of each message its role, text parts and tool calls."""
    return _joined(_tools(document), _messages(document.get("messages")))


def completion(document: Mapping[str, Any]) -> bytes:
    """Completions: a text, several texts, token ids or several lists of token ids."""
    return _text_or_tokens(document.get("prompt"))


def embedding(document: Mapping[str, Any]) -> bytes:
    """Embeddings: like completions, under another name."""
    return _text_or_tokens(document.get("input"))


def responses(document: Mapping[str, Any]) -> bytes:
    """Responses: instructions, tools, then the input as a text or as items that are mostly messages."""
    head = _joined(_text(document.get("instructions")), _tools(document))
    asked = document.get("input")
    return _joined(head, _text(asked) if isinstance(asked, str) else _messages(asked))


def _joined(*parts: bytes) -> bytes:
    return b"\n".join(part for part in parts if part)


def _text(value: object) -> bytes:
    # orjson never gives lone surrogates, so every str of a parsed body can be encoded.
    return value.encode() if isinstance(value, str) else b""


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
    return b"\n".join(
        part for message in messages if message and isinstance(message, dict) for part in _message(message)
    )


def _message(message: Mapping[str, Any]) -> Iterator[bytes]:
    """Role and texts; of an item that is no message (a tool's call or output) all of it as JSON."""
    if "role" not in message:
        yield _json(message)
        return
    yield _text(message["role"])
    content = message.get("content")
    if isinstance(content, str):
        yield content.encode()
    elif isinstance(content, list):
        yield from (_text(part.get("text")) for part in content if isinstance(part, dict) and "text" in part)
    if calls := message.get("tool_calls"):
        yield _json(calls)


def _text_or_tokens(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
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
