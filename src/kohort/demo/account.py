"""The final read: it counts every offset once, and reports the offsets that were written more than once.

Each batch of each member left one folder of aggregates. They are split by partition, range of offsets, and the
generation in which the batch was planned. When a member is killed after it wrote a batch and before it committed,
its successor writes the same offsets again, in a later generation. Of two writers of an offset, the later generation
therefore counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kohort.demo.feed import Tally

RANGE = ("member", "batch", "partition", "rangeStart", "rangeEnd", "generation")
GROUPS = ("carrier", "origin", "dest", "hour")
SUMS = ("flights", "dep_known", "dep_minutes", "arr_known", "arr_minutes")


@dataclass(frozen=True, slots=True, order=True)
class BatchRange:
    """The range of one partition's offsets that one batch covers.

    Attributes:
        partition: the partition.
        start: the first offset.
        end: the offset after the last.
        generation: the group's generation in which the batch was planned.
        member: the member that wrote the batch.
        batch: the batch's number.
        rows: the number of flights in its aggregates.
    """

    partition: int
    start: int
    end: int
    generation: int
    member: str
    batch: int
    rows: int


@dataclass(frozen=True, slots=True)
class Account:
    """The result of the final read.

    Attributes:
        written: rows in all files.
        repeated: surplus rows of offsets that more than one batch wrote.
        dropped: rows that the final read left out.
        counted: rows that it kept.
        kept: the ranges that count.
        left_out: the ranges that do not count.
        faults: one line for each gap, overlap, or range with a wrong number of rows.
    """

    written: int
    repeated: int
    dropped: int
    counted: int
    kept: tuple[BatchRange, ...]
    left_out: tuple[BatchRange, ...]
    faults: tuple[str, ...]


def settle(written: Iterable[BatchRange], ends: dict[int, int]) -> Account:
    """Select the ranges so that each offset counts once.

    Args:
        written: every range of every batch.
        ends: the offset after the last record, by partition; partitions start at 0 and offsets have no holes.
    """
    every = sorted(written)
    kept: list[BatchRange] = []
    faults: list[str] = []
    repeated = 0
    for partition in sorted({batch_range.partition for batch_range in every} | set(ends)):
        own = [batch_range for batch_range in every if batch_range.partition == partition]
        chosen = _latest(own)
        faults += _faults(partition, chosen, ends.get(partition, 0))
        kept += chosen
        repeated += sum(batch_range.end - batch_range.start for batch_range in own) - _covered(own)
    left_out = [batch_range for batch_range in every if batch_range not in set(kept)]
    return Account(
        written=sum(batch_range.rows for batch_range in every),
        repeated=repeated,
        dropped=sum(batch_range.rows for batch_range in left_out),
        counted=sum(batch_range.rows for batch_range in kept),
        kept=tuple(kept),
        left_out=tuple(left_out),
        faults=tuple(faults),
    )


def _latest(ranges: Sequence[BatchRange]) -> list[BatchRange]:
    """Return the ranges that no later generation wrote again."""
    return [
        batch_range
        for batch_range in ranges
        if not any(other.generation > batch_range.generation and other.start <= batch_range.start for other in ranges)
    ]


def _faults(partition: int, ranges: Sequence[BatchRange], end: int) -> list[str]:
    faults: list[str] = []
    position = 0
    for covered in sorted(ranges):
        if covered.start != position:
            word = "missing" if covered.start > position else "twice"
            low, high = sorted((covered.start, position))
            faults.append(f"partition {partition}: offsets {low} to {high - 1} are {word}")
        if covered.rows != covered.end - covered.start:
            faults.append(f"partition {partition}: {covered.start} to {covered.end} holds {covered.rows} rows")
        position = max(position, covered.end)
    if position != end:
        faults.append(f"partition {partition}: read up to {position} of {end}")
    return faults


def _covered(ranges: Sequence[BatchRange]) -> int:
    covered = position = 0
    for batch_range in sorted(ranges):
        covered += max(0, batch_range.end - max(batch_range.start, position))
        position = max(position, batch_range.end)
    return covered


def read_batches(folder: Path) -> pa.Table:
    """Read the aggregates of every finished batch under `folder`, with their member and batch."""
    tables = []
    for done in sorted(folder.glob("member=*/batch=*/_SUCCESS")):
        member = done.parent.parent.name.partition("=")[2]
        batch = int(done.parent.name.partition("=")[2])
        for file in sorted(done.parent.glob("*.parquet")):
            table = pq.ParquetFile(file).read()
            named = table.append_column("member", pa.repeat(pa.scalar(member), len(table)))
            tables.append(named.append_column("batch", pa.repeat(pa.scalar(batch), len(table))))
    return pa.concat_tables(tables) if tables else pa.table({name: [] for name in RANGE + GROUPS + SUMS})


def ranges_of(batches: pa.Table) -> list[BatchRange]:
    """Return the ranges that the batches cover."""
    summed = batches.group_by(list(RANGE)).aggregate([("flights", "sum")]).to_pylist()
    return [
        BatchRange(
            partition=row["partition"],
            start=row["rangeStart"],
            end=row["rangeEnd"],
            generation=row["generation"],
            member=row["member"],
            batch=row["batch"],
            rows=row["flights_sum"],
        )
        for row in summed
    ]


def count_once(batches: pa.Table, account: Account) -> pa.Table:
    """Sum the aggregates of the kept ranges by carrier, connection and hour."""
    names = ["partition", "rangeStart", "generation", "member", "batch"]
    kept = pa.table(
        {
            "partition": pa.array([batch_range.partition for batch_range in account.kept], pa.int32()),
            "rangeStart": pa.array([batch_range.start for batch_range in account.kept], pa.int64()),
            "generation": pa.array([batch_range.generation for batch_range in account.kept], pa.int32()),
            "member": pa.array([batch_range.member for batch_range in account.kept], pa.string()),
            "batch": pa.array([batch_range.batch for batch_range in account.kept], pa.int64()),
        }
    )
    chosen = batches.join(kept, keys=names, join_type="left semi")
    summed = chosen.group_by(list(GROUPS)).aggregate([(name, "sum") for name in SUMS])
    return summed.rename_columns([*GROUPS, *SUMS])


@dataclass(frozen=True, slots=True)
class FlightConnection:
    """One carrier's flights from one airport to another; delays in minutes, means over the flights that have one."""

    carrier: str
    origin: str
    dest: str
    flights: int
    dep_mean: float
    arr_mean: float
    worst_hour: int


def worst_connections(counted: pa.Table, least: int, most: int = 10) -> list[FlightConnection]:
    """Return the connections with the largest mean departure delay.

    Args:
        counted: the result of `count_once`.
        least: the number of flights that a connection must have to be listed.
        most: the number of connections to list.
    """
    keys = ["carrier", "origin", "dest"]
    summed = counted.group_by(keys).aggregate([(name, "sum") for name in SUMS])
    summed = summed.rename_columns([*keys, *SUMS]).filter(pc.field("flights") >= least)
    found = []
    for row in summed.filter(pc.field("dep_known") > 0).to_pylist():
        hours = counted.filter(
            (pc.field("carrier") == row["carrier"])
            & (pc.field("origin") == row["origin"])
            & (pc.field("dest") == row["dest"])
            & (pc.field("dep_known") > 0)
        ).to_pylist()
        worst = max(hours, key=lambda hour: (hour["dep_minutes"] / hour["dep_known"], hour["hour"]))
        found.append(
            FlightConnection(
                row["carrier"],
                row["origin"],
                row["dest"],
                row["flights"],
                row["dep_minutes"] / row["dep_known"],
                row["arr_minutes"] / row["arr_known"] if row["arr_known"] else 0.0,
                worst["hour"],
            )
        )
    return sorted(found, key=lambda connection: -connection.dep_mean)[:most]


def compare(counted: pa.Table, tally: Tally) -> Iterator[str]:
    """Return the first differences between the counted and the replayed flights."""
    found = {(row["carrier"], row["origin"], row["dest"], row["hour"]): row for row in counted.to_pylist()}
    wrong = 0
    for key in sorted(set(found) | set(tally.flights)):
        row = found.get(key) or dict.fromkeys(SUMS, 0)
        expected = (tally.flights[key], tally.dep_minutes[key])
        if (row["flights"], row["dep_minutes"]) != expected and (wrong := wrong + 1) <= 5:
            text = f"{row['flights']} flights of {expected[0]}, {row['dep_minutes']} minutes of {expected[1]}"
            yield f"{' '.join(map(str, key))}:00: {text}"
    if wrong > 5:
        yield f"and {wrong - 5} more connections and hours"
