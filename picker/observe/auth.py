"""Who may read the HTTP ports: everybody, who shows the token of a file, or whom Kubernetes lets.

Health and readiness stay open, for whoever restarts us shows no token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING

from aiohttp import web

from picker.kube.client import KubeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aiohttp.typedefs import Middleware

    from picker.kube.client import Json, KubeClient

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
    Middlewares = tuple[Middleware, ...]

log = logging.getLogger(__name__)

OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that whoever restarts us asks for, without any token."""
_LONGEST_TOKEN = 4096
_REALM = {"WWW-Authenticate": 'Bearer realm="serve-picker"'}


class AuthError(Exception):
    """There is nothing to compare tokens with; one line that names the mend."""


class TokenFile:
    """Middleware that wants ``Authorization: Bearer`` with the content of a file.

    The file is read for each request, so that a token can be replaced; while it cannot be read nobody gets
    in. Raises AuthError if it cannot be read at first, or is empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = False
        self._token()

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let the request pass, or answer 401."""
        if request.path in OPEN:
            return await handler(request)
        shown = _shown_token(request)
        try:
            token = self._token()
        except AuthError as error:
            if not self._told:
                self._told = True
                log.error(  # noqa: TRY400 - one line says it all
                    "nobody can read the HTTP ports", extra={"fields": {"error": str(error)}}
                )
            raise web.HTTPServiceUnavailable(text="the token file cannot be read\n") from None
        self._told = False
        if not hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), token):
            raise _unauthorized()
        return await handler(request)

    def _token(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                token = file.read(_LONGEST_TOKEN).strip()
        except OSError as error:
            raise AuthError(f"{self._path}: {error.strerror}; give a file with a token in it") from None
        if not token:
            raise AuthError(f"{self._path} is empty; write a token into it")
        return token


TRUSTED_FOR = 10.0
"""Seconds for which what Kubernetes said of a token is not asked again, be it yes or no."""
REMEMBERED = 256
"""Tokens of which it is known what was said; only their hashes are kept."""
REVIEW_TIMEOUT = 5.0
"""Seconds that the API server has for both of its answers."""
MOST_REVIEWS = 4
"""Asked about at once: whoever shows many made-up tokens must not flood the API server."""
_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_READ_METRICS = {"path": "/metrics", "verb": "get"}
"""What one has to be allowed to read any page of ours, as the ClusterRoles of Prometheus have it. Not the
pages' own paths: every account of a cluster may read ``/api/*``."""


class _Verdict(Enum):
    ALLOWED = 1
    FORBIDDEN = 2
    UNKNOWN = 3


class KubernetesReview:
    """Middleware that asks the API server who shows a token (TokenReview) and what that one may read.

    While it cannot be asked nobody gets in, which is logged once.
    """

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._said: OrderedDict[bytes, tuple[_Verdict, float]] = OrderedDict()
        self._asking = asyncio.Semaphore(MOST_REVIEWS)
        self._told = False

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let the request pass, or answer 401, 403, or 503."""
        if request.path in OPEN:
            return await handler(request)
        token = _shown_token(request)
        verdict = await self._verdict(token) if token else _Verdict.UNKNOWN
        if verdict is _Verdict.UNKNOWN:
            raise _unauthorized()
        if verdict is _Verdict.FORBIDDEN:
            raise web.HTTPForbidden(text="your account may not get the nonResourceURL /metrics\n")
        return await handler(request)

    async def _verdict(self, token: str) -> _Verdict:
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        known = self._known(key)
        if known is not None:
            return known
        try:
            async with asyncio.timeout(REVIEW_TIMEOUT), self._asking:
                # Whoever waited may find that the one before asked about the same.
                verdict = self._known(key) or await self._review(token)
        except (KubeError, TimeoutError) as error:
            self._tell(error)
            raise web.HTTPServiceUnavailable(
                text="the Kubernetes API cannot be asked who you are\n"
            ) from None
        self._told = False
        self._said[key] = verdict, self._clock() + TRUSTED_FOR
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
        return verdict

    def _known(self, key: bytes) -> _Verdict | None:
        verdict, until = self._said.get(key, (None, 0.0))
        if verdict is not None and until <= self._clock():
            del self._said[key]
            return None
        return verdict

    async def _review(self, token: str) -> _Verdict:
        status = await self._ask(_TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        user = status.get("user")
        if status.get("authenticated") is not True or not isinstance(user, dict):
            return _Verdict.UNKNOWN
        who = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups", []),
            "extra": user.get("extra", {}),
            "nonResourceAttributes": _READ_METRICS,
        }
        status = await self._ask(_ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", who)
        return _Verdict.ALLOWED if status.get("allowed") is True else _Verdict.FORBIDDEN

    async def _ask(self, path: str, version: str, kind: str, spec: Json) -> Json:
        body = {"apiVersion": version, "kind": kind, "spec": spec}
        status = (await self._client.create(path, body, within=REVIEW_TIMEOUT)).get("status")
        return status if isinstance(status, dict) else {}

    def _tell(self, error: Exception) -> None:
        if self._told:
            return
        self._told = True
        fields = {"error": str(error) or "no answer in time"}
        if isinstance(error, KubeError) and error.status == web.HTTPForbidden.status_code:
            fields["mend"] = "bind the picker's service account to the ClusterRole system:auth-delegator"
        log.error("nobody can read the HTTP ports", extra={"fields": fields})


def _shown_token(request: web.Request) -> str:
    """The bearer token of a request; empty without one."""
    scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
    return shown.strip() if scheme.lower() == "bearer" else ""


def _unauthorized() -> web.HTTPUnauthorized:
    return web.HTTPUnauthorized(text="show a token: Authorization: Bearer …\n", headers=_REALM)
