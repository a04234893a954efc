"""Who serves, as a Ray head tells it: what it is asked, and what becomes of bad answers."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from aiohttp import web

from picker.addresses import HostPort
from picker.endpoints import ray_head
from picker.endpoints.endpoint import Endpoint
from picker.endpoints.enriched import EnrichedSource
from picker.endpoints.fixed import FixedSource
from picker.endpoints.ray_head import Pace, RayHead, RayHeadSource, head_details
from tests.endpoints.follow import Follower
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

FAST = Pace(interval=0.01, retry=0.01, answer=5.0, empty=3600.0)


def applications(
    *proxies: str, replicas: dict[str, str] | None = None, states: dict[str, str] | None = None
) -> dict[str, Any]:
    """An answer of Serve: healthy proxies and replicas (with their routes) by ip:port, states by IP."""

    def target(address: str, name: str) -> dict[str, Any]:
        ip, _, port = address.rpartition(":")
        return {"ip": ip, "port": int(port), "name": name}

    healthy = [target(address, f"SERVE_PROXY_ACTOR-{address[:-5]}") for address in proxies]
    groups = [{"targets": healthy, "route_prefix": "/", "protocol": "HTTP", "app_name": ""}]
    groups += [
        {
            "targets": [target(address, f"SERVE_REPLICA::app#D#{address}")],
            "route_prefix": route,
            "protocol": "HTTP",
            "app_name": route[1:],
        }
        for address, route in (replicas or {}).items()
    ]
    nodes = {ip: {"node_ip": ip, "status": state} for ip, state in (states or {}).items()}
    return {"controller_info": {"actor_id": "c1"}, "target_groups": groups, "proxies": nodes}


class Head:
    """A dashboard under the test's hand; ``answer`` is given as JSON, or is a status."""

    def __init__(self) -> None:
        self.answer: object = applications("10.0.0.1:8000")
        self.pages: object = []
        self.asked = 0
        self.url = ""
        self.token = ""

    async def applications(self, request: web.Request) -> web.Response:
        self.asked += 1
        return self._response(self.answer if self._may_ask(request) else 401)

    async def metrics(self, request: web.Request) -> web.Response:
        return self._response(self.pages if self._may_ask(request) else 401)

    def _may_ask(self, request: web.Request) -> bool:
        wanted = f"Bearer {self.token}" if self.token else None
        return request.headers.get("Authorization") == wanted

    def _response(self, answer: object) -> web.Response:
        if isinstance(answer, int):
            return web.Response(status=answer, text="no")
        body = answer if isinstance(answer, bytes) else orjson.dumps(answer)
        return web.Response(body=body, content_type="application/json")

    async def asked_again(self, times: int = 3) -> None:
        enough = self.asked + times

        async def asked() -> bool:
            return self.asked >= enough

        await eventually(asked)


@asynccontextmanager
async def running(head: Head, port: int = 0) -> AsyncIterator[Head]:
    application = web.Application()
    application.router.add_get("/api/serve/applications/", head.applications)
    application.router.add_get("/api/prometheus/sd", head.metrics)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    host, port = runner.addresses[0][:2]
    head.url = f"http://{host}:{port}"
    try:
        yield head
    finally:
        await runner.cleanup()


def source(head: Head, **options: Any) -> RayHeadSource:
    return RayHeadSource(RayHead(head.url, pace=FAST), **options)


@pytest.fixture(autouse=True)
def _no_haproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses in these tests are nobody's, so looking for HAProxy there would wait for nothing."""

    async def none(*_: object) -> bool:
        return False

    monkeypatch.setattr(RayHead, "_is_haproxy", none)


async def test_proxies_and_their_metrics() -> None:
    async with running(Head()) as head:
        head.answer = applications("10.0.0.1:8000", "10.0.0.2:8000")
        head.pages = [{"targets": ["10.0.0.1:9999", "10.0.0.1:44217"]}]
        sets = source(head).sets()
        assert await anext(sets) == (
            Endpoint(
                "10.0.0.1:8000",
                "10.0.0.1:9999",
                "SERVE_PROXY_ACTOR-10.0.0.1",
                labels={"serve.ray.io/kind": "proxy", "ray.io/node-id": "10.0.0.1"},
            ),
            Endpoint(
                "10.0.0.2:8000",
                "10.0.0.2:8080",
                "SERVE_PROXY_ACTOR-10.0.0.2",
                labels={"serve.ray.io/kind": "proxy", "ray.io/node-id": "10.0.0.2"},
            ),
        )
        await sets.aclose()


async def test_a_configured_metrics_port_goes_before_what_the_head_tells() -> None:
    async with running(Head()) as head:
        head.pages = [{"targets": ["10.0.0.1:9999"]}]
        sets = source(head, metrics_target_port=7).sets()
        assert [endpoint.metrics_address for endpoint in await anext(sets)] == ["10.0.0.1:7"]
        await sets.aclose()


async def test_replicas_serve_the_route_of_their_application() -> None:
    async with running(Head()) as head:
        head.answer = applications(replicas={"10.0.0.1:30000": "/a", "10.0.0.1:30001": "/b"})
        sets = source(head).sets()
        found = await anext(sets)
        assert [(one.address, one.routes) for one in found] == [
            ("10.0.0.1:30000", ("/a",)),
            ("10.0.0.1:30001", ("/b",)),
        ]
        assert found[0].labels == {"serve.ray.io/kind": "replica", "serve.ray.io/application": "a"}
        await sets.aclose()


async def test_changes_are_followed_and_repetitions_are_none() -> None:
    async with running(Head()) as head, Follower(source(head)) as follower:
        assert await follower.next() == ["10.0.0.1:8000"]
        await head.asked_again()
        assert follower.unread == 0
        head.answer = applications("10.0.0.2:8000")
        assert await follower.next() == ["10.0.0.2:8000"]


@pytest.mark.parametrize(
    "answer",
    [500, 404, b"<html>", b"[]", applications() | {"controller_info": None}, applications()],
    ids=["500", "404", "html", "a list", "no Serve", "nobody"],
)
async def test_a_head_that_does_not_know_keeps_the_last_set(answer: object) -> None:
    async with running(Head()) as head, Follower(source(head)) as follower:
        assert await follower.next() == ["10.0.0.1:8000"]
        head.answer = answer
        await head.asked_again()
        assert follower.unread == 0
        head.answer = applications("10.0.0.2:8000")
        assert await follower.next() == ["10.0.0.2:8000"]


async def test_that_nobody_is_there_is_believed_after_a_while() -> None:
    async with running(Head()) as head:
        pace = Pace(interval=0.01, empty=0.05)
        async with Follower(RayHeadSource(RayHead(head.url, pace=pace))) as follower:
            assert await follower.next() == ["10.0.0.1:8000"]
            head.answer = applications()
            assert await follower.next() == []


async def test_a_head_that_is_away_is_told_once_and_found_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "picker.endpoints")
    async with running(Head()) as head, Follower(source(head)) as follower:
        assert await follower.next() == ["10.0.0.1:8000"]
        head.answer = 500
        await head.asked_again(4)
        assert [record.message for record in caplog.records] == [
            "the Ray head does not tell who serves; what it said last stays in force"
        ]
        head.answer = applications("10.0.0.1:8000", "10.0.0.2:8000")
        assert len(await follower.next()) == 2
        assert caplog.records[-1].message == "the Ray head tells again who serves"


async def test_the_first_answer_is_waited_for_be_it_that_nobody_serves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(Head()) as head:
        port = int(head.url.rpartition(":")[2])
    head.answer = applications()
    async with Follower(source(head)) as follower:

        async def told() -> bool:
            return bool(caplog.records)

        await eventually(told)
        assert follower.unread == 0
        async with running(head, port):
            assert await follower.next() == []
            head.answer = applications("10.0.0.1:8000")
            assert await follower.next() == ["10.0.0.1:8000"]


async def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_head, "_MOST_BYTES", 2**17)
    async with running(Head()) as head, Follower(source(head)) as follower:
        assert await follower.next() == ["10.0.0.1:8000"]
        head.answer = b" " * 2**18 + orjson.dumps(applications("10.0.0.2:8000"))
        await head.asked_again()
        assert follower.unread == 0


class TestHaproxy:
    """HAProxy is found by the port of its metrics."""

    @pytest.fixture(autouse=True)
    def _look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()

    @pytest.mark.parametrize(
        ("page", "metrics"),
        [
            (b"haproxy_frontend_current_sessions 1\n", "haproxy"),
            (b"nginx_up 1\n", "node"),
            (404, "node"),
        ],
    )
    async def test_where_it_serves_its_page_is_read(
        self, page: bytes | int, metrics: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with running(Head()) as head:
            served = web.Application()

            async def show(_request: web.Request) -> web.Response:
                if isinstance(page, int):
                    return web.Response(status=page)
                return web.Response(body=page)

            served.router.add_get("/metrics", show)
            runner = web.AppRunner(served)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            monkeypatch.setattr(ray_head, "HAPROXY_METRICS_PORT", port)
            head.answer = applications("127.0.0.1:8000")
            sets = source(head).sets()
            [endpoint] = await anext(sets)
            expected = port if metrics == "haproxy" else 8080
            assert endpoint.metrics_address == f"127.0.0.1:{expected}"
            await sets.aclose()
            await runner.cleanup()


class TestBesideAnotherSource:
    def enriched(self, head: Head, *members: str) -> EnrichedSource:
        addresses = [
            HostPort(member.rpartition(":")[0], int(member.rpartition(":")[2])) for member in members
        ]
        asked = RayHead(head.url, pace=FAST)
        return EnrichedSource(FixedSource(addresses), lambda: head_details(asked))

    async def test_only_members_are_taken_and_their_labels_and_routes_added(self) -> None:
        async with running(Head()) as head:
            head.answer = applications("10.0.0.1:8000", "10.0.0.9:8000", replicas={"10.0.0.2:30000": "/a"})
            sets = self.enriched(head, "10.0.0.1:8000", "10.0.0.2:30000", "10.0.0.3:1").sets()
            first, second, stranger = await anext(sets)
            assert first.labels["ray.io/node-id"] == "10.0.0.1"
            assert second.routes == ("/a",)
            assert stranger == Endpoint("10.0.0.3:1", "10.0.0.3:1")
            await sets.aclose()

    async def test_a_draining_proxy_gets_no_new_requests_till_it_is_drained_no_more(self) -> None:
        both = ("10.0.0.1:8000", "10.0.0.2:8000")
        async with running(Head()) as head, Follower(self.enriched(head, *both)) as follower:
            assert (await follower.next())[:1] == ["10.0.0.1:8000"]
            head.answer = applications(
                "10.0.0.1:8000", states={"10.0.0.1": "HEALTHY", "10.0.0.2": "DRAINING"}
            )
            assert await follower.next() == ["10.0.0.1:8000"]
            head.answer = applications(*both)
            assert await follower.next() == [*both]

    async def test_if_all_drain_nobody_is_left_out(self) -> None:
        async with running(Head()) as head:
            head.answer = applications(states={"10.0.0.1": "DRAINING", "10.0.0.2": "UNHEALTHY"})
            sets = self.enriched(head, "10.0.0.1:8000", "10.0.0.2:8000").sets()
            assert len(await anext(sets)) == 2
            await sets.aclose()

    async def test_without_a_head_the_members_are_as_they_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("picker.endpoints.enriched.DETAILS_TIMEOUT", 0.01)
        head = Head()
        head.url = "http://127.0.0.1:1"
        async with Follower(self.enriched(head, "10.0.0.1:8000")) as follower:
            assert await follower.next() == ["10.0.0.1:8000"]


class TestToken:
    async def test_it_is_read_each_time(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text("first\n")
        async with running(Head()) as head:
            head.token = "first"
            asked = RayHead(head.url, token_file=file, pace=FAST)
            async with Follower(RayHeadSource(asked)) as follower:
                assert await follower.next() == ["10.0.0.1:8000"]
                head.token = "second"
                head.answer = applications("10.0.0.2:8000")
                await head.asked_again()
                file.write_text("second")
                assert await follower.next() == ["10.0.0.2:8000"]

    @pytest.mark.parametrize("content", [None, b"", b"two words", b"two\nlines", b"\xff", b"x" * 20_000])
    async def test_what_is_no_token_is_told_and_never_shown(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
    ) -> None:
        file = tmp_path / "token"
        if content is not None:
            file.write_bytes(content)
        head = RayHead("http://127.0.0.1:1", token_file=file, pace=FAST)
        views = asyncio.create_task(anext(head.views()))

        async def told() -> bool:
            return bool(caplog.records)

        await eventually(told)
        views.cancel()
        await asyncio.gather(views, return_exceptions=True)
        (error,) = [vars(record)["fields"]["error"] for record in caplog.records]
        assert str(file) in error
        assert "two" not in error.removeprefix(str(file))
