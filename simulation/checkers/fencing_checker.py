"""A checker of accepted commits against the assignments that the coordinator has sent."""

from __future__ import annotations

from typing import Any

from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.effects import Effects
from kohort.groups.events import ConsumerGroupHeartbeat, OffsetCommit, SyncGroup, TxnOffsetCommit
from kohort.groups.records import RecordKind, Tombstone
from kohort.ids import NO_TOPIC_ID
from simulation.checkers.property import QUIET, Checker, Holder
from simulation.harness.assigning import decode_assignment, to_names
from simulation.harness.server import Waiting
from simulation.harness.world import World


class FencingChecker(Checker):
    """No commit is accepted for a partition that the coordinator has since assigned to another member.

    There are two exceptions. A commit that names a topic without its id may be meant for a topic that was deleted and
    created again. A commit may also arrive after its group was deleted and created again, with the same epoch and
    member id. Kafka accepts it too (docs/protocol-coverage.md). Kohort's own client rejoins under another id.
    """

    skips = QUIET

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._last_owner: dict[tuple[str, str, int], str] = {}
        self._deleted: set[str] = set()
        self._before: dict[str, int] = {}

    def on_deleted(self, topic: str) -> None:
        self._deleted.add(topic)
        self._last_owner = {key: value for key, value in self._last_owner.items() if key[1] != topic}

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        for group_id in deleted_groups(outcome):
            self._last_owner = {key: value for key, value in self._last_owner.items() if key[0] != group_id}
            self._before[group_id] = self.newest_offset()

    def _is_of_an_earlier_group(self, event: OffsetCommit | TxnOffsetCommit) -> bool:
        """Return whether a commit precedes the last deletion of its group and comes from a client that keeps its id."""
        before = self._before.get(event.group_id, 0)
        if any(offset.offset > before for offset in event.offsets):
            return False
        return any(member.keeps_its_id for member in self.members if member.member_id == event.member_id)

    def _assigned(self, event: Any, value: Any) -> list[tuple[str, int]]:
        """Return the partitions that a response assigns to its member."""
        if isinstance(event, SyncGroup) and value.error is ErrorCode.NONE:
            return [(topic, partition) for topic, partition in decode_assignment(value.assignment)]
        if isinstance(event, ConsumerGroupHeartbeat) and value.error is ErrorCode.NONE and value.assignment:
            of_today = [entry for entry in value.assignment if entry.topic_id in self.world.topic_ids.values()]
            return [(topic, partition) for topic, partition in to_names(tuple(of_today))]
        return []

    def on_overtaken(self, event: Any, value: Any, came_ms: int, since_ms: int) -> None:
        """Accept commits of either coordinator: the repeated answer may or may not be current."""
        for topic, partition in self._assigned(event, value):
            self._last_owner.pop((event.group_id, topic, partition), None)

    def on_released(self, event: Any, value: Any) -> None:
        for topic, partition in self._assigned(event, value):
            owner = event.member_id if isinstance(event, SyncGroup) else value.member_id
            self._last_owner[event.group_id, topic, partition] = owner
        if isinstance(event, OffsetCommit | TxnOffsetCommit) and event.generation >= 0:
            for offset, error in zip(event.offsets, value.errors, strict=True):
                last_owner = self._last_owner.get((event.group_id, offset.topic, offset.partition), event.member_id)
                sure = offset.topic_id != NO_TOPIC_ID or offset.topic not in self._deleted
                if (
                    sure
                    and error is ErrorCode.NONE
                    and last_owner != event.member_id
                    and not self._is_of_an_earlier_group(event)
                ):
                    name = f"{offset.topic}-{offset.partition}"
                    self.fail(f"{event.member_id} committed {name} at {event.generation}, but {last_owner} has it")


def deleted_groups(outcome: Effects) -> list[str]:
    """Return the groups whose deletion or protocol change is among the records: their generations may start anew."""
    return [
        record.key[1]
        for record in outcome.records
        if isinstance(record, Tombstone) and record.key[0] in (RecordKind.GROUP, RecordKind.EPOCH)
    ]
