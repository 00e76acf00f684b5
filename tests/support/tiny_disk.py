"""File systems of a few megabytes, for tests of full disks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def tiny_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system of a size such as "2m" at a folder; skip the test where that is not allowed."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system can't be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(ballast: Path) -> None:
    """Take all that is left of a file system by one file, which may exist already."""
    with ballast.open("ab", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
