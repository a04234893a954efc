"""Sessions that stay at an endpoint: as a filter or a scorer, by a token or by an id.

A session never leads to an endpoint that is no candidate, and none is kept to while it is saturated: what a
session saves is a part of one prefill, and waiting behind a full queue costs more.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from scorer.fleet import Slot
from scorer.plugins.columns import PerVersion
from scorer.plugins.plugin import Plugin, PluginType

if TYPE_CHECKING:
    from scorer.contract import Mark, Mask, Request, Rows, Scores, Sent
    from scorer.document import Fields
    from scorer.fleet import Fleet
    from scorer.plugins.plugin import Means
    from scorer.saturation import Saturation

TOKEN_HEADER = "x-session-token"  # noqa: S105 - a header's name
ID_HEADER = "x-session-id"
AGENT_IDENTITY = "agent-identity"
AGENT_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
"""Where the reference picker's ``agent-identity`` finds a session, in its order."""
MOST_SESSIONS = 100_000
"""Sessions remembered by id; about 20 MB. The one that was silent longest goes first."""
_MAC_BYTES = 24


class Sessions(Protocol):
    """Where a request's session is."""

    def row(self, fleet: Fleet, request: Request, now: float) -> int:
        """The row of the endpoint it is kept at, or -1."""


class _Tokens(NamedTuple):
    of_row: dict[int, str]
    rows: dict[str, int]


class TokenSessions:
    """The client carries a token that names the endpoint; nothing is remembered.

    The token is a MAC of the endpoint's address: without the key nobody can make one, and it tells nothing of
    the network. All are made when the pool changes, so looking one up compares no secrets.
    """

    def __init__(self, header: str, key: bytes) -> None:
        self._header = header
        self._key = key
        self._made: dict[str, str] = {}
        self._tokens = PerVersion(self._make)

    def row(self, fleet: Fleet, request: Request, _now: float) -> int:
        """See :class:`Sessions`."""
        token = request.headers.get(self._header)
        return self._tokens.of(fleet).rows.get(token, -1) if token else -1

    def mark(self, fleet: Fleet, row: int, _request: Request, _now: float) -> tuple[str, str]:
        """The token of the endpoint that serves this request."""
        return self._header, self._tokens.of(fleet).of_row[row]

    def _make(self, fleet: Fleet) -> _Tokens:
        addresses = {row: fleet.addresses[row] for row in fleet.alive.nonzero()[0].tolist()}
        self._made = {
            address: self._made.get(address) or self._sign(address) for address in addresses.values()
        }
        of_row = {row: self._made[address] for row, address in addresses.items()}
        return _Tokens(of_row, {token: row for row, token in of_row.items()})

    def _sign(self, address: str) -> str:
        mac = hmac.digest(self._key, b"session " + address.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(mac[:_MAC_BYTES]).decode()


class _Binding(NamedTuple):
    slot: Slot
    seen_at: float


class IdSessions:
    """The client names its session; where it was sent last is remembered for ``ttl`` seconds of silence."""

    def __init__(self, headers: tuple[str, ...], ttl: float) -> None:
        self._headers = headers
        self._ttl = ttl
        self._bindings: OrderedDict[bytes, _Binding] = OrderedDict()
        """By digests of the ids, which bounds their size; the one that was silent longest is first."""

    def row(self, fleet: Fleet, request: Request, now: float) -> int:
        """See :class:`Sessions`."""
        key = self._key(request)
        binding = self._bindings.get(key) if key else None
        if binding is None or now - binding.seen_at > self._ttl or not fleet.holds(binding.slot):
            return -1
        return binding.slot.row

    def sent(self, fleet: Fleet, row: int, request: Request, now: float) -> None:
        """Remember where the session is."""
        key = self._key(request)
        if not key:
            return
        self._bindings[key] = _Binding(fleet.slot_at(row), now)
        self._bindings.move_to_end(key)
        oldest = next(iter(self._bindings.values()))
        if len(self._bindings) > MOST_SESSIONS or now - oldest.seen_at > self._ttl:
            self._bindings.popitem(last=False)

    def __len__(self) -> int:
        """Sessions remembered, some of them perhaps over."""
        return len(self._bindings)

    def _key(self, request: Request) -> bytes:
        for header in self._headers:
            if value := request.headers.get(header):
                return hashlib.blake2b(value.encode("utf-8", "surrogateescape"), digest_size=16).digest()
        return b""


class Affinity:
    """What a session means for the candidates."""

    def __init__(self, sessions: Sessions, saturation: Saturation) -> None:
        self._sessions = sessions
        self._saturation = saturation

    def keep(self, fleet: Fleet, rows: Rows, request: Request, now: float) -> Mask:
        """The session's endpoint alone; everybody where there is none that can be kept to."""
        home = self._home(fleet, rows, request, now)
        return np.ones(len(rows), dtype=np.bool_) if home is None else home

    def score(self, fleet: Fleet, rows: Rows, request: Request, now: float) -> Scores:
        """1 for the session's endpoint, 0 for others."""
        home = self._home(fleet, rows, request, now)
        return np.zeros(len(rows)) if home is None else home.astype(np.float64)

    def _home(self, fleet: Fleet, rows: Rows, request: Request, now: float) -> Mask | None:
        row = self._sessions.row(fleet, request, now)
        if row < 0:
            return None
        home: Mask = rows == row
        if not home.any() or self._saturation(fleet, np.array([row], dtype=np.intp), now)[0] >= 1.0:
            return None
        return home


def _affinity(fields: Fields, means: Means) -> tuple[Affinity, Sent | None, Mark | None]:
    strategy = fields.text("strategy", "encoded_endpoint_header", ("encoded_endpoint_header", "session_id"))
    fields.text("profileName")  # there is one profile
    header = fields.fields("encodedEndpointHeaderConfig").text("header", TOKEN_HEADER).lower()
    by_id = fields.fields("sessionIdConfig")
    headers = _sources(by_id)
    ttl = by_id.number("evictionTtlSeconds", 300.0, 0.001)
    by_id.number("evictionSweepSeconds", 10.0, 0.001)  # ours goes with each request
    if strategy == "session_id":
        ids = IdSessions(headers, ttl)
        return Affinity(ids, means.saturation), ids.sent, None
    tokens = TokenSessions(header, means.session_key)
    return Affinity(tokens, means.saturation), None, tokens.mark


def _sources(fields: Fields) -> tuple[str, ...]:
    headers: list[str] = []
    for source in fields.mappings("sources"):
        header, attribute = source.text("header"), source.text("attribute", choices=(AGENT_IDENTITY,))
        if bool(header) == bool(attribute):
            raise source.error("needs either 'header' or 'attribute'")
        headers += (header.lower(),) if header else AGENT_HEADERS
    return tuple(headers) or (ID_HEADER,)


def _filter(fields: Fields, means: Means) -> Plugin:
    affinity, sent, mark = _affinity(fields, means)
    return Plugin(keep=affinity.keep, sent=sent, mark=mark)


def _scorer(fields: Fields, means: Means) -> Plugin:
    affinity, sent, mark = _affinity(fields, means)
    return Plugin(score=affinity.score, sent=sent, mark=mark)


SESSIONS = (
    PluginType("session-affinity-filter", _filter),
    PluginType("session-affinity-scorer", _scorer),
)
