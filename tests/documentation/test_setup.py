"""`make setup` builds the kernels anew when a file that they are made of has changed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COLUMNS = ROOT / "src/kohort/columns"
READS = re.compile(
    r'^(?:include|cdef extern from|\s*#\s*include)\s+"([^"]+)"|^from kohort\.columns\.(\w+) cimport', re.MULTILINE
)
"""How a kernel's file names another one that is read with it."""


def inputs(folder: Path) -> set[str]:
    """The files that `tools/setup.sh` compares."""
    listed = subprocess.run(["sh", "tools/setup.sh", "inputs"], cwd=folder, capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


def read_by_the_build() -> set[str]:
    """The kernels and their declarations, and whatever they and what they include name, as far as it lies there."""
    left = sorted(path.name for pattern in ("*.pyx", "_encode.pxd") for path in COLUMNS.glob(pattern))
    found: set[str] = set()
    while left:
        name = left.pop()
        if name not in found and (COLUMNS / name).exists():
            found.add(name)
            text = (COLUMNS / name).read_text(encoding="utf-8")
            left += [other or f"{module}.pxd" for other, module in READS.findall(text)]
    return found


def test_every_file_that_the_build_reads_is_an_input() -> None:
    names = read_by_the_build()
    assert {Path(name).suffix for name in names} == {".pyx", ".pxd", ".pxi", ".h"}
    assert {f"src/kohort/columns/{name}" for name in names} <= inputs(ROOT)
    others = {
        "src/kohort/client/producer/_appender.pyx",
        "src/kohort/journal/_offset_rows.pyx",
        "src/kohort/wire/_record_walk.pyx",
        "src/kohort/wire/_varint.pxd",
    }
    assert {"setup.py", "pyproject.toml", "MANIFEST.in", *others} <= inputs(ROOT)


def test_every_part_that_setup_py_names_is_an_input() -> None:
    assert 'VARINTS = "src/kohort/wire/_varint.pxd"' in (ROOT / "setup.py").read_text(encoding="utf-8")
    parts = re.search(r"^PARTS = \((.*?)\)", (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert parts is not None
    names = set(re.findall(r'"([^"]+)"', parts[1]))
    assert {f"src/kohort/columns/{name}" for name in names} <= inputs(ROOT)
    assert names == {name for name in read_by_the_build() if not name.endswith(".pyx")}
