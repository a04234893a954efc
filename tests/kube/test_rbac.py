"""What is said, and what still works, when a Role lacks a verb."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from picker.endpoints.pool import PoolSource
from picker.kube.client import KubeClient, KubeError, connect
from picker.kube.names import ObjectName
from picker.kube.watch import Pace
from tests.kube.conftest import LIMITED
from tests.kube.follow import DEADLINE, Followed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.kube.cluster import Namespace
    from tests.support.kube.server import ApiServer

pytestmark = pytest.mark.kube

QUICK = Pace(first_retry=0.1, last_retry=0.2, slow_retry=0.2)
VERBS = ("list", "watch")
PODS, POOLS = "pods", "inferencepools.inference.networking.k8s.io"


def rules(without: tuple[str, str] = ("", "")) -> list[dict[str, list[str]]]:
    """All that membership by a pool needs, without a verb on a resource."""
    return [
        {
            "apiGroups": [resource.partition(".")[2]],
            "resources": [resource.partition(".")[0]],
            "verbs": [verb for verb in VERBS if (verb, resource) != without],
        }
        for resource in (PODS, POOLS)
    ]


@pytest.fixture
async def limited(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """The picker's client, as a user without any rights but those of a Role."""
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(LIMITED)))
    client = await connect()
    yield client
    await client.close()


def refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["fields"] for record in caplog.records if "forbids" in record.message]


async def until_refused(caplog: pytest.LogCaptureFixture, times: int) -> None:
    async with asyncio.timeout(DEADLINE):
        while len(refusals(caplog)) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_role_with_just_these_verbs_is_enough(
    limited: KubeClient, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    namespace.pool(ports=[8000])
    namespace.pod("a", "127.0.0.11")
    namespace.grant(LIMITED, rules())
    async with Followed(PoolSource(limited, ObjectName(namespace.name, "llm"), pace=QUICK)) as pool:
        await pool.shows("127.0.0.11:8000")
        caplog.clear()  # a new Role counts after some milliseconds
        namespace.remove("a")
        await pool.shows()
    assert not refusals(caplog)


@pytest.mark.parametrize("resource", [PODS, POOLS])
@pytest.mark.parametrize("verb", VERBS)
async def test_each_missing_verb_is_one_line_and_mended_while_running(
    limited: KubeClient, namespace: Namespace, caplog: pytest.LogCaptureFixture, verb: str, resource: str
) -> None:
    namespace.pool(ports=[8000])
    namespace.pod("a", "127.0.0.11")
    namespace.grant(LIMITED, rules())
    path = namespace.path(PODS)
    await until_allowed(limited, path)
    namespace.grant(LIMITED, rules(without=(verb, resource)))
    await until_forbidden(limited, namespace, verb, resource)
    async with Followed(PoolSource(limited, ObjectName(namespace.name, "llm"), pace=QUICK)) as pool:
        await until_refused(caplog, 1)
        if verb == "watch":  # it is listed from time to time instead
            await pool.shows("127.0.0.11:8000")
            namespace.pod("b", "127.0.0.12")
            await pool.shows("127.0.0.11:8000", "127.0.0.12:8000")
        await asyncio.sleep(3 * QUICK.slow_retry)
        (told,) = refusals(caplog)
        assert (told["verb"], told["resource"], told["namespace"]) == (verb, resource, namespace.name)
        assert told["mend"] == f"give the service account the verb '{verb}' on '{resource}' by a Role"
        namespace.grant(LIMITED, rules())
        await pool.until(lambda: "127.0.0.11:8000" in (pool.addresses or ()))
        namespace.remove("a")
        await pool.until(lambda: "127.0.0.11:8000" not in (pool.addresses or ()))
        assert len(refusals(caplog)) == 1
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_token_that_is_wrong(
    server: ApiServer, namespace: Namespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = server.kubeconfig()
    wrong = config.with_name("wrong")
    wrong.write_text(config.read_text().replace('"token": "', '"token": "x'))
    monkeypatch.setenv("KUBECONFIG", str(wrong))
    client = await connect()
    try:
        async with Followed(PoolSource(client, ObjectName(namespace.name, "llm"), pace=QUICK)):
            async with asyncio.timeout(DEADLINE):
                while "the API server does not know who asks" not in caplog.messages:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await asyncio.sleep(3 * QUICK.slow_retry)
        assert caplog.messages.count("the API server does not know who asks") == 1
    finally:
        await client.close()


async def until_allowed(client: KubeClient, path: str) -> None:
    """A Role counts after some milliseconds."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                await client.get(path)
            except KubeError:
                await asyncio.sleep(0.02)
            else:
                return


async def until_forbidden(client: KubeClient, namespace: Namespace, verb: str, resource: str) -> None:
    """The same for what it no longer allows."""
    plural, _, group = resource.partition(".")
    path = namespace.path(plural, f"{group}/v1" if group else "v1")
    query = {"watch": "1", "timeoutSeconds": "1"} if verb == "watch" else {}

    async def ask() -> None:
        while True:
            async with client.lines(path, query, deadline=5.0):
                await asyncio.sleep(0.02)

    with pytest.raises(KubeError, match="forbidden"):
        await asyncio.wait_for(ask(), DEADLINE)
