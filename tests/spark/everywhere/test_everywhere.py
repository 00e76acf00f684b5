"""One program in every environment: its writes, reads, commits and results, compared with the brokers' data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from tests.spark.everywhere.application import Order
from tests.spark.everywhere.places import (
    OWN,
    ROOT,
    SMALL,
    Environment,
    Unavailable,
    clean_environment,
    connect,
    environment,
    standalone,
)
from tests.support.apache_kafka import ApacheKafka
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import ATTEMPTS, LAST_RESORT, TOO_SLOW

from kohort import Admin, Broker, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.consumer.range_reader import RangeReader

pytestmark = [pytest.mark.spark, LAST_RESORT]
WHOLE = "KOHORT_EVERYWHERE" in os.environ
"""Every place, and all that the program can do; else a few places, and without the stream into another topic."""
LONG = pytest.mark.skipif(not WHOLE, reason="a long one: make spark-everywhere")
COUNT = 400
LOCAL = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": SMALL,
    "spark.sql.shuffle.partitions": "1",
}
CLUSTER = LOCAL | {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": SMALL}


@dataclass
class Brokers:
    """Where the records are: plain for the test, and as the program reaches them."""

    plain: str
    kafka: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kafka = {"kafka.bootstrap.servers": self.plain} | self.kafka


def secured_options(kafka: SecuredKafka, password: str = "secret") -> dict[str, str]:
    """SASL over TLS, by the names that Java's clients use."""
    return {
        "kafka.bootstrap.servers": f"127.0.0.1:{kafka.ports['BOTH']}",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": password,
        "kafka.ssl.ca.location": str(kafka.certificates / "ca.pem"),
    }


def values(servers: str, topic: str) -> list[str]:
    """All values of a topic's two partitions, read without Spark."""
    found: list[str] = []
    with Admin(servers) as admin:
        partitions = [TopicPartition(topic, number) for number in range(2)]
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest")).all()
    reader = RangeReader(servers, columns=("value",))
    try:
        for tp in partitions:
            for batch in reader.read(tp, 0, ends[tp].offset):
                found += [bytes(value).decode() for value in batch.column("value").to_pylist()]
    finally:
        reader.close()
    return sorted(found)


def application(order: Order, folder: Path, python: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, str(ROOT / "tests" / "spark" / "everywhere" / "application.py"), json.dumps(order)],
        env=dict(env),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def seen_in(
    place: str,
    brokers: Brokers,
    folder: Path,
    settings: Mapping[str, str],
    *,
    spark: Environment = OWN,
    **env: str,
) -> dict[str, Any]:
    """Runs the program in a place, and holds what it saw to what the brokers have.

    It is run again, with other names, where Spark could not start a Python process in time.
    """
    for attempt in range(ATTEMPTS):
        name = uuid.uuid4().hex[:8]
        topic, copy, group = f"t-{name}", f"c-{name}", f"g-{name}"
        own = folder / f"run-{attempt}"
        own.mkdir()
        with Admin(brokers.plain) as admin:
            admin.create_topics([NewTopic(topic, 2), NewTopic(copy, 2)]).all()
        order = Order(
            place=place,
            settings=dict(settings),
            kafka=brokers.kafka,
            topic=topic,
            copy=copy,
            group=group,
            name=name,
            count=COUNT,
            folder=str(own),
            copies=WHOLE,
        )
        done = application(order, own, spark.python, clean_environment(**env))
        if TOO_SLOW not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-6000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}
    ids = sorted(f"{name}-{number}" for number in range(COUNT))
    assert values(brokers.plain, topic) == ids
    assert seen["read"] == ids
    assert seen["streamed"] == ids
    assert len(seen["batches"]) == 2
    assert values(brokers.plain, copy) == (ids if WHOLE else [])
    with Admin(brokers.plain) as admin:
        offsets = admin.list_consumer_group_offsets(group, [TopicPartition(topic, number) for number in range(2)]).all()
    assert {tp.partition: position and position.offset for tp, position in offsets.items()} == {
        0: COUNT // 2,
        1: COUNT // 2,
    }
    assert seen["lag"] == [[0, COUNT // 2, 0], [1, COUNT // 2, 0]]
    return seen


@pytest.mark.kafka
def test_local_cluster_and_sasl_over_tls(secured: SecuredKafka, tmp_path: Path) -> None:
    """Executors are processes of their own, run this program's Python though nothing says so, and log in to Kafka."""
    seen_in("local-cluster[2,1,512]", Brokers(secured.bootstrap_servers, secured_options(secured)), tmp_path, CLUSTER)


@LONG
def test_local_cluster(our_broker: Broker, tmp_path: Path) -> None:
    """Run the program on a local Spark cluster and our broker."""
    seen_in("local-cluster[2,1,512]", Brokers(our_broker.bootstrap_servers), tmp_path, CLUSTER)


def test_spark_connect(our_broker: Broker, tmp_path: Path) -> None:
    """A client whose process has no JVM; the server's Python drives the queries."""
    with connect(tmp_path) as place:
        seen_in(place, Brokers(our_broker.bootstrap_servers), tmp_path, {})


@LONG
@pytest.mark.kafka
def test_sasl_over_tls(secured: SecuredKafka, tmp_path: Path) -> None:
    """Source, sink and tables log in to Apache Kafka over TLS."""
    seen_in("local[2]", Brokers(secured.bootstrap_servers, secured_options(secured)), tmp_path, LOCAL)


@LONG
def test_standalone(our_broker: Broker, tmp_path: Path) -> None:
    """A master and a worker that `spark-class` started; PYSPARK_PYTHON says what the workers run."""
    with standalone(tmp_path) as place:
        brokers = Brokers(our_broker.bootstrap_servers)
        seen = seen_in(place, brokers, tmp_path, CLUSTER, PYSPARK_PYTHON=sys.executable)
    assert "PYSPARK_PYTHON" not in seen["stderr"]


@LONG
@pytest.mark.kafka
def test_apache_kafka(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    seen_in("local[2]", Brokers(apache_kafka.bootstrap_servers), tmp_path, LOCAL)


@LONG
@pytest.mark.kafka
def test_spark_connect_and_sasl_over_tls(secured: SecuredKafka, tmp_path: Path) -> None:
    """The secrets go from the client to the server with the options."""
    with connect(tmp_path) as place:
        seen_in(place, Brokers(secured.bootstrap_servers, secured_options(secured)), tmp_path, {})


@pytest.fixture(scope="module")
def spark_4_2() -> Environment:
    try:
        return environment("4.2.0")
    except Unavailable as error:
        pytest.skip(str(error))


@LONG
@pytest.mark.parametrize("way", ["local[2]", "local-cluster[2,1,512]", "Connect"])
def test_pyspark_4_2(spark_4_2: Environment, way: str, our_broker: Broker, tmp_path: Path) -> None:
    """The oldest PySpark that kohort takes, in an environment of its own."""
    brokers = Brokers(our_broker.bootstrap_servers)
    if way == "Connect":
        with connect(tmp_path, spark_4_2) as place:
            seen = seen_in(place, brokers, tmp_path, {}, spark=spark_4_2)
    else:
        seen = seen_in(way, brokers, tmp_path, CLUSTER, spark=spark_4_2)
    assert seen["version"] == "4.2.0"


def read_batch(spark: Any, options: dict[str, str], folder: Path) -> None:
    spark.read.format("kohort").options(**options, subscribe="t").load().collect()


def read_table(spark: Any, options: dict[str, str], folder: Path) -> None:
    spark.read.format("kohort").options(**options, table="lag").load().collect()


def write_rows(spark: Any, options: dict[str, str], folder: Path) -> None:
    spark.sql("SELECT 'v' AS value").write.format("kohort").options(**options, topic="t").mode("append").save()


def read_stream(spark: Any, options: dict[str, str], folder: Path) -> None:
    stream = (
        spark.readStream.format("kohort").options(**options).option("subscribe", "t").option("group.id", "g").load()
    )
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.kafka
@pytest.mark.parametrize("use", [read_batch, read_table, write_rows, read_stream], ids=lambda use: str(use.__name__))
def test_a_wrong_password_is_reported_as_that(
    use: Callable[[Any, dict[str, str], Path], None], spark: Any, secured: SecuredKafka, tmp_path: Path
) -> None:
    """The error names the user, the broker and the reason, not a timeout."""
    options = secured_options(secured, "wrong")
    for _ in range(ATTEMPTS):
        with pytest.raises(PySparkException) as caught:
            use(spark, options, tmp_path)
        if TOO_SLOW not in str(caught.value):
            break
    text = str(caught.value)
    assert f"{options['kafka.bootstrap.servers']} refused SCRAM-SHA-512 of user 'alice'" in text, text
    assert "wrong" not in text.replace("went wrong", "")
