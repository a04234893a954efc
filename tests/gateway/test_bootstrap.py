"""Envoy takes the configuration, in all its forms."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from picker.endpoints.eds import EdsFile
from picker.gateway.binary import envoy_binary
from picker.gateway.bootstrap import GatewayConfig, bootstrap
from picker.gateway.envoy_config import DESTINATION
from picker.serving.tls import self_signed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.envoy


def config(folder: Path, **fields: Any) -> GatewayConfig:
    return GatewayConfig(
        listen="127.0.0.1:8080",
        picker="127.0.0.1:9002",
        eds_path=folder / "pool.json",
        admin_socket=folder / "admin.sock",
        **fields,
    )


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    chain, key = self_signed()
    (tmp_path / "tls.crt").write_bytes(chain)
    (tmp_path / "tls.key").write_bytes(key)
    return tmp_path / "tls.crt", tmp_path / "tls.key"


def validate(folder: Path, whole: GatewayConfig) -> str:
    """What Envoy says of it."""
    EdsFile(whole.eds_path).write(["127.0.0.1:8000", "[::1]:8000"])
    file = folder / "envoy.json"
    file.write_bytes(orjson.dumps(bootstrap(whole)))
    ended = subprocess.run(
        [envoy_binary(), "--config-path", file, "--mode", "validate", "--log-level", "warning"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.stdout + ended.stderr


def test_envoy_takes_it(tmp_path: Path) -> None:
    assert "OK" in validate(tmp_path, config(tmp_path))


def test_envoy_takes_it_with_tls_and_an_access_log(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    assert "OK" in validate(
        tmp_path, config(tmp_path, certificate=certificate, access_log=str(tmp_path / "log"))
    )


def test_clients_cannot_send_a_destination(tmp_path: Path) -> None:
    (listener,) = bootstrap(config(tmp_path))["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (early,) = manager["early_header_mutation_extensions"]
    assert early["typed_config"]["mutations"] == [{"remove": DESTINATION}]


def test_only_metadata_names_the_endpoint(tmp_path: Path) -> None:
    for cluster in bootstrap(config(tmp_path))["static_resources"]["clusters"]:
        if cluster["type"] == "EDS":
            (policy,) = cluster["load_balancing_policy"]["policies"]
            sources = policy["typed_extension_config"]["typed_config"]["override_host_sources"]
            assert [set(source) for source in sources] == [{"metadata"}]
