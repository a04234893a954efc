"""One run: the same load through the same Envoy, without a picker and with one in each body mode."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.e2e.subject import running
from bench.rig.cpu import cpu_seconds, resident_bytes
from bench.rig.envoy import Envoy, ExtProc, Listener, bootstrap
from bench.rig.load import Request, Target, closed_loop, failures, first_bytes, percentile
from bench.rig.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.e2e.cases import Case
    from bench.e2e.subject import Kind, Subject
    from bench.rig.envoy import Mode

ALONE = "none"
"""The door without a picker: Envoy's own round robin."""

MESSAGE_TIMEOUT_SECONDS = 10.0
"""Generous: on a crowded machine a late answer is a long latency here, not a failure."""

SETTLE_SECONDS = 0.3
"""Between two measurements, for what the last one left to be done."""

WARM_UP_SECONDS = 0.5
IDLE_SECONDS = 2.0
MICRO = 1e6
MILLI = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that is run: every case through every door, ``runs`` times. ``duration`` in seconds."""

    cases: Sequence[Case]
    modes: Sequence[Mode]
    kind: Kind = "picker"
    runs: int = 3
    duration: float = 10.0
    servers: int = 8
    concurrency: int = 1
    seed: int = 1

    @property
    def doors(self) -> tuple[str, ...]:
        """The names of Envoy's listeners: without a picker, and one a mode."""
        return (ALONE, *self.modes)

    @property
    def steps(self) -> int:
        """How many measurements are made."""
        return self.runs * len(self.doors) * len(self.cases)

    @property
    def expected_seconds(self) -> float:
        """About how long it takes."""
        tails = sum(case.chunks * case.interval for case in self.cases)
        return self.steps * (self.duration + SETTLE_SECONDS) + self.runs * len(self.doors) * tails


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One case through one door in one run.

    CPU in µs per request (``picker_us`` includes its scraping meanwhile), times to the first byte of
    the answer's body in ms (infinite: failed), ``rate`` in requests a second.
    """

    case: str
    door: str
    run: int
    requests: int
    failed: int
    rate: float
    picker_us: float
    envoy_us: float
    first_byte_p50: float
    first_byte_p99: float


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave.

    ``idle_us``: CPU of the picker in µs a second, without any request; ``resident_bytes``: its memory at
    the end.
    """

    measurements: tuple[Measurement, ...]
    idle_us: float
    resident_bytes: int


async def run_once(plan: Plan, run: int, progress: Callable[[str], None]) -> Run:
    """Set everything up anew, send every case through every door, and take it down.

    The order of the doors moves on by one each run, so that none is always the first.
    """
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(Servers(count=plan.servers))
        subject = await stack.enter_async_context(running(plan.kind, servers.addresses))
        listeners = [Listener(name=ALONE, endpoints=servers.addresses)]
        listeners += [_asking(subject, mode, servers.addresses) for mode in plan.modes]
        envoy = await stack.enter_async_context(Envoy(bootstrap(listeners), concurrency=plan.concurrency))
        for door in plan.doors:
            target = Target(address=envoy.address(door))
            await closed_loop(target, lambda _: Request(b"{}"), clients=4, duration=WARM_UP_SECONDS)
        idle_us = await _idle(subject)
        measurements: list[Measurement] = []
        turn = run % len(plan.doors)
        for case in plan.cases:
            for door in plan.doors[turn:] + plan.doors[:turn]:
                progress(f"run {run + 1} of {plan.runs}: {case.name}, picker: {door}")
                measurements.append(await _measure(plan, case, door, run, (subject, envoy)))
        return Run(tuple(measurements), idle_us, resident_bytes(subject.pid))


def _asking(subject: Subject, mode: Mode, endpoints: Sequence[str]) -> Listener:
    ext_proc = ExtProc(address=subject.address, mode=mode, message_timeout=MESSAGE_TIMEOUT_SECONDS)
    return Listener(name=mode, endpoints=endpoints, balancer="picker", ext_proc=ext_proc)


async def _idle(subject: Subject) -> float:
    before = cpu_seconds(subject.pid)
    await asyncio.sleep(IDLE_SECONDS)
    return (cpu_seconds(subject.pid) - before) / IDLE_SECONDS * MICRO


async def _measure(
    plan: Plan, case: Case, door: str, run: int, processes: tuple[Subject, Envoy]
) -> Measurement:
    subject, envoy = processes
    await asyncio.sleep(SETTLE_SECONDS)
    picker_before, envoy_before = cpu_seconds(subject.pid), cpu_seconds(envoy.pid)
    target = Target(address=envoy.address(door))
    results = await case.drive(target, duration=plan.duration, seed=plan.seed)
    picker_used = cpu_seconds(subject.pid) - picker_before
    envoy_used = cpu_seconds(envoy.pid) - envoy_before
    times = first_bytes(results)
    return Measurement(
        case=case.name,
        door=door,
        run=run,
        requests=len(results),
        failed=sum(failures(results).values()),
        rate=len(results) / plan.duration,
        picker_us=picker_used / len(results) * MICRO,
        envoy_us=envoy_used / len(results) * MICRO,
        first_byte_p50=percentile(times, 50) * MILLI,
        first_byte_p99=percentile(times, 99) * MILLI,
    )
