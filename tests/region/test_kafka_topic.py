"""A topic as a region's sink: each sequence once, whoever publishes, dies or is too late."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from kohort import Admin
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.producer.producer import Producer
from kohort.errors import CorruptDataError, InvalidInputError, KafkaError, RetriableError, TimedOutError
from kohort.ids import TopicPartition
from kohort.region import KafkaTopic, Region
from kohort.region.sinks import Keep
from kohort.region.sinks import kafka_topic as module
from kohort.region.sinks.by_name import sink_of
from kohort.region.sinks.rows import RowRefusedError
from kohort.region.sinks.staging_topic import StagingTopic
from kohort.region.staged import StagedKey
from tests.region.conftest import Worker, fill, make_topic
from tests.region.topic_process import KEYS, REGION
from tests.support.waiting import LAST_RESORT, until

pytestmark = LAST_RESORT
Patch = pytest.MonkeyPatch
NEXT = tuple(StagedKey(REGION, 5, member, 2) for member in ("a", "b"))
ZOMBIE = StagedKey(REGION, 4, "a", 9)
STAGED = {KEYS[0]: [b"1", b"2"], KEYS[1]: [b"3"], NEXT[0]: [b"4"], NEXT[1]: [b"5", b"6"], ZOMBIE: [b"666"]}
FIRST, SECOND = [b"1", b"2", b"3"], [b"4", b"5", b"6"]
OTHER = UUID(int=0xB0B)


def table(values: list[bytes]) -> pa.Table:
    return pa.table({"key": values, "value": values}, schema=SCHEMA)


SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def sink_at(servers: str, topic: str, region: UUID = REGION) -> KafkaTopic:
    return KafkaTopic(servers, topic).bind("region", region)


def read(servers: str, topic: str, *, committed: bool = True) -> list[bytes]:
    """The values that a reader sees."""
    level = "read_committed" if committed else "read_uncommitted"
    found: list[bytes] = []
    with RangeReader(servers, columns=("value",), isolation_level=level) as reader, Admin(servers) as admin:
        for number in admin.describe_topics([topic]).all()[topic].partitions:
            partition = TopicPartition(topic, number)
            ends = reader.current_offsets({partition: "latest"})[partition].offset
            start = reader.current_offsets({partition: "earliest"})[partition].offset
            for batch in reader.read(partition, start, ends):
                found += batch.column("value").to_pylist()
    return sorted(found)


@pytest.fixture
def begun(servers: str, name: str) -> tuple[str, str]:
    """A topic with two sequences staged, and what a zombie left; nothing published."""
    make_topic(servers, name)
    sink = sink_at(servers, name)
    sink.check(SCHEMA)
    for key in (*KEYS, *NEXT, ZOMBIE):
        sink.stage(key, table(STAGED.get(key, [])))
    return servers, name


def shows(servers: str, topic: str, values: list[bytes]) -> bool:
    """Wait until a reader sees these values: Kafka shows a transaction in one partition after another."""
    until(lambda: len(read(servers, topic)) == len(values), "a transaction is shown")
    return read(servers, topic) == sorted(values)


def staged(servers: str, topic: str) -> set[str]:
    with StagingTopic(servers, topic, {}).index_staged_rows() as found:
        return set(found.offsets)


def all_is_well(servers: str, topic: str) -> None:
    """Whoever comes next publishes all; nothing was lost, nothing comes twice, nothing is left."""
    sink = sink_at(servers, topic)
    assert sink.published() in (0, 1, 2)
    sink.publish(1, KEYS)
    sink.publish(2, NEXT)
    sink.publish(3, [])
    assert shows(servers, topic, FIRST + SECOND)
    assert sink.published() == 3
    sink.sweep(Keep(6))
    assert staged(servers, topic) == set()


def test_staged_rows_are_invisible_and_a_sequence_is_there_once(begun: tuple[str, str]) -> None:
    servers, topic = begun
    sink = sink_at(servers, topic)
    assert read(servers, topic, committed=False) == [] and sink.published() == 0
    for _ in range(2):
        sink.publish(1, KEYS)
        pickle.loads(pickle.dumps(sink)).publish(1, KEYS)
    assert shows(servers, topic, FIRST) and sink.published() == 1
    all_is_well(servers, topic)


def test_texts_that_are_not_utf8_are_published_as_their_bytes(own_servers: str, name: str) -> None:
    """Spark's strings may have any bytes, for example those of a record that is cast to STRING."""
    make_topic(own_servers, name)
    sink = sink_at(own_servers, name)
    values = [b"good", b"\xff\xfe"]
    texts = pa.Array.from_buffers(pa.string(), 2, pa.array(values, pa.binary()).buffers())
    rows = pa.table({"value": texts})
    sink.check(rows.schema)
    sink.stage(KEYS[0], rows)
    sink.publish(1, KEYS[:1])
    assert shows(own_servers, name, values)


def test_of_two_tables_under_one_key_the_later_counts(own_servers: str, name: str) -> None:
    make_topic(own_servers, name)
    sink = sink_at(own_servers, name)
    sink.check(SCHEMA)
    large = [b"%d" % number + bytes(1000) for number in range(2000)]
    sink.stage(KEYS[0], table(large))
    sink.stage(KEYS[0], table([b"only"]))
    sink.stage(KEYS[1], table([b"first"]))
    sink.stage(KEYS[1], table([bytes(value) for value in large]))
    sink.publish(1, KEYS[:2])
    assert read(own_servers, name) == sorted([b"only", *large])


def test_publisher_that_is_killed_at_any_call_has_done_nothing_or_all(begun: tuple[str, str]) -> None:
    """By SIGKILL, before and after each call; its transaction stays open, and no reader sees part of it."""
    servers, topic = begun
    program = [sys.executable, "-m", "tests.region.topic_process"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forks:
        assert forks.stdin is not None and forks.stdout is not None
        outcomes = []
        for at in range(2, 100):
            if sink_at(servers, topic).published():
                break
            print(servers, topic, 1, at, file=forks.stdin, flush=True)
            outcomes.append(int(forks.stdout.readline()))
            assert shows(servers, topic, FIRST if sink_at(servers, topic).published() else [])
        forks.stdin.close()
    assert len(outcomes) > 16 and set(outcomes) == {-9}
    all_is_well(servers, topic)


def test_publisher_that_wakes_behind_another_adds_nothing(begun: tuple[str, str], monkeypatch: Patch) -> None:
    """A publisher is held before its commit, while another published this sequence and the next."""
    servers, topic = begun
    real = Producer.commit_transaction

    def held(producer: Producer) -> None:
        monkeypatch.setattr(module.Producer, "commit_transaction", real)
        other = sink_at(servers, topic)
        other.publish(1, KEYS)
        other.publish(2, NEXT)
        real(producer)

    monkeypatch.setattr(module.Producer, "commit_transaction", held)
    sink = sink_at(servers, topic)
    sink.publish(1, KEYS)
    assert shows(servers, topic, FIRST + SECOND)
    all_is_well(servers, topic)


def test_deletion_that_arrives_late_leaves_what_was_published_since(begun: tuple[str, str], monkeypatch: Patch) -> None:
    """A request whose sender has given up may take effect when the next sequence is shown."""
    servers, topic = begun
    sink = sink_at(servers, topic)
    sink.publish(1, KEYS)
    asked: list[dict[TopicPartition, int]] = []
    real = Admin.delete_records

    def seen(admin: Admin, before: dict[TopicPartition, int]) -> Any:
        asked.append(dict(before))
        return real(admin, before)

    with monkeypatch.context() as patch:
        patch.setattr(module.Admin, "delete_records", seen)
        sink.empty(2, 5)
    sink.publish(3, NEXT)
    assert shows(servers, topic, SECOND)
    with Admin(servers) as admin:
        admin.delete_records(asked[0]).all()
    assert shows(servers, topic, SECOND)


@pytest.mark.parametrize("happened", [True, False])
def test_commit_without_an_answer_is_settled_by_the_next_call(
    begun: tuple[str, str], happened: bool, monkeypatch: Patch
) -> None:
    servers, topic = begun
    real = Producer.commit_transaction

    def lost(producer: Producer) -> None:
        monkeypatch.setattr(module.Producer, "commit_transaction", real)
        if happened:
            real(producer)
        raise TimedOutError("no answer")

    monkeypatch.setattr(module.Producer, "commit_transaction", lost)
    sink = sink_at(servers, topic)
    with pytest.raises(TimedOutError):
        sink.publish(1, KEYS)
    sink.publish(1, KEYS)
    assert shows(servers, topic, FIRST)
    all_is_well(servers, topic)


def publish_at_once(servers: str, topic: str, attempts: int = 50) -> None:
    errors: list[BaseException] = []

    def publisher() -> None:
        sink = sink_at(servers, topic)
        for sequence, keys in ((1, KEYS), (2, NEXT)):
            for _ in range(attempts):
                try:
                    sink.publish(sequence, keys)
                    break
                except RetriableError:
                    time.sleep(0.1)
                except BaseException as error:
                    errors.append(error)
                    raise

    threads = [threading.Thread(target=publisher) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    all_is_well(servers, topic)


def test_publishers_at_once_publish_once(begun: tuple[str, str]) -> None:
    publish_at_once(*begun)


def _without_a_fence(patch: Patch) -> None:
    ids = iter(range(1_000))

    class Alone(Producer):
        def __init__(self, servers: str, **settings: Any) -> None:
            if "transactional_id" in settings:
                settings["transactional_id"] = f"alone-{next(ids)}"
            super().__init__(servers, **settings)

    patch.setattr(module, "Producer", Alone)
    short = {"isolation_level": "read_committed", "default_api_timeout_ms": 2_000}
    patch.setattr(StagingTopic, "_reader", lambda beside: RangeReader(beside._servers, **short))


def _forgets_the_marker(patch: Patch) -> None:
    real = module._Writer.commit
    patch.setattr(
        module._Writer,
        "commit",
        lambda writer, marker, tables=(), done=(): real(
            writer, marker if not marker.sequence else writer.marker or marker, tables, done
        ),
    )


def _sweeps_all(patch: Patch) -> None:
    real = StagingTopic.delete_unneeded_records
    patch.setattr(
        StagingTopic,
        "delete_unneeded_records",
        lambda beside, admin, needed: real(beside, admin, lambda name, done: False),
    )


def publish_while_others_sweep(servers: str, topic: str) -> None:
    sink = sink_at(servers, topic)
    sink.sweep(Keep(5, KEYS))
    sink.publish(1, KEYS)
    sink.sweep(Keep(5, NEXT))
    sink.sweep(Keep(6, NEXT))
    sink.publish(2, NEXT)
    all_is_well(servers, topic)


def test_sweep_keeps_what_may_be_published(begun: tuple[str, str]) -> None:
    publish_while_others_sweep(*begun)


def publish_behind_a_death(servers: str, topic: str) -> None:
    """A publisher dies in its transaction, after another one's marker."""
    writer = Producer(servers, transactional_id=f"kohort-sink-{topic}")
    writer.init_transactions()
    writer.begin_transaction()
    writer.send(StagingTopic.staging_topic_name(topic), b"{}", topic, partition=0)
    writer.flush()
    try:
        all_is_well(servers, topic)
    finally:
        with pytest.raises(KafkaError):
            writer.commit_transaction()
        module._closed(writer)


def test_open_transaction_of_the_dead_is_ended_by_the_next(begun: tuple[str, str]) -> None:
    publish_behind_a_death(*begun)


@pytest.mark.parametrize(
    ("mutant", "run"),
    [
        (_without_a_fence, publish_behind_a_death),
        (_forgets_the_marker, all_is_well),
        (_sweeps_all, publish_while_others_sweep),
    ],
)
def test_run_kills_the_mutant(
    mutant: Callable[[Patch], None],
    run: Callable[[str, str], None],
    own_servers: str,
    name: str,
    monkeypatch: Patch,
) -> None:
    make_topic(own_servers, name)
    sink = sink_at(own_servers, name)
    sink.check(SCHEMA)
    for key in (*KEYS, *NEXT, ZOMBIE):
        sink.stage(key, table(STAGED.get(key, [])))
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KafkaError, pytest.fail.Exception)):
        run(own_servers, name)


def test_rows_that_brokers_would_refuse_are_refused_at_once(own_servers: str, name: str) -> None:
    with Admin(own_servers) as admin:
        settings = {"cleanup.policy": "compact", "max.message.bytes": "2000"}
        admin.create_topics([NewTopic(name, 2, configs=settings)]).all()
    sink = sink_at(own_servers, name)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    schema = pa.schema(
        [("key", pa.string()), ("value", pa.string()), ("partition", pa.int64()), ("headers", headers),
         ("timestamp", pa.timestamp("us", "UTC"))]
    )  # fmt: skip
    sink.check(schema)
    good = {"key": "k", "value": "v", "partition": 1, "headers": [{"key": "h", "value": b""}], "timestamp": 10**15}
    sink.stage(KEYS[0], pa.Table.from_pylist([good], schema))
    bad = {
        "Null in columns": {"key": None},
        "No such partition": {"partition": 2},
        "has no key": {"headers": [{"key": None, "value": b"x"}]},
        "ahead": {"timestamp": 10**17},
        "before 1970": {"timestamp": -1},
        "more than 2000 bytes": {"value": "x" * 1_900},
        "more than 2000": {"headers": [{"key": "h", "value": bytes(1_900)}]},
    }
    for text, change in bad.items():
        rows = pa.Table.from_pylist([good, {**good, **change}], schema)
        with pytest.raises(RowRefusedError, match=text) as refused:
            sink.stage(KEYS[1], rows)
        assert refused.value.row == 1
    sink.publish(1, KEYS[:1])
    assert read(own_servers, name) == [b"v"]


def test_null_in_a_dictionary_and_headers_hidden_by_a_null_are_seen(own_servers: str, name: str) -> None:
    """Arrow counts no null in a dictionary's values, and keeps the entries of a list that is null."""
    make_topic(own_servers, name)
    sink = sink_at(own_servers, name)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    schema = pa.schema([("value", pa.binary()), ("partition", pa.int32()), ("headers", headers)])
    sink.check(schema)
    entries = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], headers.value_type)
    hidden = pa.ListArray.from_arrays([0, 1, 2], entries, mask=pa.array([True, False]))
    partitions = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([3, None], pa.int32()))
    values = pa.array([b"x", b"y"])
    with pytest.raises(RowRefusedError, match="partition"):
        sink.stage(KEYS[0], pa.table({"value": values, "partition": partitions, "headers": hidden}))
    good = pa.table({"value": values, "partition": pa.array([3, 2], pa.int32()), "headers": hidden.cast(headers)})
    sink.stage(KEYS[0], good)
    sink.publish(1, KEYS[:1])
    assert shows(own_servers, name, [b"x", b"y"])


def test_record_as_large_as_the_topic_takes_is_published(own_servers: str, name: str) -> None:
    with Admin(own_servers) as admin:
        admin.create_topics([NewTopic(name, 1, configs={"max.message.bytes": str(3 << 20)})]).all()
    sink = sink_at(own_servers, name)
    sink.check(SCHEMA)
    sink.stage(KEYS[0], table([bytes(5 << 18)]))
    sink.publish(1, KEYS[:1])
    assert shows(own_servers, name, [bytes(5 << 18)])


def test_two_publishers_of_a_slow_copy_do_not_fence_each_other_for_ever(
    begun: tuple[str, str], monkeypatch: Patch
) -> None:
    servers, topic = begun
    real = Producer.commit_transaction

    def slow(producer: Producer) -> None:
        time.sleep(1.0)
        real(producer)

    monkeypatch.setattr(module.Producer, "commit_transaction", slow)
    monkeypatch.setattr(module, "FENCED_WAIT_S", 1.0)
    publish_at_once(servers, topic, attempts=12)


def test_marker_that_moves_between_its_end_and_its_read_is_found(begun: tuple[str, str], monkeypatch: Patch) -> None:
    """A publication and a sweep come between: what was read lies before the first record then."""
    servers, topic = begun
    sink = sink_at(servers, topic)
    sink.publish(1, KEYS)
    real = StagingTopic._records

    def late(beside: StagingTopic, reader: RangeReader, number: int, **given: bool) -> Iterator[Any]:
        monkeypatch.setattr(StagingTopic, "_records", real)
        other = sink_at(servers, topic)
        other.publish(2, NEXT)
        other.sweep(Keep(6))
        return iter(())

    monkeypatch.setattr(StagingTopic, "_records", late)
    assert sink.published() == 2


def test_topic_that_is_deleted_while_the_region_runs_is_not_written_anew(begun: tuple[str, str]) -> None:
    servers, topic = begun
    sink = sink_at(servers, topic)
    sink.publish(1, KEYS)
    with Admin(servers) as admin:
        admin.delete_topics([topic]).all()
    until(lambda: sink.published() == 0, "the topic is gone")
    for _ in range(2):
        with pytest.raises(RetriableError, match="kohort region adopt"):
            sink.publish(2, NEXT)
    make_topic(servers, topic)
    with pytest.raises(RetriableError, match="kohort region adopt"):
        sink.publish(2, NEXT)
    assert read(servers, topic) == []


def test_schemas_owners_and_names_that_do_not_fit_are_refused(own_servers: str, name: str) -> None:
    make_topic(own_servers, name)
    for wrong in ([("value", pa.int64())], [("key", pa.binary())], [("value", pa.binary()), ("id", pa.int64())]):
        with pytest.raises(InvalidInputError):
            sink_at(own_servers, name).check(pa.schema(wrong))
    sink = sink_at(own_servers, name)
    sink.check(SCHEMA)
    with pytest.raises(InvalidInputError, match="does not fit"):
        sink.check(pa.schema([("value", pa.binary())]))
    with pytest.raises(InvalidInputError, match="belongs to another region"):
        sink_at(own_servers, name, OTHER).check(SCHEMA)
    elsewhere = KafkaTopic(own_servers.replace("127.0.0.1", "localhost"), name).bind("region", REGION)
    with pytest.raises(InvalidInputError, match="two names"):
        elsewhere.published()
    assert elsewhere.adopt() == sink.place and elsewhere.published() == 0
    with pytest.raises(InvalidInputError, match="two names"):
        sink.publish(1, [])
    found = sink_of(elsewhere.place)
    assert isinstance(found, KafkaTopic) and found.place == elsewhere.place


def test_rows_that_are_gone_are_missed(own_servers: str, name: str) -> None:
    make_topic(own_servers, name)
    sink = sink_at(own_servers, name)
    sink.check(SCHEMA)
    with pytest.raises(CorruptDataError, match="of 1 staged pieces 1 are gone"):
        sink.publish(1, KEYS[:1])
    assert sink.published() == 0


def test_emptied_topic_shows_what_comes_later(begun: tuple[str, str]) -> None:
    servers, topic = begun
    sink = sink_at(servers, topic)
    sink.publish(1, KEYS)
    for _ in range(2):
        sink.empty(2, 5)
        assert read(servers, topic) == [] and sink.published() == 2
    sink.publish(2, NEXT)
    sink.publish(3, NEXT)
    sink.empty(2, 5)
    assert shows(servers, topic, SECOND) and sink.published() == 3


def test_topic_that_was_made_again_shows_nothing(begun: tuple[str, str]) -> None:
    servers, topic = begun
    sink = sink_at(servers, topic)
    sink.publish(1, KEYS)
    with Admin(servers) as admin:
        admin.delete_topics([topic]).all()
        until(lambda: topic not in admin.list_topics(), "the topic is gone")
    assert sink.published() == 0
    make_topic(servers, topic)
    until(lambda: sink.published() == 0, "the new topic is there")
    assert sink.adopt() == sink.place
    sink.publish(2, NEXT)
    until(lambda: read(servers, topic) == SECOND, "the rest is there")
    assert sink.published() == 2


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    found: list[Worker] = []
    yield found
    for worker in found:
        worker.close()
        worker.thread.join(60)


def test_members_of_a_region_write_from_topic_to_topic(servers: str, name: str, workers: list[Worker]) -> None:
    """One of two fails; what it had staged is nobody's, and its records are read again."""
    target = f"{name}-out"
    make_topic(servers, name)
    make_topic(servers, target)
    fill(servers, name, range(1_000))
    sink = KafkaTopic(servers, target)
    with Region(name, servers, checkpoint_every="200ms") as region:
        workers += [Worker(region, f"worker-{number}", sink, name) for number in range(2)]
        until(lambda: len(read(servers, target)) > 0, "a sequence is complete")
        workers[0].fail_at = 0
        fill(servers, name, range(1_000, 2_000))
        workers[0].thread.join(60)
        assert isinstance(workers[0].error, ValueError)
        until(lambda: len(read(servers, target)) >= 2_000, "all is published")
        workers[1].close()
        workers[1].thread.join(60)
    assert Counter(int(value) for value in read(servers, target)) == Counter(range(2_000))
