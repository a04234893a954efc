"""Who chooses: the picker as it is, and what it is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from random import Random

    from picker.replay.engine import Page
    from picker.replay.workload import Request


class Fate(NamedTuple):
    """How a request ended: its answer's status, tokens of its prompt (0: refused), and the cached ones."""

    status: int
    prompt: int = 0
    cached: int = 0
    back_pressure: bool = False


class Pick(NamedTuple):
    """The chosen endpoint, and the picker's own mark on it."""

    endpoint: int
    ticket: object


class Picker(Protocol):
    """One replica of a picker. Times are seconds and never go back."""

    @property
    def scrape_interval(self) -> float | None:
        """Seconds between two pages of an endpoint; None: it reads none."""

    def pick(self, request: Request, now: float) -> Pick | int:
        """Choose, and count the request as sent; or the status with which it is refused."""

    def first_token(self, ticket: object, now: float) -> None:
        """The first byte of its answer's body came by. Called only where that is visible."""

    def ended(self, ticket: object, fate: Fate, now: float) -> None:
        """Its answer ended."""

    def page(self, endpoint: int, page: Page, page_time: float, now: float) -> None:
        """A page came in that speaks of ``page_time``."""

    def preferred(self, request: Request, now: float) -> int:
        """Which endpoint it would choose now, or -1; nothing is counted."""

    def explain(self, request: Request, now: float) -> list[str]:
        """Lines that say how it would choose now; nothing is counted."""


class Blind:
    """One that reads no pages."""

    scrape_interval = None

    def first_token(self, ticket: object, now: float) -> None:
        """Of no interest."""

    def ended(self, ticket: object, fate: Fate, now: float) -> None:
        """Of no interest."""

    def page(self, endpoint: int, page: Page, page_time: float, now: float) -> None:
        """Of no interest."""

    def preferred(self, request: Request, now: float) -> int:  # noqa: ARG002 - others look at them
        """It would not say the same twice."""
        return -1

    def explain(self, request: Request, now: float) -> list[str]:  # noqa: ARG002 - others look at them
        """Nothing to explain."""
        return ["it does not look at the request"]


class RoundRobin(Blind):
    """One endpoint after the other, beginning anywhere, as Envoy's ROUND_ROBIN."""

    def __init__(self, endpoints: int, random: Random) -> None:
        self._endpoints = endpoints
        self._next = random.randrange(endpoints)

    def pick(self, request: Request, now: float) -> Pick:  # noqa: ARG002 - see Picker
        """See :class:`Picker`."""
        chosen = self._next
        self._next = (chosen + 1) % self._endpoints
        return Pick(chosen, None)


class AtRandom(Blind):
    """Any endpoint."""

    def __init__(self, endpoints: int, random: Random) -> None:
        self._endpoints = endpoints
        self._random = random

    def pick(self, request: Request, now: float) -> Pick:  # noqa: ARG002 - see Picker
        """See :class:`Picker`."""
        return Pick(self._random.randrange(self._endpoints), None)


class LeastRequest(Blind):
    """Any endpoint with the fewest requests sent from here, as Envoy's LEAST_REQUEST over all hosts."""

    def __init__(self, endpoints: int, random: Random) -> None:
        self._in_flight = [0] * endpoints
        self._random = random

    def pick(self, request: Request, now: float) -> Pick:  # noqa: ARG002 - see Picker
        """See :class:`Picker`."""
        fewest = min(self._in_flight)
        chosen = self._random.choice([n for n, number in enumerate(self._in_flight) if number == fewest])
        self._in_flight[chosen] += 1
        return Pick(chosen, chosen)

    def ended(self, ticket: object, fate: Fate, now: float) -> None:  # noqa: ARG002 - see Picker
        """See :class:`Picker`."""
        assert isinstance(ticket, int)  # noqa: S101 - narrows a type
        self._in_flight[ticket] -= 1

    def explain(self, request: Request, now: float) -> list[str]:  # noqa: ARG002 - see Picker
        """See :class:`Picker`."""
        return [f"endpoint {n}: {number} in flight" for n, number in enumerate(self._in_flight)]
