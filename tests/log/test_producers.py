"""Idempotent producers: duplicates, gaps, fencing; transactions and what read_committed readers see."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from kohort.errors import ErrorCode, KafkaError
from kohort.log import Isolation, LogConfig, Marker, OpenOptions, PartitionLog, StoreLimits
from kohort.log.producers import BATCHES_KEPT
from tests.log.making import CRASHED, NOW, batch, small, values

COMMITTED = Isolation.READ_COMMITTED


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return PartitionLog.open(tmp_path / "t-0", LogConfig())


def sent(sequence: int, *what: bytes, epoch: int = 0, producer: int = 7, transactional: bool = False) -> bytes:
    return batch(
        *(what or (b"x",)),
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def refused(log: PartitionLog, data: bytes) -> ErrorCode:
    before = log.end_offset
    with pytest.raises(KafkaError) as caught:
        log.append(data, NOW)
    assert log.end_offset == before
    return caught.value.code


def test_a_repeated_batch_gets_its_first_offset(log: PartitionLog) -> None:
    for number in range(BATCHES_KEPT + 2):
        log.append(sent(2 * number, b"a", b"b"), NOW)
    for number in range(2, BATCHES_KEPT + 2):
        result = log.append(sent(2 * number, b"a", b"b"), NOW)
        assert (result.base_offset, result.last_offset, result.duplicate) == (2 * number, 2 * number + 1, True)
    assert log.end_offset == 2 * (BATCHES_KEPT + 2)
    assert refused(log, sent(2, b"a", b"b")) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("restarts", [False, True])
def test_a_repeated_batch_gets_its_first_append_time(tmp_path: Path, restarts: bool) -> None:
    config = LogConfig(message_timestamp_type="LogAppendTime")
    log = PartitionLog.open(tmp_path / "t-0", config)
    assert log.append(sent(0, b"a", b"b"), NOW + 5).log_append_time_ms == NOW + 5
    if restarts:
        log.close()
        log = PartitionLog.open(tmp_path / "t-0", config)
    repeated = log.append(sent(0, b"a", b"b"), NOW + 9_000)
    assert (repeated.duplicate, repeated.log_append_time_ms) == (True, NOW + 5)
    log.reconfigure(LogConfig())
    assert log.append(sent(0, b"a", b"b"), NOW + 9_000).log_append_time_ms == -1


def test_sequences_must_follow_each_other(log: PartitionLog) -> None:
    log.append(sent(0, b"a", b"b", b"c"), NOW)
    assert refused(log, sent(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(log, sent(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(sent(3), NOW).base_offset == 3
    assert log.append(sent(500, producer=8), NOW).base_offset == 4, "an unknown producer may start anywhere"


def test_sequences_wrap(log: PartitionLog) -> None:
    log.append(sent(2**31 - 2, b"a", b"b"), NOW)
    assert log.append(sent(0), NOW).base_offset == 2
    log.append(sent(1), NOW)
    log.append(sent(2**31 - 3, b"a", b"b", b"c", b"d", producer=9), NOW)
    assert log.append(sent(1, producer=9), NOW).base_offset == 8


def test_a_newer_epoch_fences_the_older_and_starts_at_zero(log: PartitionLog) -> None:
    log.append(sent(0), NOW)
    assert refused(log, sent(1, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append(sent(0, epoch=1), NOW)
    assert refused(log, sent(1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.append(sent(1, epoch=1), NOW).base_offset == 2


def test_several_batches_in_one_append_are_checked_in_order(log: PartitionLog) -> None:
    log.append(sent(0) + sent(1) + sent(0, producer=8), NOW)
    assert log.append(sent(2) + sent(3) + sent(1, producer=8), NOW).base_offset == 3
    assert refused(log, sent(4) + sent(6)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(sent(4), NOW).base_offset == 6


@pytest.mark.parametrize("clean", [True, False])
def test_the_state_survives_a_restart(tmp_path: Path, clean: bool) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small())
    for number in range(40):
        log.append(sent(number, b"v%d" % number * 10), NOW)
    log.append(sent(0, producer=8, transactional=True), NOW)
    if clean:
        log.close()
    again = PartitionLog.open(tmp_path / "t-0", small(), OpenOptions() if clean else CRASHED)
    assert again.append(sent(39, b"v39" * 10), NOW).duplicate
    assert refused(again, sent(41)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert again.append(sent(40), NOW).base_offset == 41
    assert again.last_stable_offset == 40
    again.append_marker(Marker(8, 0, False, 0), NOW)
    assert again.last_stable_offset == again.end_offset == 43


def test_a_damaged_snapshot_is_replaced_by_reading_the_log(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small())
    for number in range(40):
        log.append(sent(number, b"v%d" % number * 10), NOW)
    log.close()
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        data = bytearray(snapshot.read_bytes())
        data[-3] ^= 0xFF
        snapshot.write_bytes(data)
    again = PartitionLog.open(tmp_path / "t-0", small())
    assert again.append(sent(35, b"v35" * 10), NOW) == (35, 35, -1, 0, True)


@pytest.mark.parametrize("clean", [True, False])
def test_five_batches_of_a_producer_are_known_after_a_restart(tmp_path: Path, clean: bool) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small())
    for number in range(30):
        log.append(sent(number, b"v%d" % number * 10), NOW)
        log.append(sent(number, b"w", producer=8), NOW)
    if clean:
        log.close()
    else:
        log.write_producer_snapshot()
    again = PartitionLog.open(tmp_path / "t-0", small(), OpenOptions() if clean else CRASHED)
    for number in range(25, 30):
        assert again.append(sent(number, b"v%d" % number * 10), NOW) == (2 * number, 2 * number, -1, 0, True)
        assert again.append(sent(number, b"w", producer=8), NOW).duplicate
    assert refused(again, sent(24, b"v24" * 10)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert again.append(sent(30, b"v30"), NOW).base_offset == 60


def test_batches_of_an_older_epoch_are_not_recalled(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small())
    log.append(sent(0, b"old"), NOW)
    log.append(batch(b"new", producer_id=7, producer_epoch=1, base_sequence=0), NOW)
    log.close()
    again = PartitionLog.open(tmp_path / "t-0", small())
    assert refused(again, sent(0, b"old")) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(again.producers.by_id[7].batches) == 1


def test_truncation_takes_the_state_back(log: PartitionLog) -> None:
    for number in range(4):
        log.append(sent(number), NOW)
    log.truncate_to(2)
    assert refused(log, sent(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(sent(2), NOW).base_offset == 2


def test_idle_producers_are_forgotten_but_not_those_in_a_transaction(log: PartitionLog) -> None:
    log.append(sent(0), NOW)
    log.append(sent(0, producer=8, transactional=True), NOW)
    log.append(sent(0, producer=9), NOW + 500)
    assert log.producers.forget_idle(NOW + 100) == 1
    assert sorted(log.producers.by_id) == [8, 9]
    log.append(sent(77), NOW)


def test_the_number_of_producers_is_bounded(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(), OpenOptions(limits=StoreLimits(producers=3)))
    log.append(sent(0, producer=1, transactional=True), NOW)
    for producer in range(2, 10):
        log.append(sent(0, producer=producer), NOW + producer)
    assert sorted(log.producers.by_id) == [1, 8, 9]


def test_read_committed_stops_at_open_transactions_and_names_the_aborted(log: PartitionLog) -> None:
    log.append(batch(b"plain"), NOW)
    log.append(sent(0, b"aborted", transactional=True), NOW)
    log.append(sent(0, b"kept", producer=8, transactional=True), NOW)
    assert log.last_stable_offset == 1
    assert log.read(0, 10_000, COMMITTED).next_offset == 1
    assert not log.read(1, 10_000, COMMITTED).ranges
    assert log.offset_for_timestamp(-1, COMMITTED).offset == 1
    log.append_marker(Marker(7, 0, False, 0), NOW)
    assert log.last_stable_offset == 2
    log.append_marker(Marker(8, 0, True, 0), NOW)
    assert log.last_stable_offset == log.end_offset == 5
    result = log.read(0, 10_000, COMMITTED)
    assert result.next_offset == 5
    assert result.aborted == [(7, 1)]
    assert log.read(4, 10_000, COMMITTED).aborted == []
    assert log.read(0, 10_000).aborted is None


def test_every_aborted_transaction_of_a_range_is_named_and_no_other(log: PartitionLog) -> None:
    """Readers show the records of one that is left out. Each range is held to the transactions that it overlaps."""
    spans: dict[int, tuple[int, int]] = {}
    for number in range(12):
        producer = 20 + number
        first = log.append(sent(0, b"a", producer=producer, transactional=True), NOW).base_offset
        if number % 3 == 0:
            log.append(batch(b"between"), NOW)
        aborts = number % 4 != 3
        last = log.append_marker(Marker(producer, 0, not aborts, 0), NOW).base_offset
        if aborts:
            spans[producer] = (first, last)
        if number == 5:
            log.roll()
    for begin in range(log.end_offset):
        for limit in (1, 100, 200, 400, 10_000):
            result = log.read(begin, limit, COMMITTED)
            assert result.aborted is not None
            wanted = [
                (producer, first)
                for producer, (first, last) in spans.items()
                if last >= begin and first < result.next_offset
            ]
            assert [entry for entry in result.aborted if entry in wanted] == wanted, (begin, limit)
            assert len(result.aborted) == len(wanted) or result.next_offset <= begin, (begin, limit)


def test_aborted_transactions_of_several_producers_at_once_are_all_named(log: PartitionLog) -> None:
    for producer in (31, 32, 33):
        log.append(sent(0, b"a", producer=producer, transactional=True), NOW)
    for producer in (33, 31, 32):
        log.append_marker(Marker(producer, 0, False, 0), NOW)
    assert sorted(log.read(0, 10_000, COMMITTED).aborted or ()) == [(31, 0), (32, 1), (33, 2)]


def test_aborted_transactions_are_found_across_segments_and_restarts(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", small())
    log.append(sent(0, b"aborted", transactional=True), NOW)
    for number in range(40):
        log.append(batch(b"%d" % number * 30), NOW)
    log.append_marker(Marker(7, 0, False, 0), NOW)
    again = PartitionLog.open(tmp_path / "t-0", small(), CRASHED)
    for opened in (log, again):
        assert len(opened.segments) > 1
        assert opened.read(0, 500, COMMITTED).aborted == [(7, 0)]
        assert opened.last_stable_offset == 42


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("closed_segment", [True, False])
def test_a_damaged_transaction_index_is_rebuilt(tmp_path: Path, clean: bool, closed_segment: bool) -> None:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig())
    log.append(sent(0, b"aborted", transactional=True), NOW)
    log.append_marker(Marker(7, 0, False, 0), NOW)
    path = log.active.path.with_suffix(".txnindex")
    if closed_segment:
        log.roll()
        log.append(batch(b"behind"), NOW)
    if clean:
        log.close()
    path.write_bytes(path.read_bytes()[:-1])
    again = PartitionLog.open(tmp_path / "t-0", LogConfig(), OpenOptions() if clean else CRASHED)
    assert again.read(0, 500, COMMITTED).aborted == [(7, 0)]


def test_markers_are_fenced_by_epoch_and_coordinator(log: PartitionLog) -> None:
    log.append(sent(0, epoch=3, transactional=True), NOW)
    log.append_marker(Marker(7, 3, True, 5), NOW)
    with pytest.raises(KafkaError) as caught:
        log.append_marker(Marker(7, 2, True, 5), NOW)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(KafkaError) as caught:
        log.append_marker(Marker(7, 3, True, 4), NOW)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.end_offset == 2


def test_a_producer_can_not_leave_its_transaction(log: PartitionLog) -> None:
    log.append(sent(0, transactional=True), NOW)
    assert refused(log, sent(1)) is ErrorCode.INVALID_TXN_STATE
    assert len(values(log)) == 1


def test_a_repeated_batch_is_acknowledged_once_it_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(flush_messages=1))
    log.append(sent(0), NOW)
    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", mock.Mock(side_effect=OSError(5, "Input/output error")))
        for _ in range(2):
            with pytest.raises(OSError, match="Input"):
                log.append(sent(1), NOW)
    assert log.flushed_offset == 1
    assert log.append(sent(1), NOW).duplicate
    assert log.flushed_offset == log.end_offset == 2
    again = PartitionLog.open(tmp_path / "t-0", LogConfig(flush_messages=1), CRASHED)
    assert again.append(sent(1), NOW).duplicate
    assert again.flushed_offset == 2


def test_the_first_batch_after_a_marker_that_raised_the_epoch_has_sequence_0(log: PartitionLog) -> None:
    """One before it was refused while the transaction ended. It comes again, and would be lost (as in KAFKA-15591)."""
    log.append(sent(0, b"a", transactional=True), NOW)
    log.append_marker(Marker(7, 1, True, 0), NOW)
    later, first = sent(1, b"later", epoch=1, transactional=True), sent(0, b"first", epoch=1, transactional=True)
    assert refused(log, later) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(first, NOW).base_offset == 2
    assert log.append(later, NOW).base_offset == 3
    log.append_marker(Marker(7, 1, True, 0), NOW)
    assert log.append(sent(2, b"c", epoch=1, transactional=True), NOW).base_offset == 5


def test_a_marker_of_a_forgotten_producer_takes_any_sequence_after_it(log: PartitionLog) -> None:
    log.append(sent(0, b"a", b"b"), NOW)
    log.producers.forget_idle(NOW + 1)
    log.append_marker(Marker(7, 0, True, 0), NOW)
    assert log.append(sent(2, b"c"), NOW).base_offset == 3


def test_a_producer_that_has_to_begin_at_zero_does(log: PartitionLog) -> None:
    """A batch behind a refused one must not take its place (as in KAFKA-18202)."""
    for name, number in (("unknown", 7), ("with a marker alone", 8)):
        if number == 8:
            log.append_marker(Marker(8, 0, True, 0), NOW)
        later, first = (sent(at, b"x", producer=number, transactional=True) for at in (1, 0))
        with pytest.raises(KafkaError) as caught:
            log.append(later, NOW, from_zero=True)
        assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, name
        log.append(first, NOW, from_zero=True)
        log.append(later, NOW, from_zero=True)
