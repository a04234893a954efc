"""The body of a response on its way through the picker: looked at, changed where it must be, passed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from picker.extproc.effects import Send
from picker.extproc.messages import (
    CONTENT_LENGTH,
    RESPONSE_BODY_ANSWER,
    RESPONSE_BODY_CONTINUE,
    body_replaced,
    streamed,
    streamed_chunks,
)
from picker.extproc.modes import DUPLEX, comes_in_pieces, is_buffered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from picker.extproc.effects import Buffer, Effect
    from picker.inference.restore import ModelRestorer
    from picker.inference.usage import Usage, UsageReader

_PASS: Final = Send((RESPONSE_BODY_CONTINUE,))
_NOTHING: Final = memoryview(b"")


class ResponseBody:
    """One response's body in the gateway's ``mode`` for it; chunks longer than ``chunk_limit`` are split.

    ``reader`` finds out what was used, ``restorer`` puts the client's name of the model back.
    """

    __slots__ = ("_chunk_limit", "_length_told", "_mode", "_reader", "_restorer")

    def __init__(
        self,
        mode: int,
        chunk_limit: int,
        headers: Mapping[str, str],
        *,
        reader: UsageReader | None = None,
        restorer: ModelRestorer | None = None,
    ) -> None:
        self._mode = mode
        self._chunk_limit = chunk_limit
        self._length_told = CONTENT_LENGTH in headers
        self._reader = reader
        self._restorer = restorer

    @property
    def usage(self) -> Usage | None:
        """What was used, as far as the body was seen; None where it does not say, or nobody asked."""
        return self._reader.end() if self._reader is not None else None

    @property
    def is_changed(self) -> bool:
        """Whether it may be: then a piece of it may be kept back at any time."""
        return self._restorer is not None

    @property
    def is_echoed(self) -> bool:
        """Whether its chunks are passed on by us, unread and unchanged."""
        return self._mode == DUPLEX and self._reader is None and self._restorer is None

    @property
    def headers_to_remove(self) -> Sequence[str]:
        """Headers that are not true any more: what passes in pieces grows by nobody knows how much."""
        wrong = self._restorer is not None and self._length_told and comes_in_pieces(self._mode)
        return (CONTENT_LENGTH,) if wrong else ()

    def pass_on(self, data: memoryview, *, end: bool) -> list[Effect]:
        """Answer one message of the body."""
        if self._reader is not None:
            self._reader.feed(data)
        if self._mode != DUPLEX:
            return [_PASS if self._restorer is None else self._replaced(self._restorer, data, end=end)]
        if self._restorer is not None:
            return self._streamed(self._restorer.feed(data, end=end), end=end)
        if 0 < len(data) <= self._chunk_limit:  # every token of every answer comes this way
            return [Send(streamed(RESPONSE_BODY_ANSWER, data, end_of_stream=end))]
        return self._streamed((data,), end=end)

    def rest(self) -> list[Effect]:
        """Give out, before trailers, what was kept back.

        Not in the other modes: there nothing can be sent any more, and what is kept back is no JSON.
        """
        if self._restorer is None or self._mode != DUPLEX:
            return []
        return self._streamed(self._restorer.feed(_NOTHING, end=True), end=False)

    def _streamed(self, chunk: Sequence[Buffer], *, end: bool) -> list[Effect]:
        answers = streamed_chunks(RESPONSE_BODY_ANSWER, chunk, self._chunk_limit, end_of_stream=end)
        return [Send(segments) for segments in answers]

    def _replaced(self, restorer: ModelRestorer, data: memoryview, *, end: bool) -> Send:
        # Buffered, it comes as one message, with no end in it where trailers follow.
        buffered = is_buffered(self._mode)
        pieces = restorer.feed(data, end=end or buffered)
        if _unchanged(pieces, data):
            return _PASS
        length = str(sum(map(len, pieces)))
        headers = ((CONTENT_LENGTH, length),) if buffered and self._length_told else ()
        return Send(body_replaced(RESPONSE_BODY_ANSWER, pieces, headers))


def _unchanged(pieces: Sequence[Buffer], data: memoryview) -> bool:
    """Whether the pieces are exactly the data: told by the memory they lie in, not byte by byte."""
    if not pieces:
        return not data
    [first, *rest] = pieces
    return not rest and isinstance(first, memoryview) and first.obj is data.obj and len(first) == len(data)
