"""Who may read the HTTP ports, as a real API server says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from picker.observe.auth import KubernetesReview, _Verdict
from tests.kube.cluster import RBAC
from tests.kube.conftest import LIMITED

if TYPE_CHECKING:
    from picker.kube.client import KubeClient
    from tests.kube.cluster import Namespace
    from tests.support.kube.server import ApiServer

pytestmark = pytest.mark.kube

DEADLINE = 30.0


def bind(server: ApiServer, name: str, role: str, subject: dict[str, str]) -> None:
    """Give somebody a ClusterRole."""
    body = {
        "metadata": {"name": name},
        "subjects": [subject],
        "roleRef": {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"},
    }
    server.request("POST", f"/apis/{RBAC}/clusterrolebindings", body)


async def until(review: KubernetesReview, token: str, verdict: _Verdict) -> None:
    """A binding counts after some milliseconds."""

    async def asked() -> None:
        while await review._review(token) is not verdict:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)

    await asyncio.wait_for(asked(), DEADLINE)


async def test_accounts_by_their_token(server: ApiServer, client: KubeClient, namespace: Namespace) -> None:
    folder, _ = server.service_account(namespace.name, "prometheus")
    token = (folder / "token").read_text()
    review = KubernetesReview(client)
    assert await review._review("made-up") is _Verdict.UNKNOWN
    assert await review._review(token) is _Verdict.FORBIDDEN
    role = {
        "metadata": {"name": f"{namespace.name}-metrics"},
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    }
    server.request("POST", f"/apis/{RBAC}/clusterroles", role)
    account = {"kind": "ServiceAccount", "name": "prometheus", "namespace": namespace.name}
    bind(server, f"{namespace.name}-metrics", f"{namespace.name}-metrics", account)
    await until(review, token, _Verdict.ALLOWED)


async def test_the_picker_needs_the_role_that_the_error_names(
    server: ApiServer, limited: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    review = KubernetesReview(limited)
    with pytest.raises(Exception, match="Service Unavailable"):
        await review._verdict("made-up")
    (record,) = caplog.records
    assert vars(record)["fields"]["mend"].endswith("to the ClusterRole system:auth-delegator")
    user = {"kind": "User", "name": LIMITED, "apiGroup": "rbac.authorization.k8s.io"}
    bind(server, "limited-reviews", "system:auth-delegator", user)

    async def allowed() -> None:
        while True:
            try:
                assert await review._review("made-up") is _Verdict.UNKNOWN
            except Exception:  # noqa: BLE001 - until the binding counts
                await asyncio.sleep(0.02)
            else:
                return

    try:
        await asyncio.wait_for(allowed(), DEADLINE)
    finally:
        server.request("DELETE", f"/apis/{RBAC}/clusterrolebindings/limited-reviews")
