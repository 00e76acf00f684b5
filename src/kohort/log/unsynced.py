"""After the machine died: the log ends at the first damage among what was not known to be on the disk.

Any part of that may be lost, so that a hole in it has readable batches behind it. Kafka too recovers each segment from
the recovery point on and ends the log at the first batch that is wrong; where Kafka deletes what lies behind, it is
set aside here, in files of its own. Damage of what was known to be on the disk stays where it is, and is refused.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from kohort.log import opening
from kohort.log.chain import whole_end
from kohort.log.config import LogConfig
from kohort.log.damage import ASIDE, Damage
from kohort.log.files import FileCache
from kohort.log.filesystem import FileSystem, exists, remove, sync_folder, write_all
from kohort.log.results import OpenFile, RecoveryReport
from kohort.log.segment import Segment

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
    aside = [_set_segment_aside(each, report, fs) for each in reversed(later)]
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
    gone = {segment.path, *(each.path for each in later)}
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
    if any(each.size for each in later) or hole.position + (hole.length or 0) < size:
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
