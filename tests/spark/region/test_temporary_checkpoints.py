"""Temporary folders for checkpoints: who has one, and who removes those of processes that were killed."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from kohort.errors import InvalidInputError
from kohort.spark.region.folders import TEMPORARY, TemporaryCheckpoints


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a machine's temporary files; its name has a space and a link to it, as on macOS."""
    (tmp_path / "a b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a b")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
    return tmp_path / "a b" / f"kohort-spark-{os.getuid()}"


def left(machine: Path) -> set[str]:
    return {str(path) for path in machine.glob(f"{TEMPORARY}*")}


def test_a_folder_is_the_users_alone_and_ends_with_close(machine: Path) -> None:
    made = TemporaryCheckpoints()
    assert left(machine) == {made.path}
    assert stat.S_IMODE(os.stat(made.path).st_mode) == 0o700
    Path(made.path, "q", "e7").mkdir(parents=True)
    made.close()
    made.close()
    assert not left(machine)


def _made_and_killed() -> str:
    """Make a folder with a file in a process that is killed; return its path."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        made = TemporaryCheckpoints()
        Path(made.path, "metadata").write_text("{}")
        os.write(writing, made.path.encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    path = os.read(reading, 4096).decode()
    os.close(reading)
    os.close(writing)
    return path


def test_the_next_process_removes_what_a_killed_one_left(machine: Path) -> None:
    mine = TemporaryCheckpoints()
    killed = _made_and_killed()
    assert left(machine) == {mine.path, killed}
    other = TemporaryCheckpoints()
    assert left(machine) == {mine.path, other.path}, "it removed a folder in use, or left one that is not"
    other.close()
    mine.close()


def test_nothing_is_removed_behind_a_link(machine: Path, tmp_path: Path) -> None:
    TemporaryCheckpoints().close()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (machine / f"{TEMPORARY}link").symlink_to(tmp_path / "mine")
    (machine / f"{TEMPORARY}file").touch()
    TemporaryCheckpoints().close()
    assert (tmp_path / "mine" / "file").exists() and (machine / f"{TEMPORARY}file").exists()


def test_a_folder_that_another_process_took_for_abandoned_is_made_again(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is removed between its making and its lock, once before it is opened and once after."""
    taken: list[str] = []
    mkdtemp, flock = tempfile.mkdtemp, __import__("fcntl").flock

    def made(**named: Any) -> str:
        path = mkdtemp(**named)
        taken.append(path)
        if len(taken) == 1:
            shutil.rmtree(path)
        return path

    def locked(descriptor: int, how: int) -> None:
        if len(taken) == 2 and os.path.exists(taken[1]):
            shutil.rmtree(taken[1])
        flock(descriptor, how)

    monkeypatch.setattr("tempfile.mkdtemp", made)
    monkeypatch.setattr("fcntl.flock", locked)
    last = TemporaryCheckpoints()
    assert len(taken) == 3 and left(machine) == {last.path} == {taken[2]}
    last.close()


def test_where_no_folder_can_be_made_the_error_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(InvalidInputError, match=r"\$TMPDIR, or give SparkRegion\(folder="):
        TemporaryCheckpoints()
