"""A Ray Serve application that looks like a model server and sleeps instead of computing.

Every replica takes a bounded number of requests at once, and every proxy keeps a bounded queue for the
rest and refuses what goes beyond it, as in production.
"""

# Annotations stay objects: FastAPI reads them, and the class body is pickled.
import asyncio
import os
from collections.abc import AsyncIterator
from typing import Annotated, Any, cast

import orjson
from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field
from ray import serve
from ray.serve import Application, Deployment

NODE_VARIABLE = "BENCH_RAY_NODE"
"""Says in every process of a node which node of the rig it belongs to."""


ADAPTERS_PER_REPLICA = 3
ADAPTER_LOAD_SECONDS = 0.2
CHAT_ADAPTER = "chat"
BATCH_ADAPTER = "batch"
BATCH_NODE = 1

api = FastAPI()


class ChatRequest(BaseModel):
    """The part of an OpenAI chat request that matters here, and how long to take.

    ``sleep`` seconds pass before the first byte; a stream then has ``chunks`` events, one after each
    ``interval`` seconds.
    """

    model: str = "demo"
    stream: bool = False
    sleep: float = Field(default=0.1, ge=0, le=600)
    chunks: int = Field(default=5, ge=1, le=100_000)
    interval: float = Field(default=0.05, ge=0, le=60)


FailStatus = Annotated[int | None, Header(ge=400, le=599)]


# Before the class: Serve pickles the routes, with the functions they call, as the class is made.
def event(content: dict[str, Any]) -> bytes:
    """Give one server-sent event."""
    return b"data: %b\n\n" % orjson.dumps(content)


def preloaded(node: int) -> tuple[str, ...]:
    """The adapters (as of LoRA) that a node's replica has from the start.

    Serve sends a request for an adapter to the replicas that have it, and if those are full to the ones
    with the fewest adapters; others come last. So the batch job's requests wait for the one replica that
    has theirs, however idle the others are, and those keep their slots for chat.
    """
    if node == BATCH_NODE:
        return (BATCH_ADAPTER,)
    return (CHAT_ADAPTER, *(f"spare-{number}" for number in range(1, ADAPTERS_PER_REPLICA)))


def fail_if_asked(status: int | None) -> None:
    """Answer with the status the client asked for."""
    if status is not None:
        raise HTTPException(status, detail="failing as asked by x-fail-status")


@serve.deployment(ray_actor_options={"num_cpus": 0.1}, max_replicas_per_node=1)
@serve.ingress(api)
class ModelServer:
    """One replica; the header ``x-fail-status: 500`` asks it to answer with that status."""

    async def __init__(self, release: int) -> None:  # type: ignore[misc]  # Serve awaits it
        node = int(os.environ[NODE_VARIABLE])
        replica = serve.get_replica_context().replica_id.unique_id
        self.worker = {"node": node, "replica": replica, "release": release}
        for adapter in preloaded(node):
            await self.load_adapter(adapter)

    @serve.multiplexed(max_num_models_per_replica=ADAPTERS_PER_REPLICA)  # type: ignore[untyped-decorator]
    async def load_adapter(self, adapter: str) -> str:
        """Load an adapter; Serve drops the one longest unused when there are too many."""
        await asyncio.sleep(ADAPTER_LOAD_SECONDS)
        return adapter

    @api.get("/hello")
    async def hello(self, x_fail_status: FailStatus = None) -> dict[str, Any]:
        """Say at once who works here."""
        fail_if_asked(x_fail_status)
        return self.worker

    @api.post("/v1/chat/completions")
    async def chat(self, request: ChatRequest, x_fail_status: FailStatus = None) -> Response:
        """Answer as a model would, in one piece or as server-sent events."""
        fail_if_asked(x_fail_status)
        if adapter := serve.get_multiplexed_model_id():
            await self.load_adapter(adapter)
        if request.stream:
            return StreamingResponse(self.events(request), media_type="text/event-stream")
        await asyncio.sleep(request.sleep)
        message = {"role": "assistant", "content": "Hello."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(
            {"object": "chat.completion", "model": request.model, "choices": [choice], "worker": self.worker}
        )

    async def events(self, request: ChatRequest) -> AsyncIterator[bytes]:
        """Give the events of a streamed answer."""
        await asyncio.sleep(request.sleep)
        for number in range(request.chunks):
            await asyncio.sleep(request.interval)
            choice = {"index": 0, "delta": {"content": f"{number} "}}
            yield event({"object": "chat.completion.chunk", "choices": [choice], "worker": self.worker})
        yield b"data: [DONE]\n\n"


def build(replicas: int, max_ongoing: int, max_queued: int, release: int = 0) -> Application:
    """Give the application: ``max_ongoing`` requests a replica at once, ``max_queued`` waiting a proxy.

    Serve replaces the replicas of another ``release``.
    """
    # Serve's decorator returns a Deployment, which its types do not say.
    server = cast("Deployment", ModelServer)
    application: Application = server.options(
        num_replicas=replicas, max_ongoing_requests=max_ongoing, max_queued_requests=max_queued
    ).bind(release)
    return application
