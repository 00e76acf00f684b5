"""Scenario 18, what has bitten users of streamsx.kafka's consumer groups in consistent regions: by its issues."""

from __future__ import annotations

import threading
import time
from typing import Any

from kohort import Admin, TopicPartition
from kohort.region.region import Region
from tests.region.conftest import Collected, Worker, fill, make_topic
from tests.region.test_region import all_once
from tests.support.waiting import until

BY_HAND: Any = {"checkpoint_every": None}


def test_scenario_18_after_a_reset_partitions_added_since_the_checkpoint_are_read_too(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    """#124: only the checkpoint's partitions were read after a reset."""
    make_topic(own_servers, name, 2)
    fill(own_servers, name, range(100), 2)
    sink, region = Collected(), Region(name, own_servers, **BY_HAND)
    regions.append(region)
    worker = Worker(region, "m1", sink, name, metadata_max_age_ms=200)
    until(lambda: worker.tables > 0, "it reads")
    region.checkpoint()
    until(lambda: worker.consumer.sequence == 1, "a sequence is complete")
    with Admin(own_servers) as admin:
        admin.create_partitions({name: 4}).all()
    fill(own_servers, name, range(100, 300), 4)
    until(lambda: worker.consumer.metrics.partitions == 4, "it has the new ones")
    region.reset()
    until(lambda: worker.consumer.metrics.resets == 1, "it went back")

    def published() -> bool:
        region.checkpoint()
        return all_once(sink, range(300))

    until(published, "all is published")
    worker.close()
    assert worker.error is None


def test_scenario_18_a_checkpoint_holds_partitions_that_had_no_record(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    """#148: they were missing in it, so that a reset read them from where the group happened to be."""
    make_topic(own_servers, name, 2)
    sink, region = Collected(), Region(name, own_servers, **BY_HAND)
    regions.append(region)
    worker = Worker(region, "m1", sink, name, start="end")
    until(lambda: [len(member.parts) for member in region.describe().members] == [2], "it holds both")
    fill(own_servers, name, range(0, 20, 2), 2)
    until(lambda: worker.tables > 0, "it reads")
    region.checkpoint()
    until(lambda: worker.consumer.sequence == 1, "a sequence is complete")
    assert {(position.partition, position.offset) for position in region.describe().positions} == {(0, 10), (1, 0)}
    tables = worker.tables
    fill(own_servers, name, range(1, 21, 2), 2)
    until(lambda: worker.tables > tables, "it reads the other")
    region.reset()
    until(lambda: worker.consumer.metrics.resets == 1, "it went back")

    def published() -> bool:
        region.checkpoint()
        return all_once(sink, range(20))

    until(published, "what came since the sequence came again")
    worker.close()


def test_scenario_18_resets_overlap_a_members_restart(servers: str, name: str, regions: list[Region]) -> None:
    """#148: one reset was dropped while another ran, and a checkpoint that was not complete was used."""
    make_topic(servers, name)
    sink, region = Collected(), Region(name, servers, checkpoint_every="100ms")
    regions.append(region)
    staying = Worker(region, "m1", sink, name)
    for number in range(4):
        fill(servers, name, range(number * 100, number * 100 + 100))
        other = Worker(region, "m2", sink, name)
        if number % 2:
            until(lambda other=other: other.consumer.metrics.partitions > 0, "it holds partitions")  # type: ignore[misc]
        asking = [threading.Thread(target=region.reset, args=(f"a fault {number}",)) for number in range(3)]
        for thread in asking:
            thread.start()
        other.consumer.abort("it is restarted")
        for thread in asking:
            thread.join()
    until(lambda: all_once(sink, range(400)), "all is published")
    staying.close()
    assert staying.error is None


def test_scenario_18_a_rebalance_waits_for_no_application(own_servers: str, name: str, regions: list[Region]) -> None:
    """#155: the members' callbacks waited for the application, and the group for them."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(1000))
    sink, region = Collected(), Region(name, own_servers, checkpoint_every="200ms")
    regions.append(region)
    slow = region.consumer(
        "m1", topics=[name], into=sink, group_id=name, start="beginning", max_poll_interval_ms=300_000
    )
    busy, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with slow:
            for table in slow.tables():
                busy.set()
                go_on.wait(120)
                slow.submit(table.select(["value"]))

    thread = threading.Thread(target=work)
    thread.start()
    assert busy.wait(60)
    quick = Worker(region, "m2", sink, name)
    until(lambda: quick.consumer.metrics.partitions == 2, "the group is rebalanced while an application is busy")
    assert slow.metrics.partitions == 2
    go_on.set()
    until(lambda: all_once(sink, range(1000)), "all is published")
    quick.close()
    slow.close()
    thread.join(60)


def test_scenario_18_going_back_where_a_partition_is_gone_is_no_error(
    servers: str, name: str, regions: list[Region]
) -> None:
    """#222: the seek on a partition that was revoked meanwhile ended the application."""
    make_topic(servers, name)
    sink, region = Collected(), Region(name, servers, checkpoint_every="100ms")
    regions.append(region)
    first = Worker(region, "m1", sink, name)
    sent, workers = 0, [first]
    for _ in range(3):
        fill(servers, name, range(sent, sent + 100))
        sent += 100
        comes = Worker(region, "m2", sink, name)
        workers.append(comes)
        for _ in range(5):
            region.reset()
            time.sleep(0.02)
        until(lambda comes=comes: comes.consumer.metrics.partitions > 0, "it holds partitions")  # type: ignore[misc]
        asks = threading.Thread(target=region.reset)
        asks.start()
        comes.close()
        asks.join()
    until(lambda: all_once(sink, range(sent)), "all is published")
    first.close()
    assert [worker.error for worker in workers] == [None] * len(workers)
    with Admin(servers) as admin:
        found = admin.list_consumer_group_offsets(name).all()
    assert {part: at.offset for part, at in found.items() if at is not None} == {
        TopicPartition(name, part): sent // 4 for part in range(4)
    }
