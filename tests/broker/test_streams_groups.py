"""A client that asks for a streams group gets the code that ends its wait, and the log names the setting once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from frameworks.brokers import KohortProcess
from frameworks.builds import FrameworkUnavailable
from frameworks.framework import Site
from frameworks.java_frameworks import KafkaStreams
from frameworks.run import MemberProcess

from kohort.errors import ErrorCode
from kohort.wire.streams_groups import StreamsGroupHeartbeatRequest
from tests.broker.raw import RawClient

KAFKAS_WORDS = "The cluster does not support the STREAMS group protocol"
SETTING = "set group.protocol=classic"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KohortProcess, Path]]:
    folder = tmp_path_factory.mktemp("streams")
    broker = KohortProcess(folder)
    yield broker, folder / "broker.log"
    broker.close()


def lines_about(log: Path, group: str) -> list[str]:
    return [line for line in log.read_text().splitlines() if f"[group {group}] heartbeat refused" in line]


@pytest.mark.parametrize("version", [0, 1])
def test_heartbeat_is_refused_and_logged_once_a_group(server: tuple[KohortProcess, Path], version: int) -> None:
    broker, log = server
    with RawClient(broker.bootstrap_servers) as client:
        for group in (f"a{version}", f"a{version}", f"b{version}"):
            answer = client.ask(StreamsGroupHeartbeatRequest(group_id=group, member_id="m"), version)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert "group.protocol=classic" in answer.error_message
    for group in (f"a{version}", f"b{version}"):
        (line,) = lines_about(log, group)
        assert SETTING in line


@pytest.mark.peer
@pytest.mark.slow
def test_kafka_streams_shows_kafkas_words(server: tuple[KohortProcess, Path], tmp_path: Path) -> None:
    broker, log = server
    framework, site = KafkaStreams(), Site(broker.bootstrap_servers, tmp_path)
    try:
        framework.prepare(site)
    except FrameworkUnavailable as error:
        pytest.skip(f"Kafka Streams can't run here: {error}")
    member = MemberProcess(lambda: [*framework.command(site, 0), "group.protocol=streams"], tmp_path)
    try:
        deadline = time.monotonic() + 100
        while KAFKAS_WORDS not in member.log.read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        member.kill()
    assert KAFKAS_WORDS in member.log.read_text()
    (line,) = lines_about(log, "frameworks-streams")
    assert SETTING in line
