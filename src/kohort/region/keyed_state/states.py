"""The keyed states of a member's partitions: loaded when they are first asked for, saved at each checkpoint."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, takewhile
from typing import Final

from kohort.errors import CorruptDataError, InvalidInputError, KafkaError
from kohort.region.keyed_state.place import RegionStateStore, SweepOrder, Write, no_room_error
from kohort.region.keyed_state.state_files import (
    FILE_BYTES,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    KeyedStateFile,
    ReadPart,
    change_file_bytes,
    change_memory_bytes,
    decode_changes,
    encode_deltas,
    head_of_chain,
)
from kohort.region.records import KeyedStateChainHead, Part

log = logging.getLogger("kohort.region")
DELTAS_BYTES: Final = 256 * 1024
"""Deltas of a small state may be larger than half of its base up to this size."""
CHANGED_BYTES: Final = 128 * 1024 * 1024
"""Memory of a member's changes that requests a checkpoint."""
_APPLIED_BYTES: Final = 96 * 1024 * 1024
"""Memory of changes that are applied to a working copy at once, while it is loaded."""
_MERGED_BYTES: Final = 64 * 1024 * 1024
"""Limit on the size of deltas that are merged, which are in memory meanwhile."""
_READ_BYTES: Final = 1 << 20
_FEW: Final = 4
_THREADS: Final = 8
_CLOSE_S: Final = 10.0
_PRAGMAS: Final = ("locking_mode = EXCLUSIVE", "journal_mode = OFF", "synchronous = OFF", "trusted_schema = OFF")
_TABLE: Final = "CREATE TABLE state (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
_ROWS_AT_ONCE: Final = 250
"""Rows that one statement sets: 40 % less processor time than a statement for each. Older SQLite takes 999 values."""
_ROWS_BYTES: Final = 4 * 1024 * 1024
"""Limit on their values, which SQLite copies."""
_UPSERT: Final = "INSERT INTO state VALUES {} ON CONFLICT (key) DO UPDATE SET value = excluded.value"
"""A value of the same size is then written over the old one, which REPLACE would remove first."""
_UPSERT_ROW: Final = _UPSERT.format("(?, ?)")
_UPSERT_ROWS: Final = _UPSERT.format(", ".join(["(?, ?)"] * _ROWS_AT_ONCE))
_PAGE_KEYS: Final = 1000
"""Keys that an iteration reads at once."""


class KeyedStateCopy:
    """The keys and values of one partition, in a SQLite file without a name, which ends with its process.

    The file needs no durability: after a crash or a reset it is made again from the files that were saved. One thread
    at a time may call the methods.
    """

    def __init__(self, work_folder: str | None, fill: Callable[[Write], None] | None = None) -> None:
        """Create the SQLite file, and let `fill` write the bytes of a saved database into it; None: it is empty.

        The file is unlinked before it has content, so that a process which is killed meanwhile leaves an empty folder.
        The folder is this user's alone until SQLite has read the file. SQLite would otherwise apply a journal that
        another user puts beside it.

        Raises:
            OSError: there is no room for it.
            CorruptDataError: the bytes are no such database.
        """
        folder = tempfile.mkdtemp(prefix="kohort-state-", dir=work_folder)
        path = f"{folder}/state"
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                self._open_database(path, fill)
            except BaseException:
                os.close(self._fd)
                raise
        finally:
            os.rmdir(folder)

    def _open_database(self, path: str, fill: Callable[[Write], None] | None) -> None:
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        finally:
            os.unlink(path)
        try:
            if fill is not None:
                fill(self._write_bytes)
            self._prepare_database(new=fill is None)
        except BaseException:
            self._database.close()
            raise

    def _write_bytes(self, at: int, part: ReadPart) -> None:
        rest = memoryview(part)
        while rest:
            written = os.pwrite(self._fd, rest, at)
            rest, at = rest[written:], at + written

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
            raise no_room_error(error) from error
        except sqlite3.DatabaseError as error:
            raise CorruptDataError(f"The base of a keyed state is no database: {error}") from error
        if found != [(_TABLE,)]:
            raise CorruptDataError("The base of a keyed state is another database")

    def value(self, key: bytes) -> bytes | None:
        """Return the value of a key; None: the key does not exist."""
        row = self._database.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def apply_changes(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Apply changes in the order of keys, so that each page is read and written once; None removes a key.

        After an error the copy must not be used any more.

        Raises:
            sqlite3.Error: the disk is full.
        """
        if not changes:
            return
        ordered = sorted(changes.items())
        gone = ((key,) for key, value in ordered if value is None)
        there = [(key, value) for key, value in ordered if value is not None]
        self._database.execute("BEGIN")
        self._database.executemany("DELETE FROM state WHERE key = ?", gone)
        for at in range(0, len(there), _ROWS_AT_ONCE):
            rows = there[at : at + _ROWS_AT_ONCE]
            if len(rows) == _ROWS_AT_ONCE and sum(len(value) for _, value in rows) <= _ROWS_BYTES:
                self._database.execute(_UPSERT_ROWS, list(chain.from_iterable(rows)))
            else:
                self._database.executemany(_UPSERT_ROW, rows)
        self._database.execute("COMMIT")

    def key_count(self) -> int:
        """Return the number of keys."""
        found: tuple[int] = self._database.execute("SELECT count(*) FROM state").fetchone()
        return found[0]

    def keys_after(self, key: bytes | None) -> list[bytes]:
        """Return up to 1000 keys in order, those behind the given key; None: the first ones."""
        where, values = ("WHERE key > ?", (key,)) if key is not None else ("", ())
        rows = self._database.execute(f"SELECT key FROM state {where} ORDER BY key LIMIT {_PAGE_KEYS}", values)
        return [bytes(row[0]) for row in rows]

    def shrink_file_if_sparse(self) -> None:
        """Shrink the SQLite file if more than half of its pages are free, after keys were removed."""
        free, pages = (int(self._database.execute(f"PRAGMA {name}").fetchone()[0])
                       for name in ("freelist_count", "page_count"))  # fmt: skip
        if free * 2 > pages:
            self._database.execute("VACUUM")

    def base_file_writers(self) -> list[Callable[[bytes], bytearray]]:
        """Return one function for each file of a base: given the header's bytes, it returns the file's content."""
        size = os.fstat(self._fd).st_size
        return [partial(self._piece, at, min(FILE_BYTES, size - at)) for at in range(0, size, FILE_BYTES)]

    def _piece(self, begin: int, size: int, head: bytes) -> bytearray:
        content = bytearray(len(head) + size)
        content[: len(head)] = head
        at = 0
        while at < size and (part := os.pread(self._fd, min(_READ_BYTES, size - at), begin + at)):
            content[len(head) + at : len(head) + at + len(part)] = part
            at += len(part)
        if at < size:
            raise sqlite3.DatabaseError("the working copy of a keyed state became shorter")
        return content

    def close(self) -> None:
        """Close the database, with which the SQLite file is gone."""
        self._database.close()
        with contextlib.suppress(OSError):
            os.close(self._fd)


class LoadedKeyedState:
    """The keyed state of one partition: a working copy, the saved files, and the changes since. It is thread-safe."""

    def __init__(
        self, part: Part, place: RegionStateStore, head: KeyedStateChainHead | None, work_folder: str | None
    ) -> None:
        """Load a saved state into a working copy; `head` None: the state is empty.

        Raises:
            OSError, RetriableError: the storage does not answer, or there is no room for a working copy.
            CorruptDataError: a file is gone or damaged.
        """
        self._part, self._place = part, place
        self._lock = threading.RLock()
        self._waiting: dict[bytes, bytes | None] = {}  # not in the copy yet
        self._changed: dict[bytes, bytes | None] = {}  # not in a file yet
        self.changed_bytes = 0
        self._chain: list[KeyedStateFile] = []
        self._is_saved = True  # the copy is what the chain says
        self._replaced = False  # files of the chain were merged
        if head is None:
            self._copy = KeyedStateCopy(work_folder)
            return
        self._chain, newest = place.read_newest_file(part, head)
        base = list(takewhile(lambda file: file.kind == "base", self._chain))
        deltas = self._chain[len(base) :]
        self._copy = KeyedStateCopy(work_folder, partial(self._fill, base, b"" if deltas else newest))
        try:
            self._apply_deltas(deltas, newest)
        except BaseException:
            self._copy.close()
            raise

    def _fill(self, base: list[KeyedStateFile], newest: ReadPart, write: Write) -> None:
        """Write a base into the working copy. `newest` is its last file's payload, already read, or empty."""
        end = self._place.copy_base_to(self._part, base[:-1] if newest else base, write)
        write(end, newest)

    def _apply_deltas(self, deltas: list[KeyedStateFile], newest: ReadPart) -> None:
        """Apply several deltas together, because each pass reads and writes most pages of the working copy."""
        changes: dict[bytes, bytes | None] = {}
        size = 0
        earlier = self._place.read_delta_payloads(self._part, deltas[:-1])
        for payload in chain(earlier, [newest] if deltas else []):
            for key, value in decode_changes(payload):
                size += change_memory_bytes(key, value)
                changes[key] = value
            if size >= _APPLIED_BYTES:
                self._copy.apply_changes(changes)
                changes, size = {}, 0
        self._copy.apply_changes(changes)

    @property
    def head(self) -> KeyedStateChainHead | None:
        """The newest saved file of the state, which names the others; None: nothing was saved."""
        return head_of_chain(self._chain) if self._chain else None

    def value(self, key: bytes) -> bytes | None:
        """Return the value of a key; None: the key does not exist."""
        with self._lock:
            return self._waiting[key] if key in self._waiting else self._copy.value(key)

    def set_value(self, key: bytes, value: bytes | None) -> None:
        """Set the value of a key, which the next `save` writes; None removes the key."""
        with self._lock:
            if key in self._changed:
                self.changed_bytes -= change_memory_bytes(key, self._changed[key])
            self._waiting[key] = self._changed[key] = value
            self.changed_bytes += change_memory_bytes(key, value)

    def key_count(self) -> int:
        """Return the number of keys."""
        with self._lock:
            self._apply()
            return self._copy.key_count()

    def keys_after(self, key: bytes | None) -> list[bytes]:
        """Return up to 1000 keys in order, those behind the given key; None: the first ones."""
        with self._lock:
            self._apply()
            return self._copy.keys_after(key)

    def _apply(self) -> None:
        if self._waiting:
            self._is_saved = False
            self._copy.apply_changes(self._waiting)
            self._waiting = {}

    def revert_changes(self) -> bool:
        """Forget the changes since the last save.

        Return False if the working copy has some of them already, so that it can't be used any more.
        """
        with self._lock:
            self._waiting, self._changed, self.changed_bytes = {}, {}, 0
            return self._is_saved

    def save(self, sequence: int) -> None:
        """Save the changes since the last save durably, for this checkpoint id. It may be repeated after an error.

        Raises:
            OSError, RetriableError: the storage does not answer. Nothing is lost.
            sqlite3.Error: the working copy is damaged.
        """
        with self._lock:
            if not self._changed:
                return
            self._apply()
            self._chain = self._saved_chain(sequence)
            self._changed, self.changed_bytes, self._is_saved = {}, 0, True

    def _saved_chain(self, sequence: int) -> list[KeyedStateFile]:
        """Save the changes as a delta, perhaps merged with earlier ones, or in a new base; return the new chain."""
        deltas = [file for file in self._chain if file.kind == "delta"]
        deltas_bytes = sum(file.size for file in deltas)
        base_bytes = sum(file.size for file in self._chain) - deltas_bytes
        size = sum(change_file_bytes(*change) for change in self._changed.items())
        too_large = deltas_bytes + size > max(base_bytes // 2, DELTAS_BYTES)
        if not self._chain or too_large or not self._place.deltas_max:
            return self._with_base(sequence)
        merged = self._to_merge(deltas, size) if len(deltas) >= self._place.deltas_max else []
        changes: dict[bytes, bytes | None] = {}
        try:
            for payload in self._place.read_delta_payloads(self._part, merged):
                changes.update(decode_changes(payload))
        except CorruptDataError as error:
            log.warning("saving the whole keyed state of %s, because its changes are damaged: %s", self._part, error)
            return self._with_base(sequence)
        changes |= self._changed
        before = self._chain[: len(self._chain) - len(merged)]
        self._replaced = self._replaced or bool(merged)
        return self._place.append_deltas(self._part, sequence, before, encode_deltas(changes))

    def _with_base(self, sequence: int) -> list[KeyedStateFile]:
        self._copy.shrink_file_if_sparse()
        return self._place.write_base_files(self._part, sequence, self._copy.base_file_writers())

    def _to_merge(self, deltas: list[KeyedStateFile], size: int) -> list[KeyedStateFile]:
        """Return the newest deltas to merge: half of `deltas_max`, and each older one that is no larger than these.

        So what is written stays in proportion to the changes. Each merge at least doubles the file of a change, except
        once in half of the limit.
        """
        found, total = 0, size
        for file in reversed(deltas):
            enough = found >= max(1, self._place.deltas_max // 2)
            if total + file.size > _MERGED_BYTES or (enough and file.size > total):
                break
            found, total = found + 1, total + file.size
        return deltas[len(deltas) - found :]

    def file_names_if_merged(self) -> frozenset[str] | None:
        """Return the names of the state's files if a merge has replaced some since the last call; None: none was."""
        with self._lock:
            names = frozenset(file.name for file in self._chain) if self._replaced else None
            self._replaced = False
            return names

    def close(self) -> None:
        """Remove the working copy."""
        with self._lock:
            self._copy.close()


class StateMapping(MutableMapping[bytes, bytes]):
    """The keyed state of one partition: a mapping of bytes to bytes, in the order of keys.

    It can be used while the table is in progress for which `partition_state` returned it. Changes count with that
    table. The time of a call grows with the number of keys, except for calls with a single key.
    """

    def __init__(self, state: LoadedKeyedState, is_current: Callable[[], bool]) -> None:
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
        self._state.set_value(_checked(key), value)

    def __delitem__(self, key: bytes) -> None:
        self[key]
        self._state.set_value(key, None)

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
    """The keyed states of all partitions that a member owns in its region.

    The application's thread asks for them while a table is in progress. The event thread calls all other methods, and
    only while none is, except for `set_saved_state` and `forget_partitions`.
    """

    def __init__(self, place: RegionStateStore, work_folder: str | None) -> None:
        self._place, self._work_folder = place, work_folder
        self._lock = threading.RLock()
        self._heads: dict[Part, KeyedStateChainHead | None] = {}
        self._loaded: dict[Part, LoadedKeyedState] = {}
        self._kept: dict[Part, LoadedKeyedState] = {}  # from before a reset
        self._left: list[LoadedKeyedState] = []
        self._given: dict[Part, KeyedStateChainHead | None] = {}
        self._swept: dict[Part, int] = {}

    @property
    def store(self) -> RegionStateStore:
        """The storage where the states are saved."""
        return self._place

    def set_saved_state(self, part: Part, saved: KeyedStateChainHead | None) -> None:
        """Set the saved state with which a partition begins; None: an empty one.

        The first use loads it, unless a working copy of that state was kept over a reset.
        """
        with self._lock:
            self.forget_partitions([part])
            self._heads[part] = saved
            if (kept := self._kept.pop(part, None)) is not None:
                if kept.head == saved:
                    self._loaded[part] = kept
                else:
                    self._left.append(kept)

    def forget_partitions(self, parts: list[Part]) -> None:
        """Forget partitions that the member no longer owns; the current table may still use their working copies."""
        with self._lock:
            for part in parts:
                self._heads.pop(part, None)
                self._swept.pop(part, None)
                if (state := self._loaded.pop(part, None)) is not None:
                    self._left.append(state)

    def forget_all_partitions(self) -> None:
        """Forget all partitions, for a reset.

        Working copies without later changes are kept until the next save, in case the same states are asked for again.
        """
        with self._lock:
            self._given = {}
            reverted = {part: state for part, state in self._loaded.items() if state.revert_changes()}
            for part in reverted:
                del self._loaded[part]
            self._kept |= reverted
            self.forget_partitions(list(self._heads))
            self.close_forgotten_copies()

    def close_forgotten_copies(self) -> None:
        """Close the working copies of forgotten partitions, when no table is in progress that may use them."""
        with self._lock:
            left, self._left = self._left, []
        for state in left:
            state.close()

    def state_of(self, part: Part) -> LoadedKeyedState:
        """Return a partition's state; load it if needed. If it was forgotten meanwhile, the state is never saved.

        Raises:
            OSError, RetriableError: the storage does not answer, or there is no room for a working copy.
            CorruptDataError: a file is gone or damaged.
        """
        with self._lock:
            if (there := self._loaded.get(part)) is not None:
                return there
            known, head = part in self._heads, self._heads.get(part)
        state = LoadedKeyedState(part, self._place, head, self._work_folder)
        with self._lock:
            if known and part in self._heads and self._heads[part] == head:
                return self._loaded.setdefault(part, state)
            self._left.append(state)
            return state

    def has_many_changes(self) -> bool:
        """Return whether the changes in memory have reached 128 MiB, so that a checkpoint should follow."""
        with self._lock:
            return sum(state.changed_bytes for state in self._loaded.values()) >= CHANGED_BYTES

    def save(self, sequence: int) -> dict[Part, KeyedStateChainHead | None]:
        """Save all changed states for this checkpoint id, and return the saved state of each partition.

        None: the partition has none. The call may be repeated after an error.

        Raises:
            OSError, RetriableError: the storage does not answer. Nothing is lost.
        """
        with self._lock:
            self._leave_kept()  # other members have these partitions
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

    def on_checkpoint_completed(self) -> list[SweepOrder]:
        """Record that the checkpoint saved last is complete; return orders to remove the files that it replaces."""
        with self._lock:
            given, self._given = self._given, {}
            heads = {part: head for part, head in given.items() if head is not None}
            orders = []
            for part, head in heads.items():
                state = self._loaded.get(part)
                names = None if state is None or state.head != head else state.file_names_if_merged()
                if names is not None or self._swept.get(part, 0) < head.base:
                    orders.append(SweepOrder(part, head, names))
            self._swept |= {order.part: order.head.base for order in orders if order.part in self._heads}
            return orders

    def close(self) -> None:
        """Remove all working copies."""
        with self._lock:
            self.forget_all_partitions()
            self._leave_kept()
            self.close_forgotten_copies()

    def _leave_kept(self) -> None:
        self._left += self._kept.values()
        self._kept = {}


class KeyedStateSweeper:
    """The thread that removes keyed state files which no manifest needs; a later sweep retries failures."""

    def __init__(self, place: RegionStateStore, name: str) -> None:
        """Initialise the sweeper; its thread starts with the first order."""
        self._place, self._name = place, name
        self._orders: queue.SimpleQueue[SweepOrder | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def queue_sweeps(self, orders: list[SweepOrder]) -> None:
        """Queue sweeps of old files for the sweeper's thread, which the first call starts."""
        if orders and self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"kohort-states-{self._name}", daemon=True)
            self._thread.start()
        for entry in orders:
            self._orders.put(entry)

    def close(self) -> None:
        """Finish the queued sweeps and end the thread, waiting at most 10 s."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (entry := self._orders.get()) is not None:
            try:
                self._place.sweep(entry)
            except (OSError, KafkaError) as error:
                log.warning("[member %s] old files of a keyed state could not be removed: %s", self._name, error)
