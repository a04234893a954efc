"""Where and how a transport listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from picker.serving.listening import Address
    from picker.serving.tls import ServerTls

_MESSAGE_SLACK = 1 << 20
"""Room in a message beside its body: headers (Envoy's limit is 60 KiB by default), attributes, metadata."""

_LEAST_BODY = 64 << 20
"""Bytes of body that a message may have in any case. How large one is the gateway's buffers decide: those
for chunks of a streamed body or an answer have nothing to do with what we hold, and refusing a message
fails its request."""

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """Where and how to listen."""

    address: Address
    max_message: int
    """The largest message accepted, in bytes; see ``message_limit``."""
    tls: ServerTls | None = None
    """None: plaintext HTTP/2 with prior knowledge (h2c)."""
    max_unfinished: int = 512 << 20
    """Bytes of messages that are not complete yet, over all streams (``http2`` only)."""


def message_limit(max_body: int) -> int:
    """The message size that lets a body of ``max_body`` bytes in; in BUFFERED mode it is one message."""
    return min(max(max_body, _LEAST_BODY) + _MESSAGE_SLACK, _INT32_MAX)
