"""Small files that are replaced: what is there when a part of that fails."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort.log.checkpoints import replace_file


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No folder can be synced, as on a disk that fails there."""
    real = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


@pytest.mark.usefixtures("unsynced")
def test_a_file_whose_folder_cannot_be_synced_has_its_old_content(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    with pytest.raises(OSError, match="has its old content again") as caught:
        replace_file(tmp_path / "f", "new")
    assert caught.value.errno == errno.EIO
    assert (tmp_path / "f").read_text() == "old"


@pytest.mark.usefixtures("unsynced")
def test_a_first_file_whose_folder_cannot_be_synced_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="it is removed again"):
        replace_file(tmp_path / "f", "new")
    assert not (tmp_path / "f").exists()


@pytest.mark.usefixtures("unsynced")
def test_what_cannot_be_put_back_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text("old")
    real, calls = os.replace, []

    def once(path: Path, to: Path) -> None:
        calls.append(to)
        if len(calls) > 1:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        real(path, to)

    monkeypatch.setattr(os, "replace", once)
    with pytest.raises(OSError, match="has its new content all the same"):
        replace_file(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "new"


def test_nothing_is_replaced_without_a_descriptor_for_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one may be had for the file and not for the folder behind it."""
    (tmp_path / "f").write_text("old")
    real = os.open

    def scarce(path: str | Path, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECTORY:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, flags, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", scarce)
        with pytest.raises(OSError, match="Too many open files"):
            replace_file(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old"


def test_no_descriptor_stays_open(tmp_path: Path, unsynced: None) -> None:
    (tmp_path / "f").write_text("old")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("f", "g"):
        with pytest.raises(OSError, match="again"):
            replace_file(tmp_path / name, "new")
    replace_file(tmp_path / "f", "new", sync=False)
    assert len(os.listdir("/proc/self/fd")) == before
