"""A broker over damaged files: what is sound is served, what is lost is told, to our clients and to librdkafka."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from kohort import Admin, Broker, Consumer, Producer
from kohort.client.consumer.range_reader import RangeReader
from kohort.errors import CorruptDataError, ErrorCode, KafkaError
from kohort.wire.data import FetchRequest
from tests.broker.raw import RawClient
from tests.support.damaged import BATCH, COUNT, OTHER, PART, make_folder, offsets, place_of, put


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder that was closed in order."""
    return make_folder(tmp_path / "data")


@pytest.fixture(params=["length", "base offset", "leader epoch", "magic"])
def damaged(request: pytest.FixtureRequest, data: Path) -> tuple[Path, str]:
    """The folder with the batch at offset 510 damaged; and what must be said of it."""
    path, position = place_of(data, 510)
    at = {"length": 8, "base offset": 5, "leader epoch": 12, "magic": 16}[request.param]
    put(path, position + at, b"\xff" if request.param != "leader epoch" else b"\x01")
    said = (
        f"t-0/{path.name} is damaged at byte {position} \\(.* bytes\\): .*; "
        "offsets 510 to 519 can't be read, the next readable one is 520"
    )
    return data, said


def test_consumer_gets_the_records_before_and_an_error_with_the_next_offset(
    damaged: tuple[Path, str], capfd: pytest.CaptureFixture[str]
) -> None:
    data, said = damaged
    with Broker(data) as broker:
        with Consumer(broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([PART])
            assert offsets(consumer, 510) == list(range(510))
            for start in (None, 511, 519):
                if start is not None:
                    consumer.seek(PART, start)
                with pytest.raises(CorruptDataError, match=said):
                    consumer.poll(10_000)
            consumer.seek(PART, 520)
            assert offsets(consumer, COUNT - 520) == list(range(520, COUNT))
        with RangeReader(broker.bootstrap_servers, columns=["offset"]) as reader:
            seen = []
            with pytest.raises(CorruptDataError, match=said):
                seen.extend(read.num_rows for read in reader.read(PART, 0, COUNT))
            assert sum(seen) == 510
    logged = capfd.readouterr().err
    assert logged.count("the next readable one is 520") == 1, "once, not for each read"


def test_librdkafka_reports_an_error_and_continues_behind_it(damaged: tuple[Path, str]) -> None:
    data, _ = damaged
    with Broker(data) as broker:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "error"}
        consumer = confluent_kafka.Consumer(settings)
        try:
            consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
            seen, errors = [], []
            while not errors:
                message = consumer.poll(10)
                assert message is not None, f"nothing after {len(seen)} records"
                if message.error() is None:
                    seen.append(message.offset())
                else:
                    errors.append(message.error().code())
            assert seen == list(range(510))
            assert errors == [ErrorCode.CORRUPT_MESSAGE]
            consumer.seek(confluent_kafka.TopicPartition("t", 0, 520))
            while seen[-1] != COUNT - 1:
                message = consumer.poll(10)
                assert message is not None
                if message.error() is None:
                    seen.append(message.offset())
            assert seen == [*range(510), *range(520, COUNT)]
        finally:
            consumer.close()


def test_only_our_own_client_gets_the_message(data: Path) -> None:
    path, position = place_of(data, 510)
    put(path, position + 8, b"\xff")
    with Broker(data) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = FetchRequest.FetchTopic
        asked = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[
                topic(
                    topic="t",
                    partitions=[topic.FetchPartition(partition=0, fetch_offset=510, partition_max_bytes=1 << 20)],
                )
            ],
        )
        (part,) = client.ask(asked, 12).responses[0].partitions
        assert (part.error_code, part.damage) == (ErrorCode.CORRUPT_MESSAGE, "")


def test_producers_append_at_the_end_and_groups_can_commit_past_the_damage(data: Path) -> None:
    path, position = place_of(data, 510)
    put(path, position + 8, b"\xff")
    with Broker(data) as broker:
        with Producer(broker.bootstrap_servers) as producer:
            assert producer.send("t", b"new").result(timeout_ms=30_000).offset == COUNT
        with Consumer(broker.bootstrap_servers, group_id="g") as consumer:
            consumer.assign([PART])
            consumer.seek(PART, COUNT)
            assert offsets(consumer, 1) == [COUNT]
            consumer.commit()


def _last_batch(data: Path) -> None:
    path, position = place_of(data, COUNT - BATCH)
    put(path, position + 8, b"\xff")


def _last_file_shortened(data: Path) -> None:
    path, position = place_of(data, COUNT - BATCH)
    os.truncate(path, position + 30)


def _last_file_is_a_folder(data: Path) -> None:
    path, _ = place_of(data, COUNT - BATCH)
    path.rename(data / "kept")
    path.mkdir()


def _last_file_missing(data: Path) -> None:
    path, _ = place_of(data, COUNT - BATCH)
    for file in path.parent.glob(f"{path.stem}.*"):
        if file.suffix != ".snapshot":
            file.unlink()


@pytest.mark.parametrize("spoil", [_last_batch, _last_file_shortened, _last_file_is_a_folder, _last_file_missing])
def test_offsets_lost_at_the_end_are_not_given_again(data: Path, spoil: Callable[[Path], None]) -> None:
    spoil(data)
    with Broker(data) as broker:
        with Producer(broker.bootstrap_servers) as producer:
            assert producer.send("t", b"new").result(timeout_ms=30_000).offset == COUNT
        with Consumer(broker.bootstrap_servers) as consumer:
            consumer.assign([PART])
            consumer.seek(PART, COUNT - 1)
            with pytest.raises(
                CorruptDataError, match=f"to {COUNT - 1} can't be read, the next readable one is {COUNT}"
            ):
                consumer.poll(10_000)
            consumer.seek(PART, COUNT)
            assert offsets(consumer, 1) == [COUNT]
    with Broker(data) as broker, Consumer(broker.bootstrap_servers) as consumer:
        consumer.assign([PART])
        consumer.seek(PART, COUNT - 1)
        with pytest.raises(CorruptDataError):
            consumer.poll(10_000)
        consumer.seek(PART, COUNT)
        assert offsets(consumer, 1) == [COUNT]


def _middle_file_empty(data: Path) -> str:
    path, _ = place_of(data, 1500)
    path.write_bytes(b"")
    return "the file is empty"


def _middle_file_missing(data: Path) -> str:
    path, _ = place_of(data, 1500)
    path.unlink()
    return "can't be opened \\(No such file or directory\\)"


def _middle_file_gone_for_good(data: Path) -> str:
    path, _ = place_of(data, 1500)
    for file in path.parent.glob(f"{path.stem}.*"):
        file.unlink()
    return "the file ends after .* bytes, and the next segment begins at"


def _middle_file_is_a_folder(data: Path) -> str:
    path, _ = place_of(data, 1500)
    path.rename(path.with_name("kept.txt"))
    path.mkdir()
    return "can't be opened \\(Is a directory\\)"


@pytest.mark.parametrize(
    "spoil", [_middle_file_empty, _middle_file_missing, _middle_file_gone_for_good, _middle_file_is_a_folder]
)
@pytest.mark.parametrize("crashed", [False, True], ids=["closed", "crashed"])
def test_missing_segment_is_an_error_and_the_others_are_served(
    data: Path, spoil: Callable[[Path], str], crashed: bool
) -> None:
    path, _ = place_of(data, 1500)
    bases = sorted(int(entry.stem) for entry in path.parent.glob("*.log"))
    following = bases[bases.index(int(path.stem)) + 1]
    said = spoil(data)
    if crashed:
        (data / ".kafka_cleanshutdown").unlink()
    with Broker(data) as broker, Consumer(broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([PART])
        assert offsets(consumer, int(path.stem)) == list(range(int(path.stem)))
        with pytest.raises(
            CorruptDataError, match=f"{said}.*; offsets {int(path.stem)} to {following - 1} can't be read"
        ):
            consumer.poll(10_000)
        consumer.seek(PART, following)
        assert offsets(consumer, COUNT - following) == list(range(following, COUNT))


def _indexes(data: Path) -> Iterator[Path]:
    yield from (data / "t-0").glob("*.index")
    yield from (data / "t-0").glob("*.timeindex")


@pytest.mark.parametrize("how", ["missing", "noise", "folder"])
def test_damaged_indexes_cost_nothing(data: Path, how: str) -> None:
    for path in _indexes(data):
        size = path.stat().st_size
        path.unlink()
        if how == "noise":
            path.write_bytes(os.urandom(size))
        elif how == "folder":
            path.mkdir()
    with Broker(data) as broker, Consumer(broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([PART])
        for start in (1234, 0):
            consumer.seek(PART, start)
            assert offsets(consumer, COUNT - start) == list(range(start, COUNT))


def test_a_partition_that_can_not_be_opened_does_not_keep_the_others_from_being_served(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (data / "t-0").rename(data / "kept")
    (data / "t-0").write_text("no folder")
    (data / "recovery-point-offset-checkpoint").write_text("no checkpoint")
    with Broker(data) as broker:
        with Consumer(broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([OTHER])
            assert offsets(consumer, BATCH) == list(range(BATCH))
            consumer.assign([PART])
            consumer.seek(PART, 5)
            with pytest.raises(CorruptDataError, match="can't be opened .*Not a directory"):
                consumer.poll(10_000)
        with Producer(broker.bootstrap_servers, delivery_timeout_ms=1_500, request_timeout_ms=1_000) as producer:
            with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR|gave up|not delivered|storage"):
                producer.send("t", b"new").result(timeout_ms=30_000)
        with Admin(broker.bootstrap_servers) as admin:
            admin.delete_topics(["t"]).all()
    logged = capfd.readouterr().err
    assert "[partition t-0] not served, the other partitions are" in logged
    assert "recovery-point-offset-checkpoint can't be read" in logged
    assert "Traceback" not in logged


def test_damage_in_the_middle_is_no_torn_end_after_a_crash(data: Path) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    path, position = place_of(data, COUNT - 2 * BATCH)
    put(path, position + 90, b"\0\0")
    size = path.stat().st_size
    with Broker(data) as broker, Consumer(broker.bootstrap_servers) as consumer:
        consumer.assign([PART])
        consumer.seek(PART, COUNT - 2 * BATCH)
        with pytest.raises(
            CorruptDataError, match=f"the checksum does not fit; .* next readable one is {COUNT - BATCH}"
        ):
            consumer.poll(10_000)
        consumer.seek(PART, COUNT - BATCH)
        assert offsets(consumer, BATCH) == list(range(COUNT - BATCH, COUNT))
    assert path.stat().st_size == size
