"""Fixtures of the project's own tests: the peers that kohort is tried against."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.unraisableexception import gc_collect_iterations_key

from kohort import Admin, Broker
from kohort.broker import embedded
from kohort.client.admin.values import ScramCredential
from kohort.errors import NotFoundError
from kohort.zookeeper import ZooKeeper
from tests.support import class_archive
from tests.support.apache_kafka import ApacheKafka, KafkaTools
from tests.support.long_runs import IS_LONG, skip_long
from tests.support.maven import MavenUnavailable
from tests.support.nursery import of_this_process, start_command
from tests.support.order import ordered
from tests.support.processes import KOHORT, Start
from tests.support.secured_kafka import SecuredKafka, make_certificates
from tests.support.shared_kafka import kafka_of_the_run


def pytest_configure() -> None:
    """Reset the signal handlers that started processes inherit.

    Background runs of a shell ignore Ctrl-C, and so would the processes that tests interrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each would compile all that it imports, a second of its time
    os.environ.setdefault("SPARK_SUBMIT_OPTS", class_archive.spark_options())
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", class_archive.OPTIONS)
    os.environ["XDG_STATE_HOME"] = str(Path(tempfile.gettempdir(), f"kohort-tests-{os.getuid()}"))  # region keys


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests to the long run; of several workers, none is left alone at the end with a long file."""
    skip_long(items)
    if hasattr(config, "workerinput"):
        items[:] = ordered(items)
        config.stash[gc_collect_iterations_key] = 0  # five collections of all that a worker has: 18 s at its end


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let the files that need the same server run where it has started."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.support.scheduling import ServerScheduling

    return ServerScheduling(config, log)


def pytest_collection() -> None:
    """Look for no garbage while twelve thousand tests are made, and none is."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take twelve thousand tests out of each garbage collection, which they make twenty times as long."""
    gc.enable()
    if session.config.option.collectonly:
        return
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _processes_are_forks() -> Iterator[None]:
    """Spare each broker and coordinator its imports; in the long run, and outside of Linux, they start as users' do."""
    if IS_LONG or sys.platform != "linux":
        yield
        return
    with of_this_process() as nursery, pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "start_process", nursery.start_broker)
        yield


@pytest.fixture(scope="session")
def spark_forks() -> Iterator[dict[str, str]]:
    """The environment of a Spark whose Python processes are forks; in the long run they start as users' do."""
    if IS_LONG or sys.platform != "linux":
        yield {}
        return
    from tests.spark import runners

    with runners.running() as environment:
        yield environment


@pytest.fixture(scope="module")
def forked_spark(spark_forks: dict[str, str]) -> Iterator[None]:
    """Programs that a module's tests start have Python processes of Spark that are forks."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_forks.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A real Apache Kafka for the whole run and all its workers; the test is skipped where it can't be had."""
    settings = {"group.consumer.min.session.timeout.ms": "6000", "log.retention.ms": "-1"}
    try:
        with kafka_of_the_run(settings, tmp_path_factory.mktemp("kafka-tools")) as kafka:
            yield kafka
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Apache Kafka with TLS, SASL and access rules; alice has SCRAM credentials too."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificates = tmp_path_factory.mktemp("tls")
    make_certificates(certificates)
    try:
        kafka = SecuredKafka(certificates)
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    with kafka:
        with Admin(kafka.bootstrap_servers) as admin:
            for credential in (
                ScramCredential("alice", "secret", "SCRAM-SHA-256"),
                ScramCredential("alice", "secret", "SCRAM-SHA-512"),
            ):
                admin.alter_user_scram_credentials([credential]).all()
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


@pytest.fixture(scope="session")
def our_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for the whole run, as `apache_kafka` is one: tests use topics and groups of their own names.

    Its groups start at once, and its records stay, also those that a test stamps long ago.
    """
    config = {"group.initial.rebalance.delay.ms": 0, "log.retention.ms": -1}
    with Broker(tmp_path_factory.mktemp("broker"), config) as broker:
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
        process = start_command([*KOHORT, *args])
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
