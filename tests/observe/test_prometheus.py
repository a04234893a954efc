"""What the picker tells about itself."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from picker.observe.prometheus import MOST_ENDPOINTS, MOST_REASONS, Metrics
from picker.observe.states import STATES
from scorer.fleet import Fleet

NOW = 100.0


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def metrics(fleet: Fleet) -> Metrics:
    return Metrics(fleet, clock=lambda: NOW)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def states(metrics: Metrics) -> dict[str, float | None]:
    found = {state: value(metrics, "picker_endpoints", state=state) for state in STATES}
    return {state: count for state, count in found.items() if count}


def test_counts_decisions_and_why_requests_were_refused(metrics: Metrics) -> None:
    for simplest in (False, False, True):
        metrics.decided(0.0003, simplest=simplest)
    metrics.refused("rejected-saturated")
    assert value(metrics, "picker_decisions_total", outcome="picked") == 2
    assert value(metrics, "picker_decisions_total", outcome="simplest") == 1
    assert value(metrics, "picker_decisions_total", outcome="refused") == 1
    assert value(metrics, "picker_refusals_total", reason="rejected-saturated") == 1
    assert value(metrics, "picker_decision_duration_seconds_count") == 3
    assert value(metrics, "picker_decision_duration_seconds_bucket", le="0.0002") == 0
    assert value(metrics, "picker_decision_duration_seconds_bucket", le="0.0005") == 3
    name = "llm_d_epp_scheduler_e2e_duration_seconds"
    assert value(metrics, f"{name}_count") == 3
    assert value(metrics, f"{name}_bucket", le="0.0005") == 3
    assert value(metrics, f"{name}_bucket", le="0.15") is None, "the published bounds"


def test_counts_scrapes_by_result(metrics: Metrics) -> None:
    metrics.scraped("ok", 0.002)
    metrics.scraped("timeout", 1.0)
    assert value(metrics, "picker_scrape_duration_seconds_count", result="ok") == 1
    assert value(metrics, "picker_scrape_duration_seconds_sum", result="timeout") == 1.0
    assert value(metrics, "llm_d_epp_datalayer_poll_errors_total", source_type="metrics-data-source") == 1


def test_counts_rewritten_models_and_tokens(metrics: Metrics) -> None:
    metrics.rewritten()
    metrics.not_rewritten("the name cannot be placed")
    metrics.used(prompt=100, cached=60, completion=7)
    metrics.used(prompt=1, cached=0, completion=0)
    assert value(metrics, "picker_models_rewritten_total") == 1
    reason = "the name cannot be placed"
    assert value(metrics, "picker_models_not_rewritten_total", reason=reason) == 1
    kinds = ("prompt", "cached", "completion")
    assert [value(metrics, "picker_tokens_total", kind=kind) for kind in kinds] == [101, 60, 7]


def test_counts_streams_and_faults(metrics: Metrics) -> None:
    metrics.stream_opened()
    metrics.stream_opened()
    metrics.stream_closed()
    metrics.internal_error("routing")
    assert value(metrics, "picker_streams_total") == 2
    assert value(metrics, "picker_streams_open") == 1
    assert value(metrics, "picker_internal_errors_total", where="routing") == 1


def test_the_varying_part_of_a_reason_is_no_label(metrics: Metrics) -> None:
    metrics.unreadable("not JSON: unexpected character at byte 7")
    metrics.unreadable("not JSON: unexpected end at byte 9")
    assert value(metrics, "picker_unreadable_bodies_total", reason="not JSON") == 2


def test_labels_are_bounded_whatever_comes(metrics: Metrics) -> None:
    for number in range(3 * MOST_REASONS):
        metrics.unreadable(f"reason {number}")
    assert value(metrics, "picker_unreadable_bodies_total", reason="reason 0") == 1
    assert value(metrics, "picker_unreadable_bodies_total", reason="other") == 2 * MOST_REASONS


def test_an_empty_pool_has_all_its_series(metrics: Metrics) -> None:
    assert value(metrics, "picker_endpoints", state="eligible") == 0
    assert value(metrics, "picker_requests_in_flight") == 0
    assert value(metrics, "picker_oldest_page_age_seconds") == 0


def test_each_endpoint_is_in_one_state(fleet: Fleet, metrics: Metrics) -> None:
    rows = {name: fleet.add(f"10.0.0.1:{port}").row for port, name in enumerate((*STATES, "worst"), 1)}
    fleet.reachable[rows["unreachable"]] = False
    fleet.breaker_open[rows["breaker_open"]] = True
    fleet.draining[rows["draining"]] = True
    fleet.full_until[rows["full"]] = NOW + 1
    fleet.full_until[rows["eligible"]] = NOW  # over
    fleet.draining[rows["worst"]] = fleet.breaker_open[rows["worst"]] = True
    assert states(metrics) == {
        "unreachable": 1, "breaker_open": 2, "draining": 1, "full": 1, "eligible": 1
    }  # fmt: skip


def test_tells_each_endpoint_by_its_address(fleet: Fleet, metrics: Metrics) -> None:
    gone = fleet.add("10.0.0.1:1")
    row = fleet.add("10.0.0.2:1").row
    fleet.remove(gone)
    fleet.own[row], fleet.untracked[row] = 3, 2
    fleet.scraped_load[row], fleet.fetched_at[row] = 7, NOW - 4
    fleet.breaker_open[row] = True
    for name, expected in (
        ("picker_endpoint_requests_in_flight", 5),
        ("picker_endpoint_reported_load", 7),
        ("picker_endpoint_page_age_seconds", 4),
        ("picker_endpoint_breaker_open", 1),
    ):
        assert value(metrics, name, endpoint="10.0.0.2:1") == expected
        assert value(metrics, name, endpoint="10.0.0.1:1") is None
    assert value(metrics, "picker_requests_in_flight") == 5
    assert value(metrics, "picker_oldest_page_age_seconds") == 4


def test_what_is_not_known_has_no_sample(fleet: Fleet, metrics: Metrics) -> None:
    fleet.add("10.0.0.1:1")
    assert value(metrics, "picker_endpoint_reported_load", endpoint="10.0.0.1:1") is None
    assert value(metrics, "picker_endpoint_page_age_seconds", endpoint="10.0.0.1:1") is None
    assert value(metrics, "picker_endpoints_never_scraped") == 1


def test_a_large_pool_is_told_in_sums(fleet: Fleet, metrics: Metrics) -> None:
    for number in range(2 * MOST_ENDPOINTS):
        row = fleet.add(f"10.0.0.1:{number}").row
        fleet.own[row] = 1
    page = generate_latest(metrics.registry).decode()
    assert page.count("picker_endpoint_requests_in_flight{") == MOST_ENDPOINTS
    assert value(metrics, "picker_requests_in_flight") == 2 * MOST_ENDPOINTS


def test_the_page_is_valid_in_both_formats(fleet: Fleet, metrics: Metrics) -> None:
    fleet.add("[fd00::1]:1")
    assert b'endpoint="[fd00::1]:1"' in generate_latest(metrics.registry)
    openmetrics = generate_openmetrics(metrics.registry)  # type: ignore[no-untyped-call]
    assert openmetrics.endswith(b"# EOF\n")


def test_two_of_them_share_nothing(fleet: Fleet) -> None:
    one, other = Metrics(fleet), Metrics(fleet)
    one.stream_opened()
    assert value(other, "picker_streams_total") == 0
