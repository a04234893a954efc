"""Who may read the HTTP ports: everybody, or who shows the token of a file."""

from __future__ import annotations

import hmac
import logging
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

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
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
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
        if scheme.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), token):
            raise web.HTTPUnauthorized(text="show the token: Authorization: Bearer …\n", headers=_REALM)
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
