"""A member of a churning group on kohort's consumer; its orders and log as `work.py` says."""

from __future__ import annotations

import logging
from typing import Any

from work import METADATA_MS, POLL_S, RECORDS, Orders, Partition, Work

from kohort import Consumer, TopicPartition
from kohort.client.offsets import RebalanceListener
from kohort.errors import ErrorCode, KafkaError


class Listener(RebalanceListener):
    """Tells the log, and commits before partitions go."""

    def __init__(self, consumer: Consumer, work: Work) -> None:
        self._consumer, self._work = consumer, work

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._work.assigned(map(_plain, partitions))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._work.commit(lambda offsets: commit(self._consumer, offsets))
        self._work.gone("revoked", map(_plain, partitions))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._work.gone("lost", map(_plain, partitions))


class Lapses(logging.Handler):
    """Tells the log when the client says that others may have what is held, whatever the application waits for."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def emit(self, record: logging.LogRecord) -> None:
        if any(word in record.msg for word in ("polls return nothing until", "this member lost its partitions")):
            self._work.say("lapsed")


def commit(consumer: Consumer, offsets: dict[Partition, int]) -> None:
    consumer.commit({TopicPartition(*part): offset for part, offset in offsets.items()})


def main() -> None:
    orders = Orders()
    work = Work(orders)
    logging.getLogger("kohort.client").addHandler(Lapses(work))
    settings: dict[str, Any] = {}
    if orders["protocol"] == "classic":
        settings["partition_assignment_strategy"] = orders["strategy"]
        settings["heartbeat_interval_ms"] = orders.number("heartbeat")
    with Consumer(
        orders["servers"],
        group_id=orders["group"],
        group_protocol=orders["protocol"],
        group_instance_id=orders.instance,
        client_id=orders["name"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=orders.number("session"),
        max_poll_interval_ms=orders.number("rebalance"),
        max_poll_records=RECORDS,
        metadata_max_age_ms=METADATA_MS,
        **settings,
    ) as consumer:
        consumer.subscribe(orders.topics, listener=Listener(consumer, work))
        while not orders.stopping.is_set():
            try:
                records = consumer.poll(timeout_ms=POLL_S * 1000)
            except KafkaError as error:
                work.say("error", error=f"{type(error).__name__}: {error}")
                if error.code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
                    raise
                continue
            for partition, found in records.by_partition().items():
                work.process(_plain(partition), [record.offset for record in found], [record.value for record in found])
            if work.due:
                work.commit(lambda offsets: commit(consumer, offsets))
        work.commit(lambda offsets: commit(consumer, offsets))
        work.say("closing")
    work.say("closed")


def _plain(partition: TopicPartition) -> Partition:
    return partition.topic, partition.partition


if __name__ == "__main__":
    main()
