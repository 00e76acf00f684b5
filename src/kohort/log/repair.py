"""Repair of defects that `check` found: damaged bytes are moved to separate files and replaced by empty batches.

Compaction leaves the same kind of empty batch: it has offsets but no records, so that offsets stay continuous and
readers can continue. Nothing is deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from kohort.log import checkpoints, opening, recovery
from kohort.log.check import Defect
from kohort.log.damage import ASIDE
from kohort.log.files import FileCache
from kohort.log.filesystem import file_mode, folder_mode, sync_folder
from kohort.log.segment import Segment
from kohort.wire.batch import seal_batch

_COPY_BYTES = 1 << 20
_INDEX_INTERVAL = 4096
_FILES = 8


def repair(found: Sequence[Defect]) -> Iterator[tuple[Defect, Path | None]]:
    """Repair one defect after the other. Defects that are not yielded can't be repaired.

    Yields:
        The repaired defect, and the file with its former bytes; None if there were none.

    Raises:
        OSError: the disk failed. Each file is either unchanged or repaired.
    """
    for finding in found:
        if finding.kind == "index":
            yield finding, _set_index_aside(finding)
    records = sorted((finding for finding in found if finding.kind == "records"), key=_place)
    for path, group in groupby(records, key=lambda finding: finding.damage.path):
        yield from _repair_file(path, list(group))


def _place(found: Defect) -> tuple[str, int]:
    return str(found.damage.path), found.damage.position


def _set_index_aside(found: Defect) -> Path | None:
    path, aside = found.damage.path, None
    if path.exists():
        aside = _free_name(path.with_name(path.name + ASIDE))
        path.rename(aside)
        sync_folder(path.parent)
    if path.name == checkpoints.LEADER_EPOCHS:
        bases = sorted(int(file.stem) for file in path.parent.glob("*.log") if file.stem.isdecimal())
        recovery.load_or_rebuild_epochs(path.parent, [_opened(path.parent, base) for base in bases])
    elif path.suffix in (".index", ".timeindex"):
        _make_indexes(path.with_suffix(".log"))
    elif path.suffix == ".txnindex":  # the next start reads the transactions again
        recovery.delete_snapshots_after(path.parent, int(path.stem))
    return aside


def _free_name(path: Path) -> Path:
    """Return `path`, or a name with a number if it exists: files of earlier repairs are kept."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name.removesuffix(ASIDE)}-{number}{ASIDE}")
    return free


def _repair_file(path: Path, found: list[Defect]) -> list[tuple[Defect, Path | None]]:
    """Write the file again without its damaged ranges, then replace the old one."""
    done: list[tuple[Defect, Path | None]] = []
    temporary = path.with_name(path.name + ".tmp")
    size = path.stat().st_size if path.exists() else 0
    position = 0
    if not path.parent.exists():
        path.parent.mkdir(folder_mode(path.parent))
        sync_folder(path.parent.parent)
    with open(temporary, "wb", opener=_private) as out:
        for finding in found:
            damage = finding.damage
            length = damage.length or 0
            _copy(path, position, damage.position, out.fileno())
            done.append((finding, _set_aside(path, damage.position, length) if length else None))
            os.write(out.fileno(), _filler(finding))
            position = damage.position + length
        _copy(path, position, size, out.fileno())
        os.fsync(out.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
    for suffix in (".index", ".timeindex"):
        path.with_suffix(suffix).unlink(missing_ok=True)
    _make_indexes(path)
    return done


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, file_mode(path))


def _set_aside(path: Path, position: int, length: int) -> Path:
    aside = _free_name(path.with_name(f"{path.name}.{position}{ASIDE}"))
    with open(aside, "xb", opener=_private) as out:
        _copy(path, position, position + length, out.fileno())
        os.fsync(out.fileno())
    return aside


def _copy(path: Path, begin: int, end: int, target: int) -> None:
    """Append a part of a file to another one."""
    if end <= begin:
        return
    with path.open("rb") as source:
        source.seek(begin)
        left = end - begin
        while left:
            data = source.read(min(_COPY_BYTES, left))
            if not data:
                raise OSError(f"{path} ends {left} bytes early")
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(target, rest) :]
            left -= len(data)


def _filler(found: Defect) -> bytes:
    """Return an empty batch that covers the lost offsets; nothing if there are none, or at the log's end."""
    damage = found.damage
    if damage.next_offset is None or damage.next_offset <= damage.first_offset:
        return b""
    numbers = (damage.next_offset - damage.first_offset - 1, -1, -1)
    return seal_batch(b"", 0, numbers, {"base_offset": damage.first_offset, "leader_epoch": found.epoch})


def _make_indexes(path: Path) -> None:
    segment = _opened(path.parent, int(path.stem))
    segment.add_last_time_entry()
    segment.close()


def _opened(path: Path, base_offset: int) -> Segment:
    segment = Segment(path, base_offset, FileCache(_FILES, 0), _INDEX_INTERVAL)
    segment.gaps = True
    opening.load_segment(segment, None, crc=False)
    return segment
