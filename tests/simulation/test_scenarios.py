"""Scenarios in which real groups have failed, where time and faults matter; docs/spec.md lists them all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulation.harness.assigning import COOPERATIVE, EAGER, topic_id
from simulation.harness.habits import Habits
from simulation.harness.network import NetworkFaults
from simulation.harness.plan import Plan, Step
from simulation.members.own_member import OwnMember
from simulation.mutants.client_mutants import KeepsDeletedTopics
from simulation.run import Run

from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.effects import Effects, SyncGroupReply
from kohort.groups.events import OffsetCommit
from kohort.groups.machine import GroupMachine
from kohort.wire import framing
from kohort.wire.offsets import OffsetCommitRequest, OffsetCommitResponse


def plan(*steps: tuple[int, str, dict[str, Any]], heal_ms: int, partitions: int = 6, **config: Any) -> Plan:
    """Return a plan with steps given as (time, what, details), without other faults."""
    numbered = tuple(Step(number, at_ms, what, details) for number, (at_ms, what, details) in enumerate(steps))
    settings = {"initial_rebalance_delay_ms": 500, "notice_disconnects": "off", "consumer_heartbeat_interval_ms": 1_500}
    return Plan(1, GroupConfig(**(settings | config)), {"t0": partitions}, ("g0",), numbered, heal_ms)


def start(at_ms: int, name: str, kind: str, strategy: str = EAGER, **habits: Any) -> tuple[int, str, dict[str, Any]]:
    """Return a step that starts a member."""
    return at_ms, "start", {"name": name, "kind": kind, "habits": Habits("g0", ("t0",), (strategy,), **habits)}


def test_scenario_4_a_cooperative_sync_that_meets_a_new_rebalance_revokes_nothing_that_does_not_move() -> None:
    """Kohort's own client: its JoinGroup and SyncGroup are overtaken by members that join one after the other."""
    run = Run(
        plan(
            start(0, "m0", "OwnClassicMember", COOPERATIVE),
            (2_000, "faults", {"network": NetworkFaults(delay_ms=400), "disk_fails": 0.0, "disk_tears": 0.0}),
            *(start(4_000 + 700 * number, f"m{number + 1}", "OwnClassicMember", COOPERATIVE) for number in range(8)),
            heal_ms=30_000,
            partitions=20,
        )
    )
    reported: list[ErrorCode] = []
    step = run.server.checkers.on_stepped

    def seen(event: Any, outcome: Effects, waiting: Any) -> None:
        reported.extend(value.error for _, value in outcome.replies if isinstance(value, SyncGroupReply))
        step(event, outcome, waiting)

    run.server.checkers.on_stepped = seen  # type: ignore[method-assign]
    emptied: list[str] = []
    held: dict[str, int] = {}
    on_hold = run.checkers.on_hold

    def holds(member: Any) -> None:
        if held.get(member.name, 0) > 1 and not member.held:
            emptied.append(member.name)
        held[member.name] = len(member.held)
        on_hold(member)

    run.checkers.on_hold = holds  # type: ignore[method-assign]
    assert run.play().failure is None
    assert ErrorCode.REBALANCE_IN_PROGRESS in reported
    assert emptied == []


@pytest.mark.parametrize("mutant", [None, KeepsDeletedTopics])
def test_scenario_14_a_leader_of_our_own_gives_up_a_deleted_topic(mutant: type[GroupMachine] | None) -> None:
    two = {"habits": Habits("g0", ("t0", "t1")), "kind": "OwnClassicMember", "name": "m00"}  # of odd length: by topics
    played = replace(
        plan((0, "start", two), (20_000, "delete", {"topic": "t1"}), heal_ms=30_000), partitions={"t0": 2, "t1": 2}
    )
    assert Run(played, mutant).play().checker == (None if mutant is None else "LivenessChecker")


def test_scenario_14_a_commit_by_id_for_a_topic_that_was_made_again_is_refused() -> None:
    """A late commit names the id of the deleted topic; a commit by name cannot, which is why version 10 has ids."""
    run = Run(plan((1_000, "delete", {"topic": "t0"}), (2_000, "create", {"topic": "t0"}), heal_ms=3_000))
    run.play()
    answers: list[Any] = []
    for made in (0, 1):
        entry = OffsetCommitRequest.OffsetCommitRequestTopic
        part = entry.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        message = OffsetCommitRequest(
            group_id="g9",
            generation_id_or_member_epoch=-1,
            topics=[entry(topic_id=topic_id("t0", made), partitions=[part])],
        )
        frame = framing.encode_request(message, 10, made, "late")
        connection = run.network.connect("late", lambda: None, run.world.stream("late"), "")
        run.gate.receive_frame(connection, frame, answers.append)
    run.world.run_until(run.world.now_ms + 1_000)
    replies = [framing.decode_response(OffsetCommitResponse, 10, answer)[1] for answer in answers]
    codes = [reply.topics[0].partitions[0].error_code for reply in replies]
    assert sorted(codes) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID]


@pytest.mark.parametrize("kind", ["OwnClassicMember", "OwnConsumerMember", "ClassicMember", "ConsumerMember"])
def test_scenario_16_a_member_closes_or_is_killed_while_its_commit_is_in_flight(kind: str) -> None:
    """The next owner reads every acknowledged commit; the checkers compare every answer."""
    slow = {"network": NetworkFaults(delay_ms=1_000, linger_ms=10), "disk_fails": 0.0, "disk_tears": 0.0}
    caught = 0
    for number in range(12):
        way = ("leave", "crash")[number % 2]
        run = Run(
            plan(
                start(0, "m0", kind, commit_ms=400, session_timeout_ms=8_000),
                start(100, "m1", kind, commit_ms=400, session_timeout_ms=8_000),
                (6_000, "faults", slow),
                (9_000 + 83 * number, way, {"name": "m0"}),
                heal_ms=20_000,
            ),
            shortest_ms=0,
        )
        took: list[int] = []
        taken = run.checkers.on_stepped

        def seen(
            event: Any, outcome: Effects, waiting: Any, run: Run = run, taken: Any = taken, took: Any = took
        ) -> None:
            gone = not run.members or run.members[0].dead or getattr(run.members[0], "leaving", False)
            if isinstance(event, OffsetCommit) and outcome.records and gone and event.member_id.startswith("m0"):
                took.append(event.offsets[0].offset)
            taken(event, outcome, waiting)

        run.checkers.on_stepped = seen  # type: ignore[method-assign]
        assert run.play().failure is None
        caught += bool(took)
    assert caught > 0


@pytest.mark.parametrize("kind", ["ClassicMember", "OwnClassicMember", "ConsumerMember"])
def test_scenario_21_all_members_rejoin_after_a_restart_and_no_one_expires(kind: str) -> None:
    """The members are away for half their session; sessions restart once the coordinator has loaded."""
    count = 40
    run = Run(
        plan(
            *(start(20 * number, f"m{number}", kind, session_timeout_ms=10_000) for number in range(count)),
            (30_000, "coordinator", {"down_ms": 4_000}),
            heal_ms=31_000,
            partitions=count,
            consumer_session_timeout_ms=10_000,
        )
    )
    generations: list[int] = []
    crash = run.server.crash

    def crashed(down_ms: int) -> None:
        generations.extend(member.generation for member in run.members)
        crash(down_ms)

    run.server.crash = crashed  # type: ignore[method-assign]
    assert run.play().failure is None
    assert len(set(generations)) == 1
    assert [member.generation for member in run.members] == generations
    assert not any(member.dead for member in run.members)


def stable_share(notice: str) -> float:
    """Return the share of checks that find a group stable while members crash, leave and join twice a second."""
    count = 8
    steps = [start(50 * number, f"m{number}", "OwnClassicMember", session_timeout_ms=10_000) for number in range(count)]
    for number in range(60):
        at_ms = 10_000 + 1_000 * number
        steps.append((at_ms, "crash" if number % 3 else "leave", {"name": f"m{number}"}))
        steps.append(start(at_ms + 500, f"m{count + number}", "OwnClassicMember", session_timeout_ms=10_000))
    run = Run(plan(*steps, heal_ms=72_000, notice_disconnects=notice, disconnect_lease_ms=2_000))
    looks: list[bool] = []

    def look() -> None:
        group = run.server.machine.context.find("g0") if run.server.machine is not None else None
        looks.append(group is not None and str(group.listed_state()) == "Stable")
        if run.world.now_ms < 70_000:
            run.world.after(50, look)

    run.world.after(10_000, look)
    assert run.play().failure is None
    assert all(isinstance(member, OwnMember) for member in run.members)
    return sum(looks) / len(looks)


def test_scenario_22_under_churn_a_group_whose_lost_connections_are_noticed_is_stable_more_often() -> None:
    """Without it, each crash delays the join phase until the session ends."""
    assert stable_share("known") > 2 * stable_share("off")
