"""A flush that failed is not made good by the next one: the kernel takes the bytes for written from then on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from simulation.harness.files import Files, Volume
from simulation.harness.world import World

from kohort.log import OpenOptions, PartitionLog
from kohort.log.files import FileCache
from kohort.log.filesystem import StrPath
from kohort.log.markers import Marker
from tests.log.making import NOW, batch, small, values

PATH = Path("/data/t-0")
SEEDS = range(20)


class FailingOnce(Files):
    """The files of a disk that fails one flush of a file, and leaves behind what it should have written."""

    def __init__(self, volume: Volume, suffix: str = "") -> None:
        super().__init__(volume, lambda: None)
        self.suffix = suffix
        self._names: dict[int, str] = {}

    def open(self, path: StrPath, flags: int, mode: int = 0o644, /) -> int:
        """Open a file, and remember its name."""
        fd = super().open(path, flags, mode)
        self._names[fd] = os.fspath(path)
        return fd

    def fsync(self, fd: int) -> None:
        """Fail once, as Linux does."""
        if self.suffix and self._names[fd].endswith(self.suffix):
            self.suffix = ""
            self._open[fd].inode.fail_sync()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fsync(fd)


def opened(files: Files, **options: object) -> PartitionLog:
    return PartitionLog.open(PATH, small(flush_messages=1), OpenOptions(files=FileCache(9, 1, files), **options))  # type: ignore[arg-type]


def after_power_loss(volume: Volume) -> PartitionLog:
    volume.lose_power()
    return opened(Files(volume, lambda: None), clean=False, verified_offset=0)


@pytest.mark.parametrize("end", ["the process goes on", "the process is killed"])
def test_records_acknowledged_after_a_failed_flush_survive_a_power_loss(end: str) -> None:
    for seed in SEEDS:
        volume = Volume(World(seed), "/data")
        files = FailingOnce(volume)
        log = opened(files)
        log.append(batch(b"first"), NOW)
        files.suffix = ".log"
        with pytest.raises(OSError, match="Input"):
            log.append(batch(b"second", bytes(600)), NOW)
        assert log.flushed_offset == 1, "what could not be flushed is not acknowledged"
        if end == "the process is killed":
            files.dead = True
            log = opened(Files(volume, lambda: None), clean=False)
        log.append(batch(b"third"), NOW)
        assert log.flushed_offset == log.end_offset == 4
        files.dead = True
        assert [value for _, value in values(after_power_loss(volume))] == [b"first", b"second", bytes(600), b"third"]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_index_of_a_closed_segment_survives_a_power_loss_after_a_failed_flush(suffix: str) -> None:
    for seed in SEEDS:
        volume = Volume(World(seed), "/data")
        files = FailingOnce(volume)
        log = PartitionLog.open(PATH, small(), OpenOptions(files=FileCache(9, 1, files)))
        for number in range(60):
            log.append(batch(b"%d" % number, at=NOW + number), NOW)
        files.suffix = suffix
        with pytest.raises(OSError, match="Input"):
            log.flush()
        log.flush()
        name = log.segments[0].path.with_suffix(suffix).name
        before = bytes(volume.folders[str(PATH)].names[name].data)
        files.dead = True
        volume.lose_power()
        assert bytes(volume.folders[str(PATH)].names[name].data) == before != b""


def test_aborted_transaction_stays_hidden_after_a_failed_flush_of_its_index() -> None:
    for seed in SEEDS:
        volume = Volume(World(seed), "/data")
        files = FailingOnce(volume)
        log = opened(files)
        log.append(batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True), NOW)
        files.suffix = ".txnindex"
        with pytest.raises(OSError, match="Input"):
            log.append_marker(Marker(7, 0, False, 0), NOW)
        log.flush()
        name = log.active.path.with_suffix(".txnindex").name
        before = bytes(volume.folders[str(PATH)].names[name].data)
        files.dead = True
        volume.lose_power()
        assert bytes(volume.folders[str(PATH)].names[name].data) == before != b""


def test_bytes_that_a_failed_flush_took_are_not_flushed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Btrfs brings the old bytes back."""
    log = PartitionLog.open(tmp_path / "t-0", small(flush_messages=1))
    log.append(batch(b"first"), NOW)
    real = os.fsync

    def lose(fd: int) -> None:
        os.pwrite(fd, bytes(40), log.active.synced_size + 30)
        monkeypatch.setattr(os, "fsync", real)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", lose)
    for text in ("Input", "lost.*restart the broker", "lost.*restart the broker"):
        with pytest.raises(OSError, match=text):
            log.append(batch(b"lost"), NOW)
    assert log.flushed_offset == 1


def test_flush_after_a_failed_one_does_not_read_what_was_flushed_before() -> None:
    """Else old damage in a segment would keep its partition from ever being flushed again."""
    volume = Volume(World(1), "/data")
    files = FailingOnce(volume)
    log = opened(files)
    for number in range(3):
        log.append(batch(b"%d" % number), NOW)
    log_file = volume.folders[str(PATH)].names[log.active.path.name]
    log_file.data[16] ^= 0xFF
    log.active.rebuild_from_headers()
    assert log.active.unverified is not None
    files.suffix = ".log"
    with pytest.raises(OSError, match="Input"):
        log.append(batch(b"later"), NOW)
    log.append(batch(b"last"), NOW)
    assert log.flushed_offset == log.end_offset
