"""An Iceberg table that is written to exactly once: a sequence is one snapshot, in one commit of the catalog.

    table/data/…kohort-eEPOCH-REGION-ID-ATTEMPT-0.parquet   rows, where the table keeps them; before the commit too
    table/_kohort/TABLE-ID/REGION-ID/staged/KEY.json        what a member staged: its files, as a manifest will say it
    table/_kohort/TABLE-ID/REGION-ID/merges/…               with `mode="update"`: see `iceberg_update`
    table/_kohort/TABLE-ID/REGION-ID/published-17           sequence 17 is done (a few of the newest are kept)

No file is moved or copied when it is published: the commit names it. Until then no reader sees it. `KEY.json` names
the files before they are written. A sweep thus finds those of a member that died, without a list of the table's
files. With `mode="update"` the publisher reads them, writes others for the table, and removes them.

The table's properties say which region writes there, under which name, and which sequence is the last one;
`iceberg_log` has the details. Other regions and other writers may write into the same table.

The order of durability: `KEY.json` before its files; both before `stage` returns. The commit before `published-N`, and
before any `KEY.json` is removed. A sweep removes the files first and `KEY.json` last, and never a file that the table
has.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region.files import SYSTEM, local_path, make_folder
from kohort.region.records import Position
from kohort.region.sinks import Keep, owner_marker, staged_files
from kohort.region.sinks.bound import BoundSink, offsets_as_json
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
    sort_staged_keys,
    with_added_columns,
    with_added_fields,
)
from kohort.region.sinks.staged_files import Codec, read_json
from kohort.region.staged import StagedKey, check_sequence, missing_rows_text
from kohort.settings.validation import redacted_url

try:
    from pydantic import ValidationError
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from requests import RequestException

    from kohort.region.sinks import iceberg_partitions
    from kohort.region.sinks.iceberg_catalog import open_catalog, redact_secrets, translated_catalog_errors
    from kohort.region.sinks.iceberg_files import (
        PlannedFile,
        StagedFile,
        file_stem,
        plan_files,
        read_rows,
        side_store_of,
        write_planned_file,
    )
    from kohort.region.sinks.iceberg_log import (
        IcebergLog,
        arrow_schema_of,
        current_data_files,
        iceberg_schema_of,
        iceberg_stored_schema,
    )
    from kohort.region.sinks.iceberg_update import MergeAttempt, find_replaced_files, remove_failed_attempts
except ImportError as error:
    raise InvalidInputError(
        f"IcebergTable needs the package pyiceberg: pip install 'kohort[lake]' ({error})"
    ) from error

COMMITS_MAX: Final = 30
"""Limit on attempts to commit; others may commit between reading and writing."""
_CATALOGS_MAX: Final = 3
"""Limit on attempts to open a catalog, whose tables another process may be making."""
_PIECE: Final = ".json"
_PROBE: Final = "_probe"
_FORMAT_MAX: Final = 2
"""Newest format of a table with `mode="update"`."""
_DATA: Final = re.compile(r"kohort-e([0-9]+)-([0-9a-f]{32})-[0-9a-f]{16}-[0-9]+\.parquet")


class _IcebergPiece(msgspec.Struct, frozen=True):
    """The content of `KEY.json`: the Parquet files with the rows staged under a key.

    Attributes:
        files: the files with the rows.
        spec_id: the id of the partition spec by which the rows are divided into files.
        whole: whether the files are completely written. If not, staging is in progress or has failed.
        others: locations of files of this key that are not to be published: partly written, or of earlier attempts.
    """

    files: tuple[StagedFile, ...]
    spec_id: int
    whole: bool
    others: tuple[str, ...] = ()


class IcebergTable(BoundSink):
    """A sink that writes an Iceberg table: each checkpoint of the region is one snapshot. The sink can be pickled.

    `Sink` documents the guarantees of its methods. The table is created if missing, and its namespace. With `warehouse`
    the catalog is a SQLite file in that folder, `catalog.db`, which all members see. A pyiceberg catalog of the name
    `default` opens it by `uri="sqlite:///FOLDER/catalog.db"`. With `catalog`, pyiceberg opens the catalog that these
    properties describe, and files are where that catalog puts them.

    Rows are appended; with `mode="update"` a row replaces the one with the same keys. If a checkpoint has two rows of
    one key, the later is written. The order is by epoch, unit and member of the staged keys, then by the order in the
    table. A publisher holds the rows of a checkpoint in memory, and those of one data file of the table.

    Attributes:
        table: the namespace and the name of the table, with dots.
        warehouse: the absolute path of the folder; empty: there is a catalog.
        mode: append or update.
        keys: the columns by which rows replace one another, for `update`.
        partition_by: the partition fields, if the table is created here: `day(at)`, `bucket(16, id)`, `country`.
        compression: the compression of Parquet's pages: snappy, zstd, lz4, gzip, brotli or none.
        evolve: whether to add a new column that may be null to the table, or to refuse tables that have one.
    """

    _kept: OwnerMarker | None
    _open: tuple[int, Catalog] | None = None

    def __init__(  # noqa: PLR0913 - one keyword for each option
        self,
        table: str,
        *,
        warehouse: str | os.PathLike[str] | None = None,
        catalog: Mapping[str, str] | None = None,
        mode: Mode = "append",
        keys: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        compression: Codec = "zstd",
        evolve: Evolution = "refuse",
    ) -> None:
        if isinstance(partition_by, str):
            raise InvalidInputError(f"partition_by is {partition_by!r}: give a list, partition_by=[{partition_by!r}]")
        if (warehouse is None) == (catalog is None):
            raise InvalidInputError(
                "An IcebergTable needs either warehouse=FOLDER or catalog={…}, pyiceberg's properties"
            )
        if len(parts := table.split(".")) < 2 or not all(parts):
            raise InvalidInputError(f"The table {table!r} needs a namespace: give 'namespace.name'")
        check_mode(mode, keys)
        staged_files.check_parquet_options(compression, None)
        check_evolution(evolve)
        self.mode, self.keys, self.evolve = mode, tuple(keys), evolve
        self.table, self.partition_by, self.compression = table, tuple(partition_by), compression
        iceberg_partitions.parse_partition_fields(self.partition_by)
        self.warehouse = "" if warehouse is None else _local(os.fspath(warehouse))
        if bad := sorted({*"#?%"}.intersection(self.warehouse)):
            raise InvalidInputError(
                f"The warehouse {self.warehouse} holds {bad[0]!r}, which readers take for a URL's part"
            )
        self._properties = self._embedded() if catalog is None else dict(catalog)
        uri = self._properties.get("uri", "")
        if uri.startswith("http") and ("@" in urlsplit(uri).netloc or "?" in uri):
            raise InvalidInputError(
                f"The catalog's uri {redacted_url(uri)} holds credentials or a query: give them as 'credential', "
                "'token' or 'auth'"
            )
        if self._properties.get("warehouse", "").startswith(("/", "file:")):
            self._properties.setdefault("py-io-impl", "kohort.region.sinks.iceberg_files.DurableFileIO")

    def _embedded(self) -> dict[str, str]:
        uri = f"sqlite:///{self.warehouse}/catalog.db"
        return {"type": "sql", "uri": uri, "warehouse": f"file://{self.warehouse}"}

    def __repr__(self) -> str:
        return f"IcebergTable({self._place_name()!r})"  # without the catalog's credentials

    def __getstate__(self) -> dict[str, object]:
        """Return the state for pickling, without this process's connection to the catalog."""
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    def _place_name(self) -> str:
        """Return a name made of the catalog's address and the table's name, without credentials.

        All members agree on it.
        """
        if self.warehouse:
            return f"iceberg:{os.path.realpath(self.warehouse)}#{self.table}"
        address = urlsplit(self._properties.get("uri", ""))
        host = address.netloc.rpartition("@")[2].lower()
        within = self._properties.get("warehouse", "")
        kind = self._properties.get("type", address.scheme)
        return f"iceberg:{kind}:{address.scheme}://{host}{address.path.rstrip('/')}[{within}]#{self.table}"

    # -- the catalog

    def _catalog(self) -> Catalog:
        if self._open is None or self._open[0] != os.getpid():
            for again in reversed(range(_CATALOGS_MAX)):
                try:
                    with translated_catalog_errors(self.place, self._properties):
                        self._open = (os.getpid(), self._opened())
                    break
                except RetriableError:
                    if not again:
                        raise
        assert self._open is not None
        return self._open[1]

    def _opened(self) -> Catalog:
        try:
            return open_catalog(self._properties)
        except (RequestException, ValidationError):
            raise
        except (ValueError, ImportError) as error:
            said = redact_secrets(str(error), self._properties)
            raise InvalidInputError(f"pyiceberg can't open the catalog of {self._place_name()}: {said}") from None

    @property
    def _log(self) -> IcebergLog:
        return IcebergLog(self._catalog(), self.table, self.place, (self._region, self._bound()))

    def _is_there(self) -> bool:
        """Return whether the catalog exists. Opening a missing SQLite catalog would create its file."""
        return not self.warehouse or os.path.exists(f"{self.warehouse}/catalog.db")

    def _find(self) -> Table | None:
        """Load the table; None: the catalog or the table is missing, or the table lacks this region's owner marker."""
        self._bound()
        if not self._is_there():
            return None
        table = self._log.load_if_exists()
        return table if table is not None and self._claim_in(table) is not None else None

    def _load_table(self) -> Table:
        """Load the table, which must have this region's owner marker.

        Raises:
            InvalidInputError: the table is missing or lacks the marker: `check` was not called yet.
        """
        return self._load_claimed()[0]

    def _load_claimed(self) -> tuple[Table, OwnerMarker]:
        self._bound()
        if not self._is_there():
            raise self._unknown()
        table = self._log.load()
        claim = self._claim_in(table)
        if claim is None:
            raise self._unknown()
        return table, claim

    def _unknown(self) -> InvalidInputError:
        return InvalidInputError(f"{self.place} is not known to region {self._region!r}: call check(schema) first")

    def _claim_in(self, table: Table) -> OwnerMarker | None:
        """Return this region's owner marker in the given table metadata, and cache it; None: it has none.

        Raises:
            InvalidInputError: the marker has another name of the sink.
        """
        claim = self._log.read_owner_marker(table)
        if claim is None:
            return None
        if claim.place != self.place:
            raise owner_marker.other_name_error(self._region, claim.place, self.place)
        self._kept = claim
        return claim

    def _claim(self) -> OwnerMarker:
        """Return the cached owner marker, or load it.

        Columns that were added to the table since may be missing in it.
        """
        kept = self._kept
        return self._load_claimed()[1] if kept is None else kept

    # -- before the first record

    def check(self, schema: pa.Schema) -> None:
        """Check that this schema can be written; create the table and, with `evolve="add"`, its missing columns."""
        self._bound()
        fields = iceberg_partitions.parse_partition_fields(self.partition_by)
        check_column_names(schema, (field.column for field in fields), "partition_by")
        schema = resolve_null_types(schema, self._known_columns, self.evolve)
        given = iceberg_stored_schema(schema)
        check_keys(given, self.keys)
        iceberg_partitions.check_partition_fields(self.place, iceberg_schema_of(given), fields)
        try:
            if self.warehouse:
                make_folder(SYSTEM, self.warehouse)
                SYSTEM.listdir(self.warehouse)
            table = self._made(given)
            store = side_store_of(table, self.place)
            store.create_file_once(self._folder(table), _PROBE, b"")
            store.remove_object(f"{self._folder(table)}/{_PROBE}")
        except PermissionError as error:
            raise NotAuthorizedError(f"No right to write the Iceberg table {self.place}: {error}") from error
        except NotADirectoryError as error:
            raise InvalidInputError(f"{self.warehouse} can't be a folder: {error.filename} is a file") from error
        self._evolve(given)

    def _evolve(self, given: pa.Schema) -> None:
        """Add columns to the Iceberg table that a submitted table has and it lacks.

        Of several writers, one commits them.

        Columns that the sink has added before and that others have dropped are added again.
        """
        for _ in range(COMMITS_MAX):
            lake, claim = self._load_claimed()
            kept = claim.row_schema()
            given = with_added_fields(given, kept, claim.added)
            if self.evolve == "refuse":
                return check_schema_fits(self.place, kept, given)
            new = new_columns(self.place, kept, given)
            there = arrow_schema_of(lake.schema())
            schema, added = pa.schema([*kept, *new]), (*claim.added, *(field.name for field in new))
            missing = [schema.field(name) for name in added if name not in there.names]
            if not new and not missing:
                return None
            refuse_conflicting_columns(self.place, there, new)
            check_column_names(pa.schema([*there, *missing]), (), "")
            grown = msgspec.structs.replace(claim, schema=owner_marker.encode_schema(schema), added=added)
            if self._log.write_owner_marker(lake, grown, missing):
                self._kept = grown
                return None
        raise self._too_late()

    def _known_columns(self) -> pa.Schema | None:
        table = self._log.load_if_exists() if self._is_there() else None
        return None if table is None else arrow_schema_of(table.schema())

    def _made(self, schema: pa.Schema) -> Table:
        """Return the table with this region's owner marker; create the table and the marker if they are missing."""
        fields = iceberg_partitions.parse_partition_fields(self.partition_by)
        for _ in range(COMMITS_MAX):
            named = iceberg_partitions.with_ascii_field_names(fields, schema.names)
            table = self._log.load_if_exists() or self._log.create(schema, named)
            there = iceberg_partitions.partition_fields_of(table)
            iceberg_partitions.check_partition_fields(self.place, table.schema(), there)
            if fields and iceberg_partitions.columns_and_transforms(there) != iceberg_partitions.columns_and_transforms(
                fields
            ):
                by = [
                    f"{transform} of {column}" for column, transform in iceberg_partitions.columns_and_transforms(there)
                ]
                raise InvalidInputError(f"{self.place} is partitioned by {by}, not by {list(self.partition_by)}")
            if self.keys and table.metadata.format_version > _FORMAT_MAX:
                raise InvalidInputError(
                    f"{self.place} has format version {table.metadata.format_version}, whose rows have ids that an "
                    "update would lose: mode='update' needs version 2"
                )
            if (kept := self._claim_in(table)) is not None:
                if kept.keys != self.keys:
                    raise InvalidInputError(
                        f"Region {self._region!r} writes {self.place} with keys={list(kept.keys)}, not "
                        f"{list(self.keys)}: all members say the same"
                    )
                return table
            if self.evolve == "add":
                new = {field.name for field in new_columns(self.place, arrow_schema_of(table.schema()), schema)}
                schema = pa.schema([field for field in schema if field.name not in new])
            check_schema_fits(self.place, arrow_schema_of(table.schema()), schema)
            columns = tuple(field.column for field in there)
            alone = bool(self.keys) and not current_data_files(table)
            text = owner_marker.encode_schema(schema)
            claim = OwnerMarker(1, self._region, self._bound(), text, self.keys, columns, alone, self.place)
            if self._log.write_owner_marker(table, claim):
                self._kept = claim
                return table
        raise self._too_late()

    def _too_late(self) -> RetriableError:
        return RetriableError(f"{self.place} is written by others all the time: {COMMITS_MAX} commits were too late")

    def _folder(self, table: Table) -> str:
        """Return the location of this region's files beside the table. A table that is created again gets another."""
        return f"{table.location().rstrip('/')}/_kohort/{table.metadata.table_uuid.hex}/{self._bound().hex}"

    def _staging(self, table: Table) -> str:
        return f"{self._folder(table)}/staged"

    def _merges(self, table: Table) -> str:
        return f"{self._folder(table)}/merges"

    # -- staging

    def check_rows(self, table: pa.Table) -> pa.Table:
        """Check each row of a table, and return the rows in the sink's schema, as `stage` writes them.

        Raises:
            RowRefusedError: the sink can't write a row.
        """
        claim = self._claim()
        unknown = set(table.column_names).difference(claim.row_schema().names)
        if any(not is_empty(table.schema.field(name)) for name in unknown):
            claim = self._load_claimed()[1]
        return self._shaped(table, claim)

    def _shaped(self, table: pa.Table, claim: OwnerMarker) -> pa.Table:
        kept = claim.row_schema()
        if self.evolve == "add":
            table = table.drop_columns(
                [field.name for field in table.schema if field.name not in kept.names and is_empty(field)]
            )
        table = with_added_columns(table, kept, claim.added)
        if not table.schema.equals(kept):  # which takes milliseconds
            check_schema_fits(self.place, kept, iceberg_stored_schema(fill_null_types(table.schema, kept)))
        rows = cast_to_sink_schema(table, kept, claim.keys)
        refuse_invalid_values(rows)
        refuse_out_of_range_times(rows, kept.names)
        return rows

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Write a table's rows to Parquet files that readers do not see yet, durably.

        A repeated call with the same key replaces the rows.
        """
        self._refuse_others(key)
        lake, claim = self._load_claimed()
        if self.evolve == "add" and not set(claim.added) <= set(lake.schema().column_names):
            self._evolve(claim.row_schema())
            lake, claim = self._load_claimed()
        rows = self._shaped(table, claim)
        if claim.keys:
            rows = last_row_of_each_key(rows, claim.keys)
        written = self._write(lake, key, rows, self._piece(lake, key.file_stem()), divided=not claim.keys)
        self._remove_unused(written.others)

    def _write(
        self, lake: Table, key: StagedKey, rows: pa.Table, before: _IcebergPiece | None, *, divided: bool = True
    ) -> _IcebergPiece:
        """Write rows to Parquet files, and `KEY.json`, which also lists files of earlier attempts.

        `KEY.json` names the files before they are written, so that a sweep finds them after a crash. It is written
        again when they are complete.

        Args:
            lake: the Iceberg table.
            key: the key under which the rows are staged.
            rows: the rows.
            before: the present content of `KEY.json`; None: there is none.
            divided: whether to write a file for each partition. False: one file, whose rows a publisher will merge.
        """
        store, folder, name = side_store_of(lake, self.place), self._staging(lake), key.file_stem() + _PIECE
        plan = plan_files(lake, rows, file_stem(key.epoch, key.region_id), divided)
        spec_id = lake.metadata.default_spec_id
        files, others = ((), ()) if before is None else (before.files, before.others)
        try:
            if plan:
                named = (*others, *(file.path for file in plan))
                whole = before is not None and before.whole
                old = spec_id if before is None else before.spec_id
                store.replace_file(folder, name, msgspec.json.encode(_IcebergPiece(files, old, whole, named)))
            written = tuple(write_planned_file(lake, file, self.compression, self.place) for file in plan)
            piece = _IcebergPiece(written, spec_id, True, (*others, *(file.path for file in files)))
            store.create_file_once(folder, name, msgspec.json.encode(piece))
        except BaseException:
            with contextlib.suppress(OSError):
                for file in plan:
                    store.remove_object(file.path)
                if before is None:
                    store.remove_object(f"{folder}/{name}")
                else:
                    store.replace_file(folder, name, msgspec.json.encode(before))
            raise
        return piece

    def _piece(self, lake: Table, name: str) -> _IcebergPiece | None:
        return read_json(side_store_of(lake, self.place).read, f"{self._staging(lake)}/{name}{_PIECE}", _IcebergPiece)

    # -- publishing

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Publish the rows staged under these keys as one sequence (checkpoint), by one snapshot of the table."""
        self.publish_with(sequence, keys, ())

    def publish_with(self, sequence: int, keys: Iterable[StagedKey], positions: Iterable[Position]) -> None:
        """Publish as `publish` does, and store the end offsets (`positions`) in the snapshot's summary."""
        check_sequence(sequence)
        lake, claim = self._load_claimed()
        named, committed = sort_staged_keys(keys), False
        if self._marked(lake) < sequence:
            pieces = {key: self._piece(lake, key.file_stem()) for key in named}
            gone = missing_rows_text(
                {key.file_stem(): piece is not None and piece.whole for key, piece in pieces.items()}
            )
            staged = {key: piece for key, piece in pieces.items() if piece is not None and piece.files}
            if gone or staged:
                bring = self._bring_update if claim.keys else self._bring
                committed = bring(sequence, staged, gone, offsets_as_json(positions))
            self._mark(lake, sequence)
        for key in named:
            if claim.keys:
                self._forget_merged(lake, key.file_stem())
            else:
                self._forget(lake, key.file_stem(), sequence, committed=committed)

    def _bring(self, sequence: int, staged: dict[StagedKey, _IcebergPiece], lost: str, offsets: str) -> bool:
        """Commit staged files as one checkpoint, unless another process has done so; return whether this process did.

        Args:
            sequence: the checkpoint's number.
            staged: the staged files of each key.
            lost: why staged files are missing; empty: none is. It is an error only if no process has committed the
                sequence.
            offsets: the end offsets as JSON; empty: unknown.
        """

        def commit_sequence(lake: Table) -> bool:
            if lost:
                raise CorruptDataError(f"Sequence {sequence} can't be published into {self.place}: {lost}")
            added: list[DataFile] = []
            for key, piece in staged.items():
                if piece.spec_id != lake.metadata.default_spec_id:
                    piece = staged[key] = self._divided_anew(lake, key, piece)
                added += [file.to_data_file(piece.spec_id) for file in piece.files]
            return self._log.commit(lake, sequence, added, offsets)

        return self._until_there(lambda lake: self._log.has_sequence(lake, sequence), commit_sequence)

    def _bring_update(self, sequence: int, staged: Mapping[StagedKey, _IcebergPiece], lost: str, offsets: str) -> bool:
        """Commit the sequence (checkpoint) with `mode="update"`: its rows replace those of the same keys in the table.

        The arguments and the result are as in `_bring`.
        """
        attempts: list[MergeAttempt] = []

        def commit_merge(lake: Table) -> bool:
            nonlocal lost
            if lost:
                raise CorruptDataError(f"Sequence {sequence} can't be published into {self.place}: {lost}")
            claim = self._claim_in(lake)
            if claim is None:
                raise self._unknown()
            if self.evolve == "add" and not set(claim.added) <= set(lake.schema().column_names):
                self._evolve(claim.row_schema())
                return False
            refuse_changed_columns(self.place, arrow_schema_of(lake.schema()), claim.row_schema())
            store = side_store_of(lake, self.place)
            try:
                read = [read_rows(store, piece.files, claim.row_schema()) for piece in staged.values()]
            except FileNotFoundError as error:
                lost = str(error)  # because another process has published and removed it: the table shows it
                return False
            attempt = MergeAttempt(lake, store, self._merges(lake), sequence, file_stem(0, self._bound()))
            attempts.append(attempt)
            rows = last_row_of_each_key(pa.concat_tables(read), claim.keys)
            try:
                added, removed = self._merged(lake, attempt, rows, claim.keys)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    attempts.remove(attempt)
                    attempt.remove_written_files()
                if isinstance(error, FileNotFoundError) and self._moved_on(lake):
                    return False  # others have compacted the table and removed its former files
                raise
            if not self._log.commit(lake, sequence, added, offsets, removed):
                return False
            attempts.remove(attempt)
            attempt.remove_file_list()
            return True

        committed = self._until_there(lambda lake: self._log.has_sequence(lake, sequence), commit_merge)
        if attempts:
            lake = self._load_table()
            for attempt in attempts:
                attempt.remove_unused_files(lambda: self._log.files_of_all_snapshots(lake))
        return committed

    def _merged(
        self, lake: Table, attempt: MergeAttempt, rows: pa.Table, keys: Sequence[str]
    ) -> tuple[list[DataFile], list[DataFile]]:
        """Write new data files with the merged rows; return the data files to add to the table and to remove from it.

        Each data file that has a row to be replaced is written again without it.
        """

        def write_file(file: PlannedFile) -> StagedFile:
            return write_planned_file(lake, file, self.compression, self.place)

        added: list[StagedFile] = []
        removed: list[DataFile] = []
        shown: list[pa.Table] = []
        found: list[Any] = []
        for replaced in find_replaced_files(lake, rows, keys, self.place):
            removed.append(replaced.file)
            added += attempt.write_rows(lake, replaced.rest, write_file)
            shown.append(replaced.replacing)
            found += replaced.found.chunks
        numbers = pa.array(range(rows.num_rows), pa.int64())
        known = pa.chunked_array(found, pa.int64()).combine_chunks()
        shown.append(rows.filter(pc.invert(pc.is_in(numbers, value_set=known))))
        added += attempt.write_rows(lake, pa.concat_tables(shown, promote_options="default"), write_file)
        spec_id = lake.metadata.default_spec_id
        return [file.to_data_file(spec_id) for file in added], removed

    def _moved_on(self, lake: Table) -> bool:
        """Return whether the table's current snapshot is another one than in this metadata."""
        before, now = lake.current_snapshot(), self._load_table().current_snapshot()
        return (before and before.snapshot_id) != (now and now.snapshot_id)

    def _divided_anew(self, lake: Table, key: StagedKey, piece: _IcebergPiece) -> _IcebergPiece:
        """Write a key's staged rows again by the table's present partition spec, which others have changed since."""
        claim = self._claim_in(lake)  # not the cached one, which may be older than a column of these rows
        if claim is None:
            raise self._unknown()
        rows = read_rows(side_store_of(lake, self.place), piece.files, claim.row_schema())
        return self._write(lake, key, rows, piece)

    def _until_there(self, is_there: Callable[[Table], bool], commit: Callable[[Table], bool]) -> bool:
        """Load the table and call `commit`, until `commit` returns True or the loaded metadata satisfies `is_there`.

        Returns:
            Whether this process's commit succeeded. False: another's did, or this one's after a lost answer.

        Raises:
            RetriableError: other writers committed first, 30 times.
        """
        for _ in range(COMMITS_MAX):
            lake = self._load_table()
            if is_there(lake):
                return False
            if commit(lake):
                return True
        raise self._too_late()

    def empty(self, sequence: int, floor: int) -> None:
        """Remove the region's rows by one commit with this sequence; then staged rows of epochs before `floor`."""
        lake = self._find()
        if lake is None:
            return
        if self._marked(lake) < sequence + 1:  # its own number may be from a history that the topic has lost
            self._until_there(
                lambda table: self._log.is_emptied(table, sequence),
                lambda table: self._log.commit_emptied(table, sequence, self._removals(table)),
            )
        self._mark(lake, sequence)
        self.sweep(Keep(floor))

    def _removals(self, lake: Table) -> list[DataFile]:
        """Return the table's data files that this region has added; with `mode="update"`, all of the table.

        Raises:
            InvalidInputError: others have rewritten files; or, with `mode="update"`, the table had rows before, or
                other regions write it. The region's rows can't be told from others then.
        """
        there = current_data_files(lake)
        claim = self._claim_in(lake)
        if claim is not None and claim.keys:
            if there and not (claim.alone and self._log.count_owner_markers(lake) == 1):
                raise InvalidInputError(
                    f"The rows of region {self._region!r} can't be told from others in {self.place}: there were "
                    "others' rows before its own, or other regions write there. Delete all rows of the table by hand; "
                    "the region goes on by itself"
                )
            return there
        ours = [file for file in there if self._is_ours(file.file_path)]
        if there and sum(file.record_count for file in ours) != self._log.appended_row_count(lake):
            raise InvalidInputError(
                f"The rows of region {self._region!r} can't be told from others in {self.place}: its files were "
                "written anew or removed (compaction, DELETE, UPDATE). Delete all rows of the table by hand; the "
                "region goes on by itself"
            )
        return ours

    def _is_ours(self, path: str) -> bool:
        found = _DATA.fullmatch(path.rpartition("/")[2])
        return found is not None and found[2] == self._bound().hex

    # -- progress and cleanup

    def _marked(self, lake: Table) -> int:
        return side_store_of(lake, self.place).last_published(self._folder(lake))

    def _mark(self, lake: Table, sequence: int) -> None:
        side_store_of(lake, self.place).mark_published(self._folder(lake), sequence)

    def published(self) -> int:
        """Return the last sequence (checkpoint number) that is published and durable; 0: none."""
        lake = self._find()
        return 0 if lake is None else max(self._marked(lake), self._log.last_sequence(lake))

    def adopt(self) -> str:
        """Store this sink's present name in the region's owner marker.

        Return the earlier name; empty: there was none.
        """
        for _ in range(COMMITS_MAX):
            self._bound()
            lake = self._log.load_if_exists() if self._is_there() else None
            claim = None if lake is None else self._log.read_owner_marker(lake)
            if lake is None or claim is None:
                return ""
            moved = msgspec.structs.replace(claim, place=self.place)
            if claim.place == self.place or self._log.write_owner_marker(lake, moved):
                self._kept = None
                return claim.place
        raise self._too_late()

    def _written_name(self) -> str:
        self._bound()
        lake = self._log.load_if_exists() if self._is_there() else None
        claim = None if lake is None else self._log.read_owner_marker(lake)
        return "" if claim is None else claim.place

    def sweep(self, keep: Keep) -> None:
        """Remove staged rows that will never be published, and files of failed attempts to commit an update.

        Files of snapshots that have expired are left to the table's own maintenance.
        """
        lake = self._find()
        if lake is None:
            return
        store, folder = side_store_of(lake, self.place), self._staging(lake)
        kept = {key.file_stem() for key in keep.keys}
        for name in store.list_files(folder):
            stem = name.removesuffix(_PIECE) if name.endswith(_PIECE) else staged_files.staged_key_text(name)
            if stem in kept or not staged_files.is_key_of_invalid_epoch(f"{stem}", self._id, keep.floor):
                continue
            if name.endswith(_PIECE):
                self._drop(lake, stem)
            store.remove_object(f"{folder}/{name}")
        claim = self._claim_in(lake)
        if claim is not None and claim.keys:
            last = self._log.last_sequence(lake)
            remove_failed_attempts(store, self._merges(lake), last, lambda: self._log.files_of_all_snapshots(lake))

    def _drop(self, lake: Table, name: str) -> None:
        """Remove the Parquet files of a key that will not be published, unless a snapshot has them.

        They may have been published, and the table emptied since: older snapshots then still have them.
        """
        piece = self._piece(lake, name)
        paths = () if piece is None else (*(file.path for file in piece.files), *piece.others)
        self._remove_others(paths, self._log.files_of_all_snapshots)

    def _remove_unused(self, paths: Sequence[str], sequence: int = 0) -> None:
        """Remove files unless the current snapshot has them or the region's snapshots of this checkpoint added them."""
        self._remove_others(paths, lambda lake: self._log.current_and_added_files(lake, sequence))

    def _remove_others(self, paths: Sequence[str], used_in: Callable[[Table], set[str]]) -> None:
        """Load the table, and remove those of these files that `used_in` does not return for it."""
        if paths:
            lake = self._load_table()
            used, store = used_in(lake), side_store_of(lake, self.place)
            for path in paths:
                if path not in used:
                    store.remove_object(path)

    def _forget(self, lake: Table, name: str, sequence: int, *, committed: bool) -> None:
        """Remove the `KEY.json` of a published key, and its files that the table does not use.

        Args:
            lake: the table.
            name: the key.
            sequence: the sequence (checkpoint). What its snapshot added stays, even if others have rewritten it since.
            committed: whether this process has committed the files. Otherwise another process committed the sequence,
                perhaps by emptying the table, so that the files are looked up.
        """
        piece = self._piece(lake, name)
        if piece is not None:
            if piece.others or not committed:
                self._remove_unused((*(file.path for file in piece.files), *piece.others), sequence)
            side_store_of(lake, self.place).remove_object(f"{self._staging(lake)}/{name}{_PIECE}")

    def _forget_merged(self, lake: Table, name: str) -> None:
        """Remove a key's `KEY.json` and its Parquet files, after an update has written its rows to other files."""
        piece = self._piece(lake, name)
        if piece is not None:
            store = side_store_of(lake, self.place)
            for path in (*(file.path for file in piece.files), *piece.others):
                store.remove_object(path)
            store.remove_object(f"{self._staging(lake)}/{name}{_PIECE}")


def _local(warehouse: str) -> str:
    if "://" in warehouse and not warehouse.startswith("file:"):
        raise InvalidInputError(
            f"The catalog in a warehouse is a file, which {redacted_url(warehouse)} can't hold: give "
            "catalog={'type': 'rest' or 'sql', 'uri': …, 'warehouse': …}"
        )
    return local_path(warehouse, "The warehouse of an IcebergTable")
