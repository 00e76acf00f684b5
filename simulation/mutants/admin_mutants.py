"""Coordinators with one known fault each: in deletions, in descriptions, and in the leader's member list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.classic.rebalance import ClassicRebalance
from kohort.groups.consumer.group import ConsumerGroup, partitions_by_name
from kohort.groups.effects import (
    DescribedConsumerGroup,
    DescribedGroup,
    Effects,
    GroupState,
    JoinedMember,
    ListedGroup,
    Now,
)
from kohort.groups.events import (
    DeleteGroups,
)
from kohort.groups.group import Group
from kohort.groups.machine import Administration, GroupMachine
from kohort.groups.offsets import CommittedOffsets
from simulation.checkers.admin_checkers import DeletionChecker, DescriptionChecker
from simulation.checkers.property import Checker
from simulation.checkers.share_checkers import ClassicEvennessChecker
from simulation.mutants.swapped import Swapped, swapped


class DeletesOffsetsThatAreRead(Swapped):
    """A coordinator that deletes offsets of topics that members of consumer groups read."""

    module, name = CommittedOffsets, "delete_partition_offset"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check that finds no reader."""

        def delete(offsets: CommittedOffsets, group: Group, partition: Any, *_: Any) -> ErrorCode:
            offsets.write_tombstone(group.group_id, (partition.topic, partition.partition))
            return ErrorCode.NONE

        return delete


class ForgetsPatterns(GroupMachine):
    """A coordinator that deletes offsets of topics that members read by a regular expression."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, with a group that knows only the topics that are listed."""
        with swapped(ConsumerGroup, "subscribed_topics", lambda group: frozenset(group._listed)):
            return super().step(event, now)


class DeletesGroupsWithMembers(Swapped):
    """A coordinator that deletes a consumer group although it has members."""

    module, name = ConsumerGroup, "group_state"

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, but treat all groups as empty for deletions."""
        return super().step(event, now) if isinstance(event, DeleteGroups) else GroupMachine.step(self, event, now)

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check that finds no members."""
        return lambda group: GroupState.EMPTY


class LeavesTracesOfGroups(Swapped):
    """A coordinator that deletes a group and keeps its members' records."""

    module, name = Administration, "delete_group"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a deletion without the offsets."""

        def delete(administration: Administration, group_id: str) -> ErrorCode:
            with swapped(Group, "all_partitions", lambda group: []):
                error: ErrorCode = real(administration, group_id)
            return error

        return delete


class DescribesWhatIsChosen(Swapped):
    """A coordinator whose description of a classic group reveals an unfinished rebalance's protocol and metadata."""

    module, name = Administration, "describe_group_or_missing"

    @staticmethod
    def swap(real: Callable[..., DescribedGroup]) -> Callable[..., DescribedGroup]:
        """Return a description that treats every group as stable."""

        def describe(administration: Administration, group_id: str, knows_missing: bool) -> DescribedGroup:
            group = administration.context.find(group_id)
            described = real(administration, group_id, knows_missing)
            classic = None if group is None else group.membership_as(ClassicGroup)
            chosen = None if classic is None else classic.protocol
            return replace(described, protocol=chosen or "") if described.members else described

        return describe


class HidesWhatIsGivenUp(Swapped):
    """A coordinator that omits from a description the partitions that a member still has to revoke."""

    module, name = Administration, "describe_consumer_group"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return members as if they had revoked them."""

        def describe(administration: Administration, group_id: str) -> DescribedConsumerGroup:
            context = administration.context
            described: DescribedConsumerGroup = real(administration, group_id)
            group = context.find(group_id)
            consumer = None if group is None else group.membership_as(ConsumerGroup)
            if consumer is None:
                return described
            names = {topic.id: topic.name for topic in context.image.topics.values()}
            kept = {
                member.member_id: consumer.current_assignment(member.member_id).assigned for member in described.members
            }
            members = [
                replace(member, assignment=partitions_by_name(kept[member.member_id], names))
                for member in described.members
            ]
            return replace(described, members=tuple(members))

        return describe


class ListsAllAsStable(Swapped):
    """A coordinator that lists every consumer group as stable."""

    module, name = Administration, "listed_group_entry"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a list entry with that state."""

        def line(administration: Administration, group: Group) -> ListedGroup:
            listed: ListedGroup = real(administration, group)
            return listed if group.membership_as(ConsumerGroup) is None else replace(listed, state=GroupState.STABLE)

        return line


class TellsLeadersOfFewer(Swapped):
    """A coordinator that omits the last of three or more members from the leader's member list."""

    module, name = ClassicRebalance, "members_for_leader"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return all members but the last."""

        def members(group: ClassicGroup) -> tuple[JoinedMember, ...]:
            answered: tuple[JoinedMember, ...] = real(group)
            return answered if len(answered) < 3 else answered[:-1]

        return members


ADMIN_MUTANTS: dict[type[GroupMachine | Shard], type[Checker]] = {
    DeletesOffsetsThatAreRead: DeletionChecker,
    ForgetsPatterns: DeletionChecker,
    DeletesGroupsWithMembers: DeletionChecker,
    LeavesTracesOfGroups: DeletionChecker,
    DescribesWhatIsChosen: DescriptionChecker,
    HidesWhatIsGivenUp: DescriptionChecker,
    ListsAllAsStable: DescriptionChecker,
    TellsLeadersOfFewer: ClassicEvennessChecker,
}
