"""Content of checkpoint logs: also those left by a power loss, of later versions, and of sources in any order."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.spark.region.checkpoint_files import parse_operator_metadata, relocate_operator_metadata
from kohort.spark.region.folders import find_source_offset, last_completed_batch, read_batch_offsets
from kohort.spark.source.batch_offset import BatchOffset

META = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
OURS = json.dumps(BatchOffset("q-1", batch=3).to_json())
THEIRS = json.dumps(BatchOffset("q-2", batch=7).to_json())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Batches up to 4 are done, 5 is planned."""
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
    for number in range(6):
        (tmp_path / f"offsets/{number}").write_text(f"v1\n{META}\n{OURS}")
        (tmp_path / f"offsets/.{number}.crc").write_bytes(b"crc")
        if number < 5:
            (tmp_path / f"commits/{number}").write_text('v1\n{"nextBatchWatermarkMs":0}')
            (tmp_path / f"commits/.{number}.crc").write_bytes(b"crc")
    return tmp_path


def test_the_last_batch_is_the_highest_that_is_done(checkpoint: Path) -> None:
    assert last_completed_batch(str(checkpoint)) == 4
    for name in (".5.crc", ".5.1b7c.tmp", "..5.1b7c.tmp.crc", "7.compact", "x"):
        (checkpoint / "commits" / name).write_text("v1\n{}")
    assert last_completed_batch(str(checkpoint)) == 4


@pytest.mark.parametrize(
    ("gone", "last"), [("commits/4", 3), ("offsets/4", 3), ("offsets/3", 2), ("offsets/2", 4), ("commits/3", 4)]
)
@pytest.mark.parametrize("left", [None, b"", b"v1", b"v1\n", b"v1\n{", b"\x00" * 30, b"\xff\xfe"])
def test_a_batch_counts_if_spark_could_continue_after_it(
    checkpoint: Path, gone: str, last: int, left: bytes | None
) -> None:
    if left is None:
        (checkpoint / gone).unlink()
    else:
        (checkpoint / gone).write_bytes(left)
    assert last_completed_batch(str(checkpoint)) == last


def test_there_may_be_no_batch(tmp_path: Path) -> None:
    assert last_completed_batch(f"{tmp_path}/none") is None
    (tmp_path / "commits").mkdir()
    assert last_completed_batch(str(tmp_path)) is None
    (tmp_path / "commits/0").write_text("v1\n{}")
    assert last_completed_batch(str(tmp_path)) is None
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/0").write_text(f"v1\n{META}\n{OURS}")
    assert last_completed_batch(str(tmp_path)) == 0


def test_a_later_spark_is_named(checkpoint: Path) -> None:
    (checkpoint / "commits/4").write_text("v4\n{}")
    with pytest.raises(InvalidInputError, match="version 4: it was written by a later Spark"):
        last_completed_batch(str(checkpoint))
    (checkpoint / "offsets/4").write_text("v3\n{}\n{}")
    with pytest.raises(InvalidInputError, match="version 3"):
        read_batch_offsets(str(checkpoint), 4)


def test_offsets_are_those_of_all_sources(checkpoint: Path) -> None:
    (checkpoint / "offsets/4").write_text(f'v1\n{META}\n-\n{{"logOffset":2}}\n17\n{OURS}\n')
    assert read_batch_offsets(str(checkpoint), 4) == [None, {"logOffset": 2}, 17, json.loads(OURS)]
    (checkpoint / "offsets/4").write_text(f'v2\n{META}\n1:{OURS}\nclicks:{{"a:b":"c:1"}}\n0:17\n2:-')
    assert read_batch_offsets(str(checkpoint), 4) == [json.loads(OURS), {"a:b": "c:1"}, 17, None]
    with pytest.raises(FileNotFoundError):
        read_batch_offsets(str(checkpoint), 9)


def test_a_source_is_found_by_its_query_wherever_it_stands() -> None:
    ours, theirs = json.loads(OURS), json.loads(THEIRS)
    strangers = [None, 17, "q-1", {"logOffset": 2}, {"query": "q-1"}, ["q-1"]]
    for offsets in ([ours, theirs, *strangers], [*strangers, theirs, ours]):
        assert find_source_offset(offsets, "q-1") == ours
        assert find_source_offset(offsets, "q-2") == theirs
        assert find_source_offset(offsets, "q-3") is None
    with pytest.raises(CorruptDataError, match="2 sources of one checkpoint say that they are query q-1"):
        find_source_offset([ours, theirs, ours | {"batch": -5}], "q-1")
    assert find_source_offset([ours, theirs, dict(ours)], "q-1") == ours, "a union of a source with itself"


NOTED = {"operatorInfo": {"operatorName": "x"}, "stateStoreInfo": [{"storeName": "default", "numPartitions": 1}]}


def _noted(*paths: str) -> str:
    return "v2\n" + json.dumps(NOTED | {"stateStoreInfo": [{"storeName": "default", "stateSchemaFilePaths": paths}]})


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_schemas_are_found_below_the_new_folder(scheme: str) -> None:
    """Spark writes paths without escaping, so blanks and per cent signs stay."""
    inside = "state/0/_stateSchema/default/0_1b7c"
    text, schemas = relocate_operator_metadata("v2/0", _noted(f"{scheme}/a b%20c/state/9/e1/{inside}"), "/neu ä/e2")
    assert schemas == [inside]
    (found,) = parse_operator_metadata("v2/0", text)["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert re.fullmatch(f"(file:|file://)?/neu ä/e2/{inside}", found) and found.startswith(scheme)


@pytest.mark.parametrize(
    "path", ["hdfs:/a/state/0/_stateSchema/default/0_1", "/a/b", "state/0/_stateSchema/default/0_1"]
)
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidInputError, match="which is no schema of state"):
        relocate_operator_metadata("v2/0", _noted(path), "/e2")


def test_metadata_without_paths_stays_as_it_is() -> None:
    text = f"v2\n{json.dumps(NOTED)}"
    assert relocate_operator_metadata("v2/0", text, "/e2") == (text, [])


@pytest.mark.parametrize(
    ("text", "error"), [("v3\n{}", InvalidInputError), ("v1\n[]", CorruptDataError), ("v1\n{", CorruptDataError)]
)
def test_metadata_that_nobody_knows_is_an_error(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_operator_metadata("v2/0", text)
