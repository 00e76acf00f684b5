"""A member of a churning group on confluent-kafka (librdkafka); its orders and log as `work.py` says."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from work import METADATA_MS, POLL_S, RECONNECT_MS, Orders, Partition, Work


def main() -> None:
    orders = Orders()
    work = Work(orders)
    settings: dict[str, Any] = {
        "bootstrap.servers": orders["servers"],
        "group.id": orders["group"],
        "client.id": orders["name"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "reconnect.backoff.max.ms": RECONNECT_MS,
        "max.poll.interval.ms": orders.number("rebalance"),
    }
    if orders.instance is not None:
        settings["group.instance.id"] = orders.instance
    cooperative = True
    if orders["protocol"] == "classic":
        settings["partition.assignment.strategy"] = orders["strategy"]
        settings["session.timeout.ms"] = orders.number("session")
        settings["heartbeat.interval.ms"] = orders.number("heartbeat")
        cooperative = orders["strategy"].startswith("cooperative")
    else:
        settings["group.protocol"] = "consumer"
    consumer = Consumer(settings)

    def commit(offsets: dict[Partition, int]) -> None:
        asked = [TopicPartition(*part, offset) for part, offset in offsets.items()]
        for answer in consumer.commit(offsets=asked, asynchronous=False):
            if answer.error is not None:
                raise KafkaException(answer.error)

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        if cooperative:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)
        work.assigned(map(_plain, partitions))

    def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
        work.commit(commit)
        work.gone("revoked", map(_plain, partitions))
        if cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()

    def lost(_: Consumer, partitions: list[TopicPartition]) -> None:
        work.gone("lost", map(_plain, partitions))

    consumer.subscribe(orders.topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)
    while not orders.stopping.is_set():
        message = consumer.poll(POLL_S)
        if message is not None and message.error() is not None:
            work.say("error", error=str(message.error()))
            if message.error().fatal():
                raise SystemExit(str(message.error()))
        elif message is not None:
            work.process((message.topic(), message.partition()), [message.offset()], [message.value()])
        if work.due:
            work.commit(commit)
    work.commit(commit)
    work.say("closing")
    consumer.close()
    work.say("closed")


def _plain(partition: TopicPartition) -> Partition:
    return partition.topic, partition.partition


if __name__ == "__main__":
    main()
