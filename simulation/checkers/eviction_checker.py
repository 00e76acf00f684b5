"""A checker of evictions: a member that sends heartbeats, revokes and joins in time stays in its group.

The checker keeps its own records of each member: last heartbeat, pending requests, outstanding revocations and joins,
and connection. An eviction, or an order to rejoin, must be justified by these records.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from kohort.errors import ErrorCode
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.config import GroupConfig
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.effects import Effects, GroupState, JoinGroupReply
from kohort.groups.events import (
    NO_CONNECTION,
    ConnectionLost,
    ConsumerGroupHeartbeat,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetFetch,
    SyncGroup,
    TimersDue,
)
from kohort.groups.group import Group
from kohort.groups.machine import GroupMachine
from kohort.groups.records import MemberAssigned, MemberSaved, ReconciliationState
from simulation.checkers.property import Checker, Holder
from simulation.harness.server import Waiting
from simulation.harness.world import World

Key = tuple[str, str]
"""Group id and member id."""
SOONEST_MS = 1_250
"""The minimum time for a member to reconnect after its connection ended."""
GOES_ON = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
TAKEN = (ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE)
STRANGER = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.INVALID_GROUP_ID)


@dataclass
class MemberHistory:
    """The checker's record of a member; times in ms.

    Attributes:
        heard_ms: the last sign of life or the last answer to a pending request; a pending join or sync is no sign of
            life.
        new_ms: when it joined a classic group, until its first rebalance ends.
        waits: its pending joins, syncs and consumer heartbeats.
        notified: a response has told it its member id.
        lost_ms: when its connection ended, if that may evict it.
        moves_ms: since when it has to revoke partitions.
        called_ms: when a consumer group told it to join again; None once it has joined.
        joined_ms: when a response told it a new generation; None once it has sent its SyncGroup.
        generation: the last one in a response to its join; a group's only member starts a new generation at once.
    """

    heard_ms: int
    session_ms: int
    rebalance_ms: int
    instance_id: str | None = None
    new_ms: int | None = None
    waits: set[int] = field(default_factory=set)
    notified: bool = True
    connection: int = NO_CONNECTION
    process: str = ""
    lost_ms: int | None = None
    lease_ms: int = 0
    is_dead: bool = False
    moves_ms: int | None = None
    called_ms: int | None = None
    joined_ms: int | None = None
    generation: int = -1


@dataclass
class RebalanceState:
    """The state of a classic group's rebalance.

    Attributes:
        since_ms: when the group entered this state or generation.
    """

    state: GroupState
    generation: int
    since_ms: int


class EvictionChecker(Checker):
    """No member is evicted without a reason."""

    skips = frozenset({OffsetFetch})

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._machine: GroupMachine | None = None
        self._in: dict[str, set[str]] = {}
        self._rounds: dict[str, RebalanceState] = {}
        self._kept: dict[Key, MemberHistory] = {}
        self._waits: dict[int, Key] = {}

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        self._machine = machine
        self._in, self._rounds, self._kept, self._waits = {}, {}, {}, {}
        now_ms = self.world.now_ms
        for group_id, journal in self.journal.groups.items():
            for saved in () if journal.saved is None or journal.consumer is not None else journal.saved.members:
                limits = (saved.session_timeout_ms, saved.rebalance_timeout_ms)
                self._kept[group_id, saved.member_id] = MemberHistory(now_ms, *limits, saved.instance_id)
            for member_id, member in {} if journal.consumer is None else journal.consumer.members.items():
                self._kept[group_id, member_id] = kept = self._of(member)
                if journal.consumer is not None:
                    moves = journal.consumer.state_of(member_id) is ReconciliationState.UNREVOKED_PARTITIONS
                    kept.moves_ms = now_ms if moves else None
            self._look(group_id)

    def _of(self, member: MemberSaved) -> MemberHistory:
        classic = member.classic_protocols is not None
        session_ms = member.classic_session_timeout_ms if classic else self.config.consumer_session_timeout_ms
        return MemberHistory(self.world.now_ms, session_ms, member.rebalance_timeout_ms, member.instance_id)

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        if isinstance(event, OffsetCommit):
            self._hear_commit(event, outcome)
            return
        replies = dict(outcome.replies)
        group_id, request = getattr(event, "group_id", None), getattr(event, "request", None)
        value = None if request is None else replies.get(request)
        if isinstance(event, ConnectionLost):
            self._lose(event)
        elif isinstance(event, ConsumerGroupHeartbeat | Heartbeat | SyncGroup):
            self._check_refused(event, value)
        for name in list(self._in) if group_id is None else (group_id,):
            before = self._rounds.get(name)
            for member_id in sorted(self._look(name)):
                self._check_gone(event, value, (name, member_id), before)
                self._kept.pop((name, member_id), None)
        for other in replies:
            if other != request and other in self._waits:
                self._answered(other, replies[other], event)
        for record in outcome.records:
            if isinstance(record, MemberAssigned) and (key := (record.group_id, record.member_id)) in self._kept:
                moves = record.state is ReconciliationState.UNREVOKED_PARTITIONS
                self._kept[key].moves_ms = self.world.now_ms if moves else None
        if isinstance(event, Heartbeat | ConsumerGroupHeartbeat | JoinGroup | SyncGroup):
            self._hear(event, value)

    def _group(self, group_id: str) -> Group | None:
        return None if self._machine is None else self._machine.context.find(group_id)

    def _in_consumer_group(self, group_id: str) -> bool:
        group = self._group(group_id)
        return group is not None and group.membership_as(ConsumerGroup) is not None

    def _look(self, group_id: str) -> set[str]:
        """Return the members that have left a group since the last call; also record a classic group's rebalance."""
        group, before = self._group(group_id), self._in.get(group_id, set())
        if group is None:
            self._in.pop(group_id, None)
            self._rounds.pop(group_id, None)
            return before
        consumer, classic = group.membership_as(ConsumerGroup), group.membership_as(ClassicGroup)
        members: Collection[str] = ()
        if consumer is not None:
            members = consumer.members
            self._rounds.pop(group_id, None)
        elif classic is not None:
            members, known = classic.members, self._rounds.get(group_id)
            state, generation = classic.state, classic.generation
            if known is None or (known.state, known.generation) != (state, generation):
                self._rounds[group_id] = RebalanceState(state, generation, self.world.now_ms)
        if len(members) == len(before) and before.issuperset(members):
            return set()
        self._in[group_id] = set(members)
        return before.difference(members)

    def _hear(self, event: Any, value: Any) -> None:
        """Record a member's request: an accepted one is a sign of life, an unanswered one is pending."""
        member_id = event.member_id or getattr(event, "new_member_id", "")
        key = (event.group_id, member_id)
        if member_id not in self._in.get(event.group_id, ()):
            return
        now_ms, kept = self.world.now_ms, self._kept.get(key)
        error = ErrorCode.NONE if value is None else getattr(value, "error", None)
        if isinstance(event, Heartbeat) and error is ErrorCode.NONE and kept is not None:
            kept.heard_ms, kept.lost_ms, kept.connection = now_ms, None, event.connection
            return
        if isinstance(event, ConsumerGroupHeartbeat) and event.member_epoch < 0:
            return
        if isinstance(event, SyncGroup) and error not in GOES_ON:
            if kept is not None and error not in STRANGER and not self._in_consumer_group(event.group_id):
                kept.connection = event.connection
            return
        if error not in GOES_ON:
            return
        if kept is None:
            kept = self._kept[key] = MemberHistory(
                now_ms, self.config.consumer_session_timeout_ms, 0, event.instance_id
            )
            kept.notified = bool(event.member_id) or (isinstance(event, JoinGroup) and event.instance_id is not None)
            kept.new_ms = now_ms
        self._note_join(event, value, kept)
        waits_only = value is None and isinstance(event, JoinGroup | SyncGroup) and kept.lost_ms is None
        if not waits_only and (not isinstance(event, SyncGroup) or error is ErrorCode.NONE):
            kept.heard_ms, kept.lost_ms = now_ms, None
        called = error is ErrorCode.REBALANCE_IN_PROGRESS
        if not (called and isinstance(event, SyncGroup) and self._in_consumer_group(event.group_id)):
            kept.connection = event.connection
        if isinstance(event, Heartbeat | SyncGroup) and called:
            kept.called_ms = now_ms if kept.called_ms is None else kept.called_ms
        elif isinstance(event, SyncGroup):
            kept.joined_ms = None
        if value is None and not isinstance(event, Heartbeat):
            kept.waits.add(event.request)
            self._waits[event.request] = key
        elif error is ErrorCode.NONE:
            kept.notified = True

    def _hear_commit(self, event: OffsetCommit, outcome: Effects) -> None:
        """Record a commit of a member of the classic protocol: an accepted one is a sign of life."""
        key = (event.group_id, event.member_id)
        kept = self._kept.get(key)
        if kept is None or not self._is_classic(key):
            return
        if any(error in TAKEN for error in outcome.replies[-1].value.errors):  # type: ignore[union-attr]
            kept.heard_ms, kept.lost_ms = self.world.now_ms, None

    def _note_join(self, event: Any, value: Any, kept: MemberHistory) -> None:
        """Record the timeouts that a join names; a stable member that repeats its join changes nothing."""
        if isinstance(event, ConsumerGroupHeartbeat):
            kept.session_ms = self.config.consumer_session_timeout_ms
            if event.rebalance_timeout_ms != -1:
                kept.rebalance_ms = event.rebalance_timeout_ms
            kept.new_ms = kept.called_ms = kept.joined_ms = None
        elif isinstance(event, JoinGroup):
            if value is None or kept.rebalance_ms == 0 or value.generation != kept.generation:
                kept.session_ms, kept.rebalance_ms = event.session_timeout_ms, event.rebalance_timeout_ms
            kept.called_ms = None
            if value is not None and (value.generation != kept.generation or self._in_consumer_group(event.group_id)):
                self._welcomed(kept, value.generation)
        if isinstance(event, JoinGroup | ConsumerGroupHeartbeat):
            kept.process = event.client.process or kept.process

    def _welcomed(self, kept: MemberHistory, generation: int) -> None:
        """Record that the member's JoinGroup was answered, from when it must send its SyncGroup in time."""
        kept.new_ms, kept.generation = None, generation
        kept.joined_ms = self.world.now_ms

    def _answered(self, request: int, value: Any, event: Any) -> None:
        """Record the answer to a pending request, except that of a join which a later join of the member replaced."""
        key = self._waits.pop(request)
        kept = self._kept.get(key)
        if kept is None:
            return
        kept.waits.discard(request)
        kept.notified = True
        waits_on = isinstance(event, JoinGroup) and key == (event.group_id, event.member_id) and value.error
        if kept.lost_ms is None and value.error in GOES_ON and not waits_on:
            kept.heard_ms = self.world.now_ms
        if isinstance(value, JoinGroupReply) and value.error is ErrorCode.NONE:
            self._welcomed(kept, value.generation)

    def _lose(self, event: ConnectionLost) -> None:
        for kept in self._kept.values():
            if kept.connection == event.connection and event.noticed and kept.instance_id is None:
                kept.lost_ms, kept.lease_ms = self.world.now_ms, event.lease_ms
                kept.is_dead = event.ended != "" and event.ended == kept.process

    def _is_classic(self, key: Key) -> bool:
        """Whether a member speaks the classic protocol."""
        group = self._group(key[0])
        consumer = None if group is None else group.membership_as(ConsumerGroup)
        if consumer is None:
            return True
        member = consumer.members.get(key[1])
        return member is not None and member.classic_protocols is not None

    def _check_gone(self, event: Any, value: Any, key: Key, before: RebalanceState | None) -> None:
        """Check a member's removal; `before` is its classic group's state before the step, None for other groups."""
        kept = self._kept.get(key)
        if kept is None or self._goes_by_itself(event, value, key, kept):
            return
        if isinstance(event, ConnectionLost) and not kept.notified:
            return
        if not isinstance(event, TimersDue) or self._excuse(kept, before) is None:
            since_ms = self.world.now_ms - kept.heard_ms
            self.fail(f"{key[1]} of {key[0]} was evicted, heard {since_ms} ms ago, by {event}: {kept}")

    def _goes_by_itself(self, event: Any, value: Any, key: Key, kept: MemberHistory) -> bool:
        """Return whether a member's removal needs no timeout: it left, was removed, was replaced or found no room."""
        member_id = key[1]
        if isinstance(event, LeaveGroup):
            return any(
                leaving.member_id == member_id or leaving.instance_id == kept.instance_id is not None
                for leaving in event.members
            )
        if not isinstance(event, JoinGroup | ConsumerGroupHeartbeat):
            return False
        if event.member_id == member_id:
            leaves = isinstance(event, ConsumerGroupHeartbeat) and event.member_epoch == -1
            return leaves or (value is not None and value.error is ErrorCode.GROUP_MAX_SIZE_REACHED)
        return event.instance_id is not None and event.instance_id == kept.instance_id

    def _excuse(self, kept: MemberHistory, before: RebalanceState | None) -> str | None:
        """Return the reason for which the member may be evicted now; None if there is none."""
        now_ms = self.world.now_ms
        if kept.lost_ms is not None:
            if kept.is_dead:
                return "its process has ended"
            if now_ms >= max(kept.lost_ms + SOONEST_MS, kept.heard_ms + kept.lease_ms):
                return "it did not come back"
        if kept.new_ms is not None and now_ms >= kept.new_ms + self.config.new_member_timeout_ms:
            return "its first round never ended"
        if before is not None and kept.rebalance_ms <= 0:
            return "it gave itself no time"
        if kept.waits and before is not None and kept.lost_ms is None:
            return None
        if now_ms >= kept.heard_ms + kept.session_ms:
            return "it was silent for its session"
        if before is None:
            asked = (kept.called_ms, kept.joined_ms)
            late = any(since_ms is not None and now_ms >= since_ms + kept.rebalance_ms for since_ms in asked)
            return "it did not join or synchronize in time, in a consumer group" if late else None
        if before.state is GroupState.PREPARING_REBALANCE and kept.instance_id is None:
            return "it did not join in time" if now_ms >= before.since_ms + kept.rebalance_ms else None
        late = kept.joined_ms is not None and now_ms >= kept.joined_ms + kept.rebalance_ms
        return "it did not synchronize in time" if late else None

    def _check_refused(self, event: Any, value: Any) -> None:
        """Check that a member with the right epoch must rejoin only after missing a revocation or join deadline."""
        consumer = self.journal.consumer(event.group_id)
        member = None if consumer is None else consumer.members.get(event.member_id)
        kept = self._kept.get((event.group_id, event.member_id))
        if value is None or value.error is not ErrorCode.UNKNOWN_MEMBER_ID or member is None or kept is None:
            return
        is_classic = not isinstance(event, ConsumerGroupHeartbeat)
        if is_classic is not (member.classic_protocols is not None):
            return
        if event.instance_id not in (None, member.instance_id):
            return
        asked = (kept.called_ms, kept.joined_ms) if is_classic else (kept.moves_ms,)
        now_ms = self.world.now_ms
        if not any(since_ms is not None and now_ms >= since_ms + kept.rebalance_ms for since_ms in asked):
            self.fail(f"{event.member_id} of {event.group_id} is told to join again by {event}: {kept}")
