"""Requests by model, under the llm-d picker's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from picker.inference.question import Question
from picker.inference.usage import Usage
from picker.observe.requests import FIRST_NAMES, MOST_TALLIES, RequestSeries
from picker.routing.decision import Cause, Outcome
from scorer.fleet import CLUSTER_LABEL, Fleet

if TYPE_CHECKING:
    from picker.observe.requests import Counted

HERE, THERE = "10.0.0.1:8000", "10.0.0.2:8000"


@dataclass
class Rig:
    now: float = 100.0
    known: set[str] = field(default_factory=set)
    fleet: Fleet = field(default_factory=Fleet)

    def __post_init__(self) -> None:
        self.series = RequestSeries(
            self.fleet,
            knows=self.known.__contains__,
            rewrite_of=lambda model, _target: f"rule for {model}",
            clock=lambda: self.now,
        )
        self.registry = CollectorRegistry()
        self.registry.register(self.series)

    def picked(self, question: Question | None = None, endpoint: str = HERE) -> Counted:
        return self.series.picked(question or asked(), endpoint, self.now)

    def value(self, name: str, model: str = "llama", target: str = "", **more: str) -> float | None:
        labels = {
            "model_name": model,
            "target_model_name": target or model,
            "fairness_id": "default-flow",
            "priority": "0",
        }
        return self.registry.get_sample_value(f"llm_d_epp_{name}", labels | more)


def asked(model: str = "llama", target: str = "", *, stream: bool = False, size: int = 100) -> Question:
    return Question(incoming_model=model, model=target or model, stream=stream, body_bytes=size)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_an_answer_that_is_streamed(rig: Rig) -> None:
    counted = rig.picked(asked(stream=True))
    assert rig.value("request_running") == 1
    rig.now += 0.3
    counted.first_token()
    rig.now += 1.0
    usage = Usage(prompt_tokens=200, completion_tokens=11, cached_tokens=0)
    counted.ended(Outcome(Cause.COMPLETE, 200, HERE, usage=usage, body_bytes=500))
    assert rig.value("request_total") == 1
    assert rig.value("request_running") == 0
    assert rig.value("request_size_bytes_bucket", le="128.0") == 1
    assert rig.value("request_size_bytes_bucket", le="64.0") == 0
    assert rig.value("response_size_bytes_sum") == 500
    assert rig.value("request_duration_seconds_sum") == pytest.approx(1.3)
    assert rig.value("request_ttft_seconds_sum", streaming="true") == pytest.approx(0.3)
    assert rig.value("request_ttft_seconds_sum", streaming="false") is None
    assert rig.value("request_streaming_tpot_seconds_sum") == pytest.approx(0.1)
    assert rig.value("request_ntpot_seconds_sum") == pytest.approx(1.3 / 11)
    assert rig.value("request_input_tokens_sum") == 200
    assert rig.value("request_output_tokens_sum") == 11
    assert rig.value("request_cached_tokens_count") == 1
    assert rig.value("request_input_tokens_bucket", le="32778.0") == 1, "the published bounds"


def test_what_was_broken_off_has_no_duration(rig: Rig) -> None:
    for cause in (Cause.ABORTED, Cause.UNSEEN):
        rig.picked().ended(Outcome(cause))
    assert rig.value("request_total") == 2
    assert rig.value("request_running") == 0
    assert rig.value("request_duration_seconds_count") is None


def test_a_length_that_was_only_told(rig: Rig) -> None:
    for length in ("4096", "", "-1", "\u0664", "9" * 40):
        rig.picked(Question(headers={"content-length": length}))
    assert rig.value("request_size_bytes_sum", model="") == 4096
    assert rig.value("request_running", model="") is None, "as there: only with a model's name"


def test_refusals_by_code(rig: Rig) -> None:
    for status in (429, 429, 503, 418):
        rig.series.refused(asked(), status)
    rig.series.refused(None, 400)
    assert rig.value("request_error_total", error_code="ResourceExhausted") == 2
    assert rig.value("request_error_total", error_code="ServiceUnavailable") == 1
    assert rig.value("request_error_total", error_code="Unknown") == 1
    assert rig.value("request_error_total", model="other", error_code="BadRequest") == 1
    attempts = {"status": "failure", "target_model_name": "llama"}
    assert rig.registry.get_sample_value("llm_d_epp_scheduler_attempts_total", attempts) == 4


def test_rules_that_change_models(rig: Rig) -> None:
    rig.picked(asked("chat", "chat-v2"))
    rig.picked(asked("chat", "chat"))
    labels = {"model_rewrite_name": "rule for chat", "model_name": "chat", "target_model": "chat-v2"}
    assert rig.registry.get_sample_value("llm_d_epp_model_rewrite_decisions_total", labels) == 1


def test_served_by_another_than_picked(rig: Rig) -> None:
    for served in (HERE, "", THERE):
        rig.picked().ended(Outcome(Cause.COMPLETE, 200, served))
    assert rig.registry.get_sample_value("picker_served_elsewhere_total") == 1


def test_requests_by_cluster_of_which_few_are_remembered(rig: Rig) -> None:
    rig.picked()
    for number in range(100):
        slot = rig.fleet.add(f"10.0.1.{number}:1", {CLUSTER_LABEL: f"cluster-{number}"})
        rig.picked(endpoint=f"10.0.1.{number}:1")
        rig.fleet.remove(slot)
    page = generate_latest(rig.registry).decode()
    assert page.count("picker_cluster_requests_total{") == 64
    assert 'picker_cluster_requests_total{cluster="cluster-99"} 1.0' in page


def test_ten_thousand_names_of_clients_are_few_series(rig: Rig) -> None:
    for number in range(10_000):
        rig.picked(asked(f"model-{number}", stream=True)).ended(Outcome(Cause.COMPLETE, 200))
    page = generate_latest(rig.registry).decode()
    assert page.count("llm_d_epp_request_total{") == FIRST_NAMES + 1
    assert rig.value("request_total", model="other") == 10_000 - FIRST_NAMES
    assert len(page.splitlines()) < 5_000


def test_names_that_the_pool_has_are_told_however_many_clients_named_before(rig: Rig) -> None:
    for number in range(100):
        rig.picked(asked(f"model-{number}"))
    rig.known |= {f"adapter-{number}" for number in range(1_000)}
    rig.picked(asked("adapter-7"))
    assert rig.value("request_total", model="adapter-7") == 1
    for name in rig.known:
        rig.picked(asked(name))
    page = generate_latest(rig.registry).decode()
    assert page.count("llm_d_epp_request_total{") == MOST_TALLIES + 1
    total = sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "llm_d_epp_request_total"
    )
    assert total == 1_101


def test_a_name_that_is_no_plain_text(rig: Rig) -> None:
    rig.picked(asked('a"b\n\\{} 1'))
    page = generate_latest(rig.registry).decode()
    (family,) = [
        family for family in text_string_to_metric_families(page) if family.name == "llm_d_epp_request"
    ]
    assert family.samples[0].labels["model_name"] == 'a"b\n\\{} 1'
