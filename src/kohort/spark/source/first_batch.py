"""The start of a query's first batch that Spark's own Kafka source planned and did not finish.

Spark passes a source only the end of such a batch. Its start is in a file of that source, `sources/I/0`, but a Python
source does not know its checkpoint's path. The driver program knows it. So the source asks: "which of your queries has
planned a batch with this end, and where does that batch start?"
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from kohort.errors import InvalidInputError, KafkaError
from kohort.ids import TopicPartition
from kohort.spark.driver_channel import Message
from kohort.spark.source.checkpoint_lines import OffsetLogFile
from kohort.spark.source.kafka_offsets import format_kafka_offset, parse_initial_offsets, parse_kafka_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.spark.driver_channel import SinkDoneReceiver

log = logging.getLogger("kohort.spark")

ANSWER_TIMEOUT_S = 10.0
"""Longest wait of a source for its driver program, which reads two small files for each running query."""
BY_HAND = (
    "the checkpoint has a first batch that Spark's Kafka source planned and did not finish, and where it begins "
    "can't be found from here ({why}): run `kohort spark checkpoint convert CHECKPOINT --to kohort --execute` first"
)


def ask_first_batch_start(receiver: SinkDoneReceiver | None, end: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Ask the driver program where the batch that ends at `end` starts.

    Raises:
        InvalidInputError: the driver program can't be reached or does not know; the message has the command that helps.
    """
    if receiver is None:
        raise InvalidInputError(BY_HAND.format(why="the application can't be reached"))
    try:
        answer = receiver.line.ask({"kind": "initial", "end": end}, ANSWER_TIMEOUT_S)
    except OSError as error:
        raise InvalidInputError(BY_HAND.format(why=str(error))) from error
    found = answer.get("start")
    if not isinstance(found, dict):
        raise InvalidInputError(BY_HAND.format(why=str(answer.get("why"))))
    return parse_kafka_offset(found)


def answer_first_batch_start(sessions: list[SparkSession], message: Message) -> Message:
    """Find the running query whose first batch has this end, and return where the batch starts.

    Args:
        sessions: the sessions whose queries are searched.
        message: a request of `ask_first_batch_start`.
    """
    found = []
    for session in sessions:
        for root in _checkpoints(session):
            try:
                found += [start for end, start in _first_batches(session, root) if end == message.get("end")]
            except (KafkaError, OSError, ValueError, Py4JError) as error:
                log.warning(
                    "checkpoint %s of a running query can't be read, so it is skipped in the search for where an "
                    "unfinished first batch of Spark's Kafka source starts: %s",
                    root,
                    error,
                )
    if not found:
        return {"why": "no source of this application has such a batch"}
    if any(start != found[0] for start in found):
        return {"why": "several sources of this application have such a batch"}
    return {"start": format_kafka_offset(found[0])}


def _checkpoints(session: SparkSession) -> Iterator[str]:
    for query in session.streams.active:
        yield str(query._jsq.streamingQuery().resolvedCheckpointRoot())


def _first_batches(session: SparkSession, root: str) -> Iterator[tuple[Any, dict[TopicPartition, int]]]:
    """Yield the end and the start of the first batch, for each Kafka source of one checkpoint."""
    last = max((int(name) for name in _names(session, f"{root}/offsets") if name.isdecimal()), default=0)
    raw = _read_checkpoint_file(session, f"{root}/offsets/{last}")
    for name, end in () if raw is None else OffsetLogFile.parse(f"offsets/{last}", raw).kafka_sources():
        initial = _read_checkpoint_file(session, f"{root}/sources/{name}/0")
        if initial is not None:
            yield end, parse_initial_offsets(initial)


def _path_and_system(session: SparkSession, name: str) -> tuple[Any, Any]:
    """Return a path and its file system in Hadoop, which reaches every file system of a checkpoint."""
    path = session._jvm.org.apache.hadoop.fs.Path(name)
    return path, path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())


def _names(session: SparkSession, folder: str) -> list[str]:
    path, system = _path_and_system(session, folder)
    return [status.getPath().getName() for status in system.listStatus(path)] if system.exists(path) else []


def _read_checkpoint_file(session: SparkSession, name: str) -> bytes | None:
    """Read a file of a checkpoint by Hadoop; return None if there is none."""
    path, system = _path_and_system(session, name)
    if not system.exists(path):
        return None
    stream = system.open(path)
    try:
        return bytes(session._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
    finally:
        stream.close()
