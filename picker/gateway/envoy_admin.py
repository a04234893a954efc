"""What the gateway asks of its Envoy: whether it is ready, how busy it is, and to take no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
import orjson

from picker.gateway.bootstrap import LISTENER

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

_TIMEOUT = 2.0
_OK = 200


class EnvoyAdmin:
    """An async context manager around Envoy's admin interface behind a Unix socket.

    Every call raises OSError (aiohttp's errors among them) or TimeoutError where Envoy does not answer.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        connector = aiohttp.UnixConnector(str(self._socket))
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=_TIMEOUT)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ready(self) -> bool:
        """Whether it serves."""
        try:
            async with self._session.get("http://envoy/ready") as response:
                return response.status == _OK
        except aiohttp.ClientError as error:
            raise OSError(str(error)) from error

    async def active_requests(self) -> int:
        """Requests of clients that are under way."""
        name = f"http.{LISTENER}.downstream_rq_active"
        try:
            async with self._session.get(
                "http://envoy/stats", params={"format": "json", "filter": f"^{name}$"}
            ) as response:
                stats = orjson.loads(await response.read())["stats"]
        except aiohttp.ClientError as error:
            raise OSError(str(error)) from error
        return sum(int(stat["value"]) for stat in stats if stat.get("name") == name)

    async def drain(self) -> None:
        """Close each client's connection after its next answer, and the port after the drain time."""
        try:
            async with self._session.post("http://envoy/drain_listeners?graceful") as response:
                await response.read()
        except aiohttp.ClientError as error:
            raise OSError(str(error)) from error
