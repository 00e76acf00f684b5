"""A stopped query's checkpoint as people see it, and its last entry rewritten for the other source.

`format("kohort")` takes a checkpoint of Spark's own Kafka source as it is; Spark's source can't read kohort's, and so
the way back is a conversion. It rewrites the last entry of the offset log only: state, watermark and batch numbers
stay, and a stateful query goes on with what it knows.

| last batch | what is written for Spark's Kafka source |
|---|---|
| done (`commits/N` is there) | `offsets/N`: the ends |
| not done | `offsets/N`: the ends; `offsets/N-1`: the beginnings, or `sources/I/0` where N is 0 |

A query that shared its group has not read every partition, and Spark would read the others from offset 0. They go on
where the group is; so do partitions that others have read on since the last batch.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from kohort.errors import InvalidInputError, NotFoundError
from kohort.ids import TopicPartition
from kohort.spark.checkpoint_lines import LogFile, SourceLine
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.kafka_offsets import (
    initial_bytes,
    is_kafka_offset,
    kafka_offset,
    positions_of,
    read_initial,
    taken_over,
    unfinished,
)

Kind: TypeAlias = Literal["kafka", "kohort"]
Positions: TypeAlias = dict[TopicPartition, int]
GroupOffsets: TypeAlias = Callable[[str], Mapping[TopicPartition, int]]
"""From a group to all its committed offsets."""

BEFORE: Final = ".before-convert"
"""Ends the name of the copy of a replaced file; the name begins with a dot, so that Spark passes over the copy."""


@dataclass(frozen=True, slots=True)
class BatchSeen:
    """The offsets that one batch read of one source.

    Attributes:
        batch: its number.
        done: its sink and state are done.
        source: the source's number or name.
        kind: whose form the offsets have.
        starts: where the batch begins, as far as the checkpoint says.
        ends: where it ends.
        group: the group that kohort's source was in; empty: none, or not known.
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
        """The end as `startingOffsets` takes it, in both sources."""
        return json.dumps(kafka_offset(self.ends))


@dataclass(slots=True)
class Conversion:
    """A planned conversion: the files that it writes.

    Attributes:
        batches: the last batch of each source that is converted, with the ends that are written.
        files: new contents, in the order in which they are written: what names the beginnings comes first.
    """

    batches: list[BatchSeen] = field(default_factory=list)
    files: dict[Path, bytes] = field(default_factory=dict)

    def write(self) -> None:
        """Replace the files, each by a rename, and keep a copy of what stood there before."""
        for path, content in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = path.with_name(f".{path.name}{BEFORE}")
            if path.exists() and not kept.exists():  # what an interrupted conversion kept is the original
                kept.write_bytes(path.read_bytes())
            fresh = path.with_name(f".{path.name}.convert")
            fresh.write_bytes(content)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the earlier content
            fresh.replace(path)


class Checkpoint:
    """The offset log of a checkpoint folder."""

    def __init__(self, folder: Path, topics: Sequence[str] = ()) -> None:
        """Look which batches there are.

        Args:
            folder: the query's checkpointLocation.
            topics: all topics that the query reads; without any, those that its batches name.

        Raises:
            InvalidInputError: the folder is no checkpoint of a query.
        """
        self.folder, self.topics = folder, tuple(topics)
        self.batches = _numbers(folder / "offsets")
        if not self.batches:
            raise InvalidInputError(f"{folder} has no batches: name the checkpointLocation of a query that has run")
        self.done = set(_numbers(folder / "commits"))

    def log(self, batch: int) -> LogFile:
        """Read one file of the offset log."""
        path = self.folder / "offsets" / str(batch)
        return LogFile.parse(str(path), path.read_bytes())

    def seen(self, batch: int) -> Iterator[BatchSeen]:
        """Yield what a batch read of each Kafka source, kohort's or Spark's."""
        before = {line.name: line for line in self.log(batch - 1).sources} if batch - 1 in self.batches else {}
        for line in self.log(batch).sources:
            found = line.offset
            if is_kafka_offset(found):
                ends = positions_of(found)
                starts = self._starts(batch, line.name, before.get(line.name))
                yield BatchSeen(batch, batch in self.done, line.name, "kafka", starts, ends)
            elif isinstance(found, dict) and "kohort" in found:
                told = BatchOffset.from_json(found)
                starts = {partition: span.start for partition, span in told.spans.items()}
                yield BatchSeen(batch, batch in self.done, line.name, "kohort", starts, told.ends(), told.group or "")

    def _starts(self, batch: int, source: str, before: SourceLine | None) -> Positions:
        found = None if before is None else before.offset
        if found is not None:
            return positions_of(found) if is_kafka_offset(found) else BatchOffset.from_json(found).ends()
        path = self.folder / "sources" / source / "0"
        return read_initial(path.read_bytes()) if path.exists() else {}

    def convert(self, to: Kind, committed: GroupOffsets) -> Conversion:
        """Plan what has to be written so that the other source goes on.

        Args:
            to: whose checkpoint it is to be.
            committed: looks up a group's offsets; not called for sources without a group.

        Raises:
            NotFoundError: the last batch has no source that needs converting.
            InvalidInputError: the beginning of an unfinished batch is not known, or a region wrote the checkpoint.
        """
        last = self.batches[-1]
        log, before = self.log(last), self.log(last - 1) if last - 1 in self.batches else None
        planned, first = Conversion(), {}
        for seen in self.seen(last):
            if seen.kind == to:
                continue
            if to == "kohort":
                seen, log, before = self._to_kohort(seen, log, before)
            else:
                seen = self._to_kafka(seen, log, committed)
                log = log.with_offset(seen.source, kafka_offset(seen.ends))
                if not seen.done and before is not None and self._has_begun(before, seen.source):
                    before = before.with_offset(seen.source, kafka_offset(seen.starts))
                elif not seen.done:
                    first[self.folder / "sources" / seen.source / "0"] = initial_bytes(seen.starts)
            planned.batches.append(seen)
        if not planned.batches:
            raise NotFoundError(f"{self.folder}: the last batch, {last}, has no source to convert to {to}")
        planned.files.update(first)
        if before is not None and last not in self.done:
            planned.files[self.folder / "offsets" / str(last - 1)] = before.to_bytes()
        planned.files[self.folder / "offsets" / str(last)] = log.to_bytes()
        return planned

    def _has_begun(self, before: LogFile, source: str) -> bool:
        return any(line.name == source and line.offset is not None for line in before.sources)

    def _topics(self, source: str) -> set[str]:
        """Return the topics that any batch of the log names for a source."""
        seen = (seen for batch in self.batches for seen in self.seen(batch) if seen.source == source)
        return {partition.topic for batch in seen for partition in batch.ends}

    def _to_kafka(self, seen: BatchSeen, log: LogFile, committed: GroupOffsets) -> BatchSeen:
        line = next(line for line in log.sources if line.name == seen.source)
        told = BatchOffset.from_json(line.offset)
        if told.epoch >= 0:
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
        return BatchSeen(seen.batch, seen.done, seen.source, "kafka", starts, ends, seen.group)

    def _to_kohort(
        self, seen: BatchSeen, log: LogFile, before: LogFile | None
    ) -> tuple[BatchSeen, LogFile, LogFile | None]:
        query = uuid.uuid4().hex
        if seen.done:
            return seen, log.with_offset(seen.source, taken_over(kafka_offset(seen.ends), query).to_json()), before
        if not seen.starts:
            raise InvalidInputError(
                f"{self.folder}: batch {seen.batch} is not finished, and sources/{seen.source}/0, which says where it "
                "begins, is missing"
            )
        start, batch = unfinished(seen.starts, kafka_offset(seen.ends), query)
        if before is not None:
            before = before.with_offset(seen.source, start.to_json())
        return seen, log.with_offset(seen.source, batch.to_json()), before


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
