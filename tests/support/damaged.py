"""A data folder to be damaged, and reading what is left of it."""

from __future__ import annotations

from pathlib import Path

from kohort import Consumer, TopicPartition
from kohort.log import LogStore
from tests.log.making import NOW, batch

COUNT = 3_000
BATCH = 10
PART = TopicPartition("t", 0)
OTHER = TopicPartition("other", 0)


def make_folder(path: Path) -> Path:
    """A folder that was closed in order: `t` with 3,000 records in four segments, and `other` with 10."""
    with LogStore(path) as store:
        store.create_topic("t", 1, {"segment.bytes": "200000"})
        store.create_topic("other", 1)
        log = store.partition(PART)
        for first in range(0, COUNT, BATCH):
            log.append(batch(*[b"%d" % (first + i) * 50 for i in range(BATCH)], at=NOW + first), NOW)
        store.partition(OTHER).append(batch(*[b"x"] * BATCH), NOW)
    return path


def place_of(data: Path, offset: int) -> tuple[Path, int]:
    """The file and the position of the batch at an offset."""
    for path in sorted((data / "t-0").glob("*.log"), reverse=True):
        if int(path.stem) <= offset:
            content, position = path.read_bytes(), 0
            while int.from_bytes(content[position : position + 8], "big") != offset:
                position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
            return path, position
    raise AssertionError(offset)


def put(path: Path, position: int, value: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(value)


def offsets(consumer: Consumer, count: int) -> list[int]:
    """Offsets of the next records."""
    seen: list[int] = []
    while len(seen) < count:
        records = consumer.poll(10_000)
        assert records, f"nothing more after {len(seen)}"
        seen += [record.offset for record in records]
    return seen
