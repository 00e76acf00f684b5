"""Settings against a real Apache Kafka: which values each topic property takes, and which settings a broker knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from kohort import Broker
from kohort.broker.config.settings import BrokerConfig, known_setting_names
from kohort.log import LogConfig
from kohort.settings.config import settings
from kohort.wire.discovery import CreateTopicsRequest, DescribeConfigsRequest
from tests.broker.raw import RawClient
from tests.support.apache_kafka import ApacheKafka
from tests.support.maven import MavenUnavailable

pytestmark = [pytest.mark.peer, pytest.mark.kafka, pytest.mark.timeout(300)]
BROKER = 4
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
BOUNDS = (-LONG_MAX - 2, -LONG_MAX - 1, -3, -2, -1, 0, 1, 2, INT_MAX - 8, INT_MAX, INT_MAX + 1, LONG_MAX, LONG_MAX + 1)
WORDS = ("", "x", "true", "TRUE", "false", "1.5", "0.5", " 5 ", "0x10", "1e3", "delete", "compact", "delete,compact")
COMPRESSIONS = ("producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd", "brotli", "ZSTD")
REPLICAS = ("*", "0:1", "0:1,1:1", "0", "0:1:2", "a:b", "*,0:1", "0:1,")
TOGETHER: tuple[Mapping[str, str], ...] = (
    {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
    {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
    {"max.compaction.lag.ms": "1"},
    {"retention.ms": "5", "local.retention.ms": "6"},
    {"retention.bytes": "5", "local.retention.bytes": "6"},
    {"segment.ms": "5", "segment.jitter.ms": "6"},
    {"message.timestamp.type": "CreateTime"},
    {"message.timestamp.type": "createtime"},
    {"cleanup.policy": "delete,delete"},
    {"cleanup.policy": "delete, compact"},
)
WIDER = {"segment.bytes": "below 1 MiB too: tests of retention and compaction want small segments"}
"""Properties that take more here than in Kafka, and why; docs/protocol-coverage.md says so."""


ALIASES = {alias for setting in settings(BrokerConfig).values() for alias in setting.declaration.aliases}


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    try:
        peer = ApacheKafka()
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    with peer:
        yield peer.bootstrap_servers


@pytest.fixture(scope="module")
def ours() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap_servers


def cases() -> list[Mapping[str, str]]:
    """Each property with values at and around every bound, and properties that have to fit together."""
    bounds = {str(bound) for bound in BOUNDS}
    found: list[Mapping[str, str]] = [*TOGETHER]
    for name, setting in settings(LogConfig).items():
        own = {
            str(limit + step)
            for limit in (setting.declaration.low, setting.declaration.high)
            if limit
            for step in (-1, 0, 1)
        }
        values = {*bounds, *own, *WORDS}
        values |= {*COMPRESSIONS} if name == "compression.type" else set()
        values |= {*REPLICAS} if name.endswith("throttled.replicas") else set()
        found += [{name: value} for value in sorted(values)]
    return found


def taken(address: str, asked: list[Mapping[str, str]]) -> list[bool]:
    """Whether a broker would make a topic with each of these settings."""
    topic, config = CreateTopicsRequest.CreatableTopic, CreateTopicsRequest.CreatableTopicConfig
    topics = [
        topic(
            name=f"settings-{number}",
            num_partitions=1,
            replication_factor=1,
            configs=[config(name=name, value=value) for name, value in configs.items()],
        )
        for number, configs in enumerate(asked)
    ]
    with RawClient(address) as client:
        answer = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000, validate_only=True), 7)
    errors = {result.name: result.error_code for result in answer.topics}
    return [errors[f"settings-{number}"] == 0 for number in range(len(asked))]


def test_topic_properties_take_the_values_that_kafka_takes(kafka: str, ours: str) -> None:
    asked = cases()
    by_kafka = taken(kafka, asked)
    assert 150 < sum(by_kafka) < len(asked) - 150, "Kafka tells the values apart"
    compared = zip(asked, by_kafka, taken(ours, asked), strict=True)
    differing = [
        f"{dict(configs)}: {'taken' if theirs else 'refused'} by Kafka, {'taken' if mine else 'refused'} here"
        for configs, theirs, mine in compared
        if theirs != mine and not (mine and configs.keys() <= WIDER.keys())
    ]
    assert not differing, "\n".join(["", *differing])


def test_every_setting_of_kafkas_broker_is_known_here(kafka: str) -> None:
    make = DescribeConfigsRequest.DescribeConfigsResource
    asked = DescribeConfigsRequest(resources=[make(resource_type=BROKER, resource_name="1")])
    with RawClient(kafka) as client:
        (found,) = client.ask(asked, 4).results
    assert len(found.configs) > 200
    known = {*known_setting_names(), *ALIASES}
    assert sorted({config.name for config in found.configs} - known) == []
