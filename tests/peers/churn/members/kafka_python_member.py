"""A member of a churning group on kafka-python, in the classic protocol; its orders and log as `work.py` says.

Its callbacks run on a thread of its own, between and during polls, where nothing can be committed. Processed records
are committed soon. The next owner processes again those that were not committed in time. What poll has handed out is
always processed, as an application would: a partition that goes and comes back is read on behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from work import METADATA_MS, POLL_S, RECONNECT_MS, RECORDS, Orders, Partition, Work

BOOTSTRAP_MS = 120_000
"""It ends with an error when it is started during an outage that lasts longer."""


class Listener(ConsumerRebalanceListener):
    """Tells the log."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._work.assigned(map(_plain, assigned))

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._work.gone("revoked", map(_plain, revoked))

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._work.gone("lost", map(_plain, lost))


def main() -> None:
    orders = Orders()
    work = Work(orders)
    consumer = KafkaConsumer(
        bootstrap_servers=orders["servers"],
        group_id=orders["group"],
        group_instance_id=orders.instance,
        client_id=orders["name"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=METADATA_MS,
        reconnect_backoff_max_ms=RECONNECT_MS,
        bootstrap_timeout_ms=BOOTSTRAP_MS,
        session_timeout_ms=orders.number("session"),
        heartbeat_interval_ms=orders.number("heartbeat"),
        max_poll_interval_ms=orders.number("rebalance"),
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    consumer.subscribe(orders.topics, listener=Listener(work))

    def commit(offsets: dict[Partition, int]) -> None:
        values = {TopicPartition(*part): OffsetAndMetadata(offset, "", -1) for part, offset in offsets.items()}
        consumer.commit(values, timeout_ms=10_000)

    while not orders.stopping.is_set():
        batches = consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=RECORDS)
        for partition, records in batches.items():
            work.process(_plain(partition), [record.offset for record in records], [record.value for record in records])
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
