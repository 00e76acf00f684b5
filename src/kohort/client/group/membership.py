"""One member of one group: the part that all protocols share. No I/O; `kohort.client.net.runtime` steps it.

The application reads two states and acknowledges one of them:

- `assignment`: the partitions that the member holds. Empty before the first join and after a revocation was released.
- `revocation`: the partitions that the group revokes, until the application calls `release()`. The member heartbeats
  meanwhile, and continues only after it. With `lost` set, other members may own the partitions already.

The protocols are `classic` (members assign), `kip848` (the coordinator assigns) and `push` (the coordinator sends the
requests).
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeVar
from uuid import UUID

from kohort.client.net.cluster import Between, Cluster, Coordinator
from kohort.client.net.metadata import Metadata
from kohort.client.net.runtime import Promise, Task
from kohort.client.net.topic_existence import check_topic_names
from kohort.client.offsets import (
    Assignment,
    GroupIdentity,
    GroupMetadata,
    OffsetAndMetadata,
    Rebalance,
    Revocation,
    commit_offsets,
)
from kohort.client.settings import ConsumerConfig
from kohort.errors import CommitFailedError, ErrorCode, FencedError, InvalidInputError, KafkaError, RetriableError
from kohort.ids import TopicPartition
from kohort.io.log_throttle import FailureThrottle
from kohort.io.processes import CLOCK_MARGIN, lease_heartbeat_ms, lease_response_timeout_ms, ownership_ms
from kohort.wire.message import Message, RequestMessage


class Lease:
    """A member's lease: for how long it may process records without an answer from its coordinator.

    `kohort.io.processes` explains leases.

    Attributes:
        length_ms: The lease's length; None: the broker granted no lease, and the client works without a limit.
        heard_ms: When the last answered request was sent, by a clock that also runs while the machine sleeps.
    """

    __slots__ = ("heard_ms", "length_ms")

    def __init__(self, length_ms: int | None = None) -> None:
        self.length_ms = length_ms
        self.heard_ms = float("-inf")

    def adopt_length(self, length_ms: int | None) -> None:
        """Adopt the lease's length that a broker offered; None: no offer, nothing changes.

        The shorter of two lengths counts, since the coordinator may measure the lease by it.
        """
        if length_ms is not None:
            self.length_ms = length_ms if self.length_ms is None else min(self.length_ms, length_ms)

    def renew(self, sent_ms: float) -> None:
        """Renew the lease from the time when an answered request was sent."""
        self.heard_ms = max(self.heard_ms, sent_ms)

    @property
    def end_ms(self) -> float:
        """Return the end of the lease by this process's clock."""
        return float("inf") if self.length_ms is None else self.heard_ms + ownership_ms(self.length_ms)

    def is_valid(self, now_ms: float) -> bool:
        """Return whether the lease is not over at `now_ms`, so that the member owns its assignment."""
        return self.length_ms is None or now_ms < self.end_ms

    def heartbeat_interval_ms(self, interval_ms: float) -> float:
        """Return the time between heartbeats, in ms: `interval_ms`, or less for two of them within the lease."""
        return interval_ms if self.length_ms is None else min(interval_ms, lease_heartbeat_ms(self.length_ms))

    def response_timeout_ms(self, limit_ms: float) -> float:
        """Return the time limit for a heartbeat's response, in ms: `limit_ms`, or at most half the lease."""
        return limit_ms if self.length_ms is None else min(limit_ms, lease_response_timeout_ms(self.length_ms))


# -- A member's subscription: topics or a pattern

_MISSING = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription to topics by name, or to those that match a regular expression.

    Attributes:
        topics: Names; empty with a pattern.
        pattern: Searched for in each topic's name (`^` and `$` anchor it).
        user_data: The application's data for the assignor.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    user_data: bytes | None = None

    def __post_init__(self) -> None:
        if bool(self.topics) == (self.pattern is not None):
            given = (
                "topics and a pattern: give one of them" if self.topics else "no topic: name some, or give a pattern"
            )
            raise InvalidInputError(f"subscribe got {given}")
        check_topic_names(self.topics)
        if self.pattern is not None:
            if not self.pattern:  # it would match all topics. Source: KAFKA-9984
                raise InvalidInputError("the pattern is empty: name topics, or give '.*' for all topics")
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise InvalidInputError(f"pattern {self.pattern!r}: {error}") from None

    def matching_topics(self, metadata: Metadata, exclude_internal: bool) -> tuple[str, ...]:
        """Return the names of the subscribed topics, sorted: those given, or those in the metadata that match.

        A pattern matches no topic that the metadata has only as missing, because it was asked for.
        """
        if self.pattern is None:
            return tuple(sorted(set(self.topics)))
        matches = re.compile(self.pattern).search
        known = [topic for topic in metadata.topics.values() if topic.error not in _MISSING]
        return tuple(
            sorted(topic.name for topic in known if matches(topic.name) and not (topic.internal and exclude_internal))
        )


# -- The membership

R = TypeVar("R", bound=Message)

log = logging.getLogger("kohort.client")
LEAVE_MS = 3_000
HELD_MS = 5_500
"""Least time limit for a heartbeat's response: kohort's broker delays it for up to 4.5 s, whatever the interval."""
_LASTING_FAILURES = 8
"""Attempts in a row after which a failure is logged as a warning: about 5 s with the usual backoff."""
_REBALANCES_MOST = 16
"""Limit on the rebalances kept: enough for a caller that looks after each change; their numbers show any gap."""
SESSION_EXPIRED = "the coordinator was not heard for a session"
"""Why a member gives up by its own clock. Only the coordinator knows whether it evicted the member, so the member
rejoins under its id."""


class MemberState(Enum):
    """A member's state; the modules of the protocols describe the transitions."""

    IDLE = "idle"
    REVOKING = "waiting for the application to let partitions go"
    JOINING = "joining"
    SYNCING = "waiting for the leader's assignment"
    HOLDING = "holding its assignment"
    LEFT = "gone"


class Membership(ABC):
    """One member of one group, without I/O. The subclasses implement the protocols.

    Attributes:
        assignment: The partitions that the member holds.
        revocation: The partitions that the group revokes and the application has not released; None: none.
        error: Why the group can't be joined; after `take_error` the member tries again.
        sequence: Grows with every change of `assignment` or `revocation`.
        rebalances: The number of assignments received.
        last_rebalances: The last rebalances, oldest first.
        held_since: For each partition held, the generation since which the member has held it without a break.
        lapsed: The lease ended while partitions were held, and was not renewed since.
        lapses: How often the lease ended while partitions were held.
        carries_positions: The protocol's own responses carry the positions: auto commit needs no requests of its own.
        starts: The start offsets that the coordinator sent with the assignment; those of other partitions are looked
            up.
        state: The member's state.
    """

    NOT_JOINED: ClassVar[int]
    carries_positions: ClassVar[bool] = False

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        *,
        changed: Callable[[], None] = lambda: None,
        requires_polling: bool = True,
    ) -> None:
        """Make a member of `config.group_id`, idle until it subscribes.

        Args:
            cluster: The connections to the coordinator.
            config: `group_id` must be set.
            changed: Called after each change of assignment or revocation, and when the lease ends or is valid again.
            requires_polling: Whether `record_poll()` must be called every `max_poll_interval_ms`.
        """
        if config.group_id is None:
            raise ValueError("membership needs a group id")
        self.cluster = cluster
        self.config = config
        self.group = config.group_id
        self.state = MemberState.IDLE
        self.assignment = self._lost = Assignment()
        self.held_since: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.revocation: Revocation | None = None
        self.error: KafkaError | None = None
        self.sequence = 0
        self.rebalances = 0
        self.last_rebalances: deque[Rebalance] = deque(maxlen=_REBALANCES_MOST)
        self._unsettled: tuple[float, tuple[TopicPartition, ...]] | None = None  # its begin, partitions before
        self.lapsed = False
        self.lapses = 0
        self._throttle = FailureThrottle(lambda: cluster.runtime.now_ms)
        self._kept = Lease()
        self._lease_watch: Task[None] | None = None
        self._coordinator = Coordinator(self.group)
        self._announce = changed
        self._poll_bound = requires_polling
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
        self._ignore_metadata = cluster.add_metadata_listener(lambda _: self._metadata_changed())

    # Called by the application.

    def subscribe(self, subscription: Subscription) -> None:
        """Set or change the topics that this member subscribes to."""
        before, self._subscription = self._subscription, subscription
        self._want_topics()
        if before is not None and before != subscription:
            self._subscription_changed()
        if self._main is None:
            self._main = self.cluster.spawn_essential_task(self._run_member(), f"member of {self.group}")
        self._move()

    def release(self) -> None:
        """Acknowledge the revocation: its partitions are no longer held."""
        if self.revocation is None:
            return
        gone = set(self.revocation.partitions)
        kept = tuple(part for part in self.assignment.partitions if part not in gone)
        self.revocation = None
        self._hold(kept, self.assignment.user_data)

    def record_poll(self) -> None:
        """Record that the application has polled."""
        self._polled_ms = self.cluster.runtime.now_ms
        if self._overdue:
            self._overdue = False
            self._move()

    def next_record_poll_ms(self) -> float:
        """Return when a poll that waits has to call `record_poll` again, long before max.poll.interval.ms is over."""
        return self._polled_ms + self.config.max_poll_interval_ms / 2 if self._poll_bound else float("inf")

    def take_error(self) -> KafkaError | None:
        """Return the error that keeps the member out of the group, once; the member then tries again.

        A member fenced by another with its instance id keeps the error: it must not compete with its successor.
        """
        error = self.error
        if error is not None and not isinstance(error, FencedError):
            self.error = None
            self._move()
        return error

    def identity(self) -> GroupIdentity:
        """Return the identity that goes with a commit: generation (or member epoch), member id and instance id."""
        return GroupIdentity(self._generation, self._member_id, self.config.group_instance_id)

    def metadata(self) -> GroupMetadata:
        """Return the member's group metadata, for offsets within a transaction.

        After the assignment was lost, and until the member has joined again, it names the lost generation, so that the
        coordinator refuses the offsets. It would accept them without a member id.
        """
        who, held = self.identity(), self.assignment if self.assignment.partitions else self._lost
        if self.is_joined:
            return GroupMetadata(self.group, who.generation, who.member_id, who.instance_id)
        if held.partitions:
            return GroupMetadata(self.group, held.generation, held.member_id, who.instance_id)
        return GroupMetadata(self.group)

    def topics(self) -> tuple[str, ...]:
        """Return the subscribed topics, as far as they are in the metadata."""
        if self._subscription is None:
            return ()
        return self._subscription.matching_topics(self.cluster.metadata, self.config.exclude_internal_topics)

    def set_positions_to_report(self, positions: Mapping[TopicPartition, int]) -> None:
        """Set the positions of processed records, for a protocol that carries positions."""
        raise TypeError(f"{type(self).__name__} carries no positions")

    def recreated_topics(self) -> set[str]:
        """Return the topics of held partitions that were recreated, whose current owner is not known yet."""
        return set()

    @property
    def is_joined(self) -> bool:
        """Return whether this client is a member of the group, as far as the client knows."""
        return self._generation > self.NOT_JOINED

    @property
    def holds_assignment(self) -> bool:
        """Return whether an assignment is held and no partitions are being revoked."""
        return self.state is MemberState.HOLDING and self.revocation is None and self._fenced is None

    @property
    def owns(self) -> bool:
        """Return whether the member owns its assignment, as far as it can know.

        True while its lease is valid, or without a lease.
        """
        return self._lease.is_valid(self.cluster.runtime.clock_with_sleep_ms())

    def is_in_session(self, now_ms: float) -> bool:
        """Return whether neither the lease nor the session timeout is over at `now_ms` (monotonic time)."""
        return self.owns and now_ms < self._session_end_ms

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_ms: float,
        ids: Mapping[str, UUID] | None = None,
        generation: int | None = None,
    ) -> None:
        """Commit as this member, once more if only its epoch has risen meanwhile.

        The coordinator may raise the epoch of a member that keeps its partitions. A commit on its way then has the
        earlier one. Brokers before KIP-1251 refuse it, although the partitions belong to nobody else.

        Args:
            offsets: The offsets to commit.
            timeout_ms: Limit for all of it.
            ids: As for `commit_offsets`.
            generation: Send nothing unless this is still the current generation, or the partitions were held ever
                since; None: the current one.

        Raises:
            CommitFailedError: The member has lost its generation, or one of the partitions.
            KafkaError: The coordinator refused.
        """
        runtime = self.cluster.runtime
        until_ms = runtime.now_ms + timeout_ms
        while True:
            who, left_ms = self._identity_for(offsets, generation), max(1.0, until_ms - runtime.now_ms)
            try:
                await commit_offsets(self.cluster, self.group, offsets, who, left_ms, ids)
            except CommitFailedError as error:
                if not await self._may_commit_again(error, who, offsets, until_ms - runtime.now_ms):
                    raise
            else:
                return

    def _identity_for(self, partitions: Iterable[TopicPartition], generation: int | None) -> GroupIdentity:
        """Return the member's identity for a commit of offsets read in this generation (None: the current one).

        Raises:
            CommitFailedError: The generation is over, and a partition was given up since.
        """
        who, since = self.identity(), self.held_since
        kept = generation is not None and all(since.get(part, who.generation) <= generation for part in partitions)
        if not self.is_joined or not (kept or generation in (None, who.generation)):
            which = "" if generation is None else generation
            text = f"group {self.group!r}: generation {which} is over, nothing was committed"
            raise CommitFailedError(text, ErrorCode.ILLEGAL_GENERATION)
        return who

    async def _may_commit_again(
        self, error: KafkaError, who: GroupIdentity, partitions: Iterable[TopicPartition], timeout_ms: float
    ) -> bool:
        """Return whether to repeat a commit that was refused with STALE_MEMBER_EPOCH, once the next epoch is known.

        True if the member got a higher epoch in time and held all partitions without a break. If one was away, another
        owner may have committed further, and the repeated commit would set its offset back.

        Args:
            error: The refusal; for any other code, return False at once.
            who: The identity of the refused commit.
            partitions: The partitions of the commit.
            timeout_ms: Limit for the wait for the epoch.
        """
        if error.code is not ErrorCode.STALE_MEMBER_EPOCH:
            return False
        runtime = self.cluster.runtime
        until_ms = runtime.now_ms + timeout_ms
        while self._generation == who.generation and self._fenced is None and runtime.now_ms < until_ms:
            await runtime.wait_first(self._moved, timeout_ms=until_ms - runtime.now_ms)
        same_member = self._member_id == who.member_id and self._fenced is None
        has_risen = same_member and self._generation > who.generation
        return has_risen and all(
            part in self.held_since and self.held_since[part] <= who.generation for part in partitions
        )

    async def leave(self, reason: str, timeout_ms: float = LEAVE_MS) -> None:
        """Leave the group at once, if joined, and stop. A static member's partitions wait for its return.

        Args:
            reason: The reason for the coordinator's log.
            timeout_ms: Limit for the request; after that the session timeout ends the membership.
        """
        self._subscription = None
        self._stop_tasks()
        self._end_lease()
        if self._main is not None:
            self._main.cancel()
            self._main = None
        self.state = MemberState.LEFT
        self.revocation = None
        self._hold((), None)
        self.cluster.drop_wanted_topics(self)
        self._ignore_metadata()
        self._ignore_metadata = lambda: None
        await self._leave_quietly(reason, timeout_ms)
        self._generation, self._lost = self.NOT_JOINED, Assignment()
        self._member_id = ""

    async def _leave_quietly(self, reason: str, timeout_ms: float = LEAVE_MS) -> None:
        """Send the leave request. If it fails, the session timeout ends the membership."""
        try:
            await self.cluster.runtime.run_within(self._send_leave(reason), timeout_ms, "leave")
        except KafkaError as error:
            log.debug(
                "[group %s] leave request failed, so the session timeout ends the membership: %s", self.group, error
            )

    # Implemented by a protocol.

    @abstractmethod
    async def _run_member(self) -> None:
        """Run the member until it is cancelled."""

    @abstractmethod
    def _stop_tasks(self) -> None:
        """Cancel the background tasks."""

    @abstractmethod
    async def _send_leave(self, reason: str) -> None:
        """Send a leave request, if the coordinator may know this member.

        Raises:
            KafkaError: The request failed.
        """

    @abstractmethod
    def _subscription_changed(self) -> None:
        """Bring a changed subscription to the coordinator; each protocol has its own way."""

    @abstractmethod
    def _metadata_changed(self) -> None:
        """Handle refreshed metadata, for example topics that match the pattern now; each protocol has its own way."""

    @abstractmethod
    def _want_topics(self) -> None:
        """Tell the metadata cache which topics this member needs."""

    # Used by the protocols.

    async def _revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Revoke partitions, and wait for their release or for being fenced, while heartbeats continue."""
        self._unsettle()
        self.state = MemberState.REVOKING
        deadline = self.cluster.runtime.now_ms + self.config.max_poll_interval_ms
        self.revocation = Revocation(tuple(sorted(partitions)), deadline)
        self._changed()
        await self._await_release()

    async def _await_release(self) -> None:
        """Wait until no revocation is pending, or the member is fenced."""
        await self._until(lambda: self.revocation is None or self._fenced is not None)

    async def _lose(self, code: ErrorCode) -> None:
        """End the membership, which the coordinator no longer has: stop heartbeats, and report partitions as lost.

        Wait until the application has acknowledged the loss.

        Raises:
            FencedError: Another member took over the instance id.
        """
        self._stop_tasks()
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
        """Report that other members may own the held partitions, and wait until the application has acknowledged it."""
        log.warning(
            "[group %s] this member lost its partitions, which others may own now: %s; %s",
            self.group,
            why,
            self._answer_age_text(),
        )
        self._unsettle()
        self._lost = self.assignment
        self.revocation = Revocation(self.assignment.partitions, self.cluster.runtime.now_ms, lost=True)
        self._changed()
        await self._until(lambda: self.revocation is None)

    async def _poll_overdue(self) -> None:
        """Leave the group because the application has not polled in time; rejoin with its next poll."""
        limit = self.config.max_poll_interval_ms
        log.warning(
            "[group %s] no poll for %d ms (max.poll.interval.ms): this member leaves the group until the next poll",
            self.group,
            limit,
        )
        self._overdue = True
        self._stop_tasks()
        await self._leave_quietly(f"not polled for {limit} ms")
        self._member_id = ""
        await self._lose(ErrorCode.UNKNOWN_MEMBER_ID)

    def _poll_time_left_ms(self) -> float | None:
        if not self._poll_bound:
            return None
        return self._polled_ms + self.config.max_poll_interval_ms - self.cluster.runtime.now_ms

    @property
    def _session_end_ms(self) -> float:
        """Return when the session may be over: it runs from the last answered request, less a margin for drift."""
        return self._heard_ms + self.config.session_timeout_ms * (1 - CLOCK_MARGIN)

    @property
    def _lease(self) -> Lease:
        """Return this member's lease, after taking over the length that the broker grants now."""
        self._kept.adopt_length(self.cluster.connections.lease_ms)
        return self._kept

    def _renew(self, sent_ms: float) -> None:
        """Renew the lease from the time when an answered request was sent (`Runtime.clock_with_sleep_ms`)."""
        self._lease.renew(sent_ms)
        if not self.owns:
            return
        if self.lapsed:
            self.lapsed = False
            log.info("[group %s] the coordinator answers again: polls return records again", self.group)
            self._announce()
        if self._lease_watch is None and self._lease.length_ms is not None:
            self._lease_watch = self.cluster.spawn_essential_task(self._watch_lease(), f"lease of {self.group}")

    async def _watch_lease(self) -> None:
        """Wait until the lease is over; then log and count that, and wake the polls, which return nothing now."""
        runtime = self.cluster.runtime
        while (left := self._lease.end_ms - runtime.clock_with_sleep_ms()) > 0:
            await runtime.sleep(max(1.0, left))
        self._lease_watch = None
        if self.assignment.partitions:
            self.lapsed = True
            self.lapses += 1
            log.warning(
                "[group %s] no answer from the coordinator for %.0f ms, others may get this member's partitions: "
                "polls return nothing until it answers (%s)",
                self.group,
                self._lease.length_ms,
                self._answer_age_text(),
            )
            self._announce()

    def _answer_age_text(self) -> str:
        """Return, for the log, the age of the last answered request, and whether the process was paused since."""
        runtime = self.cluster.runtime
        text = f"the last answered request was sent {runtime.now_ms - self._heard_ms:.0f} ms ago"
        still_ms = runtime.paused_ms(self._heard_ms)
        return f"{text}, and the process was paused for {still_ms:.0f} ms since" if still_ms else text

    def _end_lease(self) -> None:
        """Stop watching the lease, because the member leaves the group, or its partitions are lost."""
        self.lapsed = False
        if self._lease_watch is not None:
            self._lease_watch.cancel()
            self._lease_watch = None

    def _fence(self, code: ErrorCode, why: str = "") -> None:
        self._fenced, self._fenced_why = code, why
        self._move()

    async def _fatal(self, error: KafkaError) -> None:
        """Leave the member idle after an error that no retry cures: stop heartbeats and report its partitions as lost.

        The error is kept until a poll raises it.
        """
        self._stop_tasks()
        self.state = MemberState.IDLE
        self.error, self._fenced_why = error, str(error)
        self._changed()
        await self._lose(ErrorCode.ILLEGAL_GENERATION)

    async def _ask_coordinator(
        self, message: RequestMessage[R] | Between[R], timeout_ms: float, channel: str = "main"
    ) -> R:
        try:
            return await self.cluster.send(message, self._coordinator, timeout_ms=timeout_ms, channel=channel)
        except RetriableError:
            self.cluster.forget_coordinator(self._coordinator)
            raise

    def _log_retry(self, why: object, failures: int) -> None:
        """Log that the coordinator did not answer, or refused for now.

        It is a warning only after `_LASTING_FAILURES` attempts, because a restarting broker causes a few.
        """
        if failures >= _LASTING_FAILURES and self._throttle.should_log("not yet"):
            log.warning(
                "[group %s] no answer of the coordinator after %d attempts, still retrying: %s",
                self.group,
                failures,
                why,
            )
        else:
            log.debug("[group %s] the coordinator did not answer or can't serve yet, retrying: %s", self.group, why)

    def _unsettle(self) -> None:
        """Record the start of a rebalance, with the time and the partitions held; no change if one is under way."""
        if self._unsettled is None:
            self._unsettled = self.cluster.runtime.now_ms, self.assignment.partitions

    def _complete_rebalance(self, partitions: tuple[TopicPartition, ...], user_data: bytes | None) -> None:
        """Hold this assignment: it completes a rebalance, which is recorded with its times and partitions."""
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
