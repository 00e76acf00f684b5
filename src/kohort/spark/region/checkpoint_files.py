"""The files of a Spark checkpoint: the logs of batches, and the operators' state.

    offsets/N    a version, a line of metadata, a line of JSON for each source; written before batch N runs
    commits/N    a version, a line of JSON; written when N's sink and state are done

Each file comes with `.N.crc`, which Hadoop's local file system checks, and writes with each new file. A file being
written is `.N.UUID.tmp`. Spark renames both files when they are complete, so a file with its final name is complete,
unless the machine lost power. Spark removes files that are `spark.sql.streaming.minBatchesToRetain` batches behind.

The files of state:

    state/OPERATOR/_metadata/metadata           the operator's name and stores (version 1)
    state/OPERATOR/_metadata/v2/BATCH           the same (version 2), with absolute paths of schemas
    state/OPERATOR/_stateSchema/NAME/BATCH_ID   schemas (version 3), written when a run begins with that batch
    state/OPERATOR/PARTITION[/STORE]/           one store; `default` has no folder of its own
        7.delta, 7.snapshot                     HDFS-backed: version 7 from version 6, or complete
        7.changelog, 7.zip, SSTs/, logs/        RocksDB: the same; the files that the zips name
        7_ID.changelog, 7_ID.zip                RocksDB with checkpoint format 2: commits/ says which ID counts
        _metadata/schema                        (versions 1 and 2)

Batch 6 wrote version 7 of a store. A file may have a checksum of Spark's beside it, `7.changelog.crc`, and Hadoop's
local file system adds `.NAME.crc` to each of both. Snapshots are written later than their version, in the background.
The next start would silently load the snapshots of an abandoned timeline.
"""

from __future__ import annotations

import json  # not msgspec: text of other programs, with NaN and integers of any size
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.files import SYSTEM, FileCalls, list_folder, read_file

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
NUMBER: Final = re.compile("0|[1-9][0-9]*")
_VERSION: Final = re.compile(r"v([0-9]+)")
_SOURCE: Final = re.compile(r"^[^{\"\s:]+:")
"""The text before a source's JSON in version 2 of offsets: the source's name or number."""
_OFFSETS_VERSIONS: Final = (1, 2)
_COMMITS_VERSIONS: Final = (1, 2, 3)
_NO_OFFSET: Final = "-"


def batch_numbers(names: Iterable[str]) -> set[int]:
    """Return the batch numbers among a log folder's file names, without checksums and files being written."""
    return {int(name) for name in names if NUMBER.fullmatch(name)}


def last_completed_batch(checkpoint: str, *, files: FileCalls = SYSTEM) -> int | None:
    """Return the last completed batch: the highest number in `commits/` whose log files are complete; None if none.

    This lists one folder and reads three small files, and may be called while the query runs.
    """
    for number in sorted(batch_numbers(list_folder(files, f"{checkpoint}/{COMMITS}")), reverse=True):
        if can_continue_after(checkpoint, number, files=files):
            return number
    return None


def last_planned_batch(checkpoint: str, *, files: FileCalls = SYSTEM) -> int | None:
    """Return the highest batch in `offsets/`, done or not; None if there is none."""
    return max(batch_numbers(list_folder(files, f"{checkpoint}/{OFFSETS}")), default=None)


def can_continue_after(checkpoint: str, number: int, *, files: FileCalls = SYSTEM) -> bool:
    """Return whether the logs have what Spark needs to continue after a batch.

    That is a readable `commits/N`, a readable `offsets/N`, and beyond batch 0 a readable `offsets/N-1`.
    """
    try:
        read_batch_commit(checkpoint, number, files=files)
        for batch in range(max(number - 1, 0), number + 1):
            read_batch_offsets(checkpoint, batch, files=files)
    except (CorruptDataError, FileNotFoundError):
        return False
    return True


def read_batch_offsets(checkpoint: str, number: int, *, files: FileCalls = SYSTEM) -> list[Any]:
    """Return the parsed end offset of each source in a batch, in arbitrary order; None for a source that has none.

    Raises:
        CorruptDataError: the file is not in Spark's format.
        FileNotFoundError: there is no such file.
        InvalidInputError: a newer Spark wrote it.
    """
    path = f"{checkpoint}/{OFFSETS}/{number}"
    version, lines = _read_log(files, path, _OFFSETS_VERSIONS)
    if len(lines) < 2:
        raise CorruptDataError(f"{path} names no source")
    _parsed(path, lines[0])
    ends = lines[1:]
    if version > 1:
        ends = [_SOURCE.sub("", line, count=1) for line in ends]
    return [None if line == _NO_OFFSET else _parsed(path, line) for line in ends]


def read_batch_commit(checkpoint: str, number: int, *, files: FileCalls = SYSTEM) -> dict[str, Any]:
    """Return the JSON that Spark wrote when a batch was done; raise as `read_batch_offsets` does.

    It has `stateUniqueIds`, by operator, partition and store, when the state store's files have unique names.
    """
    path = f"{checkpoint}/{COMMITS}/{number}"
    _, lines = _read_log(files, path, _COMMITS_VERSIONS)
    found = _parsed(path, lines[0]) if lines else None
    if not isinstance(found, dict):
        raise CorruptDataError(f"{path} does not say what was done")
    return found


def find_source_offset(offsets: Sequence[Any], query: str) -> Mapping[str, Any] | None:
    """Return the end offset with this query identity among those of a batch; None if there is none.

    A source is found by the identity in its offset, never by its position: Spark orders sources by its plan. A source
    that the plan reads twice, as in a union with itself, is there twice, with the same end.

    Raises:
        CorruptDataError: two sources have that identity.
    """
    found = [end for end in offsets if isinstance(end, dict) and "kohort" in end and end.get("query") == query]
    if any(end != found[0] for end in found):
        raise CorruptDataError(
            f"{len(found)} sources of one checkpoint say that they are query {query}: which of them read what can't be "
            "told; use a fresh folder"
        )
    return found[0] if found else None


def _read_log(files: FileCalls, path: str, versions: tuple[int, ...]) -> tuple[int, list[str]]:
    """Return the version of a log's file, and the lines below it."""
    try:
        first, *lines = read_file(files, path).decode().split("\n")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path} is no text: {error}") from error
    version = _VERSION.fullmatch(first.strip())
    if version is None:
        raise CorruptDataError(f"{path} does not begin with a version, but with {first[:40]!r}")
    number = int(version[1])
    if number not in versions:
        raise InvalidInputError(
            f"{path} has version {number}: it was written by a later Spark than this kohort knows "
            f"(up to {versions[-1]}); go on with a kohort that knows it"
        )
    return number, [line for line in lines if line.strip()]


def _parsed(path: str, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise CorruptDataError(f"{path} has a line that is no JSON ({line[:80]!r}): {error}") from error


# -- The files under `state/`: operators, their stores, and the versions of each store

STATE: Final = "state"
METADATA: Final = "_metadata"
SCHEMAS: Final = "_stateSchema"
SHARED: Final = ("SSTs", "logs")
"""Folders of a RocksDB store for the files that its zips name; each file name is used only once."""
DEFAULT: Final = "default"
_VERSION_FILE: Final = re.compile(r"([0-9]+)(?:_([0-9a-f-]{36}))?\.(delta|snapshot|changelog|zip)(\.crc)?")
_WHOLE: Final = ("snapshot", "zip")
_PATHS: Final = "stateSchemaFilePaths"
_SCHEMA: Final = re.compile(r"([0-9]+)_[0-9a-f-]{36}")
_SCHEMA_PATH: Final = re.compile(rf"/{STATE}/([0-9]+/{SCHEMAS}/[^/]+/[^/]+)$")


@dataclass(frozen=True, slots=True)
class OperatorStateStore:
    """A state store of a stateful operator; it exists once for each partition."""

    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """A stateful operator, from its metadata.

    Attributes:
        number: its folder under `state/`.
        name: `stateStoreSave`, `symmetricHashJoin`, `dedupe` …
        stores: the stores of its state.
        properties: JSON that some kinds of operators write: output mode, time mode, the variables of
            transformWithState.
    """

    number: int
    name: str
    stores: tuple[OperatorStateStore, ...]
    properties: str


@dataclass(frozen=True, slots=True)
class StateStoreFile:
    """A snapshot or changelog file of a state store, as its name describes it.

    Attributes:
        version: the version of the state that the snapshot has, or the changelog leads to.
        id: the unique id in the name, with checkpoint format 2; None without.
        kind: the file name's ending.
    """

    version: int
    id: str | None
    kind: str

    @property
    def is_snapshot(self) -> bool:
        """Whether the file is a complete snapshot, which needs no earlier version."""
        return self.kind in _WHOLE


def parse_state_file_name(name: str) -> StateStoreFile | None:
    """Parse the name of a state store's snapshot or changelog, or of the checksum file of one; None for other files."""
    found = _VERSION_FILE.fullmatch(name)
    return StateStoreFile(int(found[1]), found[2], found[3]) if found else None


def parse_schema_file_name(name: str) -> int | None:
    """Parse the name of a state schema file: return the first batch of the run that wrote it; None for other names."""
    found = _SCHEMA.fullmatch(name)
    return int(found[1]) if found else None


def read_stateful_operators(
    checkpoint: str, batch: int | None = None, *, files: FileCalls = SYSTEM
) -> list[StatefulOperator]:
    """Return the stateful operators by number, from the latest metadata, or the latest up to a batch.

    The result is empty if there is no state.

    Raises:
        CorruptDataError: the metadata can't be read.
        InvalidInputError: a newer Spark wrote it.
    """
    found = []
    for number in sorted(batch_numbers(list_folder(files, f"{checkpoint}/{STATE}"))):
        folder = f"{checkpoint}/{STATE}/{number}/{METADATA}"
        noted = [at for at in batch_numbers(list_folder(files, f"{folder}/v2")) if batch is None or at <= batch]
        path = f"{folder}/v2/{max(noted)}" if noted else f"{folder}/metadata"
        try:
            text = read_file(files, path).decode(errors="replace")
        except FileNotFoundError:
            continue
        found.append(_operator(number, path, parse_operator_metadata(path, text)))
    return found


def parse_operator_metadata(path: str, text: str) -> dict[str, Any]:
    """Parse the content of a stateful operator's metadata file: a version line, then JSON.

    Raises:
        CorruptDataError: the JSON is not an object.
        InvalidInputError: a newer Spark wrote it.
    """
    first, _, rest = text.partition("\n")
    if first.strip() not in ("v1", "v2"):
        raise InvalidInputError(
            f"{path} begins with {first[:40]!r}, which this kohort does not know: a later Spark wrote it; go on with a "
            "kohort that knows it, or use a fresh folder"
        )
    try:
        found = json.loads(rest)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise CorruptDataError(f"{path} does not say which operator it is of: {rest[:80]!r}")


def _operator(number: int, path: str, found: Mapping[str, Any]) -> StatefulOperator:
    try:
        stores = tuple(
            OperatorStateStore(str(store["storeName"]), int(store["numPartitions"]))
            for store in found["stateStoreInfo"]
        )
        name = str(found["operatorInfo"]["operatorName"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"{path} lacks what Spark notes of an operator: {error!r}") from error
    return StatefulOperator(number, name, stores, str(found.get("operatorPropertiesJson", "")))


def relocate_operator_metadata(path: str, text: str, folder: str) -> tuple[str, list[str]]:
    """Return an operator's metadata with its schemas' paths moved to another checkpoint folder, and those schemas.

    Text without absolute paths is returned unchanged. The schemas' paths are relative to the folder.

    Raises:
        InvalidInputError: a path does not lead to a schema of this checkpoint.
    """
    found = parse_operator_metadata(path, text)
    schemas: list[str] = []
    for store in found.get("stateStoreInfo", ()):
        moved = []
        for old in store.get(_PATHS, ()):
            inside = _SCHEMA_PATH.search(old)
            scheme = re.match("file:(?://)?(?=/)", old)
            if inside is None or (scheme is None and not old.startswith("/")):
                raise InvalidInputError(
                    f"{path} names {old}, which is no schema of state in this checkpoint: kohort can't take the query "
                    "back to it; use a fresh folder"
                )
            schemas.append(f"{STATE}/{inside[1]}")
            moved.append(f"{scheme[0] if scheme else ''}{folder}/{schemas[-1]}")
        if moved:
            store[_PATHS] = moved
    if not schemas:
        return text, []
    first = text.partition("\n")[0]
    return f"{first}\n{json.dumps(found, separators=(',', ':'), ensure_ascii=False)}", schemas


def first_unloadable_store(
    taken: Collection[str], noted: Iterable[StatefulOperator], commit: Mapping[str, Any], version: int
) -> str | None:
    """Return the folder of a state store whose version Spark could not load from these files; None if all can be.

    Args:
        taken: the files that a checkpoint would have, by paths relative to it.
        noted: the checkpoint's stateful operators.
        commit: the JSON in `commits/` of the batch that wrote the version.
        version: the version of the state.
    """
    stores: dict[str, list[StateStoreFile]] = {}
    for path in taken:
        folder, _, name = path.rpartition("/")
        if (
            folder.startswith(f"{STATE}/")
            and not name.endswith(".crc")
            and (found := parse_state_file_name(name)) is not None
        ):
            stores.setdefault(folder, []).append(found)
    wanted = dict(_declared(noted))
    declared = {folder.split("/")[1] for folder in wanted}
    wanted |= {folder: (folder.split("/")[1], -1) for folder in stores if folder.split("/")[1] not in declared}
    ids = commit.get("stateUniqueIds") or {}
    for folder, (operator, partition) in wanted.items():
        counted = ids.get(operator, [])
        own = set(counted[partition] or ()) if 0 <= partition < len(counted) else set()
        if not _loads(stores.get(folder, ()), version, own):
            return folder
    return None


def _declared(noted: Iterable[StatefulOperator]) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield the folder of each state store that the operators' metadata declares, with operator and partition."""
    for operator in noted:
        for store in operator.stores:
            for partition in range(store.partitions):
                folder = f"{STATE}/{operator.number}/{partition}"
                named = folder if store.name == DEFAULT else f"{folder}/{store.name}"
                yield named, (str(operator.number), partition)


def _loads(found: Iterable[StateStoreFile], version: int, ids: Collection[str]) -> bool:
    """Return whether a state store's version can be loaded from these files: a snapshot and all later changelogs."""
    kept = [file for file in found if file.version != version or not ids or file.id in ids]
    whole = {file.version for file in kept if file.is_snapshot}
    changed = {file.version for file in kept if not file.is_snapshot}
    while version > 0 and version not in whole:
        if version not in changed:
            return False
        version -= 1
    return True
