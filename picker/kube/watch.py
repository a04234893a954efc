"""Knowing all objects of a kind, and what they become: list, then watch, as controllers do.

The last that was known stays in force through whatever happens to the API server.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from picker.kube.client import REQUEST_TIMEOUT, KubeError, parse

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Mapping

    from picker.kube.client import Json, KubeClient
    from picker.kube.resource import Resource

log = logging.getLogger(__name__)

T = TypeVar("T")

_UNAUTHORIZED, _FORBIDDEN, _MISSING, _GONE = 401, 403, 404, 410
_MOST_DOUBLINGS = 10
_FAILURES_TO_TELL = 2


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the API server is asked, in seconds.

    After a failure it is asked again after ``first_retry``, then after twice as long each time up to
    ``last_retry``, each shortened by up to half at random: all pickers lose a server at the same moment.
    What is forbidden or not installed is asked for every ``slow_retry``: somebody has to mend it first.

    A watch is ended by the server after ``watch`` and renewed, which costs no new list. If it has not ended
    ``grace`` later, the server is frozen or out of reach: an idle watch shows neither in another way.
    """

    first_retry: float = 0.5
    last_retry: float = 10.0
    slow_retry: float = 15.0
    watch: float = 45.0
    grace: float = 10.0
    request: float = REQUEST_TIMEOUT
    page: int = 100
    """Objects in one answer to a list. Pods have some 10 kB each, and an answer is parsed in one go."""


class State(enum.Enum):
    """What is known: nothing yet; the objects; or that there is no such kind of objects."""

    UNKNOWN = "unknown"
    SYNCED = "synced"
    ABSENT = "absent"


class Reflector(Generic[T]):
    """The objects of one kind in one namespace, by name, kept up to date while :meth:`run` runs.

    ``keep`` takes an object as the API server sent it (without ``kind`` and ``apiVersion`` where it comes
    from a list) and returns what is to be known of it, or None for one that is not wanted. Only that is
    held, and only when it differs from before ``on_change`` is called, so it should be small and compare
    by value. An object in which ``keep`` does not find what it needs (LookupError, TypeError, ValueError,
    AttributeError) is told in the log and left out.

    ``selector`` is a label selector; with ``name`` only the object of that name is asked for.

    ``on_change`` is also called when ``state`` or ``refused`` changes; it must not raise. ``items`` is
    replaced, never changed in place: whoever holds it has what was so then.

    Failures are told once, and once when they are over. What the API server forbids (by RBAC) is told
    with the verb and resource that are missing; where only watching is forbidden it is listed instead.
    """

    def __init__(  # noqa: PLR0913 - what to ask for, whom to tell, and what tests replace
        self,
        client: KubeClient,
        resource: Resource,
        namespace: str,
        keep: Callable[[Json], T | None],
        *,
        selector: str = "",
        name: str = "",
        on_change: Callable[[], None],
        random: random.Random,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        pace: Pace,
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self.name = name
        self.state = State.UNKNOWN
        self.refused = False
        """Whether the API server forbids to list them."""
        self.items: Mapping[str, T] = {}
        self._client = client
        self._keep = keep
        self._on_change = on_change
        self._random = random
        self._clock = clock
        self._sleep = sleep
        self._pace = pace
        self._path = resource.path(namespace)
        self._selectors = {"labelSelector": selector} if selector else {}
        if name:
            self._selectors["fieldSelector"] = f"metadata.name={name}"
        self._version = ""
        """What is known is that of this version of the API server's data; empty: list anew."""
        self._verb = "list"
        """What was asked for last."""
        self._failures = 0
        self._missing = 0
        """Answers in a row that there is no such kind."""
        self._opened = float("inf")
        """When the present watch began."""
        self._complaint = ""

    @property
    def synced(self) -> bool:
        """Whether it is known what there is, be it that there is no such kind of objects."""
        return self.state is not State.UNKNOWN

    async def run(self) -> None:
        """List and watch, until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except KubeError as error:
                await self._sleep(self._failed(error))

    # What there is

    async def _list(self) -> None:
        self._verb = "list"
        found: dict[str, T] = {}
        query = {**self._selectors, "limit": str(self._pace.page)}
        while True:
            answer = await self._client.get(self._path, query, within=self._pace.request)
            try:
                metadata, page = answer["metadata"], answer["items"]
                version: str = metadata["resourceVersion"]
                for item in page:
                    self._put(found, item)
            except (KeyError, TypeError):
                raise KubeError("the answer is not a list of objects") from None
            if not metadata.get("continue"):
                break
            query["continue"] = metadata["continue"]
        self._version = version
        self._missing = 0
        self._become(State.SYNCED, found)

    async def _watch(self) -> None:
        self._verb = "watch"
        query = {
            **self._selectors,
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(self._pace.watch))),
        }
        deadline = self._pace.watch + self._pace.grace
        async with self._client.lines(self._path, query, deadline=deadline) as lines:
            self._opened = self._clock()
            self._recovered()
            async for line in lines:
                self._event(parse(line))
        if not self._lasted():
            raise KubeError("the watch ended at once")
        self._failures = 0

    def _lasted(self) -> bool:
        """Whether the watch went on for long enough to say that watching works."""
        return self._clock() - self._opened >= self._pace.first_retry

    def _event(self, event: Json) -> None:
        try:
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                raise KubeError(str(item.get("message", "the watch failed")), int(item.get("code", 0)))
            version: str = item["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                after = dict(self.items)
                if kind == "DELETED":
                    after.pop(item["metadata"]["name"], None)
                else:
                    self._put(after, item)
                self._become(State.SYNCED, after)
            self._version = version
        except (LookupError, TypeError, AttributeError, ValueError):
            raise KubeError("the watch sent something that is no event") from None

    def _put(self, items: dict[str, T], item: Json) -> None:
        name: str = item["metadata"]["name"]
        try:
            kept = self._keep(item)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            fields = {**self._told_as(), "name": name, "error": f"{type(error).__name__}: {error}"}
            log.warning("an object cannot be used and is left out", extra={"fields": fields})
            kept = None
        if kept is None:
            items.pop(name, None)
        else:
            items[name] = kept

    def _become(self, state: State, items: Mapping[str, T], *, refused: bool = False) -> None:
        if (state, items, refused) != (self.state, self.items, self.refused):
            self.state, self.items, self.refused = state, items, refused
            self._on_change()

    # What goes wrong

    def _failed(self, error: KubeError) -> float:
        """Take note of a failure; returns the seconds until the next attempt."""
        if self._lasted():
            self._failures = 0
        self._opened = float("inf")
        self._failures += 1
        if error.status in (_UNAUTHORIZED, _FORBIDDEN):
            self._version = ""  # what cannot be watched is listed again
            self._tell_refused(error)
            self._become(self.state, self.items, refused=self._verb == "list")
            return self._about(self._pace.slow_retry)
        if error.status == _MISSING:
            return self._not_there()
        if error.status:
            # 410: the version is too old to go on from. Others may mean that too, and a list is the way out.
            self._version = ""
        if error.status == _GONE:
            log.debug("the version is too old to go on from; listing anew", extra={"fields": self._told_as()})
            return 0.0 if self._failures == 1 else self._backoff()
        if self._failures >= _FAILURES_TO_TELL or not self.synced:
            self._tell_lost(error)
        return self._backoff()

    def _not_there(self) -> float:
        """There is no such kind of objects, if that is said twice where there were some.

        The API server removes all objects of a kind before the kind; something in between may err.
        """
        self._version = ""
        self._missing += 1
        if self.items and self._missing == 1:
            return self._backoff()
        self._complaint = ""
        self._become(State.ABSENT, {})
        return self._about(self._pace.slow_retry)

    def _backoff(self) -> float:
        doublings = min(self._failures - 1, _MOST_DOUBLINGS)
        return self._about(min(self._pace.first_retry * 2.0**doublings, self._pace.last_retry))

    def _about(self, seconds: float) -> float:
        return seconds * (1.0 - 0.5 * self._random.random())

    def _recovered(self) -> None:
        if self._complaint:
            log.info("the API server answers again", extra={"fields": self._told_as()})
        self._complaint = ""

    def _tell_lost(self, error: KubeError) -> None:
        if self._complaint != "lost":
            self._complaint = "lost"
            log.warning(
                "the API server does not answer; what was known last stays in force",
                extra={"fields": {**self._told_as(), "error": str(error)}},
            )

    def _tell_refused(self, error: KubeError) -> None:
        complaint = f"{error.status} {self._verb}"
        if self._complaint == complaint:
            return
        self._complaint = complaint
        if error.status == _FORBIDDEN:
            message = "the API server forbids what is needed"
            mend = f"give the service account the verb '{self._verb}' on '{self.resource}' by a Role"
        else:
            message = "the API server does not know who asks"
            mend = "give the pod a service account's token, or KUBECONFIG other credentials"
        fields = {**self._told_as(), "verb": self._verb, "error": str(error), "mend": mend}
        log.error(message, extra={"fields": fields})

    def _told_as(self) -> dict[str, str]:
        named = {"name": self.name} if self.name else {}
        return {"resource": str(self.resource), "namespace": self.namespace, **named}
