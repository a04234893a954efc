"""A running API server."""

from __future__ import annotations

import atexit
import contextlib
import json
import secrets
import shutil
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from picker.gateway.ports import free_ports
from tests.support.kube.build import APISERVER, ETCD
from tests.support.kube.certificates import write_certificates
from tests.support.kube.programs import HOST, Leash, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE_PATCH = "application/merge-patch+json"
_OK, _CREATED, _CONFLICT = 200, 201, 409
_PLAIN = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class RefusedError(Exception):
    """The API server refused a request; ``status`` says how."""

    def __init__(self, status: int, answer: str) -> None:
        super().__init__(f"{status}: {answer}")
        self.status = status


class ApiServer:
    """A kube-apiserver with an etcd, as a context manager; several can run side by side.

    ``users`` are known beside the administrator; what they may do is up to RBAC. ``url`` and the files of
    :meth:`kubeconfig` stay valid while the server is stopped and started again.
    """

    def __init__(self, users: Iterable[str] = ()) -> None:
        self._tokens = {user: secrets.token_urlsafe(24) for user in ("admin", *users)}
        port, etcd_port, peer_port = free_ports(3)
        self.url = f"https://{HOST}:{port}"
        self._etcd_url, self._peer_url = f"http://{HOST}:{etcd_port}", f"http://{HOST}:{peer_port}"
        self._port = port

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="kube-apiserver-"))
        self._leash = Leash(self.folder)
        atexit.register(self._stop)
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop()

    def _start(self) -> None:
        write_certificates(self.folder, HOST)
        rows = [
            f'{token},{user},{user},"{"system:masters" if user == "admin" else ""}"\n'
            for user, token in self._tokens.items()
        ]
        (self.folder / "tokens.csv").write_text("".join(rows))
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        self._etcd = Program(self._etcd_args(), self.folder, self._leash.group, self._etcd_healthy)
        self.program = Program(self._args(), self.folder, self._leash.group, self._ready)
        self._etcd.start()
        self.program.start()

    def _stop(self) -> None:
        atexit.unregister(self._stop)
        for name in ("program", "_etcd"):
            program: Program | None = getattr(self, name, None)
            if program is not None:
                program.stop(kill=True)
        self._leash.release()
        shutil.rmtree(self.folder, ignore_errors=True)

    # How to reach it

    def kubeconfig(self, user: str = "admin") -> Path:
        """A kubeconfig file of a user."""
        cluster = {"server": self.url, "certificate-authority": str(self.folder / "ca.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path = self.folder / f"kubeconfig-{user}"
        path.write_text(json.dumps(config))  # JSON is YAML too
        return path

    def service_account(self, namespace: str, name: str) -> tuple[Path, dict[str, str]]:
        """What a pod of a new service account finds: its folder of token and ca.crt, and variables."""
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.request("POST", accounts, {"metadata": {"name": name}})
        answer = self.request("POST", f"{accounts}/{name}/token", {"spec": {"expirationSeconds": 3600}})
        folder = self.folder / "serviceaccounts" / namespace / name
        folder.mkdir(parents=True)
        (folder / "token").write_text(answer["status"]["token"])
        shutil.copy(self.folder / "ca.crt", folder)
        return folder, {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": str(self._port)}

    # A small client, for the part of the cluster that tests play

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> dict[str, Any]:
        """The answer to a request of the administrator's; ``body`` is an object, or bytes as they are.

        Raises RefusedError, and OSError while the server is down.
        """
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)  # noqa: S310 - https
        request.add_header("Authorization", f"Bearer {self._tokens['admin']}")
        request.add_header("Accept", "application/json")
        request.add_header("Content-Type", content_type)
        try:
            with self._opener.open(request, timeout=30.0) as response:
                raw = response.read()
        except urllib.error.HTTPError as error:
            with error:
                raise RefusedError(error.code, error.read().decode(errors="replace")) from None
        answer: dict[str, Any] = json.loads(raw)
        return answer

    def install_crds(self, *paths: Path) -> None:
        """Create the CustomResourceDefinitions of YAML files, or of folders of them, and wait for them."""
        for document in _documents(paths):
            try:
                crd = self.request("POST", _CRDS, document, content_type="application/yaml")
            except RefusedError as error:
                if error.status != _CONFLICT:
                    raise
                continue
            _wait(partial(self._serves, crd["spec"]))

    def remove_crd(self, name: str) -> None:
        """Delete a CustomResourceDefinition with all its objects, and wait until it is gone."""
        self.request("DELETE", f"{_CRDS}/{name}")
        _wait(lambda: not self._has(f"{_CRDS}/{name}"))

    def _serves(self, spec: dict[str, Any]) -> bool:
        """Whether each version of a custom resource is answered."""
        return all(
            self._has(f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}?limit=1")
            for version in spec["versions"]
            if version["served"]
        )

    def _has(self, path: str) -> bool:
        try:
            self.request("GET", path)
        except RefusedError:
            return False
        return True

    # Inner workings

    def _ready(self) -> bool:
        request = urllib.request.Request(f"{self.url}/readyz")  # noqa: S310 - https
        request.add_header("Authorization", f"Bearer {self._tokens['admin']}")
        with contextlib.suppress(OSError), self._opener.open(request, timeout=2) as response:
            return bool(response.status == _OK)
        return False

    def _etcd_healthy(self) -> bool:
        with contextlib.suppress(OSError), _PLAIN.open(f"{self._etcd_url}/health", timeout=2) as response:
            return bool(response.status == _OK)
        return False

    def _etcd_args(self) -> list[str]:
        return [
            str(ETCD),
            "--name=test",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={self._peer_url}",
            f"--initial-advertise-peer-urls={self._peer_url}",
            f"--initial-cluster=test={self._peer_url}",
            "--logger=zap",
            "--log-level=warn",
            "--unsafe-no-fsync",  # the data need not outlive the machine
        ]

    def _args(self) -> list[str]:
        folder = self.folder
        return [
            str(APISERVER),
            f"--etcd-servers={self._etcd_url}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={self._port}",
            f"--tls-cert-file={folder / 'server.crt'}",
            f"--tls-private-key-file={folder / 'server.key'}",
            # Addresses of Services are taken from a range that nothing here is sent to.
            "--service-cluster-ip-range=10.0.0.0/24",
            # It would list itself as an endpoint, but none may have a loopback address.
            "--endpoint-reconciler-type=none",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={folder / 'sa.key'}",
            f"--service-account-key-file={folder / 'sa.pub'}",
            # Nothing here makes the service account that each Pod would need.
            "--disable-admission-plugins=ServiceAccount",
            "--profiling=false",
            # Asked to stop, close watches at once; by default they go on for up to 60 s.
            "--shutdown-watch-termination-grace-period=1s",
        ]


def _wait(holds: Callable[[], bool], within: float = 60.0) -> None:
    end = time.monotonic() + within
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("a CustomResourceDefinition is neither there nor gone")
        time.sleep(0.05)


def _documents(paths: Iterable[Path]) -> Iterator[bytes]:
    """The CustomResourceDefinitions among the YAML documents in files, or in folders' files."""
    for path in paths:
        for file in sorted(path.glob("*.yaml")) if path.is_dir() else [path]:
            for document in ("\n" + file.read_text()).split("\n---"):
                if "CustomResourceDefinition" in document:
                    yield document.encode()
