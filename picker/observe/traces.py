"""One OpenTelemetry span per decision, below the gateway's own span. Off unless ``OTEL_*`` asks for it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_LONGEST = 256
"""Characters of an attribute that a client can choose."""


class TracesError(Exception):
    """Traces are asked for, but cannot be sent; one line that names the mend."""


class Asked(Protocol):
    """What a span tells of a request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers; ``traceparent`` among them names the parent."""

    @property
    def path(self) -> str:
        """Its path."""

    @property
    def model(self) -> str:
        """What is asked of the endpoint."""

    @property
    def prompt_tokens(self) -> int:
        """Estimated length of its prompt."""


def wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the standard variables ask for traces."""
    environ = os.environ if environ is None else environ
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter:
        return exporter != "none"
    return any(environ.get(name, "").strip() for name in _ENDPOINTS)


class Traces:
    """Makes the spans; they are sent in the background by the SDK.

    Which are kept is the SDK's sampler's (``OTEL_TRACES_SAMPLER``): by default, those whose parent is.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        self._provider = provider
        self._tracer = provider.get_tracer("serve-picker")
        self._extract = TraceContextTextMapPropagator().extract

    def decided(self, asked: Asked, seconds: float, *, endpoint: str, refused: str) -> None:
        """A decision was made just now and took ``seconds``.

        ``endpoint`` is the first choice; where there is none, ``refused`` says why.
        """
        ended = time.time_ns()
        span = self._tracer.start_span(
            "pick endpoint",
            context=self._extract(asked.headers),
            start_time=ended - int(seconds * 1e9),
            attributes={
                "url.path": asked.path[:_LONGEST],
                "gen_ai.request.model": asked.model[:_LONGEST],
                "picker.prompt_tokens": asked.prompt_tokens,
                "picker.endpoint": endpoint,
            },
        )
        if refused:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415 - loaded by now

            span.set_status(StatusCode.ERROR, refused)
        span.end(ended)

    def close(self) -> None:
        """Send what is left; waits for it."""
        self._provider.shutdown()


def start() -> Traces:
    """Traces as the ``OTEL_*`` variables say. Raises TracesError."""
    try:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - 0.3 s that nobody else need take
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise TracesError("traces need the extra [otel]: pip install 'serve-picker[otel]'") from None
    # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say goes before.
    name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "serve-picker"}
    provider = TracerProvider(resource=Resource.create(name), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter()))
    return Traces(provider)


def _exporter() -> SpanExporter:
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower()
    if exporter == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter  # noqa: PLC0415

        return ConsoleSpanExporter()
    if exporter != "otlp":
        raise TracesError(f"OTEL_TRACES_EXPORTER={exporter!r} is not known; use otlp, console or none")
    protocol = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    if protocol != "http/protobuf":
        raise TracesError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r} is not sent; use http/protobuf")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    except ImportError:
        raise TracesError("traces need the extra [otel]: pip install 'serve-picker[otel]'") from None
    return OTLPSpanExporter()
