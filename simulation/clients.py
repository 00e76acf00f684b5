"""Members of classic groups as clients see themselves: what they hold, and until when by their own clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kohort.errors import ErrorCode
from kohort.groups.events import (
    Client,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetFetch,
    OffsetToCommit,
    SyncGroup,
)
from kohort.groups.outcome import JoinGroupReply, OffsetFetchReply, SyncGroupReply
from kohort.groups.records import ClassicProtocol
from kohort.ids import TopicPartition
from simulation.checkers import Checkers
from simulation.network import Connection, Network
from simulation.plans import assign, decode_assignment, decode_claim, encode_assignment, encode_metadata
from simulation.world import Happening, World

LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
SOON_MS = 100


@dataclass(frozen=True)
class Habits:
    """How a client is configured."""

    group_id: str
    topics: tuple[str, ...]
    strategies: tuple[str, ...] = ("eager",)
    instance_id: str | None = None
    session_timeout_ms: int = 6_000
    rebalance_timeout_ms: int = 25_000
    heartbeat_ms: int = 1_500
    commit_ms: int = 1_000
    callback_ms: int = 50
    requires_known_id: bool = True
    commits_on_revocation: bool = True


class Member:
    """One client process that is, or tries to be, in a classic group.

    Attributes:
        held: the partitions it would process.
        session_end_ms: when its session ends by its own clock.
        paused: its process is stopped; it does nothing until it wakes.
        dead: it will never act again.
    """

    def __init__(self, name: str, habits: Habits, world: World, network: Network, checkers: Checkers) -> None:
        self.name = name
        self.habits = habits
        self.world = world
        self.network = network
        self.checkers = checkers
        self.member_id = ""
        self.generation = -1
        self.strategy = ""
        self.held: frozenset[TopicPartition] = frozenset()
        self.session_end_ms = -1
        self.paused = False
        self.dead = False
        self.stable = False
        self.started_ms = -1
        self.known_partitions: dict[str, int] = {}
        self.joined_partitions: dict[str, int] = {}
        self._connection: Connection | None = None
        self._joining = False
        self._round = 0
        self._asked: dict[int, tuple[Happening, Connection, Callable[[], None]]] = {}
        self._asks = 0
        self._asleep: list[Callable[[], None]] = []

    @property
    def group_id(self) -> str:
        """Its group."""
        return self.habits.group_id

    @property
    def instance_id(self) -> str | None:
        """Its static id."""
        return self.habits.instance_id

    @property
    def topics(self) -> tuple[str, ...]:
        """What it reads."""
        return self.habits.topics

    def start(self) -> None:
        """Come to life."""
        self.world.tell(f"{self.name}: starts in {self.group_id}, instance {self.instance_id}")
        self.started_ms = self.world.now_ms
        self._later(0, self._join)
        self._later(self.habits.heartbeat_ms, self._beat)
        self._later(self.habits.commit_ms, self._commit_now_and_then)

    def owns(self, partition: TopicPartition) -> bool:
        """Whether it would process this partition now."""
        return partition in self.held and not self.dead and not self.paused and self.world.now_ms < self.session_end_ms

    def crash(self) -> None:
        """Die without a word."""
        self.world.tell(f"{self.name}: crashes")
        self.dead = True
        if self._connection is not None:
            self._connection.break_()

    def leave(self) -> None:
        """Give everything up and go (a static member only goes)."""
        self.world.tell(f"{self.name}: leaves")
        if self.habits.instance_id is None and self.member_id:
            self._commit(self.held)
            leaving = LeaveGroup(0, self.habits.group_id, (LeavingMember(self.member_id),))
            self._ask(leaving, lambda reply: None, self._nothing)
        self._hold(frozenset())
        self.dead = True

    def pause(self, duration_ms: int) -> None:
        """Stop the process; it wakes where it was."""
        self.world.tell(f"{self.name}: paused for {duration_ms} ms")
        self.paused = True
        self.world.after(duration_ms, self.wake)

    def wake(self) -> None:
        """Go on: first what it was about to do, a commit included."""
        if not self.paused or self.dead:
            return
        self.world.tell(f"{self.name}: wakes")
        self.paused = False
        self._commit(self.held)
        self.checkers.on_hold(self)
        waiting, self._asleep = self._asleep, []
        for action in waiting:
            action()

    def learn_topics(self, partitions: dict[str, int]) -> None:
        """Fresh metadata; a leader whose partitions changed asks for a new round."""
        self.known_partitions = dict(partitions)
        if self.stable and self.joined_partitions and self.joined_partitions != self._wanted_topics():
            self._later(0, self._join)

    def cut(self) -> None:
        """Its connection breaks."""
        if self._connection is not None:
            self._connection.break_()

    def _wanted_topics(self) -> dict[str, int]:
        return {topic: self.known_partitions.get(topic, 0) for topic in self.habits.topics}

    def _later(self, delay_ms: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if self.dead:
                return
            if self.paused:
                self._asleep.append(act)
                return
            action()

        self.world.after(delay_ms, act)

    def _ask(self, event: Any, on_reply: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        """Send a request on the present connection; exactly one of the two is called, unless it dies."""
        if self._connection is None or not self._connection.open:
            self._connection = self.network.connect(self._on_closed)
        connection = self._connection
        self._asks += 1
        number = self._asks
        patience = self.habits.rebalance_timeout_ms + 5_000 if isinstance(event, JoinGroup) else 3_000

        def lost() -> None:
            if self._asked.pop(number, None) is not None:
                connection.break_()
                on_lost()

        def replied(value: Any) -> None:
            asked = self._asked.pop(number, None)
            if asked is not None and not self.dead:
                asked[0].cancel()
                self._awake(lambda: on_reply(value))

        timer = self.world.after(patience, lambda: self._awake(lost))
        self._asked[number] = (timer, connection, lost)
        self.network.ask(connection, event, replied)

    def _awake(self, action: Callable[[], None]) -> None:
        if self.paused:
            self._asleep.append(lambda: self._awake(action))
        elif not self.dead:
            action()

    def _on_closed(self) -> None:
        """Each request on a closed connection is lost, when the client notices."""

        def notice() -> None:
            for _, connection, lost in list(self._asked.values()):
                if not connection.open:
                    lost()

        self._awake(notice)

    def _nothing(self) -> None:
        """A lost request that no one misses."""

    def _alive(self, sent_ms: int) -> None:
        """The coordinator took a request that was sent then: the session goes on from there."""
        before = self.session_end_ms
        self.session_end_ms = max(before, sent_ms + self.habits.session_timeout_ms)
        if before <= self.world.now_ms < self.session_end_ms:
            self.checkers.on_hold(self)

    def _hold(self, partitions: frozenset[TopicPartition]) -> None:
        if partitions != self.held:
            self.world.tell(f"{self.name}: holds {sorted(map(str, partitions))} at generation {self.generation}")
        self.held = partitions
        self.checkers.on_hold(self)

    def _lose(self, error: ErrorCode) -> None:
        """The coordinator has put it out: what it held is lost, it starts anew."""
        self._hold(frozenset())
        self.generation = -1
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self._rejoin()

    def _fatal(self, error: ErrorCode) -> None:
        self.world.tell(f"{self.name}: ends with {error.name}")
        self._hold(frozenset())
        self.dead = True

    def _rejoin(self, delay_ms: float = SOON_MS) -> None:
        self.stable = False
        self._round += 1
        number = self._round

        def again() -> None:
            if number == self._round:
                self._join()

        self._later(self.world.chance.randint(0, int(delay_ms)), again)

    def _join(self) -> None:
        """Give up what the strategy says, then ask to be in the next generation."""
        if self._joining:
            return
        self._joining = True
        self.stable = False
        self._round += 1
        if "cooperative" in self.habits.strategies or not self.held:
            self._send_join()
            return
        if self.habits.commits_on_revocation:
            self._commit(self.held)
        self._later(self.world.chance.randint(0, self.habits.callback_ms), self._revoke_and_join)

    def _revoke_and_join(self) -> None:
        self._hold(frozenset())
        self._send_join()

    def _send_join(self) -> None:
        habits = self.habits
        metadata = encode_metadata(habits.topics, self.generation, self.held)
        event = JoinGroup(
            request=0,
            group_id=habits.group_id,
            member_id=self.member_id,
            new_member_id=f"{self.name}-{self.world.chance.getrandbits(32):08x}",
            client=Client(self.name, "/10.0.0.1"),
            protocol_type="consumer",
            protocols=tuple(ClassicProtocol(name, metadata) for name in habits.strategies),
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
            self.joined_partitions = self._wanted_topics()
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
        partitions = [
            TopicPartition(topic, number) for topic, count in self._wanted_topics().items() for number in range(count)
        ]
        plan = assign(claims, partitions, cooperative=joined.protocol_name == "cooperative")
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

    def _take(self, assigned: frozenset[TopicPartition], sent_ms: int) -> None:
        revoked = self.held - assigned
        self._commit(revoked)
        self._alive(sent_ms)
        self._hold(assigned)
        if assigned:
            wanted = tuple(sorted(assigned))
            fetch = OffsetFetch(0, self.habits.group_id, wanted)
            self._ask(fetch, self._on_fetched, self._nothing)
        if revoked and self.strategy == "cooperative":
            self._later(0, self._join)

    def _on_fetched(self, reply: OffsetFetchReply) -> None:
        """Where it goes on; the checker compares when the reply is released."""

    def _beat(self) -> None:
        self._later(self.habits.heartbeat_ms, self._beat)
        if not self.stable:
            return
        number, sent_ms = self._round, self.world.now_ms

        def take(reply: Any) -> None:
            if number == self._round:
                self._on_error(reply.error, sent_ms)

        instance_id = self.habits.instance_id
        event = Heartbeat(0, self.habits.group_id, self.generation, self.member_id, instance_id)
        self._ask(event, take, self._nothing)

    def _on_error(self, error: ErrorCode, sent_ms: int) -> None:
        """What a heartbeat or a commit was answered."""
        if error is ErrorCode.NONE:
            self._alive(sent_ms)
        elif error is ErrorCode.REBALANCE_IN_PROGRESS:
            self._alive(sent_ms)
            self._join()
        elif error is ErrorCode.FENCED_INSTANCE_ID:
            self._fatal(error)
        elif error in LOST:
            self._lose(error)

    def _commit_now_and_then(self) -> None:
        self._later(self.habits.commit_ms, self._commit_now_and_then)
        if self.stable:
            self._commit(self.held)

    def _commit(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit a position of each partition, every one different from all before."""
        if not partitions or self.generation < 0:
            return
        offsets = tuple(
            OffsetToCommit(tp.topic, tp.partition, self.checkers.fresh_offset()) for tp in sorted(partitions)
        )
        habits = self.habits
        event = OffsetCommit(0, habits.group_id, self.member_id, self.generation, offsets, habits.instance_id)
        number, sent_ms = self._round, self.world.now_ms

        def take(reply: Any) -> None:
            if number == self._round and self.stable and reply.errors[0] is not ErrorCode.REBALANCE_IN_PROGRESS:
                self._on_error(reply.errors[0], sent_ms)

        self._ask(event, take, self._nothing)
