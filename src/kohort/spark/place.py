"""Where a query's partitions come from, where they start, and what follows a batch that is done: its place.

A query decides how much a batch reads, and its place all that others have a part in. `group_place.py` is the place of a
query that keeps its own offsets, `region_place.py` of one whose region does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kohort.errors import TimedOutError
from kohort.ids import TopicId, TopicPartition
from kohort.spark.batch_offset import BatchOffset
from kohort.spark.options import SourceOptions
from kohort.spark.rebalances import Standing

AGAIN_S = 0.1
"""How long to wait before partitions are asked for again that changed while they were taken."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the query may read now.

    Attributes:
        partitions: all of them.
        generation: of the group, since when they are held; -1 without a group.
        starts: where each of them goes on, as soon as that is settled.
        ids: of their topics, as far as they are known.
        epoch: of the region; -1 without one.
        handings: in a region, which handing-out of each partition this is.
        version: of what the region's application has handed out.
    """

    partitions: tuple[TopicPartition, ...]
    generation: int = -1
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    ids: Mapping[str, TopicId] = field(default_factory=dict)
    epoch: int = -1
    handings: Mapping[TopicPartition, int] = field(default_factory=dict)
    version: int = -1


@dataclass(frozen=True, slots=True)
class Replay:
    """A batch of an earlier run that is read again.

    Attributes:
        batch: what is to be read of it.
        running: the part of it that is the query's to finish.
        starts: where its partitions go on afterwards, as far as that is known.
    """

    batch: BatchOffset
    running: BatchOffset
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)


class Place(Protocol):
    """How a query stands to those that it shares its partitions with.

    Its methods are called by the thread that plans, `finish` also by the one that hears of sinks, and then only while a
    batch runs, in which the planning thread calls nothing.
    """

    def resume(self, start: BatchOffset) -> None:
        """Take over what the checkpoint says, once: `start` is the end of its last finished batch."""

    def hold(self, start: BatchOffset, at: Mapping[TopicPartition, int], wait_ms: float) -> Held | None:
        """What may be read now, with the start of each partition; None while that is being settled.

        Args:
            start: the batch before.
            at: where the query goes on in what it held before.
            wait_ms: the longest to wait.
        """

    def settle(
        self, held: Held, at: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where to go on once the partitions' ends are known.

        Raises:
            OffsetError: records are gone, and that is to end the query.
        """

    def notes_start(self) -> bool:
        """Whether nobody but the checkpoint keeps where a fresh query started: an empty batch is due then."""

    def begin(self, held: Held, batch: int) -> bool:
        """Start a batch: from now on nothing is given up. False if what is held has changed since."""

    def finish(self, batch: BatchOffset, timeout_ms: float | None = None) -> None:
        """A batch is done: its sink has it, and the checkpoint says so.

        Raises:
            CommitFailedError: its partitions were given to others meanwhile, and that is to end the query.
            KafkaError: it could not be told; it can be tried again.
        """

    def replay(self, start: BatchOffset, planned: BatchOffset) -> Replay:
        """What is to be read of a batch that an earlier run planned and did not finish; it begins with this.

        Args:
            start: the batch before.
            planned: the batch as it was planned.
        """

    def standing(self) -> Standing:
        """What the progress says of it."""

    def close(self) -> None:
        """Leave."""


def surely(hold: Callable[[float], Held | None], options: SourceOptions) -> Held:
    """What `hold` gives in the end.

    Raises:
        TimedOutError: nothing, for as long as `joinTimeoutMs` says.
    """
    timeout_ms = options.join_timeout_ms
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        held = hold(max(0.0, deadline - time.monotonic()) * 1000)
        if held is not None:
            return held
        if time.monotonic() >= deadline:
            raise TimedOutError(
                f"the group {options.group_id} gave no assignment within {timeout_ms} ms (joinTimeoutMs)"
            )
        time.sleep(AGAIN_S)
