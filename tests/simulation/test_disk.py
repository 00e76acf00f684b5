"""Files in memory behave like the system's; the log on them loses nothing acknowledged, wherever it crashes."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from simulation.harness.files import DeadError, Files, Volume
from simulation.harness.world import WALL_START_MS, World
from simulation.mutants.disk_mutants import (
    CompactsNewestAway,
    DiskMutant,
    KeepsHoles,
    KeepsTornTail,
    ReplacesUnsynced,
    SyncsNoIndexes,
    SyncsNoNames,
    planted,
)
from simulation.run import Run

from kohort.log import LogConfig, Marker, OpenOptions, PartitionLog, compact_now
from kohort.log.damage import DamagedError
from kohort.log.files import FileCache
from kohort.log.filesystem import SYSTEM, FileSystem, read_file, sync_folder, write_file
from kohort.wire.records import read_records
from tests.log.making import keyed

FOLDER = Path("/data/t-0")
CONFIG = LogConfig(
    cleanup_policy=("compact",), segment_bytes=600, index_interval_bytes=100, flush_messages=1, delete_retention_ms=0
)


def none() -> None:
    """Do nothing."""


def opened(fs: FileSystem, *, verified_offset: int | None = None, config: LogConfig = CONFIG) -> PartitionLog:
    """Open the log as a restart does."""
    options = OpenOptions(clean=False, verified_offset=verified_offset, files=FileCache(3, 1, fs), topic_id=None)
    return PartitionLog.open(FOLDER, config, options, now_ms=WALL_START_MS)


def written(log: PartitionLog, acknowledged: dict[bytes, int]) -> None:
    """Write appends, a transaction and compactions."""
    for number in range(24):
        key = b"k%d" % (number % 5)
        log.append(keyed((key, b"%d" % number), (b"filler", bytes(number * 3))), WALL_START_MS + number)
        acknowledged[key] = number
        if number == 9:
            facts = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
            log.append(keyed((b"k0", b"1000"), **facts), WALL_START_MS)
            log.append_marker(Marker(3, 0, False, 0), WALL_START_MS)
        if number % 8 == 7:
            compact_now(log, WALL_START_MS + number)
            log.advance_leader_epoch(log.leader_epoch + 1)


def values(log: PartitionLog) -> dict[bytes, int]:
    """Return the last value of each key, without fillers and records of transactions."""
    found: dict[bytes, int] = {}
    for batch in log.iterate_batches(log.log_start_offset):
        for record in read_records(batch):
            if record.key is not None and record.key[:1] == b"k" and record.value not in (None, b"1000"):
                found[bytes(record.key)] = int(record.value or b"")
    return found


def played(dies_in: int, seed: int, *, power: bool) -> bool:
    """Play one process that crashes in this change, and its restart; return whether it made as many changes."""
    volume = Volume(World(seed), "/data")
    files = Files(volume, none)
    files.dies_in = dies_in
    acknowledged: dict[bytes, int] = {}
    with contextlib.suppress(DeadError):
        written(opened(files), acknowledged)
    died = files.dead
    files.dead = True
    if power:
        volume.lose_power()
    where = f"change {dies_in}, seed {seed}, power {'lost' if power else 'kept'}"
    for _ in range(2):
        log = opened(Files(volume, none), verified_offset=0 if power else None)
        assert log.recovery.damages == [], where
        found = values(log)
        for key, number in acknowledged.items():
            assert found.get(key, -1) >= number, f"{where}: {key!r} is {found.get(key)}, not {number}"
        log.append(keyed((b"k0", b"100")), WALL_START_MS)
        acknowledged[b"k0"] = 100
        if power:
            volume.lose_power()
    return died


@pytest.mark.parametrize("power", [False, True], ids=["process", "machine"])
def test_a_death_in_any_change_of_a_file_loses_nothing_acknowledged(power: bool) -> None:
    dies_in = 1
    while played(dies_in, dies_in, power=power):
        dies_in += 1
    assert dies_in > 200


MUTANTS = (KeepsTornTail, CompactsNewestAway, ReplacesUnsynced, SyncsNoNames, SyncsNoIndexes)


def deaths(count: int) -> None:
    """Play many processes, each of which crashes one change later than the one before."""
    for dies_in in range(1, count):
        played(dies_in, dies_in, power=False)
        played(dies_in, dies_in, power=True)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda kind: kind.__name__)
def test_that_kills_every_mutant_of_the_log(mutant: type[DiskMutant]) -> None:
    with planted(mutant), pytest.raises((AssertionError, DamagedError)):
        deaths(200)


def holes() -> None:
    """Write several batches, of which a power loss keeps any sectors."""
    config = replace(CONFIG, segment_bytes=10_000)
    left = set()
    for seed in range(60):
        volume = Volume(World(seed), "/data")
        files = Files(volume, none)
        log = opened(files, config=config)
        log.append(keyed((b"k0", b"1")), WALL_START_MS)
        files.dies_in = 2
        with pytest.raises(DeadError):
            log.append(b"".join(keyed((b"k0", b"2"), (b"filler", bytes(40))) for _ in range(9)), WALL_START_MS)
        volume.lose_power()
        again = opened(Files(volume, none), verified_offset=0, config=config)
        assert again.recovery.damages == []
        left.add(values(again)[b"k0"])
    assert left == {1, 2}


def test_a_write_that_is_kept_in_part_is_no_damage() -> None:
    holes()


def test_that_kills_who_takes_it_for_damage() -> None:
    with planted(KeepsHoles), pytest.raises(AssertionError, match="Damage"):
        holes()


def test_what_is_not_synced_may_be_lost_and_what_is_synced_is_not() -> None:
    left = set()
    for seed in range(40):
        volume = Volume(World(seed), "/data")
        files = Files(volume, none)
        write_file("/data/a", b"old", files, sync=True)
        sync_folder("/data", files)
        write_file("/data/a", b"newer", files, sync=False)
        write_file("/data/b", b"b", files, sync=True)
        files.dead = True
        volume.lose_power()
        after = Files(volume, none)
        left.add((read_file("/data/a", after), "b" in after.listdir("/data")))
    assert {(b"old", False), (b"newer", True)} <= left


@pytest.mark.parametrize("where", ["memory", "machine"])
def test_files_in_memory_are_as_the_systems(tmp_path: Path, where: str) -> None:
    fs = SYSTEM if where == "machine" else Files(Volume(World(1), str(tmp_path)), none)
    folder = tmp_path / "t"
    fs.mkdir(folder)
    with pytest.raises(FileExistsError):
        fs.mkdir(folder)
    with pytest.raises(FileNotFoundError):
        fs.open(folder / "a", os.O_RDONLY)
    fd = fs.open(folder / "a", os.O_RDWR | os.O_CREAT, 0o644)
    assert fs.pwritev(fd, [b"abc", memoryview(b"def")], 2) == 6
    assert fs.pread(fd, 100, 0) == b"\0\0abcdef"
    fs.ftruncate(fd, 4)
    fs.replace(folder / "a", folder / "b")
    assert fs.fstat(fd).st_size == fs.stat(folder / "b").st_size == 4
    end = fs.open(folder / "b", os.O_WRONLY | os.O_APPEND)
    assert fs.write(end, b"xy") == 2
    fs.truncate(folder / "b", 5)
    assert fs.pread(fd, 100, 1) == b"\0abx"
    fs.unlink(folder / "b")
    assert fs.listdir(folder) == []
    assert fs.pread(fd, 1, 4) == b"x", "an open file outlives its name"
    assert stat.S_ISDIR(fs.stat(folder).st_mode)
    whole = fs.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(IsADirectoryError):
        fs.pread(whole, 1, 0)
    for file in (fd, end, whole):
        fs.fsync(file)
        fs.close(file)
    with pytest.raises(FileNotFoundError):
        fs.unlink(folder / "b")


def test_the_records_that_checkers_see_are_those_of_the_bytes() -> None:
    run = Run(1)
    run.play()
    log = run.disk.log
    assert log is not None
    known, run.disk.records = run.disk.records, []
    run.disk.read_back(log)
    assert run.disk.records == known
