"""How the picker gets access to the API server, and what it says where it has none."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from kubernetes.aio.config import incluster_config
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from picker.kube.client import KubeError, connect
from picker.kube.resource import PODS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kube.cluster import Namespace
    from tests.support.kube.server import ApiServer

VARIABLES = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")


@pytest.fixture(autouse=True)
def _no_access(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def account(server: ApiServer, namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a service account, which is where the client looks for one."""
    folder, variables = server.service_account(namespace.name, "picker")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(folder / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(folder / "ca.crt"))
    return folder


@pytest.mark.kube
@pytest.mark.usefixtures("account")
async def test_in_a_pod(namespace: Namespace) -> None:
    client = await connect()
    try:
        user = f"system:serviceaccount:{namespace.name}:picker"
        with pytest.raises(KubeError, match=f'pods is forbidden: User "{user}" cannot list') as caught:
            await client.get(PODS.path(namespace.name))
        assert caught.value.status == 403
    finally:
        await client.close()


@pytest.mark.kube
async def test_the_token_is_read_again_and_an_error_where_it_cannot_be(
    account: Path, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = InClusterConfigLoader._read_token_file

    def read_and_age(loader: InClusterConfigLoader) -> None:
        read(loader)  # type: ignore[no-untyped-call]
        loader.token_expires_at = datetime.min  # noqa: DTZ901 - theirs is naive too

    monkeypatch.setattr(InClusterConfigLoader, "_read_token_file", read_and_age)
    client = await connect()
    token = account / "token"
    good = token.read_text()
    try:
        for content, says in [
            ("", "Token file exists but empty"),
            ("wrong", "Unauthorized"),
            (None, "No such file"),
            (good, "pods is forbidden"),
        ]:
            token.unlink() if content is None else token.write_text(content)
            with pytest.raises(KubeError, match=says):
                await client.get(PODS.path(namespace.name))
    finally:
        await client.close()


@pytest.mark.parametrize("content", [None, "", "[]", "{}", "clusters: 1", "\0", "a: [", "current-context: x"])
async def test_no_access(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(KubeError, match=r"no access to the Kubernetes API \(KUBECONFIG ") as caught:
        await connect()
    assert str(caught.value).isprintable()


async def test_neither_a_file_nor_a_pod() -> None:
    with pytest.raises(KubeError, match="neither KUBECONFIG nor a service account"):
        await connect()


async def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(CONFIG)
    monkeypatch.setenv("KUBECONFIG", str(file))
    client = await connect()
    try:
        async with asyncio.timeout(30):
            with pytest.raises(KubeError) as caught:
                await client.get(PODS.path("default"))
        assert caught.value.status == 0
        assert str(caught.value).isprintable()
    finally:
        await client.close()


CONFIG = """\
{"current-context": "x", "users": [{"name": "x", "user": {}}],
 "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}],
 "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}
"""
