"""The writers, as Spark calls them.

Spark makes a writer anew for each micro-batch, in a process of its own, and pickles it to the tasks; nothing of it
lives longer. A task is done when all its records are acknowledged. One that is tried again writes them again, and so
does a batch that Spark repeats after a failure: at least once, as Spark's own Kafka sink.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kohort.spark.source.error_frames import reason_first
from kohort.spark.tasks.write import Writing

log = logging.getLogger("kohort.spark")


@dataclass
class Written(WriterCommitMessage):
    """What a task tells when it is done: how many records it had acknowledged."""

    records: int


def _total(messages: list[WriterCommitMessage | None]) -> int:
    return sum(one.records for one in messages if isinstance(one, Written))


class TopicWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame to topics."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    @reason_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send what a task has, and wait until all of it is acknowledged."""
        return Written(self._writing.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Every task is done: nothing is left to do."""
        log.info("%d records are written", _total(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task failed for good: what the others wrote stays."""
        log.warning("the write failed; %d records of tasks that were done stay in their topics", _total(messages))


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query to topics."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    @reason_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send what a task has, and wait until all of it is acknowledged."""
        return Written(self._writing.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Every task is done: nothing is left to do."""
        log.debug("batch %d: %d records are written", batchId, _total(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """A task failed for good: the batch is written again by the query's next start."""
        log.warning(
            "batch %d failed; %d records of tasks that were done stay in their topics, and the batch is written again",
            batchId,
            _total(messages),
        )
