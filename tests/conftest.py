"""Fixtures of the project's own tests: the peers that kohort is tried against."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort import Broker
from kohort.errors import NotFoundError
from kohort.zookeeper import ZooKeeper
from tests.support.apache_kafka import ApacheKafka, KafkaTools
from tests.support.maven import MavenUnavailable
from tests.support.processes import KOHORT, Start


def pytest_configure() -> None:
    """A run in the background of a shell ignores Ctrl-C, and so would the processes that tests send one to."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[ApacheKafka]:
    """A real Apache Kafka for the whole run; the test is skipped where it can't be had."""
    try:
        kafka = ApacheKafka()
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    with kafka:
        yield kafka


@pytest.fixture(scope="session")
def kafka_tools(tmp_path_factory: pytest.TempPathFactory) -> KafkaTools:
    """Apache Kafka's command line tools, for use against any broker."""
    try:
        return KafkaTools(tmp_path_factory.mktemp("kafka-tools"))
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka's tools can't run here: {error}")


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeper]:
    """A real ZooKeeper for the whole run; use a chroot of your own."""
    try:
        server = ZooKeeper()
    except NotFoundError as error:
        pytest.skip(f"ZooKeeper can't run here: {error}")
    with server:
        yield server


@pytest.fixture(scope="module")
def our_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose groups start at once; tests use topics and groups of their own names."""
    with Broker(tmp_path_factory.mktemp("broker"), {"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


@pytest.fixture(params=["kohort", pytest.param("apache", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> str:
    """The address of our broker, then of Apache Kafka."""
    fixture = "our_broker" if request.param == "kohort" else "apache_kafka"
    servers: str = request.getfixturevalue(fixture).bootstrap_servers
    return servers


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `kohort …`; what still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(*args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([*KOHORT, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """An empty folder for a broker's data."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder
