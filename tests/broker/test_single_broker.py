"""Files that Apache Kafka's brokers start with: one broker's are taken, more is refused with what to do."""

from __future__ import annotations

import logging
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Broker, Producer
from kohort.broker.config.settings import broker_configs
from kohort.broker.config.single_broker import BrokerLocation, split_location
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType
from kohort.errors import InvalidInputError
from kohort.settings.config import read_properties, read_users
from kohort.zookeeper import free_port
from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import Start, ready

FILES = sorted((Path(__file__).parent / "server_properties").glob("*.properties"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_of_one_broker_starts_a_broker(start: Start, tmp_path: Path, file: Path) -> None:
    """On a free port and in a folder of the test's; `advertised.listeners` would send clients to another port."""
    process = start("broker", "--config", str(file), "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    address = ready(process)
    with Admin(address) as admin:
        assert admin.create_topics([NewTopic("made")]).result("made").num_partitions == 1
        (node,) = admin.describe_cluster().nodes
        assert f"{node.host}:{node.port}" == address
    process.send_signal(signal.SIGTERM)
    _, reported = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "advertised.listeners" in reported


def test_address_and_folder_of_the_file_count(start: Start, tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "server.properties"
    text = FILES[-1].read_text() + (
        f"\nlisteners=PLAINTEXT\\://127.0.0.1\\:{port},CONTROLLER://:9093\n"
        f"advertised.listeners=PLAINTEXT://localhost:{port}\n"
        f"log.dirs={tmp_path / 'kept'}\ncontroller.listener.names=CONTROLLER\n"
    )
    file.write_text(text)
    process = start("broker", "--config", str(file))
    assert ready(process) == f"127.0.0.1:{port}"
    with Admin(f"127.0.0.1:{port}") as admin:
        (node,) = admin.describe_cluster().nodes
        assert (node.host, node.port) == ("localhost", port)
    assert (tmp_path / "kept" / "meta.properties").exists()


def test_no_folder_is_wrong_use(start: Start) -> None:
    process = start("broker", "--listen", "127.0.0.1:0")
    _, reported = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "--data FOLDER, or log.dirs" in reported


@pytest.mark.parametrize(
    ("properties", "reported"),
    [
        ({"offsets.topic.replication.factor": "3"}, "without replication, 3 can't be had; remove it or set 1"),
        ({"transaction.state.log.replication.factor": 3}, "3 can't be had; remove it or set 1"),
        ({"transaction.state.log.min.isr": "2"}, "2 can't be had; remove it or set 1"),
        ({"share.coordinator.state.topic.replication.factor": "3"}, "3 can't be had"),
        ({"share.coordinator.state.topic.min.isr": "2"}, "2 can't be had"),
        ({"default.replication.factor": "3"}, "3 can't be had; remove it or set 1"),
        ({"min.insync.replicas": "2"}, "2 can't be had; remove it or set 1"),
        ({"process.roles": "controller"}, "remove it or set broker"),
        ({"process.roles": "broker,brocker"}, "remove it or set broker"),
        ({"controller.quorum.voters": "1@a:1,2@b:1,3@c:1"}, "one node without a quorum"),
        ({"controller.quorum.bootstrap.servers": "a:1,b:1"}, "one node without a quorum"),
        (
            {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"},
            "metadata.authorizer.StandardAuthorizer",
        ),
        ({"super.users": "admin"}, "User:admin"),
        ({"create.topic.policy.class.name": "a.b.C"}, "no Java classes"),
        ({"config.providers": "env"}, "remove it"),
        ({"log.cleaner.enable": "false"}, "remove it or set true"),
        ({"remote.log.storage.system.enable": "true"}, "no tiered storage"),
        ({"max.connections.per.ip.overrides": "h:3"}, "max.connections.per.ip"),
        ({"max.connection.creation.rate": "10"}, "no limit of new connections"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "name a host"),
        ({"advertised.listeners": "A://h:9092,A://h:9093"}, "the name A comes twice"),
        ({"listeners": "PLAINTEXT://:9092"}, "kohort broker --config"),
        ({"log.dirs": "/a"}, "kohort broker --config"),
        ({"offsets.topic.replication.facto": "1"}, "did you mean offsets.topic.replication.factor?"),
        ({"zookeper.connect": "localhost:2181"}, "did you mean zookeeper.connect?"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_can_not_be_had_is_refused_with_what_to_do(properties: dict[str, Any], reported: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        broker_configs(properties)
    assert reported in refused.value.message
    assert next(iter(properties)) in refused.value.message


@pytest.mark.parametrize(
    ("properties", "place"),
    [
        ({}, (None, None)),
        ({"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093", "log.dirs": "/a"}, ("PLAINTEXT://0.0.0.0:9092", "/a")),
        ({"listeners": "plaintext://[::1]:9092", "log.dir": "/b"}, ("PLAINTEXT://[::1]:9092", "/b")),
        ({"log.dir": "/b", "log.dirs": "/a"}, (None, "/a")),
        (
            {
                "listeners": "C://:1,OUT://h:2",
                "controller.listener.names": "C",
                "listener.security.protocol.map": "OUT:PLAINTEXT",
            },
            ("OUT://h:2", None),
        ),
        (
            {"listeners": "IN://:1,OUT://h:2", "listener.security.protocol.map": "IN:SSL,OUT:SASL_SSL"},
            ("IN://0.0.0.0:1,OUT://h:2", None),
        ),
        ({"port": "9094", "host.name": "h"}, ("h:9094", None)),
    ],
    ids=str,
)
def test_address_and_folder(properties: dict[str, Any], place: tuple[str | None, str | None]) -> None:
    assert split_location(properties | {"num.partitions": "3"}) == (
        BrokerLocation(*place),
        {"num.partitions": "3", **{k: v for k, v in properties.items() if "listener." in k}},
    )


@pytest.mark.parametrize(
    ("properties", "reported"),
    [
        ({"listeners": "SSL://:9093,SSL://:9094"}, "the name SSL comes twice"),
        ({"listeners": "CONTROLLER://:1"}, "no listener for clients"),
        ({"listeners": "localhost:9092"}, "is no NAME://HOST:PORT"),
        ({"log.dirs": "/a,/b"}, "one folder, not in 2"),
    ],
    ids=str,
)
def test_an_address_or_a_folder_that_can_not_be_had(properties: dict[str, Any], reported: str) -> None:
    with pytest.raises(InvalidInputError, match=".*") as refused:
        split_location(properties)
    assert reported in refused.value.message


def test_the_finer_unit_counts_in_whatever_order_they_stand() -> None:
    """Kafka's rule: ms before minutes before hours; its own file has the hours."""
    given = {"log.retention.hours": "168", "log.retention.minutes": "5", "log.retention.ms": "1000"}
    for order in (list(given), list(reversed(given))):
        _, _, log = broker_configs({key: given[key] for key in order})
        assert log.retention_ms == 1000
    _, _, log = broker_configs({"log.retention.hours": "168", "log.retention.minutes": "5"})
    assert log.retention_ms == 300_000
    _, _, log = broker_configs({"log.roll.hours": "1", "log.roll.jitter.hours": "2"})
    assert (log.segment_ms, log.segment_jitter_ms) == (3_600_000, 7_200_000)


def test_settings_that_are_ignored_are_named_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = {
        "zookeeper.connect": "localhost:2181",
        "replica.lag.time.max.ms": 1,
        "confluent.x": 1,
        "num.partitions": 2,
    }
    named = "ignores: confluent.x, replica.lag.time.max.ms, zookeeper.connect$"
    with pytest.warns(UserWarning, match=named) as warned:
        broker = Broker(tmp_path / "data", config, log_level=logging.INFO)
    with broker, Admin(broker.bootstrap_servers) as admin:
        assert admin.create_topics([NewTopic("t")]).result("t").num_partitions == 2
    assert len(warned) == 1
    assert "ignores" not in capfd.readouterr().err


def test_the_internal_topics_have_the_segments_that_are_set(tmp_path: Path) -> None:
    names = {
        "offsets.topic.segment.bytes": "__consumer_offsets",
        "transaction.state.log.segment.bytes": "__transaction_state",
    }
    config = dict.fromkeys(names, 123_456)
    with Broker(tmp_path / "data", config) as broker, Admin(broker.bootstrap_servers) as admin:
        with Producer(broker.bootstrap_servers, transactional_id="x") as producer:
            producer.init_transactions()
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in names.values()]
        described = admin.describe_configs(resources).all()
    assert [described[resource]["segment.bytes"].value for resource in resources] == ["123456", "123456"]


@pytest.mark.kafka
def test_every_setting_of_a_real_broker_is_known(apache_kafka: ApacheKafka) -> None:
    """Each setting that an Apache Kafka broker describes is one of ours, accepted, or refused with a remedy."""
    with Admin(apache_kafka.bootstrap_servers) as admin:
        resource = ConfigResource(ResourceType.BROKER, "1")
        described = admin.describe_configs([resource]).result(resource)
    assert len(described) > 300
    refused = []
    for name, entry in described.items():
        if name in ("listeners", "log.dirs", "log.dir"):
            split_location({name: entry.value or ""})
            continue
        try:
            broker_configs({name: entry.value})
        except InvalidInputError as error:
            refused.append(error.message)
    assert [message for message in refused if "remove it" not in message] == []
    assert len(refused) < 10


def test_escapes_are_read_as_java_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("a\\ b=c\\:d\\\\\n\\u0041=1\\\n  2\nlast=x\\ty\n")
    assert read_properties(file) == {"a b": "c:d\\", "A": "12", "last": "x\ty"}
    file.write_text('config: A required user="x";\npassword=p\u2028a:b=c\nlast=1\\', encoding="utf-8")
    assert read_properties(file) == {"config": 'A required user="x";', "password": "p\u2028a:b=c", "last": "1"}
    file.write_text("realm:u=a:b=c\nv: d\n")
    assert read_users(file) == {"realm:u": "a:b=c", "v": "d"}


def test_advertised_port_0_is_the_port_that_the_socket_gets(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", {"advertised.listeners": "PLAINTEXT://localhost:0"}) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        with Admin(broker.bootstrap_servers) as admin:
            (node,) = admin.describe_cluster().nodes
            assert (node.host, node.port) == ("localhost", port)


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_listener_of_both_families_tells_each_client_an_address_of_its_own(
    tmp_path: Path, family: socket.AddressFamily, address: str
) -> None:
    with Broker(tmp_path / "data", listen="[::]:0", insecure=True) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        server = f"[{address}]:{port}" if family is socket.AF_INET6 else f"{address}:{port}"
        with Admin(server) as admin:
            (node,) = admin.describe_cluster().nodes
            assert (node.host, node.port) == (address, port)
