"""The health service: what each name says in each state, on both ports."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # nor does this

from picker.serving.contract import ServingError
from picker.serving.health import Health
from picker.serving.listening import Address
from picker.serving.options import TransportOptions
from tests.serving import harness
from tests.serving.harness import CLIENT_OPTIONS, METHOD, PATIENCE, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from picker.serving.contract import Transport
    from tests.serving.harness import Served

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

READINESS = ["", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"]

pytestmark = pytest.mark.usefixtures("transport")


def alone(health: Health, port: int) -> Transport:
    """The health service without ext_proc, as on the health port."""
    address = Address("127.0.0.1", port, "PICKER_HEALTH_PORT")
    return harness.make(None, health, TransportOptions(address, 65_536))


@asynccontextmanager
async def showing(port_of: str) -> AsyncIterator[tuple[Health, Any]]:
    """A health state and a client of it, by the ext_proc port or by the health port."""
    if port_of == "ext_proc":
        async with serving() as served:
            yield served.health, health_pb2_grpc.HealthStub(served.channel)
    else:
        health = Health()
        async with serving_alone(health) as target, client_of(target) as channel:
            yield health, health_pb2_grpc.HealthStub(channel)


@asynccontextmanager
async def serving_alone(health: Health) -> AsyncIterator[str]:
    """The health service on a port of its own, and where it is."""
    server = alone(health, 0)
    port = await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        async with asyncio.timeout(PATIENCE):
            await server.stop(0)


def client_of(target: str) -> Any:
    return grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS)


async def check(stub: Any, name: str) -> int:
    request = health_pb2.HealthCheckRequest(service=name)
    answer: int = (await stub.Check(request, timeout=PATIENCE)).status
    return answer


@pytest.mark.parametrize("port_of", ["ext_proc", "health"])
async def test_every_name_through_a_life(port_of: str) -> None:
    async with showing(port_of) as (health, stub):
        for ready, leading, draining, expected in [
            (False, True, False, NOT_SERVING),
            (True, True, False, SERVING),
            (False, True, False, NOT_SERVING),
            (True, False, False, NOT_SERVING),
            (False, False, False, NOT_SERVING),
            (True, True, False, SERVING),
            (True, True, True, NOT_SERVING),
        ]:
            health.set_ready(ready)
            health.set_leading(leading)
            if draining:
                health.drain()
            assert [await check(stub, name) for name in READINESS] == [expected] * len(READINESS)
            assert await check(stub, "liveness") == SERVING
            listed = (await stub.List(health_pb2.HealthListRequest(), timeout=PATIENCE)).statuses
            assert {name: listed[name].status for name in listed} == {
                **dict.fromkeys(READINESS, expected),
                "liveness": SERVING,
            }


@pytest.mark.parametrize("port_of", ["ext_proc", "health"])
async def test_unknown_names(port_of: str) -> None:
    async with showing(port_of) as (_, stub):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await check(stub, "other")
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="other"), timeout=PATIENCE)
        assert (await watch.read()).status == SERVICE_UNKNOWN
        watch.cancel()


@pytest.mark.parametrize("port_of", ["ext_proc", "health"])
async def test_watch_tells_changes(port_of: str) -> None:
    async with showing(port_of) as (health, stub):
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=PATIENCE)
        assert (await watch.read()).status == NOT_SERVING
        health.set_ready(True)
        assert (await watch.read()).status == SERVING
        health.set_ready(True)  # no change, so no message
        health.drain()
        assert (await watch.read()).status == NOT_SERVING
        health.set_ready(True)  # draining is for good
        assert not health.serving
        watch.cancel()


async def test_a_watch_does_not_keep_the_server_from_stopping(served: Served) -> None:
    stub = health_pb2_grpc.HealthStub(served.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"), timeout=PATIENCE)
    assert (await watch.read()).status == NOT_SERVING
    async with asyncio.timeout(PATIENCE):
        await served.transport.stop(60)
    assert await watch.code() == grpc.StatusCode.UNAVAILABLE


async def test_watchers_that_leave_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with showing("health") as (health, stub):
        for n in range(20):
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=PATIENCE)
            await watch.read()
            health.set_ready(n % 2 == 0)
            watch.cancel()
            health.set_ready(n % 2 == 1)
        assert await check(stub, "liveness") == SERVING
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_taken_port_names_the_setting(served: Served) -> None:
    server = alone(Health(), served.port)
    with pytest.raises(ServingError, match="PICKER_HEALTH_PORT"):
        await server.start()
    await server.stop(0)


async def test_a_server_of_health_alone_has_no_ext_proc() -> None:
    async with serving_alone(Health()) as target, client_of(target) as channel:
        # Without a message: of a call whose server ends it while a message is being written, any server,
        # grpc.aio says INTERNAL instead of the status.
        call = channel.stream_stream(METHOD)(timeout=PATIENCE)
        assert await call.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_client_that_is_still_writing_reads_why_it_is_refused() -> None:
    def codes(target: str) -> set[grpc.StatusCode]:
        with grpc.insecure_channel(target, options=CLIENT_OPTIONS) as channel:
            messages = [bytes(1000)] * 20
            calls = [channel.stream_stream(METHOD)(iter(messages), timeout=PATIENCE) for _ in range(100)]
            return {call.code() for call in calls}

    async with serving_alone(Health()) as target:
        assert await asyncio.to_thread(codes, target) == {grpc.StatusCode.UNIMPLEMENTED}
