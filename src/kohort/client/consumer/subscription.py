"""State of a consumer's partitions: positions, pauses, errors. Pure.

A position is the offset of the next record that a poll returns. It moves only when records are returned, when the
application seeks, or when there is nothing at it (control records, compaction); never by fetching.
Source: spec 2.5, 2.7.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from kohort.errors import KafkaError, NotFoundError
from kohort.ids import NO_TOPIC_ID, TopicPartition


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """The position of the next record to read.

    Attributes:
        offset: The offset of the next record.
        leader_epoch: The epoch of the record before it, or -1: truncation is detected by it.
    """

    offset: int
    leader_epoch: int = -1


@dataclass(slots=True)
class PartitionState:
    """The state of one assigned partition: its position, pause and error.

    Attributes:
        position: None until known: from the committed offset or the reset policy.
        fetch_position: Where the next fetch starts: `position`, or after the fetched records.
        position_version: Changes with every seek and every new assignment, and is never reused. Records that were
            fetched at another version are dropped, also when the partition was revoked and reassigned meanwhile.
        reset: The reset policy or timestamp whose offset is being looked up; None: no reset is under way.
        high_watermark, log_start, last_stable: Offsets from the last fetch; -1 unknown.
        replica: The broker to fetch from instead of the leader (KIP-392), or None.
        doubted_ms: Since when brokers report that they do not have the position, while this is not believed; None:
            never.
        broken: Why the partition can't be read; raised by the next poll that reaches it.
        recovers: Whether the partition is read again after a poll raised `broken`: a missing right may be granted.
        failures: Failed fetches in a row, after which the next one waits until `retry_at_ms`.
        failed_at: The leader and its epoch when the last one failed; another leader is asked at once.
        wanted: Whether the group revokes the partition while the application still holds it (`HoldingListener`): polls
            return none of its records.
        withheld: Whether the topic was recreated, and the group has not reassigned its partitions yet: no position is
            looked up, so that none is committed.
    """

    position: FetchPosition | None = None
    fetch_position: FetchPosition | None = None
    position_version: int = 0
    paused: bool = False
    reset: str | int | None = None
    high_watermark: int = -1
    log_start: int = -1
    last_stable: int = -1
    replica: int | None = None
    replica_until_ms: float = 0.0
    doubted_ms: float | None = None
    broken: KafkaError | None = None
    recovers: bool = False
    retry_at_ms: float = 0.0
    failures: int = 0
    failed_at: tuple[int, int] = (-1, -1)
    wanted: bool = False
    withheld: bool = False


class Partitions:
    """All partitions assigned to a consumer, with their states, in the order in which polls serve them.

    Attributes:
        changes: A counter of changes of the assigned partitions.
        voided: A counter that grows whenever fetched records become invalid, for example by a seek or a revocation.
        paused: The partitions of which no records are returned: paused by the application, or revoked by the group.
        ids: The topic ids under which the positions are valid. A recreated topic has another id.
    """

    def __init__(self) -> None:
        self._versions = itertools.count(1)
        self._broken: dict[TopicPartition, None] = {}
        self._states: dict[TopicPartition, PartitionState] = {}
        self.changes = 0
        self.voided = 0
        self.paused: set[TopicPartition] = set()
        self.ids: dict[str, UUID] = {}

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._states

    @property
    def states(self) -> Mapping[TopicPartition, PartitionState]:
        """The states of all assigned partitions, for loops over thousands of them."""
        return self._states

    def items(self) -> Iterable[tuple[TopicPartition, PartitionState]]:
        return self._states.items()

    def get(self, partition: TopicPartition) -> PartitionState | None:
        return self._states.get(partition)

    def state_of(self, partition: TopicPartition) -> PartitionState:
        """Return the state of an assigned partition.

        Raises:
            NotFoundError: The partition is not assigned to this consumer.
        """
        state = self._states.get(partition)
        if state is None:
            has = ", ".join(map(str, sorted(self._states)[:3])) + (" and others" if len(self._states) > 3 else "")
            raise NotFoundError(
                f"{partition} is not assigned to this consumer, which has {has}"
                if has
                else f"{partition} is not assigned to this consumer: assign it, or subscribe and poll first"
            )
        return state

    def set_assigned(self, wanted: Iterable[TopicPartition]) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Set the assigned partitions; those that stay keep their state. Returns (added, removed)."""
        target = dict.fromkeys(sorted(wanted))
        added = [part for part in target if part not in self._states]
        removed = [part for part in self._states if part not in target]
        if added or removed:
            self._states = {
                part: self._states.get(part) or PartitionState(position_version=next(self._versions)) for part in target
            }
            self.changes += 1
            self.voided += bool(removed)
            self.paused.difference_update(removed)
            topics = {part.topic for part in target}
            self.ids = {topic: held for topic, held in self.ids.items() if topic in topics}
        return added, removed

    def remove(self, gone: Iterable[TopicPartition]) -> None:
        dropped = set(gone)
        self.set_assigned([part for part in self._states if part not in dropped])

    # Pauses and revocations.

    def pause(self, partition: TopicPartition) -> None:
        self.state_of(partition).paused = True
        self.paused.add(partition)

    def resume(self, partition: TopicPartition) -> None:
        state = self.state_of(partition)
        if not state.wanted:
            state.paused = False
            self.paused.discard(partition)

    def mark_revoking(self, wanted: Iterable[TopicPartition]) -> None:
        """Mark partitions that the group revokes and a `HoldingListener` keeps: polls return none of their records."""
        for partition in wanted:
            self.state_of(partition).wanted = True
            self.pause(partition)

    def revoking_partitions(self) -> list[TopicPartition]:
        """Return the partitions that the group revokes and the application has not released yet."""
        return [partition for partition, state in self._states.items() if state.wanted]

    def withhold_positions_of(self, topics: Collection[str]) -> None:
        """Do not look up positions in these topics, which were recreated, until the group has reassigned them.

        All other topics' positions may be looked up again.
        """
        for partition, state in self._states.items():
            state.withheld = partition.topic in topics

    # Recreated topics.

    def store_topic_ids(self, known: Callable[[str], UUID], again: Collection[str] = ()) -> None:
        """Store the topic id of each assigned topic, under which its positions are valid.

        Args:
            known: Returns a topic's id in the metadata.
            again: Recreated topics, whose stored id is replaced; those of other topics stay.
        """
        topics = {partition.topic for partition in self._states}
        ids = {topic: known(topic) if topic in again else self.ids.get(topic, known(topic)) for topic in topics}
        self.ids = {topic: held for topic, held in ids.items() if held != NO_TOPIC_ID}

    # Positions.

    def mark_unreadable(
        self, partition: TopicPartition, error: KafkaError, *, void: bool = False, recovers: bool = False
    ) -> None:
        """Mark a partition as unreadable until it has a new position; a poll raises the error.

        Args:
            partition: The partition.
            error: Why it can't be read.
            void: Whether to drop its fetched records too.
            recovers: Whether to read it again after a poll raised the error.
        """
        state = self.state_of(partition)
        state.broken, state.recovers = error, recovers
        self._broken[partition] = None
        if void:
            self._begin_era(state)
            state.fetch_position = state.position

    def unreadable_partitions(self) -> list[tuple[TopicPartition, KafkaError]]:
        """Return the partitions that can't be read, and why."""
        if not self._broken:
            return []
        states = [(partition, self._states.get(partition)) for partition in self._broken]
        failures = [
            (partition, state.broken) for partition, state in states if state is not None and state.broken is not None
        ]
        self._broken = dict.fromkeys(partition for partition, _ in failures)
        return failures

    def clear_error(self, partition: TopicPartition) -> bool:
        """Clear the error of a partition after a poll raised it.

        Return False if the partition stays unreadable until it has another position.
        """
        state = self.state_of(partition)
        if state.recovers:
            state.broken = None
        return state.recovers

    def set_position(self, partition: TopicPartition, position: FetchPosition) -> None:
        """Set a position that was committed, reset or sought. Records fetched before are void."""
        state = self.state_of(partition)
        state.position = state.fetch_position = position
        self._begin_era(state)
        state.reset = None
        state.broken = None

    def forget_position(self, partition: TopicPartition, reset: str | int | None) -> None:
        """Forget a partition's position, so that it is looked up anew.

        `reset` is the reset policy or timestamp to use; None: the committed offset, or else `auto.offset.reset`.
        """
        state = self.state_of(partition)
        state.position = state.fetch_position = None
        self._begin_era(state)
        state.reset = reset
        state.broken = None

    def _begin_era(self, state: PartitionState) -> None:
        state.position_version = next(self._versions)
        state.doubted_ms = None
        self.voided += 1

    def positions(self) -> dict[TopicPartition, FetchPosition]:
        """Return the known positions."""
        return {part: state.position for part, state in self._states.items() if state.position is not None}

    def partitions_without_position(self) -> list[TopicPartition]:
        """Return the partitions of unknown position whose committed offset must be looked up first.

        Partitions that are being reset, are unreadable or withheld are left out.
        """
        return [
            part
            for part, state in self._states.items()
            if state.position is None and state.reset is None and state.broken is None and not state.withheld
        ]

    def partitions_to_reset(self) -> dict[TopicPartition, str | int]:
        """Return the partitions whose position a reset policy must determine."""
        return {
            part: state.reset
            for part, state in self._states.items()
            if state.reset is not None and state.broken is None
        }
