"""A Delta table that is written to exactly once: a sequence is one commit in its log.

    table/_delta_log/                         Delta's own
    table/_kohort/REGION-ID/region.json       that this region writes here, under which name, and the schema of its rows
    table/_kohort/REGION-ID/columns-1.json    columns that were added to them later, with `evolve="add"`
    table/_kohort/REGION-ID/published-17      sequence 17 is done (an empty file; a few of the newest are kept)
    table/_kohort/REGION-ID/staged/KEY.json   what a member staged: names of files, what the log is to say of them
    table/_kohort/REGION-ID/staged/eEPOCH-REGION-ID-ATTEMPT-0.parquet  its rows, a file for each partition
    table/_kohort/REGION-ID/staged/_done-…    what is published of it, for the sweep
    table/eEPOCH-REGION-ID-ATTEMPT-0.parquet  the same file under a second name, once it is published

Names of data files have letters, digits, `-` and `.` alone. The log stores them as parts of a URL, and its readers do
not agree on the encoding of other characters. The names therefore do not contain the key, which may have `~`. Readers
and VACUUM skip names that begin with `_`. Other regions and other writers may write into the same table.

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
from datetime import UTC, date, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kohort.errors import CorruptDataError, InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region.files import (
    Output,
    local_path,
    make_folder,
    names_in,
    read_file,
    remove,
    sync_folder,
)
from kohort.region.sinks import Keep, owner_marker, staged_files
from kohort.region.sinks.availability import NO_LINKS_ERRNOS
from kohort.region.sinks.bound import InFolder
from kohort.region.sinks.columns import filled_schema, is_empty, refuse_untyped, untyped
from kohort.region.sinks.owner_marker import OwnerMarker
from kohort.region.sinks.rows import (
    Evolution,
    Mode,
    check_evolution,
    check_fits,
    check_keys,
    check_mode,
    check_names,
    completed,
    completed_schema,
    in_order,
    last_of_each,
    new_columns,
    plain,
    refusal_of,
    refuse_changed,
    refuse_foreign,
    rows_where,
    shaped,
)
from kohort.region.sinks.staged_files import Codec
from kohort.region.staged import StagedKey

try:
    import deltalake
    from deltalake.transaction import AddAction, RemoveAction

    from kohort.region.sinks.delta_log import DeltaLog, arrow_of, files_of, removal, schema_of
except ImportError as error:
    raise InvalidInputError(f"DeltaTable needs the package deltalake: pip install 'kohort[delta]' ({error})") from error

# -- Supported rows and tables, and the statistics of a file

TEXT_MAX: Final = 32
"""Maximum number of characters of a text in a file's statistics; longer ones are left out."""
COLUMNS_MAX: Final = 32
"""Number of columns with statistics: the first ones, as in Delta's own writers."""
_FEATURES: Final = frozenset({
    "appendOnly", "changeDataFeed", "deletionVectors", "domainMetadata", "invariants", "timestampNtz",
    "vacuumProtocolCheck", "v2Checkpoint",
})  # fmt: skip
_LOCAL_TIMES: Final = "timestampNtz"
_SETTINGS: Final = {
    "delta.constraints.": "has a constraint",
    "delta.columnMapping.mode": "maps its columns",
    "delta.setTransactionRetentionDuration": "forgets which sequences it has",
}


def delta_schema(schema: pa.Schema) -> pa.Schema:
    """Return the types in which a Delta table stores these columns.

    Raises:
        InvalidInputError: a Delta table can't store a column unchanged; the message names the columns.
    """
    kept, refused = [], []
    for given, field in zip(schema, plain(schema), strict=True):
        try:
            back = arrow_of(pa.schema([field])).field(0)
        except Exception as error:  # noqa: BLE001 - the library raises plain ones
            refused.append(f"column {given.name!r} of type {given.type} ({str(error).splitlines()[0]})")
            continue
        finer = pa.types.is_timestamp(back.type) and back.type.unit == "ns"
        if finer or pa.types.is_null(back.type):
            refused.append(f"column {given.name!r} of type {given.type}")
        elif not _holds(back.type, field.type):
            refused.append(f"column {given.name!r} of type {given.type} (it would come back as {back.type})")
        kept.append(pa.field(field.name, back.type, field.nullable))
    if refused:
        raise InvalidInputError(f"Delta does not take {'; '.join(refused)}: cast these columns")
    return pa.schema(kept)


def _holds(kept: pa.DataType, given: pa.DataType) -> bool:
    if pa.types.is_timestamp(kept) and pa.types.is_timestamp(given):
        return bool(kept.tz == given.tz and given.unit in ("s", "ms", "us"))
    return bool(kept.equals(given) or plain(pa.schema([("x", kept)])).field(0).type.equals(given))


def check_partitions(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Check that these columns can partition the files.

    Raises:
        InvalidInputError: a column can't; the message says which can.
    """
    for name in partition_by:
        kind = schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)):
            raise InvalidInputError(f"partition_by names {name!r} of type {kind}: take a text, an integer or a date")
    if len(partition_by) == len(schema):
        raise InvalidInputError("partition_by names all columns: one must be left for the files")


def check_table(place: str, table: deltalake.DeltaTable, mode: str) -> None:
    """Check that a table uses no Delta feature beyond those that this package can write.

    Raises:
        InvalidInputError: it uses one; the message names it.
    """
    settings: Mapping[str, str | None] = table.metadata().configuration
    protocol = table.protocol()
    found = [f"{why} ({name})" for name in settings for key, why in _SETTINGS.items()
             if name.startswith(key) and settings[name] != "none"]  # fmt: skip
    unknown = sorted({*(protocol.writer_features or ()), *(protocol.reader_features or ())} - _FEATURES)
    found += [f"needs the feature {name}" for name in unknown]
    if mode == "update" and settings.get("delta.appendOnly") == "true":
        found.append("takes new rows only (delta.appendOnly)")
    for field in msgspec.json.decode(table.schema().to_json())["fields"]:
        rules = [key for key in field["metadata"] if key.startswith(("delta.identity", "delta.gen", "delta.inv"))]
        found += [f"has a rule for column {field['name']!r} ({key})" for key in rules]
    if found:
        raise InvalidInputError(
            f"{place} can't be written exactly once: it {'; it '.join(found)}. Take that away, or give the region "
            "another table"
        )


def check_feature(place: str, table: deltalake.DeltaTable, columns: Iterable[pa.Field[Any]]) -> None:
    """Check that columns can be added to a table without a feature that some of its readers may lack.

    The library would enable the feature by itself, and so shut these readers out.

    Raises:
        InvalidInputError: a column needs one; the message says what to do.
    """
    needing = [f"{field.name!r} of type {field.type}" for field in columns if _has_local_time(field.type)]
    if needing and _LOCAL_TIMES not in (table.protocol().reader_features or ()):
        raise InvalidInputError(
            f"{place} can't be given the column {', '.join(needing)}: a time without a zone needs the table feature "
            f"{_LOCAL_TIMES}, and programs that lack it could no longer read the table. Cast the column to a time "
            "with a zone, or enable the feature by hand"
        )


def _has_local_time(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return any(_has_local_time(kind.field(number).type) for number in range(kind.num_fields))


def statistics(table: pa.Table) -> str:
    """Return a file's statistics for the log, with which readers can skip the file."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in table.column_names[:COLUMNS_MAX]:
        column = table.column(name)
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        if not (
            pa.types.is_integer(column.type) or pa.types.is_string(column.type) or pa.types.is_temporal(column.type)
        ):
            continue
        ends = pc.min_max(column)
        try:
            low, high = _said(ends["min"].as_py()), _said(ends["max"].as_py())
        except (ValueError, OverflowError):  # a time that Python has no word for
            continue
        if low is not None and high is not None:
            least[name], most[name] = low, high
    found = {"numRecords": table.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return msgspec.json.encode(found).decode()


def _said(value: object) -> int | str | None:
    if isinstance(value, datetime):
        text = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return text.isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else None
    return value if isinstance(value, int) else None


def parted(table: pa.Table, partition_by: Sequence[str]) -> list[tuple[dict[str, str | None], pa.Table]]:
    """Return the rows of each partition, without the partition columns. An empty text is null, as in Delta."""
    if not table.num_rows:
        return []
    if not partition_by:
        return [({}, table)]
    at = "".join(table.column_names) + "_"
    numbered = table.select(partition_by).append_column(at, pa.array(range(table.num_rows), pa.int64()))
    groups = numbered.group_by(list(partition_by)).aggregate([(at, "list")])
    rest = table.drop_columns(list(partition_by))
    found = []
    for row in groups.to_pylist():
        values = {name: _partition(row[name]) for name in partition_by}
        found.append((values, rest.take(pa.array(sorted(row[f"{at}_list"]), pa.int64()))))
    return found


def _partition(value: object) -> str | None:
    if value is None or value == "":
        return None
    return value.isoformat() if isinstance(value, date) else str(value)


COMMITS_MAX: Final = 30
"""Limit on attempts to commit; others may commit between reading and writing."""
_PIECE: Final = ".json"
_DONE: Final = "_done-"
_PROBE: Final = "_probe-"
_PROBES: Final = 5
"""Limit on attempts to probe; another process's probe may remove this one's files as leftovers."""
_DATA: Final = re.compile(r"e([0-9]+)-([0-9a-f]{32})-[0-9a-f]{16}-[0-9]+\.parquet")


class _File(msgspec.Struct, frozen=True):
    """A staged file, as the log will describe it."""

    name: str
    size: int
    rows: int
    statistics: str
    partition: dict[str, str | None]


class _Piece(msgspec.Struct, frozen=True):
    """The content of `KEY.json`, which has one of the two.

    Attributes:
        files: the files of the key's rows.
        grown: the same, if the rows replace others and have columns that were added. A publisher that does not know
            added columns would leave their values out of its merge. It finds no `files`, and refuses the piece.
    """

    files: tuple[_File, ...] = ()
    grown: tuple[_File, ...] = ()


class DeltaTable(InFolder):
    """A Delta table as a region's sink. It can be pickled. `Sink` documents its methods' guarantees.

    The table is in a folder that all members see, on a file system with hard links; it is created if missing. Rows
    are appended; with `mode="update"` a row replaces the one with the same keys.

    If a sequence has two rows of one key, the later is written. The order is by epoch, unit and member of the staged
    keys, then by the order in the table.

    Attributes:
        path: the absolute path, from the working directory when it was made.
        mode: append or update.
        keys: the columns by which rows replace one another, for `update`.
        partition_by: the columns that partition the files, if the table is created here.
        compression: the compression of Parquet's pages: snappy, zstd, lz4, gzip, brotli or none.
        evolve: whether to add a new column that may be null to the table, or to refuse tables that have one.
    """

    KIND = "delta"
    _kept: OwnerMarker | None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Mode = "append",
        keys: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        compression: Codec = "zstd",
        evolve: Evolution = "refuse",
    ) -> None:
        if isinstance(partition_by, str):
            raise InvalidInputError(f"partition_by is {partition_by!r}: give a list, partition_by=[{partition_by!r}]")
        check_mode(mode, keys)
        staged_files.check_pages(compression, None)
        check_evolution(evolve)
        self.path = local_path(path, "A DeltaTable")
        self.mode, self.keys, self.partition_by = mode, tuple(keys), tuple(partition_by)
        self.compression, self.evolve = compression, evolve

    # -- before the first record

    def check(self, schema: pa.Schema) -> None:
        """Check that tables of this schema can be staged and published; create the table if it is missing."""
        self._bound()
        check_names(schema, self.partition_by, "partition_by")
        schema = self._typed(schema)
        given = delta_schema(schema)
        check_keys(given, self.keys)
        check_partitions(given, self.partition_by)
        try:
            self._make(given)
            self._probe()
        except PermissionError as error:
            raise NotAuthorizedError(f"No right to write the Delta table {self.path}: {error}") from error
        self._evolve(given)

    def _evolve(self, given: pa.Schema) -> None:
        """Add the new columns of tables to the Delta table, once: the commit of a second writer is too late.

        A process that ends after that commit leaves a column that no marker names. Whoever finds it next takes it for
        one that others have added.
        """
        for _ in range(COMMITS_MAX):
            claim, number = self._reload()
            kept = claim.rows()
            given = completed_schema(given, kept, claim.added)
            if self.evolve == "refuse":
                return check_fits(self.path, kept, given)
            new = new_columns(self.path, kept, given)
            if not new and not claim.added:
                return None
            table = self._log.load()
            refuse_foreign(self.path, schema_of(table), new)
            if self._adds_columns(table, [*(kept.field(name) for name in claim.added), *new]):
                continue
            if not new:
                return None
            self._log.settle_columns(table.version())
            if owner_marker.add_columns(self._files, self._own, number + 1, new):
                self._reload()
                return None
        raise self._too_late()

    def _adds_columns(self, table: deltalake.DeltaTable, columns: Sequence[pa.Field[Any]]) -> bool:
        """Try to add those columns that the table lacks, durably. Return whether it lacked one; load it again then."""
        there = schema_of(table)
        missing = [field for field in columns if field.name not in there.names]
        if missing:
            check_names(pa.schema([*there, *missing]), (), "")
            check_feature(self.path, table, missing)
            if self._log.add_columns(table, missing):
                self._log.settle_columns(table.version())
        return bool(missing)

    def _typed(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema with a type for each column: the table's, where a column has no value.

        With `evolve="add"` a new column without any value is left out, until a table gives it a type.
        """
        if any(untyped(field.type) for field in schema):
            if self._is_claimed():
                schema = filled_schema(schema, self._reload()[0].rows())
            elif self._log.exists():
                schema = filled_schema(schema, schema_of(self._log.load()))
            if self.evolve == "add" and (self._is_claimed() or self._log.exists()):
                schema = pa.schema([field for field in schema if not is_empty(field)])
            refuse_untyped(schema)
        return schema

    def _make(self, schema: pa.Schema) -> None:
        files = self._files
        try:
            make_folder(files, self.path)
            files.listdir(self.path)
            table = self._table(schema)
            check_table(self.path, table, self.mode)
            parts = tuple(table.metadata().partition_columns)
            if self.partition_by and parts != self.partition_by:
                raise InvalidInputError(f"{self.path} is parted by {list(parts)}, not by {list(self.partition_by)}")
            schema = self._fitting(schema_of(table), schema)
            make_folder(files, self._staging)
            if not self._is_claimed():
                text, alone = owner_marker.text_of(schema), not table.file_uris()
                mine = OwnerMarker(1, self._region, self._bound(), text, self.keys, parts, alone, self.place)
                owner_marker.write_claim(files, self._own, mine)
            sync_folder(files, self._own)
        except NotADirectoryError as error:
            raise InvalidInputError(f"{self.path} can't be a folder: {error.filename} is a file") from error
        if (kept := self._claim()).keys != self.keys:
            raise InvalidInputError(
                f"Region {self._region!r} writes {self.path} with keys={list(kept.keys)}, not {list(self.keys)}: "
                "all members say the same"
            )

    def _fitting(self, there: pa.Schema, schema: pa.Schema) -> pa.Schema:
        """Return those columns of tables that the Delta table must have by now, checked against its own.

        Others may have added columns that may be null since the region began to write.
        """
        if self._is_claimed():
            claim = self._reload()[0]
            rows = claim.rows()
            there = pa.schema([field for field in there if field.name in rows.names or not field.nullable])
            schema = completed_schema(schema, rows, claim.added)
            lost = {name for name in claim.added if name not in there.names}
            schema = pa.schema([field for field in schema if field.name not in lost])
        if self.evolve == "add":
            new = {field.name for field in new_columns(self.path, there, schema)}
            schema = pa.schema([field for field in schema if field.name not in new])
        check_fits(self.path, there, schema)
        return schema

    def _table(self, schema: pa.Schema) -> deltalake.DeltaTable:
        """Return the table; create it if it is missing."""
        self._log.refuse_link()
        try:
            return self._log.load()
        except InvalidInputError:
            strangers = sorted(name for name in self._files.listdir(self.path) if not name.startswith(("_", ".")))
            if strangers:
                raise InvalidInputError(
                    f"{self.path} holds {strangers[0]!r} and is no Delta table: give the region an empty folder"
                ) from None
        return self._log.create(schema, self.partition_by)

    def _probe(self) -> None:
        """Check that a staged file can be linked into the table, and that the log can be written."""
        folders = (self._staging, self.path, f"{self.path}/_delta_log")
        for again in reversed(range(_PROBES)):
            for folder in folders:
                for name in self._files.listdir(folder):
                    if name.startswith(_PROBE):
                        remove(self._files, f"{folder}/{name}")
            try:
                self._try(folders)
            except FileNotFoundError:
                if not again:
                    raise
            else:
                return

    def _try(self, folders: Sequence[str]) -> None:
        files = self._files
        staged, *seconds = [f"{folder}/{_PROBE}{uuid.uuid4().hex}" for folder in folders]
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
                    remove(files, path)

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
        """Return this region's claim as it is now, and how often columns were added to it.

        Raises:
            FileNotFoundError: there is none.
        """
        claim, number = owner_marker.read_grown(self._files, self._own)
        self._refuse_other_name(claim)
        if claim.added != (() if self._kept is None else self._kept.added):
            sync_folder(self._files, self._own)  # another process may have written it a moment ago
        self._kept = claim
        return claim, number

    def _claim(self) -> OwnerMarker:
        if not self._is_claimed() or self._kept is None:
            raise InvalidInputError(f"{self.path} is not known to region {self._region!r}: call check(schema) first")
        return self._kept

    # -- staging

    def check_rows(self, table: pa.Table) -> pa.Table:
        """Refuse the first row that can't be written; return the rows as they are staged."""
        return self._checked(table)[1]

    def _checked(self, table: pa.Table) -> tuple[OwnerMarker, pa.Table]:
        """Return the rows as they are staged, with the claim that they fit; another thread may cache an older one."""
        claim = self._claim()
        unknown = set(table.column_names).difference(claim.rows().names)
        if any(not is_empty(table.schema.field(name)) for name in unknown):
            claim = self._reload()[0]
        kept = claim.rows()
        if self.evolve == "add":
            unknown = set(table.column_names).difference(kept.names)
            table = table.drop_columns([name for name in unknown if is_empty(table.schema.field(name))])
        table = completed(table, kept, claim.added)
        check_fits(self.path, kept, delta_schema(filled_schema(table.schema, kept)))
        rows = shaped(table, kept, self.keys)
        for name in claim.partition_by:
            must = name in self.keys or not kept.field(name).nullable
            is_text = pa.types.is_string(kept.field(name).type)
            if must and is_text and (empty := rows_where(pc.equal(rows.column(name), pa.scalar("")))):
                why = f"An empty text in {name!r}: as a partition, Delta can't tell it from null"
                raise refusal_of(dict.fromkeys(empty, why), table, name)
        return claim, rows

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Stage a table durably, unseen by readers. A repeated call with the same key replaces the rows."""
        self._refuse_others(key)
        claim, table = self._checked(table)
        files, staging, name = self._files, self._staging, key.text()
        before = self._piece(name) or ()
        written: list[_File] = []
        stem = f"e{key.epoch}-{key.region_id.hex}-{uuid.uuid4().hex[:16]}"
        try:
            for number, (values, part) in enumerate(parted(table, claim.partition_by)):
                file = f"{stem}-{number}.parquet"
                written.append(_File(file, 0, part.num_rows, statistics(part), values))
                with contextlib.closing(Output(files, f"{staging}/{file}")) as output:
                    staged_files.write_parquet(part, output, self.path, self.compression, None)
                    output.sync()
                    written[-1] = msgspec.structs.replace(written[-1], size=output.tell())
            grown = self.mode == "update" and claim.added
            piece = msgspec.json.encode({"grown" if grown else "files": written})
            staged_files.write_staged(files, staging, name + _PIECE, lambda output: output.write(piece))
        except BaseException:
            with contextlib.suppress(OSError):
                for part_of in written:
                    remove(files, f"{staging}/{part_of.name}")
            raise
        for old in before:
            remove(files, f"{staging}/{old.name}")

    def _piece(self, name: str) -> tuple[_File, ...] | None:
        """Return the files of a staged key; None: it is not staged, or no longer."""
        try:
            piece = msgspec.json.decode(read_file(self._files, f"{self._staging}/{name}{_PIECE}"), type=_Piece)
            return piece.files + piece.grown
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise CorruptDataError(f"{self._staging}/{name}{_PIECE} can't be read: {error}") from error

    # -- publishing

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Show the rows of these keys as this sequence: one commit in the log."""
        if sequence < 1:
            raise InvalidInputError(f"Sequence {sequence} can't be published: the first is 1")
        self._claim()
        named = in_order(keys)
        if not self._is_marked(sequence):
            pieces = [self._piece(key.text()) for key in named]
            lost = [key.text() for key, piece in zip(named, pieces, strict=True) if piece is None]
            staged = [file for piece in pieces if piece is not None for file in piece]
            if lost or staged:
                gone = f"of {len(named)} staged pieces {len(lost)} are gone, {lost[0]} among them" if lost else ""
                self._bring(sequence, staged, gone)
        staged_files.mark(self._files, self._own, sequence)
        for key in named:
            self._forget(key.text())

    def _bring(self, sequence: int, staged: list[_File], lost: str) -> None:
        """Commit the sequence, unless another process has."""
        claim = self._reload()[0]  # other members may have added columns, which the staged rows have
        kept = claim.rows()

        def commit(table: deltalake.DeltaTable) -> bool:
            nonlocal lost
            if lost:
                raise CorruptDataError(f"Sequence {sequence} can't be published into {self.path}: {lost}")
            if self._adds_columns(table, [kept.field(name) for name in claim.added]):
                return False
            refuse_changed(self.path, schema_of(table), kept)
            try:
                if self.mode == "update":
                    return self._merge(table, sequence, staged, claim)
                return self._add(table, sequence, staged)
            except FileNotFoundError as error:
                lost = str(error)  # because another process has published and swept it: the log shows it
                return False

        self._until_there(lambda table: self._log.has(table, sequence), commit)

    def _until_there(
        self, is_there: Callable[[deltalake.DeltaTable], bool], commit: Callable[[deltalake.DeltaTable], bool]
    ) -> None:
        """Retry until a commit of the sequence is in the log and durable, whichever process made it."""
        for _ in range(COMMITS_MAX):
            table = self._log.load()
            if is_there(table):
                return self._log.settle(table.version(), _DATA)
            before = table.version()  # a merge updates the table object
            if commit(table):
                return self._log.settle(before + 1, _DATA)
        raise self._too_late()

    def _too_late(self) -> RetriableError:
        return RetriableError(f"{self.path} is written by others all the time: {COMMITS_MAX} commits were too late")

    def _add(self, table: deltalake.DeltaTable, sequence: int, staged: list[_File]) -> bool:
        for file in staged:
            with contextlib.suppress(FileExistsError):
                staged_files.show(self._files, f"{self._staging}/{file.name}", f"{self.path}/{file.name}")
        sync_folder(self._files, self.path)
        now = int(time.time() * 1000)
        adds: list[AddAction | RemoveAction] = [
            AddAction(file.name, file.size, file.partition, now, True, file.statistics) for file in staged
        ]
        rows = self._log.row_count(table) + sum(file.rows for file in staged)
        return self._log.commit(table, sequence, adds, rows)

    def _merge(self, table: deltalake.DeltaTable, sequence: int, staged: list[_File], claim: OwnerMarker) -> bool:
        kept = claim.rows()
        rows = pa.concat_tables([self._read(file, kept) for file in staged])
        return self._log.merge(table, sequence, last_of_each(rows, claim.keys), claim.keys)

    def _read(self, file: _File, kept: pa.Schema) -> pa.Table:
        read = pq.read_table(pa.BufferReader(read_file(self._files, f"{self._staging}/{file.name}")))
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
        """Remove the region's rows: one commit removes its files and records that under the sequence."""
        if not self._is_claimed():
            return
        if not self._is_marked(sequence + 1):  # its own number may be from a history that the topic has lost
            self._until_there(
                lambda table: self._log.is_emptied(table, sequence),
                lambda table: self._log.commit(table, sequence, self._removals(table), 0, True),
            )
        staged_files.mark(self._files, self._own, sequence)
        self.sweep(Keep(floor))

    def _removals(self, table: deltalake.DeltaTable) -> list[AddAction | RemoveAction]:
        """Return the actions that remove this region's rows, and no others."""
        there = files_of(table)
        if self.mode == "update":
            ours = there
            whole = self._claim().alone and len(names_in(self._files, f"{self.path}/_kohort")) == 1
        else:
            ours = [file for file in there if self._is_ours(file["path"])]
            whole = sum(file["num_records"] or 0 for file in ours) == self._log.row_count(table)
        if there and not whole:
            raise InvalidInputError(
                f"The rows of region {self._region!r} can't be told from others in {self.path}: its files were written "
                "anew (OPTIMIZE, DELETE, UPDATE), or there were others' rows before its own. Delete all rows of the "
                "table by hand; the region goes on by itself"
            )
        return [removal(file) for file in ours]

    def _is_ours(self, path: str) -> bool:
        found = _DATA.fullmatch(path)
        return found is not None and found[2] == self._bound().hex

    # -- progress and cleanup

    def _is_marked(self, sequence: int) -> bool:
        return staged_files.is_marked(self._files, self._own, sequence)

    def published(self) -> int:
        """Return the last sequence that is certainly published; 0: none."""
        self._bound()
        if not self._is_claimed():
            return 0
        marked = staged_files.last_marked(self._files, self._own)
        table = self._log.load()
        last = self._log.last(table)
        if last > marked:  # its publisher ended before it was marked
            self._log.settle(table.version(), _DATA)
            staged_files.mark(self._files, self._own, last)
        return max(last, marked)

    def adopt(self) -> str:
        """Write this sink's name into the place of the table, and return the earlier one."""
        return self._adopt(self._own)

    def _written_name(self) -> str:
        return self._written_in(self._own)

    def sweep(self, keep: Keep) -> None:
        """Remove staged rows that will never be published.

        Files beside the log that no commit names are left to VACUUM.
        """
        self._bound()
        if not self._is_claimed():
            return
        kept = {key.text() for key in keep.keys}
        for name in kept:
            kept = kept.union(file.name for file in self._piece(name) or ())
        for name in names_in(self._files, self._staging):
            data = _DATA.fullmatch(name)
            stem = name if data else staged_files.stem_of(name)
            void = int(data[1]) < keep.floor if data else staged_files.is_void(stem, self._id, keep.floor)
            if name.startswith(_DONE) or (void and stem not in kept):
                remove(self._files, f"{self._staging}/{name}")

    def _forget(self, name: str) -> None:
        """Give a staged piece to the sweep: its data first, so that another process can finish after a crash here.

        A file system takes a hundred times as long to free a file as to rename it, and a sequence waits for this.
        """
        piece = self._piece(name)
        for file_name in (*(file.name for file in piece), name + _PIECE) if piece is not None else ():
            with contextlib.suppress(FileNotFoundError):
                self._files.rename(f"{self._staging}/{file_name}", f"{self._staging}/{_DONE}{file_name}")
