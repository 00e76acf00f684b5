"""`kohort region files` and `compact`: which files of a folder count, and small ones become large."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kohort.cli.app import run
from kohort.region import ParquetFolder
from kohort.region.staged import StagedKey

REGION = UUID(int=7)


def test_files_are_those_of_published_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*args: str) -> Any:
        assert run(["region", "files", *args, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    keys = [StagedKey(REGION, 1, "m1", unit) for unit in range(3)]
    sink = ParquetFolder(tmp_path / "out").bind("flights", REGION)
    sink.check(pa.schema([("id", pa.int64())]))
    for number, key in enumerate(keys):
        sink.stage(key, pa.table({"id": [number]}))
    assert listed(sink.place) == []
    sink.publish(1, keys[:1])
    sink.publish(2, keys[1:2])
    rows = listed(sink.place)
    assert [row["sequence"] for row in rows] == [1, 2]
    assert [pq.ParquetFile(row["path"]).read()["id"].to_pylist() for row in rows] == [[0], [1]]
    assert listed(str(tmp_path / "out"), "--after", "1") == rows[1:]
    assert run(["region", "files", "hdfs://node/out"]) != 0
    assert "hard links" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["files", "compact"])
def test_a_folder_that_is_not_there_is_no_empty_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["region", command, f"parquet:{tmp_path}/nowhere"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    error, more = captured.err.splitlines()
    assert error == f"kohort: there is no folder {tmp_path}/nowhere [RESOURCE_NOT_FOUND]"
    assert more == "More: kohort explain RESOURCE_NOT_FOUND"


def test_compaction_is_shown_before_it_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [StagedKey(REGION, 1, "m1", unit) for unit in range(3)]
    sink = ParquetFolder(tmp_path / "out").bind("flights", REGION)
    sink.check(pa.schema([("id", pa.int64())]))
    for number, key in enumerate(keys, 1):
        sink.stage(key, pa.table({"id": [number]}))
        sink.publish(number, [key])
    assert run(["region", "compact", sink.place, "--json"]) != 0
    assert json.loads(capsys.readouterr().out) == [{"place": sink.place, "files": 3}]
    assert len(sink.published_files()) == 3
    assert run(["region", "compact", str(tmp_path / "out"), "--until", "2", "--execute", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["merged"], row["written"], row["removed"], row["waiting"]) == (2, 1, 0, 2)
    assert [file.sequence for file in sink.published_files()] == [2, 3]
    assert run(["region", "compact", sink.place, "--grace", "0s", "--execute", "--target-file-size", "1KB"]) == 0
    assert run(["region", "compact", sink.place, "--execute", "--target-file-size", "big"]) != 0
    assert "like 128MB" in capsys.readouterr().err
