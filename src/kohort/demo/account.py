"""The final read: every offset once, and the account of what was written more than once.

Each batch of each member left one folder of aggregates, split by partition, the offsets the batch covers of it and the
generation it was planned in. A member that is killed between writing a batch and committing it leaves a folder that
its successor writes again, from the same offset on, in a later generation. So of two writers of an offset, the later
generation counts.
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
class Written:
    """What one batch says it covers of one partition.

    Attributes:
        start: the first offset.
        end: the offset after the last.
        rows: flights in its aggregates.
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
    """What became of the records.

    Attributes:
        written: rows in all the files together.
        repeated: rows of offsets that more than one batch wrote, not counting one of them.
        dropped: rows that the final read left out.
        counted: rows that it kept.
        faults: what is wrong, a line each: a gap, an overlap, a range whose rows don't fit.
    """

    written: int
    repeated: int
    dropped: int
    counted: int
    kept: tuple[Written, ...]
    left_out: tuple[Written, ...]
    faults: tuple[str, ...]


def settle(written: Iterable[Written], ends: dict[int, int]) -> Account:
    """Keep each offset once.

    Args:
        written: every range of every batch.
        ends: the offset after the last record, by partition; partitions start at 0 and offsets have no holes.
    """
    every = sorted(written)
    kept: list[Written] = []
    faults: list[str] = []
    repeated = 0
    for partition in sorted({one.partition for one in every} | set(ends)):
        own = [one for one in every if one.partition == partition]
        chosen = _latest(own)
        faults += _faults(partition, chosen, ends.get(partition, 0))
        kept += chosen
        repeated += sum(one.end - one.start for one in own) - _covered(own)
    left_out = [one for one in every if one not in set(kept)]
    return Account(
        written=sum(one.rows for one in every),
        repeated=repeated,
        dropped=sum(one.rows for one in left_out),
        counted=sum(one.rows for one in kept),
        kept=tuple(kept),
        left_out=tuple(left_out),
        faults=tuple(faults),
    )


def _latest(ranges: Sequence[Written]) -> list[Written]:
    """The ranges that no later generation began again."""
    return [
        one
        for one in ranges
        if not any(other.generation > one.generation and other.start <= one.start for other in ranges)
    ]


def _faults(partition: int, ranges: Sequence[Written], end: int) -> list[str]:
    faults: list[str] = []
    position = 0
    for one in sorted(ranges):
        if one.start != position:
            word = "missing" if one.start > position else "twice"
            low, high = sorted((one.start, position))
            faults.append(f"partition {partition}: offsets {low} to {high - 1} are {word}")
        if one.rows != one.end - one.start:
            faults.append(f"partition {partition}: {one.start} to {one.end} holds {one.rows} rows")
        position = max(position, one.end)
    if position != end:
        faults.append(f"partition {partition}: read up to {position} of {end}")
    return faults


def _covered(ranges: Sequence[Written]) -> int:
    covered = position = 0
    for one in sorted(ranges):
        covered += max(0, one.end - max(one.start, position))
        position = max(position, one.end)
    return covered


def read_batches(folder: Path) -> pa.Table:
    """The aggregates of every finished batch under `folder`, with the member and batch they come from."""
    tables = []
    for done in sorted(folder.glob("member=*/batch=*/_SUCCESS")):
        member = done.parent.parent.name.partition("=")[2]
        batch = int(done.parent.name.partition("=")[2])
        for file in sorted(done.parent.glob("*.parquet")):
            table = pq.ParquetFile(file).read()
            named = table.append_column("member", pa.repeat(pa.scalar(member), len(table)))
            tables.append(named.append_column("batch", pa.repeat(pa.scalar(batch), len(table))))
    return pa.concat_tables(tables) if tables else pa.table({name: [] for name in RANGE + GROUPS + SUMS})


def ranges_of(batches: pa.Table) -> list[Written]:
    """What the batches cover."""
    summed = batches.group_by(list(RANGE)).aggregate([("flights", "sum")]).to_pylist()
    return [
        Written(
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
    """The aggregates of the ranges kept, summed by carrier, connection and hour."""
    names = ["partition", "rangeStart", "generation", "member", "batch"]
    kept = pa.table(
        {
            "partition": pa.array([one.partition for one in account.kept], pa.int32()),
            "rangeStart": pa.array([one.start for one in account.kept], pa.int64()),
            "generation": pa.array([one.generation for one in account.kept], pa.int32()),
            "member": pa.array([one.member for one in account.kept], pa.string()),
            "batch": pa.array([one.batch for one in account.kept], pa.int64()),
        }
    )
    chosen = batches.join(kept, keys=names, join_type="left semi")
    summed = chosen.group_by(list(GROUPS)).aggregate([(name, "sum") for name in SUMS])
    return summed.rename_columns([*GROUPS, *SUMS])


@dataclass(frozen=True, slots=True)
class Connection:
    """One carrier's flights from one airport to another; delays in minutes, means over the flights that have one."""

    carrier: str
    origin: str
    dest: str
    flights: int
    dep_mean: float
    arr_mean: float
    worst_hour: int


def worst_connections(counted: pa.Table, least: int, most: int = 10) -> list[Connection]:
    """The connections that leave latest on average.

    Args:
        counted: what `count_once` gave.
        least: flights that a connection must have to be listed.
        most: how many to list.
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
            Connection(
                row["carrier"],
                row["origin"],
                row["dest"],
                row["flights"],
                row["dep_minutes"] / row["dep_known"],
                row["arr_minutes"] / row["arr_known"] if row["arr_known"] else 0.0,
                worst["hour"],
            )
        )
    return sorted(found, key=lambda one: -one.dep_mean)[:most]


def compare(counted: pa.Table, tally: Tally) -> Iterator[str]:
    """Differences between what was counted and what was replayed, at most a few."""
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
