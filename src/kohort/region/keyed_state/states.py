"""The keyed states of a member's partitions: loaded when they are first asked for, saved at each checkpoint."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Final

from kohort.errors import CorruptDataError, InvalidInputError, KafkaError
from kohort.region.keyed_state.place import RegionStates, no_room
from kohort.region.keyed_state.state_files import (
    FILE_BYTES,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    StateFile,
    change_bytes,
    changes_in,
    delta_payloads,
    encode_file,
    head_of,
)
from kohort.region.records import Part, StateHead

log = logging.getLogger("kohort.region")
DELTAS_BYTES: Final = 256 * 1024
"""Deltas of a small state may be larger than half of its base up to this size."""
CHANGED_BYTES: Final = 128 * 1024 * 1024
"""Changes of a member in memory that request a checkpoint."""
_FEW: Final = 4
_THREADS: Final = 8
_CLOSE_S: Final = 10.0
_PRAGMAS: Final = ("locking_mode = EXCLUSIVE", "journal_mode = OFF", "synchronous = OFF", "trusted_schema = OFF")
_TABLE: Final = "CREATE TABLE state (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
_PAGE_KEYS: Final = 1000
"""Keys that an iteration reads at once."""


class WorkingCopy:
    """The keys and values of one partition, in a SQLite file without a name, which ends with its process.

    It needs no durability: after a crash or a reset it is made again from the files that were saved. One thread at a
    time may call its methods.
    """

    def __init__(self, work_folder: str | None, base: Iterable[memoryview] = ()) -> None:
        """Make the file from the pieces of a base; without pieces it is empty.

        Raises:
            OSError: there is no room for it.
            CorruptDataError: the pieces are no such database.
        """
        fd, path = tempfile.mkstemp(prefix="kohort-state-", dir=work_folder)
        self._fd = fd
        try:
            written = 0
            for piece in base:
                written += _write_all(fd, piece)
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                self._prepare_database(new=not written)
            except BaseException:
                self._database.close()
                raise
        except BaseException:
            os.close(fd)
            raise
        finally:
            os.unlink(path)

    def _prepare_database(self, *, new: bool) -> None:
        try:
            if new:
                self._database.execute("PRAGMA page_size = 8192")
            for pragma in _PRAGMAS:
                self._database.execute(f"PRAGMA {pragma}")
            if new:
                self._database.execute(_TABLE)
            found = self._database.execute("SELECT sql FROM sqlite_schema").fetchall()
        except sqlite3.OperationalError as error:
            raise no_room(error) from error
        except sqlite3.DatabaseError as error:
            raise CorruptDataError(f"The base of a keyed state is no database: {error}") from error
        if found != [(_TABLE,)]:
            raise CorruptDataError("The base of a keyed state is another database")

    def value(self, key: bytes) -> bytes | None:
        """Return the value of a key; None: it is not there."""
        row = self._database.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def apply(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Apply changes; None removes a key. After an error the copy must not be used any more.

        Raises:
            sqlite3.Error: the disk is full.
        """
        if not changes:
            return
        gone = [(key,) for key, value in changes.items() if value is None]
        there = [(key, value) for key, value in changes.items() if value is not None]
        self._database.execute("BEGIN")
        if gone:
            self._database.executemany("DELETE FROM state WHERE key = ?", gone)
        if there:
            self._database.executemany("REPLACE INTO state VALUES (?, ?)", there)
        self._database.execute("COMMIT")

    def key_count(self) -> int:
        """Return the number of keys."""
        found: tuple[int] = self._database.execute("SELECT count(*) FROM state").fetchone()
        return found[0]

    def keys_after(self, key: bytes | None) -> list[bytes]:
        """Return some keys in order, those behind a key; None: the first ones."""
        where, values = ("WHERE key > ?", (key,)) if key is not None else ("", ())
        rows = self._database.execute(f"SELECT key FROM state {where} ORDER BY key LIMIT {_PAGE_KEYS}", values)
        return [bytes(row[0]) for row in rows]

    def shrink(self) -> None:
        """Give back the pages of removed keys, if they are half of the file."""
        free, pages = (int(self._database.execute(f"PRAGMA {name}").fetchone()[0])
                       for name in ("freelist_count", "page_count"))  # fmt: skip
        if free * 2 > pages:
            self._database.execute("VACUUM")

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return os.fstat(self._fd).st_size

    def pieces(self) -> Iterator[bytes]:
        """Return the file as the pieces of a base."""
        at = 0
        while piece := _read_all(self._fd, at):
            at += len(piece)
            yield piece

    def close(self) -> None:
        """Remove the copy."""
        self._database.close()
        with contextlib.suppress(OSError):
            os.close(self._fd)


def _write_all(fd: int, piece: memoryview) -> int:
    rest = piece
    while rest:
        rest = rest[os.write(fd, rest) :]
    return len(piece)


def _read_all(fd: int, at: int) -> bytes:
    parts, size = [], 0
    while size < FILE_BYTES and (part := os.pread(fd, FILE_BYTES - size, at + size)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


class LoadedState:
    """One partition's state: a working copy, the files that it is made of, and the changes since. It takes a lock."""

    def __init__(self, part: Part, place: RegionStates, head: StateHead | None, work_folder: str | None) -> None:
        """Load a state; None: it is empty.

        Raises:
            OSError, RetriableError: the place does not answer, or there is no room for a working copy.
            CorruptDataError: a file is gone or damaged.
        """
        self._part, self._place = part, place
        self._lock = threading.RLock()
        self._waiting: dict[bytes, bytes | None] = {}  # not in the copy yet
        self._changed: dict[bytes, bytes | None] = {}  # not in a file yet
        self.changed_bytes = 0
        self._chain: list[StateFile] = []
        if head is None:
            self._copy = WorkingCopy(work_folder)
            return
        self._chain, newest = place.read_head(part, head)
        base = list(takewhile(lambda file: file.kind == "base", self._chain))

        def payload(file: StateFile) -> memoryview:
            return newest if file is self._chain[-1] else place.read(part, file)

        self._copy = WorkingCopy(work_folder, map(payload, base))
        try:
            for file in self._chain[len(base) :]:
                self._copy.apply(changes_in(payload(file)))
        except BaseException:
            self._copy.close()
            raise

    @property
    def head(self) -> StateHead | None:
        """The state that was saved last; None: nothing was saved."""
        return head_of(self._chain) if self._chain else None

    def value(self, key: bytes) -> bytes | None:
        """Return the value of a key; None: it is not there."""
        with self._lock:
            return self._waiting[key] if key in self._waiting else self._copy.value(key)

    def change(self, key: bytes, value: bytes | None) -> None:
        """Change the value of a key; None removes it."""
        with self._lock:
            self._waiting[key] = self._changed[key] = value
            self.changed_bytes += change_bytes(key, value)

    def key_count(self) -> int:
        """Return the number of keys."""
        with self._lock:
            self._apply()
            return self._copy.key_count()

    def keys_after(self, key: bytes | None) -> list[bytes]:
        """Return some keys in order, those behind a key; None: the first ones."""
        with self._lock:
            self._apply()
            return self._copy.keys_after(key)

    def _apply(self) -> None:
        self._copy.apply(self._waiting)
        self._waiting = {}

    def save(self, sequence: int) -> None:
        """Save what has changed, durably. It may be repeated after an error.

        Raises:
            OSError, RetriableError: the place does not answer. Nothing is lost.
            sqlite3.Error: the working copy is damaged.
        """
        with self._lock:
            if not self._changed:
                return
            self._apply()
            chain = self._with_deltas(sequence) or self._with_base(sequence)
            self._chain, self._changed, self.changed_bytes = chain, {}, 0

    def _with_deltas(self, sequence: int) -> list[StateFile]:
        """Write the changes behind the chain, and return it; empty: a base is due instead."""
        chain = list(self._chain)
        deltas = [file.size for file in chain if file.kind == "delta"]
        base_bytes = sum(file.size for file in chain) - sum(deltas)
        size = sum(deltas) + sum(change_bytes(*change) for change in self._changed.items())
        if not chain or len(deltas) >= self._place.deltas_max or size > max(base_bytes // 2, DELTAS_BYTES):
            return []
        for payload in delta_payloads(self._changed):
            file, content = encode_file(sequence, "delta", chain, payload)
            self._place.write(self._part, file, content)
            chain.append(file)
        return chain

    def _with_base(self, sequence: int) -> list[StateFile]:
        self._copy.shrink()
        chain: list[StateFile] = []
        for piece in self._copy.pieces():
            file, content = encode_file(sequence, "base", chain, piece)
            self._place.write(self._part, file, content)
            chain.append(file)
        return chain

    def close(self) -> None:
        """Remove the working copy."""
        with self._lock:
            self._copy.close()


class StateMapping(MutableMapping[bytes, bytes]):
    """The keyed state of one partition: a mapping of bytes to bytes, in the order of keys.

    It can be used while the table is in progress for which it was asked for. Changes count with that table. Every
    call but those for one key takes time by the number of keys.
    """

    def __init__(self, state: LoadedState, is_current: Callable[[], bool]) -> None:
        self._state, self._is_current = state, is_current

    def _check(self) -> None:
        if not self._is_current():
            raise InvalidInputError(
                "the table of this partition's state is not in progress any more: call partition_state for each table"
            )

    def __getitem__(self, key: bytes) -> bytes:
        self._check()
        value = self._state.value(_checked(key))
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._check()
        if not isinstance(value, bytes) or len(value) > VALUE_BYTES_MAX:
            raise InvalidInputError(f"a value of a keyed state is bytes, at most {VALUE_BYTES_MAX} of them")
        self._state.change(_checked(key), value)

    def __delitem__(self, key: bytes) -> None:
        self[key]
        self._state.change(key, None)

    def __iter__(self) -> Iterator[bytes]:
        last: bytes | None = None
        while True:
            self._check()
            keys = self._state.keys_after(last)
            if not keys:
                return
            yield from keys
            last = keys[-1]

    def __len__(self) -> int:
        self._check()
        return self._state.key_count()


def _checked(key: bytes) -> bytes:
    if not isinstance(key, bytes) or len(key) > KEY_BYTES_MAX:
        raise InvalidInputError(f"a key of a keyed state is bytes, at most {KEY_BYTES_MAX} of them, not {key!r:.60}")
    return key


class KeyedStates:
    """The states of the partitions that a member was given.

    The application's thread asks for them while a table is in progress. The event thread calls all other methods, and
    only while none is, except for `begin` and `forget_partitions`.
    """

    def __init__(self, place: RegionStates, work_folder: str | None) -> None:
        self._place, self._work_folder = place, work_folder
        self._lock = threading.RLock()
        self._heads: dict[Part, StateHead | None] = {}
        self._loaded: dict[Part, LoadedState] = {}
        self._left: list[LoadedState] = []
        self._given: dict[Part, StateHead | None] = {}
        self._swept: dict[Part, int] = {}

    @property
    def place(self) -> RegionStates:
        """Where the states are saved."""
        return self._place

    def begin(self, part: Part, head: StateHead | None) -> None:
        """Begin with a partition's state; it is loaded when it is asked for."""
        with self._lock:
            self.forget_partitions([part])
            self._heads[part] = head

    def forget_partitions(self, parts: list[Part]) -> None:
        """Forget partitions; the current table may still use their working copies."""
        with self._lock:
            for part in parts:
                self._heads.pop(part, None)
                self._swept.pop(part, None)
                if (state := self._loaded.pop(part, None)) is not None:
                    self._left.append(state)

    def clear(self) -> None:
        """Forget all partitions: the region resets."""
        with self._lock:
            self._given = {}
            self.forget_partitions(list(self._heads))
            self.remove_left()

    def remove_left(self) -> None:
        """Remove the working copies of forgotten partitions, which no table uses any more."""
        with self._lock:
            left, self._left = self._left, []
        for state in left:
            state.close()

    def state_of(self, part: Part) -> LoadedState:
        """Return a partition's state; of one that was forgotten meanwhile, an empty one, of which nothing counts.

        Raises:
            OSError, RetriableError: the place does not answer, or there is no room for a working copy.
            CorruptDataError: a file is gone or damaged.
        """
        with self._lock:
            if (there := self._loaded.get(part)) is not None:
                return there
            known, head = part in self._heads, self._heads.get(part)
        state = LoadedState(part, self._place, head, self._work_folder)
        with self._lock:
            if known and part in self._heads and self._heads[part] == head:
                return self._loaded.setdefault(part, state)
            self._left.append(state)
            return state

    def changed_much(self) -> bool:
        """Return whether a checkpoint should follow, because many changes are in memory."""
        with self._lock:
            return sum(state.changed_bytes for state in self._loaded.values()) >= CHANGED_BYTES

    def save(self, sequence: int) -> dict[Part, StateHead | None]:
        """Save all that has changed, and return the state of each partition. It may be repeated after an error.

        Raises:
            OSError, RetriableError: the place does not answer. Nothing is lost.
        """
        with self._lock:
            loaded = list(self._loaded.values())
            if len(loaded) <= _FEW:
                for state in loaded:
                    state.save(sequence)
            else:
                with ThreadPoolExecutor(_THREADS) as pool:
                    list(pool.map(lambda state: state.save(sequence), loaded))
            self._heads |= {part: state.head for part, state in self._loaded.items()}
            self._given = dict(self._heads)
            return dict(self._given)

    def completed(self) -> list[tuple[Part, int]]:
        """Handle a complete sequence with what was saved last; return partitions to sweep, with their bases."""
        with self._lock:
            given, self._given = self._given, {}
            bases = {part: head.base for part, head in given.items() if head is not None}
            due = [(part, base) for part, base in bases.items() if self._swept.get(part, 0) < base]
            self._swept |= {part: base for part, base in due if part in self._heads}
            return due

    def close(self) -> None:
        """Remove all working copies."""
        self.clear()


class StateSweeper:
    """The thread that removes files which no manifest names any more. What fails is removed by a later sweep."""

    def __init__(self, place: RegionStates, name: str) -> None:
        """Initialise the sweeper; its thread starts with the first order."""
        self._place, self._name = place, name
        self._orders: queue.SimpleQueue[tuple[Part, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def order(self, due: list[tuple[Part, int]]) -> None:
        """Queue sweeps of old files for the sweeper's thread, which the first call starts."""
        if due and self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"kohort-states-{self._name}", daemon=True)
            self._thread.start()
        for entry in due:
            self._orders.put(entry)

    def close(self) -> None:
        """Finish the ordered sweeps, unless that takes too long."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (entry := self._orders.get()) is not None:
            try:
                self._place.sweep(*entry)
            except (OSError, KafkaError) as error:
                log.warning("[member %s] old files of a keyed state could not be removed: %s", self._name, error)
