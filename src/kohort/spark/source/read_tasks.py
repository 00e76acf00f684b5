"""The division of a batch into Spark tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from pyspark.sql.datasource import InputPartition

from kohort.ids import TopicId, TopicPartition
from kohort.spark.source.batch_offset import OffsetRange

SMALL_TASK = 5_000
"""Partitions with fewer records share a task: starting a task costs about 20 ms, and reading these costs less."""


@dataclass(frozen=True, slots=True)
class TaskRange:
    """A part of a partition's range, which one task reads.

    Attributes:
        partition: the partition.
        span: the offsets to read.
        whole: the offsets that the batch covers of the partition.
        generation: the group's generation when the batch was planned.
        topic_id: the id of the topic that the offsets belong to; None if unknown.
    """

    partition: TopicPartition
    span: OffsetRange
    whole: OffsetRange
    generation: int
    topic_id: TopicId | None = None


@dataclass(eq=True, repr=True)
class ReadTask(InputPartition):
    """The ranges that one Spark task reads, in order."""

    slices: tuple[TaskRange, ...]


def cut(
    spans: Iterable[tuple[TopicPartition, OffsetRange]],
    generation: int,
    *,
    ids: Mapping[str, TopicId] = MappingProxyType({}),
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[ReadTask]:
    """Return the tasks for a batch's ranges; empty ranges have none.

    Large ranges are split so that there are at least `min_partitions` tasks (if records allow) and none has more than
    `max_records`. Without those options, small ranges share a task.
    """
    full = [(tp, span) for tp, span in spans if span.offsets > 0]
    total = sum(span.offsets for _, span in full)
    piece = max_records or total
    if min_partitions is not None and total:
        piece = min(piece, max(1, total // min_partitions))
    slices = [
        TaskRange(tp, part, span, generation, ids.get(tp.topic)) for tp, span in full for part in _pieces(span, piece)
    ]
    if min_partitions is not None or max_records is not None:
        return [ReadTask((part,)) for part in slices]
    return _shared(slices)


def _pieces(span: OffsetRange, piece: int) -> list[OffsetRange]:
    count = -(-span.offsets // piece)
    edges = [span.start + span.offsets * index // count for index in range(count + 1)]
    return [OffsetRange(low, high) for low, high in pairwise(edges)]


def _shared(slices: list[TaskRange]) -> list[ReadTask]:
    tasks: list[list[TaskRange]] = []
    size = SMALL_TASK
    for part in slices:
        if size + part.span.offsets > SMALL_TASK or not tasks:
            tasks.append([])
            size = 0
        tasks[-1].append(part)
        size += part.span.offsets
    return [ReadTask(tuple(task)) for task in tasks]
