"""What the admin port shows: the fleet, the last decisions and why they were made, as plain JSON values."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from picker.inference.reading import needs_body, read_body, read_headers
from picker.observe.prometheus import DECISION_BUCKETS
from picker.observe.states import STATES, states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from picker.inference.question import Question
    from picker.observe.prometheus import Metrics
    from picker.routing.explained import Explained
    from picker.routing.router import Router
    from scorer.fleet import Fleet

Json = dict[str, Any]

SHOWN_DECISIONS = 50
"""Decisions in a state."""
SHOWN_CANDIDATES = 64
"""Candidates, and endpoints that were left out, that are told one by one for a decision."""
WINDOW = 10.0
"""Seconds over which rates are taken."""

COLUMNS = (
    "address",
    "name",
    "cluster",
    "state",
    "in_flight",
    "load",
    "queue",
    "tokens",
    "kv",
    "page_age",
    "share",
    "sent",
)


class Observatory:
    """See :class:`picker.observe.admin.Observatory`.

    ``clock`` is the one of the fleet's times. ``policy`` gives the name of the policy in force and, if its
    file holds one that could not be taken, why. ``name_of`` gives an endpoint's name. ``resolve`` applies the
    rules for models to a made-up request, as it is done for real ones.
    """

    def __init__(  # noqa: PLR0913 - the places that are looked at, by keyword
        self,
        fleet: Fleet,
        router: Router,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        policy: Callable[[], tuple[str, str]],
        name_of: Callable[[str], str],
        resolve: Callable[[Question], None],
        weights: Callable[[], Mapping[str, float]],
    ) -> None:
        self._fleet = fleet
        self._router = router
        self._metrics = metrics
        self._clock = clock
        self._policy = policy
        self._name_of = name_of
        self._resolve = resolve
        self._weights = weights
        self._totals: deque[tuple[float, int]] = deque()
        """Times of the last states, and decisions made until then."""
        self._buckets = metrics.decision_buckets()
        self._durations_before = self._buckets

    def state(self) -> Json:
        """What there is now."""
        fleet, now = self._fleet, self._clock()
        rows = np.flatnonzero(fleet.alive)
        name, problem = self._policy()
        durations = self._durations()
        return {
            "now": time.time(),
            "policy": {"name": name, "problem": problem},
            "rates": {
                "requests": self._rate(now),
                "decision_p50_us": _micros(durations, 0.5),
                "decision_p99_us": _micros(durations, 0.99),
                "streams": self._metrics.streams_open,
            },
            "refusals": self._metrics.refusals(),
            "clusters": self._clusters(rows),
            "columns": COLUMNS,
            "endpoints": self._endpoints(rows, now),
            "decisions": self.decisions(SHOWN_DECISIONS),
        }

    def decisions(self, last: int) -> list[Json]:
        """The last ones, newest first."""
        return [self._summary(explained) for explained in self._latest(last)]

    def decision(self, number: str) -> Json | None:
        """One of those that are kept."""
        found = self._router.recent.numbered(int(number)) if number.isdecimal() else None
        return None if found is None else self._whole(found)

    def explain(self, asked: Mapping[str, Any]) -> Json:
        """What would be chosen for a made-up request. Raises ValueError."""
        question = _question(asked)
        self._resolve(question)
        return self._whole(self._router.explain(question, self._clock()))

    def _latest(self, last: int) -> Iterator[Explained]:
        for explained in reversed(self._router.recent):
            if explained.replaced:  # by the decision with the body
                continue
            if last == 0:
                return
            last -= 1
            yield explained

    def _summary(self, explained: Explained) -> Json:
        asked, refusal = explained.asked, explained.refusal
        return {
            "id": str(explained.number),
            "at": time.time() - (self._clock() - explained.at),
            "method": asked.method,
            "path": asked.path,
            "model": asked.model,
            "request_id": asked.request_id,
            "prompt_tokens": asked.prompt_tokens,
            "matched_tokens": explained.matched_tokens,
            "endpoint": explained.endpoints[0] if explained.endpoints else "",
            "fallbacks": list(explained.endpoints[1:]),
            "refused": refusal.reason if refusal is not None else "",
        }

    def _whole(self, explained: Explained) -> Json:
        scores = explained.scores()
        # Those that had nothing to say are left out.
        said = next(iter(scores.values()), {})
        weights = {name: weight for name, weight in explained.weights().items() if name in said}
        return {
            **self._summary(explained),
            "priority": explained.asked.priority,
            "message": explained.refusal.message if explained.refusal is not None else "",
            "dropped": [
                {
                    "by": name,
                    "endpoints": endpoints[:SHOWN_CANDIDATES],
                    "more": len(endpoints) - len(endpoints[:SHOWN_CANDIDATES]),
                }
                for name, endpoints in explained.dropped().items()
            ],
            "scorers": [{"name": name, "weight": weight} for name, weight in weights.items()],
            "candidates": [
                {"endpoint": address, "total": parts["total"], "scores": [parts[name] for name in weights]}
                for address, parts in list(scores.items())[:SHOWN_CANDIDATES]
            ],
            "more": max(0, len(scores) - SHOWN_CANDIDATES),
            "draw": _draw(explained),
        }

    def _endpoints(self, rows: NDArray[np.intp], now: float) -> list[list[object]]:
        """One list an endpoint, in the order of :data:`COLUMNS`."""
        fleet = self._fleet
        sent = fleet.sent[rows]
        total = float(sent.sum())
        in_flight = fleet.own[rows] + fleet.untracked[rows]
        numbers = np.array(
            [
                in_flight,
                fleet.scraped_load[rows],
                fleet.queue[rows],
                fleet.own_tokens[rows],
                fleet.kv_usage[rows],
                now - fleet.fetched_at[rows],
                sent / total if total else np.full(len(rows), np.nan),
                sent,
            ]
        ).T.tolist()
        words = states(fleet, rows, now).tolist()
        clusters = fleet.cluster[rows].tolist()
        return [
            [
                fleet.addresses[row],
                self._name_of(fleet.addresses[row]),
                fleet.clusters[cluster] if cluster >= 0 else "",
                STATES[word],
                *(number if math.isfinite(number) else None for number in values),
            ]
            for row, word, cluster, values in zip(rows.tolist(), words, clusters, numbers, strict=True)
        ]

    def _clusters(self, rows: NDArray[np.intp]) -> list[Json]:
        fleet = self._fleet
        wanted = self._weights()
        total_wanted = sum(wanted.values())
        sent = fleet.sent[rows]
        total = float(sent.sum())
        found = []
        for number, name in enumerate(fleet.clusters):
            here = fleet.cluster[rows] == number
            found.append(
                {
                    "name": name,
                    "endpoints": int(here.sum()),
                    "wanted": wanted.get(name, 0.0) / total_wanted if total_wanted else None,
                    "served": float(sent[here].sum()) / total if total else None,
                }
            )
        return found

    def _durations(self) -> list[int]:
        """The decisions since the state before last, by how long they took."""
        before, self._durations_before, self._buckets = (
            self._durations_before,
            self._buckets,
            self._metrics.decision_buckets(),
        )
        return [after - then for after, then in zip(self._buckets, before, strict=True)]

    def _rate(self, now: float) -> float:
        """Decisions a second, over the last states."""
        self._totals.append((now, self._metrics.decisions))
        while now - self._totals[0][0] > WINDOW and len(self._totals) > 2:  # noqa: PLR2004 - a difference needs two
            self._totals.popleft()
        (since, before), (_, after) = self._totals[0], self._totals[-1]
        return (after - before) / (now - since) if now > since else 0.0


def _question(asked: Mapping[str, Any]) -> Question:
    headers = asked.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise ValueError("headers should be an object of strings")
    told = {str(name).lower(): value for name, value in headers.items()}
    for name in ("method", "path"):
        if not isinstance(asked.get(name, ""), str):
            raise ValueError(f"{name} should be a string")  # noqa: TRY004 - all are told alike
    told[":method"] = asked.get("method") or "POST"
    told[":path"] = asked.get("path") or "/v1/completions"
    question = read_headers(told)
    body = asked.get("body")
    if body is not None and needs_body(question):
        try:
            raw = body.encode() if isinstance(body, str) else orjson.dumps(body)
        except orjson.JSONEncodeError:  # nested deeper than orjson writes (254), though it reads 1024
            raise ValueError("body is nested too deeply; give it as a string") from None
        read_body(question, raw, complete=True)
        question.incoming_model = question.model
    return question


def _draw(explained: Explained) -> str:
    """In words, what chance had to do with it."""
    if explained.simplest:
        return "drawn among all endpoints, since choosing took too long or failed"
    drawn = ", ".join(f"{value:.4f}" for value in explained.draws)
    if explained.unsure:
        return f"drawn by weight, since not every page is in yet ({drawn})"
    return f"equal ones were drawn by weight ({drawn})" if drawn else ""


def _micros(counts: list[int], share: float) -> float | None:
    """The bound of the bucket that a share of the decisions do not exceed; None beyond all, or of none."""
    total, below = sum(counts), 0
    for bound, count in zip(DECISION_BUCKETS, counts, strict=False):
        below += count
        if total and below >= share * total:
            return 1e6 * bound
    return None
