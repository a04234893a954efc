"""Filters, weighted scorers and a chooser, run as one; and the built-in policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scorer.affinity import model_affinity, prefix_home, session_affinity
from scorer.choosers import NearTies, weighted_random
from scorer.contract import Chooser, Filter, Mark, Rows, Scorer, Scores, Sent
from scorer.fleet import any_true
from scorer.scorers import least_work, ray_load

if TYPE_CHECKING:
    from random import Random

    from scorer.contract import Request
    from scorer.fleet import Fleet


Dropped = tuple[str, "Rows"]
"""The name of a filter, and the rows it took out."""


class NamedFilter(NamedTuple):
    """A filter in a profile, and under which name it is explained."""

    name: str
    keep: Filter


class Weighted(NamedTuple):
    """A scorer in a profile: under which name, and how much it counts."""

    name: str
    weight: float
    scorer: Scorer


@dataclass(slots=True)
class Choice:
    """What a profile chose, with all that explains it. Nothing is formatted until asked for.

    ``rows`` are the chosen ones in order of preference, empty if the filters left nobody.
    ``candidates`` are those the filters left; ``totals`` and each of ``parts`` (one per scorer,
    unweighted, None where it had nothing to say) are in their order. ``dropped`` has the rows that each
    filter took out, by its name, for those that took any.
    """

    rows: tuple[int, ...]
    candidates: Rows
    totals: Scores
    parts: tuple[Scores | None, ...]
    scorers: tuple[Weighted, ...]
    addresses: list[str]
    dropped: tuple[Dropped, ...] = ()

    def explain(self) -> dict[str, dict[str, float]]:
        """Each candidate's total and score per scorer by its address, best total first."""
        said = [
            (weighted.name, part)
            for weighted, part in zip(self.scorers, self.parts, strict=True)
            if part is not None
        ]
        return {
            self.addresses[self.candidates[place]]: {
                "total": float(self.totals[place]),
                **{name: float(part[place]) for name, part in said},
            }
            for place in np.argsort(-self.totals, kind="stable").tolist()
        }


@dataclass(frozen=True, slots=True)
class Profile:
    """Drop candidates, add up weighted scores, take an ordered few.

    ``unsure`` is the chooser for the time in which the totals rest on too little (no page is in yet).
    ``observers`` are told of every request that is sent by this profile, and ``marks`` say what headers its
    answer gets. ``uses_prefix`` says that something here reads the column ``matched_tokens``, or the ledger's
    uncached tokens; where nothing does, prompts need not be compared.
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
        dropped: list[Dropped] = []
        for name, keep in self.filters:
            mask = keep(fleet, rows, request, now)
            if any_true(~mask):
                dropped.append((name, rows[~mask]))
                rows = rows[mask]
        if not len(rows):
            return Choice((), rows, np.empty(0), (), (), fleet.addresses, tuple(dropped))
        parts = [scorer(fleet, rows, request, now) for _, _, scorer in self.scorers]
        totals = self._totals(parts, len(rows))
        preferred = -1
        if prefer >= 0:
            found = (rows == prefer).nonzero()[0]
            preferred = int(found[0]) if len(found) else -1
        places = (self.unsure if unsure else self.chooser)(totals, count, rng, preferred)
        chosen = (int(rows[places[0]]),) if len(places) == 1 else tuple(rows[places].tolist())
        return Choice(chosen, rows, totals, tuple(parts), self.scorers, fleet.addresses, tuple(dropped))

    def _totals(self, parts: list[Scores | None], count: int) -> Scores:
        totals: Scores | None = None
        for weighted, part in zip(self.scorers, parts, strict=True):
            if part is not None:
                share = part * weighted.weight
                totals = share if totals is None else np.add(totals, share, out=share)
        return np.zeros(count) if totals is None else totals


MODEL_WEIGHT = 0.5
HOME_WEIGHT = 0.8
SESSION_WEIGHT = 0.1


def built_in_profile() -> Profile:
    """The policy without a policy file: least work, and what speaks for a place that is not the least busy.

    Weights: the score of work (or before Ray proxies, load) is the least cost over a candidate's cost. So a
    preference with weight 0.5 is kept until its endpoint costs twice as much as the best one, with 0.8 five
    times as much, and with 0.1 a ninth more: the former are for what takes seconds to make up for elsewhere
    (a model to be loaded; prompts that other pickers have sent there, which bounds its own load), the
    latter is hardly more than a draw among equals. Without such preferences, tokens and pages it is least
    request.
    """
    return Profile(
        scorers=(
            Weighted("least-work", 1.0, least_work),
            Weighted("ray-load", 1.0, ray_load),
            Weighted("model-affinity", MODEL_WEIGHT, model_affinity),
            Weighted("prefix-home", HOME_WEIGHT, prefix_home),
            Weighted("session-affinity", SESSION_WEIGHT, session_affinity),
        ),
        uses_prefix=True,
    )
