"""A member that a broker told a lease owns what it holds only while the coordinator answers."""

from __future__ import annotations

import pytest

from kohort.client.group.membership import Lease, MemberState
from kohort.errors import ErrorCode
from tests.client.test_membership import Coordinator as ClassicCoordinator
from tests.client.test_membership import parts
from tests.client.test_membership_consumer import HEARTBEAT
from tests.client.test_membership_consumer import Coordinator as ConsumerCoordinator
from tests.client.virtual import DROP, PARK

LEASE_MS = 5_000
END_MS = 4_900
"""Two per cent sooner: so much the coordinator's clock may be faster."""
Trial = ClassicCoordinator | ConsumerCoordinator


def member_of(protocol: str, lease_ms: int = LEASE_MS) -> Trial:
    """A member that holds four partitions, of a broker that tells this lease."""
    trial: Trial = ClassicCoordinator(heartbeat_interval_ms=3_000) if protocol == "classic" else ConsumerCoordinator()
    trial.world.lease_ms = lease_ms
    trial.subscribe("a")
    assert trial.member.holds_assignment and len(trial.member.assignment.partitions) == 4
    return trial


def beat_name(trial: Trial) -> str:
    return "Heartbeat" if isinstance(trial, ClassicCoordinator) else HEARTBEAT


def pass_ms(trial: Trial, duration_ms: float) -> None:
    trial.world.run(trial.world.runtime.now_ms + duration_ms)


@pytest.fixture(params=["classic", "consumer"])
def trial(request: pytest.FixtureRequest) -> Trial:
    return member_of(request.param)


def test_without_a_lease_nothing_ends() -> None:
    lease = Lease()
    assert lease.is_valid(1e12)
    assert (lease.heartbeat_interval_ms(3_000), lease.response_timeout_ms(30_000)) == (3_000, 30_000)


def test_it_runs_from_when_the_newest_answered_request_was_sent() -> None:
    lease = Lease(LEASE_MS)
    lease.renew(1_000)
    lease.renew(400)
    assert lease.is_valid(1_000 + END_MS - 1)
    assert not lease.is_valid(1_000 + END_MS)
    assert (lease.heartbeat_interval_ms(3_000), lease.response_timeout_ms(30_000)) == (2_000, 2_500)


def test_the_shorter_of_two_leases_counts() -> None:
    lease = Lease(LEASE_MS)
    lease.renew(0)
    lease.adopt_length(8_000)
    assert not lease.is_valid(END_MS)
    lease.adopt_length(2_000)
    assert not lease.is_valid(2_000)


def test_heartbeats_keep_it(trial: Trial) -> None:
    for _ in range(40):
        pass_ms(trial, 500)
        assert trial.member.owns
    assert trial.member.lapses == 0


def test_a_lease_that_arrives_during_the_first_heartbeat_delays_no_other() -> None:
    """A joiner is often given nothing at first, and told to ask again soon."""
    trial = ConsumerCoordinator()
    trial.world.lease_ms = LEASE_MS
    trial.news = ()
    trial.subscribe("a")
    count = len(trial.beats())
    pass_ms(trial, 1_000)
    assert len(trial.beats()) == count + 1


@pytest.mark.parametrize("no_answer", [PARK, DROP])
def test_without_an_answer_it_ends_and_the_next_answer_renews_it(trial: Trial, no_answer: object) -> None:
    handler = trial.world.handlers[beat_name(trial)]
    pass_ms(trial, 4_000)
    answered_ms = [request.at_ms for request in trial.world.sent(beat_name(trial))][-1]
    trial.world.handlers[beat_name(trial)] = lambda message, version: no_answer
    trial.world.run(answered_ms + END_MS - 1)
    assert trial.member.owns
    trial.world.run(answered_ms + END_MS + 1)
    assert not trial.member.owns and trial.member.lapsed
    assert trial.member.holds_assignment and trial.member.revocation is None
    pass_ms(trial, 3_000)
    assert not trial.member.owns and trial.member.lapses == 1
    trial.world.handlers[beat_name(trial)] = handler
    pass_ms(trial, 4_000)
    assert trial.member.owns and not trial.member.lapsed
    assert trial.member.assignment.partitions == parts(0, 1, 2, 3) and trial.member.rebalances == 1


def test_who_was_evicted_meanwhile_loses_what_it_held(trial: Trial) -> None:
    handler = trial.world.handlers[beat_name(trial)]
    trial.world.handlers[beat_name(trial)] = lambda message, version: DROP
    pass_ms(trial, 8_000)
    assert not trial.member.owns
    if isinstance(trial, ClassicCoordinator):
        trial.heartbeat = ErrorCode.UNKNOWN_MEMBER_ID
    else:
        trial.error = ErrorCode.UNKNOWN_MEMBER_ID
    trial.world.handlers[beat_name(trial)] = handler
    pass_ms(trial, 2_000)
    assert trial.member.revocation is not None and trial.member.revocation.lost
    assert not trial.member.lapsed


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_only_the_session_counts_without_a_lease(protocol: str) -> None:
    trial = member_of(protocol, lease_ms=0)
    trial.world.handlers[beat_name(trial)] = lambda message, version: PARK
    pass_ms(trial, 20_000)
    assert trial.member.owns and trial.member.lapses == 0


def test_a_clock_that_ran_on_while_the_machine_slept_ends_it(trial: Trial) -> None:
    pass_ms(trial, 1_000)
    runtime = trial.world.runtime
    assert trial.member.owns
    runtime.clock_with_sleep_ms = lambda: runtime.now_ms + 60_000
    assert not trial.member.owns


@pytest.mark.parametrize(
    ("protocol", "where"), [("classic", "holding"), ("classic", "joining"), ("consumer", "holding")]
)
def test_an_answer_that_was_long_on_its_way_renews_it_from_when_it_was_asked_for(protocol: str, where: str) -> None:
    trial = member_of(protocol)
    if where == "joining":
        trial = ClassicCoordinator("cooperative-sticky", heartbeat_interval_ms=3_000)
        trial.world.lease_ms = LEASE_MS
        trial.subscribe("a")
        trial.world.handlers["JoinGroup"] = lambda message, version: PARK
        trial.member.request_rejoin("a test")
        pass_ms(trial, 1)
        assert trial.member.state is MemberState.JOINING
    handler = trial.world.handlers[beat_name(trial)]
    trial.world.handlers[beat_name(trial)] = lambda message, version: PARK
    while not (waiting := trial.world.parked_named(beat_name(trial))):
        pass_ms(trial, 1)
    pass_ms(trial, 2_000)
    trial.world.answer(waiting[0], handler(waiting[0].message, waiting[0].version))
    trial.world.run(waiting[0].at_ms + END_MS - 1)
    assert trial.member.owns
    trial.world.run(waiting[0].at_ms + END_MS + 1)
    assert not trial.member.owns


def test_an_assignment_that_was_long_on_its_way_is_owned_from_when_it_was_asked_for() -> None:
    trial = ClassicCoordinator(heartbeat_interval_ms=3_000)
    trial.world.lease_ms = LEASE_MS
    sync = trial.world.handlers["SyncGroup"]
    for silent in ("SyncGroup", "Heartbeat"):
        trial.world.handlers[silent] = lambda message, version: PARK
    member = trial.subscribe("a")
    (waiting,) = trial.world.parked_named("SyncGroup")
    pass_ms(trial, 4_000)
    trial.world.answer(waiting, sync(waiting.message, waiting.version))
    assert member.holds_assignment and member.owns
    trial.world.run(waiting.at_ms + END_MS - 1)
    assert member.owns
    trial.world.run(waiting.at_ms + END_MS + 1)
    assert not member.owns


def test_a_cooperative_join_that_waits_does_not_end_the_lease() -> None:
    trial = ClassicCoordinator("cooperative-sticky", heartbeat_interval_ms=3_000)
    trial.world.lease_ms = LEASE_MS
    member = trial.subscribe("a")
    join, trial.world.handlers["JoinGroup"] = trial.world.handlers["JoinGroup"], lambda message, version: PARK
    member.request_rejoin("a test")  # type: ignore[attr-defined]
    trial.heartbeat = ErrorCode.REBALANCE_IN_PROGRESS
    pass_ms(trial, 20_000)
    assert member.state is MemberState.JOINING and member.assignment.partitions == parts(0, 1, 2, 3)
    assert member.owns and member.lapses == 0
    joins = {request.link for request in trial.world.sent("JoinGroup")}
    assert not joins & {request.link for request in trial.world.sent("Heartbeat") if request.at_ms > 2_000}
    trial.heartbeat, trial.world.handlers["JoinGroup"] = ErrorCode.ILLEGAL_GENERATION, join
    pass_ms(trial, 3_000)
    assert member.assignment.partitions == parts(0, 1, 2, 3) and member.revocation is None
    trial.heartbeat = ErrorCode.NONE
    (waiting,) = trial.world.parked_named("JoinGroup")
    trial.world.answer(waiting, join(waiting.message, waiting.version))
    pass_ms(trial, 1_000)
    assert member.holds_assignment and member.owns and member.rebalances == 2


def test_a_sync_that_waits_for_the_leader_does_not_end_the_lease() -> None:
    trial = ClassicCoordinator(heartbeat_interval_ms=3_000)
    trial.world.lease_ms = LEASE_MS
    sync, trial.world.handlers["SyncGroup"] = trial.world.handlers["SyncGroup"], lambda message, version: PARK
    member = trial.subscribe("a")
    pass_ms(trial, 20_000)
    assert member.state is MemberState.SYNCING
    (waiting,) = trial.world.parked_named("SyncGroup")
    trial.world.answer(waiting, sync(waiting.message, waiting.version))
    assert member.holds_assignment and member.owns


@pytest.mark.parametrize(("lease_ms", "after_ms"), [(0, 3_000), (LEASE_MS, 0)])
def test_a_broker_that_tells_a_lease_hears_of_a_member_as_soon_as_it_has_synced(lease_ms: int, after_ms: int) -> None:
    trial = member_of("classic", lease_ms)
    assert isinstance(trial, ClassicCoordinator)
    trial.given, trial.heartbeat = parts(0, 1), ErrorCode.REBALANCE_IN_PROGRESS
    pass_ms(trial, 3_100)
    trial.heartbeat = ErrorCode.NONE
    trial.member.release()
    pass_ms(trial, 3_000)
    (synced,) = [request.at_ms for request in trial.world.sent("SyncGroup")][1:]
    assert min(beat.at_ms for beat in trial.world.sent("Heartbeat") if beat.at_ms >= synced) - synced == after_ms
