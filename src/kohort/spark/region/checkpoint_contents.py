"""Which files of a Spark checkpoint belong to the time up to a batch, by the names of their kinds.

What is of a kind that kohort does not know is refused by name: left out, it would be missing; taken over, it might be
of a later time. Names that begin with a dot are checksums, which go with their files, or files on their way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kohort.errors import InvalidInputError
from kohort.region.files import SYSTEM, FileCalls, names_in
from kohort.spark.region.checkpoint_logs import COMMITS, OFFSETS, numbers
from kohort.spark.region.checkpoint_state import METADATA, SCHEMAS, SHARED, STATE, schema_batch, version_file

QUERY: Final = "metadata"
_SOURCES: Final = "sources"


@dataclass(slots=True)
class Contents:
    """What of an old checkpoint goes into a new one, by paths relative to both.

    Attributes:
        folders: each after the one that it is in.
        linked: files that get a second name.
        anew: files whose text depends on where they lie.
    """

    folders: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    anew: list[str] = field(default_factory=list)


def contents_up_to(old: str, batch: int, *, files: FileCalls = SYSTEM) -> Contents:
    """What of a checkpoint belongs to the time up to a batch.

    Raises:
        InvalidInputError: there is something of which that can't be told.
    """
    taken = Contents()
    for name in _shown(names_in(files, old)):
        if name == QUERY:
            taken.linked += _families("", names_in(files, old), [QUERY])
        elif name in (OFFSETS, COMMITS):
            _look_through_log(files, old, name, batch, taken)
        elif name == _SOURCES:
            _take_all(files, old, name, taken)
        elif name == STATE:
            _look_through_state(files, old, batch, taken)
        else:
            raise _unknown(old, name)
    return taken


def _look_through_log(files: FileCalls, old: str, log: str, batch: int, taken: Contents) -> None:
    names = names_in(files, f"{old}/{log}")
    for name in _shown(names):
        if not numbers([name]):
            raise _unknown(old, f"{log}/{name}")
    taken.folders.append(log)
    taken.linked += _families(log, names, (str(each) for each in numbers(names) if each <= batch))


def _take_all(files: FileCalls, old: str, folder: str, taken: Contents) -> None:
    """A folder whose files don't go by batches: entries of a later time do no harm in it."""
    taken.folders.append(folder)
    names = names_in(files, f"{old}/{folder}")
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


def _look_through_state(files: FileCalls, old: str, batch: int, taken: Contents) -> None:
    taken.folders.append(STATE)
    for operator in _shown(names_in(files, f"{old}/{STATE}")):
        folder = f"{STATE}/{operator}"
        if not numbers([operator]):
            raise _unknown(old, folder)
        taken.folders.append(folder)
        for name in _shown(names_in(files, f"{old}/{folder}")):
            if numbers([name]):
                _look_through_store(files, old, f"{folder}/{name}", batch, taken)
            elif name == METADATA:
                _look_through_operator(files, old, f"{folder}/{name}", batch, taken)
            elif name == SCHEMAS:
                _look_through_schemas(files, old, f"{folder}/{name}", batch, taken)
            else:
                raise _unknown(old, f"{folder}/{name}")


def _look_through_store(
    files: FileCalls, old: str, folder: str, batch: int, taken: Contents, *, named: bool = False
) -> None:
    """A partition's folder: the files of its default store, or a folder for each of its stores."""
    taken.folders.append(folder)
    names = names_in(files, f"{old}/{folder}")
    kept = []
    for name in _shown(names):
        found = version_file(name)
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
    """Whether a version of the state is what the batch left, or older."""
    return version <= batch + 1


def _look_through_names(files: FileCalls, old: str, folder: str, known: list[str], taken: Contents) -> None:
    """A folder that has these files and no others."""
    taken.folders.append(folder)
    names = names_in(files, f"{old}/{folder}")
    for name in _shown(names):
        if name not in known:
            raise _unknown(old, f"{folder}/{name}")
    taken.linked += _families(folder, names, known)


def _look_through_operator(files: FileCalls, old: str, folder: str, batch: int, taken: Contents) -> None:
    """An operator's metadata: those of version 2 are of a batch, and may name absolute paths."""
    names = names_in(files, f"{old}/{folder}")
    if "v2" not in names:
        _look_through_names(files, old, folder, ["metadata"], taken)
        return
    for name in _shown(names):
        if name not in ("metadata", "v2"):
            raise _unknown(old, f"{folder}/{name}")
    noted = f"{folder}/v2"
    taken.folders += [folder, noted]
    taken.linked += _families(folder, names, ["metadata"])
    for name in _shown(names_in(files, f"{old}/{noted}")):
        if not numbers([name]):
            raise _unknown(old, f"{noted}/{name}")
        if int(name) <= batch:
            taken.anew.append(f"{noted}/{name}")


def _look_through_schemas(files: FileCalls, old: str, folder: str, batch: int, taken: Contents) -> None:
    taken.folders.append(folder)
    for store in _shown(names_in(files, f"{old}/{folder}")):
        inside = f"{folder}/{store}"
        if not _is_folder(files, f"{old}/{inside}"):
            raise _unknown(old, inside)
        taken.folders.append(inside)
        names = names_in(files, f"{old}/{inside}")
        kept = []
        for name in _shown(names):
            written = schema_batch(name)
            if written is None:
                raise _unknown(old, f"{inside}/{name}")
            if written <= batch:
                kept.append(name)
        taken.linked += _families(inside, names, kept)


def _shown(names: Iterable[str]) -> Iterator[str]:
    """Without checksums and files on their way, in one order."""
    return (name for name in sorted(names) if not name.startswith("."))


def _families(folder: str, names: Collection[str], kept: Iterable[str]) -> list[str]:
    """Files that are there, each with the checksum that Hadoop keeps of it: one without the other fails a query."""
    there = set(names)
    inside = f"{folder}/" if folder else ""
    return [
        f"{inside}{each}" for name in sorted(kept) if name in there for each in (name, f".{name}.crc") if each in there
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
