"""An API server that answers each request as a test has written down."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import orjson
from aiohttp import web

from picker.kube.client import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

    from picker.kube.client import KubeClient

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """``lines`` are the body; then it ends well, is cut off, or goes on without a word."""

    lines: tuple[bytes, ...] = ()
    status: int = 200
    then: Literal["end", "cut", "hang"] = "end"
    headers: bool = True
    """False: not even those come."""


def listed(*items: Json, version: int = 1, more: str = "") -> Answer:
    """A page of a list; ``more`` is the token of the next."""
    metadata = {"resourceVersion": str(version), "continue": more}
    return Answer((orjson.dumps({"metadata": metadata, "items": items}),))


def watched(*events: Json | bytes, then: Literal["end", "cut", "hang"] = "hang") -> Answer:
    lines = tuple(event if isinstance(event, bytes) else orjson.dumps(event) + b"\n" for event in events)
    return Answer(lines, then=then)


def refused(status: int, message: str = "no") -> Answer:
    return Answer((orjson.dumps({"kind": "Status", "message": message, "code": status}),), status)


def thing(name: str, value: int = 0, version: int = 1) -> Json:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "value": value}


def event(kind: str, item: Json) -> Json:
    return {"type": kind, "object": item}


def bookmark(version: int) -> Json:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def error(code: int) -> Json:
    return event("ERROR", {"kind": "Status", "code": code, "message": "no"})


class FakeApi:
    """``asked`` is the query of each request so far. When the script ends, answers are waited for."""

    def __init__(self, *script: Answer) -> None:
        self._script = list(script)
        self.asked: list[dict[str, str]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        answer = self._script.pop(0) if self._script else Answer(headers=False, then="hang")
        if not answer.headers:
            await hang()
        response = web.StreamResponse(status=answer.status)
        await response.prepare(request)
        for line in answer.lines:
            await response.write(line)
        if answer.then == "hang":
            await hang()
        if answer.then == "cut" and request.transport is not None:
            request.transport.abort()
        return response


async def hang() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def serving(api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """A client of the server, as the picker makes it from a kubeconfig file."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    config = {
        "clusters": [{"name": "x", "cluster": {"server": f"http://{host}:{port}"}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }
    file = tmp_path / "config"
    file.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(file))
    client = await connect()
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()
