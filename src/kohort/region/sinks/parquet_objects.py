"""A folder of Parquet files in an object store that is written to exactly once: a sequence is one small object.

    out/_region/region.json     whose folder this is, its name, and the schema of all its rows; created once
    out/_region/columns-1.json  columns that `evolve="add"` has added; created once
    out/_region/conditional-put an object that `check` could create once only
    out/_staged/KEY.rows        a member stages rows under this key, or has; KEY.none: it had no rows. Empty objects;
                                with partitions KEY.rows names the files
    out/_data/KEY.parquet       the rows; they stay there when they are published
    out/_data/day=…/KEY.parquet the same with partitions, one for each
    out/_sequences/…17.json     sequence 17, which names its files: created once, by a conditional put
    out/_sequences/compaction-…3  a generation: all files of the sequences up to a number (`compaction`)
    out/_compacted/…/ID.parquet   a file that compaction has written

A store has neither links nor renames, and no listing of many objects is whole. Readers therefore take the files that
`_sequences` names: `ParquetFolder.published_files` lists them. A name that begins with `_` keeps readers of the whole
folder away from rows that are not published.

The order of writes replaces locks:

- `KEY.rows` before `KEY.parquet`: a sweep finds the rows of a member that died without a list of all data;
- `KEY.parquet` before `stage` returns, hence before a manifest names it, hence before `…17.json` does;
- `…17.json` before its `KEY.rows` and `KEY.none` are removed;
- those of the last sequence are removed before the next sequence is created. So only the last sequence's files may have
  a `KEY.rows`, and a sweep asks that one alone. It looks at the last sequence first, and lists `_staged` then.

Correctness needs no clock and no lock. A late publisher of a sequence finds its object, or is refused by the store. The
object of an emptied folder (`…18.emptied`) makes all earlier ones void, those too that a late publisher creates.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.files import Output
from kohort.region.sinks import Keep, hive_partitions, owner_marker, staged_files
from kohort.region.sinks.compaction import (
    COMPACTED,
    GENERATION,
    Generation,
    GenerationStore,
    ParquetFileEntry,
    PublishedParquetFile,
    decode_generation,
    expired_generation_numbers,
)
from kohort.region.sinks.object_store import ObjectStore
from kohort.region.sinks.owner_marker import UNREADABLE_JSON, OwnerMarker
from kohort.region.sinks.parquet_folder import ParquetFolder, SequenceFile
from kohort.region.staged import StagedKey

_OWN: Final = "_region"
_CLAIM: Final = f"{_OWN}/{owner_marker.CLAIM}"
_PROBE: Final = f"{_OWN}/conditional-put"
_STAGED: Final = "_staged"
_ROWS: Final = ".rows"
_NONE: Final = ".none"
_SEQUENCES: Final = "_sequences"
_DATA: Final = "_data"
_GENERATION_NAME: Final = re.compile(GENERATION + "([0-9]{20})")
_ENTRY_NAME: Final = re.compile(r"([0-9]{20})\.(json|emptied)")
_LISTED_STEP: Final = 1024
_READ_ATTEMPTS: Final = 5


class PublishedSequence(msgspec.Struct, frozen=True):
    """The object that publishes one sequence (checkpoint): the list of its Parquet files.

    Attributes:
        format: the format's version, 1.
        region: the region's id.
        sequence: the sequence.
        files: the sizes of its Parquet files in bytes, by their path below the folder's URL.
        empty: the staged keys that had no rows.
    """

    format: int
    region: UUID
    sequence: int
    files: dict[str, int]
    empty: tuple[str, ...]

    def published_key_texts(self) -> set[str]:
        """Return the texts of the staged keys that this sequence (checkpoint) has published."""
        return {_key_of(path) for path in self.files} | set(self.empty)


class _Seen(NamedTuple):
    """The checkpoints listed in `_sequences`: those that are published, and the last one that emptied the folder."""

    sequences: list[int]
    emptied: int


class StagedFileList(msgspec.Struct, frozen=True):
    """The content of `KEY.rows` in a partitioned folder: the Parquet files with the rows staged under a key.

    Attributes:
        files: the files with the rows, by their path below the folder's URL.
        left: files of an earlier attempt that are still to be removed and are not published.
    """

    files: tuple[str, ...]
    left: tuple[str, ...] = ()


def _data_path(key: str, folder: str = "") -> str:
    """Return the path of the Parquet object for a staged key, in a partition's folder if there is one."""
    return f"{_DATA}/{folder}/{key}.parquet" if folder else f"{_DATA}/{key}.parquet"


def _key_of(path: str) -> str:
    """Return the text of the staged key in a Parquet object's path."""
    return path.rpartition("/")[2].removesuffix(".parquet")


class PublishedSequenceLog:
    """The published checkpoints (sequences) of a Parquet folder in an object store, one small object for each.

    A checkpoint can also empty the folder (a reset to the initial state): it makes all earlier ones void.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._seen = 0

    # -- what there is

    def _after(self, number: int) -> Iterator[list[tuple[int, bool]]]:
        """Yield pages of the checkpoint numbers after a number, each with whether that one emptied the folder."""
        for page in self._store.list_pages(_SEQUENCES, f"{number:020}.~" if number else ""):
            found = [(int(entry[1]), entry[2] == "emptied") for name in page if (entry := _ENTRY_NAME.fullmatch(name))]
            if found:
                yield found

    def last_done_sequence(self) -> int:
        """Return the number of the last checkpoint that was published or has emptied the folder; 0: none.

        The search skips ahead, and so lists few objects even if there are many.
        """
        low, step = max(0, self._seen - 1), _LISTED_STEP
        if low and next(self._after(low), None) is None:
            low = 0  # the folder was removed
        while page := next(self._after(low + step), None):
            low, step = max(number for number, _ in page) - 1, step * 2
        while step > _LISTED_STEP:
            step //= 2
            if page := next(self._after(low + step), None):
                low = max(number for number, _ in page) - 1
        self._seen = max((number for page in self._after(low) for number, _ in page), default=0)
        return self._seen

    def _listed(self, after: int = 0) -> _Seen:
        found = [entry for page in self._after(after) for entry in page]
        emptied = max((number for number, is_emptied in found if is_emptied), default=0)
        return _Seen(sorted(number for number, is_emptied in found if not is_emptied), emptied)

    def is_published_or_emptied(self, sequence: int) -> bool:
        """Return whether this checkpoint or a later one is published, or has emptied the folder."""
        return next(self._after(sequence - 1), None) is not None

    def is_emptied(self, sequence: int) -> bool:
        """Return whether this checkpoint's rows are void: it or a later one has emptied the folder."""
        return self._listed(sequence - 1).emptied >= sequence

    def read_sequence_entry(self, sequence: int) -> PublishedSequence | None:
        """Return the object of a published sequence (checkpoint); None: it is not published, or was removed since."""
        try:
            return self._decoded(sequence, self._store.read_object(_path(sequence)))
        except FileNotFoundError:
            return None

    def _decoded(self, sequence: int, data: bytes) -> PublishedSequence:
        try:
            entry = msgspec.json.decode(data, type=PublishedSequence)
        except UNREADABLE_JSON as error:
            raise CorruptDataError(f"{self._store.url}/{_path(sequence)} can't be read: {error}") from error
        if entry.format != 1:
            raise InvalidInputError(f"{self._store.url} was written by a newer kohort, in format {entry.format}")
        return entry

    def read_sequence_entries(self, after: int) -> list[PublishedSequence] | None:
        """Return the objects of the published sequences (checkpoints) after a number that are not void, in order.

        None: some were removed between listing and reading, by an emptying or a compaction.
        """
        seen = self._listed(after)
        shown = [number for number in seen.sequences if number > seen.emptied]
        content = self._store.read_objects([_path(number) for number in shown])
        if len(content) < len(shown):
            return None
        return [self._decoded(number, content[_path(number)]) for number in shown]

    def last_emptied_sequence(self, after: int) -> int:
        """Return the number of the last checkpoint after `after` that has emptied the folder; 0: none."""
        return self._listed(max(0, after)).emptied

    def list_files(self, after: int = 0) -> list[SequenceFile]:
        """Return the URLs of all Parquet files with rows of checkpoints after a number, in the order of checkpoints.

        Raises:
            InvalidInputError: compaction has merged that checkpoint with later ones.
            CorruptDataError: the folder was changed five times while it was read.
        """
        generations = StoreGenerations(self._store, self)
        for _ in range(_READ_ATTEMPTS):
            newest = generations.newest_generation()
            entries = self.read_sequence_entries(max(after, newest.upto))
            if entries is None or generations.newest_generation_number() != newest.generation:
                continue  # the folder was emptied or compacted meanwhile
            merged = [SequenceFile(last, path) for last, path in newest.files_after_sequence(after, self._store.url)]
            merged += [SequenceFile(entry.sequence, path) for entry in entries for path in sorted(entry.files)]
            return [SequenceFile(number, f"{self._store.url}/{path}") for number, path in merged]
        raise CorruptDataError(f"Sequences of {self._store.url} are gone while they are read: list it again")

    # -- changes

    def publish_entry(self, entry: PublishedSequence) -> None:
        """Publish a sequence (checkpoint) by a conditional put of its object, unless the same was published already.

        Raises:
            InvalidInputError: something else was published as this sequence.
        """
        there = self._decoded(
            entry.sequence, self._store.create_object_if_absent(_path(entry.sequence), msgspec.json.encode(entry))
        )
        if there.region != entry.region or there.published_key_texts() != entry.published_key_texts():
            raise InvalidInputError(
                f"{self._store.url}/{_path(entry.sequence)} is there, and has other rows (of region {there.region}): "
                "another process has published something else as this sequence. Move it away; nothing of the sequence "
                "is lost"
            )

    def mark_emptied(self, sequence: int) -> None:
        """Record that this checkpoint empties the folder, which makes the rows of it and of all earlier ones void."""
        self._store.put_object(f"{_SEQUENCES}/{sequence:020}.emptied", b'{"emptied":%d}' % sequence)

    def remove_compacted_entries(self, upto: int) -> None:
        """Remove the objects of checkpoints up to `upto`, whose files compaction's newest file list has now.

        Their files stay. So does the object of the last checkpoint, which shows how far the folder is published.
        """
        last = self.last_done_sequence()
        gone = [number for number in self._listed().sequences if number <= upto and number < last]
        self._store.remove_objects(_path(number) for number in gone)

    def remove_void_sequences(self, sequence: int) -> None:
        """Remove the checkpoints up to this one after an emptying: first their files, then their objects."""
        void = [number for number in self._listed().sequences if number <= sequence]
        used = self.staged_or_published_keys(sequence) if void else frozenset()
        for number in void:
            if (entry := self.read_sequence_entry(number)) is not None:
                self._store.remove_objects(path for path in entry.files if _key_of(path) not in used)
                self._store.remove_objects([_path(number)])

    def staged_or_published_keys(self, after: int) -> frozenset[str]:
        """Return the texts of the staged keys that are staged now, or that a checkpoint after a number has published.

        Files of a key in use must stay, although older rows had the same file name. A key is used again if the region's
        topic was restored from an older copy and the clock of `adopt` was behind. With a right clock
        `agreement.records_after_adoption` numbers epochs past all lost ones.

        Raises:
            FileNotFoundError: checkpoints were removed while they were read.
        """
        staged = {name.rpartition(".")[0] for name in self._store.list_names(_STAGED)}
        entries = self.read_sequence_entries(after)
        if entries is None:
            raise FileNotFoundError(errno.ENOENT, "Sequences are gone while they are read", self._store.url)
        return frozenset(staged.union(*(entry.published_key_texts() for entry in entries)))


class StoreGenerations:
    """The generations (file lists of compaction) and the published Parquet files of a folder in an object store."""

    one_at_a_time: bool = False

    def __init__(self, store: ObjectStore, log: PublishedSequenceLog) -> None:
        self._store, self._log = store, log

    def _numbers(self) -> list[int]:
        pages = self._store.list_pages(_SEQUENCES, GENERATION)
        return [int(found[1]) for page in pages for name in page if (found := _GENERATION_NAME.fullmatch(name))]

    def newest_generation_number(self) -> int:
        """Return the number of the newest generation (file list); 0: none."""
        return max(self._numbers(), default=0)

    def newest_generation(self) -> Generation:
        """Return the newest generation (file list); if there is none, return an empty one with number 0.

        If the folder was emptied since, return the generation without files: they are all in `replaced`.
        """
        for _ in range(_READ_ATTEMPTS):
            if not (number := self.newest_generation_number()):
                return Generation(1, UUID(int=0), 0, 0, {}, {}, "")
            with contextlib.suppress(FileNotFoundError):  # many later ones were created meanwhile
                found = decode_generation(self._store.read_object(_generation_path(number)), self._store.url)
                if found.files and (emptied := self._log.last_emptied_sequence(found.upto - 1)) >= found.upto:
                    void = found.replaced | dict.fromkeys(found.files, 0)
                    return msgspec.structs.replace(found, upto=emptied, files={}, replaced=void)
                return found
        raise CorruptDataError(f"Generations of {self._store.url} are gone while they are read: try again")

    def create_generation(self, generation: Generation) -> bool:
        """Store a generation (file list) under its number; return False if another process has taken it."""
        data = msgspec.json.encode(generation)
        if self._store.create_object_if_absent(_generation_path(generation.generation), data) != data:
            return False
        self._store.remove_objects(_generation_path(number) for number in expired_generation_numbers(self._numbers()))
        return True

    def list_sequence_files(self, after: int, upto: int) -> list[PublishedParquetFile]:
        """Return the Parquet files of the published sequences (checkpoints) in the range `after < sequence <= upto`.

        Raises:
            FileNotFoundError: sequences were removed while they were read.
        """
        entries = self._log.read_sequence_entries(after)
        if entries is None:
            raise FileNotFoundError(errno.ENOENT, "Sequences are gone while they are read", self._store.url)
        return [
            PublishedParquetFile(path, ParquetFileEntry(size, entry.sequence, entry.sequence))
            for entry in entries
            if entry.sequence <= upto
            for path, size in entry.files.items()
        ]

    def compaction_output_files(self) -> list[str]:
        """Return the paths of all Parquet objects in compaction's folder, also of those that no generation has."""
        return [f"{COMPACTED}/{name}" for name in self._store.list_names(COMPACTED)]

    def read_content(self, path: str) -> bytes:
        """Return the content of a Parquet object; raise FileNotFoundError if it is gone."""
        return self._store.read_object(path)

    def write_merged_file(self, path: str, write: Callable[[Output | pa.BufferOutputStream], None]) -> int:
        """Put a merged file as one object, and return its size in bytes."""
        output = pa.BufferOutputStream()
        write(output)
        data = memoryview(output.getvalue()).cast("B")
        self._store.put_object(path, data)
        return len(data)

    def keep_unmerged_file(self, path: str, to: str) -> str:
        """Return the file's own path: an object that is not merged stays where it is, and `to` is not used."""
        return path

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove objects that the newest generation (file list) does not have."""
        self._store.remove_objects(paths)

    def remove_replaced_files(self, generation: Generation, due: Sequence[str]) -> None:
        """Remove the files `due`, and the objects of checkpoints whose files this generation (file list) has.

        The object of the last checkpoint stays, since it shows how far the folder is published. So do files whose
        staged key is in use again.
        """
        used = self._log.staged_or_published_keys(generation.upto)
        self._store.remove_objects(path for path in due if path not in generation.files and _key_of(path) not in used)
        self._log.remove_compacted_entries(generation.upto)


class ParquetObjects(ParquetFolder):
    """The `ParquetFolder` for an object store; `ParquetFolder(url)` returns one for a store's URL.

    Attributes:
        path: the URL.
        compression: as in `ParquetFolder`.
        row_group_size: as in `ParquetFolder`.
        partition_by: as in `ParquetFolder`.
        target_file_size: as in `ParquetFolder`.
        evolve: as in `ParquetFolder`.
    """

    def _keep_path(self, path: str, storage_options: Mapping[str, str]) -> None:
        self._store = ObjectStore(path, storage_options)
        self._log = PublishedSequenceLog(self._store)
        self.path = self._store.url

    def __repr__(self) -> str:
        return f"ParquetFolder({self._store.name!r})"  # without credentials

    def _place_name(self) -> str:
        return f"{self.KIND}:{self._store.name}"

    # -- before the first record

    def check(self, schema: pa.Schema) -> None:
        """Check that tables of this schema can be staged and published; create the owner marker if it is missing.

        The first call stores the schema, which holds for all later rows. With `evolve="add"`, later calls add the new
        columns of their schema to it.
        """
        self._bound()
        typed = self._check_columns(schema)
        if self.partition_by and len(self._store.prefix.encode()) > hive_partitions.PREFIX_BYTES_MAX:
            raise InvalidInputError(
                f"The path of {self.path} is too long for partitions: {hive_partitions.PREFIX_BYTES_MAX} bytes at most"
            )
        try:
            if not self._is_owned():
                self._first(typed)
            self._store.check_conditional_puts(_PROBE)
        except FileNotFoundError as error:
            raise InvalidInputError(f"The bucket of {self.path} does not exist: create it first") from error
        self._evolve(typed)

    def _first(self, schema: pa.Schema) -> None:
        """Create this region's owner marker below an empty URL, unless another process has done so first.

        Raises:
            InvalidInputError: there are other objects, or the marker is another region's.
        """
        strangers = sorted(name for name in self._store.list_directly_below() if not name.startswith(("_", ".")))
        if strangers and not self._is_owned():
            raise InvalidInputError(
                f"{self.path} holds {strangers[0]!r} and is no folder of a region: give region {self._region!r} "
                "an empty folder, so that readers find nothing but its sequences"
            )
        self._store.create_object_if_absent(_CLAIM, owner_marker.encode_owner_marker(self._new_claim(schema)))
        self._owned()

    def _read_claim(self, folder: str) -> OwnerMarker:
        return owner_marker.decode_owner_marker(self._store.read_object(_CLAIM), self.path)

    def _read_grown(self) -> tuple[OwnerMarker, int]:
        return owner_marker.read_marker_with_columns(self._store.read_object, _OWN)

    def _keep_columns(self, number: int, columns: Sequence[pa.Field[Any]]) -> bool:
        data = owner_marker.encode_added_columns(columns)
        return self._store.create_object_if_absent(owner_marker.added_columns_path(_OWN, number), data) == data

    def _sync_columns(self) -> None:
        """Do nothing: an object is durable when the store has answered."""

    # -- staging

    def _write_rows(self, name: str, table: pa.Table) -> None:
        store = self._store
        if not table.num_rows:
            store.put_object(_staged(name, _NONE), b"")
            if _staged(name, _ROWS) in self._staged_paths():
                self._remove_staged_rows([f"{name}{_ROWS}"])
            return
        if partition_by := self._layout().partition_by:
            self._put_parts(name, hive_partitions.split_by_partition(table, partition_by))
            return
        data = self._parquet(table)
        store.put_object(_staged(name, _ROWS), b"")
        self._put_data(_data_path(name), data)

    def _put_parts(self, name: str, parts: Mapping[str, pa.Table]) -> None:
        """Put `KEY.rows`, which lists a key's files, then the rows of each partition.

        Remove files of earlier attempts.
        """
        store, rows = self._store, _staged(name, _ROWS)
        paths = {_data_path(name, folder): part for folder, part in parts.items()}
        earlier = self._parts_of_keys([name]).get(name, StagedFileList(()))
        left = tuple(sorted({*earlier.files, *earlier.left}.difference(paths)))
        store.put_object(rows, msgspec.json.encode(StagedFileList(tuple(paths), left)))
        store.write_each(list(paths), lambda path: self._put_data(path, self._parquet(paths[path])))
        if left:
            store.remove_objects(left)
            store.put_object(rows, msgspec.json.encode(StagedFileList(tuple(paths))))

    def _put_data(self, path: str, data: memoryview) -> None:
        """Put a Parquet object with staged rows. Replace one of an earlier attempt, but never a published one.

        Raises:
            InvalidInputError: a published file has this name, because the topic was restored and epochs are used again.
                The clock of `adopt` was behind; otherwise the epochs that it numbers from the time are new.
        """
        if self._store.create_object_if_absent(path, data) == data:
            return
        if any(file.path == f"{self._store.url}/{path}" for file in self._log.list_files()):
            self._store.remove_objects([_staged(_key_of(path), _ROWS)])  # by which a sweep would remove the file
            raise InvalidInputError(
                f"{self.path}/{path} is published, and other rows were to be staged under its name: the region's topic "
                "is from an older copy, and gives epochs again. No published row was changed. Empty the folder by a "
                "reset (`kohort region reset NAME --to-initial --empty-sinks`), or give the region a new folder"
            )
        self._store.put_object(path, data)

    def _parquet(self, table: pa.Table) -> memoryview:
        return staged_files.encode_parquet(table, self.path, self.compression, self.row_group_size)

    def _parts_of_keys(self, names: Sequence[str]) -> dict[str, StagedFileList]:
        """Return the Parquet files that are listed for each staged key, whether or not they are written yet.

        Keys without a `KEY.rows` are left out.
        """
        found = self._store.read_objects([_staged(name, _ROWS) for name in names])
        contents = {name: found[_staged(name, _ROWS)] for name in names if _staged(name, _ROWS) in found}
        return {
            name: msgspec.json.decode(content, type=StagedFileList) if content else StagedFileList((_data_path(name),))
            for name, content in contents.items()
        }

    def _staged_paths(self) -> set[str]:
        return {f"{_STAGED}/{name}" for name in self._store.list_names(_STAGED)}

    # -- publishing

    def _show_sequence(self, sequence: int, names: list[str]) -> None:
        """Publish staged files as this checkpoint by one object that lists them; then forget the staged keys."""
        if not self._log.is_published_or_emptied(sequence):
            entry = self._entry(sequence, names)
            if entry is not None:
                self._forget_before(sequence)
                self._log.publish_entry(entry)
        if self._log.is_emptied(sequence):
            self._store.remove_objects(path for paths in self._paths_of(names).values() for path in paths)
            self._log.remove_void_sequences(sequence)
        self._forget(names)

    def _entry(self, sequence: int, names: list[str]) -> PublishedSequence | None:
        """Return the object that publishes these keys as this sequence (checkpoint); None: it is published already.

        Raises:
            CorruptDataError: staged rows are missing, and the sequence is not published.
        """
        paths = self._paths_of(names)
        sizes = self._store.object_sizes([path for name in names for path in paths[name]])
        without = [name for name in names if not paths[name] or not sizes.keys() >= set(paths[name])]
        there = self._staged_paths() if without else set()
        lost = [name for name in without if _staged(name, _NONE) not in there]
        if not lost:
            files = {path: sizes[path] for name in names if name not in without for path in paths[name]}
            return PublishedSequence(1, self._bound(), sequence, files, tuple(without))
        if self._log.is_published_or_emptied(sequence):
            return None
        raise CorruptDataError(
            f"Sequence {sequence} can't be published into {self.path}: of {len(names)} staged files {len(lost)} are "
            f"gone, {lost[0]} among them"
        )

    def _paths_of(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the paths of each key's Parquet objects. In a partitioned folder a key that is not staged has none."""
        if not self._layout().partition_by:
            return {name: (_data_path(name),) for name in names}
        staged = self._parts_of_keys(names)
        return {name: staged[name].files if name in staged else () for name in names}

    def _forget_before(self, sequence: int) -> None:
        """Forget the staged keys of the checkpoint before, whose publisher may have crashed before it did so."""
        entry = self._log.read_sequence_entry(sequence - 1) or self._log.read_sequence_entry(
            self._log.last_done_sequence()
        )
        if entry is not None:
            self._forget(entry.published_key_texts())

    def _forget(self, names: Iterable[str]) -> None:
        """Remove `KEY.rows` and `KEY.none` of these staged keys; their Parquet objects stay."""
        both = {_staged(name, ending) for name in names for ending in (_ROWS, _NONE)}
        self._store.remove_objects(sorted(both & self._staged_paths()))

    def _remove_shown(self, sequence: int, min_valid_epoch: int) -> None:
        """Make all sequences (checkpoints) up to this one void by one object.

        Then remove their files, and staged rows of epochs before `min_valid_epoch`.
        """
        if self._log.is_published_or_emptied(sequence + 1):
            return
        self._log.mark_emptied(sequence)
        self._compactor().create_empty_generation(sequence)
        self._log.remove_void_sequences(sequence)
        self._remove_staged_keys(_void_names(self._store.list_names(_STAGED), self._id, min_valid_epoch))

    # -- progress

    def published(self) -> int:
        """Return the last sequence (checkpoint number) that is published or emptied; 0: none."""
        try:
            self._owned()
        except FileNotFoundError:
            return 0
        return self._log.last_done_sequence()

    def published_files(self, after: int = 0) -> list[SequenceFile]:
        """Return the URLs of all Parquet files with rows of checkpoints after `after`, in the order of checkpoints."""
        return self._log.list_files(after)

    def _generations(self) -> GenerationStore:
        return StoreGenerations(self._store, self._log)

    def adopt(self) -> str:
        """Store this sink's present name in the owner marker. Return the earlier name; empty: there was no marker."""
        claim = self._own_claim("")
        if claim is None:
            return ""
        if claim.place != self.place:
            self._store.put_object(
                _CLAIM, owner_marker.encode_owner_marker(msgspec.structs.replace(claim, place=self.place))
            )
        self._kept = None
        return claim.place

    def _written_name(self) -> str:
        return self._written_in("")

    # -- cleanup

    def _remove_unshown(self, keep: Keep) -> None:
        last = self._log.read_sequence_entry(
            self._log.last_done_sequence()
        )  # before the listing: see the order of writes above
        shown = set() if last is None else last.published_key_texts()
        kept = {key.file_stem() for key in keep.keys}
        names = [name for name in self._store.list_names(_STAGED) if name.rpartition(".")[0] not in kept]
        void = _void_names(names, self._id, keep.floor)
        self._remove_staged_keys(name for name in void if name.rpartition(".")[0] not in shown)
        self._store.remove_objects(f"{_STAGED}/{name}" for name in void if name.rpartition(".")[0] in shown)

    def _remove_staged_keys(self, names: Iterable[str]) -> None:
        """Remove the Parquet objects of staged keys, then their `KEY.rows` or `KEY.none`."""
        gone = list(names)
        self._remove_staged_rows([name for name in gone if name.endswith(_ROWS)])
        self._store.remove_objects(f"{_STAGED}/{name}" for name in gone)

    def _remove_staged_rows(self, names: Sequence[str]) -> None:
        """Remove the Parquet objects of staged keys, then the `KEY.rows` that list them."""
        keys = [name.removesuffix(_ROWS) for name in names]
        if self._layout().partition_by:
            parts = self._parts_of_keys(keys).values()
            self._store.remove_objects(path for part in parts for path in (*part.files, *part.left))
        else:
            self._store.remove_objects(map(_data_path, keys))
        self._store.remove_objects(f"{_STAGED}/{name}" for name in names)


def _staged(name: str, ending: str) -> str:
    return f"{_STAGED}/{name}{ending}"


def _void_names(names: Iterable[str], region_id: UUID | None, min_valid_epoch: int) -> list[str]:
    """Return those of these names whose staged key is this region's and of an epoch before `min_valid_epoch`."""
    keys = {name: StagedKey.parse(name.rpartition(".")[0]) for name in names}
    return [
        name
        for name, key in keys.items()
        if key is not None and key.region_id == region_id and key.epoch < min_valid_epoch
    ]


def _path(sequence: int) -> str:
    return f"{_SEQUENCES}/{sequence:020}.json"


def _generation_path(number: int) -> str:
    return f"{_SEQUENCES}/{GENERATION}{number:020}"
