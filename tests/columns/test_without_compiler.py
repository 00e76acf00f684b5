"""A source install without a compiler works, and says once that it is slow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import sys
from pathlib import Path
sys.modules["kohort.columns._kernel"] = sys.modules["kohort.columns._encode"] = None
import pyarrow as pa
from kohort.columns import COMPILED, DecodeOptions, Record, RecordSet, decode
from kohort.columns.encode import ColumnNames, encode_arrow, murmur2
assert not COMPILED
rows = pa.record_batch({"key": ["a", None], "value": pa.array([b"x", None], pa.large_binary())})
((partition, chunk),) = encode_arrow(rows, ColumnNames(), 1, lambda: 0, 77, 1000)
got = decode([RecordSet("t", partition, chunk.seal(4, None, -1, -1, -1, False), 0)], DecodeOptions(timestamp_unit="ms"))
assert got.records() == [Record("t", 0, 0, 77, b"a", b"x"), Record("t", 0, 1, 77)]
assert got.to_arrow().column("value").to_pylist() == [b"x", None]
assert murmur2(b"21") == -973932308 % 2**32
"""


def test_plain_python_takes_over_and_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
    assert "install a C compiler" in done.stderr


def test_archive_of_the_package_is_named_as_the_reason(tmp_path: Path) -> None:
    """No compiler helps there: `spark-submit --py-files kohort.whl` puts the wheel itself on Python's path."""
    archive = shutil.make_archive(str(tmp_path / "kohort"), "zip", "src", "kohort")
    code = "import kohort, kohort.columns as columns; print(kohort.__file__, columns.COMPILED)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": archive},
    )
    assert archive in done.stdout and done.stdout.endswith("False\n")
    assert "kohort runs from an archive, as with --py-files: install it" in done.stderr
    assert "compiler" not in done.stderr
