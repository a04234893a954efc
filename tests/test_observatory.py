"""What the admin port shows of a real router and fleet."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from picker.inference.question import Question
from picker.observatory import COLUMNS, Observatory
from picker.observe.prometheus import Metrics
from picker.routing.decision import Cause, Decision, Outcome, Visibility
from picker.routing.router import Router
from scorer.fleet import Fleet
from scorer.profile import built_in_profile

if TYPE_CHECKING:
    from collections.abc import Mapping

SEEN = Visibility(status=True, first_token=True, end=True)
A, B = "10.0.0.1:8000", "10.0.0.2:8000"


class Scene:
    """Two endpoints of two clusters, and a router that has decided nothing yet."""

    def __init__(self) -> None:
        self.now = 100.0
        self.fleet = Fleet()
        for address, cluster in ((A, "old"), (B, "new")):
            self.fleet.add(address, {"ray.io/cluster": cluster})
        self.fleet.fetched_at[:2] = self.now - 1.5
        self.router = Router(self.fleet, built_in_profile(), Random(1))
        self.metrics = Metrics(self.fleet, lambda: self.now)
        self.weights: Mapping[str, float] = {}
        self.problem = ""
        self.observatory = Observatory(
            self.fleet,
            self.router,
            self.metrics,
            lambda: self.now,
            policy=lambda: ("built in", self.problem),
            name_of=lambda address: f"name of {address}",
            resolve=lambda _: None,
            weights=lambda: self.weights,
        )

    def ask(self, **fields: Any) -> Decision:
        answer = self.router.ask(Question(method="POST", path="/v1/completions", **fields), SEEN, self.now)
        assert isinstance(answer, Decision)
        self.metrics.decided(0.00008, simplest=False)
        return answer

    def row(self, address: str) -> dict[str, Any]:
        """An endpoint as the page shows it."""
        for values in self.observatory.state()["endpoints"]:
            told = dict(zip(COLUMNS, values, strict=True))
            if told["address"] == address:
                return told
        raise AssertionError(address)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_endpoint_is_told_with_its_numbers(scene: Scene) -> None:
    decision = scene.ask(prompt=b"x" * 400)
    told = scene.row(decision.endpoints[0])
    assert told["name"] == f"name of {decision.endpoints[0]}"
    assert (told["in_flight"], told["sent"], told["share"], told["tokens"]) == (1.0, 1.0, 1.0, 100.0)
    assert told["state"] == "eligible"
    assert told["page_age"] == 1.5
    assert told["queue"] is None, "its page does not say"


def test_the_state_is_json_also_before_anything_happened(scene: Scene) -> None:
    state = orjson.loads(orjson.dumps(scene.observatory.state()))
    assert state["decisions"] == []
    assert state["rates"] == {
        "requests": 0.0,
        "decision_p50_us": None,
        "decision_p99_us": None,
        "streams": 0,
    }


def test_rates_are_of_the_last_seconds(scene: Scene) -> None:
    scene.observatory.state()
    for _ in range(10):
        scene.ask()
    scene.now += 2.0
    rates = scene.observatory.state()["rates"]
    assert rates["requests"] == 5.0
    assert rates["decision_p50_us"] == pytest.approx(100.0), "the bound of the bucket"


def test_the_newest_decision_is_the_first(scene: Scene) -> None:
    for model in ("one", "two"):
        scene.ask(model=model)
    assert [one["model"] for one in scene.observatory.decisions(10)] == ["two", "one"]
    assert [one["model"] for one in scene.observatory.decisions(1)] == ["two"]


def test_a_decision_that_was_replaced_is_not_listed(scene: Scene) -> None:
    first = scene.ask()
    scene.router.ask(Question(model="with its body"), SEEN, scene.now, replaces=first.ticket)
    assert [one["model"] for one in scene.observatory.decisions(10)] == ["with its body"]


def test_a_decision_is_told_with_its_reasons(scene: Scene) -> None:
    scene.fleet.draining[1] = True
    decision = scene.ask(prompt=b"x" * 400)
    (listed,) = scene.observatory.decisions(1)
    whole = scene.observatory.decision(listed["id"])
    assert whole is not None
    assert whole["endpoint"] == decision.endpoints[0] == A
    assert [step["endpoints"] for step in whole["dropped"]] == [[B]]
    assert [one["endpoint"] for one in whole["candidates"]] == [A]
    assert len(whole["candidates"][0]["scores"]) == len(whole["scorers"])
    assert orjson.dumps(whole)


@pytest.mark.parametrize("number", ["7", "-1", "x", "", "²", "9" * 400])
def test_a_decision_that_is_not_kept_is_none(scene: Scene, number: str) -> None:
    assert scene.observatory.decision(number) is None


def test_a_made_up_request_is_explained_and_changes_nothing(scene: Scene) -> None:
    asked = {"path": "/v1/completions", "body": {"model": "m", "prompt": "x" * 400}}
    first, second = scene.observatory.explain(asked), scene.observatory.explain(asked)
    assert first["model"] == "m"
    assert first["prompt_tokens"] == 100
    assert [one["scores"] for one in first["candidates"]] == [one["scores"] for one in second["candidates"]]
    assert scene.router.in_flight == 0
    assert scene.observatory.decisions(1) == []


@pytest.mark.parametrize(
    "asked",
    [{"headers": []}, {"headers": {"a": 1}}, {"method": 1}, {"path": {}}],
)
def test_a_request_that_is_none_is_told(scene: Scene, asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="should be"):
        scene.observatory.explain(asked)


def test_a_body_that_cannot_be_written_again_is_told(scene: Scene) -> None:
    body: list[Any] = []
    for _ in range(300):
        body = [body]
    with pytest.raises(ValueError, match="nested too deeply"):
        scene.observatory.explain({"body": body})


def test_clusters_are_told_with_wanted_and_served_shares(scene: Scene) -> None:
    scene.weights = {"old": 1, "new": 3}
    decision = scene.ask()
    scene.router.ended(decision.ticket, Outcome(Cause.COMPLETE, 200), scene.now)
    told = {one["name"]: (one["wanted"], one["served"]) for one in scene.observatory.state()["clusters"]}
    served = {A: "old", B: "new"}[decision.endpoints[0]]
    assert told["old"][0] == 0.25
    assert told[served][1] == 1.0


def test_a_policy_that_was_not_taken_is_told(scene: Scene) -> None:
    scene.problem = "policy.yaml, line 3: …"
    assert scene.observatory.state()["policy"] == {"name": "built in", "problem": scene.problem}
