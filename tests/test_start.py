"""What keeps a process from starting, as an operator sees it: one line on standard error, exit code 2."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from bench.rig.child import PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USABLE = {
    "PICKER_BIND": "127.0.0.1",
    "PICKER_GRPC_PORT": "0",
    "PICKER_HEALTH_PORT": "0",
    "PICKER_METRICS_PORT": "0",
    "PICKER_ENDPOINTS": "127.0.0.1:1",
}
PATIENCE = 30.0


async def refused(tmp_path: Path, **env: str) -> str:
    """The one line of a start with these variables changed; an empty one is not set."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PICKER_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "picker", "serve"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**inherited, "PYTHONPATH": str(PROJECT), **USABLE, **env},
        cwd=tmp_path,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 2, err
    assert out == b""
    (line,) = err.decode().splitlines()
    assert line.startswith("serve-picker: ")
    return line.removeprefix("serve-picker: ")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize("name", ["PICKER_GRPC_PORT", "PICKER_HEALTH_PORT", "PICKER_METRICS_PORT"])
async def test_a_port_that_is_taken(name: str, taken: int, tmp_path: Path) -> None:
    line = await refused(tmp_path, **{name: str(taken)})
    assert str(taken) in line
    assert "Address already in use" in line
    assert f"set {name} to a free port" in line


async def test_an_address_of_another_machine(tmp_path: Path) -> None:
    line = await refused(tmp_path, PICKER_BIND="203.0.113.7")
    assert "203.0.113.7" in line
    assert "or PICKER_BIND to an address of this machine" in line


async def test_no_source(tmp_path: Path) -> None:
    line = await refused(tmp_path, PICKER_ENDPOINTS="")
    assert line.startswith("no endpoints: set PICKER_ENDPOINTS=")
    assert "or PICKER_ENDPOINTS_FILE=" in line


async def test_two_sources(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("endpoints: []\n")
    line = await refused(tmp_path, PICKER_ENDPOINTS_FILE="e.yaml")
    assert line == "PICKER_ENDPOINTS and PICKER_ENDPOINTS_FILE both name the endpoints; unset all but one"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read (No such file or directory); for example PICKER_ENDPOINTS_FILE="),
        ("", "e.yaml, line 1: the file is empty; write 'endpoints: []' for an empty pool"),
        ("endpoints: [\n", "e.yaml, line 2: not YAML: "),
        ("endpoints:\n- {address: a.example, port: 1}\n", "is not an IP address, e.g. 10.0.0.1"),
        ("endpoints:\n- {address: 10.0.0.1}\n", "e.yaml, line 2: endpoints[0] has no 'port'"),
        ("\x00\xff", "e.yaml, line 1: not YAML: "),
    ],
)
async def test_a_file_that_names_no_endpoints(content: str | None, told: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "e.yaml").write_text(content, encoding="latin-1")
    line = await refused(tmp_path, PICKER_ENDPOINTS="", PICKER_ENDPOINTS_FILE="e.yaml")
    assert line.startswith("PICKER_ENDPOINTS_FILE")
    assert told in line


async def test_a_folder_for_a_file(tmp_path: Path) -> None:
    line = await refused(tmp_path, PICKER_ENDPOINTS="", PICKER_ENDPOINTS_FILE=str(tmp_path))
    assert line.startswith("PICKER_ENDPOINTS_FILE is ")
    assert "cannot be read (Is a directory)" in line


@pytest.mark.parametrize("endpoints", ["10.0.0.1", "10.0.0.1:port", "http://a:80", "10.0.0:80", "a..b:80"])
async def test_an_endpoint_that_is_not_host_and_port(endpoints: str, tmp_path: Path) -> None:
    line = await refused(tmp_path, PICKER_ENDPOINTS=f"10.0.0.1:1,{endpoints}")
    assert line.startswith("PICKER_ENDPOINTS")
    assert f"'{endpoints}'" in line or endpoints in line
    assert "host:port" in line
    assert "10.0.0.1:8000" in line


@pytest.mark.parametrize(
    ("name", "value", "mend"),
    [
        ("PICKER_GRPC_PORT", "http", "PICKER_GRPC_PORT=9002"),
        ("PICKER_HEALTH_PORT", "65536", "PICKER_HEALTH_PORT=9003"),
        ("PICKER_METRICS_PORT", "-1", "PICKER_METRICS_PORT=9090"),
        ("PICKER_BIND", "localhost", "PICKER_BIND=127.0.0.1"),
        ("PICKER_ENDPOINTS", ",", "PICKER_ENDPOINTS=10.0.0.1:8000"),
        ("PICKER_SECURE_SERVING", "perhaps", "PICKER_SECURE_SERVING=false"),
        ("PICKER_CERT_PATH", "nowhere", "PICKER_CERT_PATH=/etc/picker/tls"),
        ("PICKER_MAX_BODY", "much", "PICKER_MAX_BODY=64MiB"),
        ("PICKER_MAX_BODY", "0", "PICKER_MAX_BODY=64MiB"),
        ("PICKER_MAX_BODY", "1GiB", "lower the first or raise the second"),
        ("PICKER_FALLBACKS", "-1", "PICKER_FALLBACKS=1"),
        ("PICKER_DRAIN_DELAY", "soon", "PICKER_DRAIN_DELAY=5s"),
        ("PICKER_DECISION_TIMEOUT", "0s", "PICKER_DECISION_TIMEOUT=150ms"),
        ("PICKER_METRICS_DIALECT", "klingon", "PICKER_METRICS_DIALECT=ray_serve"),
        ("PICKER_METRICS_PATH", "metrics", "PICKER_METRICS_PATH=/metrics"),
        ("PICKER_LOG_LEVEL", "loud", "PICKER_LOG_LEVEL=info"),
        ("PICKER_LOG_FORMAT", "xml", "PICKER_LOG_FORMAT=json"),
    ],
)
async def test_a_wrong_value(name: str, value: str, mend: str, tmp_path: Path) -> None:
    line = await refused(tmp_path, **{name: value})
    assert line.startswith(name)
    assert mend in line


async def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text("junk")
    line = await refused(tmp_path, PICKER_CERT_PATH=str(tmp_path))
    assert line.startswith("PICKER_CERT_PATH: ")
    assert "tls.crt holds no PEM certificate" in line
