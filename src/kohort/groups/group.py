"""One group: what its records add up to, and its soft state under the protocol it speaks.

A `Group` exists while any record of it does. Soft state and timers are lost with the process and built again by `on_loaded`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kohort.groups.classic.state import ClassicGroup
from kohort.groups.consumer.state import ConsumerGroup
from kohort.groups.outcome import GroupState
from kohort.groups.records import GroupSaved, OffsetCommitted

Partition = tuple[str, int]


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
    """One group: its records, and its soft state under the protocol it speaks.

    Attributes:
        saved: the last GroupSaved, None when there is none.
        started: the last GenerationStarted's generation, 0 when there is none.
        offsets: committed, by (topic, partition).
        pending: transactional offsets by producer id, then (topic, partition).
        classic: soft state of the classic protocol; unused while `consumer` is there.
        consumer: the group under KIP-848, None when it is a classic one.
    """

    group_id: str
    saved: GroupSaved | None = None
    started: int = 0
    offsets: dict[Partition, OffsetCommitted] = field(default_factory=dict)
    pending: dict[int, dict[Partition, PendingOffset]] = field(default_factory=dict)
    classic: ClassicGroup = field(init=False)
    consumer: ConsumerGroup | None = None

    def __post_init__(self) -> None:
        self.classic = ClassicGroup(self.group_id)

    @property
    def generation(self) -> int:
        """The last generation begun or saved; 0 before the first."""
        return self.started if self.saved is None else max(self.started, self.saved.generation)

    def is_void(self) -> bool:
        """Whether no record of it is left."""
        return not (self.saved or self.offsets or self.pending or self.started or self.consumer)

    def state(self) -> GroupState:
        """The state that ListGroups shows."""
        return self.classic.state if self.consumer is None else self.consumer.state()

    def is_subscribed(self, topic: str) -> bool:
        """Whether members read this topic, or may."""
        return self.classic.is_subscribed(topic) if self.consumer is None else self.consumer.is_subscribed(topic)

    def has_pending(self, partition: Partition) -> bool:
        """Whether a transaction holds an offset of this partition."""
        return any(partition in offsets for offsets in self.pending.values())
