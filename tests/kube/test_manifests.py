"""The manifests of k8s/ against what the picker is: its settings, ports, times, and the other objects."""

from __future__ import annotations

import os
import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pydantic import ByteSize, TypeAdapter

from picker.kube.lease import Term
from picker.observe.http_port import LAST_WAIT
from picker.settings import Settings, load, unknown_variables, variable
from tests.kube.manifests import (
    K8S,
    OVERLAYS,
    Objects,
    built,
    environment,
    install_kinds,
    kubectl,
    overlay,
    verbs,
)
from tests.support.kube.server import RefusedError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kube.cluster import Namespace
    from tests.support.kube.server import ApiServer

Json = dict[str, Any]
PROJECT = K8S.parent
GUIDE = K8S / "README.md"
NAMESPACE = "tests"


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> Objects:
    """What one of the overlays builds."""
    return overlay(request.param)


def settings(objects: Objects) -> Settings:
    return load(environ=objects.environment(NAMESPACE))


def selects(selector: Json, labels: Json) -> bool:
    return selector.items() <= labels.items()


# The picker's own part


def test_all_variables_are_settings_that_go_together(objects: Objects) -> None:
    env = objects.environment(NAMESPACE)
    assert unknown_variables(env) == {}
    assert not any("$(" in value for value in env.values())
    assert settings(objects)


def test_a_kubelet_knows_only_variables_before() -> None:
    entries: list[Json] = [
        {"name": "A", "value": "$(B)/a"},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "C", "value": "$(B)/c"},
    ]
    made = environment(entries, {"metadata.namespace": "b"})
    assert made == {"A": "$(B)/a", "B": "b", "C": "b/c"}


def test_ports_are_those_that_the_process_opens(objects: Objects) -> None:
    chosen = settings(objects)
    ports = {port["name"]: port["containerPort"] for port in objects.container()["ports"]}
    assert ports == {
        "ext-proc": chosen.grpc_port,
        "health": chosen.health_port,
        "http-metrics": chosen.metrics_port,
    }
    for probe, service in [("startup", "liveness"), ("liveness", "liveness"), ("readiness", "readiness")]:
        assert objects.container()[f"{probe}Probe"]["grpc"] == {
            "port": chosen.health_port,
            "service": service,
        }


def test_there_is_time_to_end_well(objects: Objects) -> None:
    chosen = settings(objects)
    hook = objects.container().get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    hand_over = Term().longest_hand_over if chosen.leader_election else 0
    longest = hook + hand_over + chosen.drain_delay + chosen.drain_timeout + LAST_WAIT
    assert objects.pod["terminationGracePeriodSeconds"] >= longest


def test_memory_is_more_than_what_bodies_may_take(objects: Objects) -> None:
    limit = objects.container()["resources"]["limits"]["memory"]
    bytes_ = TypeAdapter(ByteSize).validate_python(f"{limit}B")
    assert bytes_ >= 1.5 * settings(objects).max_buffered
    assert "cpu" not in objects.container()["resources"]["limits"]


def test_the_image_is_that_of_this_version(objects: Objects) -> None:
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert objects.container()["image"] == f"serve-picker:{version}"


def test_services_policies_and_budgets_mean_its_pods(objects: Objects) -> None:
    template = objects.one("Deployment")["spec"]["template"]
    labels = template["metadata"]["labels"]
    ports = {port["name"] for container in objects.pod["containers"] for port in container["ports"]}
    assert selects(objects.one("Deployment")["spec"]["selector"]["matchLabels"], labels)
    (policy,) = objects.of("NetworkPolicy")
    assert selects(policy["spec"]["podSelector"]["matchLabels"], labels)
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} <= ports
    for budget in objects.of("PodDisruptionBudget"):
        assert selects(budget["spec"]["selector"]["matchLabels"], labels)
    own = [item for item in objects.of("Service") if selects(item["spec"]["selector"], labels)]
    assert own
    assert {port["targetPort"] for item in own for port in item["spec"]["ports"]} <= ports
    assert objects.pod["serviceAccountName"] == objects.one("ServiceAccount")["metadata"]["name"]


def test_nobody_is_kept_who_is_never_ready(objects: Objects) -> None:
    """With an election one of the pods is not: neither a budget nor a rollout may wait for it."""
    spec = objects.one("Deployment")["spec"]
    update = spec["strategy"]["rollingUpdate"]
    if not settings(objects).leader_election:
        assert update["maxUnavailable"] == 0
        assert objects.of("PodDisruptionBudget")
        return
    assert spec["replicas"] > 1
    assert update["maxUnavailable"] == "100%"
    assert spec["progressDeadlineSeconds"] == 2**31 - 1
    assert not objects.of("PodDisruptionBudget")


# What it serves


@pytest.mark.parametrize("name", ["inferencepool", "rayservice"])
def test_pool_route_and_picker_name_each_other(name: str) -> None:
    objects = overlay(name)
    pool = objects.one("InferencePool")
    assert str(settings(objects).pool) == f"{NAMESPACE}/{pool['metadata']['name']}"
    reference = pool["spec"]["endpointPickerRef"]
    service = objects.one("Service", reference["name"])
    assert reference["port"]["number"] in [port["port"] for port in service["spec"]["ports"]]
    assert reference["failureMode"] == "FailOpen"
    (rule,) = objects.one("HTTPRoute")["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    group = pool["apiVersion"].partition("/")[0]
    assert (backend["group"], backend["kind"], backend["name"]) == (
        group,
        "InferencePool",
        pool["metadata"]["name"],
    )


def test_the_pool_has_the_pods_of_the_ray_service() -> None:
    objects = overlay("rayservice")
    service, pool = objects.one("RayService"), objects.one("InferencePool")["spec"]
    assert str(settings(objects).ray_service) == f"{NAMESPACE}/{service['metadata']['name']}"
    clusters = service["spec"]["rayClusterConfig"]
    for group in (clusters["headGroupSpec"], *clusters["workerGroupSpecs"]):
        template = group["template"]
        by_operator = {"ray.io/serve": "true"}
        assert selects(pool["selector"]["matchLabels"], template["metadata"]["labels"] | by_operator)
        ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
        assert [{"number": ports["serve"]}] == pool["targetPorts"]
        assert {"name": "RAY_metrics_report_interval_ms", "value": "1000"} in template["spec"]["containers"][
            0
        ]["env"]


def test_both_sidecars_find_the_same_endpoints_by_name_and_by_api() -> None:
    service = overlay("sidecar").one("Service", "llm-endpoints")
    named = settings(overlay("sidecar")).service
    assert str(named) == f"{NAMESPACE}/{service['metadata']['name']}"
    assert service["spec"]["clusterIP"] == "None"
    (pool, _) = envoy(overlay("sidecar"))["static_resources"]["clusters"]
    (place,) = pool["load_assignment"]["endpoints"][0]["lb_endpoints"]
    address = place["endpoint"]["address"]["socket_address"]
    assert (address["address"], address["port_value"]) == (named.service.name if named else "", 8000)
    assert [port["port"] for port in service["spec"]["ports"]] == [8000]


@pytest.mark.parametrize("name", ["sidecar", "sidecar-rayservice"])
def test_the_envoy_beside_it_asks_as_the_documented_one_does(name: str) -> None:
    ours = envoy(overlay(name))["static_resources"]
    documented = yaml.safe_load((PROJECT / "docs" / "envoy.yaml").read_text())["static_resources"]
    assert ours["listeners"][0] == documented["listeners"][0]
    (pool, picker), (documented_pool, documented_picker) = ours["clusters"], documented["clusters"]
    assert picker == documented_picker
    apart = {"type", "cluster_type", "load_assignment"}
    assert {key: pool[key] for key in pool.keys() - apart} == {
        key: documented_pool[key] for key in documented_pool.keys() - apart
    }
    container = overlay(name).container("envoy")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listening = [item["address"]["socket_address"]["port_value"] for item in ours["listeners"]]
    assert [ports["http"], ports["ready"]] == listening
    assert settings(overlay(name)).fallbacks == 1  # which the route's retry needs


def envoy(objects: Objects) -> Json:
    found: Json = yaml.safe_load(objects.one("ConfigMap")["data"]["envoy.yaml"])
    return found


def test_a_kustomization_of_ones_own_sets_image_and_namespace(tmp_path: Path) -> None:
    for name in OVERLAYS:
        folder = tmp_path / name
        folder.mkdir()
        own = {
            "resources": [os.path.relpath(K8S / "overlays" / name, folder)],
            "namespace": NAMESPACE,
            "images": [{"name": "serve-picker", "newName": "images.example/picker", "newTag": "9"}],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(own))
        objects = built(folder)
        assert objects.container()["image"] == "images.example/picker:9"
        assert {item["metadata"]["namespace"] for item in objects.all} == {NAMESPACE}
        assert objects.one("RoleBinding")["subjects"][0]["namespace"] == NAMESPACE
        assert settings(objects) == settings(overlay(name))


def test_the_guide_begins_with_a_kustomization_that_works(tmp_path: Path) -> None:
    found = re.search(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found
    folder = tmp_path / "mine"
    folder.mkdir()
    to_project = os.path.relpath(PROJECT, folder)
    (folder / "kustomization.yaml").write_text(found[1].replace("../k8s", f"{to_project}/k8s"))
    objects = built(folder)
    assert objects.one("Service", "llm-gateway")["metadata"]["namespace"] == "models"
    assert objects.container()["image"].startswith("registry.example/")


@pytest.mark.parametrize("document", [GUIDE, PROJECT / "docs" / "kubernetes.md"], ids=lambda path: path.name)
def test_documents_name_what_exists(document: Path) -> None:
    text = document.read_text()
    assert set(re.findall(r"PICKER_[A-Z_]+", text)) <= {variable(name) for name in Settings.model_fields}
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert link.startswith("https://") or (document.parent / link).exists(), link
    messages = "".join(path.read_text() for path in (PROJECT / "picker").rglob("*.py"))
    for told in ("the API server forbids what is needed", "there is no such InferencePool", "standing by"):
        assert told in messages
    families = "".join(path.read_text() for path in (PROJECT / "picker" / "observe").glob("*.py"))
    for family in re.findall(r"`(picker_[a-z_]+)", text):
        assert f'"{family.removesuffix("_total")}"' in families, family


def test_no_object_is_of_the_whole_cluster(objects: Objects) -> None:
    assert not [item for item in objects.all if item["kind"].startswith("Cluster")]
    assert all("*" not in str(rule) for rule in objects.rules)


# What the API server says


@pytest.mark.kube
def test_the_api_server_takes_all_of_it(server: ApiServer, namespace: Namespace, objects: Objects) -> None:
    install_kinds(server)
    args = ("apply", "--server-side", "--validate=strict", "--kubeconfig", server.kubeconfig())
    told = kubectl(*args, "--namespace", namespace.name, "-f", "-", text=objects.text)
    assert len(told.splitlines()) == len(objects.all)


@pytest.mark.kube
def test_its_pods_are_allowed_where_only_restricted_ones_are(
    server: ApiServer, namespace: Namespace, objects: Objects
) -> None:
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    server_path = f"/api/v1/namespaces/{namespace.name}"
    namespace.patch(server_path, {"metadata": {"labels": enforced}})
    template = objects.one("Deployment")["spec"]["template"]
    pod = {"metadata": {"name": "picker", **template["metadata"]}, "spec": template["spec"]}
    server.request("POST", namespace.path("pods") + "?dryRun=All", pod)
    pod["spec"] = {**pod["spec"], "securityContext": {}}
    with pytest.raises(RefusedError, match="violates PodSecurity"):
        server.request("POST", namespace.path("pods") + "?dryRun=All", pod)
    assert all(
        container["securityContext"]["readOnlyRootFilesystem"] for container in objects.pod["containers"]
    )


def test_the_doors_of_the_http_ports_come_with_their_rights(tmp_path: Path) -> None:
    component = os.path.relpath(K8S / "components" / "http-auth", tmp_path)
    base = os.path.relpath(K8S / "base", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(
        f"namespace: inference\nresources: [{base}]\ncomponents: [{component}]\n"
    )
    made = built(tmp_path)
    assert made.environment("inference")["PICKER_HTTP_AUTH"] == "kubernetes"
    asks = made.one("ClusterRole", "picker-http-auth")
    assert verbs(asks["rules"]) == {
        ("create", "tokenreviews.authentication.k8s.io"),
        ("create", "subjectaccessreviews.authorization.k8s.io"),
    }
    (subject,) = made.one("ClusterRoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "picker", "namespace": "inference"}
