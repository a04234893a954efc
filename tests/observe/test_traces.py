"""Spans per decision: what is in them, who their parent is, and when there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from picker.inference.question import Question
from picker.observe import traces
from picker.observe.traces import Traces, TracesError
from tests.support.collector import collector

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
ASKED = Question(path="/v1/completions", model="llama", headers=PARENT, prompt=b"x" * 400)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def made(exporter: InMemorySpanExporter) -> Iterator[Traces]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = Traces(provider)
    yield spans
    spans.close()


def test_a_decision_is_a_span_below_the_gateways(made: Traces, exporter: InMemorySpanExporter) -> None:
    made.decided(ASKED, 0.002, endpoint="10.0.0.1:8000", refused="")
    (span,) = exporter.get_finished_spans()
    assert span.name == "pick endpoint"
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert span.end_time is not None
    assert span.start_time is not None
    assert span.end_time - span.start_time == 2_000_000
    assert dict(span.attributes or {}) == {
        "url.path": "/v1/completions",
        "gen_ai.request.model": "llama",
        "picker.prompt_tokens": 100,
        "picker.endpoint": "10.0.0.1:8000",
    }


def test_a_refusal_is_an_error_with_its_reason(made: Traces, exporter: InMemorySpanExporter) -> None:
    made.decided(ASKED, 0.001, endpoint="", refused="rejected-no-endpoints")
    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok
    assert span.status.description == "rejected-no-endpoints"


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-0-0-00", "00-" + "f" * 4000])
def test_a_broken_parent_makes_a_span_of_its_own(
    made: Traces, exporter: InMemorySpanExporter, traceparent: str
) -> None:
    asked = Question(headers={"traceparent": traceparent}, model="m" * 10_000)
    made.decided(asked, 0.001, endpoint="10.0.0.1:8000", refused="")
    (span,) = exporter.get_finished_spans()
    assert span.parent is None
    assert len(str((span.attributes or {})["gen_ai.request.model"])) == 256


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
    ],
)
def test_only_the_standard_variables_turn_traces_on(environ: dict[str, str], on: bool) -> None:
    assert traces.wanted(environ) is on


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp, console or none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
    ],
)
def test_what_cannot_be_sent_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(TracesError, match=said):
        traces.start()


def test_spans_arrive_at_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (address, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        spans = traces.start()
        spans.decided(ASKED, 0.001, endpoint="10.0.0.1:8000", refused="")
        spans.close()
    (request,) = received
    (resource,) = request.resource_spans
    assert resource.resource.attributes[-1].value.string_value or resource.resource.attributes
    assert resource.scope_spans[0].spans[0].name == "pick endpoint"
