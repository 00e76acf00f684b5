"""Checked reading of a log, from which coordinators load their state: every checksum is verified, and damage reported.

A batch with a wrong checksum is never interpreted, because one flipped bit would change a committed offset.
"""

from __future__ import annotations

import heapq
import logging
import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from kohort.errors import CorruptDataError
from kohort.log.damage import DamagedError, LogDamage
from kohort.log.partition import PartitionLog
from kohort.log.results import OpenFile
from kohort.wire.batch import BatchHeader, parse_header
from kohort.wire.checksum import crc32c
from kohort.wire.records import iter_key_values

NameOf: TypeAlias = Callable[[bytes], str | None]
"""A function from a key to the name that it belongs to: a group or a transactional id; None for other keys."""
ReadBatch: TypeAlias = Callable[[BatchHeader, memoryview], object]
"""A function that reads a batch's content; it raises one of `UNREADABLE` if the content is malformed."""

ON_CORRUPTION: Final = "offsets.load.on.corruption"
"""The setting that decides whether a damaged journal is loaded."""
WHAT_TO_DO: Final = (
    "Put the file back from a copy, or start with --set "
    f"{ON_CORRUPTION}=older, which serves what can be read: older values, where newer ones are lost"
)
UNREADABLE: Final = (CorruptDataError, struct.error, UnicodeDecodeError)
"""The exceptions of reading malformed records."""
_LENGTH, _CRC = map(BatchHeader._fields.index, ("batch_length", "crc"))
_LENGTH_OVERHEAD: Final = 12
_CRC_FROM: Final = 21
"""The checksum covers a batch from this byte on."""
_NAMES_SHOWN: Final = 10
_NAME_SHOWN: Final = 80
_TAIL_OFFSETS: Final = 1_000
"""The number of offsets in which the last writers are looked up."""
_STEP_BYTES: Final = 256 << 10

log = logging.getLogger("kohort.log")


Checked: TypeAlias = tuple[int, BatchHeader, memoryview]
"""A batch with a correct checksum: its position in the file, its header, its bytes."""


def checked_batches(source: PartitionLog, offset: int, max_bytes: int) -> Iterator[Checked | LogDamage]:
    """Yield every batch from `offset` on in order, and damage in place of unreadable ones."""
    try:
        source.check_readable()
    except DamagedError as error:
        yield error.damage
        return
    while offset < source.end_offset:
        try:
            result = source.read(offset, max_bytes)
        except DamagedError as error:
            yield error.damage
            following = error.damage.next_offset
            if following is None or following <= offset:
                return
            offset = following
            continue
        if not result.ranges:
            return
        (found,) = result.ranges
        view = memoryview(found.bytes())
        at, end, position = 0, len(view), found.position
        while at < end:
            header = parse_header(view, at)
            stop = at + header[_LENGTH] + _LENGTH_OVERHEAD
            if crc32c(view[at + _CRC_FROM : stop]) == header[_CRC] and stop <= end:
                yield position + at, header, view[at:stop]
            else:
                following = parse_header(view, stop).base_offset if stop < end else result.next_offset
                header = header._replace(last_offset_delta=max(0, following - 1 - header.base_offset))
                yield describe_bad_batch(source, position + at, header, "the checksum does not fit")
            at = stop
        offset = result.next_offset


def describe_bad_batch(source: PartitionLog, position: int, header: BatchHeader, reason: str) -> LogDamage:
    """Describe a batch that cannot be read as `LogDamage`: its file, position, offsets and the reason."""
    bases = [segment.base_offset for segment in source.segments]
    segment = source.segments[max(0, bisect_right(bases, header.base_offset) - 1)]
    return LogDamage(segment.path, position, header.size, header.base_offset, header.next_offset, reason)


class DamageSurvey:
    """The examination of a damaged journal: each damage, and the groups or ids whose newest records may be lost.

    Attributes:
        damages: every damage, in order.
    """

    def __init__(self, source: PartitionLog, read: ReadBatch, name_of: NameOf, noun: str) -> None:
        self._source = source
        self._read = read
        self._name_of = name_of
        self._noun = noun
        self._last: dict[bytes, int] = {}
        self.damages: list[LogDamage] = []

    def examine_in_steps(self) -> Iterator[None]:
        """Examine the damaged log in steps of some milliseconds."""
        source, done, last = self._source, 0, self._last
        for found in checked_batches(source, source.log_start_offset, _STEP_BYTES):
            if isinstance(found, LogDamage):
                self.damages.append(found)
                continue
            position, header, batch = found
            if not header.is_control:
                try:
                    self._read(header, batch)
                    last.update((key, offset) for key, _, offset in iter_key_values(batch, header) if key)
                except UNREADABLE as error:
                    self.damages.append(describe_bad_batch(source, position, header, str(error)))
            done += header.size
            if done >= _STEP_BYTES:
                done = 0
                yield

    def describe_damage(self) -> Iterator[str]:
        """Describe each damage for the log: where it is, and which groups or transactional ids it may concern."""
        for damage in self.damages:
            parts = [damage.describe()]
            named = sorted(self._made_out(damage))
            if named:
                parts.append(f"names that can be made out in it: {_some(named)}")
            older = self._before(damage.first_offset)
            noun = self._noun
            if older:
                shown = [f"{name} (offset {offset})" for name, offset in newest_names_first(older)]
                parts.append(
                    f"{len(older)} {noun}s have records whose last readable version lies before it, and may have lost "
                    f"newer ones: {_some(shown)}"
                )
            else:
                parts.append(f"no {noun} that can be read has a record whose last version lies before it")
            yield "; ".join(parts)

    def _before(self, offset: int) -> dict[str, int]:
        """Return names with a record whose last readable version lies before this offset: a newer one may be lost.

        The value is the offset of the newest such record.
        """
        found: dict[str, int] = {}
        for key, last in self._last.items():
            if last < offset and (name := _readable_name(key, self._name_of)) is not None:
                found[name] = max(last, found.get(name, -1))
        return found

    def _made_out(self, damage: LogDamage) -> set[str]:
        """Return names in those damaged bytes that still decode as records.

        They are only a hint, since the bytes can't be trusted.
        """
        names: set[str] = set()
        try:
            file = OpenFile(damage.path, os.O_RDONLY, self._source.files.fs)
            data = file.fs.pread(file.fd, damage.length or 0, damage.position)
            for key, _, _ in iter_key_values(data, parse_header(data)):
                name = None if key is None else _readable_name(key, self._name_of)
                if name and name.isprintable():
                    names.add(name)
        except (*UNREADABLE, OSError):
            pass
        return names


def log_truncated_names(source: PartitionLog, name_of: NameOf, noun: str) -> None:
    """Log the groups or transactional ids of the last records before a torn end that was truncated at the opening."""
    size = source.recovery.truncated_bytes
    if not size:
        return
    first = max(source.log_start_offset, source.end_offset - _TAIL_OFFSETS)
    last = newest_record_offsets(source, first, name_of)
    shown = [f"{name} (offset {offset})" for name, offset in newest_names_first(last)]
    log.warning(
        "[partition %s] truncated %d bytes after offset %d: the broker ended during a write, which was not "
        "acknowledged; after a machine failure, acknowledged writes may be lost too. %ss in the last records before: "
        "%s",
        source.path.name,
        size,
        source.end_offset - 1,
        noun.capitalize(),
        _some(shown) or "none",
    )


def newest_record_offsets(source: PartitionLog, offset: int, name_of: NameOf) -> dict[str, int]:
    """Return the names with records at or after this offset, each with the offset of its newest record."""
    newest: dict[str, int] = {}
    for found in checked_batches(source, offset, _STEP_BYTES):
        if isinstance(found, LogDamage) or found[1].is_control:
            continue
        try:
            pairs = list(iter_key_values(found[2], found[1]))
        except UNREADABLE:
            continue
        for key, _, at in pairs:
            name = _readable_name(key, name_of) if key else None
            if name is not None:
                newest[name] = at
    return newest


def _readable_name(key: bytes, name_of: NameOf) -> str | None:
    """Return the name in a key; None if the key is of another kind, or malformed."""
    try:
        return name_of(key)
    except UNREADABLE:
        return None


def newest_names_first(offsets: dict[str, int]) -> Iterable[tuple[str, int]]:
    """Return names with their offsets for a log line: the newest first, cut to a limit of names and lengths."""
    ordered = heapq.nlargest(_NAMES_SHOWN + 1, offsets.items(), key=lambda entry: entry[1])
    return [(name[:_NAME_SHOWN], offset) for name, offset in ordered]


def _some(names: list[str]) -> str:
    more = " …" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(name[: _NAME_SHOWN + 40] for name in names[:_NAMES_SHOWN]) + more
