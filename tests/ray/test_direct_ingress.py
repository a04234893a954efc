"""Real Ray Serve whose replicas have ports of their own: found by the head, lost when they move."""

from __future__ import annotations

import pytest

from bench.rig.ray import RayCluster
from picker.endpoints.ray_head import KIND_LABEL, NODE_LABEL, Pace, RayHead, RayHeadSource
from tests.ray.door import door

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

PACE = Pace(interval=1.0)
"""Replicas serve on for 8 s here, by default for 30 s; and the head is asked every 5 s by default."""


async def test_replicas_are_found_and_no_request_is_lost_when_they_move() -> None:
    # Room enough: a replica that is full while the machine is busy is not what this looks for.
    async with RayCluster(
        2, dashboard=True, direct_ingress=True, max_ongoing=100, max_queued=1000
    ) as cluster:
        source = RayHeadSource(RayHead(cluster.dashboard_url, pace=PACE))
        async with door(source, members=2) as opened:
            before = opened.members
            assert not set(before) & {proxy.address for proxy in cluster.proxies}
            assert {member.routes for member in before.values()} == {("/",)}
            assert {member.labels[KIND_LABEL] for member in before.values()} == {"replica"}
            assert len({member.labels[NODE_LABEL] for member in before.values()}) == 2
            assert await opened.served_now() == set(before)

            # A new release: each replica stops and another one starts at another port.
            await cluster.redeploy()
            await opened.until(lambda: len(opened.members) == 2 and not set(opened.members) & set(before))
            assert await opened.served_now() == set(opened.members)
            assert opened.fates[-1][2] == 1, "the new release"

            # One of them is taken away: it gets no request any more before it refuses any.
            await cluster.scale(1)
            await opened.until(lambda: len(opened.members) == 1)
            assert await opened.served_now() == set(opened.members)
            assert opened.failures == []
