"""Election by a Lease, in simulated time: who leads when, also while the API server does not answer."""

from __future__ import annotations

import asyncio
import copy
import heapq
import random
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.kube.client import KubeError
from picker.kube.lease import Election, Term, lease_name
from picker.kube.names import ObjectName

if TYPE_CHECKING:
    from collections.abc import Callable

    from picker.kube.client import Json, KubeClient

LEASE = lease_name(ObjectName("team", "llm"))
TERM = Term()


class Time:
    """A clock that stands still but for :meth:`pass_`, which wakes the sleepers in their order."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self.now + seconds, self._count, woken))
        await woken

    async def pass_(self, seconds: float) -> None:
        end = self.now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
            await settle()
        self.now = end


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class LeaseServer:
    """An API server that has one Lease. ``status``: what every request is answered with instead."""

    def __init__(self) -> None:
        self.lease: Json = {}
        self.status: int | None = None
        self.writes = 0

    def client(self) -> KubeClient:
        return cast("KubeClient", self)

    async def get(self, _path: str, *, within: float) -> Json:
        self._refuse(within)
        if not self.lease:
            raise KubeError("not found", 404)
        return self._copy()

    async def create(self, _path: str, body: Json, *, within: float) -> Json:
        self._refuse(within)
        if self.lease:
            raise KubeError("exists", 409)
        return self._store(body)

    async def replace(self, _path: str, body: Json, *, within: float) -> Json:
        self._refuse(within)
        if not self.lease:
            raise KubeError("not found", 404)
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise KubeError("changed", 409)
        return self._store(body)

    def _refuse(self, within: float) -> None:
        assert within == TERM.request
        if self.status is not None:
            raise KubeError("refused", self.status)

    def _store(self, body: Json) -> Json:
        self.writes += 1
        version = {**body["metadata"], "resourceVersion": str(self.writes)}
        self.lease = {**body, "metadata": version}
        return self._copy()

    def _copy(self) -> Json:
        return copy.deepcopy(self.lease)


class Candidates:
    """Elections for one Lease; ``leading`` names those who lead."""

    def __init__(self) -> None:
        self.time = Time()
        self.server = LeaseServer()
        self.leading: set[str] = set()
        self.elections: dict[str, Election] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._handing: list[asyncio.Task[None]] = []

    def start(self, name: str) -> None:
        election = self.elections[name] = Election(
            self.server.client(),
            LEASE,
            name,
            changed=self._note(name),
            random=random.Random(len(self.elections)),
            clock=lambda: self.time.now,
            sleep=self.time.sleep,
            term=TERM,
        )
        self._tasks[name] = asyncio.create_task(election.run())

    def kill(self, name: str) -> None:
        self.leading.discard(name)
        self._tasks.pop(name).cancel()

    async def hand_over(self, name: str) -> None:
        """Begin it; it takes time."""
        self._handing.append(asyncio.create_task(self.elections[name].hand_over()))
        await self.time.pass_(0.0)

    async def end(self) -> None:
        tasks = [*self._tasks.values(), *self._handing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _note(self, name: str) -> Callable[[bool], None]:
        return lambda leading: self.leading.add(name) if leading else self.leading.discard(name)


@pytest.fixture
async def candidates() -> Any:
    made = Candidates()
    yield made
    await made.end()


async def two(candidates: Candidates) -> None:
    """``a`` leads, ``b`` stands by."""
    candidates.start("a")
    await candidates.time.pass_(1.0)
    candidates.start("b")
    await candidates.time.pass_(30.0)
    assert candidates.leading == {"a"}


def spec(candidates: Candidates) -> Json:
    found: Json = candidates.server.lease["spec"]
    return found


async def test_the_first_one_leads_and_stays(candidates: Candidates) -> None:
    await two(candidates)
    assert spec(candidates)["holderIdentity"] == "a"
    assert spec(candidates)["leaseDurationSeconds"] == TERM.duration
    assert spec(candidates)["leaseTransitions"] == 0
    assert spec(candidates)["acquireTime"] < spec(candidates)["renewTime"]


async def test_a_leader_that_is_killed_is_followed_when_the_lease_has_run_out(
    candidates: Candidates,
) -> None:
    await two(candidates)
    candidates.kill("a")
    await candidates.time.pass_(TERM.duration - TERM.renew - TERM.look)
    assert candidates.leading == set()
    await candidates.time.pass_(TERM.renew + 2 * TERM.look)
    assert candidates.leading == {"b"}
    assert spec(candidates)["leaseTransitions"] == 1


async def test_a_leader_that_ends_is_followed_at_the_next_look(candidates: Candidates) -> None:
    await two(candidates)
    await candidates.hand_over("a")
    assert candidates.leading == {"a"}, "there is no other one yet"
    assert spec(candidates)["holderIdentity"] == ""
    await candidates.time.pass_(TERM.look)
    assert candidates.leading == {"a", "b"}, "gateways do not know of the other one yet"
    await candidates.time.pass_(TERM.look + TERM.shown)
    assert candidates.leading == {"b"}
    await candidates.hand_over("a")
    await candidates.time.pass_(30.0)
    assert candidates.leading == {"b"}, "who released it stands no more"


async def test_a_leader_that_nobody_follows_does_not_wait_for_long(candidates: Candidates) -> None:
    candidates.start("a")
    await candidates.time.pass_(1.0)
    await candidates.hand_over("a")
    await candidates.time.pass_(TERM.follow - TERM.look)
    assert candidates.leading == {"a"}
    await candidates.time.pass_(2 * TERM.look)
    assert candidates.leading == set()


async def test_a_leader_that_cannot_see_who_follows_does_not_wait(candidates: Candidates) -> None:
    await two(candidates)
    await candidates.hand_over("a")
    candidates.server.status = 0
    await candidates.time.pass_(TERM.look / 2)
    assert candidates.leading == set()


async def test_one_that_stands_by_ends_without_a_word(candidates: Candidates) -> None:
    await two(candidates)
    await candidates.hand_over("b")
    await candidates.time.pass_(30.0)
    assert candidates.leading == {"a"}


async def test_an_outage_of_any_length_changes_nothing(
    candidates: Candidates, caplog: pytest.LogCaptureFixture
) -> None:
    await two(candidates)
    caplog.set_level("INFO")
    candidates.server.status = 0
    await candidates.time.pass_(3600.0)
    assert candidates.leading == {"a"}
    candidates.server.status = None
    await candidates.time.pass_(60.0)
    assert candidates.leading == {"a"}, "time without answers does not count against it"
    assert caplog.messages.count("the Lease cannot be had; nothing changes until it can") == 2
    assert caplog.messages.count("the Lease can be had again") == 2


async def test_a_leader_cut_off_stops_when_it_sees_another(candidates: Candidates) -> None:
    await two(candidates)
    lost, candidates.elections["a"]._client = candidates.elections["a"]._client, Dead().client()
    await candidates.time.pass_(TERM.duration + 2 * TERM.look)
    assert candidates.leading == {"a", "b"}, "both answer correctly"
    candidates.elections["a"]._client = lost
    await candidates.time.pass_(TERM.renew)
    assert candidates.leading == {"b"}


class Dead(LeaseServer):
    def __init__(self) -> None:
        super().__init__()
        self.status = 0


async def test_a_lease_that_somebody_touched_is_renewed_all_the_same(candidates: Candidates) -> None:
    await two(candidates)
    for _ in range(5):
        candidates.server._store(candidates.server._copy())
        await candidates.time.pass_(TERM.renew)
        assert candidates.leading == {"a"}


async def test_a_lease_that_is_deleted_is_made_again(candidates: Candidates) -> None:
    await two(candidates)
    candidates.server.lease = {}
    await candidates.time.pass_(30.0)
    assert len(candidates.leading) == 1
    assert spec(candidates)["holderIdentity"] in candidates.leading


async def test_what_is_forbidden_is_told_once(
    candidates: Candidates, caplog: pytest.LogCaptureFixture
) -> None:
    candidates.server.status = 403
    candidates.start("a")
    await candidates.time.pass_(600.0)
    assert candidates.leading == set()
    (told,) = [vars(record)["fields"] for record in caplog.records if "forbids" in record.message]
    mend = "give the service account the verb 'get' on 'leases.coordination.k8s.io' by a Role"
    assert told["mend"] == mend


async def test_a_release_that_fails_is_told(candidates: Candidates, caplog: pytest.LogCaptureFixture) -> None:
    await two(candidates)
    candidates.server.status = 0
    await candidates.hand_over("a")
    assert candidates.leading == set()
    assert "the Lease was not released and will run out" in caplog.messages


@pytest.mark.parametrize("lease", [{}, {"spec": None}, {"spec": {}}, {"spec": {"holderIdentity": None}}])
async def test_a_lease_without_a_holder_is_free(candidates: Candidates, lease: Json) -> None:
    candidates.server.lease = {"metadata": {"name": LEASE.name, "resourceVersion": "x"}, **lease}
    candidates.start("a")
    await candidates.time.pass_(TERM.look)
    assert candidates.leading == {"a"}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("kill"), st.integers(0, 2)),
            st.tuples(st.just("hand over"), st.integers(0, 2)),
            st.tuples(st.just("pass"), st.floats(0.0, 30.0)),
            st.tuples(st.just("status"), st.sampled_from([None, 0, 409, 500])),
        ),
        max_size=12,
    )
)
def test_there_is_one_leader_at_the_end_whatever_happened(events: list[tuple[str, Any]]) -> None:
    async def play() -> None:
        candidates = Candidates()
        gone: set[str] = set()
        for name in "abcd":  # nothing ends the last
            candidates.start(name)
        try:
            for what, value in events:
                await candidates.time.pass_(0.0)
                name = "abc"[value] if what in ("kill", "hand over") else ""
                if what == "pass":
                    await candidates.time.pass_(value)
                elif what == "status":
                    candidates.server.status = value
                elif name not in gone:
                    gone.add(name)
                    if what == "kill":
                        candidates.kill(name)
                    else:
                        await candidates.hand_over(name)
            candidates.server.status = None
            await candidates.time.pass_(60.0)
            assert len(candidates.leading) == 1
            assert candidates.leading <= set("abcd") - gone
        finally:
            await candidates.end()

    asyncio.run(play())
