"""Lag of Spark queries that are members of no group, from their checkpoints: files of every kind, and of a Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore
from tests.spark.test_checkpoint_move import T0, T1, ours, write
from tests.support import maven
from tests.support.waiting import ATTEMPTS, LAST_RESORT, TOO_SLOW, until

from kohort import Admin, Broker, Producer
from kohort.cli.app import run
from kohort.client.admin.values import NewTopic
from kohort.errors import InvalidInputError, KafkaError, NotFoundError
from kohort.ids import TopicPartition
from kohort.lag import LagReader, LagReport
from kohort.lag.cluster_watch import ClusterWatch
from kohort.lag.exporter import LagExporter
from kohort.lag.snapshot import GroupReading
from kohort.region.sinks.object_store import ObjectStore
from kohort.spark.checkpoint_lag import ObjectStoreFiles, SparkCheckpoints

pytestmark = LAST_RESORT
KINDS = ("kafka", "kohort")
"""Formats of queries: Spark's own source, and ours."""


def read(given: str | Path) -> dict[str, GroupReading | KafkaError]:
    return SparkCheckpoints([str(given)])()


def positions(found: GroupReading | KafkaError) -> tuple[int | None, dict[TopicPartition, int]]:
    assert isinstance(found, GroupReading), found
    return found.batch, {tp: committed.offset for tp, committed in found.committed.items()}


def only(given: str | Path) -> GroupReading | KafkaError:
    (found,) = read(given).values()
    return found


def refusal(folder: Path) -> str:
    found = only(folder)
    assert isinstance(found, KafkaError)
    return str(found)


KAFKA: Mapping[int, Any] = {3: {"t": {"0": 3}}, 4: {"t": {"0": 5, "1": 2}}, 5: {"t": {"0": 9, "1": 2}}}


def test_position_of_sparks_source_is_the_end_of_the_last_finished_batch(tmp_path: Path) -> None:
    assert positions(only(write(tmp_path, KAFKA, 4))) == (4, {T0: 5, T1: 2})


def test_position_before_the_first_finished_batch_is_its_start(tmp_path: Path) -> None:
    assert positions(only(write(tmp_path / "a", {0: {"t": {"0": 3}}}, -1, {T0: 1}))) == (-1, {T0: 1})
    assert positions(only(write(tmp_path / "b", {0: ours(1, {T0: (2, 7)})}, -1))) == (-1, {T0: 2})
    assert "sources/1/0 is missing" in refusal(write(tmp_path / "c", {0: {"t": {"0": 3}}}, -1))


def test_position_of_kohorts_source_follows_the_batch_that_is_under_way(tmp_path: Path) -> None:
    batches = {0: ours(1, {T0: (0, 2)}), 1: ours(2, {T0: (2, 7), T1: (4, 6)}, group="etl")}
    assert positions(only(write(tmp_path / "a", batches, 0))) == (0, {T0: 2, T1: 4})
    finished = only(write(tmp_path / "b", batches, 1))
    assert positions(finished) == (1, {T0: 7, T1: 6})
    assert isinstance(finished, GroupReading)
    assert finished.committed[T0].metadata == "batch 1 of a member of etl"


def test_each_source_of_a_query_has_its_own_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "ck", {0: '{"t":{"0":5}}\n{"u":{"0":7}}\n-'}, 0)
    found = {name: positions(reading)[1] for name, reading in read(f"pay={folder}").items()}
    assert found == {"pay/1": {T0: 5}, "pay/2": {TopicPartition("u", 0): 7}}


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("offsets/4", b"", "offsets/4 is not written to its end"),
        ("offsets/4", b'v1\n{"conf":{}}', "offsets/4 is not written to its end"),
        ("offsets/4", b'v1\n{"conf":{}}\n{"logOffset":4}', "offsets/4 is not written to its end"),
        ("offsets/4", b'v1\n{"conf":{}}\n{"logOffset":4}\n{"t":{"0":', "offsets/4 is not written to its end"),
        ("offsets/4", b'v1\n{"conf":{}}\n{"kohort":2}\n{"kohort":2}', "no form that Spark writes"),
        ("offsets/4", b"v9\n{}\n-\n-", "a later Spark"),
        ("offsets/4", b"v1\n{}\n-\n" + b"[" * 100_000, "no source of the query reads Kafka"),
        ("offsets/4", None, "offsets/4 is missing"),
        ("commits/4", b"", "commits/4 is not written to its end"),
        ("commits/4", b'v1\n{"nextBatch', "commits/4 is not written to its end"),
    ],
)
def test_file_that_is_not_whole_is_said(tmp_path: Path, path: str, content: bytes | None, words: str) -> None:
    folder = write(tmp_path, KAFKA, 4)
    if content is None:
        (folder / path).unlink()
    else:
        (folder / path).write_bytes(content)
    assert words in refusal(folder)


def test_batch_that_spark_writes_now_does_not_hide_the_last_one(tmp_path: Path) -> None:
    folder = write(tmp_path, KAFKA, 4)
    (folder / "offsets" / "5").write_bytes(b"v1\n{")
    (folder / "commits" / ".5.1234.tmp").write_bytes(b"v")
    assert positions(only(folder)) == (4, {T0: 5, T1: 2})


def test_checkpoint_that_is_not_whole_is_said(tmp_path: Path) -> None:
    assert "no folder commits" in refusal(tmp_path / "nothing")
    folder = write(tmp_path / "a", KAFKA, -1)
    assert "commits is empty" in refusal(folder)
    (folder / "commits").rmdir()
    assert "has no folder commits" in refusal(folder)
    assert "has no batches" in refusal(write(tmp_path / "b", {}, -1))
    none = write(tmp_path / "c", {0: '{"sourceVersion":1}'}, 0)
    assert "no source of the query reads Kafka" in refusal(none)
    assert isinstance(only(none), NotFoundError)


def test_names_are_checked(tmp_path: Path) -> None:
    for given, words in (
        (["hdfs://host/x"], "give a folder"),
        (["a="], "checkpointLocation"),
        (["/x/ck", "/y/ck"], "the name ck"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            SparkCheckpoints(given)
    assert list(read(f"file://{tmp_path}/day=1/ck/")) == ["ck"]


def test_object_store_is_read_as_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(self: ObjectStore) -> LocalStore:
        return LocalStore(tmp_path / self.prefix, mkdir=True)

    write(tmp_path / "jobs" / "pay", KAFKA, 4)
    monkeypatch.setattr(ObjectStore, "_open_store", opened)
    assert positions(read("s3://bucket/jobs/pay")["pay/1"]) == (4, {T0: 5, T1: 2})
    assert "has no batches" in str(read("s3://bucket/jobs/none")["none"])


def test_store_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert ObjectStoreFiles("s3://bucket/ck").place == "s3://bucket/ck"
    assert "does not answer" in str(read("s3://bucket/ck")["ck"])


@contextmanager
def topic_of_twenty() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
            admin.create_topics([NewTopic("t", 2, 1)]).all()
            for number in range(20):
                producer.send("t", b"%d" % number, partition=number % 2)
            producer.flush()
        yield broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with topic_of_twenty() as broker:
        yield broker


def lag_rows(capsys: pytest.CaptureFixture[str], broker: Broker, *args: str) -> tuple[int, list[dict[str, Any]], str]:
    capsys.readouterr()
    code = run(["groups", "lag", "--bootstrap-server", broker.bootstrap_servers, "--json", *args])
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


def test_command_shows_queries_beside_groups(
    tmp_path: Path, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_consumer_group_offsets("g", {T0: 10}).all()
    folder = write(tmp_path / "ck", KAFKA, 4)
    code, rows, _ = lag_rows(capsys, broker, "--spark-checkpoint", f"pay={folder}")
    seen = [(row["group"], row["batch"], row["partition"], row["committed"], row["lag"]) for row in rows]
    assert (code, seen) == (0, [("g", None, 0, 10, 0), ("pay/1", 4, 0, 5, 5), ("pay/1", 4, 1, 2, 8)])
    assert all(row["time_lag"] > 0 for row in rows if row["group"] == "pay/1")
    code, rows, said = lag_rows(capsys, broker, "--spark-checkpoint", str(tmp_path / "none"))
    assert (code, [row["group"] for row in rows]) == (1, ["g"])
    assert "has no folder commits" in said
    for path, text in (("offsets/0", 'v1\n{}\n{"t":{"0":5}}'), ("commits/0", "v1\n{}")):
        (tmp_path / "single" / path).parent.mkdir(parents=True)
        (tmp_path / "single" / path).write_text(text)
    code, rows, said = lag_rows(capsys, broker, "--spark-checkpoint", f"g={tmp_path / 'single'}")
    assert (code, [row["committed"] for row in rows]) == (1, [10])
    assert "a group of the cluster has this name" in said
    assert (
        run(["groups", "lag", "--bootstrap-server", broker.bootstrap_servers, "--spark-checkpoint", str(folder)]) == 0
    )
    assert capsys.readouterr().out.split()[:3] == ["GROUP", "BATCH", "TOPIC"]


def test_metrics_have_queries_and_their_batches(tmp_path: Path, broker: Broker) -> None:

    reader = LagReader(broker.bootstrap_servers)
    reader.read_others = SparkCheckpoints([f"pay={write(tmp_path, KAFKA, 4)}"])
    watch = ClusterWatch("c", reader, 0.2)
    try:
        until(lambda: watch.state.is_up, "the cluster is read", 60)
        found = {
            (sample.name, sample.labels["group"]): sample.value
            for family in LagExporter([watch]).collect()
            for sample in family.samples
            if "group" in sample.labels
        }
    finally:
        watch.close()
    assert found["kohort_consumergroup_spark_batch", "pay/1"] == 4
    assert found["kafka_consumergroup_group_sum_lag", "pay/1"] == 13
    assert ("kohort_consumergroup_members", "pay/1") not in found


def run_query(spark: Any, kind: str, servers: str, checkpoint: Path) -> None:
    """Read what is in the topic by batches, after those that the checkpoint has."""
    stream = spark.readStream.format(kind).option("kafka.bootstrap.servers", servers).option("subscribe", "t")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "6").load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    for attempt in range(ATTEMPTS):
        query = writer.start()
        try:
            query.awaitTermination()
            break
        except Exception as error:
            # by text: Spark has no other sign of a Python process that came up late
            if TOO_SLOW not in str(error) or attempt == ATTEMPTS - 1:
                raise


@pytest.fixture(scope="module")
def queries(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LagReport]:
    """The lag of two queries of one Spark, which read 20 records in several batches, in two runs; 7 more came since."""
    folder = tmp_path_factory.mktemp("checkpoints")
    try:
        maven.spark_kafka_source()
    except maven.MavenUnavailable as error:
        pytest.skip(f"Spark's own Kafka source can't be had: {error}")
    with topic_of_twenty() as broker:
        for kind in 2 * KINDS:
            run_query(spark, kind, broker.bootstrap_servers, folder / kind)
        with Producer(broker.bootstrap_servers) as producer:
            for _ in range(7):
                producer.send("t", b"late", partition=1)
            producer.flush()
        with LagReader(broker.bootstrap_servers) as reader:
            reader.read_others = SparkCheckpoints([str(folder / kind) for kind in KINDS])
            yield reader.read([])


@pytest.mark.spark
@pytest.mark.parametrize("kind", KINDS)
def test_checkpoint_of_a_real_spark_has_the_lag_that_is_left(kind: str, queries: LagReport) -> None:
    assert not queries.errors
    query = queries.groups[kind]
    assert [(part.committed, part.lag) for part in query.partitions] == [(10, 0), (10, 7)]
    assert [part.time_lag_ms == 0 for part in query.partitions] == [True, False]
    assert query.batch is not None
    assert query.batch >= 3
