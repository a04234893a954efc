"""Ports that a server can have, and have again."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from picker.gateway import ports
from picker.gateway.ports import _KEPT, LOOPBACK, _promised, free_ports

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the kernel says of the ports that it gives to clients."""
    file = tmp_path / "ip_local_port_range"
    file.write_text("32768\t60999\n")
    monkeypatch.setattr(ports, "_RANGE", file)
    return file


def test_they_differ_and_are_none_of_clients(clients: Path) -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    assert all(16_384 <= port < 32_768 for port in found)
    clients.write_text("2048\t60999\n")
    assert all(1024 <= port < 2048 for port in free_ports(20))


def test_one_that_is_taken_is_not_given(clients: Path) -> None:
    clients.write_text("1028\t60999\n")
    with ExitStack() as stack:
        for port in range(1024, 1027):
            with suppress(OSError):  # somebody else has it, as well
                stack.enter_context(socket.socket()).bind((LOOPBACK, port))
        assert not set(free_ports(2)) & set(range(1024, 1027))


def test_one_is_not_promised_twice(clients: Path) -> None:
    clients.write_text("2048\t60999\n")
    found = [free_ports(1)[0] for _ in range(30)]
    assert len(set(found)) == 30


def test_promises_are_not_kept_for_ever() -> None:
    for _ in range(3):
        free_ports(_KEPT)
    assert len(_promised) == _KEPT


@pytest.mark.parametrize("said", [None, "", "nonsense", "1024\t65535", "1025\t60999"])
def test_where_none_are_kept_from_clients_it_gives_what_the_kernel_does(
    said: str | None, clients: Path
) -> None:
    if said is None:
        clients.unlink()
    else:
        clients.write_text(said)
    found = free_ports(20)
    assert len(set(found)) == 20
    with socket.socket() as probe:
        probe.bind((LOOPBACK, found[0]))
