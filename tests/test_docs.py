"""What the documents say is so."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from bench.rig.envoy import ExtProc, Listener, bootstrap
from picker.endpoints.file_format import parse_endpoints
from picker.gateway.binary import envoy_binary
from picker.inference.surfaces import PARSERS
from picker.objects.manifest import parse_objects
from picker.policy_file import means as policy_means
from picker.policy_file import parse_policy, summary
from picker.settings import Settings, default, variable
from scorer.plugins.producers import LACKING, TOLD
from scorer.plugins.registry import PLUGINS
from tests.extproc import test_playbooks

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
ENVOY: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "envoy.yaml").read_text())["static_resources"]


def filters(listener: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a listener's connection manager."""
    found: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def between(marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", README, re.DOTALL)
    assert found, f"README.md has no {marker}"
    return found[1]


def settings_table() -> str:
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        shown = f"`{default(name)}`" if default(name) else ""
        rows.append(f"| `{variable(name)}` | {shown} | {field.description} |")
    return "\n".join(rows) + "\n"


def test_the_readme_has_every_setting() -> None:
    assert between("settings") == settings_table()


def test_the_readme_shows_files_that_can_be_used() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (endpoints,) = [block for block in blocks if block.startswith("endpoints:")]
    assert len(parse_endpoints(endpoints.encode(), "README.md")) == 2
    (objects,) = [block for block in blocks if block.startswith("apiVersion: llm-d.ai")]
    shown = parse_objects(objects.encode(), "README.md")
    assert (len(shown.rewrites), len(shown.objectives)) == (1, 1)


@pytest.mark.envoy
async def test_the_real_envoy_takes_the_configuration() -> None:
    command = [envoy_binary(), "--mode", "validate", "--config-path", ROOT / "docs" / "envoy.yaml"]
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


def test_it_is_the_configuration_that_all_tests_use() -> None:
    ext_proc = ExtProc(address="127.0.0.1:9002", mode="buffered", tls=True, failure_mode_allow=True)
    rig = bootstrap([Listener(name="x", endpoints=[], balancer="picker", ext_proc=ext_proc)])
    ours = json.loads(json.dumps(rig["static_resources"]).replace("picker-x", "picker"))
    documented, tested = ENVOY["listeners"][0], ours["listeners"][0]
    for part in ("http_filters", "early_header_mutation_extensions", "upgrade_configs"):
        assert filters(documented)[part] == filters(tested)[part]
    assert documented["per_connection_buffer_limit_bytes"] == tested["per_connection_buffer_limit_bytes"]
    pool, picker = ENVOY["clusters"]
    assert pool["load_balancing_policy"] == ours["clusters"][0]["load_balancing_policy"]
    assert picker["transport_socket"] == ours["clusters"][1]["transport_socket"]


def test_the_readme_shows_the_filter_of_that_configuration() -> None:
    [shown] = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(- name: .*?)```", README, re.DOTALL)]
    assert shown[0] == filters(ENVOY["listeners"][0])["http_filters"][0]


def test_every_proof_of_the_protocol_is_a_test() -> None:
    proofs = re.findall(r"`([\w/]+\.py)::(\w+)(?:\[(.+?)\])?`", PROTOCOL)
    assert len(proofs) == PROTOCOL.count(".py::")
    books = {str(case.id) for case in test_playbooks.ALL + test_playbooks.STRICT_ALL}
    for file, test, book in proofs:
        text = (ROOT / "tests" / file).read_text()
        assert re.search(rf"^(?:async )?def {test}\(", text, re.MULTILINE), f"{file} has no {test}"
        assert not book or (file == "extproc/test_playbooks.py" and book in books), f"no play-book {book}"


def test_every_rule_of_the_protocol_has_a_proof() -> None:
    rules, _, _ = PROTOCOL.partition("## Where we differ")
    rows = re.findall(r"^\|(?! rule| when|---)(.*)\|$", rules, re.MULTILINE)
    assert len(rows) > 50
    assert [row for row in rows if ".py::" not in row.rpartition("|")[2]] == []


def test_the_protocol_names_settings_that_exist() -> None:
    named = set(re.findall(r"PICKER_[A-Z_]+", PROTOCOL))
    assert named <= {variable(name) for name in Settings.model_fields}


POLICIES = (ROOT / "docs" / "policies.md").read_text()


def shown_in_policies(marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", POLICIES, re.DOTALL)
    assert found
    return found[1]


def test_every_plugin_is_documented_on_one_pattern_and_every_documented_one_exists() -> None:
    sections = re.findall(r"^### (.*)\n\n((?:.|\n)*?)(?=\n##|\Z)", POLICIES, re.MULTILINE)
    documented = [name for heading, _ in sections for name in re.findall(r"`([^`]+)`", heading)]
    assert sorted(documented) == sorted(set(PLUGINS) - set(TOLD))
    for heading, text in sections:
        parts = re.findall(r"^\* \*\*(\w+)\*\*", text, re.MULTILINE)
        assert parts[:2] == ["Formula", "Reason"], heading
        assert "Fallback" in parts or "Differs" in parts, heading


@pytest.mark.parametrize(("marker", "plugins"), [("told", TOLD), ("lacking", LACKING)])
def test_plugins_without_a_section_are_in_tables(marker: str, plugins: dict[str, str]) -> None:
    rows = re.findall(r"^\| `(.*)` \| (.*) \|$", shown_in_policies(marker), re.MULTILINE)
    assert rows == sorted(plugins.items())


def test_every_parser_is_named() -> None:
    assert re.findall(r"`([^`]+)`", shown_in_policies("parsers")) == sorted(PARSERS)


def test_the_policies_that_are_shown_can_be_used() -> None:
    given = policy_means(Random(1), b"")
    blocks = re.findall(r"```yaml\n(.*?)```", POLICIES, re.DOTALL)
    assert blocks
    for block in blocks:
        shown = dict(summary(parse_policy(block.encode(), "policies.md", given)))
        assert f"  scorers     {shown['scorers']}" in POLICIES
