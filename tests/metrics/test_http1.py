"""Reading answers byte by byte, as servers send them well and badly."""

from __future__ import annotations

import contextlib
import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.metrics.http1 import BrokenError, Imprint, Response, TooLargeError

LIMIT = 1000
BODY = b"vllm:num_requests_running 3\n" * 5
ZIPPED = gzip.compress(BODY)


def http(*headers: str, status: str = "HTTP/1.1 200 OK", body: bytes = BODY) -> bytes:
    return "\r\n".join([status, *headers, "", ""]).encode() + body


def chunked(body: bytes, size: int, trailers: bytes = b"") -> bytes:
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    sent = b"".join(b"%x;name=value\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return sent + b"0\r\n" + trailers + b"\r\n"


def read(*pieces: bytes, closes: bool = False, limit: int = LIMIT) -> Response:
    """Feed an answer; fails unless it is complete exactly with its last piece, or with the end."""
    response = Response(limit)
    for number, piece in enumerate(pieces):
        complete = response.feed(piece)
        while response.pending:
            complete = response.feed()
        assert complete == (number == len(pieces) - 1 and not closes)
    if closes:
        assert response.end()
    return response


LENGTH = f"Content-Length: {len(BODY)}"
CHUNKED = "Transfer-Encoding: chunked"
ANSWERS = {
    "with its length": (http(LENGTH), True),
    "with its length twice": (http(LENGTH, LENGTH), True),
    "odd spelling": (http(f"coNTent-lenGTH:{len(BODY)} ", "X: content-length: 3"), True),
    "not to be kept": (http(LENGTH, "Connection: x, Close"), False),
    "HTTP/1.0": (http(LENGTH, status="HTTP/1.0 200"), False),
    "HTTP/1.0, kept": (http(LENGTH, "Connection: Keep-Alive", status="HTTP/1.0 200 OK"), True),
    "more than asked for": (http(LENGTH) + b"HTTP/1.1 200 OK\r\n\r\n", False),
    "after interim answers": (http(status="HTTP/1.1 100 Continue", body=b"") * 3 + http(LENGTH), True),
    "chunked": (http(CHUNKED, body=chunked(BODY, 7)), True),
    "chunked with trailers": (http(CHUNKED, body=chunked(BODY, 50, b"X-Sum: 1\r\nY: 2\r\n")), True),
    "chunked with a length": (http(CHUNKED, LENGTH, body=chunked(BODY, 50)), False),
    "gzip": (http(f"Content-Length: {len(ZIPPED)}", "Content-Encoding: gzip", body=ZIPPED), True),
    "gzip, chunked": (http(CHUNKED, "Content-Encoding: x-gzip", body=chunked(ZIPPED, 3)), True),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_at_once_and_in_pieces(kind: str) -> None:
    answer, reusable = ANSWERS[kind]
    response = read(answer)
    assert (response.status, response.body(), response.reusable) == (200, BODY, reusable)
    if kind != "more than asked for":
        response = read(*(answer[at : at + 1] for at in range(len(answer))))
        assert (response.status, response.body(), response.reusable) == (200, BODY, reusable)


@pytest.mark.parametrize("headers", [(), ("Content-Encoding: gzip",)])
def test_a_body_that_ends_with_its_connection(headers: tuple[str, ...]) -> None:
    answer = http(*headers, body=ZIPPED if headers else BODY)
    response = read(answer[:30], answer[30:], closes=True)
    assert response.body() == BODY
    assert not response.reusable


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_has_no_body(status: int) -> None:
    response = read(http(LENGTH, status=f"HTTP/1.1 {status} No", body=b""))
    assert (response.status, response.body(), response.reusable) == (status, b"", True)


def test_of_an_error_only_the_first_part_is_read() -> None:
    response = read(http(status="HTTP/1.1 503 Service Unavailable", body=b"x" * 100_000))
    assert (response.status, len(response.body()), response.reusable) == (503, 65536, False)
    zipped = gzip.compress(b"x" * 100_000)
    response = read(http("Content-Encoding: gzip", status="HTTP/1.1 503 No", body=zipped))
    assert len(response.body()) == 65536


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/1.1 200OK\r\n\r\n",
        http(status="HTTP/1.1 101 Switching Protocols"),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000,
        http("Content-Length: 5", "Content-Length: 6"),
        http("Content-Length: -1"),
        http("Content-Length: 1_0"),
        http("Content-Length: "),
        http("Transfer-Encoding: gzip, chunked"),
        http("Content-Encoding: br", LENGTH),
        http("Content-Encoding: gzip", LENGTH),
        http("Content-Encoding: gzip", body=ZIPPED + b"more"),
        http("Content-Encoding: gzip", body=ZIPPED[:-8] + b"\0" * 8),
        http(CHUNKED, body=b"x\r\n"),
        http(CHUNKED, body=b"-1\r\n"),
        http(CHUNKED, body=b"\r\n"),
        http(CHUNKED, body=b"fffffffff\r\n"),
        http(CHUNKED, body=b"1\r\nab\r\n"),
        http(CHUNKED, body=b"1" * 2000),
        http(CHUNKED, body=b"0\r\n" + b"x" * 40_000),
    ],
)
def test_what_is_no_answer(answer: bytes) -> None:
    with pytest.raises(BrokenError):
        Response(LIMIT).feed(answer)


@pytest.mark.parametrize(
    "answer",
    [
        http("Content-Length: 1001", body=b""),
        http(body=b"x" * 1001),
        http(CHUNKED, body=chunked(b"x" * 1001, 400)),
        http("Content-Encoding: gzip", body=gzip.compress(b"x" * 1001)),
    ],
)
def test_a_page_beyond_the_bound(answer: bytes) -> None:
    with pytest.raises(TooLargeError):
        Response(LIMIT).feed(answer)


@pytest.mark.parametrize("kind", [kind for kind in ANSWERS if kind != "more than asked for"])
def test_an_answer_that_is_cut_off_is_not_complete(kind: str) -> None:
    answer, _ = ANSWERS[kind]
    for stop in range(len(answer)):
        response = Response(LIMIT)
        assert not response.feed(answer[:stop])
        assert not response.end()


def test_a_compressed_body_that_is_cut_off_is_broken() -> None:
    response = read(http("Content-Encoding: gzip", body=ZIPPED[:-9]), closes=True)
    with pytest.raises(BrokenError, match="cut off"):
        response.body()


def test_a_compression_bomb_is_taken_in_steps() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    response = Response(10_000_000)
    assert not response.feed(http(f"Content-Length: {len(bomb)}", "Content-Encoding: gzip", body=bomb))
    steps = 1
    while response.pending:
        response.feed()
        steps += 1
    assert response.complete
    assert steps >= 10_000_000 // (512 * 1024)
    assert len(response.body()) == 10_000_000


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(sorted(ANSWERS)),
    noise=st.binary(max_size=20),
    at=st.integers(0, 300),
    step=st.integers(1, 400),
)
def test_damaged_answers_end_well_or_by_the_two_errors(kind: str, noise: bytes, at: int, step: int) -> None:
    answer, _ = ANSWERS[kind]
    damaged = answer[:at] + noise + answer[at + len(noise) :]
    response = Response(LIMIT)
    with contextlib.suppress(BrokenError, TooLargeError):
        for start in range(0, len(damaged), step):
            if response.feed(damaged[start : start + step]):
                break
            while response.pending:
                response.feed()
        if response.complete or response.end():
            assert len(response.body()) <= LIMIT


# A body that is known


def gzipped(body: bytes, at: int) -> bytes:
    return whole(gzip.compress(body, mtime=at), "Content-Encoding: gzip")


def whole(body: bytes, *headers: str) -> bytes:
    return http(f"Content-Length: {len(body)}", *headers, body=body)


def imprint_of(answer: bytes) -> Imprint:
    response = Response(LIMIT)
    response.feed(answer)
    assert response.imprint is not None
    return response.imprint


def test_a_body_that_is_known_is_told_to_be_that_and_not_decompressed() -> None:
    response = Response(LIMIT, imprint_of(gzipped(b"page" * 50, at=1)))
    assert response.feed(gzipped(b"page" * 50, at=2))  # compressed at another time
    assert (response.repeated, response.body(), response.reusable) == (True, b"", True)


def test_who_knew_another_body_gets_this_one() -> None:
    known = imprint_of(gzipped(b"page 1 " * 50, at=1))
    response = Response(LIMIT, known)
    assert response.feed(gzipped(b"page 2 " * 50, at=1))
    assert (response.repeated, response.body()) == (False, b"page 2 " * 50)
    assert response.imprint != known


def test_what_is_not_compressed_has_no_imprint() -> None:
    response = Response(LIMIT, imprint_of(gzipped(b"page", at=1)))
    assert response.feed(whole(b"page"))
    assert (response.repeated, response.body(), response.imprint) == (False, b"page", None)


def test_no_more_is_held_back_than_the_known_body_has() -> None:
    response = Response(10**6, imprint_of(gzipped(b"page", at=1)))
    packed = gzipped(bytes(10**7), at=1)
    assert not response.feed(packed)
    assert response.pending
    with pytest.raises(TooLargeError):
        response.feed()


def test_a_known_body_that_is_cut_off_is_broken() -> None:
    answer = gzipped(b"page" * 50, at=1)
    packed = answer.partition(b"\r\n\r\n")[2]
    response = Response(LIMIT, imprint_of(answer))
    assert response.feed(whole(packed[:-9], "Content-Encoding: gzip"))
    with pytest.raises(BrokenError, match="cut off"):
        response.body()


@given(
    st.binary(max_size=400),
    st.binary(max_size=400),
    st.booleans(),
    st.lists(st.integers(1, 200), max_size=8),
    st.integers(0, 2**31),
)
def test_whatever_was_known_and_however_it_is_cut_the_body_is_told(
    last: bytes, body: bytes, same: bool, cuts: list[int], at: int
) -> None:
    body = last if same else body
    response = Response(LIMIT, imprint_of(gzipped(last, at=0)))
    data, complete = gzipped(body, at), False
    for cut in [*cuts, len(data)]:
        if data:
            assert not complete
            complete = response.feed(data[:cut])
            data = data[cut:]
    assert complete
    assert response.repeated == (body == last)
    assert response.body() == (b"" if response.repeated else body)
