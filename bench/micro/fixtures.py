"""What the steps are fed with: a gateway's messages, a pool, metrics pages."""

from __future__ import annotations

import random

import orjson

from picker.extproc._generated.external_processor_pb2 import ProcessingRequest
from scorer.fleet import Fleet

DUPLEX, BUFFERED, NONE = 4, 2, 0
HEADERS = {
    ":method": "POST",
    ":path": "/v1/chat/completions",
    ":authority": "models.example.com",
    ":scheme": "http",
    "content-type": "application/json",
    "accept": "*/*",
    "user-agent": "OpenAI/Python 1.50.0",
    "authorization": "Bearer sk-0123456789abcdef0123456789abcdef",
    "x-forwarded-proto": "http",
    "x-request-id": "7d9a3c52-2f0e-4a53-9d53-1f8f8f6f0a11",
    "x-envoy-expected-rq-timeout-ms": "15000",
}
ANSWER_HEADERS = {
    ":status": "200",
    "content-type": "text/event-stream",
    "date": "Mon, 30 Nov 2026 12:00:00 GMT",
    "server": "uvicorn",
    "x-envoy-upstream-service-time": "12",
}


def chat(size: int) -> bytes:
    """The body of a chat request of about ``size`` bytes."""
    frame: dict[str, object] = {
        "model": "llama",
        "messages": [{"role": "user", "content": ""}],
        "stream": True,
    }
    words = "".join(random.Random(size).choices("abcdefghij klmno", k=size - len(orjson.dumps(frame))))
    frame["messages"] = [{"role": "user", "content": words}]
    return orjson.dumps(frame)


def headers(phase: str, fields: dict[str, str], modes: tuple[int, int] | None = None) -> bytes:
    """A headers message; ``modes`` makes it the first of a stream."""
    request = ProcessingRequest()
    message = getattr(request, phase)
    for name, value in fields.items():
        message.headers.headers.add(key=name, raw_value=value.encode())
    if modes is not None:
        request.protocol_config.request_body_mode, request.protocol_config.response_body_mode = modes  # type: ignore[assignment]  # plain integers
    return request.SerializeToString()


def body(phase: str, data: bytes, *, end: bool) -> bytes:
    """A body message."""
    request = ProcessingRequest()
    message = getattr(request, phase)
    message.body, message.end_of_stream = data, end
    return request.SerializeToString()


def pool(size: int, rng: random.Random, now: float) -> Fleet:
    """A fleet with pages of the time ``now``, as a Ray pool's."""
    fleet = Fleet()
    for number in range(size):
        slot = fleet.add(f"10.0.{number // 250}.{number % 250}:8000")
        fleet.fetched_at[slot.row] = now
        fleet.scraped_load[slot.row] = rng.randrange(20)
        fleet.local_running[slot.row] = rng.randrange(10)
        fleet.set_routes(slot, ["/"])
    return fleet
