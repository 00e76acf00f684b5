from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import InvalidInputError
from kohort.region.consuming.staging import RowStager
from kohort.region.consuming.work_queue import SMALL_TABLES
from kohort.region.files import SYSTEM, Output
from kohort.region.sinks.staged_files import dictionary_columns, encode_parquet, write_parquet
from kohort.region.staged import StagedKey, check_member
from tests.region.conftest import Collected

REGION = UUID(int=0xABC)
NUMBERS = st.integers(0, 2**63 - 1)


def allowed(name: str) -> bool:
    try:
        check_member(name)
    except InvalidInputError:
        return False
    return True


@given(st.text(max_size=60).filter(allowed), NUMBERS, NUMBERS, st.uuids())
def test_the_text_is_a_safe_file_name_and_is_read_back(member: str, epoch: int, unit: int, region: UUID) -> None:
    key = StagedKey(region, epoch, member, unit)
    text = key.file_stem()
    assert StagedKey.parse(text) == key
    assert text.isascii() and "/" not in text and text[0] not in "._-"


@pytest.mark.parametrize("member", ["worker-1", "a/b", "..", ".", "_x", "größe", "x-e1-u2", "query 1", "~2F", "港口"])
def test_names_of_every_kind_are_members(member: str) -> None:
    key = StagedKey(REGION, 3, member, 4)
    assert StagedKey.parse(key.file_stem()) == key


def test_the_name_can_be_read() -> None:
    assert StagedKey(REGION, 12, "worker-1", 7).file_stem() == f"worker-1-e12-u7-{REGION.hex}"


def test_the_longest_key_with_every_suffix_is_a_file_name() -> None:
    text = StagedKey(REGION, 2**63 - 1, "é" * 25, 2**63 - 1).file_stem()
    assert len(text + "." + "0" * 12 + ".part") <= 255
    assert len(text + ".parquet") <= 255


@pytest.mark.parametrize("member", ["", "a\n", "a\0b", "\ud800", "é" * 26, "x" * 151, "\u200b"])
def test_other_names_are_refused(member: str) -> None:
    with pytest.raises(InvalidInputError, match="member's name"):
        check_member(member)
    with pytest.raises(InvalidInputError, match="member's name"):
        StagedKey(REGION, 1, member, 1).file_stem()


@pytest.mark.parametrize("numbers", [(-1, 0), (0, -1), (2**63, 0)])
def test_numbers_have_bounds(numbers: tuple[int, int]) -> None:
    with pytest.raises(InvalidInputError, match="must lie between"):
        StagedKey(REGION, numbers[0], "a", numbers[1]).file_stem()


@pytest.mark.parametrize(
    "text", ["", "a", "a-e1-u1-", "a-e01-u1-" + REGION.hex, "_a-e1-u1-" + REGION.hex, "a~2f-e1-u1-" + REGION.hex,
             "a-e1-u1-" + REGION.hex.upper(), "a~FF-e1-u1-" + REGION.hex, "a~61-e1-u1-" + REGION.hex]
)  # fmt: skip
def test_no_other_text_is_a_key(text: str) -> None:
    assert StagedKey.parse(text) is None


class _Lossy(Collected):
    """A sink that stages the first rows, and whose answer is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[StagedKey] = []

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        super().stage(key, table)
        self.asked.append(key)
        if len(self.asked) == 1:
            raise OSError("the answer is lost")


def test_rows_whose_staging_failed_are_staged_under_another_key() -> None:
    """A store may still carry out the request that failed."""
    sink = _Lossy()
    stager = RowStager(sink, UUID(int=1), "m1")
    stager.begin_epoch(1)
    stager.add(pa.table({"value": [b"1"]}))
    with pytest.raises(OSError, match="lost"):
        stager.stage_rest()
    again = stager.stage_rest()
    first, second = sink.asked
    assert first != second
    assert second in again and first not in again


def test_a_column_of_unique_numbers_takes_no_large_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet's default limit is of the dictionary's size in the file, in memory it takes up to 30 times as much."""
    numbers, write, held = pa.table({"offset": range(600_000)}), Output.write, list[int]()
    before = pa.total_allocated_bytes()

    def measured(output: Output, data: Any) -> int:
        held.append(pa.total_allocated_bytes() - before)
        return write(output, data)

    monkeypatch.setattr(Output, "write", measured)
    with contextlib.closing(Output(SYSTEM, str(tmp_path / "numbers.parquet"))) as output:
        write_parquet(numbers, output, "here", "zstd", None)
    assert max(held) < 6_000_000
    assert pq.read_table(tmp_path / "numbers.parquet").equals(numbers)


def test_columns_that_repeat_their_values_alone_have_a_dictionary() -> None:
    """A dictionary of unique values is abandoned at its limit, and costs a third of a unit's processor time."""
    count = 60_000
    numbers = pa.array(range(count), pa.int64())
    table = pa.table(
        {
            "offset": numbers,
            "line": numbers.cast(pa.string()),
            "partition": pa.array([number % 4 for number in range(count)], pa.int32()),
            "timestamp": pa.array([number // 50 for number in range(count)], pa.timestamp("us", "UTC")),
            "in turn": pa.array([number % 5_000 for number in range(count)], pa.int64()),
            "nothing": pa.nulls(count, pa.string()),
            "none": pa.nulls(count),
            "a.b": pa.array(["north", "south"] * (count // 2), pa.large_string()),
            "record": pa.array([{"at": number, "tags": [str(number)]} for number in range(count)]),
            "marks": pa.array([[(str(number), number)] for number in range(count)], pa.map_(pa.string(), pa.int64())),
        }
    )
    columns = [name for name in table.column_names if name not in ("offset", "line")]
    leaves = ["record.at", "record.tags.list.element", "marks.key_value.key", "marks.key_value.value"]
    assert dictionary_columns(table) == [*columns[:-2], *leaves]
    content = encode_parquet(table, "here", "zstd", None)
    group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    written = [group.column(number) for number in range(group.num_columns)]
    assert [column.path_in_schema for column in written if not column.has_dictionary_page] == ["offset", "line"]
    assert pq.read_table(pa.BufferReader(content)).cast(table.schema).equals(table)


def test_few_rows_are_written_with_or_without_a_dictionary() -> None:
    for count in range(3):
        table = pa.table({"number": pa.array(range(count), pa.int64()), "same": pa.array([7] * count, pa.int64())})
        assert pq.read_table(pa.BufferReader(encode_parquet(table, "here", "zstd", None))).equals(table)


def test_a_file_for_a_store_is_not_copied() -> None:
    table = pa.table({"id": range(10)})
    content = encode_parquet(table, "here", "zstd", None)
    assert not isinstance(content.obj, bytes) and content.format == "B"
    assert pq.read_table(pa.BufferReader(content)).equals(table)


def test_rows_of_many_small_tables_are_merged_until_they_are_staged() -> None:
    """A table takes 9 KB beside its rows, which a unit's size does not count."""
    sink = Collected()
    stager = RowStager(sink, REGION, "m1")
    stager.begin_epoch(1)
    for number in range(1_000):
        stager.add(pa.table({"value": [str(number)]}))
        stager.finish_table()
    for number in range(1_000, 1_100):  # of one table of records, which is abandoned
        stager.add(pa.table({"value": [str(number)]}))
    stager.drop_unfinished_table()
    stager.add(pa.table({"value": ["1000"]}))
    (key,) = stager.stage_rest()
    column = sink.staged[key].column("value")
    assert column.to_pylist() == [str(number) for number in range(1_001)]
    assert column.num_chunks < 2 * SMALL_TABLES


def test_tables_after_a_reset_are_merged_anew() -> None:
    sink = Collected()
    stager = RowStager(sink, REGION, "m1")
    wanted = [str(number) for number in range(SMALL_TABLES + 1)]
    for epoch in (1, 2):
        stager.begin_epoch(epoch)
        for text in wanted[epoch - 1 :]:
            stager.add(pa.table({"value": [text]}))
            stager.finish_table()
    (key,) = stager.stage_rest()
    assert key.epoch == 2 and sink.staged[key].column("value").to_pylist() == wanted[1:]


_MEMBER = """
import importlib, sys
from uuid import UUID
import pyarrow as pa
from kohort.region.consuming.staging import RowStager
from kohort.region.consuming.work_queue import SMALL_TABLES
module, name, path = sys.argv[1:]
sink = getattr(importlib.import_module(module), name)(path).bind("flights", UUID(int=1))
numbers = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])
table = pa.Table.from_arrays([numbers, numbers.cast(pa.timestamp("us", "UTC"))], names=["offset", "timestamp"])
stager = RowStager(sink, UUID(int=1), "m1")
for epoch in (1, 2):
    stager.begin_epoch(epoch)
    stager.add(table)
    sink.publish(2 * epoch - 1, stager.stage_rest())
    stager.begin_epoch(epoch)
    sink.publish(2 * epoch, stager.stage_rest())
print("pandas" in sys.modules, sink.published())
"""


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param("kohort.region.sinks.parquet_folder", "ParquetFolder", id="folder"),
        pytest.param("kohort.region.sinks.delta_table", "DeltaTable", id="delta"),
    ],
)
def test_a_member_does_not_import_pandas(module: str, name: str, tmp_path: Path) -> None:
    """Arrow imports it where it is installed to look at Python's values: 36 MB, at a reset or later."""
    command = [sys.executable, "-c", _MEMBER, module, name, str(tmp_path / "out")]
    told = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert told.split() == ["False", "4"]


_WRITE = """
import contextlib, sys
from pathlib import Path
import numpy as np, pyarrow as pa
from kohort.region.files import SYSTEM, Output
from kohort.region.sinks.staged_files import write_parquet
rows = 250_000
def numbers(values):
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(values)])
ends, text = np.arange(rows + 1, dtype=np.int32) * 100, np.random.default_rng(1).bytes(rows * 5) * 20
lines = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(text)])
unit = pa.table({"offset": numbers(np.arange(rows)), "at": numbers(np.arange(rows) // 7), "line": lines})
def resident(name):
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1])
for number in range(3):
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    with contextlib.closing(Output(SYSTEM, f"{sys.argv[1]}/{number}")) as output:
        write_parquet(unit, output, "here", "zstd", None)
print(pa.default_memory_pool().backend_name, resident("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the highest resident memory in /proc")
def test_memory_that_encoders_have_freed_is_returned_while_a_unit_is_written(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITE, str(tmp_path)]
    name, taken_kb = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
    if name != "mimalloc":
        pytest.skip(f"Arrow's allocator is {name} here")
    assert int(taken_kb) < 20_000
