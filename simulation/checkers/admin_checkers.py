"""Checkers of administration: descriptions and deletions, compared with the journal."""

from __future__ import annotations

from typing import Any

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE, read_assignment, read_topics
from kohort.errors import ErrorCode
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.config import GroupConfig
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.effects import (
    ConsumerGroupDescribeReply,
    DeleteGroupsReply,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribeGroupsReply,
    Effects,
    GroupState,
    GroupType,
    ListedGroup,
    ListGroupsReply,
    OffsetDeleteReply,
    PartitionsOfTopic,
)
from kohort.groups.events import ConsumerGroupDescribe, DeleteGroups, DescribeGroups, ListGroups, OffsetDelete
from kohort.groups.group import Group
from kohort.groups.machine import GroupMachine
from kohort.groups.push.group import PushGroup
from kohort.groups.records import HeldPartitions, RecordKind, Tombstone
from simulation.checkers.journal_model import ConsumerJournal, GroupJournal, PushJournal, Slot, TopicIdPartitions, pairs
from simulation.checkers.property import QUIET, Checker, Holder
from simulation.harness.server import Waiting
from simulation.harness.world import World

ASSIGNORS = ("uniform", "range")


def state_of(group: Group) -> GroupState:
    """Return the live state of a classic or push group; without meaning for a consumer group."""
    push = group.membership_as(PushGroup)
    return classic_of(group).state if push is None else push.group_state()


def classic_of(group: Group) -> ClassicGroup:
    """Return a group as a classic group; an empty classic group for a group of another protocol."""
    return group.membership_as(ClassicGroup) or ClassicGroup(group.group_id)


class AdminChecker(Checker):
    """A checker that also reads the live state of classic groups: no record describes a rebalance before it ends."""

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._machine: GroupMachine | None = None

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        self._machine = machine

    def group(self, group_id: str) -> Group | None:
        """Return the live group."""
        return None if self._machine is None else self._machine.context.find(group_id)


class DeletionChecker(AdminChecker):
    """Deletion keeps groups with members and offsets of subscribed topics; everything else is deleted completely."""

    skips = QUIET

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._states: dict[str, GroupState] = {}

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        super().on_loaded(machine, outcome)
        groups = machine.context.ledger.groups.values()
        self._states = {group.group_id: state_of(group) for group in groups}

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        if isinstance(event, DeleteGroups):
            self._check_groups(event, outcome)
        elif isinstance(event, OffsetDelete):
            self._check_offsets(event, outcome)
        named = getattr(event, "group_id", None)
        for group_id in self.journal.groups if named is None else (named,):
            group = self.group(group_id)
            if group is not None and group.membership_as(ConsumerGroup) is None:
                self._states[group_id] = state_of(group)

    def _state(self, group_id: str, journal: GroupJournal) -> GroupState:
        """Return a group's state before the step; Empty before its first member."""
        return self._states.get(group_id, GroupState.EMPTY) if journal.consumer is None else journal.consumer.state()

    def _check_groups(self, event: DeleteGroups, outcome: Effects) -> None:
        ((_, reply),) = outcome.replies
        assert isinstance(reply, DeleteGroupsReply)
        buried = {record.key for record in outcome.records if isinstance(record, Tombstone)}
        for group_id, error in zip(event.group_ids, reply.errors, strict=True):
            journal, expected = self.journal.groups.get(group_id), ErrorCode.NONE
            if journal is None:
                expected = ErrorCode.GROUP_ID_NOT_FOUND
            elif self._state(group_id, journal) is not GroupState.EMPTY:
                expected = ErrorCode.NON_EMPTY_GROUP
            gone = {key for key in buried if key[1] == group_id}
            whole = set() if expected or journal is None else keys_of(group_id, journal)
            if error is not expected or gone != whole:
                self.fail(f"{group_id} is deleted with {error.name}, expected {expected.name}; {gone ^ whole} are left")

    def _check_offsets(self, event: OffsetDelete, outcome: Effects) -> None:
        ((_, reply),) = outcome.replies
        assert isinstance(reply, OffsetDeleteReply)
        journal = self.journal.groups.get(event.group_id)
        if journal is None:
            if reply.error is not ErrorCode.GROUP_ID_NOT_FOUND:
                self.fail(f"{event} is answered {reply}, there is no such group")
            return
        state = self._state(event.group_id, journal)
        typed = journal.consumer is not None or self._type(event.group_id) == CONSUMER_PROTOCOL_TYPE
        if state is not GroupState.EMPTY and not typed:
            if reply.error is not ErrorCode.NON_EMPTY_GROUP or outcome.records:
                self.fail(f"{event} is answered {reply} in a group of another type")
            return
        allowed: set[Slot] = set()
        for partition, error in zip(event.partitions, reply.errors, strict=True):
            reads = self._reads(event.group_id, journal, state, partition.topic)
            expected = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if reads else ErrorCode.NONE
            if reads is not None and error is not expected:
                self.fail(f"{partition} of {event.group_id} is deleted with {error.name}, expected {expected.name}")
            if error is ErrorCode.NONE:
                allowed.add((partition.topic, partition.partition))
        gone = {record.key[2:] for record in outcome.records if isinstance(record, Tombstone)}
        if gone != allowed & journal.slots():
            self.fail(f"{event} is answered {reply} and deletes {gone}")

    def _type(self, group_id: str) -> str | None:
        group = self.group(group_id)
        if group is not None and group.membership_as(PushGroup) is not None:
            return CONSUMER_PROTOCOL_TYPE
        return None if group is None else classic_of(group).protocol_type

    @staticmethod
    def _reads(group_id: str, journal: GroupJournal, state: GroupState, topic: str) -> bool | None:
        """Return whether a member is subscribed to a topic.

        None if the records do not say: while a classic group rebalances, or while a pattern is being resolved.
        """
        if state is GroupState.EMPTY:
            return False
        if journal.consumer is not None:
            members = journal.consumer.members.values()
            if any(topic in journal.consumer.topics_of(member) for member in members):
                return True
            patterns = {member.subscribed_regex for member in members} - {None, ""}
            return None if patterns - journal.consumer.regexes.keys() else False
        if journal.push is not None:
            consumers = journal.push.members.values()
            if any(topic == name for consumer in consumers for name, _ in consumer.topics):
                return True
            return None if any(consumer.regex is not None for consumer in consumers) else False
        if state is not GroupState.STABLE or journal.saved is None:
            return None
        read = [read_topics(member.subscription) for member in journal.saved.members]
        return any(topics is None or topic in topics for topics in read)


def keys_of(group_id: str, journal: GroupJournal) -> set[tuple[Any, ...]]:
    """Return the keys of a group's records outside open transactions: a deletion must write a tombstone for each."""
    keys: set[tuple[Any, ...]] = {(RecordKind.OFFSET, group_id, *slot) for slot in journal.slots()}
    if journal.push is not None:
        keys.add((RecordKind.PUSH_GROUP, group_id))
        keys.update((RecordKind.PUSH_MEMBER, group_id, name) for name in journal.push.members)
        keys.update((RecordKind.PUSH_OWNED, group_id, name) for name in journal.push.owned)
        return keys
    if journal.consumer is None:
        keys.add((RecordKind.GROUP, group_id))
        if journal.started:
            keys.add((RecordKind.GENERATION, group_id))
        return keys
    consumer = journal.consumer
    keys.add((RecordKind.EPOCH, group_id))
    if consumer.target_epoch:
        keys.add((RecordKind.TARGET_EPOCH, group_id))
    for kind, names in (
        (RecordKind.MEMBER, consumer.members),
        (RecordKind.TARGET, consumer.targets),
        (RecordKind.CURRENT, consumer.current),
        (RecordKind.REGEX, consumer.regexes),
    ):
        keys.update((kind, group_id, name) for name in names)
    return keys


class DescriptionChecker(AdminChecker):
    """ListGroups and DescribeGroups agree with the journal, and do not reveal an unfinished classic rebalance."""

    skips = QUIET

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        for _, value in (
            outcome.replies if isinstance(event, ListGroups | DescribeGroups | ConsumerGroupDescribe) else ()
        ):
            if isinstance(event, ListGroups):
                assert isinstance(value, ListGroupsReply)
                self._check_list(event, value)
            elif isinstance(value, DescribeGroupsReply):
                for described in value.groups:
                    self._check_classic(described)
            elif isinstance(value, ConsumerGroupDescribeReply):
                for group in value.groups:
                    self._check_consumer(group)

    def _check_list(self, event: ListGroups, reply: ListGroupsReply) -> None:
        listed = {group.group_id: group for group in reply.groups}
        lines = [self._line(group_id, journal) for group_id, journal in self.journal.groups.items()]
        states, types = {state.lower() for state in event.states}, {kind.lower() for kind in event.types}
        expected = {
            line.group_id: line
            for line in lines
            if line.state.lower() in (states or {line.state.lower()}) and line.type in (types or {line.type})
        }
        if len(listed) != len(reply.groups) or listed != expected:
            self.fail(f"listed are {listed}, there are {expected}")

    def _line(self, group_id: str, journal: GroupJournal) -> ListedGroup:
        if journal.consumer is not None:
            return ListedGroup(group_id, CONSUMER_PROTOCOL_TYPE, journal.consumer.state(), GroupType.CONSUMER)
        group = self.group(group_id)
        assert group is not None
        if journal.push is not None:
            return ListedGroup(group_id, CONSUMER_PROTOCOL_TYPE, self._push_state(group, journal.push), "classic")
        return ListedGroup(
            group_id, classic_of(group).protocol_type or "", self._classic_state(group), GroupType.CLASSIC
        )

    @staticmethod
    def _classic_state(group: Group) -> GroupState:
        """Return a classic group's state, derived from its members' pending requests.

        A group whose members have all left behaves as in Kafka. The first join phase lasts its full time. A later join
        phase lasts while a member with a new id has not returned with that id.
        """
        classic = classic_of(group)
        first = classic.previous_state is GroupState.EMPTY and classic.join_phase.due_ms is not None
        awaits = classic.state is GroupState.PREPARING_REBALANCE and (first or classic.pending)
        return classic.state if classic.members or awaits else GroupState.EMPTY

    @staticmethod
    def _push_state(group: Group, journal: PushJournal) -> GroupState:
        """Return Empty if the journal says so, else the live state: no record describes a rebalance."""
        push = group.membership_as(PushGroup)
        return GroupState.EMPTY if push is None or not journal.members else push.group_state()

    def _check_push(self, described: DescribedGroup, group: Group, journal: PushJournal) -> None:
        assert self._machine is not None
        names = {topic.id: topic for topic in self._machine.context.image.topics.values()}
        for member in described.members:
            owned = journal.owned.get(member.member_id, frozenset())
            there = {(names[topic].name, number) for topic, number in owned if topic in names}
            assignment = read_assignment(member.assignment)
            answered = (
                set()
                if assignment is None
                else {(partition.topic, partition.partition) for partition in assignment.partitions}
            )
            if answered != there:
                self.fail(f"described is {described}, {member.member_id} owns {there}")
            saved = journal.members.get(member.member_id)
            if saved is not None and saved.regex is None:
                read = set(read_topics(member.metadata) or ())
                if read != {topic for topic, _ in saved.topics}:
                    self.fail(f"described is {described}, {member.member_id} reads {saved.topics}")
        state = self._push_state(group, journal)
        members = {member.member_id for member in described.members}
        head = (described.error, described.state, described.protocol_type, described.protocol, members)
        protocol = "push" if journal.members else ""
        if head != (ErrorCode.NONE, state, CONSUMER_PROTOCOL_TYPE, protocol, set(journal.members)):
            self.fail(f"described is {described}, there are {list(journal.members)} and it is {state}")

    def _check_classic(self, described: DescribedGroup) -> None:
        journal, group = self.journal.groups.get(described.group_id), self.group(described.group_id)
        if journal is not None and group is not None and journal.push is not None:
            self._check_push(described, group, journal.push)
            return
        if journal is None or group is None or journal.consumer is not None:
            if described.state != GroupState.DEAD or described.members or not described.error:
                self.fail(f"{described} is no classic group")
            return
        members = {member.member_id: member for member in described.members}
        if (
            described.error
            or described.state != self._classic_state(group)
            or members.keys() != classic_of(group).members.keys()
        ):
            self.fail(f"{described} has members {list(classic_of(group).members)} and is {self._classic_state(group)}")
        if described.state != GroupState.STABLE or journal.saved is None:
            if described.protocol or any(member.metadata for member in members.values()):
                self.fail(f"{described} says which protocol, and is not stable")
            return
        answered = {
            name: (listed_member.instance_id, listed_member.client_id, listed_member.metadata, listed_member.assignment)
            for name, listed_member in members.items()
        }
        saved = {
            saved_member.member_id: (
                saved_member.instance_id,
                saved_member.client_id,
                saved_member.subscription,
                saved_member.assignment,
            )
            for saved_member in journal.saved.members
        }
        named = (described.protocol_type, described.protocol)
        if answered != saved or named != (journal.saved.protocol_type, journal.saved.protocol or ""):
            self.fail(f"described is {described}, saved {journal.saved}")

    def _check_consumer(self, described: DescribedConsumerGroup) -> None:
        consumer = self.journal.consumer(described.group_id)
        if consumer is None:
            if described.error is not ErrorCode.GROUP_ID_NOT_FOUND or described.members:
                self.fail(f"{described} is no consumer group")
            return
        answered = {member.member_id: shown_member(member) for member in described.members}
        expected = {name: self._expected(consumer, name) for name in consumer.members}
        head = (described.error, described.state, described.epoch, described.assignment_epoch)
        if answered != expected or head != (ErrorCode.NONE, consumer.state(), consumer.epoch, consumer.target_epoch):
            self.fail(f"described is {described}, there is {consumer}")
        if described.assignor not in ASSIGNORS:
            self.fail(f"described is {described} with an assignor that there is not")

    def _expected(self, consumer: ConsumerJournal, member_id: str) -> tuple[Any, ...]:
        member, current = consumer.members[member_id], consumer.current.get(member_id)
        held: tuple[HeldPartitions, ...] = () if current is None else (*current.assigned, *current.pending_revocation)
        return (
            (member.instance_id, member.rack_id, member.client_id, member.client_host),
            (member.subscribed_topics, member.subscribed_regex),
            consumer.epoch_of(member_id),
            self._existing(pairs(held)),
            self._existing(consumer.targets.get(member_id, frozenset())),
            0 if member.classic_protocols is not None else 1,
        )

    def _existing(self, found: TopicIdPartitions) -> TopicIdPartitions:
        """Return the partitions of topics that exist in the coordinator's view."""
        assert self._machine is not None
        ids = {topic.id for topic in self._machine.context.image.topics.values()}
        return frozenset(pair for pair in found if pair[0] in ids)


def shown_member(member: DescribedConsumer) -> tuple[Any, ...]:
    """Convert a described member of a consumer group to a tuple, for comparison with the journal model."""
    return (
        (member.instance_id, member.rack_id, member.client_id, member.client_host),
        (member.subscribed_topics, member.subscribed_regex),
        member.member_epoch,
        flat(member.assignment),
        flat(member.target),
        member.member_type,
    )


def flat(entries: tuple[PartitionsOfTopic, ...]) -> TopicIdPartitions:
    """Flatten partitions that are grouped by topic into a set, for comparison."""
    return frozenset((entry.topic_id, number) for entry in entries for number in entry.partitions)
