"""The client's connections: kept, replaced, given up.

What becomes of bad answers is in test_scraper and test_http1.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
import uvloop

from picker.metrics.fetch import Client, FetchError, Outcome
from tests.metrics.rig import PATIENCE, Server, http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

PAGE = http(b"page")


@contextlib.asynccontextmanager
async def served(answer: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[Server]:
    server = Server()
    server.answers["/"] = answer
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def get(
    client: Client, server: Server, path: str = "/", *, deadline: float = PATIENCE
) -> tuple[int, bytes]:
    answer = await client.get(server.address, path, accept="*/*", deadline=deadline, limit=1000)
    return answer.status, answer.body


async def test_a_connection_is_used_again_and_two_at_once_have_one_each() -> None:
    async with served(PAGE) as server, Client() as client:
        for _ in range(3):
            assert await get(client, server) == (200, b"page")
        assert server.connections == 1
        await asyncio.gather(get(client, server), get(client, server))
        assert server.connections == 2


async def test_a_connection_that_its_server_closed_meanwhile_is_replaced() -> None:
    async with served(PAGE) as server, Client() as client:
        await asyncio.gather(get(client, server), get(client, server))
        await server.stop()
        await server.start()
        assert await get(client, server) == (200, b"page")
        assert server.connections == 3


async def test_a_server_that_closes_instead_of_answering_again_is_asked_once_more() -> None:
    async with served(PAGE) as server, Client() as client:
        await get(client, server)

        async def close(_writer: asyncio.StreamWriter) -> None:
            server.answers["/"] = PAGE

        server.answers["/"] = close
        assert await get(client, server) == (200, b"page")
        assert server.requests == ["/"] * 3


async def test_a_connection_with_more_on_it_than_was_asked_for_is_not_used_again() -> None:
    async with served(PAGE + PAGE) as server, Client() as client:
        for _ in range(3):
            assert await get(client, server) == (200, b"page")
        assert server.connections == 3


async def test_what_was_given_up_does_not_answer_the_next_question() -> None:
    late = asyncio.Event()

    async def answer_late(writer: asyncio.StreamWriter) -> None:
        await late.wait()
        writer.write(http(b"late"))

    async with served(answer_late) as server, Client() as client:
        with pytest.raises(FetchError) as failure:
            await get(client, server, deadline=0.05)
        assert failure.value.outcome is Outcome.TIMEOUT
        late.set()
        server.answers["/"] = PAGE
        assert await get(client, server) == (200, b"page")


async def test_a_path_cannot_add_to_the_request() -> None:
    async with served(PAGE) as server, Client() as client:
        await get(client, server, "/a?b=c&d=%20 HTTP/1.1\r\nX: y\r\n\r\n")
        assert server.requests == ["/a?b=c&d=%20%20HTTP/1.1%0D%0AX:%20y%0D%0A%0D%0A"]


async def test_idle_connections_are_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picker.metrics.fetch._KEEP_ALIVE", 0.02)
    async with served(PAGE) as server, Client() as client:
        await get(client, server)
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait(server._busy)
        assert not client._idle


def test_it_is_the_same_on_uvloop() -> None:
    async def ask() -> None:
        async with served(PAGE) as server, Client() as client:
            assert await get(client, server) == (200, b"page")
            assert await get(client, server) == (200, b"page")
            assert server.connections == 1
            await server.stop()
            with pytest.raises(FetchError) as failure:
                await get(client, server)
            assert failure.value.outcome is Outcome.UNREACHABLE

    uvloop.run(ask())


# When answers are looked at


async def test_answers_of_many_servers_are_taken_together_and_none_is_woken_for() -> None:
    async with served(PAGE) as server, Client() as client:
        await asyncio.gather(*(get(client, server) for _ in range(3)))  # now there are connections
        asked = [asyncio.create_task(get(client, server)) for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert all(task.done() for task in asked)


async def test_who_takes_longer_than_some_looks_is_waited_for() -> None:
    go_on = asyncio.Event()

    async def answer_late(writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        writer.write(PAGE[:-1])
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(PAGE[-1:])

    async with served(answer_late) as server, Client() as client:
        asked = asyncio.create_task(get(client, server))
        async with asyncio.timeout(PATIENCE):
            while client._look is not None or not server.requests:  # noqa: ASYNC110 - it is no event
                await asyncio.sleep(0.001)
        assert not asked.done()
        go_on.set()
        assert await asked == (200, b"page")


async def test_a_large_answer_comes_whole() -> None:
    body = bytes(range(256)) * 40_000

    async with served(http(body)) as server, Client() as client:
        answer = await client.get(server.address, "/", accept="*/*", deadline=PATIENCE, limit=len(body))
        assert answer.body == body


async def test_a_server_may_be_given_by_name() -> None:
    async with served(PAGE) as server, Client() as client:
        address = f"localhost:{server.port}"
        answer = await client.get(address, "/", accept="*/*", deadline=PATIENCE, limit=1000)
        assert answer.body == b"page"
        await server.stop()
        for name in (address, "no-such-name.invalid:80"):
            with pytest.raises(FetchError) as failure:
                await client.get(name, "/", accept="*/*", deadline=PATIENCE, limit=1000)
            assert failure.value.outcome is Outcome.UNREACHABLE


async def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_one() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def keep(writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(PAGE)
        await asyncio.Event().wait()

    async with served(keep) as server, Client() as client:
        assert await get(client, server) == (200, b"page")
        writers[0].write(http(b"more"))
        await writers[0].drain()
        assert await get(client, server) == (200, b"page")
        assert server.connections == 2


async def test_it_is_told_whose_kept_connection_was_closed() -> None:
    async with served(PAGE) as one, served(PAGE) as other, Client() as client:
        await asyncio.gather(get(client, one), get(client, other))
        both = {one.address, other.address, "127.0.0.1:1"}
        assert client.closed(both) == []
        await one.stop()
        async with asyncio.timeout(PATIENCE):
            while not client.closed(both):  # noqa: ASYNC110 - it is no event
                await asyncio.sleep(0.001)
        assert client.closed(both) == [one.address]
