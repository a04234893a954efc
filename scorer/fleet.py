"""The columns: one signal for all endpoints as a numpy array, one writer each.

An endpoint owns a slot, its row in every column. Slots are reused, so whoever holds one across
time (a request that is still running, a page that is being fetched) keeps the generation too and
checks it with :meth:`Fleet.holds` before it writes: a late release must never hit the next tenant.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_INITIAL_CAPACITY = 16
UNKNOWN_ROUTES = -1
"""``route_set`` of an endpoint that never said which path prefixes it serves."""
CLUSTER_LABEL = "ray.io/cluster"
"""KubeRay's label of a pod: the RayCluster it belongs to."""
NO_CLUSTER = -1
"""``cluster`` of an endpoint without that label."""
MODEL_WAITING = 1
"""Of :meth:`Fleet.holders`: requests wait there for the model to be loaded."""
MODEL_IN_USE = 2
"""Of :meth:`Fleet.holders`: the model is loaded and in use."""
MOST_MODELS = 4096
"""Distinct model ids of all endpoints: a byte for each of them and each row."""


def key_of(text: str) -> int:
    """A 64-bit number for a text, the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def any_true(flags: NDArray[np.bool_]) -> bool:
    """Whether any is set; five times cheaper than numpy's own ``any`` for a column of a usual fleet."""
    return b"\1" in flags.tobytes()


class Slot(NamedTuple):
    """An endpoint's row in the columns, and which tenant of that row it is."""

    row: int
    generation: int


class Fleet:
    """All endpoints of a pool, column by column. Times are seconds of the event loop's clock.

    Identity (written by whoever keeps the membership, through :meth:`add` and :meth:`remove`):
        ``alive`` (bool); ``addresses``, ``labels`` (lists by slot index). ``addresses`` is not changed any
        more once it was read, so whoever explains a decision later may keep the list it was made with.
        ``address_key`` is :func:`key_of` the address;
        ``version`` changes with every :meth:`add`, :meth:`remove` and :meth:`relabel`;
        ``cluster`` index into ``clusters``, the values of the label ``ray.io/cluster`` (-1: it has none).
    Scraped (written by the metrics loop):
        ``scraped_load`` requests at the endpoint, running or waiting, as its page says (NaN: not said);
        ``queue`` waiting requests, ``running`` requests, ``kv_usage`` 0..1 (NaN: not said);
        ``local_running`` requests that the replicas on the endpoint's own node work on (NaN);
        ``proxy`` its page is that of a proxy: what waits there found no server free;
        ``fetched_at`` when the last good page arrived (-inf: never);
        ``draining`` wants no new requests; ``reachable`` False after its probes failed repeatedly;
        ``route_set`` index into ``route_sets``, tuples of path prefixes (-1: unknown);
        ``models`` ids of the adapters or multiplexed models in use there, ``waiting_models`` of those that
        requests wait for (lists by slot index of frozen sets, empty: none, or not said; written by
        :meth:`set_models`, read for a whole fleet by :meth:`holders`), ``models_named`` how many ids these
        are; ``max_models`` how many it can have loaded at a time (NaN: not said);
        ``kv_blocks`` and ``block_size`` (tokens) of its KV cache (NaN: not said).
    Own numbers (written by routing):
        ``own`` requests sent and not seen to end; ``own_tokens`` uncached prompt tokens of those whose
        first token is still to come; ``untracked`` requests whose end cannot be seen and that are
        assumed to be running; ``sent`` requests sent so far; ``sent_at`` when the last one was sent
        (-inf: never);
        ``own_at_page`` what ``own`` was at the time the page speaks of; ``breaker_open`` (bool);
        ``full_until`` the endpoint said it is full, until then (-inf: no);
        ``slowness`` how many times longer than the middle endpoint it takes for the same work (1: as long, or
        not clearly longer); ``replicas`` how many pickers send to these endpoints, this one included;
        ``mean_tokens`` how many uncached tokens a prompt that this picker sends has on average;
        ``cold_at`` number of the last request without any cached prefix that was sent there (-1: none);
        ``matched_tokens`` of the request *being decided*, the tokens of its prompt whose prefix the endpoint
        is believed to hold: written before a decision, of no meaning after it. Likewise ``prefix_key``, a
        number that all pickers have for what the prompt begins with (0: none).
    """

    _FLOATS = (
        ("scraped_load", np.nan),
        ("queue", np.nan),
        ("running", np.nan),
        ("kv_usage", np.nan),
        ("local_running", np.nan),
        ("fetched_at", -np.inf),
        ("own", 0.0),
        ("own_tokens", 0.0),
        ("untracked", 0.0),
        ("sent", 0.0),
        ("sent_at", -np.inf),
        ("own_at_page", 0.0),
        ("full_until", -np.inf),
        ("kv_blocks", np.nan),
        ("block_size", np.nan),
        ("max_models", np.nan),
        ("models_named", 0.0),
        ("slowness", 1.0),
        ("cold_at", -1.0),
        ("matched_tokens", 0.0),
    )
    _BOOLS = (
        ("alive", False),
        ("proxy", False),
        ("draining", False),
        ("reachable", True),
        ("breaker_open", False),
    )

    scraped_load: NDArray[np.float64]
    queue: NDArray[np.float64]
    running: NDArray[np.float64]
    kv_usage: NDArray[np.float64]
    local_running: NDArray[np.float64]
    fetched_at: NDArray[np.float64]
    own: NDArray[np.float64]
    own_tokens: NDArray[np.float64]
    untracked: NDArray[np.float64]
    sent: NDArray[np.float64]
    sent_at: NDArray[np.float64]
    own_at_page: NDArray[np.float64]
    full_until: NDArray[np.float64]
    kv_blocks: NDArray[np.float64]
    block_size: NDArray[np.float64]
    max_models: NDArray[np.float64]
    models_named: NDArray[np.float64]
    slowness: NDArray[np.float64]
    cold_at: NDArray[np.float64]
    matched_tokens: NDArray[np.float64]
    alive: NDArray[np.bool_]
    proxy: NDArray[np.bool_]
    draining: NDArray[np.bool_]
    reachable: NDArray[np.bool_]
    breaker_open: NDArray[np.bool_]
    route_set: NDArray[np.int64]
    cluster: NDArray[np.int64]
    address_key: NDArray[np.uint64]

    def __init__(self) -> None:
        self.version = 0
        self.replicas = 1
        self.mean_tokens = 0.0
        self.prefix_key = 0
        self._addresses: list[str] = []
        self._addresses_were_read = False
        self.labels: list[Mapping[str, str]] = []
        self.models: list[frozenset[str]] = []
        self.waiting_models: list[frozenset[str]] = []
        self.route_sets: list[tuple[str, ...]] = []
        self.paths_differ = False
        """Whether any endpoint said that it does not serve every path."""
        self._generations: list[int] = []
        self._free: list[int] = []
        self._by_address: dict[str, Slot] = {}
        self._route_set_ids: dict[tuple[str, ...], int] = {}
        self._holders: dict[str, NDArray[np.int8]] = {}
        self._no_holders = np.zeros(_INITIAL_CAPACITY, dtype=np.int8)
        for name, fill in self._FLOATS:
            setattr(self, name, np.full(_INITIAL_CAPACITY, fill, dtype=np.float64))
        for name, start in self._BOOLS:
            setattr(self, name, np.full(_INITIAL_CAPACITY, start, dtype=np.bool_))
        self.route_set = np.full(_INITIAL_CAPACITY, UNKNOWN_ROUTES, dtype=np.int64)
        self.cluster = np.full(_INITIAL_CAPACITY, NO_CLUSTER, dtype=np.int64)
        self.address_key = np.zeros(_INITIAL_CAPACITY, dtype=np.uint64)
        self.clusters: list[str] = []

    def __len__(self) -> int:
        """Number of endpoints in the pool now."""
        return len(self._by_address)

    @property
    def addresses(self) -> list[str]:
        """``ip:port`` by slot index, as of now; empty where there is no tenant. Not to be changed."""
        self._addresses_were_read = True
        return self._addresses

    @property
    def has_proxies(self) -> bool:
        """Whether any endpoint is a proxy before other servers, as far as pages tell."""
        return any_true(self.proxy)

    @property
    def capacity(self) -> int:
        """Length of every column; rows without a tenant are not ``alive``."""
        return len(self.alive)

    def add(self, address: str, labels: Mapping[str, str] | None = None) -> Slot:
        """Give ``address`` a slot with all columns at their start values.

        Raises ValueError if it has one already.
        """
        if address in self._by_address:
            raise ValueError(f"endpoint {address} is in the fleet already")
        if self._free:
            index = self._free.pop()
        else:
            index = len(self._addresses)
            self._own_addresses().append("")
            self.labels.append({})
            self.models.append(frozenset())
            self.waiting_models.append(frozenset())
            self._generations.append(0)
            if index == self.capacity:
                self._grow()
        slot = Slot(index, self._generations[index])
        self._reset_row(index)
        self.alive[index] = True
        self._name_row(index, address)
        self._label_row(index, labels or {})
        self._by_address[address] = slot
        self.version += 1
        return slot

    def remove(self, slot: Slot) -> None:
        """Take the endpoint out; its slot is free for a next tenant. A slot not held is ignored."""
        if not self.holds(slot):
            return
        del self._by_address[self._addresses[slot.row]]
        self._reset_row(slot.row)
        self._generations[slot.row] += 1
        self._free.append(slot.row)
        self._name_row(slot.row, "")
        self.version += 1

    def relabel(self, slot: Slot, labels: Mapping[str, str]) -> None:
        """Replace the labels of an endpoint that is in the fleet."""
        if self.holds(slot):
            self._label_row(slot.row, labels)
            self.version += 1

    def holds(self, slot: Slot) -> bool:
        """Whether the slot still belongs to the endpoint it was given to."""
        return self._generations[slot.row] == slot.generation and bool(self.alive[slot.row])

    def slot_of(self, address: str) -> Slot | None:
        """The slot of an endpoint of the pool, by ``ip:port``."""
        return self._by_address.get(address)

    def cluster_of(self, address: str) -> str:
        """The RayCluster of an endpoint of the pool; empty for one without, or for none of the pool."""
        slot = self._by_address.get(address) if self.clusters else None
        if slot is None:
            return ""
        index = int(self.cluster[slot.row])
        return self.clusters[index] if index != NO_CLUSTER else ""

    def slot_at(self, index: int) -> Slot:
        """The slot with the present generation of a row."""
        return Slot(index, self._generations[index])

    def set_routes(self, slot: Slot, prefixes: Sequence[str]) -> None:
        """Note which path prefixes the endpoint serves. Equal sets share one entry.

        The table of distinct sets is rebuilt when it outgrows the fleet, so it is bounded.
        """
        if not self.holds(slot):
            return
        key = tuple(sorted(prefixes))
        known = self._route_set_ids.get(key)
        if known is None:
            if len(self.route_sets) > 2 * len(self) + 8:
                self._compact_route_sets()
            known = len(self.route_sets)
            self.route_sets.append(key)
            self._route_set_ids[key] = known
            self.paths_differ = self.paths_differ or "/" not in key
        self.route_set[slot.row] = known

    def set_models(
        self, slot: Slot, models: frozenset[str], waiting: frozenset[str] = frozenset(), most: float = np.nan
    ) -> None:
        """Note which models are in use at the endpoint, which are waited for, and how many fit.

        The fleet as a whole keeps :data:`MOST_MODELS` distinct ids; of further ones nobody is a holder.
        """
        if not self.holds(slot):
            return
        row = slot.row
        self.max_models[row] = most
        self.models_named[row] = len(models | waiting)
        if models == self.models[row] and waiting == self.waiting_models[row]:
            return
        self._forget_models(row)
        self.models[row], self.waiting_models[row] = models, waiting
        for names, state in ((waiting, MODEL_WAITING), (models, MODEL_IN_USE)):
            for name in names:
                rows = self._holders.get(name)
                if rows is None:
                    if len(self._holders) >= MOST_MODELS:
                        continue
                    rows = self._holders[name] = self._no_holders.copy()
                rows[row] = state

    def holders(self, model: str) -> NDArray[np.int8]:
        """For each row whether the model is in use there, waited for, or neither (0). Not to be changed."""
        return self._holders.get(model, self._no_holders)

    def names_model(self, model: str) -> bool:
        """Whether the page of any endpoint names this adapter or multiplexed model."""
        return model in self._holders

    def _forget_models(self, row: int) -> None:
        for name in self.models[row] | self.waiting_models[row]:
            rows = self._holders.get(name)
            if rows is not None:
                rows[row] = 0
                if not rows.any():
                    del self._holders[name]

    def _compact_route_sets(self) -> None:
        used, inverse = np.unique(self.route_set, return_inverse=True)
        first_known = int(used[0] == UNKNOWN_ROUTES)
        self.route_sets = [self.route_sets[old] for old in used[first_known:]]
        self._route_set_ids = {key: new for new, key in enumerate(self.route_sets)}
        self.route_set = inverse.astype(np.int64) - first_known
        self.paths_differ = any("/" not in key for key in self.route_sets)

    def _label_row(self, index: int, labels: Mapping[str, str]) -> None:
        self.labels[index] = labels
        name = labels.get(CLUSTER_LABEL)
        if name is None:
            self.cluster[index] = NO_CLUSTER
            return
        if name not in self.clusters:
            self._forget_unused_clusters()
            self.clusters = [*self.clusters, name]
        self.cluster[index] = self.clusters.index(name)

    def _forget_unused_clusters(self) -> None:
        """Every upgrade brings a new name, so the table would grow for ever."""
        used = np.unique(self.cluster[self.alive])
        used = used[used != NO_CLUSTER]
        kept = [self.clusters[old] for old in used.tolist()]
        if len(kept) == len(self.clusters):
            return
        renumbered = np.full(len(self.clusters) + 1, NO_CLUSTER, dtype=np.int64)  # its last is NO_CLUSTER's
        renumbered[used] = np.arange(len(used))
        self.cluster = renumbered[self.cluster]
        self.clusters = kept

    def _reset_row(self, index: int) -> None:
        for name, fill in self._FLOATS + self._BOOLS:
            getattr(self, name)[index] = fill
        self.route_set[index] = UNKNOWN_ROUTES
        self.cluster[index] = NO_CLUSTER
        self.labels[index] = {}
        self._forget_models(index)
        self.models[index] = self.waiting_models[index] = frozenset()

    def _name_row(self, index: int, address: str) -> None:
        self._own_addresses()[index] = address
        self.address_key[index] = key_of(address)

    def _own_addresses(self) -> list[str]:
        """The list to change: another one if anybody may keep it. Of many changes only the first copies."""
        if self._addresses_were_read:
            self._addresses = self._addresses.copy()
            self._addresses_were_read = False
        return self._addresses

    def _grow(self) -> None:
        more = self.capacity
        for name, fill in self._FLOATS + self._BOOLS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.full(more, fill, dtype=column.dtype)]))
        self.route_set = np.concatenate([self.route_set, np.full(more, UNKNOWN_ROUTES, dtype=np.int64)])
        self.cluster = np.concatenate([self.cluster, np.full(more, NO_CLUSTER, dtype=np.int64)])
        self.address_key = np.concatenate([self.address_key, np.zeros(more, dtype=np.uint64)])
        self._no_holders = np.zeros(self.capacity, dtype=np.int8)
        nobody = np.zeros(more, dtype=np.int8)
        self._holders = {name: np.concatenate([rows, nobody]) for name, rows in self._holders.items()}
