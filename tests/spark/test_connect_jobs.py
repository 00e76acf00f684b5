"""Jobs for Spark's Kafka source on Spark Connect, and pipelines, which run there: in place of it, and by one word."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark.pipelines
import pytest
from tests.spark.everywhere.places import clean_environment, connect
from tests.support.waiting import LAST_RESORT

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic

pytestmark = [pytest.mark.spark, LAST_RESORT]
IN_PLACE = Path(__file__).parent / "in_place"
PIPELINES = Path(pyspark.pipelines.__file__).with_name("cli.py")
"""The program that `spark-pipelines` runs, after a JVM has read its arguments."""
SPEC = "name: orders\nstorage: file://{}\nlibraries:\n  - glob:\n      include: definitions/**\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Spark Connect server."""
    with connect(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", 2)]).all()
        yield broker


def send(broker: Broker, values: range) -> None:
    with Producer(broker.bootstrap_servers) as producer:
        for value in values:
            producer.send("orders", str(value), key=str(value % 3), partition=value % 2)


def values_in(broker: Broker, topic: str) -> list[str]:
    """Return the values of a topic of one partition, in the order of their text."""
    place = TopicPartition(topic, 0)
    with Consumer(broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        (end,) = consumer.end_offsets([place]).values()
        consumer.assign([place])
        found: list[str] = []
        while consumer.position(place) < end:
            found += [(record.value or b"").decode() for record in consumer.poll(1_000)]
    return sorted(found)


def test_function_of_a_foreach_batch_reads_and_writes_kafka_in_the_servers_process(server: str, tmp_path: Path) -> None:
    with Broker() as broker:
        done = subprocess.run(
            [sys.executable, "-m", "kohort.spark", IN_PLACE / "connect_job.py", broker.bootstrap_servers, tmp_path],
            env=clean_environment(SPARK_REMOTE=server, PYSPARK_PYTHON=sys.executable),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["KafkaV2[Subscribe[orders]]", 12]


def test_pipeline_reads_and_writes_kafka_and_its_second_run_takes_what_is_new(
    server: str, broker: Broker, tmp_path: Path
) -> None:
    """`spark-pipelines` ended with UNKNOWN_RESPONSE after a complete run, and its sink was the server's own "kafka"."""
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "orders.py").write_text((IN_PLACE / "pipeline" / "orders.py").read_text())
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(tmp_path / "storage"))
    for orders in (range(6), range(6, 10)):
        send(broker, orders)
        done = subprocess.run(
            [sys.executable, PIPELINES, "run"],
            cwd=tmp_path,
            env=clean_environment(SPARK_REMOTE=server, KAFKA_SERVERS=broker.bootstrap_servers),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert "Run is COMPLETED." in done.stderr + done.stdout
        assert values_in(broker, "copies") == [str(value) for value in range(orders.stop)]
