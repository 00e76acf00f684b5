"""Folders derived from those that Spark left: what is in them, what is refused, and every moment of a death."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from tests.region.volume import Calls, LosesAll, Node, Volume
from tests.spark.region.disks import NEW, OLD, deaths, disk_with, files_at, node_at
from tests.support.waiting import LAST_RESORT

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.files import make_folder
from kohort.spark.region import folders
from kohort.spark.region.checkpoint_files import OperatorStateStore, StatefulOperator
from kohort.spark.region.folders import (
    check_checkpoint_folder,
    clone_checkpoint,
    epoch_folder,
    last_completed_batch,
    read_stateful_operators,
    remove_old_epochs,
)

pytestmark = [pytest.mark.spark, LAST_RESORT]
BACK = 2
"""The batch that is gone back to; the queries died in batch 5."""
SEEDS = range(3)


@pytest.fixture
def query(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    """A query's folder with a checkpoint as e1, whose metadata name that place."""
    shutil.copytree(checkpoints["rocksdb"], tmp_path / "e1")
    text = (tmp_path / "e1/state/0/_metadata/v2/0").read_text()
    (tmp_path / "e1/state/0/_metadata/v2/0").write_text(text.replace(str(checkpoints["rocksdb"]), f"{tmp_path}/e1"))
    return tmp_path


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def numbered(found: set[str], folder: str) -> set[int]:
    return {int(match[1]) for name in found if (match := re.fullmatch(rf"{folder}/(\d+)[^/]*", name))}


# -- what is in it


def test_logs_end_with_the_batch_and_state_one_behind_it(query: Path) -> None:
    clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)
    there, old = names(query / "e2"), names(query / "e1")
    assert last_completed_batch(f"{query}/e2") == BACK
    assert numbered(there, "offsets") == numbered(there, "commits") == set(range(BACK + 1))
    assert numbered(old, "state/0/0") == set(range(1, 7))
    assert numbered(there, "state/0/0") == numbered(there, "state/0/1") == set(range(1, BACK + 2))
    assert "metadata" in there and ".metadata.crc" in there
    assert {file for file in old if "/SSTs/" in file} == {file for file in there if "/SSTs/" in file}


def test_each_file_has_its_checksum_and_each_checksum_its_file(query: Path) -> None:
    clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)
    there = names(query / "e2")
    for name in there:
        folder, _, last = name.rpartition("/")
        inside = f"{folder}/" if folder else ""
        if last.startswith("."):
            assert f"{inside}{last[1:].removesuffix('.crc')}" in there
        elif "/_metadata/v2/" not in name:
            assert f"{inside}.{last}.crc" in there


def _untouched(query: Path, act: Callable[[], None]) -> None:
    before = {name: (query / "e1" / name).read_bytes() for name in names(query / "e1")}
    act()
    assert {name: (query / "e1" / name).read_bytes() for name in names(query / "e1")} == before


def test_files_are_links_but_for_those_that_name_their_place(query: Path) -> None:
    _untouched(query, lambda: clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK))
    anew = "state/0/_metadata/v2/0"
    for name in names(query / "e2") - {anew}:
        assert os.path.samefile(query / "e1" / name, query / "e2" / name)
    assert not os.path.samefile(query / "e1" / anew, query / "e2" / anew)
    text, old = (query / "e2" / anew).read_text(), (query / "e1" / anew).read_text()
    assert f"file:{query}/e2/state/0/_stateSchema/default/0_" in text and f"{query}/e1" not in text
    assert text == old.replace(f"{query}/e1/", f"{query}/e2/")


def test_a_file_that_is_changed_through_its_link_would_be_noticed(query: Path) -> None:
    """The planted fault: the old timeline is changed with the new one."""

    def write_into_the_link(files: Any, on_its_way: str, path: str, text: str) -> None:
        os.link(f"{query}/e1/{path}", f"{on_its_way}/{path}")
        Path(on_its_way, path).write_text(text)

    with mock.patch.object(folders, "_write_anew", write_into_the_link), pytest.raises(AssertionError):
        _untouched(query, lambda: clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK))


def test_one_folder_is_derived_from_another_and_so_on(query: Path) -> None:
    for epoch, batch in ((2, 4), (3, 3), (10, 1), (11, 0)):
        before = 1 if epoch == 2 else max(int(path.name[1:]) for path in query.iterdir())
        clone_checkpoint(epoch_folder(str(query), before), epoch_folder(str(query), epoch), batch)
        assert last_completed_batch(f"{query}/e{epoch}") == batch
        assert f"{query}/e{epoch}/state" in (query / f"e{epoch}/state/0/_metadata/v2/0").read_text()


def test_metadata_and_schemas_of_a_later_run_are_left_out(query: Path) -> None:
    state = query / "e1/state/0"
    later = "3_00000000-0000-0000-0000-000000000000"
    shutil.copy(next(state.glob("_stateSchema/default/0_*")), state / "_stateSchema/default" / later)
    shutil.copy(state / "_metadata/v2/0", state / "_metadata/v2/3")
    clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)
    clone_checkpoint(f"{query}/e1", f"{query}/e3", 3)
    assert numbered(names(query / "e2"), "state/0/_metadata/v2") == {0}
    assert numbered(names(query / "e2"), "state/0/_stateSchema/default") == {0}
    assert numbered(names(query / "e3"), "state/0/_metadata/v2") == {0, 3}
    assert numbered(names(query / "e3"), "state/0/_stateSchema/default") == {0, 3}


def test_files_on_their_way_are_left_out(query: Path) -> None:
    for name in (
        "offsets/.1.7b1c.tmp",
        "commits/..1.7b1c.tmp.crc",
        "state/0/0/.2.changelog.7b1c.tmp",
        "offsets/.9.crc",
    ):
        (query / "e1" / name).write_text("half")
    clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)
    assert not any(
        "tmp" in name or "9" in Path(name).name for name in names(query / "e2") if name.startswith("offsets")
    )
    assert not any(name.endswith(("tmp", "tmp.crc")) for name in names(query / "e2"))


def test_other_sources_logs_come_whole(query: Path) -> None:
    (query / "e1/sources/0").mkdir(parents=True)
    for name in ("0", ".0.crc", "9.compact", "12", ".13.x.tmp"):
        (query / "e1/sources/0" / name).write_text("v1")
    clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)
    assert {path.name for path in (query / "e2/sources/0").iterdir()} == {"0", ".0.crc", "9.compact", "12"}


def test_state_and_operators_are_read(checkpoints: dict[str, Path]) -> None:
    sides = [f"{side}-{kind}" for side in ("left", "right") for kind in ("keyToNumValues", "keyWithIndexToValue")]
    joined = read_stateful_operators(str(checkpoints["hdfs"]))
    assert joined == [
        StatefulOperator(0, "symmetricHashJoin", tuple(OperatorStateStore(name, 2) for name in sides), "")
    ]
    (with_schemas,) = read_stateful_operators(str(checkpoints["rocksdb"]))
    assert with_schemas.name == "symmetricHashJoin" and with_schemas.stores == (OperatorStateStore("default", 2),)
    assert with_schemas.properties == '{"useVirtualColumnFamilies":true}'


def test_nothing_is_read_of_a_query_without_state(tmp_path: Path) -> None:
    assert read_stateful_operators(str(tmp_path)) == []


# -- a start without a batch, and a second call


def test_without_a_batch_the_folder_is_empty(tmp_path: Path) -> None:
    for _ in range(2):
        clone_checkpoint(f"{tmp_path}/e1", f"{tmp_path}/q/e2", None)
        assert [path.name for path in (tmp_path / "q").iterdir()] == ["e2"] and not names(tmp_path / "q/e2")
    for _ in range(2):
        clone_checkpoint(f"{tmp_path}/e1", f"{tmp_path}/q/e3", None, query_id=UUID(int=7))
        assert names(tmp_path / "q/e3") == {"metadata"}
    assert json.loads((tmp_path / "q/e3/metadata").read_text()) == {"id": str(UUID(int=7))}


def test_a_second_call_leaves_the_folder_as_it_is(query: Path) -> None:
    clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)
    inode = (query / "e2").stat().st_ino
    shutil.rmtree(query / "e1")
    clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)
    assert (query / "e2").stat().st_ino == inode


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_a_folder_in_which_a_query_has_run_is_refused(query: Path, batch: int | None) -> None:
    clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)
    with pytest.raises(InvalidInputError, match="a query has run in it, up to batch 2"):
        clone_checkpoint(f"{query}/e1", f"{query}/e2", batch)


def test_a_batch_planned_in_it_is_noticed(query: Path) -> None:
    clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)
    shutil.copy(query / "e1/offsets/3", query / "e2/offsets/3")
    with pytest.raises(InvalidInputError, match="up to batch 3"):
        clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)


# -- what is refused


@pytest.mark.parametrize(
    "path",
    [
        "odd", "offsets/odd", "commits/5.compact", "state/odd", "state/0/odd", "state/0/0/7.bin", "state/0/0/odd",
        "state/0/0/_metadata/odd", "state/0/_metadata/odd", "state/0/_metadata/v2/odd", "state/0/_stateSchema/odd",
        "state/0/_stateSchema/default/odd", "state/0/0/named/7.bin",
    ],
)  # fmt: skip
def test_files_of_unknown_kinds_are_refused_by_name(query: Path, path: str) -> None:
    (query / "e1" / path).parent.mkdir(exist_ok=True)
    (query / "e1" / path).write_text("?")
    with pytest.raises(InvalidInputError, match=re.escape(f"{query}/e1/{path}")):
        clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)
    assert {entry.name for entry in query.iterdir()} == {"e1"}, "nothing was begun"


def test_what_spark_has_removed_is_named_with_its_setting(query: Path) -> None:
    for number in range(BACK):
        (query / f"e1/offsets/{number}").unlink()
        (query / f"e1/commits/{number}").unlink()
    with pytest.raises(InvalidInputError, match=r"minBatchesToRetain"):
        clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)
    with pytest.raises(InvalidInputError, match=r"before batch 2, for it runs batch 5"):
        clone_checkpoint(f"{query}/e1", f"{query}/e2", 1)
    clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK + 1)


@pytest.mark.parametrize("name", ["commits/2", "offsets/1", "offsets/2"])
def test_a_log_with_a_gap_is_damaged(query: Path, name: str) -> None:
    (query / "e1" / name).unlink()
    with pytest.raises(CorruptDataError, match="missing or damaged"):
        clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)


@pytest.mark.parametrize("gone", ["1/3.changelog", "1/3.changelog 1/3.zip", "0/1.zip 0/1.changelog 0/2.zip 0/3.zip"])
def test_state_that_could_not_be_loaded_is_noticed(query: Path, gone: str) -> None:
    """Whether a version can be loaded depends on the snapshots that Spark had made."""
    state = query / "e1/state/0"
    for name in gone.split():
        (state / name).unlink(missing_ok=True)
    partition = gone[0]
    loads = (state / partition / "3.zip").exists() or (
        (state / partition / "3.changelog").exists()
        and any((state / partition / f"{number}.zip").exists() for number in (1, 2))
    )
    with (
        contextlib.nullcontext() if loads else pytest.raises(CorruptDataError, match=f"state/0/{partition} has no ver")
    ):
        clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)


def test_a_partition_that_is_not_there_is_noticed(query: Path) -> None:
    shutil.rmtree(query / "e1/state/0/1")
    with pytest.raises(CorruptDataError, match=r"state/0/1 has no version 3"):
        clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)


def test_a_schema_that_is_not_there_is_noticed(query: Path) -> None:
    next((query / "e1/state/0/_stateSchema/default").glob("0_*")).unlink()
    with pytest.raises(CorruptDataError, match=r"_stateSchema/default/0_\S+, which is not there"):
        clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)


def test_a_path_that_leads_elsewhere_is_refused(query: Path) -> None:
    path = query / "e1/state/0/_metadata/v2/0"
    path.write_text(path.read_text().replace("file:", "s3a:/"))
    with pytest.raises(InvalidInputError, match="which is no schema of state in this checkpoint"):
        clone_checkpoint(f"{query}/e1", f"{query}/e2", BACK)


def test_a_checkpoint_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="is not there or empty"):
        clone_checkpoint(f"{tmp_path}/e1", f"{tmp_path}/e2", BACK)


def test_another_file_system_is_refused(query: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == query.stat().st_dev:
        pytest.skip("there is one file system")
    new = other / f"kohort-{os.getpid()}"
    try:
        with pytest.raises(InvalidInputError, match="one file system that has hard links"):
            clone_checkpoint(f"{query}/e1", f"{new}/e2", BACK)
    finally:
        shutil.rmtree(new, ignore_errors=True)


# -- deaths


@pytest.fixture(scope="module")
def disk(checkpoints: dict[str, Path]) -> Volume:
    return disk_with(checkpoints["rocksdb"])


def _derive(calls: Calls) -> None:
    clone_checkpoint(OLD, NEW, BACK, files=calls)


def _whole_or_absent(volume: Volume, wanted: dict[str, bytes], when: str) -> None:
    assert files_at(volume, NEW) in (None, wanted), when


def _every_death(disk: Volume) -> int:
    """However a process ends, and with it the machine: the folder is whole or absent, and the next call makes it."""
    done = copy.deepcopy(disk)
    _derive(Calls(done))
    wanted, old = files_at(done, NEW), files_at(disk, OLD)
    assert wanted
    count = 0
    for when, trial in deaths(disk, _derive):
        count += 1
        _whole_or_absent(trial, wanted, when)
        dark = copy.deepcopy(trial)
        dark.lose_power(random.Random(count))
        for left in (trial, dark):
            _whole_or_absent(left, wanted, when)
            _derive(Calls(left))
            left.lose_power(random.Random(-count))
            assert files_at(left, NEW) == wanted, when
            assert node_at(left, f"{NEW}.tmp") is None and files_at(left, OLD) == old, when
    return count


def test_every_death_leaves_the_folder_whole_or_absent(disk: Volume) -> None:
    assert _every_death(disk) > 200


def test_checkpoint_survives_a_power_loss_in_a_folder_that_another_process_made() -> None:
    """That one died before it had synced the folder's name."""
    volume = Volume()
    calls = Calls(volume)
    make_folder(calls, "/checkpoints")
    calls.mkdir("/checkpoints/q")
    clone_checkpoint("/checkpoints/q/e0", "/checkpoints/q/e1", None, query_id=UUID(int=1), files=calls)
    volume.lose_power(LosesAll())
    assert calls.listdir("/checkpoints/q") == ["e1"]


def _last_comes_first(files: Any, path: str) -> None:
    if path.endswith("query"):
        _SYNC(files, path)


_SYNC = folders.sync_folder


def test_a_folder_that_is_shown_before_its_names_are_durable_would_be_noticed(disk: Volume) -> None:
    """The planted fault: of all folders, only the last one is synced."""
    with mock.patch.object(folders, "sync_folder", _last_comes_first), pytest.raises(AssertionError):
        _every_death(disk)


def test_a_folder_that_is_filled_in_its_place_would_be_noticed(disk: Volume) -> None:
    """The planted fault: it has its name from the beginning."""
    with mock.patch.object(folders, "_ON_ITS_WAY", ""), pytest.raises((AssertionError, InvalidInputError, OSError)):
        _every_death(disk)


def test_what_spark_cleans_away_meanwhile_is_not_needed_unless_it_is(disk: Volume) -> None:
    """A zombie's maintenance removes a file between the look and the link."""
    cleaned = [name for name in files_at(disk, OLD) or {} if re.fullmatch(r"/state/0/0/\d\.changelog", name)]
    assert len(cleaned) == 6
    refused = []
    for name in cleaned:
        trial = copy.deepcopy(disk)
        calls = Calls(trial)

        def clean(number: int, call: str, path: str, name: str = name, trial: Volume = trial) -> None:
            above = node_at(trial, f"{OLD}{name}".rpartition("/")[0])
            if call == "link" and above is not None:
                (above.names or {}).pop(name.rpartition("/")[2], None)

        calls.at = clean
        try:
            _derive(calls)
        except CorruptDataError:
            refused.append(name)
    versions = {int(Path(name).name.split(".")[0]) for name in refused}
    snapshots = {
        int(Path(file).stem) for file in files_at(disk, OLD) or {} if re.fullmatch(r"/state/0/0/\d\.zip", file)
    }
    base = max(entry for entry in {0, *snapshots} if entry <= BACK + 1)
    assert versions == set(range(base + 1, BACK + 2))


def test_a_full_disk_is_an_error_and_the_next_call_succeeds(disk: Volume) -> None:
    for number in range(1, 400, 7):
        trial = copy.deepcopy(disk)
        calls = Calls(trial)

        def fail(now: int, name: str, path: str, number: int = number) -> None:
            if now == number and name in ("link", "mkdir", "write", "open", "rename", "fsync"):
                raise OSError(errno.ENOSPC, "no space", path)

        calls.at = fail
        with contextlib.suppress(OSError):
            _derive(calls)
        _derive(Calls(trial))
        assert node_at(trial, f"{NEW}/metadata") is not None


def test_processes_killed_at_each_call(query: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-m", "tests.spark.region.killed", str(query), str(BACK)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert killed.returncode == 0, killed.stderr
    assert int(killed.stdout) > 150


# -- places, and what is over


@pytest.mark.parametrize(
    "place", ["s3a://bucket/regions", "hdfs://name/regions", "file://host/regions", "dbfs:/regions"]
)
def test_urls_are_refused_with_the_reason(place: str) -> None:
    with pytest.raises(InvalidInputError, match="needs hard links and atomic renames"):
        check_checkpoint_folder(place)


def test_a_place_is_made_and_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_checkpoint_folder("regions/flights") == f"{tmp_path}/regions/flights"
    assert [*(tmp_path / "regions/flights").iterdir()] == []
    assert check_checkpoint_folder(f"{tmp_path}/regions/flights") == f"{tmp_path}/regions/flights"
    with pytest.raises(InvalidInputError, match="needs a path"):
        check_checkpoint_folder("")


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EPERM, "has no hard links"), (errno.ENOSPC, "can't be written to")]
)
def test_a_place_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    """No such file system can be mounted here."""

    def link(src: str, dst: str, **_: object) -> None:
        raise OSError(number, os.strerror(number), dst)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(InvalidInputError, match=words):
        check_checkpoint_folder(str(tmp_path))
    assert [*tmp_path.iterdir()] == []


def test_a_place_that_nobody_can_write_to_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="can't be written to"):
        check_checkpoint_folder("/proc/kohort")


def test_epochs_before_the_oldest_kept_are_forgotten(tmp_path: Path) -> None:
    for name in ("e1", "e2.tmp", "e3", "e4", "e7", "e8.tmp", "e9", "other", "e", "e1x"):
        (tmp_path / name / "state").mkdir(parents=True)
        (tmp_path / name / "state/0").write_text("v1")
    assert remove_old_epochs(str(tmp_path), ()) == []
    assert remove_old_epochs(str(tmp_path), (4, 9)) == [1, 2, 3]
    assert {path.name for path in tmp_path.iterdir()} == {"e4", "e7", "e8.tmp", "e9", "other", "e", "e1x"}
    assert remove_old_epochs(str(tmp_path), (4, 9)) == [] and remove_old_epochs(f"{tmp_path}/none", (1,)) == []


def test_a_folder_that_a_zombie_writes_to_is_forgotten_later(disk: Volume) -> None:
    trial = copy.deepcopy(disk)
    calls = Calls(trial)
    wrote: list[str] = []

    def write(number: int, call: str, path: str) -> None:
        folder = node_at(trial, f"{OLD}/offsets")
        if call == "unlink" and path.startswith(f"{OLD}/offsets/") and not wrote:
            wrote.append(path)
            assert folder is not None and folder.names is not None
            folder.names["99"] = Node()

    calls.at = write
    assert remove_old_epochs("/query", (2,), files=calls) == [] and wrote
    assert remove_old_epochs("/query", (2,), files=Calls(trial)) == [1] and node_at(trial, OLD) is None
