"""Keyed states in a region on a real broker: each row has the count that its partition has come to."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kohort.cli.app import run
from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region import KeyedState, Region, RegionStoppedError
from kohort.region.description import keyed_state_rows
from kohort.region.keyed_state.place import FolderStateStore
from tests.region.conftest import Collected, Worker, fill, make_topic
from tests.region.test_parquet_s3 import options as store_options
from tests.region.test_region import all_once, options
from tests.support.waiting import until

FAST: Any = {"checkpoint_every": "200ms"}
__all__ = ["options"]
KEYS = 10


class Counting(Worker):
    """A member that counts the records of each key in each partition, and submits the counts."""

    def rows_of(self, table: pa.Table) -> pa.Table:
        counts = []
        for value, number in zip(table["value"].to_pylist(), table["partition"].to_pylist(), strict=True):
            state = self.consumer.partition_state(table["topic"][0].as_py(), number)
            key = b"%d" % (int(value) // 4 % KEYS)
            counts.append(int(state.get(key, b"0")) + 1)
            state[key] = b"%d" % counts[-1]
        return table.select(["value"]).append_column("count", pa.array(counts, pa.int64()))


def counts_in(sink: Collected) -> dict[int, int]:
    """The counts that were published, by number."""
    tables = [sink.staged[key] for keys in sink.sequences.values() for key in keys]
    return {
        int(value): count
        for table in tables
        if table.num_columns
        for value, count in zip(table["value"].to_pylist(), table["count"].to_pylist(), strict=True)
    }


def wanted(numbers: range) -> dict[int, int]:
    """The counts that they should have: `fill` deals the numbers out to four partitions, in order."""
    so_far: Counter[tuple[int, int]] = Counter()
    found = {}
    for number in numbers:
        where = number % 4, number // 4 % KEYS
        so_far[where] += 1
        found[number] = so_far[where]
    return found


@pytest.fixture
def states(tmp_path: Path) -> KeyedState:
    return KeyedState(tmp_path / "states")


def test_states_move_with_partitions_that_come_and_go(
    servers: str, name: str, regions: list[Region], options: dict[str, Any], states: KeyedState
) -> None:
    make_topic(servers, name)
    fill(servers, name, range(1000))
    sink, region = Collected(), Region(name, servers, **FAST)
    regions.append(region)
    first = Counting(region, "m1", sink, name, keyed_state=states, **options)
    until(lambda: first.consumer.sequence > 0, "a sequence is complete")
    second = Counting(region, "m2", sink, name, keyed_state=states, **options)
    fill(servers, name, range(1000, 2000))
    until(lambda: second.consumer.metrics.partitions == 2, "the second has its share")
    fill(servers, name, range(2000, 3000))
    until(lambda: all_once(sink, range(3000)), "all is published")
    first.close()
    fill(servers, name, range(3000, 4000))
    until(lambda: all_once(sink, range(4000)), "the one that stays goes on")
    second.close()
    assert first.error is None and second.error is None
    assert counts_in(sink) == wanted(range(4000))


def test_states_go_back_with_a_reset_and_begin_anew(
    own_servers: str, name: str, regions: list[Region], states: KeyedState
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(400))
    sink, region = Collected(), Region(name, own_servers, checkpoint_every=None)
    regions.append(region)
    worker = Counting(region, "m1", sink, name, keyed_state=states)
    until(lambda: worker.consumer._flow.submitted == 400, "it has read all")
    worker.consumer.reset("what is behind it has failed")
    until(lambda: worker.consumer._flow.submitted == 800, "and again")
    worker.consumer.checkpoint()
    until(lambda: all_once(sink, range(400)), "it is published")
    fill(own_servers, name, range(400, 800))
    until(lambda: worker.consumer._flow.submitted == 1200, "it has read more")
    region.reset("a person")
    until(lambda: worker.consumer._flow.submitted == 1600, "and again")
    worker.consumer.checkpoint()
    until(lambda: all_once(sink, range(800)), "it is published")
    assert counts_in(sink) == wanted(range(800))
    region.reset("a person", to_initial=True, empty_sinks=True)
    until(lambda: worker.consumer._flow.submitted == 2400, "everything again")
    worker.consumer.checkpoint()
    until(lambda: all_once(sink, range(800)), "it is published")
    worker.close()
    assert counts_in(sink) == wanted(range(800)) and worker.error is None


def test_files_of_states_are_swept(
    own_servers: str, name: str, regions: list[Region], states: KeyedState, tmp_path: Path
) -> None:
    make_topic(own_servers, name)
    sink, region = Collected(), Region(name, own_servers, checkpoint_every=None)
    regions.append(region)
    worker = Counting(region, "m1", sink, name, keyed_state=states)
    for round_ in range(40):
        fill(own_servers, name, range(round_ * 20, round_ * 20 + 20))
        until(lambda end=round_ * 20 + 20: worker.consumer._flow.submitted == end, "it has read")
        worker.consumer.checkpoint()
        until(lambda end=round_ * 20 + 20: all_once(sink, range(end)), "it is published")
    folders = [folder for folder in (tmp_path / "states").glob("*/*") if folder.is_dir()]
    until(lambda: all(len(list(folder.iterdir())) < 34 for folder in folders), "the first bases are gone")
    worker.close()
    assert len(folders) == 4 and worker.error is None
    region.close()
    with Region(name, own_servers, serves=False) as over:
        folder = over.delete()
    assert folder and (tmp_path / "states" / folder).is_dir(), "a person is told what is left"
    (tmp_path / "states" / "others").mkdir()
    assert states.remove_region(folder) > 4 and states.remove_region(folder) == 0
    assert [path.name for path in (tmp_path / "states").iterdir()] == ["others"]
    with pytest.raises(InvalidInputError, match="no folder of a region's states"):
        states.remove_region("others")


def test_delete_removes_states_from_the_place_that_it_is_given(
    own_servers: str, name: str, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(200))
    sink, url = Collected(), f"s3://lake/{name}"
    with Region(name, own_servers, **FAST) as region:
        states = KeyedState(url, storage_options=store_options(store))
        worker = Counting(region, "m1", sink, name, keyed_state=states)
        until(lambda: all_once(sink, range(200)), "all is published")
        worker.close()
        [folder] = {path.split("/")[0] for path in states._store._store.list_names("")}
    for option, value in store_options(store).items():
        monkeypatch.setenv("AWS_" + option.upper(), value)
    command = ["region", "delete", name, "--bootstrap-server", own_servers, "--execute"]
    assert run([*command, "--keyed-state", url]) == 0
    shown = capsys.readouterr()
    assert "STATE-FILES-REMOVED" in shown.out and folder not in shown.err
    assert not states._store.list_files(folder)


def test_describe_shows_how_large_states_are(
    own_servers: str, name: str, regions: list[Region], states: KeyedState, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(200))
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    worker = Counting(region, "m1", sink, name, keyed_state=states)
    until(lambda: all_once(sink, range(200)), "all is published")
    [row] = keyed_state_rows(region.describe())
    assert row["keyed_states"] == 4 and row["bytes"] > row["largest"] > 100
    assert run(["region", "describe", name, "--bootstrap-server", own_servers]) == 0
    assert "KEYED-STATES" in capsys.readouterr().out
    worker.close()


def test_member_that_keeps_no_states_is_refused_beside_one_that_does_and_stops_the_region_after_it(
    own_servers: str, name: str, regions: list[Region], states: KeyedState
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(200))
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    worker = Counting(region, "m1", sink, name, keyed_state=states)
    until(lambda: all_once(sink, range(200)), "all is published")
    other = Worker(region, "m2", sink, name)
    other.thread.join(60)
    assert isinstance(other.error, RegionStoppedError) and "all members of the group, or to none" in str(other.error)
    worker.close()
    alone = Worker(region, "m1", sink, name)
    alone.thread.join(60)
    assert isinstance(alone.error, RegionStoppedError) and "have keyed states" in str(alone.error)
    assert "have keyed states" in region.describe().stopped


class StateProber(Worker):
    """A member that calls `probe` while each table is in progress."""

    probe: Any = staticmethod(lambda consumer, table: None)

    def rows_of(self, table: pa.Table) -> pa.Table:
        self.probe(self.consumer, table)
        return super().rows_of(table)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL):
        yield


@pytest.mark.usefixtures("quiet")
def test_state_is_of_a_partition_of_the_table_and_of_a_member_that_keeps_states(
    own_servers: str, name: str, regions: list[Region], states: KeyedState
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(20))
    region = Region(name, own_servers, **FAST)
    regions.append(region)
    asked: list[str] = []

    def probe(consumer: Any, table: pa.Table) -> None:
        for topic, number in ((name, 99), ("other", 0)):
            with pytest.raises(InvalidInputError) as refused:
                consumer.partition_state(topic, number)
            asked.append(refused.value.message)

    StateProber.probe = staticmethod(probe)
    kept = StateProber(region, "m1", Collected(), name, keyed_state=states)
    until(lambda: len(asked) >= 2, "it has asked")
    assert "no record of" in asked[0]
    with pytest.raises(InvalidInputError, match="in the loop over tables"):
        kept.consumer.partition_state(name, 0)
    kept.close()
    assert kept.error is None
    lacks = Worker(region, "m2", Collected(), name, group_id=f"{name}-2", reads_again=True)
    with pytest.raises(InvalidInputError, match="keyed_state=KeyedState"):
        lacks.consumer.partition_state(name, 0)
    lacks.close()


@pytest.mark.usefixtures("quiet")
def test_state_whose_files_are_gone_is_an_error_that_names_them(
    own_servers: str, name: str, regions: list[Region], tmp_path: Path
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(100))
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    worker = Counting(region, "m1", sink, name, keyed_state=KeyedState(tmp_path / "states"))
    until(lambda: all_once(sink, range(100)), "all is published")
    worker.close()
    fill(own_servers, name, range(100, 200))
    elsewhere = Counting(region, "m1", sink, name, keyed_state=KeyedState(tmp_path / "elsewhere"))
    elsewhere.thread.join(60)
    assert isinstance(elsewhere.error, CorruptDataError)
    assert "which is not in" in str(elsewhere.error) and "elsewhere" in str(elsewhere.error)
    again = Counting(region, "m1", sink, name, keyed_state=KeyedState(tmp_path / "states"))
    until(lambda: all_once(sink, range(200)), "with the right place it goes on")
    again.close()
    assert counts_in(sink) == wanted(range(200))


@pytest.mark.usefixtures("quiet")
def test_state_whose_file_is_damaged_is_an_error_and_with_the_file_again_nothing_is_lost(
    own_servers: str, name: str, regions: list[Region], states: KeyedState, tmp_path: Path
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(100))
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    worker = Counting(region, "m1", sink, name, keyed_state=states)
    until(lambda: all_once(sink, range(100)), "all is published")
    worker.close()
    files = {path: path.read_bytes() for path in (tmp_path / "states").rglob("*.state")}
    for path, content in files.items():
        path.write_bytes(content[: len(content) // 2])
    fill(own_servers, name, range(100, 200))
    torn = Counting(region, "m2", sink, name, keyed_state=states)
    torn.thread.join(60)
    assert isinstance(torn.error, CorruptDataError) and "is damaged" in str(torn.error)
    assert not region.describe().stopped
    for path, content in files.items():
        path.write_bytes(content)
    again = Counting(region, "m2", sink, name, keyed_state=states)
    until(lambda: all_once(sink, range(200)), "with the files as they were it goes on")
    again.close()
    assert counts_in(sink) == wanted(range(200))


@pytest.mark.parametrize("resets", [False, True], ids=["it comes back", "the region resets meanwhile"])
def test_place_that_is_away_is_waited_for(
    own_servers: str,
    name: str,
    regions: list[Region],
    states: KeyedState,
    monkeypatch: pytest.MonkeyPatch,
    *,
    resets: bool,
) -> None:
    """A file server does not answer when a state is loaded, and when it is saved."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(100))
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    first = Counting(region, "m1", sink, name, keyed_state=states)
    until(lambda: all_once(sink, range(100)), "all is published")
    first.close()
    fill(own_servers, name, range(100, 200))
    away, failed = [True], list[str]()
    read, write = FolderStateStore.read, FolderStateStore.write

    def fails(store: FolderStateStore, folder: str, name: str, *content: bytes) -> Any:
        if away and name != "probe":
            failed.append(name)
            raise OSError(errno.EIO, "the file server is away")
        return write(store, folder, name, *content) if content else read(store, folder, name)

    monkeypatch.setattr(FolderStateStore, "read", fails)
    monkeypatch.setattr(FolderStateStore, "write", fails)
    second = Counting(region, "m2", sink, name, keyed_state=states)
    until(lambda: len(failed) > 2, "it waits for its state")
    if resets:
        region.reset("a person")
        until(lambda: second.consumer.metrics.resets > 0, "the table is void")
    away.clear()
    until(lambda: all_once(sink, range(200)), "it goes on")
    away.append(True)
    seen = len(failed)
    fill(own_servers, name, range(200, 300))
    until(lambda: len(failed) > seen, "it can't save")
    away.clear()
    until(lambda: all_once(sink, range(300)), "it goes on")
    second.close()
    assert counts_in(sink) == wanted(range(300)) and second.error is None
