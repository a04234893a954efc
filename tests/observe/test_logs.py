"""What a log line looks like, and what it can never look like."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.observe.logs import SAMPLES, JsonFormatter, RepeatFilter, TextFormatter, configure, shown

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raises = list(root.handlers), root.level, logging.raiseExceptions
    yield
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
    root.setLevel(level)
    logging.raiseExceptions = raises
    logging.captureWarnings(capture=False)


def record(message: str, level: int = logging.WARNING, /, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("picker.room", level, "room.py", 1, message, None, None)
    made.fields = fields
    return made


def test_escapes_what_could_forge_a_line_or_a_terminal() -> None:
    assert shown("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\u202e"
    assert shown(b"\xff\r\n") == "\\xff\\r\\n"
    assert shown("\udc80") == "\\udc80"


def test_leaves_printable_text_alone() -> None:
    assert shown("Grüße, 世界 #1") == "Grüße, 世界 #1"


def test_counts_what_it_cuts_off() -> None:
    assert shown("x" * 300, limit=10) == "xxxxxxxxxx…(+290)"
    assert shown(b"x" * 300, limit=10) == "xxxxxxxxxx…(+290)"


@settings(max_examples=50)
@given(st.text() | st.binary() | st.none() | st.floats())
def test_is_always_one_bounded_printable_line(value: object) -> None:
    text = shown(value, limit=8)
    assert text.isprintable()
    assert len(text) <= 8 * len("\\U0001f600") + len("…(+1000000)")


def test_json_line_has_the_fields_beside_the_message() -> None:
    line = JsonFormatter().format(record("page unreadable", endpoint="10.0.0.1:8000", status=500, age=1.5))
    parsed = json.loads(line)
    assert parsed.pop("time").endswith("Z")
    assert parsed == {
        "level": "warning",
        "logger": "picker.room",
        "message": "page unreadable",
        "endpoint": "10.0.0.1:8000",
        "status": 500,
        "age": 1.5,
    }


def test_no_field_replaces_the_message() -> None:
    parsed = json.loads(JsonFormatter().format(record("true", message="forged", level="debug")))
    assert (parsed["message"], parsed["level"]) == ("true", "warning")


def test_text_line_quotes_what_has_spaces() -> None:
    line = TextFormatter(colour=False).format(record("page unreadable", error='no "x" here', status=500))
    assert line.endswith('warning picker.room  page unreadable  error="no \\"x\\" here" status=500')


def test_a_hostile_field_stays_on_its_line() -> None:
    for formatter in (JsonFormatter(), TextFormatter(colour=False)):
        line = formatter.format(record("bad path", path="/\n\x1b[2Jx" + "y" * 10_000, **{"k\n": 2**70}))
        assert line.isprintable()
        assert len(line) < 1000


def test_an_exception_is_one_field_with_its_frames() -> None:
    try:
        int("bad\nvalue")
    except ValueError as error:
        failed = record("internal error")
        failed.exc_info = (ValueError, error, error.__traceback__)
    line = json.loads(JsonFormatter().format(failed))["exception"]
    assert line.startswith("ValueError: invalid literal for int() with base 10: 'bad\\nvalue' at ")
    assert "test_an_exception_is_one_field_with_its_frames" in line


def test_a_library_message_that_does_not_fit_its_arguments_is_still_a_line() -> None:
    broken = logging.LogRecord("grpc", logging.ERROR, "x.py", 1, "%d of %d", ("one",), None)
    assert "%d of %d" in TextFormatter(colour=False).format(broken)


def test_repeats_are_counted_and_left_out() -> None:
    now = 0.0
    repeats = RepeatFilter(burst=2, period=10.0, clock=lambda: now)
    passed = [repeats.filter(record("scrape failed", endpoint="a")) for _ in range(5)]
    assert passed == [True, True, False, False, False]
    assert repeats.filter(record("scrape failed", endpoint="b")), "another endpoint is another event"
    assert repeats.filter(record("scrape failed", logging.INFO, endpoint="a"))
    now = 10.0
    late = record("scrape failed", endpoint="a")
    assert repeats.filter(late)
    assert vars(late)["fields"] == {"endpoint": "a", "suppressed": 3}


def test_refusals_for_different_reasons_are_counted_apart() -> None:
    repeats = RepeatFilter(burst=1, clock=lambda: 0.0)
    passed = [repeats.filter(record("request refused", reason=reason)) for reason in "aab"]
    assert passed == [True, False, True]


def test_of_sampled_records_some_are_written_each_second() -> None:
    now = 0.0
    repeats = RepeatFilter(clock=lambda: now)

    def sampled(endpoint: str) -> logging.LogRecord:
        one = record("request is sent", logging.DEBUG, endpoint=endpoint)
        one.sampled = True
        return one

    passed = [repeats.filter(sampled(str(number))) for number in range(3 * SAMPLES)]
    assert passed == [True] * SAMPLES + [False] * 2 * SAMPLES
    now = 1.0
    late = sampled("x")
    assert repeats.filter(late)
    assert vars(late)["fields"] == {"endpoint": "x", "suppressed": 2 * SAMPLES}


def test_repeats_forget_the_message_not_heard_for_longest() -> None:
    repeats = RepeatFilter(burst=1, memory=2, clock=lambda: 0.0)
    assert repeats.filter(record("one"))
    assert repeats.filter(record("two"))
    assert not repeats.filter(record("one"))
    assert repeats.filter(record("three"))
    assert not repeats.filter(record("one"))
    assert repeats.filter(record("two")), "was forgotten for three"


@pytest.mark.parametrize(("stream", "readable"), [(Terminal(), True), (io.StringIO(), False)])
def test_is_readable_on_a_terminal_and_json_otherwise(stream: io.StringIO, readable: bool) -> None:
    configure("info", "auto", stream)
    logging.getLogger("picker.room").info("started", extra={"fields": {"port": 9002}})
    logging.getLogger("picker.room").debug("not at this level")
    (line,) = stream.getvalue().splitlines()
    if readable:
        assert line.endswith("picker.room  started  port=9002")
    else:
        assert json.loads(line)["port"] == 9002


def test_configured_twice_writes_once() -> None:
    stream = io.StringIO()
    configure("info", "text", stream)
    configure("info", "text", stream)
    logging.getLogger("picker.room").info("started")
    assert stream.getvalue().count("started") == 1


def test_a_broken_stream_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    configure("info", "text", stream)
    stream.close()
    logging.getLogger("picker.room").info("started")
    assert capsys.readouterr().err == ""
