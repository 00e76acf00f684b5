"""Batches that no reader can read are refused; what a batch may decompress to is bounded, and leaves the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kohort.broker.record_workers import ProducedBatches, RecordWorkers
from kohort.errors import ErrorCode, KafkaError
from kohort.ids import TopicPartition
from kohort.log import (
    Isolation,
    LogConfig,
    LogStore,
    LoopBudget,
    OpenOptions,
    PartitionLog,
    TooMuchForLoopError,
    cooperative,
)
from kohort.log import compaction as compaction_module
from kohort.log import segment as segment_module
from kohort.log import validator as validator_module
from kohort.log.config import StoreLimits
from kohort.log.cooperative import LOOP_BYTES_MAX
from kohort.wire import compression
from kohort.wire import records as records_module
from kohort.wire.batch import BatchRecord, build_batch, has_valid_crc, parse_header
from kohort.wire.compression import CODECS
from kohort.wire.records import read_records
from tests.support.hostile_batches import BASE_MS, HOSTILE, bomb, hostile_batch, packed, record

NOW = BASE_MS + 5_000
MIB = 1 << 20
CORRECTED = ("a maximum timestamp that no record has", "a maximum timestamp below the records'")
HARMLESS = ("an unknown attribute", "a delete horizon")
CODES = {
    "codec 5": ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    "codec 7": ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    "magic 0": ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    "magic 1": ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    "magic 3": ErrorCode.CORRUPT_MESSAGE,
}
"""The others are INVALID_RECORD, as on Apache Kafka 4.4, or where that answers UNKNOWN_SERVER_ERROR."""


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return PartitionLog.open(tmp_path / "t-0", LogConfig())


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in (*CORRECTED, *HARMLESS)])
def test_hostile_batch_is_refused_and_nothing_is_written(log: PartitionLog, name: str) -> None:
    good = build_batch([BatchRecord(0, BASE_MS, b"k", b"v")])
    log.append(good, NOW)
    with pytest.raises(KafkaError) as caught:
        log.append(HOSTILE[name], NOW)
    assert caught.value.code is CODES.get(name, ErrorCode.INVALID_RECORD)
    assert log.active.path.stat().st_size == len(good)
    assert log.append(good, NOW).base_offset == 1


@pytest.mark.parametrize("name", HARMLESS)
def test_batch_that_kafka_accepts_is_accepted(log: PartitionLog, name: str) -> None:
    log.append(HOSTILE[name], NOW)
    (found,) = log.iterate_batches(0)
    assert bytes(found)[16:] == HOSTILE[name][16:]


@pytest.mark.parametrize("name", CORRECTED)
def test_maximum_timestamp_is_corrected(log: PartitionLog, name: str) -> None:
    log.append(HOSTILE[name], NOW)
    (found,) = log.iterate_batches(0)
    header = parse_header(found)
    assert header.max_timestamp == BASE_MS
    assert has_valid_crc(found, header)
    assert log.offset_for_timestamp(BASE_MS) == (0, BASE_MS, 0)
    assert log.offset_for_timestamp(BASE_MS + 1) == (-1, -1, -1)


@pytest.mark.parametrize("codec", CODECS)
def test_good_batches_of_every_codec_are_stored_unchanged(log: PartitionLog, codec: str) -> None:
    sizes = (0, 1, 100, 5_000, 300_000)
    batch = build_batch(
        [
            BatchRecord(0, BASE_MS + size, b"k" * size, None if size == 1 else b"v" * size, [("h", None)])
            for size in sizes
        ],
        compression=codec,
    )
    log.append(batch, NOW)
    (found,) = log.iterate_batches(0)
    assert bytes(found)[16:] == batch[16:]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_bomb_is_refused_with_the_setting(tmp_path: Path, codec: str) -> None:
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(), OpenOptions(limits=StoreLimits(decompressed_ratio=3)))
    log.append(bomb(codec, 3 * MIB), NOW)
    with pytest.raises(KafkaError, match=r"max\.decompressed\.batch\.ratio \(3\)") as caught:
        log.append(bomb(codec, 3 * MIB + 1_000), NOW)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert log.end_offset == 1


def test_bound_of_internal_topics_is_that_of_a_coordinators_loop(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "__consumer_offsets-3", LogConfig(cleanup_policy=("compact",)))
    with pytest.raises(KafkaError, match="in internal topics"):
        log.append(bomb("zstd", 2 * MIB, key=b"k"), NOW)


class Watched:
    """Calls of `decompress`: the thread's name and the limit of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, int]] = []
        for module in (validator_module, segment_module, records_module):
            monkeypatch.setattr(module, "decompress", self._decompress)

    def _decompress(self, codec: int, data: Any, limit: int, scratch: bytearray | None = None) -> memoryview:
        self.calls.append((threading.current_thread().name, limit))
        return compression.decompress(codec, data, limit, scratch)

    def on_loop(self) -> list[int]:
        return [limit for name, limit in self.calls if name == threading.main_thread().name]

    def elsewhere(self) -> set[str]:
        return {name.rstrip("_0123456789") for name, _ in self.calls if name != threading.main_thread().name}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def in_loop(run: Callable[[RecordWorkers, asyncio.Future[Any]], None]) -> Any:
    """The result of work that begins on a loop with worker threads."""

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        workers, result = RecordWorkers(loop), loop.create_future()
        try:
            run(workers, result)
            return await asyncio.wait_for(result, 60)
        finally:
            workers.close()

    return asyncio.run(main())


def produced(log: PartitionLog, batch: bytes) -> ProducedBatches:
    return ProducedBatches(TopicPartition("t", 0), log, batch, NOW)


def test_budget_leaves_large_batches_to_a_worker_thread(log: PartitionLog, watched: Watched) -> None:
    budget = LoopBudget()
    for _ in range(20):
        with pytest.raises(TooMuchForLoopError):
            log.append(bomb("zstd", 10 * MIB), NOW, budget=budget)
    assert sum(watched.on_loop()) <= LOOP_BYTES_MAX
    assert log.end_offset == 0


def test_budget_of_a_request_bounds_small_batches_too(log: PartitionLog) -> None:
    small, budget = build_batch([BatchRecord(0, BASE_MS, None, b"v" * 100_000)], compression="zstd"), LoopBudget()
    for _ in range(LOOP_BYTES_MAX >> 18):
        log.append(small, NOW, budget=budget)
    with pytest.raises(TooMuchForLoopError):
        log.append(small, NOW, budget=budget)
    plain = build_batch([BatchRecord(0, BASE_MS, None, b"v" * 100_000)])
    budget = LoopBudget()
    for _ in range(LOOP_BYTES_MAX // (cooperative._BATCH_COST + len(plain) // 4)):
        log.append(plain, NOW, budget=budget)
    with pytest.raises(TooMuchForLoopError):
        log.append(plain, NOW, budget=budget)


def test_produced_bomb_is_decompressed_in_a_worker_thread(log: PartitionLog, watched: Watched) -> None:
    batch = bomb("zstd", 20 * MIB)
    checked = in_loop(lambda workers, result: workers.check_produced(produced(log, batch), result.set_result))
    assert bytes(checked[0]) == batch
    assert not watched.on_loop()
    assert watched.elsewhere() == {"kohort-records"}
    assert log.append_validated(checked, NOW).base_offset == 0


def test_batches_of_a_partition_stay_in_order_behind_a_bomb(log: PartitionLog) -> None:
    order: list[int] = []

    def run(workers: RecordWorkers, result: asyncio.Future[Any]) -> None:
        for number, size in enumerate((30 * MIB, 10, 10 * MIB, 10)):
            workers.check_produced(produced(log, bomb("zstd", size)), partial(note, number))
        workers.check_produced(produced(log, bomb("zstd", 10)), result.set_result)

    def note(number: int, checked: object) -> None:
        assert isinstance(checked, tuple)
        order.append(number)

    in_loop(run)
    assert order == [0, 1, 2, 3]


def test_search_by_time_in_a_bomb_runs_in_a_worker_thread(log: PartitionLog, watched: Watched) -> None:
    log.append(bomb("zstd", 20 * MIB), NOW)
    watched.calls.clear()
    search = log.search_by_time(BASE_MS, Isolation.READ_UNCOMMITTED, LoopBudget())
    found = in_loop(lambda workers, result: workers.search(search, result.set_result, lambda: None))
    assert found == (0, BASE_MS, 0)
    assert sum(watched.on_loop()) <= LOOP_BYTES_MAX
    assert watched.elsewhere() == {"kohort-record-search"}


def test_search_by_time_in_small_batches_needs_no_thread(log: PartitionLog, watched: Watched) -> None:
    log.append(build_batch([BatchRecord(0, BASE_MS, None, b"v")], compression="lz4"), NOW)
    search = log.search_by_time(BASE_MS, Isolation.READ_UNCOMMITTED, LoopBudget())
    with pytest.raises(StopIteration) as ended:
        next(search)
    assert ended.value.value == (0, BASE_MS, 0)
    assert not watched.elsewhere()


def test_search_by_time_in_a_damaged_batch_of_an_older_log_is_a_clear_error(log: PartitionLog) -> None:
    log.append(hostile_batch(record(0) + record(1), 3, max_ms=BASE_MS + 100), NOW, from_client=False)
    with pytest.raises(KafkaError, match="the batch at offset 0 can't be read: record 2"):
        log.offset_for_timestamp(BASE_MS + 50)


def test_compaction_of_bombs_runs_in_a_worker_thread(tmp_path: Path, watched: Watched) -> None:
    values = [b"%d" % number * (9 * MIB) for number in range(3)]
    with LogStore(tmp_path / "d") as store:
        configs = {"cleanup.policy": "compact", "segment.bytes": "1000", "min.cleanable.dirty.ratio": "0"}
        store.create_topic("t", 1, configs)
        log = store.partition(TopicPartition("t", 0))
        for value in values:
            body = record(0, b"other", value) + record(1, b"same", value)
            log.append(hostile_batch(packed("zstd", body), 2, attributes=CODECS["zstd"]), NOW)
        log.roll()
        watched.calls.clear()

        async def maintain() -> None:
            workers = RecordWorkers(asyncio.get_running_loop())
            store.compact_in = workers.run_compaction_step
            try:
                while store.run_maintenance_slice(NOW + 10_000):  # noqa: ASYNC110 - as the broker does
                    await asyncio.sleep(0.01)
            finally:
                workers.close()

        asyncio.run(asyncio.wait_for(maintain(), 60))
        assert watched.elsewhere() == {"kohort-compaction"}
        assert all(limit <= compaction_module._STEP_BYTES for limit in watched.on_loop())
        kept = [found for batch in log.iterate_batches(0) for found in read_records(batch)]
        assert [(found.key, found.value) for found in kept] == [(b"other", values[2]), (b"same", values[2])]


def test_compaction_keeps_header_names_that_are_no_text(tmp_path: Path) -> None:
    """A strict decoder would end every compaction of the partition."""
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(cleanup_policy=("compact",), segment_bytes=200))
    odd = b"\x02\x04\xff\xfe\x01"
    for number in range(4):
        body = record(0, b"same", b"v" * 150, odd) + record(1, b"only%d" % number, b"v", odd)
        log.append(hostile_batch(body, 2), NOW)
    log.roll()
    compaction_module.compact_now(log, NOW)
    kept = b"".join(bytes(found)[61:] for found in log.iterate_batches(0))
    assert kept.count(b"same") == 1
    assert kept.count(b"only") == kept.count(b"\xff\xfe") - 1 == 4
