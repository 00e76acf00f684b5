"""Coordinators without Kafka for a while, over ZooKeeper, and over a secured Kafka."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from kohort import Admin, Consumer, Producer, Record
from kohort.client.admin.values import NewTopic
from kohort.zookeeper import ZooKeeper, free_port
from tests.cluster.running import CoordinatorProcess
from tests.cluster.test_coordinator import Committing, Place, status
from tests.support.apache_kafka import SOON_BACK, ApacheKafka
from tests.support.maven import MavenUnavailable
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import until

pytestmark = pytest.mark.kafka


@pytest.fixture
def place(apache_kafka: ApacheKafka) -> Place:
    return Place(apache_kafka)


def test_two_coordinators_find_each_other_through_zookeeper(place: Place, zookeeper: ZooKeeper) -> None:
    place.produce(4_000)
    where = ("--zookeeper", f"{zookeeper.address}/{uuid.uuid4().hex[:8]}")
    with place.start(*where) as first, place.start(*where) as second:
        until(
            lambda: sorted(coordinator["shards"] for coordinator in status(first.address)["coordinators"]) == [2, 2],
            "shared out",
        )
        member = Committing(f"{first.address},{second.address}", place, "consumer")
        member.start()
        member.more(20)
        first.kill()
        member.more(20)
        until(
            lambda: [coordinator["shards"] for coordinator in status(second.address)["coordinators"]] == [4],
            "taken over",
        )
        member.more(20)
        member.end()
        with Consumer(second.address, group_id=place.group) as consumer:
            committed = consumer.committed([*member.acknowledged])
        assert {at: found.offset for at, found in committed.items() if found} == member.acknowledged


def test_zookeeper_that_is_not_there_is_waited_for(place: Place) -> None:
    port = free_port()
    args = ("--kafka", place.kafka.bootstrap_servers, *place.settings, "--zookeeper", f"127.0.0.1:{port}/late")
    with CoordinatorProcess(place.kafka.bootstrap_servers, *args[2:], wait=False) as one:
        until(lambda: "a place among the coordinators" in one.log, "the log says what is missing", 90)
        with ZooKeeper(port=port):
            one.wait_ready()
            assert one.stop() == 0


def test_kafka_that_is_gone_at_the_start_and_later_is_waited_for() -> None:
    try:
        kafka = ApacheKafka(settings={"log.retention.ms": "-1", **SOON_BACK})
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    with kafka:
        place = Place(kafka)
        place.produce(400)
        kafka.stop()
        with CoordinatorProcess(kafka.bootstrap_servers, *place.settings, wait=False) as one:
            until(lambda: "retrying" in one.log, "the log says that Kafka is not there", 60)
            kafka.start()
            one.wait_ready()
            member = Committing(one.address, place, "classic")
            member.start()
            member.more(10)
            kafka.kill()
            until(
                lambda: "metadata of Kafka's topics cannot be refreshed" in one.log,
                "the log says that Kafka is gone",
                60,
            )
            kafka.start()
            member.more(10)
            member.end()
            assert one.stop() == 0


def reads_and_commits(address: str, secured: SecuredKafka, topic: str) -> None:
    """A member that fetches over SASL and TLS, and sends no login to the coordinator."""
    with Producer(secured.bootstrap_servers) as producer:
        for number in range(10):
            producer.send(topic, str(number).encode())
    _, login = secured.client("BOTH", coordinators_security_protocol="PLAINTEXT")
    with Consumer(address, group_id="secured", auto_offset_reset="earliest", **login) as consumer:
        consumer.subscribe([topic])
        seen: list[Record] = []
        until(lambda: seen.extend(consumer.poll(timeout_ms=200)) or len(seen) == 10, "records come over TLS")
        consumer.commit()
    with Admin(address, **login) as admin:
        found = admin.list_consumer_group_offsets("secured").values
        assert [position.offset for position in found.values() if position] == [10]


def test_kafka_is_reached_with_a_login_over_tls(secured: SecuredKafka, tmp_path: Path) -> None:
    name = uuid.uuid4().hex[:8]
    address, _ = secured.client("BOTH")
    properties = tmp_path / "kafka.properties"
    properties.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=alice\nsasl.password=secret\n"
        f"ssl.ca.location={secured.certificates / 'ca.pem'}\n"
    )
    own = (
        *("--set", f"journal.topic=__groups-{name}", "--set", f"placement.group=__coordinators-{name}"),
        "--trust-everyone",
    )
    with Admin(secured.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(f"flights-{name}", 1)]).all()
    with CoordinatorProcess(address, *own, "--set", "journal.partitions=2", "--command-config", str(properties)) as one:
        assert {shard["phase"] for shard in status(one.address)["shards"]} == {"serving"}
        reads_and_commits(one.address, secured, f"flights-{name}")
    properties.write_text(properties.read_text().replace("=secret", "=wrong"))
    with CoordinatorProcess(address, *own, "--command-config", str(properties), wait=False) as one:
        assert one.process.wait(60) == 1
        one.process.wait(10)
        assert "PLAIN" in one.log, one.log
