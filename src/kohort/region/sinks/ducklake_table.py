"""A DuckLake table that is written to exactly once: a sequence is one transaction of the lake, and so one snapshot.

    catalog.sqlite                                    the lake's catalog, unless PostgreSQL has it
    data/                                             files that DuckDB writes: of other writers, and of compactions
    _kohort/TABLE-ID/REGION-ID/data/…                 rows, where they stay; before they are published too
    _kohort/TABLE-ID/REGION-ID/staged/KEY.json        what a member staged: its files
    _kohort/TABLE-ID/REGION-ID/published-17           sequence 17 is done (a few of the newest are kept)

    kohort_regions, kohort_sequences                  tables of the lake beside the table: the regions that write it,
                                                      and the last sequence of each

The transaction adds the staged files to the table (`ducklake_add_data_files`), without copying them, and moves the
region's row in `kohort_sequences`. `ducklake_catalog` explains why a catalog in SQLite refuses such a commit whenever
another has come between. The publisher then looks at that row again. Two publishers of one sequence, a late one and a
lost answer therefore count once. The row is in the newest snapshot, so that no expiry removes it. It is inlined in the
catalog, so that no commit leaves a file.

The files lie outside of the lake's `data`, since `ducklake_delete_orphaned_files` removes there what the catalog does
not know. From the commit on they are DuckLake's: a compaction or a deletion takes them out, and
`ducklake_cleanup_old_files` removes them. The sink removes only files that the catalog does not have in any snapshot,
of keys that no sequence will have.

The order of durability: `KEY.json` before its files; both before `stage` returns. The commit before `published-N`, and
before any `KEY.json` is removed. A sweep removes the files first and `KEY.json` last.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final
from uuid import UUID

import msgspec
import pyarrow as pa

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region.files import Output, list_folder, local_path, make_folder, read_file, remove_file, sync_folder
from kohort.region.records import Position
from kohort.region.sinks import Keep, owner_marker, staged_files
from kohort.region.sinks.bound import FolderSink, offsets_as_json
from kohort.region.sinks.columns import fill_null_types, resolve_null_types
from kohort.region.sinks.owner_marker import UNREADABLE_JSON, OwnerMarker
from kohort.region.sinks.rows import (
    cast_to_sink_schema,
    check_column_names,
    check_schema_fits,
    refuse_invalid_values,
    sort_staged_keys,
)
from kohort.region.sinks.sql_dialects import PostgresUrl, libpq_parameters, quote_sql_name
from kohort.region.sinks.staged_files import Codec, read_json
from kohort.region.staged import StagedKey, check_sequence, missing_rows_text
from kohort.settings.validation import redacted_url

try:
    from kohort.region.sinks.ducklake_catalog import (
        DATA,
        DuckLake,
        LakeTransaction,
        NoLakeError,
        PostgresLake,
        UnknownCommitError,
        column_types,
        columns_with_safe_statistics,
        ducklake_stored_schema,
        escape_lake_name,
        quote_sql_text,
        sql_list_literal,
    )
except ImportError as error:
    raise InvalidInputError(
        f"DuckLakeTable needs the package duckdb: pip install 'kohort[ducklake]' ({error})"
    ) from error

COMMITS_MAX: Final = 30
"""Limit on attempts to commit; others may commit between reading and writing."""
_REGIONS: Final = "kohort_regions"
_SEQUENCES: Final = "kohort_sequences"
_PIECE: Final = ".json"
_TRIALS: Final = "tried"
"""The folder of files without rows that a check adds and takes back."""
_VIRTUAL: Final = ("filename", "file_row_number", "rowid", "snapshot_id")
"""Columns that DuckLake adds to each table; the sink finds the region's rows by the first."""
_GLOBS: Final = "*?["
"""Characters that DuckDB takes for a pattern in a file's path."""
_FILE: Final = re.compile(r"kohort-e([0-9]+)-([0-9a-f]{32})-[0-9a-f]{16}\.parquet")


class _LakePiece(msgspec.Struct, frozen=True):
    """The content of `KEY.json`: the Parquet files with the rows staged under a key.

    Attributes:
        files: the names of the files with the rows.
        row_count: the number of rows in these files.
        whole: whether the files are completely written. If not, staging is in progress or has failed.
        others: names of files of this key that are not to be published: partly written, or of earlier attempts.
    """

    files: tuple[str, ...]
    row_count: int
    whole: bool
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _LakeState:
    """The state of the lake's table in one snapshot, as this region sees it.

    Attributes:
        table_id: the table's UUID; a table that was deleted and created again has another.
        claim: the region's owner marker; None: the region has not written here yet.
        sequence: the last sequence (checkpoint number) published here; 0: none.
        row_count: how many rows the region has added since the table was emptied.
        emptied: the last checkpoint that emptied the table of the region's rows; 0: none did.
    """

    table_id: str
    claim: OwnerMarker | None = None
    sequence: int = 0
    row_count: int = 0
    emptied: int = 0


class DuckLakeTable(FolderSink):
    """A sink that writes a DuckLake table: each checkpoint of the region is one snapshot. The sink can be pickled.

    `Sink` documents the guarantees of its methods. Rows are appended. The lake is a folder with a catalog in SQLite,
    which all members see; it is created if missing, and so is the table. With `catalog` the catalog is a database of
    PostgreSQL instead. Other programs may write into the same lake and the same table.

    Attributes:
        path: the absolute path of the folder.
        catalog: the URL of PostgreSQL's database, without a password; empty: SQLite.
        table: the schema and the name of the table, with a dot; without a schema it is `main`'s.
        compression: the compression of Parquet's pages: snappy, zstd, lz4, gzip, brotli or none.
    """

    KIND: ClassVar[str] = "ducklake"
    _kept: OwnerMarker | None

    def __init__(
        self, table: str, *, lake: str | os.PathLike[str], catalog: str = "", compression: Codec = "zstd"
    ) -> None:
        names = table.split(".")
        if not all(names) or len(names) > 2:
            raise InvalidInputError(f"The table is {table!r}: give its name, or its schema and its name: 'air.flights'")
        if (reserved := names[-1].lower()) in (_REGIONS, _SEQUENCES):
            raise InvalidInputError(f"{reserved} is the sink's own table: choose another name")
        staged_files.check_parquet_options(compression, None)
        self.path = _local(os.fspath(lake))
        if bad := sorted(set(_GLOBS).intersection(self.path)):
            raise InvalidInputError(f"The lake {self.path} holds {bad[0]!r}, which DuckDB takes for a pattern")
        self._names = names if len(names) == 2 else ["main", *names]
        self.table, self.compression, self.catalog = ".".join(self._names), compression, catalog
        self._parameters = libpq_parameters(catalog) if catalog else ""

    def __repr__(self) -> str:
        return f"DuckLakeTable({self.table!r}, lake={self.path!r})"

    def _place_name(self) -> str:
        """Return a name made of the catalog's location and the table's name in lower case, equal for all members."""
        home = PostgresUrl(self.catalog).canonical_url() if self.catalog else os.path.realpath(self.path)
        return f"{self.KIND}:{home}#{self.table.lower()}"

    # -- the catalog

    @property
    def _lake(self) -> DuckLake:
        if self.catalog:
            return PostgresLake(self.path, self.place, self._parameters)
        return DuckLake(self.path, self.place)

    def _table_of_sink(self, table: str) -> str:
        return escape_lake_name(quote_sql_name(self._names[0], table))

    @property
    def _target(self) -> str:
        return escape_lake_name(quote_sql_name(*self._names))

    def _state(self, at: LakeTransaction) -> _LakeState | None:
        """Return the table's state in the transaction's snapshot; None: the table does not exist."""
        found = at.table_uuids(self._names[0])
        table_id = found.get(self._names[1].lower())
        if table_id is None:
            return None
        if not found.keys() >= {_REGIONS, _SEQUENCES}:
            return _LakeState(table_id)
        mine = (table_id, self._bound().hex)
        where = "WHERE table_id = ? AND region_id = ?"
        claims = at.query_rows(f"SELECT claim FROM {{lake}}.{self._table_of_sink(_REGIONS)} {where}", *mine)
        rows = at.query_rows(
            f"SELECT sequence, row_count, emptied FROM {{lake}}.{self._table_of_sink(_SEQUENCES)} {where}", *mine
        )
        if not claims and not rows:
            return _LakeState(table_id)
        if len(claims) != 1 or len(rows) != 1:
            raise CorruptDataError(
                f"{self.place} has {len(claims)} rows of region {self._region!r} in {_REGIONS} and {len(rows)} in "
                f"{_SEQUENCES}, and not one each: others have changed them. Restore the lake, or adopt another table"
            )
        return _LakeState(table_id, self._decoded(claims[0][0]), *rows[0])

    def _decoded(self, text: str) -> OwnerMarker:
        try:
            claim = msgspec.json.decode(text, type=OwnerMarker)
            claim.row_schema()
        except (*UNREADABLE_JSON, CorruptDataError) as error:
            raise CorruptDataError(f"The region's row in {_REGIONS} of {self.place} can't be read: {error}") from error
        if claim.format != 1:
            raise InvalidInputError(f"{self.place} was written by a newer kohort, in format {claim.format}")
        return claim

    def _claimed(self, state: _LakeState | None) -> tuple[_LakeState, OwnerMarker]:
        """Check that the table's state has this region's owner marker with this sink's name; return both.

        The marker is cached.

        Raises:
            InvalidInputError: the table or the marker is missing, or the marker has another name of the sink.
        """
        if state is None or state.claim is None:
            raise self._unknown_table()
        if state.claim.place != self.place:
            raise owner_marker.other_name_error(self._region, state.claim.place, self.place)
        self._kept = state.claim
        return state, state.claim

    def _newest_state(self) -> _LakeState | None:
        """Return the table's state in the newest snapshot; None: the lake or the table does not exist."""
        self._bound()
        if not self._lake.has_catalog_database():
            return None
        try:
            with self._lake.transaction() as at:
                return self._state(at)
        except NoLakeError:
            return None

    def _find(self) -> _LakeState | None:
        """Return the table's newest state; None: the region has not written there yet."""
        state = self._newest_state()
        return None if state is None or state.claim is None else self._claimed(state)[0]

    def _load(self) -> tuple[_LakeState, OwnerMarker]:
        return self._claimed(self._newest_state())

    def _unknown_table(self) -> InvalidInputError:
        return InvalidInputError(f"{self.place} is not known to region {self._region!r}: call check(schema) first")

    def _until_there(
        self,
        is_there: Callable[[_LakeState], bool],
        change: Callable[[LakeTransaction, _LakeState], None],
    ) -> bool:
        """Commit `change` in one transaction, unless the table's state satisfies `is_there`; retry refused commits.

        Returns:
            Whether this process's commit made the change. False: another's did, or this one's after a lost answer.

        Raises:
            RetriableError: other writers committed first, several times.
        """
        for _ in range(COMMITS_MAX):
            try:
                with self._lake.transaction() as at:
                    state = self._claimed(self._state(at))[0]
                    if is_there(state):
                        return False
                    change(at, state)
                return True
            except UnknownCommitError:
                continue
        raise self._too_late()

    def _too_late(self) -> RetriableError:
        return RetriableError(f"{self.place} is written by others all the time: {COMMITS_MAX} commits were too late")

    # -- before the first record

    def check(self, schema: pa.Schema) -> None:
        """Check that tables of this schema can be staged and published; create what is missing.

        The first call stores the schema, which holds for all later rows: this sink adds no columns to it.
        """
        self._bound()
        check_column_names(schema, (), "")
        if ours := [name for name in schema.names if name.lower() in _VIRTUAL]:
            raise InvalidInputError(f"Columns of DuckLake's own names: {', '.join(ours)}: rename them")
        given = ducklake_stored_schema(self.place, resolve_null_types(schema, self._known_columns))
        try:
            make_folder(self._files, f"{self.path}/{DATA}")
            for name in (self.path, f"{self.path}/{DATA}"):
                self._files.listdir(name)
                if not os.access(name, os.W_OK | os.X_OK):
                    raise NotAuthorizedError(f"No right to write {name}, a folder of {self.place}")
            self._lake.check_rights()
            state, claim = self._made(given)
            check_schema_fits(self.place, claim.row_schema(), given)
            self._check_empty_file_accepted(state, claim.row_schema())
        except PermissionError as error:
            raise NotAuthorizedError(f"No right to write the DuckLake table {self.place}: {error}") from error
        except NotADirectoryError as error:
            raise InvalidInputError(f"{self.path} can't be a folder: {error.filename} is a file") from error

    def _known_columns(self) -> pa.Schema | None:
        if self._newest_state() is None:
            return None
        with self._lake.transaction() as at:
            return at.table_columns(self._target)

    def _made(self, schema: pa.Schema) -> tuple[_LakeState, OwnerMarker]:
        """Return the table's state with this region's owner marker.

        Create lake, table and marker if they are missing.
        """
        for step in (self._make_tables, self._inline_own_tables, self._claim_table):
            for again in reversed(range(COMMITS_MAX)):
                try:
                    with self._lake.transaction(create=True) as at:
                        step(at, schema)
                    break
                except UnknownCommitError:
                    if not again:
                        raise
        return self._load()

    def _make_tables(self, at: LakeTransaction, schema: pa.Schema) -> None:
        there = at.table_uuids(self._names[0])
        if self._names[1].lower() not in there:
            at.execute_change(
                f"CREATE SCHEMA IF NOT EXISTS {{lake}}.{escape_lake_name(quote_sql_name(self._names[0]))}"
            )
            kinds = column_types(self.place, schema)
            columns = [
                f"{quote_sql_name(field.name)} {kinds[field.name]}{'' if field.nullable else ' NOT NULL'}"
                for field in schema
            ]
            at.execute_change(f"CREATE TABLE {{lake}}.{self._target} ({escape_lake_name(', '.join(columns))})")
        if _REGIONS not in there:
            columns = ["table_id VARCHAR", "region_id VARCHAR", "region VARCHAR", "claim VARCHAR"]
            at.execute_change(f"CREATE TABLE {{lake}}.{self._table_of_sink(_REGIONS)} ({', '.join(columns)})")
        if _SEQUENCES not in there:
            columns = [
                "table_id VARCHAR", "region_id VARCHAR", "sequence BIGINT", "row_count BIGINT", "emptied BIGINT"
            ]  # fmt: skip
            at.execute_change(f"CREATE TABLE {{lake}}.{self._table_of_sink(_SEQUENCES)} ({', '.join(columns)})")

    def _inline_own_tables(self, at: LakeTransaction, schema: pa.Schema) -> None:
        """Set the sink's own two tables to store rows in the catalog (data inlining), whatever the lake's limit is."""
        for table in (_REGIONS, _SEQUENCES):
            if not at.query_rows(
                "SELECT 1 FROM ducklake_options(?) WHERE option_name = 'data_inlining_row_limit' AND scope = 'TABLE' "
                "AND lower(scope_entry) = ?",
                at.name, f"{self._names[0]}.{table}".lower(),
            ):  # fmt: skip
                at.execute_change(
                    f"CALL ducklake_set_option({quote_sql_text(at.name)}, 'data_inlining_row_limit', 10, table_name => "
                    f"{quote_sql_text(table)}, schema => {quote_sql_text(self._names[0])})"
                )

    def _claim_table(self, at: LakeTransaction, schema: pa.Schema) -> None:
        state = self._state(at)
        if state is not None and state.claim is not None:
            return
        if state is None:
            raise self._unknown_table()
        check_schema_fits(self.place, at.table_columns(self._target), schema)
        claim = OwnerMarker(1, self._region, self._bound(), owner_marker.encode_schema(schema), place=self.place)
        mine = (state.table_id, self._bound().hex)
        text = msgspec.json.encode(claim).decode()
        at.execute_change(
            f"INSERT INTO {{lake}}.{self._table_of_sink(_REGIONS)} VALUES (?, ?, ?, ?)", *mine, self._region, text
        )
        at.execute_change(f"INSERT INTO {{lake}}.{self._table_of_sink(_SEQUENCES)} VALUES (?, ?, 0, 0, 0)", *mine)

    # -- staging

    def _folder(self, state: _LakeState) -> str:
        """Return the folder of this region's staged files for this table.

        A table that is created again gets another.
        """
        return f"{self.path}/_kohort/{state.table_id}/{self._bound().hex}"

    def _file(self, state: _LakeState, name: str) -> str:
        return f"{self._folder(state)}/data/{name}"

    def check_rows(self, table: pa.Table) -> pa.Table:
        """Check each row of a table, and return the rows in the sink's schema, as `stage` writes them.

        Raises:
            RowRefusedError: the sink can't write a row.
        """
        claim = self._kept
        return self._shaped(table, self._load()[1] if claim is None else claim)

    def _shaped(self, table: pa.Table, claim: OwnerMarker) -> pa.Table:
        kept = claim.row_schema()
        if not table.schema.equals(kept):
            check_schema_fits(self.place, kept, ducklake_stored_schema(self.place, fill_null_types(table.schema, kept)))
        rows = cast_to_sink_schema(table, kept, ())
        refuse_invalid_values(rows)
        return rows

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Write a table's rows to Parquet files that readers do not see yet, durably.

        A repeated call with the same key replaces the rows.
        """
        self._refuse_others(key)
        state, claim = self._load()
        rows = self._shaped(table, claim)
        written = self._write(state, key, rows, self._piece(state, key.file_stem()))
        self._remove_unknown(state, written.others)

    def _write(self, state: _LakeState, key: StagedKey, rows: pa.Table, before: _LakePiece | None) -> _LakePiece:
        """Write rows to a Parquet file, and `KEY.json`, which also lists files of earlier attempts.

        `KEY.json` names the file before it is written, so that a sweep finds it after a crash. It is written again when
        the file is complete.
        """
        named = [f"kohort-e{key.epoch}-{key.region_id.hex}-{uuid.uuid4().hex[:16]}.parquet"] if rows.num_rows else []
        old = _LakePiece((), 0, False) if before is None else before
        try:
            for name in named:
                self._put_piece(state, key, msgspec.structs.replace(old, others=(*old.others, name)))
                self._write_rows(self._file(state, name), rows)
                self._check_file_accepted(self._file(state, name))
            piece = _LakePiece(tuple(named), rows.num_rows, True, (*old.others, *old.files))
            self._put_piece(state, key, piece)
        except BaseException:
            with contextlib.suppress(OSError):
                for name in named:
                    remove_file(self._files, self._file(state, name))
                if before is None:
                    remove_file(self._files, f"{self._folder(state)}/staged/{key.file_stem()}{_PIECE}")
                else:
                    self._put_piece(state, key, before)
            raise
        return piece

    def _write_rows(self, path: str, rows: pa.Table) -> None:
        """Write rows to a new Parquet file, and sync the file and its folder."""
        folder = os.path.dirname(path)
        try:
            output = Output(self._files, path)
        except FileNotFoundError:
            make_folder(self._files, folder)
            output = Output(self._files, path)
        with contextlib.closing(output):
            staged_files.write_parquet(
                rows, output, self.place, self.compression, None, columns_with_safe_statistics(rows)
            )
            output.sync()
        sync_folder(self._files, folder)

    def _put_piece(self, state: _LakeState, key: StagedKey, piece: _LakePiece) -> None:
        data, folder, name = msgspec.json.encode(piece), f"{self._folder(state)}/staged", key.file_stem() + _PIECE
        try:
            staged_files.write_file_atomically(self._files, folder, name, lambda output: output.write(data))
        except FileNotFoundError:
            make_folder(self._files, folder)
            staged_files.write_file_atomically(self._files, folder, name, lambda output: output.write(data))

    def _check_empty_file_accepted(self, state: _LakeState, schema: pa.Schema) -> None:
        """Check with an empty Parquet file that DuckLake accepts files with these columns."""
        path = f"{self._folder(state)}/{_TRIALS}/{uuid.uuid4().hex}.parquet"
        self._write_rows(path, schema.empty_table())
        try:
            self._check_file_accepted(path)
        finally:
            remove_file(self._files, path)

    def _check_file_accepted(self, path: str) -> None:
        """Check that DuckLake accepts this Parquet file: add it to the table in a transaction that is rolled back.

        The file is an empty trial file, or has newly staged rows.

        Raises:
            InvalidInputError: DuckLake refuses the file; or the table has partitions.
        """
        try:
            with self._lake.transaction() as at:
                at.execute_statement(self._adding([path]))
        except InvalidInputError as error:
            if self._is_partitioned():
                raise InvalidInputError(
                    f"{self.place} is a table with partitions, into which DuckLake takes no such file: take them away "
                    "by ALTER TABLE … RESET PARTITIONED BY, or give the region another table"
                ) from error
            raise

    def _is_partitioned(self) -> bool:
        with self._lake.transaction() as at:
            return bool(
                at.query_rows(
                    "SELECT 1 FROM __ducklake_metadata_{lake}.ducklake_partition_info p JOIN "
                    "__ducklake_metadata_{lake}.ducklake_table t USING (table_id) WHERE p.end_snapshot IS NULL AND "
                    "t.end_snapshot IS NULL AND lower(t.table_uuid::VARCHAR) = ?",
                    str(UUID(at.table_uuids(self._names[0])[self._names[1].lower()])),
                )
            )

    def _adding(self, paths: Sequence[str]) -> str:
        return (
            f"CALL ducklake_add_data_files('{{lake}}', {quote_sql_text(self._names[1])}, {sql_list_literal(paths)}, "
            f"schema => {quote_sql_text(self._names[0])}, allow_missing => true, hive_partitioning => false)"
        )

    def _piece(self, state: _LakeState, name: str) -> _LakePiece | None:
        path = f"{self._folder(state)}/staged/{name}{_PIECE}"
        return read_json(partial(read_file, self._files), path, _LakePiece)

    # -- publishing

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Publish the rows staged under these keys as one sequence (checkpoint), by one snapshot of the lake."""
        self.publish_with(sequence, keys, ())

    def publish_with(self, sequence: int, keys: Iterable[StagedKey], positions: Iterable[Position]) -> None:
        """Publish as `publish` does, and store the end offsets (`positions`) in the snapshot's extra info."""
        check_sequence(sequence)
        state = self._load()[0]
        named, committed = sort_staged_keys(keys), False
        if self._marked(state) < sequence:
            pieces = {key: self._piece(state, key.file_stem()) for key in named}
            gone = missing_rows_text({key.file_stem(): self._is_whole(state, piece) for key, piece in pieces.items()})
            staged = [piece for piece in pieces.values() if piece is not None and piece.files]
            if gone or staged:
                committed = self._bring(sequence, staged, gone, offsets_as_json(positions))
            self._mark(state, sequence)
        for key in named:
            self._forget(state, key.file_stem(), committed)

    def _is_whole(self, state: _LakeState, piece: _LakePiece | None) -> bool:
        if piece is None or not piece.whole:
            return False
        try:
            return all(self._files.stat(self._file(state, name)).st_size for name in piece.files)
        except FileNotFoundError:
            return False

    def _bring(self, sequence: int, staged: Sequence[_LakePiece], lost: str, offsets: str) -> bool:
        """Commit staged files as one checkpoint, unless another process has done so; return whether this process did.

        Args:
            sequence: the checkpoint's number.
            staged: the staged files of the keys.
            lost: why staged files are missing; empty: none is. It is an error only if no process has committed the
                sequence.
            offsets: the end offsets as JSON; empty: unknown.
        """

        def add_sequence(at: LakeTransaction, state: _LakeState) -> None:
            if lost:
                raise CorruptDataError(f"Sequence {sequence} can't be published into {self.place}: {lost}")
            self._set_commit_message(at, sequence, offsets)
            at.execute_statement(self._adding([self._file(state, name) for piece in staged for name in piece.files]))
            rows = state.row_count + sum(piece.row_count for piece in staged)
            self._move(at, state, sequence, rows, state.emptied)

        return self._until_there(lambda state: state.sequence >= sequence, add_sequence)

    def _set_commit_message(self, at: LakeTransaction, sequence: int, offsets: str = "") -> None:
        """Set the snapshot's commit message and extra info: region, checkpoint number and perhaps end offsets."""
        said: dict[str, object] = {"region": self._region, "region-id": str(self._bound()), "sequence": sequence}
        if offsets:
            said["offsets"] = json.loads(offsets)
        message = f"Region {self._region}: sequence {sequence}"
        at.execute_statement(
            f"CALL ducklake_set_commit_message('{{lake}}', 'kohort', {quote_sql_text(message)}, extra_info => "
            f"{quote_sql_text(json.dumps({'kohort': said}, separators=(',', ':')))})"
        )

    def _move(self, at: LakeTransaction, state: _LakeState, sequence: int, rows: int, emptied: int) -> None:
        """Update the region's row in the sink's table of sequences (checkpoints), in this transaction."""
        moved = at.execute_change(
            f"UPDATE {{lake}}.{self._table_of_sink(_SEQUENCES)} SET sequence = ?, row_count = ?, emptied = ? "
            "WHERE table_id = ? AND region_id = ? AND sequence = ?",
            sequence, rows, emptied, state.table_id, self._bound().hex, state.sequence,
        )  # fmt: skip
        if moved != 1:
            raise CorruptDataError(f"{self.place} has moved {moved} rows of {_SEQUENCES}, and not one")

    def empty(self, sequence: int, floor: int) -> None:
        """Remove the region's rows in one transaction, which also records this sequence (checkpoint).

        Then remove staged rows of epochs before `floor`, the minimum valid epoch; rows of later epochs stay staged.
        """
        state = self._find()
        if state is None:
            return
        if self._marked(state) < sequence + 1:  # its own number may be from a history that the topic has lost
            self._until_there(
                lambda state: state.sequence > sequence or state.emptied == sequence,
                lambda at, state: self._empty_table(at, state, sequence),
            )
        self._mark(state, sequence)
        self.sweep(Keep(floor))

    def _empty_table(self, at: LakeTransaction, state: _LakeState, sequence: int) -> None:
        there = [
            path
            for (path,) in at.query_rows(
                "SELECT data_file FROM ducklake_list_files(?, ?, schema => ?)", at.name, self._names[1], self._names[0]
            )
        ]
        ours = [quote_sql_text(path) for path in there if self._is_ours(path)]
        where = f"FROM {{lake}}.{self._target} WHERE filename IN ({', '.join(ours)})"
        rows = at.query_rows(f"SELECT count(*) {where}")[0][0] if ours else 0
        # A file whose rows were deleted may be listed still.
        if there and rows != state.row_count and at.query_rows(f"SELECT 1 FROM {{lake}}.{self._target} LIMIT 1"):
            raise InvalidInputError(
                f"The rows of region {self._region!r} can't be told from others in {self.place}: its files were "
                "written anew, or rows were removed (compaction, DELETE, UPDATE). Delete all rows of the table by "
                "hand; the region goes on by itself"
            )
        self._set_commit_message(at, sequence)
        if ours:
            at.execute_change(f"DELETE {where}")
        self._move(at, state, sequence, 0, sequence)

    def _is_ours(self, path: str) -> bool:
        found = _FILE.fullmatch(path.rpartition("/")[2])
        return found is not None and found[2] == self._bound().hex

    # -- progress and cleanup

    def _marked(self, state: _LakeState) -> int:
        return staged_files.last_published(self._files, self._folder(state))

    def _mark(self, state: _LakeState, sequence: int) -> None:
        try:
            staged_files.mark_published(self._files, self._folder(state), sequence)
        except FileNotFoundError:
            make_folder(self._files, self._folder(state))
            staged_files.mark_published(self._files, self._folder(state), sequence)

    def published(self) -> int:
        """Return the last sequence (checkpoint number) that is published and durable; 0: none."""
        state = self._find()
        return 0 if state is None else max(self._marked(state), state.sequence)

    def adopt(self) -> str:
        """Store this sink's present name in the region's owner marker.

        Return the earlier name; empty: there was none.
        """
        for _ in range(COMMITS_MAX):
            self._bound()
            if self._newest_state() is None:
                return ""
            try:
                with self._lake.transaction() as at:
                    state = self._state(at)
                    if state is None or state.claim is None:
                        return ""
                    if state.claim.place != self.place:
                        moved = msgspec.structs.replace(state.claim, place=self.place)
                        at.execute_change(
                            f"UPDATE {{lake}}.{self._table_of_sink(_REGIONS)} SET claim = ? WHERE table_id = ? "
                            "AND region_id = ?",
                            msgspec.json.encode(moved).decode(), state.table_id, self._bound().hex,
                        )  # fmt: skip
                self._kept = None
                return state.claim.place
            except UnknownCommitError:
                continue
        raise self._too_late()

    def _written_name(self) -> str:
        state = self._newest_state()
        return "" if state is None or state.claim is None else state.claim.place

    def sweep(self, keep: Keep) -> None:
        """Remove staged rows that will never be published, and leftover trial files."""
        state = self._find()
        if state is None:
            return
        folder, kept = f"{self._folder(state)}/staged", {key.file_stem() for key in keep.keys}
        for name in list_folder(self._files, folder):
            stem = name.removesuffix(_PIECE) if name.endswith(_PIECE) else staged_files.staged_key_text(name)
            if stem in kept or not staged_files.is_key_of_invalid_epoch(f"{stem}", self._id, keep.floor):
                continue
            if name.endswith(_PIECE):
                self._drop(state, stem)
            else:
                remove_file(self._files, f"{folder}/{name}")
        for name in list_folder(self._files, f"{self._folder(state)}/{_TRIALS}"):
            remove_file(self._files, f"{self._folder(state)}/{_TRIALS}/{name}")  # a check under way tries again

    def _drop(self, state: _LakeState, name: str) -> None:
        """Remove a key's `KEY.json` and those of its Parquet files that are not in the lake."""
        piece = self._piece(state, name)
        if piece is not None:
            self._remove_unknown(state, (*piece.files, *piece.others))
            remove_file(self._files, f"{self._folder(state)}/staged/{name}{_PIECE}")

    def _forget(self, state: _LakeState, name: str, committed: bool) -> None:
        """Remove the `KEY.json` of a published key, and its files that are not in the lake.

        Args:
            state: the table's state.
            name: the key.
            committed: whether this process has committed the files. Otherwise they are looked up in the lake: another
                process may have emptied the table as this sequence.
        """
        piece = self._piece(state, name)
        if piece is not None:
            self._remove_unknown(state, piece.others if committed else (*piece.files, *piece.others))
            remove_file(self._files, f"{self._folder(state)}/staged/{name}{_PIECE}")

    def _remove_unknown(self, state: _LakeState, names: Sequence[str]) -> None:
        """Remove files that no snapshot of the lake has, and that the lake has not scheduled for deletion itself."""
        if not names:
            return
        listed = ", ".join(quote_sql_text(name) for name in names)
        with self._lake.transaction() as at:
            known = {
                name
                for kind in ("data_file", "files_scheduled_for_deletion")
                for (name,) in at.query_rows(
                    f"SELECT split_part(path, '/', -1) AS name FROM __ducklake_metadata_{at.name}.ducklake_{kind} "
                    f"WHERE name IN ({listed})"
                )
            }
        for name in names:
            if name not in known:
                remove_file(self._files, self._file(state, name))


def _local(lake: str) -> str:
    if "://" in lake and not lake.startswith("file:"):
        raise InvalidInputError(
            f"The catalog of a DuckLake is a SQLite file here, which {redacted_url(lake)} can't hold: give a folder"
        )
    return local_path(lake, "The lake of a DuckLakeTable")
