"""A whole request in one process: a gateway's messages in, the picker's answers out, no transport."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from typing import TYPE_CHECKING

from bench.micro.fixtures import ANSWER_HEADERS, BUFFERED, DUPLEX, HEADERS, NONE, body, chat, headers, pool
from picker.extproc.bodies import BodyBudget
from picker.extproc.session import SessionOptions, Surroundings
from picker.objects.rules import Objects
from picker.observe.prometheus import Metrics
from picker.observe.requests import RequestSeries
from picker.routing.router import Router
from picker.streams import Streams
from scorer.prefix import PrefixIndex
from scorer.profile import built_in_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from picker.extproc.effects import Buffer
    from picker.streams import ExtProcStream

IN_FLIGHT = 32
"""Requests that are open at a time, so that decisions see load."""
_ANSWER = b'{"id":"x","object":"chat.completion","choices":[{"message":{"content":"ok"}}]}'


def _request_id() -> str:
    return str(uuid.uuid4())


class _Out:
    """Takes what the picker sends."""

    def __init__(self) -> None:
        self.sent = 0

    def send(self, segments: Sequence[Buffer]) -> None:
        self.sent += sum(map(len, segments))

    send_soon = send

    def finish(self) -> None:
        return

    def abort(self, reason: str) -> None:
        raise RuntimeError(reason)


class Requests:
    """Small chats, one after the other, before ``endpoints`` endpoints.

    ``mode``: ``duplex`` or ``buffered``.
    """

    def __init__(self, endpoints: int, mode: str, size: int = 200) -> None:
        rng = random.Random(endpoints)
        loop = asyncio.get_running_loop()
        fleet = pool(endpoints, rng, loop.time())
        self._streams = Streams(
            routing=Router(fleet, built_in_profile(), rng, index=PrefixIndex(256 << 20)),
            observer=Metrics(fleet, time.monotonic),
            loop=loop,
            options=SessionOptions(),
            budget=BodyBudget(1 << 30),
            decision_timeout=1.0,
            surroundings=Surroundings(resolve=Objects(rng).resolve, new_request_id=_request_id),
            requests=RequestSeries(fleet),
        )
        modes = (DUPLEX, DUPLEX) if mode == "duplex" else (BUFFERED, NONE)
        self._before = [
            headers("request_headers", HEADERS, modes),
            body("request_body", chat(size), end=True),
        ]
        self._after = [headers("response_headers", ANSWER_HEADERS)]
        if mode == "duplex":
            self._after += [body("response_body", _ANSWER, end=False), body("response_body", b"", end=True)]
        self._open: list[ExtProcStream] = []

    def one(self) -> None:
        """Open a request, and end the oldest one."""
        handler = self._streams.accept(_Out())
        for message in self._before:
            handler.received(message)
        self._open.append(handler)
        if len(self._open) > IN_FLIGHT:
            oldest = self._open.pop(0)
            for message in self._after:
                oldest.received(message)
            oldest.closed(clean=True)
