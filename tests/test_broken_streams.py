"""Streams that no sound gateway would open, against a picker process: nothing is said and nothing leaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types
import pytest
import pytest_asyncio

from bench.rig.picker import Picker
from tests.extproc.gateway import BODY, message
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="module")

End = Literal["half-close", "cancel", "cut"]
ENDS: tuple[End, ...] = ("half-close", "cancel", "cut")
METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
PATIENCE = 20.0
CHAT = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
OK = {":status": "200"}


def exchange(modes: str) -> list[bytes]:
    """All messages of one request, in a gateway's order."""
    request, response = modes.split("/")
    messages = [message("request_headers", headers=CHAT, modes=modes)]
    if request != "none":
        messages.append(message("request_body", body=BODY[:20], end=False))
        messages.append(message("request_body", body=BODY[20:], end=request != "duplex"))
    if request == "duplex":
        messages.append(message("request_trailers"))
    messages.append(message("response_headers", headers=OK))
    if response != "none":
        messages += [message("response_body", body=b"data: 1\n\n"), message("response_body", end=True)]
    return messages


ODD = {
    "no messages": [],
    "an empty message": [b""],
    "empty messages": [b"", b"", b""],
    "not protobuf": [b"\xff\xff\xff"],
    "not protobuf after headers": [*exchange("duplex/duplex")[:1], b"\x22\xff\xff\xff\xff\x7f"],
    "a response at once": exchange("duplex/duplex")[4:],
    "response headers, of an error": [message("response_headers", headers={":status": "503"}, end=True)],
    "response headers with modes": [message("response_headers", headers=OK, modes="duplex/duplex")],
    "a response body at once": [message("response_body", body=b"data"), message("response_body", end=True)],
    "response trailers at once": [message("response_trailers")],
    "a request body at once": [message("request_body", body=BODY, end=True)],
    "request trailers at once": [message("request_trailers")],
    "request headers twice": exchange("duplex/duplex")[:1] * 2,
    "the request after the response": exchange("duplex/duplex")[4:] + exchange("duplex/duplex")[:4],
    "messages after the end": exchange("duplex/duplex") * 2,
    "the response before the body": exchange("duplex/duplex")[:1] + exchange("duplex/duplex")[4:],
    "modes that do not exist": [message("request_headers", headers=CHAT) + b"\x5a\x04\x08\x63\x10\x63"],
    "no headers": [message("request_headers", headers={})],
    "headers that are not ASCII": [message("request_headers", headers={**CHAT, "x-\xe9": "\xff\x00\n"})],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def picker() -> AsyncIterator[Picker]:
    async with Picker({"PICKER_ENDPOINTS": "127.0.0.1:1,127.0.0.1:2"}) as running:
        yield running


async def play(picker: Picker, messages: list[bytes], end: End) -> None:
    """Send, and break off: in good order, by a reset, or with the connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(picker.address, options=options) as channel:
        call = channel.stream_stream(METHOD)(timeout=PATIENCE)
        await call.wait_for_connection()
        answers = asyncio.create_task(drain(call))
        try:
            for each in messages:
                await call.write(each)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the picker has ended the stream, which is its good right
        if end == "half-close":
            await call.done_writing()
            await answers
            assert await call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
        elif end == "cancel":
            call.cancel()
    await answers


async def drain(call: Any) -> None:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        pass


async def assert_clean(picker: Picker) -> None:
    async def nothing_left() -> bool:
        page = await picker.metrics()
        return "picker_streams_open 0.0\n" in page and "picker_requests_in_flight 0.0\n" in page

    await eventually(nothing_left)
    log = picker.child.log_text()
    assert not [line for line in log.splitlines() if '"level":"error"' in line or "exception" in line]
    assert "Traceback" not in log


@pytest.mark.parametrize("end", ENDS)
async def test_odd_streams(end: End, picker: Picker) -> None:
    for messages in ODD.values():
        await play(picker, messages, end)
    await assert_clean(picker)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "modes",
    ["duplex/duplex", "duplex/none", "buffered/none", "buffered/streamed", "streamed/streamed", "none/none"],
)
async def test_a_stream_breaks_off_anywhere(modes: str, end: End, picker: Picker) -> None:
    messages = exchange(modes)
    for count in range(len(messages) + 1):
        await play(picker, messages[:count], end)
    await assert_clean(picker)


async def test_many_streams_break_off_at_once(picker: Picker) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(60):
            messages = exchange("duplex/duplex")
            group.create_task(play(picker, messages[: number % 8], ENDS[number % 3]))
    await assert_clean(picker)
