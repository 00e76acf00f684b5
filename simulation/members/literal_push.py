"""Members of the push protocol, written from its specification alone; their frames cross the faulty network.

Source: spec 4.10.

A member takes a frame out of its buffer, and reads its clock and answers a little later: its process may be stopped in
between. A member may never answer a Stop, or share its id with another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from kohort.errors import ErrorCode
from kohort.groups.events import LeaveGroup, LeavingMember
from kohort.ids import NO_POSITION, TopicPartition
from kohort.wire.push import (
    CoordinatorRequest,
    ErrorResponse,
    PositionedPartition,
    PushType,
    RegisterConsumerRequest,
    TopicCount,
    decode_coordinator_request,
    encode_ping_response,
    format_topic_count,
    topic_partition_of,
    with_length_prefix,
)
from simulation.checkers.group_checkers import Checkers
from simulation.harness.assigning import pattern_of
from simulation.harness.habits import Habits
from simulation.harness.network import Connection, Network
from simulation.harness.push_gate import Respond
from simulation.harness.world import World
from simulation.members.client import ANSWER_TIMEOUT_MS, ASIDE
from simulation.members.process import FINDING_MS, Process

TICK_MS = 300
RETRY_MS = 1_000
REFUSALS_MAX = 6
"""The number of consecutive refusals after which a member ends: another process has its id."""


class ByteClientGate(Protocol):
    """The entrance for frames."""

    def receive_frame(self, connection: Connection, frame: bytes, respond: Respond) -> None:
        """Receive a frame at the coordinator's end."""


class LiteralPushMember(Process):
    """A push consumer that answers the coordinator's Ping, Stop and Start.

    Attributes:
        gate: the coordinator's entrance; set before the start.
        reads: position by partition, the specification's topicRegistry; after a Stop the last positions. NO_POSITION
            until it has chosen a start position.
        fetching: whether its fetchers run: it was started, and not stopped since.
    """

    keeps_its_id = True
    gate: ByteClientGate

    def __init__(self, name: str, habits: Habits, world: World, network: Network, checkers: Checkers) -> None:
        super().__init__(name, habits, world, network, checkers)
        self.reads: dict[TopicPartition, int] = {}
        self.fetching = False
        self._connection: Connection | None = None
        self._registered = False
        self._frames: deque[bytes] = deque()
        self._reading = False
        self._said_ms = self._heard_ms = self._again_ms = 0
        self._refusals = 0

    def _begin(self) -> None:
        self.member_id = self.habits.consumer_id or self.name
        self.generation = 0
        self._tick()

    # -- its connection

    def _tick(self) -> None:
        self._later(TICK_MS, self._tick)
        now_ms = self.world.now_ms
        self._look_at_clock()
        if self._connection is None:
            if now_ms >= self._again_ms:
                self._register()
        elif now_ms - self._heard_ms >= (self.session_ms if self._registered else ANSWER_TIMEOUT_MS):
            self._drop("nothing was asked for a session" if self._registered else "no answer to the registration")

    def _register(self) -> None:
        number = self.network.count + 1
        connection = self.network.connect(self.name, partial(self._on_link_closed, number), self.chance, self.process)
        self._connection, self._registered = connection, False
        self._frames.clear()
        self._said_ms = self._heard_ms = self.world.now_ms
        topics = self.topics
        wanted = TopicCount(dict.fromkeys(topics, 1 + self.habits.streams % 2))
        if self.habits.streams > 1:
            wanted = TopicCount(regex=pattern_of(topics), streams=self.habits.streams)
        request = RegisterConsumerRequest(
            self.group_id,
            self.member_id,
            format_topic_count(wanted),
            self.habits.auto_commit,
            "none" if self.habits.finds_starts else "smallest",
            self.session_ms,
        )
        self._send(connection, request.encode_frame())

    def _send(self, connection: Connection, body: bytes) -> None:
        frame = with_length_prefix(body)

        def respond(answer: memoryview) -> None:
            connection.send_down(lambda: self._awake(partial(self._arrived, connection, bytes(answer))))

        connection.send_up(lambda: self.gate.receive_frame(connection, frame, respond))

    def _drop(self, why: str, again_ms: int = RETRY_MS) -> None:
        """Close the connection, and connect again after a delay."""
        self.world.log(f"{self.name}: ends its connection: {why}")
        connection, self._connection = self._connection, None
        self.stable = self._registered = False
        self._frames.clear()
        self._again_ms = self.world.now_ms + self.chance.upto(again_ms)
        if connection is not None:
            connection.break_()

    def _on_link_closed(self, number: int) -> None:
        def noticed() -> None:
            if self._connection is not None and self._connection.id == number:
                self._drop("it was reset")

        self._awake(noticed)

    def cut(self) -> None:
        """Break the connection."""
        super().cut()
        if self._connection is not None:
            self._connection.break_()

    def _disconnect(self) -> None:
        super()._disconnect()
        if self._connection is not None:
            self._connection.ended = True
            self._connection.break_()

    # -- frames

    def _arrived(self, connection: Connection, frame: bytes) -> None:
        if connection is not self._connection:
            return
        self._frames.append(frame)
        self._read_soon()

    def _read_soon(self) -> None:
        if not self._reading and self._frames:
            self._reading = True
            self._read(self._connection, self._frames.popleft())

    def _read(self, connection: Connection | None, frame: bytes) -> None:
        """Take a frame, and read the clock a little later."""

        def look() -> None:
            self._reading = False
            self._look_at_clock()
            if connection is self._connection and connection is not None:
                self._heard_ms = self.world.now_ms
                self._take(connection, frame)
            self._read_soon()

        self._later(self.chance.upto(self.habits.reading_ms), look)

    def _take(self, connection: Connection, frame: bytes) -> None:
        if not self._registered:
            self._on_registered(ErrorCode.of(ErrorResponse.decode(frame).error_code))
            return
        asked = decode_coordinator_request(frame)
        if asked.num_retries == 0:
            self._alive(self._said_ms)
        if asked.kind is PushType.PING:
            self._answer(connection, encode_ping_response(self._positions() if self.habits.auto_commit else None))
        elif asked.kind is PushType.START:
            self._answer(connection, ErrorResponse(self._started_with(asked)).encode_frame())
        elif not (self.habits.never_stops and self.fetching):
            self._stop(connection)

    def _answer(self, connection: Connection, body: bytes) -> None:
        self._said_ms = self.world.now_ms
        self._send(connection, body)

    def _on_registered(self, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            self._registered, self._refusals = True, 0
            return
        self._refusals = self._refusals + 1 if error is ErrorCode.FENCED_INSTANCE_ID else 0
        is_twin = self._refusals >= REFUSALS_MAX and self.habits.consumer_id is not None
        if is_twin or error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            self._fatal(error)
        self._drop(f"refused with {error.name}")

    def _positions(self) -> list[PositionedPartition]:
        """Return the positions: they advance while it reads, and stay as they were after a Stop."""
        if self.fetching:
            self.reads |= {part: self.checkers.fresh_offset() for part in sorted(self._placed(self.reads))}
        return [PositionedPartition(part.topic, 1, part.partition, at) for part, at in self.reads.items()]

    def _started_with(self, asked: CoordinatorRequest) -> ErrorCode:
        """Check that a Start without a Stop before names the partitions that it reads: otherwise it must not read."""
        wanted = {topic_partition_of(partition): partition.offset for partition in asked.partitions}
        if self.fetching and wanted.keys() != self.reads.keys():
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if not self.fetching:
            self.reads, self.fetching = wanted, True
            if NO_POSITION in wanted.values():
                self._later(self.chance.upto(FINDING_MS), self._find_starts)
        self.stable = True
        self._hold(frozenset(self.reads))
        return ErrorCode.NONE

    def _placed(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions whose position is known."""
        return frozenset(part for part in partitions if self.reads.get(part) != NO_POSITION)

    def _find_starts(self) -> None:
        """Choose start positions for partitions started without an offset, and commit them."""
        self._look_at_clock()
        if self.fetching:
            missing = self.reads.keys() - self._placed(self.reads)
            self.reads |= {part: self.checkers.fresh_offset() for part in sorted(missing)}
            self._commit(frozenset(missing))

    def _stop(self, connection: Connection) -> None:
        """Stop the fetchers once the application has released the partitions; until then the Stop is not answered."""

        def stopped() -> None:
            self._look_at_clock()
            if connection is self._connection:
                if self.habits.commits_on_revocation:
                    self._commit(self.held)
                if self.fetching:
                    self._positions()
                self.fetching = self.stable = False
                self._hold(frozenset())
                self._answer(connection, ErrorResponse(0).encode_frame())

        self._later(self.chance.upto(self.habits.callback_ms), stopped)

    # -- its lease

    def _look_at_clock(self) -> None:
        """Stop reading and reconnect once the lease is over: others may own the partitions."""
        if self.fetching and self.world.now_ms >= self.session_end_ms:
            self.reads, self.fetching = {}, False
            self._hold(frozenset())
            self._drop("its lease is over")

    # -- what the process asks for

    def _commit(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit on a connection of its own, unless answers to Pings carry the positions."""
        placed = self._placed(partitions)
        if not self.habits.auto_commit and placed and self.fetching:
            event = self._to_commit(placed)
            self._ask(event, self._nothing, self._nothing, ASIDE)

    def leave(self) -> None:
        """End: the protocol has no request to leave. The session expires, or Kafka's LeaveGroup removes the member."""
        self.world.log(f"{self.name}: leaves")
        if self.member_id and self.chance.likely(0.5):
            self._hold(frozenset())
            event = LeaveGroup(0, self.group_id, (LeavingMember(self.member_id),))
            self._ask(event, self._nothing, self._nothing, ASIDE)
        self._hold(frozenset())
        self._close()

    def set_lease(self, lease_ms: int, *, keeps: bool) -> None:
        """Do nothing: the protocol has a lease of its own."""

    def learn_topics(self, partitions: dict[str, int]) -> None:
        """Do nothing: the coordinator tracks the topics."""

    def _subscribed(self) -> None:
        """Register again with the new topics: only a registration can name topics."""
        if self.member_id:
            self._drop("it reads other topics")

    def _on_error(self, error: ErrorCode, sent_ms: int) -> None:
        """Handle the error of a commit."""
