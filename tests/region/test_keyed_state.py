"""Keyed states: the mapping, its files, and what moves with a partition."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.keyed_state import states as states_module
from kohort.region.keyed_state.place import FolderStateStore, KeyedState, RegionStateStore, SweepOrder
from kohort.region.keyed_state.state_files import OBJECTS_BYTES, ReadPart, file_name, partition_folder_name
from kohort.region.keyed_state.states import KeyedStates, LoadedKeyedState, StateMapping
from kohort.region.records import Part
from tests.region.test_parquet_s3 import options

REGION_ID, TOPIC_ID = UUID(int=6), UUID(int=5)
PART = Part("etl", "orders", 3, TOPIC_ID)


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> RegionStateStore:
    if request.param == "folder":
        return KeyedState(tmp_path / "states").bind(REGION_ID)
    address = request.getfixturevalue("store")
    url = f"s3://lake/{uuid4().hex}/states"
    bound = KeyedState(url, storage_options=options(address)).bind(REGION_ID)
    bound.check_access()
    return bound


def mapping(state: LoadedKeyedState) -> StateMapping:
    return StateMapping(state, lambda: True)


def loaded(place: RegionStateStore, state: LoadedKeyedState) -> LoadedKeyedState:
    """A state as another member loads it."""
    return LoadedKeyedState(PART, place, state.head, None)


def test_state_is_a_mapping_of_bytes_to_bytes_in_the_order_of_keys(place: RegionStateStore) -> None:
    state = mapping(LoadedKeyedState(PART, place, None, None))
    assert dict(state) == {} and len(state) == 0 and b"a" not in state
    state[b"b"], state[b"a"] = b"2", b"1"
    state[b"b"] = b"3"
    assert state[b"b"] == b"3" and list(state) == [b"a", b"b"] and len(state) == 2
    del state[b"a"]
    with pytest.raises(KeyError):
        state[b"a"]
    with pytest.raises(KeyError):
        del state[b"a"]
    assert dict(state) == {b"b": b"3"} and state.get(b"a", b"none") == b"none"


def test_what_is_saved_is_what_another_member_loads(place: RegionStateStore) -> None:
    state = LoadedKeyedState(PART, place, None, None)
    wanted: dict[bytes, bytes] = {}
    for sequence in range(1, 60):
        with_state = mapping(state)
        for number in range(sequence, sequence + 5):
            wanted[b"%d" % (number % 17)] = with_state[b"%d" % (number % 17)] = b"x" * sequence
        gone = b"%d" % (sequence % 5)
        if wanted.pop(gone, None) is not None:
            del with_state[gone]
        state.save(sequence)
        if sequence % 7 == 0:  # it moves
            state.close()
            state = loaded(place, state)
        assert dict(mapping(state)) == wanted
    assert dict(mapping(loaded(place, state))) == wanted


@pytest.mark.parametrize("size", [1, 20_000], ids=["small values", "large values"])
def test_changes_at_once_are_all_there(tmp_path: Path, size: int) -> None:
    place = KeyedState(tmp_path).bind(REGION_ID)
    state = LoadedKeyedState(PART, place, None, None)
    wanted = {b"%d" % number: b"a" * size for number in range(1_100)}
    mapping(state).update(wanted)
    state.save(1)
    again = {b"%d" % number: b"b" * (size + number % 2) for number in range(500, 1_700)}
    mapping(state).update(again)
    for number in range(0, 400, 3):
        del mapping(state)[b"%d" % number]
    state.save(2)
    wanted = {key: value for key, value in wanted.items() if int(key) >= 400 or int(key) % 3} | again
    assert dict(mapping(state)) == wanted
    assert dict(mapping(loaded(place, state))) == wanted
    state.close()


def test_unchanged_state_writes_nothing(place: RegionStateStore, tmp_path: Path) -> None:
    state = LoadedKeyedState(PART, place, None, None)
    state.save(1)
    assert state.head is None
    mapping(state)[b"a"] = b"1"
    state.save(2)
    head = state.head
    state.save(3)
    assert state.head == head and head is not None and head.sequence == 2


def test_state_of_many_pieces_is_loaded_as_it_was(place: RegionStateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("state_files", "states"):
        monkeypatch.setattr(f"kohort.region.keyed_state.{name}.FILE_BYTES", 10_000)
    state = LoadedKeyedState(PART, place, None, None)
    wanted = {b"%05d" % number: b"%d" % number * 20 for number in range(3_000)}
    mapping(state).update(wanted)
    state.save(1)
    assert len(state._chain) > 10
    more = {b"+%05d" % number: b"y" * 100 for number in range(300)}
    mapping(state).update(more)
    state.save(2)
    assert [file.kind for file in state._chain].count("delta") > 1
    assert dict(mapping(loaded(place, state))) == wanted | more


def test_a_new_base_lets_the_files_before_it_be_swept(place: RegionStateStore) -> None:
    state, heads = LoadedKeyedState(PART, place, None, None), []
    for sequence in range(1, 40):
        mapping(state)[b"key"] = b"%d" % sequence * 10_000
        state.save(sequence)
        heads.append(state.head)
        assert state.head is not None
        place.sweep(SweepOrder(PART, state.head))
        assert dict(mapping(loaded(place, state))) == {b"key": b"%d" % sequence * 10_000}
    assert len({head.base for head in heads if head is not None}) > 1
    assert heads[-1] is not None
    folder = f"{REGION_ID.hex}/{partition_folder_name(PART)}"
    assert len(place._store.list_files(folder)) == len(state._chain)
    with pytest.raises(CorruptDataError, match="give all members the place where it was saved"):
        LoadedKeyedState(PART, place, heads[0], None)


def written_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of files that are saved from now on."""
    sizes, write = list[int](), FolderStateStore.write

    def counted(store: FolderStateStore, folder: str, name: str, content: ReadPart) -> None:
        sizes.append(len(content))
        write(store, folder, name, content)

    monkeypatch.setattr(FolderStateStore, "write", counted)
    return sizes


@pytest.mark.parametrize("keys", [1, 10_000], ids=["one key", "any key"])
def test_checkpoints_write_in_proportion_to_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    """A checkpoint with few changes neither writes the whole state nor leaves files behind, after however many."""
    place = KeyedState(tmp_path).bind(REGION_ID)
    states = KeyedStates(place, None)
    states.set_saved_state(PART, None)
    state = states.state_of(PART)
    wanted = {b"%d" % number: bytes(200) for number in range(20_000)}
    mapping(state).update(wanted)
    states.save(1)
    sizes = written_bytes(monkeypatch)
    chance, changed = random.Random(7), 0
    for sequence in range(2, 402):
        for _ in range(5):
            key, value = b"%d" % chance.randrange(keys), chance.randbytes(200)
            mapping(states.state_of(PART))[key] = wanted[key] = value
            changed += len(key) + len(value)
        states.save(sequence)
        for order in states.on_checkpoint_completed():
            place.sweep(order)
    assert state.head is not None and state.head.base == 1, "the base is the first one"
    assert sum(sizes) < 10 * changed and len(state._chain) < 36
    assert len(place._store.list_files(f"{REGION_ID.hex}/{partition_folder_name(PART)}")) < len(state._chain) + 33, (
        "others are swept"
    )
    assert dict(mapping(loaded(place, state))) == wanted
    states.close()


def test_changes_that_are_damaged_when_they_are_merged_are_saved_with_the_whole_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = KeyedState(tmp_path).bind(REGION_ID)
    place.deltas_max = 2
    state = LoadedKeyedState(PART, place, None, None)
    for sequence in range(1, 4):
        mapping(state)[b"%d" % sequence] = b"a"
        state.save(sequence)
    assert [file.kind for file in state._chain] == ["base", "delta", "delta"]
    (tmp_path / REGION_ID.hex / partition_folder_name(PART) / state._chain[1].name).write_bytes(b"torn")
    mapping(state)[b"4"] = b"a"
    state.save(4)
    assert [file.kind for file in state._chain] == ["base"] and "its changes are damaged" in caplog.text
    assert dict(mapping(loaded(place, state))) == {b"%d" % number: b"a" for number in range(1, 5)}
    state.close()


def test_a_base_that_shrank_is_written_smaller(place: RegionStateStore) -> None:
    state = LoadedKeyedState(PART, place, None, None)
    mapping(state).update({b"%d" % number: bytes(1_000) for number in range(2_000)})
    state.save(1)
    before = state.head
    mapping(state).clear()
    for sequence in range(2, 40):
        mapping(state)[b"left"] = bytes(200_000) + b"%d" % sequence
        state.save(sequence)
    assert before is not None and state.head is not None and state.head.base > 1
    assert state.head.size < before.size, "the removed keys are gone from the base"


def test_damaged_file_is_refused(tmp_path: Path) -> None:
    place = KeyedState(tmp_path).bind(REGION_ID)
    state = LoadedKeyedState(PART, place, None, None)
    mapping(state)[b"a"] = b"1"
    state.save(1)
    assert state.head is not None
    path = tmp_path / REGION_ID.hex / partition_folder_name(PART) / file_name(1, state.head.digest)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptDataError, match="has another digest"):
        loaded(place, state)


def test_abandoned_attempt_is_part_of_the_next(tmp_path: Path) -> None:
    """The files that an attempt has written count with the next one, which lists them."""
    place = KeyedState(tmp_path).bind(REGION_ID)
    states = KeyedStates(place, None)
    states.set_saved_state(PART, None)
    mapping(states.state_of(PART))[b"a"] = b"1"
    first = states.save(1)[PART]
    assert states.save(1)[PART] == first, "nothing has changed"
    mapping(states.state_of(PART))[b"b"] = b"2"
    head = states.save(1)[PART]
    assert head != first
    states.close()
    assert dict(mapping(LoadedKeyedState(PART, place, head, None))) == {b"a": b"1", b"b": b"2"}


def test_partition_that_is_not_asked_for_keeps_its_state(tmp_path: Path) -> None:
    place = KeyedState(tmp_path).bind(REGION_ID)
    state = LoadedKeyedState(PART, place, None, None)
    mapping(state)[b"a"] = b"1"
    state.save(4)
    states = KeyedStates(place, None)
    states.set_saved_state(PART, state.head)
    assert states.save(5) == {PART: state.head}
    assert state.head is not None
    assert states.on_checkpoint_completed() == [SweepOrder(PART, state.head)] and states.on_checkpoint_completed() == []


def test_state_of_a_partition_that_was_lost_counts_for_nothing(tmp_path: Path) -> None:
    states = KeyedStates(KeyedState(tmp_path).bind(REGION_ID), None)
    states.set_saved_state(PART, None)
    before = mapping(states.state_of(PART))
    before[b"a"] = b"1"
    states.forget_partitions([PART])
    before[b"b"] = b"2"  # the table in progress goes on
    mapping(states.state_of(PART))[b"c"] = b"3"
    states.set_saved_state(PART, None)
    states.close_forgotten_copies()
    assert dict(mapping(states.state_of(PART))) == {}
    states.close()


def test_state_is_not_used_behind_its_table(tmp_path: Path) -> None:
    current = [True]
    state = StateMapping(LoadedKeyedState(PART, KeyedState(tmp_path).bind(REGION_ID), None, None), lambda: current[0])
    state[b"a"] = b"1"
    current.clear()
    current.append(False)
    for use in (lambda: state[b"a"], lambda: state.update({b"a": b"2"}), lambda: len(state), lambda: list(state)):
        with pytest.raises(InvalidInputError, match="for each table"):
            use()


@pytest.mark.parametrize(
    ("key", "value"),
    [("a", b""), (b"a", "b"), (b"a" * 65_537, b""), (b"a", bytes(16 * 1024 * 1024 + 1))],
    ids=["a key that is text", "a value that is text", "a long key", "a long value"],
)
def test_what_is_no_key_or_value_is_refused(tmp_path: Path, key: bytes, value: bytes) -> None:
    state = mapping(LoadedKeyedState(PART, KeyedState(tmp_path).bind(REGION_ID), None, None))
    with pytest.raises(InvalidInputError):
        state[key] = value


def test_full_disk_of_the_working_copy_resets(tmp_path: Path) -> None:
    state = LoadedKeyedState(PART, KeyedState(tmp_path).bind(REGION_ID), None, None)
    state._copy._database.execute("PRAGMA max_page_count = 4")
    mapping(state).update({b"%d" % number: bytes(10_000) for number in range(100)})
    with pytest.raises(sqlite3.Error):
        state.save(1)


def test_changes_beyond_a_limit_want_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is on memory: a key that changes again and again takes no more of it."""
    monkeypatch.setattr(states_module, "CHANGED_BYTES", 2 * (900 + OBJECTS_BYTES))
    states = KeyedStates(KeyedState(tmp_path).bind(REGION_ID), None)
    states.set_saved_state(PART, None)
    state = mapping(states.state_of(PART))
    for number in range(100):
        state[b"a"] = b"%d" % number + bytes(900)
    del state[b"a"]
    state[b"a"] = bytes(900)
    assert not states.has_many_changes()
    state[b"b"] = bytes(900)
    assert states.has_many_changes()
    states.save(1)
    assert not states.has_many_changes()


def test_folders_of_partitions_differ() -> None:
    parts = [PART, PART._replace(group="other"), PART._replace(partition=4), PART._replace(topic_id=UUID(int=9))]
    assert max(Counter(map(partition_folder_name, parts)).values()) == 1
    assert len(partition_folder_name(PART._replace(topic="t" * 249))) < 200
