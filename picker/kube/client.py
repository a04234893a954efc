"""The client of the Kubernetes API, on the official client's asyncio part.

Only its configuration, credentials and connections are used. Its models are not: they parse every field
of an object to keep a handful, and its own watch neither notices a server that stopped answering nor
says where to go on after an error. Importing it takes most of a second, so that is left to whoever needs
it.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from kubernetes.aio.client import ApiClient
    from kubernetes.aio.client.rest import RESTResponse

Json = dict[str, Any]
"""An object of the API as it was sent. What is kept of it is up to whoever asked."""

CONNECT_TIMEOUT = 5.0
"""Seconds for a connection to the API server."""
REQUEST_TIMEOUT = 10.0
"""Seconds for a whole answer, other than a watch's."""
_MOST_LINE_BYTES = 4 << 20
"""The API server takes objects up to 3 MiB."""
_MOST_ERROR_BYTES = 64 * 1024
_MOST_ERROR_CHARACTERS = 200
_FIRST_ERROR_STATUS = 400
_SERVICE_HOST = "KUBERNETES_SERVICE_HOST"


class KubeError(Exception):
    """The API server did not do what was asked; one line.

    ``status`` is the one that it answered with, 0 where no answer came.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class KubeClient:
    """Connections to one API server, for the whole process. Every method raises KubeError and nothing else.

    ``within`` is how many seconds an answer may take as a whole. A token that a mounted file renews is
    read again in time; ``credentials_error`` is what ``api`` raises where it cannot be.
    """

    def __init__(self, api: ApiClient, credentials_error: type[Exception]) -> None:
        self._api = api
        self._credentials_error = credentials_error

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()  # type: ignore[no-untyped-call]  # the package is typed in parts

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, *, within: float = REQUEST_TIMEOUT
    ) -> Json:
        """One object, or a page of a list."""
        return await self._request("GET", path, query, within=within)

    async def create(self, path: str, body: Json, *, within: float = REQUEST_TIMEOUT) -> Json:
        """POST an object to its collection. Status 409: there is one of that name."""
        return await self._request("POST", path, body=body, within=within)

    async def replace(self, path: str, body: Json, *, within: float = REQUEST_TIMEOUT) -> Json:
        """PUT an object. Status 409: it is not at ``metadata.resourceVersion`` any more."""
        return await self._request("PUT", path, body=body, within=within)

    @contextlib.asynccontextmanager
    async def lines(
        self, path: str, query: Mapping[str, str], *, deadline: float
    ) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """The lines of an answer as they come, from when its head is there to its end.

        An answer that has not ended after ``deadline`` seconds raises KubeError: the server's own limit
        is to be below.
        """
        async with self._answer("GET", path, query, within=deadline) as response:
            lines = _lines(response)
            try:
                yield lines
            finally:
                await lines.aclose()

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Json | None = None,
        within: float,
    ) -> Json:
        async with self._answer(method, path, query or {}, body=body, within=within) as response:
            with _errors():
                raw = await response.read()
        return parse(raw)

    @contextlib.asynccontextmanager
    async def _answer(
        self, method: str, path: str, query: Mapping[str, str], *, body: Json | None = None, within: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer once its head is there, if that is no error."""
        with _errors(self._credentials_error):
            verb, url, headers, content, _ = await self._api.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
            )
            limits = aiohttp.ClientTimeout(total=within, sock_connect=CONNECT_TIMEOUT)
            send: Callable[..., Awaitable[RESTResponse]] = self._api.rest_client.request
            answer = await send(verb, url, headers=headers, body=content, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        try:
            if response.status >= _FIRST_ERROR_STATUS:
                with _errors():
                    raw = await response.content.read(_MOST_ERROR_BYTES)
                raise KubeError(_message(raw) or f"status {response.status}", response.status)
            yield response
        finally:
            # A whole answer has released its connection already; any other must not be used again.
            response.close()


async def connect() -> KubeClient:
    """A client as ``KUBECONFIG``, or else the pod it runs in, or else ``~/.kube/config`` says.

    Raises KubeError; nothing is sent yet.
    """
    try:
        from kubernetes.aio import client, config  # noqa: PLC0415 - see above
    except ImportError:
        raise KubeError("the kubernetes package is missing; pip install kubernetes") from None
    configuration = client.Configuration()
    file = os.environ.get("KUBECONFIG")
    in_pod: Callable[..., None] = config.load_incluster_config
    by_file: Callable[..., Awaitable[object]] = config.load_kube_config
    try:
        if not file and os.environ.get(_SERVICE_HOST):
            in_pod(client_configuration=configuration)
        else:
            await by_file(config_file=file, client_configuration=configuration)
        return KubeClient(client.ApiClient(configuration), config.ConfigException)
    except Exception as error:  # noqa: BLE001 - whatever a wrong file makes the loaders raise
        place = f"KUBECONFIG {file}" if file else "neither KUBECONFIG nor a service account"
        raise KubeError(f"no access to the Kubernetes API ({place}): {_one_line(error)}") from None


def parse(raw: bytes) -> Json:
    """The object in ``raw``. Raises KubeError where it is none."""
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise KubeError("the answer is not that of a Kubernetes API server")
    return found


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Split here, for aiohttp's own reading of lines is bounded by an error that is none of its client's."""
    parts: list[bytes] = []
    size = 0
    with _errors():
        async for chunk in response.content.iter_any():
            *ended, rest = chunk.split(b"\n")
            for line in ended:
                yield b"".join([*parts, line])
                parts, size = [], 0
            parts.append(rest)
            size += len(rest)
            if size > _MOST_LINE_BYTES:
                raise KubeError(f"a line is longer than {_MOST_LINE_BYTES >> 20} MiB")
    if size:
        yield b"".join(parts)


@contextlib.contextmanager
def _errors(*more: type[Exception]) -> Iterator[None]:
    """Make every way in which an answer can fail to come a KubeError."""
    # ValueError: an address that is none, in a configuration.
    failures: tuple[type[Exception], ...] = (aiohttp.ClientError, OSError, ValueError, *more)
    try:
        yield
    except TimeoutError:
        raise KubeError("no answer in time") from None
    except failures as error:
        raise KubeError(_one_line(error)) from None


def _message(raw: bytes) -> str:
    """What an error's body says: a ``Status``, or text of something in between."""
    try:
        return _one_line(parse(raw)["message"])
    except (KubeError, KeyError):
        return _one_line(raw.decode(errors="replace"))


def _one_line(text: object) -> str:
    line = " ".join(str(text).split())[:_MOST_ERROR_CHARACTERS]
    return line or type(text).__name__
