"""Spark starts four kinds of Python processes for a query, one after the other: each imports what its work needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

_ASKED_FOR_COLUMNS = """
from kohort.spark.data_source import KohortDataSource
source = KohortDataSource({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "group.id": "g"})
assert source.schema().startswith("`key` binary")
"""
_PLANS = """
from kohort.spark.data_source import KohortDataSource
from kohort.spark.schema import arrow_schema, column_names_of
from kohort.spark.options import parse_options
from pyspark.sql.pandas.types import from_arrow_schema
options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "group.id": "g"}
schema = from_arrow_schema(arrow_schema(column_names_of(parse_options(options))))
reader = KohortDataSource(options).streamReader(schema)
assert type(reader).__name__ == "KohortStreamReader"
"""
_READS = """
from kohort.spark.source.readers import TaskReader, ReadTask
assert list(TaskReader.from_settings("127.0.0.1:1", {}, ("key", "value"), True).read(ReadTask(()))) == []
"""
_DRIVES = f"""{_PLANS}
assert reader._driver("q") is not None
reader.stop()
"""
_CLIENT = ("kohort.client.net.connection", "kohort.client.consumer", "kohort.columns.choice", "crc32c", "asyncio")


@pytest.mark.parametrize(
    ("work", "unused"),
    [
        pytest.param(_ASKED_FOR_COLUMNS, ("pyarrow", "numpy", *_CLIENT), id="asked for the columns"),
        pytest.param(_PLANS, ("pandas", "kohort.spark.source.query", *_CLIENT), id="plans"),
        pytest.param(
            _READS, ("pandas", "crc32c", "asyncio", "kohort.client.group", "kohort.spark.source.query"), id="reads"
        ),
        pytest.param(
            _DRIVES, ("pandas", "crc32c", "asyncio", "kohort.client.group.push", "kohort.client.admin"), id="drives"
        ),
    ],
)
def test_spark_process_imports_only_what_its_work_needs(work: str, unused: tuple[str, ...]) -> None:
    code = f"{work}\nimport sys\nprint([name for name in {unused!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr
