"""``serve-picker replay`` as it is typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from picker import cli

if TYPE_CHECKING:
    from pathlib import Path

_QUICK = ("--requests", "60", "--seeds", "1", "--workers", "1")


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["replay", *arguments])
    return int(exit_.value.code or 0)


def test_policies_are_compared_and_written_down(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    code = _run(
        "--sample",
        "mooncake",
        "--rate",
        "4,8",
        "--policy",
        "ours",
        "--policy",
        "random",
        *_QUICK,
        "--out",
        str(out),
    )
    assert code == 0
    told = capsys.readouterr().out
    assert [line.split()[:3] for line in told.splitlines()[1:5]] == [
        ["mooncake", rate, policy] for rate in ("4x", "8x") for policy in ("ours", "random")
    ]
    assert sorted(path.name for path in out.iterdir()) == ["replay.csv", "replay.json", "replay.svg"]


def test_the_knee_is_found_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--sample", "azure", "--load", "0.5,1", "--policy", "ours", *_QUICK, "--requests", "900") == 0
    told = capsys.readouterr()
    assert "the knee is at" in told.err
    assert "(0.5 of the knee)" in told.out


def test_workers_do_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--sample", "mooncake", "--rate", "8", "--requests", "60", "--seeds", "2")
    assert _run(*arguments, "--workers", "1") == 0
    alone = capsys.readouterr().out
    assert _run(*arguments, "--workers", "2") == 0
    assert capsys.readouterr().out == alone


def test_sessions_faults_and_explanations(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    policy = tmp_path / "queue.yaml"
    policy.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"
    )
    code = _run(
        *("--sample", "agentic", "--sessions", "3", "--policy", f"mine={policy}", "--slow", "0:2.5"),
        *("--failing", "1@0.5-2", "--replicas", "2", "--headers-at-once", "--explain", "5", *_QUICK),
    )
    assert code == 0
    told = capsys.readouterr().out
    assert "3 sessions" in told
    assert "mine, request 5 at 3 sessions:" in told
    assert "queue-scorer" in told


def test_help_and_being_called_without_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--help") == 0
    assert "--policy" in capsys.readouterr().out
    assert _run() == 2
    assert "name a trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--policy", "our"), "there is no policy 'our'"),
        (("--policy", "ours=x"), "give the file's policy a name of its own"),
        (("--policy", "mine=absent.yaml"), "absent.yaml: No such file"),
        (("--rate", "0"), "a number above 0 is expected, not '0'"),
        (("--rate", "1,nan"), "not 'nan'"),
        (("--requests", "many"), "a whole number from 1 to"),
        (("--metrics-age", "-1"), "seconds from 0 to 60"),
        (("--slow", "x"), "an endpoint is a number"),
        (("--slow", "9"), "there is no server 9"),
        (("--failing", "1@5"), "times are given as @FROM-UNTIL"),
        (("--divide", "0"), "give a whole number"),
        (("--sessions", "4"), "has no sessions; use --rate"),
        (("absent.jsonl",), "absent.jsonl: No such file"),
        (("--load", "0.8", "--rate", "8"), "--load and --rate exclude one another"),
        (("--load", "0.8", "--sessions", "8"), "--load and --sessions exclude one another"),
        (("--format", "azure"), "--format and --sample exclude one another"),
        (("--explain", "60"), "--explain 60 and --requests 60 exclude one another"),
        (("--max-queued", "4"), "--max-queued is of Ray Serve proxies: add --ray"),
        (("--slow", "1", "--slow", "1:2"), "two --slow are of the same one, 1: leave one out"),
        (("--failing", "0", "--failing", "0@1-2"), "two --failing are of the same one, 0"),
        (("--policy", "ours", "--policy", "ours"), "two --policy are of the same one, ours"),
        (("--requests", "20"), "mooncake: 20 requests are too few to find a knee; play more of them"),
    ],
)
def test_wrong_calls_are_answered_in_one_line(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("--sample", "mooncake", *_QUICK, *arguments) == 2
    error = capsys.readouterr().err.removeprefix("mooncake: looking for the knee\n")
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_wrong_policy_file_is_told_with_its_line(
    workers: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    policy = tmp_path / "bad.yaml"
    policy.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queu-scorer}]\n"
    )
    arguments = ("--sample", "mooncake", "--rate", "8", "--requests", "60", "--seeds", "1")
    assert _run(*arguments, "--workers", workers, "--policy", f"mine={policy}") == 2
    error = capsys.readouterr().err
    assert "bad.yaml, line 3" in error
    assert "queue-scorer" in error
