"""Upkeep on a disk that is full or fails, and by a clock that is set back: nothing that works has to wait for it."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from kohort.ids import TopicPartition
from kohort.log import LogStore, PartitionLog
from kohort.log.segment import Segment
from tests.log.making import NOW, batch, keyed

SMALL = {"segment.bytes": "2000", "retention.ms": "1000"}
COMPACTED = {"segment.bytes": "2000", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
DAY_MS = 86_400_000
LATER = 1_000 * DAY_MS
"""After the start of the store by any clock."""


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def maintain(store: LogStore, now_ms: int) -> None:
    while store.run_maintenance_slice(now_ms):
        pass


def filled(store: LogStore, name: str, configs: dict[str, str]) -> PartitionLog:
    store.create_topic(name, 1, configs)
    log = store.partition(TopicPartition(name, 0))
    for number in range(100):
        log.append(keyed((b"%d" % (number % 3), bytes(60))), NOW)
    return log


def test_retention_makes_room_while_compaction_of_another_partition_finds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition that can't be compacted comes first in each round."""
    with LogStore(tmp_path / "d") as store:
        compacted = filled(store, "a", COMPACTED)
        aged = filled(store, "b", SMALL)
        now_ms = int(time.time() * 1000) + LATER
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            patch.setattr(os, "write", full)
            with pytest.raises(OSError, match=r"a-0.*No space"):
                maintain(store, now_ms)
            assert compacted.cleaned_offset == 0
            assert len(aged.segments) == 1, "all closed segments are gone, though the last one can't be closed"
        maintain(store, now_ms + LATER)
        assert compacted.cleaned_offset > 0
        assert aged.log_start_offset == aged.end_offset


def test_partition_whose_flush_fails_stops_neither_the_flushes_nor_the_retention_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogStore(tmp_path / "d") as store:
        timed = {"flush.ms": "1000", "retention.ms": "-1"}
        first, second, aged = (
            filled(store, name, configs) for name, configs in zip("abc", (timed, timed, SMALL), strict=True)
        )
        bad = first.active.open().fd
        real = os.fsync

        def fsync(fd: int) -> None:
            if fd == bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(fd)

        now_ms = int(time.time() * 1000) + LATER
        maintain(store, now_ms)
        second.append(batch(b"x"), NOW)
        aged.append(batch(b"x"), NOW)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            first.append(batch(b"x"), NOW)
            maintain(store, now_ms + 1)
            with pytest.raises(OSError, match=r"a-0.*Input"):
                maintain(store, now_ms + LATER)
        assert second.flushed_offset == second.end_offset
        assert aged.log_start_offset == aged.end_offset
        assert first.flushed_offset < first.end_offset
        maintain(store, now_ms + LATER)
        assert first.flushed_offset == first.end_offset


def test_upkeep_continues_when_the_clock_is_set_back(tmp_path: Path) -> None:
    with LogStore(tmp_path / "d") as store:
        compacted = filled(store, "a", COMPACTED)
        timed = filled(store, "b", {"flush.ms": "1000", "retention.ms": "-1"})
        now_ms = int(time.time() * 1000) + LATER
        maintain(store, now_ms)
        done = compacted.cleaned_offset
        assert done > 0
        for number in range(100):
            compacted.append(keyed((b"%d" % (number % 3), bytes(60))), NOW)
        timed.append(batch(b"x"), NOW)
        maintain(store, now_ms)
        maintain(store, now_ms - DAY_MS)
        assert compacted.cleaned_offset > done
        assert timed.flushed_offset == timed.end_offset


@pytest.mark.parametrize("suffix", [".log", ".index"], ids=["records", "index"])
def test_log_begins_where_a_disk_error_ended_the_deletion_of_old_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    with LogStore(tmp_path / "d") as store:
        log = filled(store, "a", SMALL)
        kept = log.segments[1 if suffix == ".log" else 2]
        failing, real = log.segments[1].path.with_suffix(suffix), os.unlink

        def unlink(path: str | os.PathLike[str]) -> None:
            if Path(path) == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(path)

        now_ms = int(time.time() * 1000) + LATER
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", unlink)
            with pytest.raises(OSError, match=r"a-0.*Input"):
                maintain(store, now_ms)
            assert log.log_start_offset == kept.base_offset
            assert log.read(log.log_start_offset, 1_000).bytes(), "the rest can be read"
            log.flush()
        maintain(store, now_ms + LATER)
        assert log.log_start_offset == log.end_offset


def test_truncation_that_the_disk_interrupted_leaves_a_log_that_ends_with_its_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogStore(tmp_path / "d") as store:
        log = filled(store, "a", SMALL)
        last = log.segments[2]
        end, failing, real = last.end_offset, last.path, os.unlink

        def unlink(path: str | os.PathLike[str]) -> None:
            if Path(path) == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", unlink)
            with pytest.raises(OSError, match="Input"):
                log.truncate_to(3)
        assert log.end_offset == end
        assert log.read(end - 1, 1_000).bytes()
        log.flush()
        log.truncate_to(3)
        assert log.end_offset == 3
        assert log.append(batch(b"y"), NOW).base_offset == 3


@pytest.mark.parametrize("step", ["index_batches", "flush_indexes"])
def test_truncation_whose_index_can_not_be_written_leaves_a_log_that_ends_with_its_last_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The next append would leave a gap in the offsets, which counts as damage, or be written over records."""
    with LogStore(tmp_path / "d") as store:
        log = filled(store, "a", SMALL)
        end = log.active.base_offset + 1
        assert end < log.end_offset
        with monkeypatch.context() as patch:
            patch.setattr(Segment, step, full)
            with pytest.raises(OSError, match="No space"):
                log.truncate_to(end)
        assert (log.end_offset, log.active.end_offset) == (end, end)
        assert log.append(batch(b"y"), NOW).base_offset == end
    with LogStore(tmp_path / "d") as store:
        log = store.partition(TopicPartition("a", 0))
        assert (log.end_offset, log.recovery.damages) == (end + 1, [])
        assert log.read(end - 1, 1_000).bytes()
