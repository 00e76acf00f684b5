"""Cutting a batch into Spark tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from pyspark.sql.datasource import InputPartition

from kohort.ids import TopicId, TopicPartition
from kohort.spark.source.batch_offset import Span

SMALL_TASK = 5_000
"""Records below which partitions share a task: starting a task costs about 20 ms, reading these costs less."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a partition's span, which one task reads.

    Attributes:
        span: what to read.
        whole: what the batch covers of the partition.
        generation: of the group when the batch was planned.
        topic_id: the topic that the offsets belong to; None: not known.
    """

    partition: TopicPartition
    span: Span
    whole: Span
    generation: int
    topic_id: TopicId | None = None


@dataclass(eq=True, repr=True)
class ReadTask(InputPartition):
    """What one Spark task reads, in order."""

    slices: tuple[Slice, ...]


def cut(
    spans: Iterable[tuple[TopicPartition, Span]],
    generation: int,
    *,
    ids: Mapping[str, TopicId] = MappingProxyType({}),
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[ReadTask]:
    """Tasks for the spans of a batch; empty spans give none.

    Large spans are cut so that there are at least `min_partitions` tasks (if records allow) and none has more than
    `max_records`. Without those options, small spans share a task.
    """
    full = [(tp, span) for tp, span in spans if span.offsets > 0]
    total = sum(span.offsets for _, span in full)
    piece = max_records or total
    if min_partitions is not None and total:
        piece = min(piece, max(1, total // min_partitions))
    slices = [
        Slice(tp, part, span, generation, ids.get(tp.topic)) for tp, span in full for part in _pieces(span, piece)
    ]
    if min_partitions is not None or max_records is not None:
        return [ReadTask((one,)) for one in slices]
    return _shared(slices)


def _pieces(span: Span, piece: int) -> list[Span]:
    count = -(-span.offsets // piece)
    edges = [span.start + span.offsets * place // count for place in range(count + 1)]
    return [Span(low, high) for low, high in pairwise(edges)]


def _shared(slices: list[Slice]) -> list[ReadTask]:
    tasks: list[list[Slice]] = []
    size = SMALL_TASK
    for one in slices:
        if size + one.span.offsets > SMALL_TASK or not tasks:
            tasks.append([])
            size = 0
        tasks[-1].append(one)
        size += one.span.offsets
    return [ReadTask(tuple(task)) for task in tasks]
