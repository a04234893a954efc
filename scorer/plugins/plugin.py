"""What a plugin can be, and what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from scorer.contract import Chooser, Filter, Mark, Scorer, Sent
from scorer.document import Fields
from scorer.saturation import Saturation, Utilization


@dataclass(frozen=True, slots=True)
class Means:
    """What plugins are given beside their parameters.

    ``session_key`` signs what is given to clients; replicas that share it know each other's sessions.
    ``saturation`` tells which endpoints are too full to be kept to.
    ``parsers`` are the names of those there are.
    """

    random: Random
    session_key: bytes = b""
    saturation: Saturation = field(default_factory=Utilization)
    parsers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Plugin:
    """An instance: any of the things below, in any combination.

    ``keep``, ``score`` and ``choose`` make it a filter, a scorer and a picker; ``sent`` and ``mark`` go with
    these. ``weight`` replaces what a profile says. ``most`` is how many endpoints a picker wants in the
    answer (None: as many as the settings say). ``detector``, ``parser`` and ``block_tokens`` are of use in
    other places of a policy, ``told`` says of a plugin that is accepted what is so instead.
    """

    keep: Filter | None = None
    score: Scorer | None = None
    choose: Chooser | None = None
    sent: Sent | None = None
    mark: Mark | None = None
    weight: float | None = None
    most: int | None = None
    uses_prefix: bool = False
    detector: Saturation | None = None
    parser: str = ""
    block_tokens: int | None = None
    told: str = ""
    warning: str = ""

    @property
    def chooses(self) -> bool:
        """Whether it has a place in a profile."""
        return bool(self.keep or self.score or self.choose)


@dataclass(frozen=True, slots=True)
class PluginType:
    """A kind of plugin by its name in policies. ``make`` reads the parameters; it raises PolicyError."""

    name: str
    make: Callable[[Fields, Means], Plugin]


def of_scorer(name: str, score: Scorer, *, uses_prefix: bool = False) -> PluginType:
    """A scorer without parameters."""
    return PluginType(name, lambda _fields, _means: Plugin(score=score, uses_prefix=uses_prefix))


def of_filter(name: str, keep: Filter) -> PluginType:
    """A filter without parameters."""
    return PluginType(name, lambda _fields, _means: Plugin(keep=keep))
