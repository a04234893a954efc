"""Filters, weighted scorers and a chooser, run as one; and the built-in policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scorer.choosers import NearTies, weighted_random
from scorer.scorers import least_load, local_load, token_load

if TYPE_CHECKING:
    from random import Random

    from scorer.contract import Chooser, Filter, Mark, Request, Rows, Scorer, Scores, Sent
    from scorer.fleet import Fleet


class NamedFilter(NamedTuple):
    """A filter in a profile, and under which name it is explained."""

    name: str
    keep: Filter


class Weighted(NamedTuple):
    """A scorer in a profile: under which name, and how much it counts."""

    name: str
    weight: float
    scorer: Scorer


@dataclass(frozen=True, slots=True)
class Choice:
    """What a profile chose, with all that explains it. Nothing is formatted until asked for.

    ``rows`` are the chosen ones in order of preference, empty if the filters left nobody.
    ``candidates`` are those the filters left; ``totals`` and each of ``parts`` (one per scorer,
    unweighted) are in their order. ``dropped`` has the rows that each filter took out, by its name,
    for those that took any.
    """

    rows: tuple[int, ...]
    candidates: Rows
    totals: Scores
    parts: tuple[Scores, ...]
    scorers: tuple[Weighted, ...]
    addresses: list[str]
    dropped: tuple[tuple[str, Rows], ...] = ()

    def explain(self) -> dict[str, dict[str, float]]:
        """Each candidate's total and score per scorer by its address, best total first."""
        names = [weighted.name for weighted in self.scorers]
        return {
            self.addresses[self.candidates[place]]: {
                "total": float(self.totals[place]),
                **{name: float(part[place]) for name, part in zip(names, self.parts, strict=True)},
            }
            for place in np.argsort(-self.totals, kind="stable").tolist()
        }


@dataclass(frozen=True, slots=True)
class Profile:
    """Drop candidates, add up weighted scores, take an ordered few.

    ``unsure`` is the chooser for the time in which the totals rest on too little (no page is in yet).
    ``observers`` are told of every request that is sent by this profile; ``marks`` give its answer headers. ``uses_prefix`` says that something
    here reads the column ``matched_tokens``, or the ledger's uncached tokens; where nothing does, prompts
    need not be compared.
    """

    scorers: tuple[Weighted, ...]
    filters: tuple[NamedFilter, ...] = ()
    chooser: Chooser = field(default_factory=NearTies)
    unsure: Chooser = weighted_random
    observers: tuple[Sent, ...] = ()
    marks: tuple[Mark, ...] = ()
    uses_prefix: bool = False

    def run(  # noqa: PLR0913 - the four facts of a decision, and how to choose by keyword
        self,
        fleet: Fleet,
        rows: Rows,
        request: Request,
        now: float,
        rng: Random,
        *,
        count: int = 1,
        prefer: int = -1,
        unsure: bool = False,
    ) -> Choice:
        """Choose up to ``count`` of the candidates ``rows``; row ``prefer`` wins ties."""
        dropped = []
        for name, keep in self.filters:
            mask = keep(fleet, rows, request, now)
            if not mask.all():
                dropped.append((name, rows[~mask]))
                rows = rows[mask]
        parts = tuple(weighted.scorer(fleet, rows, request, now) for weighted in self.scorers if len(rows))
        if not len(rows):
            return Choice((), rows, np.empty(0), parts, (), fleet.addresses, tuple(dropped))
        totals = np.zeros(len(rows))
        for weighted, part in zip(self.scorers, parts, strict=True):
            totals += weighted.weight * part
        preferred = -1
        if prefer >= 0:
            found = (rows == prefer).nonzero()[0]
            preferred = int(found[0]) if len(found) else -1
        chooser = self.unsure if unsure else self.chooser
        places = chooser(totals, count, rng, preferred)
        chosen = tuple(rows[places].tolist())
        return Choice(chosen, rows, totals, parts, self.scorers, fleet.addresses, tuple(dropped))


def built_in_profile() -> Profile:
    """The policy without a policy file: least load, with two weak preferences.

    Weights: token and local load decide between endpoints of like request load and never send a request
    to a busy endpoint past an idle one: together they outweigh at most five requests where the least loaded
    endpoint has ten, none where it is idle. Token load counts more, since it is own and exact; local load
    comes from a page up to ten seconds old.
    """
    return Profile(
        scorers=(
            Weighted("least-load", 1.0, least_load),
            Weighted("token-load", 0.2, token_load),
            Weighted("local-load", 0.1, local_load),
        )
    )
