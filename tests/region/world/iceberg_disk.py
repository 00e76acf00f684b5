"""The sink that ships for an Iceberg table in an object store, beside a writer of the same table and its maintenance.

pyiceberg makes the snapshots and their manifests. The catalog is in memory. It checks
and applies a commit in one step, as a REST catalog does. An answer may be lost or late. Parquet and Avro are left out.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest import mock

from obstore.exceptions import BaseError
from pydantic import BaseModel
from pyiceberg import manifest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.utils.concurrent import ExecutorFactory
from requests import ConnectionError as NoAnswerError

from kohort.region.sinks import iceberg_table
from kohort.region.sinks.iceberg_files import PlannedFile, StagedFile
from kohort.region.sinks.iceberg_table import IcebergTable
from tests.region.world.bucket import Bucket, BucketClient, BusierFaults, StoreFaults
from tests.region.world.clock import Clock, ViolatedError
from tests.region.world.disk import WorldSink, lines_of
from tests.region.world.names import REGION_ID
from tests.region.world.object_disk import ObjectDisk, Takes

TABLE: Final = "air.flights"
CATALOG: Final = "the catalog"
"""The path that a bucket reports as changed when its table has changed."""
_FOREIGN: Final = "foreign-"
_PREFIX: Final = f"kohort.{REGION_ID.hex}."
APPENDS_MS: Final = 2_000
EXPIRES_MS: Final = 4_000
RETAINED_MS: Final = 15_000
"""Snapshots are kept for so long at the least: longer than any request may take, and all of one publication."""


class LakeBucket(Bucket):
    """A store, and the state of the one table in its catalog.

    Attributes:
        table: the metadata of the table; None: there is none.
        versions: how many commits it has had.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table: TableMetadata | None = None
        self.versions = 0

    def copied(self) -> LakeBucket:
        """Return a backup of the files and the catalog."""
        copy = LakeBucket()
        copy.objects, copy._paths = dict(self.objects), list(self._paths)
        copy.table, copy.versions = self.table, self.versions
        return copy

    def create_table(self, metadata: TableMetadata) -> None:
        if self.table is not None:
            raise TableAlreadyExistsError(f"Table {TABLE} already exists")
        self.table = metadata
        self.changed(CATALOG, False)

    def commit(self, requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate]) -> None:
        """Check the requirements of a commit, and apply it."""
        for requirement in requirements:
            requirement.validate(self.table)
        if self.table is None:
            raise NoSuchTableError(TABLE)
        self.versions += 1
        self.table = update_table_metadata(self.table, tuple(updates))
        self.changed(CATALOG, False)


class WorldCatalog:
    """A catalog as one process asks it, as far as a region needs one."""

    def __init__(self, root: str, client: BucketClient, asked: BucketClient) -> None:
        self._root, self._client, self._asked = root, client, asked
        self.properties: dict[str, str] = {}

    def namespace_exists(self, namespace: str) -> bool:
        self._ask("namespace_exists", lambda: None)
        return bool(namespace)

    def load_table(self, identifier: str) -> Table:
        metadata = self._ask("load_table", lambda: self._client._bucket.table)
        if metadata is None:
            raise NoSuchTableError(f"Table does not exist: {identifier}")
        where = f"{metadata.location}/metadata/{self._client._bucket.versions}.json"
        opened = WorldFileIO(self._root, self._client)
        return Table(tuple(identifier.split(".")), metadata, where, opened, self)  # type: ignore[arg-type]

    def create_table(
        self, identifier: str, schema: Schema, partition_spec: PartitionSpec, properties: dict[str, str]
    ) -> Table:
        location = f"{self._root}/flights"
        metadata = new_table_metadata(schema, partition_spec, UNSORTED_SORT_ORDER, location, properties)
        self._ask("create_table", lambda: self._client._bucket.create_table(metadata), writes=True)
        return self.load_table(identifier)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        bucket, done = self._client._bucket, list[bool]()

        def commit() -> None:
            bucket.commit(requirements, updates)
            done.append(True)

        try:
            self._ask("commit_table", commit, writes=True)
        except NoAnswerError:
            if done and bucket.versions % 3 == 0:  # a gateway has asked again
                raise CommitFailedException("branch main has changed") from None
            raise
        return CommitTableResponse(metadata=bucket.table, metadata_location=table.metadata_location)

    def _ask(self, name: str, effect: Callable[[], Any], *, writes: bool = False) -> Any:
        try:
            return (self._asked if writes else self._client)._ask(name, CATALOG, effect, writes=writes)
        except BaseError as error:
            raise NoAnswerError(str(error)) from None


class WorldFileIO(PyArrowFileIO):
    """The files of a table, as one process reads and writes them."""

    def __init__(self, root: str, client: BucketClient) -> None:
        super().__init__({})
        self._root, self._client = root, client
        self.fs_by_scheme = self._file_system

    def path_of(self, location: str) -> str:
        """Return the object of a location."""
        path = location.removeprefix(f"{self._root}/")
        assert path != location, location
        return path

    def new_input(self, location: str) -> Any:
        return WorldFile(self._client, location, self.path_of(location))

    def new_output(self, location: str) -> Any:
        return WorldFile(self._client, location, self.path_of(location))

    def delete(self, location: Any) -> None:
        path = self.path_of(location)
        with store_errors():
            self._client.delete(path)

    def _file_system(self, scheme: str, netloc: str | None) -> Any:
        """Return what lists a folder."""

        def listed(selector: Any) -> list[Any]:
            prefix = self.path_of(f"{scheme}://{selector.base_dir}/")
            with store_errors():
                pages = list(self._client.list(prefix, chunk_size=1_000))
            names = [entry["path"].removeprefix(prefix) for page in pages for entry in page]
            return [SimpleNamespace(base_name=name) for name in names if "/" not in name]

        del netloc
        return SimpleNamespace(get_file_info=listed)


class WorldFile:
    """A file that pyiceberg reads or writes."""

    def __init__(self, client: BucketClient, location: str, path: str) -> None:
        self._client, self.location, self._path = client, location, path

    def __len__(self) -> int:
        with store_errors():
            return self._client.head(self._path)["size"]

    def exists(self) -> bool:
        try:
            len(self)
        except FileNotFoundError:
            return False
        return True

    def to_input_file(self) -> WorldFile:
        return self

    def open(self, seekable: bool = True) -> io.BytesIO:
        del seekable
        with store_errors():
            return io.BytesIO(self._client.get(self._path).bytes())

    def create(self, overwrite: bool = False) -> io.BytesIO:
        if not overwrite and self.exists():
            raise FileExistsError(self.location)
        return _Upload(self._client, self._path)


class _Upload(io.BytesIO):
    """Bytes that become an object when they are closed, unless an error comes first."""

    def __init__(self, client: BucketClient, path: str) -> None:
        super().__init__()
        self._client, self._path = client, path

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.close()
        super().close()

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            with store_errors():
                self._client.put(self._path, data, use_multipart=False)

    def __del__(self) -> None:
        super().close()


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Translate errors of the store to those of Arrow's file systems."""
    try:
        yield
    except BaseError as error:
        raise OSError(errno.EIO, str(error)) from None


class IcebergDisk(ObjectDisk):
    """A table in a store, and what has to be in it.

    Attributes:
        foreign: the other writer's files that are in the table.
    """

    bucket: LakeBucket

    def __init__(self, path: str, takes: Takes, faults: StoreFaults) -> None:
        self.foreign: set[str] = set()
        self._named: dict[int, frozenset[str]] = {}
        self._entries: dict[str, tuple[tuple[str, int], ...]] = {}
        self._protected: Counter[str] = Counter()
        self.catalog_faults = BusierFaults(faults, f"catalog of {path}", rate=0.3)
        super().__init__(path, takes, faults)

    @contextlib.contextmanager
    def in_virtual_time(self) -> Iterator[None]:
        """Have pyiceberg use no threads, write neither Parquet nor Avro, and copy no metadata."""
        with (
            mock.patch.object(ExecutorFactory, "get_or_create", staticmethod(AtOnce)),
            mock.patch.object(iceberg_table, "write_planned_file", write_lines),
            mock.patch.object(manifest, "AvroOutputFile", PickledOutput),
            mock.patch.object(manifest, "AvroFile", PickledInput),
            mock.patch.object(TableMetadataV2, "model_copy", copied_flat),
            mock.patch.object(Transaction, "table_metadata", property(known_metadata)),
        ):
            yield

    @property
    def root(self) -> str:
        return f"s3://lake{self.path}"

    def _new_bucket(self) -> Bucket:
        return LakeBucket()

    def _use(self, bucket: Bucket) -> None:
        assert isinstance(bucket, LakeBucket)
        self.bucket = bucket
        bucket.changed = self._changed
        self.place = self._sink(None).place
        self._named.clear()
        self._protected.clear()

    def _sink(self, faults: StoreFaults | None) -> Any:
        return IcebergSink(self, BucketClient(self.bucket, faults))

    def besides(self, clock: Clock, seed: int, era: Callable[[], object]) -> list[Any]:
        """Return another writer of the table, and its maintenance."""
        del era
        return [IcebergWriter(clock, self, seed), Expiry(clock, self, seed)]

    def is_there(self) -> bool:
        return self.bucket.table is not None

    def restore(self, backup: Any) -> None:
        """Be as when the copy was made."""
        super().restore(backup)
        table = self.table()
        snapshot = None if table is None else table.current_snapshot()
        if table is not None:
            self._look_at_names(table)
        files = [] if table is None or snapshot is None else self.files_of(table, snapshot)
        self.foreign = {path for path, _ in files if _FOREIGN in path}

    def table(self) -> Table | None:
        """Return the table as it is now, by requests that do not fail."""
        if self.bucket.table is None:
            return None
        client = BucketClient(self.bucket, None)
        return WorldCatalog(self.root, client, client).load_table(TABLE)

    def _number(self, name: str) -> int:
        metadata = self.bucket.table
        return 0 if metadata is None else int(metadata.properties.get(_PREFIX + name, "0"))

    def shown(self) -> set[int]:
        """Return the sequences that are in the table."""
        last, emptied = self._number("sequence"), self._number("emptied")
        return {number for number in self._expected() if emptied < number <= last}

    def _changed(self, path: str, is_new: bool) -> None:
        del is_new
        if path == CATALOG:
            self.check()
        elif self._protected[path] and path not in self.bucket.objects:
            raise ViolatedError(f"{path} is gone, and a snapshot of {self.place} names it")

    def check(self) -> None:
        """The table has the rows of all sequences up to its last one, each once, and those of the other writer.

        Raises:
            ViolatedError: it has not.
        """
        table = self.table()
        snapshot = None if table is None else table.current_snapshot()
        if table is None or snapshot is None:
            return
        self._look_at_names(table)
        state = (snapshot.snapshot_id, self._number("sequence"))
        if self._seen.get(state) is not None:
            return
        listed = self.files_of(table, snapshot)
        files = dict(listed)
        if len(files) < len(listed):
            raise ViolatedError(f"{self.place} has a file twice")
        foreign = {path for path in files if _FOREIGN in path}
        if foreign != self.foreign:
            raise ViolatedError(f"{foreign ^ self.foreign} of another writer changed in {self.place}")
        last = self._number("sequence")
        ours = {self.name_of(path): rows for path, rows in files.items() if path not in foreign}
        self._compare_all(f"snapshot {snapshot.snapshot_id}, up to {last}", ours, self._number("emptied"), last)
        if self._number("rows") != sum(ours.values()):
            raise ViolatedError(f"{self.place} says {self._number('rows')} rows, and has {sum(ours.values())}")
        self._check_offsets(snapshot)
        self._seen[state] = True

    def _check_offsets(self, snapshot: Any) -> None:
        """The summary of a snapshot says where its sequence ends."""
        said = snapshot.summary.additional_properties
        number = int(said.get("kohort.sequence", "0"))
        wanted = self.offsets.get(number, "")
        if number in self._expected() and said.get("kohort.offsets", wanted) != wanted:
            raise ViolatedError(f"sequence {number} ends at {said['kohort.offsets']} in {self.place}, not {wanted}")

    def name_of(self, location: str) -> str:
        return location.removeprefix(f"{self.root}/")

    def _look_at_names(self, table: Table) -> None:
        """Keep what each snapshot names: it may not go before the snapshot does."""
        ids = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
        for gone in [number for number in self._named if number not in ids]:
            self._protected.subtract(self._named.pop(gone))
        for number, snapshot in ids.items():
            if number not in self._named:
                manifests = [listed.manifest_path for listed in snapshot.manifests(table.io)]
                files = [path for path, _ in self.files_of(table, snapshot)]
                names = frozenset(map(self.name_of, [snapshot.manifest_list, *manifests, *files]))
                if lost := [name for name in names if name not in self.bucket.objects]:
                    raise ViolatedError(f"{lost[0]} is gone, and a new snapshot of {self.place} names it")
                self._named[number] = names
                self._protected.update(names)

    def files_of(self, table: Table, snapshot: Any) -> list[tuple[str, int]]:
        """Return the data files of a snapshot, with their numbers of rows."""
        found: list[tuple[str, int]] = []
        for listed in snapshot.manifests(table.io):
            path = listed.manifest_path
            if path not in self._entries:
                files = [entry.data_file for entry in listed.fetch_manifest_entry(table.io, discard_deleted=True)]
                self._entries[path] = tuple((file.file_path, file.record_count) for file in files)
            found += self._entries[path]
        return found

    def names_of(self, number: int) -> frozenset[str]:
        """Return the objects that a snapshot needs."""
        return self._named[number]


class IcebergSink(WorldSink, IcebergTable):
    """The table as one process sees it."""

    def __init__(self, disk: IcebergDisk, client: BucketClient) -> None:
        super().__init__(TABLE, catalog={"type": "rest", "uri": f"http://lake{disk.path}", "warehouse": disk.root})
        self.disk, self.client, self.calls = disk, client, client.calls
        asked = BucketClient(client._bucket, None if client._faults is None else disk.catalog_faults)
        asked.calls, asked.may_wait = client.calls, lambda: client.may_wait()  # noqa: PLW0108 - it is set later
        self._open = (os.getpid(), WorldCatalog(disk.root, client, asked))  # type: ignore[assignment]


def write_lines(table: Table, file: PlannedFile, compression: str, place: str) -> StagedFile:
    """Write a data file, in place of `write_planned_file`."""
    del compression, place
    data = lines_of(file.rows)
    with table.io.new_output(file.path).create() as output:
        output.write(data)
    return described(file.path, len(data), file.rows.num_rows)


def described(path: str, size: int, rows: int) -> StagedFile:
    return StagedFile(path, size, (), rows, {}, {}, {}, {}, {}, {}, [4])


class PickledOutput:
    """The writer of a manifest, in place of Avro's: resolving its schemas takes 6 ms for each file."""

    def __class_getitem__(cls, kind: object) -> type[PickledOutput]:
        return cls

    def __init__(self, output_file: WorldFile, *given: object, **named: object) -> None:
        del given, named
        self.output_file, self._objects = output_file, list[Any]()

    def __enter__(self) -> PickledOutput:
        self._stream = self.output_file.create(overwrite=True)
        return self

    def __exit__(self, *given: object) -> None:
        self._stream.write(pickle.dumps(self._objects))
        self._stream.close()

    def write_block(self, objects: list[Any]) -> None:
        """Write what a manifest has, or a list of manifests."""
        self._objects += pickle.loads(pickle.dumps(objects))  # as they are now

    def tell(self) -> int:
        """Return a length."""
        return 100 * len(self._objects)


class PickledInput:
    """The reader of a manifest, in place of Avro's."""

    def __class_getitem__(cls, kind: object) -> type[PickledInput]:
        return cls

    def __init__(self, input_file: WorldFile, *given: object, **named: object) -> None:
        del given, named
        self._input_file = input_file

    def __enter__(self) -> list[Any]:
        with self._input_file.open() as opened:
            return cast("list[Any]", pickle.loads(opened.read()))

    def __exit__(self, *given: object) -> None:
        """Nothing is held."""


def copied_flat(metadata: TableMetadata, *, update: Any = None, deep: bool = False) -> Any:
    """Return a copy of metadata, whose parts nobody changes, in place of a deep one."""
    del deep
    return BaseModel.model_copy(metadata, update=update)


def known_metadata(transaction: Any) -> TableMetadata:
    """Return the metadata of a transaction, in place of a property that makes it anew each time."""
    known = transaction.__dict__.get("_world_metadata")
    if known is None or known[0] is not transaction._updates:
        known = (transaction._updates, update_table_metadata(transaction._table.metadata, transaction._updates))
        transaction._world_metadata = known
    return cast("TableMetadata", known[1])


class AtOnce(Executor):
    """An executor without threads, since virtual time has one."""

    def submit(self, do: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(do(*given, **named))
        except BaseException as error:
            if not isinstance(error, Exception):
                raise
            done.set_exception(error)
        return done


class IcebergWriter:
    """Another program that appends to the table and deletes from it, so that commits of the region are too late."""

    def __init__(self, clock: Clock, disk: IcebergDisk, seed: int) -> None:
        self._clock, self._disk, self._chance = clock, disk, random.Random(f"{seed}: foreign writer of {disk.path}")
        self.done = 0

    def start(self) -> None:
        """Append again and again."""
        self._clock.after(self._chance.randint(1, APPENDS_MS), self._write)

    def _write(self) -> None:
        self._clock.after(self._chance.randint(1, APPENDS_MS), self._write)
        disk = self._disk
        table = disk.table()
        if table is None:
            return
        self.done += 1
        transaction = table.transaction()
        path = f"{table.location()}/data/{_FOREIGN}{self.done}.parquet"
        disk.bucket.put(disk.name_of(path), b"")
        disk.foreign.add(path)
        with transaction.update_snapshot().fast_append() as producer:
            producer.append_data_file(described(path, 1, 1).to_data_file(0))
        disk.bucket.commit(transaction._requirements, transaction._updates)


class Expiry:
    """The table's maintenance: snapshots expire, and files that no other snapshot names are removed."""

    def __init__(self, clock: Clock, disk: IcebergDisk, seed: int) -> None:
        self._clock, self._disk, self._chance = clock, disk, random.Random(f"{seed}: expiry in {disk.path}")
        self._seen_ms: dict[int, int] = {}
        self.done = 0

    def start(self) -> None:
        """Expire again and again."""
        self._clock.after(self._chance.randint(1, EXPIRES_MS), self._expire)

    def _expire(self) -> None:
        self._clock.after(self._chance.randint(1_000, EXPIRES_MS), self._expire)
        table, disk, now_ms = self._disk.table(), self._disk, self._clock.now_ms
        current = None if table is None else table.current_snapshot()
        if table is None or current is None:
            return
        there = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
        for number in there:
            self._seen_ms.setdefault(number, now_ms)
        old = [number for number in there if self._seen_ms[number] < now_ms - RETAINED_MS]
        old = [number for number in old if number != current.snapshot_id]
        if not old:
            return
        gone: set[str] = set().union(*(disk.names_of(number) for number in old))
        kept: set[str] = set().union(*(disk.names_of(number) for number in there if number not in old))
        update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old})
        needs = AssertRefSnapshotId(ref="main", snapshot_id=current.snapshot_id)
        disk.bucket.commit((needs,), (update,))
        disk.bucket.delete(sorted(gone - kept))
        self.done += len(old)
