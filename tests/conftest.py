"""Fixtures of the project's own tests: the peers that kohort is tried against."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort.errors import NotFoundError
from kohort.zookeeper import ZooKeeper
from tests.support.apache_kafka import ApacheKafka, KafkaTools
from tests.support.maven import MavenUnavailable


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


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """An empty folder for a broker's data."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder
