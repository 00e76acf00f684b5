"""Members of classic groups: their partitions, and the end of ownership by their own clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kohort.errors import ErrorCode
from kohort.groups.effects import JoinGroupReply, SyncGroupReply
from kohort.groups.events import (
    Client,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
)
from kohort.groups.records import OfferedProtocol
from kohort.ids import TopicPartition
from simulation.checkers.group_checkers import Checkers
from simulation.harness.assigning import (
    COOPERATIVE,
    assign,
    decode_assignment,
    decode_claim,
    decode_topics,
    encode_assignment,
    encode_metadata,
)
from simulation.harness.habits import Habits
from simulation.harness.network import Network
from simulation.harness.world import World
from simulation.members.client import ASIDE
from simulation.members.process import Process

LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
SOON_MS = 100


class ClassicMember(Process):
    """A member that speaks the classic protocol."""

    def __init__(self, name: str, habits: Habits, world: World, network: Network, checkers: Checkers) -> None:
        super().__init__(name, habits, world, network, checkers)
        self.strategy = ""
        self.known_partitions: dict[str, int] = {}
        self.joined_partitions: dict[str, int] = {}
        self._joining = False
        self._said_topics: tuple[str, ...] = ()

    def _begin(self) -> None:
        self._join()
        self._later(self.habits.heartbeat_ms, self._beat)

    def leave(self) -> None:
        """Revoke everything and leave the group (a static member only stops)."""
        self.world.log(f"{self.name}: leaves")
        if self.habits.instance_id is None and self.member_id:
            self._commit(self.held)
            leaving = LeaveGroup(0, self.habits.group_id, (LeavingMember(self.member_id),))
            self._ask(leaving, lambda reply: None, self._nothing)
        self._hold(frozenset())
        self._close()

    def learn_topics(self, partitions: dict[str, int]) -> None:
        """Take fresh metadata; a leader whose partitions changed requests a rebalance."""
        self.known_partitions = dict(partitions)
        watched = self._counts(self.joined_partitions)
        if self.stable and (self.joined_partitions != watched or self._said_topics != self.topics):
            self._later(0, self._join)

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the partition counts of topics."""
        return {topic: self.known_partitions.get(topic, 0) for topic in sorted(topics)}

    def _subscribed(self) -> None:
        self.learn_topics(self.known_partitions)

    @property
    def _cooperates(self) -> bool:
        """Return whether it keeps its partitions while it joins: all its assignors must be cooperative."""
        return all(strategy == COOPERATIVE for strategy in self.habits.strategies)

    def _lose(self, error: ErrorCode) -> None:
        """Reset after an eviction: the owned partitions are lost."""
        self._hold(frozenset())
        self.generation = -1
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self._rejoin()

    def _rejoin(self, delay_ms: float = SOON_MS) -> None:
        self.stable = False
        self._round += 1
        number = self._round

        def again() -> None:
            if number == self._round:
                self._join()

        self._later(self.chance.upto(int(delay_ms)), again)

    def _join(self) -> None:
        """Revoke what the strategy requires, then ask to join the next generation."""
        if self._joining:
            return
        self._joining = True
        self.stable = False
        self._round += 1
        if self._cooperates:
            self._drop_unread()
        if self._cooperates or not self.held:
            self._send_join()
            return
        if self.habits.commits_on_revocation:
            self._commit(self.held)
        self._later(self.chance.upto(self.habits.callback_ms), self._revoke_and_join)

    def _drop_unread(self) -> None:
        """Revoke partitions of topics outside the subscription, as cooperative clients do before they join."""
        unread = frozenset(partition for partition in self.held if partition.topic not in self.topics)
        if unread:
            self._commit(unread)
            self._hold(self.held - unread)

    def _revoke_and_join(self) -> None:
        self._hold(frozenset())
        self._send_join()

    def _send_join(self) -> None:
        habits = self.habits
        self._said_topics = habits.topics
        metadata = encode_metadata(habits.topics, self.generation, self.held, habits.rack)
        event = JoinGroup(
            request=0,
            group_id=habits.group_id,
            member_id=self.member_id,
            new_member_id=f"{self.name}-{self.chance.getrandbits(32):08x}",
            client=Client(self.name, "/10.0.0.1", self.process),
            protocol_type="consumer",
            protocols=tuple(OfferedProtocol(name, metadata) for name in habits.strategies),
            session_timeout_ms=habits.session_timeout_ms,
            rebalance_timeout_ms=habits.rebalance_timeout_ms,
            instance_id=habits.instance_id,
            requires_known_id=habits.requires_known_id,
            can_skip_assignment=habits.requires_known_id,
        )

        def lost() -> None:
            self._joining = False
            self._rejoin()

        self._ask(event, self._on_join, lost)

    def _on_join(self, reply: JoinGroupReply) -> None:
        self._joining = False
        error = reply.error
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            self._rejoin(0)
        elif error in LOST:
            self._lose(error)
        elif error is ErrorCode.FENCED_INSTANCE_ID or error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            self._fatal(error)
        elif error is not ErrorCode.NONE:
            self._rejoin(1_000)
        else:
            self._sync(reply)

    def _sync(self, joined: JoinGroupReply) -> None:
        self.member_id, self.generation = joined.member_id, joined.generation
        self.strategy = joined.protocol_name or ""
        self.joined_partitions = {}
        plan: tuple[tuple[str, bytes], ...] = ()
        if joined.leader == joined.member_id:
            read = [decode_topics(member.metadata) for member in joined.members]
            self.joined_partitions = self._counts(frozenset(self.topics).union(*read))
        if joined.leader == joined.member_id and not joined.skip_assignment:
            plan = self._plan(joined)
        event = SyncGroup(0, self.habits.group_id, self.generation, self.member_id, plan, self.habits.instance_id)
        number, sent_ms = self._round, self.world.now_ms

        def take(reply: SyncGroupReply) -> None:
            if number == self._round:
                self._on_sync(reply, sent_ms)

        def lost() -> None:
            if number == self._round:
                self._rejoin()

        self._ask(event, take, lost)

    def _plan(self, joined: JoinGroupReply) -> tuple[tuple[str, bytes], ...]:
        claims = {member.member_id: decode_claim(member.metadata) for member in joined.members}
        read = {member.member_id: decode_topics(member.metadata) for member in joined.members}
        partitions = [
            TopicPartition(topic, number) for topic, count in self.joined_partitions.items() for number in range(count)
        ]
        plan = assign(claims, read, partitions, cooperative=joined.protocol_name == COOPERATIVE)
        return tuple((member, encode_assignment(taken)) for member, taken in plan.items())

    def _on_sync(self, reply: SyncGroupReply, sent_ms: int) -> None:
        error = reply.error
        if error is ErrorCode.FENCED_INSTANCE_ID or error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            self._fatal(error)
        elif error in LOST:
            self._lose(error)
        elif error is not ErrorCode.NONE:
            self._rejoin()
        else:
            self.stable = True
            self._take(decode_assignment(reply.assignment), sent_ms)
            self.learn_topics(self.known_partitions)

    def _take(self, assigned: frozenset[TopicPartition], sent_ms: int) -> None:
        revoked = self.held - assigned
        self._commit(revoked)
        self._alive(sent_ms)
        if revoked and self._cooperates:
            self._release_revoked(assigned)
            return
        self._hold(assigned)
        self._fetch_positions(assigned)

    def _release_revoked(self, assigned: frozenset[TopicPartition]) -> None:
        """Work on until the application has released its partitions, then join again, unless a join is due before."""
        number = self._round

        def done() -> None:
            if number == self._round:
                self._hold(assigned)
                self._fetch_positions(assigned)
                self._join()

        self._later(self.chance.upto(self.habits.callback_ms), done)

    def _beat(self) -> None:
        self._later(self.lease.heartbeat_interval_ms(self.habits.heartbeat_ms), self._beat)
        if not self.stable:
            if self.lease.length_ms is not None and self.held:
                self._beat_aside()
            return
        number, sent_ms = self._round, self.world.now_ms

        def take(reply: Any) -> None:
            if number == self._round:
                self._on_error(reply.error, sent_ms)

        habits = self.habits
        event = Heartbeat(0, habits.group_id, self.generation, self.member_id, habits.instance_id, self._hold_ms())
        self._ask(event, take, self._nothing)

    def _beat_aside(self) -> None:
        """Renew the lease by a heartbeat on another connection while a join or sync waits on the usual one."""
        sent_ms = self.world.now_ms

        def take(reply: Any) -> None:
            if reply.error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
                self._alive(sent_ms)

        event = Heartbeat(0, self.habits.group_id, self.generation, self.member_id, self.habits.instance_id)
        self._ask(event, take, self._nothing, ASIDE)

    def _on_error(self, error: ErrorCode, sent_ms: int) -> None:
        """Handle the error of a heartbeat or a commit."""
        if error is ErrorCode.NONE:
            self._alive(sent_ms)
        elif error is ErrorCode.REBALANCE_IN_PROGRESS:
            self._alive(sent_ms)
            self._join()
        elif error is ErrorCode.FENCED_INSTANCE_ID:
            self._fatal(error)
        elif error in LOST:
            self._lose(error)
