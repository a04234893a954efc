"""The play itself: every balancer in turn, then in reverse order, the same requests each time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bench.demo import report, scenario
from bench.demo.stage import BALANCERS, SERVED_HEADERS, stage
from bench.rig.load import Target, open_loop

if TYPE_CHECKING:
    from rich.console import Console

    from bench.demo.report import Run
    from bench.demo.stage import Backend, Stage

SETTLE_SECONDS = 4.0
"""Time for the batch job to fill its proxy's queue, and for the metrics pages to say so."""
BETWEEN_SECONDS = 1.0
REQUEST_TIMEOUT = 30.0


async def play(  # noqa: PLR0913 - the options of the command line
    console: Console, backend: Backend, seconds: float, seed: int, port: int, *, keep: bool
) -> None:
    """Start everything, compare, show the table; with ``keep``, stay until cancelled."""

    def say(text: str) -> None:
        console.print(f"… {text}")

    console.print(scenario.description(backend, seconds, seed))
    async with (
        stage(backend, port, say) as scene,
        scenario.BatchJob(scene.proxies[scenario.BUSY_PROXY].address),
    ):
        say("letting the batch job fill its proxy")
        await asyncio.sleep(SETTLE_SECONDS)
        runs = await compare(console, scene, seconds, seed)
        console.print(report.table(runs, scene.proxies, scenario.BUSY_PROXY))
        console.print(report.conclusion(runs))
        if keep:
            console.print(await to_try(scene), soft_wrap=True)
            await asyncio.Event().wait()
    say("everything is taken down")


async def compare(console: Console, scene: Stage, seconds: float, seed: int) -> list[Run]:
    """Let every balancer have its turn in both orders."""
    requests = scenario.interactive(seconds, seed)
    runs = []
    for order, balancers in zip(report.ORDERS, (BALANCERS, BALANCERS[::-1]), strict=True):
        for balancer in balancers:
            target = Target(
                address=scene.doors[balancer], timeout=REQUEST_TIMEOUT, served_by=SERVED_HEADERS[balancer]
            )
            title = f"{report.TITLES[balancer]} ({order} order)"
            with report.progress(console, title, len(requests)) as tell:
                results = await open_loop(target, requests, tell)
            runs.append(report.Run(order, balancer, results))
            await asyncio.sleep(BETWEEN_SECONDS)
    return runs


async def to_try(scene: Stage) -> str:
    """What to type while it all keeps running."""
    body = """-H 'content-type: application/json' -d '{"model": "demo", "sleep": 0.2}'"""
    streamed = """-H 'content-type: application/json' -d '{"model": "demo", "stream": true, "chunks": 20}'"""
    doors = scene.doors
    lines = [
        "\nKept running, with the batch job, until Ctrl-C. To try:",
        f"  curl -i http://{doors['picker']}{scenario.CHAT} {body}",
        f"  curl -i http://{doors['round_robin']}{scenario.CHAT} {body}   # again and again: some get 503",
        f"  curl -i http://{doors['least_request']}{scenario.CHAT} {body}",
        f"  curl -N http://{doors['picker']}{scenario.CHAT} {streamed}",
        f"  curl -s {scene.picker_metrics}",
        "The response header x-served-by (x-conformance-test-served-endpoint) tells which proxy it was: "
        + ", ".join(f"{number} = {proxy.address}" for number, proxy in enumerate(scene.proxies, 1)),
    ]
    if scene.cluster is not None:
        pid = await scene.cluster.proxy_pid(0)
        lines.append(f"To see a proxy leave and come back:  kill -9 {pid}   # proxy 1; Ray restarts it")
    return "\n".join(lines)
