"""Regions on a real broker: whatever happens, what is published is every record once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from kohort import Admin, Broker, Consumer, TopicPartition
from kohort.broker import Fault
from kohort.client.admin.values import NewTopic
from kohort.errors import CommitFailedError, ErrorCode, InvalidInputError, KafkaError
from kohort.region.consuming.member_thread import RegionStoppedError
from kohort.region.consuming.starts import StartKind, StartPosition, look_up_start_offsets
from kohort.region.records import Part, to_part
from kohort.region.region import Region
from kohort.region.region_topic import TOPIC
from tests.region.conftest import Collected, Worker, fill, make_topic
from tests.support.waiting import until

FAST: Any = {"checkpoint_every": "200ms"}
CONSUMER: Any = {"group_protocol": "consumer"}


@pytest.fixture(params=["classic-reset", "classic-checkpoint", "eager-reset", "consumer-reset", "consumer-checkpoint"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each protocol, and what a member does at a revocation."""
    protocol, how = request.param.split("-")
    chosen: dict[str, Any] = {"on_rebalance": how, "max_poll_records": 10, "heartbeat_interval_ms": 100}
    if protocol == "consumer":
        del chosen["heartbeat_interval_ms"]
        chosen |= CONSUMER
    elif protocol == "eager":
        chosen["partition_assignment_strategy"] = ("range",)
    return chosen


def all_once(sink: Collected, numbers: range) -> bool:
    """Everything is published; nothing ever is twice."""
    rows = sink.rows()
    assert max(rows.values(), default=1) == 1, [row for row, count in rows.items() if count > 1][:5]
    return set(rows) == set(numbers)


def committed(servers: str, group: str) -> dict[TopicPartition, int]:
    with Admin(servers) as admin:
        found = admin.list_consumer_group_offsets(group).all()
    return {part: at.offset for part, at in found.items() if at is not None}


def test_members_that_come_and_go_publish_everything_once(
    servers: str, name: str, regions: list[Region], options: dict[str, Any]
) -> None:
    make_topic(servers, name)
    fill(servers, name, range(2000))
    sink, region = Collected(), Region(name, servers, **FAST)
    regions.append(region)
    first = Worker(region, "m1", sink, name, **options)
    until(lambda: first.consumer.sequence > 0, "a sequence is complete")
    second = Worker(region, "m2", sink, name, **options)
    fill(servers, name, range(2000, 4000))
    until(lambda: second.consumer.metrics.partitions == 2, "the second has its share")
    fill(servers, name, range(4000, 5000))
    until(lambda: all_once(sink, range(5000)), "all is published")
    assert first.consumer.names == second.consumer.names == ("m1", "m2")
    first.close()
    fill(servers, name, range(5000, 6000))
    until(lambda: all_once(sink, range(6000)), "the one that stays goes on")
    second.close()
    assert first.error is None and second.error is None
    assert committed(servers, name) == {TopicPartition(name, part): 1500 for part in range(4)}
    assert {epoch for epoch, _ in sink.opened} == {name} and len(sink.opened) == 1


def test_what_was_not_in_a_sequence_comes_again_after_a_reset(
    own_servers: str, name: str, regions: list[Region], options: dict[str, Any]
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(1000))
    sink, region = Collected(), Region(name, own_servers, checkpoint_every=None)
    regions.append(region)
    resets: list[tuple[int, bytes | None]] = []
    state = {"count": 0}
    worker = Worker(
        region, "m1", sink, name,
        on_checkpoint=lambda sequence: f"{sequence}".encode(),
        on_reset=lambda sequence, saved: resets.append((sequence, saved)),
        on_retire=lambda sequence: state.update(count=sequence),
        **options,
    )  # fmt: skip
    until(lambda: worker.consumer.metrics.partitions == 4, "it reads")
    until(lambda: worker.consumer._flow.submitted == 1000, "it has read all")
    assert not sink.sequences
    worker.consumer.reset("what is behind it has failed")
    until(lambda: worker.consumer._flow.submitted == 2000, "it has read all again")
    assert resets == [(0, None)]
    worker.consumer.checkpoint()
    until(lambda: all_once(sink, range(1000)), "it is published once")
    fill(own_servers, name, range(1000, 1200))
    until(lambda: worker.consumer._flow.submitted == 2200, "it has read more")
    region.reset("a person")
    until(lambda: worker.consumer._flow.submitted == 2400, "and again")
    assert resets == [(0, None), (1, b"1")]
    region.checkpoint()
    until(lambda: all_once(sink, range(1200)), "it is published once")
    worker.close()
    assert state["count"] == 1, "with the third sequence, of the close, nothing goes back to the first"
    assert committed(own_servers, name) == {TopicPartition(name, part): 300 for part in range(4)}


def test_offsets_that_are_the_sequences_are_not_committed_after_a_reset(
    own_broker: Broker, name: str, regions: list[Region]
) -> None:
    """Whoever is late with such a commit would set the group back behind a later sequence; what is not sent is not."""
    servers = own_broker.bootstrap_servers
    make_topic(servers, name)
    fill(servers, name, range(100))
    sink, region = Collected(), Region(name, servers, checkpoint_every=None)
    regions.append(region)
    worker = Worker(region, "m1", sink, name)
    until(lambda: worker.consumer._flow.submitted == 100, "it has read all")
    worker.consumer.checkpoint()
    until(lambda: all_once(sink, range(100)), "a sequence is published")
    late = own_broker.faults.add(Fault("OffsetCommit", "hold", group=name, times=None))
    try:
        region.reset("a person")
        until(lambda: worker.consumer.metrics.resets == 1, "it goes back")
        fill(servers, name, range(100, 200))
        until(lambda: worker.consumer._flow.submitted == 200 or late.hits, "it has read on")
        assert late.hits == 0
    finally:
        late.remove()
    worker.consumer.checkpoint()
    until(lambda: all_once(sink, range(200)), "the next sequence is published")
    assert committed(servers, name) == {TopicPartition(name, part): 50 for part in range(4)}
    region.reset("a person", to_initial=True, empty_sinks=True)
    beginnings = {TopicPartition(name, part): 0 for part in range(4)}
    until(lambda: committed(servers, name) == beginnings, "those that differ are set back")
    worker.close()


def test_an_application_that_fails_takes_nothing_with_it(
    own_servers: str, name: str, regions: list[Region], options: dict[str, Any]
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(2000))
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    bad = Worker(region, "bad", sink, name, **options)
    until(lambda: bad.consumer.sequence > 0, "a sequence is complete")
    good = Worker(region, "good", sink, name, **options)
    bad.fail_at = bad.tables + 3
    fill(own_servers, name, range(2000, 4000))
    until(lambda: bad.error is not None, "it fails")
    assert isinstance(bad.error, ValueError)
    until(lambda: all_once(sink, range(4000)), "the other publishes all")
    good.close()
    assert good.error is None


def test_another_application_takes_over_when_the_control_plane_is_gone(
    own_servers: str, name: str, regions: list[Region], options: dict[str, Any]
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(1000))
    sink = Collected()
    serving, other = (Region(name, own_servers, **FAST) for _ in range(2))
    regions += [serving, other]
    assert serving.describe().term == 1
    worker = Worker(other, "m1", sink, name, **options)
    until(lambda: worker.consumer.sequence > 0, "a sequence is complete")
    serving._election.close()
    fill(own_servers, name, range(1000, 2000))
    until(lambda: all_once(sink, range(2000)), "it goes on")
    seen = other.describe()
    assert seen.term == 2 and seen.resets == {}, "who holds what it held goes on without a reset"
    worker.close()


class Slow(Worker):
    """A member that is in its first table until it may finish that."""

    def __init__(self, *given: Any, **options: Any) -> None:
        self.begun, self.may_finish = threading.Event(), threading.Event()
        super().__init__(*given, **options)

    def rows_of(self, table: pa.Table) -> pa.Table:
        self.begun.set()
        assert self.may_finish.wait(60)
        return super().rows_of(table)


def test_stopped_member_leaves_under_another_control_plane(own_servers: str, name: str, regions: list[Region]) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(100))
    sink = Collected()
    serving, other = (Region(name, own_servers, **FAST) for _ in range(2))
    regions += [serving, other]
    serving.serve()
    worker = Slow(other, "m1", sink, name)
    assert worker.begun.wait(60)
    serving.stop_member("m1")
    serving._election.close()
    worker.may_finish.set()
    until(lambda: worker.error is not None, "it leaves")
    assert isinstance(worker.error, RegionStoppedError) and "the member was stopped" in str(worker.error)
    assert other.describe().term == 2 and all_once(sink, range(100))
    again = Worker(other, "m1", sink, name)
    fill(own_servers, name, range(100, 200))
    until(lambda: all_once(sink, range(200)), "another of its name stays")
    again.close()


def test_a_rebalance_during_a_drain_is_waited_for(
    own_servers: str, name: str, regions: list[Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(100))
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    refused, commit = [], Consumer.commit

    def refuse_some(consumer: Consumer, *given: Any, **named: Any) -> Any:
        if len(refused) < 8:
            refused.append(given)
            raise CommitFailedError("this member's generation is over", ErrorCode.ILLEGAL_GENERATION)
        return commit(consumer, *given, **named)

    monkeypatch.setattr(Consumer, "commit", refuse_some)
    worker = Worker(region, "m1", sink, name)
    until(lambda: all_once(sink, range(100)), "all is published")
    assert len(refused) == 8 and worker.consumer.metrics.resets == 0
    worker.close()
    assert worker.error is None


def test_applications_that_start_at_once(servers: str, name: str, regions: list[Region]) -> None:
    make_topic(servers, name)
    fill(servers, name, range(100))
    sink = Collected()
    regions += [Region(name, servers, **FAST) for _ in range(5)]
    with ThreadPoolExecutor(5) as pool:
        members = list(pool.map(lambda each: Worker(each[1], f"m{each[0]}", sink, name), enumerate(regions)))
    until(lambda: all(member.consumer.names == ("m0", "m1", "m2", "m3", "m4") for member in members), "all are there")
    until(lambda: all_once(sink, range(100)), "all is published")
    for member in members:
        member.close()
    assert [member.error for member in members] == [None] * 5


def test_a_state_that_is_not_bytes_stops_the_region_with_what_to_do(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    make_topic(own_servers, name)
    region = Region(name, own_servers, **FAST)
    regions.append(region)
    worker = Worker(region, "m1", Collected(), name, on_checkpoint=lambda sequence: "{}")
    until(lambda: worker.error is not None, "it is over")
    assert isinstance(worker.error, RegionStoppedError)
    assert "on_checkpoint gives bytes, not str" in str(worker.error)
    assert f"kohort region resume {name} --execute" in str(worker.error)
    region.close()
    with Region(name, own_servers) as alone:
        alone.resume()
    with Region(name, own_servers, **FAST) as again:
        mended = Worker(again, "m1", Collected(), name)
        until(lambda: mended.consumer.sequence > 0, "it goes on")
        mended.close()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [({"topics": "t"}, "write \\['t'\\]"), ({"topics": []}, "topics, or a pattern"), ({"pattern": "("}, "pattern")],
)
def test_what_is_read_must_be_said(
    own_servers: str, name: str, regions: list[Region], wrong: dict[str, Any], why: str
) -> None:
    region = Region(name, own_servers)
    regions.append(region)
    with pytest.raises(InvalidInputError, match=why):
        region.consumer("m1", group_id=name, **wrong)


def test_what_is_submitted_is_a_table(own_servers: str, name: str, regions: list[Region]) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(10))
    region = Region(name, own_servers, **FAST)
    regions.append(region)
    with region.consumer("m1", group_id=name, topics=[name], into=Collected(), start="beginning") as consumer:
        next(iter(consumer.tables()))
        with pytest.raises(InvalidInputError, match="a pyarrow Table or RecordBatch, not list"):
            consumer.submit([1, 2])  # type: ignore[arg-type]


def test_two_control_planes_do_not_last(own_servers: str, name: str, regions: list[Region]) -> None:
    make_topic(own_servers, name)
    sink = Collected()
    one, two = (Region(name, own_servers, **FAST) for _ in range(2))
    regions += [one, two]
    first = Worker(one, "m1", sink, name)
    fill(own_servers, name, range(500))
    until(lambda: first.consumer.sequence > 0, "a sequence is complete")
    two._election._take_over()
    second = Worker(two, "m2", sink, name)
    fill(own_servers, name, range(500, 1000))
    until(lambda: all_once(sink, range(1000)) and second.consumer.names == ("m1", "m2"), "both are in the newer term")
    assert one._election._plane is not None and one._election._plane.over.is_set()
    assert two.describe().term == 2
    first.close()
    second.close()


def test_a_publish_that_fails_holds_up_the_next_sequence_and_is_tried_again(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(400))
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    sink.fails = 3
    worker = Worker(region, "m1", sink, name)
    until(lambda: all_once(sink, range(400)), "it is published in the end")
    shown = list(sink.sequences)  # a first sequence may have been complete before the member had partitions
    assert sink.fails == 0 and shown == list(range(shown[0], shown[0] + len(shown)))
    worker.close()


def test_partitions_that_are_added_are_read_from_their_beginning(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    make_topic(own_servers, name, 2)
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    worker = Worker(region, "m1", sink, name, start="end", metadata_max_age_ms=500)
    until(lambda: worker.consumer.metrics.partitions == 2, "it reads two")
    until(lambda: len(region.describe().positions) == 2, "they have begun at their end")
    with Admin(own_servers) as admin:
        admin.create_partitions({name: 4}).all()
    fill(own_servers, name, range(400))
    until(lambda: all_once(sink, range(400)), "all four are read whole")
    worker.close()


def test_topics_that_a_pattern_finds_later_are_read_from_their_beginning(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    """Their first 50 records were skipped, as those that a topic had when the region began."""
    make_topic(own_servers, f"{name}-a", 2)
    fill(own_servers, f"{name}-a", range(1000, 1100), 2)
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    options: dict[str, Any] = {"pattern": f"^{name}-", "start": "end", "metadata_max_age_ms": 500}
    worker = Worker(region, "m1", sink, [], group_id=name, **options)
    until(lambda: len(region.describe().positions) == 2, "it has begun at the end")
    make_topic(own_servers, f"{name}-b", 2)
    fill(own_servers, f"{name}-b", range(50), 2)
    until(lambda: all_once(sink, range(50)), "the new topic is read whole, and of the other nothing that was there")
    worker.close()


def test_start_offsets_of_all_partitions_of_a_topic_are_looked_up(own_servers: str, name: str) -> None:
    """Partitions without a start offset count as added later, and begin at their earliest offset."""
    make_topic(own_servers, name, 4)
    fill(own_servers, name, range(400))
    topic_id = UUID(int=7)
    first = Part(name, name, 1, topic_id)
    with Consumer(own_servers, group_id=name) as consumer:
        found = look_up_start_offsets(consumer, StartPosition(StartKind.END), (first,), ())
        assert [position.offset for position in found] == [100] * 4
        assert [to_part(position) for position in found] == [first._replace(partition=number) for number in range(4)]
        added = look_up_start_offsets(consumer, StartPosition(StartKind.END), (), (first,))
        assert [(to_part(position), position.offset) for position in added] == [(first, 0)]


@pytest.mark.parametrize(("start", "first"), [("beginning", 0), ("end", 400), ("committed", 120), ("time", 200)])
def test_where_a_region_begins(own_servers: str, name: str, regions: list[Region], start: str, first: int) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(200))
    time.sleep(0.01)
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    fill(own_servers, name, range(200, 400))
    with Consumer(own_servers, group_id=name) as consumer:
        consumer.commit({TopicPartition(name, part): 30 for part in range(4)})
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    worker = Worker(region, "m1", sink, name, start=between_ms if start == "time" else start)
    until(lambda: len(region.describe().positions) == 4, "it has begun")
    fill(own_servers, name, range(400, 500))
    until(lambda: all_once(sink, range(first, 500)), "what is asked for, and no more")
    with pytest.raises(InvalidInputError, match="empty_sinks"):
        region.reset("a person", to_initial=True)
    region.reset("a person", to_initial=True, empty_sinks=True)
    until(lambda: all_once(sink, range(first, 500)), "all of it again")
    worker.close()


def test_two_sinks_of_one_region_have_every_record_once_between_them(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(1000))
    sinks, region = (Collected(), Collected()), Region(name, own_servers, **FAST)
    regions.append(region)
    workers = [Worker(region, f"m{number}", sink, name) for number, sink in enumerate(sinks)]

    def both() -> Counter[int]:
        return sinks[0].rows() + sinks[1].rows()

    until(lambda: all(worker.consumer.metrics.partitions == 2 for worker in workers), "each has its share")
    fill(own_servers, name, range(1000, 2000))
    until(lambda: both() == Counter(range(2000)), "all is published once")
    assert all(sink.rows() for sink in sinks)
    sinks[1].fails = 10**9
    before = sinks[0].published(), sinks[1].published()
    fill(own_servers, name, range(2000, 2400))
    until(lambda: sinks[0].published() > before[0], "one sink shows the next sequence")

    def shown() -> bool:
        seen = region.describe()
        told = {sink.place: sink.published for sink in seen.sinks}
        return (
            told == {sinks[0].place: seen.sequence, sinks[1].place: seen.published} and seen.sequence > seen.published
        )

    until(shown, "the control plane has heard of it")
    seen = region.describe()
    assert region.complete() == seen.published == seen.sequence - 1
    with sinks[1].lock:
        sinks[1].fails = 0
    until(lambda: both() == Counter(range(2400)), "the other is tried again")
    workers[1].close()
    with pytest.raises(InvalidInputError, match=sinks[1].place):
        region.reset("a person", to_initial=True, empty_sinks=True)
    again = Worker(region, "m2", sinks[1], name)
    until(lambda: len(region.describe().members) == 2, "somebody writes there again")
    region.reset("a person", to_initial=True, empty_sinks=True)

    def emptied() -> bool:
        return all(() in sink.sequences.values() for sink in sinks)

    until(lambda: emptied() and both() == Counter(range(2400)), "both were emptied, and show all again")
    workers[0].close()
    again.close()


def test_a_state_that_fits_no_record_stops_the_region_in_the_end(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(40))
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    worker = Worker(region, "m1", sink, name, on_checkpoint=lambda sequence: bytes(600_000))
    until(lambda: worker.error is not None, "it is told, after five resets in a row")
    assert "600000 bytes of state are more than 524288" in str(worker.error)


def test_sequences_by_the_operators_count(own_servers: str, name: str, regions: list[Region]) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(500))
    sink, region = Collected(), Region(name, own_servers, checkpoint_every=None)
    regions.append(region)
    worker = Worker(region, "m1", sink, name, every_records=100, max_poll_records=5)
    until(lambda: sum(sink.rows().values()) >= 400, "a sequence is complete without a clock")
    fill(own_servers, name, range(500, 1000))
    until(lambda: sum(sink.rows().values()) >= 900, "and more of them")
    assert len(sink.sequences) >= 2
    worker.close()
    assert all_once(sink, range(1000))


# Refusals before the first record.


def test_a_group_belongs_to_one_region(own_servers: str, name: str, regions: list[Region]) -> None:
    make_topic(own_servers, name)
    one, two = Region(name, own_servers), Region(f"{name}-other", own_servers)
    regions += [one, two]
    worker = Worker(one, "m1", None, name)
    with pytest.raises(InvalidInputError, match=f"group '{name}' belongs to region '{name}'"):
        two.consumer("m1", group_id=name, topics=[name])
    worker.close()


def test_a_group_with_other_members_is_refused(own_servers: str, name: str, regions: list[Region]) -> None:
    make_topic(own_servers, name)
    region = Region(name, own_servers)
    regions.append(region)
    with Consumer(own_servers, group_id=name, client_id="nightly-job") as consumer:
        consumer.subscribe([name])
        until(lambda: len(consumer.poll(50)) == 0 and bool(consumer.assignment()), "it is a member")
        with pytest.raises(InvalidInputError, match="nightly-job"):
            region.consumer("m1", group_id=name, topics=[name])


def test_who_holds_partitions_in_the_group_and_is_not_of_the_region_stops_it(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(400))
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    worker = Worker(region, "m1", sink, name, on_rebalance="checkpoint", **CONSUMER)
    until(lambda: worker.consumer.sequence > 0, "a sequence is complete")
    with Consumer(own_servers, group_id=name, client_id="nightly-job", **CONSUMER) as consumer:
        consumer.subscribe([name])

        def stopped() -> bool:
            consumer.poll(20)
            return worker.error is not None

        until(stopped, "the region stops")
    assert isinstance(worker.error, RegionStoppedError)
    assert "nightly-job" in str(worker.error)


def test_a_member_that_is_dead_and_not_missed_yet_does_not_stop_the_region(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    """The dead member's group keeps its place for a session, so nobody reads its partitions for that long."""
    make_topic(own_servers, name)
    fill(own_servers, name, range(400))
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    worker = Worker(region, "m1", sink, name, on_rebalance="checkpoint", **CONSUMER)
    until(lambda: worker.consumer.sequence > 0, "a sequence is complete")
    with Consumer(own_servers, group_id=name, client_id=f"{name}/m2", **CONSUMER) as dead:
        dead.subscribe([name])
        until(lambda: len(dead.poll(20)) >= 0 and len(dead.assignment()) == 2, "it has its share")
        before = worker.consumer.sequence
        until(lambda: worker.consumer.sequence > before + 6, "sequences go on without what it has")
    fill(own_servers, name, range(400, 800))
    until(lambda: all_once(sink, range(800)), "it is read when the group gives it")
    worker.close()
    assert worker.error is None


@pytest.mark.parametrize("start", [17, "latest", "17"])
def test_a_start_that_is_an_offset_is_refused(own_servers: str, name: str, regions: list[Region], start: Any) -> None:
    region = Region(name, own_servers)
    regions.append(region)
    with pytest.raises(InvalidInputError, match="an offset belongs to one partition"):
        region.consumer("m1", group_id=name, topics=[name], start=start)


@pytest.mark.parametrize("bad", ["", "a/b", "x" * 101])
def test_a_name_that_can_not_be_is_refused(own_servers: str, bad: str) -> None:
    with pytest.raises(InvalidInputError, match="a region's name"):
        Region(bad, own_servers)


def test_an_offset_that_the_log_has_no_more_stops_the_region(
    own_servers: str, name: str, regions: list[Region]
) -> None:
    make_topic(own_servers, name)
    fill(own_servers, name, range(400))
    sink, region = Collected(), Region(name, own_servers, checkpoint_every=None)
    regions.append(region)
    worker = Worker(region, "m1", sink, name)
    until(lambda: worker.consumer._flow.submitted == 400, "it has read all")
    with Admin(own_servers) as admin:
        admin.delete_records({TopicPartition(name, 0): 50}).all()
    worker.consumer.reset("go back to what is gone")
    until(lambda: worker.error is not None, "the region stops")
    assert isinstance(worker.error, RegionStoppedError) and "records are lost" in str(worker.error)
    again = Worker(region, "m1", sink, name, fail_on_data_loss=False)
    until(lambda: again.error is not None, "it is told that the region has stopped")
    for request in (region.checkpoint, region.reset):
        with pytest.raises(InvalidInputError, match="has stopped.*records are lost.*kohort region resume"):
            request()
    region.resume()
    third = Worker(region, "m1", sink, name, fail_on_data_loss=False)
    until(lambda: third.consumer._flow.submitted == 350, "the others are read")
    region.checkpoint()
    until(lambda: sum(sink.rows().values()) == 350, "and published")
    third.close()


def test_lost_records_move_their_own_partition_alone(own_servers: str, name: str, regions: list[Region]) -> None:
    """The error's text names partition 10, and so the beginning of partition 1's name."""
    make_topic(own_servers, name, 12)
    fill(own_servers, name, range(1200), 12)
    sink, region = Collected(), Region(name, own_servers, **FAST)
    regions.append(region)
    first = Worker(region, "m1", sink, name)
    until(lambda: all_once(sink, range(1200)), "all is published")
    first.close()
    fill(own_servers, name, range(1200, 1800), 12)
    with Admin(own_servers) as admin:
        admin.delete_records({TopicPartition(name, 10): 120}).all()
    second = Worker(region, "m1", sink, name, fail_on_data_loss=False)
    lost = {number for number in range(1200, 1800) if number % 12 == 10 and number // 12 < 120}
    until(lambda: set(sink.rows()) >= set(range(1800)) - lost, "what is there is published")
    fill(own_servers, name, range(1800, 1812), 12)
    until(lambda: set(sink.rows()) >= set(range(1800, 1812)), "and what comes then")
    second.close()
    assert sink.rows() == Counter(set(range(1812)) - lost), "nothing is there twice"


def test_a_topic_of_that_name_that_is_not_compacted_is_refused(tmp_path: Any) -> None:
    from kohort import Broker

    with Broker(data_dir=tmp_path) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, 3)]).all()
        region = Region("r", broker.bootstrap_servers)
        with pytest.raises(KafkaError, match="needs compact"):
            region.consumer("m1", group_id="g", topics=["t"])
        region.close()


@pytest.mark.parametrize("error", [ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED])
def test_members_live_through_errors_that_answer_the_ends_of_transactions(
    own_broker: Broker, name: str, regions: list[Region], error: ErrorCode
) -> None:
    """Of the first term as of sequences: whether each was committed is not known, and is found out."""
    servers = own_broker.bootstrap_servers
    make_topic(servers, name)
    fill(servers, name, range(500))
    sink, region = Collected(), Region(name, servers, **FAST)
    regions.append(region)
    first = own_broker.faults.add(Fault("EndTxn", "fail", error=error))
    faults = [own_broker.faults.add(Fault("EndTxn", "fail", skip=skip, error=error)) for skip in (3, 5, 6)]
    faults.append(own_broker.faults.add(Fault("EndTxn", "close_after", skip=8)))
    try:
        worker = Worker(region, "m1", sink, name)
        assert first.hits >= 1, "the first term was begun through it"
        until(lambda: all_once(sink, range(500)), "all is published")
        fill(servers, name, range(500, 1000))
        until(lambda: all_once(sink, range(1000)), "it goes on")
        for fault in faults:
            until(lambda fault=fault: worker.consumer.checkpoint() or fault.hits >= 1, "each fault has been met")
        fill(servers, name, range(1000, 1200))
        until(lambda: all_once(sink, range(1200)), "it goes on after all of them")
    finally:
        own_broker.faults.clear()
    worker.close()
    assert worker.error is None
