"""The sink that ships for a table of SQLite, in a database in memory, beside other programs that write there.

SQLite itself keeps the rows, with its locks and its rollback. A process that finds the database locked is refused at
once, since virtual time has one thread. An answer of a commit may be lost. A commit may also come late: until then its
transaction is open, as on a server whose client has gone.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from kohort.errors import RetriableError
from kohort.region.sinks import Keep
from kohort.region.sinks.sql_dialects import SqliteFile
from kohort.region.sinks.sql_table import SqlTable
from kohort.region.staged import StagedKey
from tests.region.volume import Calls, Died, Volume
from tests.region.world.bucket import BusierFaults, StoreFaults
from tests.region.world.clock import Clock, ViolatedError
from tests.region.world.disk import SCHEMA, Disk, Record, RunningSum, WorldSink, are_equal
from tests.region.world.late_publisher import NO_ORDERS, LatePublisher, orders
from tests.region.world.names import REGION, REGION_ID
from tests.region.world.object_disk import Takes

TABLE: Final = "flights"
FOREIGN: Final = -1
"""The partition in the rows of another program."""
APPENDS_MS: Final = 4_000
LATE_MS: Final = 4_000
"""A commit comes at most so late; the database is locked until then."""
HOLDS_MS: Final = 1_500
PUBLISHES_MS: Final = 4_000
OTHER_REGION, OTHER_ID, OTHER_TABLE = "trains", UUID(int=8), "trains"
_NAMES: Final = itertools.count()
_SUMS: Final = (
    "SELECT count(*), total(rowid), total(rowid * \"offset\"), total(rowid * \"partition\") "
    f"FROM {TABLE} WHERE rowid <= ?"
)  # fmt: skip


class Database:
    """A database in memory, which all its connections share.

    Attributes:
        committed: called after each commit.
        content: what is committed, for a backup.
    """

    def __init__(self, content: bytes = b"") -> None:
        self.path = f"file:/world-{next(_NAMES)}?vfs=memdb"
        self.committed: Callable[[], None] = lambda: None
        self.content = content
        self._keeper = sqlite3.connect(self.path, uri=True, timeout=0, isolation_level=None)  # it goes with the last
        if content:
            copied = sqlite3.connect(":memory:")
            copied.deserialize(content)
            copied.backup(self._keeper)
            copied.close()

    def keep_content(self) -> None:
        """Keep a copy of what is committed, for a backup that is made while a transaction is open."""
        self.content = self._keeper.serialize()

    def ask(self, statement: str, *given: object) -> list[Any]:
        """Return the rows of a query; none if the table is not there."""
        try:
            return self._keeper.execute(statement, given).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise


class WorldConnection(sqlite3.Connection):
    """A connection of a process, whose statements are asked through its client."""

    client: SqlClient
    comes_late = False

    def cursor(self, factory: Any = None) -> Any:
        del factory
        return super().cursor(WorldCursor)

    def close(self) -> None:
        """End the connection, and with it a transaction that is open; unless the server still has a request."""
        if not self.comes_late:
            super().close()


class WorldCursor(sqlite3.Cursor):
    connection: WorldConnection

    def execute(self, statement: str, given: Any = (), /) -> WorldCursor:
        self.connection.client.ask(self.connection, statement, lambda: sqlite3.Cursor.execute(self, statement, given))
        return self

    def executemany(self, statement: str, given: Iterable[Any], /) -> WorldCursor:
        rows = list(given)
        self.connection.client.ask(
            self.connection, statement, lambda: sqlite3.Cursor.executemany(self, statement, rows)
        )
        return self


class SqlClient(SqliteFile):
    """A database as one process asks it. The process may die, fail or be held at each statement (`calls`).

    Attributes:
        may_wait: whether time may pass now, while this process waits for an answer.
    """

    def __init__(self, database: Database, faults: StoreFaults | None, decisive: StoreFaults | None) -> None:
        super().__init__(database.path)
        self._database, self._faults, self._decisive = database, faults, decisive
        self.calls = Calls(Volume())
        self.may_wait: Callable[[], bool] = lambda: False

    def __call__(self) -> sqlite3.Connection:
        """Open a connection."""
        return self._asked("connect", self._connected, self._faults, lambda: None)

    def _connected(self) -> WorldConnection:
        made = sqlite3.connect(self.path, uri=True, timeout=0, isolation_level=None, factory=WorldConnection)
        made.client = self
        return made

    def ask(self, connection: WorldConnection, statement: str, effect: Callable[[], Any]) -> None:
        """Execute a statement, with the fault that it meets."""
        if statement != "COMMIT":
            self._asked(statement, effect, self._faults, lambda: None)
            return

        def commit() -> None:
            sqlite3.Connection.execute(connection, "COMMIT")
            self._database.committed()

        def commit_late() -> None:
            try:
                commit()
            finally:
                sqlite3.Connection.close(connection)

        def come_late() -> None:
            connection.comes_late = True
            assert self._decisive is not None
            self._decisive._clock.after_late(self._decisive._chance.randint(1, LATE_MS), commit_late)

        self._asked(statement, commit, self._decisive, come_late)

    def _asked(
        self, statement: str, effect: Callable[[], Any], faults: StoreFaults | None, come_late: Callable[[], object]
    ) -> Any:
        calls, words = self.calls, statement.partition(" ")
        try:
            number = calls._begin(words[0], words[2])
        except OSError as error:  # a disk that is full
            raise _error(str(error), sqlite3.SQLITE_FULL) from None
        fault = "" if faults is None else faults.next_fault(writes=statement == "COMMIT")
        if fault == "late":
            come_late()
        if fault in ("503", "late"):
            raise _error("the server is away", sqlite3.SQLITE_IOERR)
        if faults is not None and self.may_wait() and faults.is_slow():
            faults.pass_time()
            if calls.dead:
                raise Died
        done = effect()
        calls.after(number, words[0], words[2])
        if fault:
            raise _error("the answer was lost", sqlite3.SQLITE_IOERR)
        return done


def _error(text: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


class SqlDisk(Disk):
    """A table, and what has to be in it.

    Attributes:
        database: the database of the table.
        foreign: the offsets of another program's rows, which are in the table until it is emptied.
        ordered: what somebody was told to publish last.
    """

    def __init__(self, path: str, takes: Takes, faults: StoreFaults) -> None:
        super().__init__(path, takes)
        self.place, self.faults = f"sql:{path}#{TABLE}", faults
        self.decisive = BusierFaults(faults, f"commits in {path}")
        self.foreign: set[int] = set()
        self.ordered = NO_ORDERS
        self._wanted_sum = RunningSum()
        self._use(Database(), 0)

    def _use(self, database: Database, emptied: int) -> None:
        self.database, self._emptied, self._last = database, emptied, 0
        self._rows: Counter[Record] = Counter()
        self._read, self._sums = 0, (0, 0.0, 0.0, 0.0)
        database.committed = self._committed

    def open_sink(self, may_wait: Callable[[], bool] | None = None) -> SqlSink:
        """Return the sink as a new process has it; without `may_wait` each of its requests is answered at once."""
        given = (None, None) if may_wait is None else (self.faults, self.decisive)
        client = SqlClient(self.database, *given)
        client.may_wait = may_wait or client.may_wait
        return SqlSink(self, client).bind(REGION, REGION_ID)

    def besides(self, clock: Clock, seed: int, era: Callable[[], object]) -> list[Any]:
        """Return a publisher that comes late, a program that writes into the table, and another region beside it."""
        return [LatePublisher(clock, self, seed, era), SqlWriter(clock, self, seed), OtherRegion(clock, self, seed)]

    def shows(self) -> int:
        """Return the last sequence that is committed, also while another process holds the database."""
        return self._last

    def backup(self) -> Any:
        """Return a copy of what is committed."""
        return SimpleNamespace(content=self.database.content, foreign=set(self.foreign), emptied=self._emptied)

    def restore(self, backup: Any) -> None:
        """Be as when the copy was made. A commit that is under way goes to the database that was there."""
        self.database.committed = lambda: None
        self.foreign, self.ordered = set(backup.foreign), NO_ORDERS
        self._use(Database(backup.content), backup.emptied)
        if backup.content:
            self._committed()

    def lose_power(self, chance: random.Random) -> None:
        """The database is elsewhere: nothing is lost."""

    def heal(self) -> None:
        """Commit what is late: until then the database is locked."""
        self.faults._clock.bring_late()

    def emptied(self) -> None:
        """Nothing of what was void is shown any more."""
        super().emptied()
        self._compare_table()

    def shown(self) -> set[int]:
        """Return the sequences that are in the table."""
        return {number for number in self._expected() if self._emptied < number <= self._last}

    def check(self) -> None:
        """The table was compared at each commit, and nothing else changes it."""

    def _expected(self) -> dict[int, Counter[Record]]:
        return {**self.void, **self.wanted}

    def _committed(self) -> None:
        """The table has the rows of all sequences up to its last one, each once, and those of the other program.

        Raises:
            ViolatedError: it has not.
        """
        self.database.keep_content()
        last = self.database.ask("SELECT sequence FROM kohort_sequences WHERE target = ?", TABLE)
        number = last[0][0] if last else 0
        if not self._read_rows() and number == self._last:
            return
        self._last = number
        if not self._sums[0] and self.void and max(self.void) <= number:
            self._emptied = number
        self._compare_table()

    def _compare_table(self) -> None:
        wanted = {number: rows for number, rows in self._expected().items() if self._emptied < number <= self._last}
        expected = self._wanted_sum.of(wanted)
        if not are_equal(self._rows, expected):
            missing, extra = expected - self._rows, self._rows - expected
            raise ViolatedError(f"{self.place} up to {self._last}: missing {missing}, too many {extra}")

    def _read_rows(self) -> bool:
        """Read the rows after those that were read before, or all if these have changed; return whether any did."""
        if not (found := self.database.ask(_SUMS, self._read)):
            return False
        if found[0] != self._sums:
            self._rows, self._read = Counter(), 0
        elif not self.database.ask(f"SELECT 1 FROM {TABLE} WHERE rowid > ? LIMIT 1", self._read):
            return False
        rows = self.database.ask(f'SELECT rowid, "partition", "offset" FROM {TABLE} WHERE rowid > ?', self._read)
        foreign = {offset for _, part, offset in rows if part == FOREIGN}
        self._rows.update((part, offset) for _, part, offset in rows if part != FOREIGN)
        before = self.foreign if self._read else set()
        self._read = max((row[0] for row in rows), default=self._read)
        self._sums = self.database.ask(_SUMS, self._read)[0]
        self._check_foreign(before | foreign)
        return True

    def _check_foreign(self, found: set[int]) -> None:
        if not self._sums[0]:
            self.foreign.clear()  # the table was emptied, with all that others have in it
        elif lost := self.foreign - found:
            raise ViolatedError(f"{lost} of another program is not in {self.place} any more")


class SqlSink(WorldSink, SqlTable):
    """The table as one process sees it."""

    def __init__(self, disk: SqlDisk, client: SqlClient) -> None:
        super().__init__("sqlite:///world", TABLE)
        self.disk, self.client, self.calls, self._connect, self._place = disk, client, client.calls, client, disk.place

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        disk, named = self.disk, list(keys)
        assert isinstance(disk, SqlDisk)
        disk.ordered = orders(sequence, named)
        super().publish(sequence, named)


class SqlWriter:
    """Another program: it appends to the table in transactions that last, so that those of the region are refused."""

    def __init__(self, clock: Clock, disk: SqlDisk, seed: int) -> None:
        self._clock, self._disk, self._chance = clock, disk, random.Random(f"{seed}: foreign writer of {disk.path}")
        self.done = 0

    def start(self) -> None:
        """Append again and again."""
        self._clock.after(self._chance.randint(1, APPENDS_MS), self._append)

    def _append(self) -> None:
        self._clock.after(self._chance.randint(1, APPENDS_MS), self._append)
        disk, database = self._disk, self._disk.database
        writer = sqlite3.connect(database.path, uri=True, timeout=0, isolation_level=None)
        try:
            writer.execute("BEGIN IMMEDIATE")
            writer.execute(f'INSERT INTO {TABLE} ("partition", "offset") VALUES (?, ?)', (FOREIGN, self.done + 1))
        except sqlite3.OperationalError:  # locked, or there is no table yet
            writer.close()
            return
        self.done += 1
        number = self.done

        def commit() -> None:
            writer.execute("COMMIT")
            writer.close()
            if database is disk.database:
                disk.foreign.add(number)
            database.committed()

        if disk.faults.is_bad() and self._chance.random() < 0.3:
            self._clock.after_late(self._chance.randint(1, HOLDS_MS), commit)
        else:
            commit()


class OtherRegion:
    """Another region with a table in the same database: what it stages and publishes there is its own."""

    def __init__(self, clock: Clock, disk: SqlDisk, seed: int) -> None:
        self._clock, self._disk, self._chance = clock, disk, random.Random(f"{seed}: another region in {disk.path}")
        self._database: Database | None = None
        self.done = self._unit = 0
        self._staged: list[StagedKey] = []

    def start(self) -> None:
        """Stage and publish again and again."""
        self._clock.after(self._chance.randint(1, PUBLISHES_MS), self._work)

    def _work(self) -> None:
        """Stage some rows, or publish what was staged before."""
        self._clock.after(self._chance.randint(1, PUBLISHES_MS), self._work)
        database = self._disk.database
        if self._database is not database:  # it was restored: a person has made the other table anew
            self._database, self._staged, self.done = None, [], 0
        sink = SqlTable("sqlite:///world", OTHER_TABLE)
        sink._connect, sink._place = SqlClient(database, None, None), f"sql:{self._disk.path}#{OTHER_TABLE}"
        sink = sink.bind(OTHER_REGION, OTHER_ID)
        try:
            if self._database is None:
                for table in (OTHER_TABLE, "kohort_sequences", "kohort_staged"):
                    self._forget(database, table)
                sink.check(SCHEMA)
                self._database = database
            elif not self._staged:
                self._unit += 1
                key = StagedKey(OTHER_ID, 1, "a", self._unit)
                sink.stage(key, pa.table([[0], [self._unit]], schema=SCHEMA))
                self._staged = [key]
            else:
                sink.publish(self.done + 1, self._staged)
                self.done, self._staged = self.done + 1, []
                sink.sweep(Keep(1))
        except RetriableError as error:
            self._clock.log(f"another region in {self._disk.place} waits: {error}")
            return
        found = database.ask(f"SELECT count(*) FROM {OTHER_TABLE}")
        if self._database is not None and (found != [(self.done,)] or sink.published() != self.done):
            raise ViolatedError(f"another region in {self._disk.place} has {found} rows, and published {self.done}")

    def _forget(self, database: Database, table: str) -> None:
        """Remove what another history of the region has left in a database that was restored."""
        kept = "" if table == OTHER_TABLE else f" WHERE target = '{OTHER_TABLE}'"
        with contextlib.closing(SqlClient(database, None, None)()) as writer:
            try:
                writer.execute(f"DELETE FROM {table}{kept}")
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):
                    raise RetriableError(str(error)) from None
