"""Whole streams as Envoy 1.40 was seen to send them, mode by mode. The notation is in gateway.py."""

from __future__ import annotations

import pytest

from picker.extproc.session import SessionOptions
from tests.extproc.gateway import Play

DUPLEX_BOTH = {
    "GET": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        SH 200              -> SH
        SB(20)              -> SB(20), first token
        SB*(0)              -> SB*(0), ended complete 200
        close               -> done
    """,
    "small POST of an HTTP/1.1 client": """
        RH POST             ->
        RB(27)              ->
        RB*(0)              -> ask
        decide a            -> RH a, RB*(27)
        SH 200              -> SH
        SB(9)               -> SB(9), first token
        SB(9)               -> SB(9)
        SB*(0)              -> SB*(0), ended complete 200
        close               -> done
    """,
    "small POST of an HTTP/2 client": """
        RH POST             ->
        RB*(3)              -> ask
        decide a            -> RH a, RB*(3)
    """,
    "chunks are passed on as they came": """
        RH POST             ->
        RB(65536)           ->
        RB(1000)            ->
        RB*(0)              -> ask
        decide a            -> RH a, RB(65536), RB*(1000)
    """,
    "trailers": """
        RH POST             ->
        RB(5)               ->
        RT                  -> ask
        decide a            -> RH a, RB(5), RT
        SH 200              -> SH
        SB(5)               -> SB(5), first token
        ST                  -> ST, ended complete 200
    """,
    "empty body": """
        RH POST             ->
        RB*(0)              -> ask
        decide a            -> RH a, RB*(0)
    """,
    "trailers without a body": """
        RH POST             ->
        RT                  -> ask
        decide a            -> RH a, RT
    """,
    "a body that is not needed is not waited for": """
        RH POST /upload     -> ask
        decide a            -> RH a
        RB(1000)            -> RB(1000)
        RB(0)               ->
        RB*(0)              -> RB*(0)
    """,
    "an upgrade is answered at once, both ways stay open": """
        RH GET /ws upgrade=websocket -> ask
        decide a            -> RH a
        SH 101              -> SH
        RB(4)               -> RB(4)
        SB(4)               -> SB(4), first token
        lose                -> ended aborted 101
    """,
    "trailers after a body that passes": """
        RH POST /upload     -> ask
        decide a            -> RH a
        RB(5)               -> RB(5)
        RT                  -> RT
    """,
    "HEAD": """
        RH* HEAD /health    -> ask
        decide a            -> RH a
        SH* 200             -> SH, ended complete 200
    """,
    "everything after the first end marker is ignored": """
        RH POST             ->
        RB*(5)              -> ask
        RB*(7)              ->
        RT                  ->
        decide a            -> RH a, RB*(5)
        RB*(0)              ->
        RB(7)               ->
        RT                  ->
        SH 200              -> SH
        SB*(2)              -> SB*(2), first token, ended complete 200
        SB*(0)              ->
        ST                  ->
        SH 200              ->
    """,
    "a pending decision holds what comes": """
        RH POST /upload     -> ask
        RB(10)              ->
        RB(20)              ->
        decide a            -> RH a, RB(10), RB(20)
        RB*(5)              -> RB*(5)
    """,
    "a pending decision and trailers": """
        RH POST /upload     -> ask
        RB(10)              ->
        RT                  ->
        decide a            -> RH a, RB(10), RT
    """,
    "the deadline passes": """
        RH POST             ->
        RB*(5)              -> ask
        expire              -> cancel, ask simplest
        expire              ->
        decide b            -> RH b, RB*(5)
        expire              ->
        decide a            ->
    """,
    "an ordered list": """
        RH* GET /v1/models  -> ask
        decide a+b          -> RH a+b
    """,
    "headers twice": """
        RH POST /upload     -> ask
        RH POST /upload     ->
        decide a            -> RH a
        RH POST /upload     ->
    """,
    "an error's body is no first token": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        SH 500              -> SH
        SB*(9)              -> SB*(9), ended complete 500
    """,
    "refusal": """
        RH POST             ->
        RB*(5)              -> ask
        refuse 429          -> reply 429, done
        RB(5)               ->
        SH 429              ->
        close               ->
    """,
    "refusal in the middle of an upload": """
        RH POST /upload     -> ask
        RB(10)              ->
        refuse 503          -> reply 503, done
        RB(10)              ->
        lose                ->
    """,
    "answered before the upload ended": """
        RH POST /upload     -> ask
        decide a            -> RH a
        RB(10)              -> RB(10)
        SH 413              -> SH
        SB*(3)              -> SB*(3), ended complete 413
        RB(10)              -> RB(10)
        close               -> done
    """,
    "the gateway replies itself while the decision is pending": """
        RH POST             ->
        RB*(5)              -> ask
        SH 504              -> cancel, SH
        SB*(3)              -> SB*(3)
        decide a            ->
        close               -> done
    """,
    "the gateway replies itself while the body is gathered": """
        RH POST             ->
        RB(5)               ->
        SH 504              -> SH
        SB*(3)              -> SB*(3)
        RB*(5)              ->
        close               -> done
    """,
}

DUPLEX_BOTH |= {
    "CONNECT": """
        RH CONNECT          -> ask
        decide a            -> RH a
        SH 200              -> SH
        RB(4)               -> RB(4)
        SB(4)               -> SB(4), first token
        RB*(0)              -> RB*(0)
        SB*(0)              -> SB*(0), ended complete 200
    """,
    "a WebSocket over HTTP/2": """
        RH CONNECT /ws :protocol=websocket -> ask
        decide a            -> RH a
        RB(4)               -> RB(4)
        SH 200              -> SH
        SB(4)               -> SB(4), first token
        close               -> ended aborted 200, done
    """,
    "a gRPC call both ways at once": """
        RH POST /x.Y/Z content-type=application/grpc -> ask
        RB(9)               ->
        decide a            -> RH a, RB(9)
        SH 200              -> SH
        SB(9)               -> SB(9), first token
        RB(9)               -> RB(9)
        SB(9)               -> SB(9)
        RB*(0)              -> RB*(0)
        ST                  -> ST, ended complete 200
    """,
    "a gRPC error without messages": """
        RH POST /x.Y/Z content-type=application/grpc -> ask
        decide a            -> RH a
        RB*(9)              -> RB*(9)
        SH* 200             -> SH, ended complete 200
    """,
    "a compressed body is not waited for": """
        RH POST content-encoding=gzip -> ask
        decide a            -> RH a
        RB*(9)              -> RB*(9)
    """,
    "Expect: 100-continue is the gateway's own affair": """
        RH POST expect=100-continue content-length=64 ->
        RB(64)              ->
        RB*(0)              -> ask
        decide a            -> RH a, RB*(64)
    """,
    "a POST that is answered without a body": """
        RH POST             ->
        RB*(5)              -> ask
        decide a            -> RH a, RB*(5)
        SH* 204             -> SH, ended complete 204
    """,
    "not modified": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        SH* 304             -> SH, ended complete 304
        SB*(0)              ->
        ST                  ->
        close               -> done
    """,
    "empty chunks before and between": """
        RH POST             ->
        RB(0)               ->
        RB(5)               ->
        RB(0)               ->
        RB*(5)              -> ask
        decide a            -> RH a, RB(5), RB*(5)
        SH 200              -> SH
        SB(0)               ->
        SB(5)               -> SB(5), first token
        SB(0)               ->
        SB*(0)              -> SB*(0), ended complete 200
    """,
    "a second end after trailers": """
        RH POST             ->
        RB(5)               ->
        RT                  -> ask
        RB*(0)              ->
        RT                  ->
        decide a            -> RH a, RB(5), RT
        RT                  ->
        SH 200              -> SH
        ST                  -> ST, ended complete 200
        ST                  ->
        SB*(0)              ->
    """,
    "the gateway replies itself after the decision": """
        RH POST             ->
        RB*(5)              -> ask
        decide a            -> RH a, RB*(5)
        SH 503              -> SH
        SB*(95)             -> SB*(95), ended complete 503
    """,
    "trailers of an answer without a body": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        SH 200              -> SH
        ST                  -> ST, ended complete 200
    """,
}

# Who does not tell its modes and half-closes when it has said all never shows the response.
HALF_CLOSED = {
    "after the answer": """
        RH POST             ->
        RB*(5)              -> ask
        decide a            -> RH a, RB*(5)
        close               -> ended unseen, done
    """,
    "before the answer": """
        RH POST             ->
        RB*(5)              -> ask
        close               ->
        decide a            -> RH a, RB*(5), ended unseen, done
    """,
    "before the answer, which is late": """
        RH* GET /v1/models  -> ask
        close               ->
        expire              -> cancel, ask simplest
        decide a            -> RH a, ended unseen, done
    """,
    "before a refusal": """
        RH* GET /v1/models  -> ask
        close               ->
        refuse 429          -> reply 429, done
    """,
    "and then it is lost": """
        RH* GET /v1/models  -> ask
        close               ->
        lose                -> cancel
    """,
    "in the upload": """
        RH POST             ->
        RB(5)               ->
        close               -> done
    """,
    "in the response": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        SH 200              -> SH
        close               -> ended aborted 200, done
    """,
}

DUPLEX_REQUEST = {
    "GET": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        close               -> ended unseen, done
    """,
    "POST, and the stream is reset when nothing is left": """
        RH POST             ->
        RB*(5)              -> ask
        decide a            -> RH a, RB*(5)
        lose                -> ended unseen
    """,
    "response headers": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        SH 200              -> SH
        close               -> ended unseen 200, done
    """,
}

BUFFERED = {
    "GET": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        SH 200              -> SH
        close               -> ended unseen 200, done
    """,
    "the body confirms the provisional decision": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
        SH 200              -> SH
        close               -> ended closed 200, done
    """,
    "the body changes the provisional decision": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide b            -> RB b
        lose                -> ended closed
    """,
    "a body with trailers comes without an end": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB(64)              -> ask
        decide a            -> RB
        RT                  -> RT
        close               -> ended closed, done
    """,
    "trailers instead of a body": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RT                  -> RT
        close               -> ended unseen, done
    """,
    "a body that is not needed": """
        RH POST /upload     -> ask
        decide a            -> RH a modes=none/none
        SH 200              -> SH
        close               -> ended unseen 200, done
    """,
    "a body that is longer than is held": """
        RH POST content-length=67108865 -> ask
        decide a            -> RH a modes=none/none
    """,
    "a length of absurd length": f"""
        RH POST content-length={"9" * 5000} -> ask
        decide a            -> RH a modes=none/none
    """,
    "the override is not heeded": """
        RH POST /upload     -> ask
        decide a            -> RH a modes=none/none
        RB*(9)              -> RB
        SH 200              -> SH
        close               -> ended closed 200, done
    """,
    "decisions that take their time": """
        RH POST             -> ask provisional
        expire              -> cancel, ask provisional simplest
        decide a            -> RH a
        RB*(64)             -> ask
        expire              -> cancel, ask simplest
        decide b            -> RB b
    """,
    "a body before the header answer": """
        RH POST             -> ask provisional
        RB*(64)             ->
        decide a            -> RH a, RB
    """,
    "a second end": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        RB*(0)              ->
        decide a            -> RB
        RT                  ->
        SH* 204             -> SH, ended complete 204
        close               -> done
    """,
    "Expect: 100-continue is the gateway's own affair": """
        RH POST expect=100-continue content-length=64 -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
    """,
    "a WebSocket passes by": """
        RH GET /ws upgrade=websocket -> ask
        decide a            -> RH a modes=none/none
        SH 101              -> SH
        close               -> ended unseen 101, done
    """,
    "CONNECT passes by": """
        RH CONNECT          -> ask
        decide a            -> RH a modes=none/none
    """,
    "gRPC passes by": """
        RH POST /x.Y/Z content-type=application/grpc -> ask
        decide a            -> RH a modes=none/none
        SH 200              -> SH
        close               -> ended unseen 200, done
    """,
    "a compressed body passes by": """
        RH POST content-encoding=gzip -> ask
        decide a            -> RH a modes=none/none
    """,
    "HEAD": """
        RH* HEAD /health    -> ask
        decide a            -> RH a
        SH* 200             -> SH, ended complete 200
    """,
    "not modified": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        SH* 304             -> SH, ended complete 304
    """,
    "an empty body": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(0)              -> ask
        decide a            -> RB
    """,
    "the gateway replies itself after the decision": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
        SH 503              -> SH
        close               -> ended closed 503, done
    """,
    "half-closed while the second decision is pending": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        close               ->
        decide b            -> RB b, ended closed, done
    """,
    "half-closed before the body": """
        RH POST             -> ask provisional
        close               -> cancel, done
    """,
    "refused by the headers": """
        RH POST             -> ask provisional
        refuse 503          -> reply 503, done
    """,
    "refused by the body": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        refuse 429          -> reply 429, ended aborted, done
    """,
    "lost before the body": """
        RH POST             -> ask provisional
        decide a            -> RH a
        lose                -> ended aborted
    """,
    "lost while the second decision is pending": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        lose                -> cancel, ended aborted
        decide b            ->
    """,
    "the gateway will not buffer the body": """
        RH POST             -> ask provisional
        decide a            -> RH a
        SH 413              -> ended aborted, SH
        RB*(64)             ->
        close               -> done
    """,
    "back-pressure is read from the text": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
        SH 503 content-length=83 -> SH modes=buffered/buffered
        SB*(83)             -> SB, ended complete 503
    """,
    "the text of a refusal is asked for in vain": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
        SH 503 content-length=83 -> SH modes=buffered/buffered
        close               -> ended closed 503, done
    """,
    "Retry-After says enough": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
        SH 429 content-length=83 retry-after=7 -> SH
        close               -> ended closed 429 full retry=7, done
    """,
    "a long refusal is not buffered": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
        SH 503 content-length=65537 -> SH
    """,
    "a refusal of unknown length is not buffered": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
        SH 503              -> SH
        close               -> ended closed 503, done
    """,
}

BUFFERED_STREAMED = {
    "the answer is seen": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
        SH 200              -> SH
        SB(5)               -> SB, first token
        SB*(0)              -> SB, ended complete 200
    """,
    "the answer breaks off": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
        SH 200              -> SH
        SB(5)               -> SB, first token
        close               -> ended aborted 200, done
    """,
    "the text of a refusal comes anyway": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
        SH 503 content-length=83 -> SH
        SB*(83)             -> SB, ended complete 503
    """,
    "a body that is not needed": """
        RH POST /upload     -> ask
        decide a            -> RH a modes=none/streamed
    """,
    "an answer that ends by trailers, and ends again": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
        SH 200              -> SH
        SB(5)               -> SB, first token
        ST                  -> ST, ended complete 200
        SB*(0)              ->
        ST                  ->
    """,
}

BUFFERED_BOTH = {
    "a whole answer is no first token": """
        RH POST             -> ask provisional
        decide a            -> RH a
        RB*(64)             -> ask
        decide a            -> RB
        SH 200              -> SH
        SB*(500)            -> SB, ended complete 200
    """,
}

STREAMED = {
    "one by one": """
        RH POST             -> ask
        decide a            -> RH a
        RB(5)               -> RB
        RB(0)               -> RB
        RB*(0)              -> RB
        close               -> ended unseen, done
    """,
    "bodies that did not wait for the header answer": """
        RH POST             -> ask
        RB(5)               ->
        RB(5)               ->
        decide a            -> RH a, RB, RB
        RB*(5)              -> RB
    """,
    "trailers while the decision is pending": """
        RH POST             -> ask
        RB(5)               ->
        RT                  ->
        decide a            -> RH a, RB, RT
    """,
    "a second end": """
        RH POST             -> ask
        decide a            -> RH a
        RB*(5)              -> RB
        RB*(0)              ->
        RT                  ->
    """,
    "the gateway replies itself while the decision is pending": """
        RH POST             -> ask
        RB(5)               ->
        SH 504              -> cancel, SH
        RB(5)               ->
        decide a            ->
    """,
    "lost while the decision is pending": """
        RH POST             -> ask
        RB(5)               ->
        lose                -> cancel
    """,
    "CONNECT": """
        RH CONNECT          -> ask
        decide a            -> RH a
        RB(5)               -> RB
    """,
    "broken off in the upload": """
        RH POST             -> ask
        decide a            -> RH a
        RB(5)               -> RB
        lose                -> ended aborted
    """,
}

STREAMED_BOTH = {
    "the answer is seen": """
        RH POST             -> ask
        decide a            -> RH a
        RB*(5)              -> RB
        SH 200              -> SH
        SB(5)               -> SB, first token
        SB*(0)              -> SB, ended complete 200
    """,
    "broken off in the answer": """
        RH POST             -> ask
        decide a            -> RH a
        RB*(5)              -> RB
        SH 200              -> SH
        SB(5)               -> SB, first token
        lose                -> ended aborted 200
    """,
    "both at once": """
        RH POST /x.Y/Z content-type=application/grpc -> ask
        decide a            -> RH a
        RB(5)               -> RB
        SH 200              -> SH
        SB(5)               -> SB, first token
        RB*(0)              -> RB
        ST                  -> ST, ended complete 200
    """,
    "HEAD": """
        RH* HEAD /health    -> ask
        decide a            -> RH a
        SH* 200             -> SH, ended complete 200
    """,
}

HEADERS_ONLY = {
    "POST": """
        RH POST             -> ask
        decide a            -> RH a
        close               -> ended unseen, done
    """,
    "GET": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        lose                -> ended unseen
    """,
    "a body all the same": """
        RH POST             -> ask
        decide a            -> RH a
        RB*(5)              -> RB
    """,
    "lost while the decision is pending": """
        RH POST             -> ask
        lose                -> cancel
    """,
}

ABORTS = {
    "before anything": "lose ->",
    "closed before anything": "close -> done",
    "after the headers": """
        RH POST             ->
        lose                ->
    """,
    "in the upload": """
        RH POST             ->
        RB(5)               ->
        lose                ->
    """,
    "while the decision is pending": """
        RH POST             ->
        RB*(5)              -> ask
        lose                -> cancel
        decide a            ->
        lose                ->
    """,
    "closed in the upload": """
        RH POST             ->
        RB(5)               ->
        close               -> done
    """,
    "closed while the decision is pending, but all was said": """
        RH POST             ->
        RB*(5)              -> ask
        close               ->
        decide a            -> RH a, RB*(5), ended aborted, done
        decide b            ->
        lose                ->
    """,
    "in the upload, after the decision": """
        RH POST /upload     -> ask
        decide a            -> RH a
        RB(5)               -> RB(5)
        lose                -> ended aborted
    """,
    "before the response": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        lose                -> ended aborted
    """,
    "in the response": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        SH 200              -> SH
        SB(5)               -> SB(5), first token
        close               -> ended aborted 200, done
    """,
    "after the end": """
        RH* GET /v1/models  -> ask
        decide a            -> RH a
        SH* 204             -> SH, ended complete 204
        lose                ->
    """,
}

NO_REQUEST = {
    "response headers first": (
        "duplex/duplex",
        "SH 200 -> SH\nSB(5) -> SB(5)\nSB*(0) -> SB*(0)\nclose -> done",
    ),
    "response headers first, buffered": (
        "buffered/buffered",
        "SH 200 -> SH\nSB*(5) -> SB\nclose -> done",
    ),
    "response headers that end all": ("none/duplex", "SH* 204 -> SH\nSB*(0) ->\nST ->\nclose -> done"),
    "response headers of an error with a text": (
        "buffered/none",
        "SH 503 content-length=83 -> SH modes=buffered/buffered\nclose -> done",
    ),
    "response body first": ("none/duplex", "SB(5) -> SB(5)\nST -> ST\nlose ->"),
    "response body first, streamed": ("none/streamed", "SB*(5) -> SB\nclose -> done"),
    "response trailers first": ("none/none", "ST -> ST\nclose -> done"),
    "request body first": ("duplex/duplex", "RB(5) -> RB(5)\nRB*(0) -> RB*(0)\nclose -> done"),
    "request body first, streamed": ("streamed/none", "RB(5) -> RB\nRT -> RT\nRH POST ->"),
    "request trailers first": ("none/none", "RT -> RT\nclose -> done"),
    "an answer nobody asked for": ("none/none", "decide a ->\nrefuse 503 ->\nexpire ->\nlose ->"),
}

ALL = [
    pytest.param(modes, book, id=f"{modes} {name}")
    for modes, books in (
        ("duplex/duplex", DUPLEX_BOTH | ABORTS),
        ("", DUPLEX_BOTH),
        ("", HALF_CLOSED),
        ("duplex/none", DUPLEX_REQUEST),
        ("buffered/none", BUFFERED),
        ("buffered/streamed", BUFFERED_STREAMED),
        ("buffered/buffered", BUFFERED_BOTH),
        ("streamed/none", STREAMED),
        ("streamed/streamed", STREAMED_BOTH),
        ("none/none", HEADERS_ONLY),
        ("grpc/grpc", HEADERS_ONLY),
    )
    for name, book in books.items()
] + [pytest.param(modes, book, id=name) for name, (modes, book) in NO_REQUEST.items()]


@pytest.mark.sequence("as tables")
@pytest.mark.parametrize(("modes", "book"), ALL)
def test_playbook(modes: str, book: str) -> None:
    play = Play(modes)
    play.act(book)
    play.session.closed(clean=False)
    assert play.budget.used == 0
    assert not play.session.carries_body


@pytest.mark.parametrize(
    "answer", ["ST -> ended aborted, ST", "SB*(3) -> ended aborted, SB", "SB(3) -> ended aborted, SB"]
)
def test_nothing_is_decided_after_an_answer_that_came_too_early(answer: str) -> None:
    """No gateway does that; a decision whose end is not told would count as a request for good."""
    Play("buffered/buffered").act(
        f"""
        RH POST             -> ask provisional
        decide a            -> RH a
        {answer}
        RB*(5)              ->
        close               -> done
        """
    )


def test_more_than_may_be_held_is_decided_on_what_was_read() -> None:
    play = Play("duplex/none", SessionOptions(max_body=100))
    play.act(
        """
        RH POST             ->
        RB(90)              ->
        RB(90)              -> ask
        RB(90)              -> cancel, ask simplest
        RB(90)              ->
        decide a            -> RH a, RB(90), RB(90), RB(90), RB(90)
        RB*(90)             -> RB*(90)
        """
    )
    assert play.session.question is not None
    assert play.session.question.body_bytes == 180
    assert play.budget.used == 0


def test_the_process_has_a_bound_too() -> None:
    play = Play("duplex/none", budget=1000)
    play.act(
        """
        RH POST             ->
        RB(500)             ->
        RB(500)             -> ask
        decide a            -> RH a, RB(500), RB(500)
        """
    )
    assert play.budget.used == 0


def test_chunks_larger_than_the_limit_are_split() -> None:
    play = Play("duplex/duplex", SessionOptions(chunk_limit=100))
    play.act(
        """
        RH POST             ->
        RB*(250)            -> ask
        decide a            -> RH a, RB(100), RB(100), RB*(50)
        SH 200              -> SH
        SB(101)             -> SB(100), SB(1), first token
        SB*(100)            -> SB*(100), ended complete 200
        """
    )


STRICT = {
    "duplex": ("duplex/none", "RH POST ->\nRB*(5) -> reply 400, done"),
    "duplex, no body": ("duplex/none", "RH* POST -> reply 400, done"),
    "duplex, compressed": ("duplex/none", "RH POST content-encoding=gzip -> reply 400, done"),
    "duplex, readable": ("duplex/none", "RH POST ->\nRB*(64) -> ask"),
    "duplex, ends by trailers": ("duplex/none", "RH POST ->\nRB(5) ->\nRT -> reply 400, done"),
    "another path": ("duplex/none", "RH POST /upload -> ask"),
    "buffered, with trailers": (
        "buffered/none",
        "RH POST -> ask provisional\ndecide a -> RH a\nRB(5) -> reply 400, ended aborted, done",
    ),
    "buffered in part": (
        "buffered-partial/none",
        "RH POST -> ask provisional\ndecide a -> RH a\nRB(5) -> ask",
    ),
    "buffered": (
        "buffered/none",
        "RH POST -> ask provisional\ndecide a -> RH a\nRB*(5) -> reply 400, ended aborted, done",
    ),
}


STRICT_ALL = [pytest.param(modes, book, id=f"strict {name}") for name, (modes, book) in STRICT.items()]


@pytest.mark.sequence("as tables")
@pytest.mark.parametrize(("modes", "book"), STRICT_ALL)
def test_strict_bodies(modes: str, book: str) -> None:
    Play(modes, SessionOptions(strict_bodies=True)).act(book)


def test_what_is_cut_off_by_our_own_bound_is_never_refused_for_it() -> None:
    play = Play("duplex/none", SessionOptions(strict_bodies=True, max_body=3))
    play.act("RH POST ->\nRB(5) -> ask")
    assert play.session.question is not None
    assert play.session.question.unreadable
