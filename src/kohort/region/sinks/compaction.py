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
from kohort.region.sinks.owner_marker import UNREADABLE_JSON
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


class ParquetFileEntry(msgspec.Struct, frozen=True):
    """The size of a Parquet file, and the range of sequences (checkpoint numbers) whose rows it has.

    Attributes:
        size: the size in bytes.
        first: the first sequence that may have rows in the file.
        last: the last sequence that may have rows in the file.
    """

    size: int
    first: int
    last: int


class Generation(msgspec.Struct, frozen=True):
    """A file list that compaction has created: all Parquet files with rows of the sequences (checkpoints) up to `upto`.

    Readers take the generation with the highest number, and list the files of later sequences themselves.

    Attributes:
        format: the format's version, 1.
        region: the region's id.
        generation: this generation's number; 0: the folder was never compacted.
        upto: the last sequence whose rows are in these files.
        files: the files, by their path below the folder.
        replaced: files that earlier readers may still use and this generation does not have (of an earlier one, or of
            sequences). Each has the time in ms since 1970 when it was replaced.
        attempt: a UUID of the attempt that created the generation.
    """

    format: int
    region: UUID
    generation: int
    upto: int
    files: dict[str, ParquetFileEntry]
    replaced: dict[str, int]
    attempt: str

    def files_after_sequence(self, sequence: int, place: str) -> list[tuple[int, str]]:
        """Return the files with rows of checkpoints after `sequence` only, each with its last sequence, in order.

        Raises:
            InvalidInputError: a merged file has rows of later sequences and also of this one or earlier ones.
        """
        if mixed := [file for file in self.files.values() if file.first <= sequence < file.last]:
            raise InvalidInputError(
                f"{place} can't list what came after sequence {sequence}: compaction has merged sequences "
                f"{min(file.first for file in mixed)} to {max(file.last for file in mixed)}. Read all files again, "
                "and compact with `until`, the last sequence that all readers have"
            )
        return sorted((file.last, path) for path, file in self.files.items() if file.last > sequence)


def decode_generation(data: bytes, place: str) -> Generation:
    """Decode a generation (file list) from JSON, and refuse paths that no published file can have.

    Args:
        data: the content.
        place: the folder, for messages.

    Raises:
        CorruptDataError: the content can't be read, or has such a path.
        InvalidInputError: a newer kohort has written it.
    """
    try:
        found = msgspec.json.decode(data, type=Generation)
    except UNREADABLE_JSON as error:
        raise CorruptDataError(f"A generation of {place} can't be read: {error}") from error
    if found.format != 1:
        raise InvalidInputError(f"{place} was compacted by a newer kohort, in format {found.format}")
    for path in (*found.files, *found.replaced):
        if not _OF_ROWS.match(path) or not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise CorruptDataError(f"A generation of {place} names {path[:200]!r}, which is no file of rows: remove it")
    return found


_OF_ROWS: Final = re.compile(rf"(?:sequence=[0-9]+|_data|{COMPACTED})/.*\.parquet\Z", re.DOTALL)
"""The paths of files that a generation may name: whoever may write into the folder could name any other."""


class PublishedParquetFile(NamedTuple):
    """A published Parquet file: its path below the folder, and its size and sequences (checkpoints)."""

    path: str
    about: ParquetFileEntry

    @property
    def partition(self) -> str:
        """The Hive partition's folders in the path, such as `day=2026-11-26`; empty: the file has no partition."""
        return "/".join(self.path.split("/")[1:-1])


class CompactionResult(NamedTuple):
    """The counts of one compaction.

    Attributes:
        merged: the number of small files that were merged.
        written: the number of files that they were merged into.
        bytes: the total size of these.
        removed: the number of files that an earlier compaction had replaced, and that were removed now.
        waiting: the number of replaced files that stay until their grace time is over.
    """

    merged: int = 0
    written: int = 0
    bytes: int = 0
    removed: int = 0
    waiting: int = 0


class GenerationStore(Protocol):
    """The interface to a folder or object store, as compaction needs it: generations (file lists) and Parquet files."""

    one_at_a_time: bool
    """Whether nothing is merged before the grace time of the last compaction is over."""

    def newest_generation(self) -> Generation:
        """Return the newest generation (file list) after making it durable; without any, an empty one with number 0."""

    def newest_generation_number(self) -> int:
        """Return the number of the newest generation (file list); 0: none."""

    def create_generation(self, generation: Generation) -> bool:
        """Store a generation (file list) durably under its number; return False if another process has taken it."""

    def list_sequence_files(self, after: int, upto: int) -> list[PublishedParquetFile]:
        """Return the files of the published sequences (checkpoints) in the range `after < sequence <= upto`."""

    def compaction_output_files(self) -> list[str]:
        """Return the paths of all files in the folder of compaction's files, also of those that no generation has."""

    def read_content(self, path: str) -> bytes:
        """Return the content of a Parquet file; raise FileNotFoundError if it is gone."""

    def write_merged_file(self, path: str, write: Callable[[Output | pa.BufferOutputStream], None]) -> int:
        """Write a merged file durably, and return its size in bytes. Its name is durable after `create_generation`."""

    def keep_unmerged_file(self, path: str, to: str) -> str:
        """Return the path by which the next generation (file list) lists a file that is not merged.

        A local folder links the file of a sequence to the unused path `to`, since its own folder will be removed.
        """

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files that the newest generation (file list) does not have."""

    def remove_replaced_files(self, generation: Generation, due: Sequence[str]) -> None:
        """Remove the files `due`, which were replaced longer ago than the grace time for readers.

        Also remove, or rebuild from the generation's files, the sequences that the generation replaces.
        """


class MergeSettings(NamedTuple):
    """The schema, compression and target size of merged files.

    Attributes:
        schema: the schema of the merged rows.
        added: columns that older files may lack; their rows get null.
        compression: the compression of Parquet's pages.
        row_group_size: the maximum number of rows in a row group; None: Arrow's default.
        target: the size of a merged file in bytes that is aimed at.
    """

    schema: pa.Schema
    added: tuple[str, ...]
    compression: Codec
    row_group_size: int | None
    target: int


def plan_merges(files: Iterable[PublishedParquetFile], target_bytes: int) -> list[list[PublishedParquetFile]]:
    """Return groups of at least two files, each to be merged into one file.

    Only files smaller than half the target size are merged. A group has neighbouring files of one partition, in the
    order of sequences, and not more bytes than the target.
    """
    partitions: dict[str, list[PublishedParquetFile]] = {}
    for file in sorted(files, key=lambda file: (file.about.first, file.path)):
        if file.about.size < target_bytes // 2:
            partitions.setdefault(file.partition, []).append(file)
    merges = []
    for small in partitions.values():
        merge: list[PublishedParquetFile] = []
        size = 0
        for file in small:
            if merge and size + file.about.size > target_bytes:
                merges.append(merge)
                merge, size = [], 0
            merge.append(file)
            size += file.about.size
        merges.append(merge)
    return [merge for merge in merges if len(merge) > 1]


def merge_files(
    merge: MergeSettings, sources: Mapping[str, Callable[[], bytes]], output: Output | pa.BufferOutputStream
) -> None:
    """Write the rows of several Parquet files into one.

    Args:
        merge: the schema, compression and row group size of the new file.
        sources: a function for each path, which reads that file.
        output: the new file.

    Raises:
        CorruptDataError: a file can't be read, or the new file has another number of rows.
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


def _row_groups(path: str, data: bytes, merge: MergeSettings) -> Iterator[pa.Table]:
    """Yield a file's row groups in the merged schema, one at a time: a small file may decompress to gigabytes.

    Raises:
        CorruptDataError: the file can't be read, or its columns can't be cast to the merged schema.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        for number in range(file.num_row_groups):
            yield _in_merged_schema(file.read_row_group(number), merge)
    except (pa.ArrowException, ValueError) as error:
        raise CorruptDataError(f"{path} can't be merged: {error}") from error


def _in_merged_schema(table: pa.Table, merge: MergeSettings) -> pa.Table:
    """Cast rows to the merged schema. Columns that were added after the rows were written hold null."""
    if table.schema.equals(merge.schema):
        return table
    table = with_added_columns(table, merge.schema, merge.added)
    if sorted(table.column_names) == sorted(merge.schema.names):
        table = table.select(merge.schema.names)
    return table.cast(merge.schema)


def _rows_written(writer: Any) -> int:
    """Return the number of rows in a Parquet file, after its writer was closed."""
    return int(writer.writer.metadata.num_rows)


class Compactor:
    """The compaction of one folder: merges small Parquet files and creates the next generation (file list)."""

    def __init__(self, store: GenerationStore, region: UUID, place: str) -> None:
        self._store, self._region, self._place = store, region, place

    def compact(self, merge: MergeSettings, upto: int, grace_s: float) -> CompactionResult:
        """Remove files that were replaced longer ago than the grace time; then merge small files into a new file list.

        Args:
            merge: the schema, compression and target size of merged files.
            upto: the last sequence that may be merged; all sequences up to it must be published.
            grace_s: how many seconds replaced files stay for readers that still use an older list.

        Raises:
            RetriableError: other compactors created the next generation (file list) first, three times.
            CorruptDataError: a published file is missing or can't be read.
        """
        gone: FileNotFoundError | None = None
        for _ in range(_ATTEMPTS):
            try:
                if (result := self._attempt(merge, upto, grace_s)) is not None:
                    return result
                gone = None  # a lost race says nothing of a file that an earlier list had
            except FileNotFoundError as error:  # the folder was emptied meanwhile, or another compactor was faster
                gone = error
        if gone is not None:
            raise CorruptDataError(f"{self._place} can't be compacted: a published file is gone: {gone}")
        raise RetriableError(f"{self._place}: another compaction was faster, {_ATTEMPTS} times")

    def _attempt(self, merge: MergeSettings, upto: int, grace_s: float) -> CompactionResult | None:
        store, now = self._store, int(time.time() * 1000)
        base = store.newest_generation()
        due = {path for path, at in base.replaced.items() if at + grace_s * 1000 <= now}
        waiting = {path: at for path, at in base.replaced.items() if path not in due}
        if due:
            store.remove_replaced_files(base, sorted(due))
        left = [
            path for path in store.compaction_output_files() if path not in base.files and path not in base.replaced
        ]
        there = [PublishedParquetFile(path, about) for path, about in base.files.items()]
        merges: list[list[PublishedParquetFile]] = []
        if not (store.one_at_a_time and waiting):
            there += store.list_sequence_files(base.upto, upto)
            merges = plan_merges(there, merge.target)
        if not (merges or due or left):
            return CompactionResult(waiting=len(waiting))
        written: list[str] = []
        try:
            files = self._written(merge, merges, written)
            size = sum(about.size for about in files.values())
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
        if store.newest_generation_number() == number:  # otherwise a later one may name what this one does not
            store.remove_files(left)
        return CompactionResult(sum(map(len, merges)), len(merges), size, len(due), len(made.replaced))

    def _written(
        self, merge: MergeSettings, merges: list[list[PublishedParquetFile]], written: list[str]
    ) -> dict[str, ParquetFileEntry]:
        """Write the merged files, and return their sizes and sequences (checkpoints) by path.

        `written` gets each path before its file is begun, so that the caller can remove it after an error.
        """
        files = {}
        for sources in merges:
            path = _new_path(sources[0].partition)
            written.append(path)
            contents = {file.path: _reading(self._store, file.path) for file in sources}
            size = self._store.write_merged_file(path, _merging(merge, contents))
            first = min(file.about.first for file in sources)
            files[path] = ParquetFileEntry(size, first, max(file.about.last for file in sources))
        return files

    def _kept(
        self, there: list[PublishedParquetFile], merges: list[list[PublishedParquetFile]], written: list[str]
    ) -> dict[str, ParquetFileEntry]:
        """Return the published files that are not merged, by the paths under which the new file list has them."""
        merged = {file.path for sources in merges for file in sources}
        kept = {}
        for file in there:
            if file.path not in merged:
                to = _new_path(file.partition)
                path = self._store.keep_unmerged_file(file.path, to)
                if path == to:
                    written.append(to)
                kept[path] = file.about
        return kept

    def create_empty_generation(self, sequence: int) -> None:
        """Create an empty generation (file list) when the folder is emptied, and remove compaction's files.

        A compactor that is still merging files of earlier checkpoints can't create its generation any more. Nothing is
        done if the newest generation is a later one or is this one already.

        Args:
            sequence: the checkpoint that empties the folder.

        Raises:
            RetriableError: other compactors created the next generation first, 30 times.
        """
        for _ in range(_FENCE_ATTEMPTS):
            base = self._store.newest_generation()
            if base.upto > sequence or (base.upto == sequence and not base.files and not base.replaced):
                return
            left = [*self._store.compaction_output_files(), *base.files, *base.replaced]
            number = base.generation + 1
            if self._store.create_generation(Generation(1, self._region, number, sequence, {}, {}, uuid.uuid4().hex)):
                if self._store.newest_generation_number() == number:
                    self._store.remove_files(left)
                return
        raise RetriableError(f"{self._place} can't be emptied: other processes compact it all the time")


def _new_path(partition: str) -> str:
    name = f"{uuid.uuid4().hex}.parquet"
    return f"{COMPACTED}/{partition}/{name}" if partition else f"{COMPACTED}/{name}"


def _reading(store: GenerationStore, path: str) -> Callable[[], bytes]:
    return lambda: store.read_content(path)


def _merging(
    merge: MergeSettings, contents: Mapping[str, Callable[[], bytes]]
) -> Callable[[Output | pa.BufferOutputStream], None]:
    return lambda output: merge_files(merge, contents, output)


def expired_generation_numbers(numbers: Iterable[int]) -> list[int]:
    """Return the numbers of generations (file lists of compaction) that may be removed: all but the newest 64."""
    known = list(numbers)
    return [number for number in known if number <= max(known) - GENERATIONS_KEPT]
