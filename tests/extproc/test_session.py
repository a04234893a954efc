"""What a session takes from messages and says in its answers, beside their order."""

from __future__ import annotations

import pytest

from picker.extproc._generated.external_processor_pb2 import ProcessingRequest
from picker.extproc.bodies import BodyBudget
from picker.extproc.effects import Ask, Done, Ended, Send
from picker.extproc.session import Session, SessionOptions, Surroundings
from picker.inference.surfaces import Surfaces
from picker.inference.usage import Usage
from picker.routing.decision import Decision, Refusal, Visibility
from tests.extproc.gateway import ANSWER, BODY, CHAT, Mark, Play, message, response

SUBSET = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
SERVED = {"envoy.lb": {"x-gateway-destination-endpoint-served": "10.0.0.2:8000"}}
POST = {":method": "POST", ":path": CHAT}
GET = {":method": "GET", ":path": "/v1/models"}


def new_session() -> Session:
    return Session(SessionOptions(), BodyBudget(1 << 20))


def hint(value: object) -> dict[str, dict[str, object]]:
    return {SUBSET[0]: {SUBSET[1]: value}}


@pytest.mark.parametrize(
    ("value", "subset"),
    [
        (["10.0.0.1:80", "10.0.0.2:80"], ("10.0.0.1:80", "10.0.0.2:80")),
        ("10.0.0.1:80, 10.0.0.2:80", ("10.0.0.1:80", "10.0.0.2:80")),
        (["10.0.0.1:80,10.0.0.2:80", " [fd00::1]:80 "], ("10.0.0.1:80", "10.0.0.2:80", "[fd00::1]:80")),
        ([], ()),
        ("", ()),
        ([""], ()),
        ([None, 3, "10.0.0.1"], ("10.0.0.1",)),
        (None, None),
        (7, None),
        ({"a": "b"}, None),
    ],
)
def test_subset_hint(value: object, subset: tuple[str, ...] | None) -> None:
    session = new_session()
    session.receive(message("request_headers", headers=GET, end=True, metadata=hint(value)))
    assert session.question is not None
    assert session.question.subset == subset


def test_the_latest_subset_hint_counts() -> None:
    session = new_session()
    session.receive(message("request_headers", headers=POST, metadata=hint(["10.0.0.1:80"])))
    session.receive(message("request_body", body=b"{", metadata=hint(["10.0.0.2:80"])))
    session.receive(message("request_body", body=b"}"))
    [ask] = session.receive(message("request_body", end=True, metadata={"other": {}}))
    assert isinstance(ask, Ask)
    assert ask.question.subset == ("10.0.0.2:80",)


@pytest.mark.parametrize("modes", ["duplex/duplex", "buffered/none"])
def test_what_a_decision_tells_the_client_is_set_on_the_response(modes: str) -> None:
    session = new_session()
    session.receive(message("request_headers", headers=POST, modes=modes))
    session.decided(Decision(("10.0.0.1:8000",), Mark(), (("x-session-token", "old"),)))
    session.receive(message("request_body", body=BODY, end=True))
    session.decided(Decision(("10.0.0.1:8000",), Mark(), (("x-session-token", "abc"),)))
    [answer] = session.receive(message("response_headers", headers={":status": "200"}))
    assert isinstance(answer, Send)
    [option] = response(answer).response_headers.response.header_mutation.set_headers
    assert (option.header.key, option.header.raw_value) == ("x-session-token", b"abc")


def test_a_reply_of_the_gateway_itself_tells_nothing_of_a_decision() -> None:
    session = new_session()
    session.receive(message("request_headers", headers=POST, modes="buffered/none"))
    session.decided(Decision(("10.0.0.1:8000",), Mark(), (("x-session-token", "abc"),)))
    *_, answer = (
        effect
        for effect in session.receive(message("response_headers", headers={":status": "413"}))
        if isinstance(effect, Send)
    )
    assert not response(answer).response_headers.response.HasField("header_mutation")


def test_headers_are_read_in_parts_as_protobuf_reads_the_whole() -> None:
    usual = message("request_headers", headers=GET, end=True, modes="duplex/none", metadata=hint(["a:1"]))
    merged = usual + message("request_headers", headers={"x-more": "1"}, end=True)
    broken = usual[:-1], usual + b"\x42\x01\xff"

    [ask] = new_session().receive(usual)
    assert isinstance(ask, Ask)
    assert (ask.question.headers, ask.question.subset) == (GET, ("a:1",))
    [ask] = new_session().receive(merged)
    assert isinstance(ask, Ask)
    assert (ask.question.headers, ask.question.subset) == ({**GET, "x-more": "1"}, ("a:1",))
    for raw in broken:
        assert new_session().receive(raw) == [Done("a message that is no ProcessingRequest")]


def test_who_served_is_reported_with_the_end() -> None:
    session = new_session()
    session.receive(message("request_headers", headers=GET, end=True))
    session.decided(Decision(("10.0.0.1:8000", "10.0.0.2:8000"), Mark()))
    session.receive(message("response_headers", headers={":status": "200"}, metadata=SERVED))
    session.receive(message("response_body", body=b"x", metadata=SERVED))
    *_, ended = session.receive(message("response_body", end=True, metadata=SERVED))
    assert isinstance(ended, Ended)
    assert ended.outcome.served == "10.0.0.2:8000"


def test_the_question_holds_headers_and_body() -> None:
    session = new_session()
    session.receive(message("request_headers", headers=POST | {"x-request-id": "1"}))
    session.receive(message("request_body", body=BODY[:10]))
    session.receive(message("request_body", body=BODY[10:], end=True))
    question = session.question
    assert question is not None
    assert (question.model, question.path, question.headers["x-request-id"]) == ("llama", CHAT, "1")
    assert (question.body_bytes, question.unreadable) == (len(BODY), "")


@pytest.mark.parametrize(
    ("modes", "request_headers", "visibility"),
    [
        ("duplex/duplex", POST, Visibility(status=True, first_token=True, end=True)),
        ("duplex/none", POST, Visibility(status=False, first_token=False, end=False)),
        ("buffered/none", POST, Visibility(status=True, first_token=False, end=True)),
        ("buffered/none", GET, Visibility(status=True, first_token=False, end=False)),
        ("buffered/streamed", POST, Visibility(status=True, first_token=True, end=True)),
        ("buffered/buffered", POST, Visibility(status=True, first_token=False, end=True)),
        ("streamed/none", POST, Visibility(status=False, first_token=False, end=False)),
        ("streamed/streamed", POST, Visibility(status=True, first_token=True, end=True)),
        ("none/none", POST, Visibility(status=False, first_token=False, end=False)),
    ],
)
def test_visibility_follows_the_modes(
    modes: str, request_headers: dict[str, str], visibility: Visibility
) -> None:
    session = new_session()
    effects = session.receive(message("request_headers", headers=request_headers, modes=modes))
    effects += session.receive(message("request_body", body=BODY, end=True))
    asks = [effect for effect in effects if isinstance(effect, Ask)]
    assert asks[0].visibility == visibility


@pytest.mark.parametrize("modes", ["none/streamed", "none/buffered", "duplex/duplex"])
def test_ray_says_in_the_body_that_it_is_full(modes: str) -> None:
    session = new_session()
    session.receive(message("request_headers", headers=GET, end=True, modes=modes))
    session.decided(Decision(("10.0.0.1:8000",), Mark()))
    session.receive(message("response_headers", headers={"status": "503"}))
    text = b"Request dropped due to backpressure (num_queued_requests=5, max_queued_requests=5)."
    *_, ended = session.receive(message("response_body", body=text, end=True))
    assert isinstance(ended, Ended)
    assert (ended.outcome.status, ended.outcome.back_pressure) == (503, True)


@pytest.mark.parametrize(
    ("status", "value", "full", "seconds"),
    [
        ("503", "10", True, 10),
        ("429", "0", True, 0),
        ("503", "Wed, 21 Oct 2026 07:28:00 GMT", True, None),
        ("503", "-1", True, None),
        ("503", "9" * 400, True, None),
        ("200", "10", False, None),
        ("ok", "10", False, None),
    ],
)
def test_retry_after(status: str, value: str, full: bool, seconds: float | None) -> None:
    session = new_session()
    session.receive(message("request_headers", headers=GET, end=True))
    session.decided(Decision(("10.0.0.1:8000",), Mark()))
    headers = {":status": status, "retry-after": value}
    *_, ended = session.receive(message("response_headers", headers=headers, end=True))
    assert isinstance(ended, Ended)
    assert (ended.outcome.back_pressure, ended.outcome.retry_after) == (full, seconds)


def test_a_client_of_grpc_is_refused_in_its_own_way() -> None:
    session = new_session()
    session.receive(
        message(
            "request_headers",
            headers={":method": "POST", ":path": "/x.Y/Z", "content-type": "application/grpc+proto"},
        )
    )
    refusal = Refusal(503, "rejected-no-endpoints", "none")
    send, done = session.decided(refusal)
    assert isinstance(send, Send)
    assert response(send).immediate_response.grpc_status.status == 14
    assert done == Done(refusal=refusal)


def test_nothing_of_the_clients_headers_is_sent_back() -> None:
    session = new_session()
    spoofed = GET | {"x-gateway-destination-endpoint": "169.254.169.254:80", "cookie": "secret"}
    session.receive(message("request_headers", headers=spoofed, end=True))
    [send] = session.decided(Decision(("10.0.0.1:8000",), Mark()))
    assert isinstance(send, Send)
    [header] = response(send).request_headers.response.header_mutation.set_headers
    assert header.header.raw_value == b"10.0.0.1:8000"


PROVISIONAL = "RH POST -> ask provisional\ndecide a -> RH a"
MADE = Surroundings(new_request_id=lambda: "made-here")


@pytest.mark.parametrize(
    ("modes", "book"),
    [
        ("duplex/none", "RH* GET /v1/models -> ask\ndecide a -> RH a x-request-id=made-here"),
        ("duplex/none", "RH* GET /v1/models x-request-id=7 -> ask\ndecide a -> RH a"),
        ("duplex/none", "RH* GET /v1/models x-request-id= -> ask\ndecide a -> RH a x-request-id=made-here"),
        ("none/none", "RH POST -> ask\ndecide a -> RH a x-request-id=made-here"),
        ("buffered/none", f"{PROVISIONAL} x-request-id=made-here\nRB*(64) -> ask\ndecide b -> RB b"),
        ("buffered/none", "RH POST /up -> ask\ndecide a -> RH a x-request-id=made-here modes=none/none"),
        ("duplex/duplex", "SH 200 -> SH"),
    ],
)
def test_a_request_without_an_id_gets_one(modes: str, book: str) -> None:
    play = Play(modes, surroundings=MADE)
    play.act(book)
    if play.session.question is not None:
        assert play.session.question.headers["x-request-id"] in ("made-here", "7")


def test_the_traces_context_is_left_alone() -> None:
    play = Play(surroundings=MADE)
    play.act("RH* GET /v1/models traceparent=00-1-2-01 tracestate=a -> ask")
    play.act("decide a -> RH a x-request-id=made-here")


ECHO = "x-conformance-test-served-endpoint"


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (SERVED, b"10.0.0.2:8000"),
        ({"envoy.lb": {"x-gateway-destination-endpoint": "10.0.0.2:8000"}},
         b"fail: missing destination endpoint served metadata"),
        ({"other": {}}, b"fail: missing envoy lb metadata"),
        ({}, b"fail: missing envoy lb metadata"),
    ],
)  # fmt: skip
def test_who_served_is_told_to_conformance_tests(metadata: dict[str, dict[str, object]], text: bytes) -> None:
    session = Session(SessionOptions(echo_served=True), BodyBudget(0))
    session.receive(message("request_headers", headers=GET, end=True))
    session.decided(Decision(("10.0.0.1:8000", "10.0.0.2:8000"), Mark()))
    [send] = session.receive(message("response_headers", headers={":status": "200"}, metadata=metadata))
    assert isinstance(send, Send)
    [header] = response(send).response_headers.response.header_mutation.set_headers
    assert (header.header.key, header.header.raw_value) == (ECHO, text)


@pytest.mark.parametrize("modes", ["duplex/duplex", "duplex/streamed", "duplex/buffered"])
def test_what_an_answer_used_is_told_with_its_end(modes: str) -> None:
    session = Session(SessionOptions(read_usage=True), BodyBudget(1000))
    session.receive(message("request_headers", headers=POST, modes=modes))
    session.receive(message("request_body", body=BODY, end=True))
    session.decided(Decision(("10.0.0.1:8000",), Mark()))
    headers = {":status": "200", "content-type": "application/json"}
    session.receive(message("response_headers", headers=headers))
    pieces = [ANSWER] if modes.endswith("buffered") else [ANSWER[:50], ANSWER[50:]]
    effects = [effect for piece in pieces for effect in session.receive(message("response_body", body=piece))]
    [*_, ended] = effects + session.receive(message("response_trailers"))
    assert isinstance(ended, Ended)
    assert ended.outcome.usage == Usage(7, 3, None)


USAGE = "SB*(70) -> SB*(70), first token, ended complete 200"


@pytest.mark.parametrize(
    ("path", "content", "told"),
    [
        (CHAT, "application/json", f"{USAGE} used=7+3"),
        (CHAT, "text/plain", USAGE),
        ("/upload", "application/json", USAGE),
    ],
)
def test_usage_is_read_only_where_it_stands(path: str, content: str, told: str) -> None:
    play = Play("duplex/duplex", SessionOptions(read_usage=True))
    play.act(f"RH* POST {path} -> ask\ndecide a -> RH a\nSH 200 content-type={content} -> SH\n{told}")


def test_usage_is_not_read_unless_somebody_wants_it() -> None:
    play = Play("duplex/duplex")
    play.act(f"RH* POST -> ask\ndecide a -> RH a\nSH 200 content-type=application/json -> SH\n{USAGE}")


@pytest.mark.parametrize(
    ("modes", "book"),
    [
        ("duplex/none", "RH POST /upload -> reply 400, done"),
        ("buffered/none", "RH POST /upload -> reply 400, done"),
        ("streamed/none", "RH POST /upload -> reply 400, done"),
        ("duplex/none", "RH* GET /v1/models -> ask"),
        ("duplex/none", "RH POST ->\nRB*(5) -> ask"),
    ],
)
def test_a_path_that_no_listed_parser_takes_is_refused(modes: str, book: str) -> None:
    Play(modes, SessionOptions(surfaces=Surfaces(["openai-parser"]))).act(book)


@pytest.mark.parametrize("before", ["", "RH POST ->", "RH POST /upload -> ask\ndecide a -> RH a"])
@pytest.mark.parametrize("garbage", [b"\xff", b"\x12\x7f", b"\x22\x01\x0a", b"\x22\x00\x42\x03\x0a\x01\xff"])
def test_what_cannot_be_decoded_resets_the_stream(before: str, garbage: bytes) -> None:
    play = Play("duplex/none")
    play.act(before)
    *rest, done = play.session.receive(garbage)
    assert isinstance(done, Done)
    assert done.error
    assert len(rest) == ("decide" in before)
    assert play.session.receive(garbage) == []
    assert play.session.closed(clean=True) == []
    assert play.budget.used == 0


@pytest.mark.parametrize(
    "empty",
    [
        b"",
        b"\x42\x00",
        b"\x5a\x02\x08\x04",
        b"\x50\x01",
        b"\x4a\x03\x0a\x01a",
    ],
    ids=["nothing", "metadata", "modes", "observability", "attributes"],
)
def test_a_message_without_a_phase_is_passed_over(empty: bytes) -> None:
    session = new_session()
    assert session.receive(empty) == []
    [ask] = session.receive(message("request_headers", headers=GET, end=True, modes="none/none"))
    assert isinstance(ask, Ask)
    assert ask.visibility == Visibility(status=False, first_token=False, end=False), (
        "the modes are still read"
    )


def test_a_mode_of_the_future_is_not_waited_for() -> None:
    request = ProcessingRequest.FromString(message("request_headers", headers=POST))
    request.protocol_config.request_body_mode = 9  # type: ignore[assignment]
    session = new_session()
    [ask] = session.receive(request.SerializeToString())
    assert isinstance(ask, Ask)


@pytest.mark.parametrize(
    ("modes", "book", "carries"),
    [
        ("duplex/none", "", False),
        ("duplex/none", "RH POST ->", True),
        ("duplex/none", "RH POST ->\nRB*(5) -> ask", True),
        ("duplex/none", "RH POST ->\nRB*(5) -> ask\ndecide a -> RH a, RB*(5)", False),
        ("duplex/none", "RH* GET /v1/models -> ask", False),
        ("duplex/none", "RH POST /upload -> ask\ndecide a -> RH a", True),
        ("duplex/none", "RB(5) -> RB(5)", True),
        ("duplex/duplex", "RH* GET /v1/models -> ask\ndecide a -> RH a", True),
        (
            "duplex/duplex",
            "RH* GET /v1/models -> ask\ndecide a -> RH a\nSH* 200 -> SH, ended complete 200",
            False,
        ),
        ("none/duplex", "SH 200 -> SH", True),
        (
            "buffered/none",
            "RH POST -> ask provisional\ndecide a -> RH a\nRB*(5) -> ask\ndecide a -> RB",
            False,
        ),
        ("streamed/streamed", "RH POST -> ask\ndecide a -> RH a\nRB(5) -> RB", False),
    ],
)
def test_when_ending_the_stream_would_lose_body(modes: str, book: str, carries: bool) -> None:
    play = Play(modes)
    play.act(book)
    assert play.session.carries_body is carries
    play.session.closed(clean=False)
    assert not play.session.carries_body
