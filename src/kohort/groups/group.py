"""One group: its positions, and its members under the protocol that it speaks.

A `Group` exists while any record of it does. Soft state and timers are lost with the process and built again by
`on_loaded`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, TypeVar

from kohort.groups.effects import GroupState
from kohort.groups.records import Kind, OffsetCommitted, Record, RecordKey

Partition = tuple[str, int]
Takes: TypeAlias = Mapping[type, Callable[[Any, Any], None]]
"""By the class of a record, what it changes: called with a membership of the class that has the table and a record."""


class Membership(ABC):
    """Who is in a group and what each is to read, under one protocol: its records and its soft state.

    Here stands what can be answered from it alone; what a protocol does is in its row (`protocol.Protocol`).

    Attributes:
        takes: what each kind of record changes; only the ledger calls it.
        is_shown: such groups are shown elsewhere, and what changes is noted for that (`Ledger.note`).
    """

    __slots__ = ("group_id",)

    is_shown: ClassVar[bool] = False

    group_id: str
    takes: ClassVar[Takes]

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id

    @abstractmethod
    def group_state(self) -> GroupState:
        """The state that ListGroups shows; Empty: it has no members, and may be removed or change its protocol."""

    @abstractmethod
    def is_subscribed(self, topic: str) -> bool:
        """Whether members read this topic, or may."""

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Every record that it is made of, in an order that replays."""

    @abstractmethod
    def has_records(self) -> bool:
        """Whether it is made of any."""

    @abstractmethod
    def tombstones(self) -> Iterator[RecordKey]:
        """The keys to remove, in this order, so that nothing of it is left."""

    @abstractmethod
    def drop(self, kind: Kind, names: list[str]) -> bool:
        """Ledger: the record of this key is gone; True when the group speaks this protocol no more."""

    @abstractmethod
    def cancel(self) -> None:
        """Stop all its timers: the group is to speak another protocol."""

    @abstractmethod
    def places(self) -> Iterator[tuple[str, int, bool]]:
        """Of each member its id, the connection on which it was heard last, and whether that has ended."""

    def expires_offsets(self) -> bool:
        """Whether any of the group's positions may expire in its present state."""
        return True

    def empty_since_ms(self) -> int:
        """Wall clock since which it has had no members; -1 when it has some, or that starts no time."""
        return -1

    def awaits_members(self) -> bool:
        """Whether someone was given an id and has yet to come with it."""
        return False

    def knows_topics(self) -> bool:
        """Whether it can be told what members read, so that positions of other topics may be deleted."""
        return True


M = TypeVar("M", bound=Membership)


@dataclass(slots=True)
class PendingOffset:
    """A transactional offset whose transaction has not ended.

    Attributes:
        order: position among the pending offsets in the journal.
        superseded: a later position of the partition is committed already; this one will not replace it.
    """

    record: OffsetCommitted
    order: int
    superseded: bool = False


@dataclass(slots=True)
class Group:
    """One group: its positions, and its members under the protocol it speaks.

    Attributes:
        membership: of the one protocol it speaks; one that only holds offsets is a classic group without members.
        offsets: committed, by (topic, partition).
        pending: transactional offsets by producer id, then (topic, partition).
    """

    group_id: str
    membership: Membership
    offsets: dict[Partition, OffsetCommitted] = field(default_factory=dict)
    pending: dict[int, dict[Partition, PendingOffset]] = field(default_factory=dict)

    def under(self, kind: type[M]) -> M | None:
        """Its members if it speaks this protocol, else None: for who changes a group's protocol, and who looks on."""
        return self.membership if isinstance(self.membership, kind) else None

    def is_void(self) -> bool:
        """Whether no record of it is left."""
        return not (self.offsets or self.pending or self.membership.has_records())

    def state(self) -> GroupState:
        """The state that ListGroups shows."""
        return self.membership.group_state()

    def has_pending(self, partition: Partition) -> bool:
        """Whether a transaction holds an offset of this partition."""
        return any(partition in offsets for offsets in self.pending.values())
