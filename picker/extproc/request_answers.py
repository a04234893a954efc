"""What a request's messages are answered with once it is decided about: the pick, and its body passed on.

A body goes on as it came, or with a :class:`~picker.extproc.bodies.Splice` made in it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from picker.extproc.bodies import splice_chunks
from picker.extproc.effects import Send
from picker.extproc.messages import (
    CONTENT_LENGTH,
    REQUEST_BODY_ANSWER,
    REQUEST_BODY_CONTINUE,
    body_replaced,
    body_to,
    headers_with,
    streamed,
    streamed_chunks,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from picker.extproc.bodies import Splice
    from picker.extproc.effects import Buffer, Effect

PASS_BODY: Final = Send((REQUEST_BODY_CONTINUE,))
LONGEST_LENGTH: Final = 18
"""Digits of a Content-Length that is taken for one; it is then up to an exabyte."""
_NOTHING: Final = memoryview(b"")


def pick(destination: str, headers: tuple[tuple[str, str], ...], override: bytes) -> Send:
    """Answer the headers: where to, which other headers to set, and which modes to change to, if any."""
    return (
        Send((headers_with(destination, headers), override)) if headers else _bare_pick(destination, override)
    )


@lru_cache(maxsize=1024)
def _bare_pick(destination: str, override: bytes) -> Send:
    return Send((headers_with(destination, ()), override))


def spliced_length(length: str, splice: Splice, held: int | None) -> tuple[tuple[str, str], ...]:
    """The header that says how long the body becomes; nothing where it did not say how long it is.

    ``held``: how long it really is, where all of it is there.
    """
    if not (length.isascii() and length.isdecimal() and len(length) <= LONGEST_LENGTH):
        return ()
    old = int(length) if held is None else held
    return ((CONTENT_LENGTH, str(old + splice.growth)),)


@lru_cache(maxsize=1024)
def repick(destination: str) -> Send:
    """Answer the one message of a BUFFERED body; "" leaves the pick before."""
    return Send((body_to(destination),)) if destination else PASS_BODY


def replace(body: memoryview, splice: Splice, destination: str, *, length_told: bool) -> Send:
    """The same with another body."""
    length = ((CONTENT_LENGTH, str(len(body) + splice.growth)),) if length_told else ()
    segments = splice.apply(body)
    return Send(body_replaced(REQUEST_BODY_ANSWER, segments, length, destination=destination))


def pass_chunks(
    chunks: Sequence[memoryview], splice: Splice | None, limit: int, *, end: bool
) -> list[Effect]:
    """Pass chunks of a FULL_DUPLEX_STREAMED body on, none longer than ``limit``; the last one may end it."""
    if len(chunks) == 1 and splice is None and 0 < len(chunks[0]) <= limit:  # nearly every body
        return [Send(streamed(REQUEST_BODY_ANSWER, chunks[0], end_of_stream=end))]
    parts: list[Sequence[Buffer]] = [(chunk,) for chunk in chunks]
    if splice is not None:
        parts = list(splice_chunks(chunks, splice))
    if end and not parts:
        parts = [(_NOTHING,)]
    last = len(parts) - 1
    return [
        Send(segments)
        for index, part in enumerate(parts)
        for segments in streamed_chunks(REQUEST_BODY_ANSWER, part, limit, end_of_stream=end and index == last)
    ]
