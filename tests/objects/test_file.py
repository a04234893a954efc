"""The watched objects file. Every way a file changes is tested in tests/endpoints/test_file.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from picker.objects.file import follow_objects
from picker.objects.manifest import ObjectsError
from picker.objects.rules import Objective

if TYPE_CHECKING:
    from pathlib import Path

INTERVAL = 0.02
DEADLINE = 5.0


def objective(priority: int | str) -> str:
    return (
        "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: batch}\n"
        f"spec: {{priority: {priority}}}\n"
    )


async def test_a_change_is_told_and_a_mistake_leaves_what_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(objective(1))
    following = follow_objects(file, interval=INTERVAL)
    async with asyncio.timeout(DEADLINE):
        assert (await anext(following)).objectives == (Objective("batch", 1),)
        file.write_text(objective("high"))
        pending = asyncio.ensure_future(anext(following))
        while not caplog.records:  # noqa: ASYNC110  the log has no event to wait for
            await asyncio.sleep(INTERVAL)
        file.write_text(objective(2))
        assert (await pending).objectives == (Objective("batch", 2),)
    await following.aclose()
    (record,) = caplog.records
    assert vars(record)["fields"]["error"].startswith(f"{file}, line 4: spec.priority 'high' is not")


async def test_without_a_usable_file_there_is_no_start(tmp_path: Path) -> None:
    with pytest.raises(ObjectsError, match="cannot be read: No such file"):
        await anext(follow_objects(tmp_path / "objects.yaml"))
