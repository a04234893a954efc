"""The Endpoint Picker Protocol through a real Envoy: bodies, upgrades, gRPC, subsets, fallbacks, objects."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any

import aiohttp
import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types
import pytest
from aiohttp import web

from bench.rig.envoy import BUFFER_LIMIT, MODES, Envoy, ExtProc, Listener, bootstrap
from bench.rig.picker import Picker
from bench.rig.ports import free_ports
from tests.envoy.conftest import gateway, internal_errors
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from bench.rig.envoy import Mode

pytestmark = [pytest.mark.envoy, pytest.mark.sequence("through Envoy")]

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
BODY = b'{"model":"llama","messages":[{"role":"user","content":"hello"}]}'
PATIENCE = 60.0
"""Seconds that no wait in these tests should ever need."""
HELD = 1_500
"""Above the 1,024 streams that Envoy's circuit breakers let through by default."""

both_modes = pytest.mark.parametrize("mode", ["duplex", "buffered"])


@dataclass
class Server:
    """An upstream with what those of tests/support have not: held answers, a page, chunks of its choice."""

    name: str = ""
    page: str = ""
    answer: bytes = b""
    cut: int = 0
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    holding: int = 0
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_route("*", "/hold{path:.*}", self._hold)
        app.router.add_route("*", "/{path:.*}", self._serve)
        return app

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.page, status=200 if self.page else 404)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        """Stream ``answer`` in chunks of ``cut`` bytes."""
        body = await request.read()
        self.received.append(({name.lower(): value for name, value in request.headers.items()}, body))
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream", "x-sha256": sha256(body), "x-served-by": self.name}
        )
        await response.prepare(request)
        size = self.cut or len(self.answer) or 1
        for start in range(0, len(self.answer), size):
            await response.write(self.answer[start : start + size])
        await response.write_eof()
        return response

    async def _hold(self, request: web.Request) -> web.StreamResponse:
        """The first event at once, the last when the test lets go."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: first\n\n")
        self.holding += 1
        await self.let_go.wait()
        await response.write(b"data: last\n\n")
        await response.write_eof()
        return response


@dataclass(frozen=True, slots=True)
class Door:
    """A running gateway in front of endpoints that the test has started itself."""

    address: str
    client: aiohttp.ClientSession
    picker: Picker

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def post(self, body: bytes = BODY, path: str = CHAT, **headers: str) -> tuple[int, Any, bytes]:
        """Status, headers and body of the answer; ``_`` in names of headers stands for ``-``."""
        named = JSON | {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.post(self.url + path, data=BytesIO(body), headers=named) as answer:
            return answer.status, answer.headers, await answer.read()

    async def shown(self, series: str) -> bool:
        """Whether the picker's metrics have this line."""
        return series in (await self.picker.metrics()).splitlines()


@asynccontextmanager
async def door(
    mode: Mode,
    endpoints: Sequence[str],
    *,
    adapt: Callable[[dict[str, Any]], None] = lambda _manager: None,
    retries: int = 0,
    http2: bool = False,
    **env: str,
) -> AsyncIterator[Door]:
    """``adapt`` may change Envoy's connection manager; ``env`` are settings of the picker."""
    async with AsyncExitStack() as stack:
        settings = {f"PICKER_{name.upper()}": value for name, value in env.items()}
        picker = await stack.enter_async_context(
            Picker({"PICKER_ENDPOINTS": ",".join(endpoints), **settings})
        )
        listener = Listener(
            name="door",
            endpoints=endpoints,
            balancer="picker",
            ext_proc=ExtProc(address=picker.address, mode=mode),
            retries=retries,
            http2=http2,
        )
        config = bootstrap([listener])
        adapt(config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"])
        envoy = await stack.enter_async_context(Envoy(config))
        client = await stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=PATIENCE), connector=aiohttp.TCPConnector(limit=0)
            )
        )
        yield Door(envoy.address("door"), client, picker)


@asynccontextmanager
async def served(count: int = 1) -> AsyncIterator[list[Server]]:
    servers = [Server() for _ in range(count)]
    async with AsyncExitStack() as stack:
        for server in servers:
            runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=0.5)
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, backlog=HELD).start()
            server.name = "{}:{}".format(*runner.addresses[0][:2])
        yield servers


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def in_chunks(size: int) -> AsyncIterator[bytes]:
    """A chat request of so many bytes, which tells nobody how long it will be."""
    yield b'{"model": "m", "messages": "'
    for _ in range(size >> 16):
        yield b"x" * (1 << 16)
    yield b'"}'


# Bodies.


@pytest.mark.parametrize("mode", MODES)
async def test_long_bodies_pass_both_ways_byte_for_byte(mode: Mode) -> None:
    upload = b'{"model":"m","prompt":"' + random.Random(1).randbytes(2_500_000).hex().encode() + b'"}'
    async with served() as [server], door(mode, [server.name]) as at:
        server.answer, server.cut = random.Random(2).randbytes(3_000_000), 7_001
        status, headers, answer = await at.post(upload, path="/v1/completions")
        assert status == 200
        assert headers["x-sha256"] == sha256(upload)
        assert sha256(answer) == sha256(server.answer)


async def test_beyond_the_buffer_a_body_of_unknown_length_is_refused_and_one_of_known_length_passes() -> None:
    size = 70_000_000
    assert size > BUFFER_LIMIT
    async with gateway("buffered", servers=1) as gate:
        async with gate.client.post(gate.url + CHAT, data=in_chunks(size)) as answer:
            assert answer.status == 413
        body = b'{"model":"m","messages":"' + b"x" * size + b'"}'
        async with gate.client.post(gate.url + CHAT, data=BytesIO(body)) as answer:
            # Longer than is waited for: the picker has it passed by.
            assert answer.status == 200
            assert answer.headers["x-sha256"] == sha256(body)
            assert answer.headers["x-content-length"] == str(len(body))
        assert internal_errors(await gate.streams_closed()) == 0


# Upgrades and gRPC. A WebSocket without the picker seeing it is in test_modes.


@pytest.mark.parametrize("mode", ["duplex", "duplex_request", "streamed", "buffered_streamed"])
async def test_a_websocket_speaks_through_the_picker(mode: Mode) -> None:
    async with gateway(mode) as gate:
        async with gate.client.ws_connect(gate.url + "/ws") as socket:
            for text in ("hello", "x" * 50_000, "bye"):
                await socket.send_str(text)
                assert await socket.receive_str(timeout=PATIENCE) == text
        assert internal_errors(await gate.streams_closed()) == 0


class Conversation(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio ships no types
    """Answers each message at once, with trailers at the end; ``/talk/Fail`` fails after the first."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.stream_stream_rpc_method_handler(
            self._fail if details.method.endswith("Fail") else self._talk
        )

    async def _talk(self, _messages: object, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(b"you said " + message)
        context.set_trailing_metadata((("x-last-word", "bye"),))

    async def _fail(self, _messages: object, context: Any) -> None:
        await context.write(b"heard " + await context.read())
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "enough")


@asynccontextmanager
async def conversation(mode: Mode) -> AsyncIterator[Any]:
    """A gRPC channel to a gRPC server through the gateway."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Conversation(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with (
            door(mode, [f"127.0.0.1:{port}"], http2=True) as at,
            grpc.aio.insecure_channel(at.address) as channel,
        ):
            yield channel
    finally:
        await server.stop(0)


@pytest.mark.parametrize("mode", MODES)
async def test_a_grpc_call_goes_both_ways_message_by_message(mode: Mode) -> None:
    async with conversation(mode) as channel:
        call = channel.stream_stream("/talk/Talk")(timeout=PATIENCE)
        for text in (b"hello", b"x" * 200_000, b"bye"):
            await call.write(text)
            # Each answer comes before the next message is sent: nobody waits for the end of either side.
            assert await call.read() == b"you said " + text
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert ("x-last-word", "bye") in [tuple(pair) for pair in await call.trailing_metadata()]

        call = channel.stream_stream("/talk/Fail")(timeout=PATIENCE)
        await call.write(b"hello")
        assert await call.read() == b"heard hello"
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await call.details() == "enough"


# Many at once.


@both_modes
async def test_1500_held_answers_are_all_served_to_their_end(mode: Mode) -> None:
    async def one(at: Door, together: asyncio.Semaphore) -> bytes:
        async with together:
            response = await at.client.post(f"{at.url}/hold{CHAT}", data=BODY, headers=JSON)
        assert response.status == 200
        return await response.read()

    async with served(2) as servers, door(mode, [server.name for server in servers]) as at:
        together = asyncio.Semaphore(100)
        async with asyncio.TaskGroup() as group:
            requests = [group.create_task(one(at, together)) for _ in range(HELD)]

            async def all_held() -> bool:
                return sum(server.holding for server in servers) == HELD

            await eventually(all_held, within=PATIENCE)
            assert await at.shown(f"picker_streams_open {HELD}.0")
            for server in servers:
                server.let_go.set()
        assert {request.result() for request in requests} == {b"data: first\n\ndata: last\n\n"}


# Who may serve, and who does.


@both_modes
async def test_a_retry_lands_on_the_next_fallback_and_the_endpoint_that_was_skipped_is_known(
    mode: Mode,
) -> None:
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    async with served() as [server]:
        # The page of both is that of the one which lives, so that nothing but its requests tells of the dead.
        page = server.name.rpartition(":")[2]
        async with door(mode, [dead, server.name], retries=1, fallbacks="1", metrics_target_port=page) as at:
            for _ in range(30):
                status, headers, _ = await at.post()
                assert (status, headers["x-served-by"]) == (200, server.name)
            lists = [headers["x-gateway-destination-endpoint"] for headers, _ in server.received]
            # A few that were skipped are enough to know it.
            assert 3 <= lists.count(f"{dead},{server.name}") <= 6
            assert lists[-1] == server.name
            assert await at.shown('picker_endpoints{state="breaker_open"} 1.0')


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("as_list", [True, False], ids=["list", "text"])
async def test_the_gateways_subset_binds(mode: Mode, as_list: bool) -> None:
    async with served(3) as servers:
        first, second, third = (server.name for server in servers)
        allowed = [second, third, "10.9.9.9:1"]
        value = allowed if as_list else ", ".join(allowed)

        def adapt(manager: dict[str, Any]) -> None:
            manager["http_filters"].insert(0, subset_filter(value))

        async with door(mode, [first, second, third], adapt=adapt) as at:
            got = [(await at.post())[1]["x-served-by"] for _ in range(20)]
            assert set(got) == {second, third}
            async with at.client.get(at.url) as answer:
                assert answer.headers["x-served-by"] != first


@both_modes
async def test_a_subset_of_nobody_is_503_with_and_without_a_body(mode: Mode) -> None:
    def adapt(manager: dict[str, Any]) -> None:
        manager["http_filters"].insert(0, subset_filter(["10.9.9.9:1"]))

    async with served() as [server], door(mode, [server.name], adapt=adapt) as at:
        status, headers, text = await at.post()
        assert (status, headers["x-llm-d-request-dropped-reason"]) == (503, "rejected-no-endpoints")
        assert text.startswith(b"inference error: ServiceUnavailable - ")
        async with at.client.get(at.url) as answer:
            assert answer.status == 503
        assert server.received == []


def subset_filter(value: list[str] | str) -> dict[str, Any]:
    """An Envoy filter that says who may serve, as gateways do with routes of their own."""
    return {
        "name": "subset",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [
                {
                    "metadata_namespace": "envoy.lb.subset_hint",
                    "value": {"x-gateway-destination-endpoint-subset": value},
                }
            ],
        },
    }


# Objects.


@pytest.mark.parametrize("mode", ["duplex", "buffered_streamed"])
async def test_the_clients_model_comes_back_in_a_stream_whose_chunks_cut_its_name(
    mode: Mode, tmp_path: Path
) -> None:
    objects = tmp_path / "objects.yaml"
    objects.write_text(
        """
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: versions}
spec:
  poolRef: {name: pool}
  rules:
  - matches: [{model: {type: Exact, value: llama}}]
    targets: [{modelRewrite: llama-of-the-second-version}]
"""
    )

    def stream(model: str) -> bytes:
        events = [
            {"id": number, "model": model, "choices": [{"delta": {"content": "llama"}}]}
            for number in range(30)
        ]
        return (
            b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
        )

    async with served() as [server], door(mode, [server.name], objects_file=str(objects)) as at:
        server.answer, server.cut = stream("llama-of-the-second-version"), 13
        status, _, answer = await at.post(BODY)
        assert status == 200
        assert server.received[0][1] == BODY.replace(b"llama", b"llama-of-the-second-version")
        assert answer == stream("llama")


def vllm_page(waiting: int) -> str:
    return (
        f'vllm:num_requests_waiting{{model_name="m"}} {waiting}.0\n'
        'vllm:num_requests_running{model_name="m"} 4.0\n'
        'vllm:kv_cache_usage_perc{model_name="m"} 0.5\n'
    )


@both_modes
async def test_what_may_be_shed_is_refused_while_the_pool_is_saturated(mode: Mode, tmp_path: Path) -> None:
    objects = tmp_path / "objects.yaml"
    objects.write_text(
        """
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {poolRef: {name: pool}, priority: -1}
"""
    )
    async with served(2) as servers:
        for server in servers:
            server.page = vllm_page(waiting=9)
        async with door(
            mode, [server.name for server in servers], objects_file=str(objects), metrics_interval="100ms"
        ) as at:

            async def answered(status: int) -> None:
                async def is_it() -> bool:
                    return (await at.post(x_llm_d_inference_objective="batch"))[0] == status

                await eventually(is_it)

            await answered(429)
            _, headers, text = await at.post(x_gateway_inference_objective="batch")
            assert headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
            assert text.startswith(b"inference error: ResourceExhausted - ")
            assert (await at.post())[0] == 200
            assert (await at.post(x_llm_d_inference_objective="unknown"))[0] == 200
            for server in servers:
                server.page = vllm_page(waiting=1)
            await answered(200)


# Headers.


@pytest.mark.parametrize("mode", MODES)
async def test_a_request_id_is_made_where_there_is_none_and_left_where_there_is_one(mode: Mode) -> None:
    def adapt(manager: dict[str, Any]) -> None:
        manager["generate_request_id"] = False

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with served() as [server], door(mode, [server.name], adapt=adapt) as at:
        await at.post(traceparent=trace)
        await at.post(x_request_id="mine")
        made, given = (headers for headers, _ in server.received)
        assert len(made["x-request-id"]) == 36
        assert given["x-request-id"] == "mine"
        assert made["traceparent"] == trace
        assert "traceparent" not in given
