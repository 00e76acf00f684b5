"""The way of submitted rows into a member's sinks: gathered into units, each staged under a key of its own."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from uuid import UUID

import pyarrow as pa

from kohort.errors import InvalidInputError, RetriableError
from kohort.region.consuming.waits import Wait
from kohort.region.sinks import Sink, check_rows
from kohort.region.sinks.columns import arrange
from kohort.region.sinks.dead_letters import LetterLog, divide, letters_of
from kohort.region.staged import StagedKey

UNIT_BYTES = 64 * 1024 * 1024
AWAY = (OSError, RetriableError)
"""Errors of a sink that is away: what was to be staged is staged again, and nobody goes back for it."""
LASTING = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
LASTING_ERRNOS = frozenset(
    {
        errno.EROFS,
        errno.EXDEV,
        errno.EFBIG,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
    }
)
"""Errors of a place that was removed, has other rights, is read-only or is no place for a sink: waiting does not end
them, so the region resets and stops. All others pass: a disk that is full (ENOSPC, EDQUOT), one that fails (EIO) or
whose server has restarted (ESTALE), a network, too many open files."""


def is_away(error: BaseException) -> bool:
    """Whether a sink that raised this may take the same again later."""
    if isinstance(error, LASTING) or (isinstance(error, OSError) and error.errno in LASTING_ERRNOS):
        return False
    return isinstance(error, AWAY)


def sink_wait(name: str) -> Wait:
    """The wait of a member, or of a task, for its sink."""
    return Wait(
        f"{name}: the sink takes nothing at the moment, tried again until it does",
        f"{name}: the sink takes what is staged again",
    )


class _Units:
    """The units of one place. `Stager` sees to it that one thread at a time is here."""

    def __init__(self, sink: Sink, region_id: UUID, name: str, unit_bytes: int) -> None:
        self._sink, self._region_id, self._name, self._unit_bytes = sink, region_id, name, unit_bytes
        self.tables: list[pa.Table] = []
        self.bytes = self._epoch = self._unit = self._given = 0
        self.staged: list[tuple[StagedKey, int]] = []  # with the rows of each
        self._settled_tables = self._settled_keys = 0

    def begin(self, epoch: int) -> None:
        self.tables, self.staged = [], []
        self.bytes = self._unit = self._given = self._settled_tables = self._settled_keys = 0
        self._epoch = epoch

    def make_room(self) -> None:
        """Stage what is there if it has come to a unit."""
        if self.bytes >= self._unit_bytes:
            self.stage_rest()

    def take(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.bytes += table.nbytes

    def settle(self) -> None:
        self._settled_tables, self._settled_keys = len(self.tables), len(self.staged)

    def drop_unsettled(self) -> None:
        del self.tables[self._settled_tables :], self.staged[self._settled_keys :]
        self.bytes = sum(table.nbytes for table in self.tables)

    def give(self, schema: pa.Schema | None) -> tuple[StagedKey, ...]:
        """Stage the rest, and with a schema also no rows; gives all keys that no sequence counts yet."""
        if self.tables or (schema is not None and not self.staged):
            self._stage(self.tables, schema)
            self.tables, self.bytes, self._settled_tables = [], 0, 0
        self._settled_keys = self._given = len(self.staged)
        return tuple(key for key, _ in self.staged)

    def counted(self) -> int:
        """Forget the keys that were given, which a complete sequence has; gives how many rows these are."""
        rows = self.rows_given()
        self._settled_keys = max(0, self._settled_keys - self._given)
        self.staged, self._given = self.staged[self._given :], 0
        return rows

    def rows_given(self) -> int:
        return sum(rows for _, rows in self.staged[: self._given])

    def stage_rest(self) -> None:
        """Stage the rows of tables that are done, and those of the one in hand under a key of their own."""
        settled, unsettled = self.tables[: self._settled_tables], self.tables[self._settled_tables :]
        if settled:
            self._stage(settled)
            self.tables, self._settled_tables, self._settled_keys = unsettled, 0, len(self.staged)
        if unsettled:
            self._stage(unsettled)
        self.tables, self.bytes, self._settled_tables = [], 0, 0

    def _stage(self, tables: list[pa.Table], schema: pa.Schema | None = None) -> None:
        table = pa.concat_tables(tables) if tables else (schema or pa.schema([])).empty_table()
        key = StagedKey(self._region_id, self._epoch, self._name, self._unit)
        self._unit += 1  # also if this fails or is interrupted: something may be there under the key
        self._sink.stage(key, table)
        self.staged.append((key, table.num_rows))


class Stager:
    """The units of one member; the thread that processes and the event thread use it in turn."""

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
        """Nothing is staged.

        Args:
            sink: of the rows; None: what is submitted goes nowhere.
            region_id: the region's.
            name: of the member.
            unit_bytes: a unit is staged when it has come to so much.
            letters: of the dead letters, which it has checked.
            divides: rows that the sink can't take become dead letters; else a table that has one is refused.
        """
        self._sink, self._name, self._letters_sink, self._divides = sink, name, letters, divides
        self._lock = threading.RLock()
        self._schema: pa.Schema | None = None
        self._rows = None if sink is None else _Units(sink, region_id, name, unit_bytes)
        self._letters = None if letters is None else _Units(letters, region_id, name, unit_bytes)
        self._letter_log = LetterLog(name, "" if letters is None else letters.place)
        self._units = [units for units in (self._rows, self._letters) if units is not None]
        self._epoch = self.rows = 0

    def begin(self, epoch: int) -> None:
        """Nothing was staged in this epoch; what was before is void."""
        with self._lock:
            self._epoch = epoch
            for units in self._units:
                units.begin(epoch)

    def add(
        self,
        table: pa.Table,
        *,
        records: pa.Table | None = None,
        read: pa.Table | None = None,
        made_of: Callable[[], str] = str,
    ) -> None:
        """Take rows in; the first tell the sink what they are.

        Args:
            table: the rows.
            records: of which they were made, one by one; None: the rows say it, or nobody.
            read: the records of the table in hand.
            made_of: says which these are, for rows that don't say their record.

        Raises:
            OSError, RetriableError: a sink takes nothing at the moment; the rows are not taken in, none of them.
            Exception: what the sink says against them.
        """
        with self._lock:
            if self._sink is None or self._rows is None:
                return
            if self._schema is None or (arranged := arrange(table, self._schema)) is None:
                self._sink.check(table.schema)
                self._rows.stage_rest()
                self._schema = table.schema
            else:
                table = arranged
            if not self._divides:
                check_rows(self._sink, table)
                self._rows.make_room()
                self._take(table)
                return
            good, reasons = divide(self._sink, table)
            self._rows.make_room()
            if reasons:
                told = made_of()
                reasons = {row: why + told for row, why in reasons.items()}
                self._add_letters(letters_of(table, reasons, self._name, records=records, read=read))
            self._take(good)  # behind the letters nothing fails any more

    def add_letters(self, letters: pa.Table) -> None:
        """Take dead letters in.

        Raises:
            OSError, RetriableError: the place takes nothing at the moment; none of them is taken in.
            InvalidInputError: the member has no place for them.
        """
        with self._lock:
            self._add_letters(letters)

    def _add_letters(self, letters: pa.Table) -> None:
        if self._letters is None or self._letters_sink is None:
            raise InvalidInputError(
                f"{self._name} has no place for dead letters: give Region.consumer dead_letters=..., a sink such as "
                "ParquetFolder(path)"
            )
        check_rows(self._letters_sink, letters)
        self._letters.make_room()
        self._letters.take(letters)
        if letters.num_rows:
            self._letter_log.add(letters.num_rows, letters.column("reason")[0].as_py())

    def _take(self, table: pa.Table) -> None:
        assert self._rows is not None
        self._rows.take(table)
        self.rows += table.num_rows

    def settle(self) -> None:
        """All rows so far were made of tables that are done."""
        with self._lock:
            for units in self._units:
                units.settle()

    def drop_unsettled(self) -> None:
        """Forget the rows of a table that was left undone; what was staged of it is named by no sequence."""
        with self._lock:
            for units in self._units:
                units.drop_unsettled()

    def give(self) -> tuple[StagedKey, ...]:
        """Stage the rest; the keys of all that was staged since the last sequence that counted.

        An empty table too: lost output must not look like none.

        Raises:
            OSError, RetriableError: the sink takes nothing at the moment; nothing of it is lost.
        """
        with self._lock:
            return () if self._rows is None else self._rows.give(self._schema)

    def give_letters(self) -> tuple[tuple[StagedKey, ...], int]:
        """Stage the rest of the dead letters; their keys, and how many they are. Without any nothing is staged.

        Raises:
            OSError, RetriableError: the place takes nothing at the moment; nothing of it is lost.
        """
        with self._lock:
            return ((), 0) if self._letters is None else (self._letters.give(None), self._letters.rows_given())

    def counted(self) -> int:
        """Forget the keys that were given, which a complete sequence has; gives how many dead letters these are."""
        with self._lock:
            if self._rows is not None:
                self._rows.counted()
            return 0 if self._letters is None else self._letters.counted()
