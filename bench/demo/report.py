"""What the demo shows: progress while it plays, one table at the end, and what to make of it."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.demo.scenario import IN_TIME
from bench.rig.load import Result, failures, latencies, percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from bench.rig.ray import Proxy
    from picker.gateway.envoy_config import Balancer

TITLES: dict[Balancer, str] = {
    "round_robin": "round robin",
    "least_request": "least request",
    "picker": "picker",
}
ORDERS = ("first", "reverse")
PLAIN_STEPS = 4
"""How many times a run tells how far it is where there is no terminal."""


@dataclass(frozen=True, slots=True)
class Run:
    """One balancer's turn in one of the orders."""

    order: str
    balancer: Balancer
    results: Sequence[Result]

    @property
    def failed(self) -> int:
        """Requests without a good answer."""
        return sum(not result.ok for result in self.results)

    @property
    def in_time(self) -> int:
        """Requests answered, and well, within the time that counts."""
        return sum(latency <= IN_TIME for latency in latencies(self.results))


@contextmanager
def progress(console: Console, title: str, total: int) -> Iterator[Callable[[Result], None]]:
    """Give what each result of a run is to be told to, and show it: a bar, or a few plain lines."""
    failed = done = 0
    with Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("failed {task.fields[failed]}", style="red"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bars:
        task = bars.add_task(title, total=total, failed=0)

        def tell(result: Result) -> None:
            nonlocal failed, done
            done += 1
            failed += not result.ok
            bars.update(task, completed=done, failed=failed)
            if not console.is_terminal and done % max(1, total // PLAIN_STEPS) == 0:
                console.print(f"{title}: {done} of {total} answered, {failed} failed")

        yield tell


def table(runs: Sequence[Run], proxies: Sequence[Proxy], busy: int) -> Table:
    """Give one row for each run."""
    result = Table(title="Answers through Envoy, by balancer", title_justify="left")
    result.add_column("order")
    result.add_column("balancer")
    columns = ["requests", "failed", "p50 ms", "p90 ms", "p99 ms", f"within {IN_TIME:g} s"]
    columns += [f"proxy {number + 1}{' (busy)' * (number == busy)}" for number in range(len(proxies))]
    for column in columns:
        result.add_column(column, justify="right")
    for number, run in enumerate(runs):
        own = run.balancer == "picker"
        last = number + 1 < len(runs) and runs[number + 1].order != run.order
        result.add_row(*cells(run, proxies), style="bold" if own else "", end_section=last)
    return result


def cells(run: Run, proxies: Sequence[Proxy]) -> list[str]:
    """Give the cells of a run's row."""
    total = len(run.results)
    late = latencies(run.results)
    served = [result.served for result in run.results]
    return [
        run.order,
        TITLES[run.balancer],
        str(total),
        ", ".join(f"{cause} x {count}" for cause, count in failures(run.results).items()) or "0",
        *(milliseconds(percentile(late, q)) for q in (50, 90, 99)),
        percent(run.in_time, total),
        *(percent(served.count(proxy.address), total) for proxy in proxies),
    ]


def milliseconds(seconds: float) -> str:
    """Write a latency."""
    return "∞" if math.isinf(seconds) else "-" if math.isnan(seconds) else f"{seconds * 1000:.0f}"


def percent(count: int, total: int) -> str:
    """Write a share."""
    return f"{count / total:.1%}" if total else "-"


def conclusion(runs: Sequence[Run]) -> str:
    """Say in one line what the table shows, whichever way it went."""

    def totals(balancer: Balancer) -> tuple[int, int]:
        own = [run for run in runs if run.balancer == balancer]
        return sum(run.failed for run in own), sum(run.in_time for run in own)

    each = {balancer: totals(balancer) for balancer in TITLES}
    total = sum(len(run.results) for run in runs if run.balancer == "picker")
    figures = "; ".join(
        f"{TITLES[balancer]}: {failed} failed, {in_time} within {IN_TIME:g} s"
        for balancer, (failed, in_time) in each.items()
    )
    verdict = (
        "the picker had fewer failures and more answers in time than both, in both orders"
        if picker_is_ahead(runs)
        else "here the picker was not ahead of both in both orders"
    )
    return f"Of {total} requests each, both orders together: {figures} - {verdict}."


def picker_is_ahead(runs: Sequence[Run]) -> bool:
    """Whether in every order the picker failed less and was in time more often than each other balancer."""
    for own in (run for run in runs if run.balancer == "picker"):
        others = [run for run in runs if run.order == own.order and run is not own]
        if not all(own.failed < other.failed and own.in_time > other.in_time for other in others):
            return False
    return True
