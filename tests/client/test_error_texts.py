"""Errors that a broker's answers lead to say what to do."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from kohort import Admin, Broker, Consumer, InvalidInputError, NewTopic, Producer, TopicPartition
from kohort.client.net.security import SaslError
from tests.support.waiting import until


def test_offsets_of_a_group_with_members_are_refused_with_the_reason(our_broker: Broker) -> None:
    name = f"busy-{uuid.uuid4().hex[:8]}"
    with (
        Admin(our_broker.bootstrap_servers) as admin,
        Consumer(our_broker.bootstrap_servers, group_id=name) as consumer,
    ):
        admin.create_topics([NewTopic(name, 1)]).all()
        consumer.subscribe([name])
        until(lambda: consumer.poll(timeout_ms=100) or consumer.assignment(), "the member has its partition")
        (error,) = admin.alter_consumer_group_offsets(name, {TopicPartition(name, 0): 0}).errors.values()
    assert "the group has members, and takes commits from them alone: stop them first" in error.message


def test_login_at_a_listener_without_logins_is_refused_with_the_protocol(our_broker: Broker) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "shop", "sasl_password": "hush"}
    with (
        Admin(our_broker.bootstrap_servers, security_protocol="SASL_PLAINTEXT", **login) as admin,
        pytest.raises(SaslError, match="takes no logins: set security.protocol to PLAINTEXT"),
    ):
        admin.list_topics()


def test_record_for_a_topic_whose_name_is_not_allowed_is_refused_with_the_rule(our_broker: Broker) -> None:
    with Producer(our_broker.bootstrap_servers) as producer:
        with pytest.raises(InvalidInputError, match="topic name 'a b' is not allowed: 1 to 249 of letters"):
            producer.send("a b", "x").result(timeout_ms=10_000)


def test_data_folder_that_is_a_file_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("mine")
    with pytest.raises(InvalidInputError, match=f"the data folder {path} is a file: choose a folder"):
        Broker(path)
    assert path.read_text() == "mine"
