"""Compaction of a Parquet folder: many small published files become few large ones, in one atomic change.

A *generation* is one small object, or file, that names all files of the sequences up to a number. Readers take the
newest generation, and the files of later sequences from the sequences themselves. Generations are numbered, and each
is created under a name that nobody else can create (a conditional put, or a hard link). So:

- a reader finds the old files or the new ones: one creation replaces all of them;
- of two compactors that began from one generation, one creates the next. The other removes what it has written;
- `upto` is fixed before the first file is read: a sequence that is published meanwhile stays a sequence;
- files that no generation names any more stay for a grace time, for readers that took the list before. The generation
  lists them with the time. A replaced path is named again only after the region's topic was restored: that file stays;
- files that a dead compactor left are removed after a new generation was created. From then on a compactor that was
  only slow is refused, and its files can't be named any more. No clock is involved.

The last `GENERATIONS_KEPT` names of generations are kept: a compactor that has slept must not find its name free.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kohort.errors import CorruptDataError, InvalidInputError, RetriableError
from kohort.region.files import Output
from kohort.region.sinks.rows import with_added_columns
from kohort.region.sinks.staged_files import DICTIONARY_BYTES, Codec

COMPACTED: Final = "_compacted"
"""The folder of files that compaction has written."""
GENERATION: Final = "compaction-"
GENERATIONS_KEPT: Final = 64
TARGET_FILE_BYTES: Final = 128 << 20
GRACE: Final = "15m"
"""How long replaced files stay: a reader that took the list before opens them within that time."""
_ROW_GROUP_BYTES: Final = 64 << 20
_ATTEMPTS: Final = 3
_FENCE_ATTEMPTS: Final = 30


class CompactedFile(msgspec.Struct, frozen=True):
    """A file in a generation.

    Attributes:
        size: the size in bytes.
        first: the first sequence that may have rows in the file.
        last: the last sequence that may have rows in the file.
    """

    size: int
    first: int
    last: int


class Generation(msgspec.Struct, frozen=True):
    """A generation: the list of all files of the sequences up to a number, as readers take it.

    Attributes:
        format: the format's version, 1.
        region: the region's id.
        generation: the number; 0: there is none yet.
        upto: the last sequence whose files are here.
        files: all files of the sequences up to that one, by their path below the folder.
        replaced: files that are not named any more, with the time in ms when they were replaced.
        attempt: a name that is unique to the process that created the generation.
    """

    format: int
    region: UUID
    generation: int
    upto: int
    files: dict[str, CompactedFile]
    replaced: dict[str, int]
    attempt: str

    def files_after(self, sequence: int, place: str) -> list[tuple[int, str]]:
        """Return the files with rows of sequences after a number, each with its last sequence, in order.

        Raises:
            InvalidInputError: a file has rows of that sequence, or of an earlier one, and of later ones.
        """
        if mixed := [file for file in self.files.values() if file.first <= sequence < file.last]:
            raise InvalidInputError(
                f"{place} can't list what came after sequence {sequence}: compaction has merged sequences "
                f"{min(file.first for file in mixed)} to {max(file.last for file in mixed)}. Read all files again, "
                "and compact with `until`, the last sequence that all readers have"
            )
        return sorted((file.last, path) for path, file in self.files.items() if file.last > sequence)


def decoded_generation(data: bytes, place: str) -> Generation:
    """Return a generation from its content.

    Raises:
        CorruptDataError: the content can't be read.
        InvalidInputError: a newer kohort has written it.
    """
    try:
        found = msgspec.json.decode(data, type=Generation)
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"A generation of {place} can't be read: {error}") from error
    if found.format != 1:
        raise InvalidInputError(f"{place} was compacted by a newer kohort, in format {found.format}")
    for path in (*found.files, *found.replaced):
        if not _OF_ROWS.match(path) or not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise CorruptDataError(f"A generation of {place} names {path[:200]!r}, which is no file of rows: remove it")
    return found


_OF_ROWS: Final = re.compile(rf"(?:sequence=[0-9]+|_data|{COMPACTED})/.*\.parquet\Z", re.DOTALL)
"""The paths of files that a generation may name: whoever may write into the folder could name any other."""


class PublishedFile(NamedTuple):
    """A file of published rows: its path below the folder, and what a generation says of it."""

    path: str
    about: CompactedFile

    @property
    def partition(self) -> str:
        """The folders of its partition; empty: none."""
        return "/".join(self.path.split("/")[1:-1])


class CompactionResult(NamedTuple):
    """The outcome of a compaction.

    Attributes:
        merged: the number of small files that were merged.
        written: the number of files that they became.
        bytes: their size.
        removed: the number of files that an earlier compaction had replaced, and that were removed now.
        waiting: the number of replaced files whose grace time is not over.
    """

    merged: int = 0
    written: int = 0
    bytes: int = 0
    removed: int = 0
    waiting: int = 0


class GenerationStore(Protocol):
    """The operations that compaction needs of a folder or store: its generations, and the files below it."""

    one_at_a_time: bool
    """Whether nothing is merged before the grace time of the last compaction is over."""

    def newest(self) -> Generation:
        """Return the newest generation, durably; number 0 if there is none."""

    def newest_number(self) -> int:
        """Return the number of the newest generation; 0: none."""

    def create_generation(self, generation: Generation) -> bool:
        """Create a generation durably; return False if another process has created this number."""

    def sequence_files(self, after: int, upto: int) -> list[PublishedFile]:
        """Return the files of published sequences after a number, up to another."""

    def merged_files(self) -> list[str]:
        """Return the paths of all files in the folder for merged rows, also of those that no generation names."""

    def read_content(self, path: str) -> bytes:
        """Return a file's content; raise FileNotFoundError if it is gone."""

    def write_merged(self, path: str, write: Callable[[Output | pa.BufferOutputStream], None]) -> int:
        """Write a new file durably, and return its size; its name is durable when a generation is created."""

    def keep_file(self, path: str, to: str) -> str:
        """Keep a file that is not merged, perhaps linked to the free path `to`; return its path for the generation."""

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files that no generation names."""

    def retire_replaced(self, generation: Generation, due: Sequence[str]) -> None:
        """Remove replaced files of which nobody reads any more."""


class FileMerge(NamedTuple):
    """The settings of a merge: the schema, the compression and the sizes of the merged files.

    Attributes:
        schema: the schema of the merged rows.
        added: columns that older files lack; their rows get null.
        compression: the compression of Parquet's pages.
        row_group_size: the maximum number of rows in a row group; None: Arrow's default.
        target: the size in bytes that is aimed at.
    """

    schema: pa.Schema
    added: tuple[str, ...]
    compression: Codec
    row_group_size: int | None
    target: int


def plan_merges(files: Iterable[PublishedFile], target: int) -> list[list[PublishedFile]]:
    """Return lists of files to merge into one each: neighbours of a partition, below half the target size."""
    partitions: dict[str, list[PublishedFile]] = {}
    for file in sorted(files, key=lambda file: (file.about.first, file.path)):
        if file.about.size < target // 2:
            partitions.setdefault(file.partition, []).append(file)
    merges = []
    for small in partitions.values():
        merge: list[PublishedFile] = []
        size = 0
        for file in small:
            if merge and size + file.about.size > target:
                merges.append(merge)
                merge, size = [], 0
            merge.append(file)
            size += file.about.size
        merges.append(merge)
    return [merge for merge in merges if len(merge) > 1]


def merge_files(
    merge: FileMerge, sources: Mapping[str, Callable[[], bytes]], output: Output | pa.BufferOutputStream
) -> None:
    """Write the rows of several Parquet files into one.

    Raises:
        CorruptDataError: a file can't be read, or its rows are not all there.
    """
    rows = size = 0
    with pq.ParquetWriter(
        output,  # type: ignore[arg-type]
        merge.schema,
        compression=merge.compression,
        dictionary_pagesize_limit=DICTIONARY_BYTES,
    ) as writer:
        pending: list[pa.Table] = []

        def write_row_group() -> None:
            if pending:
                table = pa.concat_tables(pending).unify_dictionaries()
                writer.write_table(table, row_group_size=merge.row_group_size)
                pending.clear()

        for path, content in sources.items():
            for table in _row_groups(path, content(), merge):
                rows += table.num_rows
                pending.append(table)
                size += table.nbytes
                if size >= _ROW_GROUP_BYTES:
                    write_row_group()
                    size = 0
        write_row_group()
    expected = _rows_written(writer)
    if expected != rows:
        raise CorruptDataError(f"{expected} rows were written of {rows}: nothing is replaced")


def _row_groups(path: str, data: bytes, merge: FileMerge) -> Iterator[pa.Table]:
    """Yield the row groups of a file, one in memory at a time: a small file may decompress to gigabytes.

    Raises:
        CorruptDataError: the file can't be read, or has other columns.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        for number in range(file.num_row_groups):
            yield _in_merged_schema(file.read_row_group(number), merge)
    except (pa.ArrowException, ValueError) as error:
        raise CorruptDataError(f"{path} can't be merged: {error}") from error


def _in_merged_schema(table: pa.Table, merge: FileMerge) -> pa.Table:
    """Return the rows with all columns; those that were added after they were written hold null."""
    if table.schema.equals(merge.schema):
        return table
    table = with_added_columns(table, merge.schema, merge.added)
    if sorted(table.column_names) == sorted(merge.schema.names):
        table = table.select(merge.schema.names)
    return table.cast(merge.schema)


def _rows_written(writer: Any) -> int:
    """Return the number of rows in a file that was closed."""
    return int(writer.writer.metadata.num_rows)


class Compactor:
    """The compaction of one folder."""

    def __init__(self, store: GenerationStore, region: UUID, place: str) -> None:
        self._store, self._region, self._place = store, region, place

    def run(self, merge: FileMerge, upto: int, grace_s: float) -> CompactionResult:
        """Remove what an earlier compaction has replaced, if its grace time is over; then merge small files.

        Args:
            merge: how files are merged.
            upto: the last sequence that may be merged; it is published, and so are all before it.
            grace_s: the seconds for which replaced files stay.

        Raises:
            RetriableError: other compactors were faster, several times.
            CorruptDataError: a file that is published is gone, or can't be read.
        """
        gone: FileNotFoundError | None = None
        for _ in range(_ATTEMPTS):
            try:
                if (result := self._attempt(merge, upto, grace_s)) is not None:
                    return result
            except FileNotFoundError as error:  # the folder was emptied meanwhile, or another compactor was faster
                gone = error
        if gone is not None:
            raise CorruptDataError(f"{self._place} can't be compacted: a published file is gone: {gone}")
        raise RetriableError(f"{self._place}: another compaction was faster, {_ATTEMPTS} times")

    def _attempt(self, merge: FileMerge, upto: int, grace_s: float) -> CompactionResult | None:
        store, now = self._store, int(time.time() * 1000)
        base = store.newest()
        due = {path for path, at in base.replaced.items() if at + grace_s * 1000 <= now}
        waiting = {path: at for path, at in base.replaced.items() if path not in due}
        if due:
            store.retire_replaced(base, sorted(due))
        left = [path for path in store.merged_files() if path not in base.files and path not in base.replaced]
        there = [PublishedFile(path, about) for path, about in base.files.items()]
        merges: list[list[PublishedFile]] = []
        if not (store.one_at_a_time and waiting):
            there += store.sequence_files(base.upto, upto)
            merges = plan_merges(there, merge.target)
        if not (merges or due or left):
            return CompactionResult(waiting=len(waiting))
        written: list[str] = []
        try:
            files = self._written(merge, merges, written)
            if merges:
                files |= self._kept(there, merges, written)
        except BaseException:
            with contextlib.suppress(OSError, RetriableError):
                store.remove_files(written)
            raise
        if not merges:
            files = base.files
        # Readers may take the list until the generation is there, however long the merge has taken.
        now = int(time.time() * 1000)
        dropped = {file.path: now for file in there if file.path not in files} if merges else {}
        number = base.generation + 1
        last = max(base.upto, upto) if merges else base.upto
        made = Generation(1, self._region, number, last, files, waiting | dropped, uuid.uuid4().hex)
        if not store.create_generation(made):  # an error leaves open whether it was created: then nothing is removed
            store.remove_files(written)
            return None
        if store.newest_number() == number:  # otherwise a later one may name what this one does not
            store.remove_files(left)
        sizes = sum(files[path].size for path in written if path in files)
        return CompactionResult(
            sum(map(len, merges)), len(merges), sizes if merges else 0, len(due), len(made.replaced)
        )

    def _written(
        self, merge: FileMerge, merges: list[list[PublishedFile]], written: list[str]
    ) -> dict[str, CompactedFile]:
        """Write the merged files of a compaction; `written` gets each path before its file is begun."""
        files = {}
        for sources in merges:
            path = _new_path(sources[0].partition)
            written.append(path)
            contents = {file.path: _reading(self._store, file.path) for file in sources}
            size = self._store.write_merged(path, _merging(merge, contents))
            first = min(file.about.first for file in sources)
            files[path] = CompactedFile(size, first, max(file.about.last for file in sources))
        return files

    def _kept(
        self, there: list[PublishedFile], merges: list[list[PublishedFile]], written: list[str]
    ) -> dict[str, CompactedFile]:
        """Return the published files that stay unmerged, under the paths that the new generation will name."""
        merged = {file.path for sources in merges for file in sources}
        kept = {}
        for file in there:
            if file.path not in merged:
                to = _new_path(file.partition)
                path = self._store.keep_file(file.path, to)
                if path == to:
                    written.append(to)
                kept[path] = file.about
        return kept

    def fence_emptied(self, sequence: int) -> None:
        """Create an empty generation up to a sequence that empties the folder, unless a later one is compacted.

        A compactor that still merges files of these sequences can't create its generation any more.

        Raises:
            RetriableError: other compactors were faster, many times.
        """
        for _ in range(_FENCE_ATTEMPTS):
            base = self._store.newest()
            if base.upto > sequence or (base.upto == sequence and not base.files and not base.replaced):
                return
            left = [*self._store.merged_files(), *base.files, *base.replaced]
            number = base.generation + 1
            if self._store.create_generation(Generation(1, self._region, number, sequence, {}, {}, uuid.uuid4().hex)):
                if self._store.newest_number() == number:
                    self._store.remove_files(left)
                return
        raise RetriableError(f"{self._place} can't be emptied: other processes compact it all the time")


def _new_path(partition: str) -> str:
    name = f"{uuid.uuid4().hex}.parquet"
    return f"{COMPACTED}/{partition}/{name}" if partition else f"{COMPACTED}/{name}"


def _reading(store: GenerationStore, path: str) -> Callable[[], bytes]:
    return lambda: store.read_content(path)


def _merging(
    merge: FileMerge, contents: Mapping[str, Callable[[], bytes]]
) -> Callable[[Output | pa.BufferOutputStream], None]:
    return lambda output: merge_files(merge, contents, output)


def old_generations(numbers: Iterable[int]) -> list[int]:
    """Return the numbers of generations that are older than those to keep."""
    known = list(numbers)
    return [number for number in known if number <= max(known) - GENERATIONS_KEPT]
