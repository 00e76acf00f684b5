"""The sparse indexes of one segment, in memory and in Kafka's file formats (big-endian, no header).

Entries are written in groups (`flush`), because recovery scans the log after the last entry anyway.

- `.index`: int32 relative offset, int32 position. The offset is the last of the batch at the position.
- `.timeindex`: int64 largest timestamp so far, int32 relative offset of the last record of its batch.
- `.txnindex`: one entry per aborted transaction: int16 version 0, int64 producer id, first, last and last stable
  offset.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from kohort.log.filesystem import SYSTEM, FileSystem, file_mode, read_file, sync_file, write_file
from kohort.wire.checksum import crc32c

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")


def _read_index(path: str, fs: FileSystem) -> bytes:
    """Return the file's content; empty if there is no file, and one byte (no valid index) if it can't be read."""
    try:
        return read_file(path, fs)
    except FileNotFoundError:
        return b""
    except (PermissionError, IsADirectoryError):
        return b"?"


def _empty_file(path: str, fs: FileSystem) -> None:
    try:
        _create(path, fs)
    except PermissionError:
        fs.unlink(path)
        _create(path, fs)
    except IsADirectoryError:
        _set_aside(path, fs)
        _create(path, fs)


def _create(path: str, fs: FileSystem) -> None:
    fs.close(fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, file_mode(path)))


def _set_aside(path: str, fs: FileSystem) -> None:
    """Rename a folder that blocks an index file's name, by the suffix `.stray`.

    It is not the broker's, so it is kept.
    """
    fs.replace(path, f"{path}.stray")


def append_to_file(path: str, data: bytes, fs: FileSystem) -> None:
    """Append bytes to a file with one write call; open and close the file for that.

    Raises:
        OSError: the write failed; a partial write is truncated again.
    """
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode(path))
    try:
        size = fs.fstat(fd).st_size
        written = -1
        try:
            written = fs.write(fd, data)
        finally:
            if written != len(data):
                fs.ftruncate(fd, size)
        if written != len(data):
            raise OSError(f"{os.path.basename(path)}: wrote {written} of {len(data)} bytes")
    finally:
        fs.close(fd)


class _IndexFile:
    """The base of the three index files of a segment: fsyncs the file, also after a failed fsync."""

    __slots__ = ("_fs", "_path", "_unsure")

    def __init__(self, path: str, fs: FileSystem) -> None:
        self._path = path
        self._fs = fs
        self._unsure = False

    def _sync_file(self) -> None:
        """Fsync the file, if there is one. What an earlier attempt failed to flush is written again.

        Raises:
            OSError: the disk failed.
        """
        again, self._unsure = self._unsure, True
        sync_file(self._path, self._fs, again=again)
        self._unsure = False


class OffsetIndex(_IndexFile):
    """The offset index: maps offsets to positions. Offsets are relative to the segment's base."""

    __slots__ = ("_flushed", "_replaces", "offsets", "positions")

    def __init__(self, path: str, fs: FileSystem = SYSTEM) -> None:
        super().__init__(path, fs)
        self.offsets = array("i")
        self.positions = array("i")
        self._flushed = 0
        self._replaces = False  # whether the file has entries that are being rebuilt

    def load(self, log_size: int) -> bool:
        """Load the file.

        A missing file is an empty index.

        Returns:
            False, with an empty index, if the file can't belong to a log of `log_size` bytes.
        """
        data = _read_index(self._path, self._fs)
        if len(data) % _OFFSET_ENTRY.size:
            return False
        flat = array("i")
        flat.frombytes(data)
        if sys.byteorder == "little":
            flat.byteswap()
        offsets, positions = flat[0::2], flat[1::2]
        if not (_increases(offsets) and _increases(positions)):
            return False
        if positions and (positions[-1] >= log_size or positions[0] < 0 or offsets[0] < 0):
            return False
        self.offsets, self.positions = offsets, positions
        self._flushed = len(offsets)
        return True

    def position_in_file(self, offset: int) -> int:
        """Return the position of the last entry at or below `offset`, without loading the file; 0 if there is none."""
        fs = self._fs
        try:
            fd = fs.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            return 0
        try:
            low, high, found = 0, fs.fstat(fd).st_size // _OFFSET_ENTRY.size, 0
            while low < high:
                middle = (low + high) // 2
                entry = _OFFSET_ENTRY.unpack(fs.pread(fd, _OFFSET_ENTRY.size, middle * _OFFSET_ENTRY.size))
                if entry[0] <= offset:
                    low, found = middle + 1, entry[1]
                else:
                    high = middle
            return found
        except IsADirectoryError:
            return 0
        finally:
            fs.close(fd)

    def append(self, offset: int, position: int) -> None:
        self.offsets.append(offset)
        self.positions.append(position)

    def entry_at_or_before_offset(self, offset: int) -> int:
        """Return the index (0-based) of the last entry at or below a relative `offset`; -1 if there is none."""
        return bisect_right(self.offsets, offset) - 1

    def entry_at_or_before_position(self, position: int) -> int:
        """Return the index (0-based) of the last entry at or below a file `position`; -1 if there is none."""
        return bisect_right(self.positions, position) - 1

    def truncate(self, entries: int) -> None:
        """Remove all but the first `entries` from memory and from the file."""
        del self.offsets[entries:]
        del self.positions[entries:]
        if self._flushed > entries:
            self._fs.truncate(self._path, entries * _OFFSET_ENTRY.size)
            self._flushed = entries

    def truncate_for_rewrite(self, entries: int) -> None:
        """Remove all but the first `entries`; the next `flush` writes a new, fsynced file in place of the old one.

        The index is the only proof of gaps in a compacted segment. A file that is truncated in place may contain zeros
        after a power loss, which would make a valid batch look damaged.
        """
        del self.offsets[entries:]
        del self.positions[entries:]
        if self._flushed > entries:
            self._flushed, self._replaces = entries, True

    def reset(self) -> None:
        """Remove all entries and create an empty file."""
        del self.offsets[:]
        del self.positions[:]
        self._flushed, self._replaces = 0, False
        _empty_file(self._path, self._fs)

    def flush(self) -> None:
        """Write the entries that are only in memory to the file."""
        pack = _OFFSET_ENTRY.pack
        if self._replaces:
            new = f"{self._path}.tmp"
            write_file(new, b"".join(map(pack, self.offsets, self.positions)), self._fs, sync=True, mode=file_mode(new))
            self._fs.replace(new, self._path)
            self._flushed, self._replaces = len(self.offsets), False
        start = self._flushed
        if len(self.offsets) > start:
            append_to_file(self._path, b"".join(map(pack, self.offsets[start:], self.positions[start:])), self._fs)
            self._flushed = len(self.offsets)

    def sync_file(self) -> None:
        """Fsync the file, if there is one."""
        self._sync_file()

    def create_if_missing(self) -> None:
        """Create an empty index file if there is none: Kafka's log dump reads no time index without an offset index."""
        append_to_file(self._path, b"", self._fs)


class TimeIndex(_IndexFile):
    """The time index: maps the largest timestamp so far to an offset, which is relative to the segment's base."""

    __slots__ = ("_flushed", "offsets", "timestamps")

    def __init__(self, path: str, fs: FileSystem = SYSTEM) -> None:
        super().__init__(path, fs)
        self.timestamps = array("q")
        self.offsets = array("i")
        self._flushed = 0

    def load(self) -> bool:
        """Load the file; a missing file is an empty index.

        Returns:
            False, with an empty index, if the file is damaged.
        """
        data = _read_index(self._path, self._fs)
        if len(data) % _TIME_ENTRY.size:
            return False
        timestamps, offsets = array("q"), array("i")
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            timestamps.append(timestamp)
            offsets.append(offset)
        if not (_increases(timestamps) and _increases(offsets)) or (offsets and offsets[0] < 0):
            return False
        self.timestamps, self.offsets = timestamps, offsets
        self._flushed = len(offsets)
        return True

    def last_entry_in_file(self) -> tuple[int, int] | None:
        """Return the file's last entry (timestamp, relative offset), without loading the file."""
        fs = self._fs
        try:
            fd = fs.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            return None
        try:
            size = fs.fstat(fd).st_size
            if size % _TIME_ENTRY.size or not size:
                return None
            timestamp, offset = _TIME_ENTRY.unpack(fs.pread(fd, _TIME_ENTRY.size, size - _TIME_ENTRY.size))
            return timestamp, offset
        except IsADirectoryError:
            return None
        finally:
            fs.close(fd)

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry, unless the timestamp is no later than the last one."""
        if not self.timestamps or timestamp > self.timestamps[-1]:
            self.timestamps.append(timestamp)
            self.offsets.append(offset)

    def entry_before_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Return the last entry (timestamp, relative offset) before `timestamp`, or None.

        Records at or after `timestamp` are in the entry's batch or later.
        """
        found = bisect_left(self.timestamps, timestamp) - 1
        return (self.timestamps[found], self.offsets[found]) if found >= 0 else None

    def truncate_to_offset(self, offset: int) -> None:
        """Remove entries at or after the relative `offset`, also in the file."""
        entries = bisect_left(self.offsets, offset)
        del self.timestamps[entries:]
        del self.offsets[entries:]
        if self._flushed > entries:
            self._fs.truncate(self._path, entries * _TIME_ENTRY.size)
            self._flushed = entries

    def reset(self) -> None:
        """Remove all entries and create an empty file."""
        del self.timestamps[:]
        del self.offsets[:]
        self._flushed = 0
        _empty_file(self._path, self._fs)

    def flush(self) -> None:
        """Write the entries that are only in memory to the file."""
        start = self._flushed
        if len(self.offsets) > start:
            pack = _TIME_ENTRY.pack
            append_to_file(self._path, b"".join(map(pack, self.timestamps[start:], self.offsets[start:])), self._fs)
            self._flushed = len(self.offsets)

    def sync_file(self) -> None:
        """Fsync the file, if there is one."""
        self._sync_file()


class AbortedRange(NamedTuple):
    """An aborted transaction. `last_offset` is its marker's; `last_stable_offset` is as of the marker's append."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex(_IndexFile):
    """The transaction index: the aborted transactions whose marker is in this segment."""

    __slots__ = ("_flushed", "_synced", "entries")

    def __init__(self, path: str, fs: FileSystem = SYSTEM) -> None:
        super().__init__(path, fs)
        self._flushed = self._synced = 0
        self.entries: list[AbortedRange] = []

    def load(self) -> bool:
        """Load the file; a missing file is an empty index.

        Returns:
            False if the file is damaged.
        """
        data = _read_index(self._path, self._fs)
        if len(data) % _TXN_ENTRY.size:
            return False
        rows = list(_TXN_ENTRY.iter_unpack(data))
        if any(row[0] != 0 for row in rows):
            return False
        self.entries = [AbortedRange(*row[1:]) for row in rows]
        self._flushed = len(self.entries)
        return _increases(array("q", [e.last_offset for e in self.entries]))

    def checksum(self, entries: int) -> int:
        """Return the CRC32C of the first entries, -1 if there are fewer."""
        if entries > len(self.entries):
            return -1
        return int(crc32c(b"".join(_TXN_ENTRY.pack(0, *entry) for entry in self.entries[:entries])))

    def append(self, entry: AbortedRange) -> None:
        """Add an entry, also to the file. If the disk is full, `flush` writes it later."""
        self.entries.append(entry)
        with contextlib.suppress(OSError):
            self.flush()

    def flush(self) -> None:
        """Write the entries that are only in memory to the file."""
        if len(self.entries) > self._flushed:
            append_to_file(
                self._path, b"".join(_TXN_ENTRY.pack(0, *entry) for entry in self.entries[self._flushed :]), self._fs
            )
            self._flushed = len(self.entries)

    def sync_file(self) -> bool:
        """Fsync new entries of the file; return whether there were any."""
        if len(self.entries) <= self._synced:
            return False
        self.flush()
        self._sync_file()
        self._synced = len(self.entries)
        return True

    def truncate_to_offset(self, offset: int) -> None:
        """Remove transactions whose marker is at or after `offset`."""
        kept = [entry for entry in self.entries if entry.last_offset < offset]
        if len(kept) != len(self.entries):
            if self._flushed > len(kept):
                self._fs.truncate(self._path, len(kept) * _TXN_ENTRY.size)
                self._flushed = len(kept)
            self._synced = min(self._synced, len(kept))
            self.entries = kept

    def reset(self) -> None:
        """Remove all entries, and the file."""
        self.entries = []
        self._flushed = self._synced = 0
        try:
            self._fs.unlink(self._path)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            _set_aside(self._path, self._fs)


def _increases(values: array[int]) -> bool:
    return all(map(int.__lt__, values, values[1:]))
