"""A keyed state that moves to another member, which is killed, whose store breaks off, or whose files are others."""

from __future__ import annotations

import copy
import errno
import itertools
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from kohort.errors import CorruptDataError, InvalidInputError, RetriableError
from kohort.region.keyed_state.place import FolderStateStore, KeyedState, RegionStateStore
from kohort.region.keyed_state.state_files import ReadPart, encode_file_header, entry_of_file, partition_folder_name
from kohort.region.keyed_state.states import KeyedStateCopy, KeyedStates, LoadedKeyedState, StateMapping
from kohort.region.records import KeyedStateChainHead, Part
from kohort.region.sinks.availability import is_temporary_error
from tests.region.s3_server import LossyProxy
from tests.region.test_parquet_s3 import options
from tests.region.volume import Calls, Volume

REGION_ID = UUID(int=6)
PART = Part("etl", "orders", 3, UUID(int=5))
FILE_BYTES = 20_000
KEYS = {b"%05d" % number: b"%d" % number * 20 for number in range(1_000)}
CHANGES = {b"+%05d" % number: b"y" * 100 for number in range(500)}


def mapping(state: LoadedKeyedState) -> StateMapping:
    return StateMapping(state, lambda: True)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("state_files", "states"):
        monkeypatch.setattr(f"kohort.region.keyed_state.{name}.FILE_BYTES", FILE_BYTES)


def save(place: RegionStateStore) -> LoadedKeyedState:
    """A state with a base of several pieces, and several deltas."""
    state = LoadedKeyedState(PART, place, None, None)
    mapping(state).update(KEYS)
    state.save(1)
    mapping(state).update(CHANGES)
    state.save(2)
    kinds = [file.kind for file in state._chain]
    assert kinds.count("base") > 2 and kinds.count("delta") > 2
    return state


def load(
    place: RegionStateStore, head: KeyedStateChainHead | None, work_folder: Path | None = None
) -> dict[bytes, bytes]:
    """The state as another member loads it."""
    state = LoadedKeyedState(PART, place, head, None if work_folder is None else str(work_folder))
    try:
        return dict(mapping(state))
    finally:
        state.close()


# -- Files that are not those that were saved


def flip_last(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def flip_head(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)


def tear(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def grow(path: Path) -> None:
    os.truncate(path, 1 << 28)  # sparse


def empty(path: Path) -> None:
    path.write_bytes(b"")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to(moved)


def program(path: Path) -> None:
    """A database that would run something of its own."""
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE state (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
        database.execute("CREATE TRIGGER t AFTER INSERT ON state BEGIN DELETE FROM state; END")
    database.close()


@pytest.mark.parametrize("number", [0, 1, -2, -1], ids=["first piece", "second piece", "a delta", "newest"])
@pytest.mark.parametrize(
    "damage", [flip_last, flip_head, tear, grow, empty, pipe, link, program], ids=lambda damage: damage.__name__
)
def test_file_that_is_not_the_one_that_was_saved_is_refused_and_nothing_is_lost(
    tmp_path: Path, number: int, damage: Callable[[Path], None]
) -> None:
    place = KeyedState(tmp_path / "states").bind(REGION_ID)
    state = save(place)
    path = tmp_path / "states" / REGION_ID.hex / partition_folder_name(PART) / state._chain[number].name
    kept = path.read_bytes()
    damage(path)
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises((CorruptDataError, InvalidInputError)) as refused:
        load(place, state.head, work)
    assert path.name in refused.value.message, "the error names the file"
    assert not list(work.iterdir()), "nothing of a working copy is left"
    path.unlink()
    path.write_bytes(kept)
    assert load(place, state.head, work) == KEYS | CHANGES
    state.close()


def test_file_of_another_size_is_not_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger who writes to the place can't make a member read more than was saved."""
    place = KeyedState(tmp_path).bind(REGION_ID)
    state = save(place)
    folder = tmp_path / REGION_ID.hex / partition_folder_name(PART)
    for file in state._chain:
        grow(folder / file.name)
    read, sizes = FolderStateStore.read, list[int]()

    def counted(store: FolderStateStore, folder: str, name: str) -> Generator[ReadPart, None, None]:
        for part in read(store, folder, name):
            sizes.append(len(part))
            yield part

    monkeypatch.setattr(FolderStateStore, "read", counted)
    with pytest.raises(CorruptDataError, match="larger than the file that was saved"):
        load(place, state.head)
    assert sum(sizes) < 8 << 20
    state.close()


@pytest.mark.timeout(30)  # one that waits for a right to write never ends
def test_pieces_that_can_not_be_read_keep_no_right_to_write(tmp_path: Path) -> None:
    place = KeyedState(tmp_path).bind(REGION_ID)

    def unreadable(head: bytes) -> bytearray:
        raise sqlite3.DatabaseError("the working copy of a keyed state became shorter")

    for _ in range(6):
        with pytest.raises(sqlite3.DatabaseError):
            place.write_base_files(PART, 1, [bytearray, unreadable])
    assert len(place.write_base_files(PART, 1, [bytearray, bytearray])) == 2


@pytest.mark.parametrize(
    "more",
    [
        "CREATE TRIGGER t AFTER INSERT ON state BEGIN DELETE FROM state; END",
        "CREATE TABLE other (a)",
        "CREATE INDEX i ON state (value)",
        "DROP TABLE state",
        "ALTER TABLE state RENAME TO kept; CREATE VIEW state AS SELECT * FROM kept",
    ],
    ids=["trigger", "table", "index", "nothing", "view"],
)
def test_database_with_more_than_the_table_is_refused(tmp_path: Path, more: str) -> None:
    """A member of another program, which has the right to save, has saved it: its digest is right."""
    path = tmp_path / "made"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE state (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
        database.executescript(more)
    database.close()
    place = KeyedState(tmp_path / "states").bind(REGION_ID)
    content = bytearray(encode_file_header("base", []) + path.read_bytes())
    [file] = place.write_base_files(PART, 1, [lambda head: content])
    with pytest.raises(CorruptDataError, match="is another database"):
        load(place, KeyedStateChainHead(1, 1, file.digest, file.size))


def test_piece_of_another_state_is_refused(tmp_path: Path) -> None:
    """The digest is the one that the newest file names; but the piece lists other files before itself."""
    place = KeyedState(tmp_path).bind(REGION_ID)
    strange = encode_file_header("base", [entry_of_file(7, "base", b"other")]) + bytes(100)
    first = entry_of_file(1, "base", strange)
    place._store.write(f"{REGION_ID.hex}/{partition_folder_name(PART)}", first.name, strange)
    newest = place.append_deltas(PART, 2, [first], [b"\x90"])[-1]
    with pytest.raises(CorruptDataError, match="a part of another state"):
        load(place, KeyedStateChainHead(1, 2, newest.digest, 1000))


# -- The working copy while it is filled


def test_working_copy_has_no_name_and_no_neighbour_while_it_is_filled(tmp_path: Path) -> None:
    """SQLite reads a journal beside a file when it first reads the file: nobody else can put one there."""
    seen: list[tuple[int, list[str]]] = []

    def fill(write: Callable[[int, ReadPart], None]) -> None:
        [folder] = tmp_path.iterdir()
        seen.append((stat.S_IMODE(folder.stat().st_mode), os.listdir(folder)))
        write(0, b"no database" * 1000)

    with pytest.raises(CorruptDataError, match="no database"):
        KeyedStateCopy(str(tmp_path), fill)
    assert seen == [(0o700, [])] and not list(tmp_path.iterdir())


def test_changes_are_applied_in_the_order_of_keys() -> None:
    """In any other order each change reads and writes a page of its own: a state of 1 GB then takes minutes."""
    copy, said = KeyedStateCopy(None), list[str]()
    copy.apply_changes({b"%03d" % number: b"" for number in range(100)})
    copy._database.set_trace_callback(said.append)
    copy.apply_changes({b"%03d" % (number * 37 % 100): None if number % 3 else b"new" for number in range(100)})
    for word in ("DELETE", "INSERT"):
        lines = [line for line in said if line.startswith(word)]
        assert len(lines) > 20 and lines == sorted(lines)
    copy.close()


LOADER = r"""
import os, sys, time
from uuid import UUID
from kohort.region.keyed_state.place import FolderStateStore, KeyedState
from kohort.region.keyed_state.states import LoadedKeyedState
from kohort.region.records import Part, KeyedStateChainHead

folder, work, base, sequence, digest, size = sys.argv[1:]
head, read = KeyedStateChainHead(int(base), int(sequence), bytes.fromhex(digest), int(size)), FolderStateStore.read

def slow(store, folder, name):
    yield from read(store, folder, name)
    if digest not in name:
        os.write(1, b"reads\n")  # several threads read
        time.sleep(60)

FolderStateStore.read = slow
LoadedKeyedState(Part("etl", "orders", 3, UUID(int=5)), KeyedState(folder).bind(UUID(int=6)), head, work)
"""


def test_member_that_is_killed_while_it_loads_leaves_no_file_and_loses_nothing(tmp_path: Path) -> None:
    place = KeyedState(tmp_path / "states").bind(REGION_ID)
    state = save(place)
    assert state.head is not None
    work = tmp_path / "work"
    work.mkdir()
    head = (str(state.head.base), str(state.head.sequence), state.head.digest.hex(), str(state.head.size))
    command = [sys.executable, "-c", LOADER, str(tmp_path / "states"), str(work), *head]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as loading:
        assert loading.stdout is not None and loading.stdout.readline() == b"reads\n"
        loading.send_signal(signal.SIGKILL)
    left = [path for path in work.rglob("*") if not path.is_dir()]
    assert not left, "a killed member takes its copy along"
    assert load(place, state.head, work) == KEYS | CHANGES
    state.close()


# -- Stores that break off


def test_download_that_breaks_off_is_repeated(store: str) -> None:
    """The server ends connections in the middle of a file, and answers with 503."""
    cut, refused = set[str](), set[str]()

    def first_time(seen: set[str], method: str, path: str) -> bool:
        again = path in seen or method != "GET" or not path.endswith(".state")
        seen.add(path)
        return not again

    proxy = LossyProxy(
        store,
        lambda method, path: False,
        before=partial(first_time, refused),
        cuts=partial(first_time, cut),
    )
    try:
        url = f"s3://lake/{uuid4().hex}/states"
        state = save(KeyedState(url, storage_options=options(store)).bind(REGION_ID))
        place = KeyedState(url, storage_options=options(proxy.address)).bind(REGION_ID)
        found, failures = None, list[RetriableError]()
        while found is None:
            try:
                found = load(place, state.head)
            except RetriableError as error:
                failures.append(error)
        assert len(failures) > 1 and all(map(is_temporary_error, failures)), "the member waits, and tries again"
        assert len(cut) == len(state._chain) and found == KEYS | CHANGES
        state.close()
    finally:
        proxy.close()


def test_base_of_which_a_piece_could_not_be_saved_is_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = KeyedState(tmp_path).bind(REGION_ID)
    state = LoadedKeyedState(PART, place, None, None)
    mapping(state).update(KEYS)
    write, written, fails_at = FolderStateStore.write, list[str](), [1, 0, 2]

    def fails(store: FolderStateStore, folder: str, name: str, content: ReadPart) -> None:
        written.append(name)
        if fails_at and len(written) > fails_at[0]:
            raise OSError(errno.EIO, "the file server is away")
        write(store, folder, name, content)

    monkeypatch.setattr(FolderStateStore, "write", fails)
    while fails_at:
        with pytest.raises(OSError, match="away"):
            state.save(1)
        assert state.head is None
        written.clear()
        fails_at.pop(0)
    state.save(1)
    assert len(written) > 2 and load(place, state.head) == KEYS
    state.close()


def test_folders_of_states_survive_a_power_loss_whichever_sync_has_failed() -> None:
    """The call that made a folder may fail before the folder's name is on the disk; the next call finds the folder."""
    folder = f"{REGION_ID.hex}/{partition_folder_name(PART)}"
    for failing in range(1, 6):
        volume = Volume()
        calls = Calls(volume)
        syncs = itertools.count(1)

        def fails(number: int, name: str, path: str, *, at: int = failing, syncs: Iterator[int] = syncs) -> None:
            if name == "fsync" and next(syncs) == at:
                raise OSError(errno.EIO, "the disk fails", path)

        calls.at = fails
        store = FolderStateStore("/states", calls)
        with pytest.raises(OSError, match="the disk fails"):
            store.write(folder, "first", b"1")
        store.write(folder, "first", b"1")
        for chance in range(20):
            lost = copy.deepcopy(volume)
            lost.lose_power(random.Random(chance))
            assert b"".join(FolderStateStore("/states", Calls(lost)).read(folder, "first")) == b"1"


# -- Resets


@pytest.fixture
def states(tmp_path: Path) -> Iterator[KeyedStates]:
    """The states of a member, with one that was saved for sequence 1."""
    kept = KeyedStates(KeyedState(tmp_path).bind(REGION_ID), None)
    kept.set_saved_state(PART, None)
    mapping(kept.state_of(PART))[b"a"] = b"saved"
    kept.save(1)
    yield kept
    kept.close()


def test_copy_that_is_as_it_was_saved_stays_at_a_reset(states: KeyedStates) -> None:
    """A member dies, and the region resets: the others do not load their own states again."""
    before = states.state_of(PART)
    mapping(before)[b"a"] = b"not saved"
    states.forget_all_partitions()
    states.set_saved_state(PART, before.head)
    assert states.state_of(PART) is before and dict(mapping(before)) == {b"a": b"saved"}
    mapping(before)[b"b"] = b"after it"
    head = states.save(2)[PART]
    assert dict(mapping(LoadedKeyedState(PART, states.store, head, None))) == {b"a": b"saved", b"b": b"after it"}


def test_copy_that_has_changes_which_were_not_saved_is_loaded_again(
    states: KeyedStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = states.state_of(PART)
    mapping(before)[b"a"] = b"not saved"
    assert list(mapping(before)) == [b"a"], "this has put the change into the copy"
    states.forget_all_partitions()
    states.set_saved_state(PART, before.head)
    again = states.state_of(PART)
    assert again is not before and dict(mapping(again)) == {b"a": b"saved"}
    mapping(again)[b"a"] = b"not saved either"
    with monkeypatch.context() as patching:
        patching.setattr(FolderStateStore, "write", lambda *given: _raise(OSError(errno.EIO, "away")))
        with pytest.raises(OSError, match="away"):
            states.save(2)
    states.forget_all_partitions()
    states.set_saved_state(PART, before.head)
    assert dict(mapping(states.state_of(PART))) == {b"a": b"saved"}


def _raise(error: Exception) -> Any:
    raise error


def test_copy_that_was_saved_for_an_attempt_which_failed_is_loaded_again(states: KeyedStates) -> None:
    before = states.state_of(PART)
    head = before.head
    mapping(before)[b"a"] = b"of a failed attempt"
    states.save(2)
    states.forget_all_partitions()
    states.set_saved_state(PART, head)
    assert dict(mapping(states.state_of(PART))) == {b"a": b"saved"}


def test_copy_of_a_partition_that_moved_at_a_reset_is_removed_with_the_next_save(states: KeyedStates) -> None:
    before = states.state_of(PART)
    states.forget_all_partitions()
    states.save(2)
    states.close_forgotten_copies()
    with pytest.raises(sqlite3.ProgrammingError):
        before.value(b"a")
    states.set_saved_state(PART, before.head)
    assert dict(mapping(states.state_of(PART))) == {b"a": b"saved"}
