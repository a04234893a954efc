"""Pages are read by search; prometheus_client's full parser is the oracle on valid ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from picker.metrics.pages import Families, Sample, mean, samples, total

PAGE = b"""\
# HELP queue Waiting, as in queue 99
# TYPE queue gauge
queue{engine="0"} 3
queue{engine="1",note="a } b, engine=\\"9\\" \\\\ \\n"} 4.5 1395066363000
queue_total 7
# TYPE up untyped
up 1
"""


def values(page: bytes, name: bytes) -> list[float]:
    return [sample.value for sample in samples(page, name)]


def test_samples_of_one_name_and_of_no_name_that_only_begins_so() -> None:
    assert values(PAGE, b"queue") == [3, 4.5]
    assert values(PAGE, b"queue_total") == [7]
    assert values(PAGE, b"up") == [1]
    assert values(PAGE, b"u") == []
    assert values(PAGE, b"absent") == []


def test_labels_are_unescaped_and_quoted_text_is_no_label() -> None:
    second = list(samples(PAGE, b"queue"))[1]
    assert second.label(b"engine") == "1"
    assert second.label(b"note") == 'a } b, engine="9" \\ \n'
    assert second.label(b"gine") is None
    assert second.label(b"absent") is None


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (b'a="1",b="2"', "2"),
        (b' a = "1" , b = "2" ,', "2"),
        (b'a=",b=",b="2"', "2"),
        (b'a="x,b=",b="2"', "2"),
        (b'ab="1",b="2"', "2"),
        (b'b=""', ""),
        (b'b="\xff\xfe"', "\ufffd\ufffd"),
        (b'a="b"', None),
        (b"", None),
        (b"b=2", None),
    ],
)
def test_finding_a_label(pairs: bytes, expected: str | None) -> None:
    assert Sample(0.0, pairs).label(b"b") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"x 1\n", [1]),
        (b"x 1\r\n", [1]),
        (b"x{} 1\n", [1]),
        (b'x {a="b",} 1\n', [1]),
        (b"x\t1e3 1395066363000\n", [1000]),
        (b'x{a="b"} 1 # {trace_id="}"} 0.67 1.5\n', [1]),
        (b"x +Inf\n", [math.inf]),
        (b"x -Inf\n", [-math.inf]),
        (b"x 1\n# EOF\n", [1]),
        # not a sample
        (b"x 1", []),
        (b"x\n1\n", []),
        (b"x\n", []),
        (b"x one\n", []),
        (b"x 1_000\n", []),
        (b"x{ 1\n", []),
        (b'x{a="b} 1\n', []),
        (b'x{a="b\n"} 1\n', []),
        (b"# x 1\n", []),
        (b"xy 1\nx2 1\n", []),
    ],
)
def test_what_is_a_sample(line: bytes, expected: list[float]) -> None:
    assert values(line, b"x") == expected
    assert values(b"# a comment\n" + line, b"x") == expected


def test_nan_is_a_value() -> None:
    (value,) = values(b"x NaN\n", b"x")
    assert math.isnan(value)


def test_the_last_line_is_believed_only_when_it_is_whole() -> None:
    for cut in range(len(PAGE) - 1):
        assert values(PAGE[:cut], b"up") == []
    assert values(PAGE, b"up") == [1]


def test_the_number_of_samples_is_bounded() -> None:
    assert len(list(samples(b"x 1\n" * 50, b"x", limit=20))) == 20
    assert list(samples(b"x 1\n", b"x", limit=0)) == []


def test_amounts_that_cannot_be_are_left_out() -> None:
    page = b"x 1\nx -1\nx NaN\nx +Inf\nx 1e300\nx 2\n"
    assert total(samples(page, b"x")) == 3
    assert mean(samples(page, b"x")) == 1.5
    assert math.isnan(total(samples(page, b"y")))
    assert math.isnan(mean(samples(b"x NaN\n", b"x")))


def test_families_are_found_by_their_type_lines() -> None:
    families = Families(PAGE.replace(b"\n", b"\r\n"), b"q")
    assert [sample.value for sample in families.samples(b"queue")] == [3, 4.5]
    assert list(families.samples(b"quiet")) == []
    first = Families(b"# TYPE q_ms histogram\nq_ms_sum 5\nq_ms_count 2\n", b"q")
    assert [sample.value for sample in first.samples(b"q_ms_count")] == [2]
    openmetrics = Families(b"# TYPE q counter\nq_total 5\n# EOF", b"q")
    assert [sample.value for sample in openmetrics.samples(b"q_total")] == [5]
    untyped = Families(b"qa 1\nqb 2\n", b"q")
    assert [sample.value for sample in untyped.samples(b"qb")] == [2]


NAMES = ("load", "load_total", "loads", "x:y")
label_values = st.text(
    st.sampled_from('ab ,=}{"\\\n#é\u2028') | st.characters(exclude_categories=["Cs"]), max_size=6
)
label_sets = st.dictionaries(st.sampled_from(["a", "b", "actor_id"]), label_values, max_size=3)
numbers = st.floats() | st.integers(-5, 5).map(float)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def line(name: str, labels: dict[str, str], value: float, *, stamped: bool) -> str:
    pairs = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
    braces = f"{{{pairs}}}" if pairs else ""
    return f"{name}{braces} {value!r}{' 1395066363000' if stamped else ''}\n"


lines = st.builds(line, st.sampled_from(NAMES), label_sets, numbers, stamped=st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(lines, max_size=8))
def test_a_valid_page_reads_as_the_full_parser_reads_it(page_lines: list[str]) -> None:
    page = "".join(page_lines)
    oracle = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    for name in NAMES:
        expected = [(repr(one.value), one.labels) for one in oracle if one.name == name]
        found = list(samples(page.encode(), name.encode()))
        assert [repr(one.value) for one in found] == [value for value, _ in expected]
        for one, (_, labels) in zip(found, expected, strict=True):
            for key in ("a", "b", "actor_id"):
                assert one.label(key.encode()) == labels.get(key)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([b"x", b"\n", b"{", b"}", b'"', b"\\", b" ", b"1", b"a=", b"\xff"])).map(
        b"".join
    )
)
def test_any_bytes_can_be_searched(page: bytes) -> None:
    for sample in samples(page, b"x"):
        sample.label(b"a")
    list(Families(page, b"x").samples(b"x"))
