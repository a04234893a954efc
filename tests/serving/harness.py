"""A transport on a free port, handlers that note what happens to them, and a real gRPC client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types

from picker.serving.grpcio import GrpcioTransport
from picker.serving.health import Health
from picker.serving.http2.transport import Http2Transport
from picker.serving.listening import Address
from picker.serving.options import TransportOptions, message_limit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from picker.serving.contract import Accept, Stream, Transport
    from picker.serving.tls import ServerTls

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

PATIENCE = 20.0
"""Seconds that no wait in these tests should ever need."""

CLIENT_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


Make = Callable[["Accept | None", Health, TransportOptions], "Transport"]

TRANSPORTS: dict[str, Make] = {"grpcio": GrpcioTransport, "http2": Http2Transport}
make: Make = TRANSPORTS[os.environ.get("PICKER_TRANSPORT", "http2")]
"""The transport under test; the fixture ``transport`` sets it to each, the environment for all else."""


class Recorder:
    """Notes messages and ends; says nothing by itself."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.messages: list[bytes] = []
        self.ends: list[bool] = []
        self.carries_body = False
        self.over = asyncio.Event()
        self.heard = asyncio.Event()

    def received(self, message: bytes) -> None:
        self.messages.append(message)
        self.heard.set()

    def closed(self, *, clean: bool) -> None:
        self.ends.append(clean)
        self.over.set()


class Echo(Recorder):
    """Sends back what it gets, and ends when the client does."""

    def received(self, message: bytes) -> None:
        super().received(message)
        self.stream.send([message])

    def closed(self, *, clean: bool) -> None:
        super().closed(clean=clean)
        self.stream.finish()


@dataclass
class Served:
    """A started transport and what a test needs around it."""

    transport: Transport
    health: Health
    port: int
    channel: Any
    handlers: list[Any] = field(default_factory=list)

    def call(self) -> Any:
        return self.channel.stream_stream(METHOD)(timeout=PATIENCE)

    async def opened(self, first: bytes = b"headers") -> tuple[Any, Any]:
        """A call whose first message arrived, and its handler."""
        known = len(self.handlers)
        call = self.call()
        await call.write(first)
        await until(lambda: len(self.handlers) > known and bool(self.handlers[known].messages))
        return call, self.handlers[known]


async def until(reached: Callable[[], bool]) -> None:
    """Wait for a state that nothing announces."""
    async with asyncio.timeout(PATIENCE):
        while not reached():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(
    handler: Callable[[Stream], Any] = Recorder,
    *,
    tls: ServerTls | None = None,
    max_message: int = message_limit(0),
    credentials: Any = None,
) -> AsyncIterator[Served]:
    handlers: list[Any] = []

    def accept(stream: Stream) -> Any:
        handlers.append(handler(stream))
        return handlers[-1]

    health = Health()
    options = TransportOptions(Address("127.0.0.1", 0, "PICKER_GRPC_PORT"), max_message, tls)
    transport = make(accept, health, options)
    port = await transport.start()
    target = f"127.0.0.1:{port}"
    if credentials is None:
        channel = grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS)
    else:
        name = ("grpc.ssl_target_name_override", "localhost")
        channel = grpc.aio.secure_channel(target, credentials, options=[*CLIENT_OPTIONS, name])
    try:
        yield Served(transport, health, port, channel, handlers)
    finally:
        await channel.close()
        async with asyncio.timeout(PATIENCE):
            await transport.stop(0)


async def over(handler: Recorder) -> list[bool]:
    """How the handler's stream ended, once it has, and has had time for an end too many."""
    async with asyncio.timeout(PATIENCE):
        await handler.over.wait()
    for _ in range(5):
        await asyncio.sleep(0.001)
    return handler.ends
