"""The checkpoint folders of a region's query: each run has its own, cloned from the one that the manifest names.

    QUERY/e7/        the folder of epoch 7, as Spark writes it; no other run writes to it
    QUERY/e9.tmp/    being made: hard links to files of e7 up to batch N, and rewritten files
    QUERY/e9/        the same after one rename

A checkpoint can't be reset in place: in any order of removing files, a crash could skip batches or run one twice
(docs/design/spark.md). So the old folder stays as it is, and a zombie has a folder of its own to write to. Spark
replaces files by renames and never writes into one, so both folders can share a file by hard links. A file whose text
must change is rewritten. Kinds of files that kohort does not know are refused by name.

The order of durability: rewritten files and the entries of all folders come before the new folder's rename. The rename
comes before `clone_checkpoint` returns. Spark writes the bytes of linked files, and does not sync them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID, uuid4

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.confined_files import confine_files
from kohort.region.files import (
    SYSTEM,
    FileCalls,
    list_folder,
    local_path,
    make_folder,
    read_file,
    remove_file,
    remove_folder,
    sync_folder,
    write_file,
)
from kohort.region.sinks.availability import NO_LINKS_ERRNOS
from kohort.spark.region.checkpoint_files import (
    COMMITS,
    METADATA,
    OFFSETS,
    SCHEMAS,
    SHARED,
    STATE,
    batch_numbers,
    can_continue_after,
    find_source_offset,
    first_unloadable_store,
    last_completed_batch,
    parse_schema_file_name,
    parse_state_file_name,
    read_batch_commit,
    read_batch_offsets,
    read_stateful_operators,
    relocate_operator_metadata,
)
from kohort.spark.source.single_reader_lock import lock_folder as user_folder

# -- The files of a Spark checkpoint that belong to batches up to N, by the kinds of their names
#
# Kinds of files that kohort does not know are refused by name. Left out, they would be missing. Copied, they might
# belong to a later batch. Names that begin with a dot are checksums, which go with their files, or files being written.

QUERY: Final = "metadata"
_SOURCES: Final = "sources"


@dataclass(slots=True)
class CheckpointContents:
    """The parts of an old checkpoint that go into a new one, by paths relative to both.

    Attributes:
        folders: the folders to make, each after its parent.
        linked: files that get a hard link in the new checkpoint.
        anew: files that are written again, because their text contains the checkpoint's absolute path.
    """

    folders: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    anew: list[str] = field(default_factory=list)


def checkpoint_contents_up_to(old: str, batch: int, *, files: FileCalls = SYSTEM) -> CheckpointContents:
    """Return the contents of a checkpoint that belong to batches up to `batch`.

    Raises:
        InvalidInputError: the batch of some file can't be determined.
    """
    taken = CheckpointContents()
    for name in _shown(list_folder(files, old)):
        if name == QUERY:
            taken.linked += _families("", list_folder(files, old), [QUERY])
        elif name in (OFFSETS, COMMITS):
            _look_through_log(files, old, name, batch, taken)
        elif name == _SOURCES:
            _take_all(files, old, name, taken)
        elif name == STATE:
            _look_through_state(files, old, batch, taken)
        else:
            raise _unknown(old, name)
    return taken


def _look_through_log(files: FileCalls, old: str, log: str, batch: int, taken: CheckpointContents) -> None:
    names = list_folder(files, f"{old}/{log}")
    for name in _shown(names):
        if not batch_numbers([name]):
            raise _unknown(old, f"{log}/{name}")
    taken.folders.append(log)
    taken.linked += _families(log, names, (str(number) for number in batch_numbers(names) if number <= batch))


def _take_all(files: FileCalls, old: str, folder: str, taken: CheckpointContents) -> None:
    """Add a folder to the clone with everything in it, because its files do not depend on the batch."""
    taken.folders.append(folder)
    names = list_folder(files, f"{old}/{folder}")
    whole = []
    for name in _shown(names):
        try:
            files.listdir(f"{old}/{folder}/{name}")
        except NotADirectoryError:
            whole.append(name)
        except FileNotFoundError:
            continue
        else:
            _take_all(files, old, f"{folder}/{name}", taken)
    taken.linked += _families(folder, names, whole)


def _look_through_state(files: FileCalls, old: str, batch: int, taken: CheckpointContents) -> None:
    taken.folders.append(STATE)
    for operator in _shown(list_folder(files, f"{old}/{STATE}")):
        folder = f"{STATE}/{operator}"
        if not batch_numbers([operator]):
            raise _unknown(old, folder)
        taken.folders.append(folder)
        for name in _shown(list_folder(files, f"{old}/{folder}")):
            if batch_numbers([name]):
                _look_through_store(files, old, f"{folder}/{name}", batch, taken)
            elif name == METADATA:
                _look_through_operator(files, old, f"{folder}/{name}", batch, taken)
            elif name == SCHEMAS:
                _look_through_schemas(files, old, f"{folder}/{name}", batch, taken)
            else:
                raise _unknown(old, f"{folder}/{name}")


def _look_through_store(
    files: FileCalls, old: str, folder: str, batch: int, taken: CheckpointContents, *, named: bool = False
) -> None:
    """Add a partition's folder of state to the clone, with the files of state versions up to the batch.

    The folder has the files of the default store, or one folder for each store.

    Raises:
        InvalidInputError: a file is of an unknown kind.
    """
    taken.folders.append(folder)
    names = list_folder(files, f"{old}/{folder}")
    kept = []
    for name in _shown(names):
        found = parse_state_file_name(name)
        if found is not None:
            if _belongs(found.version, batch):
                kept.append(name)
        elif name == METADATA:
            _look_through_names(files, old, f"{folder}/{name}", ["schema"], taken)
        elif name in SHARED:
            _take_all(files, old, f"{folder}/{name}", taken)
        elif not named and _is_folder(files, f"{old}/{folder}/{name}"):
            _look_through_store(files, old, f"{folder}/{name}", batch, taken, named=True)
        else:
            raise _unknown(old, f"{folder}/{name}")
    taken.linked += _families(folder, names, kept)


def _belongs(version: int, batch: int) -> bool:
    """Return whether batches up to `batch` have written this state version: batch N writes version N + 1."""
    return version <= batch + 1


def _look_through_names(files: FileCalls, old: str, folder: str, known: list[str], taken: CheckpointContents) -> None:
    """Add a folder to the clone.

    Raises:
        InvalidInputError: it has other files than those in `known`.
    """
    taken.folders.append(folder)
    names = list_folder(files, f"{old}/{folder}")
    for name in _shown(names):
        if name not in known:
            raise _unknown(old, f"{folder}/{name}")
    taken.linked += _families(folder, names, known)


def _look_through_operator(files: FileCalls, old: str, folder: str, batch: int, taken: CheckpointContents) -> None:
    """Add a stateful operator's metadata to the clone.

    In version 2 there is a file for each run's first batch, which may contain absolute paths and is written again.
    """
    names = list_folder(files, f"{old}/{folder}")
    if "v2" not in names:
        _look_through_names(files, old, folder, ["metadata"], taken)
        return
    for name in _shown(names):
        if name not in ("metadata", "v2"):
            raise _unknown(old, f"{folder}/{name}")
    noted = f"{folder}/v2"
    taken.folders += [folder, noted]
    taken.linked += _families(folder, names, ["metadata"])
    for name in _shown(list_folder(files, f"{old}/{noted}")):
        if not batch_numbers([name]):
            raise _unknown(old, f"{noted}/{name}")
        if int(name) <= batch:
            taken.anew.append(f"{noted}/{name}")


def _look_through_schemas(files: FileCalls, old: str, folder: str, batch: int, taken: CheckpointContents) -> None:
    taken.folders.append(folder)
    for store in _shown(list_folder(files, f"{old}/{folder}")):
        inside = f"{folder}/{store}"
        if not _is_folder(files, f"{old}/{inside}"):
            raise _unknown(old, inside)
        taken.folders.append(inside)
        names = list_folder(files, f"{old}/{inside}")
        kept = []
        for name in _shown(names):
            written = parse_schema_file_name(name)
            if written is None:
                raise _unknown(old, f"{inside}/{name}")
            if written <= batch:
                kept.append(name)
        taken.linked += _families(inside, names, kept)


def _shown(names: Iterable[str]) -> Iterator[str]:
    """Yield file names in order, without those that begin with a dot: checksums, and files being written."""
    return (name for name in sorted(names) if not name.startswith("."))


def _families(folder: str, names: Collection[str], kept: Iterable[str]) -> list[str]:
    """Return the paths of those `kept` files of a folder that exist, each followed by its Hadoop checksum file."""
    there = set(names)
    inside = f"{folder}/" if folder else ""
    return [
        f"{inside}{file}" for name in sorted(kept) if name in there for file in (name, f".{name}.crc") if file in there
    ]


def _is_folder(files: FileCalls, path: str) -> bool:
    try:
        files.listdir(path)
    except NotADirectoryError:
        return False
    return True


def _unknown(old: str, path: str) -> InvalidInputError:
    return InvalidInputError(
        f"{old}/{path} is nothing that kohort knows in a Spark checkpoint, so it can't tell to which batch it belongs "
        "and can't take the query back: remove it if it is not Spark's; else use the HDFS-backed or the RocksDB state "
        "store, or a query that does without it"
    )


__all__ = [
    "TemporaryCheckpoints",
    "check_checkpoint_folder",
    "clone_checkpoint",
    "epoch_folder",
    "find_source_offset",
    "last_completed_batch",
    "read_batch_offsets",
    "read_stateful_operators",
    "remove_old_epochs",
]

_EPOCH: Final = re.compile(r"e([0-9]+)(?:\.tmp)?")
_ON_ITS_WAY: Final = ".tmp"
_PROBE: Final = ".probe-"


def check_checkpoint_folder(folder: str) -> str:
    """Return the absolute path of a folder in which checkpoints can be cloned; create the folder if needed.

    Raises:
        InvalidInputError: the folder is a URL, or on a file system without hard links.
    """
    path = local_path(folder, "The checkpoint folder of a region")
    files = confine_files(SYSTEM, path)
    probe = f"{path}/{_PROBE}{uuid4().hex}"
    try:
        make_folder(files, path)
        files.mkdir(probe)
        try:
            write_file(files, f"{probe}/file", b"probe")
            files.link(f"{probe}/file", f"{probe}/linked")
            files.rename(probe, f"{probe}.renamed")
        finally:
            remove_folder(files, probe)
            remove_folder(files, f"{probe}.renamed")
    except OSError as error:
        problem = "has no hard links" if error.errno in NO_LINKS_ERRNOS else "can't be written to"
        raise InvalidInputError(
            f"a region can't keep its checkpoints in {path}, which {problem}: {error}; choose a folder on a file "
            "system that has them, local or mounted, and that this user may write to"
        ) from error
    return path


def epoch_folder(query_folder: str, epoch: int) -> str:
    """Return the checkpoint folder of a query's run in an epoch."""
    return f"{query_folder}/e{epoch}"


def clone_checkpoint(
    old: str, new: str, batch: int | None, *, query_id: UUID | None = None, files: FileCalls = SYSTEM
) -> None:
    """Clone a checkpoint up to a batch, so that Spark continues from there; the old one stays as it is.

    The call may be repeated after it failed or the process died at any point. If the folder exists, the call only
    checks that it is the same clone. Two processes must not make the same clone at the same time.

    Args:
        old: the checkpoint that has the batch; ignored if there is none.
        new: a path on the same file system, absolute like `old`; `new.tmp` is made beside it.
        batch: the last batch to keep; None: none, so that the query starts without logs.
        query_id: Spark's id of the query that starts without logs; None: Spark makes one.
        files: the system's calls, or a test's.

    Raises:
        CorruptDataError: the old checkpoint lacks something that it should have.
        InvalidInputError: the old checkpoint no longer has the batch's files, or has unknown files; there are no hard
            links; or a query has already run in the new one.
    """
    files = confine_files(files, os.path.dirname(new), private=True)
    make_folder(files, os.path.dirname(new))  # an earlier process may have made it, and not have synced its name
    if _is_there(files, new, batch):
        sync_folder(files, os.path.dirname(new))
        return
    on_its_way = f"{new}{_ON_ITS_WAY}"
    _remove_tree(files, on_its_way)
    if batch is None:
        make_folder(files, on_its_way)
        if query_id is not None:
            write_file(files, f"{on_its_way}/{QUERY}", json.dumps({"id": str(query_id)}).encode())
    else:
        _check_retained(files, old, batch)
        taken = checkpoint_contents_up_to(old, batch, files=files)
        make_folder(files, on_its_way)
        _fill(files, old, on_its_way, new, taken)
        _check_whole(files, on_its_way, batch, taken)
        for folder in reversed(taken.folders):
            sync_folder(files, f"{on_its_way}/{folder}")
    sync_folder(files, on_its_way)
    files.rename(on_its_way, new)
    sync_folder(files, os.path.dirname(new))


def remove_old_epochs(query_folder: str, keep: Collection[int], *, files: FileCalls = SYSTEM) -> list[int]:
    """Remove a query's checkpoint folders of all epochs before the lowest in `keep`; return the removed epochs.

    A folder to which an old run is still writing stays until a later call.
    """
    files = confine_files(files, query_folder)
    gone: set[int] = set()
    for name in list_folder(files, query_folder):
        found = _EPOCH.fullmatch(name)
        if not found or not keep or int(found[1]) >= min(keep):
            continue
        try:
            _remove_tree(files, f"{query_folder}/{name}")
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
        else:
            gone.add(int(found[1]))
    return sorted(gone)


def _is_there(files: FileCalls, new: str, batch: int | None) -> bool:
    """Return whether an earlier call has made this clone already.

    Raises:
        InvalidInputError: a query has planned a batch in it since.
    """
    if not list_folder(files, new):
        return False
    planned = max(batch_numbers(list_folder(files, f"{new}/{OFFSETS}")), default=None)
    if planned == batch and (batch is None or last_completed_batch(new, files=files) == batch):
        return True
    raise InvalidInputError(
        f"{new} can't be made from batch {batch} of another checkpoint: a query has run in it, up to batch {planned}. "
        "Each run of a region's query needs an epoch of its own. If the region's topic was brought back from an older "
        "copy, its epochs come again: move this folder away, and those of later epochs"
    )


def _check_retained(files: FileCalls, old: str, batch: int) -> None:
    """Check that the old checkpoint's logs still have the batch.

    Raises:
        InvalidInputError: Spark has removed old batches, of which it keeps `minBatchesToRetain`.
        CorruptDataError: the checkpoint is missing or damaged.
    """
    names = list_folder(files, old)
    if not names:
        raise CorruptDataError(f"{old} is not there or empty, and the region's last sequence is batch {batch} of it")
    if can_continue_after(old, batch, files=files):
        return
    planned = batch_numbers(list_folder(files, f"{old}/{OFFSETS}"))
    if planned and max(planned) > batch and min(planned) > max(batch - 1, 0):
        raise InvalidInputError(
            f"{old} can't be taken back to batch {batch}, where the region's last sequence ends: Spark has removed "
            f"what is before batch {min(planned)}, for it runs batch {max(planned)} and keeps as many as "
            "spark.sql.streaming.minBatchesToRetain says. Take checkpoints more often, or raise that setting"
        )
    raise CorruptDataError(
        f"{old} can't be taken back to batch {batch}: {OFFSETS}/{batch}, {COMMITS}/{batch} or "
        f"{OFFSETS}/{max(batch - 1, 0)} is missing or damaged"
    )


def _fill(files: FileCalls, old: str, on_its_way: str, new: str, taken: CheckpointContents) -> None:
    """Fill the clone of a checkpoint: make its folders, hard links and rewritten files.

    Files that Spark's cleanup removes meanwhile are too old to matter.
    """
    for folder in taken.folders:
        files.mkdir(f"{on_its_way}/{folder}")
    linked = []
    for path in taken.linked:
        try:
            files.link(f"{old}/{path}", f"{on_its_way}/{path}")
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in NO_LINKS_ERRNOS:
                raise
            raise InvalidInputError(
                f"{old}/{path} can't get a second name in {new}: {error}. Both must lie on one file system that has "
                "hard links, and belong to this user"
            ) from error
        linked.append(path)
    taken.linked = linked
    there = set(linked)
    for path in taken.anew:
        text = read_file(files, f"{old}/{path}").decode()
        moved, schemas = relocate_operator_metadata(f"{old}/{path}", text, new)
        if f"{old}/" in moved:
            raise InvalidInputError(f"{old}/{path} names paths in its own folder that kohort does not know: {moved}")
        absent = [schema for schema in schemas if schema not in there]
        if absent:
            raise CorruptDataError(f"{old}/{path} names {absent[0]}, which is not there")
        _write_anew(files, on_its_way, path, moved)


def _write_anew(files: FileCalls, on_its_way: str, path: str, text: str) -> None:
    """Write a file without Hadoop's checksum, which is that of the old bytes."""
    write_file(files, f"{on_its_way}/{path}", text.encode())


def _check_whole(files: FileCalls, on_its_way: str, batch: int, taken: CheckpointContents) -> None:
    """Check that a clone has everything that Spark needs to continue after the batch: logs, and state of each store.

    Raises:
        CorruptDataError: something is missing.
    """
    if QUERY not in taken.linked or not can_continue_after(on_its_way, batch, files=files):
        raise CorruptDataError(
            f"{on_its_way} lacks Spark's own files up to batch {batch}: the old checkpoint was damaged"
        )
    lacking = first_unloadable_store(
        taken.linked,
        read_stateful_operators(on_its_way, batch, files=files),
        read_batch_commit(on_its_way, batch, files=files),
        batch + 1,
    )
    if lacking is not None:
        raise CorruptDataError(
            f"{lacking} has no version {batch + 1} that can be loaded, which batch {batch} left: its files are missing"
        )


def _remove_tree(files: FileCalls, path: str) -> None:
    """Remove a folder with its contents, also while another process is writing to it."""
    for name in list_folder(files, path):
        inside = f"{path}/{name}"
        try:
            _remove_tree(files, inside)
        except (NotADirectoryError, InvalidInputError):  # a file, or a symbolic link, which is removed itself
            remove_file(files, inside)
    with contextlib.suppress(FileNotFoundError):
        files.rmdir(path)


# -- A temporary folder for checkpoints that nobody needs after their process: those of queries that keep nothing there
#
# A process that is killed leaves its folder behind, and a later one removes it. A lock on the folder shows that it is
# in use: the operating system releases it with the process. `systemd-tmpfiles`, which removes old files, spares folders
# that are locked.

TEMPORARY: Final = "checkpoints-"
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class TemporaryCheckpoints:
    """A temporary folder for checkpoints, locked by this process until `close` removes it.

    Attributes:
        path: the folder's absolute path.
    """

    def __init__(self) -> None:
        """Make the folder, and remove those of processes that have ended.

        Raises:
            InvalidInputError: this user can make no folder among the machine's temporary files.
        """
        try:
            within = str(user_folder().resolve())
            _remove_abandoned(within)
            self.path, descriptor = _make_temporary(within)
        except OSError as error:
            raise InvalidInputError(
                f"a region's queries need a folder for their running checkpoints, and this user can make none among "
                f"the temporary files: {error}; name another folder in $TMPDIR, or give SparkRegion(folder=...)"
            ) from error
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        """Remove the folder; a later process removes files that could not be removed."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(descriptor)


def _make_temporary(within: str) -> tuple[str, int]:
    """Make a folder and lock it; return its path, and the descriptor that holds the lock."""
    while True:
        path = tempfile.mkdtemp(prefix=TEMPORARY, dir=within)
        with contextlib.suppress(FileNotFoundError):  # another process has taken it for an abandoned one
            descriptor = _locked(path, fcntl.LOCK_SH)
            if descriptor is not None:
                return path, descriptor


def _remove_abandoned(within: str) -> None:
    """Remove the folders that no process has locked."""
    for name in os.listdir(within):
        path = f"{within}/{name}"
        if name.startswith(TEMPORARY):
            with contextlib.suppress(OSError):  # another process removes it too, or it is no folder
                descriptor = _locked(path, fcntl.LOCK_EX)
                if descriptor is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(descriptor)


def _locked(path: str, how: int) -> int | None:
    """Return a descriptor of a folder that holds a lock on it; None if another process's lock forbids that.

    Raises:
        FileNotFoundError: the folder was removed.
        OSError: folders can't be locked there.
    """
    descriptor = os.open(path, _OPEN_FOLDER)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return descriptor
    except BlockingIOError:
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
