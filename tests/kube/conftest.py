"""The API server that the tests of this folder share, and what they do in it."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest

from picker.kube.client import connect
from tests.kube.cluster import Namespace
from tests.support.kube.build import missing
from tests.support.kube.modules import crd_folders
from tests.support.kube.server import ApiServer
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from picker.kube.client import KubeClient

_numbers = itertools.count()
LIMITED = "limited"
"""A user who may do nothing but what a test's Role says."""


@pytest.fixture(scope="session")
def server() -> Iterator[ApiServer]:
    """A real API server with the InferencePool of Gateway API Inference Extension."""
    why = missing()
    if why:
        pytest.skip(why)
    with ApiServer(users=[LIMITED]) as running:
        folder = crd_folders()["gateway-api-inference-extension"]
        running.install_crds(folder / "inference.networking.k8s.io_inferencepools.yaml")
        yield running


@pytest.fixture
def namespace(server: ApiServer) -> Namespace:
    """A namespace of the test's own, for they cannot be emptied."""
    return Namespace(server, f"test-{next(_numbers)}")


@pytest.fixture
async def client(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """The picker's client, as the administrator."""
    async for connected in _connected(monkeypatch, server.kubeconfig()):
        yield connected


@pytest.fixture
async def limited(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """The picker's client, as a user without any rights but those of a Role."""
    async for connected in _connected(monkeypatch, server.kubeconfig(LIMITED)):
        yield connected


async def _connected(monkeypatch: pytest.MonkeyPatch, kubeconfig: Path) -> AsyncIterator[KubeClient]:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    client = await connect()
    yield client
    await client.close()
    await _hung_up()


async def _hung_up() -> None:
    """Wait for connections with TLS to end, which take some steps of the loop more than aiohttp waits for."""
    sockets = asyncio.get_running_loop()._selector.get_map()  # type: ignore[attr-defined]

    async def only_the_loop_has_one() -> bool:
        return len(sockets) <= 1

    await eventually(only_the_loop_has_one)
