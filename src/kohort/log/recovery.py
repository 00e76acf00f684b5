"""Opening a partition's folder: which segments there are, where they end, what the producers' state was.

What an unclean end can leave behind depends on what ended. When only the process died, everything it wrote is still
with the kernel: the last write may be torn, no more. When the machine died, anything after the last fsync may be
missing or garbage, so that part is read again and checked by CRC.

Only an end with nothing readable behind it is taken for torn and cut off, and only where no checkpoint or snapshot says
that there were records; when the machine died, also what lies behind a hole in what was not known to be on the disk
(`unsynced.py`). Everything else that can't be read is damage: it stays, and is refused where it is read.
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
from kohort.log.continuity import Epochs, Located, whole_end
from kohort.log.damage import ASIDE, Damage
from kohort.log.files import FileCache
from kohort.log.filesystem import SYSTEM, FileSystem, exists, remove, sync_folder, write_all
from kohort.log.markers import Marker, apply_marker, parse_marker
from kohort.log.producers import Producers
from kohort.log.results import OpenFile, RecoveryReport
from kohort.log.segment import Segment
from kohort.wire.batch import HEADER_SIZE, parse_header

# -- After the machine died: the log ends at the first damage among what was not known to be on the disk
#
# Any part of that may be lost, so that a hole in it has readable batches behind it. Kafka too recovers each segment
# from the recovery point on and ends the log at the first batch that is wrong; where Kafka deletes what lies behind, it
# is set aside here, in files of its own. Damage of what was known to be on the disk stays where it is, and is refused.

_COPY_BYTES = 1 << 20

log = logging.getLogger("kohort.log")


def end_at_hole(
    segments: list[Segment],
    torn: list[bool],
    sure: int,
    start: int,
    config: LogConfig,
    files: FileCache,
    report: RecoveryReport,
) -> None:
    """Cut off what lies at and behind the first damage from offset `sure` on, if something readable is behind it.

    What has nothing readable behind is an end like others, and stays as it is.

    Args:
        segments: as they were loaded; changed in place.
        torn: which of them end in bytes that are no batch; changed in place.
        sure: everything before it was on the disk.
        start: where the log starts: a hole before it takes nothing.

    Raises:
        OSError: the disk failed or is full; another attempt goes on where this one stopped.
    """
    fs = files.fs
    holes = ((number, _hole(segment, sure, start, fs)) for number, segment in enumerate(segments))
    number, hole = next(((number, hole) for number, hole in holes if hole is not None), (-1, None))
    if hole is None:
        return
    segment = segments[number]
    later, there = segments[number + 1 :], exists(segment.path, fs)
    size = segment.file_size() if there else 0
    if not _readable_behind(segment, hole, size, later):
        return
    aside = [_set_segment_aside(after, report, fs) for after in reversed(later)]
    if there and size > hole.position:
        aside.append(_set_end_aside(segment.path, hole.position, size, fs))
    sync_folder(segment.path.parent, fs)
    report.truncated_bytes += size - hole.position
    log.warning(
        "%s; the machine stopped before that was known to be on the disk: the log ends at offset %d, what lies behind "
        "is set aside in %s",
        hole.sentence(),
        hole.first_offset,
        ", ".join(path.name for path in reversed(aside) if path is not None),
    )
    gone = {segment.path, *(after.path for after in later)}
    report.damages = [damage for damage in report.damages if damage.path not in gone]
    ended, is_torn = _ended(segment, hole, config, files, report, closed=bool(later))
    segments[number:] = ended
    torn[number:] = is_torn


def _hole(segment: Segment, sure: int, start: int, fs: FileSystem) -> Damage | None:
    """The first damage from `sure` on; a file that is there and can't be opened may be sound, and is none."""
    if segment.inherited is None or not (segment.readable or not exists(segment.path, fs)):
        return None
    for damage in segment.inherited.damages:
        if damage.first_offset >= sure and (damage.next_offset is None or damage.next_offset > start):
            return damage
    return None


def _readable_behind(segment: Segment, hole: Damage, size: int, later: Sequence[Segment]) -> bool:
    if any(after.size for after in later) or hole.position + (hole.length or 0) < size:
        return True
    if not size:
        return False
    return whole_end(segment.open(), hole.position, size, hole.first_offset, whole_writes=False) is not None


def _ended(
    segment: Segment, hole: Damage, config: LogConfig, files: FileCache, report: RecoveryReport, *, closed: bool
) -> tuple[list[Segment], list[bool]]:
    """The segment without what lies behind the hole, and an empty one behind it if it was closed."""
    fs, folder, epochs = files.fs, segment.path.parent, segment.epochs
    ended: list[Segment] = []
    torn: list[bool] = []
    if hole.position == 0:
        segment.delete()
    else:
        segment.give_up()
        fs.truncate(segment.path, hole.position)
        for suffix in (".index", ".timeindex"):
            remove(segment.path.with_suffix(suffix), fs)
        kept = Segment(folder, segment.base_offset, files, config.index_interval_bytes)
        kept.epochs, kept.gaps = epochs, segment.gaps
        found, is_torn = opening.load(kept, 0, hole.first_offset if closed else None)
        kept.transactions.truncate_to_offset(hole.first_offset)
        kept.finish()
        report.damages += found.damages
        ended.append(kept)
        torn.append(is_torn)
    if closed or not ended:
        fresh = Segment(folder, hole.first_offset, files, config.index_interval_bytes)
        fresh.epochs = epochs
        fresh.create()
        ended.append(fresh)
        torn.append(False)
    return ended, torn


def _set_segment_aside(segment: Segment, report: RecoveryReport, fs: FileSystem) -> Path | None:
    """Rename a segment's file and remove what belongs to it; None if nothing was in it."""
    aside = None
    if exists(segment.path, fs) and (size := segment.file_size()):
        aside = _free_name(segment.path.with_name(segment.path.name + ASIDE), fs)
        fs.replace(segment.path, aside)
        report.truncated_bytes += size
    segment.delete()
    return aside


def _set_end_aside(path: Path, position: int, size: int, fs: FileSystem) -> Path:
    """Copy the end of a file, and have the copy on the disk."""
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
    """`path`, or with a number where that is taken: what was set aside earlier stays."""
    number, free = 1, path
    while exists(free, fs):
        number += 1
        free = path.with_name(f"{path.name.removesuffix(ASIDE)}-{number}{ASIDE}")
    return free


_EVERYTHING = 2**63 - 1
_LEFTOVERS = (".tmp", ".cleaned", ".deleted")
SEGMENT_FILE = re.compile(r"[0-9]{20}\.(log|index|timeindex|txnindex)")
_FILES_OF_EMPTY = 1 + len(checkpoints.OF_PARTITION)

_RECALLED_BYTES = 128 << 10
"""Room for five batches of a client's usual 16 KiB from one producer or two."""


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How to open a partition.

    Attributes:
        clean: the last owner closed it; otherwise the tail is checked and cut.
        verified_offset: with `clean` false: everything before it is known to be on the disk, and batches from it on
            are checked by CRC. None when the machine kept running since: only the last write can be torn.
        log_start_offset: from the store's checkpoint; None: the first segment's.
        cleaned_offset: from the store's checkpoint: compaction has been through everything before it.
        persist: called when the log start moves, and before the log is cut off: must have made where it starts, and how
            far it is synced, durable when it returns.
        files: shared cache of open files.
        cleaned_unknown: `cleaned_offset` could not be told.
        synced_unknown: `verified_offset` could not be told: what can't be read may have been on the disk, all of it.
        known_end: the log had every offset below this one.
        topic_id: written to `partition.metadata` when given and not there yet.
        fresh: the partition is new; a folder of its name is a leftover.
        epoch_without_folder: the leader epoch of a partition that has none: records may have been read and lost with
            it.
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
    """The segments of a folder with these files, at least one, in order; the last is ready for appends.

    Raises:
        OSError: the last segment's file can't be opened.
    """
    known_end = known_end_of(path, names, options, files.fs)
    empty = _empty_segment(path, names, files, config) if len(names) <= _FILES_OF_EMPTY else None
    if empty is not None and known_end <= empty.base_offset:
        return [empty]
    bases, missing = _tidy(path, names, files, config)
    if not bases:
        first = Segment(path, options.log_start_offset or 0, files, config.index_interval_bytes)
        first.create()
        bases = [first.base_offset]
    epochs = known_epochs(path, names, bases, options, files.fs)
    segments = [Segment(path, base, files, config.index_interval_bytes) for base in sorted([*bases, *missing])]
    for segment in segments:
        segment.epochs = epochs
        closed = segment is not segments[-1]
        segment.gaps = segment.base_offset < options.cleaned_offset or (closed and options.cleaned_offset > 0)
        segment.gaps = segment.gaps or (closed and (config.compacts or options.cleaned_unknown))
    torn = _open_each(path, segments, options, known_end, report, files.fs)
    if options.verified_offset is not None and not options.clean:
        sure = surely_on_disk(options)
        if not options.synced_unknown:
            end_at_hole(segments, torn, sure, options.log_start_offset or 0, config, files, report)
        _drop_unread(segments, torn, sure, report)
    last = segments[-1]
    if torn[len(segments) - 1]:
        whole = whole_end(
            last.open(),
            last.size,
            last.file_size(),
            last.end_offset,
            whole_writes=options.clean or options.verified_offset is None,
        )
        known_end = max(known_end, whole or 0)
    return _end_at(segments, torn[len(segments) - 1], known_end, report, config, files)


def surely_on_disk(options: OpenOptions) -> int:
    """Every offset below it was on the disk when the machine died: it was synced, or compaction had written it anew."""
    return max(options.known_end, options.verified_offset or 0, options.cleaned_offset)


def _open_each(
    path: Path, segments: list[Segment], options: OpenOptions, known_end: int, report: RecoveryReport, fs: FileSystem
) -> list[bool]:
    """Take over each; returns which of them end in bytes that are no batch."""
    verify = None if options.clean else _EVERYTHING if options.verified_offset is None else options.verified_offset
    torn = []
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        if following is not None and (verify is None or following <= verify):
            found, is_torn = opening.adopt(segment, following), False
        else:
            found, is_torn = _load(segment, verify, following, known_end)
        torn.append(is_torn)
        report.scanned_bytes += found.scanned_bytes
        report.rebuilt_indexes += found.rebuilt_indexes
        report.damages += found.damages
        if segment.path.with_suffix(".txnindex").name in found.rebuilt_indexes:
            _forget_snapshots_after(path, segment.base_offset, fs)
    return torn


def _load(segment: Segment, verify: int | None, following: int | None, known_end: int) -> tuple[RecoveryReport, bool]:
    """Take over a segment's end. Raises OSError: its file can't be opened, and nobody knows where it ended."""
    try:
        found = opening.load(segment, verify, following)
    except opening.UNUSABLE as error:
        segment.end_offset = known_end if following is None else following
        if segment.end_offset <= segment.base_offset:
            raise
        report = RecoveryReport()
        opening.refuse(segment, error, report)
        return report, False
    if following is not None:
        segment.finish()
    return found


def _drop_unread(segments: list[Segment], torn: list[bool], known_end: int, report: RecoveryReport) -> None:
    """Drop segments at the end without a batch, behind one with a torn end.

    After the machine died they are part of what was lost.
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
    """Have the last segment end where it does.

    Cut off what is torn; behind damage that took known records, begin another.
    """
    last = segments[-1]
    if last.readable:
        if last.end_offset >= known_end:
            if torn:
                opening.cut(last, report)
            return segments
        opening.keep_end(last, known_end, report)
    fresh = Segment(last.path.parent, known_end, files, config.index_interval_bytes)
    fresh.epochs = last.epochs
    fresh.create()
    return [*segments, fresh]


def known_end_of(path: Path, names: list[str], options: OpenOptions, fs: FileSystem = SYSTEM) -> int:
    """Records up to here were in the log for certain."""
    known = options.known_end
    if options.clean or options.verified_offset is None:
        for offset in snapshot_offsets(names):
            if offset > known and Producers(path.name, options.limits.producers).load_snapshot(
                snapshot_path(path, offset), 0, fs
            ):
                known = offset
    return known


def known_epochs(
    path: Path, names: list[str], bases: list[int], options: OpenOptions, fs: FileSystem = SYSTEM
) -> Epochs:
    """The leader epochs as the checkpoint has them. After the machine died, later ones may have begun."""
    complete = options.clean or options.verified_offset is None
    if checkpoints.LEADER_EPOCHS not in names:
        lost = any(_first_epoch(path / f"{base:020d}.log", fs) > 0 for base in bases[-2:])
        return Epochs() if lost else Epochs((), complete)
    try:
        return Epochs(tuple(checkpoints.read_epochs(path, fs)), complete)
    except (CorruptDataError, ValueError):
        return Epochs()


def _empty_segment(path: Path, names: list[str], files: FileCache, config: LogConfig) -> Segment | None:
    """The only segment, if nothing was ever written to it: most partitions of a folder with thousands are such."""
    logs = [name for name in names if name.endswith(".log")]
    if len(logs) != 1 or any(name not in (logs[0], *checkpoints.OF_PARTITION) for name in names):
        return None
    base = logs[0].removesuffix(".log")
    if not base.isdecimal() or files.fs.stat(f"{path}{os.sep}{logs[0]}").st_size:
        return None
    segment = Segment(path, int(base), files, config.index_interval_bytes)
    segment.epochs = Epochs(())
    return segment


def _forget_snapshots_after(path: Path, offset: int, fs: FileSystem) -> None:
    """Have the transactions behind `offset` read again from the log."""
    for snapshot in snapshot_offsets(fs.listdir(path)):
        if snapshot > offset:
            fs.unlink(snapshot_path(path, snapshot))


def snapshot_path(path: Path, offset: int) -> Path:
    """The producer snapshot of a partition as of `offset`."""
    return path / f"{offset:020d}.snapshot"


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """The offsets of a partition's producer snapshots, of its files, ascending."""
    stems = [name.removesuffix(".snapshot") for name in names if name.endswith(".snapshot")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _tidy(path: Path, names: list[str], files: FileCache, config: LogConfig) -> tuple[list[int], list[int]]:
    """Finish or undo what a crash interrupted.

    Gives the base offsets of the segments left, and of those whose file is gone.
    """
    fs = files.fs
    for name in names:
        if name.endswith(_LEFTOVERS):
            fs.unlink(path / name)
    swaps = sorted(name for name in names if name.endswith(".log.swap"))
    for name in swaps:
        end = int(name[21:41])
        if not any(name.endswith(".log") and name[:20].isdecimal() and int(name[:20]) >= end for name in names):
            Segment(path, end, files, config.index_interval_bytes).create()  # lost with the machine
        finish_swap(path, path / name, files, config)
    present = fs.listdir(path) if swaps else names
    bases = sorted({int(name[:20]) for name in present if SEGMENT_FILE.fullmatch(name) and name.endswith(".log")})
    missing: set[int] = set()
    for name in present:
        if name in checkpoints.OF_PARTITION or name.endswith((".snapshot", ".log.swap", ASIDE, *_LEFTOVERS)):
            continue
        if not SEGMENT_FILE.fullmatch(name):
            log.warning("%s: %s is no file of a log, and is left alone", path.name, name)
        elif int(name[:20]) not in bases:
            if bases and bases[0] < int(name[:20]) < bases[-1] and not name.endswith(".txnindex"):
                missing.add(int(name[:20]))
            else:
                fs.unlink(path / name)
    return bases, sorted(missing)


def finish_swap(path: Path, swap: Path, files: FileCache, config: LogConfig) -> Segment:
    """Put a compacted file in the place of the segments that it was made from: all between its base and its end.

    May be called again where it failed. The name of a swap file is `<base offset>-<end offset>.log.swap`. Its name is
    synced before theirs go; that these are gone, and its indexes, before it takes the first one's; that it has, before
    anything else is done. So no power loss leaves neither of both, or both, or a file whose gaps no index vouches for,
    or brings the swap file back beside that of a later compaction.
    """
    base, end = (int(number) for number in swap.name.split(".", 1)[0].split("-"))
    fs = files.fs
    if exists(swap, fs):
        sync_folder(path, fs)
        for file in map(Path, fs.listdir(path)):
            old = file.suffix in (".log", ".index", ".timeindex") and file.stem.isdecimal()
            if old and base <= int(file.stem) < end:
                fs.unlink(path / file)
    segment = Segment(path, base, files, config.index_interval_bytes)
    segment.gaps = True
    place = segment.path
    if exists(swap, fs):
        segment.path = swap
    opening.load(segment, None, end, crc=False)
    segment.end_offset = end
    segment.finish()
    if segment.path != place:
        sync_folder(path, fs)
        fs.replace(swap, place)
        segment.path = place
    sync_folder(path, fs)
    return segment


def load_producers(
    path: Path, segments: Sequence[Segment], producers: Producers, now_ms: int, fs: FileSystem = SYSTEM
) -> int:
    """Take over the newest sound snapshot and replay the batches behind it.

    Returns the snapshot's offset, -1 if none.
    """
    end_offset = segments[-1].end_offset
    start = -1
    producers.clear()
    for offset in reversed(snapshot_offsets(fs.listdir(path))):
        if offset <= end_offset and producers.load_snapshot(snapshot_path(path, offset), now_ms, fs):
            start = offset
            break
        fs.unlink(snapshot_path(path, offset))
    if producers.by_id:
        _recall(segments, producers, start)
    for segment in segments:
        if segment.end_offset <= start or not segment.size:
            continue
        for batch in segment.sound_from(start):
            header = batch.header
            if header.producer_id < 0 or header.base_offset < start:
                continue
            if not header.is_control:
                producers.note(header, header.base_offset, now_ms)
                continue
            marker = _marker(segment, batch)
            if marker is not None:
                apply_marker(producers, segment, marker, header.base_offset, now_ms)
    return start


def _marker(segment: Segment, batch: Located) -> Marker | None:
    """A transaction's marker; None if it can't be read."""
    try:
        return parse_marker(batch.header, segment.read_batch(batch))
    except CorruptDataError as error:
        log.error("%s: the marker at offset %d can't be read: %s", segment.name, batch.header.base_offset, error)
        return None


def _recall(segments: Sequence[Segment], producers: Producers, snapshot: int) -> None:
    """Remember the batches shortly before a snapshot, which has one of each producer: several may be sent again."""
    room = _RECALLED_BYTES
    found: list[tuple[Segment, int, int]] = []
    for segment in reversed(segments):
        if segment.base_offset >= snapshot or not segment.size:
            continue
        end = next(segment.sound_from(snapshot), None)
        stop = end.position if end is not None else segment.size
        found.append((segment, segment.boundary_before(stop - room), stop))
        room -= stop
        if room <= 0:
            break
    for segment, first, stop in reversed(found):
        for batch in segment.scan(first, stop, skip=True):
            if batch.header.base_sequence >= 0:
                producers.recall(batch.header)


def _first_epoch(path: Path, fs: FileSystem) -> int:
    """The leader epoch of a file's first batch, -1 if there is none."""
    try:
        file = OpenFile(path, os.O_RDONLY, fs)
        return parse_header(fs.pread(file.fd, HEADER_SIZE, 0)).partition_leader_epoch
    except (OSError, CorruptDataError):
        return -1


def _newest_epoch(segments: Sequence[Segment]) -> int:
    """The leader epoch of the last batch that can be read, -1 if there is none."""
    for segment in reversed(segments):
        if segment.size:
            last = deque(segment.scan(segment.boundary_before(segment.size - 1), skip=True), 1)
            if last:
                return last[0].header.partition_leader_epoch
    return -1


def load_epochs(path: Path, segments: Sequence[Segment], fs: FileSystem = SYSTEM) -> list[tuple[int, int]]:
    """The leader epochs and their first offsets; read from the batches again if the file is damaged or lost."""
    end_offset = segments[-1].end_offset
    try:
        if not exists(path / checkpoints.LEADER_EPOCHS, fs):
            raise CorruptDataError("the file is gone")
        known = [entry for entry in checkpoints.read_epochs(path, fs) if entry[1] <= end_offset]
        newest = _newest_epoch(segments)
        if newest > (known[-1][0] if known else -1):
            raise CorruptDataError(f"the file does not know of epoch {newest}")
        return known
    except (CorruptDataError, ValueError) as error:
        log.warning("%s: its leader epochs are read from its batches again (%s)", path.name, error)
    found: list[tuple[int, int]] = []
    for segment in segments:
        for batch in segment.scan(0, skip=True):
            epoch = batch.header.partition_leader_epoch
            if epoch > (found[-1][0] if found else -1):
                found.append((epoch, batch.header.base_offset))
    checkpoints.write_epochs(path, found, fs)
    return found
