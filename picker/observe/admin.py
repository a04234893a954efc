"""The admin port: a live page for people, and the same as JSON for ``serve-picker explain`` and ``top``.

It only tells. Whatever a client of the gateway sent is data here, never markup: the page sets it as text, and
its content security policy allows no script but its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
from importlib import resources
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from aiohttp import web

from picker.observe.http_port import HttpPort, Place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

log = logging.getLogger(__name__)

Json = dict[str, Any]

UPDATE_INTERVAL = 1.0
"""Seconds between two states that viewers are sent."""
MOST_VIEWERS = 16
WRITE_TIMEOUT = 5.0
"""Seconds a viewer may take to read one state; one that takes longer is cut off."""
LONGEST_QUESTION = 4 << 20
"""Bytes of a made-up request."""
_SIGN = {"Serve-Picker": "admin"}
"""So that who asks a wrong port notices."""
MOST_DECISIONS = 1000
"""Decisions of one answer."""


class Observatory(Protocol):
    """What there is to see. Nothing here changes anything."""

    def state(self) -> Json:
        """The page's content (its script says which members it wants)."""

    def decisions(self, last: int) -> list[Json]:
        """The last decisions, newest first, without their reasons."""

    def decision(self, number: str) -> Json | None:
        """One of them with its reasons; None if it is no longer kept."""

    def explain(self, asked: Mapping[str, Any]) -> Json:
        """What would be chosen for a made-up request, and why. Raises ValueError if it makes none.

        Members, each with a default: ``method``, ``path``, ``headers`` (by name), ``body`` (a JSON object or
        a text).
        """


class AdminServer:
    """Serves an observatory at ``place``."""

    def __init__(
        self,
        place: Place,
        observatory: Observatory,
        *,
        middlewares: tuple[Callable[..., Awaitable[web.StreamResponse]], ...] = (),
    ) -> None:
        self._http = HttpPort(place)
        self._loopback = place.bind is not None and ipaddress.ip_address(place.bind).is_loopback
        self._observatory = observatory
        self._middlewares = middlewares
        self._page = resources.files("picker.observe").joinpath("page", "index.html").read_text("utf-8")
        self._changed = asyncio.Condition()
        self._state = b""
        self._viewers = 0
        self._closing = False
        self._updates: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._http.port

    async def start(self) -> None:
        """Open the port. Raises :class:`picker.observe.http_port.HttpError`."""
        app = web.Application(
            middlewares=[self._only_by_its_name, *self._middlewares], client_max_size=LONGEST_QUESTION
        )
        app.router.add_get("/", self._index)
        app.router.add_get("/api/events", self._events)
        app.router.add_get("/api/state", self._get_state)
        app.router.add_get("/api/decisions", self._get_decisions)
        app.router.add_get("/api/decisions/{number}", self._get_decision)
        app.router.add_post("/api/explain", self._explain)
        await self._http.start(app)

    async def stop(self) -> None:
        """Close the port and all streams. Idempotent."""
        self._closing = True
        if self._updates is not None:
            self._updates.cancel()
        async with self._changed:
            self._changed.notify_all()
        await self._http.stop()

    @web.middleware
    async def _only_by_its_name(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """On a loopback address, refuse pages of other sites that had their name resolve to it."""
        host = request.host.rpartition(":")[0] if not request.host.endswith("]") else request.host
        if self._loopback and not _is_loopback(host or request.host):
            raise web.HTTPForbidden(text="ask for this page by localhost or 127.0.0.1\n")
        return await handler(request)

    async def _index(self, _request: web.Request) -> web.Response:
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; img-src data:;"
            " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return web.Response(
            text=self._page.replace("{{nonce}}", nonce),
            content_type="text/html",
            headers={"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"},
        )

    async def _get_state(self, _request: web.Request) -> web.Response:
        return _json(self._observatory.state())

    async def _get_decisions(self, request: web.Request) -> web.Response:
        asked = request.query.get("last", "20")
        if not asked.isdecimal() or not 1 <= int(asked) <= MOST_DECISIONS:
            raise web.HTTPBadRequest(text=f"last should be a number from 1 to {MOST_DECISIONS}\n")
        return _json(self._observatory.decisions(int(asked)))

    async def _get_decision(self, request: web.Request) -> web.Response:
        found = self._observatory.decision(request.match_info["number"])
        if found is None:
            raise web.HTTPNotFound(text="this decision is no longer kept\n", headers=_SIGN)
        return _json(found)

    async def _explain(self, request: web.Request) -> web.Response:
        try:
            asked = orjson.loads(await request.read())
            found = self._observatory.explain(asked if isinstance(asked, dict) else {})
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from None
        except web.RequestPayloadError:
            raise web.HTTPBadRequest(text="the body cannot be decoded\n") from None
        return _json(found)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: the state, again and again."""
        if self._viewers >= MOST_VIEWERS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_VIEWERS} viewers are watching already\n")
        self._viewers += 1
        try:
            self._http.streams(request)
            response = web.StreamResponse(headers={"Cache-Control": "no-store"})
            response.content_type = "text/event-stream"
            await response.prepare(request)
            if self._updates is None:
                self._updates = asyncio.create_task(self._update(), name="live page")
            try:
                while not self._closing:
                    async with asyncio.timeout(WRITE_TIMEOUT):
                        await response.write(b"event: state\ndata: " + self._latest() + b"\n\n")
                    async with self._changed:
                        await self._changed.wait()
            except ConnectionError:
                pass
            except TimeoutError:
                # aiohttp would wait for ever to write the end to a peer that does not read.
                if request.transport is not None:
                    request.transport.abort()
            return response
        finally:
            self._viewers -= 1

    def _latest(self) -> bytes:
        if not self._state:
            self._state = orjson.dumps(self._observatory.state())
        return self._state

    async def _update(self) -> None:
        """Make a state for all viewers each second, as long as there are any."""
        try:
            while self._viewers:
                await asyncio.sleep(UPDATE_INTERVAL)
                try:
                    self._state = orjson.dumps(self._observatory.state())
                except Exception:
                    log.exception("the state for the live page could not be made")
                async with self._changed:
                    self._changed.notify_all()
        finally:
            self._state = b""
            self._updates = None


def _json(value: object) -> web.Response:
    return web.Response(
        body=orjson.dumps(value),
        content_type="application/json",
        headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **_SIGN},
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
