"""One GET with a bound on everything: time, size, redirects, decompression.

An own client and not a library's: asking is most of what an idle picker does, and a request of a
general client costs several times the work of all else that a page takes (``python -m bench.scrape``).
Connections are kept between the requests; reading the answers is :mod:`picker.metrics.http1`.
"""

from __future__ import annotations

import asyncio
import re
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from urllib.parse import quote

from picker.metrics.http1 import BrokenError, Response, TooLargeError

if TYPE_CHECKING:
    from typing import Self

_KEEP_ALIVE: Final = 30.0
"""Seconds a connection is kept without use."""
_CONNECT_SHARE: Final = 0.8
"""Of the deadline; who is not connected by then is not there, rather than slow to answer."""
_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", re.ASCII)
_LAST_PORT: Final = 65535
_AS_IT_IS: Final = "/?&=%:@!$'()*+,;~-._"
"""Characters of a path and its query that stand for themselves."""


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


class Client:
    """Asks servers by GET and keeps the connections; an async context manager, which closes them.

    No redirects, cookies, proxies or credentials.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[_Connection]] = {}
        self._loop = asyncio.get_running_loop()
        self._sweeper = self._loop.call_later(_KEEP_ALIVE, self._sweep)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._sweeper.cancel()
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # for what the loop has to do to close them

    async def get(  # noqa: PLR0913 - the parts of a request and its bounds
        self, address: str, path: str, *, accept: str, deadline: float, limit: int, compressed: bool = False
    ) -> Answer:
        """GET ``http://address/path`` within ``deadline`` seconds from connecting to the last byte.

        ``compressed``: let the server compress the answer, if it can.
        A 200 with more than ``limit`` bytes, compressed or not, is given up; of any other answer only the
        first part is read. Raises FetchError, and nothing else.
        """
        request = (
            f"GET {_quoted(path)} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: serve-picker\r\n"
            f"Accept: {accept}\r\nAccept-Encoding: {'gzip' if compressed else 'identity'}\r\n\r\n"
        ).encode("latin-1", "replace")
        try:
            response = await self._ask(address, request, limit, deadline)
            return Answer(response.status, response.body())
        except TimeoutError:
            raise FetchError(Outcome.TIMEOUT, f"no whole answer within {deadline:g} s") from None
        except TooLargeError:
            raise FetchError(Outcome.TOO_LARGE, f"more than {limit} bytes") from None
        except (BrokenError, OSError) as error:
            raise FetchError(Outcome.BROKEN, _first_line(error)) from None

    async def _ask(self, address: str, request: bytes, limit: int, deadline: float) -> Response:
        """Ask on a kept connection; if its server has closed it meanwhile, on a new one."""
        until = self._loop.time() + deadline
        while connection := self._kept(address):
            response = Response(limit)
            try:
                await connection.ask(request, response, until)
            except ConnectionError:
                if response.begun:
                    raise
                continue
            return self._keep(address, connection, response)
        response = Response(limit)
        connection = await self._connect(address, _CONNECT_SHARE * deadline)
        await connection.ask(request, response, until)
        return self._keep(address, connection, response)

    async def _connect(self, address: str, patience: float) -> _Connection:
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match[3]) > _LAST_PORT:
            raise FetchError(Outcome.UNREACHABLE, "its address is not host:port")
        try:
            async with asyncio.timeout(patience):
                _, connection = await self._loop.create_connection(
                    _Connection, match[1] or match[2], int(match[3])
                )
        except TimeoutError:
            raise FetchError(Outcome.UNREACHABLE, "no connection in time") from None
        except (OSError, UnicodeError) as error:  # a name that is none is a UnicodeError of the resolver
            raise FetchError(Outcome.UNREACHABLE, _first_line(error)) from None
        return connection

    def _kept(self, address: str) -> _Connection | None:
        connections = self._idle.get(address)
        while connections:
            connection = connections.pop()
            if not connection.closed:
                return connection
        return None

    def _keep(self, address: str, connection: _Connection, response: Response) -> Response:
        if response.reusable and not connection.closed:
            connection.used_at = self._loop.time()
            self._idle.setdefault(address, []).append(connection)
        else:
            connection.abort()
        return response

    def _sweep(self) -> None:
        """Close what was not used for long: endpoints go, and some are asked seldom."""
        self._sweeper = self._loop.call_later(_KEEP_ALIVE, self._sweep)
        oldest = self._loop.time() - _KEEP_ALIVE
        for address, connections in list(self._idle.items()):
            for connection in connections:
                if connection.used_at < oldest:
                    connection.abort()
            left = [connection for connection in connections if not connection.closed]
            if left:
                self._idle[address] = left
            else:
                del self._idle[address]


class _Connection(asyncio.Protocol):
    """One connection, with at most one request at a time."""

    def __init__(self) -> None:
        self.closed = False
        self.used_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._response: Response | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def ask(self, request: bytes, response: Response, until: float) -> None:
        """Send ``request`` and wait until ``response`` is complete; else the connection is closed.

        Raises OSError where the connection breaks, TimeoutError at the time ``until`` of the loop, and
        what ``response`` raises.
        """
        self._response, self._waiter = response, self._loop.create_future()
        timer = self._loop.call_at(until, self._end, TimeoutError())
        try:
            self._transport.write(request)
            await self._waiter
        except BaseException:
            self.abort()
            raise
        finally:
            timer.cancel()
            self._response = self._waiter = None

    def abort(self) -> None:
        """Close at once."""
        self.closed = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        response = self._response
        if response is None:  # nobody asked
            self.abort()
            return
        try:
            complete = response.feed(data)
        except ValueError as error:
            self._end(error)
            return
        if complete:
            self._end(None)
        elif response.pending:
            # Let others have their turn; reading is paused, so the end of the connection waits as well.
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.closed = True
        if self._response is not None:
            whole = error is None and self._response.end()
            self._end(None if whole else error or ConnectionResetError("it was closed before the end"))

    def _go_on(self) -> None:
        if self._response is not None:
            self._transport.resume_reading()
            self.data_received(b"")

    def _end(self, error: Exception | None) -> None:
        self._response = None
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)


@lru_cache(maxsize=64)
def _quoted(path: str) -> str:
    return quote(path, safe=_AS_IT_IS)


def _first_line(error: Exception) -> str:
    """An error in words, on one line and short: parts of it come from the server."""
    text = (str(error) or type(error).__name__).splitlines()[0][:200]
    return "".join(char if char.isprintable() else "?" for char in text)
