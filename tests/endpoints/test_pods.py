"""From pods and EndpointSlices, as the API has them, to endpoints."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.endpoints.pods import Pod, PodEndpoints, read_pod
from picker.endpoints.pool import read_pool
from picker.endpoints.service import read_slice

if TYPE_CHECKING:
    from collections.abc import Callable

READY = {"conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}]}


def pod(**changes: Any) -> Pod:
    """What is read of a ready pod with other metadata, spec or status."""
    item: dict[str, Any] = {
        "metadata": {"name": "a", "namespace": "team", "labels": {"app": "llm"}},
        "spec": {"containers": [{"name": "server"}]},
        "status": {"podIP": "10.0.0.1", **READY},
    }
    for part, content in changes.items():
        item[part] = {**item[part], **content}
    return read_pod(item)


def addresses(*pods: Pod, ports: tuple[int, ...] = (8000,)) -> list[str]:
    return [endpoint.address for endpoint in PodEndpoints(None).of(pods, ports)]


def test_a_ready_pod_serves() -> None:
    assert pod().serves
    assert addresses(pod(), ports=(8000, 8001)) == ["10.0.0.1:8000", "10.0.0.1:8001"]


@pytest.mark.parametrize(
    "changes",
    [
        {"status": {"podIP": ""}},
        {"status": {"podIP": "fe80::1%eth0"}},
        {"status": {"conditions": None}},
        {"status": {"conditions": []}},
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
        {"metadata": {"deletionTimestamp": "2026-01-31T12:00:00Z"}},
        {"metadata": {"labels": {"ray.io/serve": "false"}}},
    ],
)
def test_a_pod_that_does_not_serve(changes: dict[str, Any]) -> None:
    assert not pod(**changes).serves
    assert addresses(pod(**changes)) == []


@pytest.mark.parametrize(
    ("annotations", "live"),
    [
        ({}, [8000, 8001]),
        ({"llm-d.ai/active-ports": "8001"}, [8001]),
        ({"llm-d.ai/active-ports": " 8001 ,, 8000,"}, [8000, 8001]),
        ({"llm-d.ai/active-ports": "8001,x,-1,0,99999,٨٠٠٠"}, [8001]),
        ({"llm-d.ai/active-ports": ""}, []),
        ({"llm-d.ai/active-ports": "9000"}, []),
        ({"inference.networking.k8s.io/active-ports": "8000"}, [8000]),
        ({"llm-d.ai/active-ports": "8001", "inference.networking.k8s.io/active-ports": "8000"}, [8001]),
    ],
)
def test_only_live_ports_count(annotations: dict[str, str], live: list[int]) -> None:
    found = addresses(pod(metadata={"annotations": annotations}), ports=(8000, 8001))
    assert found == [f"10.0.0.1:{port}" for port in live]


def test_a_wrong_entry_is_told(caplog: pytest.LogCaptureFixture) -> None:
    pod(metadata={"annotations": {"llm-d.ai/active-ports": "8000,x"}})
    (record,) = caplog.records
    assert vars(record)["fields"] == {"pod": "a", "annotation": "8000,x"}


@pytest.mark.parametrize(
    ("labels", "ports", "configured", "metrics"),
    [
        ({}, [], None, 8000),
        ({}, [], 9999, 9999),
        ({}, [{"name": "metrics", "containerPort": 9100}], None, 8000),
        ({"ray.io/cluster": "blue"}, [], None, 8080),
        ({"ray.io/cluster": "blue"}, [{"name": "metrics", "containerPort": 9100}], None, 9100),
        ({"ray.io/cluster": "blue"}, [{"containerPort": 9100}], None, 8080),
        ({"ray.io/cluster": "blue"}, [], 9999, 9999),
    ],
)
def test_where_a_pod_has_its_metrics(
    labels: dict[str, str], ports: list[Any], configured: int | None, metrics: int
) -> None:
    made = pod(metadata={"labels": labels}, spec={"containers": [{"ports": ports}]})
    (endpoint,) = PodEndpoints(configured).of([made], [8000])
    assert endpoint.metrics_address == f"10.0.0.1:{metrics}"


def test_order_is_that_of_names_and_an_address_counts_once() -> None:
    first, second = pod(metadata={"name": "b"}), pod(metadata={"name": "c"})
    other = pod(metadata={"name": "a"}, status={"podIP": "10.0.0.9"})
    found = PodEndpoints(None).of([second, first, other], [8000])
    assert [(endpoint.name, endpoint.address) for endpoint in found] == [
        ("a-rank-0", "10.0.0.9:8000"),
        ("b-rank-0", "10.0.0.1:8000"),
    ]


def test_what_changed_is_made_again_and_nothing_else() -> None:
    made = PodEndpoints(None)
    first, second = pod(metadata={"name": "b"}), pod(metadata={"name": "c"}, status={"podIP": "10.0.0.2"})
    before = made.of([first, second], [8000])
    changed = pod(metadata={"name": "c"}, status={"podIP": "10.0.0.3"})
    after = made.of([first, changed], [8000])
    assert after[0] is before[0]
    assert after[1].address == "10.0.0.3:8000"
    assert [endpoint.address for endpoint in made.of([first], [9000])] == ["10.0.0.1:9000"]
    assert made.of([], [9000]) == ()


@pytest.mark.parametrize(
    "spec",
    [
        {"selector": {"matchLabels": {}}, "targetPorts": [{"number": 1}]},
        {"selector": {"matchLabels": {"a": "b"}}, "targetPorts": []},
        {"selector": {"matchLabels": {"a": "b"}}, "targetPorts": [{"number": 0}]},
    ],
)
def test_a_pool_that_would_select_everything_or_nothing(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no selector or no target ports"):
        read_pool({"spec": spec})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=8), inside, max_size=3),
    max_leaves=10,
)
KEYS = [
    *("metadata", "spec", "status", "name", "namespace", "labels", "annotations", "podIP", "conditions"),
    *("containers", "ports", "selector", "matchLabels", "targetPorts", "number", "addressType", "endpoints"),
    *("addresses", "type", "targetRef", "port", "protocol", "containerPort"),
]
NEARLY = st.recursive(
    JSON,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inside, max_size=6),
    max_leaves=20,
)


@pytest.mark.parametrize("read", [read_pod, read_pool, read_slice])
@given(item=st.dictionaries(st.sampled_from(KEYS), NEARLY, max_size=6))
def test_whatever_an_object_is_only_these_errors_come(
    read: Callable[[dict[str, Any]], object], item: dict[str, Any]
) -> None:
    with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
        read(item)


def slice_of(*endpoints: Any, ports: Any = ({"name": "http", "port": 8000},)) -> Any:
    return {"addressType": "IPv4", "endpoints": list(endpoints), "ports": list(ports)}


@pytest.mark.parametrize(
    ("conditions", "serves"),
    [
        ({}, True),
        (None, True),
        ({"ready": True}, True),
        ({"ready": None, "serving": None, "terminating": None}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": False}, False),
        ({"ready": True, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": True, "terminating": False}, True),
    ],
)
def test_which_addresses_of_a_slice_serve(conditions: Any, serves: bool) -> None:
    read = read_slice(slice_of({"addresses": ["10.0.0.1"], "conditions": conditions}))
    assert read is not None
    assert bool(read.addresses) is serves


def test_what_a_slice_may_leave_out() -> None:
    read = read_slice({"addressType": "IPv4", "endpoints": None, "ports": None})
    assert read is not None
    assert (read.addresses, read.ports) == ((), ())
    ports = [{"port": None}, {"name": None, "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    read = read_slice(slice_of({"addresses": ["10.0.0.1"], "targetRef": None}, ports=ports))
    assert read is not None
    assert read.ports == (("", 80),)
