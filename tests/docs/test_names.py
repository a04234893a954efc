"""What the documents name is there: settings, flags, metrics, words of the log."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from bench.rig.picker import Picker
from picker.cli import _group
from picker.endpoints.file_format import parse_endpoints
from picker.objects.manifest import parse_objects
from picker.settings import Settings, variable
from tests.docs.pages import PAGES, ROOT, Page, read

if TYPE_CHECKING:
    from pathlib import Path

    import click


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_setting_that_is_named_exists(page: Page) -> None:
    known = {variable(name) for name in Settings.model_fields}
    assert set(re.findall(r"(?<![A-Z_])PICKER_[A-Z_]*[A-Z](?![A-Z_…*])", page.text)) <= known


def test_what_is_made_from_the_code_is_up_to_date() -> None:
    check = [sys.executable, str(ROOT / "docs" / "site" / "reference.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


@pytest.mark.parametrize("page", [page for page in PAGES if page.path.startswith("docs/")], ids=str)
def test_every_flag_that_is_named_alone_is_one_of_a_command(page: Page) -> None:
    from picker.replay.command import replay  # noqa: PLC0415 - numpy

    known = {name for command in (*_group.commands.values(), replay) for name in options(command)}
    named = {span.partition(" ")[0].partition("=")[0] for span in page.spans if span.startswith("--")}
    assert named - known == set()


async def test_every_metric_that_is_named_exists(tmp_path: Path) -> None:
    async with Picker({"PICKER_ENDPOINTS": "127.0.0.1:1"}, directory=tmp_path) as picker:
        exposed = await picker.metrics()
    series = set(re.findall(r"^# TYPE (\S+) ", exposed, re.MULTILINE))
    series |= {f"{name}_{part}" for name in series for part in ("bucket", "sum", "count")}
    for page in PAGES:
        named = set(re.findall(r"(?<![\w/.-])(?:picker|llm_d_epp)_[a-z_]*[a-z](?![\w*(])", page.text))
        assert named - series == set(), page


def test_every_flag_of_the_llm_d_picker_has_its_fate() -> None:
    section = read("docs/migration-from-llm-d.md").section("Flags")
    told = {
        flag
        for row in re.findall(r"^\| (`-.*?) \|", section, re.MULTILINE)
        for flag in row.strip("`").split("`, `")
    }
    hidden = [
        parameter for parameter in _group.commands["serve"].params if getattr(parameter, "hidden", False)
    ]
    assert sorted(told) == sorted(parameter.opts[0] for parameter in hidden)


def words() -> set[str]:
    """Every text in the picker's code, the constant parts of those that are put together among them."""
    found: set[str] = set()
    for path in (ROOT / "picker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def test_every_message_that_is_explained_can_be_seen() -> None:
    page = read("docs/troubleshooting.md")
    explained = re.findall(r"^\| `([^`]+)` \|", page.section("What the log says"), re.MULTILINE)
    assert len(explained) > 20
    said = words()
    quoted = re.findall(r"^\| `([^`]+?):?`", page.section("It does not start"), re.MULTILINE)
    assert quoted
    assert [text for text in explained + quoted if not any(text in one for one in said)] == []


def test_every_reason_and_text_of_a_refusal_is_explained() -> None:
    from picker.routing.router import ALL_FILTERED, CLUSTER_GONE, NOBODY, SHED  # noqa: PLC0415 - numpy

    page = read("docs/troubleshooting.md")
    for refusal in (ALL_FILTERED, CLUSTER_GONE, NOBODY, SHED):
        assert f"`{refusal.message}`" in page.section(str(refusal.status))


def test_every_rung_of_the_ladder_is_explained_in_its_order() -> None:
    from picker.routing.eligibility import RUNGS  # noqa: PLC0415 - numpy

    section = read("docs/how-it-decides.md").section("The ladder")
    assert re.findall(r"^\| `([\w-]+)`", section, re.MULTILINE) == [rung.name for rung in RUNGS]


def test_the_built_in_policy_is_the_one_that_is_explained() -> None:
    from scorer.profile import built_in_profile  # noqa: PLC0415 - numpy

    section = read("docs/how-it-decides.md").section("Least work")
    shown = re.findall(r"^\| `([\w-]+)` \| ([\d.]+) \|", section, re.MULTILINE)
    assert shown == [(scorer.name, f"{scorer.weight:g}") for scorer in built_in_profile().scorers]


def test_every_state_of_an_endpoint_is_explained() -> None:
    from picker.observe.states import STATES  # noqa: PLC0415 - numpy

    section = read("docs/troubleshooting.md").section("Requests are uneven")
    for state in STATES:
        assert f"| `{state}`" in section


def test_every_yaml_that_is_shown_can_be_read_by_what_it_is_for() -> None:
    endpoints = [block for page in PAGES for block in page.blocks("yaml") if block.startswith("endpoints:")]
    assert len(endpoints) > 2
    for block in endpoints:
        assert len(parse_endpoints(block.encode(), "shown")) == 2
    for page in PAGES:
        for block in page.blocks("yaml"):
            if block.startswith("apiVersion: llm-d.ai/v1alpha2"):
                assert parse_objects(block.encode(), "shown").rewrites
            assert all(document for document in yaml.safe_load_all(block))
