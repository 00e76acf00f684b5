"""Staging of batches: by tasks, under keys of their attempts; and the keys that a checkpoint gets."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from kohort.errors import CorruptDataError
from kohort.region import ParquetFolder
from kohort.region.staged import Staged, StagedKey
from kohort.spark.region.staging import QueryOutput, StagedBatches, StagingTask

REGION = UUID(int=5)
SCHEMA = pa.schema([("n", pa.int64())])


def key(unit: int) -> StagedKey:
    return StagedKey(REGION, 1, "q", unit)


def test_keys_of_all_batches_that_no_sequence_has() -> None:
    staged = StagedBatches(None)
    staged.add_batch(0, Staged((key(0), key(1))))
    staged.add_batch(1, Staged(()))
    staged.add_batch(2, Staged((key(2),)))
    assert staged.unacknowledged_keys(1).keys == (key(0), key(1))
    assert staged.unacknowledged_keys(2).keys == (key(0), key(1), key(2)), "the cut began again: nothing has counted"
    staged.forget_contribution()
    assert staged.unacknowledged_keys(2).keys == ()
    staged.add_batch(3, Staged((key(3),)))
    assert staged.unacknowledged_keys(3).keys == (key(3),)


def test_what_came_after_the_contribution_is_for_the_next() -> None:
    staged = StagedBatches(6)
    staged.add_batch(7, Staged((key(7),)))
    assert staged.unacknowledged_keys(7).keys == (key(7),)
    staged.add_batch(8, Staged((key(8),)))
    staged.forget_contribution()
    assert staged.unacknowledged_keys(8).keys == (key(8),)
    assert staged.batches_ahead(8) == 1


def test_a_batch_in_the_log_that_staged_nothing_fails_the_cut() -> None:
    staged = StagedBatches(3)
    staged.add_batch(5, Staged((key(5),)))
    with pytest.raises(CorruptDataError, match="batch 4 is in the checkpoint's log"):
        staged.unacknowledged_keys(5)


def test_a_run_that_has_done_no_batch_gives_nothing() -> None:
    assert StagedBatches(3).unacknowledged_keys(3) == Staged()
    assert StagedBatches(None).unacknowledged_keys(None) == Staged()


def task(folder: Path, unit_bytes: int = 1 << 20) -> StagingTask:
    sink = ParquetFolder(folder).bind("r", REGION)
    sink.check(SCHEMA)
    return StagingTask(QueryOutput(sink), SCHEMA, REGION, 4, "q", unit_bytes)


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int32())})


def test_a_task_stages_its_rows_in_units_under_its_attempts_keys(tmp_path: Path) -> None:
    doing = task(tmp_path / "out", unit_bytes=1)
    texts = [
        batch.column("key")[0].as_py() for batch in doing.stage_batches(iter([rows(1, 2), rows(), rows(3)]), attempt=2)
    ]
    keys = [StagedKey.parse(text) for text in texts]
    assert [(contribution.epoch, contribution.unit) for contribution in keys if contribution] == [
        (4, 2 << 20),
        (4, (2 << 20) + 1),
    ]
    doing.output.sink.publish(1, [key for key in keys if key])
    found = pa.parquet.read_table(min((tmp_path / "out").glob("sequence=1/*.parquet")))
    assert found.column("n").to_pylist() == [1, 2]


def test_a_task_without_rows_stages_nothing(tmp_path: Path) -> None:
    assert list(task(tmp_path / "out").stage_batches(iter([rows()]), attempt=2)) == []


STAGES = """
import pickle, sys
import pyarrow as pa
task, batch = pickle.load(sys.stdin.buffer)
print(*(text for staged in task.stage_batches(iter([batch]), 2) for text in staged.column("key").to_pylist()))
print("pandas" in sys.modules)
"""


def test_a_new_worker_stages_without_pandas(tmp_path: Path) -> None:
    """Arrow imports it where it is installed to look at what it is given, which takes a worker a second of CPU time."""
    given = pickle.dumps((task(tmp_path / "out"), rows(1, 2)))
    reported = subprocess.run(
        [sys.executable, "-c", STAGES], input=given, capture_output=True, check=True
    ).stdout.decode()
    assert reported.split() == [key_text(2 << 20), "False"], "where pandas is installed"


def key_text(unit: int) -> str:
    return StagedKey(REGION, 4, "q", unit).file_stem()


def test_a_task_waits_for_a_sink_that_is_away_and_stages_under_a_key_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that failed may have left something under its key."""
    monkeypatch.setattr("kohort.spark.region.staging.time.sleep", lambda seconds: None)
    doing = task(tmp_path / "out")
    real, tried = ParquetFolder.stage, list[int]()

    def stage(sink: ParquetFolder, key: StagedKey, table: pa.Table) -> None:
        real(sink, key, table)
        tried.append(key.unit)
        if len(tried) < 3:
            raise OSError("the disk is full")

    monkeypatch.setattr(ParquetFolder, "stage", stage)
    [given] = doing.stage_batches(iter([rows(1, 2)]), attempt=0)
    assert tried == [0, 1, 2]
    found = StagedKey.parse(given.column("key")[0].as_py())
    assert found is not None and found.unit == 2
    doing.output.sink.publish(1, [found])
    tables = [pa.parquet.read_table(file) for file in (tmp_path / "out").glob("sequence=1/*.parquet")]
    assert [table.column("n").to_pylist() for table in tables] == [[1, 2]]
