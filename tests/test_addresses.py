"""Addresses as people and files write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.addresses import (
    AddressError,
    HostPort,
    SrvName,
    parse_host,
    parse_host_port,
    parse_ip,
    parse_member,
)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("10.0.0.1", "'10.0.0.1' is not host:port, e.g. 10.0.0.1:8000"),
        ("ray-head", "'ray-head' is not host:port, e.g. ray-head:8000"),
        ("fd00::1", "'fd00::1' is not host:port, e.g. [fd00::1]:8000"),
        ("[fd00::1]", "'[fd00::1]' is not host:port, e.g. [fd00::1]:8000"),
        ("a:0", "'a:0' is not host:port, e.g. a:8000"),
        ("a:65536", "'a:65536' is not host:port, e.g. a:8000"),
        ("a:8_0", "'a:8_0' is not host:port, e.g. a:8000"),
        ("a:८०", "'a:८०' is not host:port, e.g. a:8000"),
        ("10.0.0.300:80", "'10.0.0.300:80' is not host:port, e.g. 10.0.0.1:8000"),
        ("http://a:80", "'http://a:80' is not host:port, e.g. 10.0.0.1:8000"),
        ("a:80\n", r"'a:80\n' is not host:port, e.g. a:8000"),
        ("[10.0.0.1]:80", "'[10.0.0.1]:80' is not host:port, e.g. 10.0.0.1:8000"),
        ("[fe80::1%eth0]:80", "'[fe80::1%eth0]:80' is not host:port, e.g. 10.0.0.1:8000"),
        ("", "'' is not host:port, e.g. 10.0.0.1:8000"),
    ],
)
def test_the_error_names_the_address_and_the_mend(text: str, error: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_host_port(text)
    assert str(caught.value) == error


def test_the_error_about_a_long_text_is_short() -> None:
    with pytest.raises(AddressError) as caught:
        parse_host_port("x" * 5000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:8000", "10.0.0.1", 8000),
        ("[FD00:0:0::1]:1", "fd00::1", 1),
        ("Ray-Head.Default.svc:65535", "ray-head.default.svc", 65535),
        ("under_score:80", "under_score", 80),
        ("absolute.name.:80", "absolute.name.", 80),
    ],
)
def test_what_is_read(text: str, host: str, port: int) -> None:
    assert parse_host_port(text) == HostPort(host, port)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", "10.0.0.1:9"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("fd00::1", "[fd00::1]:9"),
        ("[fd00::1]", "[fd00::1]:9"),
        ("[fd00::1]:80", "[fd00::1]:80"),
        ("name", "name:9"),
    ],
)
def test_a_host_may_come_without_its_port(text: str, expected: str) -> None:
    assert str(parse_host(text, 9)) == expected


@pytest.mark.parametrize("text", ["", "a b", "a:", "a:b", "[fd00::1", ":80"])
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(AddressError, match="is not host or host:port"):
        parse_host(text, 9)


@given(st.ip_addresses(), st.integers(1, 65535))
@settings(max_examples=60, deadline=None)
def test_every_ip_and_port_is_read_as_it_is_written(ip: object, port: int) -> None:
    written = str(HostPort(str(ip), port))
    assert str(parse_host_port(written)) == written
    assert parse_ip(str(ip)) == str(ip)


@given(st.text(st.sampled_from("[]:.%1af-_ \n"), max_size=12))
@settings(max_examples=150, deadline=None)
def test_garbage_is_an_address_error_or_reads_back_the_same(text: str) -> None:
    for parse in (parse_host_port, lambda text: parse_host(text, 9)):
        try:
            address = parse(text)
        except AddressError as error:
            message = str(error)
        else:
            message = ""
            assert parse_host_port(str(address)) == address
        assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "member"),
    [
        ("Ray-Head:8000", HostPort("ray-head", 8000)),
        ("_http._tcp.llm.svc:8000", HostPort("_http._tcp.llm.svc", 8000)),
        ("_HTTP._tcp.llm.svc.", SrvName("_http._tcp.llm.svc.")),
        ("srv+llm.example.com", SrvName("llm.example.com")),
    ],
)
def test_members_of_a_pool(text: str, member: HostPort | SrvName) -> None:
    assert parse_member(text) == member
    assert parse_member(str(member)) == member


@pytest.mark.parametrize("text", ["srv+", "srv+10.0.0.1", "srv+a:80", "_http._tcp.a b", "srv+a\n"])
def test_what_is_no_name_of_a_service_record(text: str) -> None:
    with pytest.raises(AddressError, match="is not the name of an SRV record"):
        parse_member(text)
