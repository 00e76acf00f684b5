"""Assignors: pure functions that divide the partitions of topics among members.

The leader of a classic group uses `range`, `roundrobin`, `sticky`, `cooperative-sticky` or `rack-aware`; the
coordinator of a KIP-848 group uses `uniform` or `range`. Equal input gives equal output, independent of the order of
the mappings and of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from kohort.assignors.rack_aware import RackAware
from kohort.assignors.range import Range
from kohort.assignors.roundrobin import RoundRobin
from kohort.assignors.shapes import AssignableTopic, Assignment, Assignor, MemberSubscription, Stateless
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
"""The assignors that a classic member may list in partition.assignment.strategy, made of its rack. Each member needs
its own instance: some keep state."""

SERVER: Final[dict[str, Callable[[], Assignor]]] = {
    "uniform": Uniform,
    "range": Range,
}
"""The assignors that a KIP-848 coordinator offers; the first is its default."""


def client_assignor(name: str, rack: str = "") -> Assignor:
    """Return a new assignor for one classic member, which is in `rack`.

    Raises:
        InvalidInputError: unknown name, or `rack-aware` without a rack.
    """
    return _known(CLIENT, name, ErrorCode.INVALID_CONFIG)(rack)


def server_assignor(name: str) -> Assignor:
    """Return the assignor for KIP-848 groups.

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
    "AssignableTopic",
    "Assignment",
    "Assignor",
    "CooperativeSticky",
    "MemberSubscription",
    "RackAware",
    "Range",
    "RoundRobin",
    "Stateless",
    "Sticky",
    "Uniform",
    "client_assignor",
    "server_assignor",
]
