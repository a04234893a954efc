"""What holds for a session whatever the gateway sends, and whenever it breaks off."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.extproc.bodies import BodyBudget
from picker.extproc.effects import Ask, Cancel, Done, Ended, FirstToken, NotRewritten, Send
from picker.extproc.session import Session, SessionOptions, Surroundings
from picker.routing.decision import Decision, Refusal
from tests.extproc.gateway import ANSWER, BODY, CHAT, MODES, Mark, message, resolve, response

if TYPE_CHECKING:
    from picker.extproc.effects import Effect
    from picker.routing.decision import Answer

DECISIONS: list[Answer] = [
    Decision(("10.0.0.1:8000",), Mark()),
    Decision(("10.0.0.2:8000",), Mark()),
    Refusal(503, "rejected-no-endpoints", "none"),
]

SURROUNDINGS = Surroundings(resolve, lambda: "made-here")

modes = st.sampled_from([f"{asked}/{answered}" for asked in MODES for answered in MODES])
bodies = st.binary(max_size=200) | st.sampled_from(
    [BODY, BODY[:14], BODY[14:], ANSWER, ANSWER[:14], ANSWER[14:]]
)
messages = st.one_of(
    st.builds(
        message,
        st.sampled_from(["request_headers", "response_headers"]),
        headers=st.sampled_from(
            [
                {":method": "POST", ":path": CHAT},
                {":method": "POST", ":path": "/upload", "content-length": "300"},
                {":method": "GET", ":path": "/v1/models"},
                {":method": "POST", ":path": CHAT, "content-length": "64", "x-request-id": "1"},
                {":method": "POST", ":path": "/x.Y/Z", "content-type": "application/grpc"},
                {":status": "200"},
                {":status": "200", "content-type": "application/json", "content-length": "70"},
                {":status": "503", "content-length": "83"},
                {},
            ]
        ),
        end=st.booleans(),
        modes=modes,
    ),
    st.builds(
        message,
        st.sampled_from(["request_body", "response_body"]),
        body=bodies,
        end=st.booleans(),
        metadata=st.sampled_from(
            [{}, {"envoy.lb": {"x-gateway-destination-endpoint-served": "10.0.0.2:8000"}}]
        ),
    ),
    st.builds(message, st.sampled_from(["request_trailers", "response_trailers"])),
)
truncated = st.builds(lambda raw, share: raw[: int(len(raw) * share)], messages, st.floats(0, 1))
events = st.one_of(
    messages,
    messages,
    truncated | st.binary(max_size=30),
    st.sampled_from(DECISIONS),
    st.sampled_from(["expire", "close", "lose"]),
)
options = st.builds(
    SessionOptions,
    max_body=st.integers(0, 400),
    strict_bodies=st.booleans(),
    chunk_limit=st.just(64),
    read_usage=st.booleans(),
    echo_served=st.booleans(),
)


class Ledger:
    """Checks the promises of the effects while they are carried out."""

    def __init__(self) -> None:
        self.asking = False
        self.open = False
        self.ended = 0
        self.done = False
        self.tokens = 0

    def decided(self, answer: Answer) -> None:
        if self.asking:
            self.open = self.open or isinstance(answer, Decision)
        self.asking = False

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert not self.done, "nothing follows Done"
            match effect:
                case Send():
                    assert response(effect).WhichOneof("response")
                case Ask():
                    assert not self.asking, "a question at a time"
                    assert not self.ended
                    self.asking = True
                case NotRewritten():
                    assert not self.asking
                case Cancel():
                    assert self.asking
                    self.asking = False
                case FirstToken():
                    self.tokens += 1
                    assert self.open
                    assert not self.ended
                case Ended():
                    assert self.open
                    self.ended += 1
                case Done():
                    self.done = True


@settings(max_examples=300, deadline=None)
@given(
    st.lists(events, max_size=12),
    options,
    st.integers(0, 2000),
    st.sampled_from([SURROUNDINGS, Surroundings()]),
)
def test_any_order_of_events(
    script: list[object], option: SessionOptions, total: int, surroundings: Surroundings
) -> None:
    budget = BodyBudget(total)
    session = Session(option, budget, surroundings)
    ledger = Ledger()
    for event in script:
        match event:
            case bytes():
                effects = session.receive(event)
            case "expire":
                effects = session.expired()
            case "close" | "lose":
                effects = session.closed(clean=event == "close")
            case Decision() | Refusal():
                ledger.decided(event)
                effects = session.decided(event)
            case _:
                raise AssertionError(event)
        ledger.carry_out(effects)
        assert budget.used <= total
    ledger.carry_out(session.closed(clean=False))
    assert budget.used == 0
    assert not ledger.asking
    assert ledger.ended == ledger.open
    assert ledger.tokens <= 1
    assert not session.carries_body
    assert session.receive(message("request_headers")) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_random_bytes(received: list[bytes]) -> None:
    session = Session(SessionOptions(read_usage=True, echo_served=True), BodyBudget(1000), SURROUNDINGS)
    for raw in received:
        session.receive(raw)
    session.closed(clean=True)


@st.composite
def chunkings(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A body and any way to cut it up, empty chunks among them."""
    body = draw(st.binary(max_size=400) | st.just(BODY))
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=8)))
    bounds = [0, *cuts, len(body)]
    return body, [body[start:stop] for start, stop in pairwise(bounds)]


@settings(max_examples=150, deadline=None)
@given(
    cut=chunkings(),
    path=st.sampled_from([CHAT, "/upload"]),
    end=st.sampled_from(["with the last chunk", "apart", "trailers"]),
    answer_after=st.integers(0, 12),
    max_body=st.integers(0, 500),
    chunk_limit=st.integers(1, 100),
)
def test_a_duplex_body_reaches_the_upstream_unchanged(
    *, cut: tuple[bytes, list[bytes]], path: str, end: str, answer_after: int, max_body: int, chunk_limit: int
) -> None:
    body, chunks = cut
    session = Session(SessionOptions(max_body, chunk_limit=chunk_limit), BodyBudget(1 << 20))
    feed = [message("request_headers", headers={":method": "POST", ":path": path}, modes="duplex/none")]
    feed += [message("request_body", body=chunk) for chunk in chunks]
    if end == "with the last chunk":
        feed[-1] = message("request_body", body=chunks[-1], end=True)
    elif end == "apart":
        feed.append(message("request_body", end=True))
    else:
        feed.append(message("request_trailers"))
    effects: list[Effect] = []
    for number, raw in enumerate(feed):
        effects += session.receive(raw)
        if number == answer_after:
            effects += session.decided(DECISIONS[0])
    effects += session.decided(DECISIONS[0])
    answers = [response(effect) for effect in effects if isinstance(effect, Send)]
    first, *rest = [answer.WhichOneof("response") for answer in answers]
    assert first == "request_headers"
    assert rest == ["request_body"] * (len(rest) - (end == "trailers")) + ["request_trailers"] * (
        end == "trailers"
    )
    pieces = [
        a.request_body.response.body_mutation.streamed_response for a in answers if a.HasField("request_body")
    ]
    assert b"".join(piece.body for piece in pieces) == body
    assert all(len(piece.body) <= chunk_limit for piece in pieces)
    ends = [piece.end_of_stream for piece in pieces]
    assert ends == [False] * len(ends) if end == "trailers" else ends == [False] * (len(ends) - 1) + [True]
    assert not session.carries_body


@settings(max_examples=60, deadline=None)
@given(chunkings(), st.booleans())
def test_a_duplex_answer_reaches_the_client_unchanged(cut: tuple[bytes, list[bytes]], trailers: bool) -> None:
    body, chunks = cut
    session = Session(SessionOptions(chunk_limit=50), BodyBudget(0))
    session.receive(message("request_headers", headers={":method": "GET", ":path": "/"}, end=True))
    effects = session.decided(DECISIONS[0])
    effects += session.receive(message("response_headers", headers={":status": "200"}))
    for chunk in chunks:
        effects += session.receive(message("response_body", body=chunk))
    effects += session.receive(
        message("response_trailers") if trailers else message("response_body", end=True)
    )
    answers = [response(effect) for effect in effects if isinstance(effect, Send)]
    pieces = [
        a.response_body.response.body_mutation.streamed_response
        for a in answers
        if a.HasField("response_body")
    ]
    assert b"".join(piece.body for piece in pieces) == body
    assert [piece.end_of_stream for piece in pieces].count(True) == (not trailers)
    assert isinstance(effects[-1], Ended)


def test_an_echoed_body_is_not_copied() -> None:
    session = Session(SessionOptions(chunk_limit=1000), BodyBudget(1 << 20))
    raw = [message("request_body", body=bytes(2500)), message("request_body", body=bytes(10))]
    effects = session.receive(message("request_headers", headers={":method": "POST", ":path": "/upload"}))
    effects += session.receive(raw[0])
    effects += session.decided(DECISIONS[0])
    effects += session.receive(raw[1])
    views = [s for e in effects if isinstance(e, Send) for s in e.segments if isinstance(s, memoryview)]
    assert [len(view) for view in views] == [1000, 1000, 500, 10]
    assert all(view.obj is raw[0] for view in views[:3])
    assert views[3].obj is raw[1]


@pytest.mark.parametrize("status", ["200", "500"])
def test_the_first_token_is_told_once(status: str) -> None:
    session = Session(SessionOptions(), BodyBudget(0))
    session.receive(message("request_headers", headers={":method": "GET", ":path": "/"}, end=True))
    session.decided(DECISIONS[0])
    session.receive(message("response_headers", headers={":status": status}))
    effects = [
        effect
        for body in (b"", b"a", b"b")
        for effect in session.receive(message("response_body", body=body))
    ]
    assert sum(isinstance(effect, FirstToken) for effect in effects) == (status == "200")
