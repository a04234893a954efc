"""One member of a pool, and the stream of sets that every source of members gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``address`` is the ``ip:port`` requests are sent to (IPv6 in brackets): its identity.

    ``metrics_address`` is the ``host:port`` that serves its metrics page. ``routes`` are the path prefixes
    it serves, where membership knows them (None: the endpoint itself has to tell).
    """

    address: str
    metrics_address: str
    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    routes: tuple[str, ...] | None = None


class EndpointsError(Exception):
    """There is no first set of endpoints to start with; one line that says what, where and the mend."""


class Source(Protocol):
    """Where membership comes from."""

    def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """Give the whole set at first and after every change; never twice the same in a row.

        A source that loses its origin keeps silent (the last good set stays in force) and says so
        once in the log. It ends only by cancellation or ``aclose``.

        Raises EndpointsError instead of the first set.
        """
