"""What the checkpoint remembers of a batch, and who wins when it and the group disagree.

An offset names for every partition where its batch starts *and* ends. So a batch that Spark replays reads exactly what
it read before, whatever the group has done in between. It also carries the query's identity and the number of the
batch, which the commits to the group carry too: that is how a query knows its own commits again after a restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from kohort.errors import InvalidInputError
from kohort.ids import TopicId, TopicPartition

FORM = 3
"""The last version of the JSON form, which batches of a region have, for their epoch and handings. Form 1 had no topic
ids; a reader passes over fields that it does not know."""
OUTSIDE_FORM = 2
"""The form of batches outside a region: an earlier kohort reads them too."""


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets from `start` up to and without `end`."""

    start: int
    end: int

    @property
    def offsets(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class BatchOffset:
    """One batch: which query planned it, as what generation of its group, and the span of every partition it held.

    Attributes:
        query: identity of the query, made when it first starts and kept by its checkpoint.
        batch: counts the query's batches that had something to read; 0 before the first.
        generation: of the group when the batch was planned; -1 without a group.
        spans: by partition; a partition that was held but had nothing to read has an empty one.
        ids: of the spans' topics; without those that are not known, as with brokers that have no topic ids.
        group: whose member planned it; empty without a group, None where it is not known, as before this was kept.
        epoch: of the region in which it was planned; -1 without one.
        handings: in a region, by partition, under which handing-out it was held.
        from_kafka_source: Spark's own Kafka source planned the batch (`kafka_offsets`).
    """

    query: str
    batch: int = 0
    generation: int = -1
    spans: Mapping[TopicPartition, Span] = field(default_factory=dict)
    ids: Mapping[str, TopicId] = field(default_factory=dict)
    group: str | None = None
    epoch: int = -1
    handings: Mapping[TopicPartition, int] = field(default_factory=dict)
    from_kafka_source: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with keys in one stable order: Spark compares offsets as text."""
        topics: dict[str, dict[str, dict[str, int]]] = {}
        for tp in sorted(self.spans):
            span = self.spans[tp]
            topics.setdefault(tp.topic, {})[str(tp.partition)] = {
                "start": span.start,
                "end": span.end,
            }
            if tp in self.handings:
                topics[tp.topic][str(tp.partition)]["handing"] = self.handings[tp]
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
        """Read what `to_json` wrote.

        Raises:
            InvalidInputError: the checkpoint is of another source, or of a later form.
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
        told = {
            TopicPartition(topic, int(number)): span
            for topic, numbers in found["topics"].items()
            for number, span in numbers.items()
        }
        spans = {tp: Span(int(span["start"]), int(span["end"])) for tp, span in told.items()}
        handings = {tp: int(span["handing"]) for tp, span in told.items() if "handing" in span}
        ids = {topic: UUID(text) for topic, text in found.get("ids", {}).items()}
        return cls(
            found["query"],
            int(found["batch"]),
            int(found["generation"]),
            spans,
            ids,
            found.get("group"),
            int(found.get("epoch", -1)),
            handings,
            found.get("from") == "kafka",
        )

    def of(self, spans: Mapping[TopicPartition, Span]) -> BatchOffset:
        """The same batch with other spans."""
        return replace(self, spans=spans)

    def ends(self) -> dict[TopicPartition, int]:
        return {tp: span.end for tp, span in self.spans.items()}

    def reached(self) -> dict[TopicPartition, Reached]:
        return {tp: Reached(span.start, span.end, self.batch) for tp, span in self.spans.items()}


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a commit's metadata says about its maker, and about the topic that the offset belongs to.

    Attributes:
        topic: the topic's id: brokers may keep a group's offsets by its name alone. None where it is not known.
    """

    query: str
    batch: int
    topic: TopicId | None = None

    def to_metadata(self) -> str:
        of = {} if self.topic is None else {"topic": str(self.topic)}
        return json.dumps({"query": self.query, "batch": self.batch} | of, separators=(",", ":"))

    @classmethod
    def from_metadata(cls, text: str | None) -> Stamp | None:
        """The stamp in a commit's metadata; None if the commit is not of this source."""
        try:
            found = json.loads(text) if text else None
            if not isinstance(found, dict):
                return None
            topic = UUID(found["topic"]) if "topic" in found else None
            return cls(str(found["query"]), int(found["batch"]), topic)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Committed:
    """The group's offset of a partition and who committed it (None: not this source)."""

    offset: int
    stamp: Stamp | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a batch of the query's own began and ended in a partition, as its checkpoint says."""

    start: int
    offset: int
    batch: int


def resume_at(query: str, committed: Committed | None, reached: Reached | None) -> int | None:
    """Where a partition starts that a query has just been given; None: neither the group nor the checkpoint knows.

    The group's offset counts. The checkpoint's raises it only if the group's was committed by this very query in an
    earlier batch, and is not before where the checkpoint's batch began: then no one else had the partition since, and
    the checkpoint only knows of a batch whose commit was cut off. An offset that the query committed in that batch or
    later says that the batch was not read here: it was left to the group when it was to be run again. One before the
    batch is an older commit of the query's that somebody saved and has put back.
    """
    if committed is None:
        return reached.offset if reached is not None else None
    stamp = committed.stamp
    if reached is None or stamp is None or stamp.query != query or stamp.batch >= reached.batch:
        return committed.offset
    return max(committed.offset, reached.offset) if committed.offset >= reached.start else committed.offset
