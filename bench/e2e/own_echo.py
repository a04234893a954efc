"""The yardstick's answers over the picker's own transport: the least that a picker on it can cost."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import TYPE_CHECKING

import click
import uvloop

from bench.transport.echo import MAX_BODY
from bench.transport.yardstick import (
    FULL_DUPLEX_STREAMED,
    PROTOCOL_CONFIG,
    REQUEST_BODY,
    REQUEST_BODY_MODE,
    REQUEST_HEADERS,
    RESPONSE_BODY,
    RESPONSE_BODY_MODE,
    RESPONSE_TRAILERS,
    choice,
    fields,
    message,
)
from picker.serving.health import Health
from picker.serving.http2.transport import Http2Transport
from picker.serving.listening import Address
from picker.serving.options import TransportOptions, message_limit

if TYPE_CHECKING:
    from picker.serving.contract import Stream

_BODY_MODES = {REQUEST_BODY: REQUEST_BODY_MODE, RESPONSE_BODY: RESPONSE_BODY_MODE}


class OwnEcho:
    """Handles one stream as the yardstick does."""

    __slots__ = ("_choice", "_duplex", "_stream")

    carries_body = False

    def __init__(self, choice: bytes, stream: Stream) -> None:
        self._choice = choice
        self._duplex: frozenset[int] = frozenset()
        self._stream = stream

    def received(self, received: bytes) -> None:
        """Answer the headers with the choice, a chunk of a duplex body with itself, the rest with "go on"."""
        phase, payload = 0, b""
        for number, value in fields(received):
            if not isinstance(value, bytes):
                continue
            if number == PROTOCOL_CONFIG:
                modes = dict(fields(value))
                duplex = (
                    phase for phase, mode in _BODY_MODES.items() if modes.get(mode) == FULL_DUPLEX_STREAMED
                )
                self._duplex = frozenset(duplex)
            elif REQUEST_HEADERS <= number <= RESPONSE_TRAILERS:
                phase, payload = number, value
        if phase == REQUEST_HEADERS:
            answer = self._choice
        elif phase in self._duplex:
            answer = message(phase - 1, message(1, message(3, message(3, payload))))
        else:
            answer = message(phase - 1)
        self._stream.send((answer,))

    def closed(self, *, clean: bool) -> None:
        """End as the client did."""
        if clean:
            self._stream.finish()


@click.command()
@click.option("--destination", required=True, help="The ip:port every request is sent to.")
def main(destination: str) -> None:
    """Serve ext_proc in plaintext on a free port of the loopback until SIGTERM."""
    uvloop.run(_serve(destination))


async def _serve(destination: str) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    options = TransportOptions(Address("127.0.0.1", 0, "--address"), message_limit(MAX_BODY))
    server = Http2Transport(partial(OwnEcho, choice(destination.encode())), Health(), options)
    port = await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await ended.wait()
    await server.stop(0)


if __name__ == "__main__":
    main()
