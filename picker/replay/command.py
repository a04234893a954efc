"""``serve-picker replay``: how policies do on recorded requests, in simulated time."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from picker.policy_file import PolicyFileError
from picker.replay import report
from picker.replay.cases import SESSION_RATE, Case, Source
from picker.replay.knee import KneeError, find_knee
from picker.replay.lines import TraceError
from picker.replay.options import FAILING, NUMBERS, POLICY, SCALE, SLOW, seconds, whole
from picker.replay.policies import BUILT_IN, OURS, ROUND_ROBIN, PolicyName
from picker.replay.pool import Pool
from picker.replay.ray import RayModel
from picker.replay.servers import Fault
from picker.replay.simulation import Sight
from picker.replay.traces import FORMATS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click._termui_impl import ProgressBar

    from picker.replay.result import Result
    from picker.replay.traces import Scale

_SAMPLES = Path(__file__).with_name("samples")
SAMPLES = {
    "mooncake": "mooncake.jsonl",
    "agentic": "agentic.jsonl",
    "azure": "azure.csv",
    "servegen": "servegen",
    "vidur": "vidur.csv",
    "sharegpt": "sharegpt.jsonl",
}
_USUAL_POLICIES = (
    PolicyName(ROUND_ROBIN),
    PolicyName("least-request"),
    PolicyName("llm-d-default"),
    PolicyName(OURS),
)
_USUAL_LOADS = (0.8,)
"""Of the knee."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """The options, one field each."""

    traces: tuple[Path, ...]
    samples: tuple[str, ...]
    format_: str | None
    policies: tuple[PolicyName, ...]
    loads: tuple[float, ...] | None
    rates: tuple[float, ...] | None
    sessions: tuple[float, ...] | None
    requests: int
    seeds: int
    engines: int
    replicas: int
    metrics_age: float
    metrics_renewal: float | None
    headers_at_once: bool
    decision_time: float
    slow: tuple[tuple[int, float], ...]
    failing: tuple[tuple[int, float, float], ...]
    divide: Scale | None
    ray: bool
    max_queued: int | None
    goal: float
    workers: int
    out: Path | None
    explain: int | None

    def check(self) -> None:
        """Refuse what contradicts itself, since one half of it would be left out in silence."""
        level = "--rate" if self.rates else "--sessions"
        excluding = (
            (self.loads and (self.rates or self.sessions), "--load", level, "a load is a share of the knee"),
            (self.format_ and self.samples, "--format", "--sample", "a sample's format is known"),
            (
                self.explain is not None and self.explain >= self.requests and not self.sessions,
                f"--explain {self.explain}",
                f"--requests {self.requests}",
                "requests are numbered from 0",
            ),
        )
        for both, one, other, reason in excluding:
            if both:
                raise click.UsageError(f"{one} and {other} exclude one another: {reason}")
        if self.max_queued is not None and not self.ray:
            raise click.UsageError("--max-queued is of Ray Serve proxies: add --ray")
        repeatable: tuple[tuple[str, list[object]], ...] = (
            ("--slow", [endpoint for endpoint, _ in self.slow]),
            ("--failing", [endpoint for endpoint, _, _ in self.failing]),
            ("--policy", [policy.name for policy in self.policies]),
        )
        for option, named in repeatable:
            for value in named:
                if named.count(value) > 1:
                    raise click.UsageError(f"two {option} are of the same one, {value}: leave one out")

    def sources(self) -> list[Source]:
        """The traces that are to be played."""
        paths = [
            *(str(path) for path in self.traces),
            *(str(_SAMPLES / SAMPLES[name]) for name in self.samples),
        ]
        if not paths:
            raise click.UsageError(f"name a trace, or use one that is included: --sample {'|'.join(SAMPLES)}")
        return [Source(path, self.format_, self.divide) for path in paths]

    def faults(self) -> tuple[Fault, ...]:
        """What is wrong with the servers, up to the last that has a fault."""
        named = [*(endpoint for endpoint, _ in self.slow), *(endpoint for endpoint, _, _ in self.failing)]
        if named and max(named) >= self.engines:
            raise click.UsageError(
                f"there is no server {max(named)}: they are numbered from 0 to {self.engines - 1}"
            )
        faults = [Fault()] * (1 + max(named, default=-1))
        for endpoint, factor in self.slow:
            faults[endpoint] = replace(faults[endpoint], slowness=factor)
        for endpoint, start, end in self.failing:
            faults[endpoint] = replace(faults[endpoint], fails_from=start, fails_until=end)
        return tuple(faults)

    def case(self, source: Source) -> Case:
        """What all runs on a trace have in common."""
        has_sessions = bool(source.read().sessions)
        if self.sessions and not has_sessions:
            raise click.UsageError(f"{source.path}: has no sessions; use --rate")
        renewal = self.metrics_renewal
        if renewal is None:
            renewal = 10.0 if self.ray else 0.0
        return Case(
            source,
            PolicyName(OURS),
            rate=SESSION_RATE if has_sessions else 1.0,
            sessions=4 * self.engines if has_sessions else 0,
            requests=self.requests,
            endpoints=self.engines,
            replicas=self.replicas,
            sight=Sight(not self.headers_at_once, self.metrics_age, renewal),
            faults=self.faults(),
            ray=RayModel(max_queued=-1 if self.max_queued is None else self.max_queued) if self.ray else None,
            goal=self.goal,
            decision_time=self.decision_time,
            explain=self.explain,
        )


def _run(wish: _Wish) -> None:
    try:
        _replay(wish)
    except (KneeError, PolicyFileError, TraceError) as error:
        raise click.ClickException(str(error)) from None


def _replay(wish: _Wish) -> None:
    wish.check()
    sources = wish.sources()
    rows: list[report.Row] = []
    with Pool(wish.workers if wish.explain is None else 1) as pool:
        for source in sources:
            rows.extend(_compare(wish, wish.case(source), pool))
    click.echo(report.table(rows))
    if wish.explain is not None:
        _explain(rows)
    if wish.out is not None:
        wish.out.mkdir(parents=True, exist_ok=True)
        report.write_csv(rows, wish.out / "replay.csv")
        report.write_json(rows, wish.out / "replay.json")
        report.write_picture(rows, wish.out / "replay.svg")
        click.echo(f"\nwritten to {wish.out}: replay.csv, replay.json, replay.svg")


def _compare(wish: _Wish, case: Case, pool: Pool) -> list[report.Row]:
    seeds = range(wish.seeds)
    levels = _levels(wish, case, pool)
    policies = wish.policies or _USUAL_POLICIES
    planned = [(replace(at, policy=policy), load) for at, load in levels for policy in policies]
    cases = [replace(one, seed=seed) for one, _ in planned for seed in seeds]
    results = iter(_watched(cases, pool))
    return [report.Row(one, load, tuple(next(results) for _ in seeds)) for one, load in planned]


def _levels(wish: _Wish, case: Case, pool: Pool) -> list[tuple[Case, float | None]]:
    """The loads to be played, and which share of the knee each is."""
    if wish.sessions or wish.rates:
        by_rate = [replace(case, rate=rate) for rate in wish.rates or (case.rate,)]
        if not wish.sessions:
            return [(one, None) for one in by_rate]
        return [(one.at_level(number), None) for one in by_rate for number in wish.sessions]
    click.echo(f"{case.source.read().name}: looking for the knee", err=True)
    knee = find_knee(case, range(min(wish.seeds, 3)), pool.run)
    what = f"{knee:g} sessions at once" if case.sessions else f"{knee:.3g} times as fast as recorded"
    click.echo(f"{case.source.read().name}: the knee is at {what}", err=True)
    return [(case.at_level(load * knee), load) for load in wish.loads or _USUAL_LOADS]


def _watched(cases: Sequence[Case], pool: Pool) -> list[Result]:
    """Run with a progress bar, if anybody sees it."""
    if not sys.stderr.isatty():
        return pool.run(cases)
    total = sum(case.sent for case in cases)
    bar: ProgressBar[int]
    with click.progressbar(length=total, label=f"{len(cases)} runs", file=sys.stderr) as bar:
        return pool.run(cases, bar.update)


def _explain(rows: Sequence[report.Row]) -> None:
    for row in rows:
        click.echo(f"\n{row.case.policy.name}, request {row.case.explain} at {row.setting}:")
        for line in row.results[0].explanation or ["there is no such request"]:
            click.echo(f"  {line}")


def _option(  # noqa: PLR0913 - what options differ by
    names: str,
    type_: click.ParamType[Any] | type,
    metavar: str,
    text: str,
    *,
    default: float | None = None,
    many: bool = False,
) -> click.Option:
    return click.Option(
        names.split(),
        type=type_,
        metavar=metavar,
        help=text,
        default=default,
        multiple=many,
        is_flag=type_ is bool,
    )


_POLICIES_HELP = f"What to compare, may be repeated: {', '.join(BUILT_IN)}, or a policy file under any name."

replay = click.Command(
    "replay",
    callback=lambda **options: _run(_Wish(**options)),
    context_settings={"max_content_width": 110},
    short_help="Play recorded requests against simulated servers and compare policies.",
    help="Play recorded requests against simulated servers and compare policies. Unless told otherwise, "
    "these are the usual ones, at 0.8 of the load at which round robin gives up.",
    params=[
        click.Argument(["traces"], nargs=-1, type=click.Path(path_type=Path), metavar="[TRACE]..."),
        _option(
            "--sample samples",
            click.Choice([*SAMPLES]),
            "NAME",
            f"A trace that is included: {', '.join(SAMPLES)}.",
            many=True,
        ),
        _option(
            "--format format_",
            click.Choice([*FORMATS]),
            "NAME",
            f"Format of the traces: {', '.join(FORMATS)}.  [told from the file]",
        ),
        _option("--policy policies", POLICY, "NAME[=FILE]", _POLICIES_HELP, many=True),
        _option("--load loads", NUMBERS, "X,…", "Loads as shares of the knee, which is found first.  [0.8]"),
        _option(
            "--rate rates",
            NUMBERS,
            "X,…",
            "Instead: times as fast as recorded. Of sessions, their pauses.  [30]",
        ),
        _option("--sessions", NUMBERS, "N,…", "Instead, for traces of sessions: how many at once."),
        _option(
            "--requests",
            whole(1, 10_000_000),
            "N",
            "Requests of each run; 20 a session at least.  [2000]",
            default=2_000,
        ),
        _option(
            "--seeds",
            whole(1, 1_000),
            "N",
            "Runs of each case, each from elsewhere in the trace.  [3]",
            default=3,
        ),
        _option("--engines", whole(1, 10_000), "N", "Simulated servers.  [8]", default=8),
        _option(
            "--replicas",
            whole(1, 64),
            "N",
            "Pickers that share the requests and nothing else.  [1]",
            default=1,
        ),
        _option("--metrics-age", seconds(60.0), "S", "How old a page is when it arrives.  [0]", default=0.0),
        _option(
            "--metrics-renewal", seconds(60.0), "S", "Time between two states of a page.  [0; --ray: 10]"
        ),
        _option(
            "--headers-at-once",
            bool,
            "",
            "Pickers see status and end of answers, not the first token.",
        ),
        _option(
            "--decision-time",
            seconds(1.0),
            "S",
            "Time a request takes the gateway and the picker, one after the other.  [0]",
            default=0.0,
        ),
        _option("--slow", SLOW, "N[:X]", "Server N (from 0) takes X times as long.  [4]", many=True),
        _option(
            "--failing",
            FAILING,
            "N[@FROM-UNTIL]",
            "Server N answers 503 at once, always or for a time (s).",
            many=True,
        ),
        _option("--divide", SCALE, "N[:M]", "Divide prompts by N, answers by M.  [8; sessions: 4:8]"),
        _option(
            "--ray",
            bool,
            "",
            "The servers are Ray Serve proxies before replicas of 5 slots.",
        ),
        _option(
            "--max-queued",
            whole(-1, 1_000_000),
            "N",
            "With --ray: queue of a proxy, -1: no bound.  [-1]",
        ),
        _option(
            "--goal", seconds(3600.0), "S", "Time to the first token that counts as good.  [1]", default=1.0
        ),
        _option("--workers", whole(1, 64), "N", "Runs side by side.  [2]", default=2),
        _option(
            "--out",
            click.Path(file_okay=False, path_type=Path),
            "DIR",
            "Write replay.csv, .json and .svg there.",
        ),
        _option("--explain", whole(0, 10_000_000), "N", "Say how the N-th request (from 0) is decided."),
    ],
)
