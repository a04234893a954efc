"""One GET with a bound on everything: time, size, redirects, decompression.

An own client and not a library's: asking is most of what an idle picker does, and a request of a
general client costs several times the work of all else that a page takes (``python -m bench.scrape``).
Connections are kept between the requests; reading the answers is :mod:`picker.metrics.http1`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import socket
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from picker.metrics.http1 import BrokenError, Imprint, Response, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

_KEEP_ALIVE: Final = 30.0
"""Seconds a connection is kept without use."""
_CONNECT_SHARE: Final = 0.8
"""Of the deadline; who is not connected by then is not there, rather than slow to answer."""
_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", re.ASCII)
_LOOK_AFTER: Final = 0.02
"""Seconds from asking to the first look at what was answered, and between two."""
_LOOKS: Final = 3
"""Looks, after which an answer is waited for. A new connection needs the first one to send its request."""
_LOOKS_A_TURN: Final = 4
"""Connections looked at in one turn of the loop: a large page takes half a millisecond to be read."""
_RECEIVED: Final = 64 * 1024
_RECEIVES_A_TURN: Final = 8
_NOT_CONNECTED: Final = "no connection in time"
_IPV6: Final = 6
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
    """A whole answer, decompressed. One that came compressed has an imprint.

    ``repeated``: it is the known one, and its ``body`` left out.
    """

    status: int
    body: bytes
    imprint: Imprint | None = None
    repeated: bool = False


class Client:
    """Asks servers by GET and keeps the connections; an async context manager, which closes them.

    Waking up for an answer costs more than reading it, and servers that are asked at the same moment answer
    within some milliseconds. So answers are not waited for one by one: all connections are looked at together
    a moment after they were asked, and only who lets several looks pass is waited for. Hence plain
    sockets: a transport wakes the loop for whatever comes.

    No redirects, cookies, proxies or credentials.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[_Connection]] = {}
        self._loop = asyncio.get_running_loop()
        self._sweeper = self._loop.call_later(_KEEP_ALIVE, self._sweep)
        self._asked: list[_Connection] = []
        """Whose answers the next look is for."""
        self._look: asyncio.Handle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._sweeper.cancel()
        if self._look is not None:
            self._look.cancel()
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def get(  # noqa: PLR0913 - the parts of a request and its bounds
        self,
        address: str,
        path: str,
        *,
        accept: str,
        deadline: float,
        limit: int,
        compressed: bool = False,
        known: Imprint | None = None,
    ) -> Answer:
        """GET ``http://address/path`` within ``deadline`` seconds from connecting to the last byte.

        ``compressed``: let the server compress the answer, if it can; an answer of the imprint ``known``
        is only told to be that. A 200 with more than ``limit`` bytes, compressed or not, is given up; of any
        other answer only the first part is read. Raises FetchError, and nothing else.
        """
        request = (
            f"GET {_quoted(path)} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: serve-picker\r\n"
            f"Accept: {accept}\r\nAccept-Encoding: {'gzip' if compressed else 'identity'}\r\n\r\n"
        ).encode("latin-1", "replace")
        try:
            response = await self._ask(address, request, (limit, known), deadline)
            return Answer(response.status, response.body(), response.imprint, response.repeated)
        except TimeoutError:
            raise FetchError(Outcome.TIMEOUT, f"no whole answer within {deadline:g} s") from None
        except TooLargeError:
            raise FetchError(Outcome.TOO_LARGE, f"more than {limit} bytes") from None
        except (BrokenError, OSError) as error:
            raise FetchError(Outcome.BROKEN, _first_line(error)) from None

    def closed(self, addresses: Iterable[str]) -> list[str]:
        """Those whose server has closed a connection that was kept with it, as one that ends does."""
        poll, addresses_of = select.poll(), {}
        for address in addresses:
            for connection in self._idle.get(address, ()):
                poll.register(connection.socket, select.POLLIN)
                addresses_of[connection.socket.fileno()] = address
        return [addresses_of[number] for number, _ in poll.poll(0)] if addresses_of else []

    async def _ask(
        self, address: str, request: bytes, expected: tuple[int, Imprint | None], deadline: float
    ) -> Response:
        """Ask on a kept connection; if its server has closed it meanwhile, on a new one."""
        until = self._loop.time() + deadline
        while connection := self._kept(address):
            response = Response(*expected)
            try:
                await self._exchange(connection, request, response, until)
            except ConnectionError:
                if response.begun:
                    raise
                continue
            return self._keep(address, connection, response)
        response = Response(*expected)
        connection = await self._connect(address, until - (1.0 - _CONNECT_SHARE) * deadline)
        try:
            await self._exchange(connection, request, response, until)
        except OSError as error:
            if connection.connected or isinstance(error, TimeoutError):
                raise
            raise FetchError(Outcome.UNREACHABLE, _first_line(error)) from None
        return self._keep(address, connection, response)

    async def _exchange(
        self, connection: _Connection, request: bytes, response: Response, until: float
    ) -> None:
        """Send ``request`` and wait until ``response`` is complete; else the connection is closed.

        Raises OSError where the connection breaks or none comes about, TimeoutError at the time ``until`` of
        the loop, and what ``response`` raises.
        """
        try:
            waiter = connection.ask(request, response, until)
            self._asked.append(connection)
            if self._look is None:
                self._look = self._loop.call_later(_LOOK_AFTER, self._look_at_all)
            await waiter
        except BaseException:
            connection.close()
            raise

    def _look_at_all(self) -> None:
        asked, self._asked = self._asked, []
        self._look_at(asked)

    def _look_at(self, connections: list[_Connection]) -> None:
        """Take what came on them. Others get their turn between the answers of many."""
        now, then = connections[:_LOOKS_A_TURN], connections[_LOOKS_A_TURN:]
        self._asked += [connection for connection in now if connection.look()]
        if then:
            self._look = self._loop.call_soon(self._look_at, then)
        else:
            self._look = self._loop.call_later(_LOOK_AFTER, self._look_at_all) if self._asked else None

    async def _connect(self, address: str, until: float) -> _Connection:
        """Begin to connect, which has time until ``until``; to a name, do connect."""
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match[3]) > _LAST_PORT:
            raise FetchError(Outcome.UNREACHABLE, "its address is not host:port")
        host, port = match[1] or match[2], int(match[3])
        try:
            family = _family(host)
            if family is None:
                async with asyncio.timeout_at(until):
                    return _Connection(self._loop, await self._connect_to_name(host, port), until)
            return _Connection(self._loop, _connecting(family, host, port), until)
        except TimeoutError:
            raise FetchError(Outcome.UNREACHABLE, _NOT_CONNECTED) from None
        except (OSError, UnicodeError) as error:  # a name that is none is a UnicodeError of the resolver
            raise FetchError(Outcome.UNREACHABLE, _first_line(error)) from None

    async def _connect_to_name(self, host: str, port: int) -> socket.socket:
        """Connect to the first of its addresses that takes connections."""
        failure: OSError = OSError("a name without addresses")
        for family, _, _, _, target in await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            one = socket.socket(family, socket.SOCK_STREAM)
            one.setblocking(False)
            try:
                await self._loop.sock_connect(one, target)
            except OSError as error:
                one.close()
                failure = error
            except BaseException:
                one.close()
                raise
            else:
                return one
        raise failure

    def _kept(self, address: str) -> _Connection | None:
        connections = self._idle.get(address)
        while connections:
            connection = connections.pop()
            if connection.is_unused():
                return connection
            connection.close()
        return None

    def _keep(self, address: str, connection: _Connection, response: Response) -> Response:
        if response.reusable:
            connection.used_at = self._loop.time()
            self._idle.setdefault(address, []).append(connection)
        else:
            connection.close()
        return response

    def _sweep(self) -> None:
        """Close what was not used for long: endpoints go, and some are asked seldom."""
        self._sweeper = self._loop.call_later(_KEEP_ALIVE, self._sweep)
        oldest = self._loop.time() - _KEEP_ALIVE
        for address, connections in list(self._idle.items()):
            left = [connection for connection in connections if connection.used_at >= oldest]
            for connection in connections:
                if connection not in left:
                    connection.close()
            if left:
                self._idle[address] = left
            else:
                del self._idle[address]


class _Connection:
    """One connection, with at most one request at a time. Who gets it closes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connecting: socket.socket, until: float) -> None:
        self.socket = connecting
        self.connected = False
        """Whether the server has taken it, as far as sending has shown."""
        self.used_at = 0.0
        self._loop = loop
        self._connected_until = until
        self._until = until
        self._unsent = b""
        self._response: Response
        self._waiter: asyncio.Future[None]
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None
        """Runs where the answer is waited for."""

    def ask(self, request: bytes, response: Response, until: float) -> asyncio.Future[None]:
        """Send ``request``; the future tells when ``response`` is complete, or what is wrong.

        Whoever asks calls :meth:`look` from time to time, as long as that says so.
        """
        self._unsent, self._response, self._until, self._looks = request, response, until, 0
        self._waiter = self._loop.create_future()
        self._go_on(receive=False)
        return self._waiter

    def look(self) -> bool:
        """Take what came; returns whether to look again. If not, what is missing is waited for."""
        if not self._waiter.done():
            self._looks += 1
            self._go_on()
        if self._waiter.done():
            return False
        if self._response.begun or self._looks >= _LOOKS:
            self._wait()
            return False
        return True

    def is_unused(self) -> bool:
        """Whether a kept connection is open and nothing came on it that nobody asked for."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Close at once."""
        self._wait_no_more()
        self.socket.close()

    def _go_on(self, *, receive: bool = True) -> None:
        """Do what can be done now."""
        try:
            while self._unsent:
                sent = self.socket.send(self._unsent)
                self._unsent = self._unsent[sent:]
                self.connected = True
            if receive:
                self._receive()
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, ValueError) as error:
            self._end(error)

    def _receive(self) -> None:
        """Take what is there, but leave others their turn."""
        for _ in range(_RECEIVES_A_TURN):
            if self._response.pending:
                return
            data = self.socket.recv(_RECEIVED)
            if not data:
                whole = self._response.end()
                self._end(None if whole else ConnectionResetError("it was closed before the end"))
                return
            if self._take(data):
                return

    def _take(self, data: bytes) -> bool:
        complete = self._response.feed(data)
        if complete:
            self._end(None)
        elif self._response.pending:
            self._loop.call_soon(self._decompress)
        return complete

    def _decompress(self) -> None:
        """Take the next step; meanwhile nothing is received."""
        if self._waiter.done():
            return
        try:
            self._take(b"")
        except ValueError as error:
            self._end(error)

    def _wait(self) -> None:
        """Be woken by whatever comes, and by the deadline."""
        until = self._until if self.connected else self._connected_until
        self._timer = self._loop.call_at(until, self._time_out)
        if self._unsent:
            self._loop.add_writer(self.socket, self._send_and_wait)
        else:
            self._loop.add_reader(self.socket, self._go_on)

    def _send_and_wait(self) -> None:
        self._go_on(receive=False)
        if not (self._unsent or self._waiter.done()):
            self._wait_no_more()
            self._wait()

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._loop.remove_writer(self.socket)
            self._loop.remove_reader(self.socket)

    def _time_out(self) -> None:
        self._end(TimeoutError() if self.connected else OSError(_NOT_CONNECTED))

    def _end(self, error: Exception | None) -> None:
        self._wait_no_more()
        if self._waiter.done():
            return
        if error is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(error)


@lru_cache(maxsize=4096)
def _family(host: str) -> socket.AddressFamily | None:
    """That of a numeric address; None for a name."""
    try:
        return socket.AF_INET6 if ip_address(host).version == _IPV6 else socket.AF_INET
    except ValueError:
        return None


def _connecting(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """A socket that connects. Raises OSError where that cannot be."""
    one = socket.socket(family, socket.SOCK_STREAM)
    one.setblocking(False)
    error = one.connect_ex((host, port))
    if error not in (0, errno.EINPROGRESS):
        one.close()
        raise OSError(error, os.strerror(error))
    return one


@lru_cache(maxsize=64)
def _quoted(path: str) -> str:
    return quote(path, safe=_AS_IT_IS)


def _first_line(error: Exception) -> str:
    """An error in words, on one line and short: parts of it come from the server."""
    text = (str(error) or type(error).__name__).splitlines()[0][:200]
    return "".join(char if char.isprintable() else "?" for char in text)
