"""Staged rows as Parquet files in a folder that readers skip, each named by its key."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import uuid
from collections.abc import Callable
from typing import IO, Any, Final, Literal, TypeAlias, TypeVar, cast, get_args
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.files import FileCalls, Output, copy_file, list_folder, remove_file, sync_folder
from kohort.region.sinks.owner_marker import UNFINISHED, UNREADABLE_JSON
from kohort.region.staged import StagedKey

T = TypeVar("T")


def read_json(read: Callable[[str], bytes], path: str, kind: type[T]) -> T | None:
    """Read and decode a JSON file; None: the file does not exist.

    Args:
        read: returns the content of a path, or raises FileNotFoundError.
        path: the path.
        kind: the msgspec type of the content.

    Raises:
        CorruptDataError: the content is not of that type.
    """
    try:
        return msgspec.json.decode(read(path), type=kind)
    except FileNotFoundError:
        return None
    except UNREADABLE_JSON as error:
        raise CorruptDataError(f"{path} can't be read: {error}") from error


# -- Marks of sequences that are done: empty files such as `published-17`

MARKS_KEPT: Final = 8
"""Number of marks that are kept. A listing of a folder may miss names that change meanwhile; it may last this many
publications."""
_MARK: Final = "published-"


def published_mark_numbers(files: FileCalls, folder: str) -> list[int]:
    """Return the checkpoint numbers N of all files `published-N` in a folder, unordered.

    These are the newest and a few before it.
    """
    names = list_folder(files, folder)
    return [int(end) for name in names if name.startswith(_MARK) and (end := name.removeprefix(_MARK)).isdecimal()]


def is_marked_published(files: FileCalls, folder: str, sequence: int) -> bool:
    """Return whether a folder has a file `published-N` for this sequence (checkpoint) or a later one."""
    return max(published_mark_numbers(files, folder), default=0) >= sequence


def mark_published(files: FileCalls, folder: str, sequence: int) -> None:
    """Record durably that a sequence (checkpoint) is published, by an empty file `published-N`; remove old such files.

    A late call can't undo the record of a later sequence.
    """
    if not is_marked_published(files, folder, sequence):
        files.close(files.open(f"{folder}/{_MARK}{sequence}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
    sync_folder(files, folder)
    for old in sorted(published_mark_numbers(files, folder))[:-MARKS_KEPT]:
        remove_file(files, f"{folder}/{_MARK}{old}")


def last_published(files: FileCalls, folder: str) -> int:
    """Return the last sequence (checkpoint) N with a file `published-N`, after syncing the folder; 0: none."""
    last = max(published_mark_numbers(files, folder), default=0)
    if last:
        sync_folder(files, folder)
    return last


Codec: TypeAlias = Literal["snappy", "zstd", "lz4", "gzip", "brotli", "none"]
_CODECS: Final = get_args(Codec)
DICTIONARY_BYTES: Final = 512 * 1024
"""Limit on a column's dictionary, after which its values are written plainly; Parquet's default is 1 MiB. A dictionary
takes up to 30 times its size in memory while it grows: with the default, a column of unique numbers takes 30 MB. With
half of it, 7 MB; a column of 26,000 different texts of 20 characters still has its dictionary."""
_UNIQUE_SHARE: Final = 0.75
_SAMPLE_SLICES: Final = 128
_SLICE_ROWS: Final = 32


def dictionary_columns(table: pa.Table) -> list[str]:
    """Return the columns to encode with a dictionary, as paths in a Parquet file: those with enough repeated values.

    A dictionary of unique values, such as offsets, grows to its limit, and is then abandoned. Without it, a unit of 32
    MiB with two such columns takes less processor time, and 6 MB less memory. The number of different values is
    estimated from 4,096 rows. A wrong estimate costs space at most. Nested columns keep their dictionaries.
    """
    sample = _sample(table)
    return [
        path
        for field, column in zip(table.schema, sample.columns, strict=True)
        if _repeats(column, table.num_rows)
        for path in _leaf_paths(field.name, field.type)
    ]


def _sample(table: pa.Table) -> pa.Table:
    """Return 4,096 rows from all parts of a table, without copying them; all rows if the table is not much larger.

    The sample is made of slices at random distances, since a regular distance could be the data's own. Tables of one
    length get the same slices.
    """
    every = table.num_rows // _SAMPLE_SLICES
    if every <= _SLICE_ROWS:
        return table
    chance = random.Random(every)
    places = [every * number + chance.randint(0, every - _SLICE_ROWS) for number in range(_SAMPLE_SLICES)]
    return pa.concat_tables([table.slice(place, _SLICE_ROWS) for place in places])


def _repeats(sample: Any, rows: int) -> bool:  # the stubs know types one by one
    """Estimate from a column's sample whether its values repeat enough in `rows` rows for a dictionary."""
    seen = len(sample) - sample.null_count
    try:
        different = int(pc.count_distinct(sample).as_py()) if seen else 0
    except pa.ArrowNotImplementedError:  # nested types, and a few that are rare
        return True
    if not different:
        return True
    repeated = seen - different
    # Of `seen` values among n different ones, about seen² / 2n are repeated.
    estimate = min(different + rows - seen, seen * seen / (2 * repeated) if repeated else rows)
    return bool(estimate <= _UNIQUE_SHARE * rows and estimate * sample.nbytes / len(sample) <= DICTIONARY_BYTES)


def _leaf_paths(path: str, kind: Any) -> list[str]:
    """Return the paths of the leaf columns that a column of this Arrow type becomes in a Parquet file."""
    names: list[str] = []
    if isinstance(kind, pa.MapType):
        names, types = ["key_value.key", "key_value.value"], [kind.key_type, kind.item_type]
    elif isinstance(kind, pa.StructType):
        names, types = [field.name for field in kind], [field.type for field in kind]
    elif pa.types.is_nested(kind):
        names, types = ["list.element"], [kind.field(0).type]
    else:
        return [path]
    return [leaf for name, part in zip(names, types, strict=True) for leaf in _leaf_paths(f"{path}.{name}", part)]


_WRITES_PER_RELEASE: Final = 8


class ParquetPageOutput(io.RawIOBase):
    """A file object for Arrow's Parquet writer, which makes Arrow return freed memory after every eight writes.

    A page has two writes. The encoders of a unit of 32 MiB use 8 MB at most. Without this, Arrow's allocator keeps 6 MB
    beside them until the unit is written. After each page would be too often: the next one takes the memory again, and
    writing took half as long again.
    """

    def __init__(self, write: Callable[[Any], object]) -> None:
        """Initialise the file object; `write` is called with each buffer, and must write all of it."""
        super().__init__()
        self._write, self._at, self._writes = write, 0, 0

    def writable(self) -> bool:
        """Return True: the file is open for writing."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._at

    def write(self, data: Any, /) -> int:  # any buffer, as `io` says it
        """Write the whole buffer, and return its size in bytes."""
        size = memoryview(data).nbytes
        self._write(data)
        self._at += size
        self._writes += 1
        if self._writes % _WRITES_PER_RELEASE == 0:
            pa.default_memory_pool().release_unused()
        return size


def check_parquet_options(compression: str, row_group_size: int | None) -> None:
    """Check the options `compression` and `row_group_size` for Parquet files.

    Raises:
        InvalidInputError: an option is invalid.
    """
    if compression not in _CODECS:
        raise InvalidInputError(f"compression is {compression!r}: choose one of {', '.join(_CODECS)}")
    if row_group_size is not None and row_group_size < 1:
        raise InvalidInputError(f"row_group_size is {row_group_size}: at least 1 row, or None")


def write_parquet(
    table: pa.Table,
    output: Output | io.BytesIO,
    place: str,
    compression: Codec,
    row_group_size: int | None,
    statistics: bool | list[str] = True,
) -> None:
    """Write a table as a Parquet file.

    Args:
        table: the rows.
        output: the file, which stays open and is not synced.
        place: the sink, for messages.
        compression: the compression of the pages.
        row_group_size: the maximum number of rows in a row group; None: Arrow's default.
        statistics: whether all columns have statistics, or the names of those that have.

    Raises:
        InvalidInputError: Parquet does not support the table.
        OSError: the disk has failed.
    """
    try:
        pq.write_table(
            table,
            cast("IO[Any]", ParquetPageOutput(output.write)),
            compression=compression,
            row_group_size=row_group_size,
            write_statistics=statistics,
            use_dictionary=dictionary_columns(table),  # type: ignore[arg-type] # the stubs know a bool alone
            dictionary_pagesize_limit=DICTIONARY_BYTES,
        )
    except pa.ArrowException as error:
        raise InvalidInputError(f"Parquet does not take a table for {place}: {error}") from error


def encode_parquet(table: pa.Table, place: str, compression: Codec, row_group_size: int | None) -> memoryview:
    """Return the bytes of a table as a Parquet file, as a view that copies nothing.

    Raises:
        InvalidInputError: Parquet does not support the table.
    """
    output = io.BytesIO()
    write_parquet(table, output, place, compression, row_group_size)
    return output.getbuffer()


def write_file_atomically(
    files: FileCalls, folder: str, name: str, write: Callable[[Output], object], *, instead_of: str = ""
) -> None:
    """Write a file atomically and durably; then remove the file `instead_of` from the same folder, if one is given."""
    temporary = f"{folder}/{name.rpartition('.')[0]}.{uuid.uuid4().hex[:12]}{UNFINISHED}"
    try:
        with contextlib.closing(Output(files, temporary)) as output:
            write(output)
            output.sync()
        files.rename(temporary, f"{folder}/{name}")
        if instead_of:
            remove_file(files, f"{folder}/{instead_of}")
        sync_folder(files, folder)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_file(files, temporary)
        raise


def link_file(files: FileCalls, staged: str, shown: str) -> None:
    """Hard-link a file to a second name, or copy it if the system does not permit the link."""
    try:
        files.link(staged, shown)
    except OSError as error:
        # Linux lets nobody link what another user may write alone (protected_hardlinks). FAT and some network file
        # systems have no hard links.
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
        copy_file(files, staged, shown)


def staged_key_text(name: str) -> str:
    """Return the staged key's text (`StagedKey.file_stem`) from a file's name, also while the file is being written."""
    return os.path.basename(name).removesuffix(UNFINISHED).rpartition(".")[0]


def is_key_of_invalid_epoch(stem: str, region_id: UUID | None, min_valid_epoch: int) -> bool:
    """Return whether a text is a staged key of this region, of an epoch before `min_valid_epoch`.

    Such rows are removed unless a manifest has the key.
    """
    key = StagedKey.parse(stem)
    return key is not None and key.region_id == region_id and key.epoch < min_valid_epoch
