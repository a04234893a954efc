"""A real Ray cluster that wants a token from whoever asks its head."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from bench.rig.ray import RayCluster
from picker.endpoints.ray_head import Pace, RayHead, RayHeadSource
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

LONG = 60.0


async def test_its_proxies_are_found_once_the_file_has_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = secrets.token_hex(32)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    file = tmp_path / "token"
    file.write_text("another-one")
    async with RayCluster(1, dashboard=True) as cluster:
        head = RayHead(cluster.dashboard_url, token_file=file, pace=Pace(interval=1.0))
        async with aclosing(RayHeadSource(head).sets()) as sets:
            first = asyncio.ensure_future(anext(sets))

            async def refused() -> bool:
                return any(record.levelno == logging.WARNING for record in caplog.records)

            await eventually(refused, within=LONG)
            (error,) = [vars(record)["fields"]["error"] for record in caplog.records]
            assert error.startswith("403")
            file.write_text(f"{token}\n")
            async with asyncio.timeout(LONG):
                assert [endpoint.address for endpoint in await first] == [
                    proxy.address for proxy in cluster.proxies
                ]
