"""What is said, and what still works, when a Role lacks a verb."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from picker.endpoints.pool import PoolSource
from picker.kube.client import KubeClient, KubeError, connect
from picker.kube.lease import Election, Term
from picker.kube.names import ObjectName
from picker.kube.resource import LEASES
from picker.kube.watch import Pace
from picker.objects.kube import follow_pool_objects
from picker.objects.rules import ObjectSet
from tests.kube.conftest import LIMITED
from tests.kube.follow import DEADLINE, Followed

if TYPE_CHECKING:
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


async def test_objects_that_may_not_be_listed_are_none(
    limited: KubeClient, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    """The picker serves without them."""
    objects = follow_pool_objects(limited, ObjectName(namespace.name, "llm"), pace=QUICK)
    try:
        assert await asyncio.wait_for(anext(objects), DEADLINE) == ObjectSet()
        await asyncio.sleep(3 * QUICK.slow_retry)
    finally:
        await objects.aclose()
    told = [(fields["verb"], fields["resource"]) for fields in refusals(caplog)]
    kinds = ("inferencemodelrewrites", "inferenceobjectives")
    groups = ("llm-d.ai", "inference.networking.x-k8s.io")
    assert sorted(told) == sorted(("list", f"{kind}.{group}") for kind in kinds for group in groups)


@pytest.mark.parametrize("verb", ["get", "create", "update"])
async def test_each_verb_that_an_election_lacks_is_one_line_and_mended_while_running(
    limited: KubeClient, namespace: Namespace, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    verbs = ["get", "create", "update"]
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    lease = ObjectName(namespace.name, "picker")
    if verb == "update":
        body = {"metadata": {"name": "picker"}, "spec": {"holderIdentity": ""}}
        namespace.server.request("POST", namespace.path("leases", "coordination.k8s.io/v1"), body)
    namespace.grant(LIMITED, [{**rule, "verbs": [other for other in verbs if other != verb]}])
    if verb != "get":
        await until_answered(limited, LEASES.path(*lease))
    leading = asyncio.Event()
    election = Election(
        limited,
        lease,
        "me",
        changed=lambda leads: leading.set() if leads else None,
        random=random.Random(1),
        clock=asyncio.get_running_loop().time,
        sleep=asyncio.sleep,
        term=Term(look=0.1),
    )
    running = asyncio.create_task(election.run())
    try:
        await until_refused(caplog, 1)
        await asyncio.sleep(0.3)
        (told,) = refusals(caplog)
        assert told["mend"] == f"give the service account the verb '{verb}' on '{LEASES}' by a Role"
        namespace.grant(LIMITED, [{**rule, "verbs": verbs}])
        await asyncio.wait_for(leading.wait(), DEADLINE)
    finally:
        running.cancel()
    assert len(refusals(caplog)) == 1


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


async def until_answered(client: KubeClient, path: str) -> None:
    """The same for an object that need not exist."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                await client.get(path)
            except KubeError as error:
                if error.status != 403:
                    return
                await asyncio.sleep(0.02)
            else:
                return


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
