"""Settings of the broker that are altered while it runs take effect at once, and are there after a restart.

Source: KIP-226.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort import Admin, Broker, Producer
from kohort.broker.config.live_settings import ALL, FILE, LiveSettings
from kohort.broker.config.settings import broker_configs
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType
from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError, KafkaError
from kohort.wire.discovery import IncrementalAlterConfigsRequest, MetadataRequest
from tests.broker.raw import RawClient, create_topic

OWN, EVERY = ConfigResource(ResourceType.BROKER, "1"), ConfigResource(ResourceType.BROKER, ALL)
SMALL = {"message.max.bytes": "1000"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path) as broker:
        yield broker


def alter(broker: Broker, resource: ConfigResource, **changes: str | None) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        named = {key.replace("_", "."): value for key, value in changes.items()}
        admin.incremental_alter_configs({resource: named}).all()


def value(broker: Broker, name: str, resource: ConfigResource = OWN) -> str | None:
    with Admin(broker.bootstrap_servers) as admin:
        found = admin.describe_configs([resource]).all()[resource]
        return found[name].value if name in found else None


def takes(broker: Broker, topic: str, length: int) -> bool:
    """Whether a record of this length is taken."""
    with Producer(broker.bootstrap_servers) as producer:
        error = producer.send(topic, value=b"x" * length).exception(timeout_ms=10_000)
    assert error is None or (isinstance(error, KafkaError) and error.code == ErrorCode.MESSAGE_TOO_LARGE), error
    return error is None


def test_topics_take_the_default_at_once_unless_they_have_their_own(broker: Broker) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("plain", 1), NewTopic("own", 1, configs={"max.message.bytes": "900000"})]).all()
    assert takes(broker, "plain", 50_000)
    alter(broker, EVERY, message_max_bytes="1000")
    assert not takes(broker, "plain", 50_000)
    assert takes(broker, "own", 50_000)
    alter(broker, OWN, message_max_bytes="900000")  # what is this broker's own comes first
    assert takes(broker, "plain", 50_000)
    alter(broker, OWN, message_max_bytes=None)
    assert not takes(broker, "plain", 50_000)


def test_they_are_there_after_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            create_topic(client, "plain")
        alter(broker, EVERY, message_max_bytes="1000")
        alter(broker, OWN, num_io_threads="9")
    with Broker(tmp_path) as broker:
        assert (value(broker, "message.max.bytes"), value(broker, "num.io.threads")) == ("1000", "9")
        assert value(broker, "message.max.bytes", EVERY) == "1000"
        assert not takes(broker, "plain", 50_000)


def test_a_lower_limit_of_connections_keeps_those_that_are_there(broker: Broker) -> None:
    asked = MetadataRequest(topics=[])
    with RawClient(broker.bootstrap_servers) as first:
        alter(broker, EVERY, max_connections_per_ip="1")
        with RawClient(broker.bootstrap_servers) as late, pytest.raises(ConnectionResetError):
            late.ask(asked)
        assert first.ask(asked).brokers


def test_settings_of_kerberos_are_kept_for_one_broker_only(broker: Broker) -> None:
    """Librdkafka's own tests alter one of these settings, which have no effect."""
    alter(broker, OWN, sasl_kerberos_min_time_before_relogin="58000")
    assert value(broker, "sasl.kerberos.min.time.before.relogin") == "58000"
    with pytest.raises(KafkaError, match="at default cluster level"):
        alter(broker, EVERY, sasl_kerberos_min_time_before_relogin="58000")


def test_words_are_added_only_to_lists_that_there_are(broker: Broker) -> None:
    """KAFKA-20129."""
    make = IncrementalAlterConfigsRequest.AlterConfigsResource
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
    for kind, name in ((2, "t"), (4, "1"), (4, ""), (32, "g")):
        for operation in (2, 3):
            change = make.AlterableConfig(name="unheard", config_operation=operation, value="x")
            asked = make(resource_type=kind, resource_name=name, configs=[change])
            with RawClient(broker.bootstrap_servers) as client:
                (answer,) = client.ask(IncrementalAlterConfigsRequest(resources=[asked])).responses
            assert answer.error_code == ErrorCode.INVALID_CONFIG, (kind, name, operation)


def test_what_can_not_be_altered_says_why(broker: Broker) -> None:
    for key, text in (
        ("num.partitions", "given at its start"),
        ("log.retention.hours", "given at its start"),
        ("message.max.byte", "did you mean message.max.bytes"),
        ("message.max.bytes", "message.max.bytes must be"),
    ):
        with pytest.raises(KafkaError, match=text), Admin(broker.bootstrap_servers) as admin:
            admin.incremental_alter_configs({OWN: {key: "-7"}}).all()
    assert value(broker, "message.max.bytes") == "1048588"


def test_a_value_that_is_no_longer_possible_is_left_out(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"1": {"log.retention.ms": "77", "message.max.bytes": "-4", "old": "1"}}))
    live = LiveSettings(tmp_path, broker_configs({"retention.ms": "55"}))
    assert (live.log.retention_ms, live.log.max_message_bytes) == (77, 1_048_588)
    assert dict(live.altered_settings("1")) == {"log.retention.ms": "77"}


def test_nothing_changes_when_it_can_not_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveSettings(tmp_path, broker_configs({}))
    reported: list[None] = []
    live.listeners.append(lambda: reported.append(None))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("kohort.broker.config.live_settings.write_json", full)
        with pytest.raises(OSError, match="No space"):
            live.set("1", SMALL)
    assert live.log.max_message_bytes == 1_048_588 and not reported and not live.altered_settings("1")
    with pytest.raises(InvalidInputError, match="this is broker 1"):
        live.set("2", SMALL)
    live.set("1", SMALL)
    assert live.log.max_message_bytes == 1000 and len(reported) == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"1": \xff}'])
def test_a_file_that_can_not_be_read_says_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_bytes(content.encode("latin-1"))
    with pytest.raises(CorruptDataError, match=f"{FILE}.*; mend it"):
        LiveSettings(tmp_path, broker_configs({}))


def test_a_resource_that_can_not_be_altered_is_reported_apart_from_those_that_were(
    broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "group-settings.json.tmp").mkdir()
    make = IncrementalAlterConfigsRequest.AlterConfigsResource
    entry = IncrementalAlterConfigsRequest.AlterableConfig
    beat = "consumer.heartbeat.interval.ms"
    asked = [
        make(resource_type=2, resource_name="t", configs=[entry(name="retention.ms", value="77")]),
        make(resource_type=32, resource_name="g", configs=[entry(name=beat, value="6000")]),
    ]
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "t")
        found = client.ask(IncrementalAlterConfigsRequest(resources=asked)).responses
    assert [result.error_code for result in found] == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
    assert value(broker, "retention.ms", ConfigResource(ResourceType.TOPIC, "t")) == "77"
    group = ConfigResource(ResourceType.GROUP, "g")
    assert value(broker, beat, group) == "5000", "what was refused does not show"
    (tmp_path / "group-settings.json.tmp").rmdir()
    alter(broker, group, consumer_heartbeat_interval_ms="6000")
    assert value(broker, beat, group) == "6000"
