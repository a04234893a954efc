"""The least that an endpoint picker on ``grpc.aio`` can cost: raw bytes, one destination, no thought.

It answers every phase of a stream: the request headers with a fixed destination, a body chunk in a duplex
mode with itself, everything else with "go on". Nothing is parsed but the tags at the top of a message.
Field numbers are those of envoy/service/ext_proc/v3/external_processor.proto.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import click
import grpc  # type: ignore[import-untyped]  # grpcio ships no types
import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types
import uvloop

if TYPE_CHECKING:
    from collections.abc import Iterator

DESTINATION = b"x-gateway-destination-endpoint"
SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
RECEIVE_LIMIT = 64 * 1024 * 1024
"""Bytes of a message; a BUFFERED body comes as one."""

# ProcessingRequest
REQUEST_HEADERS, REQUEST_BODY, RESPONSE_BODY, RESPONSE_TRAILERS, PROTOCOL_CONFIG = 2, 4, 5, 7, 11
# ProtocolConfiguration
REQUEST_BODY_MODE, RESPONSE_BODY_MODE = 1, 2
FULL_DUPLEX_STREAMED = 4
# ProcessingResponse: each phase's answer has the field number of its question less one
DYNAMIC_METADATA = 8

LENGTH_DELIMITED = 2
CONTINUATION = 0x80


def varint(value: int) -> bytes:
    """Encode a non-negative number."""
    encoded = bytearray()
    while value >= CONTINUATION:
        encoded.append(value & 0x7F | CONTINUATION)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def message(number: int, *parts: bytes) -> bytes:
    """Encode a length-delimited field of the joined ``parts``."""
    payload = b"".join(parts)
    return varint(number << 3 | LENGTH_DELIMITED) + varint(len(payload)) + payload


def fields(encoded: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Give number and value of each field at the top of a message of varints and length-delimited fields."""
    at = 0
    while at < len(encoded):
        tag, at = _read_varint(encoded, at)
        value, at = _read_varint(encoded, at)
        if tag & 7 == LENGTH_DELIMITED:
            yield tag >> 3, encoded[at : at + value]
            at += value
        else:
            yield tag >> 3, value


def _read_varint(encoded: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = encoded[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < CONTINUATION:
            return value, at
        shift += 7


def choice(destination: bytes) -> bytes:
    """The answer to request headers: the destination as header and as ``envoy.lb`` metadata."""
    option = message(1, message(1, message(1, DESTINATION), message(3, destination)))
    headers = message(1, message(2, option))
    value = message(2, message(3, destination))
    inner = message(1, message(1, DESTINATION), value)
    outer = message(1, message(1, b"envoy.lb"), message(2, message(5, inner)))
    return message(REQUEST_HEADERS - 1, headers) + message(DYNAMIC_METADATA, outer)


class Yardstick:
    """The service's one method."""

    def __init__(self, destination: str) -> None:
        self._choice = choice(destination.encode())

    def handler(self) -> grpc.GenericRpcHandler:
        """A handler without (de)serialisers: messages stay bytes."""
        process = grpc.stream_stream_rpc_method_handler(self._process)
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": process})

    async def _process(self, _requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        duplex: set[int] = set()
        while (received := await context.read()) is not grpc.aio.EOF:
            phase = 0
            for number, value in fields(received):
                if number == PROTOCOL_CONFIG and isinstance(value, bytes):
                    duplex = _duplex_phases(value)
                elif REQUEST_HEADERS <= number <= RESPONSE_TRAILERS and isinstance(value, bytes):
                    phase, payload = number, value
            await context.write(self._answer(phase, payload, phase in duplex))

    def _answer(self, phase: int, payload: bytes, duplex: bool) -> bytes:
        if phase == REQUEST_HEADERS:
            return self._choice
        if duplex:
            # HttpBody and StreamedBodyResponse both have body = 1 and end_of_stream = 2.
            return message(phase - 1, message(1, message(3, message(3, payload))))
        return message(phase - 1)


def _duplex_phases(protocol_config: bytes) -> set[int]:
    modes = dict(fields(protocol_config))
    phases = {REQUEST_BODY: REQUEST_BODY_MODE, RESPONSE_BODY: RESPONSE_BODY_MODE}
    return {phase for phase, mode in phases.items() if modes.get(mode) == FULL_DUPLEX_STREAMED}


@click.command()
@click.option("--address", default="127.0.0.1:9002", show_default=True, help="Port 0: a free one.")
@click.option("--destination", required=True, help="The ip:port every request is sent to.")
def main(address: str, destination: str) -> None:
    """Serve ext_proc in plaintext until SIGTERM."""
    uvloop.run(_serve(address, destination))


async def _serve(address: str, destination: str) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = grpc.aio.server(
        handlers=[Yardstick(destination).handler()],
        options=[("grpc.max_receive_message_length", RECEIVE_LIMIT), ("grpc.so_reuseport", 0)],
    )
    port = server.add_insecure_port(address)
    await server.start()
    print(f"listening on {address.rpartition(':')[0]}:{port}", flush=True)
    await ended.wait()
    await server.stop(1.0)


if __name__ == "__main__":
    main()
