"""A sound client beside the attacker: whether it is still served, and how soon."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.micro.fixtures import DUPLEX, HEADERS, NONE, body, chat, headers
from bench.transport.client import Client, ClientError
from picker.serving.http2.frames import DATA, END_STREAM, MESSAGE_PREFIX, frame

if TYPE_CHECKING:
    import threading

PAUSE_SECONDS = 0.05

_HEAD = headers("request_headers", HEADERS, (DUPLEX, NONE))
_BODY = body("request_body", chat(200), end=True)


class Witness:
    """Asks one request after the other, on a connection of its own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.asked = self.served = 0
        self.slowest = 0.0
        """Seconds."""

    def watch(self, over: threading.Event) -> None:
        """Ask until it is over."""
        with Client(self._address) as client:
            while not over.wait(PAUSE_SECONDS):
                self.asked += 1
                began = time.monotonic()
                try:
                    self._ask(client)
                except (OSError, ClientError):
                    return
                self.served += 1
                self.slowest = max(self.slowest, time.monotonic() - began)

    def _ask(self, client: Client) -> None:
        stream_id, opening = client.open()
        frames = [opening, _message(stream_id, _HEAD, 0), _message(stream_id, _BODY, END_STREAM)]
        expected = client.answers + 1
        client.send(b"".join(frames))
        client.until_answered(expected)


def _message(stream_id: int, content: bytes, flags: int) -> bytes:
    return frame(DATA, flags, stream_id, MESSAGE_PREFIX.pack(0, len(content)) + content)
