"""A query without Spark: its calls and the word that a sink is done, in every order."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.support.waiting import STILL_S, until

from kohort import Admin, Broker, Producer
from kohort.broker.server.fault_kinds import Fault
from kohort.client.admin.values import NewTopic
from kohort.client.group.member import GroupMember
from kohort.client.offsets import Assignment
from kohort.errors import CommitFailedError
from kohort.ids import TopicPartition
from kohort.spark.options import parse_options
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.membership import BatchTimeLimit, long_batch_warning
from kohort.spark.source.query import SourceQuery

pytestmark = pytest.mark.filterwarnings("default")
"""The pipes of Spark's gateway in the tests before are collected, and warned of, while these run."""

PARTITIONS = 4
BOUND_MS = 1_500


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


@dataclass
class Stage:
    """A topic, a group, and queries as Spark drives them."""

    broker: Broker
    admin: Admin
    name: str
    sent: int = 0

    def query(self, identity: str = "q1", **more: Any) -> SourceQuery:
        said = {
            "kafka.bootstrap.servers": self.broker.bootstrap_servers,
            "subscribe": self.name,
            "group.id": self.name,
            "startingOffsets": "earliest",
            "kafka.heartbeat.interval.ms": 200,
        }
        given = {key: str(value) for key, value in (said | more).items() if value is not None}
        return SourceQuery(parse_options(given), identity)

    def produce(self, each: int) -> None:
        with Producer(self.broker.bootstrap_servers) as producer:
            for number in range(each * PARTITIONS):
                producer.send(self.name, b"%d" % number, partition=number % PARTITIONS)

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(PARTITIONS)]

    def committed(self) -> list[int]:
        found = self.admin.list_consumer_group_offsets(self.name, self.partitions).all()
        return [0 if position is None else position.offset for position in found.values()]

    def member(self, **settings: Any) -> GroupMember:
        servers = self.broker.bootstrap_servers
        return GroupMember(servers, self.name, topics=[self.name], heartbeat_interval_ms=200, **settings)

    def share(self, member: GroupMember, count: int) -> Assignment:
        """Return a member's partitions once it has this many."""

        def holds() -> bool:
            if member.revocation() is not None:
                member.release()
            return member.owns() and len(member.assignment().partitions) == count

        until(holds, f"the member holds {count} partitions", STILL_S)
        return member.assignment()


@pytest.fixture
def stage(broker: Broker) -> Iterator[Stage]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS)]).all()
        yield Stage(broker, admin, name)
    broker.faults.clear()


@pytest.fixture
def closing() -> Iterator[Callable[[SourceQuery], SourceQuery]]:
    every: list[SourceQuery] = []

    def keep(query: SourceQuery) -> SourceQuery:
        every.append(query)
        return query

    yield keep
    for query in every:
        query.close()


def trigger(query: SourceQuery, start: BatchOffset) -> BatchOffset:
    """A trigger as Spark makes it, until there is a batch: `latestOffset`, then `partitions`."""
    found: list[BatchOffset] = []

    def planned() -> bool:
        query.commit_completed_batch(start)
        batch = query.plan_batch(start, limited=True)
        if batch is not None:
            found.append(batch)
        return bool(found)

    until(planned, "a batch is planned", STILL_S)
    assert query.ranges_to_replay(start, found[0]) == found[0]
    return found[0]


def idle(query: SourceQuery, start: BatchOffset) -> None:
    """A trigger that has nothing to read."""
    query.commit_completed_batch(start)
    assert query.plan_batch(start, limited=True) is None


def test_query_with_state_is_warned_of_other_members_once_for_each_change(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery], caplog: pytest.LogCaptureFixture
) -> None:
    """Windows count the query's own partitions alone, and stay behind when partitions move."""
    stage.produce(10)
    query, plain = closing(stage.query()), "keeps state"
    first = trigger(query, BatchOffset("q1"))
    query.record_stateful()
    assert query.sink_done(first)
    idle(query, first)
    assert plain not in caplog.text, "it has all partitions"
    with stage.member() as other:
        other_has = threading.Thread(target=lambda: stage.share(other, 2))
        other_has.start()
        until(lambda: idle(query, first) is None and plain in caplog.text, "the query is warned", STILL_S)
        other_has.join()
        idle(query, first)
        assert f"[group {stage.name}] the query keeps state" in caplog.text
        assert "has 2 of the 4 partitions" in caplog.text
        assert caplog.text.count(plain) == 1


def test_query_without_state_is_not_warned_of_other_members(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery], caplog: pytest.LogCaptureFixture
) -> None:
    stage.produce(10)
    with stage.member() as other:
        stage.share(other, 4)
        query = closing(stage.query())
        sharing = threading.Thread(target=lambda: stage.share(other, 2))
        sharing.start()
        first = trigger(query, BatchOffset("q1"))
        sharing.join()
        assert query.sink_done(first)
        idle(query, first)
        assert "keeps state" not in caplog.text


@pytest.mark.parametrize("where", ["subscribe", "assign", "no group"])
def test_the_word_before_the_next_trigger_commits_and_the_trigger_has_nothing_left_to_do(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery], where: str
) -> None:
    stage.produce(10)
    more: dict[str, Any] = {"group.id": None} if where == "no group" else {}
    if where == "assign":
        more = {"subscribe": None, "assign": f'{{"{stage.name}": [0, 1, 2, 3]}}'}
    query = closing(stage.query(**more))
    first = trigger(query, BatchOffset("q1"))
    assert query.is_running()
    assert stage.committed() == [0] * PARTITIONS
    assert query.sink_done(first)
    assert not query.is_running()
    done = [0 if where == "no group" else 10] * PARTITIONS
    assert stage.committed() == done
    assert not query.sink_done(first), "it ended before"
    idle(query, first)
    stage.produce(5)
    second = trigger(query, first)
    assert [span.start for span in second.spans.values()] == [10] * PARTITIONS
    assert stage.committed() == done


def test_the_word_after_the_next_trigger_ends_nothing(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery]
) -> None:
    stage.produce(10)
    query = closing(stage.query(maxOffsetsPerTrigger=20))
    first = trigger(query, BatchOffset("q1"))
    second = trigger(query, first)
    assert stage.committed() == [5] * PARTITIONS
    assert not query.sink_done(first)
    assert query.is_running()
    assert stage.committed() == [5] * PARTITIONS
    assert query.sink_done(second)
    assert stage.committed() == [10] * PARTITIONS


def test_the_word_of_another_batch_ends_nothing(stage: Stage, closing: Callable[[SourceQuery], SourceQuery]) -> None:
    stage.produce(10)
    query = closing(stage.query())
    first = trigger(query, BatchOffset("q1"))
    shorter = {tp: replace(span, end=span.end - 1) for tp, span in first.spans.items()}
    for other in (
        BatchOffset("q1"),
        replace(first, query="q2"),
        replace(first, batch=first.batch + 1),
        replace(first, generation=first.generation - 1),
        replace(first, spans=shorter),
    ):
        assert not query.sink_done(other)
    assert query.is_running()
    assert stage.committed() == [0] * PARTITIONS


def test_a_batch_of_an_earlier_run_ends_under_the_text_that_spark_has(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery]
) -> None:
    """Planned before a restart, as another generation: Spark reports it as it was planned."""
    stage.produce(10)
    before = stage.query()
    planned = trigger(before, BatchOffset("q1"))
    before.close()
    assert not before.sink_done(planned), "a query that is closed knows nothing of its batch"
    assert stage.committed() == [0] * PARTITIONS
    query = closing(stage.query())
    again = query.ranges_to_replay(BatchOffset("q1"), planned)
    assert again == planned
    assert query.sink_done(planned)
    assert stage.committed() == [10] * PARTITIONS
    idle(query, planned)


@pytest.mark.parametrize("protocol", ["classic", "consumer", "push"])
def test_an_idle_query_gives_up_what_is_wanted_at_once_and_is_not_evicted(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery], protocol: str
) -> None:
    """The next trigger is beyond max.poll.interval.ms; the other is there before the sink is done, or comes after."""
    stage.produce(10)
    options = {"group.protocol": protocol, "kafka.max.poll.interval.ms": BOUND_MS}
    query = closing(stage.query(**options))
    first = trigger(query, BatchOffset("q1"))
    assert query.sink_done(first)
    settings = {"group_protocol": protocol, "max_poll_interval_ms": BOUND_MS}
    with stage.member(**settings) as one:
        stage.share(one, 2)
        with stage.member(**settings) as two:
            until(lambda: both(stage, one, two), "all three share: the query is one of them", STILL_S)
    stage.produce(5)
    second = trigger(query, first)
    assert query.sink_done(second), "it is a member still"


def both(stage: Stage, *members: GroupMember) -> bool:
    """Whether members and the query have a share each."""
    for member in members:
        if member.revocation() is not None:
            member.release()
    shares = [len(member.assignment().partitions) for member in members]
    return all(1 <= share <= 2 for share in shares) and sum(shares) < PARTITIONS


def test_a_revocation_waits_for_the_word_and_no_longer(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery]
) -> None:
    stage.produce(10)
    query = closing(stage.query())
    first = trigger(query, BatchOffset("q1"))
    with stage.member() as newcomer:
        group = query._coordinator._group  # type: ignore[attr-defined]
        until(lambda: group._member.revocation() is not None, "the query is asked for partitions")
        assert newcomer.assignment().partitions == ()
        assert query.sink_done(first)
        mine = stage.share(newcomer, 2).partitions
        assert [position.offset for position in newcomer.committed(mine).values() if position is not None] == [10, 10]


@pytest.mark.parametrize("then", ["fail", "release"])
def test_partitions_that_were_given_away_before_the_word(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery], then: str
) -> None:
    stage.produce(10)
    query = closing(stage.query(onRevocationTimeout=then, **{"kafka.max.poll.interval.ms": BOUND_MS}))
    first = trigger(query, BatchOffset("q1"))
    with stage.member(max_poll_interval_ms=BOUND_MS) as newcomer:
        stage.share(newcomer, PARTITIONS)
        assert query.sink_done(first)
        assert not query.is_running()
        assert stage.committed() == [0] * PARTITIONS
        stage.share(newcomer, 2)
    if then == "fail":
        words = r"batch ran for \d+ s, .*max.poll.interval.ms=1500: raise it .*; onRevocationTimeout=release goes on"
        with pytest.raises(CommitFailedError, match=words):
            query.commit_completed_batch(first)
        return

    def claimed() -> bool:
        idle(query, first)
        return stage.committed() == [10] * PARTITIONS

    until(claimed, "nobody committed meanwhile: what its sink has it claims with the partitions", STILL_S)


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("another of its instance id", "give each query one of its own"),
        ("an administrator", "or the member was removed"),
    ],
)
def test_partitions_that_were_taken_away_are_reported_with_their_cause(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery], by: str, words: str
) -> None:
    stage.produce(10)
    static = {"kafka.group.instance.id": "one"} if by == "another of its instance id" else {}
    query = closing(stage.query(**static))
    first = trigger(query, BatchOffset("q1"))
    if static:
        with stage.member(group_instance_id="one") as other:
            until(lambda: other.owns() and other.assignment().partitions != (), "it has taken over", STILL_S)
            with pytest.raises(CommitFailedError, match=words):
                query.commit_completed_batch(first)
        return
    stage.admin.remove_members_from_consumer_group(stage.name).all()
    with pytest.raises(CommitFailedError, match=words):
        query.commit_completed_batch(first)


@pytest.mark.parametrize("by", ["trigger", "close"])
def test_a_commit_that_nobody_answers_is_tried_again(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery], caplog: pytest.LogCaptureFixture, by: str
) -> None:
    stage.produce(10)
    query = closing(stage.query(**{"kafka.default.api.timeout.ms": 1_000, "kafka.request.timeout.ms": 500}))
    first = trigger(query, BatchOffset("q1"))
    stage.broker.faults.add(Fault("OffsetCommit", "drop", group=stage.name, times=None))
    assert query.sink_done(first)
    assert "the commit of its offsets failed and will be retried" in caplog.text
    assert not query.is_running(), "nothing more has to be heard of it"
    stage.broker.faults.clear()
    if by == "trigger":
        idle(query, first)
    else:
        query.close()
    assert stage.committed() == [10] * PARTITIONS


def test_a_trigger_while_the_word_is_being_committed_waits_and_commits_nothing_twice(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery]
) -> None:
    stage.produce(10)
    query = closing(stage.query(maxOffsetsPerTrigger=20))
    first = trigger(query, BatchOffset("q1"))
    held = stage.broker.faults.add(Fault("OffsetCommit", "hold", group=stage.name))
    reported: list[bool] = []
    ear = threading.Thread(target=lambda: reported.append(query.sink_done(first)))
    ear.start()
    held.wait()
    second: list[BatchOffset] = []
    spark = threading.Thread(target=lambda: second.append(trigger(query, first)))
    spark.start()
    assert not reported and not second
    held.release()
    for thread in (ear, spark):
        thread.join(STILL_S)
    assert reported == [True]
    assert [span.start for span in second[0].spans.values()] == [5] * PARTITIONS
    assert stage.committed() == [5] * PARTITIONS
    assert query.is_running()


def test_the_word_while_a_trigger_commits_the_same_batch(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery]
) -> None:
    stage.produce(10)
    query = closing(stage.query(maxOffsetsPerTrigger=20))
    first = trigger(query, BatchOffset("q1"))
    held = stage.broker.faults.add(Fault("OffsetCommit", "hold", group=stage.name))
    spark = threading.Thread(target=lambda: query.commit_completed_batch(first))
    spark.start()
    held.wait()
    reported: list[bool] = []
    ear = threading.Thread(target=lambda: reported.append(query.sink_done(first)))
    ear.start()
    held.release()
    for thread in (spark, ear):
        thread.join(STILL_S)
    assert reported == [False]
    assert stage.committed() == [5] * PARTITIONS


def test_a_query_that_ends_while_the_word_is_being_committed_does_not_hang(stage: Stage) -> None:
    stage.produce(10)
    query = stage.query()
    first = trigger(query, BatchOffset("q1"))
    stage.broker.faults.add(Fault("OffsetCommit", "drop", group=stage.name, times=None))
    reported: list[bool] = []
    ear = threading.Thread(target=lambda: reported.append(query.sink_done(first)))
    ear.start()
    until(query._ending.locked, "the commit is under way")
    query.close()
    ear.join(STILL_S)
    assert reported == [True]


def test_a_long_batch_is_warned_of_once_and_where_nothing_is_heard_the_trigger_is_named(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery], caplog: pytest.LogCaptureFixture
) -> None:
    stage.produce(10)
    query = closing(stage.query(**{"kafka.max.poll.interval.ms": BOUND_MS}))
    trigger(query, BatchOffset("q1"))
    bound = BatchTimeLimit("kafka.max.poll.interval.ms", BOUND_MS)
    warning = long_batch_warning(bound, heard=False)
    until(lambda: any(warning in message for message in caplog.messages), "it is said as soon as it is seen")
    assert "trigger" in warning
    assert "trigger" not in long_batch_warning(bound, heard=True)


def test_the_progress_names_the_group(stage: Stage) -> None:
    stage.produce(1)
    query = stage.query()
    try:
        until(lambda: query.plan_batch(BatchOffset("q1"), limited=False) is not None, "a batch is planned", STILL_S)
        report = query.progress_report()
        assert report is not None and report["group"] == stage.name and set(report["topics"]) == {stage.name}
    finally:
        query.close()


def test_the_progress_counts_rebalances(stage: Stage, closing: Callable[[SourceQuery], SourceQuery]) -> None:
    stage.produce(1)
    query = closing(stage.query())
    assert query.progress_report() is None, "nothing is known before the first look"
    first = trigger(query, BatchOffset("q1"))
    (member,) = stage.admin.describe_consumer_groups([stage.name]).result(stage.name).members
    report = query.progress_report()
    assert report is not None and (report["member"], report["rebalances"]) == (member.member_id, 1)
    assert report["lastDowntimeMs"] >= 0
    assert query.sink_done(first)
    with stage.member() as newcomer:
        stage.share(newcomer, 2)
        until(lambda: (query.progress_report() or {})["rebalances"] > 1, "it is counted without a trigger", STILL_S)


@pytest.mark.parametrize("where", ["assign", "no group"])
def test_the_progress_of_a_query_that_is_no_member_has_no_rebalances(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery], where: str
) -> None:
    stage.produce(1)
    more = {"group.id": None} if where == "no group" else {"subscribe": None, "assign": f'{{"{stage.name}": [0, 1]}}'}
    query = closing(stage.query(**more))
    trigger(query, BatchOffset("q1"))
    report = query.progress_report()
    assert report is not None
    assert [report[name] for name in ("member", "rebalances", "lastDowntimeMs")] == [None, 0, None]


def test_few_records_wait_from_the_second_trigger_of_a_run_on(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery]
) -> None:
    """The first trigger of a run counts also where it finds nothing, as in Spark's own source."""
    least = {"minOffsetsPerTrigger": 8, "maxTriggerDelay": "1h"}
    query = closing(stage.query(**least))
    idle(query, BatchOffset("q1"))
    stage.produce(1)
    idle(query, BatchOffset("q1"))
    stage.produce(1)
    first = trigger(query, BatchOffset("q1"))
    assert [span.offset_count for span in first.spans.values()] == [2] * PARTITIONS
    stage.produce(1)
    idle(query, first)
    query.close()
    again = closing(stage.query(**least))
    second = trigger(again, first)
    assert [span.offset_count for span in second.spans.values()] == [1] * PARTITIONS
    stage.produce(1)
    idle(again, second)


def test_few_records_wait_for_no_longer_than_the_delay(
    stage: Stage, closing: Callable[[SourceQuery], SourceQuery]
) -> None:
    stage.produce(1)
    query = closing(stage.query(minOffsetsPerTrigger=8, maxTriggerDelay="1s"))
    first = trigger(query, BatchOffset("q1"))
    stage.produce(1)
    second = trigger(query, first)
    assert [span.offset_count for span in second.spans.values()] == [1] * PARTITIONS
