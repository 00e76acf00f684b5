"""Members of the consumer protocol (KIP-848): they revoke first and take new partitions afterwards."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups.effects import ConsumerGroupHeartbeatReply
from kohort.groups.events import Client, ConsumerGroupHeartbeat
from simulation.harness.assigning import Target, pattern_of, to_ids, to_names, topic_name
from simulation.harness.world import ScheduledCall
from simulation.members.client import ASIDE
from simulation.members.process import Process

FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
FATAL = (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)
RETRY_MS = 500


class ConsumerMember(Process):
    """A member that speaks the consumer protocol.

    Attributes:
        interval_ms: the heartbeat interval from the coordinator.
        target: the last assignment from the coordinator, None before the first.
    """

    keeps_its_id = True
    interval_ms = 1_000
    target: Target | None = None
    _last_target: Target | None = None
    _said_topics: tuple[str, ...] = ()
    _full = True
    _flying = False
    _revoking = False
    _next: ScheduledCall | None = None

    def _begin(self) -> None:
        if not self.member_id:
            self.member_id = f"{self.name}-{self.chance.getrandbits(32):08x}"
        self.generation = 0
        self._full = True
        self._beat()

    def leave(self) -> None:
        """Revoke everything and leave; a static member leaves temporarily (epoch -2).

        As in kohort's client, the request uses another connection than the heartbeats, whose responses may be delayed.
        """
        self.world.log(f"{self.name}: leaves")
        epoch = -1 if self.habits.instance_id is None else -2
        self._commit(self.held)
        if self.generation > 0:
            event = ConsumerGroupHeartbeat(
                0,
                self.group_id,
                self.member_id,
                "",
                epoch,
                Client(self.name, "/10.0.0.2", self.process),
                self.habits.instance_id,
            )
            self._ask(event, lambda reply: None, self._nothing, ASIDE)
        self._hold(frozenset())
        self._close()

    def learn_topics(self, partitions: dict[str, int]) -> None:
        """Do nothing: the coordinator tracks the topics."""

    def _subscribed(self) -> None:
        if self.generation > 0:
            self._again(0)

    def _beat(self) -> None:
        if self._flying:
            return
        self._flying = True
        if self._next is not None:
            self._next.cancel()
        full, habits = self._full, self.habits
        joins = self.generation == 0
        says_owned = full or self._last_target != self.held
        uses_regex = len(self.name) % 2 == 0
        says_topics, topics = full or self._said_topics != habits.topics, habits.topics
        event = ConsumerGroupHeartbeat(
            request=0,
            group_id=habits.group_id,
            member_id=self.member_id,
            new_member_id="",
            member_epoch=self.generation,
            client=Client(self.name, "/10.0.0.2", self.process),
            instance_id=habits.instance_id,
            rack_id=habits.rack if full else None,
            rebalance_timeout_ms=habits.rebalance_timeout_ms if full else -1,
            server_assignor=habits.assignor if full else None,
            subscribed_topics=(() if uses_regex else topics) if says_topics else None,
            subscribed_regex=(pattern_of(topics) if uses_regex else "") if says_topics else None,
            owned=(() if joins else to_ids(self.held, self._ids)) if says_owned else None,
            delay_ms=self._hold_ms(),
            short_interval=habits.short_interval,
        )
        number, sent_ms, said = self._round, self.world.now_ms, self.held

        def take(reply: ConsumerGroupHeartbeatReply) -> None:
            self._flying = False
            if number == self._round:
                if reply.error is ErrorCode.NONE and says_topics:
                    self._said_topics = topics
                self._on_reply(reply, sent_ms, said if says_owned else None)

        def lost() -> None:
            self._flying = False
            self._full = True
            self._again(self.chance.upto(RETRY_MS))

        self._ask(event, take, lost)

    def _again(self, delay_ms: float) -> None:
        """Send the next heartbeat after a delay."""
        if self._next is not None:
            self._next.cancel()

        def due() -> None:
            if not self.dead:
                self._awake(self._beat)

        self._next = self.world.after(delay_ms, due)

    def _on_reply(self, reply: ConsumerGroupHeartbeatReply, sent_ms: int, said: Target | None) -> None:
        error = reply.error
        if error in FENCED:
            self._rejoin()
        elif error in FATAL:
            self._fatal(error)
        elif error is not ErrorCode.NONE:
            if self.generation == 0:
                self._full = True
            self._again(RETRY_MS)
        else:
            self._full = reply.member_epoch == 0
            if said is not None:
                self._last_target = said
            self.generation = reply.member_epoch
            self.interval_ms = reply.heartbeat_interval_ms
            self._alive(sent_ms)
            if reply.assignment is not None:
                self._ids.update({topic_name(entry.topic_id): entry.topic_id for entry in reply.assignment})
                self._reconcile(to_names(reply.assignment))
            self.stable = self.held == self.target
            if self._said_topics != self.topics:
                self._again(0)
            elif self.lease.length_ms is None:
                self._again(self.interval_ms)
            else:
                self._again(sent_ms + self.lease.heartbeat_interval_ms(self.interval_ms) - self.world.now_ms)

    def _rejoin(self) -> None:
        """Rejoin with epoch 0 after an eviction: the owned partitions are lost."""
        self._round += 1
        self._hold(frozenset())
        self.target = self._last_target = None
        self._revoking = False
        self.generation = 0
        self._full = True
        self.stable = False
        self._again(self.chance.upto(RETRY_MS))

    def _reconcile(self, target: Target) -> None:
        self.target = target
        if self._revoking:
            return
        revoked = self.held - target
        if not revoked:
            self._take()
            return
        self._revoking = True
        if self.habits.commits_on_revocation:
            self._commit(revoked)
        number = self._round

        def done() -> None:
            if number != self._round:  # it was evicted meanwhile: nothing of that life is left
                return
            self._revoking = False
            if self.target is not None:
                self._take()
                self._again(0)

        self._later(self.chance.upto(self.habits.callback_ms), done)

    def _take(self) -> None:
        target = self.target or frozenset()
        added = target - self.held
        self._hold(target)
        self._fetch_positions(added)
        if added:
            self._again(0)

    def _named(self) -> tuple[str | None, int]:
        return self.member_id, self.generation

    def _on_error(self, error: ErrorCode, sent_ms: int) -> None:
        """Ignore the error of a commit; only heartbeats decide."""
