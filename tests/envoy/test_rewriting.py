"""Through a real Envoy: another model gets into the request and out of the answer, nothing else changes."""

from __future__ import annotations

import hashlib
import random
from io import BytesIO
from typing import TYPE_CHECKING

import orjson
import pytest

from bench.rig import envoy
from bench.rig.envoy import BUFFERING, MODES
from tests.envoy.conftest import gateway, internal_errors

if TYPE_CHECKING:
    from pathlib import Path

    from bench.rig.envoy import Mode

pytestmark = [pytest.mark.envoy, pytest.mark.sequence("through Envoy")]

CHAT = "/v1/chat/completions"
RULES = """
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: versions}
spec:
  poolRef: {name: pool}
  rules:
  - matches: [{model: {type: Exact, value: llama}}]
    targets: [{modelRewrite: llama-of-the-second-version}]
  - targets: [{modelRewrite: default}]
"""
REWRITTEN: tuple[Mode, ...] = ("duplex", "duplex_request", *sorted(BUFFERING))
RESTORED: tuple[Mode, ...] = ("duplex", "buffered_streamed")


def chat(model: str | None, size: int) -> bytes:
    text = random.Random(7).randbytes(size // 2).hex()
    named = {} if model is None else {"model": model}
    return orjson.dumps(named | {"messages": [{"role": "user", "content": text}], "seed": 2**60})


@pytest.fixture
def objects_file(tmp_path: Path) -> str:
    file = tmp_path / "objects.yaml"
    file.write_text(RULES)
    return str(file)


async def exchange(mode: Mode, objects_file: str, *, restored: bool) -> None:
    async with gateway(mode, objects_file=objects_file) as gate:
        for size in (100, 3_000_000):
            body = chat("llama", size)
            changed = body.replace(b'"llama"', b'"llama-of-the-second-version"')
            headers = {"content-type": "application/json"}
            async with gate.client.post(gate.url + CHAT, data=BytesIO(body), headers=headers) as answer:
                assert answer.status == 200
                expected = changed if mode in REWRITTEN else body
                assert answer.headers["x-sha256"] == hashlib.sha256(expected).hexdigest()
                assert answer.headers["x-content-length"] in ("", str(len(expected)))
                assert await answer.read() == (body if restored else expected)
        nameless = chat(None, 100)
        async with gate.client.post(gate.url + CHAT, data=nameless) as answer:
            expected = b'{"model":"default",' + nameless[1:] if mode in REWRITTEN else nameless
            assert await answer.read() == expected
        assert internal_errors(await gate.streams_closed()) == 0


@pytest.mark.parametrize("mode", MODES)
async def test_the_name_is_changed_wherever_the_body_passes(mode: Mode, objects_file: str) -> None:
    await exchange(mode, objects_file, restored=mode in RESTORED)


async def test_a_buffered_answer_gets_the_right_length(
    objects_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {**envoy.PROCESSING_MODES["buffered"], "response_body_mode": "BUFFERED"}
    monkeypatch.setattr(envoy, "PROCESSING_MODES", {"buffered": both})
    await exchange("buffered", objects_file, restored=True)
