"""All facts about a finished history: records, the applications' notes, their checkpoints, the journal's commits."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.spark.histories.engine import Log
from tests.spark.histories.life import STORY

from kohort.client.consumer.range_reader import RangeReader
from kohort.groups.records import GroupSaved, OffsetCommitted, RecordKind, Tombstone
from kohort.ids import TopicPartition
from kohort.journal.codec import GroupRecordReader
from kohort.spark.source.batch_offset import CommitStamp, OffsetRange

LOST = "lost its partitions"
"""What a member logs that was put out, or must take itself for it, since it has not heard the coordinator."""
JOURNAL = TopicPartition("__consumer_offsets", 0)


class Commit(NamedTuple):
    """One record of the group's journal; offset None: deleted; stamp None: by an administrator."""

    at_ms: int
    offset: int | None
    stamp: CommitStamp | None


class Batch(NamedTuple):
    """Which batch of which checkpoint of which application."""

    application: str
    checkpoint: int
    number: int


@dataclass(slots=True)
class Tasks:
    """One time that a batch was planned, or repeated after a restart.

    Attributes:
        called_ns: when the call began that decided what it reads.
        at_ns: when that was settled.
        ranges: of the batch as its offset says.
        repeated: by a later run than the one that planned it, or let go before its tasks were asked for.
        reads: the partitions that its tasks have records of.
        planned_ranges: the option of the run.
    """

    batch: Batch
    life: int
    called_ns: int
    at_ns: int
    query: str
    generation: int
    ranges: dict[TopicPartition, OffsetRange]
    repeated: bool
    reads: set[TopicPartition] = field(default_factory=set)
    planned_ranges: str = "owned"


@dataclass(slots=True)
class Write:
    """One write of a batch into a sink.

    Attributes:
        rows: by partition: (generation, rangeStart, rangeEnd) and [(offset, id)].
    """

    batch: Batch
    life: int
    at_ns: int
    rows: dict[TopicPartition, list[tuple[tuple[int, int, int], list[tuple[int, int]]]]]
    tasks: Tasks

    def ids(self) -> Iterable[tuple[TopicPartition, int, int]]:
        """(partition, offset, id) of each row."""
        for partition, ranges in self.rows.items():
            for _, found in ranges:
                for offset, number in found:
                    yield partition, offset, number


@dataclass(slots=True)
class Run:
    """One life, as its story tells it.

    Attributes:
        planned_ranges: its option.
        aims: of AvailableNow: the ends that partitions had before it began.
        read_ns: of AvailableNow: when the trigger began that found nothing, and when it ended; 0: it did not.
        held: what its member held in that trigger, and still when it ended.
    """

    application: str
    number: int
    began_ns: int
    ended_ns: int = 2**63
    paused: bool = False
    error: str = ""
    known: bool = True
    planned_ranges: str = "owned"
    aims: dict[TopicPartition, int] = field(default_factory=dict)
    read_ns: tuple[int, int] = (0, 0)
    held: set[TopicPartition] = field(default_factory=set)


@dataclass(slots=True)
class Story:
    """Everything.

    Attributes:
        produced: where each id is: partition and offset.
        removed: ids that retention or a deletion took.
        remade: topics that were deleted and made again.
        commits: by partition, in the journal's order.
        evictions: (when in ms, client id) of members that the group put out, that left, or say that they were lost.
    """

    produced: dict[int, tuple[TopicPartition, int]] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    remade: set[str] = field(default_factory=set)
    grouped: bool = True
    unsettled: str = ""
    runs: list[Run] = field(default_factory=list)
    tasks: list[Tasks] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    finished: dict[Batch, int] = field(default_factory=dict)
    commits: dict[TopicPartition, list[Commit]] = field(default_factory=dict)
    evictions: list[tuple[int, str]] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    def kept(self) -> list[Write]:
        """Return the sinks' rows of finished batches: the last write of each, which replaces earlier ones."""
        last = {write.batch: write for write in sorted(self.writes, key=lambda write: write.at_ns)}
        return [write for batch, write in last.items() if batch in self.finished]

    def in_force(self, partition: TopicPartition, since_ms: float, until_ms: float) -> set[int | None]:
        """Every value that the group's offset of a partition had in a stretch of time."""
        found: set[int | None] = set()
        value: int | None = None
        for commit in self.commits.get(partition, []):
            if commit.at_ms > until_ms:
                break
            if commit.at_ms >= since_ms:
                found.add(value)
            value = commit.offset
        found.add(value)
        return found


def read_application(story: Story, name: str, folder: Path) -> None:
    """Adds what an application noted."""
    file = folder / STORY
    if file.exists():
        read_story(story, name, folder, map(json.loads, file.read_text().splitlines()))


def read_story(story: Story, name: str, folder: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Adds an application's story, and what its checkpoints say was finished."""
    planned: set[tuple[Batch, int]] = set()
    tasks: dict[Batch, Tasks] = {}
    run: Run | None = None
    checkpoints = set()
    for said in lines:
        if said["e"] == "begin":
            run = Run(name, said["life"], said["at"], planned_ranges=said.get("planned_ranges", "owned"))
            story.runs.append(run)
            checkpoints.add(said["checkpoint"])
        assert run is not None
        batch = Batch(name, said["checkpoint"], said.get("batch", -1))
        if said["e"] == "plan" or (said["e"] == "tasks" and (batch, said["life"]) not in planned):
            tasks[batch] = _tasks(batch, said, repeated=said["e"] == "tasks")
            tasks[batch].planned_ranges = run.planned_ranges
            story.tasks.append(tasks[batch])
            planned.add((batch, said["life"]))
            _note_reads(tasks[batch], said)
        elif said["e"] == "tasks":
            _note_reads(tasks[batch], said)
        elif said["e"] == "aim":
            run.aims = {TopicPartition(topic, number): end for topic, number, end in said["ends"]}
        elif said["e"] == "read":
            run.read_ns = said["since"], said["at"]
            run.held = {TopicPartition(topic, number) for topic, number in said["held"]}
        elif said["e"] == "write":
            story.writes.append(Write(batch, said["life"], said["at"], _rows(said["rows"]), tasks[batch]))
        elif said["e"] == "log" and LOST in said["text"]:
            story.evictions.append((said["at"] // 1_000_000, f"{name}-{said['life']}"))
        elif said["e"] == "paused":
            run.paused = True
        elif said["e"] in ("ending", "failed", "stopped", "done"):
            run.ended_ns = min(run.ended_ns, said["at"])
            run.error, run.known = said.get("error", ""), said.get("of") != "unknown"
    for checkpoint in checkpoints:
        for number, at_ns in Log(folder / f"checkpoint-{checkpoint}" / "commits").written().items():
            story.finished[Batch(name, checkpoint, number)] = at_ns


def _tasks(batch: Batch, said: Mapping[str, Any], repeated: bool) -> Tasks:
    end = said["end"]
    ranges = {
        TopicPartition(topic, int(number)): OffsetRange(span["start"], span["end"])
        for topic, numbers in end["topics"].items()
        for number, span in numbers.items()
    }
    return Tasks(
        batch,
        said["life"],
        said["called"],
        said.get("answered", said["at"]),
        end["query"],
        end["generation"],
        ranges,
        repeated,
    )


def _note_reads(tasks: Tasks, said: Mapping[str, Any]) -> None:
    """Add what the tasks read; a batch that was let go, and of which partitions are others' now, counts as repeated."""
    if "reads" in said:
        tasks.reads = {TopicPartition(topic, number) for topic, number in said["reads"]}
        tasks.repeated |= any(span.offset_count and tp not in tasks.reads for tp, span in tasks.ranges.items())


def _rows(said: list[list[Any]]) -> dict[TopicPartition, list[tuple[tuple[int, int, int], list[tuple[int, int]]]]]:
    found = defaultdict(list)
    for topic, partition, generation, start, end, rows in said:
        found[TopicPartition(topic, partition)].append(((generation, start, end), [(at, row) for at, row in rows]))
    return dict(found)


def read_journal(story: Story, servers: str, group: str, span: OffsetRange, reported: Path) -> None:
    """Adds the group's commits, and who left it when; the journal's records of that span go into a file."""
    lines: list[str] = []
    reader = GroupRecordReader()
    client_ids: dict[str, str] = {}
    before: set[str] = set()
    with RangeReader(servers, columns=("key", "value", "timestamp")) as ranges:
        for batch in ranges.read(JOURNAL, span.start, span.end, fail_on_data_loss=False):
            for key, value, at in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                record = reader.decode_record(key, value)
                at_ms = int(at.timestamp() * 1000)
                if group in str(record):
                    lines.append(f"{at_ms} {record}\n")
                if isinstance(record, OffsetCommitted) and record.group_id == group:
                    commit = Commit(at_ms, record.offset, CommitStamp.from_metadata(record.metadata))
                    story.commits.setdefault(TopicPartition(record.topic, record.partition), []).append(commit)
                elif isinstance(record, Tombstone) and record.key[0] is RecordKind.OFFSET and record.key[1] == group:
                    partition = TopicPartition(record.key[2], int(record.key[3]))
                    story.commits.setdefault(partition, []).append(Commit(at_ms, None, None))
                elif isinstance(record, GroupSaved) and record.group_id == group:
                    now = {member.member_id for member in record.members}
                    client_ids |= {member.member_id: member.client_id for member in record.members}
                    story.evictions += [(at_ms, client_ids[gone]) for gone in sorted(before - now)]
                    before = now
                elif getattr(record, "client_id", None) and getattr(record, "group_id", "") == group:
                    client_ids[record.member_id] = record.client_id  # type: ignore[union-attr]
                elif isinstance(record, Tombstone) and record.key[0] is RecordKind.MEMBER and record.key[1] == group:
                    story.evictions.append((at_ms, client_ids.get(record.key[2], "")))
    reported.write_text("".join(lines))
