"""What lies under `state/` in a Spark checkpoint: which files belong to which version, and what an operator is.

    state/OPERATOR/_metadata/metadata           the operator's name and stores (version 1)
    state/OPERATOR/_metadata/v2/BATCH           the same (version 2), with absolute paths of schemas
    state/OPERATOR/_stateSchema/NAME/BATCH_ID   schemas (version 3), written when a run begins with that batch
    state/OPERATOR/PARTITION[/STORE]/           one store; `default` has no folder of its own
        7.delta, 7.snapshot                     HDFS-backed: version 7 from version 6, or whole
        7.changelog, 7.zip, SSTs/, logs/        RocksDB: the same; what the zips name
        7_ID.changelog, 7_ID.zip                RocksDB with checkpoint format 2: which ID counts is in commits/
        _metadata/schema                        (versions 1 and 2)

A store's version 7 is what batch 6 left. A file may have a checksum of Spark's own beside it, `7.changelog.crc`, and
Hadoop's local file system adds `.NAME.crc` to each of both. Snapshots are written later than their version, in the
background: those of a timeline that was given up would be loaded, unseen, by the next start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.files import SYSTEM, FileCalls, names_in, read_file
from kohort.spark.region.checkpoint_logs import numbers

STATE: Final = "state"
METADATA: Final = "_metadata"
SCHEMAS: Final = "_stateSchema"
SHARED: Final = ("SSTs", "logs")
"""Folders of a RocksDB store with files that its zips name; each has a name that is never used twice."""
DEFAULT: Final = "default"
_VERSION_FILE: Final = re.compile(r"([0-9]+)(?:_([0-9a-f-]{36}))?\.(delta|snapshot|changelog|zip)(\.crc)?")
_WHOLE: Final = ("snapshot", "zip")
_PATHS: Final = "stateSchemaFilePaths"
_SCHEMA: Final = re.compile(r"([0-9]+)_[0-9a-f-]{36}")
_SCHEMA_PATH: Final = re.compile(rf"/{STATE}/([0-9]+/{SCHEMAS}/[^/]+/[^/]+)$")

StoreKind: TypeAlias = Literal["hdfs", "rocksdb"]


@dataclass(frozen=True, slots=True)
class StateKind:
    """How state is stored.

    Attributes:
        store: HDFS-backed, or RocksDB.
        changelog: RocksDB writes what changed, and the whole in the background.
        version: `spark.sql.streaming.stateStore.checkpointFormatVersion`: with 2, files have names of their own.
    """

    store: StoreKind
    changelog: bool
    version: int


@dataclass(frozen=True, slots=True)
class Store:
    """One of an operator's stores, which there is once for each partition."""

    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator as Spark noted it.

    Attributes:
        number: its folder under `state/`.
        name: `stateStoreSave`, `symmetricHashJoin`, `dedupe` …
        stores: what it keeps its state in.
        properties: JSON that some kinds of operators note: output mode, time mode, the variables of transformWithState.
    """

    number: int
    name: str
    stores: tuple[Store, ...]
    properties: str


@dataclass(frozen=True, slots=True)
class VersionFile:
    """A file of a store, by its name.

    Attributes:
        version: of the state that it is, or leads to.
        id: whose version, with checkpoint format 2.
        kind: its ending.
    """

    version: int
    id: str | None
    kind: str

    @property
    def whole(self) -> bool:
        """Whether it needs no version before it."""
        return self.kind in _WHOLE


def version_file(name: str) -> VersionFile | None:
    """What a name in a store's folder says, also that of the file's own checksum; None: it is no such file."""
    found = _VERSION_FILE.fullmatch(name)
    return VersionFile(int(found[1]), found[2], found[3]) if found else None


def schema_batch(name: str) -> int | None:
    """The batch that a run began with when it wrote this schema; None: the name is no schema's."""
    found = _SCHEMA.fullmatch(name)
    return int(found[1]) if found else None


def state_kinds(checkpoint: str, *, files: FileCalls = SYSTEM) -> frozenset[StateKind]:
    """How the operators' state is stored, as the files of each one's first partition say; empty: there is no state."""
    found: set[StateKind] = set()
    for operator in numbers(names_in(files, f"{checkpoint}/{STATE}")):
        first = f"{checkpoint}/{STATE}/{operator}/0"
        names = names_in(files, first)
        for name in names:
            if not name.startswith((".", "_")) and name not in SHARED and version_file(name) is None:
                names = [*names, *names_in(files, f"{first}/{name}")]
        kept = [each for name in names if (each := version_file(name)) is not None]
        kinds = {each.kind for each in kept}
        if kinds:
            store: StoreKind = "rocksdb" if kinds & {"changelog", "zip"} else "hdfs"
            version = 2 if any(each.id for each in kept) else 1
            found.add(StateKind(store, "changelog" in kinds, version))
    return frozenset(found)


def operators(checkpoint: str, batch: int | None = None, *, files: FileCalls = SYSTEM) -> list[Operator]:
    """The stateful operators by number, as they were noted last, or last up to a batch; empty: there is no state.

    Raises:
        CorruptDataError: what was noted can't be read.
        InvalidInputError: a later Spark noted it.
    """
    found = []
    for number in sorted(numbers(names_in(files, f"{checkpoint}/{STATE}"))):
        folder = f"{checkpoint}/{STATE}/{number}/{METADATA}"
        noted = [each for each in numbers(names_in(files, f"{folder}/v2")) if batch is None or each <= batch]
        path = f"{folder}/v2/{max(noted)}" if noted else f"{folder}/metadata"
        try:
            text = read_file(files, path).decode(errors="replace")
        except FileNotFoundError:
            continue
        found.append(_operator(number, path, operator_noted(path, text)))
    return found


def operator_noted(path: str, text: str) -> dict[str, Any]:
    """The JSON in an operator's metadata; raises as `operators` does."""
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


def _operator(number: int, path: str, found: Mapping[str, Any]) -> Operator:
    try:
        stores = tuple(Store(str(each["storeName"]), int(each["numPartitions"])) for each in found["stateStoreInfo"])
        name = str(found["operatorInfo"]["operatorName"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"{path} lacks what Spark notes of an operator: {error!r}") from error
    return Operator(number, name, stores, str(found.get("operatorPropertiesJson", "")))


def with_paths_below(path: str, text: str, new: str) -> tuple[str, list[str]]:
    """An operator's metadata whose schemas lie in another checkpoint now, and those schemas, relative to it.

    Without absolute paths in it the text stays as it is.

    Raises:
        InvalidInputError: a path that does not lead to a schema of this checkpoint.
    """
    found = operator_noted(path, text)
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
            moved.append(f"{scheme[0] if scheme else ''}{new}/{schemas[-1]}")
        if moved:
            store[_PATHS] = moved
    if not schemas:
        return text, []
    first = text.partition("\n")[0]
    return f"{first}\n{json.dumps(found, separators=(',', ':'), ensure_ascii=False)}", schemas


def missing_state(
    taken: Collection[str], noted: Iterable[Operator], commit: Mapping[str, Any], version: int
) -> str | None:
    """The first store that Spark could not load in a version from these files; None: all are there.

    Args:
        taken: paths relative to the checkpoint.
        noted: its operators.
        commit: of the batch that left the version.
        version: of the state.
    """
    stores: dict[str, list[VersionFile]] = {}
    for path in taken:
        folder, _, name = path.rpartition("/")
        if folder.startswith(f"{STATE}/") and not name.endswith(".crc") and (found := version_file(name)) is not None:
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


def _declared(noted: Iterable[Operator]) -> Iterator[tuple[str, tuple[str, int]]]:
    """The folder of each store that should be there, with its operator and partition."""
    for operator in noted:
        for store in operator.stores:
            for partition in range(store.partitions):
                folder = f"{STATE}/{operator.number}/{partition}"
                named = folder if store.name == DEFAULT else f"{folder}/{store.name}"
                yield named, (str(operator.number), partition)


def _loads(found: Iterable[VersionFile], version: int, ids: Collection[str]) -> bool:
    """Whether a store comes to a version: from a whole one, or from none, by each change after it."""
    kept = [each for each in found if each.version != version or not ids or each.id in ids]
    whole = {each.version for each in kept if each.whole}
    changed = {each.version for each in kept if not each.whole}
    while version > 0 and version not in whole:
        if version not in changed:
            return False
        version -= 1
    return True
