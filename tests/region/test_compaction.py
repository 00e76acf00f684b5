"""Compaction of Parquet folders: exact for readers of the list, at each call where a process dies, fails or is held."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kohort.errors import CorruptDataError, InvalidInputError, KafkaError, RetriableError
from kohort.region import ParquetFolder
from kohort.region import files as compaction_files
from kohort.region.sinks import Keep, compaction, folder_generations
from kohort.region.sinks.compaction import Compactor, Generation
from kohort.region.sinks.folder_generations import FolderGenerations
from kohort.region.sinks.parquet_objects import StoreGenerations, _generation_path
from kohort.region.staged import StagedKey
from tests.region import folder_runs
from tests.region.place_runs import Trials
from tests.region.places import REGION, SCHEMA, Calls, ObjectsPlace, ParquetPlace, Row, same, table
from tests.region.volume import LosesAll, Volume
from tests.support.long_runs import IS_LONG

Patch = pytest.MonkeyPatch
FolderPlace = ParquetPlace | ObjectsPlace
EPOCH = 5
SEQUENCES = 5
SHORT_EVERY = 2
"""A compactor dies at every second call in `make test`, and at every one in `make test-long`."""
KINDS: dict[str, Callable[[], FolderPlace]] = {
    "folder": ParquetPlace,
    "store": ObjectsPlace,
    "folder-parted": lambda: ParquetPlace("parquet-parted", partition_by=["name"]),
    "store-parted": lambda: ObjectsPlace("parquet-objects-parted", partition_by=["name"]),
}


def key(unit: int, member: str = "a") -> StagedKey:
    return StagedKey(REGION, EPOCH, member, unit)


def rows_of(sequence: int) -> list[Row]:
    return [(sequence * 10, "x"), (sequence * 10 + 1, "y")]


def folder_of(place: FolderPlace, calls: Calls | None = None) -> ParquetFolder:
    sink = place.sink(calls)
    assert isinstance(sink, ParquetFolder)
    return sink


def publish(sink: ParquetFolder, sequence: int) -> None:
    sink.publish(sequence, [key(sequence), key(sequence, "b")])


def stage(sink: ParquetFolder, sequence: int) -> None:
    sink.stage(key(sequence), table(rows_of(sequence)[:1]))
    sink.stage(key(sequence, "b"), table(rows_of(sequence)[1:]))


def begun(place: FolderPlace, root: Path, published: int = SEQUENCES) -> FolderPlace:
    """Some sequences are published, and two more are staged."""
    place.at(root / "first")
    sink = folder_of(place)
    sink.check(SCHEMA)
    for sequence in range(1, SEQUENCES + 3):
        stage(sink, sequence)
    for sequence in range(1, published + 1):
        publish(sink, sequence)
    return place


def local_paths(place: FolderPlace, after: int = 0) -> list[str]:
    """Return the list that readers take."""
    listed = folder_of(place).published_files(after)
    return [file.path.replace("s3://bucket/out", place.path) for file in listed]


def read_all(paths: list[str]) -> list[Row]:
    found: list[Row] = []
    for path in paths:
        above = Path(path).parent.name
        named = above.removeprefix("name=") if above.startswith("name=") else None
        found += [(row["id"], named or row["name"]) for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted(found)


def rows(place: FolderPlace) -> list[Row]:
    return read_all(local_paths(place))


def wanted(upto: int = SEQUENCES) -> list[Row]:
    return [row for sequence in range(1, upto + 1) for row in rows_of(sequence)]


def compact(sink: ParquetFolder) -> None:
    sink.compact()


def compact_at_once(sink: ParquetFolder) -> None:
    """Compact, and remove what was replaced at the next call."""
    sink.compact(grace="0s")


@pytest.mark.parametrize("kind", KINDS)
def test_small_files_become_one_of_each_partition(kind: str, root: Path) -> None:
    place = begun(KINDS[kind](), root)
    sink = folder_of(place)
    before = local_paths(place)
    result = sink.compact()
    files = local_paths(place)
    assert len(before) == 10 and len(files) == (2 if "parted" in kind else 1)
    assert (result.merged, result.written, result.removed) == (10, len(files), 0)
    assert result.bytes == sum(os.path.getsize(path) for path in files) and result.waiting == 10
    assert rows(place) == wanted() and read_all(before) == wanted(), "who took the list before still reads"
    assert sink.compact() == compaction.CompactionResult(waiting=10)
    publish(sink, SEQUENCES + 1)
    assert rows(place) == wanted(SEQUENCES + 1)
    assert [file.sequence for file in sink.published_files(after=SEQUENCES)] == [SEQUENCES + 1] * 2
    assert sink.compact(grace="0s").removed == 10
    assert not any(os.path.exists(path) for path in before) and sink.published() == SEQUENCES + 1
    assert rows(place) == wanted(SEQUENCES + 1)
    publish(sink, SEQUENCES + 2)
    sink.compact(grace="0s")
    sink.compact(grace="0s")
    sink.sweep(Keep(EPOCH + 1))
    assert rows(place) == wanted(SEQUENCES + 2) and place.staged() == []
    if isinstance(place, ParquetPlace):
        assert place.rows() == wanted(SEQUENCES + 2), "those who list the folder see the same"
    there = {str(path) for path in Path(place.path).glob("**/*.parquet") if "sequence=" not in str(path)}
    assert there == set(local_paths(place)), "nothing is left over"


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_grace_time_begins_when_the_merge_is_done(kind: str, root: Path, monkeypatch: Patch) -> None:
    """A merge took ten minutes, and the next compaction removed files that readers had listed five minutes before."""
    place = begun(KINDS[kind](), root)
    clock, merge_files = SimpleNamespace(now_s=10**9), compaction.merge_files

    def merge_slowly(*given: Any) -> None:
        clock.now_s += 600
        merge_files(*given)

    monkeypatch.setattr(compaction, "time", SimpleNamespace(time=lambda: clock.now_s))
    monkeypatch.setattr(compaction, "merge_files", merge_slowly)
    sink, listed = folder_of(place), local_paths(place)
    assert sink.compact(grace="15m").merged == 10
    clock.now_s += 600
    assert sink.compact(grace="15m").removed == 0
    assert read_all(listed) == wanted()
    clock.now_s += 600
    assert sink.compact(grace="15m").removed == 10


@pytest.mark.parametrize("is_published", [True, False], ids=["published", "staged"])
@pytest.mark.parametrize("kind", ["store", "store-parted"])
def test_replaced_file_whose_name_is_in_use_again_stays(kind: str, is_published: bool, root: Path) -> None:
    """A region whose topic was restored from an older copy gives epochs again, and so names of files."""
    place = begun(KINDS[kind](), root)
    sink = folder_of(place)
    assert sink.compact().waiting == 10
    stage(sink, 1)
    keys, next_number = [key(1), key(1, "b")], SEQUENCES + 1
    if is_published:
        sink.publish(next_number, keys)
        publish(sink, next_number + 1)  # the next compaction keeps the last sequence
    sink.compact(grace="0s", until=SEQUENCES)
    sink.compact(grace="0s", until=SEQUENCES)
    if not is_published:
        sink.publish(next_number, keys)
    more = rows_of(next_number + 1) if is_published else []
    assert rows(place) == sorted([*wanted(), *rows_of(1), *more])
    assert not any(key(2).file_stem() in path for path in local_paths(place))


@pytest.mark.parametrize("kind", ["store", "store-parted"])
def test_published_file_is_never_overwritten_by_staged_rows(kind: str, root: Path) -> None:
    """A region whose topic was restored gives epochs again: the rows that it staged replaced published ones."""
    place = begun(KINDS[kind](), root)
    sink = folder_of(place)
    with pytest.raises(InvalidInputError, match="is published, and other rows were to be staged under its name"):
        sink.stage(key(1), table([(77, "x")]))
    assert rows(place) == wanted()
    sink.sweep(Keep(EPOCH + 1, (key(SEQUENCES + 1), key(SEQUENCES + 1, "b"))))  # what the refused member staged is void
    assert rows(place) == wanted()
    for _ in range(2):  # the same rows again, as after a lost answer
        sink.stage(key(SEQUENCES + 1), table([(78, "x")]))  # other rows than before, which are not published
    publish(sink, SEQUENCES + 1)
    assert rows(place) == sorted([*wanted(), (78, "x"), *rows_of(SEQUENCES + 1)[1:]])


@pytest.mark.parametrize("kind", KINDS)
def test_file_of_the_target_size_is_not_written_again(kind: str, root: Path) -> None:
    place = begun(KINDS[kind](), root)
    sink = folder_of(place)
    size = os.path.getsize(local_paths(place)[0])
    assert sink.compact(target_file_size=size) == compaction.CompactionResult()
    sink.compact(target_file_size=2 * size + 2, until=3)
    inodes = {os.stat(path).st_ino for path in local_paths(place)}
    sink.compact(target_file_size=2 * size + 2, grace="0s")
    assert rows(place) == wanted()
    assert inodes & {os.stat(path).st_ino for path in local_paths(place)}, "large ones stay"


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_bytes_are_those_of_the_merged_files(kind: str, root: Path) -> None:
    place = begun(KINDS[kind](), root, published=2)
    sink = folder_of(place)
    sink.stage(key(3), table([(number, str(number)) for number in range(1_000)]))
    sink.publish(3, [key(3)])
    large = max(os.path.getsize(path) for path in local_paths(place))
    result = sink.compact(target_file_size=large)
    sizes = [os.path.getsize(path) for path in local_paths(place)]
    assert (len(sizes), result.written) == (2, 1) and result.bytes == sum(sizes) - large


@pytest.mark.parametrize(
    ("attempts", "error"),
    [([FileNotFoundError("a"), None, None], RetriableError), ([FileNotFoundError("a")] * 3, CorruptDataError)],
    ids=["races", "gone"],
)
def test_races_are_lost_after_a_file_was_gone(
    attempts: list[FileNotFoundError | None], error: type[KafkaError], monkeypatch: Patch
) -> None:
    outcomes = iter(attempts)

    def attempt(*_: Any) -> None:
        if (outcome := next(outcomes)) is not None:
            raise outcome

    monkeypatch.setattr(Compactor, "_attempt", attempt)
    with pytest.raises(error):
        Compactor(SimpleNamespace(), REGION, "a folder").compact(SimpleNamespace(), 1, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_reader_that_continues_from_a_merged_sequence_is_refused(kind: str, root: Path) -> None:
    place = begun(KINDS[kind](), root)
    sink = folder_of(place)
    sink.compact(until=3)
    assert read_all(local_paths(place, 3)) == [row for number in (4, 5) for row in rows_of(number)]
    assert read_all(local_paths(place, 4)) == rows_of(5)
    with pytest.raises(InvalidInputError, match="merged sequences 1 to 3.*until"):
        sink.published_files(after=2)


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_emptied_folder_stays_empty(kind: str, root: Path) -> None:
    place = begun(KINDS[kind](), root)
    sink = folder_of(place)
    sink.compact()
    for _ in range(2):
        sink.empty(SEQUENCES + 1, EPOCH)
        assert local_paths(place) == [] and sink.published() == SEQUENCES + 1
    stage(sink, SEQUENCES + 2)
    publish(sink, SEQUENCES + 2)
    sink.compact(grace="0s")
    sink.empty(SEQUENCES + 1, EPOCH)
    assert rows(place) == rows_of(SEQUENCES + 2)
    there = {str(path) for path in Path(place.path).glob("**/*.parquet") if "sequence=" not in str(path)}
    assert there <= set(local_paths(place)) | {str(path) for path in Path(place.path).glob("_data/*")}


def test_unbound_folder_can_be_compacted_and_no_folder_is_refused(root: Path) -> None:
    sink = ParquetFolder(root / "out").bind("flights", REGION)
    with pytest.raises(InvalidInputError, match="no folder of a region"):
        ParquetFolder(root / "out").compact()
    sink.check(SCHEMA)
    for sequence in (1, 2):
        stage(sink, sequence)
        publish(sink, sequence)
    assert ParquetFolder(root / "out").compact().merged == 4
    with pytest.raises(InvalidInputError, match="at least 1"):
        ParquetFolder(root / "out", target_file_size=0)
    with pytest.raises(InvalidInputError, match="grace must be"):
        ParquetFolder(root / "out").compact(grace="soon")


@pytest.mark.parametrize("kind", ["folder", "store"])
@pytest.mark.parametrize("planted", ["_compacted/../../precious", "_compacted/../../p.parquet", "_region/region.json"])
@pytest.mark.parametrize("names", ["replaced", "files"])
def test_planted_generation_reaches_no_other_file(kind: str, planted: str, names: str, root: Path) -> None:
    """Whoever may write into the folder may not remove files outside it, nor the owner marker."""
    place = begun(KINDS[kind](), root)
    for name in ("precious", "p.parquet"):
        (root / name).write_bytes(b"precious")
    content = {"format": 1, "region": str(REGION), "generation": 1, "upto": 1, "attempt": "x", "files": {}}
    content |= {"replaced": {}, names: {planted: 0 if names == "replaced" else {"size": 8, "first": 1, "last": 1}}}
    named = _generation_path(1) if kind == "store" else "_region/compaction-1"
    (Path(place.path) / named).parent.mkdir(exist_ok=True)
    (Path(place.path) / named).write_text(json.dumps(content))
    with pytest.raises(CorruptDataError, match="no file of rows"):
        folder_of(place).compact(grace="0s")
    assert all((root / name).read_bytes() == b"precious" for name in ("precious", "p.parquet"))
    assert (Path(place.path) / "_region" / "region.json").exists()


def test_damaged_file_is_not_replaced(root: Path) -> None:
    place = begun(ParquetPlace(), root)
    Path(local_paths(place)[3]).write_bytes(b"damaged")
    before = local_paths(place)
    with pytest.raises(CorruptDataError, match="sequence=2/.*can't be merged"):
        folder_of(place).compact()
    assert local_paths(place) == before and folder_of(place)._generations().compaction_output_files() == []


# -- runs: each call at which a process dies, fails or is held


def _settled(place: FolderPlace, upto: int) -> None:
    """Whoever comes next: nothing is lost, nothing comes twice, nothing is left over."""
    sink = folder_of(place)
    assert same(rows(place), wanted(upto)), rows(place)
    for sequence in range(upto + 1, SEQUENCES + 3):
        publish(sink, sequence)
    for _ in range(3):
        sink.compact(grace="0s")
    sink.sweep(Keep(EPOCH + 1))
    assert same(rows(place), wanted(SEQUENCES + 2)), rows(place)
    assert place.staged() == []
    there = {str(path) for path in Path(place.path).glob("**/*.parquet") if "sequence=" not in str(path)}
    assert there == set(local_paths(place))
    if isinstance(place, ParquetPlace):
        assert same(place.rows(), wanted(SEQUENCES + 2)), "those who list the folder"


def killed_compactors(place: FolderPlace, root: Path) -> None:
    """A compactor dies at each call; readers of the list see the same rows, and so do those who have it already."""
    trials = Trials(begun(place, root), root, SHORT_EVERY)
    before = local_paths(place)
    for died in trials.deaths(compact):  # type: ignore[arg-type]
        assert same(rows(died), wanted()), rows(died)  # type: ignore[arg-type]
        assert same(read_all([path.replace(place.path, died.path) for path in before]), wanted())  # type: ignore[attr-defined]
        _settled(died, SEQUENCES)  # type: ignore[arg-type]


def killed_removals(place: FolderPlace, root: Path) -> None:
    """A compactor dies at each call while it removes what an earlier one has replaced, and merges more."""
    begun(place, root)
    folder_of(place).compact()
    publish(folder_of(place), SEQUENCES + 1)
    for died in Trials(place, root, SHORT_EVERY).deaths(compact_at_once):  # type: ignore[arg-type]
        if isinstance(died, ParquetPlace):
            listed = died.rows()
            assert not [row for row in listed if listed.count(row) > 1], "those who list see nothing twice"
            folder_of(died).sweep(Keep(EPOCH))
        _settled(died, SEQUENCES + 1)  # type: ignore[arg-type]


def _holding(
    place: FolderPlace, root: Path, act: Callable[[ParquetFolder], None], meanwhile: Callable[[FolderPlace], None]
) -> Iterator[FolderPlace]:
    yield from Trials(place, root).holds(act, lambda trial, number: meanwhile(trial))  # type: ignore[misc, arg-type]


def published_meanwhile(place: FolderPlace, root: Path) -> None:
    """A sequence is published at each call of a compactor."""

    def meanwhile(trial: FolderPlace) -> None:
        publish(folder_of(trial), SEQUENCES + 1)
        assert same(rows(trial), wanted(SEQUENCES + 1))

    for trial in _holding(begun(place, root), root, compact, meanwhile):
        _settled(trial, SEQUENCES + 1)


def second_compactor(place: FolderPlace, root: Path) -> None:
    """Another compactor does all of it at each call of the first; also one that merges more, and removes at once."""
    for more in (False, True):

        def meanwhile(trial: FolderPlace, more: bool = more) -> None:
            if more:
                publish(folder_of(trial), SEQUENCES + 1)
            for _ in range(1 + 2 * more):
                folder_of(trial).compact(grace="0s" if more else "15m")
            assert same(rows(trial), wanted(SEQUENCES + more))

        def act(sink: ParquetFolder) -> None:
            with contextlib.suppress(RetriableError):
                sink.compact()

        for trial in _holding(begun(copy.copy(place), root / str(more)), root / str(more), act, meanwhile):
            _settled(trial, SEQUENCES + more)


def compacted_under_a_publisher(place: FolderPlace, root: Path) -> None:
    """A publisher of an older sequence is held at each call while others publish, compact and remove."""
    begun(place, root, SEQUENCES - 1)

    def meanwhile(trial: FolderPlace) -> None:
        sink = folder_of(trial)
        for sequence in (SEQUENCES, SEQUENCES + 1):
            publish(sink, sequence)
        for _ in range(2):
            sink.compact(grace="0s")
        assert same(rows(trial), wanted(SEQUENCES + 1))

    for trial in _holding(place, root, lambda sink: publish(sink, SEQUENCES), meanwhile):
        _settled(trial, SEQUENCES + 1)


def emptied_under_a_compactor(place: FolderPlace, root: Path) -> None:
    """The folder is emptied at each call of a compactor, and what was read again is published."""

    def act(sink: ParquetFolder) -> None:
        with contextlib.suppress(RetriableError, CorruptDataError):
            sink.compact(grace="0s")

    def meanwhile(trial: FolderPlace) -> None:
        sink = folder_of(trial)
        sink.empty(SEQUENCES + 1, EPOCH)
        assert rows(trial) == []
        publish(sink, SEQUENCES + 2)

    for trial in _holding(begun(place, root), root, act, meanwhile):
        assert same(rows(trial), rows_of(SEQUENCES + 2)), rows(trial)
        for _ in range(2):
            folder_of(trial).compact(grace="0s")
        assert same(rows(trial), rows_of(SEQUENCES + 2)), rows(trial)


def failing_requests(place: FolderPlace, root: Path) -> None:
    """Each call fails, before or after it has happened; the compactor is started again."""
    trials = Trials(begun(place, root), root, SHORT_EVERY)
    for number in range(1, trials.steps(compact) + 1, 1 if IS_LONG else SHORT_EVERY):  # type: ignore[arg-type]
        for happened in (False, True):
            with trials.copy() as trial:
                calls = Calls()

                def fail(now: int, call: str, *, at: int = number) -> None:
                    if now == at:
                        raise OSError(5, "Input/output error")

                calls.after, calls.at = (fail, calls.at) if happened else (calls.after, fail)
                with contextlib.suppress(OSError, RetriableError):
                    folder_of(trial, calls).compact()  # type: ignore[arg-type]
                _settled(trial, SEQUENCES)  # type: ignore[arg-type]


RUNS = (
    killed_compactors,
    killed_removals,
    published_meanwhile,
    second_compactor,
    compacted_under_a_publisher,
    emptied_under_a_compactor,
    failing_requests,
)


@pytest.mark.parametrize("kind", ["folder", "store"])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_run(run: Callable[[FolderPlace, Path], None], kind: str, root: Path) -> None:
    run(KINDS[kind](), root)


def _listed_ids(volume: Volume) -> list[int]:
    """Return the ids in the files of the list, on a disk in memory."""
    sink, calls = folder_runs.process(volume)
    found: list[int] = []
    for file in sink.published_files():
        data = bytes(calls._walk(file.path).data)
        found += pq.ParquetFile(pa.BufferReader(data)).read()["id"].to_pylist()
    return sorted(found)


def power_lost() -> None:
    """A compactor dies at each call, and the machine loses its power: readers of the list see all rows."""
    base = folder_runs.begun()
    sink, _ = folder_runs.process(base)
    sink.publish(1, folder_runs.KEYS)
    sink.publish(2, folder_runs.NEXT)
    done = copy.deepcopy(base)
    folder_runs.process(done)[0].compact()
    rows = folder_runs.FIRST + folder_runs.SECOND
    for start, act in ((base, compact), (done, compact_at_once)):
        for seed, died in enumerate(itertools.islice(folder_runs.deaths(start, act), 0, None, 3)):
            died.lose_power(random.Random(seed))
            assert _listed_ids(died) == rows, "after a power loss"
            for _ in range(2):
                folder_runs.process(died)[0].compact(grace="0s")
            assert _listed_ids(died) == rows
            shown = [number for ids in folder_runs.seen(died).values() for number in ids]
            assert sorted(shown) == rows, "those who list the folder"


def test_power_lost() -> None:
    power_lost()


def test_merged_files_survive_a_power_loss_in_folders_that_another_compactor_made() -> None:
    """That one died before it had synced their names."""
    volume = Volume()
    _, calls = folder_runs.process(volume)
    for folder in ("/out", "/out/_region"):
        compaction_files.make_folder(calls, folder)
    for folder in ("/out/_compacted", "/out/_compacted/a=1"):
        calls.mkdir(folder)
    generations, path = FolderGenerations(calls, "/out", REGION), "_compacted/a=1/b=2/x.parquet"
    size = generations.write_merged_file(path, lambda output: output.write(b"rows") and None)
    files = {path: compaction.ParquetFileEntry(size, 1, 2)}
    assert generations.create_generation(Generation(1, REGION, 1, 2, files, {}, ""))
    volume.lose_power(LosesAll())
    assert list(generations.read_newest_generation().files) == [path] and generations.read_content(path) == b"rows"


def test_power_loss_kills_a_compaction_that_syncs_no_names(monkeypatch: Patch) -> None:
    monkeypatch.setattr(folder_generations, "sync_folder", lambda files, path: None)
    with pytest.raises((AssertionError, KafkaError, FileNotFoundError)):
        power_lost()


# -- planted faults


def _removes_what_a_generation_names(patch: Patch) -> None:
    whole = Compactor._attempt

    def attempt(self: Compactor, *args: Any) -> Any:
        store = self._store
        base = store.newest_generation()
        store.remove_files([path for path in store.compaction_output_files() if path in base.files])
        return whole(self, *args)

    patch.setattr(Compactor, "_attempt", attempt)


def _removes_what_is_being_written(patch: Patch) -> None:
    whole = Compactor._attempt

    def attempt(self: Compactor, *args: Any) -> Any:
        store, base = self._store, self._store.newest_generation()
        store.remove_files(
            [path for path in store.compaction_output_files() if path not in base.files and path not in base.replaced]
        )
        return whole(self, *args)

    patch.setattr(Compactor, "_attempt", attempt)


def _removes_at_once(patch: Patch) -> None:
    for kind in (FolderGenerations, StoreGenerations):
        whole = kind.create_generation

        def create(self: Any, generation: Generation, whole: Any = whole) -> bool:
            done = bool(whole(self, generation))
            self.remove_replaced_files(generation, list(generation.replaced))
            return done

        patch.setattr(kind, "create_generation", create)


def _replaces_without_condition(patch: Patch) -> None:
    def link(self: FolderGenerations, generation: Generation) -> bool:
        name = self._generation_path(generation.generation)
        self._files.rename(_written(self, generation), name)
        return True

    def _written(self: FolderGenerations, generation: Generation) -> str:
        temporary = f"{self._path}/_region/{generation.attempt}.part"
        compaction_files.write_file(self._files, temporary, compaction.msgspec.json.encode(generation))
        return temporary

    def put(self: StoreGenerations, generation: Generation) -> bool:
        path = f"_sequences/{compaction.GENERATION}{generation.generation:020}"
        self._store.put_object(path, compaction.msgspec.json.encode(generation))
        return True

    patch.setattr(FolderGenerations, "create_generation", link)
    patch.setattr(StoreGenerations, "create_generation", put)


def _drops_what_is_published_meanwhile(patch: Patch) -> None:
    for kind in (FolderGenerations, StoreGenerations):
        whole = kind.create_generation

        def create(self: Any, generation: Generation, whole: Any = whole) -> bool:
            last = max((file.about.last for file in self.list_sequence_files(0, 1000)), default=generation.upto)
            return bool(whole(self, compaction.msgspec.structs.replace(generation, upto=max(last, generation.upto))))

        patch.setattr(kind, "create_generation", create)


def _removes_after_an_unknown_outcome(patch: Patch) -> None:
    for kind in (FolderGenerations, StoreGenerations):
        whole = kind.create_generation

        def create(self: Any, generation: Generation, whole: Any = whole) -> bool:
            try:
                return bool(whole(self, generation))
            except (OSError, RetriableError):
                return False

        patch.setattr(kind, "create_generation", create)


def _empties_without_a_fence(patch: Patch) -> None:
    patch.setattr(Compactor, "create_empty_generation", lambda self, sequence: None)


MUTANTS: tuple[tuple[Callable[[Patch], None], str, Callable[[FolderPlace, Path], None]], ...] = (
    (_removes_what_a_generation_names, "folder", killed_removals),
    (_removes_what_a_generation_names, "store", killed_removals),
    (_removes_what_is_being_written, "folder", second_compactor),
    (_removes_what_is_being_written, "store", second_compactor),
    (_removes_at_once, "folder", killed_compactors),
    (_removes_at_once, "store", killed_compactors),
    (_replaces_without_condition, "folder", second_compactor),
    (_replaces_without_condition, "store", second_compactor),
    (_drops_what_is_published_meanwhile, "folder", published_meanwhile),
    (_drops_what_is_published_meanwhile, "store", published_meanwhile),
    (_removes_after_an_unknown_outcome, "folder", failing_requests),
    (_empties_without_a_fence, "folder", emptied_under_a_compactor),
)


@pytest.mark.parametrize(("mutant", "kind", "run"), MUTANTS, ids=lambda part: getattr(part, "__name__", part))
def test_the_run_kills_the_mutant(
    mutant: Callable[[Patch], None],
    kind: str,
    run: Callable[[FolderPlace, Path], None],
    root: Path,
    monkeypatch: Patch,
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KafkaError, FileNotFoundError, pa.ArrowException)):
        run(KINDS[kind](), root)
