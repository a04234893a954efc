"""The cluster draw: which RayCluster a request goes to, before the endpoint inside it is chosen.

While a RayService is upgraded, its old and its new cluster share the traffic by weights. A score of load
cannot hold that ratio: the half-scaled new cluster looks idle and would get nearly everything. So the
cluster is drawn first, and loads are compared inside it only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scorer.contract import Rows
from scorer.fleet import NO_CLUSTER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scorer.contract import Mask
    from scorer.fleet import Fleet

_ROTATIONS_KEPT = 16
"""Sets of clusters that are drawn from at one time: the whole pool's, and those of subsets and spills."""


class Rotation:
    """Turns by integer weights, as even as whole turns can be.

    After every number ``n`` of turns each member has had within one turn of ``n * weight / sum``; after
    ``sum`` turns (100, for percents) it has had ``weight`` turns exactly and all begins anew, so that
    *any* ``sum`` turns in a row hold the ratio exactly.

    The rule is Tijdeman's (The chairman assignment problem, Discrete Mathematics 32, 1980): of those that
    would otherwise be behind by ``1/(2k-2)`` of a turn or more, the one has its turn that would first be
    a whole ``1 - 1/(2k-2)`` behind. The smooth weighted round robin of nginx keeps the same sums, but gives
    the turn to whoever is furthest behind, which bounds nothing for more than two members. Integers
    throughout, so no error adds up.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = weights
        self._sum = sum(weights)
        self._behind = [0] * len(weights)
        """In turns times the sum of weights."""

    def next(self) -> int:
        """Whose turn it is. Asking changes nothing."""
        if len(self._weights) == 1:
            return 0
        spread = 2 * len(self._weights) - 2
        whole = self._sum * (spread - 1)
        best, best_left = -1, 0
        for member, weight in enumerate(self._weights):
            due = (self._behind[member] + weight) * spread
            if due < self._sum:
                continue
            left = whole - due
            # left / weight < best_left / its weight, without the division
            if best < 0 or left * self._weights[best] < best_left * weight:
                best, best_left = member, left
        return best

    def took(self, member: int) -> None:
        """The member had a turn."""
        for other, weight in enumerate(self._weights):
            self._behind[other] += weight
        self._behind[member] -= self._sum


@dataclass(frozen=True, slots=True)
class Turn:
    """What was drawn for a request, to be kept while it is under way.

    ``cluster`` was drawn; ``None``: there was nothing to draw. ``served`` is whose endpoints may be chosen:
    another one after a spill. ``counts`` are the rotations in which it is a turn once it is taken.
    """

    cluster: str | None = None
    served: str | None = None
    counts: tuple[tuple[Rotation, int], ...] = ()


class Drawn(NamedTuple):
    """The candidates of the drawn cluster (empty: the request is to be refused), and the turn it is."""

    rows: Rows
    turn: Turn


_ONE_POOL = Turn()


class ClusterDraw:
    """Draws clusters by weight while there are weights; else the pool is one.

    The ratio holds for first choices of requests without subset or spill, at this picker: whoever runs R
    replicas has it within R. ``spill``: whether a request whose cluster has nobody eligible goes to another
    one, by the weights of those, and to clusters of weight zero if there is no other; else it is refused.
    ``sticky``: whether a request whose session or prefix is held somewhere goes there, whatever the ratio
    (but never to a cluster of weight zero). It is then no turn, and the others keep the ratio among them.
    Both may be changed at any time.

    Clusters are known by name, the value of the label ``ray.io/cluster``. Endpoints without that label, or
    of a cluster that the weights do not name, count as a cluster of weight zero.
    """

    def __init__(self, fleet: Fleet, *, spill: bool = True, sticky: bool = False) -> None:
        self.spill = spill
        self.sticky = sticky
        self._fleet = fleet
        self._told: Mapping[str, int] = {}
        self._pinned: Mapping[str, int] = {}
        self._weights: dict[str, int] = {}
        self._rotations: dict[tuple[tuple[str, int], ...], Rotation] = {}
        self._indexed: list[str] | None = None
        self._index: dict[str, int] = {}

    @property
    def weights(self) -> Mapping[str, int]:
        """The weights in force, without zeros; empty: the pool is one."""
        return self._weights

    def set_weights(self, weights: Mapping[str, int] | None) -> None:
        """Draw by these from now on; ``None``, or nothing but zeros: do not draw.

        The counts start anew if the weights differ from those in force. Raises ValueError for a weight
        below zero.
        """
        self._told = _checked(weights)
        self._put_in_force()

    def pin(self, weights: Mapping[str, int] | None) -> None:
        """Draw by these, whatever :meth:`set_weights` says, until they are taken back (``None``)."""
        self._pinned = _checked(weights)
        self._put_in_force()

    def _put_in_force(self) -> None:
        weights = self._pinned or self._told
        positive = {name: weights[name] for name in sorted(weights) if weights[name]}
        if positive != self._weights:
            self._weights = positive
            self._rotations.clear()

    def draw(
        self, rows: Rows, eligible_rows: Rows, *, kept: Turn | None = None, held: Rows | None = None
    ) -> Drawn:
        """Of the candidates ``rows``, of which ``eligible_rows`` should get a request, those of one cluster.

        Nothing is counted before :meth:`took`: explaining is no turn, nor is a request whose scoring fails.
        ``kept`` is the turn of a decision that this one replaces: its cluster is drawn again, and not
        counted again. ``held`` are rows that hold the request's session or prefix, the best first; they
        matter only if ``sticky``.
        """
        if not self._weights:
            return Drawn(eligible_rows, _ONE_POOL)
        if kept is not None and kept.cluster is not None and kept.served is not None:
            return self._again(kept.cluster, kept.served, eligible_rows)
        if self.sticky and held is not None:
            found = self._holding(held, eligible_rows)
            if found is not None:
                return found
        # A subset leaves out clusters on purpose. Otherwise one that has nobody in the pool still has its
        # share where requests must not spill over.
        restricted = len(rows) < len(self._fleet)
        shares = self._shares(rows) if self.spill or restricted else tuple(self._weights.items())
        if not shares:
            return self._instead(eligible_rows, "")
        rotation = self._rotation(shares)
        member = rotation.next()
        cluster = shares[member][0]
        counts = ((rotation, member),)
        found_rows = self._of(cluster, eligible_rows)
        if len(found_rows):
            return Drawn(found_rows, Turn(cluster, cluster, counts))
        return self._instead(eligible_rows, cluster, counts)

    def took(self, turn: Turn) -> None:
        """The request was answered, be it by a refusal: else it would be that cluster's turn for ever."""
        for rotation, member in turn.counts:
            rotation.took(member)

    def _again(self, cluster: str, served: str, eligible_rows: Rows) -> Drawn:
        for name in (cluster, served):
            found = self._of(name, eligible_rows)
            if len(found):
                return Drawn(found, Turn(cluster, name))
        return self._instead(eligible_rows, cluster)

    def _holding(self, held: Rows, eligible_rows: Rows) -> Drawn | None:
        """The cluster of the best row that holds the request's state and may be chosen."""
        clusters, fleet = self._fleet.clusters, self._fleet
        for row in held[np.isin(held, eligible_rows)].tolist():
            index = int(fleet.cluster[row])
            if index != NO_CLUSTER and clusters[index] in self._weights:
                name = clusters[index]
                return Drawn(self._of(name, eligible_rows), Turn(name, name))
        return None

    def _instead(
        self, eligible_rows: Rows, cluster: str, counts: tuple[tuple[Rotation, int], ...] = ()
    ) -> Drawn:
        """What becomes of a request whose cluster has nobody: it spills to another one, or has no rows."""
        shares = self._shares(eligible_rows) or self._all_present(eligible_rows)
        if not self.spill or not shares:
            return Drawn(eligible_rows[:0], Turn(cluster, cluster, counts))
        rotation = self._rotation(shares)
        member = rotation.next()
        served = shares[member][0]
        turn = Turn(cluster, served, (*counts, (rotation, member)))
        return Drawn(self._of(served, eligible_rows), turn)

    def _shares(self, rows: Rows) -> tuple[tuple[str, int], ...]:
        """The clusters with a weight that have somebody among ``rows``, and their weights."""
        present, indices = self._present(rows), self._indices()
        return tuple(
            (name, weight)
            for name, weight in self._weights.items()
            if name in indices and indices[name] in present
        )

    def _all_present(self, rows: Rows) -> tuple[tuple[str, int], ...]:
        """Every cluster among ``rows``, and those without one as another, with equal weights."""
        names = ("" if index == NO_CLUSTER else self._fleet.clusters[index] for index in self._present(rows))
        return tuple((name, 1) for name in sorted(names))

    def _present(self, rows: Rows) -> set[int]:
        counts = np.bincount(self._fleet.cluster[rows] - NO_CLUSTER)
        return {index + NO_CLUSTER for index in np.flatnonzero(counts).tolist()}

    def _of(self, name: str, rows: Rows) -> Rows:
        """Those of ``rows`` that are of a cluster; an empty name is that of having none."""
        index = self._indices().get(name) if name else NO_CLUSTER
        if index is None:
            return rows[:0]
        mask: Mask = self._fleet.cluster[rows] == index
        return rows[mask]

    def _indices(self) -> dict[str, int]:
        clusters = self._fleet.clusters
        if clusters is not self._indexed:  # the fleet replaces its list, it never changes it
            self._indexed = clusters
            self._index = {name: index for index, name in enumerate(clusters)}
        return self._index

    def _rotation(self, shares: tuple[tuple[str, int], ...]) -> Rotation:
        """The turns among these clusters.

        Each such set has its own: neither subsets nor spills disturb the ratio of those that have the choice.
        """
        rotation = self._rotations.get(shares)
        if rotation is None:
            if len(self._rotations) >= _ROTATIONS_KEPT:
                del self._rotations[next(iter(self._rotations))]
            rotation = self._rotations[shares] = Rotation([weight for _, weight in shares])
        return rotation


def _checked(weights: Mapping[str, int] | None) -> Mapping[str, int]:
    weights = weights or {}
    if any(weight < 0 for weight in weights.values()):
        raise ValueError(f"a weight of a cluster is below zero: {dict(weights)}")
    return weights
