"""Batches and logs for the tests of the log."""

from __future__ import annotations

from pathlib import Path

from kohort.log import LogConfig, OpenOptions, PartitionLog
from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.records import read_records

NOW = 1_700_000_000_000
CRASHED = OpenOptions(clean=False)
POWER_LOST = OpenOptions(clean=False, verified_offset=0)
"""The machine died, and nothing was known to be on the disk."""
UNKNOWN = OpenOptions(clean=False, verified_offset=0, synced_unknown=True)
"""The machine died, and what was known to be on the disk can't be told."""


def batch(*values: bytes, at: int = NOW, **facts: object) -> bytes:
    """A batch of records whose keys are `k` and whose timestamps rise by one."""
    records = [BatchRecord(0, at + i, b"k", value) for i, value in enumerate(values)]
    return build_batch(records, **facts)  # type: ignore[arg-type]


def keyed(*pairs: tuple[bytes, bytes | None], at: int = NOW, **facts: object) -> bytes:
    """A batch of records by key and value."""
    return build_batch([BatchRecord(0, at, key, value) for key, value in pairs], **facts)  # type: ignore[arg-type]


def values(log: PartitionLog, start: int | None = None) -> list[tuple[int, bytes]]:
    """Every record from `start` on, as offset and value."""
    first = log.log_start_offset if start is None else start
    found = [(r.offset, bytes(r.value or b"")) for b in log.iterate_batches(first) for r in read_records(b)]
    return [pair for pair in found if pair[0] >= first]


def copy_folder(source: Path, target: Path) -> Path:
    """A copy of a partition's folder as a crash would leave it."""
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def small(**changes: object) -> LogConfig:
    """Settings that make segments and index entries frequent."""
    facts: dict[str, object] = {"segment_bytes": 2000, "index_interval_bytes": 100, **changes}
    return LogConfig(**facts)  # type: ignore[arg-type]
