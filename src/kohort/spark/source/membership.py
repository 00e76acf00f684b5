"""How a query stands in its group: partitions are given up between batches, never inside one."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kohort.client.group.member import GroupMember
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.offsets import GroupIdentity, OffsetAndMetadata, commit_offsets, committed_offsets
from kohort.client.settings import ConsumerConfig, client_config
from kohort.errors import CommitFailedError, ErrorCode, FencedError, InvalidInputError, KafkaError, TimedOutError
from kohort.ids import TopicId, TopicPartition
from kohort.spark.options import SourceOptions, client_settings
from kohort.spark.source.batch_offset import Committed, Stamp
from kohort.spark.source.offset_coordinator import Held
from kohort.spark.source.progress import Rebalances, Standing
from kohort.spark.source.topic_pattern import topic_pattern

if TYPE_CHECKING:
    from kohort.client.admin.values import GroupDescription, MemberDescription, Results


# -- Other members of a query's group that subscribe to something else: legal, and mostly a `group.id` used twice
#
# Each gets partitions of its own topics only, whatever else the group reads; and all rebalance together.

log = logging.getLogger("kohort.spark")

LOOK_MS = 30_000
"""How long the coordinator may take to describe the group; nothing waits for it."""
LOOKS_MOST = 10
"""How often it is asked: a classic group that rebalances does not tell what its members subscribe to."""
NAMED_MOST = 5
"""So many members are named in the warning."""
CLOSE_MS = 500
"""How long the connections' end may take."""


class Neighbours:
    """Looks once, after the first assignment, who else is in the group.

    Over connections of its own: answers come in order, and a heartbeat would wait behind this one.
    """

    def __init__(self, options: SourceOptions) -> None:
        """Nothing is connected or asked yet."""
        self._options, self._group = options, str(options.group_id)
        self._lock = threading.Lock()
        self._left = LOOKS_MOST
        self._client: ThreadClient | None = None
        self._asked: Future[Results[str, GroupDescription]] | None = None

    def warning(self, mine: str) -> str | None:
        """What to warn of, once it is known. Asks where it must, and never waits: to be called now and then.

        Who may not describe the group hears nothing: a member needs no right to.

        Args:
            mine: this query's member id; empty before the first assignment.
        """
        with self._lock:
            if not self._left or not mine:
                return None
            if self._asked is None:
                self._asked = self._ask()
            if not self._asked.done():
                return None
            asked, self._asked = self._asked, None
            try:
                found = asked.result().result(self._group)
            except KafkaError as error:
                log.debug("who else is in the group %s is not known: %s", self._group, error)
                self._end()
                return None
            self._left -= 1
            told = is_told(found, mine)
            if told or not self._left:
                self._end()
            return warning_of(found, mine, self._options.subscribe_pattern) if told else None

    def close(self) -> None:
        """Ask nothing more."""
        with self._lock:
            self._end()

    def _ask(self) -> Future[Results[str, GroupDescription]]:
        from kohort.client.admin.groups import describe_consumer_groups

        if self._client is None:
            settings = client_settings(self._options) | {"group_id": self._group}
            self._client = ThreadClient(client_config(ConsumerConfig, self._options.bootstrap_servers, settings))
        asking = describe_consumer_groups(self._client.cluster, [self._group], timeout_ms=LOOK_MS)
        return self._client.submit(asking, f"neighbours in {self._group}")

    def _end(self) -> None:
        self._left = 0
        if self._client is not None:
            self._client.close(self._client.until_s(CLOSE_MS))


def is_told(group: GroupDescription, mine: str) -> bool:
    """Whether the coordinator says of every member what it subscribes to, this one included."""
    told = {one.member_id for one in group.members if one.subscription is not None}
    return mine in told and len(told) == len(group.members)


def warning_of(group: GroupDescription, mine: str, pattern: str | None = None) -> str | None:
    """What to warn of: the members that subscribe to something else than this one; None where there is none.

    A pattern and topics that it finds count as the same: members learn of new topics one after another.

    Args:
        group: with all its members' subscriptions.
        mine: this member's id.
        pattern: what it subscribes to, if not topics by name.
    """
    (me,) = (one for one in group.members if one.member_id == mine)
    others = [one for one in group.members if one is not me and not _alike(me, one, pattern)]
    if not others:
        return None
    named = [f"{one.client_id} at {one.host.lstrip('/')} to {_topics(one)}" for one in others[:NAMED_MOST]]
    if len(others) > NAMED_MOST:
        named.append(f"{len(others) - NAMED_MOST} more")
    reads = _topics(me) if pattern is None else f"the pattern {pattern}"
    return (
        f"members of the group {group.group_id} subscribe to other topics than this query, which reads {reads}: "
        f"{'; '.join(named)}. Each gets records of its own topics only, and all of them stand still when one comes or "
        "goes: give each query a group.id of its own, unless this is meant"
    )


def _alike(me: MemberDescription, other: MemberDescription, pattern: str | None) -> bool:
    if (me.subscription, me.subscription_regex or None) == (other.subscription, other.subscription_regex or None):
        return True
    if pattern is not None:
        finds = topic_pattern(pattern).finds
        same = other.subscription_regex == pattern
        return same or bool(other.subscription and all(map(finds, other.subscription)))
    return bool(other.subscription_regex and _may_find(other.subscription_regex, me.subscription or ()))


def _may_find(regex: str, topics: tuple[str, ...]) -> bool:
    """Whether another member's pattern finds topics; so it may where it is none of Python's."""
    try:
        return all(re.fullmatch(regex, topic) for topic in topics)
    except re.error:
        return True


def _topics(one: MemberDescription) -> str:
    return ", ".join(one.subscription or ()) or f"the pattern {one.subscription_regex}"


FINDS_STARTS = {"auto.offset.reset": "none"}
"""A query finds itself where a partition starts that the group has no offset for; a coordinator that pushes would write
one else, and it would count as somebody's commit."""
WATCH_MS = 1_000
"""How long the watching thread waits for a change before it looks whether it should end."""
LEAVE_MS = 1_500
"""How long leaving may take: Spark does not wait for this process."""
WAIT_WARNING_MS = 10_000
"""A query that waits longer for its partitions warns once: a broker lets a group's first members wait for 3 s."""
JOIN_MARGIN_MS = 60_000
"""Without `joinTimeoutMs`, a query waits for its partitions for this much longer than a rebalance waits for batches."""
UNREAD_MS = 2_000
"""How long a batch whose tasks Spark has not asked for keeps the group waiting: it asks 0.1 to 0.3 s after the plan,
unless another source of the query is not done with its own."""


class Limit(NamedTuple):
    """For how long a rebalance waits for a batch, and the option that says so."""

    option: str
    ms: int

    def __str__(self) -> str:
        return f"{self.option}={self.ms}"


@dataclass(frozen=True, slots=True)
class Maker:
    """The identity of a commit: query, batch, generation and topic ids."""

    query: str
    batch: int
    generation: int
    ids: Mapping[str, TopicId]

    def stamped(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets with the maker's stamp."""
        return {
            tp: OffsetAndMetadata(offset, Stamp(self.query, self.batch, self.ids.get(tp.topic)).to_metadata())
            for tp, offset in offsets.items()
        }

    def ids_of(self, offsets: Iterable[TopicPartition]) -> Mapping[str, TopicId]:
        """The ids of all topics; none where one is not known: a commit is by id or by name."""
        topics = {tp.topic for tp in offsets}
        return {topic: self.ids[topic] for topic in topics} if topics <= self.ids.keys() else {}


class InGroup(Protocol):
    """How a query stands in its group: as a member, or only as one who keeps offsets there."""

    def held(self) -> Held:
        """Wait until no rebalance is under way; give the partitions held then.

        Raises:
            TimedOutError: that takes longer than `joinTimeoutMs`.
        """

    def still(self, held: Held) -> bool:
        """Whether `held` is what is held; False if the group has moved on since, or is about to."""

    def begin(self, held: Held) -> bool:
        """Start a batch: from now on nothing is given up. False if the group has moved on since `held`."""

    def read(self) -> bool:
        """Spark asks for the tasks of the batch that has begun. False: it was let go meanwhile."""

    def end(self) -> None:
        """The batch is over and committed: give up what the group wants back."""

    def commit(self, offsets: Mapping[TopicPartition, int], maker: Maker, timeout_ms: float | None = None) -> None:
        """Commit next offsets with their maker's stamp as metadata, and wait.

        Raises:
            CommitFailedError: the partitions are others' by now.
            NotFoundError: a topic is gone, or another has its name; nothing was committed of it.
        """

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        """The group's offsets with their makers."""

    def standing(self) -> Standing:
        """What the progress says of it."""

    def close(self) -> None:
        """Leave the group."""


class Membership:
    """Joins with the first use, heartbeats in the background, and answers revocations when no batch is running.

    A batch begins by a call of the thread that plans, and ends by that thread's or by the one that hears of its sink;
    a thread of its own releases revoked partitions while the query is idle, and tells the log of rebalances.

    Spark plans the sources of a query one after the other, and asks for the first one's tasks when all have planned.
    If two of them are in one group, or two queries have sources in the same two groups, the second source waits for a
    rebalance that waits for the first one's batch. So a batch is let go when the group wants partitions back and its
    tasks are not asked for soon: nothing of it has been read, and what stays with the query is taken anew (`read`).
    """

    def __init__(self, options: SourceOptions, heard: Callable[[], bool] = lambda: False) -> None:
        """Start joining in the background.

        Args:
            options: of the source.
            heard: whether this process hears when a sink is done; else a batch runs until the next trigger.
        """
        self._member = GroupMember(
            options.bootstrap_servers,
            str(options.group_id),
            topics=options.subscribe,
            pattern=options.pattern_text(),
            group_protocol=options.group_protocol,
            **client_settings(options) | FINDS_STARTS,
        )
        self._options = options
        self._lock = threading.Lock()
        self._given: frozenset[TopicPartition] = frozenset()  # by the last answer
        self._busy = self._unread = False  # in a batch; in one whose tasks nobody has asked for
        self._busy_since = self._looked_at = time.monotonic()
        self._gap_s = 0.0  # the longest that this process did nothing, in the running batch
        self._heard, self._warned = heard, False
        self._rebalances = Rebalances(self._member.group_id)
        self._neighbours = Neighbours(options)
        self._failure: Exception | None = None
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._run, name="kohort-revocations", daemon=True)
        self._watch.start()

    def held(self) -> Held:
        """Wait until no rebalance is under way; give the partitions held then.

        Raises:
            TimedOutError: that takes longer than `joinTimeoutMs`.
            KafkaError: the membership has failed.
        """
        limit_ms = self._options.join_timeout_ms or self._bound.ms + JOIN_MARGIN_MS
        began_s, warned = time.monotonic(), False
        while self._failure is None:
            left_ms = limit_ms - (time.monotonic() - began_s) * 1000
            try:
                assignment = self._member.wait_assignment(max(0.0, min(left_ms, WAIT_WARNING_MS)))
            except TimedOutError as error:
                if left_ms <= WAIT_WARNING_MS:
                    raise TimedOutError(no_assignment(self._member, limit_ms, self._bound)) from error
                if not warned:
                    log.warning("%s", waits_for_assignment(self._member, limit_ms))
                warned = True
                continue
            self._given = frozenset(assignment.partitions)
            return Held(tuple(assignment.partitions), assignment.generation)
        raise self._failure

    def still(self, held: Held) -> bool:
        """Whether `held` is from the last answer, and that still counts; False if the group may have moved on since.

        A query passes over partitions of an answer, as those of topics that are gone. A generation goes on while
        partitions come that others have given back.
        """
        with self._lock:
            return self._holds(held) and set(self._member.assignment().partitions) == self._given

    def _holds(self, held: Held) -> bool:
        if self._member.revocation() is not None or not self._member.owns():
            return False
        assignment = self._member.assignment()  # a generation goes on while what it had is given back
        return assignment.generation == held.generation and set(held.partitions) <= set(assignment.partitions)

    def begin(self, held: Held) -> bool:
        """Start a batch: from now on revocations wait. False if the group has moved on since `held`, or may have."""
        with self._lock:
            if not self._holds(held):
                return False
            self._take_in()
            self._busy, self._unread, self._busy_since = True, True, time.monotonic()
            self._rebalances.batch_began(self._busy_since * 1000)
            self._gap_s, self._looked_at = 0.0, self._busy_since
            return True

    def read(self) -> bool:
        """Spark asks for the tasks of the batch that has begun. False: it was let go meanwhile."""
        with self._lock:
            self._unread = False
            return self._busy

    def _let_go(self, now_s: float) -> None:
        """Let a batch go that has not been read, if the group has waited for it for long enough. Under the lock."""
        if self._unread and (now_s - self._busy_since) * 1000 >= UNREAD_MS and self._member.revocation() is not None:
            self._busy = self._unread = False
            self._rebalances.batch_ended(now_s * 1000)
            log.info(
                "[group %s] batch let go: its tasks were not asked for within %d ms while the group rebalances; what "
                "stays with the query is read with the next call",
                self._member.group_id,
                UNREAD_MS,
            )

    def end(self) -> None:
        """The batch is over and committed: give up what the group wants back.

        What keeps the member out of its group is the planning thread's to hear, here and in the watching thread.
        """
        with self._lock:
            self._busy = self._unread = False
            self._rebalances.batch_ended(time.monotonic() * 1000)
            self._member.release()

    def commit(self, offsets: Mapping[TopicPartition, int], maker: Maker, timeout_ms: float | None = None) -> None:
        """Commit next offsets with their maker's stamp as metadata, and wait.

        Raises:
            CommitFailedError: the partitions are others' by now.
            NotFoundError: a topic is gone, or another has its name; nothing was committed of it.
        """
        try:
            if offsets:
                ids = maker.ids_of(offsets)
                self._member.commit(
                    maker.stamped(offsets), generation=maker.generation, topic_ids=ids, timeout_ms=timeout_ms
                )
        except (CommitFailedError, FencedError) as error:
            raise CommitFailedError(f"{error.message}; {self._advice(error)}", error.code) from error

    def _advice(self, error: CommitFailedError | FencedError) -> str:
        """What to do about partitions that are others' by now, by its cause."""
        with self._lock:
            now = time.monotonic()
            ran_ms, gap_ms = (now - self._busy_since) * 1000, max(self._gap_s, now - self._looked_at) * 1000
        if not self._busy:
            return "the group has moved on"
        return advice(
            error,
            ran_ms,
            gap_ms,
            session_ms=self._member.config.session_timeout_ms,
            bound=self._bound,
        )

    @property
    def _bound(self) -> Limit:
        """How long a rebalance waits for a batch; a coordinator that pushes evicts who keeps a Stop for a session."""
        config = self._member.config
        if config.group_protocol == "push":
            return Limit("kafka.session.timeout.ms", config.session_timeout_ms)
        return Limit("kafka.max.poll.interval.ms", config.max_poll_interval_ms)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        """The group's offsets with their makers."""
        return _with_makers(self._member.committed(list(partitions)))

    def standing(self) -> Standing:
        """What the progress says of this member, with the rebalances up to now."""
        with self._lock:
            self._take_in()
            return Standing(
                self._member.assignment().member_id or None, self._rebalances.count, self._rebalances.standstill_ms
            )

    def _take_in(self) -> None:
        """Count what rebalances there were since the last call. Under the lock."""
        self._rebalances.take(self._member.rebalances(self._rebalances.count))

    def close(self) -> None:
        """Leave the group."""
        self._ended.set()
        self._neighbours.close()
        self._member.close(timeout_ms=LEAVE_MS)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._member.wait_change(WATCH_MS)
                with self._lock:
                    now = time.monotonic()
                    self._gap_s, self._looked_at = max(self._gap_s, now - self._looked_at), now
                    self._let_go(now)
                    if not self._busy and not self._ended.is_set():
                        self._member.release()
                    self._take_in()
                self._warn_if_long()
                self._warn_of_neighbours()
            except Exception as error:
                if not self._ended.is_set():
                    log.exception("what watches for revocations has ended")
                    self._failure = error
                return

    def _warn_of_neighbours(self) -> None:
        """Say once that others in the group subscribe to other topics."""
        warning = self._neighbours.warning(self._member.assignment().member_id)
        if warning is not None:
            log.warning("%s", warning)

    def _warn_if_long(self) -> None:
        """Say once that a rebalance would not wait for the running batch; Spark tells nobody a query's trigger."""
        bound = self._bound
        with self._lock:
            long = self._busy and (time.monotonic() - self._busy_since) * 1000 > bound.ms
        if not long or self._warned:
            return
        self._warned = True
        log.warning("%s", long_batch_warning(bound, heard=self._heard()))


def advice(error: KafkaError, ran_ms: float, gap_ms: float, *, session_ms: int, bound: Limit) -> str:
    """What to do about a batch whose partitions were given to others.

    Args:
        error: what its commit was answered with.
        ran_ms: how long the batch ran.
        gap_ms: the longest time in it that this process did nothing at all.
        session_ms: after so much silence a member is evicted.
        bound: so long a rebalance waits for a batch.
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


def no_assignment(member: GroupMember, limit_ms: int, bound: Limit) -> str:
    """Word the failure of a query that got no partitions in time."""
    return (
        f"the group {member.group_id} gave no assignment within {limit_ms} ms: {member.waits_for()}. A rebalance waits "
        f"for the running batches of all members, for {bound.option} of each: raise joinTimeoutMs above that, or look "
        f"at who is in the group: kohort groups describe {member.group_id}"
    )


def waits_for_assignment(member: GroupMember, limit_ms: int) -> str:
    """Word the warning of a query that has waited for its partitions for `WAIT_WARNING_MS`."""
    return (
        f"[group {member.group_id}] the query waits for its partitions: {member.waits_for()}; it fails after "
        f"{limit_ms} ms (joinTimeoutMs). A rebalance waits for the running batches of all members"
    )


def given_away(batch: int, error: CommitFailedError) -> str:
    """What to say of a batch whose partitions are others' by now."""
    return f"batch {batch} could not be committed, its partitions were given to others meanwhile: {error.message}"


def long_batch_warning(bound: Limit, *, heard: bool) -> str:
    """What to say when a batch has been running for longer than a rebalance waits.

    Args:
        bound: how long it waits.
        heard: whether it is known that the sink is not done; else the query may only wait for its trigger.
    """
    text = (
        f"a batch has been running for longer than {bound}: when another member joins or "
        "leaves now, the group does not wait for it, its partitions are given away, and it is read again"
    )
    if heard:
        return f"{text}; make batches smaller, or raise the option above the longest one"
    return (
        f"{text}. This process can't hear from the application when a sink is done, as on Spark Connect: a batch "
        "counts as running until the query's next trigger. Raise the option above the trigger's interval and the "
        "longest batch"
    )


class OffsetKeeper:
    """Keeps a query's offsets in a group that it is no member of: its partitions are named by `assign`."""

    def __init__(self, options: SourceOptions) -> None:
        self._held = Held(options.assigned())
        self._group = str(options.group_id)
        self._client = ThreadClient(
            client_config(
                ConsumerConfig, options.bootstrap_servers, client_settings(options) | {"group_id": self._group}
            )
        )

    def held(self) -> Held:
        """All of `assign`."""
        return self._held

    def still(self, held: Held) -> bool:
        """Always true: assigned partitions are never revoked."""
        return True

    def read(self) -> bool:
        """Nothing is let go."""
        return True

    def begin(self, held: Held) -> bool:
        """Always true: assigned partitions are never revoked."""
        del held
        return True

    def end(self) -> None:
        """Nothing is given up."""

    def commit(self, offsets: Mapping[TopicPartition, int], maker: Maker, timeout_ms: float | None = None) -> None:
        """Commit next offsets with their maker's stamp as metadata, and wait.

        Raises:
            InvalidInputError: the group has members.
            NotFoundError: a topic is gone, or another has its name; nothing was committed of it.
        """
        ids, cluster = maker.ids_of(offsets), self._client.cluster
        try:
            self._client.call(
                commit_offsets(
                    cluster, self._group, maker.stamped(offsets), GroupIdentity(), timeout_ms=timeout_ms, ids=ids
                )
            )
        except CommitFailedError as error:
            raise InvalidInputError(
                f"the group {self._group} has members, and takes no offsets from a query that names its partitions by "
                "assign: give the query a group.id of its own, or subscribe instead of assign to be a member, or stop "
                "the members",
                error.code,
            ) from error

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        """The group's offsets with their makers."""
        return _with_makers(self._client.call(committed_offsets(self._client.cluster, self._group, partitions)))

    def standing(self) -> Standing:
        """It is no member."""
        return Standing()

    def close(self) -> None:
        self._client.close(self._client.until_s(LEAVE_MS))


def _with_makers(
    found: Mapping[TopicPartition, OffsetAndMetadata | None],
) -> dict[TopicPartition, Committed | None]:
    return {
        tp: None if one is None else Committed(one.offset, Stamp.from_metadata(one.metadata))
        for tp, one in found.items()
    }
