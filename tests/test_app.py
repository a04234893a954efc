"""The process with all its parts, asked over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import grpc.aio  # type: ignore[import-untyped]
import pytest

from bench.rig.child import ChildError
from bench.rig.picker import Picker
from picker.extproc._generated.external_processor_pb2 import ProcessingResponse
from picker.serving.tls import self_signed
from tests.endpoints.test_ray_head import Head, applications
from tests.endpoints.test_ray_head import running as running_head
from tests.extproc.gateway import message
from tests.metrics.rig import Server, http
from tests.support.collector import collector
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
DESTINATION = "x-gateway-destination-endpoint"
DEADLINE = 20.0
BODY = b'{"seed":12345678901234567890,"model":"chat"}'
REWRITE = """\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: chat}
spec: {rules: [{matches: [{model: {value: chat}}], targets: [{modelRewrite: chat-v1}]}]}
"""
OBJECTIVE = """\
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -1}
"""


@asynccontextmanager
async def running(tmp_path: Path, waiting: int = 0, **further: str) -> AsyncIterator[tuple[Picker, Path]]:
    """A picker before one model server with ``waiting`` requests in its queue, and its objects file."""
    server = Server()
    server.answers["/metrics"] = http(
        b"vllm:num_requests_running 0\nvllm:num_requests_waiting %d\n" % waiting
    )
    await server.start()
    objects = tmp_path / "objects.yaml"
    objects.write_text(REWRITE + OBJECTIVE)
    settings = {
        "PICKER_ENDPOINTS": server.address,
        "PICKER_OBJECTS_FILE": str(objects),
        "PICKER_METRICS_DIALECT": "vllm",
        "PICKER_READ_USAGE": "true",
        **further,
    }
    try:
        async with Picker(settings, directory=tmp_path) as picker:
            yield picker, objects
    finally:
        await server.stop()


async def answers(picker: Picker, *messages: bytes) -> list[ProcessingResponse]:
    """What a gateway is told that sends these messages and half-closes."""
    async with grpc.aio.insecure_channel(picker.address) as channel:
        call = channel.stream_stream(METHOD)(iter(messages), timeout=DEADLINE)
        return [ProcessingResponse.FromString(told) async for told in call]


async def ask(picker: Picker, modes: str = "duplex/none", **headers: str) -> list[ProcessingResponse]:
    named = {
        ":method": "POST",
        ":path": "/v1/chat/completions",
        "content-type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return await answers(
        picker,
        message("request_headers", headers=named, modes=modes),
        message("request_body", body=BODY, end=True),
    )


async def asked_model(picker: Picker) -> bytes:
    _, told = await ask(picker)
    body = told.request_body.response.body_mutation.streamed_response.body
    assert body.startswith(b'{"seed":12345678901234567890,"model":"')
    return body.split(b'"')[-2]


async def test_rules_of_the_objects_file_are_applied_and_followed(tmp_path: Path) -> None:
    async with running(tmp_path) as (picker, objects):
        assert await asked_model(picker) == b"chat-v1"
        assert "picker_models_rewritten_total 1.0" in await picker.metrics()
        objects.write_text(REWRITE.replace("chat-v1", "chat-v2"))

        async def followed() -> bool:
            return await asked_model(picker) == b"chat-v2"

        await eventually(followed, every=0.2)


async def test_a_request_without_an_id_gets_one(tmp_path: Path) -> None:
    async with running(tmp_path) as (picker, _):
        told = (await ask(picker))[0].request_headers.response.header_mutation.set_headers
        (given,) = [option.header.raw_value for option in told if option.header.key == "x-request-id"]
        assert UUID(given.decode()).version == 4
        told = (await ask(picker, x_request_id="mine"))[
            0
        ].request_headers.response.header_mutation.set_headers
        assert "x-request-id" not in {option.header.key for option in told}


@pytest.mark.parametrize(("waiting", "status"), [(5, 429), (4, 0)])
async def test_a_sheddable_request_is_shed_where_there_is_no_room(
    tmp_path: Path, waiting: int, status: int
) -> None:
    async with running(tmp_path, waiting) as (picker, _):
        refused = (await ask(picker, x_llm_d_inference_objective="batch"))[0]
        assert refused.immediate_response.status.code == status
        assert len(await ask(picker, x_llm_d_inference_objective="unknown")) == 2


async def test_usage_is_counted(tmp_path: Path) -> None:
    async with running(tmp_path) as (picker, _):
        headers = {":method": "POST", ":path": "/v1/completions", "content-type": "application/json"}
        await answers(
            picker,
            message("request_headers", headers=headers, modes="duplex/duplex"),
            message("request_body", body=BODY, end=True),
            message("response_headers", headers={":status": "200", "content-type": "application/json"}),
            message("response_body", body=b'{"usage":{"prompt_tokens":7,"completion_tokens":3}}', end=True),
        )
        page = await picker.metrics()
        assert 'picker_tokens_total{kind="prompt"} 7.0' in page
        assert 'picker_tokens_total{kind="completion"} 3.0' in page


def has_loaded(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize(("transport", "loaded"), [("auto", False), ("http2", False), ("grpcio", True)])
async def test_grpc_is_loaded_only_to_be_used(tmp_path: Path, transport: str, loaded: bool) -> None:
    settings = {"PICKER_ENDPOINTS": "127.0.0.1:1", "PICKER_TRANSPORT": transport}
    async with Picker(settings, directory=tmp_path) as picker:
        assert has_loaded(picker.pid, "cygrpc") is loaded
        async with grpc.aio.insecure_channel(picker.health_address) as channel:
            ask = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await ask(b"", timeout=DEADLINE) == b"\x08\x01"  # SERVING


async def test_a_mistake_in_the_objects_file_is_one_line_at_the_start(tmp_path: Path) -> None:
    objects = tmp_path / "objects.yaml"
    objects.write_text(OBJECTIVE.replace("-1", "low"))
    settings = {"PICKER_ENDPOINTS": "127.0.0.1:1", "PICKER_OBJECTS_FILE": str(objects)}
    with pytest.raises(Exception, match=r"objects\.yaml, line 5: spec\.priority 'low' is not a priority"):
        async with asyncio.timeout(DEADLINE), Picker(settings, directory=tmp_path):
            pass


POLICY = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, plugins: [%s]}"


async def test_a_policy_decides_from_the_next_request_on(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY % "{type: header-based-testing-filter}")
    async with running(tmp_path, PICKER_CONFIG_FILE=str(policy)) as (picker, _):
        assert (await ask(picker))[0].immediate_response.status.code == 429

        async def served() -> bool:
            return (await ask(picker))[0].immediate_response.status.code == 0

        policy.write_text(POLICY % "{type: no-such-plugin}")
        policy.write_text(POLICY % "{type: queue-scorer}")
        await eventually(served, every=0.2)


async def test_a_policy_says_which_bodies_are_read(tmp_path: Path) -> None:
    text = POLICY.replace("]}", "], requestHandler: {parsers: [{pluginRef: passthrough-parser}]}}")
    async with running(tmp_path, PICKER_CONFIG_TEXT=text % "{type: passthrough-parser}") as (picker, _):
        assert await asked_model(picker) == b"chat"  # so the rule for its model is not applied


async def test_a_policy_may_cut_the_queue_at_which_requests_are_shed(tmp_path: Path) -> None:
    text = POLICY % "{type: utilization-detector, parameters: {queueDepthThreshold: 2}}"
    async with running(tmp_path, 2, PICKER_CONFIG_TEXT=text) as (picker, _):
        refused = (await ask(picker, x_llm_d_inference_objective="batch"))[0]
        assert refused.immediate_response.status.code == 429


async def test_a_mistake_in_the_policy_is_one_line_at_the_start(tmp_path: Path) -> None:
    settings = {"PICKER_ENDPOINTS": "127.0.0.1:1", "PICKER_CONFIG_TEXT": POLICY % "{type: queue}"}
    with pytest.raises(Exception, match=r"PICKER_CONFIG_TEXT, line 1: plugins\[0\]\.type 'queue' is unknown"):
        async with asyncio.timeout(DEADLINE), Picker(settings, directory=tmp_path):
            pass


async def test_a_path_goes_to_the_replicas_of_its_application_as_the_ray_head_tells(tmp_path: Path) -> None:
    async def destination(picker: Picker, path: str) -> str:
        headers = {":method": "GET", ":path": path}
        [told] = await answers(
            picker, message("request_headers", headers=headers, modes="duplex/none", end=True)
        )
        mutation = told.request_headers.response.header_mutation
        return {one.header.key: one.header.raw_value for one in mutation.set_headers}[DESTINATION].decode()

    replicas = {"127.0.0.1:30001": "/chat", "127.0.0.1:30002": "/embed"}
    async with running_head(Head()) as head:
        head.answer = applications(replicas=replicas)
        async with Picker({"PICKER_RAY_HEAD": head.url}, directory=tmp_path) as picker:
            for _ in range(5):
                assert await destination(picker, "/chat/completions?x=1") == "127.0.0.1:30001"
                assert await destination(picker, "/embed") == "127.0.0.1:30002"


async def test_spans_of_decisions_are_sent_before_the_process_ends(tmp_path: Path) -> None:
    with collector() as (address, received):
        async with running(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=address) as (picker, _):
            parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
            await ask(picker, traceparent=parent)
    (request,) = received
    (span,) = request.resource_spans[0].scope_spans[0].spans
    assert (span.name, span.trace_id.hex()) == ("pick endpoint", "4bf92f3577b34da6a3ce929d0e0e4736")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER='zipkin' is not known"),
        ({"PICKER_HTTP_AUTH": "token:/dev/null"}, "PICKER_HTTP_AUTH: /dev/null is empty"),
        (
            {"PICKER_HTTP_AUTH": "kubernetes", "KUBECONFIG": "/nowhere"},
            "PICKER_HTTP_AUTH: no access to the Kubernetes API",
        ),
    ],
)
async def test_what_keeps_it_from_starting_is_one_line(
    tmp_path: Path, settings: dict[str, str], says: str
) -> None:
    with pytest.raises(ChildError, match=says):
        async with running(tmp_path, 0, **settings):
            pass


async def test_metrics_for_who_shows_the_token_only(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    async with running(tmp_path, PICKER_HTTP_AUTH=f"token:{token}") as (picker, _):
        assert await picker.metrics() == "show a token: Authorization: Bearer …\n"


async def test_clients_need_a_certificate_where_a_ca_is_given(tmp_path: Path) -> None:
    chain, _ = self_signed()
    (tmp_path / "ca.crt").write_bytes(chain)
    settings = {"PICKER_SECURE_SERVING": "true", "PICKER_CLIENT_CA": str(tmp_path / "ca.crt")}
    async with running(tmp_path, 0, **settings) as (picker, _):
        host, port = picker.address.split(":")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        async with asyncio.timeout(DEADLINE):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        log = (tmp_path / "picker.log").read_text()
    assert "give it one that PICKER_CLIENT_CA has signed" in log
