"""Another picker in the place of ours: its command, and a whole comparison run small."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import orjson
import pytest
from click.testing import CliRunner

from bench.compare.__main__ import main
from bench.e2e.peer import CommandError, Peer

if TYPE_CHECKING:
    from pathlib import Path

YARDSTICK = " ".join(
    [
        *(sys.executable, "-m", "bench.transport.yardstick"),
        *("--address", "127.0.0.1:{grpc_port}", "--destination", "{endpoint}"),
    ]
)
OURS = " ".join(
    [
        "env PICKER_BIND=127.0.0.1 PICKER_SECURE_SERVING=false PICKER_GRPC_PORT={grpc_port}",
        "PICKER_HEALTH_PORT={health_port} PICKER_METRICS_PORT={metrics_port}",
        "PICKER_ENDPOINTS_FILE={endpoints_file}",
        *(sys.executable, "-m", "picker", "serve"),
    ]
)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("picker --port 9002", "no {grpc_port}"),
        ("picker {grpc_port} {pool}", "'pool'"),
        ("picker {grpc_port} {}", "it may have {grpc_port}"),
        ("picker {grpc_port} '", "No closing quotation"),
    ],
)
def test_a_command_that_cannot_be_used(command: str, told: str) -> None:
    with pytest.raises(CommandError, match=told):
        Peer("peer", command)


def test_an_empty_command() -> None:
    with pytest.raises(CommandError, match="empty"):
        Peer("peer", "", port=1)


async def test_the_endpoints_file_is_one_that_pickers_read() -> None:
    peer = Peer("ours", OURS, settle=0.0)
    async with peer.running(["127.0.0.1:1", "127.0.0.1:2"]) as subject:
        assert subject.address.startswith("127.0.0.1:")
        assert subject.pid > 0


@pytest.mark.envoy
def test_a_peer_beside_ours(tmp_path: Path) -> None:
    options = ["--picker", YARDSTICK, "--name", "echo", "--case", "small-closed", "--mode", "duplex"]
    result = CliRunner().invoke(main, [*options, "--endpoints", "3", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "echo" in result.output
    (path,) = tmp_path.glob("*.json")
    document = orjson.loads(path.read_bytes())
    failed = {m["subject"]: m["failed"] for m in document["measurements"]}
    assert failed == {"none": 0, "picker": 0, "echo": 0}
    assert [given["subject"] for given in document["at_rest"]] == ["picker", "echo"]
