"""Members of a region's group as clients are members, by either protocol.

What a member is told to give up, its application gives up in its own time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.harness.assigning import (
    COOPERATIVE,
    assign,
    decode_assignment,
    decode_claim,
    decode_topics,
    encode_assignment,
    encode_metadata,
)

from kohort.errors import ErrorCode
from kohort.groups.effects import ConsumerGroupHeartbeatReply, HeartbeatReply, JoinGroupReply, SyncGroupReply
from kohort.groups.events import (
    Client,
    ConsumerGroupHeartbeat,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
)
from kohort.groups.records import OfferedProtocol, TopicPartitions
from kohort.ids import TopicPartition
from kohort.region.member import events as member_events
from kohort.region.messages import Identity
from kohort.region.records import Part
from tests.region.world.names import GROUP, TOPIC, TOPIC_ID, part

if TYPE_CHECKING:
    from tests.region.world.group import Group
    from tests.region.world.member import Member

SESSION_MS, BEAT_MS, REBALANCE_MS = 6_000, 500, 60_000
ADDRESS = "/10.0.0.2"
OUT = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)


class GroupMembership:
    """A member's own view of its membership.

    Attributes:
        epoch: or generation.
        target: what it was last told to have; None: nothing was said yet.
        asked: what its application was asked to give up, and has not yet.
        mute_until_ms: nothing that it says arrives until then.
        flying: a request is not answered yet.
        announced: epoch and partitions of which its application heard last.
    """

    def __init__(self, group: Group, member: Member) -> None:
        self.group, self.member, self.clock = group, member, group.clock
        self.member_id = ""
        self.epoch = 0
        self.owned: set[Part] = set()
        self.target: set[Part] | None = None
        self.asked: set[Part] = set()
        self.mute_until_ms = 0
        self.flying = False
        self.announced: tuple[int, frozenset[Part]] = (0, frozenset())

    def begin(self) -> None:
        """Say something now, and again and again."""
        if self.sits():
            self.clock.after(BEAT_MS, self.begin)
            self.say()

    def sits(self) -> bool:
        """Whether it is still the member's."""
        return self.member.alive and self.group.memberships.get(self.member.incarnation) is self

    def can_speak(self) -> bool:
        awake = self.clock.now_ms >= max(self.mute_until_ms, self.member.dozes_until_ms)
        return self.sits() and awake and not self.flying

    def say(self) -> None:
        """Return the requests that are due now."""
        raise NotImplementedError

    def leave(self) -> None:
        """For good."""
        raise NotImplementedError

    def unanswered(self) -> None:
        """Forget pending requests: no answer will arrive."""
        self.flying = False

    def topics_changed(self) -> None:
        """The topic has grown."""

    def released(self, parts: set[Part]) -> None:
        """The application has let go of these."""
        self.owned -= parts
        self.asked -= parts
        self.reconcile()

    def put_out(self) -> None:
        """The coordinator does not know it any more."""
        self.member.hear_of_eviction()

    def reconcile(self) -> None:
        """First give up, then take."""
        if self.target is None or not self.sits():
            return
        back = self.owned - self.target - self.asked
        if back:
            self.asked |= back
            self.member.back |= back
            self.member.revoked(tuple(sorted(back)))
        if not self.owned - self.target:
            self.owned |= self.target
        announced = (self.epoch, frozenset(self.owned))
        if announced != self.announced and self.sits():
            self.announced = announced
            who = Identity(self.member_id, self.epoch)
            self.member.step(member_events.PartitionsAssigned(who, tuple(sorted(self.owned))))
            self.member.in_turn(self.say)


class ConsumerGroupMembership(GroupMembership):
    """KIP-848: heartbeats say what it has, answers what it should have."""

    def __init__(self, group: Group, member: Member) -> None:
        super().__init__(group, member)
        self.member_id = str(member.incarnation)

    def _heartbeat(self, epoch: int) -> ConsumerGroupHeartbeat:
        joins = epoch == 0
        return ConsumerGroupHeartbeat(
            request=self.group.number(),
            group_id=GROUP,
            member_id=self.member_id,
            new_member_id="",
            member_epoch=epoch,
            client=Client(self.member.name, ADDRESS),
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            subscribed_topics=(TOPIC,) if joins else None,
            owned=() if joins else _packed(self.owned),
        )

    def say(self) -> None:
        if self.can_speak():
            self.flying = True
            self.group.ask(self._heartbeat(self.epoch), lambda reply: self.member.in_turn(lambda: self._hear(reply)))

    def _hear(self, reply: ConsumerGroupHeartbeatReply) -> None:
        self.flying = False
        if not self.sits():
            return
        if reply.error in OUT:
            self.put_out()
        elif reply.error is ErrorCode.NONE:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.target = {part(number) for topic in reply.assignment for number in topic.partitions}
            self.reconcile()
        else:
            raise AssertionError(reply)

    def leave(self) -> None:
        self.group.do(self._heartbeat(-1))


class ClassicGroupMembership(GroupMembership):
    """JoinGroup and SyncGroup, cooperative: what another holds is given out when it has let go and joined again."""

    joins = True
    leads = False

    def say(self) -> None:
        if not self.can_speak():
            return
        self.flying = True
        if self.joins:
            self.joins = False  # what is let go from now on needs another join
            self._join()
        else:
            beat = Heartbeat(self.group.number(), GROUP, self.epoch, self.member_id)
            self.group.ask(beat, lambda reply: self.member.in_turn(lambda: self._beaten(reply)))

    def _join(self) -> None:
        owned = [TopicPartition(TOPIC, entry.partition) for entry in self.owned]
        event = JoinGroup(
            request=self.group.number(),
            group_id=GROUP,
            member_id=self.member_id,
            new_member_id=f"{self.member.name}-{self.clock.chance.getrandbits(64):016x}",
            client=Client(self.member.name, ADDRESS),
            protocol_type="consumer",
            protocols=(OfferedProtocol(COOPERATIVE, encode_metadata((TOPIC,), self.epoch or -1, owned)),),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        self.group.ask(event, lambda reply: self.member.in_turn(lambda: self._joined(reply)))

    def _joined(self, reply: JoinGroupReply) -> None:
        self.flying = False
        if not self.sits():
            return
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id, self.joins = reply.member_id, True
            self.say()
        elif reply.error in OUT:
            self.put_out()
        elif reply.error is ErrorCode.NONE:
            self.member_id, self.epoch = reply.member_id, reply.generation
            self.leads = reply.leader == reply.member_id
            self._sync(reply)
        elif reply.error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.joins = True
        else:
            raise AssertionError(reply)

    def _sync(self, reply: JoinGroupReply) -> None:
        given: tuple[tuple[str, bytes], ...] = ()
        if reply.members:
            claims = {member.member_id: decode_claim(member.metadata) for member in reply.members}
            topics = {member.member_id: decode_topics(member.metadata) for member in reply.members}
            everything = [TopicPartition(TOPIC, number) for number in range(self.group.count)]
            shares = assign(claims, topics, everything, cooperative=True)
            given = tuple((who, encode_assignment(parts)) for who, parts in sorted(shares.items()))
        self.flying = True
        event = SyncGroup(self.group.number(), GROUP, self.epoch, self.member_id, given)
        self.group.ask(event, lambda reply: self.member.in_turn(lambda: self._synced(reply)))

    def _synced(self, reply: SyncGroupReply) -> None:
        self.flying = False
        if not self.sits():
            return
        if reply.error in (*OUT, ErrorCode.ILLEGAL_GENERATION):
            self.put_out()
        elif reply.error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.joins = True
            self.say()
        elif reply.error is ErrorCode.NONE:
            self.target = {part(entry.partition) for entry in decode_assignment(reply.assignment)}
            self.reconcile()
        else:
            raise AssertionError(reply)

    def _beaten(self, reply: HeartbeatReply) -> None:
        self.flying = False
        if not self.sits():
            return
        if reply.error in (*OUT, ErrorCode.ILLEGAL_GENERATION):
            self.put_out()
        elif reply.error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.joins = True
            self.say()

    def unanswered(self) -> None:
        """Join again: what was asked may have been a join."""
        super().unanswered()
        self.joins = True

    def released(self, parts: set[Part]) -> None:
        """Join again, so that others get them."""
        self.joins = self.joins or bool(parts & self.owned)
        super().released(parts)
        self.say()

    def topics_changed(self) -> None:
        """The leader looks after the topics."""
        if self.leads:
            self.joins = True

    def leave(self) -> None:
        self.group.do(LeaveGroup(self.group.number(), GROUP, (LeavingMember(self.member_id),)))


def _packed(parts: set[Part]) -> tuple[TopicPartitions, ...]:
    numbers = tuple(sorted(entry.partition for entry in parts))
    return (TopicPartitions(TOPIC_ID, numbers),) if numbers else ()
