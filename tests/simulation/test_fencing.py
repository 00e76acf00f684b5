"""The checker of commits accepts one case that Kafka accepts too, and nothing else."""

from __future__ import annotations

import pytest
from simulation.checkers.fencing_checker import FencingChecker
from simulation.checkers.group_checkers import Checkers
from simulation.checkers.property import Holder, ViolatedError
from simulation.harness.habits import Habits
from simulation.harness.network import Network
from simulation.harness.world import World
from simulation.members.consumer_member import ConsumerMember
from simulation.members.own_member import OwnConsumerMember
from simulation.members.process import Process

from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.effects import ConsumerGroupHeartbeatReply, Effects, OffsetCommitReply
from kohort.groups.events import Client, ConsumerGroupHeartbeat, OffsetCommit, OffsetToCommit
from kohort.groups.records import RecordKind, Tombstone, TopicPartitions
from kohort.ids import TopicId

TOPIC = TopicId(int=1)


class Trial:
    """A checker, a member that may have sent a commit, and another that owns its partition in the new group."""

    def __init__(self, kind: type[Process]) -> None:
        world, holders = World(1), list[Holder]()
        world.topic_ids["t0"] = TOPIC
        self.checkers = Checkers(world, holders, GroupConfig(), (FencingChecker,))
        member = kind("m", Habits("g0", ("t0",)), world, Network(world), self.checkers)
        member.member_id = "m-1"
        holders.append(member)  # type: ignore[arg-type]

    def commit(self) -> OffsetCommit:
        """Return a commit sent now."""
        return OffsetCommit(0, "g0", "m-1", 4, (OffsetToCommit("t0", 0, self.checkers.fresh_offset(), topic_id=TOPIC),))

    def made_again(self) -> None:
        """Delete the group, and create it again with another member that owns the partition."""
        outcome = Effects()
        outcome.records.append(Tombstone((RecordKind.EPOCH, "g0")))
        self.checkers.on_stepped(None, outcome, {})
        beat = ConsumerGroupHeartbeat(0, "g0", "m-2", "", 4, Client("m", "/10.0.0.9"))
        given = (TopicPartitions(TOPIC, (0,)),)
        self.checkers.on_released(beat, ConsumerGroupHeartbeatReply(ErrorCode.NONE, None, "m-2", 4, 1_000, given))

    def taken(self, commit: OffsetCommit) -> None:
        """Let the coordinator accept the commit."""
        self.checkers.on_released(commit, OffsetCommitReply((ErrorCode.NONE,)))


def test_a_commit_of_an_earlier_group_of_the_name_is_taken_as_kafka_takes_it() -> None:
    trial = Trial(ConsumerMember)
    late = trial.commit()
    trial.made_again()
    trial.taken(late)


def test_one_that_was_sent_since_is_not() -> None:
    trial = Trial(ConsumerMember)
    trial.made_again()
    with pytest.raises(ViolatedError, match="m-2 has it"):
        trial.taken(trial.commit())


def test_nor_is_any_of_our_own_client() -> None:
    trial = Trial(OwnConsumerMember)
    late = trial.commit()
    trial.made_again()
    with pytest.raises(ViolatedError, match="m-2 has it"):
        trial.taken(late)
