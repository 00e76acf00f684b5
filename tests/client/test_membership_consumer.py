"""A member of a KIP-848 group against a coordinator whose answers are written down, in virtual time."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest

from kohort.client.group.kip848 import ConsumerMembership
from kohort.client.group.membership import Subscription
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import CommitFailedError, ErrorCode
from kohort.ids import TopicPartition
from kohort.wire.discovery import MetadataResponse
from kohort.wire.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from kohort.wire.offsets import OffsetCommitResponse
from tests.client.virtual import DROP, PARK, VirtualCluster

IDS = {"a": uuid.UUID(int=0xA), "b": uuid.UUID(int=0xB)}
HEARTBEAT = "ConsumerGroupHeartbeat"


def parts(*numbers: int, topic: str = "a") -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in numbers)


class Coordinator:
    """Gives what the test says to give, in answers as KIP-848 has them."""

    def __init__(self, **settings: Any) -> None:
        settings = {"group_id": "g", "group_protocol": "consumer"} | settings
        self.world = VirtualCluster(settings=settings, topics={"a": 4, "b": 2})
        metadata = self.world.handlers["Metadata"]

        def with_ids(message: Any, version: int) -> Any:
            if message.topics and message.topics[0].name is None:
                names = [
                    name for name, topic_id in IDS.items() if topic_id in {topic.topic_id for topic in message.topics}
                ]
                message.topics = [type(message.topics[0])(name=name) for name in names]
            answer: MetadataResponse = metadata(message, version)
            for topic in answer.topics:
                topic.topic_id = IDS.get(topic.name or "", topic.topic_id)
            return answer

        self.world.handlers["Metadata"] = with_ids
        self.world.handlers[HEARTBEAT] = self.heartbeat
        self.epoch = 0
        self.news: tuple[TopicPartition, ...] | None = parts(0, 1, 2, 3)
        self.error = ErrorCode.NONE
        ids = itertools.count(1)
        self.member = ConsumerMembership(self.world.cluster, self.world.config, new_member_id=lambda: f"m-{next(ids)}")

    def heartbeat(self, message: Any, version: int) -> Any:
        if message.member_epoch < 0:
            return ConsumerGroupHeartbeatResponse(member_epoch=message.member_epoch)
        if self.error:
            return ConsumerGroupHeartbeatResponse(error_code=self.error)
        answer = ConsumerGroupHeartbeatResponse(member_id=message.member_id, heartbeat_interval_ms=1000)
        if message.member_epoch == 0:
            self.epoch += 1
        if self.news is not None:
            entries = [
                ConsumerGroupHeartbeatResponse.TopicPartitions(
                    topic_id=topic_id, partitions=[part.partition for part in self.news if part.topic == name]
                )
                for name, topic_id in IDS.items()
                if any(part.topic == name for part in self.news)
            ]
            answer.assignment = ConsumerGroupHeartbeatResponse.Assignment(topic_partitions=entries)
            self.news = None
        answer.member_epoch = self.epoch
        return answer

    def subscribe(self, *topics: str, **more: Any) -> ConsumerMembership:
        self.member.subscribe(Subscription(topics, **more))
        self.world.run()
        return self.member

    def beats(self) -> list[Any]:
        return [request.message for request in self.world.sent(HEARTBEAT)]


def owned(message: ConsumerGroupHeartbeatRequest) -> dict[uuid.UUID, list[int]] | None:
    return (
        None
        if message.topic_partitions is None
        else {topic_partition.topic_id: topic_partition.partitions for topic_partition in message.topic_partitions}
    )


def test_a_member_joins_with_its_own_id_takes_what_it_is_given_and_says_so_at_once() -> None:
    trial = Coordinator()
    member = trial.subscribe("a")
    first, second = trial.beats()
    assert (first.member_id, first.member_epoch, first.subscribed_topic_names) == ("m-1", 0, ["a"])
    assert owned(first) == {}
    assert owned(second) == {IDS["a"]: [0, 1, 2, 3]} and second.subscribed_topic_names is None
    assert member.holds_assignment and member.assignment.partitions == parts(0, 1, 2, 3)


def test_a_heartbeat_without_news_carries_nothing_and_comes_at_the_coordinators_interval() -> None:
    trial = Coordinator()
    trial.subscribe("a")
    trial.world.run(5500)
    quiet = trial.beats()[2:]
    assert len(quiet) == 5
    assert all(beat.topic_partitions is None and beat.subscribed_topic_names is None for beat in quiet)
    assert all(beat.rebalance_timeout_ms == -1 for beat in quiet)


def test_revocation_is_acknowledged_only_after_the_application_released_the_partitions() -> None:
    trial = Coordinator()
    member = trial.subscribe("a")
    trial.news, trial.epoch = parts(0, 1), 2
    trial.world.run(5000)
    assert member.revocation is not None and member.revocation.partitions == parts(2, 3)
    assert all(owned(beat) is None for beat in trial.beats()[2:])
    assert len(trial.beats()) >= 5
    member.release()
    trial.world.run()
    assert owned(trial.beats()[-1]) == {IDS["a"]: [0, 1]}
    assert member.holds_assignment and member.assignment.partitions == parts(0, 1)
    assert (member.assignment.generation, member.identity().generation) == (2, 2)


@pytest.mark.parametrize("owner", ["m-1", "another"])
def test_static_member_whose_join_had_no_answer_releases_its_instance_id(owner: str) -> None:
    """Kafka's coordinator refuses also the member that has the id, until its session is over."""
    trial = Coordinator(group_instance_id="i")
    answer, holder = trial.heartbeat, [owner]

    def heartbeat(message: Any, version: int) -> Any:
        if message.member_epoch == -2 and holder == [message.member_id]:
            holder.clear()
        if message.member_epoch == 0 and len(trial.beats()) == 1:
            return DROP
        if message.member_epoch == 0 and holder:
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNRELEASED_INSTANCE_ID)
        return answer(message, version)

    trial.world.handlers[HEARTBEAT] = heartbeat
    member = trial.subscribe("a")
    trial.world.run(20_000)
    assert [beat.member_epoch for beat in trial.beats()].count(-2) == 1
    assert member.holds_assignment == (owner == "m-1")


def test_static_member_fenced_by_its_epoch_releases_its_instance_id() -> None:
    trial = Coordinator(group_instance_id="i")
    answer, holder = trial.heartbeat, ["m-1"]

    def heartbeat(message: Any, version: int) -> Any:
        if message.member_epoch == -2 and holder == [message.member_id]:
            holder.clear()
        if message.member_epoch == 0 and holder and member.rebalances:
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNRELEASED_INSTANCE_ID)
        return answer(message, version)

    trial.world.handlers[HEARTBEAT] = heartbeat
    member = trial.member
    trial.subscribe("a")
    trial.error = ErrorCode.FENCED_MEMBER_EPOCH
    trial.world.run(1_500)
    trial.error, trial.news = ErrorCode.NONE, parts(0)
    member.release()
    trial.world.run(10_000)
    assert member.holds_assignment and holder == []


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_a_fenced_member_loses_everything_and_joins_afresh(code: ErrorCode) -> None:
    trial = Coordinator()
    member = trial.subscribe("a")
    trial.error = code
    trial.world.run(1500)
    assert member.revocation is not None and member.revocation.lost and not member.is_joined
    trial.error, trial.news = ErrorCode.NONE, parts(1)
    trial.world.run(5000)
    assert not member.is_joined
    member.release()
    trial.world.run()
    assert member.assignment.partitions == parts(1) and member.is_joined
    again = next(beat for beat in trial.beats()[3:] if beat.member_epoch == 0)
    assert owned(again) == {} and again.subscribed_topic_names == ["a"]


def test_member_reports_everything_again_after_a_failure() -> None:
    trial = Coordinator()
    trial.subscribe("a")
    trial.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    trial.world.run(1100)
    trial.error = ErrorCode.NONE
    trial.world.run(2000)
    beat = trial.beats()[-1]
    assert owned(beat) == {IDS["a"]: [0, 1, 2, 3]} and beat.subscribed_topic_names == ["a"]
    assert trial.member.holds_assignment


def test_what_is_owned_is_said_in_knowledge_of_the_answer_before() -> None:
    """News while a heartbeat is held: it is asked for on the same connection, and the news follows it.

    Said at once, "I own 0 and 1" would crosswise release what the answer under way gives: another would have it too.
    """
    trial = Coordinator()
    trial.news = parts(0, 1, 2)
    member = trial.subscribe("a")
    trial.news = parts(0, 1)
    trial.world.run(1_500)
    assert member.revocation is not None and member.revocation.partitions == parts(2)
    answers = trial.world.handlers[HEARTBEAT]
    trial.world.handlers[HEARTBEAT] = lambda message, version: PARK
    trial.world.run(2_500)
    (beat,) = trial.world.parked_named(HEARTBEAT)
    asked = len(trial.world.sent("Metadata"))
    metadata = trial.world.handlers["Metadata"]
    trial.world.handlers["Metadata"] = lambda message, version: PARK  # brokers answer a connection's requests in order
    member.release()
    trial.world.run(2_600)
    assert trial.world.parked_named(HEARTBEAT) == [beat]
    (request,) = trial.world.sent("Metadata")[asked:]
    assert (request.link, request.message.topics) == (beat.link, [])
    trial.world.run(3_000)
    assert len(trial.world.sent("Metadata")) == asked + 1
    trial.world.handlers.update({HEARTBEAT: answers, "Metadata": metadata})
    trial.epoch, trial.news = 2, parts(0, 1, 3)
    before = len(trial.beats())
    trial.world.answer(beat, answers(beat.message, beat.version))
    trial.world.answer(request, metadata(request.message, request.version))
    after = trial.beats()[before]
    assert (after.member_epoch, owned(after)) == (2, {IDS["a"]: [0, 1, 3]})


def test_an_assignment_that_comes_when_a_heartbeat_is_due_is_acknowledged_by_that_one_alone() -> None:
    """A second one behind it would be fenced for nothing.

    It would say an epoch that the first has ended when the group moves on meanwhile.
    """
    trial = Coordinator()
    trial.news = parts(0)
    trial.subscribe("a")
    answers = trial.world.handlers[HEARTBEAT]
    trial.world.handlers[HEARTBEAT] = lambda message, version: PARK
    trial.world.run(1_500)
    (held,) = trial.world.parked_named(HEARTBEAT)
    trial.world.run(3_500)
    trial.epoch, trial.news = 2, parts(0, 1)
    trial.world.answer(held, answers(held.message, held.version))
    assert [owned(request.message) for request in trial.world.parked_named(HEARTBEAT)] == [{IDS["a"]: [0, 1]}]


def test_a_pattern_is_left_to_the_coordinator_and_unknown_topics_are_asked_for_by_id() -> None:
    trial = Coordinator()
    trial.news = parts(0, topic="b")
    member = trial.subscribe(pattern="^b$")
    assert trial.beats()[0].subscribed_topic_regex == "(?s).*(?:^b$).*"
    assert trial.beats()[0].subscribed_topic_names == []
    assert member.assignment.partitions == parts(0, topic="b")


def said(beats: list[Any]) -> list[tuple[Any, Any]]:
    """The names and patterns of the heartbeats that have any."""
    spoken = [(beat.subscribed_topic_names, beat.subscribed_topic_regex) for beat in beats]
    return [(names, pattern) for names, pattern in spoken if (names, pattern) != (None, None)]


def test_pattern_takes_the_place_of_names_and_names_that_of_a_pattern() -> None:
    """Names and pattern add up at the coordinator: what the subscription no longer has is sent empty (KIP-848)."""
    trial = Coordinator()
    trial.subscribe("a")
    trial.subscribe(pattern="^a$")
    trial.subscribe("a")
    trial.subscribe("a", "b")
    assert said(trial.beats()) == [(["a"], None), ([], "(?s).*(?:^a$).*"), (["a"], ""), (["a", "b"], None)]


def test_full_heartbeat_takes_back_a_pattern_whose_end_may_not_have_arrived() -> None:
    trial = Coordinator()
    trial.subscribe(pattern="^a$")
    answers, trial.world.handlers[HEARTBEAT] = trial.world.handlers[HEARTBEAT], lambda message, version: DROP
    trial.member.subscribe(Subscription(("a",)))
    trial.world.run(trial.world.runtime.now_ms + 100)
    trial.world.handlers[HEARTBEAT] = answers
    trial.world.run(trial.world.runtime.now_ms + 5_000)
    assert said(trial.beats())[-1] == (["a"], "")
    assert trial.member.holds_assignment


def commit_at(trial: Coordinator, *epochs: int, timeout_ms: int = 5_000) -> tuple[Any, list[int]]:
    """A commit that the coordinator takes with these epochs only, and the epochs that it is sent with."""
    sent: list[int] = []

    def take_commit(message: Any, version: int) -> Any:
        epoch = message.generation_id_or_member_epoch
        sent.append(epoch)
        code = ErrorCode.NONE if epoch in epochs else ErrorCode.STALE_MEMBER_EPOCH
        make = OffsetCommitResponse.OffsetCommitResponseTopic
        part = make.OffsetCommitResponsePartition(partition_index=0, error_code=code)
        return OffsetCommitResponse(topics=[make(topic_id=IDS["a"], partitions=[part])])

    trial.world.handlers["OffsetCommit"] = take_commit
    member = trial.subscribe("a")
    commit = member.commit({parts(0)[0]: OffsetAndMetadata(7)}, timeout_ms)
    return trial.world.cluster.runtime.spawn(commit, "commit"), sent


def test_commit_is_sent_again_once_the_members_epoch_has_risen() -> None:
    """The member keeps its partitions, and the commit had its epoch of before (as Kafka's consumer)."""
    trial = Coordinator()
    task, sent = commit_at(trial, 2)
    trial.world.run(trial.world.runtime.now_ms + 500)
    assert not task.done
    trial.epoch = 2
    trial.world.run(trial.world.runtime.now_ms + 2_000)
    assert task.done and task.error is None
    assert sent == [1, 2]


@pytest.mark.parametrize("end", ["fenced", "no newer epoch", "partition revoked"])
def test_commit_of_a_member_that_gets_no_newer_epoch_fails(end: str) -> None:
    trial = Coordinator()
    task, sent = commit_at(trial, 2)
    if end == "fenced":
        trial.error = ErrorCode.FENCED_MEMBER_EPOCH
    elif end == "partition revoked":
        trial.news = parts(1, 2, 3)
        trial.world.run(trial.world.runtime.now_ms + 1_500)
        trial.member.release()
        trial.epoch = 2
    trial.world.run(trial.world.runtime.now_ms + 6_000)
    assert task.done and isinstance(task.error, CommitFailedError)
    assert sent == [1]


def test_commit_is_not_sent_again_after_its_partition_was_lost_and_came_back() -> None:
    """Another member may have committed further meanwhile: the group's offset would be set back."""
    trial = Coordinator()
    task, sent = commit_at(trial, 2, timeout_ms=60_000)
    take_commit, trial.world.handlers["OffsetCommit"] = trial.world.handlers["OffsetCommit"], lambda *_: DROP
    trial.world.run(trial.world.runtime.now_ms + 100)
    trial.error = ErrorCode.FENCED_MEMBER_EPOCH
    trial.world.run(trial.world.runtime.now_ms + 3_000)
    trial.error, trial.news = ErrorCode.NONE, parts(0, 1, 2, 3)
    trial.member.release()
    trial.world.run(trial.world.runtime.now_ms + 3_000)
    assert trial.member.holds_assignment and trial.epoch == 2
    trial.world.handlers["OffsetCommit"] = take_commit
    trial.world.run(trial.world.runtime.now_ms + 10_000)
    assert task.done and isinstance(task.error, CommitFailedError)
    assert sent == [1]


def test_metadata_after_a_loss_is_that_of_the_lost_assignment_until_the_member_has_joined() -> None:
    """The coordinator accepts transactional offsets without a member from anyone."""
    trial = Coordinator()
    member = trial.subscribe("a")
    before = member.metadata()
    trial.error = ErrorCode.FENCED_MEMBER_EPOCH
    trial.world.run(trial.world.runtime.now_ms + 3_000)
    assert member.metadata() == before
    trial.world.handlers[HEARTBEAT], answers = lambda *_: DROP, trial.world.handlers[HEARTBEAT]
    member.release()
    trial.world.run(trial.world.runtime.now_ms + 500)
    assert not member.is_joined and member.metadata() == before
    trial.world.handlers[HEARTBEAT], trial.error = answers, ErrorCode.NONE
    trial.world.run(trial.world.runtime.now_ms + 3_000)
    assert member.metadata().generation_id == 2


def test_log_says_why_a_member_was_fenced(caplog: pytest.LogCaptureFixture) -> None:
    trial = Coordinator(session_timeout_ms=6_000)
    trial.subscribe("a")
    trial.world.runtime.advance(10_000)  # the process was stopped, or starved
    trial.world.run()
    (reported,) = [record.getMessage() for record in caplog.records if "lost its partitions" in record.getMessage()]
    assert "not heard for a session; the last answered request was sent 10000 ms ago" in reported
    assert "and the process was paused for 9000 ms since" in reported


@pytest.mark.parametrize("answer", [PARK, DROP])
def test_a_topic_that_metadata_does_not_name_holds_up_no_heartbeat_and_costs_nothing_that_is_held(
    answer: object,
) -> None:
    trial = Coordinator(session_timeout_ms=6_000)
    member = trial.subscribe("a")
    metadata = trial.world.handlers["Metadata"]

    def unnamed(message: Any, version: int) -> Any:
        return answer if message.topics and message.topics[0].name is None else metadata(message, version)

    trial.world.handlers["Metadata"] = unnamed
    trial.epoch, trial.news = 2, parts(0, 1, 2, 3) + parts(0, topic="b")
    trial.world.run(trial.world.runtime.now_ms + 20_000)
    assert member.holds_assignment and member.assignment.partitions == parts(0, 1, 2, 3)
    assert [beat.member_epoch for beat in trial.beats()].count(0) == 1
    times = [request.at_ms for request in trial.world.sent(HEARTBEAT)]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 2_500
    trial.world.handlers["Metadata"] = metadata
    trial.world.cut()
    trial.world.run(trial.world.runtime.now_ms + 5_000)
    assert member.assignment.partitions == parts(0, 1, 2, 3) + parts(0, topic="b")


def test_a_changed_subscription_is_sent_at_once() -> None:
    trial = Coordinator()
    trial.subscribe("a")
    trial.subscribe("a", "b")
    assert trial.beats()[-1].subscribed_topic_names == ["a", "b"]


def test_a_broker_without_the_protocol_is_an_error_that_says_so() -> None:
    trial = Coordinator()
    trial.world.highest[ConsumerGroupHeartbeatRequest.API_KEY] = -1
    error = trial.subscribe("a").take_error()
    assert error is not None and error.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_member_that_is_not_polled_leaves_and_rejoins_with_the_next_poll() -> None:
    trial = Coordinator(max_poll_interval_ms=5000)
    member = trial.subscribe("a")
    trial.world.run(5500)
    assert trial.beats()[-1].member_epoch == -1
    assert member.revocation is not None and member.revocation.lost
    member.release()
    said = len(trial.beats())
    trial.world.run(20_000)
    assert len(trial.beats()) == said
    trial.news = parts(3)
    member.record_poll()
    trial.world.run(21_000)
    assert member.assignment.partitions == parts(3)


def test_a_session_that_ends_by_the_members_own_clock_is_lost() -> None:
    trial = Coordinator(session_timeout_ms=6000)
    member = trial.subscribe("a")
    trial.world.handlers[HEARTBEAT] = lambda message, version: PARK
    trial.world.run(9000)
    assert member.revocation is not None and member.revocation.lost


def silent_for_a_session(**settings: Any) -> Coordinator:
    """A member that holds four partitions at epoch 3 until its session ends by its own clock, and lets go of them."""
    trial = Coordinator(session_timeout_ms=6000, **settings)
    trial.epoch = 2
    member = trial.subscribe("a")
    assert member.identity().generation == 3
    trial.world.handlers[HEARTBEAT] = lambda message, version: PARK
    trial.world.run(9000)
    assert member.revocation is not None and member.revocation.lost
    trial.world.handlers[HEARTBEAT] = trial.heartbeat
    return trial


def refusing_once(trial: Coordinator, code: ErrorCode) -> None:
    """One heartbeat that says an epoch is answered with this error."""
    refused = ConsumerGroupHeartbeatResponse(error_code=code)
    said: list[Any] = []

    def heartbeat(message: Any, version: int) -> Any:
        if message.member_epoch > 0 and not said:
            said.append(message)
            return refused
        return trial.heartbeat(message, version)

    trial.world.handlers[HEARTBEAT] = heartbeat


def test_a_member_that_is_still_known_after_a_silent_session_keeps_its_id_and_epoch() -> None:
    """The member held nothing meanwhile, nobody is disturbed, and the coordinator sends its whole assignment."""
    trial = silent_for_a_session()
    said, trial.news = len(trial.beats()), parts(0, 1, 2, 3)
    assert not trial.member.is_joined
    trial.member.release()
    trial.world.run()
    back = trial.beats()[said]
    assert (back.member_id, back.member_epoch, owned(back)) == ("m-1", 3, {})
    assert back.subscribed_topic_names == ["a"] and back.rebalance_timeout_ms > 0
    assert trial.member.holds_assignment and trial.member.assignment.partitions == parts(0, 1, 2, 3)
    assert (trial.member.assignment.generation, trial.member.identity().member_id) == (3, "m-1")


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND])
def test_after_a_silent_session_a_member_that_was_forgotten_joins_under_another_id(code: ErrorCode) -> None:
    """The group may have ended and been created again: a commit sent before must not count for the new one."""
    trial = silent_for_a_session()
    said, trial.news, trial.epoch = len(trial.beats()), parts(1), 2
    refusing_once(trial, code)
    trial.member.release()
    trial.world.run()
    assert [(beat.member_id, beat.member_epoch) for beat in trial.beats()[said : said + 2]] == [("m-1", 3), ("m-2", 0)]
    assert trial.member.identity().member_id == "m-2"
    assert trial.member.assignment.partitions == parts(1)


def test_after_a_silent_session_a_member_whose_group_has_moved_on_joins_under_its_id() -> None:
    trial = silent_for_a_session()
    said, trial.news = len(trial.beats()), parts(1)
    refusing_once(trial, ErrorCode.FENCED_MEMBER_EPOCH)
    trial.member.release()
    trial.world.run()
    assert [(beat.member_id, beat.member_epoch) for beat in trial.beats()[said : said + 2]] == [("m-1", 3), ("m-1", 0)]
    assert trial.member.assignment.partitions == parts(1)


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("i-1", -2)])
def test_leaving_says_whether_the_member_will_be_back(instance: str | None, epoch: int) -> None:
    trial = Coordinator(group_instance_id=instance)
    member = trial.subscribe("a")
    trial.world.call(member.leave("closed"))
    assert (trial.beats()[-1].member_epoch, trial.beats()[-1].instance_id) == (epoch, instance)
    assert member.assignment.partitions == ()


def test_an_error_that_keeps_a_member_out_takes_what_it_held() -> None:
    """The member reports no partitions when it rejoins, because a coordinator would count on them."""
    trial = Coordinator()
    member = trial.subscribe("a")
    trial.error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    trial.world.run(trial.world.runtime.now_ms + 1_500)
    assert member.take_error() is not None
    trial.world.run()
    assert member.revocation is not None and member.revocation.lost
    trial.error = ErrorCode.NONE
    member.release()
    trial.news = parts(2)
    trial.world.run(trial.world.runtime.now_ms + 1_500)
    whole = [beat for beat in trial.beats() if beat.subscribed_topic_names is not None]
    assert [(beat.member_epoch, owned(beat)) for beat in whole] == [(0, {}), (1, {})]
    assert member.assignment.partitions == parts(2)


def test_partitions_of_a_topic_that_was_made_again_are_given_up_until_the_coordinator_says_whose_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial = Coordinator()
    trial.news = (*parts(0, 1), *parts(0, topic="b"))
    member = trial.subscribe("a", "b")
    old, new = IDS["a"], uuid.UUID(int=0xA2)
    monkeypatch.setitem(IDS, "a", new)
    said = len(trial.beats())
    trial.world.call(trial.world.cluster.describe_topics(["a"]))
    assert member.recreated_topics() == {"a"}
    assert member.revocation is not None and member.revocation.partitions == parts(0, 1)
    trial.world.run(trial.world.runtime.now_ms + 3_000)
    assert all(new not in (owned(beat) or {}) for beat in trial.beats()[said:])
    member.release()
    trial.news = parts(1, 2)
    trial.world.run(trial.world.runtime.now_ms + 1_500)
    full = trial.beats()[said:]
    assert any(owned(beat) == {IDS["b"]: [0]} and beat.subscribed_topic_names == ["a", "b"] for beat in full)
    assert all(old not in (owned(beat) or {}) for beat in full)
    assert member.revocation is not None and member.revocation.partitions == parts(0, topic="b")
    member.release()
    trial.world.run(trial.world.runtime.now_ms + 1_500)
    assert (
        member.holds_assignment and member.assignment.partitions == parts(1, 2) and member.recreated_topics() == set()
    )
    assert owned(trial.beats()[-1]) in (None, {new: [1, 2]})
