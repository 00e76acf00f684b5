"""Restarts and reboots of the machine since a data folder's last owner started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from kohort.ids import TopicPartition
from kohort.log import LogStore, PartitionLog, folder
from kohort.log.check import FolderCheck, locked_folder
from kohort.log.repair import repair
from kohort.wire.batch import parse_header
from tests.log.making import NOW, batch, values

T = TopicPartition("t", 0)


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file from which the id of this start of the machine is read."""
    file = tmp_path / "boot_id"
    file.write_text("one\n")
    monkeypatch.setattr(folder, "_BOOT_ID", file)
    return file


def _release_lock(store: LogStore) -> None:
    """Give the folder free as a crash would."""
    os.close(store._owned.lock_fd)


def _lose_power(path: Path, boot: Path) -> None:
    """Five records were fsynced; of what came then only a snapshot of the producers reached the disk."""
    store = LogStore(path)
    store.create_topic("t", 1)
    log = store.partition(T)
    log.append(batch(b"a", b"b", b"c", b"d", b"e"), NOW)
    log.flush()
    store._write_checkpoints()
    size = log.active.size
    log.append(batch(b"lost", producer_id=1, producer_epoch=0, base_sequence=0), NOW)
    log.write_producer_snapshot()
    _release_lock(store)
    os.truncate(log.active.path, size)
    boot.write_text("two\n")


@pytest.mark.parametrize("interrupted", [0, 2])
def test_a_power_loss_is_known_until_a_start_got_through(
    tmp_path: Path, boot: Path, monkeypatch: pytest.MonkeyPatch, interrupted: int
) -> None:
    path = tmp_path / "d"
    _lose_power(path, boot)

    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    for _ in range(interrupted):
        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "open", full)
            with pytest.raises(OSError, match="No space"):
                LogStore(path)
    for _ in range(2):  # killed and started again on a machine that kept running: nobody can have read what is lost
        store = LogStore(path)
        log = store.partition(T)
        assert (log.end_offset, log.leader_epoch, log.recovery.damages) == (5, 1, [])
        _release_lock(store)


def test_what_a_power_loss_left_is_judged_by_a_check_as_by_a_broker(tmp_path: Path, boot: Path) -> None:
    """The records were fsynced and the epoch's checkpoint, which is older, was not."""
    path = tmp_path / "d"
    store = LogStore(path)
    store.create_topic("t", 1)
    log = store.partition(T)
    log.append(batch(b"a", b"b"), NOW)
    log.advance_leader_epoch(0)
    old = (path / "t-0" / "leader-epoch-checkpoint").read_bytes()
    log.advance_leader_epoch(1)
    log.append(batch(b"c", b"d", b"e"), NOW)
    log.flush()
    store._write_checkpoints()
    wanted = values(log)
    _release_lock(store)
    (path / "t-0" / "leader-epoch-checkpoint").write_bytes(old)
    boot.write_text("two\n")
    note = (path / folder.LOCK).read_bytes()
    with locked_folder(path):
        found = FolderCheck(path).run().found
        assert found == []
        assert list(repair(found)) == []
    assert (path / folder.LOCK).read_bytes() == note
    with LogStore(path) as again:
        assert values(again.partition(T)) == wanted


def test_after_a_power_loss_an_epoch_begins_also_where_nothing_is_left_and_no_folder_is_made_for_it(
    tmp_path: Path, boot: Path
) -> None:
    """Records may have been read and be lost with their folder; of many partitions most never had any."""
    path = tmp_path / "d"
    store = LogStore(path)
    store.create_topic("t", 3)
    store.partition(T).append(batch(b"read", b"and lost"), NOW)
    _release_lock(store)
    shutil.rmtree(path / "t-0")
    boot.write_text("two\n")
    for _ in range(2):
        store = LogStore(path)
        assert [log.leader_epoch for _, log in store.partitions()] == [1, 1, 1]
        assert not list(path.glob("t-*"))
        _release_lock(store)
    store = LogStore(path)
    log = store.partition(T)
    log.append(batch(b"a", b"b", b"c"), NOW)
    _release_lock(store)
    with LogStore(path) as store:
        log = store.partition(T)
        assert [record.partition_leader_epoch for record in map(parse_header, log.iterate_batches(0))] == [1]
        assert log.end_offset_for_epoch(0) == (0, 0), "what was read in epoch 0 is no part of this"
    boot.write_text("three\n")
    with LogStore(path) as store:
        assert [log.leader_epoch for _, log in store.partitions()] == [1, 1, 1], "closed in order"
    (path / folder.CLEAN).unlink()
    (path / "t-1").mkdir()  # all that is left of it
    boot.write_text("four\n")
    with LogStore(path) as store:
        assert [log.leader_epoch for _, log in store.partitions()] == [2, 2, 2]
        assert sorted(entry.name for entry in path.glob("t-*")) == ["t-0", "t-1"]
        assert store.create_topic("new", 1)
    with LogStore(path) as store:
        log = store.partition(TopicPartition("t", 1))
        log.append(batch(b"x"), NOW)
        assert [parse_header(entry).partition_leader_epoch for entry in log.iterate_batches(0)] == [2]
