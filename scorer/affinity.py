"""Sending like requests to like places, where that is worth more than an even spread.

Where several pickers must agree without talking, the place is drawn by rendezvous hashing: each endpoint's
address is mixed with the key, and the greatest number is the key's home. It is the same in every process,
and an endpoint that comes or goes moves only its own keys (Thaler and Ravishankar 1998). A home is a
preference that is weighed against work, never a rule, so a popular key spills over as its home fills.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scorer.fleet import MODEL_IN_USE, key_of
from scorer.scorers import request_load, waiting_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scorer.contract import Request, Rows, Scores
    from scorer.fleet import Fleet

SECOND_HOME = 0.5
"""What the second home is worth against the first: the less loaded of two places spreads far better than
one place (DualMap, ICLR 2026), and if all pickers prefer the same of the two they agree nearly always."""

FULL_HOME = 1.5
"""How many times the mean a home's load may be; beyond that it is none (Mirrokni et al., "Consistent Hashing
with Bounded Loads", 2018). Popular prefixes so have as many homes as it takes."""

_SHIFT_30, _SHIFT_27, _SHIFT_31 = np.uint64(30), np.uint64(27), np.uint64(31)
_FIRST_FACTOR, _SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""Of the finalizer below."""


def ranks(fleet: Fleet, rows: Rows, key: int) -> NDArray[np.uint64]:
    """For each candidate the number by which it ranks as home of ``key``; the greatest is the home.

    Sebastiano Vigna's finalizer (splitmix64) of the address's number and the key.
    """
    mixed = fleet.address_key[rows]
    mixed ^= np.uint64(key)
    mixed ^= mixed >> _SHIFT_30
    mixed *= _FIRST_FACTOR
    mixed ^= mixed >> _SHIFT_27
    mixed *= _SECOND_FACTOR
    mixed ^= mixed >> _SHIFT_31
    return mixed


def session_affinity(fleet: Fleet, rows: Rows, request: Request, _now: float) -> Scores | None:
    """The same endpoint for all requests of a session.

    Formula: 1 for the home of the session's id among the candidates, 0 for the others.
    Reason: what a session leaves behind (caches, connections) is where its last request went. Where prompts
    are compared that is known better, so this only has to decide between endpoints of like cost.
    Fallback: nothing for a request without a session. When the home is gone the next in rank is it.
    When to use: as a weak preference. Nothing is remembered, so all pickers agree, also after a restart.
    """
    if not request.session_id:
        return None
    scores = np.zeros(len(rows))
    scores[ranks(fleet, rows, key_of(request.session_id)).argmax()] = 1.0
    return scores


def model_affinity(fleet: Fleet, rows: Rows, request: Request, _now: float) -> Scores | None:
    """Where the multiplexed model that is asked for is loaded, else always the same place to load it.

    Formula: 1 where the page says it is in use, 0.5 where requests wait for it, else 0; where it is neither
    anywhere, 1 for the home of its id.
    Reason: loading a model takes seconds and pushes another one out. A Ray page tells of it up to ten seconds
    late; until then the home keeps requests for a new model together.
    Fallback: nothing for a request that names no multiplexed model.
    """
    model = request.multiplexed_model_id
    if not model:
        return None
    held = fleet.holders(model)[rows]
    if np.count_nonzero(held):
        scores: Scores = held / float(MODEL_IN_USE)
        return scores
    scores = np.zeros(len(rows))
    scores[ranks(fleet, rows, key_of(model)).argmax()] = 1.0
    return scores


def prefix_home(fleet: Fleet, rows: Rows, request: Request, now: float) -> Scores | None:
    """Where the other pickers will have sent prompts that begin as this one does.

    Formula: 1 for the first home of ``fleet.prefix_key``, 0.5 for the second, 0 for the others; a home with
    more than 1.5 times the mean of requests (and one) or of waiting tokens (and half of this prompt's) is
    none, and the next in its place. Others' requests count among both as far as pages show them. The key
    stands for the prompt up to the first block that less than half of the endpoints hold: what is common to
    all (a system prompt) tells no two conversations apart, and from there on a conversation has the same key
    at every turn, whichever picker had the turns before.
    Reason: several pickers see a part of each conversation; without a word between them each would spread
    it anew, and every engine would compute it. What this picker knows to be cached counts beside it.
    Fallback: nothing for a single picker, and for prompts of less than a block.
    Simulated, four pickers, eight engines, TTFT p90 without and with it, and of a single picker: sessions of
    agents 595, 258 and 146 ms, of another trace 171, 142 and 95; Mooncake's conversations 717, 750 and 420.
    """
    if fleet.replicas == 1 or not fleet.prefix_key:
        return None
    load, tokens = request_load(fleet, rows, now), waiting_tokens(fleet, rows, now)
    share = FULL_HOME / len(rows)
    full = load > share * np.add.reduce(load) + 1.0
    full |= tokens > share * np.add.reduce(tokens) + (FULL_HOME - 1.0) * request.prompt_tokens
    ranked = ranks(fleet, rows, fleet.prefix_key)
    ranked[full] = 0
    scores = np.zeros(len(rows))
    for worth in (1.0, SECOND_HOME):
        home = ranked.argmax()
        if ranked[home]:
            scores[home] = worth
            ranked[home] = 0
    return scores
