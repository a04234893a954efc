"""What the pages of Ray, its HAProxy and vLLM say, real ones and those of other versions and states."""

from __future__ import annotations

import gzip
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.metrics.dialects import detect
from picker.metrics.dialects.haproxy import HAPROXY
from picker.metrics.dialects.ray_serve import RAY_SERVE
from picker.metrics.dialects.vllm import VLLM
from picker.metrics.reading import ProbeReading, Reading

LOADED_NODE = gzip.decompress((Path(__file__).parent / "data/ray_2_60_loaded_node.txt.gz").read_bytes())
HAPROXY_PAGE = gzip.decompress((Path(__file__).parent / "data/ray_2_60_haproxy.txt.gz").read_bytes())
SAMPLES = Path(__file__).parents[3] / "shared/samples"


def nodes(sample: str) -> list[bytes]:
    """The pages of head, node 1 and node 2."""
    path = SAMPLES / sample
    if not path.exists():
        pytest.skip(f"needs {path.name} in {SAMPLES.parent.name}/{SAMPLES.name}")
    return re.split(rb"(?m)^# NODE .*\n", path.read_bytes())[1:]


def series(name: str, value: float, **labels: str) -> bytes:
    pairs = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{pairs}}} {value}\n".encode()


LOOP = "ray_serve_event_loop_scheduling_latency_ms_count"
PLACED = "ray_serve_num_ongoing_requests_at_replicas"
QUEUED = "ray_serve_deployment_queued_queries"
LOCAL = "ray_serve_replica_processing_queries"

# Ray, real pages


def test_a_loaded_node_of_ray_2_60() -> None:
    reading = RAY_SERVE.read(LOADED_NODE)
    assert (reading.load, reading.running, reading.queue, reading.local_running) == (20, 9, 11, 1)
    assert reading.engine.startswith("session_")
    assert detect(LOADED_NODE) is RAY_SERVE


def test_all_nodes_of_the_loaded_cluster() -> None:
    readings = [RAY_SERVE.read(page) for page in nodes("ray_metrics_loaded.txt")]
    assert [one.load for one in readings] == [0, 20, 3]
    assert [one.queue for one in readings] == [0, 11, 0]
    assert readings[1].local_running == 1
    assert readings[2].local_running == 4


def test_all_nodes_of_the_idle_cluster() -> None:
    idle = [RAY_SERVE.read(page) for page in nodes("ray_metrics_idle.txt")]
    loaded = [RAY_SERVE.read(page) for page in nodes("ray_metrics_loaded.txt")]
    assert [one.load for one in idle] == [0, 0, 0]
    assert all(one.marker != other.marker for one, other in zip(idle, loaded, strict=True))
    assert [one.engine for one in idle] == [one.engine for one in loaded]


# Ray, whose handle it is


def test_handles_of_replicas_are_not_the_proxys() -> None:
    page = (
        series(LOOP, 5, actor_id="p", component="proxy", loop_type="main")
        + series(LOOP, 5, actor_id="r", component="replica")
        + series(PLACED, 2, actor_id="p", handle="a")
        + series(PLACED, 3, actor_id="p", handle="b")
        + series(PLACED, 40, actor_id="r", handle="c")
        + series(QUEUED, 1, actor_id="p", handle="a")
        + series(QUEUED, 50, actor_id="r", handle="c")
    )
    reading = RAY_SERVE.read(page)
    assert (reading.running, reading.queue, reading.load) == (5, 1, 6)


def test_the_routers_gauges_name_the_proxy_where_its_histogram_is_missing() -> None:
    page = (
        series(LOOP, 5, actor_id="r", component="replica")
        + series("ray_serve_num_scheduling_tasks", 0, actor_id="p", handle_source="PROXY")
        + series("ray_serve_num_scheduling_tasks", 0, actor_id="r", handle_source="REPLICA")
        + series(PLACED, 2, actor_id="p")
        + series(PLACED, 40, actor_id="r")
        + series(QUEUED, 0, actor_id="p")
    )
    assert RAY_SERVE.read(page).load == 2


def test_in_old_versions_a_process_without_replicas_is_the_proxy() -> None:
    page = (
        series(PLACED, 2, WorkerId="w1", handle="a")
        + series(PLACED, 40, WorkerId="w2", handle="b")
        + series(QUEUED, 1, WorkerId="w1", handle="a")
        + series(QUEUED, 50, WorkerId="w2", handle="b")
        + series(LOCAL, 4, WorkerId="w2", replica="x")
    )
    reading = RAY_SERVE.read(page)
    assert (reading.load, reading.local_running) == (3, 4)


@pytest.mark.parametrize(
    "page",
    [
        b"ray_node_mem_used 5\n",
        series(LOOP, 5, actor_id="p", component="proxy"),
        series(LOOP, 5, actor_id="r", component="replica") + series(PLACED, 3, actor_id="r"),
        series(LOOP, 5, actor_id="p", component="proxy") + series(PLACED, 3, actor_id="p"),
        series(LOOP, 5, actor_id="p", component="proxy") + series("ray_serve_num_ongoing_http_requests", 3),
    ],
    ids=["no Serve", "no handle yet", "no proxy", "half of it", "the gauge that vanishes"],
)
def test_a_page_that_does_not_say_the_load_is_not_taken_for_idle(page: bytes) -> None:
    assert RAY_SERVE.matches(page)
    assert math.isnan(RAY_SERVE.read(page).load)


@pytest.mark.parametrize("counter", ["ray_serve_num_http_requests_total", "ray_serve_num_http_requests"])
def test_the_marker_moves_with_the_request_counter_of_every_version(counter: str) -> None:
    markers = {RAY_SERVE.read(series(counter, count, route="/-/routes")).marker for count in (1, 2, 2)}
    assert len(markers) == 2


def test_the_marker_moves_with_the_proxys_export_only() -> None:
    def marker(proxy: float, replica: float) -> int:
        page = (
            series(LOOP, proxy, actor_id="p", component="proxy")
            + series(LOOP, replica, actor_id="r", component="replica")
            + series(LOCAL, replica, replica="x")
        )
        return RAY_SERVE.read(page).marker

    assert marker(1, 1) == marker(1, 2)
    assert marker(1, 1) != marker(2, 1)


def test_the_engine_changes_with_the_cluster_and_with_the_proxy() -> None:
    def engine(session: str, actor: str) -> str:
        return RAY_SERVE.read(series(LOOP, 1, SessionName=session, actor_id=actor, component="proxy")).engine

    assert len({engine("s1", "p1"), engine("s2", "p1"), engine("s1", "p2")}) == 3
    assert engine("s1", "p1") == engine("s1", "p1")
    starting = series(LOOP, 1, SessionName="s1", actor_id="c", component="controller")
    assert RAY_SERVE.read(starting).engine == ""


def test_loaded_models_and_the_kv_cache_of_serve_llm() -> None:
    model = "ray_serve_registered_multiplexed_model_id"
    page = (
        series(model, 1, model_id="base:lora", replica="a")
        + series(model, 0, model_id="unloaded", replica="a")
        + series("ray_vllm_kv_cache_usage_perc", 0.25, engine="0")
        + series("ray_vllm_kv_cache_usage_perc", 0.75, engine="1")
    )
    reading = RAY_SERVE.read(page)
    assert reading.models == {"base:lora"}
    assert reading.kv_usage == 0.5


def test_the_number_of_models_is_bounded() -> None:
    model = "ray_serve_registered_multiplexed_model_id"
    page = b"".join(series(model, 1, model_id=str(number)) for number in range(400))
    assert len(RAY_SERVE.read(page).models) == 256


# Ray, probes


@pytest.mark.parametrize(
    ("path", "status", "body", "expected"),
    [
        (
            "/-/routes",
            200,
            b'{"/": "default", "/b": "other"}',
            ProbeReading(draining=False, routes=("/", "/b")),
        ),
        ("/-/routes", 200, b"{}", ProbeReading(draining=False, routes=())),
        ("/-/routes", 503, b"This node is being drained.", ProbeReading(draining=True)),
        ("/-/routes", 503, b"Route table is not populated yet.", ProbeReading(draining=False, routes=())),
        ("/-/routes", 503, b"No replicas are available yet.", ProbeReading(draining=False, routes=())),
        ("/-/healthz", 200, b"success", ProbeReading(draining=False)),
        ("/-/healthz", 503, b"This node is being drained.", ProbeReading(draining=True)),
        # not from a Serve proxy
        ("/-/routes", 200, b"<html>", ProbeReading()),
        ("/-/routes", 200, b"[1]", ProbeReading()),
        ("/-/routes", 200, b'{"a": 1, "\xff"', ProbeReading()),
        ("/-/routes", 200, b"[" * 5000, ProbeReading()),
        ("/-/routes", 404, b"This node is being drained.", ProbeReading()),
        ("/-/healthz", 503, b"upstream connect error", ProbeReading()),
    ],
)
def test_what_an_answer_to_a_probe_says(path: str, status: int, body: bytes, expected: ProbeReading) -> None:
    assert RAY_SERVE.read_probe(path, status, body) == expected


# vLLM

VLLM_PAGE = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 7.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.1
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 1.8e+09
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 500.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="3000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="3001"} 1.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.5e+09
"""


def test_a_vllm_page() -> None:
    assert detect(VLLM_PAGE) is VLLM
    reading = VLLM.read(VLLM_PAGE)
    assert (reading.load, reading.running, reading.queue) == (10, 8, 2)
    assert reading.kv_usage == pytest.approx(0.3)
    assert reading.models == {"a", "b"}
    assert reading.waiting_models == {"c"}
    assert reading.max_models == 4
    assert (reading.kv_blocks, reading.block_size, reading.counter) == (6001, 16, 1500)
    assert reading.engine == "1500000000.0"
    assert math.isnan(reading.local_running)


def test_the_old_name_of_vllms_kv_usage() -> None:
    assert VLLM.read(b"vllm:gpu_cache_usage_perc 0.25\n").kv_usage == 0.25


@pytest.mark.parametrize("told", [b"5", b"-0.1", b"NaN"])
def test_a_kv_usage_that_is_no_share_is_not_said(told: bytes) -> None:
    assert math.isnan(VLLM.read(b"vllm:kv_cache_usage_perc " + told + b"\n").kv_usage)


@pytest.mark.parametrize("blocks", ["None", "0", "-1", "1e9", "٣", "9" * 13, ""])
def test_a_size_of_the_cache_that_is_no_number_is_not_said(blocks: str) -> None:
    page = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1\n'
    reading = VLLM.read(page.encode())
    assert math.isnan(reading.kv_blocks)
    assert reading.block_size == 16


def test_half_a_load_is_no_load() -> None:
    assert math.isnan(VLLM.read(b"vllm:num_requests_running 3\n").load)


# Both


@pytest.mark.parametrize("page", [b"", b"<html>ray_ vllm:</html>", b"up 1\n", b"my_ray_x 1\nx_vllm:y 1\n"])
def test_a_page_of_neither_kind(page: bytes) -> None:
    assert detect(page) is None


@settings(max_examples=40, deadline=None)
@given(noise=st.binary(max_size=40), cut=st.integers(0, 4000))
def test_damaged_pages_are_read_as_far_as_they_go(noise: bytes, cut: int) -> None:
    for one, page in ((RAY_SERVE, LOADED_NODE[:6000]), (VLLM, VLLM_PAGE)):
        for damaged in (noise, page[:cut], page[:cut] + noise + page[cut:], page[cut:]):
            reading = one.read(damaged)
            assert isinstance(reading, Reading)
            assert math.isnan(reading.load) or reading.load >= 0
            one.read_probe("/-/routes", 200, noise)


# Ray's HAProxy


def test_a_real_page_of_rays_haproxy() -> None:
    assert detect(HAPROXY_PAGE) is HAPROXY
    reading = HAPROXY.read(HAPROXY_PAGE)
    assert (reading.load, reading.running, reading.queue, reading.proxy) == (0, 0, 0, True)


def test_only_backends_of_applications_count() -> None:
    sessions, queue = "haproxy_backend_current_sessions", "haproxy_backend_current_queue"
    page = b"".join(
        [
            series("haproxy_frontend_current_sessions", 50, proxy="http_frontend"),
            series(sessions, 7, proxy="stats"),
            series(sessions, 3, proxy="http-default"),
            series(sessions, 2, proxy="http-other"),
            series(queue, 1, proxy="http-default"),
            series(queue, 9, proxy="default_backend"),
        ]
    )
    reading = HAPROXY.read(page)
    assert (reading.load, reading.running, reading.queue) == (6, 5, 1)


def test_a_haproxy_without_applications_says_nothing() -> None:
    assert math.isnan(HAPROXY.read(series("haproxy_backend_current_sessions", 7, proxy="stats")).load)
