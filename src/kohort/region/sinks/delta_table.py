"""A Delta table that is written to exactly once: a sequence is one commit in its log.

    table/_delta_log/                         Delta's own
    table/_kohort/REGION-ID/region.json       that this region writes here, under which name, and the schema of its rows
    table/_kohort/REGION-ID/columns-1.json    columns that were added to them later, with `evolve="add"`
    table/_kohort/REGION-ID/published-17      sequence 17 is done (an empty file; a few of the newest are kept)
    table/_kohort/REGION-ID/staged/KEY.json   what a member staged: names of files, what the log is to say of them
    table/_kohort/REGION-ID/staged/eEPOCH-REGION-ID-ATTEMPT-0.parquet  its rows, a file for each partition
    table/_kohort/REGION-ID/staged/_done-…    what is published of it, for the sweep
    table/eEPOCH-REGION-ID-ATTEMPT-0.parquet  the same file under a second name, once it is published; a new ATTEMPT

Names of data files have letters, digits, `-` and `.` alone. The log stores them as parts of a URL, and its readers do
not agree on the encoding of other characters. The names therefore do not contain the key, which may have `~`. Readers
and VACUUM skip names that begin with `_`. Other regions and other writers may write into the same table.

A publisher may die after it has made second names. VACUUM may later list them, and remove its list when the next
publisher has committed. Each call of `publish` therefore makes names of its own, and the linked file counts as changed
now. VACUUM's retention must be longer than a call takes. Names that no commit has are left to VACUUM.

The commit carries the region's uuid as the id of a transaction and the sequence as its version; `delta_log` has the
details. A second transaction id counts the region's rows. `empty` uses it to detect whether others have rewritten
files (OPTIMIZE).

The order of durability: staged files and their names before `stage` returns. Second names before the commit. The
commit's file and the files that it names before `published-N`, and before anything staged is removed. A new column is
in the log before `columns-N.json` names it, and both before rows with it are staged.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region.files import (
    Output,
    copy_file,
    is_store_url,
    list_folder,
    make_folder,
    make_folders,
    read_file,
    remove_file,
    sync_folder,
)
from kohort.region.sinks import Keep, owner_marker, staged_files
from kohort.region.sinks.availability import AWAY, NO_LINKS_ERRNOS
from kohort.region.sinks.bound import PROBE, FolderSink, local_sink_folder
from kohort.region.sinks.columns import fill_null_types, is_empty, resolve_null_types
from kohort.region.sinks.owner_marker import OwnerMarker
from kohort.region.sinks.rows import (
    Evolution,
    Mode,
    cast_to_sink_schema,
    check_column_names,
    check_evolution,
    check_keys,
    check_mode,
    check_schema_fits,
    last_row_of_each_key,
    new_columns,
    refuse_changed_columns,
    refuse_conflicting_columns,
    refuse_invalid_values,
    refuse_out_of_range_times,
    refused_rows_error,
    row_indices_where,
    sort_staged_keys,
    with_added_columns,
    with_added_fields,
)
from kohort.region.sinks.staged_files import Codec, read_json
from kohort.region.staged import StagedKey, check_sequence, missing_rows_text

try:
    import deltalake
    from deltalake.transaction import AddAction, RemoveAction

    from kohort.region.sinks.delta_log import DeltaLog, arrow_columns_of, delta_remove_action
    from kohort.region.sinks.delta_rows import (
        check_no_new_feature,
        check_partition_columns,
        check_writable_table,
        delta_stored_schema,
        file_statistics_json,
        refuse_partition_types,
        rows_by_partition,
    )
except ImportError as error:
    raise InvalidInputError(f"DeltaTable needs the package deltalake: pip install 'kohort[delta]' ({error})") from error

COMMITS_MAX: Final = 30
"""Limit on attempts to commit; others may commit between reading and writing."""
_OBJECTS: Final = "kohort.region.sinks.delta_objects"
PIECE: Final = ".json"
_DONE: Final = "_done-"
_DATA: Final = re.compile(r"e([0-9]+)-([0-9a-f]{32})-[0-9a-f]{16}-[0-9]+\.parquet")


class _File(msgspec.Struct, frozen=True):
    """A staged Parquet file, as its Delta `add` action will describe it: size, rows, statistics, partition values."""

    name: str
    size: int
    rows: int
    statistics: str
    partition: dict[str, str | None]


class _Piece(msgspec.Struct, frozen=True):
    """The content of `KEY.json`: the Parquet files with the rows staged under a key, in one of two fields.

    Attributes:
        files: the files, except in the case of `grown`.
        grown: the files, if `mode` is update and columns were added. A publisher that does not know added columns would
            leave their values out of its merge. It finds no `files`, and refuses to publish.
    """

    files: tuple[_File, ...] = ()
    grown: tuple[_File, ...] = ()


class DeltaTable(FolderSink):
    """A sink that writes a Delta table: each checkpoint of the region is one commit. The sink can be pickled.

    `Sink` documents the guarantees of its methods. The table is in a folder that all members see, or in an object
    store; it is created if missing. The folder's file system needs hard links, and the store conditional puts. Rows are
    appended; with `mode="update"` a row replaces the one with the same keys.

    If a checkpoint has two rows of one key, the later is written. The order is by epoch, unit and member of the staged
    keys, then by the order in the table.

    Attributes:
        path: the absolute path, from the working directory when it was made; or the URL.
        mode: append or update.
        keys: the columns by which rows replace one another, for `update`.
        partition_by: the columns that partition the files, if the table is created here.
        compression: the compression of Parquet's pages: snappy, zstd, lz4, gzip, brotli or none.
        evolve: whether to add a new column that may be null to the table, or to refuse tables that have one.
    """

    KIND = "delta"
    _LATE: ClassVar = False
    """Whether a write that has failed may still take effect later, as in an object store."""
    _kept: OwnerMarker | None

    def __new__(cls, path: str | os.PathLike[str] = "", **_options: object) -> DeltaTable:
        """Return a `DeltaTable` for a path, or a `DeltaObjects` for an object store's URL."""
        if cls is DeltaTable and is_store_url(path):
            stored: type[DeltaTable] = import_module(_OBJECTS).DeltaObjects  # it derives from this class
            return object.__new__(stored)
        return object.__new__(cls)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Mode = "append",
        keys: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        compression: Codec = "zstd",
        evolve: Evolution = "refuse",
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Initialise a sink for a path or a URL.

        Args:
            path: the path, or the URL of an object store.
            mode: append or update.
            keys: the columns by which rows replace one another, for `update`.
            partition_by: the columns that partition the files, if the table is created here.
            compression: the compression of Parquet's pages.
            evolve: whether to add a new column that may be null to the table.
            storage_options: credentials and settings of an object store, named as obstore names them. What is not given
                is taken from the environment, as `AWS_ACCESS_KEY_ID`.
        """
        self._keep_path(os.fspath(path), storage_options or {})
        if isinstance(partition_by, str):
            raise InvalidInputError(f"partition_by is {partition_by!r}: give a list, partition_by=[{partition_by!r}]")
        check_mode(mode, keys)
        staged_files.check_parquet_options(compression, None)
        check_evolution(evolve)
        self.mode, self.keys, self.partition_by = mode, tuple(keys), tuple(partition_by)
        self.compression, self.evolve = compression, evolve

    def _keep_path(self, path: str, storage_options: Mapping[str, str]) -> None:
        self.path = local_sink_folder(path, storage_options, "A DeltaTable")

    # -- before the first record

    def check(self, schema: pa.Schema) -> None:
        """Check that tables of this schema can be staged and published; create the table if it is missing.

        The first call stores the schema, which holds for all later rows. With `evolve="add"`, later calls add the new
        columns of their schema to it and to the table.
        """
        self._bound()
        check_column_names(schema, self.partition_by, "partition_by")
        schema = resolve_null_types(schema, self._known_columns, self.evolve)
        given = delta_stored_schema(schema)
        check_keys(given, self.keys)
        if self.mode == "update" and (bad := [name for name in given.names if "`" in name]):
            raise InvalidInputError(
                f"Columns with a '`' in their names, which no merge takes: {', '.join(bad)}: rename them"
            )
        check_partition_columns(given, self.partition_by)
        try:
            self._make(given)
            self._probe()
        except PermissionError as error:
            raise NotAuthorizedError(f"No right to write the Delta table {self.path}: {error}") from error
        self._evolve(given)

    def _evolve(self, given: pa.Schema) -> None:
        """Add columns to the Delta table that a submitted table has and it lacks; record them beside the owner marker.

        Of several writers, one commits them. If a process ends between commit and record, the next one takes the column
        for one that a stranger has added.
        """
        for _ in range(COMMITS_MAX):
            claim, number = self._reload()
            kept = claim.row_schema()
            given = with_added_fields(given, kept, claim.added)
            if self.evolve == "refuse":
                return check_schema_fits(self.path, kept, given)
            new = new_columns(self.path, kept, given)
            if not new and not claim.added:
                return None
            table = self._log.load()
            refuse_conflicting_columns(self.path, arrow_columns_of(table), new)
            if self._adds_columns(table, [*(kept.field(name) for name in claim.added), *new]):
                continue
            if not new:
                return None
            self._log.sync_column_commits(table.version())
            if self._keep_columns(number + 1, new):
                self._reload()
                return None
        raise self._too_late()

    def _adds_columns(self, table: deltalake.DeltaTable, columns: Sequence[pa.Field[Any]]) -> bool:
        """Try to commit those of these columns that the Delta table lacks.

        Returns:
            True if one was missing, whether or not the commit succeeded: the caller must load the table again. False:
                it has all columns.
        """
        there = arrow_columns_of(table)
        missing = [field for field in columns if field.name not in there.names]
        if missing:
            check_column_names(pa.schema([*there, *missing]), (), "")
            check_no_new_feature(self.path, table, missing)
            if self._log.try_add_columns(table, missing):
                self._log.sync_column_commits(table.version())
        return bool(missing)

    def _known_columns(self) -> pa.Schema | None:
        if self._is_claimed():
            return self._reload()[0].row_schema()
        return arrow_columns_of(self._log.load()) if self._log.exists() else None

    def _make(self, schema: pa.Schema) -> None:
        try:
            self._prepare_place()
            table = self._table(schema)
            check_writable_table(self.path, table, self.mode)
            parts = tuple(table.metadata().partition_columns)
            refuse_partition_types(self.path, arrow_columns_of(table), parts)
            if self.partition_by and parts != self.partition_by:
                raise InvalidInputError(f"{self.path} is parted by {list(parts)}, not by {list(self.partition_by)}")
            schema = self._fitting(arrow_columns_of(table), schema)
            mine = None
            if not self._is_claimed():
                text, alone = owner_marker.encode_schema(schema), self._log.is_empty(table)
                mine = OwnerMarker(1, self._region, self._bound(), text, self.keys, parts, alone, self.place)
            self._keep_claim(mine)
        except NotADirectoryError as error:
            raise InvalidInputError(f"{self.path} can't be a folder: {error.filename} is a file") from error
        self._refuse_other_partitions(self._claim(), parts)
        if (kept := self._claim()).keys != self.keys:
            raise InvalidInputError(
                f"Region {self._region!r} writes {self.path} with keys={list(kept.keys)}, not {list(self.keys)}: "
                "all members say the same"
            )

    def _refuse_other_partitions(self, claim: OwnerMarker, there: Sequence[str]) -> None:
        """Raise an error if the table's partition columns differ from those when the region began to write.

        Staged files are divided by these columns. The table may have been deleted and created again.
        """
        if claim.partition_by != tuple(there):
            raise InvalidInputError(
                f"{self.path} is parted by {list(there)}, and region {self._region!r} began to write it parted by "
                f"{list(claim.partition_by)}: create it again as it was"
            )

    def _fitting(self, there: pa.Schema, schema: pa.Schema) -> pa.Schema:
        """Return the submitted columns that the Delta table has, after checking their types against it.

        Columns are ignored that may be null and that others have added to the table. So are columns that the sink will
        add (`evolve="add"`).
        """
        if self._is_claimed():
            claim = self._reload()[0]
            rows = claim.row_schema()
            there = pa.schema([field for field in there if field.name in rows.names or not field.nullable])
            schema = with_added_fields(schema, rows, claim.added)
            lost = {name for name in claim.added if name not in there.names}
            schema = pa.schema([field for field in schema if field.name not in lost])
        if self.evolve == "add":
            new = {field.name for field in new_columns(self.path, there, schema)}
            schema = pa.schema([field for field in schema if field.name not in new])
        check_schema_fits(self.path, there, schema)
        return schema

    def _table(self, schema: pa.Schema) -> deltalake.DeltaTable:
        """Load the Delta table; create it if it is missing and the folder is empty."""
        self._log.refuse_symbolic_link()
        try:
            return self._log.load()
        except InvalidInputError:
            self._refuse_strangers()
        return self._log.create_table(schema, self.partition_by)

    def _refuse_strangers(self) -> None:
        strangers = sorted(name for name in self._names_in(self.path) if not name.startswith(("_", ".")))
        if strangers:
            raise InvalidInputError(
                f"{self.path} holds {strangers[0]!r} and is no Delta table: give the region an empty folder"
            ) from None

    def _probe(self) -> None:
        """Check by trial files that a staged file can be hard-linked into the table and into its log's folder."""
        folders = (self._staging, self.path, f"{self.path}/_delta_log")
        self._probe_in(folders, remove_file, lambda: self._try(folders))

    def _try(self, folders: Sequence[str]) -> None:
        files = self._files
        staged, *seconds = [f"{folder}/{PROBE}{uuid.uuid4().hex}" for folder in folders]
        try:
            files.close(files.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            for second in seconds:
                files.link(staged, second)
        except OSError as error:
            if error.errno in NO_LINKS_ERRNOS:
                raise InvalidInputError(
                    f"{self.path} can't be written exactly once: {error}. It must lie on one file system that has hard "
                    "links"
                ) from error
            raise
        finally:
            for path in (staged, *seconds):
                with contextlib.suppress(OSError):
                    remove_file(files, path)

    @property
    def _log(self) -> DeltaLog:
        return DeltaLog(self.path, self._bound(), self._files)

    @property
    def _own(self) -> str:
        return f"{self.path}/_kohort/{self._bound().hex}"

    @property
    def _staging(self) -> str:
        return f"{self._own}/staged"

    def _is_claimed(self) -> bool:
        if self._kept is None:
            try:
                self._reload()
            except FileNotFoundError:
                return False
        return True

    def _reload(self) -> tuple[OwnerMarker, int]:
        """Read and cache the region's owner marker; return it with the number of times that columns were added.

        Raises:
            FileNotFoundError: there is no marker: the region has not written here yet.
        """
        claim, number = owner_marker.read_marker_with_columns(self._content, self._own)
        self._refuse_other_name(claim)
        if claim.added != (() if self._kept is None else self._kept.added):
            self._sync_own()  # another process may have written it a moment ago
        self._kept = claim
        return claim, number

    def _claim(self) -> OwnerMarker:
        if not self._is_claimed() or self._kept is None:
            raise InvalidInputError(f"{self.path} is not known to region {self._region!r}: call check(schema) first")
        return self._kept

    # -- staging

    def check_rows(self, table: pa.Table) -> pa.Table:
        """Check each row of a table, and return the rows in the sink's schema, as `stage` writes them.

        Raises:
            RowRefusedError: the sink can't write a row.
        """
        return self._checked(table)[1]

    def _checked(self, table: pa.Table) -> tuple[OwnerMarker, pa.Table]:
        """Check the rows of a table; return the owner marker whose schema they fit, and the rows as they are staged.

        The marker is returned because another thread may cache an older one meanwhile.
        """
        claim = self._claim()
        unknown = set(table.column_names).difference(claim.row_schema().names)
        if any(not is_empty(table.schema.field(name)) for name in unknown):
            claim = self._reload()[0]
        kept = claim.row_schema()
        if self.evolve == "add":
            unknown = set(table.column_names).difference(kept.names)
            table = table.drop_columns([name for name in unknown if is_empty(table.schema.field(name))])
        table = with_added_columns(table, kept, claim.added)
        check_schema_fits(self.path, kept, delta_stored_schema(fill_null_types(table.schema, kept)))
        rows = cast_to_sink_schema(table, kept, self.keys)
        refuse_invalid_values(rows)
        refuse_out_of_range_times(rows, claim.partition_by)
        for name in claim.partition_by:
            must = name in self.keys or not kept.field(name).nullable
            is_text = pa.types.is_string(kept.field(name).type)
            if must and is_text and (empty := row_indices_where(pc.equal(rows.column(name), pa.scalar("")))):
                why = f"An empty text in {name!r}: as a partition, Delta can't tell it from null"
                raise refused_rows_error(dict.fromkeys(empty, why), table, name)
        return claim, rows

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Write a table's rows to Parquet files that readers do not see yet, durably.

        A repeated call with the same key replaces the rows.
        """
        self._refuse_others(key)
        claim, table = self._checked(table)
        if self.mode == "update":  # before the partitions, which lose the order of the rows
            table = last_row_of_each_key(table, claim.keys)
        name = key.file_stem()
        before = self._piece(name) or ()
        written: list[_File] = []
        named = False
        stem = f"e{key.epoch}-{key.region_id.hex}-{uuid.uuid4().hex[:16]}"
        try:
            for number, (values, part) in enumerate(rows_by_partition(table, claim.partition_by)):
                file = _File(f"{stem}-{number}.parquet", 0, part.num_rows, file_statistics_json(part), values)
                written.append(file)
                written[-1] = msgspec.structs.replace(file, size=self._write_rows(file.name, part))
            grown, named = self.mode == "update" and claim.added, True
            self._write_piece(name + PIECE, msgspec.json.encode({"grown" if grown else "files": written}))
        except BaseException:
            with contextlib.suppress(*AWAY):
                if not (named and self._LATE):
                    self._remove_staged([part_of.name for part_of in written])
            raise
        self._remove_staged([old.name for old in before])

    def _piece(self, name: str) -> tuple[_File, ...] | None:
        """Return the Parquet files with the rows staged under a key; None: nothing is staged under it, or no longer."""
        piece = read_json(self._content, f"{self._staging}/{name}{PIECE}", _Piece)
        return None if piece is None else piece.files + piece.grown

    def _pieces(self, names: Sequence[str]) -> list[tuple[_File, ...] | None]:
        return [self._piece(name) for name in names]

    # -- publishing

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Publish the rows staged under these keys as one sequence (checkpoint), by one commit in the Delta log."""
        check_sequence(sequence)
        self._claim()
        named = sort_staged_keys(keys)
        if not self._is_marked(sequence):
            pieces = self._pieces([key.file_stem() for key in named])
            gone = missing_rows_text(
                {key.file_stem(): piece is not None for key, piece in zip(named, pieces, strict=True)}
            )
            staged = [file for piece in pieces if piece is not None for file in piece]
            if staged or (gone and not self._is_marked(sequence)):  # pieces go after the mark of another publisher
                self._bring(sequence, staged, gone)
        self._mark_done(sequence)
        self._forget([key.file_stem() for key in named])

    def _bring(self, sequence: int, staged: list[_File], lost: str) -> None:
        """Commit staged files to the Delta log as this sequence (checkpoint), unless another process has done so.

        Args:
            sequence: the sequence.
            staged: the staged files.
            lost: why staged files are missing; empty: none is. It is an error only if no process has committed the
                sequence.
        """
        claim = self._reload()[0]  # other members may have added columns, which the staged rows have
        kept = claim.row_schema()
        shown: dict[str, str] = {}

        def commit_sequence(table: deltalake.DeltaTable) -> bool:
            nonlocal lost
            if lost:
                raise CorruptDataError(f"Sequence {sequence} can't be published into {self.path}: {lost}")
            if self._adds_columns(table, [kept.field(name) for name in claim.added]):
                return False
            refuse_changed_columns(self.path, arrow_columns_of(table), kept)
            self._refuse_other_partitions(claim, table.metadata().partition_columns)
            try:
                if self.mode == "update":
                    return self._merge(table, sequence, staged, claim)
                if not shown:
                    names = {file.name: _second_name(file.name) for file in staged}
                    self._show_files({file.name: file.size for file in staged}, names)
                    shown.update(names)
                return self._add(table, sequence, staged, shown)
            except FileNotFoundError as error:
                lost = str(error)  # because another process has published and swept it: the log shows it
                return False

        self._until_there(lambda table: self._log.has_sequence(table, sequence), commit_sequence)

    def _until_there(
        self, is_there: Callable[[deltalake.DeltaTable], bool], commit: Callable[[deltalake.DeltaTable], bool]
    ) -> None:
        """Load the table and call `commit` until the loaded version satisfies `is_there`; then make it durable.

        Raises:
            RetriableError: other writers committed first, 30 times.
        """
        for _ in range(COMMITS_MAX):
            table = self._log.load()
            if is_there(table):
                return self._log.sync_last_commit(table.version(), _DATA)
            commit(table)  # one below a checkpoint is not in the table: its version was taken, and cleaned away
        raise self._too_late()

    def _too_late(self) -> RetriableError:
        return RetriableError(f"{self.path} is written by others all the time: {COMMITS_MAX} commits were too late")

    def _add(self, table: deltalake.DeltaTable, sequence: int, staged: list[_File], shown: Mapping[str, str]) -> bool:
        now = int(time.time() * 1000)
        adds: list[AddAction | RemoveAction] = [
            AddAction(shown[file.name], file.size, file.partition, now, True, file.statistics) for file in staged
        ]
        rows = self._log.appended_row_count(table) + sum(file.rows for file in staged)
        return self._log.commit(table, sequence, adds, rows)

    def _merge(self, table: deltalake.DeltaTable, sequence: int, staged: list[_File], claim: OwnerMarker) -> bool:
        kept = claim.row_schema()
        rows = pa.concat_tables([self._read_staged(file, kept) for file in staged])
        return self._log.merge(table, sequence, last_row_of_each_key(rows, claim.keys), claim.keys)

    def _read_staged(self, file: _File, kept: pa.Schema) -> pa.Table:
        read = pq.read_table(pa.BufferReader(self._content(f"{self._staging}/{file.name}")))
        columns = []
        for field in kept:
            if field.name in file.partition:
                value = pa.scalar(file.partition[field.name], pa.string()).cast(field.type)
                columns.append(pa.repeat(value, read.num_rows))
            elif field.name in read.column_names:
                columns.append(read.column(field.name))
            else:  # staged before the column was added
                columns.append(pa.nulls(read.num_rows, field.type))
        return pa.Table.from_arrays(columns, schema=kept)

    def empty(self, sequence: int, floor: int) -> None:
        """Remove the region's rows by one Delta commit, which removes its data files and records this checkpoint.

        Then remove staged rows of epochs before `floor`, the minimum valid epoch; rows of later epochs stay staged.
        """
        if not self._is_claimed():
            return
        if not self._is_marked(sequence + 1):  # its own number may be from a history that the topic has lost
            self._until_there(
                lambda table: self._log.is_emptied(table, sequence),
                lambda table: self._log.commit(table, sequence, self._removals(table), 0, True),
            )
        self._mark_done(sequence)
        self.sweep(Keep(floor))

    def _removals(self, table: deltalake.DeltaTable) -> list[AddAction | RemoveAction]:
        """Return Delta `remove` actions for all data files of this region; with `mode="update"`, of the whole table.

        Raises:
            InvalidInputError: other writers have rewritten files (OPTIMIZE, DELETE); or, with `mode="update"`, the
                table had rows before, or other regions write it. The region's rows can't be told from others then.
        """
        there = self._log.data_file_entries(table)
        if self.mode == "update":
            ours = there
            whole = self._claim().alone and len(self._names_in(f"{self.path}/_kohort")) == 1
        else:
            ours = [file for file in there if self._is_ours(file["path"])]
            whole = sum(file["num_records"] or 0 for file in ours) == self._log.appended_row_count(table)
        hidden = self._log.files_with_deleted_rows(table)
        whole = whole and not any(unquote(file["path"]).rpartition("/")[2] in hidden for file in ours)
        if there and not whole:
            raise InvalidInputError(
                f"The rows of region {self._region!r} can't be told from others in {self.path}: its files were written "
                "anew (OPTIMIZE, DELETE, UPDATE), or there were others' rows before its own. Delete all rows of the "
                "table by hand; the region goes on by itself"
            )
        return [delta_remove_action(file) for file in ours]

    def _is_ours(self, path: str) -> bool:
        found = _DATA.fullmatch(path)
        return found is not None and found[2] == self._bound().hex

    # -- progress and cleanup

    def published(self) -> int:
        """Return the last sequence (checkpoint number) that is published and durable; 0: none."""
        self._bound()
        if not self._is_claimed():
            return 0
        marked = self._last_marked()
        table = self._log.load()
        last = self._log.last_sequence(table)
        if last > marked:  # its publisher ended before it was marked
            self._log.sync_last_commit(table.version(), _DATA)
            self._mark_done(last)
        return max(last, marked)

    def adopt(self) -> str:
        """Store this sink's present name in the region's owner marker.

        Return the earlier name; empty: there was none.
        """
        return self._adopt(self._own)

    def _written_name(self) -> str:
        return self._written_in(self._own)

    def sweep(self, keep: Keep) -> None:
        """Remove staged rows that will never be published, and those that are published already.

        Data files in the table's folder that no commit has are left to VACUUM: a commit that is under way may add them.
        """
        self._bound()
        if not self._is_claimed():
            return
        kept = {key.file_stem() for key in keep.keys}
        for name in kept:
            kept = kept.union(file.name for file in self._piece(name) or ())
        gone = []
        for name in self._names_in(self._staging):
            data = _DATA.fullmatch(name)
            stem = name if data else staged_files.staged_key_text(name)
            void = (
                int(data[1]) < keep.floor if data else staged_files.is_key_of_invalid_epoch(stem, self._id, keep.floor)
            )
            if name.startswith(_DONE) or (void and stem not in kept):
                gone.append(name)
        self._remove_staged(gone)

    # -- files, which `delta_objects` keeps in a store

    def _prepare_place(self) -> None:
        make_folder(self._files, self.path)
        self._files.listdir(self.path)

    def _keep_claim(self, mine: OwnerMarker | None) -> None:
        """Write the region's owner marker if one is given and there is none yet, and make the marker durable."""
        make_folders(self._files, self.path, self._staging.removeprefix(f"{self.path}/"))
        if mine is not None:
            owner_marker.write_owner_marker(self._files, self._own, mine)
        self._sync_own()

    def _keep_columns(self, number: int, columns: Sequence[pa.Field[Any]]) -> bool:
        return owner_marker.try_add_columns(self._files, self._own, number, columns)

    def _sync_own(self) -> None:
        sync_folder(self._files, self._own)

    def _names_in(self, folder: str) -> list[str]:
        return list_folder(self._files, folder)

    def _content(self, path: str) -> bytes:
        return read_file(self._files, path)

    def _write_rows(self, name: str, rows: pa.Table) -> int:
        """Write rows to a staged Parquet file, durably, and return its size in bytes."""
        with contextlib.closing(Output(self._files, f"{self._staging}/{name}")) as output:
            staged_files.write_parquet(rows, output, self.path, self.compression, None)
            output.sync()
            return output.tell()

    def _write_piece(self, name: str, piece: bytes) -> None:
        staged_files.write_file_atomically(self._files, self._staging, name, lambda output: output.write(piece))

    def _remove_staged(self, names: Iterable[str]) -> None:
        for name in names:
            remove_file(self._files, f"{self._staging}/{name}")

    def _show_files(self, sizes: Mapping[str, int], names: Mapping[str, str]) -> None:
        """Link staged Parquet files into the table's folder. Readers ignore them until a commit adds them.

        Args:
            sizes: the sizes of the staged files, by name.
            names: the new name of each, which must be unused.
        """
        for name in sizes:
            staged, second = f"{self._staging}/{name}", f"{self.path}/{names[name]}"
            try:
                self._files.utime(staged)  # VACUUM removes what was changed long ago
            except PermissionError:  # another user's
                copy_file(self._files, staged, second)
            else:
                staged_files.link_file(self._files, staged, second)
        sync_folder(self._files, self.path)

    def _mark_done(self, sequence: int) -> None:
        staged_files.mark_published(self._files, self._own, sequence)

    def _is_marked(self, sequence: int) -> bool:
        return staged_files.is_marked_published(self._files, self._own, sequence)

    def _last_marked(self) -> int:
        return staged_files.last_published(self._files, self._own)

    def _forget(self, names: Iterable[str]) -> None:
        """Rename the staged files of published rows, so that a later sweep removes them: `KEY.json` after the others.

        After a crash in between, another process still finds the rest by `KEY.json`. Removing a file takes a hundred
        times as long as renaming it, and the next checkpoint waits for this.
        """
        for name in names:
            piece = self._piece(name)
            for file_name in (*(file.name for file in piece), name + PIECE) if piece is not None else ():
                with contextlib.suppress(FileNotFoundError):
                    self._files.rename(f"{self._staging}/{file_name}", f"{self._staging}/{_DONE}{file_name}")


def _second_name(name: str) -> str:
    """Return a new unique name for a staged Parquet file in the table: the same with another attempt id."""
    epoch, region, _, number = name.split("-")
    return f"{epoch}-{region}-{uuid.uuid4().hex[:16]}-{number}"
