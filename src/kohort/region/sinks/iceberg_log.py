"""The snapshots of an Iceberg table as a region writes them: each sequence is in the table once.

Each commit of a region adds a snapshot, also if it adds no file. The catalog accepts it only if the branch `main` is
where it was when the table was read. A successful writer has therefore read that the sequence was missing, and
nobody wrote in between. A commit whose answer was lost, or that arrives late, is settled by the same rule: whoever
tries again reads the table first.

pyiceberg's own retry (`commit.retry.num-retries`) rebuilds the snapshot on the newest table without that look: two
publishers of one sequence would both succeed. `IcebergLog.commit` therefore asks the catalog itself, once.

The snapshot's summary has the sequence, for people. So has a property of the table, which the same commit sets:
snapshots expire, properties do not.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertTableUUID,
    TableRequirement,
)
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.transforms import Transform
from sqlalchemy.exc import IntegrityError

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.sinks.iceberg_catalog import translated_catalog_errors
from kohort.region.sinks.owner_marker import UNREADABLE_JSON, OwnerMarker
from kohort.region.sinks.parquet_schema import other_type_text
from kohort.region.sinks.rows import stored_schema_of_format, with_plain_types

_MERGE: Final = "commit.manifest-merge.enabled"
_REGION: Final = re.compile(r"kohort\.[0-9a-f]{32}\.region")


class IcebergLog:
    """Reads and commits of one Iceberg table for one region: its snapshots, and the region's table properties."""

    def __init__(self, catalog: Catalog, identifier: str, place: str, region: tuple[str, UUID]) -> None:
        self._catalog, self._identifier, self._place = catalog, identifier, place
        self._region, self._id = region
        self._prefix = f"kohort.{self._id.hex}."

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return translated_catalog_errors(self._place, self._catalog.properties)

    def load(self) -> Table:
        """Load the table's current metadata from the catalog.

        Raises:
            InvalidInputError: the table does not exist.
            RetriableError: the catalog does not answer now.
        """
        try:
            with self._errors():
                return self._catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise InvalidInputError(f"{self._place} is no Iceberg table: {error}") from error

    def load_if_exists(self) -> Table | None:
        """Load the table's current metadata from the catalog; None: the table does not exist."""
        try:
            with self._errors():
                return self._catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def create(self, schema: pa.Schema, partition_by: Sequence[tuple[str, str, Transform[object, object]]]) -> Table:
        """Create the table and its namespace. If another writer has created the table meanwhile, load that one.

        Args:
            schema: the columns.
            partition_by: the column, name and transform of each partition field.
        """
        fields = iceberg_schema_of(schema)
        spec = PartitionSpec(*(
            PartitionField(fields.find_field(column).field_id, 1000 + number, transform, name)
            for number, (column, name, transform) in enumerate(partition_by)
        ))  # fmt: skip
        namespace = self._identifier.rpartition(".")[0]
        with self._errors():
            with contextlib.suppress(NamespaceAlreadyExistsError, IntegrityError):
                if not self._catalog.namespace_exists(namespace):
                    self._catalog.create_namespace(namespace)
            with contextlib.suppress(TableAlreadyExistsError):
                return self._catalog.create_table(
                    self._identifier, fields, partition_spec=spec, properties={_MERGE: "true"}
                )
        return self.load()

    # -- the region's properties of a table

    def read_owner_marker(self, table: Table) -> OwnerMarker | None:
        """Return the region's owner marker from the table's properties; None: the region has not written here yet.

        Raises:
            InvalidInputError: a newer kohort has written the marker.
            CorruptDataError: the marker can't be read.
        """
        text = table.properties.get(f"{self._prefix}region")
        if text is None:
            return None
        try:
            claim = msgspec.json.decode(text, type=OwnerMarker)
            claim.row_schema()
        except (*UNREADABLE_JSON, CorruptDataError) as error:
            raise CorruptDataError(
                f"The property {self._prefix}region of {self._place} can't be read: {error}"
            ) from error
        if claim.format != 1:
            raise InvalidInputError(f"{self._place} was written by a newer kohort, in format {claim.format}")
        return claim

    def write_owner_marker(
        self, table: Table, claim: OwnerMarker, columns: Sequence[pa.Field[Any]] | None = None
    ) -> bool:
        """Commit the region's owner marker as a table property; return False if another writer has changed the table.

        Args:
            table: the table's metadata on which the commit is based.
            claim: the marker.
            columns: new columns, which the commit also adds to the table; it fails if others have changed the columns.
                None: the commit neither adds nor checks columns.

        Raises:
            InvalidInputError: the table can't have a column; the message names it.
        """
        return self._commit_changes(
            table, {"region": msgspec.json.encode(claim).decode()}, {"region": claim.region}, (), (), columns
        )

    def last_sequence(self, table: Table) -> int:
        """Return the region's last committed sequence (checkpoint number) in this table metadata; 0: none."""
        return self._number(table, "sequence")

    def has_sequence(self, table: Table, sequence: int) -> bool:
        """Return whether this table metadata has the region's sequence (checkpoint), or a later one."""
        return self.last_sequence(table) >= sequence

    def appended_row_count(self, table: Table) -> int:
        """Return how many rows the region has appended since it last emptied the table, by this table metadata."""
        return self._number(table, "rows")

    def is_emptied(self, table: Table, sequence: int) -> bool:
        """Return whether this checkpoint has emptied the table of the region's rows, or a later one is committed."""
        return self.last_sequence(table) > sequence or self._number(table, "emptied") == sequence

    def _number(self, table: Table, name: str) -> int:
        return int(table.properties.get(self._prefix + name, "0"))

    def current_and_added_files(self, table: Table, sequence: int = 0) -> set[str]:
        """Return the locations of the current snapshot's files.

        With a sequence, add those that the region's snapshots of that sequence have added.
        """
        found = {file.file_path for file in current_data_files(table)}
        for snapshot in table.snapshots() if sequence else ():
            said = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if said.get("kohort.region-id") == str(self._id) and said.get("kohort.sequence") == str(sequence):
                for manifest in snapshot.manifests(table.io):
                    if manifest.added_snapshot_id == snapshot.snapshot_id:
                        found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
        return found

    def files_of_all_snapshots(self, table: Table) -> set[str]:
        """Return the locations of the files of all snapshots in this table metadata."""
        manifests = {
            manifest.manifest_path: manifest
            for snapshot in table.snapshots()
            for manifest in snapshot.manifests(table.io)
        }
        return {
            entry.data_file.file_path
            for manifest in manifests.values()
            for entry in manifest.fetch_manifest_entry(table.io)
        }

    def count_owner_markers(self, table: Table) -> int:
        """Return how many regions have an owner marker among the table's properties."""
        return sum(_REGION.fullmatch(name) is not None for name in table.properties)

    # -- commits

    def commit(
        self,
        table: Table,
        sequence: int,
        added: Sequence[DataFile],
        offsets: str,
        removed: Sequence[DataFile] | None = None,
    ) -> bool:
        """Commit a checkpoint's data files as one snapshot; return False if another writer has changed the table.

        Args:
            table: the table's metadata on which the commit is based.
            sequence: the checkpoint's number.
            added: the data files to add.
            offsets: the end offsets as JSON, for the snapshot's summary; empty: unknown.
            removed: the data files that the added ones replace (`mode="update"`). None: rows are only appended, and
                `appended_row_count` grows by their number.
        """
        properties = {"sequence": str(sequence)}
        if removed is None:
            properties["rows"] = str(self.appended_row_count(table) + sum(file.record_count for file in added))
        summary = {"sequence": str(sequence), **({"offsets": offsets} if offsets else {})}
        return self._commit_changes(table, properties, summary, added, removed or ())

    def commit_emptied(self, table: Table, sequence: int, removed: Sequence[DataFile]) -> bool:
        """Commit the removal of data files as this checkpoint; return False if another writer has changed the table."""
        properties = {"sequence": str(sequence), "rows": "0", "emptied": str(sequence)}
        return self._commit_changes(table, properties, {"sequence": str(sequence), "emptied": "true"}, (), removed)

    def _commit_changes(
        self,
        table: Table,
        properties: Mapping[str, str],
        summary: Mapping[str, str],
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        columns: Sequence[pa.Field[Any]] | None = None,
    ) -> bool:
        said = {"region": self._region, "region-id": str(self._id), **summary}
        transaction = table.transaction()
        with self._errors():
            if columns:
                self._add_columns(transaction, columns)
            summary = {f"kohort.{name}": said[name] for name in said}
            snapshots = transaction.update_snapshot(snapshot_properties=summary)
            producer: Any  # of a private class each
            if removed:
                producer = _Overwrite(Operation.OVERWRITE, transaction, table.io, snapshot_properties=dict(summary))
            elif table.properties.get(_MERGE) == "true":
                producer = snapshots.merge_append()
            else:
                producer = snapshots.fast_append()
            with producer:
                for file in added:
                    producer.append_data_file(file)
                for file in removed:
                    producer.delete_data_file(file)
            transaction.set_properties({self._prefix + name: properties[name] for name in properties})
            needs: tuple[TableRequirement, ...] = (
                *transaction._requirements,
                AssertTableUUID(uuid=table.metadata.table_uuid),
                AssertDefaultSpecId.model_validate({"default-spec-id": table.metadata.default_spec_id}),
            )
            if columns is not None:
                schema_id = {"current-schema-id": table.metadata.current_schema_id}
                needs = (*needs, AssertCurrentSchemaId.model_validate(schema_id))
            try:
                self._catalog.commit_table(table, needs, transaction._updates)
            except CommitFailedException:
                for update in transaction._updates:
                    if isinstance(update, AddSnapshotUpdate):
                        self._discard(table, update.snapshot)
                return False
        return True

    def _add_columns(self, transaction: Transaction, columns: Sequence[pa.Field[Any]]) -> None:
        name = ""
        try:
            with transaction.update_schema() as grown:
                for column in columns:
                    name = column.name
                    grown.add_column((name,), iceberg_schema_of(pa.schema([column])).fields[0].field_type)
        except ValueError as error:
            raise InvalidInputError(
                f"{self._place} can't be given the column {name!r}: {_line(error)}. Rename the column"
            ) from error

    def _discard(self, table: Table, refused: Snapshot) -> None:
        """Delete the manifests of a snapshot whose commit was refused.

        They stay if the commit may have succeeded, or may still succeed.
        """
        now = self.load()
        before, head = table.current_snapshot(), now.current_snapshot()
        moved_on = head is not None and (before is None or before.snapshot_id != head.snapshot_id)
        if not moved_on or now.metadata.snapshot_by_id(refused.snapshot_id) is not None:
            return
        if self.last_sequence(now) > self.last_sequence(table):
            return  # it may be this one, and expired since
        own = [
            manifest.manifest_path
            for manifest in refused.manifests(table.io)
            if manifest.added_snapshot_id == refused.snapshot_id
        ]
        for path in (*own, refused.manifest_list):
            with contextlib.suppress(OSError):
                table.io.delete(path)


class _Overwrite(_OverwriteFiles):
    """pyiceberg's overwrite snapshot, changed so that it merges small manifests, as appends do.

    pyiceberg's own keeps each manifest, also those of files that are all gone. After a thousand updates a table would
    have some thousand, and each reader must read them.
    """

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        said = self._transaction.table_metadata.properties
        live = [
            manifest
            for manifest in manifests
            if manifest.added_snapshot_id == self.snapshot_id
            or manifest.has_added_files()
            or manifest.has_existing_files()
        ]
        if said.get(_MERGE) != "true":
            return live
        size, count = TableProperties.MANIFEST_TARGET_SIZE_BYTES, TableProperties.MANIFEST_MIN_MERGE_COUNT
        manager: Any = _ManifestMergeManager(
            target_size_bytes=int(said.get(size, TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT)),
            min_count_to_merge=int(said.get(count, TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT)),
            merge_enabled=True,
            snapshot_producer=self,
        )
        data = [manifest for manifest in live if manifest.content == ManifestContent.DATA]
        merged: list[ManifestFile] = manager.merge_manifests(data)
        kept = {manifest.manifest_path for manifest in merged}
        for manifest in data:
            if manifest.added_snapshot_id == self.snapshot_id and manifest.manifest_path not in kept:
                with contextlib.suppress(OSError):
                    self._io.delete(manifest.manifest_path)
        return merged + [manifest for manifest in live if manifest.content != ManifestContent.DATA]


def current_data_files(table: Table) -> list[DataFile]:
    """Return the data files of the table's current snapshot."""
    snapshot = table.current_snapshot()
    found = []
    for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
        if manifest.content == ManifestContent.DATA:
            found += [entry.data_file for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)]
    return found


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# -- schemas


def iceberg_schema_of(schema: pa.Schema) -> Schema:
    """Convert an Arrow schema to an Iceberg schema; errors of pyiceberg pass."""
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))


def arrow_schema_of(schema: Schema) -> pa.Schema:
    """Convert a table's Iceberg schema to an Arrow schema."""
    return with_plain_types(schema_to_pyarrow(schema, include_field_ids=False))


def iceberg_stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the Arrow types in which an Iceberg table gives these columns back to readers.

    Raises:
        InvalidInputError: an Iceberg table can't store a column unchanged; the message names the columns.
    """
    kept = stored_schema_of_format(schema, "Iceberg", _stored_type)
    try:
        iceberg_schema_of(kept)
    except ValueError as error:
        raise InvalidInputError(
            f"Iceberg does not take these columns together: {_line(error)}. There 'a.b' is the field b of a struct a, "
            "too: rename a column"
        ) from error
    return kept


def _stored_type(field: pa.Field[Any]) -> pa.DataType | str:
    try:
        back = arrow_schema_of(iceberg_schema_of(pa.schema([field]))).field(0).type
    except Exception as error:  # noqa: BLE001 - the library raises plain ones
        return _line(error)
    return back if _holds(back, field.type) else other_type_text(back)


def _holds(kept: pa.DataType, given: pa.DataType) -> bool:
    if pa.types.is_timestamp(kept) and pa.types.is_timestamp(given):
        return bool(kept.tz == given.tz and given.unit in ("s", "ms", "us"))
    return kept.equals(given) or (pa.types.is_int32(kept) and (pa.types.is_int8(given) or pa.types.is_int16(given)))
