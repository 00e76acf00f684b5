"""Stray folders: those in a data folder that belong to no partition of the catalog."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import uuid
from collections.abc import Mapping
from pathlib import Path

from kohort.log import checkpoints
from kohort.log.catalog import CatalogTopic
from kohort.log.filesystem import SYSTEM, FileSystem, folder_mode
from kohort.log.recovery import SEGMENT_FILE

STRAY = "-stray"
"""Suffix for a folder that blocks a partition's name and is not the broker's."""
DELETED = "-delete"
"""Suffix for the folder of a deleted partition."""

log = logging.getLogger("kohort.log")


def remove_strays(data_dir: Path, topics: Mapping[str, CatalogTopic]) -> dict[str, uuid.UUID]:
    """Remove what an interrupted deletion left; return the topic ids of the other partitions' folders, by folder."""
    ids: dict[str, uuid.UUID] = {}
    known = {topic.id for topic in topics.values()}
    with os.scandir(data_dir) as entries:
        folders = [entry for entry in entries if entry.is_dir()]
    for entry in folders:
        name, dash, number = entry.name.rpartition("-")
        if entry.name.endswith(DELETED):
            _remove(entry.path)
        elif dash and number.isdecimal():
            topic = topics.get(name)
            topic_id = checkpoints.read_partition_metadata(entry.path)
            ours = topic is not None and int(number) < topic.partitions and topic_id in (None, topic.id)
            if ours and topic_id is not None:
                ids[entry.name] = topic_id
            elif not ours and topic_id is not None and topic_id not in known:
                log.warning("%s: removing %s, whose topic was deleted", data_dir, entry.name)
                _remove(entry.path)
            elif not ours:
                _leave(data_dir, entry.name, in_the_way=topic is not None)
    return ids


def _remove(path: str) -> None:
    """Remove a folder. A failure is left to the next start, and does not prevent this one."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        log.warning("folder %s can't be removed: %s", path, error)


def _leave(data_dir: Path, name: str, *, in_the_way: bool) -> None:
    """Keep a folder that looks like a partition's but is not the broker's: somebody may have put it there."""
    if in_the_way:
        stays = step_aside(data_dir / name).name
        log.warning("%s: renamed folder %s to %s: it belongs to no topic of the catalog", data_dir, name, stays)
    else:
        log.warning("%s: kept folder %s, which belongs to no topic of the catalog", data_dir, name)


def step_aside(path: Path) -> Path:
    """Rename a folder that blocks a partition's name to a free name, and return that."""
    names = (f"{path.name}{number}{STRAY}" for number in ("", *(f".{n}" for n in range(1, 1_000_000))))
    free = next(candidate for candidate in map(path.with_name, names) if not os.path.lexists(candidate))
    os.rename(path, free)
    return free


def clear_the_way(path: Path, topic_id: uuid.UUID | None, fs: FileSystem = SYSTEM) -> None:
    """Remove or rename an existing folder in a new partition's place.

    It may be left from a failed attempt or a deleted topic. A folder that is not the broker's is only renamed.
    """
    found = checkpoints.read_partition_metadata(path, fs)
    if found == topic_id or all(_is_empty_leftover(path / name, fs) for name in fs.listdir(path)):
        return
    if found is None:
        step_aside(path)
    else:
        shutil.rmtree(path)
    fs.mkdir(path, folder_mode(path))


def _is_empty_leftover(file: Path, fs: FileSystem) -> bool:
    """Return whether an interrupted first write left this file."""
    if file.name != checkpoints.PARTITION_METADATA and SEGMENT_FILE.fullmatch(file.name) is None:
        return False
    found = fs.stat(file)
    return stat.S_ISREG(found.st_mode) and not found.st_size
