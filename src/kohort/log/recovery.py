"""Opening a partition's folder: which segments there are, where they end, what the producers' state was.

What an unclean end can leave behind depends on what ended. When only the process died, everything it wrote is still
with the kernel: the last write may be torn, no more. When the machine died, anything after the last fsync may be
missing or garbage, so that part is read again and checked by CRC.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kohort.errors import CorruptDataError
from kohort.log import checkpoints
from kohort.log.config import LogConfig, StoreLimits
from kohort.log.files import FileCache
from kohort.log.markers import apply_marker, parse_marker
from kohort.log.producers import Producers
from kohort.log.results import RecoveryReport
from kohort.log.segment import Segment

_EVERYTHING = 2**63 - 1
_LEFTOVERS = (".tmp", ".cleaned", ".deleted")
_FILES_OF_EMPTY = 1 + len(checkpoints.OF_PARTITION)

_RECALLED_BYTES = 128 << 10
"""Room for five batches of a client's usual 16 KiB from one producer or two."""

log = logging.getLogger("kohort.log")


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How to open a partition.

    Attributes:
        clean: the last owner closed it; otherwise the tail is checked and cut.
        verified_offset: with `clean` false: everything before it is known to be on the disk, and batches from it on
            are checked by CRC. None when the machine kept running since: only the last write can be torn.
        log_start_offset: from the store's checkpoint; None: the first segment's.
        cleaned_offset: from the store's checkpoint: compaction has been through everything before it.
        persist: called when the log start has moved; must have made it durable when it returns.
        files: shared cache of open files.
        topic_id: written to `partition.metadata` when given and not there yet.
        fresh: the partition is new; a folder of its name is a leftover.
    """

    clean: bool = True
    verified_offset: int | None = None
    log_start_offset: int | None = None
    cleaned_offset: int = 0
    persist: Callable[[], None] | None = None
    files: FileCache | None = None
    limits: StoreLimits = field(default_factory=StoreLimits)
    topic_id: uuid.UUID | None = None
    fresh: bool = False


def open_segments(
    path: Path, names: list[str], files: FileCache, config: LogConfig, options: OpenOptions, report: RecoveryReport
) -> list[Segment]:
    """The segments of a folder with these files, at least one, in order; the last is ready for appends."""
    if len(names) <= _FILES_OF_EMPTY and (empty := _empty_segment(path, names, files, config)) is not None:
        return [empty]
    bases = _tidy(path, names, files, config)
    if not bases:
        first = Segment(path, options.log_start_offset or 0, files, config.index_interval_bytes)
        first.create()
        return [first]
    verify = None if options.clean else _EVERYTHING if options.verified_offset is None else options.verified_offset
    segments = [Segment(path, base, files, config.index_interval_bytes) for base in bases]
    for number, segment in enumerate(segments):
        following = bases[number + 1] if number + 1 < len(bases) else None
        closed = following is not None and (verify is None or following <= verify)
        found = segment.adopt(following or 0) if closed else segment.load(verify)
        report.scanned_bytes += found.scanned_bytes
        report.truncated_bytes += found.truncated_bytes
        report.rebuilt_indexes += found.rebuilt_indexes
        if segment.path.with_suffix(".txnindex").name in found.rebuilt_indexes:
            _forget_snapshots_after(path, segment.base_offset)
        if closed:
            continue
        if following is None:
            break
        if found.truncated_bytes:
            for lost in segments[number + 1 :]:
                report.truncated_bytes += lost.path.stat().st_size
                lost.delete()
            return segments[: number + 1]
        segment.finish()
        segment.end_offset = following
    return segments


def _empty_segment(path: Path, names: list[str], files: FileCache, config: LogConfig) -> Segment | None:
    """The only segment, if nothing was ever written to it: most partitions of a folder with thousands are such."""
    logs = [name for name in names if name.endswith(".log")]
    if len(logs) != 1 or any(name not in (logs[0], *checkpoints.OF_PARTITION) for name in names):
        return None
    base = logs[0].removesuffix(".log")
    if not base.isdecimal() or os.stat(f"{path}{os.sep}{logs[0]}").st_size:
        return None
    return Segment(path, int(base), files, config.index_interval_bytes)


def _forget_snapshots_after(path: Path, offset: int) -> None:
    """Have the transactions behind `offset` read again from the log."""
    for snapshot in snapshot_offsets(os.listdir(path)):
        if snapshot > offset:
            snapshot_path(path, snapshot).unlink()


def snapshot_path(path: Path, offset: int) -> Path:
    """The producer snapshot of a partition as of `offset`."""
    return path / f"{offset:020d}.snapshot"


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """The offsets of a partition's producer snapshots, of its files, ascending."""
    stems = [name.removesuffix(".snapshot") for name in names if name.endswith(".snapshot")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _tidy(path: Path, names: list[str], files: FileCache, config: LogConfig) -> list[int]:
    """Finish or undo what a crash interrupted; the base offsets of the segments left."""
    for name in names:
        if name.endswith(_LEFTOVERS):
            (path / name).unlink()
    swaps = sorted(name for name in names if name.endswith(".log.swap"))
    for name in swaps:
        finish_swap(path, path / name, files, config)
    stems = [name.partition(".") for name in (os.listdir(path) if swaps else names)]
    bases = sorted(int(stem) for stem, _, suffix in stems if suffix == "log" and stem.isdecimal())
    known = set(bases)
    for stem, _, suffix in stems:
        orphan = suffix in ("index", "timeindex", "txnindex")
        if orphan and not (stem.isdecimal() and int(stem) in known):
            (path / f"{stem}.{suffix}").unlink()
    return bases


def finish_swap(path: Path, swap: Path, files: FileCache, config: LogConfig) -> Segment:
    """Put a compacted file in the place of the segments that it was made from: all between its base and its end.

    The name of a swap file is `<base offset>-<end offset>.log.swap`.
    """
    base, end = (int(number) for number in swap.name.split(".", 1)[0].split("-"))
    for file in list(path.iterdir()):
        if file.suffix in (".log", ".index", ".timeindex") and file.stem.isdecimal() and base <= int(file.stem) < end:
            file.unlink()
    segment = Segment(path, base, files, config.index_interval_bytes)
    swap.replace(segment.path)
    segment.load(None)
    segment.end_offset = end
    segment.finish()
    return segment


def load_producers(path: Path, segments: Sequence[Segment], producers: Producers, now_ms: int) -> int:
    """Take over the newest sound snapshot and replay the batches behind it; returns the snapshot's offset, -1 if none."""
    end_offset = segments[-1].end_offset
    start = -1
    producers.clear()
    for offset in reversed(snapshot_offsets(os.listdir(path))):
        if offset <= end_offset and producers.load_snapshot(snapshot_path(path, offset), now_ms):
            start = offset
            break
        snapshot_path(path, offset).unlink()
    if producers.by_id:
        _recall(segments, producers, start)
    for segment in segments:
        if segment.end_offset <= start or not segment.size:
            continue
        first = segment.locate(start) if start > segment.base_offset else None
        for batch in segment.scan(first.position if first else 0):
            header = batch.header
            if header.producer_id < 0 or header.base_offset < start:
                continue
            if not header.is_control:
                producers.note(header, header.base_offset, now_ms)
                continue
            marker = parse_marker(header, segment.read_batch(batch))
            if marker is not None:
                apply_marker(producers, segment, marker, header.base_offset, now_ms)
    return start


def _recall(segments: Sequence[Segment], producers: Producers, snapshot: int) -> None:
    """Remember the batches shortly before a snapshot, which has one of each producer: several may be sent again."""
    room = _RECALLED_BYTES
    found: list[tuple[Segment, int, int]] = []
    for segment in reversed(segments):
        if segment.base_offset >= snapshot or not segment.size:
            continue
        end = segment.locate(snapshot)
        stop = end.position if end is not None else segment.size
        found.append((segment, segment.boundary_before(stop - room), stop))
        room -= stop
        if room <= 0:
            break
    for segment, first, stop in reversed(found):
        for batch in segment.scan(first, stop):
            if batch.header.base_sequence >= 0:
                producers.recall(batch.header)


def load_epochs(path: Path, segments: Sequence[Segment]) -> list[tuple[int, int]]:
    """The leader epochs and their first offsets; read from the batches again if the file is damaged."""
    end_offset = segments[-1].end_offset
    try:
        return [entry for entry in checkpoints.read_epochs(path) if entry[1] <= end_offset]
    except (CorruptDataError, ValueError) as error:
        log.warning("%s: its leader epochs are read from its batches again (%s)", path.name, error)
    found: list[tuple[int, int]] = []
    for segment in segments:
        for batch in segment.scan(0):
            epoch = batch.header.partition_leader_epoch
            if epoch > (found[-1][0] if found else -1):
                found.append((epoch, batch.header.base_offset))
    checkpoints.write_epochs(path, found)
    return found
