"""The gateway's body modes, and what of a request's fate each of them lets a session see."""

from __future__ import annotations

from typing import Final

from picker.routing.decision import Visibility

# ProcessingMode.BodySendMode, as plain numbers: they are compared for every message.
NONE: Final = 0
STREAMED: Final = 1
BUFFERED: Final = 2
BUFFERED_PARTIAL: Final = 3
DUPLEX: Final = 4

SEND: Final = 1
SKIP: Final = 2

_BODY_SEEN: Final = frozenset((STREAMED, BUFFERED, BUFFERED_PARTIAL, DUPLEX))


def is_buffered(mode: int) -> bool:
    """Whether a body comes as one message, after the headers were answered."""
    return mode in (BUFFERED, BUFFERED_PARTIAL)


def shows_body(response_mode: int) -> bool:
    """Whether the response body passes the picker. Not in mode GRPC: Envoy 1.40 announces, but sends none."""
    return response_mode in _BODY_SEEN


def comes_in_pieces(response_mode: int) -> bool:
    """Whether the response body passes while it is made, so that its first piece is the first token."""
    return response_mode in (STREAMED, DUPLEX)


def visibility(request_mode: int, response_mode: int, *, body_phase: bool) -> Visibility:
    """What will be seen of a request's fate.

    ``body_phase``: a request body message will be waited for. In mode BUFFERED such a stream is held
    open to the end of the answer, even where no response body is sent (seen with Envoy 1.40; its
    early close leaves this mode out). Whether response headers are sent is not in the protocol; where
    bodies are, they are, and in mode BUFFERED, which is what we configure ourselves, they are too.
    """
    shown = shows_body(response_mode)
    buffered = is_buffered(request_mode)
    return Visibility(
        status=shown or buffered,
        first_token=comes_in_pieces(response_mode),
        end=shown or (buffered and body_phase),
    )
