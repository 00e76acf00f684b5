"""Generations of a local Parquet folder, and the folders of sequences that readers without a list see.

    out/_region/compaction-3             a generation: created by a hard link, which only one process gets
    out/_compacted/…/ID.parquet          a file that a generation names: merged, or a second name of a large one
    out/_staging/showing-17-ATTEMPT      a folder on its way to `sequence=17`

One rename can't replace several folders, so that readers which list `sequence=*` see the change in steps. They see the
old folders until the grace time of a compaction is over. Then `remove_replaced_files` hides these, one after the other,
and shows the merged files in the folder of the last sequence that each has. In between some rows are missing for them,
and none is there twice. If a process dies there, the next sweep or compaction finishes the change.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final
from uuid import UUID

import msgspec
import pyarrow as pa

from kohort.errors import CorruptDataError, RetriableError
from kohort.region.files import (
    FileCalls,
    Output,
    list_folder,
    make_folder,
    read_file,
    remove_file,
    remove_tree,
    sync_folder,
    write_file,
)
from kohort.region.sinks import staged_files
from kohort.region.sinks.compaction import (
    COMPACTED,
    GENERATION,
    Generation,
    ParquetFileEntry,
    PublishedParquetFile,
    decode_generation,
    expired_generation_numbers,
)
from kohort.region.sinks.owner_marker import UNFINISHED

SHOWN: Final = re.compile("sequence=([0-9]+)")
SHOWING: Final = re.compile(r"showing-([0-9]+)-[0-9a-f]{32}")
GONE: Final = "gone-"
SAYS: Final = "_sequence-"
_NUMBERED: Final = re.compile(GENERATION + "([0-9]+)")
_READ_ATTEMPTS: Final = 5
_SHOW_ATTEMPTS: Final = 10


def files_below(files: FileCalls, folder: str) -> list[str]:
    """Return the paths of all Parquet files in a folder and its Hive partition folders, relative to the folder."""
    found = []
    for name in list_folder(files, folder):
        if name.endswith(".parquet"):
            found.append(name)
        elif "=" in name:
            found += [f"{name}/{path}" for path in files_below(files, f"{folder}/{name}")]
    return found


def _folders_above(path: str) -> Iterator[str]:
    """Yield the folders in which a path lies, from the innermost to the root, which is the empty text."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def create_partition_folders(files: FileCalls, folder: str, path: str, made: set[str]) -> None:
    """Create the Hive partition folders in the path of a file; `made` has those that exist, and gets the new ones."""
    above = folder
    for segment in path.split("/")[:-1]:
        above += f"/{segment}"
        if above not in made:
            made.add(above)
            files.mkdir(above)


class FolderGenerations:
    """The generations (file lists of compaction) and the published Parquet files of a local folder."""

    one_at_a_time: bool = True

    def __init__(self, files: FileCalls, path: str, region: UUID | None) -> None:
        self._files, self._path, self._id = files, path, region

    # -- generations

    def _numbers(self) -> list[int]:
        names = list_folder(self._files, f"{self._path}/_region")
        return [int(found[1]) for name in names if (found := _NUMBERED.fullmatch(name))]

    def newest_generation_number(self) -> int:
        """Return the number of the newest generation (file list); 0: none."""
        return max(self._numbers(), default=0)

    def read_newest_generation(self) -> Generation:
        """Return the newest generation (file list); if there is none, return an empty one with number 0."""
        for _ in range(_READ_ATTEMPTS):
            if not (number := self.newest_generation_number()):
                return Generation(1, self._id or UUID(int=0), 0, 0, {}, {}, "")
            with contextlib.suppress(FileNotFoundError):  # many later ones were created meanwhile
                return decode_generation(read_file(self._files, self._generation_path(number)), self._path)
        raise CorruptDataError(f"Generations of {self._path} are gone while they are read: try again")

    def newest_generation(self) -> Generation:
        """Return the newest generation (file list) after making it durable; without any, an empty one with number 0."""
        found = self.read_newest_generation()
        if found.generation:
            sync_folder(self._files, f"{self._path}/_region")
        return found

    def _generation_path(self, number: int) -> str:
        return f"{self._path}/_region/{GENERATION}{number}"

    def create_generation(self, generation: Generation) -> bool:
        """Store a generation (file list) durably under its number; return False if another process has taken it."""
        files, folder = self._files, f"{self._path}/_region"
        for above in sorted({above for path in generation.files for above in _folders_above(path)}):
            sync_folder(files, f"{self._path}/{above}" if above else self._path)
        temporary = f"{folder}/{uuid.uuid4().hex}{UNFINISHED}"
        try:
            write_file(files, temporary, msgspec.json.encode(generation))
            try:
                files.link(temporary, self._generation_path(generation.generation))
            except FileExistsError:
                return False
            sync_folder(files, folder)
        finally:
            with contextlib.suppress(OSError):
                remove_file(files, temporary)
        for number in expired_generation_numbers(self._numbers()):
            remove_file(files, self._generation_path(number))
        return True

    # -- files

    def list_sequence_files(self, after: int, upto: int) -> list[PublishedParquetFile]:
        """Return the Parquet files in the folders of published checkpoints with `after < sequence <= upto`."""
        return [
            PublishedParquetFile(
                path, ParquetFileEntry(self._files.stat(f"{self._path}/{path}").st_size, number, number)
            )
            for number in self.shown_sequences()
            if after < number <= upto
            for path in self.shown_sequence_files(number)
        ]

    def shown_sequences(self) -> list[int]:
        """Return the numbers N of all folders `sequence=N`, in ascending order."""
        return sorted(
            int(found[1]) for name in list_folder(self._files, self._path) if (found := SHOWN.fullmatch(name))
        )

    def shown_sequence_files(self, number: int) -> list[str]:
        """Return the sorted paths of the Parquet files in the folder `sequence=N`."""
        folder = f"sequence={number}"
        return [f"{folder}/{path}" for path in sorted(files_below(self._files, f"{self._path}/{folder}"))]

    def compaction_output_files(self) -> list[str]:
        """Return the paths of all Parquet files in compaction's folder, also of those that no generation has."""
        return [f"{COMPACTED}/{path}" for path in files_below(self._files, f"{self._path}/{COMPACTED}")]

    def read_content(self, path: str) -> bytes:
        """Return the content of a Parquet file; raise FileNotFoundError if it is gone."""
        return read_file(self._files, f"{self._path}/{path}")

    def write_merged_file(self, path: str, write: Callable[[Output | pa.BufferOutputStream], None]) -> int:
        """Write a merged file, sync it, and return its size in bytes; `create_generation` syncs its folder later."""
        make_folder(self._files, f"{self._path}/{path.rpartition('/')[0]}")
        with contextlib.closing(Output(self._files, f"{self._path}/{path}")) as output:
            write(output)
            output.sync()
            return output.tell()

    def keep_unmerged_file(self, path: str, to: str) -> str:
        """Hard-link a sequence's file to a path in compaction's folder, since the sequence's folder will be removed.

        Return that path. A file that is in compaction's folder already keeps its path.
        """
        if path.startswith(f"{COMPACTED}/"):
            return path
        make_folder(self._files, f"{self._path}/{to.rpartition('/')[0]}")
        staged_files.link_file(self._files, f"{self._path}/{path}", f"{self._path}/{to}")
        return to

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove those of these files that are in compaction's folder.

        Others disappear with their sequence's folder.
        """
        for path in paths:
            if path.startswith(f"{COMPACTED}/"):
                remove_file(self._files, f"{self._path}/{path}")

    # -- the folders that readers without a list see

    def remove_replaced_files(self, generation: Generation, due: Sequence[str]) -> None:
        """Make the folders `sequence=N` contain the files of this file list, and remove the replaced files `due`."""
        self.rebuild_sequence_folders(generation)
        self.remove_files(due)

    def rebuild_sequence_folders(self, generation: Generation) -> None:
        """Make the folders `sequence=N` up to `upto` of this generation (file list) contain exactly its files.

        Another process may do the same and hide a folder just shown, so this repeats until it holds.

        Raises:
            RetriableError: it did not hold after ten attempts.
        """
        wanted: dict[int, list[str]] = {}
        for path, file in generation.files.items():
            wanted.setdefault(file.last, []).append(path)
        for _ in range(_SHOW_ATTEMPTS):
            there = [number for number in self.shown_sequences() if number <= generation.upto]
            good = {number for number in there if number in wanted and self._shows(number, wanted[number])}
            if good == set(there) == set(wanted):
                break
            showing = {number: self._prepared(number, wanted[number]) for number in sorted(set(wanted) - good)}
            for number in sorted(set(there) - good):
                self._hide(f"{self._path}/sequence={number}")
            for number, folder in showing.items():
                self._show(number, folder)
        else:
            raise RetriableError(f"{self._path}: other processes show other files all the time")
        sync_folder(self._files, self._path)
        self._tidy()

    def _show(self, number: int, folder: str) -> None:
        try:
            self._files.rename(folder, f"{self._path}/sequence={number}")
        except FileNotFoundError:  # another process has tidied up
            pass
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise

    def _shows(self, number: int, paths: list[str]) -> bool:
        have = {path.partition("/")[2] for path in self.shown_sequence_files(number)}
        return have == {path.partition("/")[2] for path in paths}

    def _prepared(self, number: int, paths: list[str]) -> str:
        """Create a temporary folder with hard links to these files, to be renamed to `sequence=N`; return its path."""
        files, folder = self._files, f"{self._path}/_staging/showing-{number}-{uuid.uuid4().hex}"
        files.mkdir(folder)
        made: set[str] = set()
        for path in paths:
            inner = path.partition("/")[2]
            create_partition_folders(files, folder, inner, made)
            staged_files.link_file(files, f"{self._path}/{path}", f"{folder}/{inner}")
        if self._id is not None:
            says = f"{folder}/{SAYS}{number}-{self._id.hex}"
            files.close(files.open(says, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        for above in (*sorted(made, reverse=True), folder):
            sync_folder(files, above)
        return folder

    def _hide(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rename(folder, f"{self._path}/_staging/{GONE}{uuid.uuid4().hex}")

    def _tidy(self) -> None:
        """Remove folders that were hidden, and temporary ones that were never renamed to `sequence=N`."""
        for name in list_folder(self._files, f"{self._path}/_staging"):
            if SHOWING.fullmatch(name):
                self._hide(f"{self._path}/_staging/{name}")
        for name in list_folder(self._files, f"{self._path}/_staging"):
            if name.startswith(GONE):
                remove_tree(self._files, f"{self._path}/_staging/{name}")
