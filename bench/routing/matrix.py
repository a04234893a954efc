"""What is compared: each trace under each load, and at one load with old pages, replicas and faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from picker.replay.cases import SESSION_RATE, Case, Source
from picker.replay.policies import BUILT_IN, OURS, ROUND_ROBIN, PolicyName
from picker.replay.servers import Fault
from picker.replay.simulation import Sight

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOADS = (0.5, 0.8, 1.0, 1.2)
"""Of the knee."""
VARIED_AT = 0.8
RECOVERS_AFTER = 10.0
"""Seconds an endpoint fails before it serves again, four times slower than the others."""
BUSY = 0.002
"""Seconds of a gateway and a picker that share two cores with all else: on a quiet machine it is 1.4 ms."""
REQUESTS = 1_500
"""Of a run, where the published figures do not say another number."""
BLIND = ("round-robin", "random", "least-request")
"""They see neither pages nor tokens."""
VARIED = ("Mooncake conversation", "miniswe", "Azure code")
"""Traces that are also run with something different: much reuse in the open, sessions, and none."""
VARIED_POLICIES = ("round-robin", "least-request", "llm-d-default", OURS)


@dataclass(frozen=True, slots=True)
class TraceOf:
    """A trace by the name it has in the report. ``least``: requests without which its knee does not show."""

    name: str
    path: str
    sessions: bool = False
    least: int = 0

    def case(self, traces: Path, requests: int) -> Case:
        """A run of it, whose load is still to be set."""
        return Case(
            Source(str(traces / self.path)),
            PolicyName(OURS),
            rate=SESSION_RATE if self.sessions else 1.0,
            sessions=8 if self.sessions else 0,
            requests=max(requests, self.least),
        )


TRACES = (
    TraceOf("Mooncake conversation", "mooncake/conversation_trace.jsonl"),
    TraceOf("Mooncake synthetic", "mooncake/synthetic_trace.jsonl"),
    TraceOf("miniswe", "agentic/miniswe.jsonl", sessions=True),
    TraceOf("magagent", "agentic/magagent.jsonl", sessions=True),
    TraceOf("taubench", "agentic/taubench.jsonl", sessions=True),
    TraceOf("Azure code", "azure2023/AzureLLMInferenceTrace_code.csv", least=3_000),
    TraceOf("Azure conversation", "azure2023/AzureLLMInferenceTrace_conv.csv", least=3_000),
    TraceOf("ServeGen m-large", "servegen/language/m-large"),
)


class Published(NamedTuple):
    """A load of which others' figures are published, and what ours is to reach there.

    ``of_round_robin`` and ``of_peer``: TTFT p90 as a share of round robin's and of the llm-d default's;
    ``of_better``: of the better of round robin and least request.
    """

    trace: str
    level: float
    requests: int
    of_round_robin: float | None = None
    of_peer: float | None = None
    of_better: float | None = None


PUBLISHED = (
    Published("Mooncake conversation", 8.0, 1_260, 0.4, 0.6),
    Published("Mooncake conversation", 12.0, 1_260, 0.4, 0.6),
    Published("Mooncake synthetic", 5.0, 1_260, 0.9, 0.9),
    Published("miniswe", 120.0, 2_400, 0.06, 0.8),
    Published("magagent", 200.0, 4_000, 0.28, 0.62),
    Published("Azure code", 28.0, 3_189, of_better=1.0),
    Published("Azure code", 40.0, 3_189, of_better=1.0),
    Published("Azure conversation", 16.0, 2_600, of_better=1.0),
    Published("Azure conversation", 24.0, 2_600, of_better=1.0),
)


class Cell(NamedTuple):
    """One place of a table: ``variant`` is what differs from the plain run, empty if nothing does."""

    trace: str
    load: str
    variant: str
    case: Case


def varied(case: Case) -> Iterator[tuple[str, Case]]:
    """What one load is also run with. Policies that it makes no difference to are left out."""
    if case.policy.name not in BLIND:
        yield from _other_pages(case)
    if case.policy.asks:
        yield "2 ms to decide", replace(case, decision_time=BUSY)
    if case.policy.name == OURS:
        yield "headers at once", replace(case, sight=Sight(first_token=False))
    if case.policy.name != ROUND_ROBIN:
        yield "4 pickers", replace(case, replicas=4)
    yield "one 4x slower", replace(case, faults=(Fault(slowness=4.0),))
    yield "one fails at once", replace(case, faults=(Fault(fails_from=0.0),))
    if not case.sessions:  # whose run is over before
        failed_before = Fault(slowness=4.0, fails_from=0.0, fails_until=RECOVERS_AFTER)
        yield "one 4x slower after failing", replace(case, faults=(failed_before,))


def _other_pages(case: Case) -> Iterator[tuple[str, Case]]:
    for age in (0.2, 1.0, 10.0):
        yield f"pages {age:g} s old", replace(case, sight=Sight(page_age=age))
    yield "pages renewed every 10 s", replace(case, sight=Sight(page_renewal=10.0))


def cells(trace: TraceOf, case: Case, knee: float) -> Iterator[Cell]:
    """All of a trace, for all policies."""
    for policy in BUILT_IN:
        with_policy = replace(case, policy=PolicyName(policy))
        for load in LOADS:
            yield Cell(trace.name, f"{load:g}", "", with_policy.at_level(load * knee))
        if trace.name in VARIED and policy in VARIED_POLICIES:
            for variant, changed in varied(with_policy.at_level(VARIED_AT * knee)):
                yield Cell(trace.name, f"{VARIED_AT:g}", variant, changed)
        for row in PUBLISHED:
            if row.trace == trace.name:
                at = replace(with_policy.at_level(row.level), requests=row.requests)
                yield Cell(trace.name, load_of(row), "", at)
                if policy == OURS:
                    yield Cell(
                        trace.name,
                        load_of(row),
                        "headers at once",
                        replace(at, sight=Sight(first_token=False)),
                    )


def load_of(row: Published) -> str:
    """How its load is called."""
    return f"x{row.level:g}" if "Azure" in row.trace or "Mooncake" in row.trace else f"{row.level:g} sessions"
