"""The steps of a request's way, each as a function that does it once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from bench.micro.fixtures import DUPLEX, HEADERS, body, chat, headers, pool
from bench.micro.prefix import prefix_steps
from bench.micro.request import Requests
from bench.scrape.pages import page
from picker.extproc.bodies import BodyBudget
from picker.extproc.messages import header_dict, headers_with, parse, read_body_message
from picker.extproc.session import Session, SessionOptions
from picker.inference.reading import needs_body, read_body, read_headers
from picker.metrics.dialects.ray_serve import RAY_SERVE
from picker.metrics.dialects.vllm import VLLM
from picker.routing.decision import Cause, Decision, Outcome, Visibility
from picker.routing.router import Router
from scorer.prefix import PrefixIndex
from scorer.profile import built_in_profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from picker.inference.question import Question

Step = tuple[str, "Callable[[], object]"]

POOLS = (8, 100, 1000)
_VISIBLE = Visibility(status=True, first_token=True, end=True)
_FINISHED = Outcome(Cause.COMPLETE, status=200)
_NOW = 1000.0
_PAGES_EVERY = 1.0
_INDEX_BYTES = 256 << 20
_SMALL, _LARGE = 200, 220_000


def steps() -> list[Step]:
    """All of them, in the order of the way. Needs a running event loop."""
    return [*_reading(), *_deciding(), *_answering(), *_whole(), *_pages(), *prefix_steps()]


def _reading() -> list[Step]:
    first = headers("request_headers", HEADERS, (DUPLEX, DUPLEX))
    found = dict(HEADERS)

    def parse_headers() -> object:
        request = parse(first)
        return header_dict(request.request_headers.headers) if request is not None else None

    def question() -> object:
        return needs_body(read_headers(found))

    def read(size: int) -> Callable[[], object]:
        message = body("request_body", chat(size), end=True)

        def read_one() -> object:
            received = read_body_message(message)
            asked = read_headers(found)
            if received is not None:
                read_body(asked, received[1], complete=True)
            return asked

        return read_one

    return [
        ("headers message: parse", parse_headers),
        ("headers: question", question),
        ("question and body of 200 B", read(_SMALL)),
        ("question and body of 220 kB", read(_LARGE)),
    ]


def _question() -> Question:
    question = read_headers(HEADERS)
    read_body(question, chat(_SMALL), complete=True)
    return question


def _deciding() -> list[Step]:
    def decide(endpoints: int) -> Callable[[], object]:
        rng = random.Random(endpoints)
        fleet = pool(endpoints, rng, _NOW)
        router = Router(fleet, built_in_profile(), rng, index=PrefixIndex(_INDEX_BYTES))
        question = _question()
        now = _NOW
        router.ask(question, _VISIBLE, now)  # which waits for its first token all the time, as others do

        def ask_and_end() -> object:
            nonlocal now
            now += 0.001
            if now > fleet.fetched_at[0] + _PAGES_EVERY:
                fleet.fetched_at[:endpoints] = now
            decision = router.ask(question, _VISIBLE, now)
            if isinstance(decision, Decision):
                router.first_token(decision.ticket, now)
                router.ended(decision.ticket, _FINISHED, now)
            return decision

        return ask_and_end

    def choose(endpoints: int, pickers: int) -> Callable[[], object]:
        rng = random.Random(endpoints)
        fleet = pool(endpoints, rng, _NOW)
        fleet.replicas, fleet.prefix_key, fleet.mean_tokens = pickers, 1, 100.0
        rows = fleet.alive.nonzero()[0]
        profile, question = built_in_profile(), _question()
        fleet.own[rows] = rows % 7
        fleet.own_tokens[rows] = rows % 11 * 100
        fleet.queue[rows] = rows % 5
        fleet.matched_tokens[rows[::3]] = 10.0
        return lambda: profile.run(fleet, rows, question, _NOW, rng)

    return [
        *(
            (f"built-in profile alone, {size} endpoints, {told}", choose(size, pickers))
            for pickers, told in ((1, "1 picker"), (4, "4 pickers"))
            for size in (10, 100, 1000)
        ),
        *((f"ask, first token and end, {size} endpoints", decide(size)) for size in POOLS),
    ]


def _answering() -> list[Step]:
    session = Session(SessionOptions(), BodyBudget(1 << 30))
    for message in (
        headers("request_headers", HEADERS, (DUPLEX, DUPLEX)),
        body("request_body", chat(_SMALL), end=True),
    ):
        session.receive(message)
    session.decided(Decision(("10.0.0.1:8000",), object()))
    session.receive(headers("response_headers", {":status": "200"}))
    chunk = body("response_body", b'data: {"choices":[{"delta":{"content":" token"}}]}\n\n', end=False)
    return [
        ("answer to headers", lambda: headers_with("10.0.0.1:8000", ())),
        ("echo of a chunk of the answer", lambda: session.receive(chunk)),
    ]


def _whole() -> list[Step]:
    return [
        (f"whole request, {mode}, {size} endpoints", Requests(size, mode).one)
        for mode in ("duplex", "buffered")
        for size in POOLS
    ]


def _pages() -> list[Step]:
    vllm, ray = page("vllm"), page("ray")
    return [
        ("page of vLLM, 50 kB: read", lambda: VLLM.read(vllm)),
        ("page of Ray, 300 kB: read", lambda: RAY_SERVE.read(ray)),
    ]
