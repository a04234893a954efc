"""A server that sends back what it gets, on either of the picker's transports: what these cost alone."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import click
import uvloop

from picker.serving.health import Health
from picker.serving.http2.transport import Http2Transport
from picker.serving.listening import Address
from picker.serving.options import TransportOptions, message_limit
from picker.serving.tls import ServerTls

if TYPE_CHECKING:
    from picker.serving.contract import Stream, Transport

TRANSPORTS = ("grpcio", "http2")
MAX_BODY = 64 * 1024 * 1024


class Echo:
    """Handles one stream."""

    __slots__ = ("_stream",)

    carries_body = False

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def received(self, message: bytes) -> None:
        """Send it back."""
        self._stream.send((message,))

    def closed(self, *, clean: bool) -> None:
        """End as the client did."""
        if clean:
            self._stream.finish()


@click.command()
@click.option("--transport", type=click.Choice(TRANSPORTS), required=True)
@click.option("--tls", is_flag=True, help="With a certificate of its own making.")
def main(*, transport: str, tls: bool) -> None:
    """Serve on a free port of the loopback until SIGTERM."""
    uvloop.run(_serve(transport, ServerTls() if tls else None))


async def _serve(name: str, tls: ServerTls | None) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    options = TransportOptions(Address("127.0.0.1", 0, "--transport"), message_limit(MAX_BODY), tls)
    server = _transport(name, options)
    port = await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await ended.wait()
    await server.stop(0)


def _transport(name: str, options: TransportOptions) -> Transport:
    if name == "grpcio":
        from picker.serving.grpcio import GrpcioTransport  # noqa: PLC0415 - as in the picker

        return GrpcioTransport(Echo, Health(), options)
    return Http2Transport(Echo, Health(), options)


if __name__ == "__main__":
    main()
