"""A real RayCluster of three nodes, as its head tells it: proxies, and one that is drained."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

import orjson
import pytest

from bench.rig.child import PROJECT
from bench.rig.ray import require_ray

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

ENOUGH = 300.0


def namespaces_missing() -> str:
    """Why there can be no network namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    tools = [tool for tool in ("ip", "unshare", "nsenter") if shutil.which(tool) is None]
    return f"network namespaces need {', '.join(tools)}" if tools else ""


async def test_proxies_are_found_and_a_drained_one_is_left_before_it_refuses() -> None:
    if why := namespaces_missing():
        pytest.skip(why)
    require_ray()
    # Below /tmp: the path of a unix socket has 107 bytes at most, and Ray's are long.
    directory = Path(tempfile.mkdtemp(prefix="rig-ray-", dir="/tmp"))
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--net", sys.executable, "-m", "tests.ray.namespaces", str(directory)),
        stdout=asyncio.subprocess.PIPE,
        cwd=PROJECT,
    )
    try:
        async with asyncio.timeout(ENOUGH):
            output, _ = await process.communicate()
        log = (directory / "ray.log").read_text(errors="replace")[-2000:]
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        shutil.rmtree(directory, ignore_errors=True)
    assert process.returncode == 0, log

    seen = orjson.loads(output)
    assert seen["found"] == ["10.77.0.1:8000", "10.77.0.2:8000", "10.77.0.3:8000"]
    assert seen["metrics"] == ["10.77.0.1:8080", "10.77.0.2:8080", "10.77.0.3:8080"]
    assert seen["served_before"] == seen["found"]
    assert "10.77.0.1:8000" in seen["left"]
    assert seen["served_after"] == seen["left"]
    assert seen["failures"] == []
