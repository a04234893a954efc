"""The picker's metrics page under load, against what was sent."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from io import BytesIO
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from picker.observe.requests import FIRST_NAMES
from tests.envoy.conftest import gateway

if TYPE_CHECKING:
    from tests.envoy.conftest import Gateway

pytestmark = [pytest.mark.envoy, pytest.mark.sequence("through Envoy")]

CHAT = "/v1/chat/completions"
CLIENTS = 12
PATIENCE = 60.0
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 64},
}


def body(model: str) -> bytes:
    """A request that is a good answer too, for the upstream sends it back."""
    return json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "hello"}], "usage": USAGE}
    ).encode()


async def summed(it: Gateway) -> dict[str, float]:
    """Every series of a page that the official parser reads, by name, over all its labels."""
    found: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(await it.picker.metrics()):
        for sample in family.samples:
            found[sample.name] += sample.value
    return found


@pytest.mark.parametrize("mode", ["duplex", "buffered"])
async def test_a_scrape_under_load_agrees_with_what_was_sent(mode: str) -> None:
    models = [*(f"model-{number % 3}" for number in range(150)), *(f"odd-{number}" for number in range(90))]
    bodies = [body(model) for model in models]
    async with gateway(mode, read_usage="true") as it:  # type: ignore[arg-type]  # one of the modes
        queue = list(bodies)

        async def client() -> None:
            while queue:
                sent = queue.pop()
                headers = {"content-type": "application/json"}
                async with it.client.post(it.url + CHAT, data=BytesIO(sent), headers=headers) as answer:
                    assert answer.status == 200
                    assert await answer.read() == sent

        async with asyncio.timeout(PATIENCE):
            clients = asyncio.gather(*(client() for _ in range(CLIENTS)))
            scrapes = []
            while not clients.done():
                scrapes.append((await summed(it))["llm_d_epp_request_total"])
                await asyncio.sleep(0.02)
            await clients
        await it.streams_closed()
        page = await it.picker.metrics()
        told = await summed(it)
    assert scrapes == sorted(scrapes)
    assert told["llm_d_epp_request_total"] == told["picker_decisions_total"] == len(models)
    assert told["llm_d_epp_scheduler_e2e_duration_seconds_count"] == len(models)
    assert told["llm_d_epp_request_size_bytes_count"] == len(models)
    assert told["llm_d_epp_request_size_bytes_sum"] == sum(map(len, bodies))
    assert told["llm_d_epp_request_running"] == 0
    assert told["llm_d_epp_request_duration_seconds_count"] == len(models)
    assert page.count("llm_d_epp_request_total{") == FIRST_NAMES + 1
    assert told["picker_internal_errors_total"] == 0
    if mode == "duplex":
        assert told["llm_d_epp_response_size_bytes_sum"] == sum(map(len, bodies))
        assert told["llm_d_epp_request_input_tokens_sum"] == 100 * len(models)
        assert told["llm_d_epp_request_output_tokens_sum"] == 7 * len(models)
        assert told["llm_d_epp_request_cached_tokens_sum"] == 64 * len(models)
