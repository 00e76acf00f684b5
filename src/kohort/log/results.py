"""Results of the log's operations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from kohort.log.damage import LogDamage
from kohort.log.filesystem import SYSTEM, FileSystem, StrPath, file_mode


class Isolation(IntEnum):
    """The isolation level of a reader, with the values of the protocol's `isolation_level`."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class AppendResult(NamedTuple):
    """The offsets and timestamp of batches that were appended.

    Attributes:
        base_offset: the offset of the first record; of a duplicate, that of the original append.
        last_offset: the offset of the last record.
        log_append_time_ms: wall-clock time of the append for LogAppendTime topics, else -1.
        log_start_offset: the partition's log start offset.
        duplicate: whether an idempotent producer has sent this before; nothing was written.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class OpenFile:
    """A file descriptor that is closed when it is no longer referenced.

    The store may release a file (deleted, or too many open) while a response still reads from it.

    Attributes:
        fd: the descriptor in `fs`.
    """

    __slots__ = ("__weakref__", "fd", "fs")

    def __init__(self, path: StrPath, flags: int, fs: FileSystem = SYSTEM) -> None:
        self.fd = -1
        self.fs = fs
        self.fd = fs.open(path, flags | os.O_CLOEXEC, file_mode(path))

    def size(self) -> int:
        """Return the file's size."""
        return self.fs.fstat(self.fd).st_size

    def __del__(self) -> None:
        if self.fd >= 0:
            self.fs.close(self.fd)


class FileRange(NamedTuple):
    """The bytes `[position, position + length)` of an open log file, ready for `os.sendfile(sock, file.fd, …)`."""

    file: OpenFile
    position: int
    length: int

    def bytes(self) -> bytes:
        """Read the range with one `pread`."""
        file = self.file
        data = file.fs.pread(file.fd, self.length, self.position)
        if len(data) != self.length:
            raise OSError(f"log file ends {self.length - len(data)} bytes before the end of the range asked for")
        return data


class AbortedTxn(NamedTuple):
    """An aborted transaction, which a read_committed reader must skip."""

    producer_id: int
    first_offset: int


@dataclass(slots=True)
class ReadResult:
    """Complete batches, from the one with the requested offset.

    The first batch may start before that offset. Empty `ranges`: there is nothing to read yet.

    Attributes:
        next_offset: the first offset after the returned batches.
        high_watermark: the end of what readers may see.
        last_stable_offset: the end of what read_committed readers may see.
        size: the number of bytes in all ranges.
        aborted: aborted transactions; None unless read_committed.
    """

    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    size: int = 0
    ranges: Sequence[FileRange] = ()
    aborted: list[AbortedTxn] | None = None

    def bytes(self) -> bytes:
        """Read all ranges of the result into one buffer."""
        ranges = self.ranges
        if not ranges:
            return b""
        if len(ranges) == 1:
            return ranges[0].bytes()
        return b"".join([r.bytes() for r in ranges])


class TimestampOffset(NamedTuple):
    """The result of a search by timestamp; offset and timestamp are -1 if nothing matches."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(slots=True)
class RecoveryReport:
    """The actions and findings of recovery after an unclean shutdown.

    Attributes:
        scanned_bytes: log bytes that were read again.
        truncated_bytes: torn or damaged bytes that were truncated.
        rebuilt_indexes: names of index files that were wrong or missing.
        damages: unreadable ranges, as far as the log was checked.
    """

    scanned_bytes: int = 0
    truncated_bytes: int = 0
    rebuilt_indexes: list[str] = field(default_factory=list)
    damages: list[LogDamage] = field(default_factory=list)
