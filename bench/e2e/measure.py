"""One run: the same load through the same Envoy, without a picker and with each subject in each body mode."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bench.e2e.subject import KINDS, running
from bench.rig.cpu import cpu_seconds, resident_bytes
from bench.rig.envoy import Envoy, ExtProc, Listener, bootstrap
from bench.rig.load import Request, Target, closed_loop, failures, first_bytes, percentile
from bench.rig.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.e2e.cases import Case
    from bench.e2e.peer import Peer
    from bench.e2e.subject import Kind, Subject
    from bench.rig.envoy import Mode
    from bench.rig.servers import Pages

NOBODY = "none"
"""The subject of the door without a picker: Envoy's own round robin."""

MESSAGE_TIMEOUT_SECONDS = 10.0
"""Generous: on a crowded machine a late answer is a long latency here, not a failure."""

SETTLE_SECONDS = 0.3
"""Between two measurements, for what the last one left to be done."""

WARM_UP_SECONDS = 0.5
IDLE_SECONDS = 2.0
MICRO = 1e6
MILLI = 1e3


class Door(NamedTuple):
    """One of Envoy's listeners: who is asked by it, in which mode."""

    subject: str
    mode: str

    @property
    def name(self) -> str:
        """What the listener is called."""
        return f"{self.subject}-{self.mode}".strip("-")


ALONE = Door(NOBODY, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that is run: every case through every door, ``runs`` times. ``duration`` in seconds.

    Each load runs for ``warm_up`` seconds before it is counted: servers that answered others a moment ago
    are asked for their pages more often than those of a picker that is alone with them.
    """

    cases: Sequence[Case]
    modes: Sequence[Mode]
    subjects: Sequence[Kind] = KINDS
    peers: Sequence[Peer] = ()
    runs: int = 3
    duration: float = 10.0
    warm_up: float = 4.0
    servers: int = 8
    pages: Pages = "vllm"
    concurrency: int = 1
    seed: int = 1

    @property
    def doors(self) -> tuple[Door, ...]:
        """Without a picker, and one a subject and mode; the same mode's next to each other."""
        subjects = (*self.subjects, *(peer.name for peer in self.peers))
        return (ALONE, *(Door(subject, mode) for mode in self.modes for subject in subjects))

    @property
    def steps(self) -> int:
        """How many measurements are made."""
        return self.runs * len(self.doors) * len(self.cases)

    @property
    def expected_seconds(self) -> float:
        """About how long it takes."""
        tails = sum(case.chunks * case.interval for case in self.cases)
        return (
            self.steps * (self.warm_up + self.duration + SETTLE_SECONDS) + self.runs * len(self.doors) * tails
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One case through one door in one run.

    CPU in µs per request (the picker's includes its scraping meanwhile), times to the first byte of
    the answer's body in ms (infinite: failed), ``rate`` in requests a second.
    """

    case: str
    subject: str
    mode: str
    run: int
    requests: int
    failed: int
    rate: float
    subject_us: float
    envoy_us: float
    first_byte_p50: float
    first_byte_p99: float


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave, and of each subject: CPU in µs a second without any request, memory at the end."""

    measurements: tuple[Measurement, ...]
    idle_us: Mapping[str, float]
    resident_bytes: Mapping[str, int]


async def run_once(plan: Plan, run: int, progress: Callable[[str], None]) -> Run:
    """Set everything up anew, send every case through every door, and take it down.

    The order of the doors moves on by one each run, so that none is always the first.
    """
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(Servers(count=plan.servers, pages=plan.pages))
        subjects: dict[str, Subject] = {
            kind: await stack.enter_async_context(running(kind, servers.addresses)) for kind in plan.subjects
        }
        for peer in plan.peers:
            subjects[peer.name] = await stack.enter_async_context(peer.running(servers.addresses))
        listeners = [Listener(name=ALONE.name, endpoints=servers.addresses)]
        listeners += [
            _asking(subject, Door(kind, mode), mode, servers.addresses)
            for kind, subject in subjects.items()
            for mode in plan.modes
        ]
        envoy = await stack.enter_async_context(Envoy(bootstrap(listeners), concurrency=plan.concurrency))
        for door in plan.doors:
            target = Target(address=envoy.address(door.name))
            await closed_loop(target, lambda _: Request(b"{}"), clients=4, duration=WARM_UP_SECONDS)
        idle = await _idle(subjects)
        pids = {kind: subject.pid for kind, subject in subjects.items()}
        measurements: list[Measurement] = []
        turn = run % len(plan.doors)
        for case in plan.cases:
            for door in plan.doors[turn:] + plan.doors[:turn]:
                progress(f"run {run + 1} of {plan.runs}: {case.name}, {door.subject} {door.mode}")
                measurements.append(await _measure(plan, case, door, run, (pids.get(door.subject), envoy)))
        memory = {kind: resident_bytes(pid) for kind, pid in pids.items()}
        return Run(tuple(measurements), idle, memory)


def _asking(subject: Subject, door: Door, mode: Mode, endpoints: Sequence[str]) -> Listener:
    ext_proc = ExtProc(address=subject.address, mode=mode, message_timeout=MESSAGE_TIMEOUT_SECONDS)
    return Listener(name=door.name, endpoints=endpoints, balancer="picker", ext_proc=ext_proc)


async def _idle(subjects: Mapping[str, Subject]) -> dict[str, float]:
    before = {kind: cpu_seconds(subject.pid) for kind, subject in subjects.items()}
    await asyncio.sleep(IDLE_SECONDS)
    return {
        kind: (cpu_seconds(subject.pid) - before[kind]) / IDLE_SECONDS * MICRO
        for kind, subject in subjects.items()
    }


async def _measure(
    plan: Plan, case: Case, door: Door, run: int, processes: tuple[int | None, Envoy]
) -> Measurement:
    pid, envoy = processes
    target = Target(address=envoy.address(door.name))
    if plan.warm_up:
        await case.drive(target, duration=plan.warm_up, seed=plan.seed + 1)
    await asyncio.sleep(SETTLE_SECONDS)
    subject_before = cpu_seconds(pid) if pid is not None else 0.0
    envoy_before = cpu_seconds(envoy.pid)
    results = await case.drive(target, duration=plan.duration, seed=plan.seed)
    subject_used = cpu_seconds(pid) - subject_before if pid is not None else 0.0
    envoy_used = cpu_seconds(envoy.pid) - envoy_before
    times = first_bytes(results)
    return Measurement(
        case=case.name,
        subject=door.subject,
        mode=door.mode,
        run=run,
        requests=len(results),
        failed=sum(failures(results).values()),
        rate=len(results) / plan.duration,
        subject_us=subject_used / len(results) * MICRO,
        envoy_us=envoy_used / len(results) * MICRO,
        first_byte_p50=percentile(times, 50) * MILLI,
        first_byte_p99=percentile(times, 99) * MILLI,
    )
