"""The text of a wrong configuration is Kafka's, then the name that is probably meant."""

from __future__ import annotations

import uuid

import pytest

from kohort import Admin
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType
from kohort.errors import ErrorCode, KafkaError


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


def test_unknown_config_of_a_group_has_kafkas_text(servers: str) -> None:
    resource = ConfigResource(ResourceType.GROUP, uuid.uuid4().hex)
    with Admin(servers) as admin, pytest.raises(KafkaError) as caught:
        admin.incremental_alter_configs({resource: {"consumer.session.timeouts.ms": "45000"}}).all()
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert _said(caught.value).startswith("Unknown group config name: consumer.session.timeouts.ms")


@pytest.mark.parametrize("servers", ["kohort"], indirect=True)
def test_text_ends_with_the_name_that_is_meant(servers: str) -> None:
    with Admin(servers) as admin, pytest.raises(KafkaError) as caught:
        admin.create_topics([NewTopic(uuid.uuid4().hex, 1, configs={"retention.mss": "1"})]).all()
    assert caught.value.message.endswith("; did you mean retention.ms?")
