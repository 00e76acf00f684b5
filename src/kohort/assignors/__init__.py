"""Assignors: pure functions from members and topics to who reads what.

Used by the leader of a classic group (`range`, `roundrobin`, `sticky`, `cooperative-sticky`) and by the coordinator for
KIP-848 groups (`uniform`, `range`). Equal input gives equal output, whatever the order of the mappings and whichever
process computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from kohort.assignors.rack_aware import RackAware
from kohort.assignors.range import Range
from kohort.assignors.roundrobin import RoundRobin
from kohort.assignors.shapes import Assignment, Assignor, MemberSubscription, Stateless, TopicInfo
from kohort.assignors.sticky import CooperativeSticky, Sticky, Uniform
from kohort.errors import ErrorCode, InvalidInputError

T = TypeVar("T")

CLIENT: Final[dict[str, Callable[[str], Assignor]]] = {
    "range": lambda _: Range(),
    "roundrobin": lambda _: RoundRobin(),
    "sticky": lambda _: Sticky(),
    "cooperative-sticky": lambda _: CooperativeSticky(),
    "rack-aware": RackAware,
}
"""What a classic member may list in partition.assignment.strategy, made of its rack. Each member needs its own: some
remember."""

SERVER: Final[dict[str, Callable[[], Assignor]]] = {
    "uniform": Uniform,
    "range": Range,
}
"""What a KIP-848 coordinator offers; the first is its default."""


def client_assignor(name: str, rack: str = "") -> Assignor:
    """A new assignor for one classic member, which is in `rack`.

    Raises:
        InvalidInputError: unknown name, or `rack-aware` without a rack.
    """
    return _known(CLIENT, name, ErrorCode.INVALID_CONFIG)(rack)


def server_assignor(name: str) -> Assignor:
    """The assignor for KIP-848 groups.

    Raises:
        InvalidInputError: unknown name (code UNSUPPORTED_ASSIGNOR).
    """
    return _known(SERVER, name, ErrorCode.UNSUPPORTED_ASSIGNOR)()


def _known(table: dict[str, T], name: str, code: ErrorCode) -> T:
    kind = table.get(name)
    if kind is None:
        raise InvalidInputError(f"assignor {name!r}: one of {', '.join(table)}", code)
    return kind


__all__ = [
    "CLIENT",
    "SERVER",
    "Assignment",
    "Assignor",
    "CooperativeSticky",
    "MemberSubscription",
    "RackAware",
    "Range",
    "RoundRobin",
    "Stateless",
    "Sticky",
    "TopicInfo",
    "Uniform",
    "client_assignor",
    "server_assignor",
]
