"""A folder of Parquet files that is written to exactly once: a sequence is a subfolder, complete or absent.

    out/_region/region.json            whose folder this is, its name, and the schema of all its rows
    out/_region/columns-1.json         columns that `evolve="add"` has added: files staged before lack them
    out/_region/published-17           sequence 17 is done (an empty file; a few of the newest are kept)
    out/_staging/KEY.staged            what a member staged; KEY.empty: it had no rows
    out/_staging/KEY.parts             the same with partitions: it names the files, which are in KEY.files-ATTEMPT/
    out/_staging/publishing-18-ATTEMPT/  a sequence on its way: second names (hard links) of staged files
    out/sequence=17/KEY.parquet        what readers see; with partitions sequence=17/day=2026-11-26/KEY.parquet
    out/sequence=17/_sequence-17-ID    whose it is: the region's id (an empty file, whose bytes need not be synced)
                                       (before a reset to the initial state: renamed away, one after the other)

Readers (Spark, `pyarrow.dataset`, pandas) skip names that begin with `_`; a glob must be `sequence=*/*.parquet`, or
with partitions `sequence=*/**/*.parquet`.

This is the order of durability. It leaves each sequence complete or absent after a power loss, and repeats no work:

- added columns, before a file that has them is staged;
- a staged file's bytes, before it has its name; its name, before `stage` returns, hence before a manifest names it;
- the names of all files of a sequence, that which says whose it is among them, before the folder has its name;
- the folder's name, before `published-N` is made: a sequence that is marked needs its staged files no longer;
- `published-N`, before `publish` or `published` says so to anybody, hence before anything staged is removed.

Correctness needs no clock and no lock: concurrent operations use `link` and `rename`, which the kernel does for one
of the callers. Temporary names are unique to an attempt. A folder that is abandoned is renamed before it is emptied.
A process about to publish it then finds nothing, instead of a part.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region.confined_files import keep_folders_open
from kohort.region.files import (
    Output,
    is_store_url,
    list_folder,
    make_folder,
    read_file,
    remove_file,
    remove_folder,
    remove_tree,
    sync_folder,
    write_file,
)
from kohort.region.sinks import Keep, hive_partitions, owner_marker, staged_files
from kohort.region.sinks.availability import NO_LINKS_ERRNOS
from kohort.region.sinks.bound import PROBE, FolderSink, local_sink_folder
from kohort.region.sinks.columns import fill_null_types, is_empty, resolve_null_types
from kohort.region.sinks.compaction import (
    GRACE,
    TARGET_FILE_BYTES,
    CompactionResult,
    Compactor,
    GenerationStore,
    MergeSettings,
)
from kohort.region.sinks.folder_generations import (
    GONE,
    SAYS,
    SHOWING,
    SHOWN,
    FolderGenerations,
    create_partition_folders,
)
from kohort.region.sinks.owner_marker import UNREADABLE_JSON, OwnerMarker
from kohort.region.sinks.parquet_schema import check_parquet_columns, schema_differences, to_sink_schema
from kohort.region.sinks.rows import (
    Evolution,
    check_evolution,
    new_columns,
    refuse_invalid_values,
    refuse_nulls,
    with_added_columns,
    with_added_fields,
)
from kohort.region.sinks.staged_files import Codec
from kohort.region.staged import StagedKey, check_sequence, missing_rows_text
from kohort.settings.validation import duration_ms

_OBJECTS: Final = "kohort.region.sinks.parquet_objects"
"""The module of folders in object stores, which needs an extra of the package."""
_ROWS: Final = ".staged"
_EMPTY: Final = ".empty"
_PARTS: Final = ".parts"
_ENDINGS: Final = (_ROWS, _EMPTY, _PARTS)
_FILES: Final = ".files-"
_FILES_OF: Final = re.compile(r".+\.files-[0-9a-f]{12}")
_GOING: Final = re.compile(r"publishing-([0-9]+)-[0-9a-f]+")
_GIVEN_UP: Final = re.compile(GONE + "[0-9a-f]{32}")
_READ_ATTEMPTS: Final = 5
_ADD_ATTEMPTS: Final = 30


def check_target_file_size(size: int) -> int:
    """Return a compaction's target file size in bytes; raise InvalidInputError if it is below 1."""
    if size < 1:
        raise InvalidInputError(f"target_file_size is {size}: give a number of bytes, at least 1")
    return size


class FolderLayout(NamedTuple):
    """The columns and partitioning of a Parquet folder, as its owner marker has them.

    Attributes:
        rows: the schema of all rows, with the partition columns.
        partition_by: the columns by which files are partitioned.
        added: the columns that `evolve="add"` has added; older files lack them.
        additions: the number of additions, each of one or more columns.
    """

    rows: pa.Schema
    partition_by: tuple[str, ...]
    added: tuple[str, ...]
    additions: int


class SequenceFile(NamedTuple):
    """A published Parquet file with the sequence (checkpoint number) of its rows.

    Attributes:
        sequence: the sequence; for a file of compaction, the last one that has rows in it.
        path: the path or URL.
    """

    sequence: int
    path: str


class ParquetFolder(FolderSink):
    """A sink that writes a folder of Parquet files; each checkpoint of the region is a subfolder.

    The sink can be pickled.

    `Sink` documents the guarantees of its methods. A path is on a file system with hard links and atomic renames, and
    all members see it. The file system is a local one, or a shared one that is POSIX enough (`check` tries it). For the
    URL of an object store (`s3://`, `gs://`, `az://`) the instance is a `ParquetObjects`, which lays its files out in
    another way.

    Attributes:
        path: the absolute path, from the working directory when it was made; or the URL.
        compression: the compression of Parquet's pages: snappy, zstd, lz4, gzip, brotli or none.
        row_group_size: the maximum number of rows in a row group; None: Arrow's default.
        partition_by: the columns that partition the files, as Hive names folders; empty: those of the folder, if it
            exists already.
        target_file_size: the size in bytes that `compact` aims at.
        evolve: whether to add a new column that may be null to the rows, or to refuse tables that have one.
    """

    KIND = "parquet"
    _kept: FolderLayout | None

    def __new__(cls, path: str | os.PathLike[str] = "", **_options: object) -> ParquetFolder:
        """Return a `ParquetFolder` for a path, or a `ParquetObjects` for an object store's URL."""
        if cls is ParquetFolder and is_store_url(path):
            stored: type[ParquetFolder] = import_module(_OBJECTS).ParquetObjects  # it derives from this class
            return object.__new__(stored)
        return object.__new__(cls)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: Codec = "zstd",
        row_group_size: int | None = None,
        partition_by: Sequence[str] = (),
        target_file_size: int = TARGET_FILE_BYTES,
        evolve: Evolution = "refuse",
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Initialise a sink for a path or a URL.

        Args:
            path: the path, or the URL of an object store.
            compression: the compression of Parquet's pages.
            row_group_size: the maximum number of rows in a row group; None: Arrow's default.
            partition_by: the columns that partition the files, texts, integers, dates or booleans. Each partition gets
                a file of its own in a folder such as `day=2026-11-26`, and the column is not in the file.
            target_file_size: the size in bytes that `compact` aims at.
            evolve: whether to add a new column that may be null to the rows. Files that were written before lack it.
            storage_options: credentials and settings of an object store, named as obstore names them. What is not given
                is taken from the environment, as `AWS_ACCESS_KEY_ID`.
        """
        self._keep_path(os.fspath(path), storage_options or {})
        staged_files.check_parquet_options(compression, row_group_size)
        check_evolution(evolve)
        self.compression, self.row_group_size, self.evolve = compression, row_group_size, evolve
        self.partition_by = hive_partitions.parse_partition_by(partition_by)
        self.target_file_size = check_target_file_size(target_file_size)

    def _keep_path(self, path: str, storage_options: Mapping[str, str]) -> None:
        self.path = local_sink_folder(path, storage_options, "A ParquetFolder")

    # -- before the first record

    def check(self, schema: pa.Schema) -> None:
        """Check that tables of this schema can be staged and published; create the folder if it is missing.

        The first call stores the schema, which holds for all later rows. With `evolve="add"`, later calls add the new
        columns of their schema to it.
        """
        self._bound()
        typed = self._check_columns(schema)
        try:
            self._make(typed)
            self._probe()
        except PermissionError as error:
            raise NotAuthorizedError(f"No right to write the folder {self.path}: {error}") from error
        self._evolve(typed)

    def _check_columns(self, schema: pa.Schema) -> pa.Schema:
        """Check that Parquet supports the columns and that the partition columns are among them; return the schema.

        Columns of Arrow's null type get the sink's types in it.
        """
        typed = resolve_null_types(schema, self._known_columns, self.evolve)
        check_parquet_columns(typed)
        hive_partitions.check_partition_columns(typed, self.partition_by)
        return typed

    def _known_columns(self) -> pa.Schema | None:
        return self._reload().rows if self._is_owned() else None

    def _evolve(self, given: pa.Schema) -> None:
        """Check that a schema fits the folder's; with `evolve="add"`, first add its new columns to the folder's schema.

        Each addition is a file `columns-N.json`, which only one process can create.
        """
        for _ in range(_ADD_ATTEMPTS):
            layout = self._reload()
            given = with_added_fields(given, layout.rows, layout.added)
            self._refuse_other_partitions(layout)
            if self.evolve == "refuse" or not set(given.names).difference(layout.rows.names):
                self._fitting(given, layout)
                return
            new = new_columns(self.path, layout.rows, given)
            if self._keep_columns(layout.additions + 1, new):
                self._reload()
                return
        raise RetriableError(f"{self.path} gets new columns from others all the time: {_ADD_ATTEMPTS} additions")

    def _keep_columns(self, number: int, columns: Sequence[pa.Field[Any]]) -> bool:
        return owner_marker.try_add_columns(self._files, f"{self.path}/_region", number, columns)

    def _sync_columns(self) -> None:
        """Make additions of columns durable that another process may have written a moment ago."""
        sync_folder(self._files, f"{self.path}/_region")

    def _make(self, schema: pa.Schema) -> None:
        files, owned = self._files, f"{self.path}/_region"
        try:
            make_folder(files, self.path)
            if not self._is_owned():
                self._first(schema)
            make_folder(files, f"{self.path}/_staging")
            sync_folder(files, owned)
            sync_folder(files, self.path)
        except NotADirectoryError as error:
            raise InvalidInputError(f"{self.path} can't be a folder: {error.filename} is a file") from error

    def _is_owned(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self._owned()
            return True
        return False

    def _first(self, schema: pa.Schema) -> None:
        """Create this region's owner marker in an empty folder, unless another process has done so first.

        Raises:
            InvalidInputError: the folder has other files, or belongs to another region.
        """
        files = self._files
        strangers = sorted(name for name in files.listdir(self.path) if not name.startswith(("_", ".")))
        if strangers and not self._is_owned():
            raise InvalidInputError(
                f"{self.path} holds {strangers[0]!r} and is no folder of a region: give region {self._region!r} "
                "an empty folder, so that readers find nothing but its sequences"
            )
        make_folder(files, f"{self.path}/_region")
        claim = self._new_claim(schema)
        try:
            owner_marker.write_owner_marker(files, f"{self.path}/_region", claim)
        except OSError as error:
            self._explain(error)
            raise
        self._owned()

    def _new_claim(self, schema: pa.Schema) -> OwnerMarker:
        text = owner_marker.encode_schema(schema)
        return OwnerMarker(1, self._region, self._bound(), text, partition_by=self.partition_by, place=self.place)

    def _probe(self) -> None:
        """Check by trial files that `publish` can work here: hard-link a file into a folder, and rename the folder."""
        self._probe_in((self.path, f"{self.path}/_staging"), remove_folder, self._try)

    def _try(self) -> None:
        files, name = self._files, f"{PROBE}{uuid.uuid4().hex}"
        folder, renamed = f"{self.path}/_staging/{name}", f"{self.path}/{name}"
        try:
            files.mkdir(folder)
            write_file(files, f"{folder}/staged", b"probe")
            files.link(f"{folder}/staged", f"{folder}/linked")
            files.rename(folder, renamed)
        except OSError as error:
            self._explain(error)
            raise
        finally:
            with contextlib.suppress(OSError):
                remove_folder(files, folder)
                remove_folder(files, renamed)

    def _explain(self, error: OSError) -> None:
        if error.errno in NO_LINKS_ERRNOS:
            raise InvalidInputError(
                f"{self.path} can't be written exactly once: {error}. Its folders must lie on one file system that "
                "has hard links and renames folders"
            ) from error

    def _owned(self) -> pa.Schema:
        """Check that the folder belongs to this region; return the schema of its rows.

        Raises:
            FileNotFoundError: the folder has no owner marker yet.
        """
        return self._layout().rows

    def _layout(self) -> FolderLayout:
        return self._reload() if self._kept is None else self._kept

    def _reload(self) -> FolderLayout:
        """Read the owner marker and later additions of columns again, and cache the layout.

        Raises:
            FileNotFoundError: the folder has no owner marker yet.
            InvalidInputError: it belongs to another region, or its marker has another name of the sink.
        """
        mine = self._bound()
        claim, additions = self._read_grown()
        if claim.id != mine:
            remedy = "give each region an empty folder of its own"
            raise owner_marker.other_owner_error(self.path, (claim.region, claim.id), (self._region, mine), remedy)
        self._refuse_other_name(claim)
        if additions != (0 if self._kept is None else self._kept.additions):
            self._sync_columns()
        layout = FolderLayout(claim.row_schema(), claim.partition_by, claim.added, additions)
        self._kept = layout
        return layout

    def _read_grown(self) -> tuple[OwnerMarker, int]:
        """Read the owner marker with the columns that were added later; return it with the number of additions."""
        return owner_marker.read_marker_with_columns(lambda path: read_file(self._files, path), f"{self.path}/_region")

    def _checked_layout(self) -> FolderLayout:
        try:
            return self._layout()
        except FileNotFoundError as error:
            raise InvalidInputError(f"{self.path} is no folder of a region yet: call check(schema) first") from error

    def _refuse_other_partitions(self, layout: FolderLayout) -> None:
        if self.partition_by and self.partition_by != layout.partition_by:
            by = f"partitioned by {', '.join(layout.partition_by)}" if layout.partition_by else "not partitioned"
            raise InvalidInputError(
                f"{self.path} is {by}, and partition_by={list(self.partition_by)} differs: leave the option out, or "
                "write into another folder under another region"
            )

    def _fitting(self, schema: pa.Schema, layout: FolderLayout) -> pa.Schema:
        """Check that a table's schema fits the folder's, and return the folder's.

        Raises:
            InvalidInputError: it does not fit; the message names the columns.
        """
        kept = layout.rows
        schema = fill_null_types(schema, kept)
        if not schema.equals(kept) and (found := schema_differences(kept, schema)):
            raise InvalidInputError(
                f"The schema does not fit the rows of {self.path}: {'; '.join(found)}. Cast the columns, or write "
                "into another folder under another region"
            )
        return kept

    # -- staging

    def check_rows(self, table: pa.Table) -> pa.Table:
        """Check each row of a table, and return the rows in the sink's schema, as `stage` writes them.

        Raises:
            RowRefusedError: the sink can't write a row.
        """
        layout = self._checked_layout()
        unknown = set(table.column_names).difference(layout.rows.names)
        if any(not is_empty(table.schema.field(name)) for name in unknown):
            layout = self._reload()
        if self.evolve == "add":
            unknown = set(table.column_names).difference(layout.rows.names)
            table = table.drop_columns([name for name in unknown if is_empty(table.schema.field(name))])
        table = with_added_columns(table, layout.rows, layout.added)
        self._refuse_other_partitions(layout)
        kept = self._fitting(table.schema, layout)  # of this layout: another thread may load a newer one meanwhile
        refuse_nulls(table, [field.name for field in kept if not field.nullable])
        rows = to_sink_schema(table, kept)
        refuse_invalid_values(rows)
        hive_partitions.check_partition_values(rows, layout.partition_by, kept)
        return rows

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Write a table's rows to Parquet files that readers do not see yet, durably.

        A repeated call with the same key replaces the rows.
        """
        self._refuse_others(key)
        self._write_rows(key.file_stem(), self.check_rows(table))

    def _write_rows(self, name: str, table: pa.Table) -> None:
        if partition_by := self._layout().partition_by:
            self._write_parts(name, hive_partitions.split_by_partition(table, partition_by))
            return
        ending, other = (_ROWS, _EMPTY) if table.num_rows else (_EMPTY, _ROWS)

        def write_parquet_rows(output: Output) -> None:
            if table.num_rows:
                self._write_file(table, output)

        staged_files.write_file_atomically(
            self._files, f"{self.path}/_staging", name + ending, write_parquet_rows, instead_of=name + other
        )

    def _write_parts(self, name: str, parts: Mapping[str, pa.Table]) -> None:
        """Write the rows of each partition to a file, then `KEY.parts`, which lists the files by partition folder.

        Only files in `KEY.parts` are published, so that rows which are staged again replace all earlier ones.
        """
        files, staging, folder = self._files, f"{self.path}/_staging", f"{name}{_FILES}{uuid.uuid4().hex[:12]}"
        ending, other = (_PARTS, _EMPTY) if parts else (_EMPTY, _PARTS)
        written = {path: f"{folder}/{number}.parquet" for number, path in enumerate(parts)}
        if parts:
            files.mkdir(f"{staging}/{folder}")
            for path, part in parts.items():
                with contextlib.closing(Output(files, f"{staging}/{written[path]}")) as output:
                    self._write_file(part, output)
                    output.sync()
            sync_folder(files, f"{staging}/{folder}")
        index = msgspec.json.encode(written) if parts else b""
        staged_files.write_file_atomically(
            files, staging, name + ending, lambda out: out.write(index), instead_of=name + other
        )
        for earlier in self._names():
            if earlier.startswith(name + _FILES) and earlier != folder:
                self._remove_staged(earlier)

    def _remove_staged(self, name: str) -> None:
        """Remove a staged file, or a folder of them, by its name in `_staging`."""
        path = f"{self.path}/_staging/{name}"
        if _FILES_OF.fullmatch(name):
            remove_folder(self._files, path)
        else:
            remove_file(self._files, path)

    def _write_file(self, table: pa.Table, output: Output) -> None:
        staged_files.write_parquet(table, output, self.path, self.compression, self.row_group_size)

    # -- publishing

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Publish the rows staged under these keys as one checkpoint, atomically, as the folder `sequence=N`."""
        check_sequence(sequence)
        self._owned()
        self._show_sequence(sequence, sorted({key.file_stem() for key in keys}))

    def _show_sequence(self, sequence: int, names: list[str]) -> None:
        """Publish staged files as this checkpoint unless it is published already; then remove them from `_staging`."""
        files = self._files
        if not self._is_marked(sequence):
            if not self._has_folder(sequence):
                self._bring(sequence, names)
            sync_folder(files, self.path)
        self._mark(sequence)
        there, published = self._names(), set(names)
        with keep_folders_open(files) as kept:
            for name in sorted({name + ending for name in names for ending in _ENDINGS}.intersection(there)):
                remove_file(kept, f"{self.path}/_staging/{name}")
        for name in there:
            if _FILES_OF.fullmatch(name) and staged_files.staged_key_text(name) in published:
                self._remove_staged(name)
        self._tidy(there, sequence)

    def empty(self, sequence: int, floor: int) -> None:
        """Remove all published rows, and record this sequence (checkpoint) as published.

        First remove staged rows of epochs before `floor`, the minimum valid epoch; rows of later epochs stay staged.
        """
        if self._is_owned():
            self._remove_shown(sequence, floor)

    def _remove_shown(self, sequence: int, min_valid_epoch: int) -> None:
        """Remove staged files of epochs before `min_valid_epoch`, then all published sequences up to this one.

        The staged files go first, so that no other process can publish them afterwards.
        """
        files = self._files
        if not self._is_marked(sequence + 1):  # its own number may be from a history that the topic has lost
            for name in self._names():
                if self._is_void(name, min_valid_epoch):
                    self._remove_staged(name)
            self._tidy(self._names(), sequence)
            self._compactor().create_empty_generation(sequence)
            shown = [int(found[1]) for name in list_folder(files, self.path) if (found := SHOWN.fullmatch(name))]
            for number in shown:
                if number <= sequence and self._has_folder(number):
                    self._hide_folder(self._folder(number))
            sync_folder(files, self.path)  # before any file is removed: a power loss must not restore a part
        self._mark(sequence)
        self._tidy(self._names(), sequence)

    def _bring(self, sequence: int, names: list[str]) -> None:
        """Publish staged files as the folder `sequence=N`, unless another process has.

        Without rows no folder is created.

        Raises:
            CorruptDataError: staged files are missing, and no other process has published them.
        """
        there = set(self._names())
        full = [name + ending for name in names for ending in (_ROWS, _PARTS) if name + ending in there]
        is_there = {name: not there.isdisjoint(name + ending for ending in _ENDINGS) for name in names}
        if gone := missing_rows_text(is_there, "staged files"):
            self._check_done_by_another(sequence, gone)
        elif full:
            try:
                self._rename(sequence, full)
            except FileNotFoundError as error:
                self._check_done_by_another(sequence, str(error))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) or not self._has_folder(sequence):
                    raise

    def _check_done_by_another(self, sequence: int, lost: str) -> None:
        """Raise an error that staged files are missing (`lost`), unless another process has published them."""
        if not self._is_marked(sequence) and not self._has_folder(sequence):
            raise CorruptDataError(f"Sequence {sequence} can't be published into {self.path}: {lost}")

    def _rename(self, sequence: int, full: list[str]) -> None:
        files = self._files
        temporary = f"{self.path}/_staging/publishing-{sequence}-{uuid.uuid4().hex[:12]}"
        try:
            files.mkdir(temporary)
            self._link_all(temporary, full)
            says = f"{temporary}/{self._owner_file_name(sequence)}"
            files.close(files.open(says, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            sync_folder(files, temporary)
            files.rename(temporary, self._folder(sequence))
        except BaseException:
            with contextlib.suppress(OSError):
                self._discard(temporary)
            raise

    def _link_all(self, temporary: str, full: list[str]) -> None:
        """Hard-link staged files into a temporary folder, in the folders of their partitions, and sync those."""
        folders = set[str]()
        with keep_folders_open(self._files) as files:
            for name in full:
                stem = staged_files.staged_key_text(name)
                for folder, staged in self._staged_parts(name).items():
                    path = f"{folder}/{stem}.parquet" if folder else f"{stem}.parquet"
                    create_partition_folders(files, temporary, path, folders)
                    staged_files.link_file(files, f"{self.path}/_staging/{staged}", f"{temporary}/{path}")
        for folder in sorted(folders, reverse=True):
            sync_folder(self._files, folder)

    def _staged_parts(self, name: str) -> dict[str, str]:
        """Return a key's staged files by partition folder; without partitions, its only file by an empty text."""
        if not name.endswith(_PARTS):
            return {"": name}
        path = f"{self.path}/_staging/{name}"
        try:
            return msgspec.json.decode(read_file(self._files, path), type=dict[str, str])
        except UNREADABLE_JSON as error:
            raise CorruptDataError(f"{path} can't be read: {error}") from error

    def _has_folder(self, sequence: int) -> bool:
        """Return whether the folder `sequence=N` exists and belongs to this region.

        Raises:
            InvalidInputError: a file, or a folder that is not this region's, has that name.
        """
        folder, own = self._folder(sequence), self._owner_file_name(sequence)
        try:
            names = list_folder(self._files, folder)
            if names and own not in names:
                names = list_folder(self._files, folder)  # it may have been created in between, or abandoned
        except NotADirectoryError as error:
            raise self._taken(folder, str(error)) from error
        if names and own not in names:
            others = [name for name in names if name.startswith(SAYS)]
            raise self._taken(folder, f"{others[0]} says whose it is" if others else "nothing says whose it is")
        return bool(names)

    def _owner_file_name(self, sequence: int) -> str:
        """Return the name of the empty file in `sequence=N` that names the region by its id."""
        return f"{SAYS}{sequence}-{self._bound().hex}"

    def _taken(self, folder: str, why: str) -> InvalidInputError:
        return InvalidInputError(
            f"{folder} is there and not of region {self._region!r} ({self._id}): {why}. Move it away; nothing of the "
            "sequence is lost"
        )

    def _folder(self, sequence: int) -> str:
        return f"{self.path}/sequence={sequence}"

    # -- progress

    def published(self) -> int:
        """Return the last sequence (checkpoint number) that is published and durable; 0: none."""
        try:
            self._owned()
        except FileNotFoundError:
            return 0
        marked = self._last_marked()
        later = [int(found[1]) for name in list_folder(self._files, self.path) if (found := SHOWN.fullmatch(name))]
        last = max((number for number in later if number > marked and self._has_folder(number)), default=marked)
        if last > marked:  # its publisher ended before it was marked
            sync_folder(self._files, self.path)
            self._mark(last)
        return last

    def published_files(self, after: int = 0) -> list[SequenceFile]:
        """Return all published Parquet files with rows of checkpoints after `after`, in the order of checkpoints.

        The sink need not be bound to a region.

        Args:
            after: a sequence (checkpoint number); its files and earlier ones are left out.

        Raises:
            InvalidInputError: compaction has merged that sequence with later ones.
            CorruptDataError: the folder was changed five times while it was read, or its file list can't be read.
            OSError: the folder can't be read.
            RetriableError: the store does not answer.
        """
        generations = FolderGenerations(self._files, self.path, self._id)
        for _ in range(_READ_ATTEMPTS):
            newest = generations.read_newest_generation()
            later = [
                SequenceFile(number, f"{self.path}/{path}")
                for number in generations.shown_sequences()
                if number > max(after, newest.upto)
                for path in generations.shown_sequence_files(number)
            ]
            if generations.newest_generation_number() == newest.generation:  # otherwise these may be hidden by now
                merged = newest.files_after_sequence(after, self.path)
                return [SequenceFile(last, f"{self.path}/{path}") for last, path in merged] + later
        raise CorruptDataError(f"{self.path} is compacted while it is read, several times: list it again")

    def published_schema(self) -> pa.Schema:
        """Return the schema of all rows, with the partition columns. The sink need not be bound to a region.

        Columns that `evolve="add"` has added are at the end; older files lack them, and their rows have null there.

        Raises:
            InvalidInputError: this is no folder of a region.
            RetriableError: the store does not answer.
        """
        try:
            return self._read_grown()[0].row_schema()
        except FileNotFoundError as error:
            raise InvalidInputError(f"{self.path} is no folder of a region") from error

    # -- compaction

    def compact(
        self, *, target_file_size: int | None = None, grace: str = GRACE, until: int | None = None
    ) -> CompactionResult:
        """Merge small published files into larger ones, and remove files that an earlier call has merged.

        Any process may call this at any time, beside members that write and others that compact. Readers that take
        `published_files()` get the old files or the new ones. The sink need not be bound to a region.

        Args:
            target_file_size: the size to aim at in bytes; None: the sink's `target_file_size`.
            grace: how long merged files stay for readers that still use an older list, such as `15m`.
            until: the last sequence that is merged; None: the last published one. A reader that asks for the files
                after a sequence is refused if that sequence was merged with later ones.

        Raises:
            InvalidInputError: this is no folder of a region, or one that the region knows by another name.
            CorruptDataError: a published file is gone or can't be read.
            RetriableError: other compactors were faster; or the store does not answer.
        """
        target = self.target_file_size if target_file_size is None else target_file_size
        check_target_file_size(target)
        grace_s = duration_ms("grace", grace) / 1000
        try:
            claim = self._read_claim(f"{self.path}/_region")
        except FileNotFoundError as error:
            raise InvalidInputError(f"{self.path} is no folder of a region: there is nothing to compact") from error
        sink = self.bind(claim.region, claim.id) if self._id is None else self
        last = sink.published() if until is None else min(until, sink.published())
        layout = sink._reload()  # after that number: it has all columns of the files up to there
        schema = hive_partitions.without_partition_columns(layout.rows, layout.partition_by)
        merge = MergeSettings(schema, layout.added, self.compression, self.row_group_size, target)
        return sink._compactor().compact(merge, last, grace_s)

    def _compactor(self) -> Compactor:
        return Compactor(self._generations(), self._bound(), self.path)

    def _generations(self) -> GenerationStore:
        return FolderGenerations(self._files, self.path, self._id)

    def _last_marked(self) -> int:
        return staged_files.last_published(self._files, f"{self.path}/_region")

    def adopt(self) -> str:
        """Store this sink's present name in the owner marker. Return the earlier name; empty: there was no marker."""
        return self._adopt(f"{self.path}/_region")

    def _written_name(self) -> str:
        return self._written_in(f"{self.path}/_region")

    def _is_marked(self, sequence: int) -> bool:
        return staged_files.is_marked_published(self._files, f"{self.path}/_region", sequence)

    def _mark(self, sequence: int) -> None:
        staged_files.mark_published(self._files, f"{self.path}/_region", sequence)

    # -- cleanup

    def sweep(self, keep: Keep) -> None:
        """Remove staged rows that will never be published, and temporary files of processes that crashed."""
        try:
            self._owned()
        except FileNotFoundError:
            return
        self._remove_unshown(keep)

    def _remove_unshown(self, keep: Keep) -> None:
        names = self._names()
        if any(SHOWING.fullmatch(name) for name in names):  # a compactor died, or is about to show them
            generations = FolderGenerations(self._files, self.path, self._id)
            generations.rebuild_sequence_folders(generations.newest_generation())
        self._tidy(names, self._last_marked())
        kept = {key.file_stem() for key in keep.keys}
        for name in names:
            if self._is_void(name, keep.floor) and staged_files.staged_key_text(name) not in kept:
                self._remove_staged(name)

    def _is_void(self, name: str, min_valid_epoch: int) -> bool:
        return staged_files.is_key_of_invalid_epoch(staged_files.staged_key_text(name), self._id, min_valid_epoch)

    def _names(self) -> list[str]:
        return list_folder(self._files, f"{self.path}/_staging")

    def _tidy(self, names: list[str], published: int) -> None:
        """Remove temporary folders of attempts to publish checkpoints up to `published`, and hidden folders."""
        for name in names:
            going = _GOING.fullmatch(name)
            if going is not None and int(going[1]) <= published:
                self._discard(f"{self.path}/_staging/{name}")
            elif _GIVEN_UP.fullmatch(name):
                remove_tree(self._files, f"{self.path}/_staging/{name}")

    def _discard(self, temporary: str) -> None:
        """Remove a folder. Rename it first, so that no other process can publish it with some files missing."""
        with contextlib.suppress(FileNotFoundError):
            remove_tree(self._files, self._hide_folder(temporary))

    def _hide_folder(self, folder: str) -> str:
        """Rename a folder to a name in `_staging` that readers and publishers ignore, and return its new path."""
        gone = f"{self.path}/_staging/{GONE}{uuid.uuid4().hex}"
        self._files.rename(folder, gone)
        return gone
