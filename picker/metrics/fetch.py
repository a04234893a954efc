"""One GET with a bound on everything: time, size, redirects, decompression."""

from __future__ import annotations

import asyncio
import zlib
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_STEP = 256 * 1024
"""Decompressed bytes made at a time, so that a compression bomb neither fills memory nor stalls the loop."""
_KEEP_ALIVE = 30.0
_CONNECT_SHARE = 0.8
"""Of the deadline; who is not connected by then is not there, rather than slow to answer."""
_OK = 200
_ERROR_BODY = 64 * 1024
"""As much of an answer other than 200 is read; its text tells why."""


class Outcome(StrEnum):
    """What became of one attempt to get a page."""

    OK = "ok"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    BROKEN = "broken"
    TOO_LARGE = "too_large"
    STATUS = "status"
    FORMAT = "format"
    INTERNAL = "internal"


class FetchError(Exception):
    """No page: ``outcome`` says of what kind, the text why, in words for a log line."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class Answer(NamedTuple):
    """A whole answer, decompressed."""

    status: int
    body: bytes


def open_session() -> aiohttp.ClientSession:
    """A session that keeps connections open between fetches, and nothing else.

    No cookies, no proxies or credentials from the environment, and bodies as they come: aiohttp's own
    decompression takes a cut-off gzip stream for a whole one.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "serve-picker", "Accept-Encoding": "gzip"},
        auto_decompress=False,
        trust_env=False,
    )


async def fetch(
    session: aiohttp.ClientSession, url: str, *, accept: str, deadline: float, limit: int
) -> Answer:
    """GET ``url`` within ``deadline`` seconds from connecting to the last byte.

    A 200 with more than ``limit`` bytes, compressed or not, is given up; of any other answer only the
    first part is read. Raises FetchError, and nothing else.
    """
    try:
        async with (
            asyncio.timeout(deadline),
            session.get(
                url,
                allow_redirects=False,
                headers={"Accept": accept},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SHARE * deadline),
            ) as response,
        ):
            if response.status == _OK:
                return Answer(_OK, await _read(response, limit))
            return Answer(response.status, await _read_some(response))
    except aiohttp.ConnectionTimeoutError:
        raise FetchError(Outcome.UNREACHABLE, "no connection in time") from None
    except TimeoutError:
        raise FetchError(Outcome.TIMEOUT, f"no whole answer within {deadline:g} s") from None
    except aiohttp.ClientConnectorError as error:
        raise FetchError(Outcome.UNREACHABLE, _first_line(error.os_error)) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise FetchError(Outcome.BROKEN, _first_line(error)) from None


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    async for piece in _decoded(response):
        body += piece
        if len(body) > limit:
            response.close()
            raise FetchError(Outcome.TOO_LARGE, f"more than {limit} bytes")
    return bytes(body)


async def _read_some(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in _decoded(response):
        body += piece
        if len(body) > _ERROR_BODY:
            response.close()
            break
    return bytes(body[:_ERROR_BODY])


async def _decoded(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding in ("", "identity"):
        async for chunk in response.content.iter_any():
            yield chunk
        return
    if encoding not in ("gzip", "x-gzip"):
        raise FetchError(Outcome.BROKEN, "an encoding that was not asked for")
    inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        async for chunk in response.content.iter_any():
            if inflater.eof:  # zlib would hoard what follows
                raise FetchError(Outcome.BROKEN, "more behind the end of its gzip stream")
            async for piece in _inflated(inflater, chunk):
                yield piece
    except zlib.error:
        raise FetchError(Outcome.BROKEN, "a gzip stream that is damaged") from None
    if not inflater.eof:
        raise FetchError(Outcome.BROKEN, "a gzip stream that is cut off")


async def _inflated(inflater: zlib._Decompress, chunk: bytes) -> AsyncIterator[bytes]:
    while True:
        piece = inflater.decompress(chunk, _STEP)
        yield piece
        chunk = inflater.unconsumed_tail
        if not chunk and len(piece) < _STEP:
            return
        await asyncio.sleep(0)


def _first_line(error: Exception) -> str:
    """An error in words, on one line and short: parts of it come from the server."""
    text = (str(error) or type(error).__name__).splitlines()[0][:200]
    return "".join(char if char.isprintable() else "?" for char in text)
