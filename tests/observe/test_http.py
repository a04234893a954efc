"""The HTTP port, asked by a real client and by peers that misbehave."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import aiohttp
import pytest

from picker.observe import http_port
from picker.observe.http import MetricsServer
from picker.observe.http_port import HttpError, Place
from picker.observe.prometheus import Metrics
from scorer.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

HOST = "127.0.0.1"
OPENMETRICS = "application/openmetrics-text"
DEADLINE = 10.0
CLOSED = (ConnectionResetError, asyncio.IncompleteReadError)


@asynccontextmanager
async def serving(*, ready: bool = True) -> AsyncIterator[MetricsServer]:
    fleet = Fleet()
    fleet.add("10.0.0.1:8000")
    server = MetricsServer(Place(HOST, 0), Metrics(fleet), ready=lambda: ready)
    await server.start()
    try:
        yield server
    finally:
        await asyncio.wait_for(server.stop(), DEADLINE)


@asynccontextmanager
async def connection(
    server: MetricsServer,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with asyncio.timeout(DEADLINE):
        reader, writer = await asyncio.open_connection(HOST, server.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def get(server: MetricsServer, path: str, **headers: str) -> tuple[int, str, aiohttp.ClientResponse]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    timeout = aiohttp.ClientTimeout(total=DEADLINE)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://{HOST}:{server.port}{path}", headers=named) as response,
    ):
        return response.status, await response.text(), response


async def test_serves_the_page_as_text() -> None:
    async with serving() as server:
        status, body, response = await get(server, "/metrics")
    assert status == 200
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'picker_endpoints{state="eligible"} 1.0' in body
    assert "# EOF" not in body


async def test_serves_openmetrics_when_asked() -> None:
    async with serving() as server:
        _, body, response = await get(
            server, "/metrics", Accept="application/openmetrics-text; version=1.0.0"
        )
    assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.count("# EOF\n") == 1
    assert body.endswith("# EOF\n")


@pytest.mark.parametrize("accept", ["text/plain;version=x.y", f"{OPENMETRICS};version=", ";;,", "\xff"])
async def test_serves_something_whatever_is_accepted(accept: str) -> None:
    async with serving() as server:
        status, body, _ = await get(server, "/metrics", Accept=accept)
    assert status == 200
    assert "picker_streams_open" in body


async def test_compresses_when_asked() -> None:
    async with serving() as server:
        _, body, response = await get(server, "/metrics", Accept_Encoding="gzip")
        assert response.headers["Content-Encoding"] == "gzip"
        assert "picker_streams_open" in body
        _, _, response = await get(server, "/metrics", Accept_Encoding="identity")
        assert "Content-Encoding" not in response.headers


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
async def test_ready_is_asked_for_and_alive_is_not(ready: bool, status: int) -> None:
    async with serving(ready=ready) as server:
        assert (await get(server, "/readyz"))[0] == status
        assert (await get(server, "/healthz"))[0] == 200
        assert (await get(server, "/elsewhere"))[0] == 404


async def test_a_taken_port_names_the_setting() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = MetricsServer(Place(HOST, port), Metrics(Fleet()), ready=lambda: True)
        with pytest.raises(
            HttpError, match=rf"port {port} \(Address already in use\): set PICKER_METRICS_PORT"
        ) as caught:
            await server.start()
        await server.stop()
    assert str(caught.value).isprintable(), "one line"


async def test_an_address_of_another_machine_names_the_setting() -> None:
    server = MetricsServer(Place("192.0.2.1", 0), Metrics(Fleet()), ready=lambda: True)
    with pytest.raises(HttpError, match=r"192\.0\.2\.1.*PICKER_BIND"):
        await server.start()


async def test_what_is_no_http_gets_an_answer_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server, connection(server) as (reader, writer):
        writer.write(b"\x16\x03\x01 hello\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.0 400")
    assert not caplog.records


async def test_a_connection_too_many_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "MOST_CONNECTIONS", 1)
    async with serving() as server, connection(server), connection(server) as (reader, _):
        with pytest.raises(CLOSED):
            await reader.readexactly(1)


async def test_a_silent_connection_is_closed_at_the_second_sweep() -> None:
    async with serving() as server, connection(server) as (reader, _):
        await get(server, "/healthz")  # accepted after it, so by now the silent one is accepted too
        server._http._sweep()
        server._http._sweep()
        with pytest.raises(CLOSED):
            await reader.readexactly(1)


async def test_a_request_that_never_ends_is_cut_off() -> None:
    async with serving() as server, connection(server) as (reader, writer):
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")  # the end of the headers never comes
        await get(server, "/healthz")
        server._http._sweep()
        server._http._sweep()
        with pytest.raises(CLOSED):
            await reader.readexactly(1)


@pytest.mark.parametrize("path", ["/healthz", "/elsewhere"])
async def test_one_request_a_connection(path: str) -> None:
    async with serving() as server, connection(server) as (reader, writer):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert b"\r\nConnection: close\r\n" in await reader.read()


async def test_stops_with_an_idle_connection_open_and_twice() -> None:
    async with serving() as server, connection(server):
        await server.stop()
        await server.stop()
