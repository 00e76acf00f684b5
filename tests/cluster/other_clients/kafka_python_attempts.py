"""Attempts of kafka-python."""

from __future__ import annotations

from typing import Any

from attempts import run_attempts
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.structs import OffsetAndMetadata


def produce(address: str, topic: str, **settings: Any) -> None:
    """Send one record, and wait for its end."""
    producer = KafkaProducer(bootstrap_servers=address, **settings)
    try:
        producer.send(topic, b"1").get(90)
    finally:
        producer.close(1)


def produce_idempotent(address: str, topic: str) -> None:
    """Send one record with `enable_idempotence`."""
    produce(address, topic, enable_idempotence=True)


def transaction(address: str, topic: str) -> None:
    """Begin with transactions."""
    producer = KafkaProducer(bootstrap_servers=address, transactional_id="copier")
    try:
        producer.init_transactions()
    finally:
        producer.close(1)


def consume(address: str, topic: str) -> None:
    """Join a group, and poll until something is said."""
    consumer = KafkaConsumer(bootstrap_servers=address, group_id="payments")
    try:
        consumer.subscribe([topic])
        consumer.poll(90_000)
        raise TimeoutError("no end within 90 s")
    finally:
        consumer.close(autocommit=False)


def consume_assigned(address: str, topic: str) -> None:
    """Read a partition without a group."""
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=None, auto_offset_reset="earliest")
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.poll(90_000)
        raise TimeoutError("no end within 90 s")
    finally:
        consumer.close(autocommit=False)


def commit(address: str, topic: str) -> None:
    """Commit an offset of a group without members."""
    consumer = KafkaConsumer(bootstrap_servers=address, group_id="payments")
    try:
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)})
    finally:
        consumer.close(autocommit=False)


def create_topic(address: str, topic: str) -> None:
    """Create a topic."""
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        admin.create_topics([NewTopic("new", 1, 1)])
    finally:
        admin.close()


def list_topics(address: str, topic: str) -> None:
    """List all topics; what is listed is the text."""
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        raise LookupError(admin.list_topics())
    finally:
        admin.close()


def describe_cluster(address: str, topic: str) -> None:
    """Describe the cluster."""
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        raise LookupError(admin.describe_cluster())
    finally:
        admin.close()


def list_groups(address: str, topic: str) -> None:
    """List groups."""
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        admin.list_groups()
    finally:
        admin.close()


def describe_group(address: str, topic: str) -> None:
    """Describe a group."""
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        admin.describe_groups(["payments"])
    finally:
        admin.close()


run_attempts(
    {
        "produce": produce,
        "produce_idempotent": produce_idempotent,
        "transaction": transaction,
        "consume": consume,
        "consume_assigned": consume_assigned,
        "commit": commit,
        "create_topic": create_topic,
        "list_topics": list_topics,
        "describe_cluster": describe_cluster,
        "list_groups": list_groups,
        "describe_group": describe_group,
    }
)
