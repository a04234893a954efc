"""What can be set, how it is written, and the one line that tells what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.settings import (
    MEMBERSHIP,
    Settings,
    SettingsError,
    default,
    load,
    unknown_variables,
    variable,
    with_hint,
)

if TYPE_CHECKING:
    from pathlib import Path

POOL = {"PICKER_ENDPOINTS": "10.0.0.1:8000"}


def refused(environ: dict[str, str], **flags: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(flags, environ)
    message = str(caught.value)
    assert message.isprintable(), "one line"
    return message


def test_defaults_are_those_of_the_documentation() -> None:
    told = load({}, POOL)
    assert told.bind is None
    assert (told.grpc_port, told.health_port, told.metrics_port) == (
        9002,
        9003,
        9090,
    )
    assert told.secure_serving is True
    assert told.strict_bodies is False
    assert told.fallbacks == 0
    assert told.decision_timeout == 0.15
    assert (told.drain_delay, told.drain_timeout) == (5.0, 300.0)
    assert (told.max_body, told.max_buffered) == (64 * 2**20, 512 * 2**20)
    assert told.metrics_interval is None
    assert told.objects_file is None
    assert told.watchdog == 10.0
    assert (told.read_usage, told.echo_served) == (False, False)


def test_a_default_as_shown_is_a_value_that_can_be_given() -> None:
    shown = {variable(name): default(name) for name in Settings.model_fields}
    assert load({}, shown | POOL) == load({}, POOL)


def test_an_example_as_shown_is_a_value_that_can_be_given() -> None:
    needs_files = (
        *("endpoints_file", "objects_file", "config_file", "cert_path", "client_ca", "eds_file"),
        *("http_auth", "ray_token_file"),
    )
    for name, field in Settings.model_fields.items():
        if name not in needs_files:
            assert field.examples
            pool = {} if name in MEMBERSHIP else {"PICKER_POOL": "default/llm"}
            load({}, pool | {variable(name): str(field.examples[0])})


@pytest.mark.parametrize("wrong", ["maybe", "token", "token:", "none:x", "kubernetes:x"])
def test_who_reads_pages_is_one_of_three(wrong: str) -> None:
    said = refused(POOL | {"PICKER_HTTP_AUTH": wrong})
    assert "should be none, token:FILE or kubernetes" in said


def test_a_token_file_is_read_beforehand(tmp_path: Path) -> None:
    said = refused(POOL | {"PICKER_HTTP_AUTH": f"token:{tmp_path / 'gone'}"})
    assert "cannot be read (No such file or directory)" in said
    (tmp_path / "token").write_text("x")
    environ = POOL | {"PICKER_HTTP_AUTH": f"Token: {tmp_path / 'token'}"}
    assert load({}, environ).http_auth == f"token:{tmp_path / 'token'}"


def test_client_certificates_need_tls(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("x")
    environ = POOL | {"PICKER_CLIENT_CA": str(tmp_path / "ca.crt"), "PICKER_SECURE_SERVING": "false"}
    assert refused(environ).startswith("PICKER_CLIENT_CA needs TLS")


def test_the_live_page_has_a_port_of_its_own_if_it_is_on() -> None:
    told = load({}, POOL)
    assert (told.admin, told.admin_port, told.admin_bind) == (True, 9091, "127.0.0.1")
    assert "PICKER_ADMIN_PORT is 9090, which is also PICKER_METRICS_PORT" in refused(
        POOL | {"PICKER_ADMIN_PORT": "9090"}
    )
    load({}, POOL | {"PICKER_ADMIN_PORT": "9090", "PICKER_ADMIN": "false"})


def test_a_message_names_the_variable_that_was_probably_meant() -> None:
    told = with_hint("no endpoints", {"PICKER_ENDPOINT": "127.0.0.1:1"})
    assert told == "no endpoints (PICKER_ENDPOINT is not known; did you mean PICKER_ENDPOINTS?)"
    assert with_hint("no endpoints", {"PICKER_ENDPOINTS": ""}) == "no endpoints"


def test_a_flag_goes_before_the_variable() -> None:
    environ = POOL | {"PICKER_GRPC_PORT": "1", "PICKER_HEALTH_PORT": "2"}
    assert load({"grpc_port": "3"}, environ).grpc_port == 3
    assert load({"grpc_port": "3"}, environ).health_port == 2


def test_an_empty_variable_is_not_set() -> None:
    assert load({}, POOL | {"PICKER_ENDPOINTS_FILE": "", "PICKER_MAX_BODY": " "}).max_body == 64 * 2**20
    assert load({"grpc_port": ""}, POOL | {"PICKER_GRPC_PORT": "1"}).grpc_port == 9002


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("150ms", 0.15),
        ("5s", 5.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("0.5", 0.5),
        ("7", 7.0),
        (" 1.5 s ", 1.5),
        ("1m30s", 90.0),
    ],
)
def test_durations(written: str, seconds: float) -> None:
    assert load({}, POOL | {"PICKER_DRAIN_DELAY": written}).drain_delay == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("written", "size"), [("64MiB", 64 * 2**20), ("10MB", 10**7), ("4096", 4096), ("1 GiB", 2**30)]
)
def test_sizes(written: str, size: int) -> None:
    assert load({}, POOL | {"PICKER_MAX_BODY": written, "PICKER_MAX_BUFFERED": "2GiB"}).max_body == size


def test_several_endpoints_of_all_kinds_of_hosts() -> None:
    environ = {"PICKER_ENDPOINTS": "10.0.0.1:8000, [fd00::1]:8000,ray-head.default.svc:80,"}
    assert load({}, environ).endpoints == (
        ("10.0.0.1", 8000),
        ("fd00::1", 8000),
        ("ray-head.default.svc", 80),
    )


@pytest.mark.parametrize(("written", "address"), [("127.0.0.1", "127.0.0.1"), ("[::]", "::"), ("::1", "::1")])
def test_an_address_to_listen_on(written: str, address: str) -> None:
    assert load({}, POOL | {"PICKER_BIND": written}).bind == address


def test_no_source_names_the_sources() -> None:
    message = refused({})
    assert "PICKER_ENDPOINTS=" in message
    assert "PICKER_ENDPOINTS_FILE=" in message


def test_two_sources_are_both_named(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    file.touch()
    message = refused(POOL | {"PICKER_ENDPOINTS_FILE": str(file)})
    assert message == "PICKER_ENDPOINTS and PICKER_ENDPOINTS_FILE both name the endpoints; unset all but one"


@pytest.mark.parametrize("members", ["PICKER_POOL", "PICKER_SERVICE", "PICKER_PODS"])
@pytest.mark.parametrize("ray", ["PICKER_RAY_SERVICE", "PICKER_RAY_HEAD"])
def test_what_ray_knows_may_come_with_members_in_kubernetes(members: str, ray: str) -> None:
    examples = {
        "PICKER_POOL": "default/llm",
        "PICKER_SERVICE": "default/llm",
        "PICKER_PODS": "default/app=llm:8000",
        "PICKER_RAY_SERVICE": "default/llm",
        "PICKER_RAY_HEAD": "http://head:8265",
    }
    assert load({}, {name: examples[name] for name in (members, ray)})


@pytest.mark.parametrize(
    "named",
    [
        ("PICKER_RAY_SERVICE", "PICKER_RAY_CLUSTER"),
        ("PICKER_POOL", "PICKER_RAY_CLUSTER"),
        ("PICKER_POOL", "PICKER_SERVICE", "PICKER_RAY_SERVICE"),
    ],
)
def test_other_pairs_are_two_sources(named: tuple[str, ...]) -> None:
    assert refused(dict.fromkeys(named, "default/llm")).startswith(" and ".join(named))


def test_a_token_is_for_a_ray_head(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch()
    token = {"PICKER_RAY_TOKEN_FILE": str(file)}
    assert load({}, token | {"PICKER_RAY_HEAD": "http://head:8265"}).ray_token_file == file
    assert "PICKER_RAY_TOKEN_FILE is for a Ray head" in refused(POOL | token)


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("http://10.0.0.1:8265", "http://10.0.0.1:8265"),
        ("HTTP://Head:8265/", "http://head:8265"),
        ("https://head.example.com", "https://head.example.com:443"),
        ("http://[FD00::1]:8265", "http://[fd00::1]:8265"),
    ],
)
def test_the_url_of_a_ray_head(written: str, url: str) -> None:
    assert load({}, {"PICKER_RAY_HEAD": written}).ray_head == url


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PICKER_BIND", "localhost"),
        ("PICKER_GRPC_PORT", "ninety"),
        ("PICKER_GRPC_PORT", "65536"),
        ("PICKER_HEALTH_PORT", "-1"),
        ("PICKER_ENDPOINTS", ","),
        ("PICKER_ENDPOINTS", "10.0.0.1"),
        ("PICKER_ENDPOINTS", "10.0.0.1:0"),
        ("PICKER_ENDPOINTS", "10.0.0.1:65536"),
        ("PICKER_ENDPOINTS", "http://10.0.0.1:80"),
        ("PICKER_ENDPOINTS", "fd00::1:80"),
        ("PICKER_ENDPOINTS", ":80"),
        ("PICKER_ENDPOINTS_FILE", "/no/such/file"),
        ("PICKER_RAY_SERVICE", "llm"),
        ("PICKER_RAY_CLUSTER", "default/"),
        ("PICKER_RAY_HEAD", "head:8265"),
        ("PICKER_RAY_HEAD", "ftp://head"),
        ("PICKER_RAY_HEAD", "http://user:secret@head:8265"),
        ("PICKER_RAY_HEAD", "http://head:8265/api"),
        ("PICKER_RAY_TOKEN_FILE", "/no/such/file"),
        ("PICKER_OBJECTS_FILE", "/no/such/file"),
        ("PICKER_CONFIG_FILE", "/no/such/file"),
        ("PICKER_STRICT_BODIES", "perhaps"),
        ("PICKER_FALLBACKS", "-1"),
        ("PICKER_REPLICAS", "0"),
        ("PICKER_INDEX_MAX", "0"),
        ("PICKER_CERT_PATH", "/no/such/folder"),
        ("PICKER_METRICS_INTERVAL", "0"),
        ("PICKER_METRICS_PATH", "metrics"),
        ("PICKER_METRICS_TARGET_PORT", "0"),
        ("PICKER_METRICS_DIALECT", "prometheus"),
        ("PICKER_DECISION_TIMEOUT", "0ms"),
        ("PICKER_DECISION_TIMEOUT", "soon"),
        ("PICKER_DECISION_TIMEOUT", "1s 2"),
        ("PICKER_DECISION_TIMEOUT", "1m-30s"),
        ("PICKER_WATCHDOG", "-1s"),
        ("PICKER_DRAIN_DELAY", "-1s"),
        ("PICKER_DRAIN_TIMEOUT", "inf"),
        ("PICKER_MAX_BODY", "0"),
        ("PICKER_MAX_BODY", "64 apples"),
        ("PICKER_MAX_BUFFERED", "-1MiB"),
        ("PICKER_LOG_LEVEL", "loud"),
        ("PICKER_LOG_FORMAT", "xml"),
    ],
)
def test_a_wrong_value_names_the_variable_the_value_and_a_right_one(name: str, value: str) -> None:
    message = refused(POOL | {name: value})
    assert message.startswith(f"{name} is '")
    assert f"; for example {name}=" in message


def test_a_wrong_flag_is_named_as_a_flag() -> None:
    message = refused(POOL, grpc_port="ninety")
    assert message.startswith("--grpc-port is 'ninety': should be a valid integer")
    assert message.endswith("; for example --grpc-port 9002")


def test_of_several_endpoints_the_wrong_one_is_shown() -> None:
    message = refused({"PICKER_ENDPOINTS": "10.0.0.1:8000,oops,10.0.0.2:8000"})
    assert message.startswith("PICKER_ENDPOINTS is 'oops': should be host:port")


@settings(max_examples=100)
@given(st.sampled_from(sorted(Settings.model_fields)), st.text())
def test_whatever_is_given_the_answer_is_settings_or_one_short_line(name: str, value: str) -> None:
    try:
        load({}, POOL | {variable(name): value})
    except SettingsError as error:
        message = str(error)
        assert message.isprintable()
        assert len(message) < 400


def test_a_certificate_folder_must_hold_both_files(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").touch()
    assert "tls.key cannot be read" in refused(POOL | {"PICKER_CERT_PATH": str(tmp_path)})
    (tmp_path / "tls.key").touch()
    assert load({}, POOL | {"PICKER_CERT_PATH": str(tmp_path)}).cert_path == tmp_path


def test_one_port_for_two_things_is_refused_unless_the_system_chooses() -> None:
    message = refused(POOL | {"PICKER_METRICS_PORT": "9003"})
    assert message == "PICKER_METRICS_PORT is 9003, which is also PICKER_HEALTH_PORT; give it another port"
    zeros = {f"PICKER_{kind}_PORT": "0" for kind in ("GRPC", "HEALTH", "METRICS")}
    assert load({}, POOL | zeros).grpc_port == 0


def test_one_body_fits_into_all_of_them() -> None:
    message = refused(POOL | {"PICKER_MAX_BODY": "1GiB"})
    assert message.startswith("PICKER_MAX_BODY (1073741824 bytes) is above PICKER_MAX_BUFFERED")


def test_an_unknown_variable_is_told_with_the_nearest_name() -> None:
    environ = POOL | {"PICKER_GPRC_PORT": "9002", "PICKER_COLOUR_OF_THE_SKY": "blue", "PATH": "/bin"}
    assert unknown_variables(environ) == {
        "PICKER_GPRC_PORT": "PICKER_GRPC_PORT",
        "PICKER_COLOUR_OF_THE_SKY": "",
    }


def test_what_kubernetes_sets_for_services_called_picker_is_neither_read_nor_told() -> None:
    link = "tcp://10.96.0.12:9002"
    environ = POOL | {
        "PICKER_SERVICE_HOST": "10.96.0.12",
        "PICKER_SERVICE_PORT": "9002",
        "PICKER_SERVICE_PORT_GRPC_EXT_PROC": "9002",
        "PICKER_PORT": link,
        "PICKER_PORT_9002_TCP": link,
        "PICKER_PORT_9002_TCP_PROTO": "tcp",
        "PICKER_PORT_9002_TCP_PORT": "9002",
        "PICKER_PORT_9002_TCP_ADDR": "10.96.0.12",
        "PICKER_METRICS_PORT": link,  # of a Service called picker-metrics
        "PICKER_METRICS_SERVICE_HOST": "10.96.0.13",
    }
    assert unknown_variables(environ) == {}
    assert load({}, environ).metrics_port == 9090


def test_a_policy_comes_from_one_place() -> None:
    environ = POOL | {"PICKER_CONFIG_FILE": __file__, "PICKER_CONFIG_TEXT": "{}"}
    with pytest.raises(SettingsError, match="PICKER_CONFIG_FILE and PICKER_CONFIG_TEXT both give the policy"):
        load({}, environ)


def test_a_key_is_never_shown() -> None:
    assert "a-secret-that-is-long" not in repr(
        load({}, POOL | {"PICKER_SESSION_KEY": "a-secret-that-is-long"})
    )
    with pytest.raises(SettingsError) as caught:
        load({}, POOL | {"PICKER_SESSION_KEY": "too-short"})
    assert str(caught.value) == "PICKER_SESSION_KEY is too short; give 16 characters or more"
