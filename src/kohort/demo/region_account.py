"""The count of the rows in all places of the region's demo: every flight once, in all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kohort.demo.account import GROUPS, SUMS


@dataclass(frozen=True, slots=True)
class RegionAccount:
    """The result of the count.

    Attributes:
        rows: the number of rows of each place.
        twice: surplus rows.
        missing: records that no place has.
        unknown: rows of offsets that no record has.
    """

    rows: Mapping[str, int]
    twice: int
    missing: int
    unknown: int

    @property
    def published(self) -> int:
        """The number of rows of all places."""
        return sum(self.rows.values())


def settle_places(tables: Mapping[str, pa.Table], ends: Mapping[int, int]) -> RegionAccount:
    """Compare the rows of all places with the topic.

    Args:
        tables: the rows of each place, with the columns `partition` and `offset`.
        ends: the offset after the last record, by partition; partitions start at 0 and offsets have no holes.
    """
    where = pa.concat_tables([table.select(["partition", "offset"]) for table in tables.values()])
    found = where.group_by(["partition", "offset"]).aggregate([([], "count_all")])
    twice = where.num_rows - found.num_rows
    good = 0
    for partition, end in ends.items():
        own = (pc.field("partition") == partition) & (pc.field("offset") >= 0) & (pc.field("offset") < end)
        good += found.filter(own).num_rows
    rows = {name: table.num_rows for name, table in tables.items()}
    return RegionAccount(rows, twice, sum(ends.values()) - good, found.num_rows - good)


def counted_by_hour(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Sum all rows by carrier, connection and hour, in the form of `account.count_once`."""
    every = pa.concat_tables(list(tables.values()))
    summed = every.group_by(list(GROUPS)).aggregate(
        [([], "count_all"), *((name, how) for name in ("dep_delay", "arr_delay") for how in ("count", "sum"))]
    )
    nothing: Any = 0
    columns = [summed.column(name) for name in GROUPS]
    columns += [summed.column(name).fill_null(nothing) for name in _SUMMED]
    return pa.table(columns, [*GROUPS, *SUMS])


_SUMMED = ("count_all", "dep_delay_count", "dep_delay_sum", "arr_delay_count", "arr_delay_sum")
