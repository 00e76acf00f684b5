"""Ports for servers that start a moment later."""

from __future__ import annotations

import socket
from pathlib import Path

from kohort.zookeeper import free_port, free_ports


def test_no_port_is_returned_twice() -> None:
    first, second = free_ports(20), free_ports(20)
    assert len({*first, *second}) == 40


def test_a_used_port_is_left_out() -> None:
    before = free_port()
    with socket.socket() as held:
        held.bind(("127.0.0.1", before + 1))
        assert before + 1 not in free_ports(3)


def test_outgoing_connections_have_other_ports() -> None:
    ranges = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(ranges.read_text().split()[0]) if ranges.exists() else 49_152
    assert max(free_ports(3)) < lowest or lowest < 32_000, "this machine gives out low ports"
