"""The coordinator fails at each step of a rebalance (spec 3.7), and at every record boundary of a group's life."""

from __future__ import annotations

from functools import cache

import pytest
from simulation.harness.assigning import COOPERATIVE, EAGER
from simulation.harness.habits import Habits
from simulation.harness.plan import Plan, Step
from simulation.members.process import Process
from simulation.run import Result, Run

from kohort.groups.config import GroupConfig
from kohort.groups.records import GenerationStarted, GroupSaved, Record
from tests.support.long_runs import IS_LONG

KINDS = ("ClassicMember", "OwnClassicMember", "ConsumerMember", "OwnConsumerMember")
CLASSIC = KINDS[:2]


def life(kind: str, strategy: str) -> Plan:
    """Return a plan in which three members join, one leaves and one crashes, on a healthy network."""
    config = GroupConfig(
        initial_rebalance_delay_ms=500,
        notice_disconnects="off",
        consumer_session_timeout_ms=6_000,
        consumer_heartbeat_interval_ms=1_500,
    )
    habits = Habits("g0", ("t0",), (strategy,), commit_ms=9_000, session_timeout_ms=6_000)
    starts = [
        Step(number, 100 + 2_500 * number, "start", {"name": f"m{number}", "kind": kind, "habits": habits})
        for number in range(3)
    ]
    ends = [Step(3, 16_000, "leave", {"name": "m1"}), Step(4, 21_000, "crash", {"name": "m2"})]
    return Plan(1, config, {"t0": 4}, ("g0",), (*starts, *ends), 30_000)


def living(kind: str, strategy: str) -> Run:
    """Play this plan with a journal that keeps every record."""
    run = Run(life(kind, strategy), shortest_ms=0)
    run.disk.compacts = False
    return run


class Failure:
    """A run that crashes after so many records: with the last of them on disk, or (`loses`) in the next write.

    Attributes:
        where: the record boundary, for people.
        torn: records of the write that the crash interrupted.
        durable: how many of them are on disk.
        told: each member's state at the crash: (generation, stable).
    """

    def __init__(self, kind: str, strategy: str, records: int, loses: bool) -> None:
        self.run = living(kind, strategy)
        self.run.disk.tears_after, self.run.disk.loses = records, loses
        self.where = f"{'after' if loses else 'with'} {records} records"
        self.reported: dict[str, tuple[int, bool]] = {}
        crash = self.run.server.crash

        def crashed(down_ms: int) -> None:
            self.reported = {member.name: (member.generation, member.stable) for member in self.run.members}
            crash(down_ms)

        self.run.server.crash = crashed  # type: ignore[method-assign]
        self.result: Result = self.run.play()
        self.torn, self.durable = self.run.disk.torn or ([], 0)

    @property
    def written(self) -> bool:
        """Return whether the interrupted write is complete, so that only the replies are lost."""
        return self.durable == len(self.torn)

    def has(self, kind: type[Record]) -> bool:  # type: ignore[valid-type]
        """Return whether the interrupted write had a record of this kind; a group's record only with members."""
        return any(
            isinstance(record, kind) and (kind is not GroupSaved or record.members)  # type: ignore[union-attr]
            for record in self.torn
        )

    def saved(self) -> list[GroupSaved]:
        """Return the group's records on disk, in order."""
        return [record for record in self.run.disk.records if isinstance(record, GroupSaved) and record.members]

    def started(self) -> list[int]:
        """Return the generations on disk, in order."""
        return [record.generation for record in self.run.disk.records if isinstance(record, GenerationStarted)]

    def living(self) -> list[Process]:
        """Return the members that are left at the end."""
        return [member for member in self.run.members if not member.dead]


@cache
def failures(kind: str, strategy: str) -> tuple[Failure, ...]:
    """Yield a crash at every record boundary of one run; in `make test` at every third of a KIP-848 member's."""
    whole = living(kind, strategy)
    assert whole.play().failure is None
    assert whole.disk.appended > 15
    places = [(records, loses) for records in range(whole.disk.appended) for loses in (False, True)]
    taken = places if IS_LONG or kind in CLASSIC else places[::3]
    return tuple(Failure(kind, strategy, records, loses) for records, loses in taken)


@pytest.mark.parametrize(
    ("kind", "strategy"), [*((kind, EAGER) for kind in KINDS), *((kind, COOPERATIVE) for kind in CLASSIC)]
)
def test_a_crash_at_every_record_boundary_ends_in_a_whole_group(kind: str, strategy: str) -> None:
    for failure in failures(kind, strategy):
        assert failure.result.failure is None, f"{failure.where}: {failure.result.failure}"
        assert failure.run.server.incarnation == 2
        assert [member.name for member in failure.living()] == ["m0"]


@pytest.mark.parametrize("kind", CLASSIC)
def test_step_1_it_fails_before_the_generation_is_persisted(kind: str) -> None:
    """All members send their JoinGroup again, and the generation is the one that was lost."""
    found = [failure for failure in failures(kind, EAGER) if failure.has(GenerationStarted) and not failure.written]
    assert len(found) >= 3
    for failure in found:
        lost = next(record.generation for record in failure.torn if isinstance(record, GenerationStarted))
        assert all(generation < lost for generation, _ in failure.reported.values())
        assert failure.started().count(lost) == 1


@pytest.mark.parametrize("kind", CLASSIC)
def test_step_2_it_fails_before_all_members_have_the_answer_to_their_join(kind: str) -> None:
    """No member may sync the generation that some know: all members join again, and the generation is not reused."""
    found = [failure for failure in failures(kind, EAGER) if failure.has(GenerationStarted) and failure.written]
    assert len(found) >= 3
    for failure in found:
        begun = next(record.generation for record in failure.torn if isinstance(record, GenerationStarted))
        assert failure.started().count(begun) == 1
        assert begun not in [record.generation for record in failure.saved()]
        assert begun + 1 in failure.started()


@pytest.mark.parametrize("kind", CLASSIC)
def test_step_3_it_fails_before_the_synchronization_is_persisted(kind: str) -> None:
    """The assignment is lost: members that sent their SyncGroup rejoin."""
    found = [failure for failure in failures(kind, EAGER) if failure.has(GroupSaved) and not failure.written]
    assert len(found) >= 3
    for failure in found:
        lost = next(record.generation for record in failure.torn if isinstance(record, GroupSaved))
        assert lost not in [record.generation for record in failure.saved()]
        assert lost + 1 in [record.generation for record in failure.saved()]


def test_step_4_it_fails_before_all_members_have_the_answer_to_their_sync() -> None:
    """Members get their assignment when they repeat SyncGroup, like our client; no other member is disturbed."""
    kind = "OwnClassicMember"
    found = [failure for failure in failures(kind, EAGER) if failure.has(GroupSaved) and failure.written]
    assert len(found) >= 3
    undisturbed = living(kind, EAGER)
    undisturbed.play()
    rounds = sum(isinstance(record, GenerationStarted) for record in undisturbed.disk.records)
    for failure in found:
        assert not any(
            stable for generation, stable in failure.reported.values() if generation == failure.saved()[0].generation
        )
        assert len(failure.started()) == rounds
