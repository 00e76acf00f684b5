"""A file with the history of a cluster's lag, which survives a restart: SQLite in WAL mode, bounded by time and bytes.

| table | rows | kept |
|---|---|---|
| `last_reads` | each read with the lag of all groups and partitions, compressed | the last `READS_KEPT` |
| `minutes`, `lag` | of each minute and group the largest lags, the worst status, the last members | the retention |
| `changes` | what changed in a group, and when | the retention |
| `group_names` | the name of each group; other tables have its number | an hour longer than its rows |
| `about` | the id of the cluster | always |

One process writes, and has the lock file beside it. Others may read at the same time. A write happens on a thread of
its own, so that a slow disk delays no read of the cluster and no page.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import IO, Any

import msgspec

from kohort.errors import CorruptDataError, InvalidInputError, KafkaError, NotFoundError
from kohort.ids import TopicPartition, topic_partition
from kohort.io.closing import ClosedOnExit
from kohort.io.log_throttle import FailureThrottle
from kohort.io.platforms import require_posix
from kohort.lag.evaluation import LagReport, LagStatus
from kohort.lag.timeline import GroupChange
from kohort.settings.config import did_you_mean

log = logging.getLogger("kohort.lag")

APPLICATION_ID = 0x6B6F6C68
"""SQLite's mark of the program that a file belongs to; "kolh"."""
VERSION = 1
"""The version of the tables. A file of a later one is refused."""
READS_KEPT = 120
"""The last reads that a file and a page have: 20 minutes at an interval of 10 s."""
PARTITIONS_MAX = 50_000
"""The most partitions of groups in a read. Beyond them a read has the lag of groups alone."""
STEP_MS = 60_000
"""The time of one row of a group: 7 days of 500 groups take 5,000,000 rows."""
RETENTION_MS = 7 * 24 * 3_600_000
RETENTION_MAX_MS = 400 * 24 * 3_600_000
"""The longest retention: more than a year."""
BYTES_MAX = 512 << 20
"""The size that is enough for 7 days of 2,000 groups."""
BYTES_MIN = 16 << 20
"""The smallest limit: room for the last reads of 25,000 partitions."""
PENDING_MAX = 30
"""The most reads that wait for a disk that is full, read-only or slow: 5 minutes at an interval of 10 s."""
NAME_KEPT_MS = 3_600_000
"""A group's name is marked as used once in this time."""
MINUTES_A_DELETION = 600
"""The most minutes that one transaction deletes, which bounds the write-ahead log."""
PRIVATE_MODE = 0o600
"""Only the owner reads the names of groups and hosts."""
SQLITE_MIN = (3, 35)
"""The least version of SQLite, which has RETURNING; Python may be linked to an older one of the system."""
TRUSTED_MS = 600_000
"""Nothing is deleted by a clock that has shown its time for less than this: one that is set ahead for a read would have
the whole history deleted.
"""
READS_SHARE = 4
"""The last reads may take this part of the limit, a quarter: minutes tell more of the past."""
BUSY_S = 5.0
"""How long a write waits for another program that has locked the file."""
CLOSE_S = 5.0
"""How long the end of a process waits for a write."""

_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE group_names (key INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, seen_ms INTEGER NOT NULL);
CREATE TABLE minutes (at_ms INTEGER PRIMARY KEY);
CREATE TABLE lag (
    at_ms INTEGER, group_key INTEGER, lag INTEGER, time_lag_ms INTEGER, status INTEGER NOT NULL, members INTEGER,
    PRIMARY KEY (at_ms, group_key)
) WITHOUT ROWID;
CREATE TABLE changes (
    at_ms INTEGER, group_key INTEGER, kind TEXT, text TEXT, PRIMARY KEY (at_ms, group_key, kind, text)
) WITHOUT ROWID;
CREATE TABLE last_reads (number INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, body BLOB NOT NULL);
"""
_MINUTES = (  # one look-up for each minute: the table has all groups of a minute together
    "FROM minutes CROSS JOIN lag ON lag.at_ms = minutes.at_ms AND group_key = ? WHERE minutes.at_ms >= ? "
    "ORDER BY minutes.at_ms"
)
"""A group's minutes since a time, the oldest first."""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


# -- Values


@dataclass(frozen=True, slots=True)
class TimedChange:
    """A change of a group with the time at which it was seen, in milliseconds since 1970."""

    at_ms: int
    group: str
    change: GroupChange


@dataclass(frozen=True, slots=True)
class LagValues:
    """The lag values of one read of a cluster.

    Attributes:
        at_ms: The time of the read, in milliseconds since 1970.
        lags: The lag of each group that could be read.
        time_lags_ms: The time lag of each group for which it is known.
        partitions: The lag of each group in each partition for which it is known.
    """

    at_ms: int
    lags: Mapping[str, int]
    time_lags_ms: Mapping[str, int]
    partitions: Mapping[tuple[str, TopicPartition], int]

    @classmethod
    def of(cls, report: LagReport) -> LagValues:
        """Return the lag values of a report."""
        groups = report.groups
        times = {name: group.max_time_lag_ms for name, group in groups.items()}
        return cls(
            report.taken_ms,
            {name: group.sum_lag for name, group in groups.items() if group.known_partitions},
            {name: lag for name, lag in times.items() if lag is not None},
            {
                (name, part.partition): part.lag
                for name, group in groups.items()
                for part in group.partitions
                if part.lag is not None
            },
        )

    def encode(self) -> bytes:
        """Encode the values of a read as a row of the table `last_reads`."""
        partitions: dict[str, dict[str, dict[int, int]]] = {}
        for (group, tp), lag in self.partitions.items() if len(self.partitions) <= PARTITIONS_MAX else ():
            partitions.setdefault(group, {}).setdefault(tp.topic, {})[tp.partition] = lag
        return zlib.compress(msgspec.msgpack.encode((self.lags, self.time_lags_ms, partitions)), 1)

    @classmethod
    def decode(cls, at_ms: int, body: bytes) -> LagValues:
        """Decode the values of a read from a row of the table `last_reads`.

        Raises:
            CorruptDataError: The bytes are no such row.
        """
        try:
            lags, times, partitions = _BODY.decode(zlib.decompress(body))
        except (zlib.error, msgspec.MsgspecError) as error:
            raise CorruptDataError(f"a read of the history can't be decoded: {error}") from None
        by_partition = {
            (group, topic_partition((topic, number))): lag
            for group, topics in partitions.items()
            for topic, numbers in topics.items()
            for number, lag in numbers.items()
        }
        return cls(at_ms, lags, times, by_partition)


_BODY = msgspec.msgpack.Decoder(tuple[dict[str, int], dict[str, int], dict[str, dict[str, dict[int, int]]]])


@dataclass(frozen=True, slots=True)
class LagMinute:
    """The lag of a group in one minute, as a row of the table `lag`.

    Attributes:
        at_ms: When the minute began, in milliseconds since 1970.
        lag: The largest lag of the minute; None if it was never known.
        time_lag_ms: The largest time lag; None if it was never known.
        status: The worst status.
        members: The number of members at the last read; None where it is not known.
    """

    at_ms: int
    lag: int | None
    time_lag_ms: int | None
    status: LagStatus
    members: int | None


@dataclass(frozen=True, slots=True)
class _UnwrittenRead:
    """The lag values and changes of one read, which wait to be written to the file."""

    at_ms: int
    body: bytes
    groups: tuple[tuple[str, int | None, int | None, int, int | None], ...]
    changes: tuple[TimedChange, ...]


# -- Writing


class HistoryWriter(ClosedOnExit):
    """The only writer of a lag history file (SQLite), on a thread of its own until it is closed.

    If the disk is full, read-only or away, only the history suffers. The last `PENDING_MAX` reads wait in memory, and
    are written once it works again. `error` has the reason meanwhile. The same holds for a file that is found damaged
    while it is in use: once somebody has moved it away, a new one begins.

    Args:
        path: The file; created if missing. Its folder must exist.
        retention_ms: The age in ms beyond which rows are deleted.
        bytes_max: The most bytes. Beyond them the oldest rows are deleted, and the log says so.

    Attributes:
        error: The reason why the last write failed; empty: it succeeded.

    Raises:
        InvalidInputError: Another process writes the file, it is of a later version or another program's, its folder is
            missing, or SQLite is too old.
        CorruptDataError: The file is damaged.
    """

    def __init__(self, path: Path, retention_ms: int = RETENTION_MS, bytes_max: int = BYTES_MAX) -> None:
        require_posix("a history file")
        if sqlite3.sqlite_version_info < SQLITE_MIN:
            least = ".".join(map(str, SQLITE_MIN))
            raise InvalidInputError(
                f"a history file needs SQLite {least} or later, and this Python has {sqlite3.sqlite_version}: use "
                "another build of Python, or leave --history out"
            )
        self._path, self._retention_ms, self._bytes_max = path.resolve(), retention_ms, bytes_max
        self._cluster_id: str | None = None
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._keys: dict[str, tuple[int, int]] = {}  # by name: the key, and when the name was marked as used
        self._pending: deque[_UnwrittenRead] = deque(maxlen=PENDING_MAX)
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._ended = False
        self._failures = FailureThrottle(lambda: time.monotonic() * 1000)
        self._lock_file: IO[str] | None = None
        self._missed = 0
        self.error = ""
        try:
            self._check_whole()
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name="kohort-history", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the reads that wait, and release the file; give up after 5 s. May be called again."""
        self._ended = True
        self._news.set()
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._release()

    def _release(self) -> None:
        self._close_connection()
        if self._lock_file is not None:
            self._lock_file.close()

    def add_report(
        self,
        report: LagReport,
        cluster_id: str | None,
        changes: Iterable[TimedChange] = (),
        values: LagValues | None = None,
    ) -> None:
        """Queue the lag of a read, and the changes that it showed, to be written. Does not wait for the disk.

        Args:
            report: The read.
            cluster_id: The cluster's id; None if its brokers do not tell it.
            changes: The changes of groups since the read before.
            values: The report's values, if the caller has computed them already.
        """
        known = values or LagValues.of(report)
        rows = tuple(
            (
                name,
                known.lags.get(name),
                known.time_lags_ms.get(name),
                int(group.status),
                len(group.description.members) if group.members_known else None,
            )
            for name, group in report.groups.items()
        )
        pending = _UnwrittenRead(report.taken_ms, known.encode(), rows, tuple(changes))
        with self._lock:
            self._cluster_id = cluster_id
            self._missed += len(self._pending) == PENDING_MAX
            self._pending.append(pending)
        self._news.set()

    def restore(
        self, cluster_id: str | None, since_ms: int, add: Callable[[LagValues], None], changes_max: int
    ) -> list[TimedChange]:
        """Read the last reads and changes from the file, written by an earlier process; return the changes.

        Return nothing if the file can't be read, or is another cluster's. Reads before a damaged one are added.

        Args:
            cluster_id: The cluster's id.
            since_ms: Reads before this time are left out.
            add: Called for each of the last reads, the oldest first.
            changes_max: The most changes to return.
        """
        try:
            with HistoryReader(self._path) as reader:
                if reader.cluster_id is None or reader.cluster_id == cluster_id:
                    for values in reader.read_values(since_ms):
                        add(values)
                    return reader.read_changes(most=changes_max)
        except NotFoundError:
            pass  # the disk did not take the file
        except KafkaError as error:
            self._log_failure(error.message)
        return []

    def reader(self) -> HistoryReader:
        """Return a reader of the file.

        Raises:
            KafkaError: It can't be read.
        """
        return HistoryReader(self._path)

    def _check_whole(self) -> None:
        """Open the file for the first time, and check it for damage. A disk that fails is no damage."""
        if not self._path.parent.is_dir():
            raise InvalidInputError(f"the history {self._path}: there is no folder {self._path.parent}")
        if self._path.is_dir():
            raise InvalidInputError(f"the history {self._path} is a folder: name a file")
        try:
            connection = self._opened()
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise _damaged(self._path, found)
        except (sqlite3.Error, OSError) as error:
            self._close_connection()
            problem = _problem(self._path, error)
            if isinstance(problem, CorruptDataError):
                raise problem from None
            self._log_failure(problem.message)

    def _run(self) -> None:
        while not self._ended:
            self._news.wait()
            self._news.clear()
            self._write_pending()
        self._write_pending()  # what came while the last one was written
        self._close_connection()

    def _write_pending(self) -> None:
        """Write the reads that wait, the oldest first. If the disk fails, they wait on until the next read."""
        while True:
            with self._lock:
                if not self._pending:
                    return
                first = self._pending[0]
            is_written = False
            try:
                connection = self._opened()
                self._write(connection, first)
                self._remove_written(first)
                is_written = True
                self._delete_old(connection, first.at_ms)
            except (KafkaError, sqlite3.Error, OSError) as error:
                self._close_connection()
                self._log_failure((error if isinstance(error, KafkaError) else _problem(self._path, error)).message)
                return
            except Exception as error:  # a bug must not end the thread; it costs the read that it comes with
                self._close_connection()
                if not is_written:
                    self._remove_written(first)
                    with self._lock:
                        self._missed += 1
                log.exception(
                    "[history] unexpected error while writing the lag history; writing continues with the next read"
                )
                self._log_failure(f"unexpected error {type(error).__name__}: {error}")
                continue
            if self.error:
                self.error = ""
                missed, self._missed = self._missed, 0
                log.info(
                    "[history] writing the lag history to %s works again; %d reads are missing in it",
                    self._path,
                    missed,
                )

    def _remove_written(self, first: _UnwrittenRead) -> None:
        with self._lock:
            if self._pending and self._pending[0] is first:
                self._pending.popleft()
            else:  # a later read took its place while it was written
                self._missed -= 1

    def _log_failure(self, text: str) -> None:
        self.error = text
        if self._failures.should_log(text):
            log.warning("[history] lag history not written: %s; reads and the dashboard's pages continue", text)

    def _opened(self) -> sqlite3.Connection:
        """Return the connection to the file. Open the file again if another one has been put under its name."""
        if self._connection is not None and _inode(self._path) == self._inode:
            return self._connection
        self._close_connection()
        if self._lock_file is None:
            self._lock_file = _locked(self._path)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE_MODE))
        if not self._path.stat().st_size:
            self._path.chmod(PRIVATE_MODE)  # SQLite gives the files beside it the same mode
        connection = self._connection = sqlite3.connect(
            self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        self._inode = _inode(self._path)
        is_new = _check_version(connection, self._path)
        if is_new:
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")  # a power loss costs the last reads alone
        connection.execute(f"PRAGMA journal_size_limit={4 << 20}")
        if is_new:
            connection.executescript(
                f"BEGIN; {_TABLES} PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION}; COMMIT;"
            )
        return connection

    def _close_connection(self) -> None:
        self._keys.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _write(self, connection: sqlite3.Connection, pending: _UnwrittenRead) -> None:
        minute = pending.at_ms // STEP_MS * STEP_MS
        with _transaction(connection):
            self._check_cluster(connection)
            insert = "INSERT INTO last_reads (at_ms, body) VALUES (?, ?)"
            number = connection.execute(insert, (pending.at_ms, pending.body)).lastrowid or 0
            connection.execute("DELETE FROM last_reads WHERE number <= ?", (number - READS_KEPT,))
            connection.execute("INSERT OR IGNORE INTO minutes VALUES (?)", (minute,))
            rows = [(minute, self._key(connection, name, minute), *values) for name, *values in pending.groups]
            connection.executemany(
                "INSERT INTO lag VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "lag = max(coalesce(lag, excluded.lag), coalesce(excluded.lag, lag)), "
                "time_lag_ms = max(coalesce(time_lag_ms, excluded.time_lag_ms), coalesce(excluded.time_lag_ms, "
                "time_lag_ms)), status = max(status, excluded.status), members = excluded.members",
                rows,
            )
            connection.executemany(
                "INSERT OR IGNORE INTO changes VALUES (?, ?, ?, ?)",
                [
                    (found.at_ms, self._key(connection, found.group, minute), found.change.kind, found.change.text)
                    for found in pending.changes
                ],
            )

    def _check_cluster(self, connection: sqlite3.Connection) -> None:
        if self._cluster_id is None:
            return
        connection.execute("INSERT OR IGNORE INTO about VALUES ('cluster_id', ?)", (self._cluster_id,))
        known = _cluster_id(connection)
        if known != self._cluster_id:
            raise InvalidInputError(
                f"{self._path} has the history of the cluster with the id {known}, and this one has the id "
                f"{self._cluster_id}: give a file for each cluster"
            )

    def _key(self, connection: sqlite3.Connection, name: str, at_ms: int) -> int:
        """Return the number by which the tables refer to a group, and mark its name as in use at this time."""
        known = self._keys.get(name)
        if known is not None and abs(at_ms - known[1]) < NAME_KEPT_MS:
            return known[0]
        (key,) = connection.execute(
            "INSERT INTO group_names (name, seen_ms) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seen_ms = "
            "excluded.seen_ms RETURNING key",
            (name, at_ms),
        ).fetchone()
        self._keys[name] = int(key), at_ms
        return int(key)

    def _delete_old(self, connection: sqlite3.Connection, now_ms: int) -> None:
        if _is_trusted(connection, now_ms):
            while _delete_minutes(connection, now_ms - self._retention_ms):
                pass
            self._delete_rest(connection, now_ms - self._retention_ms)
        is_full = False
        while _bytes_used(connection) > self._bytes_max:
            (count,) = connection.execute("SELECT count(*) FROM minutes").fetchone()
            sizes = "SELECT count(*), coalesce(sum(length(body)), 0) FROM last_reads"
            reads, reads_bytes = connection.execute(sizes).fetchone()
            if count > 1 and (reads < 2 or reads_bytes * READS_SHARE <= self._bytes_max):
                oldest = "SELECT at_ms FROM minutes ORDER BY at_ms LIMIT 1 OFFSET ?"
                part = min(max(1, count // 10), MINUTES_A_DELETION)
                (since_ms,) = connection.execute(oldest, (part,)).fetchone()
                _delete_minutes(connection, since_ms)
                self._delete_rest(connection, since_ms)
            else:
                number = "(SELECT (min(number) + max(number)) / 2 FROM last_reads)"
                deleted = connection.execute(f"DELETE FROM last_reads WHERE number < {number}").rowcount
                if not deleted:
                    break
            is_full = True
        if is_full:
            connection.execute("PRAGMA incremental_vacuum").fetchall()
            text = "[history] %s has reached its limit of %d bytes: old data is deleted before its retention ends"
            if self._failures.should_log("full"):
                log.warning(text, self._path, self._bytes_max)

    def _delete_rest(self, connection: sqlite3.Connection, before_ms: int) -> None:
        with _transaction(connection):
            connection.execute("DELETE FROM changes WHERE at_ms < ?", (before_ms,))
            left_ms = before_ms - 2 * NAME_KEPT_MS
            gone = connection.execute("DELETE FROM group_names WHERE seen_ms < ? RETURNING name", (left_ms,))
            for (name,) in gone.fetchall():
                self._keys.pop(name, None)


def _is_trusted(connection: sqlite3.Connection, now_ms: int) -> bool:
    """Return whether old rows may be deleted by this clock: it has agreed with earlier reads for `TRUSTED_MS`.

    That is so if the last 24 hours have a minute at least `TRUSTED_MS` old. A clock that has just jumped ahead must not
    delete the whole history.
    """
    day = "SELECT min(at_ms) FROM minutes WHERE at_ms BETWEEN ? AND ?"
    (first_ms,) = connection.execute(day, (now_ms - 86_400_000, now_ms)).fetchone()
    return first_ms is not None and now_ms - int(first_ms) >= TRUSTED_MS


def _delete_minutes(connection: sqlite3.Connection, before_ms: int) -> bool:
    """Delete a limited number of the oldest minutes before a time; return whether any were deleted."""
    with _transaction(connection):
        oldest = "SELECT at_ms FROM minutes WHERE at_ms < ? ORDER BY at_ms LIMIT 1 OFFSET ?"
        found = connection.execute(oldest, (before_ms, MINUTES_A_DELETION)).fetchone()
        end_ms = before_ms if found is None else found[0]
        connection.execute("DELETE FROM lag WHERE at_ms < ?", (end_ms,))
        return connection.execute("DELETE FROM minutes WHERE at_ms < ?", (end_ms,)).rowcount > 0


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # SQLite has rolled some errors back already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _bytes_used(connection: sqlite3.Connection) -> int:
    size, pages, free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
    )
    return int(size * (pages - free))


def _locked(path: Path) -> IO[str]:
    """Open and lock the lock file beside a history file; return it. The lock lasts until it is closed."""
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock_file = os.fdopen(os.open(path.with_name(path.name + ".lock"), flags, PRIVATE_MODE), "r+")
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock_file.close()
        raise InvalidInputError(
            f"another process writes the history {path}: end that one, or give each process a file of its own"
        ) from None
    except OSError:
        lock_file.close()
        raise
    return lock_file


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


# -- Reading


class HistoryReader(ClosedOnExit):
    """A reader of a lag history file, which another process may write at the same time.

    Args:
        path: The file.

    Raises:
        NotFoundError: There is no such file.
        InvalidInputError: The file is of a later version or another program's.
        CorruptDataError: The file is damaged.
        KafkaError: The file can't be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._reading():
            if not path.is_file():
                raise NotFoundError(f"there is no history {path}; `kohort dashboard --history {path}` makes it")
            self._connection = _opened_for_reading(path)
        with self._reading():
            try:
                self.is_empty = _check_version(self._connection, path)
                self.cluster_id = None if self.is_empty else _cluster_id(self._connection)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the file; may be called again."""
        self._connection.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise _problem(self._path, error) from None

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        if self.is_empty:
            return []
        with self._reading():
            return self._connection.execute(sql, values).fetchall()

    def read_values(self, since_ms: int = 0) -> Iterator[LagValues]:
        """Yield the last reads since a time, the oldest first.

        One of 25,000 partitions takes 5 MB, so they come one by one.
        """
        sql = "SELECT number FROM last_reads WHERE at_ms >= ? ORDER BY number"
        for (number,) in self._rows(sql, since_ms):
            for at_ms, body in self._rows("SELECT at_ms, body FROM last_reads WHERE number = ?", number):
                yield LagValues.decode(at_ms, body)

    def read_changes(self, group: str | None = None, since_ms: int = 0, most: int = -1) -> list[TimedChange]:
        """Return the last changes of a group (None: of all groups) since a time, the oldest first.

        At most `most` are returned; -1: without a limit.
        """
        named = "" if group is None else "AND name = ?"
        sql = (
            "SELECT at_ms, name, kind, text FROM changes JOIN group_names ON key = group_key "
            f"WHERE at_ms >= ? {named} ORDER BY at_ms DESC LIMIT ?"
        )
        rows = self._rows(sql, since_ms, *(() if group is None else (group,)), most)
        found = [TimedChange(at_ms, name, GroupChange(kind, text, at_ms)) for at_ms, name, kind, text in rows]
        return found[::-1]

    def read_minutes(self, group: str, since_ms: int = 0) -> list[LagMinute]:
        """Return a group's minutes since a time, the oldest first. Minutes without a read are left out.

        Raises:
            NotFoundError: The file has no such group.
        """
        sql = f"SELECT lag.at_ms, lag, time_lag_ms, status, members {_MINUTES}"
        rows = self._rows(sql, self._group_key(group), since_ms // STEP_MS * STEP_MS)
        return [
            LagMinute(at_ms, lag, time_lag_ms, LagStatus(status), members)
            for at_ms, lag, time_lag_ms, status, members in rows
        ]

    def chart_points(self, group: str, since_ms: int, most: int, interval_ms: float = 0) -> list[LagMinute | None]:
        """Return a group's history as about `most` points for a picture, each with the largest values of its time span.

        A week has more minutes than a picture has points, and the largest lag is the one to look at.

        Args:
            group: The group.
            since_ms: The beginning, in milliseconds since 1970.
            most: The most points, approximately.
            interval_ms: The time between two reads. A point spans at least that, so that minutes without a read are no
                gap.

        Returns:
            The points, the oldest first; one None for each gap, of one or more time spans without a read.

        Raises:
            NotFoundError: The file has no such group.
        """
        key, since_ms = self._group_key(group), since_ms // STEP_MS * STEP_MS
        ends = [self._rows(f"SELECT lag.at_ms {_MINUTES} {order} LIMIT 1", key, since_ms) for order in ("ASC", "DESC")]
        if not all(ends):
            return []
        (((first_ms,),), ((last_ms,),)) = ends
        length_ms = max(1, ceil(max((last_ms - first_ms) / most, interval_ms) / STEP_MS)) * STEP_MS
        sql = (
            "SELECT first_ms, largest, longest_ms, worst, "
            "(SELECT members FROM lag WHERE at_ms = last_ms AND group_key = ?) FROM (SELECT min(at_ms) AS first_ms, "
            "max(at_ms) AS last_ms, max(lag) AS largest, max(time_lag_ms) AS longest_ms, max(status) AS worst "
            f"FROM (SELECT lag.* {_MINUTES}) GROUP BY at_ms / ?) ORDER BY first_ms"
        )
        rows = self._rows(sql, key, key, first_ms, length_ms)
        points: list[LagMinute | None] = []
        before = None
        for at_ms, lag, time_lag_ms, status, members in rows:
            place = at_ms // length_ms
            if before is not None and place - before > 1:
                points.append(None)
            before = place
            points.append(LagMinute(at_ms, lag, time_lag_ms, LagStatus(status), members))
        return points

    def _group_key(self, group: str) -> int:
        found = self._rows("SELECT key FROM group_names WHERE name = ?", group)
        if not found:
            near = did_you_mean(group, self.group_names())
            raise NotFoundError(f"{self._path} has no group {group!r}{near}")
        key: int = found[0][0]
        return key

    def group_names(self) -> list[str]:
        """Return the names of all groups in the file."""
        return [name for (name,) in self._rows("SELECT name FROM group_names ORDER BY name")]


def _opened_for_reading(path: Path) -> sqlite3.Connection:
    """Open a history file for reading only, also on a read-only disk, where SQLite can't make its WAL files."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=BUSY_S)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN or path.with_name(path.name + "-wal").exists():
            raise
        return sqlite3.connect(f"{address}&immutable=1", uri=True)  # nobody has it open
    except BaseException:
        connection.close()
        raise
    return connection


def _check_version(connection: sqlite3.Connection, path: Path) -> bool:
    """Check the version of a history file; return whether the file is new and empty.

    Raises:
        InvalidInputError: It is of a later version, or another program's.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and version == 0 and tables == 0:
        return True
    if application != APPLICATION_ID:
        raise InvalidInputError(f"{path} is a database of another program: give another file")
    if version > VERSION:
        raise InvalidInputError(
            f"{path} was written by a later version of kohort (its format is {version}, this version knows {VERSION}): "
            "use that version, or give another file"
        )
    return False


def _cluster_id(connection: sqlite3.Connection) -> str | None:
    found = connection.execute("SELECT value FROM about WHERE name = 'cluster_id'").fetchone()
    return None if found is None else str(found[0])


def _damaged(path: Path, what: str) -> CorruptDataError:
    found = " ".join(what.split())
    return CorruptDataError(
        f"the history {path} is damaged or none ({found}): move it away, with {path.name}-wal and {path.name}-shm if "
        "they are there; a new one begins then"
    )


def _problem(path: Path, error: sqlite3.Error | OSError) -> KafkaError:
    """Return the error for a failed access to a history file: CorruptDataError for damage, else KafkaError."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGE:
        return _damaged(path, str(error))
    return KafkaError(f"the history {path}: {error}")
