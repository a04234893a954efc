"""The picker as a process, as the service account of each overlay: with its Role, and with one verb less."""

from __future__ import annotations

import contextlib
import json
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from bench.rig.picker import Picker
from tests.kube.manifests import K8S, Account, install_kinds, overlay, rules_of, verbs
from tests.support.kube.modules import LLM_D_CRDS, crd_folders
from tests.support.waiting import eventually
from tests.test_app import ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from tests.kube.cluster import Namespace
    from tests.kube.manifests import Json, Objects
    from tests.support.kube.server import ApiServer

pytestmark = pytest.mark.kube

PATIENCE = 60.0
POD, SLICE = "127.0.0.11:8000", "10.1.0.1:8000"
CLUSTER = "llm-abcde"
LABELS = {"app": "llm", "ray.io/cluster": CLUSTER, "ray.io/node-type": "worker", "ray.io/serve": "true"}
NEW, LEGACY = "llm-d.ai", "inference.networking.x-k8s.io"
PLURALS = ("inferenceobjectives", "inferencemodelrewrites")
PODS = "pods"
POOLS = "inferencepools.inference.networking.k8s.io"
RAY_SERVICES = "rayservices.ray.io"
ROUTES = "httproutes.gateway.networking.k8s.io"
SLICES = "endpointslices.discovery.k8s.io"
LEASES = "leases.coordination.k8s.io"
ROUTES = "httproutes.gateway.networking.k8s.io"

LOOK = ("list", "watch")
OBJECTS = {(verb, f"{plural}.{group}") for verb in LOOK for plural in PLURALS for group in (NEW, LEGACY)}
NEEDS = {
    "PICKER_POOL": {*((verb, resource) for verb in LOOK for resource in (PODS, POOLS)), *OBJECTS},
    "PICKER_SERVICE": {(verb, SLICES) for verb in LOOK},
    "PICKER_PODS": {(verb, PODS) for verb in LOOK},
    "PICKER_RAY_SERVICE": {(verb, resource) for verb in LOOK for resource in (PODS, RAY_SERVICES)},
    "PICKER_RAY_CLUSTER": {(verb, PODS) for verb in LOOK},
    "PICKER_HTTP_ROUTE": {(verb, ROUTES) for verb in LOOK},
    "PICKER_LEADER_ELECTION": {(verb, LEASES) for verb in ("get", "create", "update")},
}
"""What each setting asks of the API server."""
ROUTE_NEEDS = NEEDS["PICKER_RAY_CLUSTER"] | NEEDS["PICKER_HTTP_ROUTE"]
OVERLAYS = {
    "inferencepool": ("PICKER_POOL", "PICKER_LEADER_ELECTION"),
    "rayservice": ("PICKER_POOL", "PICKER_LEADER_ELECTION", "PICKER_RAY_SERVICE"),
    "sidecar": ("PICKER_SERVICE",),
    "sidecar-rayservice": ("PICKER_RAY_SERVICE",),
}
MISSING = [
    *(("inferencepool", *pair) for pair in sorted(NEEDS["PICKER_POOL"] | NEEDS["PICKER_LEADER_ELECTION"])),
    *(("rayservice", verb, RAY_SERVICES) for verb in LOOK),
    *(("sidecar", verb, SLICES) for verb in LOOK),
    *(("sidecar-rayservice", *pair) for pair in sorted(NEEDS["PICKER_RAY_SERVICE"])),
]


class Process(Picker):
    """A picker that counts as started once it lives."""

    async def _is_ready(self) -> bool:
        return await self.status("healthz") == HTTPStatus.OK

    async def status(self, path: str) -> int:
        """Of an answer on its metrics port; 0 where there is none."""
        with contextlib.suppress(aiohttp.ClientError):
            async with self._session.get(f"{self.metrics_url}/{path}") as response:
                return response.status
        return 0

    async def ready(self) -> None:
        """Wait until it is."""

        async def holds() -> bool:
            return await self.status("readyz") == HTTPStatus.OK

        await eventually(holds, within=PATIENCE)

    async def picks(self, address: str) -> None:
        """Wait until it says to a gateway that a request should go there."""

        async def holds() -> bool:
            return address.encode() in (await ask(self))[0].SerializeToString()

        await eventually(holds, within=PATIENCE)

    def log(self, *levels: str) -> list[dict[str, Any]]:
        """The lines of some levels that it wrote, as far as it wrote them out."""
        lines = self.child.log_text().rpartition("\n")[0].splitlines()
        return [line for line in map(json.loads, lines) if line["level"] in levels]

    async def error(self) -> dict[str, Any]:
        """Wait for its first error."""

        async def holds() -> bool:
            return bool(self.log("error"))

        await eventually(holds, within=PATIENCE)
        return self.log("error")[0]


class Cluster:
    """A namespace with everything that the sources look for, and pickers in it."""

    def __init__(self, namespace: Namespace, folder: Path, stack: AsyncExitStack) -> None:
        self._namespace = namespace
        self._folder = folder
        self._stack = stack
        self.account: Account

    async def start(self, objects: Objects, rules: list[Json] | None = None, **env: str) -> Process:
        """One with an overlay's variables and Role, or others."""
        self.account = Account(self._namespace, objects, rules)
        await eventually(self.account.in_force)
        env = env or objects.environment(self._namespace.name)
        env = {
            **env,
            "PICKER_LOG_FORMAT": "json",
            "PICKER_DRAIN_DELAY": "0s",  # nobody comes meanwhile
            "KUBECONFIG": str(self.account.kubeconfig(self._folder)),
        }
        return await self._stack.enter_async_context(Process(env, directory=self._folder))


@pytest.fixture
async def cluster(server: ApiServer, namespace: Namespace, tmp_path: Path) -> AsyncIterator[Cluster]:
    install_kinds(server)
    pool, service = (overlay("rayservice").one(kind) for kind in ("InferencePool", "RayService"))
    server.request("POST", namespace.path("inferencepools", pool["apiVersion"]), pool)
    ray = namespace.path("rayservices", service["apiVersion"])
    server.request("POST", ray, service)
    status = {"activeServiceStatus": {"rayClusterName": CLUSTER}}
    namespace.patch(f"{ray}/{service['metadata']['name']}/status", {"status": status})
    namespace.pod("worker", POD.partition(":")[0], labels=LABELS)
    body = {
        "metadata": {"name": "slice", "labels": {"kubernetes.io/service-name": "llm-endpoints"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [SLICE.partition(":")[0]]}],
        "ports": [{"name": "http", "port": 8000}],
    }
    server.request("POST", namespace.path("endpointslices", "discovery.k8s.io/v1"), body)
    async with AsyncExitStack() as stack:
        yield Cluster(namespace, tmp_path, stack)


@pytest.fixture
def objects_of(server: ApiServer) -> Iterator[Callable[[str], None]]:
    """Installs the kinds of an InferencePool's objects of one group."""
    installed: list[str] = []

    def install(group: str) -> None:
        installed.append(group)
        folder = crd_folders()["gateway-api-inference-extension"]
        legacy = [folder / f"{LEGACY}_{plural}.yaml" for plural in PLURALS]
        server.install_crds(*([LLM_D_CRDS] if group == NEW else legacy))

    yield install
    for group in installed:
        for plural in PLURALS:
            server.remove_crd(f"{plural}.{group}")


# What a Role has


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_role_has_just_what_its_settings_need(name: str) -> None:
    env = overlay(name).environment("tests")
    assert {setting for setting in NEEDS if setting in env} == set(OVERLAYS[name])
    assert verbs(overlay(name).rules) == set().union(*(NEEDS[setting] for setting in OVERLAYS[name]))


def test_the_guide_says_what_each_setting_needs() -> None:
    rows = [line for line in (K8S / "README.md").read_text().splitlines() if line.startswith("| `PICKER_")]
    told: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        setting, resources, allowed, _ = (cell.strip() for cell in row.strip("|").split("|"))
        told.setdefault(setting.strip("`"), set()).update(
            (verb, resource.strip(" `")) for resource in resources.split(",") for verb in allowed.split(", ")
        )
    assert told == NEEDS


@pytest.mark.parametrize("name", OVERLAYS)
async def test_it_is_enough(cluster: Cluster, namespace: Namespace, name: str) -> None:
    picker = await cluster.start(overlay(name))
    await picker.ready()
    address = SLICE if name == "sidecar" else POD
    await picker.picks(address)
    if address == POD:  # what happens later is watched
        namespace.pod("another", "127.0.0.12", labels=LABELS)
        await picker.picks("127.0.0.12:8000")
    assert picker.log("error", "warning") == []
    assert not cluster.account.may("get", "secrets")
    assert not cluster.account.may("list", PODS, namespace="default")


@pytest.mark.parametrize(
    ("setting", "value"), [("PICKER_PODS", "app=llm:8000"), ("PICKER_RAY_CLUSTER", CLUSTER)]
)
async def test_so_it_is_for_settings_without_an_overlay(
    cluster: Cluster, namespace: Namespace, setting: str, value: str
) -> None:
    env = {setting: f"{namespace.name}/{value}"}
    picker = await cluster.start(overlay("sidecar"), rules_of(NEEDS[setting]), **env)
    await picker.ready()
    await picker.picks(POD)
    assert picker.log("error", "warning") == []


async def test_a_role_may_name_the_objects(cluster: Cluster, namespace: Namespace) -> None:
    lease = f"epp-{namespace.name}-llm.llm-d.ai"
    names = {POOLS: ["llm"], RAY_SERVICES: ["llm"], LEASES: [lease]}
    rules = rules_of(verbs(overlay("rayservice").rules))
    for rule in rules:
        resource = f"{rule['resources'][0]}.{rule['apiGroups'][0]}"
        if resource in names and rule["verbs"] != ["create"]:
            rule["resourceNames"] = names[resource]
    picker = await cluster.start(overlay("rayservice"), rules)
    await picker.ready()
    await picker.picks(POD)
    assert picker.log("error", "warning") == []


async def test_so_it_is_for_the_weights_of_a_route(cluster: Cluster, namespace: Namespace) -> None:
    picker = await cluster.start(overlay("sidecar"), rules_of(ROUTE_NEEDS), **route_env(namespace))
    await picker.ready()
    await picker.picks(POD)
    assert picker.log("error", "warning") == []


def route_env(namespace: Namespace) -> dict[str, str]:
    return {
        "PICKER_RAY_CLUSTER": f"{namespace.name}/{CLUSTER}",
        "PICKER_HTTP_ROUTE": f"{namespace.name}/llm",
    }


@pytest.mark.parametrize("group", [NEW, LEGACY])
async def test_it_is_enough_for_the_objects_of_a_pool(
    cluster: Cluster, namespace: Namespace, objects_of: Callable[[str], None], group: str
) -> None:
    objects_of(group)
    spec = {
        "poolRef": {"name": "llm"},
        "rules": [{"matches": [{"model": {"value": "chat"}}], "targets": [{"modelRewrite": "chat-v1"}]}],
    }
    rewrite = {
        "apiVersion": f"{group}/v1alpha2",
        "kind": "InferenceModelRewrite",
        "metadata": {"name": "chat"},
        "spec": spec,
    }
    namespace.server.request("POST", namespace.path(PLURALS[1], f"{group}/v1alpha2"), rewrite)
    picker = await cluster.start(overlay("inferencepool"))
    await picker.ready()

    async def rewritten() -> bool:
        _, told = await ask(picker)
        return b"chat-v1" in told.SerializeToString()

    await eventually(rewritten)
    assert picker.log("error", "warning") == []


# What happens where it lacks something


@pytest.mark.parametrize(("name", "verb", "resource"), MISSING)
async def test_a_missing_verb_is_one_line_and_no_crash(
    cluster: Cluster, objects_of: Callable[[str], None], name: str, verb: str, resource: str
) -> None:
    _, _, group = resource.partition(".")
    if (verb, resource) in OBJECTS:
        objects_of(group)
    left = verbs(overlay(name).rules) - {(verb, resource)}
    picker = await cluster.start(overlay(name), rules_of(left))
    told = await picker.error()
    assert resource in told["mend"]
    assert verb in told["mend"]
    assert "forbidden" in told["error"]
    assert f'cannot {verb} resource "{resource.partition(".")[0]}"' in told["error"]
    if group == "coordination.k8s.io" and verb != "update":
        assert await picker.status("readyz") == HTTPStatus.SERVICE_UNAVAILABLE  # nobody leads
        await picker.picks(POD)
    elif verb == "list" and (verb, resource) not in OBJECTS:
        assert await picker.status("readyz") == HTTPStatus.SERVICE_UNAVAILABLE
    else:  # what may not be watched is listed, and rules for models are not needed
        await picker.ready()
        await picker.picks(SLICE if resource == SLICES else POD)
    assert await picker.status("healthz") == HTTPStatus.OK
    assert len(picker.log("error", "critical")) == 1
    assert "Traceback" not in picker.child.log_text()


async def test_weights_that_may_not_be_listed_are_one_line_and_waited_for(
    cluster: Cluster, namespace: Namespace
) -> None:
    picker = await cluster.start(
        overlay("sidecar"), rules_of(ROUTE_NEEDS - {("list", ROUTES)}), **route_env(namespace)
    )
    assert ROUTES in (await picker.error())["mend"]
    assert await picker.status("readyz") == HTTPStatus.SERVICE_UNAVAILABLE
    assert await picker.status("healthz") == HTTPStatus.OK
    assert len(picker.log("error", "critical")) == 1
