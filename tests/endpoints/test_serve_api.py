"""The dashboard's JSON about Serve, real and broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.addresses import HostPort
from picker.endpoints import serve_api
from picker.endpoints.serve_api import ServeApiError, Target, parse_applications, parse_metrics_targets

DATA = Path(__file__).parent / "data"
PROXIES = (DATA / "serve_proxies.json").read_bytes()
DIRECT_INGRESS = (DATA / "serve_direct_ingress.json").read_bytes()
HEAD = "754e8b162b241c325d488f53dfe6b24c5cbcd4b718c73df7974fe69a"
WORKER = "0b1bd0901bd4485f5b1e31b8ac2c48e8bfc16eaea4cf41b5e9ac4d4e"


def group(
    *targets: dict[str, Any], prefix: str = "/", app: str = "", protocol: str = "HTTP"
) -> dict[str, Any]:
    return {"targets": targets, "route_prefix": prefix, "protocol": protocol, "app_name": app}


def target(ip: object, port: object, name: object = "SERVE_PROXY_ACTOR-n1") -> dict[str, Any]:
    return {"ip": ip, "port": port, "name": name}


def answer(*groups: object, **others: Any) -> bytes:
    return orjson.dumps({"controller_info": {"actor_id": "c1"}, "target_groups": groups, **others})


def test_proxies_of_one_machine_share_the_only_address_there_is() -> None:
    state = parse_applications(PROXIES)
    assert [str(one.address) for one in state.targets] == ["127.0.0.1:18000"]
    assert state.targets[0].routes is None
    assert state.targets[0].node in state.targets[0].name
    assert state.proxies == {"127.0.0.1": "HEALTHY"}
    assert len(state.controller) == 32


def test_replicas_with_ports_of_their_own_have_the_route_of_their_application() -> None:
    replica = "SERVE_REPLICA::default#Fake#"
    assert parse_applications(DIRECT_INGRESS).targets == (
        Target(HostPort("127.0.0.1", 30000), f"{replica}byk7cw3n", WORKER, "default", ("/",)),
        Target(HostPort("127.0.0.1", 30001), f"{replica}w8ethesj", HEAD, "default", ("/",)),
    )


def test_an_application_without_replicas_has_the_proxies_beside_the_replicas_of_others() -> None:
    state = parse_applications(
        answer(
            group(target("10.0.0.2", 30000, "SERVE_REPLICA::a#D#x"), prefix="/a", app="a"),
            group(target("10.0.0.1", 8000), prefix="/b", app="b"),
            group(target("10.0.0.1", 8000), prefix="/c", app="c"),
        )
    )
    assert [(str(one.address), one.routes) for one in state.targets] == [
        ("10.0.0.1:8000", None),
        ("10.0.0.2:30000", ("/a",)),
    ]


def test_grpc_targets_are_none_for_http() -> None:
    assert parse_applications(answer(group(target("10.0.0.1", 9000), protocol="gRPC"))).targets == ()


def test_before_there_were_target_groups_the_healthy_proxies_are_taken() -> None:
    proxies = {
        "n1": {"node_ip": "10.0.0.1", "status": "HEALTHY", "actor_name": "SERVE_PROXY_ACTOR-n1"},
        "n2": {"node_ip": "fd00::2", "status": "HEALTHY", "actor_name": "SERVE_PROXY_ACTOR-n2"},
        "n3": {"node_ip": "10.0.0.3", "status": "DRAINING", "actor_name": "SERVE_PROXY_ACTOR-n3"},
    }
    state = parse_applications(orjson.dumps({"proxies": proxies, "http_options": {"port": 8000}}))
    assert [str(one.address) for one in state.targets] == ["10.0.0.1:8000", "[fd00::2]:8000"]
    assert state.proxies["10.0.0.3"] == "DRAINING"
    assert state.controller == ""


def test_the_order_is_that_of_addresses_whatever_the_answers_is() -> None:
    targets = [target("10.0.0.2", 8000), target("10.0.0.1", 8001), target("10.0.0.1", 8000)]
    assert (
        parse_applications(answer(group(*targets))).targets
        == parse_applications(answer(group(*reversed(targets)))).targets
    )


@pytest.mark.parametrize(
    "one",
    [
        target("no-ip", 8000),
        target("10.0.0.1", 0),
        target("10.0.0.1", 70000),
        target("10.0.0.1", "8000"),
        target(None, None),
        "text",
        None,
    ],
)
def test_a_target_that_is_none_is_left_out(one: Any) -> None:
    found = parse_applications(answer(group(one, target("10.0.0.9", 1, None)), "no group", {})).targets
    assert [str(target.address) for target in found] == ["10.0.0.9:1"]


@pytest.mark.parametrize("raw", [b"", b"<html>", b"[]", b"null", b"1"])
def test_what_is_no_answer_of_serve_is_an_error(raw: bytes) -> None:
    with pytest.raises(ServeApiError, match="the answer is not"):
        parse_applications(raw)


def test_more_targets_than_a_pool_can_have_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_api, "MOST_TARGETS", 2)
    with pytest.raises(ServeApiError, match="more than 2"):
        parse_applications(answer(group(*(target("10.0.0.1", port) for port in range(1, 5)))))


def test_of_several_ports_of_a_node_the_first_is_its_metrics_page() -> None:
    targets = ["10.0.0.1:8080", "[fd00::2]:8081", "10.0.0.1:44217", "10.0.0.1:44227"]
    assert parse_metrics_targets(orjson.dumps([{"labels": {"job": "ray"}, "targets": targets}])) == {
        "10.0.0.1": HostPort("10.0.0.1", 8080),
        "fd00::2": HostPort("fd00::2", 8081),
    }


_KEYS = ["controller_info", "actor_id", "proxies", "node_ip", "status", "applications", "deployments"]
_KEYS += ["replicas", "target_groups", "protocol", "targets", "ip", "port", "name"]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["10.0.0.1", "HTTP"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=5),
    max_leaves=20,
)


@given(_JSON | st.lists(st.dictionaries(st.just("targets"), _JSON), max_size=3))
@settings(max_examples=200, deadline=None)
def test_whatever_json_comes_nothing_but_the_error_is_raised(root: object) -> None:
    for parse in (parse_applications, parse_metrics_targets):
        try:
            parse(orjson.dumps(root))
        except ServeApiError:
            continue
        except TypeError:  # of orjson: an integer beyond 64 bits
            return
