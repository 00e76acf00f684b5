"""A group: its offsets, and its members under the protocol that it speaks.

A `Group` exists as long as it has a record. Soft state and timers are lost with the process; `on_loaded` rebuilds them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, TypeVar

from kohort.groups.effects import GroupState
from kohort.groups.records import Kind, OffsetCommitted, Record, RecordKey
from kohort.groups.table import Table

Partition = tuple[str, int]
Takes: TypeAlias = Mapping[type, Callable[[Any, Any], None]]
"""Handlers by the class of a record; called with a membership of the class that holds the table, and a record."""


class GroupMembership(ABC):
    """The members of a group under one protocol: their records and their soft state.

    A membership answers from its own state. The protocol's behaviour is in its row (`handlers.ProtocolHandlers`).

    Attributes:
        table: what the group does with an event in each of its states.
        takes: how each kind of record changes the membership; only the ledger calls these.
        is_shown: such groups are published elsewhere, so the ledger tracks their changes (`Ledger.mark_changed`).
    """

    __slots__ = ("group_id",)

    is_shown: ClassVar[bool] = False

    group_id: str
    takes: ClassVar[Takes]
    table: ClassVar[Table] = {}

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id

    @abstractmethod
    def group_state(self) -> GroupState:
        """Return the state for ListGroups. An Empty group may be removed or change its protocol."""

    @abstractmethod
    def is_subscribed(self, topic: str) -> bool:
        """Return whether members read this topic, or may."""

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yield every record of the membership, in an order that replays."""

    @abstractmethod
    def has_records(self) -> bool:
        """Return whether the membership has any records."""

    @abstractmethod
    def tombstones(self) -> Iterator[RecordKey]:
        """Yield the keys to remove, in this order, so that no record is left."""

    @abstractmethod
    def drop(self, kind: Kind, names: list[str]) -> bool:
        """Apply the removal of a record; return True if the group no longer speaks this protocol. For the ledger."""

    @abstractmethod
    def cancel(self) -> None:
        """Stop all timers, because the group is about to change its protocol."""

    @abstractmethod
    def places(self) -> Iterator[tuple[str, int, bool]]:
        """Yield each member's id, the connection on which it was last heard, and whether that has ended."""

    def expires_offsets(self) -> bool:
        """Return whether any of the group's positions may expire in its present state."""
        return True

    def empty_since_ms(self) -> int:
        """Return the wall clock time since when it is empty; -1 if it has members or no such time is known."""
        return -1

    def awaits_members(self) -> bool:
        """Return whether a member id was given out and its owner has yet to join with it."""
        return False

    def knows_topics(self) -> bool:
        """Return whether the members' topics are known, so that positions of other topics may be deleted."""
        return True


M = TypeVar("M", bound=GroupMembership)


@dataclass(slots=True)
class PendingOffset:
    """A transactional offset whose transaction has not ended.

    Attributes:
        order: the offset's place among the pending offsets in the journal.
        superseded: a later position of the partition is committed already, so this one will not replace it.
    """

    record: OffsetCommitted
    order: int
    superseded: bool = False


@dataclass(slots=True)
class Group:
    """A group: its offsets, and its members under the protocol that it speaks.

    Attributes:
        membership: the members; a group that only holds offsets is a classic group without members.
        offsets: committed offsets by (topic, partition).
        pending: transactional offsets by producer id, then (topic, partition).
    """

    group_id: str
    membership: GroupMembership
    offsets: dict[Partition, OffsetCommitted] = field(default_factory=dict)
    pending: dict[int, dict[Partition, PendingOffset]] = field(default_factory=dict)

    def under(self, kind: type[M]) -> M | None:
        """Return the membership if the group speaks this protocol, else None."""
        return self.membership if isinstance(self.membership, kind) else None

    def is_void(self) -> bool:
        """Return whether no record of the group is left."""
        return not (self.offsets or self.pending or self.membership.has_records())

    def state(self) -> GroupState:
        """Return the state for ListGroups."""
        return self.membership.group_state()

    def has_pending(self, partition: Partition) -> bool:
        """Return whether a transaction holds an offset of this partition."""
        return any(partition in offsets for offsets in self.pending.values())
