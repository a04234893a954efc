"""The admin port over HTTP: who may ask, what is told, and that viewers cannot hurt."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest

from picker.observe import admin
from picker.observe.admin import AdminServer
from picker.observe.http_port import Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

DEADLINE = 10.0


class Seen:
    """An observatory with little in it."""

    def __init__(self) -> None:
        self.states = 0
        self.broken = False
        self.padding = ""

    def state(self) -> dict[str, Any]:
        self.states += 1
        if self.broken:
            raise RuntimeError("no state")
        return {"number": self.states, **({"padding": self.padding} if self.padding else {})}

    def decisions(self, last: int) -> list[dict[str, Any]]:
        return [{"id": str(number)} for number in range(last)]

    def decision(self, number: str) -> dict[str, Any] | None:
        return {"id": number} if number == "7" else None

    def explain(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if "path" not in asked:
            raise ValueError("path should be given")
        return {"endpoint": "10.0.0.1:8000"}


@asynccontextmanager
async def serving(seen: Seen | None = None) -> AsyncIterator[tuple[aiohttp.ClientSession, AdminServer]]:
    server = AdminServer(Place("127.0.0.1", 0, "PICKER_ADMIN_BIND", "PICKER_ADMIN_PORT"), seen or Seen())
    await server.start()
    timeout = aiohttp.ClientTimeout(total=DEADLINE)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}", timeout=timeout) as client:
            yield client, server
    finally:
        await asyncio.wait_for(server.stop(), DEADLINE)


async def next_state(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """The next event of a stream."""
    assert await response.content.readline() == b"event: state\n"
    data = await response.content.readline()
    assert await response.content.readline() == b"\n"
    state: dict[str, Any] = orjson.loads(data.removeprefix(b"data: "))
    return state


async def test_the_page_allows_no_script_but_its_own() -> None:
    async with serving() as (client, _), client.get("/") as response:
        page = await response.text()
        policy = response.headers["Content-Security-Policy"]
    nonce = policy.partition("script-src 'nonce-")[2].partition("'")[0]
    assert nonce
    assert page.count(f'nonce="{nonce}"') == 2, "of the style and the script"
    assert "default-src 'none'" in policy
    assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "nothing comes from elsewhere"


async def test_viewers_get_a_state_at_once_and_then_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "UPDATE_INTERVAL", 0.01)
    seen = Seen()
    async with serving(seen) as (client, _), client.get("/api/events") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        numbers = [(await next_state(response))["number"] for _ in range(3)]
    assert numbers == sorted(set(numbers))


async def test_two_viewers_cost_one_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "UPDATE_INTERVAL", 60.0)
    seen = Seen()
    async with (
        serving(seen) as (client, _),
        client.get("/api/events") as one,
        client.get("/api/events") as two,
    ):
        assert await next_state(one) == await next_state(two)
    assert seen.states == 1


async def test_a_fault_in_one_state_does_not_end_the_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin, "UPDATE_INTERVAL", 0.01)
    seen = Seen()
    async with serving(seen) as (client, _), client.get("/api/events") as response:
        await next_state(response)
        seen.broken = True
        await next_state(response)
        seen.broken = False
        first = (await next_state(response))["number"]
        while (await next_state(response))["number"] <= first:
            pass
    assert "could not be made" in caplog.text


async def test_viewers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "MOST_VIEWERS", 1)
    async with serving() as (client, _), client.get("/api/events") as watching:
        await next_state(watching)
        async with client.get("/api/events") as response:
            assert response.status == 503


async def test_decisions_are_told_as_json() -> None:
    async with serving() as (client, _):
        async with client.get("/api/decisions", params={"last": "3"}) as response:
            assert [one["id"] for one in await response.json()] == ["0", "1", "2"]
        async with client.get("/api/decisions/7") as response:
            assert (await response.json())["id"] == "7"
        async with client.get("/api/decisions/8") as response:
            assert response.status == 404


@pytest.mark.parametrize("last", ["0", "-1", "x", "1001", "²"])
async def test_a_wrong_number_of_decisions_is_told(last: str) -> None:
    async with serving() as (client, _), client.get("/api/decisions", params={"last": last}) as response:
        assert response.status == 400
        assert "1 to 1000" in await response.text()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"method": "POST"}', b"\xff"])
async def test_a_wrong_question_is_told(body: bytes) -> None:
    async with serving() as (client, _), client.post("/api/explain", data=body) as response:
        assert response.status == 400


async def test_a_made_up_request_is_explained() -> None:
    async with serving() as (client, _), client.post("/api/explain", json={"path": "/"}) as response:
        assert (await response.json())["endpoint"] == "10.0.0.1:8000"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:9091", 200),
        ("[::1]:9091", 200),
        ("evil.example", 403),
        ("evil.example:9091", 403),
    ],
)
async def test_on_loopback_pages_of_other_names_are_refused(host: str, status: int) -> None:
    async with serving() as (client, _), client.get("/api/state", headers={"Host": host}) as response:
        assert response.status == status


async def test_a_body_that_cannot_be_decoded_is_told() -> None:
    headers = {"Content-Encoding": "gzip"}
    async with serving() as (client, _):
        response = await client.post("/api/explain", data=b"no gzip", headers=headers)
        assert response.status == 400


async def test_the_connection_of_a_refused_request_is_closed() -> None:
    async with serving() as (client, _), client.get("/", headers={"Host": "evil.example"}) as response:
        assert response.status == 403
        assert response.headers["Connection"] == "close"


async def test_a_viewer_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "UPDATE_INTERVAL", 0.01)
    monkeypatch.setattr(admin, "WRITE_TIMEOUT", 0.1)
    seen = Seen()
    seen.padding = "x" * (16 << 20)
    async with serving(seen) as (_, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readline()
        async with asyncio.timeout(DEADLINE):
            while not writer.is_closing():  # closed by the kernel's word that the peer is gone
                writer.write(b" ")
                await asyncio.sleep(0.05)
