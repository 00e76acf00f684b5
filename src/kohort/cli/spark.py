"""`kohort spark checkpoint show, convert`: checkpoints of Spark queries, and their conversion between two sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kohort.cli.app import DONE, FAILED, UsageError, command_family
from kohort.cli.common import Common
from kohort.cli.output import is_confirmed, print_json, print_note, print_rows
from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition

if TYPE_CHECKING:
    from kohort.spark.checkpoint_move import BatchRange, CheckpointLog

app = command_family("spark", "Checkpoints of Spark queries.")
checkpoint = command_family("checkpoint", "Show a query's checkpoint, or convert it for the other source.")
app.command(checkpoint)

_COMMON = Common()
_COLUMNS = ("batch", "done", "source", "format", "topic", "partition", "start", "end")


@checkpoint.command(name="show")
def show_(directory: Path, *, json: bool = False) -> int:
    """Show which offsets each batch of a query has read, and where its next batch begins.

    Checkpoints of format("kohort") and of Spark's own format("kafka") are read. Nothing is changed.

    Args:
        directory: the query's checkpointLocation, a local folder.
        json: Print JSON; `starting_offsets` is what the option startingOffsets takes.
    """
    found = _opened(directory)
    batches = [seen for batch in found.batches for seen in found.ranges_of_batch(batch)]
    if json:
        print_json([_batch_json(seen) for seen in batches])
        return DONE
    print_rows(_rows(batches), _COLUMNS, as_json=False, empty="no batch has a Kafka source")
    for seen in batches:
        if seen.batch == found.batches[-1]:
            print_note(f"source {seen.source}, end of batch {seen.batch} as startingOffsets: {seen.starting_offsets}")
    return DONE


@checkpoint.command
def convert(
    directory: Path,
    *,
    to: Literal["kafka", "kohort"],
    topic: tuple[str, ...] = (),
    execute: bool = False,
    common: Common = _COMMON,
) -> int:
    """Rewrite the last batch in a stopped query's checkpoint, so that the other Kafka source continues the query.

    format("kohort") continues from checkpoints of format("kafka") without a conversion. `--to kohort` is needed only if
    its error message asks for it. State, watermark and batch numbers stay. A copy of each replaced file is kept beside
    it. With `--to kafka`, partitions that other members of the group have read further continue from the group's
    committed offsets. These are read from a broker.

    Args:
        directory: the query's checkpointLocation, a local folder. Stop the query first.
        to: The format of the source that continues the query.
        topic: A topic that the query reads; may be given again. Default: the topics that the checkpoint names.
        execute: Write the files; without this option they are only listed.
    """
    found = _opened(directory, topic)

    def committed_offsets(group: str) -> Mapping[TopicPartition, int]:
        with common.admin() as admin:
            offsets = admin.list_consumer_group_offsets(group).all()
        return {partition: position.offset for partition, position in offsets.items() if position is not None}

    planned = found.plan_conversion(to, committed_offsets)
    if not execute or common.json:
        rows = [{**row, "format": to} for row in _rows(planned.batches)]
        print_rows(rows, _COLUMNS, as_json=common.json)
    for path in planned.files:
        print_note(f"{'writes' if execute else 'would write'} {path.relative_to(found.folder)}")
    if not is_confirmed(execute, f"Convert {directory} to {to}? The query must be stopped."):
        return FAILED
    planned.write()
    return DONE


def _opened(directory: Path, topics: Sequence[str] = ()) -> CheckpointLog:
    from kohort.spark.checkpoint_move import CheckpointLog

    try:
        return CheckpointLog(directory, topics)
    except InvalidInputError as error:
        raise UsageError(error.message) from error


def _rows(batches: Sequence[BatchRange]) -> list[dict[str, Any]]:
    return [row for seen in batches for row in _partition_rows(seen)]


def _partition_rows(seen: BatchRange) -> Iterator[dict[str, Any]]:
    for partition, end in sorted(seen.ends.items()):
        yield {
            "batch": seen.batch,
            "done": seen.done,
            "source": seen.source,
            "format": seen.kind,
            "topic": partition.topic,
            "partition": partition.partition,
            "start": seen.starts.get(partition),
            "end": end,
        }


def _batch_json(seen: BatchRange) -> dict[str, Any]:
    return {
        "batch": seen.batch,
        "done": seen.done,
        "source": seen.source,
        "format": seen.kind,
        "group": seen.group,
        "partitions": list(_partition_rows(seen)),
        "starting_offsets": seen.starting_offsets,
    }
