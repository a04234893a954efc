"""Dashboard and alerts: whatever they name is on the metrics page of a picker."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from bench.rig.picker import Picker
from tests.metrics.rig import Server, http

FOLDER = Path(__file__).parents[1] / "k8s" / "monitoring"
RULES = yaml.safe_load((FOLDER / "rules.yaml").read_text())
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
PAGE = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n"
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}

PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")


def alerts() -> dict[str, str]:
    """Expressions by the alert's name."""
    return {rule["alert"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"]}


def queries() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def series_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:picker|llm_d_epp|process)_\w+", expression))


def promtool(command: list[str]) -> None:
    done = subprocess.run(
        [str(PROMTOOL), *command], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def test_every_series_that_is_named_exists() -> None:
    server = Server()
    server.answers["/metrics"] = http(PAGE)
    await server.start()
    try:
        settings = {"PICKER_ENDPOINTS": server.address, "PICKER_METRICS_DIALECT": "vllm"}
        async with Picker(settings) as picker:
            page = await picker.metrics()
    finally:
        await server.stop()
    exist = {
        family.name + suffix
        for family in text_string_to_metric_families(page)
        for suffix in SUFFIXES.get(family.type, ("",))
    }
    named = set().union(*map(series_in, [*alerts().values(), *queries()]))
    assert named - exist == set()
    assert len(named) > 30


def test_every_alert_says_what_to_look_at() -> None:
    for group in RULES["groups"]:
        for rule in group["rules"]:
            assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
            assert rule["labels"]["severity"] in ("warning", "critical")


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@needs_promtool
@pytest.mark.parametrize("command", [["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]])
def test_promtool_is_content(command: list[str]) -> None:
    promtool(command)


@needs_promtool
def test_queries_of_the_dashboard_can_be_read(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": re.sub(r"\$__rate_interval", "1m", query)}
        for number, query in enumerate(queries())
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool(["check", "rules", str(file)])
