"""The endpoints file: what is read, and what an error says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.endpoints.endpoint import Endpoint, EndpointsError
from picker.endpoints.file_format import MOST_ENDPOINTS, parse_endpoints
from picker.strict_yaml import MOST_BYTES

ONE = "endpoints:\n- address: 10.0.0.1\n  port: 8000\n"


def complaint(text: str | bytes) -> str:
    with pytest.raises(EndpointsError) as caught:
        parse_endpoints(text if isinstance(text, bytes) else text.encode(), "e.yaml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1: the file is empty; write 'endpoints: []' for an empty pool"),
        ("# nothing\n", "line 1: the file is empty; write 'endpoints: []' for an empty pool"),
        (
            "endpoints: []\n---\nendpoints: []\n",
            "line 3: the file has a second document; write one list of endpoints, without '---'",
        ),
        ("- a\n", "line 1: the file is not a mapping; write it as 'key: value' lines"),
        ("endpoint: []\n", "line 1: the file has an unknown key 'endpoint'; did you mean 'endpoints'?"),
        ("{}\n", "line 1: 'endpoints' is missing; write 'endpoints:' and under it one '- address: …' each"),
        ("endpoints:\n", "line 1: 'endpoints' is not a list; begin each endpoint with '- '"),
        ("endpoints:\n  a: 1\n", "line 2: 'endpoints' is not a list; begin each endpoint with '- '"),
        ("endpoints:\n- a\n", "line 2: endpoints[0] is not a mapping; write it as 'key: value' lines"),
        ("endpoints:\n- port: 1\n", "line 2: endpoints[0] has no 'address'"),
        ("endpoints:\n- address: 10.0.0.1\n", "line 2: endpoints[0] has no 'port'"),
        (
            ONE + "- address: ray-head\n  port: 8000\n",
            "line 4: endpoints[1].address 'ray-head' is not an IP address, e.g. 10.0.0.1",
        ),
        (
            ONE + "- address: 10.0.0.2\n  port: 80000\n",
            "line 5: endpoints[1].port '80000' is not a port; give a number from 1 to 65535",
        ),
        (
            ONE + "- {address: 10.0.0.1, port: 8000}\n",
            "line 4: 10.0.0.1:8000 is listed on line 2 already; remove one of the two",
        ),
        (
            "endpoints: [{address: '::1', port: 1}, {address: '0::1', port: 1}]",
            "line 1: [::1]:1 is listed on line 1 already; remove one of the two",
        ),
        (ONE + "  port: 1\n", "line 4: endpoints[0] has the key 'port' twice; remove one of the two"),
        (
            ONE + "  metrics_host: a\n",
            "line 4: endpoints[0] has an unknown key 'metrics_host'; did you mean 'metricsHost'?",
        ),
        (
            ONE + "  weight: 1\n",
            (
                "line 4: endpoints[0] has an unknown key 'weight'; "
                "there are only address, port, name, namespace, metricsHost, labels"
            ),
        ),
        (ONE + "  name: 7\n", "line 4: endpoints[0].name '7' is not a text; put it in quotes"),
        (ONE + "  name:\n", "line 4: endpoints[0].name has no value; give one or remove the line"),
        (ONE + "  name: [a]\n", "line 4: endpoints[0].name is not a text; give it as one value"),
        (
            ONE + "  metricsHost: a:b\n",
            "line 4: endpoints[0].metricsHost 'a:b' is not host or host:port, e.g. a:8000",
        ),
        (
            ONE + "  labels: [a]\n",
            "line 4: endpoints[0].labels is not a mapping; write it as 'key: value' lines",
        ),
        (
            ONE + "  labels:\n    ready: true\n",
            "line 5: endpoints[0].labels.ready 'true' is not a text; put it in quotes",
        ),
        (ONE + "  1: a\n", "line 4: a key of endpoints[0] '1' is not a text; put it in quotes"),
        (ONE + "  ? [a]\n  : b\n", "line 4: a key of endpoints[0] is not a text; give it as one value"),
        ("endpoints: &a [*a]\n", "line 1: endpoints[0] is not a mapping; write it as 'key: value' lines"),
    ],
)
def test_an_error_names_file_line_and_mend(text: str, error: str) -> None:
    assert complaint(text) == f"e.yaml, {error}"


@pytest.mark.parametrize(
    "port", ["0", "-1", "010", "1e3", "80.0", "8_0", "1:30", "0x50", "true", "[80]", "http"]
)
def test_what_is_no_port(port: str) -> None:
    assert "is not a port; give a number from 1 to 65535" in complaint(
        f"endpoints: [{{address: 10.0.0.1, port: {port}}}]"
    )


def test_a_quoted_port() -> None:
    assert "write it without quotes" in complaint("endpoints: [{address: 10.0.0.1, port: '80'}]")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (ONE + "  name: [a\n", "e.yaml, line 5: not YAML: "),
        (ONE + "\tname: a\n", "e.yaml, line 4: not YAML: "),
        ("a: *nobody\n", "e.yaml, line 1: not YAML: "),
        (b"endpoints: \xff\n", "e.yaml, line 1: not YAML: "),
        (b"\0", "e.yaml, line 1: not YAML: "),
        ("[" * 100_000, "e.yaml, line 1: not YAML: "),
        ("- " * 100_000, "e.yaml, line 1: not YAML: "),
    ],
)
def test_what_is_not_yaml(text: str | bytes, start: str) -> None:
    assert complaint(text).startswith(start)


def test_too_much() -> None:
    assert complaint("#" * (MOST_BYTES + 1)) == "e.yaml, line 1: the file is larger than 1 MiB"
    many = "endpoints: [" + "{}," * (MOST_ENDPOINTS + 1) + "]"
    assert complaint(many) == "e.yaml, line 1: 10001 endpoints are more than the 10000 that one pool can have"


def test_everything_that_can_be_said() -> None:
    text = (
        ONE + "  name: pod-a\n  namespace: prod\n  metricsHost: 10.0.0.9:8080\n"
        "  labels:\n    ray.io/cluster: blue\n    ready: 'true'\n"
    )
    assert parse_endpoints(text.encode(), "e.yaml") == (
        Endpoint(
            "10.0.0.1:8000",
            "10.0.0.9:8080",
            name="pod-a",
            namespace="prod",
            labels={"ray.io/cluster": "blue", "ready": "true"},
        ),
    )


@pytest.mark.parametrize(
    ("metrics_host", "target_port", "expected"),
    [
        (None, None, "[fd00::1]:8000"),
        (None, 8080, "[fd00::1]:8080"),
        ("node-1", None, "node-1:8000"),
        ("node-1", 8080, "node-1:8080"),
        ("node-1:9", 8080, "node-1:9"),
        ("fd00::2", 8080, "[fd00::2]:8080"),
    ],
)
def test_where_the_metrics_are(metrics_host: str | None, target_port: int | None, expected: str) -> None:
    text = "endpoints:\n- address: FD00::1\n  port: 8000\n"
    if metrics_host:
        text += f"  metricsHost: '{metrics_host}'\n"
    (endpoint,) = parse_endpoints(text.encode(), "e.yaml", metrics_target_port=target_port)
    assert (endpoint.address, endpoint.metrics_address) == ("[fd00::1]:8000", expected)


def test_an_empty_pool_can_be_said() -> None:
    assert parse_endpoints(b"endpoints: []\n", "e.yaml") == ()


def test_json_is_yaml() -> None:
    text = b'{"endpoints": [{"address": "10.0.0.1", "port": 80}]}'
    assert [endpoint.address for endpoint in parse_endpoints(text, "e.yaml")] == ["10.0.0.1:80"]


@given(st.one_of(st.binary(max_size=40), st.text("endpoints:- \n[]{}&*!|>'\"%?1a", max_size=40)))
@settings(max_examples=150, deadline=None)
def test_garbage_is_one_line_of_complaint(garbage: str | bytes) -> None:
    raw = garbage if isinstance(garbage, bytes) else garbage.encode()
    for text in (raw, ONE.encode() + raw, b"endpoints:\n- " + raw):
        try:
            parse_endpoints(text, "e.yaml")
        except EndpointsError as error:
            message = str(error)
        else:
            message = "e.yaml, line none"
        assert message.startswith("e.yaml, line ")
        assert message.isprintable()
