"""One member of one group: what every protocol has in common. No I/O; see `kohort.client.net.runtime`.

Two levels that the application reads, and one word it says:

- `assignment`: what the member holds now. Empty before the first join and after a revocation was released.
- `revocation`: what the group wants back; stays until the application says `release()`. The member heartbeats
  meanwhile, and goes on only after it. One with `lost` set says that the partitions are someone else's already.

The protocols are `classic_member` (members assign), `consumer_member` (KIP-848, the coordinator assigns) and `push`
(the coordinator asks).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import ClassVar, TypeVar

from kohort.client.group.lease import Lease
from kohort.client.group.subscription import Subscription
from kohort.client.net.cluster import Between, Cluster, Coordinator
from kohort.client.net.log_throttle import Sparingly
from kohort.client.net.runtime import Promise, Task
from kohort.client.offsets import Assignment, GroupIdentity, GroupMetadata, Rebalance, Revocation
from kohort.client.settings import ConsumerConfig
from kohort.errors import ErrorCode, FencedError, KafkaError, RetriableError
from kohort.ids import TopicPartition
from kohort.io.processes import CLOCK_MARGIN
from kohort.wire.message import Message, Request

R = TypeVar("R", bound=Message)

log = logging.getLogger("kohort.client")
LEAVE_MS = 3_000
_LASTING_FAILURES = 8
"""Attempts in a row after which trying again is worth a word: about 5 s with the usual backoff."""
_REBALANCES_MOST = 16
"""Rebalances that are remembered: who looks after each change sees all, who looks seldom still has their number."""
NOT_HEARD = "the coordinator was not heard for a session"
"""Why a member lets go by its own clock. Whether it was evicted only the coordinator knows, so it comes back under its
id."""


class MemberState(Enum):
    """Where a member is in its life; the modules of the protocols say what leads from one to the other."""

    IDLE = "idle"
    REVOKING = "waiting for the application to let partitions go"
    JOINING = "joining"
    SYNCING = "waiting for the leader's assignment"
    HOLDING = "holding its assignment"
    LEFT = "gone"


class Membership(ABC):
    """See the module's text.

    Attributes:
        assignment, revocation: The two levels.
        error: Why the group can't be joined; take it with `take_error`, after which the member tries again.
        sequence: Grows with every change of `assignment` or `revocation`.
        rebalances: Assignments received.
        last_rebalances: The last of them, oldest first.
        held_since: By partition held, the generation since which it was never given up.
        lapsed: The lease ended while partitions were held, and was not renewed since.
        lapses: How often it did.
        carries_positions: What the member says anyway has its positions: auto commit needs no requests of its own.
        starts: By partition held, the offset to begin at, as the coordinator gave it; the others are looked up.
        state: Where the member is in its life.
    """

    NOT_JOINED: ClassVar[int]
    carries_positions: ClassVar[bool] = False

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        *,
        changed: Callable[[], None] = lambda: None,
        poll_bound: bool = True,
    ) -> None:
        """A member of `config.group_id`, idle until it subscribes.

        Args:
            cluster: Way to the coordinator.
            config: `group_id` must be set.
            changed: Called after each change of a level.
            poll_bound: Whether `polled()` must be called every `max_poll_interval_ms`.
        """
        if config.group_id is None:
            raise ValueError("membership needs a group id")
        self.cluster = cluster
        self.config = config
        self.group = config.group_id
        self.state = MemberState.IDLE
        self.assignment = Assignment()
        self.held_since: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.revocation: Revocation | None = None
        self.error: KafkaError | None = None
        self.sequence = 0
        self.rebalances = 0
        self.last_rebalances: deque[Rebalance] = deque(maxlen=_REBALANCES_MOST)
        self._unsettled: tuple[float, tuple[TopicPartition, ...]] | None = None  # since when, and what it held then
        self.lapsed = False
        self.lapses = 0
        self._sparingly = Sparingly(cluster.runtime)
        self._kept = Lease()
        self._lease_watch: Task[None] | None = None
        self._coordinator = Coordinator(self.group)
        self._announce = changed
        self._poll_bound = poll_bound
        self._polled_ms = cluster.runtime.now_ms
        self._subscription: Subscription | None = None
        self._member_id = ""
        self._generation = self.NOT_JOINED
        self._heard_ms = 0.0
        self._fenced: ErrorCode | None = None
        self._fenced_why = ""
        self._overdue = False
        self._moved: Promise[None] = Promise()
        self._main: Task[None] | None = None
        cluster.on_metadata(lambda _: self._metadata_changed())

    # What the application says.

    def subscribe(self, subscription: Subscription) -> None:
        """Subscribe, or change the subscription."""
        before, self._subscription = self._subscription, subscription
        self._want_topics()
        if before is not None and before != subscription:
            self._subscription_changed()
        if self._main is None:
            self._main = self.cluster.runtime.spawn(self._live(), f"member of {self.group}")
        self._move()

    def release(self) -> None:
        """Acknowledge the revocation: its partitions are not held any more."""
        if self.revocation is None:
            return
        gone = set(self.revocation.partitions)
        kept = tuple(part for part in self.assignment.partitions if part not in gone)
        self.revocation = None
        self._hold(kept, self.assignment.user_data)

    def polled(self) -> None:
        """The application is alive."""
        self._polled_ms = self.cluster.runtime.now_ms
        if self._overdue:
            self._overdue = False
            self._move()

    def take_error(self) -> KafkaError | None:
        """The error that keeps the member out of the group, once; the member then tries again.

        A member that was fenced by another of its instance id keeps the error: it must not fight with its successor.
        """
        error = self.error
        if error is not None and not isinstance(error, FencedError):
            self.error = None
            self._move()
        return error

    def identity(self) -> GroupIdentity:
        """As whom to commit."""
        return GroupIdentity(self._generation, self._member_id, self.config.group_instance_id)

    def metadata(self) -> GroupMetadata:
        """The member's place in its group."""
        who = self.identity()
        if not self.joined:
            return GroupMetadata(self.group)
        return GroupMetadata(self.group, who.generation, who.member_id, who.instance_id)

    def topics(self) -> tuple[str, ...]:
        """The topics subscribed to, as far as metadata tells."""
        if self._subscription is None:
            return ()
        return self._subscription.resolve(self.cluster.metadata, self.config.exclude_internal_topics)

    def take_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """The application has worked up to these: for a member that carries its positions."""
        raise TypeError(f"{type(self).__name__} carries no positions")

    def replaced(self) -> set[str]:
        """Topics of partitions held that were deleted and made again: who has their partitions now is not known yet."""
        return set()

    @property
    def joined(self) -> bool:
        """Whether the coordinator counts on this member, as far as it knows."""
        return self._generation > self.NOT_JOINED

    @property
    def holding(self) -> bool:
        """Whether an assignment is held, with nothing to give up."""
        return self.state is MemberState.HOLDING and self.revocation is None and self._fenced is None

    @property
    def owns(self) -> bool:
        """Whether what is held is this member's to work on, as far as it can know.

        Its lease holds, or it was told none.
        """
        return self._lease.holds(self.cluster.runtime.elapsed_ms())

    async def leave(self, reason: str, timeout_ms: float = LEAVE_MS) -> None:
        """Leave the group at once, if a member, and stop. What a static member holds waits for its return.

        Args:
            reason: For the coordinator's log.
            timeout_ms: How long the coordinator may take to hear of it; after that it finds out by itself.
        """
        self._subscription = None
        self._stop()
        self._end_lease()
        if self._main is not None:
            self._main.cancel()
            self._main = None
        self.state = MemberState.LEFT
        self.revocation = None
        self._hold((), None)
        self.cluster.drop_interest(self)
        await self._tell_left(reason, timeout_ms)
        self._generation = self.NOT_JOINED
        self._member_id = ""

    async def _tell_left(self, reason: str, timeout_ms: float = LEAVE_MS) -> None:
        """Tell the coordinator, which finds out by itself where it does not hear of it in time."""
        try:
            await self.cluster.runtime.within(self._send_leave(reason), timeout_ms, "leave")
        except KafkaError as error:
            log.debug("group %s: leave was not heard: %s", self.group, error)

    # What a protocol fills in.

    @abstractmethod
    async def _live(self) -> None:
        """The member's life; runs until it is cancelled."""

    @abstractmethod
    def _stop(self) -> None:
        """End the background tasks."""

    @abstractmethod
    async def _send_leave(self, reason: str) -> None:
        """Tell the coordinator, if it may know this member.

        Raises:
            KafkaError: it did not hear it.
        """

    @abstractmethod
    def _subscription_changed(self) -> None:
        """The application subscribed to something else."""

    @abstractmethod
    def _metadata_changed(self) -> None:
        """The cluster's metadata was refreshed."""

    @abstractmethod
    def _want_topics(self) -> None:
        """Say which topics' metadata is needed."""

    # What protocols use.

    async def _revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask the application to let go, and wait for it (or for being fenced) while heartbeats go on."""
        self._unsettle()
        self.state = MemberState.REVOKING
        deadline = self.cluster.runtime.now_ms + self.config.max_poll_interval_ms
        self.revocation = Revocation(tuple(sorted(partitions)), deadline)
        self._changed()
        await self._until(lambda: self.revocation is None or self._fenced is not None)

    async def _lose(self, code: ErrorCode) -> None:
        """Everything held is lost: tell the application and wait until it has heard."""
        self._stop()
        self._end_lease()
        why, self._fenced, self._fenced_why = self._fenced_why or code.text, None, ""
        self._generation = self.NOT_JOINED
        if self.assignment.partitions:
            await self._lose_held(why)
        if code is ErrorCode.FENCED_INSTANCE_ID:
            instance = self.config.group_instance_id
            raise FencedError(
                f"group {self.group!r}: another member with group.instance.id {instance!r} took over", code
            )

    async def _lose_held(self, why: str) -> None:
        """What is held may be others' by now: tell the application and wait until it has heard."""
        log.warning("group %s: this member lost its partitions: %s (%s)", self.group, why, self._silence())
        self._unsettle()
        self.revocation = Revocation(self.assignment.partitions, self.cluster.runtime.now_ms, lost=True)
        self._changed()
        await self._until(lambda: self.revocation is None)

    async def _poll_overdue(self) -> None:
        """The application has not polled in time: leave, and come back with its next poll."""
        limit = self.config.max_poll_interval_ms
        log.warning(
            "group %s: no poll for %d ms (max.poll.interval.ms): this member leaves its group until the next poll",
            self.group,
            limit,
        )
        self._overdue = True
        self._stop()
        await self._tell_left(f"not polled for {limit} ms")
        self._member_id = ""
        await self._lose(ErrorCode.UNKNOWN_MEMBER_ID)

    def _poll_time_left_ms(self) -> float | None:
        if not self._poll_bound:
            return None
        return self._polled_ms + self.config.max_poll_interval_ms - self.cluster.runtime.now_ms

    @property
    def _session_end_ms(self) -> float:
        """When the session may be over: it runs from the last request that was sent and answered; clocks differ."""
        return self._heard_ms + self.config.session_timeout_ms * (1 - CLOCK_MARGIN)

    @property
    def _lease(self) -> Lease:
        """This member's, as the broker told it."""
        self._kept.told(self.cluster.links.lease_ms)
        return self._kept

    def _renew(self, sent_ms: float) -> None:
        """The coordinator took a request that was sent then (`Runtime.elapsed_ms`): the lease runs from there."""
        self._lease.renew(sent_ms)
        if not self.owns:
            return
        if self.lapsed:
            self.lapsed = False
            log.info("group %s: the coordinator answers again: records are handed out again", self.group)
            self._announce()
        if self._lease_watch is None and self._lease.length_ms is not None:
            self._lease_watch = self.cluster.runtime.spawn(self._watch_lease(), f"lease of {self.group}")

    async def _watch_lease(self) -> None:
        """Say when the lease ends."""
        runtime = self.cluster.runtime
        while (left := self._lease.end_ms - runtime.elapsed_ms()) > 0:
            await runtime.sleep(max(1.0, left))
        self._lease_watch = None
        if self.assignment.partitions:
            self.lapsed = True
            self.lapses += 1
            log.warning(
                "group %s: no answer from the coordinator for %.0f ms, the group may give this member's partitions to "
                "others: nothing is handed out until there is one (%s)",
                self.group,
                self._lease.length_ms,
                self._silence(),
            )
            self._announce()

    def _silence(self) -> str:
        """For the log: since when the coordinator is silent, and whether this client was itself."""
        runtime = self.cluster.runtime
        text = f"the last request that was answered was sent {runtime.now_ms - self._heard_ms:.0f} ms ago"
        still_ms = runtime.stood_still_ms(self._heard_ms)
        return f"{text}, and this client stood still for {still_ms:.0f} ms meanwhile" if still_ms else text

    def _end_lease(self) -> None:
        """Nothing is held any more."""
        self.lapsed = False
        if self._lease_watch is not None:
            self._lease_watch.cancel()
            self._lease_watch = None

    def _fence(self, code: ErrorCode, why: str = "") -> None:
        self._fenced, self._fenced_why = code, why
        self._move()

    async def _fatal(self, error: KafkaError) -> None:
        """Out of the group until the application has heard why: nobody beats for what is held, so it is lost."""
        self._stop()
        self.state = MemberState.IDLE
        self.error, self._fenced_why = error, str(error)
        self._changed()
        await self._lose(ErrorCode.ILLEGAL_GENERATION)

    async def _ask(self, message: Request[R] | Between[R], timeout_ms: float, lane: str = "main") -> R:
        try:
            return await self.cluster.send(message, self._coordinator, timeout_ms=timeout_ms, lane=lane)
        except RetriableError:
            self.cluster.forget_coordinator(self._coordinator)
            raise

    def _not_yet(self, why: object, failures: int) -> None:
        """The coordinator could not be asked, or not for now.

        Routine when a broker restarts, worth a word when it lasts.
        """
        if failures >= _LASTING_FAILURES and self._sparingly.due("not yet"):
            log.warning("group %s: still not done after %d attempts: %s", self.group, failures, why)
        else:
            log.debug("group %s: %s", self.group, why)

    def _backoff_ms(self, failures: int) -> float:
        return self.cluster.links.backoff_ms(failures, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)

    def _unsettle(self) -> None:
        """A rebalance begins, if none is under way."""
        if self._unsettled is None:
            self._unsettled = self.cluster.runtime.now_ms, self.assignment.partitions

    def _settle(self, partitions: tuple[TopicPartition, ...], user_data: bytes | None) -> None:
        """A rebalance ends: this is held now."""
        self._unsettle()
        assert self._unsettled is not None
        (began_ms, before), self._unsettled = self._unsettled, None
        gained, lost = len(set(partitions).difference(before)), len(set(before).difference(partitions))
        self.rebalances += 1
        self.last_rebalances.append(
            Rebalance(
                self.rebalances,
                self._generation,
                self._member_id,
                len(partitions),
                gained,
                lost,
                began_ms,
                self.cluster.runtime.now_ms,
            )
        )
        self.state = MemberState.HOLDING
        self._hold(partitions, user_data)

    def _hold(self, partitions: tuple[TopicPartition, ...], user_data: bytes | None) -> None:
        self.held_since = {part: self.held_since.get(part, self._generation) for part in partitions}
        self.assignment = Assignment(partitions, self._generation, self._member_id, user_data)
        self._changed()

    def _changed(self) -> None:
        self.sequence += 1
        self._announce()
        self._move()

    def _move(self) -> None:
        moved, self._moved = self._moved, Promise()
        moved.resolve(None)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._moved
