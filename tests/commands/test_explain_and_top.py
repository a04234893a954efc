"""``serve-picker explain`` and ``top`` against an admin port."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from picker.cli import _group
from picker.observatory import COLUMNS
from picker.observe.admin import AdminServer
from picker.observe.auth import TokenFile
from picker.observe.http_port import Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from click.testing import Result

HOSTILE = "evil\x1b[2Jmodel\n"
DECISION: dict[str, Any] = {
    "id": "41",
    "at": 0.0,
    "method": "POST",
    "path": "/v1/completions",
    "model": HOSTILE,
    "prompt_tokens": 100,
    "matched_tokens": 64.0,
    "endpoint": "10.0.0.1:8000",
    "fallbacks": ["10.0.0.2:8000"],
    "refused": "",
}
WHOLE = {
    **DECISION,
    "message": "",
    "dropped": [{"by": "draining", "endpoints": ["10.0.0.9:8000"], "more": 3}],
    "scorers": [{"name": "least-work", "weight": 1.0}],
    "candidates": [
        {"endpoint": "10.0.0.1:8000", "total": 1.0, "scores": [1.0]},
        {"endpoint": "10.0.0.2:8000", "total": 0.5, "scores": [0.5]},
    ],
    "more": 0,
    "draw": "",
}


class Seen:
    """An observatory that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []

    def state(self) -> dict[str, Any]:
        rows = [
            [f"10.0.0.{number}:8000", "", "", "eligible", float(number), None, None, 0.0, 0.5, 1.0, 0.5, 9.0]
            for number in (1, 2)
        ]
        return {
            "policy": {"name": "built in", "problem": "policy.yaml, line 3: no such plugin"},
            "rates": {"requests": 12.5, "decision_p50_us": 100.0, "decision_p99_us": None, "streams": 3},
            "clusters": [{"name": "old", "endpoints": 2, "wanted": 0.25, "served": None}],
            "columns": COLUMNS,
            "endpoints": rows,
        }

    def decisions(self, last: int) -> list[dict[str, Any]]:
        return [DECISION] * last

    def decision(self, number: str) -> dict[str, Any] | None:
        return WHOLE if number == "41" else None

    def explain(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(asked)
        return WHOLE


@asynccontextmanager
async def admin(seen: Seen, token: Path | None = None) -> AsyncIterator[str]:
    place = Place("127.0.0.1", 0, "PICKER_ADMIN_BIND", "PICKER_ADMIN_PORT")
    server = AdminServer(place, seen, middlewares=(TokenFile(token).check,) if token else ())
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await asyncio.wait_for(server.stop(), 10)


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, _group, arguments)


async def test_the_last_decisions_are_a_table() -> None:
    async with admin(Seen()) as where:
        told = await run("explain", "--last", "2", "--admin", where)
    assert told.exit_code == 0
    head, *lines = told.stdout.splitlines()
    assert head.split() == ["id", "time", "request", "model", "tokens", "cached", "endpoint"]
    assert len(lines) == 2
    assert "10.0.0.1:8000" in lines[0]


async def test_a_terminal_is_told_nothing_that_it_would_obey() -> None:
    async with admin(Seen()) as where:
        for arguments in (("explain",), ("explain", "--decision", "41")):
            assert "\x1b" not in (await run(*arguments, "--admin", where)).stdout


async def test_a_decision_is_told_with_its_reasons() -> None:
    async with admin(Seen()) as where:
        told = (await run("explain", "--decision", "41", "--admin", where)).stdout
    assert "chosen: 10.0.0.1:8000, 10.0.0.2:8000" in told
    assert "draining left out 10.0.0.9:8000 and 3 more" in told
    assert "least-work x 1" in told


async def test_json_is_what_the_live_page_gets() -> None:
    async with admin(Seen()) as where:
        told = (await run("explain", "--decision", "41", "--json", "--admin", where)).stdout
    assert json.loads(told) == WHOLE


async def test_a_made_up_request_is_sent_as_it_was_told(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("hello")
    seen = Seen()
    async with admin(seen) as where:
        flags = ["--model", "m", "--prompt-file", str(prompt), "--header", "x-session-id: 42"]
        assert (await run("explain", *flags, "--admin", where)).exit_code == 0
    (asked,) = seen.asked
    assert asked["headers"] == {"x-session-id": "42"}
    assert (asked["body"]["model"], asked["body"]["prompt"]) == ("m", "hello")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--decision", "42"), "no longer kept"),
        (("--decision", "x"), "is no id"),
        (("--header", "nonsense"), "is not NAME:VALUE"),
        (("--model", "m", "--last", "3"), "ask one"),
        (("--prompt", "a", "--prompt-file", __file__), "give one"),
    ],
)
async def test_what_cannot_be_asked_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    async with admin(Seen()) as where:
        told = await run("explain", *arguments, "--admin", where)
    assert told.exit_code == 2
    assert said in told.stderr
    assert len(told.stderr.strip().splitlines()) == 1


async def test_a_picker_that_is_not_there_is_one_line() -> None:
    for command in (("explain",), ("top", "--once")):
        told = await run(*command, "--admin", "127.0.0.1:1")
        assert told.exit_code == 2
        assert "cannot be asked" in told.stderr


async def test_another_server_at_that_port_is_one_line() -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"hello": 1})

    app = web.Application()
    app.router.add_get("/api/state", answer)
    async with TestServer(app) as server:
        for command in (("explain",), ("top", "--once")):
            told = await run(*command, "--admin", f"127.0.0.1:{server.port}")
            assert told.exit_code == 2
            assert "is not an admin port" in told.stderr


@pytest.mark.parametrize("where", ["127.0.0.1:x", "http://[", "", "127.0.0.1:1\x1b[31m", "file:///etc/hosts"])
async def test_a_wrong_address_is_one_line(where: str) -> None:
    told = await run("top", "--once", "--admin", where)
    assert told.exit_code == 2
    assert len(told.stderr.strip().splitlines()) == 1
    assert "\x1b" not in told.stderr


async def test_a_port_that_speaks_no_http_is_one_line() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x1b[31m\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        told = await run("top", "--once", "--admin", f"127.0.0.1:{port}")
    assert told.exit_code == 2
    assert "cannot be asked" in told.stderr
    assert "\x1b" not in told.stderr


async def test_a_token_file_that_has_none_is_one_line(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes(b"\xff\xfe")
    told = await run("top", "--once", "--token-file", str(token))
    assert told.exit_code == 2
    assert "cannot be read as a token" in told.stderr


async def test_a_token_opens_the_port(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    async with admin(Seen(), token) as where:
        refused = await run("explain", "--admin", where)
        told = await run("explain", "--admin", where, "--token-file", str(token))
    assert "says 401" in refused.stderr
    assert told.exit_code == 0


async def test_top_shows_the_busiest_first() -> None:
    async with admin(Seen()) as where:
        told = (await run("top", "--once", "--admin", where)).stdout.splitlines()
    assert told[0].startswith("12.5 requests/s   decision p50 100 µs, p99 - µs   3 streams")
    assert "not loaded: policy.yaml, line 3: no such plugin" in told
    assert "cluster old: wanted 25.0 %, served -" in told
    assert [line.split()[0] for line in told[-2:]] == ["10.0.0.2:8000", "10.0.0.1:8000"]
