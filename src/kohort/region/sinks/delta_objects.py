"""A Delta table in an object store that is written to exactly once: a sequence is one conditional put of a commit.

    table/_delta_log/                            Delta's own
    table/_kohort/REGION-ID/region.json          as in a folder (`delta_table`); created once
    table/_kohort/REGION-ID/columns-1.json       the same
    table/_kohort/REGION-ID/conditional-put      an object that `check` could create once only
    table/_kohort/REGION-ID/reached/ID/          a table that `check` makes with both libraries, and removes
    table/_kohort/REGION-ID/done/17              sequence 17 is done (an empty object; a few of the newest are kept)
    table/_kohort/REGION-ID/staged/…             as in a folder
    table/eEPOCH-REGION-ID-ATTEMPT-0.parquet     a copy of a staged file, once it is published; a new ATTEMPT

A store has no links, so the publisher has the store copy the staged files before the commit. Each call of `publish`
makes copies under new names; `delta_table` says why. VACUUM therefore never removes staged rows, and a sweep never
touches what readers see. A copy is checked by its size.

The commit is a conditional put of the library, without retries. After a lost answer the publisher reads the log again.
If the sequence is not in it, another commit takes its version, and the put that may still be under way is refused. A
put that arrives after others have cleaned the log may succeed below the last checkpoint, where no reader looks. Each
commit therefore counts only when a new reading of the log shows it.

An unconditional put may also arrive late. `KEY.json` may then name the files of an earlier attempt to stage the same
rows. They are left to the sweep.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final
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

from kohort.errors import InvalidInputError, NotAuthorizedError, RetriableError
from kohort.region.files import SYSTEM
from kohort.region.sinks import owner_marker, staged_files
from kohort.region.sinks.delta_log import DeltaLog
from kohort.region.sinks.delta_table import PIECE, DeltaTable
from kohort.region.sinks.object_store import ObjectStore
from kohort.region.sinks.owner_marker import OwnerMarker

_LOG: Final = "_delta_log"
_TRIED: Final = "conditional-put"
_DENIED: Final = re.compile(r"\b40[13] [A-Z]")
CHECKPOINT_INTERVAL: Final = 10
"""Number of commits between checkpoints of a table that is created here, as in Spark. The library's default is 100, and
a publication makes 7 requests for each commit since the last checkpoint."""


class StoreDeltaLog(DeltaLog):
    """The transaction log (`_delta_log`) of a Delta table in an object store, as one region reads and writes it."""

    def __init__(self, store: ObjectStore, region_id: UUID) -> None:
        super().__init__(store.url, region_id, SYSTEM)
        self._store, self._given = store, store.rust_store_options()

    def refuse_symbolic_link(self) -> None:
        """Do nothing: an object store has no symbolic links."""

    def exists(self) -> bool:
        """Return whether `_delta_log` has an object.

        The Delta library's own check would block all threads of the process.
        """
        return any(self._store.list_pages(_LOG))

    def _open_table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self._path, storage_options=self._given)

    def create_table(self, schema: pa.Schema, partition_by: Sequence[str]) -> deltalake.DeltaTable:
        """Create the Delta table, and load it.

        If another writer created it, or the answer was lost, load what is there.
        """
        kept = deltalake.Schema.from_arrow(schema)
        refused = ""
        try:
            with self._errors():
                deltalake.DeltaTable.create(
                    self._path, kept, mode="ignore", partition_by=list(partition_by), storage_options=self._given,
                    configuration={"delta.checkpointInterval": str(CHECKPOINT_INTERVAL)},
                )  # fmt: skip
        except (CommitFailedError, RetriableError) as error:
            refused = self._store.error_text(error)
        try:
            return self.load()
        except InvalidInputError:
            if refused:
                raise RetriableError(f"The Delta table {self._path} can't be created: {refused}") from None
            raise

    def reaches_same_store(self, folder: str) -> bool:
        """Return whether the Delta library commits to the place that this process reads, by a trial table in `folder`.

        The trial also checks that the library's commits never replace others. The library's functions that read an
        object would block all threads of the process, so the object is read by obstore.

        Raises:
            InvalidInputError: the library's commits replace others.
            NotAuthorizedError: the library has no right to read or to commit.
        """
        paths = [f"{folder}/{_LOG}/{version:020}.json" for version in range(3)]
        try:
            return self._commits_into(folder, paths)
        except RetriableError as error:
            if _DENIED.search(str(error)):  # by text: the library says it in no other way
                raise NotAuthorizedError(f"No right to write the log of {self._path}: {error}") from None
            raise
        finally:
            with contextlib.suppress(FileNotFoundError, RetriableError, NotAuthorizedError):
                self._store.remove_objects(paths)

    def _commits_into(self, folder: str, paths: Sequence[str]) -> bool:
        columns = deltalake.Schema.from_arrow(pa.schema([("id", pa.int64())])).to_json()
        name = str(uuid.uuid4())
        about = {"id": name, "format": {"provider": "parquet", "options": {}}, "schemaString": columns,
                 "partitionColumns": [], "configuration": {}, "createdTime": 0}  # fmt: skip
        lines = ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": about})
        data = b"\n".join(map(msgspec.json.encode, lines))
        self._store.put_object(paths[0], data)
        try:
            with self._errors():
                found = deltalake.DeltaTable(f"{self._path}/{folder}", storage_options=self._given)
                if str(found.metadata().id) != name:
                    return False
                self._store.put_object(paths[1], b'{"commitInfo":{}}')
                if self._try_commit(found, name):
                    raise InvalidInputError(
                        f"{self._path} can't be written exactly once: deltalake does not create commits by conditional "
                        "puts. Remove settings for stores without them from the environment and from storage_options"
                    )
                found = deltalake.DeltaTable(f"{self._path}/{folder}", storage_options=self._given)
                self._try_commit(found, name)
            return name.encode() in self._store.read_object(paths[2])
        except (TableNotFoundError, FileNotFoundError):
            return False

    @staticmethod
    def _try_commit(table: deltalake.DeltaTable, transaction: str) -> bool:
        said = deltalake.CommitProperties(
            max_commit_retries=0, app_transactions=[deltalake.Transaction(transaction, 1)]
        )
        try:
            table.create_write_transaction([], "append", table.schema(), [], commit_properties=said)
        except CommitFailedError:
            return False
        return True

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate the Delta library's errors, and remove secrets: their text may contain a signed request."""
        try:
            yield
        except CommitFailedError:
            raise
        except (SchemaMismatchError, TableNotFoundError) as error:
            raise type(error)(self._store.error_text(error)) from None
        except DeltaProtocolError as error:
            said = self._store.error_text(error)
            raise InvalidInputError(f"{self._path} is a Delta table that can't be written to: {said}") from None
        except (DeltaError, OSError) as error:
            said = self._store.error_text(error)
            raise RetriableError(f"The Delta table {self._path} does not answer: {said}") from None

    def sync_last_commit(self, newest_version: int, durable_names: object) -> None:
        """Do nothing: an object is durable when the store has answered."""

    def sync_column_commits(self, newest_version: int) -> None:
        """Do nothing: an object is durable when the store has answered."""


class DeltaObjects(DeltaTable):
    """The `DeltaTable` for an object store; `DeltaTable(url)` returns one for a store's URL.

    Attributes:
        path: the URL.
        mode: as in `DeltaTable`.
        keys: as in `DeltaTable`.
        partition_by: as in `DeltaTable`.
        compression: as in `DeltaTable`.
        evolve: as in `DeltaTable`.
    """

    _LATE: ClassVar = True

    def _keep_path(self, path: str, storage_options: Mapping[str, str]) -> None:
        self._store = ObjectStore(path, storage_options)
        self.path = self._store.url

    def __repr__(self) -> str:
        return f"DeltaTable({self._store.name!r})"  # without credentials

    def _place_name(self) -> str:
        return f"{self.KIND}:{self._store.name}"

    @property
    def _log(self) -> DeltaLog:
        return self._store_log()

    def _store_log(self) -> StoreDeltaLog:
        return StoreDeltaLog(self._store, self._bound())

    @property
    def _own(self) -> str:
        return f"_kohort/{self._bound().hex}"

    # -- before the first record

    def check(self, schema: pa.Schema) -> None:
        """Check that tables of this schema can be staged and published; create the table if it is missing.

        The first call stores the schema, which holds for all later rows. With `evolve="add"`, later calls add the new
        columns of their schema to it and to the table.
        """
        self._bound()
        try:
            super().check(schema)
        except FileNotFoundError as error:
            raise InvalidInputError(f"The bucket of {self.path} does not exist: create it first") from error

    def _prepare_place(self) -> None:
        """Refuse a store that can't be written exactly once, before the table or the owner marker is created there.

        Conditional puts, copies, and the Delta library's access are tried.
        """
        if not self._is_claimed() and not self._log.exists():
            self._refuse_strangers()
        self._store.check_conditional_puts(f"{self._own}/{_TRIED}")
        self._check_copies()
        if not self._store_log().reaches_same_store(f"{self._own}/reached/{uuid.uuid4().hex}"):
            raise InvalidInputError(
                f"deltalake and obstore do not reach the same place by {self.path}: give the endpoint, the region and "
                "the credentials in storage_options"
            )

    def _check_copies(self) -> None:
        """Check by a trial object that objects can be copied into the table's folder and removed, as `publish` does."""
        name = f"_probe-{uuid.uuid4().hex}"
        try:
            self._store.copy_objects({f"{self._own}/{_TRIED}": name})
        finally:
            self._store.remove_objects([name])

    def _names_in(self, folder: str) -> list[str]:
        if folder == self.path:
            return self._store.list_directly_below()
        if folder == f"{self.path}/_kohort":
            return self._store.list_directly_below("_kohort")
        return self._store.list_names(folder)

    def _keep_claim(self, mine: OwnerMarker | None) -> None:
        if mine is not None:
            self._store.create_object_if_absent(
                f"{self._own}/{owner_marker.CLAIM}", owner_marker.encode_owner_marker(mine)
            )

    def _probe(self) -> None:
        """Do nothing: `_prepare_place` has tested the store already."""

    def _keep_columns(self, number: int, columns: Sequence[pa.Field[Any]]) -> bool:
        data = owner_marker.encode_added_columns(columns)
        return self._store.create_object_if_absent(owner_marker.added_columns_path(self._own, number), data) == data

    def _sync_own(self) -> None:
        """Do nothing: an object is durable when the store has answered."""

    def _read_claim(self, folder: str) -> OwnerMarker:
        return owner_marker.decode_owner_marker(self._store.read_object(f"{folder}/{owner_marker.CLAIM}"), self.path)

    def _adopt(self, folder: str) -> str:
        claim = self._own_claim(folder)
        if claim is None:
            return ""
        if claim.place != self.place:
            mine = msgspec.structs.replace(claim, place=self.place)
            self._store.put_object(f"{folder}/{owner_marker.CLAIM}", owner_marker.encode_owner_marker(mine))
        self._kept = None
        return claim.place

    # -- staged files

    def _content(self, path: str) -> bytes:
        return self._store.read_object(path)

    def _write_rows(self, name: str, rows: pa.Table) -> int:
        data = staged_files.encode_parquet(rows, self.path, self.compression, None)
        self._store.put_object(f"{self._staging}/{name}", data)
        return len(data)

    def _write_piece(self, name: str, piece: bytes) -> None:
        self._store.put_object(f"{self._staging}/{name}", piece)

    def _remove_staged(self, names: Iterable[str]) -> None:
        self._store.remove_objects(f"{self._staging}/{name}" for name in names)

    def _show_files(self, sizes: Mapping[str, int], names: Mapping[str, str]) -> None:
        self._store.copy_objects({f"{self._staging}/{name}": names[name] for name in sizes})
        if self._store.object_sizes(list(names.values())) != {names[name]: size for name, size in sizes.items()}:
            raise RetriableError(f"The store of {self.path} has not copied all staged files yet")

    def _forget(self, names: Iterable[str]) -> None:
        """Remove staged rows that are published: the Parquet files first, then the `KEY.json` that names them.

        After a crash in between, another process still finds the rest by `KEY.json`.
        """
        pieces = dict(zip(names, self._pieces(list(names)), strict=True))
        self._remove_staged(file.name for piece in pieces.values() for file in piece or ())
        self._remove_staged(name + PIECE for name, piece in pieces.items() if piece is not None)

    # -- sequences that are done

    def _marks(self) -> list[int]:
        return sorted(int(name) for name in self._store.list_names(f"{self._own}/done") if name.isdecimal())

    def _is_marked(self, sequence: int) -> bool:
        return self._last_marked() >= sequence

    def _last_marked(self) -> int:
        return max(self._marks(), default=0)

    def _mark_done(self, sequence: int) -> None:
        if not self._is_marked(sequence):
            self._store.put_object(f"{self._own}/done/{sequence}", b"")
        old = self._marks()[: -staged_files.MARKS_KEPT]
        self._store.remove_objects(f"{self._own}/done/{number}" for number in old)
