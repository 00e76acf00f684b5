"""The sink that ships for a Delta table in an object store, in a store in memory, beside another writer of the table.

The library of Delta can't run in virtual time. Its log is a model here: each version is one conditional put, and a
reader of the log replays all of them. Parquet's encoding is left out too.
"""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import deltalake
import msgspec
import pyarrow as pa
from deltalake.transaction import AddAction
from obstore.exceptions import AlreadyExistsError, BaseError

from kohort.errors import RetriableError
from kohort.region.sinks.delta_objects import DeltaObjects, StoreDeltaLog
from tests.region.world.bucket import Bucket, BucketClient, StoreFaults, WorldStore
from tests.region.world.clock import Clock, ViolatedError
from tests.region.world.disk import Record, WorldSink, lines_of
from tests.region.world.names import REGION_ID
from tests.region.world.object_disk import ObjectDisk

_LOG: Final = "_delta_log"
_FOREIGN: Final = "foreign-"
APPENDS_MS: Final = 2_000


@functools.cache
def _template(columns: str) -> deltalake.DeltaTable:
    """Return a table of the library, for its columns, settings and features."""
    with tempfile.TemporaryDirectory() as folder:
        return deltalake.DeltaTable.create(folder, deltalake.Schema.from_json(columns))


class TableVersion:
    """One version of a table: its files by path, with their numbers of rows, and the last number of each writer."""

    def __init__(self, columns: str) -> None:
        self._columns, self.number = columns, 0
        self.files: dict[str, int] = {}
        self.transactions: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        """Return what the library says of a table with these columns: `schema`, `metadata` or `protocol`."""
        return getattr(_template(self._columns), name)

    def version(self) -> int:
        return self.number

    def transaction_version(self, name: str) -> int | None:
        return self.transactions.get(name)


def version_path(number: int) -> str:
    """Return the object of a version's commit."""
    return f"{_LOG}/{number:020}.json"


@functools.lru_cache(10_000)
def _commit_in(data: bytes) -> dict[str, Any]:
    """Return what a commit says; nobody changes it."""
    return cast("dict[str, Any]", msgspec.json.decode(data))


def newest_version(bucket: Bucket) -> TableVersion | None:
    """Return the table after all commits; None: there is none."""
    found: TableVersion | None = None
    for path in bucket.names(f"{_LOG}/"):
        commit = _commit_in(bucket.objects[path])
        found = found or TableVersion(commit["columns"])
        found.number = commit["version"]
        found.files.update(commit["adds"])
        for gone in commit["removes"]:
            if found.files.pop(gone, None) is None:
                raise ViolatedError(f"version {found.number} removes {gone}, which is not in the table")
        found.transactions.update(commit["transactions"])
    return found


def commit_of(
    version: int, adds: dict[str, int], removes: Sequence[str] = (), columns: str = "", **numbers: dict[str, int]
) -> bytes:
    """Return the content of a commit."""
    about = {"version": version, "columns": columns, "adds": adds, "removes": list(removes)}
    return msgspec.json.encode(about | {"transactions": numbers.get("transactions", {})})


class ModelLog(StoreDeltaLog):
    """The log of a table, as a model."""

    def __init__(self, store: WorldStore, bucket: Bucket) -> None:
        super().__init__(store, REGION_ID)
        self._bucket = bucket

    def _open_table(self) -> Any:
        self._store.list_names(_LOG)  # a request, which may fail
        found = newest_version(self._bucket)
        if found is None:
            raise deltalake.exceptions.TableNotFoundError("no log")
        return found

    def create_table(self, schema: pa.Schema, partition_by: Sequence[str]) -> Any:
        """Create the table, or load the one that another writer has created meanwhile."""
        assert not partition_by
        self._store.create_object_if_absent(
            version_path(0), commit_of(0, {}, (), deltalake.Schema.from_arrow(schema).to_json())
        )
        return self.load()

    def reaches_same_store(self, folder: str) -> bool:
        """Return that the library and the store are one."""
        del folder
        return True

    def is_empty(self, table: Any) -> bool:
        """Return whether this version of the table has no file."""
        return not table.files

    def data_file_entries(self, table: Any) -> list[dict[str, Any]]:
        """Return the files of this version of the table."""
        return [{"path": path, "size_bytes": 1, "num_records": rows} for path, rows in table.files.items()]

    def commit(self, table: Any, sequence: int, actions: list[Any], rows: int, empties: bool = False) -> bool:
        """Commit the next version of the table; return False if another writer has committed it."""
        adds = {
            action.path: int(msgspec.json.decode(action.stats)["numRecords"])
            for action in actions
            if isinstance(action, AddAction)
        }
        removes = [action.path for action in actions if not isinstance(action, AddAction)]
        numbers = {self._app: sequence, f"{self._app}:rows": rows}
        if empties:
            numbers[f"{self._app}:emptied"] = sequence
        version = table.version() + 1
        data = commit_of(version, adds, removes, transactions=numbers)
        try:
            self._store._raw.put(version_path(version), data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except BaseError as error:
            raise RetriableError(str(error)) from None
        return True


class DeltaDisk(ObjectDisk):
    """A table in a store, and what has to be in it."""

    READABLE = (f"{_LOG}/", "e", _FOREIGN)
    LOG = f"{_LOG}/"

    def __init__(self, path: str, takes: Callable[[Record], bool], faults: StoreFaults) -> None:
        super().__init__(path, takes, faults)
        self.foreign: set[str] = set()

    def _use(self, bucket: Bucket) -> None:
        self.bucket = bucket
        bucket.changed = self._changed
        self.place = self._sink(None).place

    def _sink(self, faults: StoreFaults | None) -> Any:
        return DeltaSink(self, BucketClient(self.bucket, faults))

    def besides(self, clock: Clock, seed: int, era: Callable[[], object]) -> list[Any]:
        """Return another writer of the table."""
        del era
        return [ForeignWriter(clock, self, seed)]

    def restore(self, backup: Bucket) -> None:
        """Be as when the copy was made."""
        super().restore(backup)
        self.foreign = {path for path in self.bucket.objects if path.startswith(_FOREIGN)}

    def _version(self) -> tuple[Any, int, int]:
        """Return the table, the last sequence in it, and that by which it was emptied."""
        table, app = newest_version(self.bucket), ModelLog(self._sink(None)._store, self.bucket)._app
        numbers = {} if table is None else table.transactions
        return table, numbers.get(app, 0), numbers.get(f"{app}:emptied", 0)

    def shown(self) -> set[int]:
        """Return the sequences that are in the table."""
        _, last, emptied = self._version()
        return {number for number in self._expected() if emptied < number <= last}

    def check(self) -> None:
        """The table has the rows of all sequences up to its last one, each once, and those of the other writer.

        Raises:
            ViolatedError: it has not.
        """
        table, last, emptied = self._version()
        if table is None:
            return
        if lost := self.foreign - table.files.keys():
            raise ViolatedError(f"{lost} of another writer is not in {self.place} any more")
        ours = [path for path in table.files if not path.startswith(_FOREIGN)]
        if not self._looked_at("the table", (*ours, version_path(table.number))):
            self._compare_all(f"version {table.number}, up to {last}", ours, emptied, last)


class DeltaSink(WorldSink, DeltaObjects):
    """The table as one process sees it."""

    def __new__(cls, *_given: object) -> DeltaSink:
        return object.__new__(cls)

    def __init__(self, disk: DeltaDisk, client: BucketClient) -> None:
        super().__init__(f"s3://world{disk.path}")
        self.disk, self.client, self.calls = disk, client, client.calls
        self._store = WorldStore(self.path, client)

    def _store_log(self) -> StoreDeltaLog:
        return ModelLog(self._store, self.client._bucket)

    def _write_rows(self, name: str, rows: pa.Table) -> int:
        data = lines_of(rows)
        self._store.put_object(f"{self._staging}/{name}", data)
        return len(data)


class ForeignWriter:
    """Another program that appends to the table, so that commits of the region are too late."""

    def __init__(self, clock: Clock, disk: DeltaDisk, seed: int) -> None:
        self._clock, self._disk, self._chance = clock, disk, random.Random(f"{seed}: foreign writer of {disk.path}")
        self.done = 0

    def start(self) -> None:
        """Append again and again."""
        self._clock.after(self._chance.randint(1, APPENDS_MS), self._append)

    def _append(self) -> None:
        self._clock.after(self._chance.randint(1, APPENDS_MS), self._append)
        bucket = self._disk.bucket
        table = newest_version(bucket)
        if table is None:
            return
        self.done += 1
        name = f"{_FOREIGN}{self.done}.parquet"
        bucket.put(name, b"")
        bucket.put(version_path(table.number + 1), commit_of(table.number + 1, {name: 1}), mode="create")
        self._disk.foreign.add(name)
