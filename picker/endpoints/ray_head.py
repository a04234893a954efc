"""The Ray head's own view of Serve, without Kubernetes: proxies, or replicas with ports of their own."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import aiohttp

from picker.addresses import HostPort
from picker.endpoints.endpoint import Endpoint
from picker.endpoints.serve_api import (
    APPLICATIONS_PATH,
    METRICS_PATH,
    ServeApiError,
    ServeState,
    parse_applications,
    parse_metrics_targets,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from picker.endpoints.enriched import Enrich
    from picker.endpoints.serve_api import Target

log = logging.getLogger(__name__)

NODE_LABEL = "ray.io/node-id"
"""Ray's own label of a node."""
APPLICATION_LABEL = "serve.ray.io/application"
KIND_LABEL = "serve.ray.io/kind"
"""``proxy`` or ``replica`` (direct ingress)."""

RAY_METRICS_PORT = 8080
"""KubeRay's port of a node's metrics page, where the head does not tell which one it is."""
HAPROXY_METRICS_PORT = 9101
_HAPROXY_MARK = b"haproxy_"
_HAPROXY_TIMEOUT = 1.0
_GONE = frozenset(("UNHEALTHY", "DRAINING", "DRAINED"))
"""States of a proxy that should get no new requests."""
_MOST_BYTES = 32 * 2**20
_CHUNK = 2**16
_MOST_TOKEN_BYTES = 2**14
_TOKEN = re.compile(rb"[!-~]+")
_NO_HEADERS: Mapping[str, str] = {}
_NOTHING = ServeState("", (), {})


@dataclass(frozen=True, slots=True)
class Pace:
    """When the head is asked, in seconds.

    Every ``interval`` (the answer costs the head about 20 ms), after a failure every ``retry``. It has
    ``answer`` for an answer. A head that was restarted knows nobody for a while: that nobody is there is
    believed after ``empty``.
    """

    interval: float = 5.0
    retry: float = 2.0
    answer: float = 10.0
    empty: float = 30.0


@dataclass(frozen=True, slots=True)
class HeadView:
    """What the head says, the metrics page of each node by its IP address, and whether HAProxy serves."""

    state: ServeState = _NOTHING
    pages: Mapping[str, HostPort] = field(default_factory=dict)
    haproxy: bool = False


class RayHead:
    """Asks one Ray head for its view of Serve, again and again. ``url`` is ``http://host:port``.

    ``token_file`` has the token of a cluster that wants one (``RAY_AUTH_MODE=token``). It is read each time,
    for those of service accounts are replaced every hour.

    What it said last stays in force while it cannot be reached, has no Serve, or has just been restarted. Its
    first answer is waited for: a gateway can do without a picker that is not ready, not with an empty pool.
    """

    def __init__(self, url: str, *, token_file: Path | None = None, pace: Pace | None = None) -> None:
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._pace = pace or Pace()
        self._lost = False
        self._haproxy_of: tuple[str, bool] | None = None
        """Which controller was looked at for HAProxy, and what was found."""

    async def views(self) -> AsyncGenerator[HeadView, None]:
        """Give the view at first and after every change. Raises nothing."""
        pace, loop = self._pace, asyncio.get_running_loop()
        last: HeadView | None = None
        seen = -math.inf
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=pace.answer)) as session:
            while True:
                view = await self._look(session, last or HeadView())
                if view is not None and view.state.targets:
                    seen = loop.time()
                believed = view is not None and (bool(view.state.targets) or loop.time() - seen >= pace.empty)
                if view is not None and believed and view != last:
                    last = view
                    yield view
                await asyncio.sleep(min(pace.retry, pace.interval) if self._lost else pace.interval)

    async def _look(self, session: aiohttp.ClientSession, known: HeadView) -> HeadView | None:
        try:
            state = parse_applications(await self._ask(session, APPLICATIONS_PATH))
        except (aiohttp.ClientError, TimeoutError, OSError, ServeApiError) as error:
            self._note(str(error) or "no answer in time")
            return None
        if not state.controller and known.state.targets:
            self._note("Serve does not run there")
            return None
        self._note("")
        return HeadView(state, await self._pages(session, known), await self._is_haproxy(session, state))

    async def _pages(self, session: aiohttp.ClientSession, known: HeadView) -> Mapping[str, HostPort]:
        """Where the nodes' metrics are. Older Rays do not tell; then what was known stays."""
        try:
            return parse_metrics_targets(await self._ask(session, METRICS_PATH))
        except (aiohttp.ClientError, TimeoutError, OSError, ServeApiError):
            return known.pages

    async def _is_haproxy(self, session: aiohttp.ClientSession, state: ServeState) -> bool:
        """Whether HAProxy serves in place of Ray's proxies: the API shows both alike.

        It is in one mode as long as its controller lives, and is looked for at one proxy of it.
        """
        proxies = [target for target in state.targets if target.routes is None]
        if not proxies:
            return False
        if self._haproxy_of is None or self._haproxy_of[0] != state.controller:
            page = HostPort(proxies[0].address.host, HAPROXY_METRICS_PORT)
            try:
                async with asyncio.timeout(_HAPROXY_TIMEOUT):
                    found = _HAPROXY_MARK in await self._get(session, f"http://{page}/metrics?scope=frontend")
            except TimeoutError:
                return False  # says neither; it is asked again
            except (aiohttp.ClientError, OSError, ServeApiError):
                found = False
            self._haproxy_of = (state.controller, found)
        return self._haproxy_of[1]

    async def _ask(self, session: aiohttp.ClientSession, path: str) -> bytes:
        """Ask the head itself, which alone gets the token."""
        headers = _NO_HEADERS
        if self._token_file is not None:
            # In a thread, for a mount can hang.
            headers = {"Authorization": f"Bearer {await asyncio.to_thread(_token, self._token_file)}"}
        return await self._get(session, f"{self._url}{path}", headers)

    async def _get(
        self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] = _NO_HEADERS
    ) -> bytes:
        sent = session.get(url, headers=headers, allow_redirects=False, raise_for_status=True)
        async with sent as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK):
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise ServeApiError(f"the answer has more than {_MOST_BYTES >> 20} MiB")
            return bytes(body)

    def _note(self, failure: str) -> None:
        if bool(failure) == self._lost:
            return
        self._lost = bool(failure)
        if failure:
            log.warning(
                "the Ray head does not tell who serves; what it said last stays in force",
                extra={"fields": {"head": self._url, "error": failure}},
            )
        else:
            log.info("the Ray head tells again who serves", extra={"fields": {"head": self._url}})


def _token(path: Path) -> str:
    """The token in a file. Raises OSError, and ServeApiError for what is no token."""
    with path.open("rb") as file:
        content = file.read(_MOST_TOKEN_BYTES + 1).strip()
    if len(content) > _MOST_TOKEN_BYTES or not _TOKEN.fullmatch(content):
        raise ServeApiError(f"{path} should have one token, and nothing else")
    return content.decode()


class RayHeadSource:
    """The members that a Ray head names: its healthy proxies, or with direct ingress the replicas.

    Metrics are on ``metrics_target_port`` of each address if given; else where the head says that the
    node's page is, or on HAProxy's own port where HAProxy serves.
    """

    def __init__(self, head: RayHead, *, metrics_target_port: int | None = None) -> None:
        self._head = head
        self._metrics_port = metrics_target_port

    async def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See :class:`picker.endpoints.endpoint.Source`."""
        last: tuple[Endpoint, ...] | None = None
        views = self._head.views()
        try:
            async for view in views:
                endpoints = tuple(self._endpoint(target, view) for target in view.state.targets)
                if endpoints != last:
                    last = endpoints
                    yield endpoints
        finally:
            await views.aclose()

    def _endpoint(self, target: Target, view: HeadView) -> Endpoint:
        is_proxy = target.routes is None
        ip = target.address.host
        if self._metrics_port:
            metrics = HostPort(ip, self._metrics_port)
        elif is_proxy and view.haproxy:
            metrics = HostPort(ip, HAPROXY_METRICS_PORT)
        else:
            metrics = view.pages.get(ip) or HostPort(ip, RAY_METRICS_PORT)
        return Endpoint(
            str(target.address),
            str(metrics),
            name=target.name,
            labels=_labels(target),
            routes=target.routes,
        )


async def head_details(head: RayHead) -> AsyncGenerator[Enrich, None]:
    """What a Ray head knows of endpoints that another source names.

    Nodes whose proxy is not to get new requests are left out, be it that their pods are ready; labels and
    routes are added. Endpoints the head does not know stay as they are.
    """
    views = head.views()
    try:
        async for view in views:
            yield _enriching(view)
    finally:
        await views.aclose()


def _enriching(view: HeadView) -> Enrich:
    targets = {str(target.address): target for target in view.state.targets}
    proxies = view.state.proxies

    def enrich(endpoint: Endpoint) -> Endpoint | None:
        target = targets.get(endpoint.address)
        if target is not None:
            labels = {**endpoint.labels, **_labels(target)}
            return replace(endpoint, labels=labels, routes=target.routes or endpoint.routes)
        host = endpoint.address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        return None if proxies.get(host) in _GONE else endpoint

    return enrich


def _labels(target: Target) -> dict[str, str]:
    labels = {KIND_LABEL: "proxy" if target.routes is None else "replica"}
    if target.node:
        labels[NODE_LABEL] = target.node
    if target.application:
        labels[APPLICATION_LABEL] = target.application
    return labels
