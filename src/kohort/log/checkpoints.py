"""Checkpoints: the small text files that Kafka keeps beside its logs, replaced atomically."""

from __future__ import annotations

import base64
import contextlib
import errno
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from kohort.errors import CorruptDataError
from kohort.ids import TopicPartition
from kohort.log.files import FILES_OWN
from kohort.log.filesystem import (
    PRIVATE_MODE,
    SYSTEM,
    FileSystem,
    read_file,
    read_open_file,
    remove_if_exists,
    write_file,
)
from kohort.wire.checksum import crc32c

log = logging.getLogger("kohort.log")

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
OFFSET_CHECKSUMS = "offset-checkpoint-checksums"
"""kohort's own file, which Kafka ignores: checksums of these three files, which have none. A flipped digit in one would
move a log's start or end."""

PARTITION_METADATA = "partition.metadata"
LEADER_EPOCHS = "leader-epoch-checkpoint"
TRANSACTION_INDEXES = "transaction-index-checkpoint"
"""kohort's own file, which Kafka ignores: checksums of the transaction indexes, which have none."""
OF_PARTITION = (PARTITION_METADATA, LEADER_EPOCHS, TRANSACTION_INDEXES)
"""Files in a partition's folder besides those of its segments."""
_NO_CONTENT = 0
"""The checksum of an offset checkpoint that does not exist yet."""


def replace_file(
    path: Path, data: bytes | str, *, sync: bool = True, mode: int = PRIVATE_MODE, fs: FileSystem = SYSTEM
) -> None:
    """Put `data` in place of `path` so that a crash leaves the old content or the new.

    Args:
        sync: whether the new content also survives a power loss.
        mode: the file's permissions.

    Raises:
        OSError: the old content is in place, or there is no file if there was none. If that could not be restored, the
            text says so. Which version a power loss leaves is unknown until the file is written again.
    """
    folder = fs.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if sync else -1
    before = -1
    try:
        with contextlib.suppress(FileNotFoundError):
            before = fs.open(path, os.O_RDONLY | os.O_CLOEXEC) if sync else -1
        _put(path, data.encode() if isinstance(data, str) else data, fs, sync=sync, mode=mode)
        if sync:
            try:
                fs.fsync(folder)
            except OSError as error:
                raise _put_back(path, before, error, fs, mode) from error
    finally:
        for fd in (folder, before):
            if fd >= 0:
                fs.close(fd)


def _put(path: Path, data: bytes, fs: FileSystem, *, sync: bool, mode: int) -> None:
    temporary = path.with_name(path.name + ".tmp")
    write_file(temporary, data, fs, sync=sync, mode=mode)
    fs.replace(temporary, path)


def _put_back(path: Path, before: int, error: OSError, fs: FileSystem, mode: int) -> OSError:
    """Restore the old file after a replacement whose folder could not be fsynced.

    `before` is a descriptor of the old file, -1: none.

    Returns:
        The error to raise.
    """
    why = f"{error.strerror} for the folder of {path.name}"
    try:
        if before < 0:
            fs.unlink(path)
        else:
            _put(path, read_open_file(before, fs), fs, sync=True, mode=mode)
    except OSError as failure:
        return OSError(
            error.errno, f"{why}; it has its new content all the same, which could not be put back ({failure})"
        )
    return OSError(error.errno, f"{why}; {'it has its old content' if before >= 0 else 'it is removed'} again")


def write_offset_checkpoints(
    folder: Path, offsets: Mapping[str, Mapping[TopicPartition, int]], fs: FileSystem = SYSTEM
) -> None:
    """Replace the given offset checkpoints of a data folder, by file name, if they change; durable when this returns.

    The file of their checksums is replaced first, with the checksums of both old and new content. So either is valid
    after a crash.

    Raises:
        OSError: a file could not be written.
    """
    files = {name: encode_offset_checkpoint(found) for name, found in offsets.items()}
    present = {name: _content(folder / name, fs) for name in files}
    checksums = read_checksums(folder, fs)
    sums = {name: crc32c(data or b"") for name, data in present.items()}
    if all(present[name] == data and sums[name] in checksums.get(name, ()) for name, data in files.items()):
        return
    for name, data in files.items():
        is_sound = sums[name] in checksums.get(name, {sums[name]})
        checksums[name] = {crc32c(data), sums[name]} if is_sound else {crc32c(data)}
    rows = [f"{name} {crc}" for name, found in checksums.items() for crc in sorted(found)]
    rows.append(f"{OFFSET_CHECKSUMS} {_checksum_of(rows)}")
    replace_file(folder / OFFSET_CHECKSUMS, "\n".join(["0", str(len(rows)), *rows]) + "\n", fs=fs)
    for name, data in files.items():
        if present[name] != data:
            replace_file(folder / name, data, fs=fs)


def _content(path: Path, fs: FileSystem) -> bytes | None:
    try:
        return read_file(path, fs)
    except FileNotFoundError:
        return None


def _checksum_of(rows: list[str]) -> int:
    return int(crc32c("\n".join(rows).encode()))


def read_checksums(folder: Path, fs: FileSystem = SYSTEM) -> dict[str, set[int]]:
    """Return the valid checksums of each offset checkpoint.

    Without the file, or if it is damaged, return none, so that checkpoints are not verified.
    """
    path, found = folder / OFFSET_CHECKSUMS, dict[str, set[int]]()
    try:
        rows = _read_lines(path, 2, fs)
        if rows and rows.pop() != [OFFSET_CHECKSUMS, str(_checksum_of([" ".join(row) for row in rows]))]:
            raise CorruptDataError("its own checksum does not fit")
        for name, crc in rows:
            found.setdefault(name, set()).add(int(crc))
    except (CorruptDataError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in FILES_OWN:
            raise
        log.warning("checksum file %s can't be read, so the offset checkpoints are not verified: %s", path, error)
        return {}
    return found


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode Kafka's offset checkpoint: version 0, the count, then `topic partition offset` lines."""
    lines = ["0", str(len(offsets))]
    lines += [f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()]
    return ("\n".join(lines) + "\n").encode()


def read_offset_checkpoint(path: Path, known: set[int] | None, fs: FileSystem = SYSTEM) -> dict[TopicPartition, int]:
    """Read an offset checkpoint; empty if there is no file. `known`: the checksums that it may have; None: any.

    Raises:
        CorruptDataError: the file is damaged.
    """
    data = _content(path, fs)
    if data is None:
        if known is not None and _NO_CONTENT not in known:
            log.warning(
                "checkpoint file %s is missing, although it was written; opening the logs without its offsets", path
            )
        return {}
    if known is not None and crc32c(data) not in known:
        raise CorruptDataError(
            f"{path} is damaged: its checksum does not fit. If it was edited on purpose, remove {OFFSET_CHECKSUMS}"
        )
    found = {}
    for words in _split_lines(path, data, 3):
        found[TopicPartition(words[0], int(words[1]))] = int(words[2])
    return found


def read_offsets_if_valid(
    path: Path,
    checksums: Mapping[str, set[int]],
    damaged: Callable[[Path, Exception], None] | None = None,
    fs: FileSystem = SYSTEM,
) -> dict[TopicPartition, int] | None:
    """Read an offset checkpoint, or return None if it is damaged: logs can be opened without it.

    `checksums` are those of `read_checksums`.

    The damage is passed to `damaged`, or logged.

    Raises:
        OSError: a resource is missing that another attempt may have.
    """
    try:
        return read_offset_checkpoint(path, checksums.get(path.name), fs)
    except (CorruptDataError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in FILES_OWN:
            raise
        if damaged is None:
            log.error("checkpoint %s can't be read (%s); the logs are opened without its offsets", path, error)
        else:
            damaged(path, error)
        return None


def write_leader_epochs(
    folder: Path, epochs: Iterable[tuple[int, int]], fs: FileSystem = SYSTEM, *, sync: bool = False
) -> None:
    """Write `leader-epoch-checkpoint`: version 0, the count, then `epoch start_offset` lines."""
    lines = [f"{epoch} {start}" for epoch, start in epochs]
    replace_file(folder / LEADER_EPOCHS, "\n".join(["0", str(len(lines)), *lines]) + "\n", sync=sync, fs=fs)


def read_leader_epochs(folder: Path, fs: FileSystem = SYSTEM) -> list[tuple[int, int]]:
    """Read a partition's `leader-epoch-checkpoint` as (epoch, start offset) pairs.

    Raises:
        CorruptDataError: the file is damaged.
    """
    return [(int(words[0]), int(words[1])) for words in _read_lines(folder / LEADER_EPOCHS, 2, fs)]


class IndexChecksum(NamedTuple):
    """The CRC32C that the first `entries` entries of a segment's transaction index must have."""

    entries: int
    crc: int


def write_index_checksums(folder: Path, checksums: Mapping[int, IndexChecksum], fs: FileSystem = SYSTEM) -> None:
    """Write `transaction-index-checkpoint`: version 0, the count, then `base_offset entries crc` lines."""
    lines = [f"{base} {entries} {crc}" for base, (entries, crc) in checksums.items()]
    replace_file(folder / TRANSACTION_INDEXES, "\n".join(["0", str(len(lines)), *lines]) + "\n", sync=False, fs=fs)


def read_index_checksums(folder: Path, fs: FileSystem = SYSTEM) -> dict[int, IndexChecksum]:
    """Read `transaction-index-checkpoint` by the segments' base offsets; empty if it is missing or damaged."""
    try:
        rows = _read_lines(folder / TRANSACTION_INDEXES, 3, fs)
        return {int(base): IndexChecksum(int(entries), int(crc)) for base, entries, crc in rows}
    except (CorruptDataError, ValueError, OSError) as error:
        log.warning(
            "%s/%s can't be read, so the transaction indexes are not verified: %s", folder, TRANSACTION_INDEXES, error
        )
        return {}


def _read_lines(path: Path, columns: int, fs: FileSystem) -> list[list[str]]:
    data = _content(path, fs)
    return [] if data is None else _split_lines(path, data, columns)


def _split_lines(path: Path, data: bytes, columns: int) -> list[list[str]]:
    lines = data.decode().splitlines()
    rows = [line.rsplit(" ", columns - 1) for line in lines[2:]]
    if lines[:1] != ["0"] or lines[1:2] != [str(len(rows))] or any(len(row) != columns for row in rows):
        raise CorruptDataError(f"{path} is no checkpoint file of version 0")
    return rows


def write_partition_metadata(folder: Path, topic_id: uuid.UUID, fs: FileSystem = SYSTEM) -> None:
    """Write `partition.metadata`, which connects the folder to a topic id.

    Raises:
        OSError: the file could not be written; nothing of it remains.
    """
    path = folder / PARTITION_METADATA
    text = f"version: 0\ntopic_id: {encode_id(topic_id)}".encode()
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_MODE)
    try:
        if fs.write(fd, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    except OSError:
        remove_if_exists(path, fs)
        raise
    finally:
        fs.close(fd)


def read_partition_metadata(folder: Path | str, fs: FileSystem = SYSTEM) -> uuid.UUID | None:
    """Return the topic id of a partition's folder, None if the file is missing or damaged."""
    try:
        text = read_file(f"{folder}{os.sep}{PARTITION_METADATA}", fs).decode()
        fields = dict(line.split(": ", 1) for line in text.splitlines())
        return decode_id(fields["topic_id"]) if fields.get("version") == "0" else None
    except (OSError, ValueError, KeyError):
        return None


def encode_id(value: uuid.UUID) -> str:
    """Encode an id in Kafka's form: URL-safe base64, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_id(text: str) -> uuid.UUID:
    """Decode a topic id from Kafka's 22 characters, as `encode_id` writes it.

    Raises:
        ValueError: the text is no id.
    """
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def new_id() -> uuid.UUID:
    """Generate an id whose text does not start with a dash (Kafka's rule: it would look like an option)."""
    while True:
        value = uuid.uuid4()
        if not encode_id(value).startswith("-"):
            return value
