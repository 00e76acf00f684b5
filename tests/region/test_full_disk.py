"""Places on a disk that is full, for every kind: writes fail, pass by themselves, and show each row once."""

from __future__ import annotations

import copy
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kohort.region import files
from kohort.region.sinks import Sink
from kohort.region.sinks.availability import is_temporary_error
from kohort.region.staged import StagedKey
from tests.region.places import REGION, SCHEMA, Place, kinds, merged, same, table
from tests.support.tiny_disk import fill, tiny_disk

ON_DISK = [place for place in kinds() if "objects" not in place.kind]
WAIT_S = 60.0


@pytest.fixture(name="tiny_disk")
def a_tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with tiny_disk(tmp_path, "8m") as folder:
        yield folder


def key(unit: int) -> StagedKey:
    return StagedKey(REGION, 1, "worker-1", unit)


def fails_or_not(act: Callable[[], None]) -> bool:
    """Return whether a call succeeded; an error must be one that callers wait for."""
    try:
        act()
    except Exception as error:
        if not is_temporary_error(error):
            raise
        return False
    return True


def repeat(sink: Sink, act: Callable[[Sink], None]) -> None:
    until = time.monotonic() + WAIT_S
    while not fails_or_not(lambda: act(sink)):
        assert time.monotonic() < until


@pytest.mark.parametrize("place", ON_DISK, ids=[place.kind for place in ON_DISK])
def test_rows_are_shown_once_when_the_disk_was_full(place: Place, tiny_disk: Path) -> None:
    place = copy.copy(place)
    place.at(tiny_disk / "first")
    (tiny_disk / "first").mkdir(exist_ok=True)
    sink = place.sink()
    sink.check(SCHEMA)
    first, second, third = [(1, "a")], [(2, "b"), (3, "c")], [(number, f"d{number % 3}") for number in range(4, 20_000)]
    sink.stage(key(1), table(first))
    sink.publish(1, [key(1)])
    sink.stage(key(2), table(second))
    fill(tiny_disk / "ballast")
    fails_or_not(lambda: sink.publish(2, [key(2)]))
    fill(tiny_disk / "ballast")
    fails_or_not(lambda: sink.publish(2, [key(2)]))
    assert not fails_or_not(lambda: sink.stage(key(3), table(third)))
    if place.kind != "ducklake":  # whose catalog, SQLite in WAL mode, can't even be read without room
        shown = place.rows()
        assert same(shown, merged(place, first)) or same(shown, merged(place, first, second)), "a sequence as a whole"
    (tiny_disk / "ballast").unlink()
    repeat(sink, lambda sink: sink.publish(2, [key(2)]))
    assert same(place.rows(), merged(place, first, second))
    repeat(sink, lambda sink: sink.stage(key(3), table(third)))
    repeat(sink, lambda sink: sink.publish(3, [key(3)]))
    again = place.sink()
    again.publish(3, [key(3)])
    assert again.published() == 3
    assert same(place.rows(), merged(place, first, second, third))


def test_file_of_another_writer_is_written_again_after_a_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes its bytes for written after the failure."""
    path, written = tmp_path / "commit.json", list[bytes]()
    path.write_bytes(b"what the library wrote")
    real_fsync, real_write = os.fsync, os.write

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write(fd: int, data: bytes) -> int:
        written.append(bytes(data))
        return real_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input"):
        files.sync_file(files.SYSTEM, str(path))
    monkeypatch.setattr(os, "fsync", real_fsync)
    files.sync_file(files.SYSTEM, str(path))
    assert written == [b"what the library wrote"]
    assert path.read_bytes() == b"what the library wrote"
