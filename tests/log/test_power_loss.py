"""After a power loss a log is truncated at the first gap after the last fsync; synced batches stay."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from simulation.harness.files import DeadError, Files, Volume
from simulation.harness.world import World

from kohort.ids import TopicPartition
from kohort.log import LogStore, OpenOptions, PartitionLog, compact_now
from kohort.log.checkpoints import CLEANED, OFFSET_CHECKSUMS, RECOVERY_POINTS, write_offset_checkpoints
from kohort.log.compaction import Compaction
from kohort.log.damage import ASIDE, DamagedError
from kohort.log.files import FileCache
from kohort.log.folder import CLEAN as CLEANLY_CLOSED
from kohort.log.folder import LOCK
from kohort.log.store import StoreCheckpoints, write_recovery_points
from kohort.wire.records import read_records
from tests.log.making import CRASHED, NOW, POWER_LOST, UNKNOWN, batch, copy_folder, keyed, small, values

BATCHES = 12
CLEAN = OpenOptions()
FLUSH_NEVER = 2**63 - 1


def filled(path: Path, batches: int = BATCHES, **config: object) -> PartitionLog:
    """A log of as many batches of two records, all in one segment unless told otherwise."""
    log = PartitionLog.open(path, small(**{"segment_bytes": 100_000, **config}))
    for number in range(batches):
        log.append(batch(b"%d" % number * 20, b"second", at=NOW + number), NOW)
    log.active.flush_indexes()
    return log


def spoil(log: PartitionLog, offset: int, begin: int, end: int, fill: bytes = b"\xff") -> tuple[Path, int]:
    """Put other bytes in the batch with an offset; returns where the batch begins."""
    segment = next(entry for entry in log.segments if entry.base_offset <= offset < entry.end_offset)
    position = next(entry.position for entry in segment.scan(0) if entry.header.last_offset >= offset)
    data = bytearray(segment.path.read_bytes())
    data[position + begin : position + end] = fill * (end - begin)
    segment.path.write_bytes(data)
    return segment.path, position


def asides(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob(f"*{ASIDE}")}


HOLES = {"all": (0, 90), "front": (0, 12), "base offset": (0, 8), "records": (70, 90)}


@pytest.mark.parametrize("part", HOLES)
@pytest.mark.parametrize("offset", [0, 10, 2 * BATCHES - 2], ids=["first", "middle", "last"])
def test_the_unsynced_end_is_cut_off_at_the_first_hole(
    tmp_path: Path, part: str, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="kohort.log")
    log = filled(tmp_path / "t-0")
    wanted = values(log)
    path, position = spoil(log, offset, *HOLES[part])
    behind = path.read_bytes()[position:]
    again = PartitionLog.open(tmp_path / "t-0", log.config, POWER_LOST)
    assert again.recovery.damages == []
    assert values(again) == wanted[:offset]
    assert again.recovery.truncated_bytes == len(behind)
    readable = offset < 2 * BATCHES - 2 or part in ("front", "base offset")
    if readable:
        assert asides(path.parent) == {f"{path.name}.{position}{ASIDE}": behind}
        assert f"{path.name} is damaged at byte {position}" in caplog.text
        assert f"offset {offset}" in caplog.text
    else:
        assert asides(path.parent) == {}
    assert again.append(batch(b"goes on"), NOW).base_offset == offset
    for options in (CRASHED, replace(POWER_LOST, verified_offset=offset, known_end=offset)):
        third = PartitionLog.open(copy_folder(path.parent, tmp_path / f"{id(options)}-0"), log.config, options)
        assert values(third) == [*wanted[:offset], (offset, b"goes on")]
        assert third.recovery.damages == []


@pytest.mark.parametrize(
    "options",
    [
        CRASHED,
        OpenOptions(clean=False, verified_offset=12, known_end=12),
        OpenOptions(clean=False, verified_offset=0, cleaned_offset=12),
        UNKNOWN,
        CLEAN,
    ],
    ids=["process died", "synced", "compacted", "not known", "closed"],
)
def test_damage_of_what_was_on_the_disk_is_refused_and_takes_nothing_along(
    tmp_path: Path, options: OpenOptions
) -> None:
    log = filled(tmp_path / "t-0")
    wanted = values(log)
    path, _ = spoil(log, 10, *HOLES["all"])
    before = path.read_bytes()
    again = PartitionLog.open(tmp_path / "t-0", log.config, options)
    assert again.end_offset == 2 * BATCHES
    with pytest.raises(DamagedError) as met:
        values(again, 10)
    assert (met.value.damage.first_offset, met.value.damage.next_offset) == (10, 12)
    assert values(again, 12) == wanted[12:]
    assert path.read_bytes() == before
    assert asides(path.parent) == {}


def test_a_hole_that_begins_before_the_recovery_point_is_refused_and_one_behind_it_cut(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    wanted = values(log)
    spoil(log, 16, *HOLES["all"])
    spoil(log, 6, *HOLES["all"])
    again = PartitionLog.open(tmp_path / "t-0", log.config, OpenOptions(clean=False, verified_offset=7, known_end=7))
    assert again.end_offset == 16
    assert [(damage.first_offset, damage.next_offset) for damage in again.recovery.damages] == [(6, 8)]
    with pytest.raises(DamagedError):
        values(again, 6)
    assert values(again, 8) == wanted[8:16]


def test_a_hole_before_the_start_of_the_log_takes_nothing(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    wanted = values(log)
    spoil(log, 4, *HOLES["all"])
    again = PartitionLog.open(tmp_path / "t-0", log.config, replace(POWER_LOST, log_start_offset=6))
    assert values(again) == wanted[6:]
    assert asides(again.path) == {}
    ended = PartitionLog.open(tmp_path / "t-0", log.config, replace(POWER_LOST, log_start_offset=5))
    assert (ended.log_start_offset, ended.end_offset) == (5, 5)
    assert len(asides(ended.path)) == 2, "what is cut off, and what lies before the start"


@pytest.mark.parametrize("compacts", [False, True], ids=["delete", "compact"])
@pytest.mark.parametrize("what", ["hole", "first batch", "file gone"])
def test_later_segments_go_with_it_and_are_set_aside(tmp_path: Path, compacts: bool, what: str) -> None:
    config = {"segment_bytes": 800, "cleanup_policy": ("compact",) if compacts else ("delete",)}
    log = filled(tmp_path / "t-0", 40, **config)
    wanted, bases = values(log), [segment.base_offset for segment in log.segments]
    assert len(bases) > 4
    damaged = log.segments[2]
    offset = damaged.base_offset + (2 if what == "hole" else 0)
    later = {f"{segment.path.name}{ASIDE}": segment.path.read_bytes() for segment in log.segments[3:]}
    if what == "file gone":
        damaged.path.unlink()
        kept = later
    else:
        path, position = spoil(log, offset, *HOLES["all"])
        kept = {**later, f"{path.name}.{position}{ASIDE}": path.read_bytes()[position:]}
    again = PartitionLog.open(tmp_path / "t-0", log.config, POWER_LOST)
    assert again.recovery.damages == []
    assert values(again) == wanted[:offset]
    assert asides(tmp_path / "t-0") == kept
    assert again.append(batch(b"goes on"), NOW).base_offset == offset
    for options in (CRASHED, POWER_LOST):
        third = PartitionLog.open(tmp_path / "t-0", log.config, options)
        assert values(third) == [*wanted[:offset], (offset, b"goes on")]
        assert third.recovery.damages == []
    assert asides(tmp_path / "t-0") == kept


def test_a_file_that_is_there_and_can_not_be_opened_is_kept_with_all_behind_it(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", 40, segment_bytes=800)
    wanted, middle = values(log), log.segments[2]
    middle.path.unlink()
    middle.path.mkdir()
    again = PartitionLog.open(tmp_path / "t-0", log.config, POWER_LOST)
    assert again.end_offset == 80
    assert values(again, middle.end_offset) == wanted[middle.end_offset :]
    with pytest.raises(DamagedError, match="can't be opened"):
        values(again, middle.base_offset)


def test_what_was_set_aside_before_stays(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    for number in range(3):
        path, _ = spoil(log, 4, *HOLES["all"])
        log = PartitionLog.open(tmp_path / "t-0", log.config, POWER_LOST)
        assert log.end_offset == 4
        assert len(asides(path.parent)) == number + 1
        for number in range(3):
            log.append(batch(b"%d" % number * 20, b"second"), NOW)


@pytest.mark.parametrize("points", ["there", "lost", "damaged"])
def test_a_store_cuts_only_what_its_recovery_points_leave_open(tmp_path: Path, points: str) -> None:
    tp = TopicPartition("t", 0)
    with LogStore(tmp_path) as store:
        store.create_topic("t", 1)
        log = store.partition(tp)
        for number in range(BATCHES):
            log.append(batch(b"%d" % number * 20, b"second"), NOW)
            if number == 3:
                log.flush()
                while store.run_maintenance_slice(NOW):
                    pass
        before = (tmp_path / RECOVERY_POINTS).read_text()
    assert before.splitlines()[2:] == ["t 0 8"]
    spoil(log, 10, *HOLES["all"])
    (tmp_path / CLEANLY_CLOSED).unlink()
    (tmp_path / LOCK).write_text("1 another-boot\n")
    (tmp_path / OFFSET_CHECKSUMS).unlink()
    (tmp_path / RECOVERY_POINTS).write_text("" if points == "damaged" else before)
    if points == "lost":
        (tmp_path / RECOVERY_POINTS).unlink()
    with LogStore(tmp_path) as store:
        end = 24 if points == "damaged" else 10
        assert store.partition(tp).end_offset == end


def test_recovery_points_survive_a_power_loss_whole() -> None:
    folder, tp = Path("/data"), TopicPartition("t", 0)
    for seed in range(30):
        volume = Volume(World(seed), "/data")
        files = Files(volume, lambda: None)
        log = PartitionLog.open(folder / "t-0", small(flush_messages=1), OpenOptions(files=FileCache(3, 1, files)))
        for number in range(3):
            log.append(batch(b"%d" % number), NOW)
            log.cleaned_offset = number
            write_recovery_points(folder, [(tp, log)], files)
        files.dead = True
        volume.lose_power()
        found = StoreCheckpoints.read(folder, Files(volume, lambda: None))
        assert (found.synced, found.cleaned) == ({tp: 3}, {tp: 2})


@pytest.mark.parametrize("loses_power", [False, True], ids=["killed", "power lost"])
def test_offset_checkpoints_fit_their_checksums_wherever_a_write_of_them_ends(loses_power: bool) -> None:
    folder, tp, steps = Path("/data"), TopicPartition("t", 0), 0
    for seed in range(300):
        volume = Volume(World(seed), "/data")
        files = Files(volume, lambda: None)
        write_offset_checkpoints(folder, {RECOVERY_POINTS: {tp: 1}, CLEANED: {tp: 1}}, files)
        files.dies_in = steps = seed % 20 + 1
        with contextlib.suppress(OSError):  # the death, or what it leaves undone
            write_offset_checkpoints(folder, {RECOVERY_POINTS: {tp: 2}, CLEANED: {tp: 2}}, files)
        ended, files.dead = files.dead, True
        if loses_power:
            volume.lose_power()
        found = StoreCheckpoints.read(folder, Files(volume, lambda: None))
        assert found.synced in ({tp: 1}, {tp: 2}) and found.cleaned in ({tp: 1}, {tp: 2}), steps
        assert ended or (found.synced, found.cleaned) == ({tp: 2}, {tp: 2})
    assert not ended, "the last step is behind the write's end"


def test_recovery_points_that_have_not_changed_are_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path / "t-0", flush_messages=1)
    write_recovery_points(tmp_path, [(TopicPartition("t", 0), log)])
    monkeypatch.delattr("os.replace")
    write_recovery_points(tmp_path, [(TopicPartition("t", 0), log)])
    (tmp_path / RECOVERY_POINTS).write_text("what?")
    with pytest.raises(AttributeError):
        write_recovery_points(tmp_path, [(TopicPartition("t", 0), log)])
    assert (tmp_path / CLEANED).exists()


def test_what_is_cut_off_by_its_owner_is_not_missed_after_a_power_loss(tmp_path: Path) -> None:
    tp = TopicPartition("t", 0)
    with LogStore(tmp_path) as store:
        store.create_topic("t", 1)
        log = store.partition(tp)
        for number in range(BATCHES):
            log.append(batch(b"%d" % number * 20, b"second"), NOW)
        log.flush()
        while store.run_maintenance_slice(NOW):
            pass
        log.truncate_to(11)
        assert log.flushed_offset == 10
        points, size = (tmp_path / RECOVERY_POINTS).read_bytes(), log.size_bytes()
        log.append(batch(b"in its place", b"x", b"y"), NOW)
    (tmp_path / CLEANLY_CLOSED).unlink()
    (tmp_path / LOCK).write_text("1 another-boot\n")
    (tmp_path / OFFSET_CHECKSUMS).unlink()
    (tmp_path / RECOVERY_POINTS).write_bytes(points)
    with log.active.path.open("r+b") as file:
        file.truncate(size + 20)
    with LogStore(tmp_path) as store:
        again = store.partition(tp)
        assert again.end_offset == 10
        assert again.recovery.damages == []


@pytest.mark.parametrize("fails", [False, True], ids=["at once", "after a failure"])
def test_epochs_that_were_cut_off_are_not_held_against_what_came_in_their_place(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, config = Path("/data/t-0"), small(flush_messages=1)
    for seed in range(30):
        volume = Volume(World(seed), "/data")
        files = Files(volume, lambda: None)
        log = PartitionLog.open(path, config, OpenOptions(files=FileCache(3, 1, files)))
        log.advance_leader_epoch(1)
        log.append(batch(b"a"), NOW)
        log.append(batch(b"b"), NOW)
        log.advance_leader_epoch(2)
        volume.sync()
        with monkeypatch.context() as broken:
            if fails:
                broken.setattr(files, "replace", mock.Mock(side_effect=OSError(5, "Input/output error")))
            with pytest.raises(OSError, match="Input") if fails else contextlib.nullcontext():
                log.truncate_to(1)
        log.append(batch(b"c"), NOW)
        files.dead = True
        volume.lose_power()
        lost = replace(POWER_LOST, files=FileCache(3, 1, Files(volume, lambda: None)))
        again = PartitionLog.open(path, config, lost)
        assert again.recovery.damages == []
        assert values(again) == [(0, b"a"), (1, b"c")]


@pytest.mark.parametrize("options", [POWER_LOST, CRASHED], ids=["machine died", "process died"])
def test_a_compacted_file_whose_follower_is_lost_keeps_its_gaps(tmp_path: Path, options: OpenOptions) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small(cleanup_policy=("compact",), segment_bytes=100_000))
    for number in range(30):
        log.append(keyed((b"k%d" % (number % 7 if number else 99), b"%d" % number * 20)), NOW)
    log.roll()
    run = Compaction(log, NOW)
    for _ in run.steps():
        pass
    wanted = latest(log)
    for path in sorted(log.path.glob("*.cleaned")):
        path.rename(path.with_suffix(""))
    log.active.path.unlink()
    again = PartitionLog.open(log.path, log.config, options)
    assert latest(again) == wanted
    assert again.end_offset == 30
    assert again.recovery.damages == []
    assert asides(log.path) == {}


def latest(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    """The newest value of each key."""
    return {r.key and bytes(r.key): r.value for entry in log.iterate_batches(0) for r in read_records(entry)}


def test_a_compaction_has_the_names_of_what_follows_on_the_disk_first() -> None:
    config = small(cleanup_policy=("compact",), segment_bytes=800, flush_messages=1)
    for seed in range(60):
        volume = Volume(World(seed), "/data")
        files = Files(volume, lambda: None)
        log = PartitionLog.open(Path("/data/t-0"), config, OpenOptions(files=FileCache(3, 1, files)))
        for number in range(30):
            log.append(keyed((b"k%d" % (number % 7), b"%d" % number * 20), (b"k%d" % number, b"once")), NOW)
        log.roll()
        run = Compaction(log, NOW)
        for _ in run.steps():
            pass
        files.dies_in = 1 + seed % 4
        with contextlib.suppress(DeadError):
            run.finish()
        files.dead = True
        volume.lose_power()
        names = Files(volume, lambda: None).listdir("/data/t-0")
        assert f"{60:020d}.log" in names or not any(name.endswith(".swap") for name in names)


def test_a_power_loss_takes_no_record_that_was_compacted_away_together_with_what_took_its_place() -> None:
    config = small(cleanup_policy=("compact",), segment_bytes=800)
    for seed in range(30):
        volume = Volume(World(seed), "/data")
        files = Files(volume, lambda: None)
        log = PartitionLog.open(Path("/data/t-0"), config, OpenOptions(files=FileCache(3, 1, files)))
        for number in range(30):
            log.append(keyed((b"k%d" % number, b"synced" * 9)), NOW)
        log.roll()
        log.flush()
        for number in range(30):
            log.append(keyed((b"k%d" % number, b"newer" * 9)), NOW)
        log.roll()
        run = Compaction(log, NOW)
        for _ in run.steps():
            pass
        files.dies_in = seed  # 0: not at all
        with contextlib.suppress(DeadError):
            run.finish()
        files.dead = True
        volume.lose_power()
        lost = replace(POWER_LOST, verified_offset=30, files=FileCache(3, 1, Files(volume, lambda: None)))
        again = PartitionLog.open(Path("/data/t-0"), config, lost)
        assert again.recovery.damages == []
        assert set(latest(again)) == {b"k%d" % number for number in range(30)}


def test_a_power_loss_does_not_bring_an_earlier_compactions_file_back() -> None:
    config = small(cleanup_policy=("compact",), segment_bytes=800, flush_messages=1)
    for seed in range(90):
        volume = Volume(World(seed), "/data")
        files = Files(volume, lambda: None)
        log = PartitionLog.open(Path("/data/t-0"), config, OpenOptions(files=FileCache(3, 1, files)))
        for number in range(12):
            log.append(keyed((b"k%d" % (number % 3), b"%d" % number * 20)), NOW)
        log.roll()
        wanted = latest(log)
        for dies_in in (0, 1 + seed % 4):  # the second run joins the small files that the first has made
            run = Compaction(log, NOW)
            for _ in run.steps():
                pass
            files.dies_in = dies_in
            with contextlib.suppress(DeadError):
                run.finish()
        files.dead = True
        volume.lose_power()
        for _ in range(2):  # the second finds what the first made of it
            lost = replace(POWER_LOST, verified_offset=12, files=FileCache(3, 1, Files(volume, lambda: None)))
            again = PartitionLog.open(Path("/data/t-0"), config, lost)
            assert again.recovery.damages == []
            assert latest(again) == wanted


def test_the_index_of_a_compacted_file_is_replaced_and_never_cut_off_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the index vouches for gaps. A second power loss while it was rebuilt left zeros, which accused a batch."""
    log = PartitionLog.open(tmp_path / "t-0", small(cleanup_policy=("compact",), segment_bytes=100_000))
    for number in range(30):
        log.append(keyed((b"k%d" % (number % 7), b"%d" % number * 20)), NOW)
    log.roll()
    compact_now(log, NOW)
    wanted, index = latest(log), log.segments[0].path.with_suffix(".index")
    before, inode = index.read_bytes(), index.stat().st_ino
    seen: list[bytes] = []
    opened = os.open

    def watched(path: os.PathLike[str] | str, flags: int, mode: int = 0o777) -> int:
        seen.append(index.read_bytes())
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    again = PartitionLog.open(log.path, log.config, POWER_LOST)
    assert latest(again) == wanted and again.recovery.damages == []
    assert before and set(seen) == {before} == {index.read_bytes()}
    assert index.stat().st_ino != inode, "another file has its place"


def test_what_is_set_aside_is_on_the_disk_before_it_is_cut_off() -> None:
    config = small(segment_bytes=100_000)
    for seed in range(60):
        volume = Volume(World(seed), "/data")
        files = Files(volume, lambda: None)
        log = PartitionLog.open(Path("/data/t-0"), config, OpenOptions(files=FileCache(3, 1, files)))
        for number in range(BATCHES):
            log.append(batch(b"%d" % number * 20, b"second"), NOW)
        volume.folders["/data/t-0"].names[log.active.path.name].data[103:203] = bytes(100)
        volume.sync()
        size = log.size_bytes()
        files.dead = True
        files = Files(volume, lambda: None)
        files.dies_in = 1 + seed % 8
        with contextlib.suppress(DeadError):
            PartitionLog.open(Path("/data/t-0"), config, replace(POWER_LOST, files=FileCache(3, 1, files)))
        files.dead = True
        volume.lose_power()
        names = volume.folders["/data/t-0"].names
        kept = {name: len(inode.data) for name, inode in names.items() if name.endswith((".log", ASIDE))}
        assert sum(kept.values()) >= size, kept


@pytest.mark.parametrize("flush_messages", [1, FLUSH_NEVER], ids=["each flushed", "flushed at the end"])
def test_indexes_of_closed_segments_are_on_the_disk_with_their_records(flush_messages: int) -> None:
    """Nobody reads these records again after a power loss, and an index that lacks its end looks right.

    Retention by age goes by the last entry of the time index. An earlier one would delete records too early.
    Source: KAFKA-10207.
    """
    path, config = Path("/data/t-0"), small(flush_messages=flush_messages)
    volume = Volume(World(1), "/data")
    log = PartitionLog.open(path, config, OpenOptions(files=FileCache(3, 1, Files(volume, lambda: None))))
    for number in range(100):
        log.append(batch(b"x" * 50, at=NOW + number * 1_000), NOW)
    log.flush()
    folder = volume.folders[str(path)]
    assert len(log.segments) > 3
    for segment in log.segments[:-1]:
        for suffix in (".log", ".index", ".timeindex"):
            name = segment.path.with_suffix(suffix).name
            assert folder.synced[name].synced == bytes(folder.names[name].data) != b"", name


def test_rebuilt_indexes_of_closed_segments_are_on_the_disk() -> None:
    """The records are not read again after a power loss, so that a part of what was rebuilt would look right."""
    path, config = Path("/data/t-0"), small()
    volume = Volume(World(1), "/data")
    options = OpenOptions(files=FileCache(3, 1, Files(volume, lambda: None)))
    log = PartitionLog.open(path, config, options)
    for number in range(100):
        log.append(batch(b"x" * 50, at=NOW + number * 1_000), NOW)
    log.close()
    names = volume.folders[str(path)].names
    rebuilt = [log.segments[0].path.with_suffix(suffix).name for suffix in (".index", ".timeindex")]
    before = {name: bytes(names[name].data) for name in rebuilt}
    for name in rebuilt:
        names[name].synced = b""
    names[rebuilt[1]].data.clear()
    again = PartitionLog.open(path, config, options)
    assert again.recovery.rebuilt_indexes == rebuilt[1:]
    for name in rebuilt:
        assert names[name].synced == bytes(names[name].data) == before[name] != b"", name
