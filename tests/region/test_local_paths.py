"""Paths as users give them: `file:` URLs are paths, and URLs of stores that can't be written exactly are refused."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from kohort.errors import InvalidInputError
from kohort.region import DeltaTable, ParquetFolder, SqlTable
from kohort.region.files import local_path, make_folder
from kohort.spark.region.folders import check_checkpoint_folder
from tests.region.volume import Calls, LosesAll, Volume


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("file:///data/out", "/data/out"),
        ("file:/data/out", "/data/out"),
        ("file://localhost/data/a%20b", "/data/a b"),
        ("FILE:///data", "/data"),
        ("/data/a:b/../out", "/data/out"),
        ("/data/100%25", "/data/100%25"),
        (Path("/data/out"), "/data/out"),
    ],
)
def test_local_path(given: str | Path, path: str) -> None:
    assert local_path(given, "A sink") == path


def test_path_is_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("a:b", "A sink") == f"{tmp_path}/a:b", "no URL: it has no slash"


URLS = ("s3://bucket/out", "s3a://bucket/out", "gs://b/o", "abfss://c@a/o", "hdfs:/out", "dbfs:/out", "file://host/out")


@pytest.mark.parametrize("url", URLS)
def test_url_of_a_store_is_refused_by_all_that_lie_on_a_disk(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of that name was made below the working directory, and written to."""
    monkeypatch.chdir(tmp_path)
    made: list[Any] = [check_checkpoint_folder, lambda given: SqlTable(f"sqlite:///{given}", "t")]
    if not url.startswith(("s3", "gs")):  # those are no folder, but a layout of their own
        made += [DeltaTable, ParquetFolder]
    for make in made:
        with pytest.raises(InvalidInputError, match="hard links and atomic renames") as refused:
            make(url)
        assert url.replace("c@a", "…@a") in refused.value.message
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="needs a path"):
        ParquetFolder("")


def test_file_url_is_its_path(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    assert ParquetFolder(url).place == ParquetFolder(tmp_path).place
    assert DeltaTable(url).place == DeltaTable(tmp_path).place
    assert check_checkpoint_folder(url) == str(tmp_path)


def test_folder_whose_name_could_not_be_synced_survives_a_power_loss_when_it_is_made_again() -> None:
    """The second call found the folder above, and synced what was in it alone."""
    volume = Volume()
    calls = Calls(volume)

    def fail(number: int, name: str, path: str) -> None:
        if (name, path) == ("fsync", "/data"):
            calls.at = lambda number, name, path: None
            raise OSError(errno.EIO, "the disk fails")

    make_folder(calls, "/data")
    calls.at = fail
    with pytest.raises(OSError, match="the disk fails"):
        make_folder(calls, "/data/out/parts")
    make_folder(calls, "/data/out/parts")
    volume.lose_power(LosesAll())
    assert calls.listdir("/data/out") == ["parts"]
