"""A broker and a command line for tests of commands; our broker, and Apache Kafka where it can run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from tests.cli.running import Kohort, Said

from kohort import Admin, Broker, TopicPartition
from kohort.cli.app import run
from kohort.client.offset_values import OffsetAndMetadata


@pytest.fixture(scope="module")
def our_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("cli"), {"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


@pytest.fixture(params=["kohort", pytest.param("apache", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> str:
    fixture = "our_broker" if request.param == "kohort" else "apache_kafka"
    servers: str = request.getfixturevalue(fixture).bootstrap_servers
    return servers


@pytest.fixture
def kohort(servers: str, capsys: pytest.CaptureFixture[str]) -> Kohort:
    def command(*args: str) -> Said:
        capsys.readouterr()
        code = run([*args, "--bootstrap-server", servers])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return command


@pytest.fixture
def topic(kohort: Kohort) -> str:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    assert kohort("topics", "create", name, "--partitions", "3").code == 0
    return name


@pytest.fixture
def group(servers: str, topic: str) -> str:
    """A group without members that has committed offset 0 in every partition."""
    name = f"{topic}-group"
    with Admin(servers) as admin:
        offsets = {TopicPartition(topic, number): OffsetAndMetadata(0) for number in range(3)}
        admin.alter_consumer_group_offsets(name, offsets).all()
    return name
