"""The writers of `format("kohort")`, as Spark calls them.

Spark makes a new writer for each micro-batch, in a separate process, and pickles it to the tasks; no writer lives
longer. A task is done when all its records are acknowledged. A retried task writes its records again, and so does a
batch that Spark repeats after a failure. Delivery is at least once, as with Spark's own Kafka sink.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kohort.spark.source.error_frames import show_reason_first
from kohort.spark.tasks.write import TaskWriter

log = logging.getLogger("kohort.spark")


@dataclass
class RecordsWritten(WriterCommitMessage):
    """A completed task's message to the driver: how many records were acknowledged."""

    records: int


def _total(messages: list[WriterCommitMessage | None]) -> int:
    return sum(message.records for message in messages if isinstance(message, RecordsWritten))


class TopicWriter(DataSourceArrowWriter):
    """A writer of a DataFrame's rows to topics."""

    def __init__(self, writing: TaskWriter) -> None:
        self._writing = writing

    @show_reason_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> RecordsWritten:
        """Send the rows of a task, and wait until all of them are acknowledged."""
        return RecordsWritten(self._writing.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many records were written: every task is done, and nothing is left to commit."""
        log.info("batch write to Kafka topics finished: %d records acknowledged", _total(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many records finished tasks have written; they stay, although another task failed for good."""
        log.warning(
            "batch write to Kafka topics failed: %d records of completed tasks stay in their topics; repeating the "
            "write adds them again",
            _total(messages),
        )


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """A writer of a query's micro-batches to topics."""

    def __init__(self, writing: TaskWriter) -> None:
        self._writing = writing

    @show_reason_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> RecordsWritten:
        """Send the rows of a task, and wait until all of them are acknowledged."""
        return RecordsWritten(self._writing.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Log how many records were written: every task is done, and nothing is left to commit."""
        log.debug(
            "batch %d of a streaming query written to Kafka topics: %d records acknowledged", batchId, _total(messages)
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Log how many records finished tasks have written; the query's next start writes the whole batch again."""
        log.warning(
            "batch %d of a streaming query could not be written: %d records of completed tasks stay in their topics; "
            "the query's next start writes the "
            "batch again, so the topics then have them twice",
            batchId,
            _total(messages),
        )
