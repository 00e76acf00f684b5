"""What the log answers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from kohort.log.damage import Damage
from kohort.log.filesystem import SYSTEM, FileSystem, StrPath


class Isolation(IntEnum):
    """Which records a reader may see; the values are the wire's `isolation_level`."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class AppendResult(NamedTuple):
    """One append, durable when returned.

    Attributes:
        base_offset: offset of the first record; for a duplicate, that of the original append.
        last_offset: offset of the last record.
        log_append_time_ms: wall clock of the append for LogAppendTime topics, -1 otherwise.
        log_start_offset: of the partition.
        duplicate: an idempotent producer sent this before; nothing was written.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class OpenFile:
    """A file descriptor that closes when nobody refers to it any more.

    The store may drop a file (deleted, or too many open) while a reply still reads from it.

    Attributes:
        fd: a descriptor of `fs`.
    """

    __slots__ = ("__weakref__", "fd", "fs")

    def __init__(self, path: StrPath, flags: int, fs: FileSystem = SYSTEM) -> None:
        self.fd = -1
        self.fs = fs
        self.fd = fs.open(path, flags | os.O_CLOEXEC, 0o644)

    def size(self) -> int:
        """Bytes in the file."""
        return self.fs.fstat(self.fd).st_size

    def __del__(self) -> None:
        if self.fd >= 0:
            self.fs.close(self.fd)


class FileRange(NamedTuple):
    """Bytes `[position, position + length)` of an open log file, ready for `os.sendfile(sock, file.fd, …)`."""

    file: OpenFile
    position: int
    length: int

    def bytes(self) -> bytes:
        """Read the range (one `pread`)."""
        file = self.file
        data = file.fs.pread(file.fd, self.length, self.position)
        if len(data) != self.length:
            raise OSError(f"log file ends {self.length - len(data)} bytes before the end of the range asked for")
        return data


class AbortedTransaction(NamedTuple):
    """A transaction that a read_committed reader must skip."""

    producer_id: int
    first_offset: int


@dataclass(slots=True)
class ReadResult:
    """Whole batches, from the one that holds the offset asked for.

    The first batch may start before that offset. Empty `ranges`: nothing to read yet.

    Attributes:
        next_offset: first offset after what is returned.
        high_watermark: end of what readers may see.
        last_stable_offset: end of what read_committed readers may see.
        size: bytes in all ranges.
        aborted: None unless read_committed.
    """

    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    size: int = 0
    ranges: Sequence[FileRange] = ()
    aborted: list[AbortedTransaction] | None = None

    def bytes(self) -> bytes:
        """The batches as one buffer."""
        ranges = self.ranges
        if not ranges:
            return b""
        if len(ranges) == 1:
            return ranges[0].bytes()
        return b"".join([r.bytes() for r in ranges])


class TimestampOffset(NamedTuple):
    """Answer of a search by time; offset -1 and timestamp -1 when there is none."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(slots=True)
class RecoveryReport:
    """What opening a partition after an unclean end found and did.

    Attributes:
        scanned_bytes: log bytes read again.
        truncated_bytes: torn or damaged bytes cut off the end.
        rebuilt_indexes: names of index files that were wrong or missing.
        damages: what can't be read, as far as it was looked at.
    """

    scanned_bytes: int = 0
    truncated_bytes: int = 0
    rebuilt_indexes: list[str] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
