"""Where a query's partitions come from, where they start, and what follows a batch that is done: its place.

A query decides how much a batch reads, and its place all that others have a part in. `group_place.py` is the place of a
query that keeps its own offsets, `region_place.py` of one whose region does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kohort.ids import TopicId, TopicPartition
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.progress import Standing

log = logging.getLogger("kohort.spark")

AGAIN_S = 0.1
"""How long to wait before partitions are asked for again that changed while they were taken."""
_TOLD_AFTER_S, _TOLD_LOOKS = 30.0, 20
"""A rebalance or a topic that goes costs one or two looks, though one may wait long: what changes on and on is told."""


class Again:
    """The wait before another look, which tells the log once when looks go on for long without an end."""

    def __init__(self) -> None:
        self._told_s = time.monotonic() + _TOLD_AFTER_S
        self._looks = 0

    def wait(self) -> None:
        """Wait, and tell if it is time."""
        self._looks += 1
        if self._looks >= _TOLD_LOOKS and time.monotonic() > self._told_s:
            self._told_s = float("inf")
            log.warning(
                "what the query may read has changed at each of %d looks (the group rebalances again and again, or "
                "topics go and come): nothing is read until it stands still",
                self._looks,
            )
        time.sleep(AGAIN_S)


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

    def hold(self, start: BatchOffset, at: Mapping[TopicPartition, int]) -> Held | None:
        """Wait until it is known what may be read now; give it with the start of each partition.

        Spark takes an empty answer for "nothing new", and a query may end on it: "not known yet" is none.

        Args:
            start: the batch before.
            at: where the query goes on in what it held before.

        Returns:
            None: a region forbids planning now, and waiting would not help.

        Raises:
            TimedOutError: what may be read is not known within `joinTimeoutMs`.
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

    def still(self, held: Held) -> bool:
        """Whether a look at what is held still counts; False if that has changed since, or is about to."""

    def begin(self, held: Held, batch: int) -> bool:
        """Start a batch: from now on nothing is given up. False if what is held has changed since."""

    def read(self) -> bool:
        """Spark asks for the tasks of the batch that has begun. False: the batch was let go, and is to be taken anew.

        A batch that waits for its tasks waits for other sources of its query; see `Membership`.
        """

    def finish(self, batch: BatchOffset, timeout_ms: float | None = None) -> None:
        """A batch is done: its sink has it, and the checkpoint says so.

        Raises:
            CommitFailedError: its partitions were given to others meanwhile, and that is to end the query.
            KafkaError: it could not be told; it can be tried again.
        """

    def replay(self, start: BatchOffset, planned: BatchOffset) -> Replay:
        """Begin a batch that an earlier run planned, or that was let go, and say what is to be read of it.

        Args:
            start: the batch before.
            planned: the batch as it was planned.
        """

    def standing(self) -> Standing:
        """What the progress says of it."""

    def close(self) -> None:
        """Leave."""
