"""Which model is asked for, and with which priority."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.inference.question import Question
from picker.inference.reading import LONGEST_NAME
from picker.objects.rules import ModelRewrite, Objective, Objects, ObjectSet, Rule, Target


def objects(*rewrites: ModelRewrite, objectives: tuple[Objective, ...] = ()) -> Objects:
    found = Objects(Random(1))
    found.replace(ObjectSet(rewrites, objectives))
    return found


def exact(model: str, *targets: str) -> Rule:
    return Rule((model,), tuple(map(Target, targets)))


def generic(*targets: str) -> Rule:
    return Rule((), tuple(map(Target, targets)))


def resolved(within: Objects, model: str, **headers: str) -> Question:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    question = Question(model=model, headers=named)
    within.resolve(question)
    return question


def target(within: Objects, model: str, **headers: str) -> str:
    return resolved(within, model, **headers).model


def test_without_objects_nothing_changes() -> None:
    question = resolved(Objects(Random(1)), "chat", x_llm_d_inference_objective="batch")
    assert (question.model, question.priority) == ("chat", 0)


def test_a_rule_for_the_model_goes_before_one_for_all_whatever_their_order() -> None:
    within = objects(
        ModelRewrite("a", (generic("rest"),), created=1), ModelRewrite("b", (exact("chat", "v1"),))
    )
    assert target(within, "chat") == "v1"
    assert target(within, "Chat") == "rest"


def test_a_rule_for_all_gives_a_model_to_a_body_without_one() -> None:
    assert target(objects(ModelRewrite("a", (generic("rest"),))), "") == "rest"
    assert target(objects(ModelRewrite("a", (exact("chat", "v1"),))), "") == ""


@pytest.mark.parametrize("rule", [lambda to: exact("chat", to), generic])
def test_of_several_the_oldest_object_wins_then_the_first_in_order(rule: type[Rule]) -> None:
    young = ModelRewrite("young", (rule("young"),), created=2)  # type: ignore[call-arg, arg-type]
    old = ModelRewrite("old", (rule("old"), rule("second")), created=1)  # type: ignore[call-arg, arg-type]
    timeless = ModelRewrite("timeless", (rule("timeless"),))  # type: ignore[call-arg, arg-type]
    assert target(objects(timeless, young, old), "chat") == "old"
    assert target(objects(timeless, young), "chat") == "young"
    same = ModelRewrite("same", (rule("same"),), created=2)  # type: ignore[call-arg, arg-type]
    assert target(objects(same, young), "chat") == "same"
    assert target(objects(young, same), "chat") == "young"


def test_one_rule_for_several_models() -> None:
    within = objects(ModelRewrite("a", (Rule(("chat", "talk"), (Target("v1"),)),)))
    assert [target(within, model) for model in ("chat", "talk", "other")] == ["v1", "v1", "other"]


def test_rules_are_not_applied_to_what_a_rule_gave() -> None:
    within = objects(ModelRewrite("a", (exact("a", "b"), exact("b", "a"))))
    assert [target(within, "a"), target(within, "b")] == ["b", "a"]


def draws(*targets: Target, count: int = 3000) -> Counter[str]:
    within = objects(ModelRewrite("a", (Rule((), targets),)))
    return Counter(target(within, "chat") for _ in range(count))


def test_targets_are_drawn_by_weight() -> None:
    drawn = draws(Target("a", 1_000_000), Target("b", 500_000), Target("c", 1))
    assert drawn["a"] == pytest.approx(2000, abs=150)
    assert drawn["b"] == pytest.approx(1000, abs=150)
    assert drawn["c"] < 5


def test_without_weights_all_are_alike() -> None:
    drawn = draws(Target("a"), Target("b"), Target("c"))
    assert all(drawn[model] == pytest.approx(1000, abs=150) for model in "abc")


def test_beside_weights_a_target_without_one_is_never_drawn() -> None:
    assert set(draws(Target("a", 1), Target("b"), Target("c", 1), count=200)) == {"a", "c"}


def test_a_target_that_is_listed_twice_counts_twice() -> None:
    drawn = draws(Target("a", 1), Target("a", 1), Target("b", 1))
    assert drawn["a"] == pytest.approx(2000, abs=150)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(1, 1_000_000)), min_size=1))
def test_only_targets_of_the_rule_are_drawn(listed: list[tuple[str, int | None]]) -> None:
    targets = tuple(Target(model, weight) for model, weight in listed)
    weighted = {model for model, weight in listed if weight}
    assert set(draws(*targets, count=10)) <= (weighted or {model for model, _ in listed})


@pytest.mark.parametrize("header", ["x_llm_d_model_name_rewrite", "x_gateway_model_name_rewrite"])
def test_a_header_names_the_model_and_rules_apply_to_that(header: str) -> None:
    within = objects(ModelRewrite("a", (exact("named", "v1"), exact("chat", "wrong"))))
    assert target(within, "chat", **{header: " other "}) == "other"
    assert target(within, "chat", **{header: "named"}) == "v1"
    assert target(within, "", **{header: "other"}) == "other"
    assert target(within, "chat", **{header: ""}) == "wrong"
    assert target(within, "other", **{header: "x" * (LONGEST_NAME + 1)}) == "other"


def test_of_two_headers_the_canonical_one_wins() -> None:
    within = objects(objectives=(Objective("new", 1), Objective("old", 2)))
    question = resolved(
        within,
        "chat",
        x_gateway_model_name_rewrite="old",
        x_llm_d_model_name_rewrite="new",
        x_gateway_inference_objective="old",
        x_llm_d_inference_objective="new",
    )
    assert (question.model, question.priority) == ("new", 1)


@pytest.mark.parametrize(("name", "priority"), [("batch", -1), ("Batch", 0), ("", 0), ("unknown", 0)])
@pytest.mark.parametrize("header", ["x_llm_d_inference_objective", "x_gateway_inference_objective"])
def test_an_objective_gives_the_priority(name: str, priority: int, header: str) -> None:
    within = objects(objectives=(Objective("batch", -1),))
    assert resolved(within, "chat", **{header: name}).priority == priority


def test_other_objects_are_in_force_at_once() -> None:
    within = objects(ModelRewrite("a", (generic("rest"),)), objectives=(Objective("batch", -1),))
    within.replace(ObjectSet((ModelRewrite("a", (exact("chat", "v2"),)),)))
    assert target(within, "chat") == "v2"
    assert target(within, "other", x_llm_d_inference_objective="batch") == "other"
    assert resolved(within, "other", x_llm_d_inference_objective="batch").priority == 0
