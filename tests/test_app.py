"""The process with all its parts, asked over gRPC."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import grpc.aio  # type: ignore[import-untyped]
import pytest

from bench.rig.picker import Picker
from picker.extproc._generated.external_processor_pb2 import ProcessingResponse
from tests.endpoints.test_ray_head import Head, applications
from tests.endpoints.test_ray_head import running as running_head
from tests.extproc.gateway import message
from tests.metrics.rig import Server, http
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

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
async def running(tmp_path: Path, waiting: int = 0) -> AsyncIterator[tuple[Picker, Path]]:
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


async def test_a_mistake_in_the_objects_file_is_one_line_at_the_start(tmp_path: Path) -> None:
    objects = tmp_path / "objects.yaml"
    objects.write_text(OBJECTIVE.replace("-1", "low"))
    settings = {"PICKER_ENDPOINTS": "127.0.0.1:1", "PICKER_OBJECTS_FILE": str(objects)}
    with pytest.raises(Exception, match=r"objects\.yaml, line 5: spec\.priority 'low' is not a priority"):
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
