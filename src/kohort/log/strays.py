"""Stray folders: those in a data folder that belong to no partition of the catalog.

Only folders of topics whose deletion the catalog records are removed. Any other folder with records is kept: an
operator may have restored it, or the id in its `partition.metadata` may be damaged.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import uuid
from collections.abc import Collection, Mapping
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


def remove_deleted_topic_folders(
    data_dir: Path, topics: Mapping[str, CatalogTopic], removed: Collection[uuid.UUID]
) -> tuple[dict[str, uuid.UUID], set[uuid.UUID]]:
    """Remove partition folders that an interrupted deletion of a topic left.

    Args:
        data_dir: the data folder.
        topics: the topics of the catalog.
        removed: the ids of deleted topics whose folders may still be there.

    Returns:
        The topic ids of the other partitions' folders, by folder; and those of `removed` that are still there.
    """
    ids: dict[str, uuid.UUID] = {}
    stay: set[uuid.UUID] = set()
    with os.scandir(data_dir) as entries:
        folders = [entry for entry in entries if entry.is_dir()]
    for entry in folders:
        name, dash, number = entry.name.rpartition("-")
        if entry.name.endswith(DELETED):
            _remove(entry.path)
        elif dash and number.isdecimal():
            topic = topics.get(name)
            topic_id = checkpoints.read_partition_metadata(entry.path)
            partition = topic if topic is not None and int(number) < topic.partitions else None
            if partition is not None and topic_id == partition.id:
                ids[entry.name] = topic_id
            elif topic_id is not None and topic_id in removed:
                log.warning("data folder %s: removing %s, whose topic was deleted", data_dir, entry.name)
                if not _remove(entry.path):
                    stay.add(topic_id)
            elif partition is None or not _is_damaged_id(entry, topic_id, partition.id):
                _leave(data_dir, entry.name, in_the_way=topic is not None)
    return ids, stay


def _is_damaged_id(folder: os.DirEntry[str], found: uuid.UUID | None, expected: uuid.UUID) -> bool:
    """Return whether a partition's folder has no id, or one that differs from its topic's by a single character.

    Ids are random, so that of another topic differs by more. The partition is served, and gets its id again.
    """
    if found is None:
        return True
    characters = zip(checkpoints.encode_id(found), checkpoints.encode_id(expected), strict=True)
    if sum(there != here for there, here in characters) > 1:
        return False
    log.error(
        "%s/%s is damaged: topic id %s where the catalog says %s; the partition is served, the file is written again",
        folder.name,
        checkpoints.PARTITION_METADATA,
        checkpoints.encode_id(found),
        checkpoints.encode_id(expected),
    )
    return True


def _remove(path: str) -> bool:
    """Remove a folder; return whether that succeeded.

    A failure is left to the next start, and does not prevent this one.
    """
    try:
        shutil.rmtree(path)
    except OSError as error:
        log.warning("folder %s of a deleted partition can't be removed, the next start tries again: %s", path, error)
        return False
    return True


def _leave(data_dir: Path, name: str, *, in_the_way: bool) -> None:
    """Keep a partition folder that belongs to no topic, since an operator may have put it there, and log that.

    It is renamed if it blocks a partition's name.
    """
    if in_the_way:
        stays = rename_stray_folder(data_dir / name).name
        log.warning(
            "data folder %s: renamed folder %s to %s: it belongs to no topic of the catalog", data_dir, name, stays
        )
    else:
        log.warning("data folder %s: kept folder %s, which belongs to no topic of the catalog", data_dir, name)


def rename_stray_folder(path: Path) -> Path:
    """Rename a folder that blocks a partition's name to a free name, and return that."""
    names = (f"{path.name}{number}{STRAY}" for number in ("", *(f".{n}" for n in range(1, 1_000_000))))
    free = next(candidate for candidate in map(path.with_name, names) if not os.path.lexists(candidate))
    os.rename(path, free)
    return free


def clear_partition_folder(path: Path, topic_id: uuid.UUID | None, fs: FileSystem = SYSTEM) -> None:
    """Remove or rename an existing folder in a new partition's place.

    It may be left from a failed attempt or a deleted topic. A folder with records, or without a topic id, is renamed.
    """
    found = checkpoints.read_partition_metadata(path, fs)
    names = fs.listdir(path)
    if found == topic_id or all(_is_empty_leftover(path / name, fs) for name in names):
        return
    if found is None or any(name.endswith(".log") and fs.stat(path / name).st_size for name in names):
        log.warning(
            "folder %s renamed to %s: it belongs to no topic of the catalog", path, rename_stray_folder(path).name
        )
    else:
        shutil.rmtree(path)
    fs.mkdir(path, folder_mode(path))


def _is_empty_leftover(file: Path, fs: FileSystem) -> bool:
    """Return whether a file of a log is empty, as an interrupted first write leaves it."""
    if file.name != checkpoints.PARTITION_METADATA and SEGMENT_FILE.fullmatch(file.name) is None:
        return False
    found = fs.stat(file)
    return stat.S_ISREG(found.st_mode) and not found.st_size
