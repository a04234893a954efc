"""Reading traces: what each format says, and what is wrong with a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from picker.replay.command import SAMPLES
from picker.replay.lines import TraceError
from picker.replay.traces import FORMATS, Scale, read_trace

if TYPE_CHECKING:
    from picker.replay.workload import Trace

_SAMPLES = Path(__file__).parents[2] / "picker" / "replay" / "samples"
_TRACES = Path(__file__).parents[2] / ".." / "shared" / "traces"
_WHOLE = Scale(1, 1)


def _jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_mooncake(tmp_path: Path) -> None:
    path = _jsonl(
        tmp_path / "trace.jsonl",
        {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]},
        {"timestamp": 30535, "input_length": 1030, "output_length": 0, "hash_ids": [46, 2366, 2367]},
    )
    trace = read_trace(path)
    assert (trace.block, trace.ids) == (64, 2367)
    first, second = trace.requests
    assert (first.at, first.prompt, first.output, first.blocks) == (0.0, 869, 6, (46, 47, 48))
    # The third id is a block's beginning, which servers do not cache.
    assert (second.prompt, second.output, second.blocks) == (128, 1, (46, 2366))
    assert second.at == pytest.approx(3.053)


def test_requests_of_one_coarse_time_are_spread_up_to_the_next(tmp_path: Path) -> None:
    times = [0, 0, 0, 0, 3000, 3000, 9000]
    rows = [{"timestamp": time, "input_length": 8, "output_length": 8, "hash_ids": []} for time in times]
    trace = read_trace(_jsonl(tmp_path / "trace.jsonl", *rows), scale=_WHOLE)
    begin = trace.requests[-1].at - 9.0  # the first one's time is taken for 0
    at = [request.at - begin for request in trace.requests]
    assert at == sorted(at)
    assert len(set(at)) == len(times)
    assert all(time / 1000 <= moved <= time / 1000 + 3.0 for time, moved in zip(times, at, strict=True))


def test_agentic_sessions_have_pauses_and_blocks_of_a_servers_size(tmp_path: Path) -> None:
    row = {"t_ms": 0, "output_chars": 64}
    path = _jsonl(
        tmp_path / "trace.jsonl",
        {**row, "session": "a", "session_t_ms": 0, "input_chars": 1024, "hash_ids": [1, 2, 3, 4]},
        {**row, "session": "b", "session_t_ms": 0, "input_chars": 0, "hash_ids": []},
        {**row, "session": "a", "session_t_ms": 2500, "input_chars": 1300, "hash_ids": [1, 2, 3, 4, 5, 6]},
    )
    trace = read_trace(path)
    assert not trace.requests
    first, second = trace.sessions
    assert [request.at for request in first] == [0.0, 2.5]
    assert [(r.prompt, r.output, r.blocks) for r in first] == [
        (64, 2, (1, 2, 3, 4)),
        (81, 2, (1, 2, 3, 4, 5)),
    ]
    assert second[0].prompt == 1
    assert trace.block == 16
    halved = read_trace(path, scale=Scale(8, 8))
    assert halved.sessions[0][0].blocks == (2, 4)
    assert halved.block == 16


def test_sharegpts_blocks_become_cumulative(tmp_path: Path) -> None:
    row = {"input_length": 48, "output_length": 1}
    path = _jsonl(
        tmp_path / "trace.jsonl",
        {**row, "t_ms": 1.5, "hash_ids": [7, 8, 7]},
        {**row, "t_ms": 3.0, "hash_ids": [7, 9, 7]},
    )
    first, second = read_trace(path, scale=_WHOLE).requests
    assert len(set(first.blocks)) == 3
    assert first.blocks[0] == second.blocks[0]
    assert set(first.blocks[1:]).isdisjoint(second.blocks)


def test_azure(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:04.0319600,3180,8\n\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
    )
    first, second = read_trace(path).requests
    assert (first.prompt, first.output, first.blocks) == (601, 1, ())
    assert second.at == pytest.approx(0.052)
    assert second.prompt == 397


def test_vidur_has_no_times_and_gets_some(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n" + "800,80,880,10\n" * 500
    )
    trace = read_trace(path)
    assert (trace.requests[3].prompt, trace.requests[3].output) == (100, 10)
    assert trace.requests_per_second == pytest.approx(1.0, rel=0.3)
    assert read_trace(path) == trace
    assert read_trace(path, seed=1) != trace


def test_servegens_clients_are_mixed(tmp_path: Path) -> None:
    for client, rate in (("1", 3.0), ("2", 1.0)):
        (tmp_path / f"chunk-{client}-trace.csv").write_text(
            f"0,0,0,,0,0\n600,{rate},1.0,Gamma,1.0,{1 / rate}\n1200,{rate},1.0,Weibull,1.0,{1 / rate}\n"
        )
        law = {"input_tokens": f"{{{client}00: 1.0}}", "output_tokens": "{8: 0.5, 16: 0.5}"}
        (tmp_path / f"chunk-{client}-dataset.json").write_text(json.dumps({"0": law}))
    trace = read_trace(tmp_path)
    assert trace.requests_per_second == pytest.approx(4.0, rel=0.15)
    prompts = [request.prompt for request in trace.requests]
    assert prompts.count(12) / prompts.count(25) == pytest.approx(3.0, rel=0.2)
    one = read_trace(tmp_path / "chunk-2-trace.csv")
    assert {request.prompt for request in one.requests} == {25}


_MOONCAKE = '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ":1: no known trace format; name it with --format"),
        ("hello\n", ":1: no known trace format"),
        ('{"a": 1}\n', ":1: no known trace format"),
        ("{\n", ":1: is not JSON"),
        (_MOONCAKE + "\n{}\n", ":3: timestamp: Field required"),
        (_MOONCAKE + "[1\n", ":2: Invalid JSON"),
        (_MOONCAKE.replace("0,", "-1,"), ":1: timestamp: Input should be greater than or equal to 0"),
        (_MOONCAKE.replace("[]", "[1.5]"), ":1: hash_ids.0: Input should be a valid integer"),
        (_MOONCAKE.replace("[]", "[-1]"), ":1: hash_ids.0: Input should be greater"),
        (_MOONCAKE + _MOONCAKE.replace("0,", "1e400,"), ":2: timestamp: Input should be"),
        ("TIMESTAMP,ContextTokens\n", ":1: has no column GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", ": the trace is empty"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,1\n",
            ":2: TIMESTAMP: Input should be a valid datetime",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1\n",
            ":2: GeneratedTokens: Field required",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n2023-11-16T18:17:04Z,1,1\n",
            ": some times have a time zone and some have none",
        ),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}{told}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("trace", "lengths", "told"),
    [
        ("0,1\n", "{}", "chunk-1-trace.csv:1: six cells are expected"),
        ("0,1,1,Gamma,nan,1\n", "{}", "chunk-1-trace.csv:1: a number is negative or none"),
        ("0,1,1,Gamma,1,1\n", "{}", "chunk-1-dataset.json: has no lengths of prompts and answers"),
        ("0,1,1,Gamma,1,1\n", "[]", "chunk-1-dataset.json: not ServeGen's distributions"),
        ("0,1,1,Gamma,1,1\n", '{"0": {"input_tokens": "__import__(1)"}}', "not ServeGen's distributions"),
        (
            "0,1,1,Gamma,1,1\n",
            '{"0": {"input_tokens": "{1: -1}", "output_tokens": "{1: 1}"}}',
            "chances that are none",
        ),
    ],
)
def test_servegens_errors_name_the_file(tmp_path: Path, trace: str, lengths: str, told: str) -> None:
    (tmp_path / "chunk-1-trace.csv").write_text(trace)
    (tmp_path / "chunk-1-dataset.json").write_text(lengths)
    with pytest.raises(TraceError) as error:
        read_trace(tmp_path)
    assert told in str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "absent")
    with pytest.raises(TraceError, match=r"has no file chunk-N-trace\.csv"):
        read_trace(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="is not text"):
        read_trace(tmp_path / "binary")
    with pytest.raises(TraceError, match="no trace format 'csv'"):
        read_trace(tmp_path / "binary", "csv")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=120), format_=st.sampled_from([*FORMATS]))
def test_any_text_is_read_or_refused_in_one_line(tmp_path: Path, text: str, format_: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8", errors="replace")
    refused = ""
    try:
        assert len(read_trace(path, format_))
    except TraceError as error:
        refused = str(error)
    assert "\n" not in refused
    assert not refused or refused.startswith(str(tmp_path))


@pytest.mark.parametrize("name", [*SAMPLES])
def test_the_included_samples_can_be_read(name: str) -> None:
    trace = read_trace(_SAMPLES / SAMPLES[name])
    assert len(trace) >= 150
    assert f"`{SAMPLES[name]}" in (_SAMPLES / "ATTRIBUTION.md").read_text()


@pytest.mark.skipif(not _TRACES.is_dir(), reason="needs shared/traces beside the checkout")
@pytest.mark.parametrize(
    ("file", "ideal"),
    [
        ("mooncake/conversation_trace.jsonl", 0.366),
        ("mooncake/synthetic_trace.jsonl", 0.64),
        ("agentic/miniswe.jsonl", 0.937),
        ("agentic/magagent.jsonl", 0.839),
    ],
)
def test_published_traces_have_the_hit_rates_they_are_known_for(file: str, ideal: float) -> None:
    trace: Trace = read_trace(_TRACES / file)
    assert trace.ideal_hit_rate(0, len(trace)) == pytest.approx(ideal, abs=0.015)
