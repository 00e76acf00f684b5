"""A member of a classic group against a coordinator whose answers are written down, in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kohort import consumer_protocol
from kohort.assignors.range import Range
from kohort.client.group.classic import ClassicMembership
from kohort.client.group.membership import Membership, MemberState, Subscription
from kohort.client.net.metadata import Metadata, TopicInfo
from kohort.consumer_protocol import (
    NEWEST_VERSION,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from kohort.errors import ErrorCode, FencedError, KafkaError
from kohort.ids import TopicPartition
from kohort.wire.groups import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from kohort.wire.security import SaslAuthenticateResponse, SaslHandshakeResponse
from tests.client.virtual import DROP, GARBLE, PARK, VirtualCluster


def parts(*numbers: int, topic: str = "a") -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in numbers)


class Coordinator:
    """A group of one member of ours, and the assignment that the test chooses."""

    def __init__(self, assignors: str = "range", **settings: Any) -> None:
        settings = {
            "group_id": "g",
            "heartbeat_interval_ms": 1000,
            "partition_assignment_strategy": assignors,
        } | settings
        self.world = VirtualCluster(settings=settings, topics={"a": 4, "b": 2})
        self.generation = 0
        self.heartbeat = ErrorCode.NONE
        self.given: tuple[TopicPartition, ...] | None = None
        self.leader = True
        self.join_errors: list[ErrorCode] = []
        self.sync_errors: list[ErrorCode] = []
        self.others: dict[str, bytes] = {}
        handlers: dict[str, Callable[[Any, int], Any]] = {
            "JoinGroup": self.join,
            "SyncGroup": self.sync,
            "Heartbeat": lambda message, version: HeartbeatResponse(error_code=self.heartbeat),
            "LeaveGroup": lambda message, version: LeaveGroupResponse(),
        }
        self.world.handlers.update(handlers)
        self.member = ClassicMembership(self.world.cluster, self.world.config)

    def join(self, message: Any, version: int) -> Any:
        if self.join_errors:
            return JoinGroupResponse(error_code=self.join_errors.pop(0), protocol_name="", member_id=message.member_id)
        if not message.member_id:
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, protocol_name="", member_id="m-1")
        self.generation += 1
        protocol = message.protocols[0]
        members = {message.member_id: protocol.metadata, **self.others}
        entry = JoinGroupResponse.JoinGroupResponseMember
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=protocol.name,
            leader=message.member_id if self.leader else "other",
            member_id=message.member_id,
            members=[entry(member_id=member_id, metadata=reported) for member_id, reported in members.items()]
            if self.leader
            else [],
        )

    def sync(self, message: Any, version: int) -> Any:
        if self.sync_errors:
            return SyncGroupResponse(error_code=self.sync_errors.pop(0))
        content = (
            message.assignments[0].assignment if self.given is None else write_assignment(NEWEST_VERSION, self.given)
        )
        return SyncGroupResponse(assignment=content)

    def subscribe(self, *topics: str, **more: Any) -> Membership:
        self.member.subscribe(Subscription(topics, **more))
        self.world.run()
        return self.member

    def rebalance(self, *given: TopicPartition) -> None:
        """Tell the member to rejoin, and give it this the next time."""
        self.given = given
        self.heartbeat = ErrorCode.REBALANCE_IN_PROGRESS
        self.world.run(self.world.runtime.now_ms + 1000)
        self.heartbeat = ErrorCode.NONE


def test_a_member_joins_with_the_id_it_is_given_and_assigns_as_the_leader() -> None:
    trial = Coordinator()
    member = trial.subscribe("a", "b")
    assert member.assignment.partitions == parts(0, 1, 2, 3) + parts(0, 1, topic="b")
    assert (member.assignment.generation, member.assignment.member_id) == (1, "m-1")
    assert [request.message.member_id for request in trial.world.sent("JoinGroup")] == ["", "m-1"]


def test_heartbeats_continue_while_the_application_does_nothing() -> None:
    trial = Coordinator()
    trial.subscribe("a")
    trial.world.run(10_500)
    times = [request.at_ms for request in trial.world.sent("Heartbeat")]
    assert len(times) == 10
    assert all(later - earlier == pytest.approx(1000, abs=1) for earlier, later in itertools.pairwise(times))


def test_an_eager_revocation_waits_for_the_application_while_heartbeats_continue() -> None:
    trial = Coordinator()
    member = trial.subscribe("a")
    trial.rebalance(*parts(0, 1))
    assert member.revocation is not None
    assert member.revocation.partitions == parts(0, 1, 2, 3) and not member.revocation.lost
    trial.heartbeat = ErrorCode.REBALANCE_IN_PROGRESS
    before, joins = len(trial.world.sent("Heartbeat")), len(trial.world.sent("JoinGroup"))
    trial.world.run(trial.world.runtime.now_ms + 5000)
    assert len(trial.world.sent("Heartbeat")) == before + 5
    assert len(trial.world.sent("JoinGroup")) == joins
    member.release()
    trial.world.run()
    assert member.assignment.partitions == parts(0, 1)
    assert member.assignment.generation == 2


def test_a_cooperative_member_gives_up_only_what_moves_and_joins_again() -> None:
    trial = Coordinator("cooperative-sticky")
    member = trial.subscribe("a")
    assert member.assignment.partitions == parts(0, 1, 2, 3)
    trial.rebalance(*parts(0, 1))
    assert member.revocation is not None and member.revocation.partitions == parts(2, 3)
    assert member.assignment.partitions == parts(0, 1, 2, 3)
    member.release()
    trial.world.run()
    assert member.assignment.partitions == parts(0, 1)
    joins = trial.world.sent("JoinGroup")
    owned = said_by(joins[-1])
    assert owned.owned == parts(0, 1)
    assert (owned.generation, member.assignment.generation) == (2, 3)


def test_members_that_list_an_eager_assignor_too_are_eager() -> None:
    trial = Coordinator("cooperative-sticky,range")
    member = trial.subscribe("a")
    trial.rebalance(*parts(0, 1))
    assert member.revocation is not None and member.revocation.partitions == parts(0, 1, 2, 3)
    names = [protocol.name for protocol in trial.world.sent("JoinGroup")[-1].message.protocols]
    assert names == ["cooperative-sticky", "range"]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_fenced_member_tells_that_its_partitions_are_lost_before_it_joins_again(code: ErrorCode) -> None:
    trial = Coordinator()
    member = trial.subscribe("a")
    trial.heartbeat = code
    trial.world.run(1500)
    assert member.revocation is not None and member.revocation.lost
    assert member.identity().generation == -1
    trial.heartbeat = ErrorCode.NONE
    joins = len(trial.world.sent("JoinGroup"))
    member.release()
    trial.world.run()
    assert member.assignment.generation == 2
    first = trial.world.sent("JoinGroup")[joins].message.member_id
    assert first == ("" if code is ErrorCode.UNKNOWN_MEMBER_ID else "m-1")


def test_a_session_that_ends_by_the_members_own_clock_is_lost() -> None:
    trial = Coordinator(session_timeout_ms=6000)
    member = trial.subscribe("a")
    trial.world.handlers["Heartbeat"] = lambda message, version: PARK
    trial.world.run(7500)
    assert member.revocation is not None and member.revocation.lost


def test_a_coordinator_that_moves_is_found_without_a_rebalance() -> None:
    trial = Coordinator()
    member = trial.subscribe("a")
    trial.heartbeat = ErrorCode.NOT_COORDINATOR
    trial.world.run(1200)
    trial.heartbeat = ErrorCode.NONE
    trial.world.run(5000)
    assert len(trial.world.sent("FindCoordinator")) >= 2
    assert member.holds_assignment and member.assignment.generation == 1


def test_a_connection_that_breaks_in_the_middle_of_a_join_is_made_again() -> None:
    trial = Coordinator()
    answer = trial.world.handlers["JoinGroup"]
    trial.world.handlers["JoinGroup"] = lambda message, version: PARK
    trial.subscribe("a")
    trial.world.handlers["JoinGroup"] = answer
    trial.world.cut()
    trial.world.run(2000)
    assert trial.member.holds_assignment


def said_by(request: Any) -> consumer_protocol.ConsumerProtocolSubscription:
    """The subscription in a JoinGroup."""
    said = read_subscription(bytes(request.message.protocols[0].metadata))
    assert said is not None
    return said


def claimed(trial: Coordinator, since: int) -> list[tuple[TopicPartition, ...]]:
    """Return the partitions that each JoinGroup from now on claims for its member."""
    return [said_by(request).owned for request in trial.world.sent("JoinGroup")[since:]]


def test_scenario_4_a_sync_that_meets_a_new_rebalance_keeps_what_is_held_and_says_so() -> None:
    """Nothing that does not move is given up, and nothing that is still worked on is left out for others to take."""
    trial = Coordinator("cooperative-sticky")
    member = trial.subscribe("a")
    levels: list[tuple[tuple[TopicPartition, ...], bool]] = []
    trial.member._announce = lambda: levels.append((member.assignment.partitions, member.revocation is not None))
    joins = len(trial.world.sent("JoinGroup"))
    trial.sync_errors = [ErrorCode.REBALANCE_IN_PROGRESS] * 3
    trial.rebalance(*parts(0, 1, 2))
    trial.world.run(trial.world.runtime.now_ms + 5_000)
    assert trial.sync_errors == []
    assert claimed(trial, joins) == [parts(0, 1, 2, 3)] * 4
    assert member.revocation is not None
    assert (member.revocation.partitions, member.revocation.lost) == (parts(3), False), "only what moves"
    assert {held for held, _ in levels} == {parts(0, 1, 2, 3)}, "it works on all the while"
    member.release()
    trial.world.run(trial.world.runtime.now_ms + 5_000)
    assert claimed(trial, joins)[4:] == [parts(0, 1, 2)]
    assert member.holds_assignment and member.assignment.partitions == parts(0, 1, 2)
    assert member.assignment.generation == trial.generation


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_scenario_4_a_sync_of_a_member_that_was_evicted_claims_nothing_afterwards(code: ErrorCode) -> None:
    """Others may own its former partitions by now, so a claim would be stale."""
    trial = Coordinator("cooperative-sticky")
    member = trial.subscribe("a")
    joins = len(trial.world.sent("JoinGroup"))
    trial.sync_errors = [ErrorCode.REBALANCE_IN_PROGRESS, code]
    trial.rebalance(*parts(0, 1))
    trial.world.run(trial.world.runtime.now_ms + 5_000)
    assert member.revocation is not None
    assert (member.revocation.partitions, member.revocation.lost) == (parts(0, 1, 2, 3), True)
    assert claimed(trial, joins) == [parts(0, 1, 2, 3)] * 2, "nor while the application has not let go"
    member.release()
    trial.world.run(trial.world.runtime.now_ms + 5_000)
    assert set(claimed(trial, joins)[2:]) == {()}
    assert member.holds_assignment and member.assignment.partitions == parts(0, 1)


def test_a_sync_whose_answer_is_lost_is_asked_again() -> None:
    trial = Coordinator()
    answer = trial.world.handlers["SyncGroup"]
    trial.world.handlers["SyncGroup"] = lambda message, version: PARK
    trial.subscribe("a")
    trial.world.handlers["SyncGroup"] = answer
    trial.world.cut()
    trial.world.run(2000)
    assert trial.member.holds_assignment and trial.generation == 1
    assert len(trial.world.sent("SyncGroup")) == 2


def joining(**settings: Any) -> Coordinator:
    """A cooperative member that holds four partitions and whose second join is not answered."""
    trial = Coordinator("cooperative-sticky", session_timeout_ms=6000, **settings)
    trial.subscribe("a")
    trial.world.handlers["JoinGroup"] = lambda message, version: PARK
    trial.rebalance(*parts(0, 1))
    assert trial.member.state is MemberState.JOINING and trial.member.assignment.partitions == parts(0, 1, 2, 3)
    return trial


def test_what_is_held_while_a_join_waits_is_kept_as_long_as_heartbeats_are_answered() -> None:
    trial = joining()
    trial.heartbeat = ErrorCode.REBALANCE_IN_PROGRESS
    trial.world.run(trial.world.runtime.now_ms + 30_000)
    assert trial.member.revocation is None and trial.member.assignment.partitions == parts(0, 1, 2, 3)


def test_what_is_held_while_a_join_waits_is_lost_when_nothing_is_answered_for_a_session() -> None:
    trial = joining()
    trial.world.handlers["Heartbeat"] = lambda message, version: PARK
    trial.world.run(trial.world.runtime.now_ms + 4_000)
    assert trial.member.revocation is None
    trial.world.run(trial.world.runtime.now_ms + 4_000)
    revocation = trial.member.revocation
    assert revocation is not None and revocation.lost and revocation.partitions == parts(0, 1, 2, 3)
    trial.member.release()
    assert trial.member.assignment.partitions == ()


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_heartbeats_continue_after_one_that_was_refused_while_a_join_was_on_its_way(code: ErrorCode) -> None:
    """The group went on meanwhile; whether the member is in it is told by the answer to the join."""
    trial = Coordinator("cooperative-sticky", session_timeout_ms=6000)
    trial.subscribe("a")
    beat = trial.world.handlers["Heartbeat"]
    trial.world.handlers["Heartbeat"] = lambda message, version: PARK
    trial.world.run(1_500)
    (waiting,) = trial.world.parked_named("Heartbeat")
    trial.member.request_rejoin("a test")
    trial.world.handlers["JoinGroup"] = lambda message, version: PARK
    trial.world.run(1_600)
    trial.world.answer(waiting, HeartbeatResponse(error_code=code))
    trial.world.handlers["Heartbeat"], trial.world.handlers["JoinGroup"] = beat, trial.join
    (join,) = trial.world.parked_named("JoinGroup")
    trial.world.answer(join, trial.join(join.message, join.version))
    before = len(trial.world.sent("Heartbeat"))
    trial.world.run(trial.world.runtime.now_ms + 5_000)
    assert trial.member.state is MemberState.HOLDING and trial.member.assignment.partitions == parts(0, 1, 2, 3)
    assert len(trial.world.sent("Heartbeat")) - before in (4, 5)


def test_a_member_that_lost_what_its_join_claims_joins_again() -> None:
    """The leader waits for claimed partitions that are to move; only another join says that they are free."""
    trial = joining()
    trial.world.handlers["Heartbeat"] = lambda message, version: PARK
    trial.world.run(trial.world.runtime.now_ms + 8_000)
    trial.member.release()
    trial.world.handlers["JoinGroup"] = trial.join
    trial.world.handlers["Heartbeat"] = lambda message, version: HeartbeatResponse()
    (waiting,) = trial.world.parked_named("JoinGroup")
    trial.world.answer(waiting, trial.join(waiting.message, waiting.version))
    trial.world.run(trial.world.runtime.now_ms + 1_000)
    claims = [said_by(request).owned for request in trial.world.sent("JoinGroup")[-2:]]
    assert claims == [parts(0, 1, 2, 3), parts(0, 1)]
    assert trial.member.holds_assignment and trial.member.assignment.partitions == parts(0, 1)


def test_a_new_join_claims_nothing_that_is_being_lost() -> None:
    trial = joining()
    trial.world.handlers["Heartbeat"] = lambda message, version: PARK
    trial.world.run(trial.world.runtime.now_ms + 8_000)
    assert trial.member.revocation is not None and trial.member.revocation.lost
    said = len(trial.world.sent("JoinGroup"))
    trial.world.handlers["JoinGroup"] = trial.join
    trial.world.handlers["Heartbeat"] = lambda message, version: HeartbeatResponse()
    trial.world.cut()
    trial.world.run(trial.world.runtime.now_ms + 3_000)
    assert len(trial.world.sent("JoinGroup")) == said
    trial.member.release()
    trial.world.run(trial.world.runtime.now_ms + 1_000)
    assert said_by(trial.world.sent("JoinGroup")[said]).owned == ()
    assert trial.member.holds_assignment


def test_an_assignment_that_comes_after_its_session_is_not_taken() -> None:
    """The coordinator has evicted the member since it answered: what the answer gives may be others' by now."""
    trial = Coordinator(session_timeout_ms=6000)
    answer, beat = trial.world.handlers["SyncGroup"], trial.world.handlers["Heartbeat"]
    trial.world.handlers["SyncGroup"] = trial.world.handlers["Heartbeat"] = lambda message, version: PARK
    trial.subscribe("a")
    trial.world.run(7_000)
    (late,) = trial.world.parked_named("SyncGroup")
    trial.world.handlers["SyncGroup"] = lambda message, version: PARK
    trial.world.answer(late, answer(late.message, late.version))
    assert trial.member.assignment.partitions == ()
    trial.world.run(trial.world.runtime.now_ms + 1_000)
    assert trial.generation == 2
    trial.world.handlers |= {"SyncGroup": answer, "Heartbeat": beat}
    again = trial.world.parked_named("SyncGroup")[-1]
    trial.world.answer(again, answer(again.message, again.version))
    assert trial.member.holds_assignment and trial.member.assignment.partitions == parts(0, 1, 2, 3)


def test_a_group_that_cannot_be_joined_is_an_error_for_the_application_and_then_tried_again() -> None:
    trial = Coordinator()
    trial.join_errors = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    member = trial.subscribe("a")
    error = member.take_error()
    assert error is not None and error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    trial.world.run(2000)
    assert member.holds_assignment


def unreadable(trial: Coordinator) -> None:
    trial.world.handlers["Heartbeat"] = lambda message, version: GARBLE


def refused(trial: Coordinator) -> None:
    trial.heartbeat = ErrorCode.GROUP_AUTHORIZATION_FAILED


def logged_out(trial: Coordinator) -> None:
    """The password was changed, and the connection has to be made again."""
    refusal = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="changed")
    trial.world.handlers["SaslAuthenticate"] = lambda message, version: refusal
    trial.world.cut()


@pytest.mark.parametrize("failing", [unreadable, refused, logged_out])
@pytest.mark.parametrize("state", [MemberState.HOLDING, MemberState.REVOKING])
def test_a_heartbeat_that_fails_for_good_is_an_error_and_nothing_is_held_any_more(
    failing: Callable[[Coordinator], None], state: MemberState
) -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "u", "sasl_password": "p"}
    trial = Coordinator(**login)
    healthy: dict[str, Callable[[Any, int], Any]] = {
        "SaslHandshake": lambda message, version: SaslHandshakeResponse(mechanisms=["PLAIN"]),
        "SaslAuthenticate": lambda message, version: SaslAuthenticateResponse(),
        "Heartbeat": trial.world.handlers["Heartbeat"],
    }
    trial.world.handlers.update(healthy)
    member = trial.subscribe("a")
    if state is MemberState.REVOKING:
        trial.rebalance(*parts(0, 1))
    assert member.state is state and member.error is None
    failing(trial)
    trial.world.run(trial.world.runtime.now_ms + 2_000)
    assert member.revocation is not None and member.revocation.lost
    assert member.revocation.partitions == parts(0, 1, 2, 3)
    joins = len(trial.world.sent("JoinGroup"))
    member.release()
    trial.world.run(trial.world.runtime.now_ms + 10_000)
    assert not member.assignment.partitions and len(trial.world.sent("JoinGroup")) == joins
    trial.world.handlers.update(healthy)
    trial.heartbeat = ErrorCode.NONE
    assert isinstance(member.take_error(), KafkaError)
    trial.world.run(trial.world.runtime.now_ms + 2_000)
    assert member.holds_assignment and member.error is None
    times = len(trial.world.sent("Heartbeat"))
    trial.world.run(trial.world.runtime.now_ms + 5_000)
    assert len(trial.world.sent("Heartbeat")) >= times + 4


class Careless(Range):
    """An application's own assignor that fails where it is only told."""

    fails = True

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation: int) -> None:
        if self.fails:
            raise ZeroDivisionError("by its own fault")


def test_a_fault_of_an_assignor_in_on_assignment_is_an_error_of_the_member() -> None:
    assignor = Careless()
    trial = Coordinator(partition_assignment_strategy=[assignor])
    member = trial.subscribe("a")
    error = member.take_error()
    assert error is not None and "ZeroDivisionError: by its own fault" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assignor.fails = False
    trial.world.run(trial.world.runtime.now_ms + 5_000)
    assert member.holds_assignment and member.assignment.partitions == parts(0, 1, 2, 3)


def test_log_reports_an_unreachable_group_at_last_and_then_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trial = Coordinator()
    trial.join_errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1_000
    trial.subscribe("a")
    trial.world.run(2_000)
    assert not caplog.records
    trial.world.run(60_000)
    reported = [record.getMessage() for record in caplog.records]
    assert 2 <= len(reported) <= 4
    assert all("[group g] no answer of the coordinator after" in text and "coordinator" in text for text in reported)


def test_an_instance_id_that_another_took_ends_the_member_for_good() -> None:
    trial = Coordinator(group_instance_id="i-1")
    member = trial.subscribe("a")
    trial.heartbeat = ErrorCode.FENCED_INSTANCE_ID
    trial.world.run(1500)
    member.release()
    trial.world.run(60_000)
    assert isinstance(member.take_error(), FencedError)
    assert isinstance(member.take_error(), FencedError)
    assert trial.generation == 1


def test_an_assignor_that_fails_raises_to_the_application_and_the_leader_leaves() -> None:
    class Broken:
        name, cooperative = "broken", False

        def subscription_user_data(self, topics: object) -> bytes | None:
            return None

        def assign(self, members: object, topics: object) -> Any:
            raise ZeroDivisionError("no racks")

        def on_assignment(self, partitions: object, user_data: object, generation: int) -> None:
            return

    trial = Coordinator(partition_assignment_strategy=[Broken()])
    member = trial.subscribe("a")
    error = member.take_error()
    assert isinstance(error, KafkaError) and "broken" in str(error) and "no racks" in str(error)
    (leave,) = trial.world.sent("LeaveGroup")
    assert leave.message.members[0].reason == "the assignor failed"


def test_a_leader_whose_assignor_fails_gives_up_what_it_held_since_nobody_beats_for_it() -> None:
    class Moody:
        name, cooperative, fails = "moody", True, False

        def subscription_user_data(self, topics: object) -> bytes | None:
            return None

        def assign(self, members: Any, topics: Any) -> Any:
            if self.fails:
                raise ZeroDivisionError("no racks")
            return {member: list(parts(0, 1)) for member in members}

        def assignment_user_data(self) -> dict[str, bytes]:
            return {}

        def on_assignment(self, partitions: object, user_data: object, generation: int) -> None:
            return

    assignor = Moody()
    trial = Coordinator(partition_assignment_strategy=[assignor])
    member = trial.subscribe("a")
    assert member.assignment.partitions == tuple(parts(0, 1))
    assignor.fails = True
    trial.rebalance()
    revocation = member.revocation
    assert revocation is not None and revocation.lost and revocation.partitions == tuple(parts(0, 1))
    assert isinstance(member.take_error(), KafkaError)
    member.release()
    assert not member.assignment.partitions


@pytest.mark.parametrize("reported", [b"", b"\0", b"\xff\xff", b"\0\1\x7f\xff\xff\xff"])
def test_a_member_whose_subscription_can_not_be_read_gets_nothing_and_stops_nobody(reported: bytes) -> None:
    trial = Coordinator()
    trial.others["m-2"] = reported
    member = trial.subscribe("a")
    assert member.assignment.partitions == tuple(parts(0, 1, 2, 3))


def test_user_data_travels_both_ways() -> None:
    seen: list[bytes | None] = []

    class Telling:
        name, cooperative = "telling", False

        def subscription_user_data(self, topics: object) -> bytes | None:
            return b"rack 7"

        def assign(self, members: Any, topics: Any) -> Any:
            seen.extend(member.user_data for member in members.values())
            return {member: list(parts(0)) for member in members}

        def assignment_user_data(self) -> dict[str, bytes]:
            return {"m-1": b"read fast"}

        def on_assignment(self, partitions: object, user_data: bytes | None, generation: int) -> None:
            seen.append(user_data)

    trial = Coordinator(partition_assignment_strategy=[Telling()])
    member = trial.subscribe("a")
    assert seen == [b"rack 7", b"read fast"]
    assert member.assignment.user_data == b"read fast"


def test_the_leader_rebalances_when_partitions_are_added_and_gathers_changes() -> None:
    trial = Coordinator(metadata_max_age_ms=1000, rebalance_batch_ms=5000)
    member = trial.subscribe("a", "b")
    trial.world.run(1500)
    trial.world.topics["a"] = 5
    trial.world.run(3000)
    trial.world.topics["b"] = 3
    trial.world.run(5000)
    assert member.revocation is None
    trial.world.run(8000)
    assert member.revocation is not None
    member.release()
    trial.world.run(9000)
    assert len(member.assignment.partitions) == 8 and trial.generation == 2


def test_the_leader_rebalances_when_a_topic_is_deleted() -> None:
    trial = Coordinator(metadata_max_age_ms=1000)
    member = trial.subscribe("a", "b")
    assert {part.topic for part in member.assignment.partitions} == {"a", "b"}
    del trial.world.topics["b"]
    trial.world.run(3000)
    assert member.revocation is not None
    member.release()
    trial.world.run(4000)
    assert {part.topic for part in member.assignment.partitions} == {"a"} and trial.generation == 2


@pytest.mark.parametrize("subscribed", [{"topics": ("a", "b")}, {"topics": ("a",)}, {"pattern": "^a"}])
def test_the_leader_rebalances_when_a_topic_is_deleted_that_anyone_reads(subscribed: dict[str, Any]) -> None:
    trial = Coordinator(metadata_max_age_ms=1000, rebalance_batch_ms=0)
    trial.others = {"other": write_subscription(consumer_protocol.ConsumerProtocolSubscription(NEWEST_VERSION, ("b",)))}
    member = trial.subscribe(*subscribed.pop("topics", ()), **subscribed)
    trial.world.run(1500)
    assert member.revocation is None and trial.generation == 1
    del trial.world.topics["b"]
    trial.world.run(4000)
    member.release()
    trial.world.run(20_000)
    assert member.holds_assignment and trial.generation == 2, "once, and not again for a topic that stays away"
    given = trial.world.sent("SyncGroup")[-1].message.assignments
    read = {topic for entry in given for topic in topics_of(bytes(entry.assignment))}
    assert read == {"a"}


def topics_of(assignment: bytes) -> list[str]:
    """The topics that an assignment gives partitions of."""
    given = read_assignment(assignment)
    assert given is not None
    return sorted({topic for topic, _ in given.partitions})


def test_a_change_that_another_rebalance_took_up_asks_for_no_second_one() -> None:
    trial = Coordinator(metadata_max_age_ms=1000, rebalance_batch_ms=5000)
    member = trial.subscribe("a")
    trial.world.topics["a"] = 5
    trial.world.run(2500)
    trial.heartbeat = ErrorCode.REBALANCE_IN_PROGRESS
    trial.world.run(3500)
    trial.heartbeat = ErrorCode.NONE
    member.release()
    trial.world.run(20_000)
    assert member.assignment.partitions == parts(0, 1, 2, 3, 4)
    assert member.holds_assignment and trial.generation == 2


def test_a_follower_leaves_metadata_changes_to_the_leader() -> None:
    trial = Coordinator(metadata_max_age_ms=1000)
    trial.leader, trial.given = False, parts(0)
    member = trial.subscribe("a")
    trial.world.topics["a"] = 9
    trial.world.run(10_000)
    assert member.revocation is None and trial.generation == 1


def test_a_pattern_finds_topics_that_appear_later() -> None:
    trial = Coordinator(metadata_max_age_ms=1000)
    member = trial.subscribe(pattern="^a")
    assert {part.topic for part in member.assignment.partitions} == {"a"}
    trial.world.topics["another"] = 1
    trial.world.run(3000)
    member.release()
    trial.world.run(4000)
    assert {part.topic for part in member.assignment.partitions} == {"a", "another"}


def test_a_changed_subscription_joins_again() -> None:
    trial = Coordinator()
    member = trial.subscribe("a")
    trial.subscribe("b")
    member.release()
    trial.world.run(1000)
    assert member.assignment.partitions == parts(0, 1, topic="b")


def test_a_member_that_is_not_polled_leaves_and_rejoins_with_the_next_poll() -> None:
    trial = Coordinator(max_poll_interval_ms=5000)
    member = trial.subscribe("a")
    trial.world.run(4000)
    member.record_poll()
    trial.world.run(8000)
    assert member.holds_assignment
    trial.world.run(9500)
    assert member.revocation is not None and member.revocation.lost
    (leave,) = trial.world.sent("LeaveGroup")
    assert "not polled for 5000 ms" in leave.message.members[0].reason
    member.release()
    beats = len(trial.world.sent("Heartbeat"))
    trial.world.run(20_000)
    assert len(trial.world.sent("Heartbeat")) == beats and trial.generation == 1
    member.record_poll()
    trial.world.run(21_000)
    assert member.holds_assignment and trial.generation == 2


@pytest.mark.parametrize("asked_by", ["leader", "itself"])
@pytest.mark.parametrize("polls", [False, True], ids=["not-polled", "polled-and-held"])
def test_a_member_that_does_not_release_what_is_revoked_leaves_and_joins_again(asked_by: str, polls: bool) -> None:
    """The coordinator waits for nobody meanwhile: the group is stable for it."""
    trial = Coordinator("cooperative-sticky" if asked_by == "leader" else "range", max_poll_interval_ms=5_000)
    member = trial.subscribe("a")
    if asked_by == "leader":
        trial.rebalance(*parts(0, 1))
    else:
        trial.member.request_rejoin("the topics changed")
        trial.world.run(1_000)
    assert member.state is MemberState.REVOKING and member.revocation is not None and not member.revocation.lost
    for at_ms in range(2_000, 9_000, 500):
        trial.world.run(at_ms)
        if polls:
            member.record_poll()
    assert member.revocation is not None and member.revocation.lost
    assert member.revocation.partitions == parts(0, 1, 2, 3) and not member.is_joined
    (leave,) = trial.world.sent("LeaveGroup")
    reason = leave.message.members[0].reason
    assert reason == ("revoked partitions not released for 5000 ms" if polls else "not polled for 5000 ms")
    beats = len(trial.world.sent("Heartbeat"))
    trial.world.run(20_000)
    assert len(trial.world.sent("Heartbeat")) == beats, "a member that has left sends none"
    member.record_poll()
    member.release()
    trial.world.run(21_000)
    assert member.holds_assignment and member.assignment.member_id


@pytest.mark.parametrize("answered", [True, False], ids=["joined", "joining"])
def test_a_member_that_does_not_acknowledge_a_loss_while_it_joins_leaves(answered: bool) -> None:
    trial = Coordinator("cooperative-sticky", max_poll_interval_ms=15_000, session_timeout_ms=6_000)
    member = trial.subscribe("a")
    trial.world.handlers["JoinGroup"] = lambda message, version: PARK
    trial.world.handlers["Heartbeat"] = lambda message, version: DROP
    member.request_rejoin("the topics changed")  # type: ignore[attr-defined]
    trial.world.run(8_000)
    assert member.revocation is not None and member.revocation.lost
    trial.world.handlers["Heartbeat"] = lambda message, version: HeartbeatResponse(error_code=ErrorCode.NONE)
    trial.world.handlers["JoinGroup"] = trial.join
    (join,) = trial.world.parked
    refused = JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR, protocol_name="", member_id="m-1")
    trial.world.answer(join, trial.join(join.message, 0) if answered else refused)
    trial.world.run(14_000)
    assert member.is_joined and not trial.world.sent("LeaveGroup")
    trial.world.run(40_000)
    assert [leave.message.members[0].reason for leave in trial.world.sent("LeaveGroup")] == ["not polled for 15000 ms"]
    assert not member.is_joined and member.revocation is not None and member.revocation.lost
    member.record_poll()
    member.release()
    trial.world.run(41_000)
    assert member.holds_assignment and member.assignment.partitions == parts(0, 1, 2, 3)


def test_leave_is_sent_even_while_a_join_is_waiting() -> None:
    trial = Coordinator()
    member = trial.subscribe("a")
    trial.world.handlers["JoinGroup"] = lambda message, version: PARK
    trial.rebalance()
    member.release()
    trial.world.run()
    assert member.state is MemberState.JOINING
    trial.world.call(member.leave("closed"))
    (leave,) = trial.world.sent("LeaveGroup")
    (join,) = trial.world.parked_named("JoinGroup")
    assert leave.link != join.link and leave.message.members[0].reason == "closed"


def test_a_static_member_does_not_leave() -> None:
    trial = Coordinator(group_instance_id="i-1")
    member = trial.subscribe("a")
    trial.world.call(member.leave("closed"))
    assert trial.world.sent("LeaveGroup") == []


def test_a_subscription_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    trial = Coordinator()
    join = trial.join

    def newer(message: Any, version: int) -> Any:
        answer = join(message, version)
        for member in answer.members:
            member.metadata = (9).to_bytes(2, "big") + bytes(member.metadata)[2:] + b"\0\0\0\7of the future"
        return answer

    trial.world.handlers["JoinGroup"] = newer
    assert trial.subscribe("a").assignment.partitions == parts(0, 1, 2, 3)


def test_a_pattern_does_not_find_a_topic_that_another_member_names_and_that_is_not_there() -> None:
    """The leader asks for it, forgets it with the next full metadata, and would rebalance the group each time."""
    topics = {"a": TopicInfo("a"), "gone": TopicInfo("gone", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
    assert Subscription(pattern=".*").matching_topics(Metadata(topics=topics), exclude_internal=True) == ("a",)


def test_leader_asks_for_creation_of_its_own_topics_only() -> None:
    """Another member's pattern matched the other topic: when it is deleted, the leader must not bring it back."""
    trial = Coordinator(metadata_max_age_ms=1000)
    trial.world.cluster.auto_create_topics = True
    trial.others["m-2"] = write_subscription(consumer_protocol.ConsumerProtocolSubscription(NEWEST_VERSION, ("b",)))
    trial.subscribe("a")
    del trial.world.topics["b"]
    trial.world.run(5_000)
    asked = [
        (request.message.allow_auto_topic_creation, topic.name)
        for request in trial.world.sent("Metadata")
        for topic in request.message.topics
    ]
    assert {name for create, name in asked if create} == {"a"}
    assert asked.count((False, "b")) > 1
