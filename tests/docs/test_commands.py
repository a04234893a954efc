"""Every command line of the documents: ours are read as the process reads them, others by their help."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from picker.cli import _group, main
from picker.llm_d_flags import translate
from picker.replay.command import replay
from picker.serving.tls import self_signed
from picker.settings import load
from tests.docs.pages import PAGES, ROOT, read
from tests.docs.shell import Command, commands

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPTS = Path(sysconfig.get_path("scripts"))
CURL_FLAGS = {"-d", "-H", "-i", "-N", "-s", "-X"}
POLICY = read("docs/policies.md").blocks("yaml")[0]
ENDPOINTS = read("docs/quickstart-local.md").blocks("yaml")[0]
KUSTOMIZATION = read("docs/quickstart-kubernetes.md").blocks("yaml")[0]

COMMANDS = [
    pytest.param(command, id=f"{page.path}: {command}")
    for page in PAGES
    for block in page.blocks("sh")
    for command in commands(block)
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that commands name, which is where we are."""
    for name in ("policy.yaml", "new.yaml"):
        (tmp_path / name).write_text(POLICY)
    (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)
    (tmp_path / "tls").mkdir()
    for name, content in zip(("tls.crt", "tls.key"), self_signed(), strict=True):
        (tmp_path / "tls" / name).write_bytes(content)
    shutil.copytree(ROOT / "k8s", tmp_path / "k8s")
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "kustomization.yaml").write_text(KUSTOMIZATION)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_line_is_one(command: Command) -> None:
    CHECKS[command.program](command)


def check_serve_picker(command: Command) -> None:
    name, *arguments = command.words[1:]
    ours = _group.commands[name]
    if name == "replay":
        replay.make_context("replay", arguments)
        return
    given = ours.make_context(name, arguments).params
    texts = {name: value for name, value in given.items() if isinstance(value, str)}
    if name == "serve":
        load(translate(texts, command.environment)[0], command.environment)
    elif name == "gateway":
        load(
            {name: texts[name] for name in texts if name.startswith(("endpoints", "ray_"))},
            command.environment,
        )
    else:
        assert not command.environment


def check_make(command: Command) -> None:
    targets = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    assert [word for word in command.words[1:] if "=" not in word and word not in targets] == []


def check_pip(command: Command) -> None:
    assert command.words[1] == "install"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in command.words[2:]:
        extra = re.fullmatch(r"\.(?:\[(\w+)\])?", word)
        assert extra, "from this folder: there is nothing of ours in a registry"
        assert extra[1] is None or extra[1] in project["optional-dependencies"]


def check_curl(command: Command) -> None:
    assert command.flags <= CURL_FLAGS
    urls = [word for word in command.words if "://" in word]
    assert len(urls) == 1
    assert urllib.parse.urlsplit(urls[0]).port


def check_docker(command: Command) -> None:
    assert command.words[1] in ("build", "push")
    assert (ROOT / "Dockerfile").exists()


def check_kubectl(command: Command) -> None:
    verb = command.words[1]
    known = helped(str(SCRIPTS / "kubectl"), verb, "--help") + helped(str(SCRIPTS / "kubectl"), "options")
    for flag in command.flags:
        assert re.search(rf"^ +.*{re.escape(flag)}[,=:]", known, re.MULTILINE), flag
    if "-k" in command.words:
        folder = command.words[command.words.index("-k") + 1]
        made = subprocess.run(
            [SCRIPTS / "kubectl", "kustomize", folder],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        assert "image: registry.example/serve-picker:0.1.0" in made.stdout


def check_python(command: Command) -> None:
    flag, module, *_ = command.words[1:]
    assert flag == "-m"
    known = helped(sys.executable, "-m", module, "--help")
    for flag in command.flags - {"-m"}:
        assert re.search(rf"^ +.*{re.escape(flag)}\b", known, re.MULTILINE), flag


def check_ray(command: Command) -> None:
    known = helped(str(SCRIPTS / "ray"), command.words[1], "--help")
    for flag in command.flags:
        assert re.search(rf"^ +{re.escape(flag)}\b", known, re.MULTILINE), flag


@functools.cache
def helped(*words: str) -> str:
    """What a program says to ``--help``."""
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


CHECKS: dict[str, Callable[[Command], None]] = {
    "curl": check_curl,
    "docker": check_docker,
    "kubectl": check_kubectl,
    "make": check_make,
    "pip": check_pip,
    "python": check_python,
    "ray": check_ray,
    "serve-picker": check_serve_picker,
}


def test_the_policy_that_is_checked_in_the_documents_can_be_used(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del files
    with pytest.raises(SystemExit) as ended:
        main(["check-config", "policy.yaml"])
    assert ended.value.code == 0
    assert "policy.yaml can be used" in capsys.readouterr().out


def test_the_command_lines_of_the_prose_are_there_too() -> None:
    """``serve-picker NAME`` between backticks."""
    for page in PAGES:
        for span in page.spans:
            if span.startswith("serve-picker ") and "…" not in span:
                (command,) = commands(span)
                name = command.words[1]
                assert name in _group.commands, f"{page}: {span}"
                if len(command.words) > 2 and "NAME" not in span:
                    known = replay if name == "replay" else _group.commands[name]
                    flags = {flag for parameter in known.params for flag in parameter.opts}
                    assert command.flags <= flags, f"{page}: {span}"


def test_what_is_no_plain_command_is_refused() -> None:
    with pytest.raises(ValueError, match=">"):
        commands("serve-picker explain > file")
    (first, second) = commands("A=1 make test && \\\n  curl -s x # a comment")
    assert (first.environment, first.words, second.words) == (
        {"A": "1"},
        ["make", "test"],
        ["curl", "-s", "x"],
    )


def test_flags_that_do_not_exist_are_found() -> None:
    with pytest.raises(click.NoSuchOption):
        check_serve_picker(*commands("serve-picker explain --modell llm"))
    with pytest.raises(AssertionError, match="--nosuch"):
        check_kubectl(*commands("kubectl apply --nosuch x"))
