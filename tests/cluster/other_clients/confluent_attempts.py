"""Attempts of confluent-kafka (librdkafka)."""

from __future__ import annotations

from typing import Any

import confluent_kafka
from attempts import run_attempts
from confluent_kafka.admin import AdminClient, NewTopic


def produce(address: str, topic: str, **settings: Any) -> None:
    """Send one record, and wait for its end."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, **settings})
    ended: list[Any] = []
    producer.produce(topic, b"1", on_delivery=lambda error, _: ended.append(error))
    producer.flush(90)
    if not ended:
        raise TimeoutError("no end within 90 s")
    if ended[0] is not None:
        raise confluent_kafka.KafkaException(ended[0])


def produce_idempotent(address: str, topic: str) -> None:
    """Send one record with `enable.idempotence`."""
    produce(address, topic, **{"enable.idempotence": True})


def transaction(address: str, topic: str) -> None:
    """Begin with transactions."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": "copier"})
    producer.init_transactions()


def consume(address: str, topic: str) -> None:
    """Join a group, and poll until something is said."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "payments"})
    try:
        consumer.subscribe([topic])
        _poll(consumer)
    finally:
        consumer.close()


def consume_assigned(address: str, topic: str) -> None:
    """Read a partition without a group's members."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "payments", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        _poll(consumer)
    finally:
        consumer.close()


def _poll(consumer: Any) -> None:
    message = consumer.poll(90)
    if message is None:
        raise TimeoutError("no end within 90 s")
    if message.error() is not None:
        raise confluent_kafka.KafkaException(message.error())


def commit(address: str, topic: str) -> None:
    """Commit an offset of a group without members; it waits for `session.timeout.ms`, and poll says why."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "payments", "session.timeout.ms": 6000}
    )
    try:
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 1)], asynchronous=False)
    except confluent_kafka.KafkaException as failure:
        if failure.args[0].code() != confluent_kafka.KafkaError._WAIT_COORD:
            raise
        _poll(consumer)
    finally:
        consumer.close()


def create_topic(address: str, topic: str) -> None:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic("new", 1, 1)]).values():
        future.result()


def list_topics(address: str, topic: str) -> None:
    """List all topics; the error is that of the first one."""
    listed = AdminClient({"bootstrap.servers": address}).list_topics(timeout=90)
    for found in listed.topics.values():
        if found.error is not None:
            raise confluent_kafka.KafkaException(found.error, found.topic)


def describe_cluster(address: str, topic: str) -> None:
    """Describe the cluster; its id is the text."""
    admin = AdminClient({"bootstrap.servers": address})
    raise LookupError(admin.describe_cluster().result().cluster_id)


def list_groups(address: str, topic: str) -> None:
    """List groups."""
    admin = AdminClient({"bootstrap.servers": address})
    for error in admin.list_consumer_groups().result().errors:
        raise confluent_kafka.KafkaException(error)


def describe_group(address: str, topic: str) -> None:
    """Describe a group."""
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.describe_consumer_groups(["payments"]).values():
        future.result()


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
