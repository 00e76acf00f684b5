"""Where the first batch of a query began that Spark's own Kafka source has planned and not finished.

Spark hands a source the end of such a batch alone: the beginning is in a file of the source's own, `sources/I/0`, and a
Python source is not told where its checkpoint is. The application is, so the source asks it: "which of your queries has
planned a batch with this end, and where does that batch begin?"
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from kohort.errors import InvalidInputError, KafkaError
from kohort.ids import TopicPartition
from kohort.spark.checkpoint_lines import LogFile
from kohort.spark.driver_channel import Message
from kohort.spark.source.kafka_offsets import kafka_offset, positions_of, read_initial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.spark.driver_channel import SinkDoneReceiver

log = logging.getLogger("kohort.spark")

ASK_S = 10.0
"""The longest that a source waits for its application, which reads two small files for each query that runs."""
BY_HAND = (
    "the checkpoint has a first batch that Spark's Kafka source planned and did not finish, and where it begins "
    "can't be found from here ({why}): run `kohort spark checkpoint convert CHECKPOINT --to kohort --execute` first"
)


def initial_positions(hearing: SinkDoneReceiver | None, end: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Ask the application where the batch begins that ends at `end`.

    Raises:
        InvalidInputError: the application can't be reached, or can't tell; names the command that helps.
    """
    if hearing is None:
        raise InvalidInputError(BY_HAND.format(why="the application can't be reached"))
    try:
        answer = hearing.line.ask({"kind": "initial", "end": end}, ASK_S)
    except OSError as error:
        raise InvalidInputError(BY_HAND.format(why=str(error))) from error
    found = answer.get("start")
    if not isinstance(found, dict):
        raise InvalidInputError(BY_HAND.format(why=str(answer.get("why"))))
    return positions_of(found)


def answer_initial(sessions: list[SparkSession], message: Message) -> Message:
    """Find the running query whose first batch has this end, and return where the batch begins.

    Args:
        sessions: whose queries are looked at.
        message: a question of `initial_positions`.
    """
    found = []
    for session in sessions:
        for root in _checkpoints(session):
            try:
                found += [start for end, start in _first_batches(session, root) if end == message.get("end")]
            except (KafkaError, OSError, ValueError, Py4JError) as error:
                log.warning("the checkpoint %s can't be read: %s", root, error)
    if not found:
        return {"why": "no source of this application has such a batch"}
    if any(start != found[0] for start in found):
        return {"why": "several sources of this application have such a batch"}
    return {"start": kafka_offset(found[0])}


def _checkpoints(session: SparkSession) -> Iterator[str]:
    for query in session.streams.active:
        yield str(query._jsq.streamingQuery().resolvedCheckpointRoot())


def _first_batches(session: SparkSession, root: str) -> Iterator[tuple[Any, dict[TopicPartition, int]]]:
    """Yield the end and the beginning of the first batch, for each Kafka source of one checkpoint."""
    last = max((int(name) for name in _names(session, f"{root}/offsets") if name.isdecimal()), default=0)
    raw = _read(session, f"{root}/offsets/{last}")
    for name, end in () if raw is None else LogFile.parse(f"offsets/{last}", raw).kafka_sources():
        initial = _read(session, f"{root}/sources/{name}/0")
        if initial is not None:
            yield end, read_initial(initial)


def _place(session: SparkSession, name: str) -> tuple[Any, Any]:
    """Return a path and its file system by Hadoop, which reaches every place that a checkpoint may be in."""
    path = session._jvm.org.apache.hadoop.fs.Path(name)
    return path, path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())


def _names(session: SparkSession, folder: str) -> list[str]:
    path, system = _place(session, folder)
    return [status.getPath().getName() for status in system.listStatus(path)] if system.exists(path) else []


def _read(session: SparkSession, name: str) -> bytes | None:
    """Read a file; None if there is none."""
    path, system = _place(session, name)
    if not system.exists(path):
        return None
    stream = system.open(path)
    try:
        return bytes(session._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
    finally:
        stream.close()
