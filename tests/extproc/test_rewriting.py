"""Another model is asked for than the client named, and the client does not see it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.extproc.bodies import BodyBudget
from picker.extproc.effects import Ask, Send
from picker.extproc.session import Session, SessionOptions, Surroundings
from picker.routing.decision import Decision
from tests.extproc.gateway import ANSWER, BODY, CHAT, Mark, Play, message, resolve, response

if TYPE_CHECKING:
    from picker.extproc.effects import Effect
    from picker.inference.question import Question

RULES = Surroundings(resolve=resolve)
PICKED = Decision(("10.0.0.1:8000",), Mark())
JSON = "content-type=application/json"

# The sample body names "llama" in bytes 9 to 16; the rules ask for "llama-v2", which is 3 bytes longer.
# The sample answer names that, in bytes 9 to 19.

DUPLEX = {
    "one chunk": """
        RH POST             ->
        RB*(64)             -> ask
        decide a            -> RH a, RB*(67)
    """,
    "the name in two chunks, there and back": f"""
        RH POST content-length=64 ->
        RB[:12]             ->
        RB[12:]             ->
        RB*(0)              -> ask
        decide a            -> RH a content-length=67, RB(19), RB*(48)
        SH 200 {JSON} content-length=70 -> SH -content-length
        SB[:12]             -> SB(1), first token
        SB[12:]             -> SB(66)
        SB*(0)              -> SB*(0), ended complete 200
    """,
    "a chunk that is nothing but name": """
        RH POST             ->
        RB[:10]             ->
        RB[10:13]           ->
        RB[13:]             ->
        RB*(0)              -> ask
        decide a            -> RH a, RB(19), RB*(48)
    """,
    "a request with trailers": """
        RH POST             ->
        RB(64)              ->
        RT                  -> ask
        decide a            -> RH a, RB(67), RT
    """,
    "an answer with trailers gives out what was kept back": f"""
        RH POST             ->
        RB*(64)             -> ask
        decide a            -> RH a, RB*(67)
        SH 200 {JSON}       -> SH
        SB[:12]             -> SB(1), first token
        ST                  -> SB(11), ST, ended complete 200
    """,
    "the decision takes its time": """
        RH POST             ->
        RB*(64)             -> ask
        expire              -> cancel, ask simplest
        decide a            -> RH a, RB*(67)
    """,
    "a length that is none": """
        RH POST content-length=64x ->
        RB*(64)             -> ask
        decide a            -> RH a, RB*(67)
    """,
    "nothing is put back into an answer without a body": """
        RH POST             ->
        RB*(64)             -> ask
        decide a            -> RH a, RB*(67)
        SH* 200 content-length=70 -> SH, ended complete 200
    """,
    "nor into other content": """
        RH POST             ->
        RB*(64)             -> ask
        decide a            -> RH a, RB*(67)
        SH 200 content-type=text/plain content-length=70 -> SH
        SB*(70)             -> SB*(70), first token, ended complete 200
    """,
    "nor into what is compressed": f"""
        RH POST             ->
        RB*(64)             -> ask
        decide a            -> RH a, RB*(67)
        SH 200 {JSON} content-encoding=gzip -> SH
        SB*(70)             -> SB*(70), first token, ended complete 200
    """,
    "nor into a reply of the gateway": f"""
        RH POST             ->
        RB*(64)             -> ask
        SH 504 {JSON}       -> cancel, SH
        SB*(70)             -> SB*(70)
    """,
    "a body that cannot be read": """
        RH POST             ->
        RB*(5)              -> not rewritten, ask
        decide a            -> RH a, RB*(5)
    """,
    "a compressed body": """
        RH POST content-encoding=gzip -> not rewritten, ask
        decide a            -> RH a
        RB*(64)             -> RB*(64)
    """,
    "an API without models": """
        RH POST /upload     -> ask
        decide a            -> RH a
    """,
    "no body": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
    """,
    "no body where there should be one": """
        RH* POST            -> ask
        decide a            -> RH a
    """,
    "a client that leaves": """
        RH POST             ->
        RB*(64)             -> ask
        lose                -> cancel
    """,
}

BUFFERED = {
    "the body is replaced": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB=(67)
        SH 200              -> SH
        close               -> ended closed 200, done
    """,
    "with its length, and the destination": """
        RH POST content-length=64 -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide b            -> RB=(67) b content-length=67
    """,
    "with trailers": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB(64)              -> ask
        decide a            -> RB=(67)
        RT                  -> RT
    """,
    "lost while the decision is pending": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        lose                -> cancel, ended aborted
    """,
    "the gateway replies while the decision is pending": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        SH 504              -> cancel, ended aborted, SH
        close               -> done
    """,
    "a body that is not sent to the picker": """
        RH POST content-length=67108865 -> not rewritten, ask
        decide a            -> RH a modes=none/none
    """,
    "an API without models": """
        RH POST /upload     -> ask
        decide a            -> RH a modes=none/none
    """,
}

BUFFERED_REQUEST = """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB=(67)
"""

BUFFERED_STREAMED = {
    "the answer is changed piece by piece": f"""
        {BUFFERED_REQUEST}
        SH 200 {JSON} content-length=70 -> SH -content-length
        SB[:12]             -> SB=(1), first token
        SB[12:]             -> SB=(66)
        SB(0)               -> SB
        SB*(0)              -> SB, ended complete 200
    """,
    "what stays as it is is not sent back": f"""
        {BUFFERED_REQUEST}
        SH 200 {JSON}       -> SH
        SB[:9]              -> SB=(1), first token
        SB[9:19]            -> SB=(15)
        SB[19:29]           -> SB
        SB*[29:]            -> SB, ended complete 200
    """,
}

BUFFERED_BOTH = {
    "the answer's length is corrected": f"""
        {BUFFERED_REQUEST}
        SH 200 {JSON} content-length=70 -> SH
        SB*(70)             -> SB=(67) content-length=67, ended complete 200
    """,
    "an answer without a length": f"""
        {BUFFERED_REQUEST}
        SH 200 {JSON}       -> SH
        SB(70)              -> SB=(67)
        ST                  -> ST, ended complete 200
    """,
    "an answer that does not name it": f"""
        {BUFFERED_REQUEST}
        SH 200 {JSON} content-length=51 -> SH
        SB*[19:]            -> SB, ended complete 200
    """,
}

PARTIAL = {
    "the whole body": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB=(67)
    """,
    "a part of it cannot be replaced": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB(64)              -> not rewritten, ask
        decide a            -> RB
    """,
    "nor a part of the answer": f"""
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB=(67)
        SH 200 {JSON}       -> SH
        SB(70)              -> SB
    """,
}

UNCHANGEABLE = {
    "POST": """
        RH POST             -> not rewritten, ask
        decide a            -> RH a
        RB*(64)             -> RB
    """,
    "another API": "RH POST /upload -> ask",
}

ALL = [
    pytest.param(modes, book, id=f"{modes} {name}")
    for modes, books in (
        ("duplex/duplex", DUPLEX),
        ("buffered/none", BUFFERED),
        ("buffered/streamed", BUFFERED_STREAMED),
        ("buffered/buffered", BUFFERED_BOTH),
        ("buffered-partial/buffered-partial", PARTIAL),
        ("streamed/none", UNCHANGEABLE),
        ("none/none", UNCHANGEABLE),
    )
    for name, book in books.items()
]


@pytest.mark.sequence("as tables")
@pytest.mark.parametrize(("modes", "book"), ALL)
def test_playbook(modes: str, book: str) -> None:
    play = Play(modes, surroundings=RULES)
    play.act(book)
    play.session.closed(clean=False)
    assert play.budget.used == 0
    assert not play.session.carries_body


def test_the_question_tells_both_names() -> None:
    play = Play("duplex/none", surroundings=RULES)
    play.act("RH POST ->\nRB*(64) -> ask")
    [ask] = play.asked
    assert (ask.question.model, ask.question.incoming_model) == ("llama-v2", "llama")


@pytest.mark.parametrize(
    ("headers", "multiplexed"),
    [({}, "base:two"), ({"serve_multiplexed_model_id": "said"}, "said")],
)
def test_the_adapter_follows_the_model(headers: dict[str, str], multiplexed: str) -> None:
    def rule(question: Question) -> None:
        question.model = "base:two"

    session = Session(SessionOptions(), BodyBudget(1000), Surroundings(resolve=rule))
    session.receive(
        message("request_headers", headers={":method": "POST", ":path": CHAT, **headers}, modes="duplex/none")
    )
    body = b'{"model":"base:one","messages":["hello"]}'
    [ask] = session.receive(message("request_body", body=body, end=True))
    assert isinstance(ask, Ask)
    assert ask.question.multiplexed_model_id == multiplexed


@pytest.mark.parametrize("modes", ["streamed/none", "none/none"])
def test_a_name_that_cannot_be_written_is_not_asked_for(modes: str) -> None:
    play = Play(modes, surroundings=RULES)
    play.act("RH POST -> not rewritten, ask")
    assert play.asked[0].question.model == ""


def test_the_rules_are_asked_once_and_only_when_all_is_known() -> None:
    seen: list[tuple[str, int]] = []
    rules = Surroundings(resolve=lambda question: seen.append((question.model, question.body_bytes)))
    play = Play("buffered/none", surroundings=rules)
    play.act(
        """
        RH POST             -> ask provisional
        expire              -> cancel, ask provisional simplest
        decide a            -> RH a
        RB*(64)             -> ask
        expire              -> cancel, ask simplest
        decide a            -> RB
        """
    )
    assert seen == [("llama", 64)]


def test_a_chunk_that_grows_beyond_the_limit_is_split() -> None:
    play = Play("duplex/none", SessionOptions(chunk_limit=64), surroundings=RULES)
    play.act("RH POST ->\nRB*(64) -> ask\ndecide a -> RH a, RB(9), RB(10), RB*(48)")


def test_a_body_beyond_the_bound_is_changed_in_what_was_read() -> None:
    play = Play("duplex/none", SessionOptions(max_body=63), surroundings=RULES)
    play.act(
        """
        RH POST content-length=1000 ->
        RB(63)              ->
        RB(64)              -> ask
        decide a            -> RH a content-length=1003, RB(66), RB(64)
        RB*(873)            -> RB*(873)
        """
    )


def test_no_name_is_added_to_a_body_that_was_not_seen_as_a_whole() -> None:
    play = Play("duplex/none", SessionOptions(max_body=8), surroundings=RULES)
    play.act("RH POST ->\nRB(9) -> not rewritten, ask\ndecide a -> RH a, RB(9)")


def test_a_buffered_body_for_which_there_is_no_room_does_not_wait_for_a_better_decision() -> None:
    play = Play("buffered/none", budget=100, surroundings=RULES)
    play.act(
        """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask simplest
        decide a            -> RB=(67)
        """
    )
    assert play.budget.used == 0


def test_a_body_that_may_have_to_be_changed_is_waited_for_at_the_end_of_the_process() -> None:
    play = Play("buffered/none", surroundings=RULES)
    play.act("RH POST -> ask provisional\ndecide a -> RH a")
    assert play.session.carries_body
    play.act("RB*(64) -> ask")
    assert play.session.carries_body
    play.act("decide a -> RB=(67)")
    assert not play.session.carries_body


def test_what_is_kept_back_of_an_answer_is_not_lost_by_an_early_end() -> None:
    play = Play("buffered/streamed", surroundings=RULES)
    play.act(f"{BUFFERED_REQUEST}\nSH 200 {JSON} -> SH")
    assert play.session.carries_body
    play.act("SB*(70) -> SB=(67), first token, ended complete 200")
    assert not play.session.carries_body


STRICT = {
    "a rule gives the model": ("duplex/none", resolve, b'{"messages":["hello"]}', None),
    "no rule gives it": (
        "duplex/none",
        lambda _question: None,
        b'{"messages":["hello"]}',
        "model not found in request body",
    ),
    "a rule does not mend the rest": ("duplex/none", resolve, b'{"model":"llama"}', "no messages"),
}


@pytest.mark.parametrize(("modes", "rule", "body", "text"), STRICT.values(), ids=STRICT)
def test_strict_bodies(modes: str, rule: object, body: bytes, text: str | None) -> None:
    session = Session(
        SessionOptions(strict_bodies=True),
        BodyBudget(1000),
        Surroundings(resolve=rule),  # type: ignore[arg-type]
    )
    session.receive(message("request_headers", headers={":method": "POST", ":path": CHAT}, modes=modes))
    first, *_ = session.receive(message("request_body", body=body, end=True))
    if text is None:
        assert isinstance(first, Ask)
    else:
        assert isinstance(first, Send)
        reply = response(first).immediate_response
        assert reply.body.decode() == f"inference error: BadRequest - {text}"
        assert not reply.headers.set_headers


# What arrives, whatever the body is and however it is cut.


def sent(body: bytes, cuts: list[int], modes: str) -> bytes:
    """What the upstream gets of a body that comes in pieces (in mode BUFFERED: in one)."""
    session = Session(SessionOptions(chunk_limit=100), BodyBudget(1 << 20), RULES)
    effects = session.receive(
        message("request_headers", headers={":method": "POST", ":path": CHAT}, modes=modes)
    )
    effects += session.decided(PICKED)
    bounds = [0, *sorted(cuts), len(body)] if modes == "duplex/none" else [0, len(body)]
    pieces = [body[start:stop] for start, stop in pairwise(bounds)]
    for number, piece in enumerate(pieces, 1):
        effects += session.receive(message("request_body", body=piece, end=number == len(pieces)))
    effects += session.decided(PICKED)
    got, replaced = b"", False
    for answer in answers(effects, "request_body"):
        mutation = answer.body_mutation
        replaced = replaced or mutation.HasField("body")
        got += mutation.streamed_response.body + mutation.body
    return got if modes == "duplex/none" or replaced else body


def answers(effects: list[Effect], kind: str) -> list:  # type: ignore[type-arg]  # of CommonResponse
    parsed = [response(effect) for effect in effects if isinstance(effect, Send)]
    return [getattr(answer, kind).response for answer in parsed if answer.WhichOneof("response") == kind]


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(['"model":"llama"', "\\"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.just("model"), inner, max_size=3)
    ),
    max_leaves=8,
)
documents = st.builds(
    lambda before, model, after, indent: json.dumps(
        {**before, **({} if model is None else {"model": model}), **after}, indent=indent
    ),
    st.dictionaries(st.sampled_from(["messages", "a", "\u00e9", "mode"]), values, max_size=3),
    st.sampled_from(["llama", "", None]),
    st.dictionaries(st.sampled_from(["stream", "seed", "b\\"]), values, max_size=3),
    st.sampled_from([None, 1]),
)


@settings(max_examples=150, deadline=None)
@given(documents, st.lists(st.integers(0, 100), max_size=6))
def test_only_the_model_changes_wherever_the_body_is_cut(text: str, cuts: list[int]) -> None:
    body = text.encode()
    document = json.loads(body)
    wanted = "llama-v2" if document.get("model") else "default"
    got = sent(body, [min(cut, len(body)) for cut in cuts], "duplex/none")
    assert json.loads(got) == document | {"model": wanted}
    assert got == sent(body, [], "duplex/none")
    assert got == sent(body, [], "buffered/none")
    if document.get("model"):
        assert len(got) == len(body) + 3


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_what_is_no_json_is_passed_on_as_it_is(body: bytes, cuts: list[int]) -> None:
    body = b"\xff" + body
    assert sent(body, [min(cut, len(body)) for cut in cuts], "duplex/none") == body


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"messages":[1]}', b'{"model":"default","messages":[1]}'),
        (b" \n{ }", b' \n{"model":"default" }'),
        (b'{"model":null,"messages":[1]}', b'{"model":"default","messages":[1]}'),
        (
            b'{"model" : "", "seed": 12345678901234567890}',
            b'{"model" : "default", "seed": 12345678901234567890}',
        ),
        (b'{"model":"llama","model":"llama"}', b'{"model":"llama","model":"llama-v2"}'),
        (b'{"x":{"model":"llama"},"model":"llama"}', b'{"x":{"model":"llama"},"model":"llama-v2"}'),
        (b'{"x":{"model":"llama"}}', b'{"model":"default","x":{"model":"llama"}}'),
        (b'{"mod\\u0065l":"ll\\u0061ma"}', b'{"mod\\u0065l":"llama-v2"}'),
        (b'{"model":7}', b'{"model":7}'),
        (b'{"model":"llama"', b'{"model":"llama"'),
        (b"[]", b"[]"),
        (b"", b""),
    ],
)
@pytest.mark.parametrize("modes", ["duplex/none", "buffered/none"])
def test_where_the_name_is_written(body: bytes, wanted: bytes, modes: str) -> None:
    assert sent(body, [], modes) == wanted


def test_a_long_body_of_many_parts_without_a_model() -> None:
    messages = b",".join(b'{"role":"user"}' for _ in range(5000))
    body = b'{"messages":[' + messages + b"]}"
    assert sent(body, [], "buffered/none") == b'{"model":"default",' + body[1:]
    assert sent(body[:-1] + b',"model":null}', [], "buffered/none") == body[:-1] + b',"model":"default"}'


def received(answer: bytes, cuts: list[int], modes: str, *, trailers: bool) -> bytes:
    """What the client gets of an answer that comes in pieces."""
    session = Session(SessionOptions(chunk_limit=100), BodyBudget(1 << 20), RULES)
    session.receive(message("request_headers", headers={":method": "POST", ":path": CHAT}, modes=modes))
    session.decided(PICKED)
    session.receive(message("request_body", body=BODY, end=True))
    session.decided(PICKED)
    headers = {":status": "200", "content-type": "text/event-stream"}
    session.receive(message("response_headers", headers=headers))
    bounds = [0, *sorted(cuts), len(answer)]
    got = b""
    for start, stop in pairwise(bounds):
        piece = answer[start:stop]
        end = stop == len(answer) and not trailers
        for common in answers(
            session.receive(message("response_body", body=piece, end=end)), "response_body"
        ):
            mutation = common.body_mutation
            got += mutation.streamed_response.body
            got += mutation.body if mutation.HasField("body") else b""
            got += piece if mutation.WhichOneof("mutation") is None else b""
        if end:
            break
    if trailers:
        for common in answers(session.receive(message("response_trailers")), "response_body"):
            got += common.body_mutation.streamed_response.body
    return got


events = st.lists(
    st.sampled_from(
        [b'data: {"model":"llama-v2"}\n\n', ANSWER, b'"model": "llama-v2x"', b'"mod', b"\n", b"\xff"]
    ),
    max_size=5,
).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(
    events,
    st.lists(st.integers(0, 200), max_size=6),
    st.sampled_from(["duplex/duplex", "buffered/streamed"]),
    st.booleans(),
)
def test_the_clients_name_comes_back_wherever_the_answer_is_cut(
    answer: bytes, cuts: list[int], modes: str, trailers: bool
) -> None:
    wanted = answer.replace(b'"model":"llama-v2"', b'"model":"llama"')
    got = received(
        answer, [min(cut, len(answer)) for cut in cuts], modes, trailers=trailers and modes == "duplex/duplex"
    )
    assert got == wanted


def test_the_rest_of_a_body_is_not_copied() -> None:
    session = Session(SessionOptions(), BodyBudget(1 << 20), RULES)
    session.receive(message("request_headers", headers={":method": "POST", ":path": CHAT}))
    raw = message("request_body", body=BODY, end=True)
    session.receive(raw)
    effects = session.decided(PICKED)
    views = [s for e in effects if isinstance(e, Send) for s in e.segments if isinstance(s, memoryview)]
    assert [len(view) for view in views] == [9, 48]
    assert all(view.obj is raw for view in views)
