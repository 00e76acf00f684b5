"""The offset of a batch in the checkpoint, and the rule that decides between checkpoint and group.

An offset names for every partition where its batch starts *and* ends. So a batch that Spark replays reads exactly what
it read before, whatever the group has done meanwhile. The offset also has the query's identity and the number of the
batch. The commits to the group have both too, so that a query recognizes its own commits after a restart.
"""

from __future__ import annotations

import json  # not msgspec: Spark has imported it already, and a task starts sooner
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from kohort.errors import InvalidInputError
from kohort.ids import TopicId, TopicPartition

FORM = 3
"""The latest version of the JSON format, for batches of a region, which have an epoch and assignment numbers. Version 1
had no topic ids. A reader ignores unknown fields.
"""
OUTSIDE_FORM = 2
"""The version for batches outside a region, which older versions of kohort can read too."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A range of offsets from `start` up to, but without, `end`."""

    start: int
    end: int

    @property
    def offset_count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class BatchOffset:
    """One batch: the query that planned it, the group's generation, and the offsets of every owned partition.

    Attributes:
        query: the query's identity, made when it first starts and kept in its checkpoint.
        batch: the number of the query's batches that had something to read; 0 before the first.
        generation: the group's generation when the batch was planned; -1 without a group.
        spans: the offsets by partition; empty for a partition that was owned but had nothing to read.
        ids: the ids of the topics, where they are known; some brokers have none.
        group: the group whose member planned the batch; empty without a group, None if unknown, as in old checkpoints.
        epoch: the region's epoch in which the batch was planned; -1 without a region.
        assignment_versions: in a region, the number of each partition's assignment.
        from_kafka_source: whether Spark's own Kafka source planned the batch (`kafka_offsets`).
    """

    query: str
    batch: int = 0
    generation: int = -1
    spans: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    ids: Mapping[str, TopicId] = field(default_factory=dict)
    group: str | None = None
    epoch: int = -1
    assignment_versions: Mapping[TopicPartition, int] = field(default_factory=dict)
    from_kafka_source: bool = False

    def to_json(self) -> dict[str, Any]:
        """Encode the batch as plain JSON with its keys in a stable order, because Spark compares offsets as text."""
        topics: dict[str, dict[str, dict[str, int]]] = {}
        for tp in sorted(self.spans):
            span = self.spans[tp]
            topics.setdefault(tp.topic, {})[str(tp.partition)] = {
                "start": span.start,
                "end": span.end,
            }
            if tp in self.assignment_versions:
                topics[tp.topic][str(tp.partition)]["handing"] = self.assignment_versions[tp]
        inside = {} if self.epoch < 0 else {"epoch": self.epoch}
        return {
            "kohort": FORM if inside else OUTSIDE_FORM,
            "query": self.query,
            "batch": self.batch,
            "generation": self.generation,
            "topics": topics,
            "ids": {topic: str(self.ids[topic]) for topic in topics if topic in self.ids},
            **({} if self.group is None else {"group": self.group}),
            **inside,
            **({"from": "kafka"} if self.from_kafka_source else {}),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> BatchOffset:
        """Decode the JSON of `to_json`.

        Raises:
            InvalidInputError: the checkpoint is another source's, or has a newer format.
        """
        form = found.get("kohort")
        if isinstance(form, int) and form > FORM:
            raise InvalidInputError(
                f"the checkpoint was written by a later kohort (its offsets have form {form}, this one reads up to "
                f"{FORM}): go on with that one"
            )
        if not isinstance(form, int) or form < 1:
            raise InvalidInputError(
                f"the checkpoint's offset {json.dumps(found)[:200]} is not of this source; "
                "use a fresh checkpointLocation"
            )
        partitions = {
            TopicPartition(topic, int(number)): span
            for topic, numbers in found["topics"].items()
            for number, span in numbers.items()
        }
        spans = {tp: OffsetRange(int(span["start"]), int(span["end"])) for tp, span in partitions.items()}
        assignment_versions = {tp: int(span["handing"]) for tp, span in partitions.items() if "handing" in span}
        ids = {topic: UUID(text) for topic, text in found.get("ids", {}).items()}
        return cls(
            found["query"],
            int(found["batch"]),
            int(found["generation"]),
            spans,
            ids,
            found.get("group"),
            int(found.get("epoch", -1)),
            assignment_versions,
            found.get("from") == "kafka",
        )

    def with_ranges(self, spans: Mapping[TopicPartition, OffsetRange]) -> BatchOffset:
        """Return a copy of the batch with other offsets."""
        return replace(self, spans=spans)

    def end_offsets(self) -> dict[TopicPartition, int]:
        return {tp: span.end for tp, span in self.spans.items()}

    def checkpoint_positions(self) -> dict[TopicPartition, CheckpointPosition]:
        return {tp: CheckpointPosition(span.start, span.end, self.batch) for tp, span in self.spans.items()}


@dataclass(frozen=True, slots=True)
class CommitStamp:
    """A commit's metadata: the query and batch that made it, and the topic that the offset belongs to.

    Attributes:
        query: the query's identity.
        batch: the number of the query's batch.
        topic: the topic's id, because brokers may keep a group's offsets by topic name only; None if unknown.
    """

    query: str
    batch: int
    topic: TopicId | None = None

    def to_metadata(self) -> str:
        of = {} if self.topic is None else {"topic": str(self.topic)}
        return json.dumps({"query": self.query, "batch": self.batch} | of, separators=(",", ":"))

    @classmethod
    def from_metadata(cls, text: str | None) -> CommitStamp | None:
        """Decode a commit's metadata; return None if another client made the commit, whatever text it wrote there."""
        try:
            found = json.loads(text) if text else None
            if not isinstance(found, dict):
                return None
            topic = UUID(found["topic"]) if "topic" in found else None
            return cls(str(found["query"]), int(found["batch"]), topic)
        except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class CommittedPosition:
    """The group's committed offset of a partition, with the stamp of the query that committed it.

    `stamp` is None if another client made the commit.
    """

    offset: int
    stamp: CommitStamp | None = None


@dataclass(frozen=True, slots=True)
class CheckpointPosition:
    """The position of one partition in a query's checkpoint: `offset`, after the range that began at `start`.

    `batch` is the number of the batch that the checkpoint's offset belongs to.
    """

    start: int
    offset: int
    batch: int


def choose_start_offset(
    query: str, committed: CommittedPosition | None, reached: CheckpointPosition | None
) -> int | None:
    """Return the start offset of a newly assigned partition, from the group or the checkpoint; None: neither has one.

    The group's offset is used, unless the checkpoint's is higher and two conditions hold. First, this query itself
    committed the group's offset, in an earlier batch: then only the last batch's commit was lost. Second, that offset
    is not before the start of the checkpoint's batch: otherwise somebody has restored an older commit.

    A commit of this query under the checkpoint's batch, or a later one, is used as it is. It is the end of that batch,
    or a repeated batch has left the partition to the group there.
    """
    if committed is None:
        return reached.offset if reached is not None else None
    stamp = committed.stamp
    if reached is None or stamp is None or stamp.query != query or stamp.batch >= reached.batch:
        return committed.offset
    return max(committed.offset, reached.offset) if committed.offset >= reached.start else committed.offset
