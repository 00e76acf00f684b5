"""A push member's partitions and their lease: no socket, no broker, frames from the test. Source: spec 4.10."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.client.group.membership import Subscription
from kohort.client.group.push import PushMembership
from kohort.client.net.connection import FRAMES_MAX
from kohort.client.offsets import GroupIdentity, OffsetAndMetadata, commit_offsets
from kohort.errors import ErrorCode
from kohort.ids import TopicPartition
from kohort.io.processes import ownership_ms
from kohort.wire.groups import LeaveGroupResponse
from kohort.wire.push import (
    ClusterMetadataResponse,
    CoordinatorRequest,
    ErrorResponse,
    PositionedPartition,
    PushBroker,
    PushType,
    RegisterConsumerRequest,
    decode_ping_response,
    encode_ping,
    encode_start,
    encode_stop,
    push_frame_type,
)
from tests.client.virtual import PARK, VirtualCluster

SESSION_MS = 6_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class PushCluster(VirtualCluster):
    """A coordinator that registers everyone; what else it says is the test's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.handlers["LeaveGroup"] = lambda message, version: LeaveGroupResponse()
        self.registered: list[RegisterConsumerRequest] = []
        self.answers: list[bytes] = []
        self.turned: set[int] = set()
        self.link = 0
        self.refuses = ErrorCode.NONE

    def _receive(self, link: int, frame: bytes) -> None:
        body = frame[4:]
        if link in self.turned:
            self.answers.append(body)
        elif push_frame_type(body) == PushType.CLUSTER_METADATA:
            self.say(ClusterMetadataResponse(0, 1, (PushBroker(1, "127.0.0.1", 9092),)).encode_frame(), link)
        elif push_frame_type(body) == PushType.REGISTER_CONSUMER:
            self.registered.append(RegisterConsumerRequest.decode(body))
            self.turned.add(link)
            self.link = link
            self.say(ErrorResponse(self.refuses).encode_frame(), link)
        else:
            super()._receive(link, frame)

    def say(self, body: bytes, link: int | None = None) -> None:
        self.cluster.connections.on_frame_received(self.link if link is None else link, memoryview(body))

    def ask(self, body: bytes) -> bytes | None:
        """Ask; the answer, if it comes now."""
        before = len(self.answers)
        self.say(body)
        self.run()
        return self.answers[-1] if len(self.answers) > before else None

    @property
    def stands(self) -> bool:
        return self.link in self.open_links


class Held:
    """A member that was started with t-0, and its coordinator."""

    def __init__(self, kind: type[PushMembership] = PushMembership, **settings: Any) -> None:
        given = {"group_id": "g", "session_timeout_ms": SESSION_MS, "auto_offset_reset": "earliest"} | settings
        self.cluster = cluster = PushCluster(given, {"t": 2})
        self.member = kind(cluster.cluster, cluster.config, new_member_id=lambda: "m")
        self.member.record_poll()
        self.member.subscribe(Subscription(("t",)))
        cluster.run()
        assert cluster.ask(start(T0)) == ErrorResponse(0).encode_frame()
        assert self.member.assignment.partitions == (T0,)

    @property
    def lost(self) -> bool:
        return self.member.revocation is not None and self.member.revocation.lost


def start(*parts: TopicPartition, offset: int = 5) -> bytes:
    return encode_start([PositionedPartition(part.topic, 1, part.partition, offset) for part in parts])


@pytest.fixture
def held() -> Held:
    return Held()


def test_it_says_what_it_is(held: Held) -> None:
    (said,) = held.cluster.registered
    assert said == RegisterConsumerRequest("g", "m", '{"t":1}', True, "smallest", SESSION_MS)
    assert held.member.starts == {T0: 5}


def test_pings_are_answered_with_what_was_worked_on(held: Held) -> None:
    raw = held.cluster.ask(encode_ping(0))
    assert raw is not None
    assert decode_ping_response(raw, True) == (PositionedPartition("t", 1, 0, 5),)
    held.member.set_positions_to_report({T0: 9, T1: 3})
    raw = held.cluster.ask(encode_ping(0))
    assert raw is not None
    assert decode_ping_response(raw, True) == (PositionedPartition("t", 1, 0, 9),), "of what it was started with only"
    assert Held(enable_auto_commit=False).cluster.ask(encode_ping(0)) == b""


def test_it_owns_for_a_session_after_the_last_answer_that_arrived(held: Held) -> None:
    """The answer to the first Ping is sent at 2 s, and known to have arrived by the second one."""
    cluster = held.cluster
    cluster.run(2_000)
    cluster.ask(encode_ping(0))
    cluster.run(4_000)
    cluster.ask(encode_ping(0))
    end_ms = 2_000 + ownership_ms(SESSION_MS)
    cluster.run(end_ms - 1)
    assert held.member.owns
    assert held.member.revocation is None
    cluster.run(end_ms + 1)
    assert not held.member.owns
    assert held.lost
    assert not cluster.stands, "the connection is closed before another one is made"


class TakesAnyPing(PushMembership):
    """A planted fault: a repeated Ping renews the lease."""

    @staticmethod
    def _confirms(asked: CoordinatorRequest) -> bool:
        return True


@pytest.mark.parametrize(("kind", "lost"), [(PushMembership, True), (TakesAnyPing, False)])
def test_a_repeated_ping_renews_nothing(kind: type[PushMembership], lost: bool) -> None:
    """The member's answers never arrive: the coordinator repeats its Ping, and reassigns after a session."""
    held = Held(kind)
    cluster = held.cluster
    for retries in range(3):
        cluster.run(1_500 * (retries + 1))
        cluster.ask(encode_ping(retries))
    cluster.run(ownership_ms(SESSION_MS) + 1)
    assert held.lost is lost


def test_an_old_ping_in_the_buffer_says_nothing_of_now(held: Held) -> None:
    """The process stood still for two sessions; the Ping came while it did, and is not even answered."""
    held.cluster.runtime.set_time(2 * SESSION_MS)
    before = len(held.cluster.answers)
    held.cluster.say(encode_ping(0))
    held.cluster.run()
    assert held.lost
    assert len(held.cluster.answers) == before


def test_consumer_rejoins_under_its_id_and_reads_on_meanwhile(held: Held) -> None:
    cluster = held.cluster
    cluster.cut()
    assert held.member.assignment.partitions == (T0,)
    cluster.run(1_000)
    assert [said.consumer_id for said in cluster.registered] == ["m", "m"]
    held.member.set_positions_to_report({T0: 8})
    raw = cluster.ask(encode_ping(0))
    assert raw is not None
    assert decode_ping_response(raw, True)[0].offset == 8
    assert cluster.ask(start(T0, offset=8)) == ErrorResponse(0).encode_frame()
    assert held.member.revocation is None
    assert held.member.assignment.generation == 1, "nothing was revoked"


def test_a_stop_waits_for_the_application_and_its_last_positions_follow(held: Held) -> None:
    cluster, member = held.cluster, held.member
    assert cluster.ask(encode_stop()) is None
    assert member.revocation is not None
    assert member.owns, "until it lets go"
    member.set_positions_to_report({T0: 11})
    member.release()
    cluster.run()
    assert cluster.answers[-1] == ErrorResponse(0).encode_frame()
    raw = cluster.ask(encode_ping(0))
    assert raw is not None
    assert decode_ping_response(raw, True)[0].offset == 11
    assert cluster.ask(start(T1)) == ErrorResponse(0).encode_frame()
    assert member.assignment.partitions == (T1,)


def test_partitions_released_for_a_stop_that_could_not_be_answered_are_started_again(held: Held) -> None:
    """The connection ended in between, and whoever coordinates now has no reason to stop it."""
    cluster, member = held.cluster, held.member
    assert cluster.ask(encode_stop()) is None
    cluster.cut()
    member.release()
    cluster.run()
    assert member.assignment.partitions == ()
    cluster.run(1_000)
    assert cluster.ask(encode_ping(0)) is not None
    assert cluster.ask(start(T0, offset=7)) == ErrorResponse(0).encode_frame()
    cluster.run()
    assert member.assignment.partitions == (T0,)
    assert member.starts == {T0: 7}
    assert member.holds_assignment


def test_a_stop_that_the_application_does_not_answer_in_its_lease_is_lost(held: Held) -> None:
    held.cluster.ask(encode_stop())
    held.cluster.run(ownership_ms(SESSION_MS) + 1)
    assert held.lost


def test_another_map_without_a_stop_is_refused_and_nothing_is_read_by_it(held: Held) -> None:
    assert held.cluster.ask(encode_ping(0)) is not None
    assert held.cluster.ask(start(T1)) == ErrorResponse(-1).encode_frame()
    assert held.member.assignment.partitions == (T0,)
    assert held.cluster.ask(start(T0, offset=1)) == ErrorResponse(0).encode_frame(), "the same one is legal"
    assert held.member.starts == {T0: 5}


def test_a_coordinator_that_knows_nothing_of_what_is_held_takes_it(held: Held) -> None:
    """An administrator removed it: it registers as a new one, and is started without a Ping."""
    held.cluster.cut()
    held.cluster.run(1_000)
    assert held.cluster.ask(start(T1)) is None
    assert held.lost
    held.member.release()
    held.cluster.run(2_000)
    assert held.cluster.ask(start(T1)) == ErrorResponse(0).encode_frame()


def test_consumer_that_holds_nothing_reconnects_when_nothing_is_heard() -> None:
    held = Held()
    held.cluster.ask(encode_stop())
    held.member.release()
    held.cluster.run()
    held.cluster.run(SESSION_MS + 1_000)
    assert len(held.cluster.registered) == 2


@pytest.mark.parametrize("garbage", [b"\x50\x05", b"\x50\x02", b"", b"\x50\x04\0\x01"])
def test_garbage_ends_the_connection(held: Held, garbage: bytes) -> None:
    held.cluster.ask(garbage)
    assert len(held.cluster.registered) == 2, "it connects again"
    assert held.member.assignment.partitions == (T0,)


def test_a_coordinator_that_asks_without_end_is_cut_off(held: Held) -> None:
    for _ in range(FRAMES_MAX + 1):
        held.cluster.say(encode_ping(0))
    held.cluster.run(1_000)
    assert len(held.cluster.registered) == 2


def test_refusals_are_the_application_s() -> None:
    given = {"group_id": "g", "session_timeout_ms": SESSION_MS, "auto_offset_reset": "earliest"}
    cluster = PushCluster(given, {"t": 2})
    cluster.refuses = ErrorCode.GROUP_AUTHORIZATION_FAILED
    member = PushMembership(cluster.cluster, cluster.config, new_member_id=lambda: "m")
    member.record_poll()
    member.subscribe(Subscription(("t",)))
    cluster.run(100)
    error = member.take_error()
    assert error is not None
    assert error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    cluster.refuses = ErrorCode.NONE
    cluster.run(1_000)
    assert len(cluster.registered) == 2, "it tries again once the application has heard"


def test_a_consumer_that_does_not_poll_leaves_and_rejoins_with_the_next_poll() -> None:
    held = Held(max_poll_interval_ms=3_000)
    cluster, member = held.cluster, held.member
    for at_ms in (1_500, 2_500):
        cluster.run(at_ms)
        cluster.ask(encode_ping(0))
    cluster.run(3_500)
    assert held.lost
    assert len(cluster.sent("LeaveGroup")) == 1
    member.release()
    cluster.run(6_000)
    assert len(cluster.registered) == 1, "not before it polls"
    member.record_poll()
    cluster.run(7_000)
    assert [said.consumer_id for said in cluster.registered] == ["m", "m"]
    assert cluster.ask(start(T1)) == ErrorResponse(0).encode_frame()
    assert member.assignment.partitions == (T1,)


def test_another_subscription_registers_again(held: Held) -> None:
    held.member.subscribe(Subscription(pattern="t.*"))
    held.cluster.run(1_000)
    assert [said.topic_count for said in held.cluster.registered] == ['{"t":1}', "*1*(?s).*(?:t.*).*"]
    assert held.member.assignment.partitions == (T0,), "what it has it has until it is stopped"


def test_consumer_sends_that_it_leaves(held: Held) -> None:
    held.cluster.call(held.member.leave("closed"))
    (left,) = held.cluster.sent("LeaveGroup")
    assert [member.member_id for member in left.message.members] == ["m"]
    assert not held.cluster.stands


def test_a_commit_does_not_wait_for_a_coordinator_that_stands_still(held: Held) -> None:
    """An application that waited there for its answer did not hear that it had lost its partitions."""
    cluster = held.cluster
    commit = cluster.runtime.spawn(
        commit_offsets(cluster.cluster, "g", {T0: OffsetAndMetadata(7)}, GroupIdentity(member_id="m"), 60_000)
    )
    cluster.run(1_000)
    cluster.ask(encode_ping(0))
    cluster.handlers["Metadata"] = lambda message, version: PARK
    cluster.run(2_000 + SESSION_MS)
    assert not commit.done and held.lost
    assert len({request.link for request in cluster.sent("OffsetCommit")}) > 1, "it is asked for anew"


def test_who_has_a_stop_to_answer_takes_nobody_for_silent(held: Held) -> None:
    """The coordinator asks one thing at a time, so it is the application that it waits for."""
    held.cluster.ask(encode_stop())
    before = len(held.cluster.sent("Metadata"))
    held.cluster.run(SESSION_MS - 1_500)
    assert len(held.cluster.sent("Metadata")) == before


def test_a_coordinator_that_lives_is_asked_once_for_a_while(held: Held) -> None:
    before = len(held.cluster.sent("Metadata"))
    held.cluster.run(SESSION_MS - 1_500)
    assert len(held.cluster.sent("Metadata")) == before + 1 and held.cluster.stands
