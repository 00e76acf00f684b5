"""Files of an Iceberg table as a region writes them: data files, small objects beside them, and their durability.

Everything goes through the table's own FileIO, so that it has the table's credentials. pyiceberg does not sync local
files. `DurableFileIO` therefore replaces its FileIO for local warehouses: a file survives a power loss before the
catalog, or a manifest, names it.

Data files carry the table's field ids. A file with foreign ids would be accepted and read as nulls.
"""

from __future__ import annotations

import contextlib
import io
import os
import uuid
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final, Protocol, cast

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.io import S3_RETRY_STRATEGY_IMPL, FileIO, InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import (
    PyArrowFile,
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from kohort.errors import InvalidInputError
from kohort.region.confined_files import confine_files
from kohort.region.files import SYSTEM, FileCalls, Output, list_folder, make_folder, read_file, remove_file, sync_folder
from kohort.region.sinks import staged_files
from kohort.region.sinks.rows import dropped_columns_error, with_added_columns
from kohort.region.sinks.staged_files import DICTIONARY_BYTES, MARKS_KEPT, Codec, ParquetPageOutput

ROOT: Final = "kohort.table-location"
"""The property of a FileIO that has the location of its table."""
_MARK = "published-"
_CLIENTS_KEPT: Final = 4
_clients: dict[tuple[int, str], pafs.S3FileSystem] = {}
"""The last clients of S3 by process and settings. pyiceberg makes one whenever it reads a table, and each connects."""


def _client(made: pafs.FileSystem, *, in_parts: bool) -> pafs.FileSystem:
    """Return a cached S3 client like the given one, with or without multipart uploads for small objects.

    Other file systems are returned unchanged.

    In parts, an object takes three requests. A late copy of a request changes nothing then: its upload has ended.
    Otherwise an object of up to 10 MB takes one request, and a late copy writes it again. An error is then raised when
    the file is closed, and a process that dies leaves no upload behind.
    """
    if not isinstance(made, pafs.S3FileSystem):
        return made
    reduced: Any = made.__reduce__()  # by which pickle makes the same client elsewhere
    make, (settings,) = reduced
    settings = {**settings, "allow_delayed_open": not in_parts}
    key = os.getpid(), repr(settings)
    client: pafs.S3FileSystem = _clients.get(key) or make(settings)
    _clients[key] = client
    for old in list(_clients)[:-_CLIENTS_KEPT]:
        _clients.pop(old, None)  # another thread may have been first
    return client


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's FileIO for Arrow, with local files that are synced when they are closed, and fewer requests to S3.

    Below the catalog's warehouse, or below the table if a REST catalog has it, it follows no symbolic link when it
    writes or removes.
    """

    @property
    def _has_own_retries(self) -> bool:
        """Whether the user has set a retry class for S3: such a client can't be copied with other settings."""
        return bool(self.properties.get(S3_RETRY_STRATEGY_IMPL))

    def _initialize_s3_fs(self, netloc: str | None) -> pafs.FileSystem:
        made = super()._initialize_s3_fs(netloc)
        return made if self._has_own_retries else _client(made, in_parts=False)

    def new_multipart_output(self, location: str) -> Any:  # as `new_output`
        """Return a file in a store to write by a multipart upload: a late copy of its requests can't write it again.

        With a retry class of the user's own, return the same as `new_output`.
        """
        if self._has_own_retries:
            return self.new_output(location)
        scheme, host, path = self.parse_location(location)
        return PyArrowFile(location, path, _client(self.fs_by_scheme(scheme, host), in_parts=True))

    @property
    def files(self) -> FileCalls:
        """The file operations of this process, which follow no symbolic link below the warehouse or the table."""
        root = self.local_path_of(self.properties.get(ROOT) or self.properties.get("warehouse", ""))
        return confine_files(SYSTEM, root) if root else SYSTEM

    def local_path_of(self, location: str) -> str | None:
        """Return the local path of a location; None: the location is in an object store."""
        if location.startswith("file:"):
            location = location.removeprefix("file:")
            return location.removeprefix("//") if location.startswith("///") else location
        return location if location.startswith("/") else None

    def new_input(self, location: str) -> PyArrowFile:
        """Return pyiceberg's input file for this location."""
        path = self.local_path_of(location)
        if path is None:
            return super().new_input(location)
        return PyArrowFile(location, path, pafs.LocalFileSystem())

    def new_output(self, location: str) -> Any:  # pyiceberg's own classes return their own kinds
        """Return pyiceberg's output file for this location. A local file is synced when it is closed."""
        path = self.local_path_of(location)
        return super().new_output(location) if path is None else _DurableOutput(location, path, self)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove the file at this location."""
        text = location if isinstance(location, str) else location.location
        path = self.local_path_of(text)
        if path is None:
            super().delete(location)
        else:
            self.files.unlink(path)


class _DurableOutput(OutputFile):
    """A local file for pyiceberg to write, which is synced when it is closed."""

    def __init__(self, location: str, path: str, owner: DurableFileIO) -> None:
        super().__init__(location)
        self._path, self._owner = path, owner

    def __len__(self) -> int:
        return os.stat(self._path).st_size

    def exists(self) -> bool:
        """Return whether the file exists."""
        return os.path.exists(self._path)

    def to_input_file(self) -> InputFile:
        """Return the same file for reading."""
        return self._owner.new_input(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Return a stream that writes and syncs the file when it is closed.

        Raises:
            FileExistsError: the file exists, and `overwrite` is not set.
        """
        if not overwrite and self.exists():
            raise FileExistsError(f"{self.location} is there already")
        return cast("OutputStream", _Whole(self._owner.files, self._path))


class _Whole(io.BytesIO):
    """A stream that collects bytes in memory, and writes and syncs them as one file when it is closed."""

    def __init__(self, files: FileCalls, path: str) -> None:
        super().__init__()
        self._files, self._path = files, path

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is not None:
            super().close()
        self.close()

    def close(self) -> None:
        """Write the collected bytes as the file, and sync it."""
        if not self.closed:
            data = self.getvalue()
            super().close()
            with open_durable_output(self._files, self._path) as output:
                output.write(data)

    def __del__(self) -> None:
        """Discard the bytes of a stream that was never closed: its writer has failed."""
        super().close()


@contextlib.contextmanager
def open_durable_output(files: FileCalls, path: str) -> Iterator[Output]:
    """Open a new file for the block, and create missing folders; sync the file and its folder at the block's end."""
    folder = os.path.dirname(path)
    try:
        output = Output(files, path)
    except FileNotFoundError:
        make_folder(files, folder)
        output = Output(files, path)
    with contextlib.closing(output):
        yield output
        output.sync()
    sync_folder(files, folder)


class TableSideStore(Protocol):
    """The interface for small objects that the sink keeps beside an Iceberg table, such as `KEY.json` of staged rows.

    Writes are atomic, and durable when the call returns.
    """

    def replace_file(self, folder: str, name: str, data: bytes) -> None:
        """Write an object, or replace the one of this name. A late copy of the request never replaces a later write."""

    def create_file_once(self, folder: str, name: str, data: bytes) -> None:
        """Write an object whose name is never written again. An object store needs one request for it, not three.

        The store may still carry out the request later, after the object was removed.
        """

    def read(self, location: str) -> bytes:
        """Return an object's content; raise FileNotFoundError if there is none."""

    def list_files(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder; none if the folder is missing."""

    def remove_object(self, location: str) -> None:
        """Remove an object, if it exists."""

    def mark_published(self, folder: str, sequence: int) -> None:
        """Record that a sequence (checkpoint) is published. A late call can't undo the record of a later sequence."""

    def last_published(self, folder: str) -> int:
        """Return the last sequence (checkpoint) that was recorded by `mark_published`; 0: none."""


def side_store_of(table: Table, place: str) -> TableSideStore:
    """Return access to the small objects beside an Iceberg table: local files, or objects in the table's store.

    Raises:
        InvalidInputError: the table's FileIO is not Arrow's, and can't list a folder.
    """
    given = table.io
    if isinstance(given, DurableFileIO) and given.local_path_of(table.location()) is not None:
        return _LocalStore(given)
    if isinstance(given, PyArrowFileIO):
        return _RemoteStore(given)
    raise InvalidInputError(
        f"{place} is read and written by {type(given).__name__}, which can't list what is staged: give the catalog the "
        "property 'py-io-impl': 'pyiceberg.io.pyarrow.PyArrowFileIO'"
    )


class _LocalStore:
    """The small objects beside an Iceberg table as local files."""

    def __init__(self, given: DurableFileIO) -> None:
        self._io, self._files = given, given.files

    def _path(self, location: str) -> str:
        path = self._io.local_path_of(location)
        if path is None:
            raise InvalidInputError(f"{location} is not on this machine, and its warehouse is: move the table there")
        return path

    def replace_file(self, folder: str, name: str, data: bytes) -> None:
        path = self._path(folder)
        try:
            staged_files.write_file_atomically(self._files, path, name, lambda output: output.write(data))
        except FileNotFoundError:
            make_folder(self._files, path)
            staged_files.write_file_atomically(self._files, path, name, lambda output: output.write(data))

    def create_file_once(self, folder: str, name: str, data: bytes) -> None:
        self.replace_file(folder, name, data)

    def read(self, location: str) -> bytes:
        return read_file(self._files, self._path(location))

    def list_files(self, folder: str) -> list[str]:
        return list_folder(self._files, self._path(folder))

    def remove_object(self, location: str) -> None:
        remove_file(self._files, self._path(location))

    def mark_published(self, folder: str, sequence: int) -> None:
        path = self._path(folder)
        try:
            staged_files.mark_published(self._files, path, sequence)
        except FileNotFoundError:
            make_folder(self._files, path)
            staged_files.mark_published(self._files, path, sequence)

    def last_published(self, folder: str) -> int:
        return staged_files.last_published(self._files, self._path(folder))


class _RemoteStore:
    """The small objects beside an Iceberg table in an object store, accessed by Arrow's file system."""

    def __init__(self, given: PyArrowFileIO) -> None:
        self._io = given

    def replace_file(self, folder: str, name: str, data: bytes) -> None:
        given, location = self._io, f"{folder}/{name}"
        in_parts = given.new_multipart_output if isinstance(given, DurableFileIO) else given.new_output
        with in_parts(location).create(overwrite=True) as output:
            output.write(data)

    def create_file_once(self, folder: str, name: str, data: bytes) -> None:
        with self._io.new_output(f"{folder}/{name}").create(overwrite=True) as output:
            output.write(data)

    def read(self, location: str) -> bytes:
        with self._io.new_input(location).open() as opened:
            return bytes(opened.read())

    def list_files(self, folder: str) -> list[str]:
        scheme, host, path = PyArrowFileIO.parse_location(folder)
        selector = pafs.FileSelector(path, allow_not_found=True)
        return [found.base_name for found in self._io.fs_by_scheme(scheme, host).get_file_info(selector)]

    def remove_object(self, location: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._io.delete(location)

    def mark_published(self, folder: str, sequence: int) -> None:
        there = self._marks(folder)
        if max(there, default=0) < sequence:
            self.create_file_once(folder, f"{_MARK}{sequence}", b"done")
        for old in sorted(there)[:-MARKS_KEPT]:
            self.remove_object(f"{folder}/{_MARK}{old}")

    def last_published(self, folder: str) -> int:
        return max(self._marks(folder), default=0)

    def _marks(self, folder: str) -> list[int]:
        ends = [name.removeprefix(_MARK) for name in self.list_files(folder) if name.startswith(_MARK)]
        return [int(end) for end in ends if end.isdecimal()]


class StagedFile(msgspec.Struct, frozen=True):
    """A staged Parquet file, described as the Iceberg manifest will describe it. It is not in the table yet.

    Attributes:
        path: its location.
        size: its size in bytes.
        partition: its values of the table's partition fields.
        split_offsets: the offsets in the file at which its row groups begin.
    """

    path: str
    size: int
    partition: tuple[int | str | bool | None, ...]
    record_count: int
    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    nan_value_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]
    split_offsets: list[int]

    def to_data_file(self, spec_id: int) -> DataFile:
        """Return the file's description as pyiceberg's `DataFile`, for the table's manifest."""
        described = msgspec.structs.asdict(self)
        partition, path, size = described.pop("partition"), described.pop("path"), described.pop("size")
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(*partition),
            file_size_in_bytes=size,
            sort_order_id=None,
            spec_id=spec_id,
            equality_ids=None,
            key_metadata=None,
            **described,
        )


class PlannedFile(msgspec.Struct, frozen=True):
    """A data file that is still to be written: its path, the values of its partition fields, and its rows."""

    path: str
    partition: tuple[int | str | bool | None, ...]
    rows: pa.Table


def plan_files(table: Table, rows: pa.Table, stem: str, divided: bool = True) -> list[PlannedFile]:
    """Divide rows into one data file for each partition of an Iceberg table; return the files' paths and rows.

    The paths do not contain the partition's values, as Iceberg permits: a text may be longer than a file name.

    Args:
        table: the table.
        rows: the rows; without any the result is empty.
        stem: the beginning of the file names.
        divided: whether to divide the rows by partition. False: the rows become one file, which will be read and
            written again.
    """
    if not rows.num_rows:
        return []
    locations = table.location_provider()
    return [
        PlannedFile(locations.new_data_location(f"{stem}-{number}.parquet"), values, part)
        for number, (values, part) in enumerate(rows_by_partition(table, rows) if divided else [((), rows)])
    ]


def rows_by_partition(table: Table, rows: pa.Table) -> list[tuple[tuple[int | str | bool | None, ...], pa.Table]]:
    """Divide rows by the table's partition fields; return the values of the fields and the rows of each partition."""
    return _parted(table, rows) if table.spec().fields else [((), rows)]


def _parted(table: Table, rows: pa.Table) -> list[tuple[tuple[int | str | bool | None, ...], pa.Table]]:
    schema, spec = table.schema(), table.spec()
    columns: dict[str, Any] = {}
    for number, field in enumerate(spec.fields):
        source = schema.find_field(field.source_id)
        column: Any = rows.column(source.name)  # the stubs know arrays alone
        columns[str(number)] = field.transform.pyarrow_transform(source.field_type)(column)
    names = list(columns)
    columns["row"] = pa.array(range(rows.num_rows), pa.int64())
    found = []
    for group in pa.table(columns).group_by(names).aggregate([("row", "list")]).to_pylist():
        values = [PartitionFieldValue(field, group[name]) for field, name in zip(spec.fields, names, strict=True)]
        part = rows.take(pa.array(sorted(group["row_list"]), pa.int64()))
        record = PartitionKey(values, spec, schema).partition
        found.append((tuple(record[at] for at in range(len(values))), part))
    return found


def write_planned_file(table: Table, file: PlannedFile, compression: Codec, place: str) -> StagedFile:
    """Write a data file durably, and return its description for the manifest.

    Raises:
        InvalidInputError: Parquet can't store the rows, or the table has lost a column. A part of the file may remain.
        OSError: the store has failed. A part of the file may remain.
    """
    schema = table.schema()
    there = {field.name for field in schema.fields}
    if lost := [f"{field.name!r} of type {field.type}" for field in file.rows.schema if field.name not in there]:
        raise dropped_columns_error(place, lost)
    with _new_data_file(table.io, file.path) as output:
        try:
            fields = schema_to_pyarrow(schema.select(*file.rows.column_names))
            rows = file.rows.select(fields.names).cast(fields)
            # No `metadata_collector`: after a failed write it makes the end of the writer fail once more, in `__del__`.
            with pq.ParquetWriter(
                cast("IO[Any]", ParquetPageOutput(output.write)),
                fields,
                compression=compression,
                store_schema=False,
                use_dictionary=staged_files.dictionary_columns(rows),  # type: ignore[arg-type] # the stubs know a bool
                dictionary_pagesize_limit=DICTIONARY_BYTES,
            ) as writer:
                writer.write_table(rows)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInputError(f"Parquet does not take a table for {place}: {error}") from error
        size = output.tell()
    described = data_file_statistics_from_parquet_metadata(
        parquet_metadata=writer.writer.metadata,
        stats_columns=compute_statistics_plan(schema, table.metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return StagedFile(file.path, size, file.partition, **described.to_serialized_dict())


@contextlib.contextmanager
def _new_data_file(given: FileIO, location: str) -> Iterator[Any]:  # the stubs know none of the two as a file
    """Open a new data file so that Parquet pages are written one by one, without collecting the file in memory."""
    path = given.local_path_of(location) if isinstance(given, DurableFileIO) else None
    if isinstance(given, DurableFileIO) and path is not None:
        with open_durable_output(given.files, path) as output:
            yield output
    else:
        # In one request a file would be in memory twice. What a store's client has freed is returned before the pages.
        pa.default_memory_pool().release_unused()
        in_parts = given.new_multipart_output if isinstance(given, DurableFileIO) else given.new_output
        with in_parts(location).create(overwrite=True) as stream:  # the name is new: two requests need not ask
            yield stream


def read_rows(store: TableSideStore, files: Sequence[StagedFile], schema: pa.Schema) -> pa.Table:
    """Read staged Parquet files in this schema; columns that a file lacks are null."""
    parts = []
    for file in files:
        rows = pq.read_table(pa.BufferReader(store.read(file.path)))
        parts.append(with_added_columns(rows, schema, schema.names).select(schema.names).cast(schema))
    return pa.concat_tables(parts)


def file_stem(epoch: int, region: uuid.UUID) -> str:
    """Return a new unique beginning for names of data files, with the epoch and the region's id."""
    return f"kohort-e{epoch}-{region.hex}-{uuid.uuid4().hex[:16]}"
