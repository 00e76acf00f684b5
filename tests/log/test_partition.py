"""Partitions: refused appends, stamped batches, and the edges of reading."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.errors import ErrorCode, FencedError, InvalidInputError, KafkaError, OffsetError, RecordsRefusedError
from kohort.log import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    MAX_TIMESTAMP,
    Isolation,
    LogConfig,
    LoopBudget,
    Marker,
    OpenOptions,
    PartitionLog,
)
from kohort.log.files import FileCache
from kohort.log.retention import delete_old_segments
from kohort.log.validator import BATCHES_MAX
from kohort.wire.batch import BatchRecord, build_batch, has_valid_crc, parse_header
from tests.log.making import CRASHED, NOW, batch, keyed, small, values


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return PartitionLog.open(tmp_path / "t-0", LogConfig())


def _changed(data: bytes, at: int, layout: str, value: int, *, renew: bool = True) -> bytes:
    changed = bytearray(data)
    struct.pack_into(layout, changed, at, value)
    if renew:
        struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)


GOOD = batch(b"a", b"b")
BAD = {
    "nothing": (b"", ErrorCode.CORRUPT_MESSAGE),
    "cut header": (GOOD[:50], ErrorCode.CORRUPT_MESSAGE),
    "cut": (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
    "more": (GOOD + b"x", ErrorCode.CORRUPT_MESSAGE),
    "second cut": (GOOD + GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
    "length negative": (_changed(GOOD, 8, ">i", -1), ErrorCode.CORRUPT_MESSAGE),
    "length huge": (_changed(GOOD, 8, ">i", 2**31 - 1), ErrorCode.CORRUPT_MESSAGE),
    "length small": (_changed(GOOD, 8, ">i", 20), ErrorCode.CORRUPT_MESSAGE),
    "checksum": (_changed(GOOD, 65, ">b", 77, renew=False), ErrorCode.CORRUPT_MESSAGE),
    "second checksum": (GOOD + _changed(GOOD, 65, ">b", 77, renew=False), ErrorCode.CORRUPT_MESSAGE),
    "magic 1": (_changed(GOOD, 16, ">b", 1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "magic 9": (_changed(GOOD, 16, ">b", 9), ErrorCode.CORRUPT_MESSAGE),
    "no records": (_changed(GOOD, 57, ">i", 0), ErrorCode.INVALID_RECORD),
    "records negative": (_changed(GOOD, 57, ">i", -4), ErrorCode.INVALID_RECORD),
    "offset delta": (_changed(GOOD, 23, ">i", 7), ErrorCode.INVALID_RECORD),
    "control": (batch(b"a", control=True), ErrorCode.INVALID_RECORD),
    "append time": (batch(b"a", timestamp_type=1), ErrorCode.INVALID_RECORD),
    "no sequence": (batch(b"a", producer_id=4, producer_epoch=0), ErrorCode.INVALID_RECORD),
    "no epoch": (batch(b"a", producer_id=4, base_sequence=0), ErrorCode.INVALID_RECORD),
    "future": (batch(b"a", at=NOW + 4_000_000), ErrorCode.INVALID_TIMESTAMP),
    "too large": (batch(b"a" * 1_100_000), ErrorCode.MESSAGE_TOO_LARGE),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_batches_are_refused_with_kafkas_code(log: PartitionLog, what: str) -> None:
    log.append(GOOD, NOW)
    data, code = BAD[what]
    with pytest.raises(KafkaError) as caught:
        log.append(data, NOW)
    assert caught.value.code is code
    assert log.active.path.stat().st_size == len(GOOD)
    assert log.append(GOOD, NOW).base_offset == 2


def test_old_timestamps_are_refused_where_the_topic_says_so(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(message_timestamp_before_max_ms=1000))
    with pytest.raises(InvalidInputError, match=r"message\.timestamp"):
        log.append(batch(b"old", at=NOW - 2000), NOW)


@pytest.mark.parametrize(
    ("stamps", "refused"),
    [
        ((-1,), set()),
        ((NOW, -1), set()),
        ((-2,), {0}),
        ((0,), {0}),
        ((-(2**63),), {0}),
        ((NOW, NOW - 1001, NOW), {1}),
        ((NOW, -5, NOW), {1}),
    ],
)
def test_only_no_time_at_all_escapes_the_oldest_time_that_a_topic_takes(
    tmp_path: Path, stamps: tuple[int, ...], refused: set[int]
) -> None:
    """-1 is Kafka's way to say that a record has no time; other negative times, and times in the middle, count."""
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(message_timestamp_before_max_ms=1000))
    records = build_batch([BatchRecord(0, at, None, b"v") for at in stamps])
    if not refused:
        assert log.append(records, NOW).base_offset == 0
        return
    with pytest.raises(RecordsRefusedError) as caught:
        log.append(records, NOW)
    assert (caught.value.code, set(caught.value.records)) == (ErrorCode.INVALID_TIMESTAMP, refused)


def test_refused_records_are_named(tmp_path: Path) -> None:
    """Source: KIP-467."""
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(message_timestamp_before_max_ms=1000))
    stamps = (NOW - 2000, NOW, NOW + 4_000_000, NOW - 1000)
    with pytest.raises(RecordsRefusedError) as caught:
        log.append(build_batch([BatchRecord(0, at, None, b"v") for at in stamps]), NOW)
    assert (caught.value.code, set(caught.value.records)) == (ErrorCode.INVALID_TIMESTAMP, {0, 2})
    with pytest.raises(RecordsRefusedError) as caught:
        log.append(build_batch([BatchRecord(0, at, None, b"v") for at in stamps[:2]]), NOW)
    assert set(caught.value.records) == {0}
    assert log.end_offset == 0


def test_a_compacted_topic_needs_keys(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(cleanup_policy=("compact",)))
    with pytest.raises(RecordsRefusedError) as caught:
        log.append(build_batch([BatchRecord(0, NOW, key, b"v") for key in (None, b"k", None)]), NOW)
    assert (caught.value.code, set(caught.value.records)) == (ErrorCode.INVALID_RECORD, {0, 2})
    assert log.end_offset == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: memoryview(bytearray(b))])
def test_offsets_and_epoch_are_written_into_every_batch(log: PartitionLog, kind: type) -> None:
    log.advance_leader_epoch(9)
    log.append(kind(GOOD), NOW)
    log.append(kind(GOOD + batch(b"x" * 500) + GOOD), NOW)
    headers = [parse_header(b) for b in log.iterate_batches(0)]
    assert [(h.base_offset, h.partition_leader_epoch) for h in headers] == [(0, 9), (2, 9), (4, 9), (5, 9)]
    assert all(has_valid_crc(b, parse_header(b)) for b in log.iterate_batches(0))


def test_very_many_batches_in_one_append(log: PartitionLog) -> None:
    result = log.append(GOOD * BATCHES_MAX, NOW)
    assert (result.base_offset, result.last_offset) == (0, 2 * BATCHES_MAX - 1)
    assert [parse_header(b).base_offset for b in log.iterate_batches(0)] == list(range(0, 2 * BATCHES_MAX, 2))
    with pytest.raises(InvalidInputError, match="more than 1000 batches"):
        log.append(GOOD * (BATCHES_MAX + 1), NOW)


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_log_append_time_stamps_every_batch(tmp_path: Path, kind: type) -> None:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(message_timestamp_type="LogAppendTime"))
    result = log.append(kind(GOOD + GOOD), NOW + 5)
    assert result.log_append_time_ms == NOW + 5
    for data in log.iterate_batches(0):
        header = parse_header(data)
        assert header.max_timestamp == NOW + 5
        assert header.is_log_append_time
        assert has_valid_crc(data, header)
    assert log.offset_for_timestamp(NOW + 5).offset == 0
    assert log.offset_for_timestamp(NOW + 6).offset == -1


def test_reading_outside_the_log_is_an_offset_error(log: PartitionLog) -> None:
    log.append(GOOD, NOW)
    log.delete_records(1)
    for offset in (-1, 0, 3):
        with pytest.raises(OffsetError) as caught:
            log.read(offset, 100)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert not log.read(2, 100).ranges


def test_the_first_batch_comes_whole_however_large(log: PartitionLog) -> None:
    log.append(batch(b"x" * 5000), NOW)
    log.append(GOOD, NOW)
    assert log.read(0, 10).next_offset == 1
    assert log.read(0, 10, min_one=False).ranges == ()
    assert log.read(0, 100_000).next_offset == 3


def test_special_timestamps(log: PartitionLog) -> None:
    assert log.offset_for_timestamp(MAX_TIMESTAMP) == (-1, -1, -1)
    log.append(batch(b"a", at=NOW + 50), NOW)
    log.append(batch(b"b", at=NOW), NOW)
    log.append(batch(b"c", at=NOW + 50), NOW)
    assert log.offset_for_timestamp(MAX_TIMESTAMP) == (0, NOW + 50, 0)
    assert log.offset_for_timestamp(LATEST).offset == 3
    log.delete_records(1)
    assert log.offset_for_timestamp(EARLIEST).offset == log.offset_for_timestamp(EARLIEST_LOCAL).offset == 1
    assert log.offset_for_timestamp(NOW + 1).offset == 2


LATEST_OF = st.lists(
    st.tuples(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.sampled_from(["none", "gzip"]), st.booleans()),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(LATEST_OF, st.integers(0, 60), st.booleans())
def test_the_largest_timestamp_is_that_of_a_record_that_is_there(
    tmp_path_factory: pytest.TempPathFactory,
    appends: list[tuple[list[int], str, bool]],
    deleted: int,
    opens: bool,
) -> None:
    """Neither that of a deleted record, nor of one in an open transaction for a reader of committed ones."""
    log = PartitionLog.open(tmp_path_factory.mktemp("latest") / "t-0", small(segment_bytes=300))
    there: list[tuple[int, int]] = []
    stable = 2**63 - 1
    for number, (times, codec, transactional) in enumerate(appends):
        facts = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        rows = [BatchRecord(0, NOW + at, b"k", b"v") for at in times]
        data = build_batch(rows, compression=codec, **(facts if transactional and opens else {}))  # type: ignore[arg-type]
        base = log.append(data, NOW).base_offset
        there += [(base + place, NOW + at) for place, at in enumerate(times)]
        if transactional and opens:
            stable = min(stable, base)
    start = min(deleted, log.end_offset)
    log.delete_records(start)

    def expected(end: int) -> tuple[int, int, int]:
        live = [(-at, offset) for offset, at in there if start <= offset < end]
        return (min(live)[1], -min(live)[0], 0) if live else (-1, -1, -1)

    assert log.offset_for_timestamp(MAX_TIMESTAMP) == expected(log.end_offset)
    assert log.offset_for_timestamp(MAX_TIMESTAMP, Isolation.READ_COMMITTED) == expected(min(stable, log.end_offset))
    again = PartitionLog.open(log.path, small(segment_bytes=300), OpenOptions(clean=False, log_start_offset=start))
    assert again.offset_for_timestamp(MAX_TIMESTAMP) == expected(log.end_offset)


def test_a_search_for_the_largest_timestamp_gives_way_in_a_large_segment(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig())
    log.append(batch(b"first", at=NOW + 500), NOW)
    for number in range(80):
        log.append(batch(b"x" * 20_000, at=NOW + number), NOW)
    log.delete_records(1)
    search = log.search_by_time(MAX_TIMESTAMP, Isolation.READ_UNCOMMITTED, LoopBudget())
    jobs = [job() for job in search]
    assert len(jobs) > 2
    assert log.offset_for_timestamp(MAX_TIMESTAMP) == (80, NOW + 79, 0)


def test_committed_readers_are_not_sent_back_behind_the_start(log: PartitionLog) -> None:
    """The transaction began in what was deleted, and is still open."""
    facts = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    log.append(batch(b"a", b"b", base_sequence=0, **facts), NOW)
    log.append(batch(b"c", b"d", base_sequence=2, **facts), NOW)
    log.delete_records(3)
    assert log.last_stable_offset == 3
    end = log.offset_for_timestamp(LATEST, Isolation.READ_COMMITTED).offset
    assert end == 3
    assert not log.read(end, 100, Isolation.READ_COMMITTED).ranges
    log.append_marker(Marker(7, 0, True, 0), NOW)
    assert log.last_stable_offset == 5
    assert log.read(end, 1000, Isolation.READ_COMMITTED).next_offset == 5


def test_leader_epochs(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig())
    assert log.end_offset_for_epoch(0) == (0, 0)
    log.advance_leader_epoch(1)
    log.append(GOOD, NOW)
    log.advance_leader_epoch(4)
    log.append(GOOD, NOW)
    for opened in (log, PartitionLog.open(tmp_path / "t-0", LogConfig(), CRASHED)):
        assert opened.leader_epoch == 4
        assert opened.end_offset_for_epoch(4) == (4, 4)
        assert opened.end_offset_for_epoch(3) == opened.end_offset_for_epoch(1) == (1, 2)
        assert opened.end_offset_for_epoch(0) == (0, 0)
        assert opened.end_offset_for_epoch(5) == (-1, -1)
    with pytest.raises(FencedError) as caught:
        log.advance_leader_epoch(3)
    assert caught.value.code is ErrorCode.FENCED_LEADER_EPOCH


def test_damaged_leader_epochs_are_read_from_the_batches(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small())
    for epoch in (1, 4, 9):
        log.advance_leader_epoch(epoch)
        for _ in range(30):
            log.append(GOOD, NOW)
    log.close()
    assert len(log.segments) > 3
    file = tmp_path / "t-0" / "leader-epoch-checkpoint"
    whole = file.read_text()
    for damage in ("0\n3\n1 0\n4", "0\n3\n1 0\nx 60\n9 120\n", ""):
        file.write_text(damage)
        again = PartitionLog.open(tmp_path / "t-0", small())
        assert again.leader_epoch == 9
        assert [again.end_offset_for_epoch(epoch) for epoch in (1, 4, 9)] == [(1, 60), (4, 120), (9, 180)]
        assert file.read_text() == whole


def test_retention_by_bytes_keeps_at_least_the_limit(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small(retention_bytes=5000))
    for number in range(200):
        log.append(batch(b"%d" % number * 20), NOW)
    delete_old_segments(log, NOW)
    assert 5000 <= log.size_bytes() < 5000 + 2000 + 200
    assert log.log_start_offset == log.segments[0].base_offset > 0
    assert values(log)[-1][0] == 199


def test_retention_by_age_closes_a_quiet_segment(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(retention_ms=1000))
    log.append(GOOD, NOW)
    assert delete_old_segments(log, NOW + 500) == 0
    assert delete_old_segments(log, NOW + 5000) == 1
    assert (log.log_start_offset, log.end_offset, log.size_bytes()) == (2, 2, 0)
    assert delete_old_segments(log, NOW + 9000) == 0
    assert log.append(batch(b"n", at=NOW + 9000), NOW + 9000).base_offset == 2
    again = PartitionLog.open(tmp_path / "t-0", LogConfig(), CRASHED)
    assert (again.log_start_offset, again.end_offset) == (2, 3)


def test_retention_spares_open_transactions(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small(retention_ms=10))
    log.append(batch(b"t", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True), NOW)
    for number in range(100):
        log.append(batch(b"%d" % number * 20), NOW)
    assert delete_old_segments(log, NOW + 100_000) == 0
    assert log.log_start_offset == 0


def test_segments_roll_by_time(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(segment_ms=1000))
    for step in (0, 900, 1001, 1500, 2100):
        log.append(batch(b"x", at=NOW + step), NOW + step)
    assert [s.base_offset for s in log.segments] == [0, 2, 4]


def test_a_log_that_lost_everything_before_its_start_begins_there(tmp_path: Path) -> None:
    PartitionLog.open(tmp_path / "t-0", LogConfig()).append(GOOD, NOW)
    again = PartitionLog.open(tmp_path / "t-0", LogConfig(), OpenOptions(clean=False, log_start_offset=50))
    assert (again.log_start_offset, again.end_offset) == (50, 50)
    assert again.append(GOOD, NOW).base_offset == 50


def test_few_files_are_open_and_readers_keep_theirs(tmp_path: Path) -> None:
    files = FileCache(3, 2)
    log = PartitionLog.open(tmp_path / "t-0", small(), OpenOptions(files=files))
    for number in range(200):
        log.append(keyed((b"k", b"%d" % number * 20)), NOW)
    assert len(log.segments) > 6
    early = log.read(0, 10_000)
    assert [offset for offset, _ in values(log)] == list(range(200))
    assert len(files) <= 3
    data = early.bytes()
    log.delete_records(150)
    assert early.bytes() == data


def test_flush_messages_flushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(flush_messages=4))
    log.append(GOOD, NOW)
    assert not synced
    log.append(GOOD, NOW)
    assert len(synced) == 3, "the file, its name, its folder's name"
    assert log.flushed_offset == 4
    log.append(GOOD, NOW)
    log.append(GOOD, NOW)
    assert len(synced) == 4
    log.roll()
    assert len(synced) == 6, "the closed segment's indexes"
    log.append(GOOD, NOW)
    log.append(GOOD, NOW)
    assert len(synced) == 9
