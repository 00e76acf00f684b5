"""What a member submits, on its way into its sink: gathered into units, each staged under a key of its own."""

from __future__ import annotations

import errno
import threading
from uuid import UUID

import pyarrow as pa

from kohort.errors import RetriableError
from kohort.region.consuming.waits import Wait
from kohort.region.sinks import Sink, check_rows
from kohort.region.sinks.columns import arrange
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


class Stager:
    """The units of one member; the thread that processes and the event thread use it in turn."""

    def __init__(self, sink: Sink | None, region_id: UUID, name: str, unit_bytes: int = UNIT_BYTES) -> None:
        """`unit_bytes`: a unit is staged when it has come to so much."""
        self._sink, self._region_id, self._name, self._unit_bytes = sink, region_id, name, unit_bytes
        self._lock = threading.RLock()
        self._schema: pa.Schema | None = None
        self._tables: list[pa.Table] = []
        self._bytes = self._epoch = self._unit = self._given = 0
        self._keys: list[StagedKey] = []
        self._settled_tables = self._settled_keys = 0
        self.rows = 0

    def begin(self, epoch: int) -> None:
        """Nothing was staged in this epoch; what was before is void."""
        with self._lock:
            self._tables, self._keys = [], []
            self._bytes = self._unit = self._given = self._settled_tables = self._settled_keys = 0
            self._epoch = epoch

    def add(self, table: pa.Table) -> None:
        """Take rows in; the first tell the sink what they are.

        Raises:
            OSError, RetriableError: the sink takes nothing at the moment; the rows are not taken in.
            Exception: what the sink says against them.
        """
        with self._lock:
            if self._sink is None:
                return
            if self._schema is None or (arranged := arrange(table, self._schema)) is None:
                self._sink.check(table.schema)
                self._stage_rest()
                self._schema = table.schema
            else:
                table = arranged
            check_rows(self._sink, table)
            if self._bytes >= self._unit_bytes:
                self._stage_rest()
            self._tables.append(table)
            self._bytes += table.nbytes
            self.rows += table.num_rows

    def settle(self) -> None:
        """All rows so far were made of tables that are done."""
        with self._lock:
            self._settled_tables, self._settled_keys = len(self._tables), len(self._keys)

    def drop_unsettled(self) -> None:
        """Forget the rows of a table that was left undone; what was staged of it is named by no sequence."""
        with self._lock:
            del self._tables[self._settled_tables :], self._keys[self._settled_keys :]
            self._bytes = sum(table.nbytes for table in self._tables)

    def give(self) -> tuple[StagedKey, ...]:
        """Stage the rest; the keys of all that was staged since the last sequence that counted.

        Raises:
            OSError, RetriableError: the sink takes nothing at the moment; nothing of it is lost.
        """
        with self._lock:
            if self._schema is not None and (self._tables or not self._keys):
                self._stage(self._tables, self._schema)  # an empty one too: lost output must not look like none
                self._tables, self._bytes, self._settled_tables = [], 0, 0
            self._settled_keys = len(self._keys)
            self._given = len(self._keys)
            return tuple(self._keys)

    def counted(self) -> None:
        """What was given is in a complete sequence."""
        with self._lock:
            self._settled_keys = max(0, self._settled_keys - self._given)
            self._keys, self._given = self._keys[self._given :], 0

    def _stage_rest(self) -> None:
        """Stage the rows of tables that are done, and those of the one in hand under a key of their own."""
        settled, unsettled = self._tables[: self._settled_tables], self._tables[self._settled_tables :]
        if settled:
            self._stage(settled, settled[0].schema)
            self._tables, self._settled_tables, self._settled_keys = unsettled, 0, len(self._keys)
        if unsettled:
            self._stage(unsettled, unsettled[0].schema)
        self._tables, self._bytes, self._settled_tables = [], 0, 0

    def _stage(self, tables: list[pa.Table], schema: pa.Schema) -> None:
        assert self._sink is not None
        key = StagedKey(self._region_id, self._epoch, self._name, self._unit)
        self._unit += 1  # also if this fails or is interrupted: something may be there under the key
        self._sink.stage(key, pa.concat_tables(tables) if tables else schema.empty_table())
        self._keys.append(key)
