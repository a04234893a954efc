"""Which of several pickers is to get the traffic: the one that holds a Lease, as client-go elects.

What differs, and why: the Lease is to keep what is known of requests in one place, and not to keep two from
acting at once, for any picker answers any request correctly. So a leader goes on while the API server is out
of reach, when nobody else could take over, and stops only when it sees that another one holds the Lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from picker.kube.client import KubeError
from picker.kube.names import ObjectName
from picker.kube.resource import LEASES

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from picker.kube.client import Json, KubeClient

log = logging.getLogger(__name__)

_FORBIDDEN, _MISSING, _CONFLICT = 403, 404, 409


@dataclass(frozen=True, slots=True)
class Term:
    """Seconds. ``duration``: a Lease that nobody renewed for so long is free.

    The leader renews it every ``renew``; who stands by looks every ``look``, which is how long a hand-over
    takes. A request has ``request`` seconds, less than what the leader has left. A leader that ends waits
    ``follow`` for another one, and then ``shown`` until gateways know it too: probes ask every two seconds.
    """

    duration: float = 10.0
    renew: float = 2.0
    look: float = 1.0
    request: float = 3.0
    follow: float = 3.0
    shown: float = 3.0

    @property
    def longest_hand_over(self) -> float:
        """What :meth:`Election.hand_over` takes at most, its three requests included."""
        return 3 * self.request + self.follow + self.shown


def lease_name(pool: ObjectName) -> ObjectName:
    """The Lease of the pickers of an InferencePool or Service, as the llm-d picker calls it."""
    return ObjectName(pool.namespace, f"epp-{pool.namespace}-{pool.name}.llm-d.ai")


def own_identity() -> str:
    """A name that no other candidate has, nor this one after a restart."""
    host = os.environ.get("POD_NAME") or socket.gethostname()
    return f"{host}_{uuid.uuid4()}"


class Election:
    """One candidate for a Lease. ``changed(leading)`` is called whenever it becomes leader, or is no more.

    Times are those of ``clock``: the clocks of the machines need not agree, since only for how long the
    Lease stays the same is looked at, and time without answers does not count.
    """

    def __init__(  # noqa: PLR0913 - what it holds, whom it tells, and what tests replace
        self,
        client: KubeClient,
        lease: ObjectName,
        identity: str,
        *,
        changed: Callable[[bool], None],
        random: random.Random,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        term: Term,
    ) -> None:
        self._client = client
        self._lease = lease
        self._identity = identity
        self._changed = changed
        self._random = random
        self._clock = clock
        self._sleep = sleep
        self._term = term
        self._leading: bool | None = None
        self._turn = asyncio.Lock()
        self._seen: Json = {}
        """The Lease as it was read or written last."""
        self._seen_at = float("-inf")
        """Since when it is that one, as far as this candidate could look."""
        self._released = False
        self._verb = "get"
        """What was asked for last."""
        self._complaint = ""

    async def run(self) -> None:
        """Stand as a candidate, until cancelled or handed over."""
        while not self._released:
            async with self._turn:
                await self._stand()
            pause = self._term.renew if self._leading else self._term.look
            await self._sleep(pause * (1.0 - 0.25 * self._random.random()))

    async def hand_over(self) -> None:
        """Stand no more, let another one lead at once, and lead on until it does. Idempotent.

        A leader that stopped before would leave gateways without any picker until they know the next one.
        """
        self._released = True
        async with self._turn:
            if not self._leading:
                return
            try:
                if await self._let_go():
                    await self._followed()
            except KubeError as error:
                fields = {"lease": str(self._lease), "error": str(error)}
                log.warning("the Lease was not released and will run out", extra={"fields": fields})
            self._become(leading=False)

    async def _let_go(self) -> bool:
        """Make the Lease nobody's; false if it is another one's already."""
        if not self._seen:
            await self._look()
        if not self._is_own():
            return False
        spec = {**self._spec(), "holderIdentity": "", "leaseDurationSeconds": 1}
        await self._write({**self._seen, "spec": spec})
        return True

    async def _followed(self) -> None:
        """Wait until another one leads and gateways can know, or until none is likely to be there."""
        deadline = self._clock() + self._term.follow
        while self._clock() < deadline:
            await self._sleep(self._term.look / 4)
            try:
                await self._look()
            except KubeError:
                return  # which a follower could not reach either
            if _holder(self._seen):
                await self._sleep(self._term.shown)
                return

    async def _stand(self) -> None:
        if self._released:
            return
        try:
            await self._try()
        except KubeError as error:
            self._failed(error)
        else:
            self._answered()

    async def _try(self) -> None:
        """Take or renew the Lease if that is possible, and see who holds it."""
        if not self._leading or not self._seen:
            await self._look()
        if not self._is_free():
            self._become(leading=False)
            return
        try:
            await self._write({**self._seen, "spec": self._spec()})
        except KubeError as error:
            if error.status != _CONFLICT:
                raise
            await self._look()  # another one was quicker
            if not self._is_own():
                self._become(leading=False)
            return
        self._become(leading=True)

    async def _look(self) -> None:
        path = LEASES.path(*self._lease)
        self._verb = "get"
        try:
            lease = await self._client.get(path, within=self._term.request)
        except KubeError as error:
            if error.status != _MISSING:
                raise
            lease = {}
        if _version(lease) != _version(self._seen):
            self._seen_at = self._clock()
        self._seen = lease

    def _is_own(self) -> bool:
        return _holder(self._seen) == self._identity

    def _is_free(self) -> bool:
        """Whether this candidate may write itself into the Lease."""
        if not _holder(self._seen) or self._is_own():
            return True
        duration = self._seen["spec"].get("leaseDurationSeconds") or self._term.duration
        return self._clock() >= self._seen_at + duration

    async def _write(self, lease: Json) -> None:
        within = self._term.request
        self._verb = "update" if "metadata" in lease else "create"
        if "metadata" in lease:
            lease = await self._client.replace(LEASES.path(*self._lease), lease, within=within)
        else:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._lease.name, "namespace": self._lease.namespace},
                **lease,
            }
            lease = await self._client.create(LEASES.path(self._lease.namespace), lease, within=within)
        self._seen, self._seen_at = lease, self._clock()

    def _spec(self) -> Json:
        """The Lease as this candidate holds it from now on."""
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        before: Json = self._seen.get("spec") or {}
        own = self._is_own()
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._term.duration)),
            "acquireTime": before["acquireTime"] if own and "acquireTime" in before else now,
            "renewTime": now,
            "leaseTransitions": (before.get("leaseTransitions") or 0)
            + (not own and "metadata" in self._seen),
        }

    def _become(self, *, leading: bool) -> None:
        if leading == self._leading:
            return
        self._leading = leading
        fields = {"lease": str(self._lease), "holder": _holder(self._seen), "identity": self._identity}
        log.info("leading" if leading else "standing by", extra={"fields": fields})
        self._changed(leading)

    def _answered(self) -> None:
        if self._complaint:
            log.info("the Lease can be had again", extra={"fields": {"lease": str(self._lease)}})
        self._complaint = ""

    def _failed(self, error: KubeError) -> None:
        # A Lease that could not be looked at may have been renewed.
        self._seen_at = self._clock()
        if self._leading:
            self._seen = {}  # whether a write that was not answered took place is to be seen first
        complaint = f"forbidden {self._verb}" if error.status == _FORBIDDEN else "failed"
        if complaint == self._complaint:
            return
        self._complaint = complaint
        fields = {"lease": str(self._lease), "error": str(error), "leading": str(bool(self._leading)).lower()}
        if error.status == _FORBIDDEN:
            fields["mend"] = f"give the service account the verb '{self._verb}' on '{LEASES}' by a Role"
            log.error("the API server forbids what the election of a leader needs", extra={"fields": fields})
        else:
            log.warning("the Lease cannot be had; nothing changes until it can", extra={"fields": fields})


def _holder(lease: Json) -> str:
    return (lease.get("spec") or {}).get("holderIdentity") or ""


def _version(lease: Json) -> str:
    return (lease.get("metadata") or {}).get("resourceVersion") or ""
