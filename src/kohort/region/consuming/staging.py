"""The staging of submitted rows: they are collected into units, and each unit is staged under its own key."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import UUID

import pyarrow as pa

from kohort.errors import InvalidInputError
from kohort.region.consuming.waits import RetryWait
from kohort.region.consuming.work_queue import SMALL_TABLE_BYTES, SMALL_TABLES, merge_tables
from kohort.region.sinks import Sink, check_rows
from kohort.region.sinks.columns import reorder_columns
from kohort.region.sinks.dead_letters import DeadLetterLog, make_dead_letters, split_refused_rows
from kohort.region.staged import StagedKey

UNIT_BYTES = 32 * 1024 * 1024
"""Size of submitted rows, as Arrow counts it, at which a unit is staged.

A member holds the rows of a unit until they are staged. A table of small units has small files: at full speed, 32 MiB
are 0.15 s of rows. Below that the files of a checkpoint become many, and the memory is no longer that of units.
"""


def sink_retry_wait(name: str) -> RetryWait:
    """Return the backoff and log throttle with which a member, or a Spark task, waits for an unavailable sink."""
    return RetryWait(
        f"[member {name}] the sink accepts nothing at the moment, retrying",
        f"[member {name}] the sink accepts rows again",
    )


def _give_memory_back() -> None:
    """Return memory to the operating system that allocators keep after a batch of rows was staged.

    Freed columns leave holes between those of the next batch, and the encoder's buffers stay with the allocator.
    Arrow's system pool asks the C library for its part.
    """
    pa.default_memory_pool().release_unused()
    pa.system_memory_pool().release_unused()


class _Units:
    """The rows of one member for one sink, staged in units: batches that have a key each.

    `RowStager` lets one thread in at a time.
    """

    def __init__(self, sink: Sink, region_id: UUID, name: str, unit_bytes: int) -> None:
        self._sink, self._region_id, self._name, self._unit_bytes = sink, region_id, name, unit_bytes
        self.tables: list[pa.Table] = []
        self.bytes = self._epoch = self._unit = self._given = 0
        self.staged: list[tuple[StagedKey, int]] = []  # with the rows of each
        self._settled_tables = self._settled_keys = 0
        self._small = 0  # the last `_small` tables are small

    def begin_epoch(self, epoch: int) -> None:
        self.tables, self.staged = [], []
        self.bytes = self._unit = self._given = self._settled_tables = self._settled_keys = 0
        self._epoch, self._small = epoch, 0

    def stage_if_unit_full(self) -> None:
        """Stage the collected rows if they have reached the size of a unit (`unit_bytes`)."""
        if self.bytes >= self._unit_bytes:
            self.stage_rest()

    def add_table(self, table: pa.Table) -> None:
        size = table.nbytes
        self.tables.append(table)
        self.bytes += size
        self._small = self._small + 1 if size < SMALL_TABLE_BYTES else 0

    def finish_table(self) -> None:
        if self._small >= SMALL_TABLES:
            self._merge_small()
        self._settled_tables, self._settled_keys = len(self.tables), len(self.staged)

    def _merge_small(self) -> None:
        small = self.tables[-self._small :]
        merged = merge_tables(small)
        self.tables[-self._small :] = [merged]
        self.bytes += merged.nbytes - sum(table.nbytes for table in small)
        self._small = int(merged.nbytes < SMALL_TABLE_BYTES)

    def drop_unfinished_table(self) -> None:
        self._small = max(0, self._small - (len(self.tables) - self._settled_tables))
        del self.tables[self._settled_tables :], self.staged[self._settled_keys :]
        self.bytes = sum(table.nbytes for table in self.tables)

    def stage_and_return_keys(self, schema: pa.Schema | None) -> tuple[StagedKey, ...]:
        """Stage the collected rows; with a schema, stage an empty table if no key would be returned.

        Return the keys of all units that no complete checkpoint covers yet.
        """
        if self.tables or (schema is not None and not self.staged):
            self._stage(self.tables, schema)
            self._drop_tables()
            _give_memory_back()
        self._settled_keys = self._given = len(self.staged)
        return tuple(key for key, _ in self.staged)

    def forget_contribution(self) -> int:
        """Forget the keys that `stage_and_return_keys` returned, as their checkpoint is complete.

        Return their number of rows.
        """
        rows = self.contributed_row_count()
        self._settled_keys = max(0, self._settled_keys - self._given)
        self.staged, self._given = self.staged[self._given :], 0
        return rows

    def contributed_row_count(self) -> int:
        """Return the number of rows that were contributed to a checkpoint which is not complete yet."""
        return sum(rows for _, rows in self.staged[: self._given])

    def stage_rest(self) -> None:
        """Stage the rows of finished tables, and those of the current table under another key, which can be dropped."""
        settled, unsettled = self.tables[: self._settled_tables], self.tables[self._settled_tables :]
        if settled:
            self._stage(settled)
            self.tables, self._settled_tables, self._settled_keys = unsettled, 0, len(self.staged)
            self._small = min(self._small, len(unsettled))
        if unsettled:
            self._stage(unsettled)
        self._drop_tables()
        del settled, unsettled
        _give_memory_back()

    def _drop_tables(self) -> None:
        self.tables, self.bytes, self._small, self._settled_tables = [], 0, 0, 0

    def _stage(self, tables: list[pa.Table], schema: pa.Schema | None = None) -> None:
        # Not `empty_table`, which imports pandas where it is installed: 45 MB, for a member that has no rows.
        table = pa.concat_tables(tables) if tables else pa.Table.from_batches([], schema or pa.schema([]))
        key = StagedKey(self._region_id, self._epoch, self._name, self._unit)
        self._unit += 1  # also if this fails or is interrupted: something may be staged under the key
        self._sink.stage(key, table)
        self.staged.append((key, table.num_rows))


class RowStager:
    """The collector of the rows that a member submits; it stages them in the sink. Any thread may call its methods."""

    def __init__(
        self,
        sink: Sink | None,
        region_id: UUID,
        name: str,
        unit_bytes: int = UNIT_BYTES,
        *,
        letters: Sink | None = None,
        divides: bool = False,
    ) -> None:
        """Initialise an empty stager.

        Args:
            sink: the sink of the rows; None: submitted rows are discarded.
            region_id: the region's id.
            name: the member's name.
            unit_bytes: stage the collected rows, under one key, when they have reached this size.
            letters: the dead-letter sink, if there is one; it has accepted the schema of dead letters already.
            divides: turn rows that the sink refuses into dead letters; otherwise refuse their whole table.
        """
        self._sink, self._name, self._letters_sink, self._divides = sink, name, letters, divides
        self._lock = threading.RLock()
        self._schema: pa.Schema | None = None
        self._rows = None if sink is None else _Units(sink, region_id, name, unit_bytes)
        self._letters = None if letters is None else _Units(letters, region_id, name, unit_bytes)
        self._letter_log = DeadLetterLog(name, "" if letters is None else letters.place)
        self._units = [units for units in (self._rows, self._letters) if units is not None]
        self.rows = 0

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch, as after each start and reset: forget the rows and keys of the epoch before."""
        with self._lock:
            for units in self._units:
                units.begin_epoch(epoch)

    def add(
        self,
        table: pa.Table,
        *,
        records: pa.Table | None = None,
        read: pa.Table | None = None,
        made_of: Callable[[], str] = str,
    ) -> None:
        """Collect submitted rows for the sink. The first rows fix the sink's schema.

        Args:
            table: the rows.
            records: the records from which they were made, one by one; None: the rows name their records, or nothing
                does.
            read: the records of the current table.
            made_of: describes these records, for rows that don't name theirs.

        Raises:
            OSError, RetriableError: a sink accepts nothing at the moment; no row was accepted.
            Exception: any error with which the sink rejects the rows.
        """
        with self._lock:
            if self._sink is None or self._rows is None:
                return
            if self._schema is None or (arranged := reorder_columns(table, self._schema)) is None:
                self._sink.check(table.schema)
                self._rows.stage_rest()
                self._schema = table.schema
            else:
                table = arranged
            if not self._divides:
                check_rows(self._sink, table)
                self._rows.stage_if_unit_full()
                self._add_table(table)
                return
            good, reasons = split_refused_rows(self._sink, table)
            self._rows.stage_if_unit_full()
            if reasons:
                told = made_of()
                reasons = {row: why + told for row, why in reasons.items()}
                self._add_dead_letters(make_dead_letters(table, reasons, self._name, records=records, read=read))
            self._add_table(good)  # after the dead letters nothing can fail

    def add_dead_letters(self, dead_letters: pa.Table) -> None:
        """Collect dead letters for their sink.

        Raises:
            OSError, RetriableError: the dead-letter sink accepts nothing at the moment; no row was accepted.
            InvalidInputError: the member has no dead-letter sink.
        """
        with self._lock:
            self._add_dead_letters(dead_letters)

    def _add_dead_letters(self, letters: pa.Table) -> None:
        if self._letters is None or self._letters_sink is None:
            raise InvalidInputError(
                f"{self._name} has no place for dead letters: give Region.consumer dead_letters=..., a sink such as "
                "ParquetFolder(path)"
            )
        check_rows(self._letters_sink, letters)
        self._letters.stage_if_unit_full()
        self._letters.add_table(letters)
        if letters.num_rows:
            self._letter_log.add(letters.num_rows, letters.column("reason")[0].as_py())

    def _add_table(self, table: pa.Table) -> None:
        assert self._rows is not None
        self._rows.add_table(table)
        self.rows += table.num_rows

    def finish_table(self) -> None:
        """Mark the table in progress as finished, so that `drop_unfinished_table` keeps its rows."""
        with self._lock:
            for units in self._units:
                units.finish_table()

    def drop_unfinished_table(self) -> None:
        """Drop the rows of a table that the application abandoned; staged ones are never published."""
        with self._lock:
            for units in self._units:
                units.drop_unfinished_table()

    def stage_rest(self) -> tuple[StagedKey, ...]:
        """Stage all collected rows, and return the keys of all rows staged since the last complete contribution.

        If there are none, an empty table is staged once a schema is known: lost output must not look like no output.

        Raises:
            OSError, RetriableError: the sink accepts nothing at the moment; no row is lost.
        """
        with self._lock:
            return () if self._rows is None else self._rows.stage_and_return_keys(self._schema)

    def stage_dead_letters(self) -> tuple[tuple[StagedKey, ...], int]:
        """Stage the collected dead letters, and return their keys and their number.

        Both cover all dead letters since the last complete contribution. Without dead letters nothing is staged.

        Raises:
            OSError, RetriableError: the dead-letter sink accepts nothing at the moment; no row is lost.
        """
        with self._lock:
            return (
                ((), 0)
                if self._letters is None
                else (self._letters.stage_and_return_keys(None), self._letters.contributed_row_count())
            )

    def forget_contribution(self) -> int:
        """Forget the last contribution's keys, as its checkpoint is complete; return its number of dead letters."""
        with self._lock:
            if self._rows is not None:
                self._rows.forget_contribution()
            return 0 if self._letters is None else self._letters.forget_contribution()
