"""Who may read the HTTP ports."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import pytest

from picker.kube.client import KubeError
from picker.observe import auth
from picker.observe.auth import REMEMBERED, TRUSTED_FOR, AuthError, KubernetesReview, TokenFile
from picker.observe.http import MetricsServer
from picker.observe.http_port import Place
from picker.observe.prometheus import Metrics
from scorer.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from picker.kube.client import Json, KubeClient
    from picker.observe.auth import Middlewares

HOST = "127.0.0.1"
DEADLINE = 20.0


@asynccontextmanager
async def serving(*middlewares: Any) -> AsyncIterator[MetricsServer]:
    checks: Middlewares = middlewares
    server = MetricsServer(Place(HOST, 0), Metrics(Fleet()), ready=lambda: True, middlewares=checks)
    await server.start()
    try:
        yield server
    finally:
        await asyncio.wait_for(server.stop(), DEADLINE)


async def status(server: MetricsServer, authorization: str | None = None, path: str = "/metrics") -> int:
    headers = {} if authorization is None else {"Authorization": authorization}
    timeout = aiohttp.ClientTimeout(total=DEADLINE)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://{HOST}:{server.port}{path}", headers=headers) as response,
    ):
        return response.status


WRONG = [
    None,
    "",
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    "secret",
    "Basic secret",
    "Bearer secret2",
    "Bearer \xe9",
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_token_and_none(tmp_path: Path, wrong: str | None) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    async with serving(TokenFile(file).check) as server:
        assert await status(server, wrong) == 401
        assert await status(server, wrong, "/elsewhere") == 401
        assert await status(server, wrong, "/healthz") == 200
        assert await status(server, wrong, "/readyz") == 200
        assert await status(server, "bearer  secret ") == 200


async def test_a_token_can_be_replaced_and_without_one_nobody_gets_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    async with serving(TokenFile(file).check) as server:
        file.write_text("new")
        assert await status(server, "Bearer old") == 401
        assert await status(server, "Bearer new") == 200
        file.write_text("")
        assert await status(server, "Bearer ") == 503
        file.unlink()
        assert await status(server, "Bearer new") == 503
        assert caplog.messages == ["nobody can read the HTTP ports"]
        file.write_text("new")
        assert await status(server, "Bearer new") == 200


def test_a_file_that_holds_no_token(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="No such file or directory; give a file with a token in it"):
        TokenFile(tmp_path / "gone")
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(AuthError, match="is empty; write a token into it"):
        TokenFile(tmp_path / "empty")


@dataclass
class Api:
    """An API server that knows accounts by their token, and whether they may read metrics."""

    accounts: dict[str, bool] = field(default_factory=dict)
    asked: list[tuple[str, Json]] = field(default_factory=list)
    error: Exception | None = None
    silent: bool = False

    async def create(self, path: str, body: Json, *, within: float) -> Json:
        assert within <= auth.REVIEW_TIMEOUT
        self.asked.append((path, body))
        if self.error is not None:
            raise self.error
        if self.silent:
            await asyncio.sleep(DEADLINE)
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            known = spec["token"] in self.accounts
            user = {"username": spec["token"], "groups": ["all"], "uid": "1", "extra": {"a": ["b"]}}
            return {"status": {"authenticated": known, "user": user}}
        assert spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
        assert (spec["groups"], spec["uid"], spec["extra"]) == (["all"], "1", {"a": ["b"]})
        return {"status": {"allowed": self.accounts[spec["user"]]}}


@dataclass
class Reviewed:
    api: Api
    review: KubernetesReview
    now: list[float]


@pytest.fixture
def reviewed() -> Reviewed:
    api, now = Api({"prometheus": True, "stranger": False}), [0.0]
    return Reviewed(api, KubernetesReview(cast("KubeClient", api), lambda: now[0]), now)


async def test_kubernetes_says_who_may(reviewed: Reviewed) -> None:
    async with serving(reviewed.review.check) as server:
        assert await status(server) == 401
        assert await status(server, "Basic prometheus") == 401
        assert reviewed.api.asked == [], "nothing is asked about nothing"
        assert await status(server, "Bearer unknown") == 401
        assert await status(server, "Bearer stranger") == 403
        assert await status(server, "Bearer prometheus") == 200
        assert await status(server, None, "/healthz") == 200


async def test_what_was_said_is_trusted_for_a_short_time(reviewed: Reviewed) -> None:
    async with serving(reviewed.review.check) as server:
        for _ in range(3):
            assert await status(server, "Bearer prometheus") == 200
        assert len(reviewed.api.asked) == 2
        reviewed.api.accounts["prometheus"] = False
        reviewed.now[0] = TRUSTED_FOR
        assert await status(server, "Bearer prometheus") == 403
        assert len(reviewed.api.asked) == 4


async def test_what_is_remembered_is_bounded_and_holds_no_token(reviewed: Reviewed) -> None:
    for number in range(REMEMBERED + 50):
        await reviewed.review._verdict(f"made-up-{number}")
    said = reviewed.review._said
    assert len(said) == REMEMBERED
    assert hashlib.sha256(b"made-up-305").digest() in said


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (KubeError("no answer in time"), {"error": "no answer in time"}),
        (
            KubeError("tokenreviews is forbidden", 403),
            {
                "error": "tokenreviews is forbidden",
                "mend": "bind the picker's service account to the ClusterRole system:auth-delegator",
            },
        ),
    ],
)
async def test_nobody_gets_in_while_kubernetes_cannot_be_asked(
    reviewed: Reviewed, caplog: pytest.LogCaptureFixture, error: Exception, says: dict[str, str]
) -> None:
    async with serving(reviewed.review.check) as server:
        reviewed.api.error = error
        for _ in range(3):
            assert await status(server, "Bearer prometheus") == 503
        assert await status(server, None, "/readyz") == 200
        (record,) = caplog.records
        assert (record.getMessage(), vars(record)["fields"]) == ("nobody can read the HTTP ports", says)
        reviewed.api.error = None
        assert await status(server, "Bearer prometheus") == 200


async def test_an_api_server_that_says_nothing(reviewed: Reviewed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "REVIEW_TIMEOUT", 0.05)
    reviewed.api.silent = True
    async with serving(reviewed.review.check) as server:
        assert await asyncio.gather(*(status(server, f"Bearer {n}") for n in range(8))) == [503] * 8
    assert len(reviewed.api.asked) == auth.MOST_REVIEWS, "no more are asked about at a time"


async def test_an_answer_that_is_none(reviewed: Reviewed, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in (
        {},
        {"status": None},
        {"status": {"authenticated": "yes"}},
        {"status": {"authenticated": True}},
    ):

        async def create(_path: str, _body: Json, *, within: float, answer: Json = answer) -> Json:  # noqa: ARG001
            return answer

        monkeypatch.setattr(reviewed.api, "create", create)
        review = KubernetesReview(cast("KubeClient", reviewed.api))
        async with serving(review.check) as server:
            assert await status(server, "Bearer prometheus") == 401
