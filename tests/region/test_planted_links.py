"""Folders of a region in which another user has planted symbolic links: nothing behind them is touched."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from kohort.errors import InvalidInputError
from kohort.region import DeltaTable, ParquetFolder
from kohort.region.confined_files import FOLDERS_OPEN_MAX, ConfinedFiles, keep_folders_open
from kohort.region.sinks import Keep
from kohort.region.staged import StagedKey
from kohort.spark.region.folders import check_checkpoint_folder, clone_checkpoint, remove_old_epochs

REGION = UUID(int=3)
TABLE = pa.table({"value": ["a", "b"]})
KINDS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "parquet": (ParquetFolder, "_staging"),
    "parquet's marker": (ParquetFolder, "_region"),
    "delta": (DeltaTable, f"_kohort/{REGION.hex}/staged"),
    "delta's own": (DeltaTable, f"_kohort/{REGION.hex}"),
    "delta's log": (DeltaTable, "_delta_log"),
}


def key(epoch: int, unit: int = 0) -> StagedKey:
    return StagedKey(REGION, epoch, "m", unit)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=KINDS)
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path, Path]:
    """A sink that has been used, a folder of it that became a link, and what that leads to: names as the sink's."""
    kind, inside = KINDS[request.param]
    sink = kind(tmp_path / "out").bind("flights", REGION)
    sink.check(TABLE.schema)
    sink.stage(key(1), TABLE)
    sink.publish(1, [key(1)])
    sink.stage(key(2), TABLE)
    victim = tmp_path / "victim"
    folder = tmp_path / "out" / inside
    folder.rename(victim)
    (victim / "gone-0123456789abcdef0123456789abcdef").mkdir()
    (victim / "gone-0123456789abcdef0123456789abcdef" / "letter").write_text("dear")
    (victim / "_probe-1").mkdir()
    (victim / "_probe-1" / "letter").write_text("dear")
    folder.symlink_to(victim)
    return sink, folder, victim


@pytest.mark.parametrize(
    "use",
    [
        lambda sink: sink.check(TABLE.schema),
        lambda sink: sink.stage(key(3), TABLE),
        lambda sink: sink.publish(2, [key(2)]),
        lambda sink: sink.empty(2, 9),
        lambda sink: sink.sweep(Keep(9, ())),
    ],
    ids=["check", "stage", "publish", "empty", "sweep"],
)
def test_sink_follows_no_link_that_was_planted_in_its_folder(
    planted: tuple[Any, Path, Path], use: Callable[[Any], None]
) -> None:
    sink, folder, victim = planted
    before = everything(victim)
    refused = ""
    try:
        use(sink.bind("flights", REGION))
    except InvalidInputError as error:
        refused = error.message
    assert everything(victim) == before
    assert not refused or (str(folder) in refused and "symbolic link" in refused)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_sink_refuses_a_planted_link_before_the_first_record(kind: str, tmp_path: Path) -> None:
    made, inside = KINDS[kind]
    sink = made(tmp_path / "out").bind("flights", REGION)
    (tmp_path / "victim").mkdir()
    planted = tmp_path / "out" / inside
    planted.parent.mkdir(parents=True)
    planted.symlink_to(tmp_path / "victim")
    with pytest.raises(InvalidInputError, match="symbolic link"):
        sink.check(TABLE.schema)
    assert everything(tmp_path / "victim") == {}


def test_staged_file_that_was_replaced_by_a_link_is_not_published(tmp_path: Path) -> None:
    sink = ParquetFolder(tmp_path / "out").bind("flights", REGION)
    sink.check(TABLE.schema)
    sink.stage(key(1), TABLE)
    [staged] = (tmp_path / "out" / "_staging").glob("*.staged")
    secret = tmp_path / "secret"
    secret.write_text("of the victim")
    staged.unlink()
    staged.symlink_to(secret)
    with pytest.raises(InvalidInputError, match="symbolic link"):
        sink.publish(1, [key(1)])
    assert not list((tmp_path / "out").glob("sequence=*")) and secret.read_text() == "of the victim"


def test_root_itself_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "named").symlink_to(tmp_path / "real")
    sink = ParquetFolder(tmp_path / "named").bind("flights", REGION)
    sink.check(TABLE.schema)
    sink.stage(key(1), TABLE)
    sink.publish(1, [key(1)])
    assert list((tmp_path / "real" / "sequence=1").glob("*.parquet"))


def test_checkpoint_folders_follow_no_link_and_are_the_users_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "letter").write_text("dear")
    query = tmp_path / "query"
    query.mkdir()
    (query / "e1").mkdir()
    (query / "e1" / "sources").symlink_to(victim)
    (query / "e2").symlink_to(victim)
    with pytest.raises(InvalidInputError, match="symbolic link"):
        remove_old_epochs(str(query), {9})
    assert not (query / "e1").exists(), "a link inside is removed, and what it leads to is not"
    (query / "e3.tmp").symlink_to(victim)
    with pytest.raises(InvalidInputError, match="symbolic link"):
        clone_checkpoint("", str(query / "e3"), None)
    clone_checkpoint("", str(query / "e4"), None)
    assert stat.S_IMODE((query / "e4").stat().st_mode) == 0o700
    assert everything(victim) == {"letter": b"dear"}
    check_checkpoint_folder(str(query))


def test_private_files_are_the_users_alone(tmp_path: Path) -> None:
    files = ConfinedFiles(str(tmp_path), private=True)
    files.close(files.open(f"{tmp_path}/state", os.O_WRONLY | os.O_CREAT, 0o666))
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o600


def test_the_root_of_all_folders_confines_too(tmp_path: Path) -> None:
    files = ConfinedFiles("/")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files.mkdir(f"{tmp_path}/made")
    assert sorted(files.listdir(str(tmp_path))) == ["link", "made", "real"]
    assert tmp_path.parts[1] in files.listdir("/")
    with pytest.raises(InvalidInputError, match=f"{tmp_path}/link is a symbolic link"):
        files.mkdir(f"{tmp_path}/link/made")


def test_folder_that_is_a_file_is_named_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = ConfinedFiles(str(tmp_path))
    with pytest.raises(NotADirectoryError) as caught:
        files.listdir(f"{tmp_path}/file/inside")
    assert caught.value.filename == f"{tmp_path}/file"
    with pytest.raises(FileNotFoundError) as missing:
        files.open(f"{tmp_path}/missing", os.O_RDONLY)
    assert missing.value.filename == f"{tmp_path}/missing"


@pytest.mark.parametrize("path", ["../precious", "a/../../precious", "a//precious", "./precious"])
def test_path_that_leads_upwards_reaches_nothing(tmp_path: Path, path: str) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "out" / "a").mkdir(parents=True)
    files = ConfinedFiles(str(tmp_path / "out"))
    with pytest.raises(InvalidInputError, match="leads upwards"):
        files.unlink(f"{tmp_path}/out/{path}")
    assert (tmp_path / "precious").exists()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="/proc is needed to count descriptors")
def test_folders_kept_open_are_closed_and_never_too_many(tmp_path: Path) -> None:
    before = descriptors()
    with keep_folders_open(ConfinedFiles(str(tmp_path))) as files:
        for number in range(2 * FOLDERS_OPEN_MAX):
            files.mkdir(f"{tmp_path}/{number}")
            files.close(files.open(f"{tmp_path}/{number}/old", os.O_WRONLY | os.O_CREAT))
            files.link(f"{tmp_path}/{number}/old", f"{tmp_path}/{number}/new")
            files.unlink(f"{tmp_path}/{number}/old")
            assert descriptors() <= before + FOLDERS_OPEN_MAX
    assert descriptors() == before
    assert everything(tmp_path) == {f"{number}/new": b"" for number in range(2 * FOLDERS_OPEN_MAX)}


def test_folder_kept_open_is_not_exchanged_for_a_link(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "out" / "folder"
    victim.mkdir()
    folder.mkdir(parents=True)
    (victim / "letter").write_bytes(b"dear")
    (folder / "letter").write_bytes(b"mine")
    with keep_folders_open(ConfinedFiles(str(tmp_path / "out"))) as files:
        files.stat(f"{folder}/letter")
        folder.rename(tmp_path / "out" / "moved")
        folder.symlink_to(victim)
        files.unlink(f"{folder}/letter")
        with pytest.raises(InvalidInputError, match="symbolic link"):
            files.listdir(str(folder))
    with (
        keep_folders_open(ConfinedFiles(str(tmp_path / "out"))) as files,
        pytest.raises(InvalidInputError, match="symbolic link"),
    ):
        files.unlink(f"{folder}/letter")
    assert everything(victim) == {"letter": b"dear"}
    assert everything(tmp_path / "out" / "moved") == {}
