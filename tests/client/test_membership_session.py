"""A member's session by its own clock: it runs from what was sent and is answered, and ends before the broker's."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.client.group.membership import MemberState
from kohort.consumer_protocol import NEWEST_VERSION, ConsumerProtocolSubscription, write_subscription
from kohort.wire.discovery import MetadataResponse
from kohort.wire.groups import HeartbeatResponse
from tests.client.test_membership import Coordinator as ClassicCoordinator
from tests.client.test_membership import parts
from tests.client.test_membership_consumer import HEARTBEAT
from tests.client.test_membership_consumer import Coordinator as ConsumerCoordinator
from tests.client.virtual import DROP, PARK, Request

SESSION_MS = 6_000
END_MS = 5_880
"""Two per cent sooner: so much the coordinator's clock may be faster."""
Trial = ClassicCoordinator | ConsumerCoordinator


def member_of(protocol: str) -> Trial:
    """A member that holds four partitions, whose coordinator tells no lease."""
    trial: Trial = (
        ClassicCoordinator(session_timeout_ms=SESSION_MS, heartbeat_interval_ms=1_000)
        if protocol == "classic"
        else ConsumerCoordinator(session_timeout_ms=SESSION_MS)
    )
    trial.subscribe("a")
    assert trial.member.assignment.partitions == parts(0, 1, 2, 3)
    return trial


def beat_name(trial: Trial) -> str:
    return "Heartbeat" if isinstance(trial, ClassicCoordinator) else HEARTBEAT


def is_lost(trial: Trial) -> bool:
    revocation = trial.member.revocation
    return revocation is not None and revocation.lost


def stop_answering(trial: Trial, silent: object = PARK) -> None:
    """From now on no heartbeat is answered."""
    trial.world.handlers[beat_name(trial)] = lambda message, version: silent


def next_beat(trial: Trial) -> Request:
    """The heartbeat that is sent next, and not answered."""
    stop_answering(trial)
    while not trial.world.parked_named(beat_name(trial)):
        trial.world.run(trial.world.runtime.now_ms + 1)
    return trial.world.parked_named(beat_name(trial))[-1]


def ends_at(trial: Trial, end_ms: float) -> None:
    """Check that the partitions are lost at this time and no sooner."""
    trial.world.run(end_ms - 2)
    assert not is_lost(trial)
    trial.world.run(end_ms + 2)
    assert is_lost(trial)


@pytest.fixture(params=["classic", "consumer"])
def trial(request: pytest.FixtureRequest) -> Trial:
    return member_of(request.param)


def test_it_runs_from_when_the_last_heartbeat_that_was_answered_was_sent(trial: Trial) -> None:
    handler = trial.world.handlers[beat_name(trial)]
    beat = next_beat(trial)
    trial.world.run(beat.at_ms + 1_500)
    trial.world.answer(beat, handler(beat.message, beat.version))
    ends_at(trial, beat.at_ms + END_MS)


@pytest.mark.parametrize("before_ms", [20, 60])
def test_its_end_waits_for_no_other_attempt(trial: Trial, before_ms: int) -> None:
    """A heartbeat that fails is tried again after a pause, in which the session may end."""
    trial.world.run(1_500)
    answered_ms = trial.world.sent(beat_name(trial))[-1].at_ms
    stop_answering(trial)
    trial.world.run(answered_ms + END_MS - before_ms)
    stop_answering(trial, DROP)
    trial.world.cut()
    ends_at(trial, answered_ms + END_MS)


def test_its_end_does_not_wait_for_a_connection_that_takes_long(trial: Trial) -> None:
    """Making one and the answer on it may take a heartbeat's time each."""
    trial.world.run(1_500)
    answered_ms = trial.world.sent(beat_name(trial))[-1].at_ms
    shake = trial.world.handlers["ApiVersions"]
    trial.world.handlers["ApiVersions"] = lambda message, version: PARK
    stop_answering(trial)
    trial.world.cut()
    trial.world.run(answered_ms + 3_400)
    for waiting in trial.world.parked_named("ApiVersions"):
        trial.world.answer(waiting, shake(waiting.message, waiting.version))
    ends_at(trial, answered_ms + END_MS)


def name_successor(trial: Trial) -> None:
    """Name another broker as the coordinator from now on."""
    find, metadata = trial.world.handlers["FindCoordinator"], trial.world.handlers["Metadata"]

    def name_brokers(message: Any, version: int) -> Any:
        response = metadata(message, version)
        other = MetadataResponse.MetadataResponseBroker(node_id=2, host="127.0.0.1", port=9093)
        response.brokers = [*response.brokers, other]
        return response

    def find_successor(message: Any, version: int) -> Any:
        response = find(message, version)
        response.coordinators[0].node_id, response.coordinators[0].port = 2, 9093
        return response

    trial.world.handlers |= {"Metadata": name_brokers, "FindCoordinator": find_successor}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_coordinator_whose_machine_died_without_a_word_is_looked_up_again_within_the_session(protocol: str) -> None:
    """The connection stays open. Its successor knows the member, and nothing has to be given up."""
    trial: Trial = (
        ClassicCoordinator(session_timeout_ms=15_000)
        if protocol == "classic"
        else ConsumerCoordinator(session_timeout_ms=15_000)
    )
    trial.subscribe("a")
    name_successor(trial)
    world, beat = trial.world, beat_name(trial)
    alive = world.handlers[beat]

    def answer(message: Any, version: int) -> Any:
        return alive(message, version) if world.port_of(world.requests[-1].link) == 9093 else PARK

    world.handlers[beat] = answer
    world.run(world.runtime.now_ms + 60_000)
    assert not is_lost(trial)
    assert trial.member.holds_assignment and trial.member.assignment.partitions == parts(0, 1, 2, 3)


@pytest.mark.parametrize("waiting", ["JoinGroup", "SyncGroup"])
def test_join_that_waits_at_a_coordinator_that_died_is_sent_to_its_successor(waiting: str) -> None:
    """A join may wait for the rebalance timeout. The heartbeats of a member with partitions learn of the successor."""
    trial = ClassicCoordinator("cooperative-sticky", session_timeout_ms=20_000)
    trial.subscribe("a")
    world, successor = trial.world, 9093
    name_successor(trial)
    before = {name: world.handlers[name] for name in ("Heartbeat", waiting)}
    for name, handler in before.items():
        world.handlers[name] = lambda message, version, answer=handler: (
            answer(message, version) if world.port_of(world.requests[-1].link) == successor else PARK
        )
    trial.member.request_rejoin("a trial")
    world.run(world.runtime.now_ms + 30_000)
    assert [world.port_of(request.link) for request in world.sent(waiting)][-1] == successor
    assert trial.member.holds_assignment and not is_lost(trial)


def joining() -> ClassicCoordinator:
    """A cooperative member that holds four partitions; its last heartbeat is answered, and its second join waits."""
    trial = ClassicCoordinator("cooperative-sticky", session_timeout_ms=SESSION_MS, heartbeat_interval_ms=1_000)
    trial.subscribe("a")
    trial.world.handlers["JoinGroup"] = lambda message, version: PARK
    trial.rebalance(*parts(0, 1))
    assert trial.member.state is MemberState.JOINING
    return trial


def test_a_heartbeat_beside_a_join_counts_from_when_it_was_sent() -> None:
    trial = joining()
    beat = next_beat(trial)
    trial.world.run(beat.at_ms + 2_000)
    trial.world.answer(beat, HeartbeatResponse())
    ends_at(trial, beat.at_ms + END_MS)


def test_the_answer_to_a_join_that_waited_is_no_sign_of_life_where_partitions_are_held() -> None:
    """The coordinator counts from when it answered, which may be a session ago."""
    trial = joining()
    answered_ms = trial.world.sent("Heartbeat")[-1].at_ms
    (join,) = trial.world.parked_named("JoinGroup")
    trial.world.handlers["SyncGroup"] = lambda message, version: PARK
    stop_answering(trial)
    trial.world.run(answered_ms + 4_000)
    trial.world.answer(join, trial.join(join.message, join.version))
    assert trial.member.state is MemberState.SYNCING
    ends_at(trial, answered_ms + END_MS)


def test_it_ends_for_a_leader_that_still_asks_for_topics_to_assign() -> None:
    """Otherwise the member would process its partitions beyond its session, until the answer to its sync arrived."""
    trial = joining()
    answered_ms = trial.world.sent("Heartbeat")[-1].at_ms
    (join,) = trial.world.parked_named("JoinGroup")
    trial.others = {"other": write_subscription(ConsumerProtocolSubscription(NEWEST_VERSION, ("b",)))}
    trial.world.handlers["Metadata"] = lambda message, version: PARK
    stop_answering(trial)
    trial.world.answer(join, trial.join(join.message, join.version))
    assert trial.member.state is MemberState.SYNCING
    assert trial.world.parked_named("Metadata")
    assert not trial.world.sent("SyncGroup")[1:]
    ends_at(trial, answered_ms + END_MS)


def test_the_answer_to_a_sync_counts_from_when_it_was_asked_for() -> None:
    trial = ClassicCoordinator(session_timeout_ms=SESSION_MS, heartbeat_interval_ms=1_000)
    sync = trial.world.handlers["SyncGroup"]
    trial.world.handlers["SyncGroup"] = lambda message, version: PARK
    stop_answering(trial)
    trial.subscribe("a")
    (asked,) = trial.world.parked_named("SyncGroup")
    trial.world.run(asked.at_ms + 3_000)
    trial.world.answer(asked, sync(asked.message, asked.version))
    assert trial.member.holds_assignment
    ends_at(trial, asked.at_ms + END_MS)
