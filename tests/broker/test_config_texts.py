"""The text of a wrong configuration is Kafka's, then the name that is probably meant."""

from __future__ import annotations

import uuid

import pytest

from kohort import Admin
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType
from kohort.errors import ErrorCode, KafkaError
from tests.support.waiting import until


def _said(error: KafkaError) -> str:
    """Return what the broker said: the client puts a new topic's name before it."""
    return error.message.rpartition("': ")[2]


def test_unknown_config_of_a_new_topic_has_kafkas_text(servers: str) -> None:
    with Admin(servers) as admin, pytest.raises(KafkaError) as caught:
        admin.create_topics([NewTopic(uuid.uuid4().hex, 1, configs={"retention.mss": "1"})]).all()
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert _said(caught.value).startswith("Unknown topic config name: retention.mss")


def test_unknown_config_of_a_topic_has_kafkas_text(servers: str) -> None:
    topic = uuid.uuid4().hex
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 1)]).all()
        with pytest.raises(KafkaError) as caught:
            admin.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, topic): {"retention.mss": "1"}}).all()
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert _said(caught.value).startswith("Unknown topic config name: retention.mss")


def test_a_number_that_is_none_is_no_ratio(servers: str) -> None:
    """NaN is within no range, and a log with it would never be compacted."""
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "nan"}
    with Admin(servers) as admin, pytest.raises(KafkaError, match=r"min\.cleanable\.dirty\.ratio") as caught:
        admin.create_topics([NewTopic(uuid.uuid4().hex, 1, configs=configs)]).all()
    assert caught.value.code == ErrorCode.INVALID_CONFIG


def test_unknown_config_of_a_group_has_kafkas_text(servers: str) -> None:
    resource = ConfigResource(ResourceType.GROUP, uuid.uuid4().hex)
    with Admin(servers) as admin, pytest.raises(KafkaError) as caught:
        admin.incremental_alter_configs({resource: {"consumer.session.timeouts.ms": "45000"}}).all()
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert _said(caught.value).startswith("Unknown group config name: consumer.session.timeouts.ms")


SHOWN = [
    ("retention.ms", " 5 ", "5"),
    ("retention.ms", "0005", "5"),
    ("preallocate", "TRUE", "true"),
    ("compression.type", " gzip ", "gzip"),
    ("min.cleanable.dirty.ratio", "0.50", "0.5"),
    ("cleanup.policy", "delete, compact", "delete,compact"),
    ("cleanup.policy", "delete,delete", "delete"),
]


@pytest.mark.parametrize(("key", "given", "shown"), SHOWN, ids=[f"{key}={given}" for key, given, _ in SHOWN])
def test_value_is_shown_as_it_was_understood(servers: str, key: str, given: str, shown: str) -> None:
    """Otherwise, a tool that compares what it set with what it finds would set it again and again."""
    topic = uuid.uuid4().hex
    resource = ConfigResource(ResourceType.TOPIC, topic)
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 1, configs={key: given})]).all()
        until(lambda: resource in admin.describe_configs([resource]).values, "the broker knows its new topic")
        entry = admin.describe_configs([resource]).all()[resource][key]
    assert entry.value == shown


@pytest.mark.parametrize(
    ("key", "value"),
    [("cleanup.policy", "delete,"), ("cleanup.policy", ","), ("retention.ms", "1_000"), ("retention.ms", "")],
    ids=str,
)
def test_value_that_kafka_does_not_read_is_refused(servers: str, key: str, value: str) -> None:
    topic = uuid.uuid4().hex
    with Admin(servers) as admin:
        with pytest.raises(KafkaError) as caught:
            admin.create_topics([NewTopic(topic, 1, configs={key: value})]).all()
        assert caught.value.code == ErrorCode.INVALID_CONFIG
        admin.create_topics([NewTopic(topic, 1)]).all()
        with pytest.raises(KafkaError) as caught:
            admin.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, topic): {key: value}}).all()
        assert caught.value.code == ErrorCode.INVALID_CONFIG


def test_name_that_no_topic_can_have_is_invalid(servers: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, "bad/name")
    with Admin(servers) as admin:
        with pytest.raises(KafkaError) as caught:
            admin.describe_configs([resource]).all()
        assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
        with pytest.raises(KafkaError) as caught:
            admin.incremental_alter_configs({resource: {"retention.ms": "1"}}).all()
        assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("servers", ["kohort"], indirect=True)
def test_text_ends_with_the_name_that_is_meant(servers: str) -> None:
    with Admin(servers) as admin, pytest.raises(KafkaError) as caught:
        admin.create_topics([NewTopic(uuid.uuid4().hex, 1, configs={"retention.mss": "1"})]).all()
    assert caught.value.message.endswith("; did you mean retention.ms?")
