"""A byte that flips in a compacted segment, with and without its indexes: what the next start makes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kohort import Broker, Consumer, Producer
from kohort.errors import CorruptDataError
from kohort.ids import TopicPartition
from kohort.log import LogStore, compact_now
from kohort.wire.batch import iter_headers
from kohort.wire.records import read_records
from tests.log.making import NOW, keyed
from tests.support.damaged import put
from tests.support.waiting import until

PART = TopicPartition("t", 0)
SETTINGS = {"log.retention.check.interval.ms": 100}


def _compacted(folder: Path, dirty: int = 0) -> list[tuple[Path, int, list[int]]]:
    """Make a compacted topic; return file, position and offsets of each batch.

    Args:
        folder: the data folder.
        dirty: the number of batches after compaction.
    """
    configs = {"cleanup.policy": "compact", "segment.bytes": "3000", "min.cleanable.dirty.ratio": "0.01"}
    with LogStore(folder) as store:
        store.create_topic("t", 1, configs)
        log = store.partition(PART)
        for number in range(120):
            key = b"hot" if number % 3 else b"k%d" % number
            log.append(keyed((key, b"v%d" % number), (key, b"w%d" % number), at=NOW + number), NOW + number)
        compact_now(log, NOW)
        for number in range(dirty):
            log.append(keyed((b"k%d" % number, b"dirty"), at=NOW + number), NOW + number)
    return [
        (
            path,
            position,
            [record.offset for record in read_records(path.read_bytes()[position : position + header.size])],
        )
        for path in sorted((folder / "t-0").glob("*.log"))
        for position, header in iter_headers(path.read_bytes())
    ]


def _read(broker: Broker) -> tuple[list[int], list[str]]:
    """Return the offsets that a consumer gets that goes on behind damage, and the errors that it gets."""
    seen, reported = [], []
    with Consumer(broker.bootstrap_servers) as consumer:
        consumer.assign([PART])
        (end,) = consumer.end_offsets([PART]).values()
        consumer.seek(PART, 0)
        while consumer.position(PART) < end:
            try:
                seen += [record.offset for record in consumer.poll(10_000)]
            except CorruptDataError as error:
                reported.append(str(error))
                following = re.search(r"next readable one is (\d+)", str(error))
                at = consumer.position(PART)
                consumer.seek(PART, int(following[1]) if following else at + 1)
    return seen, reported


@pytest.mark.parametrize(
    ("field", "lost"),
    [
        ("base offset", "nothing"),
        ("base offset", "*index"),
        ("length", "*.index"),
        ("epoch", "*index"),
        ("magic", "*.index"),
        ("records", "*index"),
    ],
)
def test_all_other_records_are_served_and_the_damage_is_logged_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], field: str, lost: str
) -> None:
    batches = _compacted(tmp_path)
    at = {"base offset": 5, "length": 8, "epoch": 15, "magic": 16, "records": 70}[field]
    path, position, damaged = batches[len(batches) // 2]
    put(path, position + at, bytes([path.read_bytes()[position + at] ^ 0x41]))
    for index in (tmp_path / "t-0").glob(lost):
        index.unlink()
    whole = [offset for _, _, offsets in batches for offset in offsets]
    for _ in range(2):
        capfd.readouterr()
        with Broker(tmp_path, SETTINGS) as broker:
            for _ in range(2):
                seen, reported = _read(broker)
                missing = {*whole} - {*seen}
                assert missing <= {*damaged}, "only of the damaged batch"
                assert [offset for offset in seen if offset in whole] == [o for o in whole if o not in missing]
                assert reported, "to the reader"
            with Producer(broker.bootstrap_servers) as producer:
                producer.send("t", b"new", key=b"k").result(timeout_ms=30_000)
        said = capfd.readouterr().err
        assert "Traceback" not in said
        if field != "records":
            logged = [
                line
                for line in said.splitlines()
                if f"kohort.log: damaged records, reads of them fail: t-0/{path.name} is damaged at byte" in line
            ]
            assert len(logged) == 1, said


def test_a_lost_index_of_a_compacted_file_is_logged_with_what_it_leaves_open(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A wrong base offset inside a gap breaks no chain. Nobody but the index can tell."""
    batches = _compacted(tmp_path)
    for index in (tmp_path / "t-0").glob("*index"):
        index.unlink()
    with Broker(tmp_path) as broker:
        seen, reported = _read(broker)
    assert seen == [offset for _, _, offsets in batches for offset in offsets]
    assert not reported
    said = capfd.readouterr().err
    assert said.count("its offset index was missing or wrong, and nothing else tells") == 3, said
    with Broker(tmp_path) as broker:
        _read(broker)
    assert "offset index" not in capfd.readouterr().err, "the index was made again"


def test_compaction_leaves_a_damaged_file_alone_and_says_so_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    batches = _compacted(tmp_path, dirty=100)
    path, position, damaged = batches[10]
    put(path, position + 70, b"\xff")
    for index in (tmp_path / "t-0").glob("*index"):
        index.unlink()
    content = path.read_bytes()
    said = ""

    def refused() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "not compacted until it is repaired" in said

    capfd.readouterr()
    with Broker(tmp_path, SETTINGS) as broker:
        until(refused, "compaction is refused")
        seen, reported = _read(broker)
        assert {offset for _, _, offsets in batches for offset in offsets} - {*seen} == {*damaged}
        assert reported
    said += capfd.readouterr().err
    assert said.count("not compacted until it is repaired") == 1
    assert f"t-0/{path.name} is damaged at byte {position}" in said
    assert path.read_bytes() == content
    assert not list((tmp_path / "t-0").glob("*.cleaned"))
