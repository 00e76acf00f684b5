"""What the application wants to read, and how far it has come: partitions, positions, pauses. Pure.

A position is the offset of the next record that a poll returns. It moves only when records are returned, when the
application seeks, or when there is nothing at it (control records, compaction); never by fetching.
Source: spec 2.5, 2.7.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from kohort.errors import KafkaError, NotFoundError
from kohort.ids import NO_TOPIC_ID, TopicPartition


@dataclass(frozen=True, slots=True)
class Position:
    """Where to read on.

    Attributes:
        offset: Of the next record wanted.
        leader_epoch: Of the record before it, or -1: what truncation is found by.
    """

    offset: int
    leader_epoch: int = -1


@dataclass(slots=True)
class PartitionState:
    """One assigned partition.

    Attributes:
        position: None until known: from the committed offset or the reset policy.
        fetch_position: Where the next fetch starts: `position`, or after what is fetched already.
        position_version: Changes with every seek and every new assignment, and never comes again: what was fetched at
            another one is thrown away, also when the partition went and came back meanwhile.
        reset: The policy or timestamp being asked for; None when the position stands.
        high_watermark, log_start, last_stable: What the last fetch told; -1 unknown.
        replica: Where to fetch instead of at the leader (KIP-392), or None.
        doubted_ms: Since when brokers say that they do not have the position, while that is not believed; None: never.
        broken: Why it can't be read on; raised by the next poll that reaches it.
        wanted: The group wants it back, and it is held a while longer: nothing of it is returned.
        withheld: The topic was made again, and the group has not said yet whose its partitions are: no position is
            looked for, so that none is committed.
    """

    position: Position | None = None
    fetch_position: Position | None = None
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
    retry_at_ms: float = 0.0
    wanted: bool = False
    withheld: bool = False


class Partitions:
    """All assigned partitions with their states, in the order of the fair rotation.

    Attributes:
        changes: Grows when the set changes.
        voided: Grows when something that was fetched becomes void.
        paused: Those of which nothing is returned: paused by the application, or wanted back by the group.
        ids: The ids under which topics are held, where they are known: positions are of those, and of no others.
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

    def items(self) -> Iterable[tuple[TopicPartition, PartitionState]]:
        return self._states.items()

    def get(self, partition: TopicPartition) -> PartitionState | None:
        return self._states.get(partition)

    def of(self, partition: TopicPartition) -> PartitionState:
        """The state of an assigned partition.

        Raises:
            NotFoundError: it is not assigned to this consumer.
        """
        state = self._states.get(partition)
        if state is None:
            raise NotFoundError(f"{partition} is not assigned to this consumer")
        return state

    def set(self, wanted: Iterable[TopicPartition]) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Make these the assigned ones; those that stay keep their state. Returns (added, removed)."""
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
        self.set([part for part in self._states if part not in dropped])

    # What is not to be returned for now.

    def pause(self, partition: TopicPartition) -> None:
        self.of(partition).paused = True
        self.paused.add(partition)

    def resume(self, partition: TopicPartition) -> None:
        state = self.of(partition)
        if not state.wanted:
            state.paused = False
            self.paused.discard(partition)

    def hold(self, wanted: Iterable[TopicPartition]) -> None:
        """The group wants these back: nothing of them is returned, however long they are held."""
        for partition in wanted:
            self.of(partition).wanted = True
            self.pause(partition)

    def wanted(self) -> list[TopicPartition]:
        """What the group wants back, sorted."""
        return [partition for partition, state in self._states.items() if state.wanted]

    def withhold(self, topics: Collection[str]) -> None:
        """Withhold the partitions of these topics, and no others."""
        for partition, state in self._states.items():
            state.withheld = partition.topic in topics

    # Topics that are made again.

    def note_ids(self, known: Callable[[str], UUID], again: Collection[str] = ()) -> None:
        """Keep the ids that metadata had when topics came, and has now of those that were made again."""
        topics = {partition.topic for partition in self._states}
        ids = {topic: known(topic) if topic in again else self.ids.get(topic, known(topic)) for topic in topics}
        self.ids = {topic: held for topic, held in ids.items() if held != NO_TOPIC_ID}

    # Positions.

    def fail(self, partition: TopicPartition, error: KafkaError, *, void: bool = False) -> None:
        """It can't be fetched on, until it is placed elsewhere; with `void`, what was fetched is void too."""
        state = self.of(partition)
        state.broken = error
        self._broken[partition] = None
        if void:
            self._begin_era(state)
            state.fetch_position = state.position

    def failed(self) -> list[tuple[TopicPartition, KafkaError]]:
        """Partitions that can't be fetched on, and why."""
        if not self._broken:
            return []
        states = [(partition, self._states.get(partition)) for partition in self._broken]
        found = [
            (partition, state.broken) for partition, state in states if state is not None and state.broken is not None
        ]
        self._broken = dict.fromkeys(partition for partition, _ in found)
        return found

    def place(self, partition: TopicPartition, position: Position) -> None:
        """The position becomes known: committed, reset to, or sought. What was fetched before is void."""
        state = self.of(partition)
        state.position = state.fetch_position = position
        self._begin_era(state)
        state.reset = None
        state.broken = None

    def forget(self, partition: TopicPartition, reset: str | int | None) -> None:
        """The position must be found (again) by this policy; None: from the committed offset."""
        state = self.of(partition)
        state.position = state.fetch_position = None
        self._begin_era(state)
        state.reset = reset
        state.broken = None

    def _begin_era(self, state: PartitionState) -> None:
        state.position_version = next(self._versions)
        state.doubted_ms = None
        self.voided += 1

    def consumed(self, partition: TopicPartition, position: Position) -> None:
        """Records up to here were returned."""
        state = self._states.get(partition)
        if state is not None and state.position is not None:
            state.position = position

    def positions(self) -> dict[TopicPartition, Position]:
        """The known positions."""
        return {part: state.position for part, state in self._states.items() if state.position is not None}

    def without_position(self) -> list[TopicPartition]:
        """Those whose position must be found, without a policy chosen yet."""
        return [
            part
            for part, state in self._states.items()
            if state.position is None and state.reset is None and state.broken is None and not state.withheld
        ]

    def to_reset(self) -> dict[TopicPartition, str | int]:
        """Those whose position a policy must find."""
        return {
            part: state.reset
            for part, state in self._states.items()
            if state.reset is not None and state.broken is None
        }
