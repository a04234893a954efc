"""The comparison as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from bench.routing.matrix import LOADS, PUBLISHED, TRACES, Cell, Published, load_of
from picker.replay.policies import BUILT_IN, OURS
from picker.replay.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterator

_PEER = "llm-d-default"
_SMALL = 0.1
"""Shares below are told with a digit more."""
Key = tuple[str, str, str, str]
"""Trace, load, variant, policy."""
Runs = Mapping[Key, Sequence[Result]]


def key_of(cell: Cell) -> Key:
    """Where a cell's runs are found."""
    return cell.trace, cell.load, cell.variant, cell.case.policy.name


def p90(results: Sequence[Result], *, settled: bool = False) -> float:
    """Mean over the seeds of the TTFT's 90th percentile, in ms."""
    return 1000 * fmean((result.settled_ttft if settled else result.ttft)[1] for result in results)


def markdown(runs: Runs, knees: Mapping[str, float], seeds: int) -> str:
    """All tables."""
    parts = [*_goals(runs), *_loads(runs, knees, seeds), *_variants(runs)]
    return "\n".join(parts) + "\n"


def _goals(runs: Runs) -> Iterator[str]:
    yield "## Loads with published figures\n"
    yield "TTFT p90 in ms, ours also as a share of others', and with headers at once as a share of its own;"
    yield "hit rates of llm-d default, of ours, and the ideal. *Settled*: without the first fifth of the"
    yield "requests, since sessions all begin at the same moment.\n"
    heads = ("trace, load", "round robin", "least request", "llm-d default", "ours", "of round robin")
    yield f"| {' | '.join((*heads, 'of llm-d', 'of the better', 'headers at once', 'hit rates'))} |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in PUBLISHED:
        yield from _goal(runs, row, settled=False)
        if "sessions" in load_of(row):
            yield from _goal(runs, row, settled=True)
    yield ""


def _goal(runs: Runs, row: Published, *, settled: bool) -> Iterator[str]:
    load = load_of(row)
    names = ("round-robin", "least-request", _PEER, OURS)
    found = [runs.get((row.trace, load, "", name), ()) for name in names]
    if not all(found):
        return
    robin, least, peer, ours = times = [p90(results, settled=settled) for results in found]
    blind = runs.get((row.trace, load, "headers at once", OURS))
    at_once = p90(blind, settled=settled) if blind else 0.0
    hits = [fmean(result.hit_rate for result in results) for results in found[2:]]
    hits.append(fmean(result.ideal_hit_rate for result in found[3]))
    cells = (
        f"{row.trace} {load}{', settled' if settled else ''}",
        *(f"{time:,.0f}" for time in times),
        _share(ours, robin, row.of_round_robin),
        _share(ours, peer, row.of_peer),
        _share(ours, min(robin, least), row.of_better),
        f"{at_once:,.0f} ({at_once / ours:.2f})" if at_once else "",
        " / ".join(f"{hit:.3f}" for hit in hits) if hits[2] else "no reuse",
    )
    yield f"| {' | '.join(cells)} |"


def _share(ours: float, other: float, goal: float | None) -> str:
    share = ours / other
    said = f"{share:.2f}" if share >= _SMALL else f"{share:.3f}"
    return said if goal is None else f"{said} ({'reaches' if share <= goal else 'misses'} {goal:g})"


def _loads(runs: Runs, knees: Mapping[str, float], seeds: int) -> Iterator[str]:
    yield "## By load\n"
    yield f"Loads in knees; TTFT p90 in ms, mean and range of {seeds} seeds, then hit rate and spread."
    yield ""
    for trace in TRACES:
        if trace.name not in knees:
            continue
        unit = "sessions at once" if trace.sessions else "times as fast as recorded"
        ours = runs.get((trace.name, f"{LOADS[0]:g}", "", OURS), ())
        ideal = [result.ideal_hit_rate for result in ours]
        yield f"### {trace.name}: knee at {knees[trace.name]:.3g} {unit}\n"
        yield f"Ideal hit rate {fmean(ideal or [0.0]):.3f}.\n"
        yield "| policy | " + " | ".join(f"{load:g}" for load in LOADS) + " |"
        yield "|---|" + "---|" * len(LOADS)
        for policy in BUILT_IN:
            cells = [runs.get((trace.name, f"{load:g}", "", policy)) for load in LOADS]
            yield f"| {policy} | " + " | ".join(_cell(results) for results in cells) + " |"
        yield ""


def _cell(results: Sequence[Result] | None) -> str:
    if not results:
        return ""
    each = [1000 * result.ttft[1] for result in results]
    hit = fmean(result.hit_rate for result in results)
    spread = fmean(result.spread for result in results)
    return f"{fmean(each):,.0f} ({min(each):,.0f}-{max(each):,.0f}), {hit:.3f}, {spread:.2f}"


def _variants(runs: Runs) -> Iterator[str]:
    yield "## At 0.8 of the knee, with something different\n"
    yield "TTFT p90 in ms (times the plain run's), spread, failures in percent, agreement of replicas.\n"
    variants = dict.fromkeys(variant for _, _, variant, policy in runs if variant and policy == OURS)
    for variant in variants:
        lines = [line for trace in TRACES for line in _variant(runs, trace.name, variant)]
        if lines:
            yield f"### {variant}\n"
            yield "| trace | policy | TTFT p90 | max/mean | failed | to the failing one | agreement |"
            yield "|---|---|---|---|---|---|---|"
            yield from lines
            yield ""


def _variant(runs: Runs, trace: str, variant: str) -> Iterator[str]:
    for policy in BUILT_IN:
        results = runs.get((trace, "0.8", variant, policy))
        plain = runs.get((trace, "0.8", "", policy))
        if not results or not plain:
            continue
        failed = sum(result.failed for result in results) / sum(result.requests for result in results)
        agreement = fmean(result.agreement for result in results)
        yield (
            f"| {trace} | {policy} | {p90(results):,.0f} ({p90(results) / p90(plain):.2f}) "
            f"| {fmean(result.spread for result in results):.2f} | {failed:.2%} "
            f"| {fmean(result.to_failing for result in results):.2%} | {agreement:.2f} |"
        )
