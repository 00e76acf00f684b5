"""A sink whose steps a test holds up or fails, told by files; a module of its own, which Spark's workers import."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.region.staged import StagedKey

GATE_S = 600.0


class Gated(ParquetFolder):
    """Stages nothing while a file `closed` is there, publishes nothing while `full` is, fails once if `fails` is."""

    gate = ""

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        until_s = time.monotonic() + GATE_S
        while Path(self.gate, "closed").exists() and time.monotonic() < until_s:
            time.sleep(0.02)
        try:
            Path(self.gate, "fails").unlink()
        except FileNotFoundError:
            super().stage(key, table)
        else:
            raise PermissionError("this test's device takes nothing more")

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        if Path(self.gate, "full").exists():
            raise OSError("the device is full")
        super().publish(sequence, keys)
