"""The cost of a read, and the rest of it when a part of the cluster does not answer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.waiting import until

from kohort import Admin, Broker, Producer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.client.admin.values import NewTopic
from kohort.errors import ErrorCode, KafkaError
from kohort.io.metrics_http import metrics_page
from kohort.lag import LagReader, LagReport, ReadFailure
from kohort.lag.cluster_watch import ClusterWatch
from kohort.lag.exporter import LagExporter
from kohort.lag.reading import ATTEMPTS_MAX, GROUPS_PER_REQUEST
from kohort.lag.record_times import OFFSETS_MAX, ROUNDS_MAX

GROUPS, PARTITIONS = 500, 50


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


@pytest.fixture
def reader(broker: Broker) -> Iterator[LagReader]:
    with LagReader(broker.bootstrap_servers) as reader:
        yield reader


def behind(broker: Broker, topic: str, groups: int, partitions: int) -> None:
    """Makes groups that are one record behind in every partition of a topic."""
    every = [TopicPartition(topic, number) for number in range(partitions)]
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topics([NewTopic(topic, partitions, 1)]).all()
        for partition in every:
            producer.send(topic, b"x", partition=partition.partition)
        producer.flush()
        for number in range(groups):
            admin.alter_consumer_group_offsets(f"g-{number}", dict.fromkeys(every, 0)).all()


def requests(broker: Broker) -> Counter[str]:
    return Counter(broker.metrics()["requests"])


@pytest.mark.timeout(300)
def test_read_of_many_groups_takes_few_requests(broker: Broker, reader: LagReader) -> None:
    """Kafka's own command sends a FindCoordinator, an OffsetFetch and two ListOffsets for each of 500 groups."""
    behind(broker, "t", GROUPS, PARTITIONS)
    found: list[tuple[LagReport, Counter[str]]] = []
    for _ in range(2):
        before = requests(broker)
        report = reader.read()
        found.append((report, requests(broker) - before))
    chunks = -(-GROUPS // GROUPS_PER_REQUEST)
    for report, sent in found:
        assert not report.failures and not report.errors
        assert len(report.groups) == GROUPS
        assert {group.sum_lag for group in report.groups.values()} == {PARTITIONS}
        assert sent["FindCoordinator"] == 0
        assert sent["ListGroups"] == 1
        assert sent["DescribeGroups"] == sent["OffsetFetch"] == chunks
        assert sent["ListOffsets"] == 3
    first, second = found
    assert first[1]["Metadata"] <= 3 and first[1]["Fetch"] == 1
    assert second[1]["Metadata"] <= 1 and second[1]["Fetch"] == 0, "leaders and timestamps are known"
    assert sum(second[1].values()) <= 2 * chunks + 6
    assert all(part.is_time_lag_exact for group in second[0].groups.values() for part in group.partitions)


def test_timestamps_of_many_offsets_take_bounded_fetches(broker: Broker, reader: LagReader) -> None:
    """Groups at 40 offsets of one partition: some in each read, until all are known."""
    place, count = TopicPartition("t", 0), 40
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topics([NewTopic("t", 1, 1)]).all()
        for number in range(count):
            producer.send("t", b"x", partition=0, timestamp_ms=1_000_000_000_000 + number)
        producer.flush()
        for number in range(count):
            admin.alter_consumer_group_offsets(f"g-{number}", {place: number}).all()
    known: list[int] = []
    assert count <= OFFSETS_MAX
    while not known or known[-1] < count:
        before = requests(broker)
        report = reader.read()
        assert (requests(broker) - before)["Fetch"] <= ROUNDS_MAX
        known.append(sum(group.partitions[0].is_time_lag_exact for group in report.groups.values()))
        assert len(known) == 1 or known[-1] > known[-2]
    times = {group.partitions[0].committed: group.partitions[0].oldest_ms for group in report.groups.values()}
    assert times == {number: 1_000_000_000_000 + number for number in range(count)}


def test_records_that_may_not_be_read_leave_offset_lag(broker: Broker, reader: LagReader) -> None:
    behind(broker, "t", 1, 2)
    broker.faults.add(Fault("Fetch", "fail", times=None, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    report = reader.read()
    group = report.groups["g-0"]
    assert (group.sum_lag, group.max_time_lag_ms) == (2, None)
    assert {failure.reason for failure in report.failures} == {"not_authorized"}
    broker.faults.clear()
    reader._times.retry_refused_topics()
    assert reader.read().groups["g-0"].max_time_lag_ms is not None


@pytest.mark.parametrize("api", ["ListOffsets", "OffsetFetch", "DescribeGroups", "Fetch"])
def test_silent_broker_is_named_and_the_next_read_is_whole(broker: Broker, reader: LagReader, api: str) -> None:
    behind(broker, "t", 1, 1)
    fault = broker.faults.add(Fault(api, "drop", times=None))
    report = reader.read(timeout_ms=2_000)
    group = report.groups.get("g-0")
    said = [*report.failures, *(ReadFailure.of(name, error) for name, error in report.errors.items())]
    assert "timed_out" in {failure.reason for failure in said}
    if api == "Fetch":
        assert group is not None and group.sum_lag == 1 and group.max_time_lag_ms is None
    elif api == "ListOffsets":
        assert group is not None and group.partitions[0].cause == "unavailable"
    else:
        assert group is None and "g-0" in report.errors
    fault.remove()
    whole = reader.read()
    assert not whole.failures and whole.groups["g-0"].partitions[0].time_lag_ms is not None


def change_answers(reader: LagReader, monkeypatch: pytest.MonkeyPatch, api: str, change: Callable[[Any], None]) -> None:
    """Changes answers of an API on their way to the reader."""
    cluster = reader._client.cluster
    send = cluster.send

    async def sent(*args: Any, **more: Any) -> Any:
        answer = await send(*args, **more)
        if type(answer).__name__ == f"{api}Response":
            change(answer)
        return answer

    monkeypatch.setattr(cluster, "send", sent)


@pytest.mark.parametrize("api", ["DescribeGroups", "OffsetFetch"])
def test_group_that_an_answer_leaves_out_is_an_error_of_this_group_alone(
    broker: Broker, reader: LagReader, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    """The read ended with KeyError, so that no group had a lag."""
    behind(broker, "t", 3, 2)

    def leave_out(answer: Any) -> None:
        answer.groups = [group for group in answer.groups if group.group_id != "g-1"]

    change_answers(reader, monkeypatch, api, leave_out)
    report = reader.read()
    assert {name: group.sum_lag for name, group in report.groups.items()} == {"g-0": 2, "g-2": 2}
    assert report.errors.keys() == {"g-1"}
    assert "g-1" in str(report.errors["g-1"]) and "answer" in str(report.errors["g-1"])


def test_partition_that_an_answer_leaves_out_is_unavailable_alone(
    broker: Broker, reader: LagReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind(broker, "t", 1, 2)

    def leave_out(answer: Any) -> None:
        for topic in answer.topics:
            topic.partitions = [part for part in topic.partitions if part.partition_index != 0]

    change_answers(reader, monkeypatch, "ListOffsets", leave_out)
    first, second = reader.read().groups["g-0"].partitions
    assert (first.cause, first.lag, second.cause, second.lag) == ("unavailable", None, None, 1)


def test_group_that_two_brokers_list_is_on_the_page_once(
    broker: Broker, reader: LagReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a coordinator moves, both list its groups, and the whole page was refused for it (kminion #335)."""
    behind(broker, "t", 2, 2)

    def repeat(answer: Any) -> None:
        answer.groups = [*answer.groups, *answer.groups]

    change_answers(reader, monkeypatch, "ListGroups", repeat)
    watch = ClusterWatch("c", reader, 3_600)
    try:
        until(lambda: watch.state.report is not None, "the cluster is read")
        page = b"".join(metrics_page(LagExporter([watch]).collect(), compressed=False)).decode()
    finally:
        watch.close()
    series = [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]
    assert 'kafka_consumergroup_group_sum_lag{cluster_name="c",group="g-1"}' in series
    assert len(series) == len(set(series))


@pytest.mark.parametrize("api", ["DescribeGroups", "OffsetFetch", "ListOffsets"])
def test_cluster_that_goes_away_during_a_read_is_an_error(broker: Broker, reader: LagReader, api: str) -> None:
    """A page would show its groups without lag, in place of the last whole read."""
    behind(broker, "t", 1, 1)
    assert reader.read().groups["g-0"].sum_lag == 1
    fault = broker.faults.add(Fault(api, "drop", times=None))

    def kill_in_the_middle() -> None:
        until(lambda: fault.hits > 0, "the read has come to it")
        broker.kill()

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    with pytest.raises(KafkaError):
        reader.read(timeout_ms=20_000)
    killer.join()


def test_broker_that_closes_single_connections_leaves_the_rest_of_the_read(broker: Broker, reader: LagReader) -> None:
    behind(broker, "t", 1, 1)
    broker.faults.add(Fault("ListOffsets", "close", times=None))
    report = reader.read(timeout_ms=5_000)
    assert report.groups["g-0"].partitions[0].cause == "unavailable" and report.failures


def test_moved_coordinator_and_leader_are_asked_again(broker: Broker, reader: LagReader) -> None:
    behind(broker, "t", 1, 1)
    for api, code in (
        ("ListGroups", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("DescribeGroups", ErrorCode.NOT_COORDINATOR),
        ("OffsetFetch", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("ListOffsets", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ):
        fault = broker.faults.add(Fault(api, "fail", times=1, error=code))
        report = reader.read()
        assert fault.hits == 1 <= ATTEMPTS_MAX
        assert not report.errors and report.groups["g-0"].sum_lag == 1, api


def test_cluster_that_is_away_is_an_error_and_is_read_again(broker: Broker, reader: LagReader) -> None:
    behind(broker, "t", 1, 1)
    assert reader.read().groups["g-0"].sum_lag == 1
    broker.kill()
    with pytest.raises(KafkaError, match="refused|unreachable|reached|no metadata"):
        reader.read(timeout_ms=1_500)
    broker.restart()

    def whole() -> bool:
        try:
            report = reader.read(timeout_ms=5_000)
        except KafkaError:
            return False
        return not report.failures and "g-0" in report.groups and report.groups["g-0"].sum_lag == 1

    until(whole, "the broker is read again", 60)
