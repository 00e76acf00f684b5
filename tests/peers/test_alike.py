"""Apache Kafka and our broker answer the same requests the same way, at every version, whatever odd values they have.

The scenarios are in `alike/`. Where the brokers differ on purpose, a scenario names the reason, and
docs/protocol-coverage.md explains it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import pytest
from tools import protocol_docs

from kohort import Broker
from kohort.wire.discovery import ApiVersionsRequest
from tests.broker.raw import RawClient
from tests.peers.alike import (
    away,
    classic,
    cluster,
    configs,
    consumer,
    harness,
    offsets,
    operations,
    records,
    reports,
    transactions,
)
from tests.support.apache_kafka import ApacheKafka
from tests.support.maven import MavenUnavailable

pytestmark = [pytest.mark.peer, pytest.mark.kafka, pytest.mark.timeout(300)]
MODULES = (away, classic, cluster, configs, consumer, offsets, operations, records, reports, transactions)
CASES = [(name, version) for name, (_, versions) in harness.SCENARIOS.items() for version in versions]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of Apache Kafka and of our broker, both without what makes answers depend on time."""
    at_once = {"group.consumer.assignment.interval.ms": "0", "group.consumer.min.session.timeout.ms": "6000"}
    try:
        kafka = ApacheKafka(at_once)
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    settings = {
        **at_once,
        "num.partitions": 4,
        "offsets.topic.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        "group.notify.at.once": "off",
        "group.notice.disconnects": "off",
    }
    with pytest.warns(UserWarning, match="ignores: group.consumer.assignment.interval.ms$"):
        broker = Broker(tmp_path_factory.mktemp("alike"), settings)
    with kafka, broker as ours:
        for address in (kafka.bootstrap_servers, ours.bootstrap_servers):
            harness.ready(address)
        yield kafka.bootstrap_servers, ours.bootstrap_servers


@pytest.mark.parametrize(("name", "version"), CASES, ids=str)
def test_answers(name: str, version: int, sides: tuple[str, str]) -> None:
    differences = harness.compare(name, version, *sides)
    assert not differences, "\n".join(["", *differences])


def test_the_page_knows_what_kafka_serves(sides: tuple[str, str]) -> None:
    asked = ApiVersionsRequest(client_software_name="alike", client_software_version="1")
    with RawClient(sides[0]) as client:
        found = client.ask(asked, 4).api_keys
    assert {api.api_key: (api.min_version, api.max_version) for api in found} == protocol_docs.KAFKA


def test_every_difference_is_explained() -> None:
    """Each difference that scenarios allow is a heading of the page, and each heading is one of them."""
    source = "".join(inspect.getsource(module) for module in MODULES)
    named = set(re.findall(r'on_purpose\("([^"]+)"\)', source))
    explained = set(re.findall(r"^### (.+)$", protocol_docs.PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert named == explained
