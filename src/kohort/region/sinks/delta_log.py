"""The log of a Delta table as a region writes it: each sequence is in it once, however often it is tried.

A commit carries the region's uuid as the id of a transaction and the sequence as its version. It is tried only for
the version after the one that was read, without automatic retries. A successful writer has therefore read that the
sequence was missing, and nobody wrote in between. The log refuses the second writer, which reads again and finds the
sequence.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote
from uuid import UUID

import deltalake
import msgspec
import pyarrow as pa
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction, RemoveAction

from kohort.errors import InvalidInputError, RetriableError
from kohort.region.files import FileCalls, read_file, sync_file, sync_folder

_DELETION_VECTORS: Final = "deletionVectors"
"""The table feature with which others delete rows of a file without writing it anew."""


class DeltaLog:
    """The transaction log (`_delta_log`) of one Delta table, as one region reads and writes it."""

    def __init__(self, path: str, region_id: UUID, files: FileCalls) -> None:
        self._path, self._app, self._files = path, str(region_id), files
        self._folder = f"{path}/_delta_log"

    def refuse_symbolic_link(self) -> None:
        """Raise an error if `_delta_log` is a symbolic link, which the Delta library would follow."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._files.listdir(self._folder)

    def exists(self) -> bool:
        """Return whether the Delta table exists."""
        return bool(deltalake.DeltaTable.is_deltatable(self._path))

    def load(self) -> deltalake.DeltaTable:
        """Load the newest version of the Delta table.

        Raises:
            InvalidInputError: the table does not exist.
            RetriableError: the table can't be read now.
        """
        self.refuse_symbolic_link()
        try:
            with self._errors():
                return self._open_table()
        except TableNotFoundError as error:
            raise InvalidInputError(f"{self._path} is no Delta table: {str(error).splitlines()[0]}") from error

    def _open_table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self._path)

    def create_table(self, schema: pa.Schema, partition_by: Sequence[str]) -> deltalake.DeltaTable:
        """Create the Delta table and sync its first commit; load the one that another writer has created meanwhile."""
        self.refuse_symbolic_link()
        with contextlib.suppress(RetriableError), self._errors():
            kept = deltalake.Schema.from_arrow(schema)
            deltalake.DeltaTable.create(self._path, kept, mode="ignore", partition_by=list(partition_by))
        table = self.load()
        with contextlib.suppress(FileNotFoundError):
            sync_file(self._files, f"{self._folder}/{0:020}.json")
        sync_folder(self._files, self._folder)
        sync_folder(self._files, self._path)
        return table

    def last_sequence(self, table: deltalake.DeltaTable) -> int:
        """Return the last sequence (checkpoint number) that this version of the table has for the region; 0: none."""
        return self._number(table, self._app)

    def _number(self, table: deltalake.DeltaTable, name: str) -> int:
        with self._errors():  # the library reads the log for it
            return table.transaction_version(name) or 0

    def has_sequence(self, table: deltalake.DeltaTable, sequence: int) -> bool:
        """Return whether this version of the table has the region's sequence (checkpoint), or a later one."""
        return self.last_sequence(table) >= sequence

    def appended_row_count(self, table: deltalake.DeltaTable) -> int:
        """Return how many rows the region has appended, since it last emptied the table, up to this version."""
        return self._number(table, f"{self._app}:rows")

    def is_emptied(self, table: deltalake.DeltaTable, sequence: int) -> bool:
        """Return whether this checkpoint has emptied the table of the region's rows, or a later one is committed."""
        return self.last_sequence(table) > sequence or self._number(table, f"{self._app}:emptied") == sequence

    def is_empty(self, table: deltalake.DeltaTable) -> bool:
        """Return whether this version of the table has no data file."""
        with self._errors():
            return not table.file_uris()

    def data_file_entries(self, table: deltalake.DeltaTable) -> list[dict[str, Any]]:
        """Return the `add` entries of this version's data files."""
        with self._errors():
            return pa.table(table.get_add_actions(flatten=False)).to_pylist()

    def files_with_deleted_rows(self, table: deltalake.DeltaTable) -> set[str]:
        """Return the names, without folders, of this version's data files of which deletion vectors hide rows.

        The library's `remove` action names no deletion vector. It would leave such a file in the table.
        """
        if _DELETION_VECTORS not in (table.protocol().reader_features or ()):
            return set()
        with self._errors():
            found: Any = pa.table(table.deletion_vectors())
        return {unquote(path).rpartition("/")[2] for path in found.column("filepath").to_pylist()}

    def commit(
        self,
        table: deltalake.DeltaTable,
        sequence: int,
        actions: list[AddAction | RemoveAction],
        rows: int,
        empties: bool = False,
    ) -> bool:
        """Commit a checkpoint's files as the next version; return False if another writer has committed that version.

        Args:
            table: the table in the version before.
            sequence: the checkpoint's number; it is stored as the version of the region's `txn` action.
            actions: the data files that are added and removed.
            rows: the new value of `appended_row_count`.
            empties: whether this commit empties the table of the region's rows (`is_emptied`).
        """
        with self._errors():
            try:
                table.create_write_transaction(
                    actions, "append", table.schema(), table.metadata().partition_columns,
                    commit_properties=self._properties(sequence, rows, empties=empties),
                )  # fmt: skip
            except CommitFailedError:
                return False
        return True

    def try_add_columns(self, table: deltalake.DeltaTable, columns: Iterable[pa.Field[Any]]) -> bool:
        """Try to commit a version with more columns; return False if another writer has committed that version first.

        Raises:
            InvalidInputError: the table can't have a column.
        """
        fields = deltalake.Schema.from_arrow(pa.schema(columns)).fields
        try:
            with self._errors():
                try:
                    table.alter.add_columns(fields, commit_properties=deltalake.CommitProperties(max_commit_retries=0))
                except CommitFailedError:
                    return False
        except SchemaMismatchError as error:
            raise InvalidInputError(f"{self._path} can't be given a column: {error}") from error
        return True

    def sync_column_commits(self, newest_version: int) -> None:
        """Fsync the commit up to this version that last changed the table's columns, so that it survives a power loss.

        The commits before it are synced back to the region's last one or a checkpoint: a log with a gap can't be read.
        """
        found, durable = False, -1
        for version in range(newest_version, -1, -1):
            if found and version <= durable:
                break
            actions = self._actions(version)
            if actions is None or (found and self._is_ours(actions)):
                break
            sync_file(self._files, self._commit_path(version))
            if not found and any("metaData" in action for action in actions):
                found, durable = True, self._synced_checkpoint(version)
        sync_folder(self._files, self._folder)

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return _translated_errors(self._path)

    def _commit_path(self, version: int) -> str:
        return f"{self._folder}/{version:020}.json"

    def _actions(self, version: int) -> list[Any] | None:
        """Return the actions of the commit with this version; None: log cleanup has removed it."""
        try:
            lines = read_file(self._files, self._commit_path(version)).splitlines()
        except FileNotFoundError:
            return None
        return [msgspec.json.decode(line) for line in lines]

    def _is_ours(self, actions: Iterable[Any]) -> bool:
        return any(action.get("txn", {}).get("appId") == self._app for action in actions)

    def _synced_checkpoint(self, newest: int) -> int:
        """Fsync the Delta checkpoint that `_last_checkpoint` names; return its version. Readers need no older commit.

        -1: there is no checkpoint up to version `newest`, or it consists of several files.
        """
        pointer = f"{self._folder}/_last_checkpoint"
        try:
            about = msgspec.json.decode(read_file(self._files, pointer))
            version = int(about["version"])
            if version > newest or about.get("parts") or about.get("v2Checkpoint"):
                return -1
            sync_file(self._files, f"{self._folder}/{version:020}.checkpoint.parquet")
            sync_file(self._files, pointer)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, msgspec.DecodeError):
            return -1  # other writers made it, and all commits are synced in its place
        return version

    def merge(self, table: deltalake.DeltaTable, sequence: int, rows: pa.Table, keys: Sequence[str]) -> bool:
        """Commit rows as the next version by Delta's MERGE: each replaces the row with the same keys, or is inserted.

        Return False if another writer has committed that version first.
        """
        same = " AND ".join(f"s.{_quoted(name)} = t.{_quoted(name)}" for name in keys)
        with self._errors():
            said = self._properties(sequence)
            merger = table.merge(rows, same, source_alias="s", target_alias="t", commit_properties=said)
            try:
                merger.when_matched_update_all().when_not_matched_insert_all().execute()
            except CommitFailedError:
                return False
        return True

    def _properties(
        self, sequence: int, rows: int | None = None, *, empties: bool = False
    ) -> deltalake.CommitProperties:
        said = [deltalake.Transaction(self._app, sequence)]
        if rows is not None:
            said.append(deltalake.Transaction(f"{self._app}:rows", rows))
        if empties:
            said.append(deltalake.Transaction(f"{self._app}:emptied", sequence))
        return deltalake.CommitProperties(max_commit_retries=0, app_transactions=said)

    def sync_last_commit(self, newest_version: int, durable_names: re.Pattern[str]) -> None:
        """Fsync the region's last commit up to this version and its data files, which the Delta library does not do.

        The commits of others before it are synced too, back to the region's commit before or to the table's last
        checkpoint. A log with a gap can't be read.

        Args:
            newest_version: the version where the search begins.
            durable_names: the pattern of data file names that are durable already.
        """
        files, found, durable = self._files, False, -1
        for version in range(newest_version, -1, -1):
            if found and version <= durable:
                break
            actions = self._actions(version)
            if actions is None:
                break
            ours = self._is_ours(actions)
            if ours and found:  # it was settled, with all before it, before the next sequence began
                break
            sync_file(files, self._commit_path(version))
            if ours:
                found, durable = True, self._synced_checkpoint(version)
                added = [unquote(action["add"]["path"]) for action in actions if "add" in action]
                self._settle_files([f"{self._path}/{file}" for file in added if not durable_names.fullmatch(file)])
        sync_folder(files, self._path)
        sync_folder(files, self._folder)

    def _settle_files(self, added: list[str]) -> None:
        for path in added:
            with contextlib.suppress(FileNotFoundError):  # later commits took it out
                sync_file(self._files, path)
        for folder in sorted({os.path.dirname(path) for path in added} - {self._path}):
            sync_folder(self._files, folder)


@contextlib.contextmanager
def _translated_errors(path: str) -> Iterator[None]:
    """Translate errors of the Delta library: InvalidInputError for an unsupported protocol, RetriableError for others.

    Errors of a conflicting commit, a schema mismatch and a missing table pass unchanged.
    """
    try:
        yield
    except (CommitFailedError, SchemaMismatchError, TableNotFoundError):
        raise
    except DeltaProtocolError as error:
        raise InvalidInputError(f"{path} is a Delta table that can't be written to: {error}") from error
    except DeltaError as error:
        raise RetriableError(f"The Delta table {path} does not answer: {error}") from error


def arrow_columns_of(table: deltalake.DeltaTable) -> pa.Schema:
    """Return a Delta table's columns as an Arrow schema."""
    return _arrow(table.schema())


def delta_arrow_types(schema: pa.Schema) -> pa.Schema:
    """Return the Arrow schema in which a Delta table with these columns would be read; errors of the library pass."""
    return _arrow(deltalake.Schema.from_arrow(schema))


def _arrow(schema: deltalake.Schema) -> pa.Schema:
    said: Any = schema.to_arrow()
    return pa.schema(said)


def delta_remove_action(file: Mapping[str, Any]) -> RemoveAction:
    """Return the Delta `remove` action for a file, given its `add` entry.

    The entry has the path as in the log, encoded for a URL. The library encodes the path of an action itself.
    """
    parts = {name: None if value is None else str(value) for name, value in (file.get("partition") or {}).items()}
    return RemoveAction(unquote(file["path"]), True, int(time.time() * 1000), file["size_bytes"], parts)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
