"""Small files of the data folder are on the disk before anybody relies on them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kohort.broker.config.json_file import read_json, write_json
from kohort.broker.transactions.coordinator import FILE, ProducerIds


class Disk:
    """A disk that keeps only what a power loss would leave of a file: data synced before a durable rename."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: dict[int, bytes] = {}
        self.placed: dict[str, bytes | None] = {}
        self.durable: dict[str, bytes | None] = {}
        self._fsync, self._replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "replace", self.replace)

    def fsync(self, fd: int) -> None:
        self._fsync(fd)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            self.durable.update(self.placed)
        else:
            self.synced[os.fstat(fd).st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def replace(self, source: Path, target: Path) -> None:
        self.placed[Path(target).name] = self.synced.get(os.stat(source).st_ino)
        self._replace(source, target)


def test_a_block_of_producer_ids_is_durable_before_its_first_is_given_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    taken = ProducerIds(tmp_path).allocate()
    left = disk.durable.get(FILE)
    assert left is not None
    assert int(left) > taken


def test_settings_are_durable_when_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, path = Disk(monkeypatch), tmp_path / "settings.json"
    write_json(path, {"a": {"b": "1"}})
    assert disk.durable.get("settings.json") == path.read_bytes()
    assert read_json(path) == {"a": {"b": "1"}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
