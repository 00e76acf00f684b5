"""Recovery of a partition's folder: its segments, their ends, and the state of the producers.

The possible damage depends on the cause of an unclean shutdown. If only the process died, the kernel still has all of
its writes; at most the last write is torn. If the machine died, anything after the last fsync may be missing or
garbage. That part is read again and verified by CRC.

A torn end has nothing readable after it. It is truncated, unless a checkpoint or snapshot proves that there were
records. If the machine died, the log also ends at the first damage after the last fsync (`truncate_at_hole`). All other
unreadable data is damage: it stays in place, and reads of it fail.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kohort.errors import CorruptDataError
from kohort.log import checkpoints, opening
from kohort.log.config import LogConfig, StoreLimits
from kohort.log.continuity import Epochs, LocatedBatch, complete_end
from kohort.log.damage import ASIDE, LogDamage
from kohort.log.files import FileCache
from kohort.log.filesystem import SYSTEM, FileSystem, file_exists, remove_if_exists, sync_folder, write_all
from kohort.log.markers import Marker, end_transaction_by_marker, parse_marker
from kohort.log.producers import Producers
from kohort.log.results import OpenFile, RecoveryReport
from kohort.log.segment import Segment
from kohort.wire.batch import HEADER_SIZE, parse_header

# -- Truncation after a power loss, at the first damage after the last fsync.
#
# Any part after the fsync may be lost, so readable batches may follow a hole. Kafka also recovers each segment from the
# recovery point on, and ends the log at the first invalid batch. Kafka deletes the rest; here it is kept in separate
# files. Damage before the last fsync stays in place, and reads of it fail.

_COPY_BYTES = 1 << 20

log = logging.getLogger("kohort.log")


def truncate_at_hole(
    segments: list[Segment],
    torn: list[bool],
    durable_end: int,
    log_start_offset: int,
    config: LogConfig,
    files: FileCache,
    report: RecoveryReport,
) -> None:
    """Truncate the log at the first damage from offset `durable_end` on, if something readable follows it.

    Damage with nothing readable after it is the ordinary end after a crash, and is not changed here.

    Args:
        segments: the loaded segments; changed in place.
        torn: for each segment, whether it ends in bytes that are no batch; changed in place.
        durable_end: the offset before which everything was on the disk (`durable_end_offset`).
        log_start_offset: the log start offset. A hole before it is ignored.

    Raises:
        OSError: the disk failed or is full. Another attempt continues where this one stopped.
    """
    fs = files.fs
    holes = ((number, _hole(segment, durable_end, log_start_offset, fs)) for number, segment in enumerate(segments))
    number, hole = next(((number, hole) for number, hole in holes if hole is not None), (-1, None))
    if hole is None:
        return
    segment = segments[number]
    later, there = segments[number + 1 :], file_exists(segment.path, fs)
    size = segment.file_size() if there else 0
    if not _readable_behind(segment, hole, size, later):
        return
    aside = [set_segment_aside(after, report, fs) for after in reversed(later)]
    if there and size > hole.position:
        aside.append(_set_end_aside(segment.path, hole.position, size, fs))
    sync_folder(segment.path.parent, fs)
    report.truncated_bytes += size - hole.position
    log.warning(
        "log truncated at offset %d, and the rest kept in %s: the machine stopped before these bytes were known to be "
        "on the disk: %s",
        hole.first_offset,
        ", ".join(path.name for path in reversed(aside) if path is not None),
        hole.describe(),
    )
    gone = {segment.path, *(after.path for after in later)}
    report.damages = [damage for damage in report.damages if damage.path not in gone]
    ended, is_torn = _ended(segment, hole, config, files, report, closed=bool(later))
    segments[number:] = ended
    torn[number:] = is_torn


def _hole(segment: Segment, durable_end: int, log_start_offset: int, fs: FileSystem) -> LogDamage | None:
    """Return a segment's first damage that may have come from a power loss: from offset `durable_end` on.

    A file that can't be opened may be intact and is passed over.
    """
    if segment.unverified is None or not (segment.readable or not file_exists(segment.path, fs)):
        return None
    for damage in segment.unverified.damages:
        if damage.first_offset >= durable_end and (damage.next_offset is None or damage.next_offset > log_start_offset):
            return damage
    return None


def _readable_behind(segment: Segment, hole: LogDamage, size: int, later: Sequence[Segment]) -> bool:
    if any(after.size for after in later) or hole.position + (hole.length or 0) < size:
        return True
    if not size:
        return False
    return complete_end(segment.open(), hole.position, size, hole.first_offset, whole_writes=False) is not None


def _ended(
    segment: Segment, hole: LogDamage, config: LogConfig, files: FileCache, report: RecoveryReport, *, closed: bool
) -> tuple[list[Segment], list[bool]]:
    """Truncate a segment at damage; add an empty segment if it was not the last one or nothing of it is left.

    Return the new segments, and for each whether it has a torn end.
    """
    fs, folder, epochs = files.fs, segment.path.parent, segment.epochs
    ended: list[Segment] = []
    torn: list[bool] = []
    if hole.position == 0:
        segment.delete()
    else:
        segment.release_file()
        fs.truncate(segment.path, hole.position)
        for suffix in (".index", ".timeindex"):
            remove_if_exists(segment.path.with_suffix(suffix), fs)
        kept = Segment(folder, segment.base_offset, files, config.index_interval_bytes)
        kept.epochs, kept.gaps = epochs, segment.gaps
        found, is_torn = opening.load_segment(kept, 0, hole.first_offset if closed else None)
        kept.transactions.truncate_to_offset(hole.first_offset)
        kept.add_last_time_entry()
        report.damages += found.damages
        ended.append(kept)
        torn.append(is_torn)
    if closed or not ended:
        fresh = Segment(folder, hole.first_offset, files, config.index_interval_bytes)
        fresh.epochs = epochs
        fresh.create_file()
        ended.append(fresh)
        torn.append(False)
    return ended, torn


def set_segment_aside(segment: Segment, report: RecoveryReport, fs: FileSystem) -> Path | None:
    """Rename a segment's file and remove its other files; return None if it was empty."""
    aside = None
    if file_exists(segment.path, fs) and (size := segment.file_size()):
        aside = _free_name(segment.path.with_name(segment.path.name + ASIDE), fs)
        fs.replace(segment.path, aside)
        report.truncated_bytes += size
    segment.delete()
    return aside


def _set_end_aside(path: Path, position: int, size: int, fs: FileSystem) -> Path:
    """Copy the end of a file to a separate file, and fsync the copy."""
    aside = _free_name(path.with_name(f"{path.name}.{position}{ASIDE}"), fs)
    temporary = aside.with_name(aside.name + ".tmp")
    source = OpenFile(path, os.O_RDONLY, fs)
    target = OpenFile(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, fs)
    for at in range(position, size, _COPY_BYTES):
        write_all(target.fd, fs.pread(source.fd, min(_COPY_BYTES, size - at), at), at - position, fs)
    fs.fsync(target.fd)
    fs.replace(temporary, aside)
    return aside


def _free_name(path: Path, fs: FileSystem) -> Path:
    """Return `path`, or a name with a number if it exists: earlier copies are kept."""
    number, free = 1, path
    while file_exists(free, fs):
        number += 1
        free = path.with_name(f"{path.name.removesuffix(ASIDE)}-{number}{ASIDE}")
    return free


_EVERYTHING = 2**63 - 1
_LEFTOVERS = (".tmp", ".cleaned", ".deleted")
SEGMENT_FILE = re.compile(r"[0-9]{20}\.(log|index|timeindex|txnindex)")
_FILES_OF_EMPTY = 1 + len(checkpoints.OF_PARTITION)

_RECALLED_BYTES = 128 << 10
"""Room for five batches of a client's usual 16 KiB, from one or two producers."""


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """The options for opening a partition's log: mostly what checkpoints and the last shutdown say about it.

    Attributes:
        clean: whether the last owner closed the log; otherwise the tail is verified and truncated.
        verified_offset: if not `clean`: everything before this offset is known to be on the disk, and later batches are
            verified by CRC. None: the machine kept running, so only the last write can be torn.
        log_start_offset: from the store's checkpoint; None: the first segment's base offset.
        cleaned_offset: from the store's checkpoint: compaction has processed everything before it.
        persist: called when the log start moves, and before the log is truncated. It must make the log start and the
            recovery point durable.
        files: the shared cache of open files.
        cleaned_unknown: whether `cleaned_offset` could not be read.
        synced_unknown: whether `verified_offset` could not be read: any unreadable data may have been on the disk.
        known_end: the log had every offset below this one.
        topic_id: written to `partition.metadata` if given and missing there.
        fresh: whether the partition is new, so that an existing folder of its name is a leftover.
        epoch_without_folder: the leader epoch of a partition without a folder, whose records may have been read and
            then lost with it.
    """

    clean: bool = True
    verified_offset: int | None = None
    log_start_offset: int | None = None
    cleaned_offset: int = 0
    cleaned_unknown: bool = False
    synced_unknown: bool = False
    known_end: int = 0
    persist: Callable[[], None] | None = None
    files: FileCache | None = None
    limits: StoreLimits = field(default_factory=StoreLimits)
    topic_id: uuid.UUID | None = None
    fresh: bool = False
    epoch_without_folder: int = 0


def open_segments(
    path: Path, names: list[str], files: FileCache, config: LogConfig, options: OpenOptions, report: RecoveryReport
) -> list[Segment]:
    """Open all segments of a partition's folder, in order; there is at least one, and the last is ready for appends.

    Raises:
        OSError: the last segment's file can't be opened.
    """
    known_end = known_end_offset(path, names, options, files.fs)
    empty = _empty_segment(path, names, files, config) if len(names) <= _FILES_OF_EMPTY else None
    if empty is not None and known_end <= empty.base_offset:
        return [empty]
    bases, missing = _tidy(path, names, files, config)
    if not bases:
        first = Segment(path, options.log_start_offset or 0, files, config.index_interval_bytes)
        first.create_file()
        bases = [first.base_offset]
    epochs = checkpointed_epochs(path, names, bases, options, files.fs)
    segments = [Segment(path, base, files, config.index_interval_bytes) for base in sorted([*bases, *missing])]
    for segment in segments:
        segment.epochs = epochs
        closed = segment is not segments[-1]
        segment.gaps = segment.base_offset < options.cleaned_offset or (closed and options.cleaned_offset > 0)
        segment.gaps = segment.gaps or (closed and (config.uses_compaction or options.cleaned_unknown))
    torn = _open_each(path, segments, options, known_end, report, files.fs)
    if options.verified_offset is not None and not options.clean:
        durable_end = durable_end_offset(options)
        if not options.synced_unknown:
            truncate_at_hole(segments, torn, durable_end, options.log_start_offset or 0, config, files, report)
        _drop_unread(segments, torn, durable_end, report)
    last = segments[-1]
    if torn[len(segments) - 1]:
        whole = complete_end(
            last.open(),
            last.size,
            last.file_size(),
            last.end_offset,
            whole_writes=options.clean or options.verified_offset is None,
        )
        known_end = max(known_end, whole or 0)
    return _end_at(segments, torn[len(segments) - 1], known_end, report, config, files)


def durable_end_offset(options: OpenOptions) -> int:
    """Return the offset below which everything was on the disk: it was fsynced, or rewritten by compaction."""
    return max(options.known_end, options.verified_offset or 0, options.cleaned_offset)


def _open_each(
    path: Path, segments: list[Segment], options: OpenOptions, known_end: int, report: RecoveryReport, fs: FileSystem
) -> list[bool]:
    """Open all segments; return for each whether it ends in bytes that are no batch."""
    verify = None if options.clean else _EVERYTHING if options.verified_offset is None else options.verified_offset
    torn = []
    checksums = checkpoints.read_index_checksums(path, fs)
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        if following is not None and (verify is None or following <= verify):
            found, is_torn = opening.open_sealed_segment(segment, following), False
        else:
            found, is_torn = _load(segment, verify, following, known_end)
        torn.append(is_torn)
        report.scanned_bytes += found.scanned_bytes
        report.rebuilt_indexes += found.rebuilt_indexes
        report.damages += found.damages
        expected = checksums.get(segment.base_offset)
        if (
            expected is not None
            and segment.readable
            and segment.transactions.checksum(expected.entries) != expected.crc
        ):
            segment.transactions.reset()
            report.rebuilt_indexes.append(segment.path.with_suffix(".txnindex").name)
        if segment.path.with_suffix(".txnindex").name in report.rebuilt_indexes:
            delete_snapshots_after(path, segment.base_offset, fs)
    return torn


def _load(segment: Segment, verify: int | None, following: int | None, known_end: int) -> opening.LoadedSegment:
    """Load a segment and find where its valid batches end.

    Raises:
        OSError: the file can't be opened, and its end offset is unknown.
    """
    try:
        found = opening.load_segment(segment, verify, following)
    except opening.UNUSABLE as error:
        segment.end_offset = known_end if following is None else following
        if segment.end_offset <= segment.base_offset:
            raise
        report = RecoveryReport()
        opening.mark_unreadable(segment, error, report)
        return opening.LoadedSegment(report, has_torn_end=False)
    if following is not None:
        segment.add_last_time_entry()
    return found


def _drop_unread(segments: list[Segment], torn: list[bool], known_end: int, report: RecoveryReport) -> None:
    """Remove empty segments that follow a segment with a torn end.

    After a power loss they are part of what was lost.
    """
    while len(segments) > 1 and torn[len(segments) - 2]:
        before, last = segments[-2:]
        if last.size or before.end_offset < known_end:
            break
        report.truncated_bytes += last.file_size()
        report.damages = [damage for damage in report.damages if damage.path != last.path]
        last.delete()
        segments.pop()
    for segment, is_torn in zip(segments[:-1], torn, strict=False):
        following = segments[segments.index(segment) + 1].base_offset
        if is_torn or segment.end_offset != following:
            segment.size, segment.end_offset = segment.file_size(), following


def _end_at(
    segments: list[Segment], torn: bool, known_end: int, report: RecoveryReport, config: LogConfig, files: FileCache
) -> list[Segment]:
    """Decide what the log's end is when it is opened: truncate a torn end, or keep damage and begin a new segment.

    Damage is kept if records there are known to have existed.
    """
    last = segments[-1]
    if last.readable:
        if last.end_offset >= known_end:
            if torn:
                opening.truncate_torn_end(last, report)
            return segments
        opening.record_damaged_end(last, known_end, report)
    fresh = Segment(last.path.parent, known_end, files, config.index_interval_bytes)
    fresh.epochs = last.epochs
    fresh.create_file()
    return [*segments, fresh]


def known_end_offset(path: Path, names: list[str], options: OpenOptions, fs: FileSystem = SYSTEM) -> int:
    """Return the offset below which the partition certainly had records: its recovery point.

    After a clean shutdown, or if the machine kept running, a valid producer snapshot may prove a later one.
    """
    known = options.known_end
    if options.clean or options.verified_offset is None:
        for offset in producer_snapshot_offsets(names):
            if offset > known and Producers(path.name, options.limits.producers).load_producer_snapshot(
                producer_snapshot_path(path, offset), 0, fs
            ):
                known = offset
    return known


def checkpointed_epochs(
    path: Path, names: list[str], bases: list[int], options: OpenOptions, fs: FileSystem = SYSTEM
) -> Epochs:
    """Return the leader epochs from the checkpoint. After a power loss, later ones may have begun."""
    complete = options.clean or options.verified_offset is None
    if checkpoints.LEADER_EPOCHS not in names:
        lost = any(_first_epoch(path / f"{base:020d}.log", fs) > 0 for base in bases[-2:])
        return Epochs() if lost else Epochs((), complete)
    try:
        return Epochs(tuple(checkpoints.read_leader_epochs(path, fs)), complete)
    except (CorruptDataError, ValueError):
        return Epochs()


def _empty_segment(path: Path, names: list[str], files: FileCache, config: LogConfig) -> Segment | None:
    """Return the only segment of a partition that was never written to; None if the partition has records.

    Most partitions of a large folder are of this kind.
    """
    logs = [name for name in names if name.endswith(".log")]
    if len(logs) != 1 or any(name not in (logs[0], *checkpoints.OF_PARTITION) for name in names):
        return None
    base = logs[0].removesuffix(".log")
    if not base.isdecimal() or files.fs.stat(f"{path}{os.sep}{logs[0]}").st_size:
        return None
    segment = Segment(path, int(base), files, config.index_interval_bytes)
    segment.epochs = Epochs(())
    return segment


def delete_snapshots_after(path: Path, offset: int, fs: FileSystem = SYSTEM) -> None:
    """Delete snapshots after `offset`, so that the transactions are read again from the log."""
    for snapshot in producer_snapshot_offsets(fs.listdir(path)):
        if snapshot > offset:
            fs.unlink(producer_snapshot_path(path, snapshot))


def producer_snapshot_path(path: Path, offset: int) -> Path:
    """Return the path of a partition's producer snapshot as of `offset`."""
    return path / f"{offset:020d}.snapshot"


def producer_snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the producer snapshots among a partition's files, ascending."""
    stems = [name.removesuffix(".snapshot") for name in names if name.endswith(".snapshot")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _tidy(path: Path, names: list[str], files: FileCache, config: LogConfig) -> tuple[list[int], list[int]]:
    """Complete or undo the file changes that a crash interrupted, such as a compaction's swap.

    Returns:
        The base offsets of the remaining segments, and of those whose file is missing.
    """
    fs = files.fs
    for name in names:
        if name.endswith(_LEFTOVERS):
            fs.unlink(path / name)
    swaps = sorted(name for name in names if name.endswith(".log.swap"))
    for name in swaps:
        end = int(name[21:41])
        if not any(name.endswith(".log") and name[:20].isdecimal() and int(name[:20]) >= end for name in names):
            Segment(path, end, files, config.index_interval_bytes).create_file()  # lost with the machine
        finish_compaction_swap(path, path / name, files, config)
    present = fs.listdir(path) if swaps else names
    bases = sorted({int(name[:20]) for name in present if SEGMENT_FILE.fullmatch(name) and name.endswith(".log")})
    missing: set[int] = set()
    for name in present:
        if name in checkpoints.OF_PARTITION or name.endswith((".snapshot", ".log.swap", ASIDE, *_LEFTOVERS)):
            continue
        if not SEGMENT_FILE.fullmatch(name):
            log.warning("[partition %s] ignoring the file %s, which is not part of a log", path.name, name)
        elif int(name[:20]) not in bases:
            if bases and bases[0] < int(name[:20]) < bases[-1] and not name.endswith(".txnindex"):
                missing.add(int(name[:20]))
            else:
                fs.unlink(path / name)
    return bases, sorted(missing)


def finish_compaction_swap(path: Path, swap: Path, files: FileCache, config: LogConfig) -> Segment:
    """Replace segments by the compacted file that was created from them: all between its base and end offset.

    The name of a swap file is `<base offset>-<end offset>.log.swap`. May be called again after a failure. Each step is
    fsynced before the next:

    1. The swap file gets its name.
    2. The old files are removed, and the new indexes are written.
    3. The swap file is renamed to the first segment.

    After a power loss there is thus exactly one version, with an index for its gaps. A swap file never reappears beside
    that of a later compaction.
    """
    base, end = (int(number) for number in swap.name.split(".", 1)[0].split("-"))
    fs = files.fs
    if file_exists(swap, fs):
        sync_folder(path, fs)
        for file in map(Path, fs.listdir(path)):
            old = file.suffix in (".log", ".index", ".timeindex", ".txnindex") and file.stem.isdecimal()
            if old and base <= int(file.stem) < end:
                fs.unlink(path / file)
    segment = Segment(path, base, files, config.index_interval_bytes)
    segment.gaps = True
    place = segment.path
    if file_exists(swap, fs):
        segment.path = swap
    opening.load_segment(segment, None, end, crc=False)
    segment.end_offset = end
    segment.add_last_time_entry()
    if segment.path != place:
        sync_folder(path, fs)
        fs.replace(swap, place)
        segment.path = place
    sync_folder(path, fs)
    return segment


def load_producers(
    path: Path, segments: Sequence[Segment], producers: Producers, now_ms: int, fs: FileSystem = SYSTEM
) -> int:
    """Load the newest valid snapshot, and replay the batches after it; return its offset, -1 if there is none."""
    end_offset = segments[-1].end_offset
    start = -1
    producers.clear()
    for offset in reversed(producer_snapshot_offsets(fs.listdir(path))):
        if offset <= end_offset and producers.load_producer_snapshot(producer_snapshot_path(path, offset), now_ms, fs):
            start = offset
            break
        fs.unlink(producer_snapshot_path(path, offset))
    if producers.by_id:
        _recall(segments, producers, start)
    for segment in segments:
        if segment.end_offset <= start or not segment.size:
            continue
        for batch in segment.undamaged_batches_from(start):
            header = batch.header
            if header.producer_id < 0 or header.base_offset < start:
                continue
            if not header.is_control:
                producers.record_batch(header, header.base_offset, now_ms)
                continue
            marker = _marker(segment, batch)
            if marker is not None:
                end_transaction_by_marker(producers, segment, marker, header.base_offset, now_ms)
    return start


def _marker(segment: Segment, batch: LocatedBatch) -> Marker | None:
    """Return a transaction marker; None if it can't be read."""
    try:
        return parse_marker(batch.header, segment.read_batch(batch))
    except CorruptDataError as error:
        text = "%s: the transaction marker at offset %d can't be read, so its transaction counts as open: %s"
        log.error(text, segment.name, batch.header.base_offset, error)
        return None


def _recall(segments: Sequence[Segment], producers: Producers, snapshot: int) -> None:
    """Restore the last few batches of each producer before a snapshot, by which repeated requests are recognized.

    The snapshot itself has only the last batch of each.
    """
    room = _RECALLED_BYTES
    found: list[tuple[Segment, int, int]] = []
    for segment in reversed(segments):
        if segment.base_offset >= snapshot or not segment.size:
            continue
        end = next(segment.undamaged_batches_from(snapshot), None)
        stop = end.position if end is not None else segment.size
        found.append((segment, segment.batch_boundary_before(stop - room), stop))
        room -= stop
        if room <= 0:
            break
    for segment, first, stop in reversed(found):
        for batch in segment.scan(first, stop, skip_damage=True):
            if batch.header.base_sequence >= 0:
                producers.restore_batch(batch.header)


def _first_epoch(path: Path, fs: FileSystem) -> int:
    """Return the leader epoch of a file's first batch, -1 if there is none."""
    try:
        file = OpenFile(path, os.O_RDONLY, fs)
        return parse_header(fs.pread(file.fd, HEADER_SIZE, 0)).partition_leader_epoch
    except (OSError, CorruptDataError):
        return -1


def _newest_epoch(segments: Sequence[Segment]) -> int:
    """Return the leader epoch of the log's last readable batch, -1 if there is none."""
    for segment in reversed(segments):
        if segment.size:
            last = deque(segment.scan(segment.batch_boundary_before(segment.size - 1), skip_damage=True), 1)
            if last:
                return last[0].header.partition_leader_epoch
    return -1


def load_or_rebuild_epochs(path: Path, segments: Sequence[Segment], fs: FileSystem = SYSTEM) -> list[tuple[int, int]]:
    """Return the leader epochs and their first offsets; rebuild a lost or damaged file from the batches."""
    end_offset = segments[-1].end_offset
    try:
        if not file_exists(path / checkpoints.LEADER_EPOCHS, fs):
            raise CorruptDataError("the file is gone")
        known = [entry for entry in checkpoints.read_leader_epochs(path, fs) if entry[1] <= end_offset]
        newest = _newest_epoch(segments)
        if newest > (known[-1][0] if known else -1):
            raise CorruptDataError(f"the file does not know of epoch {newest}")
        return known
    except (CorruptDataError, ValueError) as error:
        log.warning("[partition %s] rebuilding leader-epoch-checkpoint from the batches: %s", path.name, error)
    found: list[tuple[int, int]] = []
    for segment in segments:
        for batch in segment.scan(0, skip_damage=True):
            epoch = batch.header.partition_leader_epoch
            if epoch > (found[-1][0] if found else -1):
                found.append((epoch, batch.header.base_offset))
    checkpoints.write_leader_epochs(path, found, fs)
    return found
