"""`kohort spark checkpoint`: what it prints, what it changes, and how it ends. Nothing here needs Spark or a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.running import Kohort, Said

from kohort.cli.app import run


@pytest.fixture
def kohort(capsys: pytest.CaptureFixture[str]) -> Kohort:
    def command(*args: object) -> Said:
        capsys.readouterr()
        code = run(["spark", "checkpoint", *map(str, args)])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return command


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One finished batch of a query without a group."""
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    offset = {
        "kohort": 2,
        "query": "q",
        "batch": 1,
        "generation": -1,
        "topics": {"t": {"0": {"start": 2, "end": 5}, "1": {"start": 0, "end": 4}}},
        "ids": {},
        "group": "",
    }
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n" + json.dumps(offset))
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    return tmp_path


def test_a_checkpoint_is_shown_with_its_starting_offsets(kohort: Kohort, checkpoint: Path) -> None:
    said = kohort("show", checkpoint)
    assert said.code == 0
    assert [(row["PARTITION"], row["START"], row["END"], row["FORMAT"]) for row in said.table] == [
        ("0", "2", "5", "kohort"),
        ("1", "0", "4", "kohort"),
    ]
    assert 'as startingOffsets: {"t": {"0": 5, "1": 4}}' in said.err
    (batch,) = kohort("show", checkpoint, "--json").json
    assert json.loads(batch["starting_offsets"]) == {"t": {"0": 5, "1": 4}}
    assert [row["end"] for row in batch["partitions"]] == [5, 4]


def test_missing_folder_is_called_so(kohort: Kohort, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    said = kohort("show", missing)
    assert (said.code, said.out) == (2, "")
    assert f"there is no folder {missing}" in said.err
    assert "has no batches" in kohort("show", tmp_path).err


def test_a_conversion_is_previewed_and_then_made(kohort: Kohort, checkpoint: Path) -> None:
    path = checkpoint / "offsets" / "0"
    before = path.read_text()
    said = kohort("convert", checkpoint, "--to", "kafka")
    assert said.code == 1
    assert "would write offsets/0" in said.err
    assert "add --execute" in said.err
    assert path.read_text() == before
    assert kohort("convert", checkpoint, "--to", "kafka", "--execute").code == 0
    assert path.read_text() == 'v1\n{}\n{"t":{"0":5,"1":4}}'
    again = kohort("convert", checkpoint, "--to", "kafka", "--execute")
    assert (again.code, "has no source to convert to kafka" in again.err) == (1, True)


@pytest.mark.parametrize("words", [("show",), ("convert", "--to", "kafka")])
def test_a_folder_that_is_no_checkpoint_is_wrong_use(kohort: Kohort, tmp_path: Path, words: tuple[str, ...]) -> None:
    said = kohort(words[0], tmp_path / "nothing", *words[1:])
    assert said.code == 2
    assert "checkpointLocation" in said.err


def test_a_format_that_there_is_not_is_wrong_use(kohort: Kohort, checkpoint: Path) -> None:
    assert kohort("convert", checkpoint, "--to", "pulsar").code == 2
