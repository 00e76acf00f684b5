"""A member of a churning group on aiokafka, in the classic protocol; its orders and log as `work.py` says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from work import METADATA_MS, POLL_S, RECORDS, Orders, Partition, Work


class Listener(ConsumerRebalanceListener):
    """Tells the log, and commits before partitions go; processing and callbacks exclude each other by a lock."""

    def __init__(self, consumer: AIOKafkaConsumer, work: Work, lock: asyncio.Lock) -> None:
        self._consumer, self._work, self._lock = consumer, work, lock

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        async with self._lock:
            self._work.assigned(map(_plain, assigned))

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        async with self._lock:
            await self._work.commit_async(lambda offsets: commit(self._consumer, offsets))
            self._work.gone("revoked", map(_plain, revoked))


async def commit(consumer: AIOKafkaConsumer, offsets: dict[Partition, int]) -> None:
    await consumer.commit({TopicPartition(*part): offset for part, offset in offsets.items()})


async def main() -> None:
    orders = Orders()
    work = Work(orders)
    lock = asyncio.Lock()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=orders["servers"],
        group_id=orders["group"],
        group_instance_id=orders.instance,
        client_id=orders["name"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=METADATA_MS,
        session_timeout_ms=orders.number("session"),
        heartbeat_interval_ms=orders.number("heartbeat"),
        max_poll_interval_ms=orders.number("rebalance"),
        rebalance_timeout_ms=orders.number("rebalance"),
        partition_assignment_strategy=(RangePartitionAssignor,),
    )
    await consumer.start()
    consumer.subscribe(orders.topics, listener=Listener(consumer, work, lock))
    while not orders.stopping.is_set():
        batches = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=RECORDS)
        async with lock:
            held = consumer.assignment()  # a callback may have run since the records were handed out
            for partition, records in batches.items():
                if partition in held:
                    values = [record.value for record in records]
                    work.process(_plain(partition), [record.offset for record in records], values)
            if work.due:
                await work.commit_async(lambda offsets: commit(consumer, offsets))
    async with lock:
        await work.commit_async(lambda offsets: commit(consumer, offsets))
        work.say("closing")
    await consumer.stop()
    work.say("closed")


def _plain(partition: TopicPartition) -> Partition:
    return partition.topic, partition.partition


if __name__ == "__main__":
    asyncio.run(main())
