"""A query's membership in its group: partitions are released between batches, never during one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kohort.client.group.member import GroupMember
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.offsets import GroupIdentity, OffsetAndMetadata, commit_offsets, committed_offsets
from kohort.client.settings import ConsumerConfig, client_config
from kohort.errors import (
    CommitFailedError,
    ErrorCode,
    FencedError,
    InvalidInputError,
    KafkaError,
    TimedOutError,
)
from kohort.ids import TopicId, TopicPartition
from kohort.name_patterns import matching_names
from kohort.spark.options import SourceOptions, client_settings
from kohort.spark.source.batch_offset import CommitStamp, CommittedPosition
from kohort.spark.source.offset_coordinator import AssignedPartitions
from kohort.spark.source.progress import MemberProgress, Rebalances
from kohort.spark.topic_pattern import parse_topic_pattern

if TYPE_CHECKING:
    from kohort.client.admin.values import GroupDescription, MemberDescription, Results


# -- The check for members that subscribe to other topics: legal, but mostly a `group.id` used twice
#
# Each member gets partitions of its own topics only, and all rebalance together.

log = logging.getLogger("kohort.spark")

DESCRIBE_TIMEOUT_MS = 30_000
"""Longest time for the coordinator's description of the group."""
DESCRIPTIONS_MAX = 10
"""Most descriptions requested: a rebalancing classic group does not report its members' subscriptions."""
NAMED_MEMBERS_MAX = 5
"""Most members named in the warning."""
CLOSE_TIMEOUT_MS = 500
"""Timeout for closing the connections."""


class GroupDescriber:
    """A client that describes the group of a query.

    It has its own connections: responses come in order, and a heartbeat's would wait behind this one.
    """

    def __init__(self, options: SourceOptions) -> None:
        """Set up the client; nothing is connected or requested yet."""
        self._options, self.group = options, str(options.group_id)
        self._lock = threading.Lock()
        self._client: ThreadClient | None = None

    def request_description(self, timeout_ms: float = DESCRIBE_TIMEOUT_MS) -> Future[Results[str, GroupDescription]]:
        """Request a description of the group from its coordinator."""
        from kohort.client.admin.groups import describe_consumer_groups

        with self._lock:
            if self._client is None:
                settings = client_settings(self._options) | {"group_id": self.group}
                self._client = ThreadClient(client_config(ConsumerConfig, self._options.bootstrap_servers, settings))
            asking = describe_consumer_groups(self._client.cluster, [self.group], timeout_ms=timeout_ms)
            return self._client.submit(asking, f"description of {self.group}")

    def close(self) -> None:
        """Close the connections; another request opens them again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close(client.deadline_s(CLOSE_TIMEOUT_MS))


class SubscriptionCheck:
    """A check, made once after the first assignment, of the other members' subscriptions."""

    def __init__(self, options: SourceOptions) -> None:
        """Set up the check; nothing is connected or requested yet."""
        self._options, self._describer = options, GroupDescriber(options)
        self._lock = threading.Lock()
        self._left = DESCRIPTIONS_MAX
        self._asked: Future[Results[str, GroupDescription]] | None = None

    def warning(self, mine: str) -> str | None:
        """Return the warning about other members' subscriptions once it is known; never wait for the coordinator.

        The caller repeats the call now and then. A member without the right to describe the group gets no warning,
        because a member does not need that right.

        Args:
            mine: this query's member id; empty before the first assignment.
        """
        with self._lock:
            if not self._left or not mine:
                return None
            if self._asked is None:
                self._asked = self._describer.request_description()
            if not self._asked.done():
                return None
            description, self._asked = self._asked, None
            try:
                group = description.result().result(self._describer.group)
            except KafkaError as error:
                log.debug(
                    "[group %s] can't describe the other members, so their subscriptions are not compared: %s",
                    self._describer.group,
                    error,
                )
                self._end()
                return None
            self._left -= 1
            is_complete = reports_all_subscriptions(group, mine)
            if is_complete or not self._left:
                self._end()
            return subscription_warning(group, mine, self._options.subscribe_pattern) if is_complete else None

    def close(self) -> None:
        """End the check of subscriptions, and close its connections."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._left = 0
        self._describer.close()


def reports_all_subscriptions(group: GroupDescription, mine: str) -> bool:
    """Return whether the coordinator reports the subscription of every member, including this one."""
    known = {member.member_id for member in group.members if member.subscription is not None}
    return mine in known and len(known) == len(group.members)


def expected_assignment(
    group: GroupDescription, mine: str, expected: Collection[TopicPartition]
) -> frozenset[TopicPartition] | None:
    """Return the partitions that a member will own after the current rebalance; None while that is not known.

    A KIP-848 member will own its target assignment, once others have released it. A classic group with a cooperative
    assignor is Stable also between its two rebalances, while partitions that move have no owner: then None.

    Args:
        group: the group as its coordinator describes it.
        mine: the id of the member.
        expected: all partitions that a complete assignment of the group must contain.
    """
    me = next((member for member in group.members if member.member_id == mine), None)
    if me is None or (group.state != "Stable" if group.epoch is None else group.epoch != group.assignment_epoch):
        return None
    if group.assignor.startswith("cooperative"):
        assigned = {tp for member in group.members for tp in member.assignment or ()}
        if not assigned.issuperset(expected):
            return None
    return frozenset((me.assignment if me.target_assignment is None else me.target_assignment) or ())


def subscription_warning(group: GroupDescription, mine: str, pattern: str | None = None) -> str | None:
    """Return a warning about members that subscribe to other topics than this one; None if there are none.

    A pattern and topics that it matches count as the same: members learn of new topics one after another.

    Args:
        group: the group with all its members' subscriptions.
        mine: this member's id.
        pattern: the pattern that this member subscribes to, if any.
    """
    (me,) = (member for member in group.members if member.member_id == mine)
    others = [member for member in group.members if member is not me and not _same_subscription(me, member, pattern)]
    if not others:
        return None
    named = [
        f"{other.client_id} at {other.host.lstrip('/')} to {_topics(other)}" for other in others[:NAMED_MEMBERS_MAX]
    ]
    if len(others) > NAMED_MEMBERS_MAX:
        named.append(f"{len(others) - NAMED_MEMBERS_MAX} more")
    reads = _topics(me) if pattern is None else f"the pattern {pattern}"
    return (
        f"members of the group {group.group_id} subscribe to other topics than this query, which reads {reads}: "
        f"{'; '.join(named)}. Each gets records of its own topics only, and all of them stand still when one comes or "
        "goes: give each query a group.id of its own, unless this is meant"
    )


def _same_subscription(me: MemberDescription, other: MemberDescription, pattern: str | None) -> bool:
    if (me.subscription, me.subscription_regex or None) == (other.subscription, other.subscription_regex or None):
        return True
    if pattern is not None:
        finds = parse_topic_pattern(pattern).matches_topic
        same = other.subscription_regex == pattern
        return same or bool(other.subscription and all(map(finds, other.subscription)))
    return bool(other.subscription_regex and _may_find(other.subscription_regex, me.subscription or ()))


def _may_find(regex: str, topics: tuple[str, ...]) -> bool:
    """Return whether another member's subscription pattern matches all these topics; True if Python can't tell."""
    try:
        return len(matching_names(regex, topics)) == len(topics)
    except InvalidInputError:
        return True


def _topics(member: MemberDescription) -> str:
    return ", ".join(member.subscription or ()) or f"the pattern {member.subscription_regex}"


NO_OFFSET_RESET = {"auto.offset.reset": "none"}
"""Consumer settings by which the query chooses starting offsets itself. Otherwise a push coordinator would commit start
offsets, which the query would take for another client's commits.
"""
WATCH_INTERVAL_MS = 1_000
"""Interval of the watching thread's check whether it should end."""
LEAVE_TIMEOUT_MS = 1_500
"""Longest time for leaving the group: Spark does not wait for this process."""
WAIT_WARNING_MS = 10_000
"""A query that waits longer for its partitions logs one warning; a broker delays a group's first rebalance by 3 s."""
JOIN_MARGIN_MS = 60_000
"""Without `joinTimeoutMs`, a query waits for its partitions for this much longer than a rebalance waits for batches."""
UNREAD_BATCH_TIMEOUT_MS = 2_000
"""Longest time that a batch without a request for its tasks delays a rebalance.

Spark asks for tasks 0.1 to 0.3 s after the plan, unless another source of the query is still planning.
"""


class BatchTimeLimit(NamedTuple):
    """The longest time in ms that a rebalance waits for a running batch, and the name of the option that sets it."""

    option: str
    ms: int

    def __str__(self) -> str:
        return f"{self.option}={self.ms}"


@dataclass(frozen=True, slots=True)
class CommitOrigin:
    """The origin of a commit: the query's identity, its batch, the group's generation, and the ids of the topics."""

    query: str
    batch: int
    generation: int
    ids: Mapping[str, TopicId]

    def with_commit_metadata(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets with the query and batch as the commit's metadata."""
        return {
            tp: OffsetAndMetadata(offset, CommitStamp(self.query, self.batch, self.ids.get(tp.topic)).to_metadata())
            for tp, offset in offsets.items()
        }

    def topic_ids_of(self, offsets: Iterable[TopicPartition]) -> Mapping[str, TopicId]:
        """Return the ids of all topics; none if one is unknown, because a commit is either by id or by name."""
        topics = {tp.topic for tp in offsets}
        return {topic: self.ids[topic] for topic in topics} if topics <= self.ids.keys() else {}


class GroupParticipation(Protocol):
    """An interface to a query's group: of a member (`SourceMembership`), or a client that only commits there."""

    def wait_assigned_partitions(self) -> AssignedPartitions:
        """Wait until no rebalance is under way; return the partitions owned then.

        Raises:
            TimedOutError: the wait exceeds `joinTimeoutMs`.
        """

    def is_assignment_current(self, held: AssignedPartitions) -> bool:
        """Return whether `held` is still the assignment; False if the group has rebalanced since, or is about to."""

    def owns_whole_assignment(self, expected: Collection[TopicPartition]) -> bool:
        """Return whether the query owns exactly the partitions that the coordinator assigns to it.

        Args:
            expected: all partitions that a complete assignment of the group must contain.
        """

    def begin_batch(self, held: AssignedPartitions) -> bool:
        """Begin a batch: until it ends, no partition is released.

        Return False if the group has rebalanced since `held`.
        """

    def keep_batch_for_reading(self) -> bool:
        """Keep the batch, since Spark asks for its tasks; return False if the batch was abandoned before."""

    def end_batch(self) -> None:
        """End a committed batch, and release revoked partitions."""

    def commit(
        self, offsets: Mapping[TopicPartition, int], source: CommitOrigin, timeout_ms: float | None = None
    ) -> None:
        """Commit next offsets, with the query and batch as metadata, and wait for the answer.

        Raises:
            CommitFailedError: other members own the partitions by now.
            NotFoundError: a topic was deleted or re-created; nothing of it was committed.
        """

    def committed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedPosition | None]:
        """Return the group's committed offsets, each with the query and batch that its metadata names."""

    def member_progress(self) -> MemberProgress:
        """Return the member's id, rebalances and downtime, for the query's progress."""

    def close(self) -> None:
        """Leave the group."""


class SourceMembership:
    """A member of a group that joins with the first use and answers revocations when no batch is running.

    The planning thread begins a batch. It ends the batch too, or the thread that learns of the sink's end does. Another
    thread releases revoked partitions while the query is idle, and logs rebalances.

    Spark plans the sources of a query one after the other, and asks for the first one's tasks when all have planned.
    Two sources of a query may be in one group, or two queries may have sources in the same two groups. Then the second
    source may wait for a rebalance that waits for the first one's batch. So a batch is abandoned if partitions are
    being revoked and Spark does not ask for its tasks soon. Nothing of it has been read, and the query plans the
    remaining partitions again.
    """

    def __init__(self, options: SourceOptions, heard: Callable[[], bool] = lambda: False) -> None:
        """Start joining in the background.

        Args:
            options: the options of the source.
            heard: whether this process learns when a sink has completed a batch; otherwise a batch runs until the next
                trigger.
        """
        self._member = GroupMember(
            options.bootstrap_servers,
            str(options.group_id),
            topics=options.subscribe,
            pattern=options.translated_pattern(),
            group_protocol=options.group_protocol,
            **client_settings(options) | NO_OFFSET_RESET,
        )
        self._options = options
        self._lock = threading.Lock()
        self._given: frozenset[TopicPartition] = frozenset()  # in the last assignment
        self._busy = self._unread = False  # a batch runs; Spark has not asked for its tasks
        self._busy_since = self._looked_at = time.monotonic()
        self._gap_s = 0.0  # longest pause of this process in the running batch
        self._heard, self._warned = heard, False
        self._rebalances = Rebalances(self._member.group_id)
        self._subscription_check, self._describer = SubscriptionCheck(options), GroupDescriber(options)
        self._may_describe = True
        self._unsettled_since_s: float | None = None
        self._failure: Exception | None = None
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._run, name="kohort-revocations", daemon=True)
        self._watch.start()

    def wait_assigned_partitions(self) -> AssignedPartitions:
        """Wait until no rebalance is under way; return the partitions owned then.

        Raises:
            TimedOutError: the wait exceeds `joinTimeoutMs`.
            KafkaError: the membership has failed.
        """
        limit_ms = self._limit_ms
        began_s, warned = time.monotonic(), False
        while self._failure is None:
            left_ms = limit_ms - (time.monotonic() - began_s) * 1000
            try:
                assignment = self._member.wait_assignment(max(0.0, min(left_ms, WAIT_WARNING_MS)))
            except TimedOutError as error:
                if left_ms <= WAIT_WARNING_MS:
                    raise TimedOutError(no_assignment_text(self._member, limit_ms, self._bound)) from error
                if not warned:
                    log.warning(
                        "[group %s] the query has no partitions yet: %s; it fails after %s ms (joinTimeoutMs). A "
                        "rebalance waits for the running batches of all members",
                        self._member.group_id,
                        self._member.why_unassigned(),
                        limit_ms,
                    )
                warned = True
                continue
            self._given = frozenset(assignment.partitions)
            return AssignedPartitions(tuple(assignment.partitions), assignment.generation)
        raise self._failure

    def is_assignment_current(self, held: AssignedPartitions) -> bool:
        """Return whether `held` is from the last assignment, and that is still valid.

        A query may leave out partitions of an assignment, such as those of deleted topics. A generation continues while
        partitions arrive that others have released.
        """
        with self._lock:
            return self._holds(held) and set(self._member.assignment().partitions) == self._given

    def owns_whole_assignment(self, expected: Collection[TopicPartition]) -> bool:
        """Return whether this member owns exactly the partitions that the coordinator assigns to it.

        False while others still have to release some of them, or the coordinator does not answer. After `joinTimeoutMs`
        the result is True, with a warning. Also True in the push protocol, and without the right to describe the group.

        Args:
            expected: all partitions that a complete assignment of the group must contain.
        """
        if not self._may_describe or self._member.config.group_protocol == "push" or self._is_given(expected):
            self._unsettled_since_s = None
            return True
        now_s = time.monotonic()
        if self._unsettled_since_s is None:
            self._unsettled_since_s = now_s
        if (now_s - self._unsettled_since_s) * 1000 <= self._limit_ms:
            return False
        log.warning(
            "[group %s] the group gives this query other partitions than it owns, for %d ms: the query ends without "
            "them; their records stay for the group's other members, or for the next run",
            self._member.group_id,
            self._limit_ms,
        )
        return True

    def _is_given(self, expected: Collection[TopicPartition]) -> bool:
        try:
            group = (
                self._describer.request_description(min(DESCRIBE_TIMEOUT_MS, self._limit_ms))
                .result()
                .result(self._member.group_id)
            )
        except KafkaError as error:
            if error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
                log.info(
                    "[group %s] no DESCRIBE permission on the group, so the query will end without a check that the "
                    "group's assignment has settled: %s",
                    self._member.group_id,
                    error,
                )
                self._may_describe = False
                return True
            log.info(
                "[group %s] can't describe the group to see whether its assignment has settled, retrying: %s",
                self._member.group_id,
                error,
            )
            return False
        return expected_assignment(group, self._member.assignment().member_id, expected) == self._given

    def _holds(self, held: AssignedPartitions) -> bool:
        if self._member.revocation() is not None or not self._member.owns():
            return False
        assignment = self._member.assignment()  # a generation continues while its partitions are released
        return assignment.generation == held.generation and set(held.partitions) <= set(assignment.partitions)

    def begin_batch(self, held: AssignedPartitions) -> bool:
        """Begin a batch: revocations wait until it ends.

        Return False if the group has rebalanced since `held`, or may have.
        """
        with self._lock:
            if not self._holds(held):
                return False
            self._count_rebalances()
            self._busy, self._unread, self._busy_since = True, True, time.monotonic()
            self._unsettled_since_s = None
            self._rebalances.batch_began(self._busy_since * 1000)
            self._gap_s, self._looked_at = 0.0, self._busy_since
            return True

    def keep_batch_for_reading(self) -> bool:
        """Keep the batch, since Spark asks for its tasks; return False if the batch was abandoned before."""
        with self._lock:
            self._unread = False
            return self._busy

    def _abandon_unread(self, now_s: float) -> None:
        """Abandon the running batch if the group revokes partitions and Spark has not asked for its tasks in time.

        The time limit is `UNREAD_BATCH_TIMEOUT_MS`. The caller holds the lock.
        """
        if (
            self._unread
            and (now_s - self._busy_since) * 1000 >= UNREAD_BATCH_TIMEOUT_MS
            and self._member.revocation() is not None
        ):
            self._busy = self._unread = False
            self._rebalances.batch_ended(now_s * 1000)
            log.info(
                "[group %s] batch abandoned: the group rebalances, and Spark did not ask for the batch's tasks within "
                "%d ms. Nothing of it was read: its records are planned again, as far as they stay with the query",
                self._member.group_id,
                UNREAD_BATCH_TIMEOUT_MS,
            )

    def end_batch(self) -> None:
        """End a committed batch, and release revoked partitions."""
        with self._lock:
            self._busy = self._unread = False
            self._rebalances.batch_ended(time.monotonic() * 1000)
            self._member.release()

    def commit(
        self, offsets: Mapping[TopicPartition, int], source: CommitOrigin, timeout_ms: float | None = None
    ) -> None:
        """Commit next offsets, with the query and batch as metadata, and wait for the answer.

        Raises:
            CommitFailedError: other members own the partitions by now.
            NotFoundError: a topic was deleted or re-created; nothing of it was committed.
        """
        try:
            if offsets:
                ids = source.topic_ids_of(offsets)
                self._member.commit(
                    source.with_commit_metadata(offsets),
                    generation=source.generation,
                    topic_ids=ids,
                    timeout_ms=timeout_ms,
                )
        except (CommitFailedError, FencedError) as error:
            raise CommitFailedError(f"{error.message}; {self._advice(error)}", error.code) from error

    def _advice(self, error: CommitFailedError | FencedError) -> str:
        """Return what to do about partitions that other members own by now, depending on the cause."""
        with self._lock:
            now = time.monotonic()
            ran_ms, gap_ms = (now - self._busy_since) * 1000, max(self._gap_s, now - self._looked_at) * 1000
        if not self._busy:
            return "the group has rebalanced"
        return lost_batch_advice(
            error,
            ran_ms,
            gap_ms,
            session_ms=self._member.config.session_timeout_ms,
            bound=self._bound,
        )

    @property
    def _bound(self) -> BatchTimeLimit:
        """The longest time that a rebalance waits for a running batch.

        That is the rebalance timeout, or in the push protocol the session timeout.
        """
        config = self._member.config
        if config.group_protocol == "push":
            return BatchTimeLimit("kafka.session.timeout.ms", config.session_timeout_ms)
        return BatchTimeLimit("kafka.max.poll.interval.ms", config.max_poll_interval_ms)

    @property
    def _limit_ms(self) -> int:
        """The longest time in ms that the query waits for its partitions."""
        return self._options.join_timeout_ms or self._bound.ms + JOIN_MARGIN_MS

    def committed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedPosition | None]:
        """Return the group's committed offsets, each with the query and batch that its metadata names."""
        return _with_stamps(self._member.committed(list(partitions)))

    def member_progress(self) -> MemberProgress:
        """Return the member's id, and the number and downtime of its rebalances so far, for the query's progress."""
        with self._lock:
            self._count_rebalances()
            return MemberProgress(
                self._member.assignment().member_id or None, self._rebalances.count, self._rebalances.downtime_ms
            )

    def _count_rebalances(self) -> None:
        """Count the rebalances since the last call; the caller holds the lock."""
        self._rebalances.record_rebalances(self._member.rebalances(self._rebalances.count))

    def close(self) -> None:
        """Leave the group."""
        self._ended.set()
        self._subscription_check.close()
        self._describer.close()
        self._member.close(timeout_ms=LEAVE_TIMEOUT_MS)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._member.wait_change(WATCH_INTERVAL_MS)
                with self._lock:
                    now = time.monotonic()
                    self._gap_s, self._looked_at = max(self._gap_s, now - self._looked_at), now
                    self._abandon_unread(now)
                    if not self._busy and not self._ended.is_set():
                        self._member.release()
                    self._count_rebalances()
                self._warn_if_long()
                self._warn_of_other_subscriptions()
            except Exception as error:
                if not self._ended.is_set():
                    log.exception(
                        "unexpected error in the thread that watches a query's group for rebalances: the query fails"
                    )
                    self._failure = error
                return

    def _warn_of_other_subscriptions(self) -> None:
        """Log once that other members subscribe to other topics."""
        warning = self._subscription_check.warning(self._member.assignment().member_id)
        if warning is not None:
            log.warning("subscriptions of the group's members differ: %s", warning)

    def _warn_if_long(self) -> None:
        """Log once that the running batch has taken longer than a rebalance waits.

        On Spark Connect a batch also counts as running while its query waits for the next trigger.
        """
        bound = self._bound
        with self._lock:
            long = self._busy and (time.monotonic() - self._busy_since) * 1000 > bound.ms
        if not long or self._warned:
            return
        self._warned = True
        log.warning("[group %s] long batch: %s", self._member.group_id, long_batch_warning(bound, heard=self._heard()))


def lost_batch_advice(
    error: KafkaError, ran_ms: float, gap_ms: float, *, session_ms: int, bound: BatchTimeLimit
) -> str:
    """Return a remedy, for the error text, after a batch whose partitions were assigned to others before its commit.

    Args:
        error: the error of its commit.
        ran_ms: the duration of the batch.
        gap_ms: the longest pause of this process during the batch.
        session_ms: the session timeout.
        bound: the longest time that a rebalance waits for a batch.
    """
    if error.code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
        return "another process joined with its kafka.group.instance.id: give each query one of its own"
    if gap_ms >= session_ms:
        return (
            f"this process stood still for {gap_ms / 1000:.0f} s (the machine was paused, or had no processor or "
            f"memory to spare), and kafka.session.timeout.ms={session_ms} evicts a member that is silent for longer: "
            "raise it above such pauses, or end them"
        )
    if ran_ms >= bound.ms:
        return (
            f"the batch ran for {ran_ms / 1000:.0f} s, a rebalance waits for {bound}: "
            "raise it above the longest batch, or make batches smaller (maxOffsetsPerTrigger)"
        )
    return (
        f"the batch ran for {ran_ms / 1000:.0f} s, less than the {bound.ms / 1000:.0f} s that a rebalance waits: the "
        f"coordinator did not hear this member for kafka.session.timeout.ms={session_ms} (is the network at fault, or "
        "the broker?), or the member was removed from the group"
    )


def no_assignment_text(member: GroupMember, limit_ms: int, batch_limit: BatchTimeLimit) -> str:
    """Return the error text of a query that got no partitions within `limit_ms`.

    `batch_limit` says how long a rebalance waits for a running batch.
    """
    return (
        f"the group {member.group_id} gave no assignment within {limit_ms} ms: {member.why_unassigned()}. A rebalance "
        f"waits for the running batches of all members, for {batch_limit.option} of each: raise joinTimeoutMs above "
        f"that, or look at who is in the group: kohort groups describe {member.group_id}"
    )


def partitions_lost_text(batch: int, error: CommitFailedError) -> str:
    """Return the text about a batch whose partitions other members own by now."""
    return (
        f"batch {batch} could not be committed, its partitions were assigned to other members meanwhile: "
        f"{error.message}"
    )


def long_batch_warning(bound: BatchTimeLimit, *, heard: bool) -> str:
    """Return the warning that a batch has been running for longer than a rebalance waits.

    Args:
        bound: the longest time that a rebalance waits.
        heard: whether the sink is known to be running; otherwise the query may only be waiting for its trigger.
    """
    text = (
        f"a batch has been running for longer than {bound}: if another member joins or leaves now, the rebalance "
        "does not wait for the batch; its partitions may get new owners, which read its records again"
    )
    if heard:
        return f"{text}; make batches smaller, or raise the option above the longest one"
    return (
        f"{text}. This process can't hear from the application when a sink is done, as on Spark Connect: a batch "
        "counts as running until the query's next trigger. Raise the option above the trigger's interval and the "
        "longest batch"
    )


class NonMemberClient:
    """A client that keeps a query's offsets in a group without joining: `assign` names its partitions."""

    def __init__(self, options: SourceOptions) -> None:
        self._held = AssignedPartitions(options.assigned_partitions())
        self._group = str(options.group_id)
        self._client = ThreadClient(
            client_config(
                ConsumerConfig, options.bootstrap_servers, client_settings(options) | {"group_id": self._group}
            )
        )

    def wait_assigned_partitions(self) -> AssignedPartitions:
        """Return all partitions of `assign`."""
        return self._held

    def is_assignment_current(self, held: AssignedPartitions) -> bool:
        """Return True: assigned partitions are never revoked."""
        return True

    def owns_whole_assignment(self, expected: Collection[TopicPartition]) -> bool:
        """Return True: assigned partitions are never revoked."""
        return True

    def keep_batch_for_reading(self) -> bool:
        """Return True: no batch is abandoned."""
        return True

    def begin_batch(self, held: AssignedPartitions) -> bool:
        """Return True: assigned partitions are never revoked."""
        del held
        return True

    def end_batch(self) -> None:
        """Do nothing: without a group membership no partition is ever revoked."""

    def commit(
        self, offsets: Mapping[TopicPartition, int], source: CommitOrigin, timeout_ms: float | None = None
    ) -> None:
        """Commit next offsets, with the query and batch as metadata, and wait for the answer.

        Raises:
            InvalidInputError: the group has members.
            NotFoundError: a topic was deleted or re-created; nothing of it was committed.
        """
        ids, cluster = source.topic_ids_of(offsets), self._client.cluster
        try:
            self._client.call(
                commit_offsets(
                    cluster,
                    self._group,
                    source.with_commit_metadata(offsets),
                    GroupIdentity(),
                    timeout_ms=timeout_ms,
                    ids=ids,
                )
            )
        except CommitFailedError as error:
            raise InvalidInputError(
                f"the group {self._group} has members, and takes no offsets from a query that names its partitions by "
                "assign: give the query a group.id of its own, or subscribe instead of assign to be a member, or stop "
                "the members",
                error.code,
            ) from error

    def committed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedPosition | None]:
        """Return the group's committed offsets, each with the query and batch that its metadata names."""
        return _with_stamps(self._client.call(committed_offsets(self._client.cluster, self._group, partitions)))

    def member_progress(self) -> MemberProgress:
        """Return a progress without a member: this query has none."""
        return MemberProgress()

    def close(self) -> None:
        self._client.close(self._client.deadline_s(LEAVE_TIMEOUT_MS))


def _with_stamps(
    found: Mapping[TopicPartition, OffsetAndMetadata | None],
) -> dict[TopicPartition, CommittedPosition | None]:
    return {
        tp: None if commit is None else CommittedPosition(commit.offset, CommitStamp.from_metadata(commit.metadata))
        for tp, commit in found.items()
    }
