"""The conversion of a stopped query's checkpoint for the other Kafka source, and its offsets for display.

`format("kohort")` reads a checkpoint of Spark's own Kafka source as it is. Spark's source can't read kohort's, so the
way back is a conversion. The conversion rewrites only the last entry of the offset log. State, watermark and batch
numbers stay, so a stateful query continues with its state.

| last batch | files written for Spark's Kafka source |
|---|---|
| done (`commits/N` is there) | `offsets/N`: the end offsets |
| not done | `offsets/N`: the end offsets; `offsets/N-1`: the start offsets, or `sources/I/0` where N is 0 |

A query that shared its group has not read every partition, and Spark would read the others from offset 0. Those
partitions continue from the group's committed offsets instead. So do partitions that other members have read further
since the last batch.
"""

from __future__ import annotations

import json  # not msgspec: Spark has imported it already, and a task starts sooner
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from kohort.errors import InvalidInputError, NotFoundError
from kohort.ids import TopicPartition
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.checkpoint_lines import OffsetLogFile, OffsetLogLine
from kohort.spark.source.kafka_offsets import (
    encode_initial_offsets,
    finished_kafka_batch,
    format_kafka_offset,
    is_kafka_offset,
    parse_initial_offsets,
    parse_kafka_offset,
    unfinished_kafka_batch,
)

Kind: TypeAlias = Literal["kafka", "kohort"]
Positions: TypeAlias = dict[TopicPartition, int]
CommittedOffsets: TypeAlias = Callable[[str], Mapping[TopicPartition, int]]
"""Returns all committed offsets of a group."""

BEFORE: Final = ".before-convert"
"""Suffix of the copy of a replaced file; the copy's name begins with a dot, so that Spark ignores it."""


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The offsets that one batch read from one source.

    Attributes:
        batch: the batch's number.
        done: whether the batch is in the checkpoint's `commits/`.
        source: the source's number or name in the query.
        kind: the source in whose format the offsets are written: kohort's or Spark's Kafka source.
        starts: start offsets, as far as the checkpoint has them.
        ends: end offsets.
        group: the group of kohort's source; empty if it has none, or if it is not known.
    """

    batch: int
    done: bool
    source: str
    kind: Kind
    starts: Positions
    ends: Positions
    group: str = ""

    @property
    def starting_offsets(self) -> str:
        """The end offsets in the JSON form of `startingOffsets`, which both sources take."""
        return json.dumps(format_kafka_offset(self.ends))


@dataclass(slots=True)
class PlannedConversion:
    """A planned conversion: the files that it writes.

    Attributes:
        batches: the last batch of each converted source, with the end offsets that are written.
        files: new contents, in the order of writing: files with start offsets come first.
    """

    batches: list[BatchRange] = field(default_factory=list)
    files: dict[Path, bytes] = field(default_factory=dict)

    def write(self) -> None:
        """Replace the files, each by a rename, and keep a copy of each original."""
        for path, content in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            backup = path.with_name(f".{path.name}{BEFORE}")
            if path.exists() and not backup.exists():  # the copy of an interrupted conversion is the original
                backup.write_bytes(path.read_bytes())
            fresh = path.with_name(f".{path.name}.convert")
            fresh.write_bytes(content)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the earlier content
            fresh.replace(path)


class CheckpointLog:
    """The offset log in a query's checkpoint folder, which can be converted to the other source's format."""

    def __init__(self, folder: Path, topics: Sequence[str] = ()) -> None:
        """List the batches of a checkpoint.

        Args:
            folder: the query's checkpointLocation.
            topics: all topics that the query reads; if empty, the topics that its batches name.

        Raises:
            InvalidInputError: the folder is not the checkpoint of a query.
        """
        self.folder, self.topics = folder, tuple(topics)
        if not folder.is_dir():
            raise InvalidInputError(f"there is no folder {folder}: name the checkpointLocation of a query")
        self.batches = _numbers(folder / "offsets")
        if not self.batches:
            raise InvalidInputError(f"{folder} has no batches: name the checkpointLocation of a query that has run")
        self.done = set(_numbers(folder / "commits"))

    def read_offset_log(self, batch: int) -> OffsetLogFile:
        """Parse the offset log's file of one batch."""
        path = self.folder / "offsets" / str(batch)
        return OffsetLogFile.parse(str(path), path.read_bytes())

    def ranges_of_batch(self, batch: int) -> Iterator[BatchRange]:
        """Yield the offsets that a batch read from each Kafka source, kohort's or Spark's."""
        before = (
            {line.name: line for line in self.read_offset_log(batch - 1).sources} if batch - 1 in self.batches else {}
        )
        for line in self.read_offset_log(batch).sources:
            offset = line.offset
            if is_kafka_offset(offset):
                ends = parse_kafka_offset(offset)
                starts = self._starts(batch, line.name, before.get(line.name))
                yield BatchRange(batch, batch in self.done, line.name, "kafka", starts, ends)
            elif isinstance(offset, dict) and "kohort" in offset:
                batch_offset = BatchOffset.from_json(offset)
                starts = {partition: span.start for partition, span in batch_offset.spans.items()}
                ends, group = batch_offset.end_offsets(), batch_offset.group or ""
                yield BatchRange(batch, batch in self.done, line.name, "kohort", starts, ends, group)

    def _starts(self, batch: int, source: str, before: OffsetLogLine | None) -> Positions:
        offset = None if before is None else before.offset
        if offset is not None:
            return (
                parse_kafka_offset(offset) if is_kafka_offset(offset) else BatchOffset.from_json(offset).end_offsets()
            )
        path = self.folder / "sources" / source / "0"
        return parse_initial_offsets(path.read_bytes()) if path.exists() else {}

    def plan_conversion(self, to: Kind, committed: CommittedOffsets) -> PlannedConversion:
        """Plan the files to write so that the other source can continue the query.

        Args:
            to: the source that will continue the query.
            committed: looks up a group's offsets; not called for sources without a group.

        Raises:
            NotFoundError: no source of the last batch needs conversion.
            InvalidInputError: the start offsets of an unfinished batch are not known, or a region wrote the checkpoint.
        """
        last = self.batches[-1]
        log, before = self.read_offset_log(last), self.read_offset_log(last - 1) if last - 1 in self.batches else None
        planned, first = PlannedConversion(), {}
        for seen in self.ranges_of_batch(last):
            if seen.kind == to:
                continue
            if to == "kohort":
                seen, log, before = self._to_kohort(seen, log, before)
            else:
                seen = self._to_kafka(seen, log, committed)
                log = log.with_offset(seen.source, format_kafka_offset(seen.ends))
                if not seen.done and before is not None and self._has_begun(before, seen.source):
                    before = before.with_offset(seen.source, format_kafka_offset(seen.starts))
                elif not seen.done:
                    first[self.folder / "sources" / seen.source / "0"] = encode_initial_offsets(seen.starts)
            planned.batches.append(seen)
        if not planned.batches:
            raise NotFoundError(f"{self.folder}: the last batch, {last}, has no source to convert to {to}")
        planned.files.update(first)
        if before is not None and last not in self.done:
            planned.files[self.folder / "offsets" / str(last - 1)] = before.to_bytes()
        planned.files[self.folder / "offsets" / str(last)] = log.to_bytes()
        return planned

    def _has_begun(self, before: OffsetLogFile, source: str) -> bool:
        return any(line.name == source and line.offset is not None for line in before.sources)

    def _topics(self, source: str) -> set[str]:
        """Return the topics that any batch of the log names for a source."""
        seen = (seen for batch in self.batches for seen in self.ranges_of_batch(batch) if seen.source == source)
        return {partition.topic for batch in seen for partition in batch.ends}

    def _to_kafka(self, seen: BatchRange, log: OffsetLogFile, committed: CommittedOffsets) -> BatchRange:
        line = next(line for line in log.sources if line.name == seen.source)
        batch_offset = BatchOffset.from_json(line.offset)
        if batch_offset.epoch >= 0:
            raise InvalidInputError(
                f"{self.folder} belongs to a region, whose checkpoints hold for all its queries together: it can't be "
                "converted alone"
            )
        starts, ends = dict(seen.starts), dict(seen.ends)
        group = committed(seen.group) if seen.group else {}
        topics = set(self.topics) or self._topics(seen.source)
        others = sorted({partition.topic for partition in group} - topics)
        if others and not self.topics:
            raise InvalidInputError(
                f"{self.folder}: the group {seen.group} has offsets of {', '.join(others)} too, which no batch of the "
                "checkpoint names: say by --topic which topics the query reads, each of them"
            )
        for partition, offset in group.items():
            if partition.topic in topics:
                starts[partition] = max(starts.get(partition, offset), offset)
                ends[partition] = max(ends.get(partition, offset), offset)
        if not ends:
            raise InvalidInputError(
                f"{self.folder}: source {seen.source} has not read anything yet, and Spark's source would begin at "
                "offset 0: use a fresh checkpointLocation and startingOffsets"
            )
        return BatchRange(seen.batch, seen.done, seen.source, "kafka", starts, ends, seen.group)

    def _to_kohort(
        self, seen: BatchRange, log: OffsetLogFile, before: OffsetLogFile | None
    ) -> tuple[BatchRange, OffsetLogFile, OffsetLogFile | None]:
        query = uuid.uuid4().hex
        if seen.done:
            return (
                seen,
                log.with_offset(seen.source, finished_kafka_batch(format_kafka_offset(seen.ends), query).to_json()),
                before,
            )
        if not seen.starts:
            raise InvalidInputError(
                f"{self.folder}: batch {seen.batch} is not finished, and sources/{seen.source}/0, which says where it "
                "begins, is missing"
            )
        start, batch = unfinished_kafka_batch(seen.starts, format_kafka_offset(seen.ends), query)
        if before is not None:
            before = before.with_offset(seen.source, start.to_json())
        return seen, log.with_offset(seen.source, batch.to_json()), before


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
