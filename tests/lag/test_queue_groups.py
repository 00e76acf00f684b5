"""Share and streams groups of Apache Kafka: their members, positions and lag, beside Kafka's own commands."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from tests.lag.test_evaluation import EPOCH_MS, MEMBER, ORDERS, READ_MS
from tests.support.apache_kafka import ApacheKafka, KafkaTools
from tests.support.waiting import until

from kohort import Admin, Broker, Producer, TopicPartition
from kohort.client.admin.values import ConfigResource, GroupDescription, GroupListing, NewTopic, ResourceType
from kohort.client.net.cluster import Cluster
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import ErrorCode, KafkaError
from kohort.lag import GroupLag, LagReader, LagReport, LagStatus, PartitionLag, evaluate
from kohort.lag.queue_groups import ShareOffsets, describe_streams_groups
from kohort.lag.reading import LagReading
from kohort.lag.record_times import RecordTimes
from kohort.lag.scaling import ScalingTarget, decide_member_count
from kohort.lag.snapshot import ClusterSnapshot, GroupReading, PartitionBounds
from kohort.wire.message import Message, RequestMessage
from kohort.wire.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsTaskIds,
    StreamsTopicInfo,
)

R = TypeVar("R", bound=Message)
COMMAND = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"


@pytest.fixture
def topic(apache_kafka: ApacheKafka) -> str:
    """A topic with ten records in one of two partitions."""
    name = f"shared-{uuid.uuid4().hex[:8]}"
    with Admin(apache_kafka.bootstrap_servers) as admin, Producer(apache_kafka.bootstrap_servers) as producer:
        admin.create_topics([NewTopic(name, 2, 1)]).all()
        for number in range(10):
            producer.send(name, b"%d" % number, partition=0)
        producer.flush()
    return name


@pytest.fixture
def reader(apache_kafka: ApacheKafka) -> Iterator[LagReader]:
    with LagReader(apache_kafka.bootstrap_servers) as reader:
        yield reader


def from_the_beginning(servers: str, group: str) -> None:
    """A share group begins at the end unless its configuration says otherwise."""
    with Admin(servers) as admin:
        resource = ConfigResource(ResourceType.GROUP, group)
        admin.incremental_alter_configs({resource: {"share.auto.offset.reset": "earliest"}}).all()


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_share_group_has_its_members_and_the_lag_that_kafkas_command_prints(
    apache_kafka: ApacheKafka, kafka_tools: KafkaTools, reader: LagReader, topic: str, tmp_path: Path
) -> None:
    """Kminion #351: nothing is exported for share groups. Akhq and kafbat show them as empty, or unknown."""
    servers, group = apache_kafka.bootstrap_servers, f"{topic}-jobs"
    from_the_beginning(servers, group)
    args = ("--bootstrap-server", servers, "--topic", topic, "--group", group)
    consumer = kafka_tools.start(CONSUMER, *args, stdout=tmp_path / "read.txt")
    place, idle = TopicPartition(topic, 0), TopicPartition(topic, 1)

    def found() -> GroupLag | None:
        return reader.read().groups.get(group)

    def part(number: int) -> PartitionLag | None:
        group_now = found()
        parts = () if group_now is None else group_now.partitions
        return next((part for part in parts if part.partition.partition == number), None)

    try:
        until(lambda: (now := part(0)) is not None and now.lag == 0, "everything is acknowledged", 120)
        described = found()
        assert described is not None
        assert (described.description.type, described.description.state) == ("Share", "Stable")
        (member,) = described.description.members
        assert set(member.assignment or ()) == {place, idle} and member.subscription == (topic,)
        assert described.partitions[0].owner == member and described.partitions[0].time_lag_ms == 0
        assert described.members_known
    finally:
        consumer.terminate()
        consumer.wait(60)
    with Producer(servers) as producer:
        for _ in range(7):
            producer.send(topic, b"x", partition=0)
        producer.flush()
    until(lambda: (now := part(0)) is not None and now.lag == 7, "the lag is counted", 60)
    until(lambda: (now := found()) is not None and not now.description.members, "the member is gone", 60)
    stopped = found()
    assert stopped is not None and stopped.sum_lag == 7
    assert (stopped.status, stopped.activity) == (LagStatus.STOP, "stopped")
    assert stopped.max_time_lag_ms is not None and 0 <= stopped.max_time_lag_ms < 600_000
    said = kafka_tools.run(COMMAND, "--bootstrap-server", servers, "--describe", "--group", group, timeout_s=120).stdout
    rows = [line.split() for line in said.splitlines() if line.split()[:2] == [group, topic]]
    theirs = {(int(row[2]), row[3], row[4]) for row in rows if row[3] != "-"}
    ours = {
        (tp.partition.partition, *("-" if value is None else str(value) for value in (tp.committed, tp.lag)))
        for tp in stopped.partitions
    }
    assert ours == theirs, said


# -- What follows from a reading


SHARE_GROUP = GroupDescription("jobs", "Share", "Stable", "share", "simple", (MEMBER,), 1, 3, 3)


def evaluated(*reads: tuple[int, int, int, GroupDescription]) -> LagReport:
    """Reads by start offset, counted lag, log end and group."""
    report = None
    for number, (start, lag, end, group) in enumerate(reads):
        reading = GroupReading(group, True, {ORDERS: OffsetAndMetadata(start)}, lags={ORDERS: lag})
        bounds = PartitionBounds(0, end, end)
        oldest = {(ORDERS, start): EPOCH_MS}
        snapshot = ClusterSnapshot(EPOCH_MS + number * READ_MS, {"jobs": reading}, {}, {ORDERS: bounds}, oldest)
        report = evaluate(snapshot, report)
    assert report is not None
    return report


def test_lag_of_a_share_group_is_what_is_not_acknowledged() -> None:
    """Records after the start offset that others have acknowledged are no lag: end less start would be 90."""
    (part,) = evaluated((10, 3, 100, SHARE_GROUP)).groups["jobs"].partitions
    assert (part.committed, part.lag, part.time_lag_ms, part.is_time_lag_exact) == (10, 3, 0, False)
    (part,) = evaluated((10, 90, 100, SHARE_GROUP)).groups["jobs"].partitions
    assert (part.lag, part.is_time_lag_exact) == (90, True)
    (part,) = evaluated((10, 0, 100, SHARE_GROUP)).groups["jobs"].partitions
    assert (part.lag, part.time_lag_ms, part.status) == (0, 0, LagStatus.OK)


def test_partition_that_several_members_read_has_no_single_owner_and_is_assigned() -> None:
    both = replace(SHARE_GROUP, members=(MEMBER, replace(MEMBER, member_id="m-2")))
    stuck = evaluated(*[(10, 5, 100, both)] * 7).groups["jobs"]
    assert [(part.owner, part.cause) for part in stuck.partitions] == [(None, "no progress")]
    (single,) = evaluated((10, 5, 100, SHARE_GROUP)).groups["jobs"].partitions
    assert single.owner == MEMBER


@pytest.mark.parametrize(
    ("reads", "status"),
    [
        pytest.param([(10, 90 - 5 * n, 100) for n in range(10)], LagStatus.OK, id="others-acknowledged"),
        pytest.param([(10, 40, 100 + 5 * n) for n in range(10)], LagStatus.OK, id="as-many-written-as-acknowledged"),
        pytest.param([(10, 40 + 10 * n, 100 + 20 * n) for n in range(10)], LagStatus.OK, id="more-written"),
        pytest.param([(10, 40, 100)] * 10, LagStatus.STALL, id="nothing-acknowledged"),
        pytest.param([(10, 40 + 5 * n, 100 + 5 * n) for n in range(10)], LagStatus.STALL, id="only-written"),
        pytest.param([(10, 40 + 5 * n, 107 + 5 * n) for n in range(10)], LagStatus.STALL, id="written-after-the-count"),
        pytest.param([(90, 10, 100), *[(10, 90, 100)] * 8], LagStatus.STALL, id="reset-then-nothing"),
        pytest.param([(90, 10, 100), *[(10, 90 - 5 * n, 100) for n in range(9)]], LagStatus.OK, id="reset-and-read"),
    ],
)
def test_record_that_nobody_acknowledges_is_no_stall_of_a_share_group_that_reads_on(
    reads: list[tuple[int, int, int]], status: LagStatus
) -> None:
    """The start offset stands before it. That alone is no sign that nothing is read."""
    (part,) = evaluated(*[(*read, SHARE_GROUP) for read in reads]).groups["jobs"].partitions
    assert (part.committed, part.lag, part.status) == (reads[-1][0], reads[-1][1], status)
    assert bool(part.consumed_per_s) == (status is LagStatus.OK)


def test_lag_that_the_coordinator_leaves_out_once_is_no_progress_and_no_new_beginning() -> None:
    report = None
    for number in range(10):
        lags = {} if number == 5 else {ORDERS: 40}
        reading = GroupReading(SHARE_GROUP, True, {ORDERS: OffsetAndMetadata(10)}, lags=lags)
        oldest, bounds = {(ORDERS, 10): EPOCH_MS}, {ORDERS: PartitionBounds(0, 100, 100)}
        at_ms = EPOCH_MS + number * READ_MS
        report = evaluate(ClusterSnapshot(at_ms, {"jobs": reading}, {}, bounds, oldest), report)
    assert report is not None
    assert report.groups["jobs"].status is LagStatus.STALL


def test_members_of_a_share_group_are_wanted_for_what_each_of_them_reads() -> None:
    """Two members read one partition together. By its owner alone one of them would read everything."""
    members = tuple(replace(MEMBER, member_id=f"m-{number}") for number in range(2))
    state, decision = None, None
    for number in range(8):
        second = number * 10
        group = replace(SHARE_GROUP, members=members)
        start, end = 100 * second, 150 * second + 3_000
        reading = GroupReading(group, True, {ORDERS: OffsetAndMetadata(start)}, lags={ORDERS: end - start})
        oldest = {(ORDERS, start): EPOCH_MS + second * 1_000 - 20_000}
        at_ms = EPOCH_MS + second * 1_000
        report = evaluate(ClusterSnapshot(at_ms, {"jobs": reading}, {}, {ORDERS: PartitionBounds(0, end, end)}, oldest))
        decision, state = decide_member_count(report.groups["jobs"], at_ms, ScalingTarget(30_000), state)
        if decision.needed is not None:
            break
    assert decision is not None
    assert decision.member_per_s == 50
    assert decision.wanted == 4, "150 are written per second, and members work for three quarters of their time"


def test_member_of_a_streams_group_has_the_partitions_of_its_active_tasks() -> None:
    described = StreamsGroupDescribeResponse.DescribedGroup
    member, topology = StreamsGroupDescribeResponse.Member, StreamsGroupDescribeResponse.Topology
    part = topology.Subtopology(
        subtopology_id="0", source_topics=["orders"], repartition_source_topics=[StreamsTopicInfo(name="by-key")]
    )
    tasks = member.Assignment(
        active_tasks=[StreamsTaskIds(subtopology_id="0", partitions=[1])],
        standby_tasks=[StreamsTaskIds(subtopology_id="0", partitions=[0])],
    )
    answer = StreamsGroupDescribeResponse(
        groups=[
            described(
                group_id="counts",
                group_state="Stable",
                topology=topology(subtopologies=[part]),
                members=[member(member_id="m-1", client_id="app", client_host="/10.0.0.1", assignment=tasks)],
            ),
            described(group_id="closed", error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED)),
        ]
    )

    async def send(message: RequestMessage[R], node: int) -> R:
        assert isinstance(message, StreamsGroupDescribeRequest) and node == 2
        frame = answer.encode(1)
        response: Any = StreamsGroupDescribeResponse.decode(frame, 1)
        return cast("R", response)

    found = asyncio.run(describe_streams_groups(send, 2, ["counts", "closed"]))
    group = found["counts"]
    assert isinstance(group, GroupDescription)
    assert (group.type, group.state, group.coordinator) == ("Streams", "Stable", 2)
    assert [m.assignment for m in group.members] == [(TopicPartition("by-key", 1), TopicPartition("orders", 1))]
    assert isinstance(found["closed"], KafkaError)


def test_partition_that_a_streams_task_has_and_its_topic_lacks_is_no_fault() -> None:
    """A task reads the partitions of its number in several topics, and some have fewer than there are tasks."""
    missing, gone = TopicPartition("orders", 1), TopicPartition("gone", 0)
    member = replace(MEMBER, assignment=(ORDERS, missing, gone))
    group = GroupDescription("app", "Streams", "Stable", "streams", "", (member,), 1, 3, 3)
    unknown = KafkaError("no such partition", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    bounds = {ORDERS: PartitionBounds(0, 5, 5), missing: unknown, gone: unknown}
    reading = GroupReading(group, True, {ORDERS: OffsetAndMetadata(5)})
    found = evaluate(ClusterSnapshot(EPOCH_MS, {"app": reading}, {}, bounds, {})).groups["app"]
    assert {part.partition: part.status for part in found.partitions} == {ORDERS: LagStatus.OK, gone: LagStatus.ERR}


def test_broker_without_these_requests_is_read_as_it_lists_its_groups(our_broker: Broker) -> None:
    """An older Kafka: the group is there with its type and state, and its lag is unknown rather than 0."""
    listing = GroupListing("jobs", "share", "Stable", "Share", 0)

    async def read(cluster: Cluster) -> ClusterSnapshot:
        reading = LagReading(cluster, 10_000, RecordTimes())
        reading._listing = {"jobs": listing}
        reading._deadline_ms = cluster.runtime.now_ms + 10_000
        nodes = await cluster.group_coordinator_nodes(10_000)
        reading._nodes = {"jobs": nodes[0]}
        described = await reading._described(["jobs"])
        shares = await reading._share_offsets(["jobs"])
        group, position = described["jobs"], shares["jobs"]
        assert isinstance(group, GroupDescription) and isinstance(position, ShareOffsets)
        groups = {"jobs": GroupReading(group, reading._has_members(group), position.starts, lags=position.lags)}
        return ClusterSnapshot(EPOCH_MS, groups)

    with LagReader(our_broker.bootstrap_servers) as reader:
        snapshot = reader._client.call(read(reader._client.cluster))
    group = evaluate(snapshot).groups["jobs"]
    assert (group.description.type, group.description.state, group.activity) == ("Share", "Stable", "unknown")
    assert group.partitions == () and not group.members_known
