"""The command line: what it hands to the application, and its one-line refusals."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import picker
from picker import cli
from picker.llm_d_flags import ALIASES, ASKS_FOR_AUTH, IGNORED, POOL
from picker.observe import logs
from picker.settings import Settings, flag

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class StartError(Exception):
    pass


@pytest.fixture(autouse=True)
def _narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands in for the application, which would start to listen."""
    module = ModuleType("picker.app")
    module.StartError = StartError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "picker.app", module)
    monkeypatch.setattr(picker, "app", module, raising=False)
    monkeypatch.setattr("picker.observe.logs.configure", lambda *_: None)
    return module


def started(app: ModuleType, *args: str, run: Callable[[Settings], int] = lambda _: 0) -> int:
    app.run = run  # type: ignore[attr-defined]
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", *args])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main(args)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def test_flags_and_variables_reach_the_application(app: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PICKER_HEALTH_PORT", "1")
    seen: list[Settings] = []

    def run(settings: Settings) -> int:
        seen.append(settings)
        return 7

    assert started(app, "--endpoints", "10.0.0.1:80", "--grpc-port=2", "--strict-bodies", run=run) == 7
    assert (seen[0].grpc_port, seen[0].health_port, seen[0].strict_bodies) == (2, 1, True)


@pytest.mark.parametrize(
    ("switch", "secure"), [("--secure-serving=false", False), ("--secure-serving", True)]
)
def test_a_switch_takes_a_value_or_none(app: ModuleType, switch: str, secure: bool) -> None:
    assert started(app, "--endpoints=10.0.0.1:80", switch, run=lambda told: told.secure_serving) == secure


def told(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    (record,) = caplog.records
    assert record.message == "flags of the llm-d picker without meaning here"
    fields: dict[str, str] = vars(record)["fields"]
    return fields


def test_a_deployment_of_the_llm_d_picker_starts(app: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Settings] = []

    def run(settings: Settings) -> int:
        seen.append(settings)
        return 0

    args = [
        "--pool-name",
        "vllm",
        "-pool-namespace=default",
        "--grpc-port=1",
        "-grpc-health-port",
        "2",
        "--secure-serving=F",
        "--refresh-metrics-interval=50ms",
        "-v=4",
        "--zap-encoder",
        "json",
        "--tracing=false",
        "--health-checking",
        "-drain-timeout=1m30s",
    ]
    assert started(app, *args, run=run) == 0
    (settings,) = seen
    assert settings.pool == ("default", "vllm")
    assert (settings.grpc_port, settings.health_port, settings.secure_serving) == (1, 2, False)
    assert (settings.metrics_interval, settings.drain_timeout) == (0.05, 90.0)
    ignored = ["health-checking", "tracing", "v", "zap-encoder"]
    assert sorted(told(caplog)) == sorted(ignored)


@pytest.mark.parametrize("flag", sorted(IGNORED))
@pytest.mark.parametrize("value", [[], ["5"]], ids=["bare", "with a value"])
def test_what_has_no_meaning_is_accepted_in_every_form_and_told(
    app: ModuleType, caplog: pytest.LogCaptureFixture, flag: str, value: list[str]
) -> None:
    for form in ([f"--{flag}", *value], [f"-{flag}", *value], [f"--{flag}=5"], [f"-{flag}=5"]):
        caplog.clear()
        assert started(app, "--endpoints=10.0.0.1:80", *form) == 0
        assert told(caplog) == {flag: IGNORED[flag]}


@pytest.mark.parametrize("form", ["-v3", "-v=3", "--v=3"])
def test_verbosity_as_go_takes_it(app: ModuleType, caplog: pytest.LogCaptureFixture, form: str) -> None:
    assert started(app, "--endpoints=10.0.0.1:80", form) == 0
    assert set(told(caplog)) == {"v"}


def test_one_line_holds_all_that_is_ignored(app: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    assert started(app, "--endpoints=10.0.0.1:80", *(f"--{flag}=1" for flag in IGNORED)) == 0
    line = logs.TextFormatter(colour=False).format(caplog.records[0])
    assert all(f" {flag}=" in line for flag in IGNORED)


def test_a_setting_by_both_of_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "serve", "--grpc-health-port=1", "--health-port=2")
    assert line.endswith("--grpc-health-port and --health-port are the same setting; give one of the two")


@pytest.mark.parametrize(
    ("flags", "pool", "pods"),
    [
        (["--pool-name=a"], "team/a", ""),
        (["--pool-name=a", "--pool-namespace=b"], "b/a", ""),
        (["--endpoint-selector=app=a", "--endpoint-target-ports=8000,8001"], "", "team/app=a:8000,8001"),
    ],
)
def test_the_flags_that_name_the_pool(
    app: ModuleType, monkeypatch: pytest.MonkeyPatch, flags: list[str], pool: str, pods: str
) -> None:
    seen: list[Settings] = []
    monkeypatch.setenv("NAMESPACE", "team")

    def run(settings: Settings) -> int:
        seen.append(settings)
        return 0

    assert started(app, *flags, run=run) == 0
    assert (str(seen[0].pool or ""), str(seen[0].pods or "")) == (pool, pods)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--endpoint-selector=a=b"], "--endpoint-target-ports need each other"),
        (["--endpoint-target-ports=1"], "--endpoint-target-ports need each other"),
        (
            ["--pool-name=a", "--endpoint-selector=a=b", "--endpoint-target-ports=1"],
            "both name the endpoints",
        ),
        (["--pool-name=a", "--pool=b/a"], "--pool-name and --pool are the same setting"),
        (["--pool-name=A"], "--pool is 'default/A': should be namespace/name"),
        (["--pods=a/b=c"], "--pods is 'a/b=c': should be namespace/label=value,…:port,…"),
        (["--pods=a/b=c:1,1"], "should have 1 to 8 different ports"),
        (["--service=a"], "--service is 'a': should be namespace/name or namespace/name:port"),
        (["--service=a/b:"], "should have the name or number of a port"),
        (["--endpoints=10.0.0.1:80", "--leader-election"], "PICKER_LEADER_ELECTION needs an object"),
    ],
)
def test_flags_that_name_no_pool(capsys: pytest.CaptureFixture[str], flags: list[str], says: str) -> None:
    assert says in refused(capsys, "serve", *flags)


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("-grpc-prt=1", "--grpc-port"), ("--pool-nme=a", "--pool-name"), ("--kv-cache-usage-metric=a", "")],
)
def test_an_unknown_flag_of_either_picker(
    capsys: pytest.CaptureFixture[str], wrong: str, nearest: str
) -> None:
    line = refused(capsys, "serve", wrong)
    assert wrong.lstrip("-").partition("=")[0] in line
    assert nearest in line


def test_flags_of_the_llm_d_picker_are_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    text = capsys.readouterr().out
    assert not any(f"--{flag} " in text for flag in (*ALIASES, *POOL, ASKS_FOR_AUTH, *IGNORED))


def shown_help(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main(args)
    assert not caught.value.code
    return capsys.readouterr().out


def test_every_setting_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown_help(capsys, "serve", "--help-all")
    assert all(f"{flag(name)} " in text for name in Settings.model_fields)
    assert all(f"{heading}:" in text for heading in cli.SECTIONS.values())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", [[], *([name] for name in sorted(cli._group.commands))])
def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    lines = shown_help(capsys, *command, "--help").splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80


def test_common_settings_are_in_the_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(Settings.model_fields) > cli.COMMON
    assert set(Settings.model_fields) > set(cli.SECTIONS)
    text = shown_help(capsys, "serve", "--help")
    assert all(f"{flag(name)} " in text for name in cli.COMMON)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("srve", "no such command 'srve'; did you mean serve?"),
        ("gatway", "did you mean gateway?"),
        ("xyz", "there are check-config, explain, gateway, replay, serve, top"),
    ],
)
def test_a_wrong_command_suggests_the_nearest(
    capsys: pytest.CaptureFixture[str], wrong: str, says: str
) -> None:
    assert says in refused(capsys, wrong)


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        (["--metrics-endpoint-auth"], True),
        (["-metrics-endpoint-auth=true"], True),
        (["--metrics-endpoint-auth=false"], False),
        (["--metrics-endpoint-auth", "--http-auth=kubernetes"], False),
        ([], False),
    ],
)
def test_who_asked_for_tokens_is_told_that_none_are_asked_for(
    app: ModuleType, caplog: pytest.LogCaptureFixture, flags: list[str], warned: bool
) -> None:
    assert started(app, "--endpoints=10.0.0.1:80", *flags) == 0
    assert any("which PICKER_HTTP_AUTH=kubernetes checks" in text for text in caplog.messages) == warned
    assert len(caplog.messages) == warned


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([])
    assert caught.value.code == 2
    assert "serve" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("serve-picker")


def test_a_wrong_flag_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "serve", "--grpc-prt", "1")
    assert "--grpc-prt" in line
    assert "--grpc-port" in line


def test_a_flag_without_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--endpoints" in refused(capsys, "serve", "--endpoints")


def test_a_word_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert "10.0.0.1:80" in refused(capsys, "serve", "10.0.0.1:80")


def test_wrong_settings_are_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "serve").startswith("serve-picker: no endpoints: set PICKER_ENDPOINTS=")


def test_a_failed_start_is_one_line_and_code_2(app: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def run(_: Settings) -> int:
        raise StartError("port 9002 is taken; set PICKER_GRPC_PORT")

    assert started(app, "--endpoints=10.0.0.1:80", run=run) == 2
    assert capsys.readouterr().err == "serve-picker: port 9002 is taken; set PICKER_GRPC_PORT\n"


def test_an_interrupt_is_no_traceback(app: ModuleType) -> None:
    def run(_: Settings) -> int:
        raise KeyboardInterrupt

    assert started(app, "--endpoints=10.0.0.1:80", run=run) == 130


def test_an_unknown_variable_is_a_warning(
    app: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PICKER_GPRC_PORT", "1")
    assert started(app, "--endpoints=10.0.0.1:80") == 0
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert vars(record)["fields"] == {"name": "PICKER_GPRC_PORT", "nearest": "PICKER_GRPC_PORT"}


GOOD_POLICY = """apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: header-based-testing-filter}, {type: token-producer}]
"""


def checked(file: Path) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(["check-config", str(file)])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_check_config_says_what_a_policy_comes_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(GOOD_POLICY)
    assert checked(file) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[0] == f"{file} can be used"
    assert "  filters     header-based-testing-filter" in out.splitlines()
    assert (
        "  note        token-producer: a token is taken for 4 bytes; no tokenizer is asked"
        in out.splitlines()
    )
    assert "  warning     header-based-testing-filter: clients choose their endpoint by the header" in out


def test_check_config_says_all_mistakes_each_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(GOOD_POLICY.replace("token-producer", "nothing") + "plugin: 1\n")
    assert checked(file) == 2
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first.startswith(f"serve-picker: {file}, line 3: plugins[1].type 'nothing' is unknown; ")
    assert second.startswith(f"serve-picker: {file}, line 4: the policy has an unknown field 'plugin'; ")


def test_check_config_of_a_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path / "gone") == 2
    assert checked(tmp_path) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"serve-picker: {tmp_path / 'gone'} cannot be read: No such file or directory",
        f"serve-picker: {tmp_path} cannot be read: it is not a regular file",
    ]
