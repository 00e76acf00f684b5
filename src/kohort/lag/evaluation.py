"""Lag and status of partitions and groups, computed from a snapshot and from the report of the snapshot before it.

Everything here is pure: `evaluate` is a function of values. Its memory from read to read is in its result (`Trend`), of
constant size for a partition.

The statuses are those of LinkedIn's Burrow, with three of its faults avoided:

- A lag of zero anywhere in Burrow's window hides a stop for as long as the window (Burrow #290, #745). Here the time
  without progress begins with the first read that shows unread records.
- Burrow's window is ten commits long, so that a topic with little traffic is `STOP` for hours, or never (#38, #303).
  Here the window is a time, and counts only while records are unread. A group that commits rarely gets twice its usual
  pause.
- Burrow's `WARN` needs a lag that falls in no interval, so that one saw tooth hides it (#155, #453, #738). Here the low
  points of consecutive windows are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from kohort.client.admin.values import GroupDescription, MemberDescription
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.ids import TopicPartition
from kohort.lag.snapshot import NO_RECORD, UNDATED, ClusterSnapshot, GroupReading, PartitionBounds, ReadFailure
from kohort.name_patterns import matching_names

WINDOW_MS = 60_000
"""How long a partition may make no progress, or its lag grow, before that is a finding. Longer than the pauses between
commits of most consumers: Kafka's default is 5 s."""
PAUSE_WINDOWS_MAX = 5
"""The longest pause that counts as usual, in windows: after a stop of a day the next one is noticed as soon."""
HOT_FACTOR = 3.0
"""A partition is hot when so many times more is written to it than to the group's other ones in the mean."""
RISES_MIN = 2
"""`WARN` needs this many windows in a row whose lowest lag is above the window's before."""


class LagStatus(IntEnum):
    """The status of a partition's or a group's lag, from good to bad.

    A group has the worst status of its partitions.
    """

    OK = 0
    WARN = 1
    STALL = 2
    STOP = 3
    ERR = 4


TOPIC_GONE = "topic gone"
UNAVAILABLE = "unavailable"
NO_OFFSET = "no offset"
ABANDONED = "abandoned"
PAST_END = "past end"
BEFORE_START = "before start"
OPEN_TRANSACTION = "open transaction"
NO_MEMBERS = "no members"
UNASSIGNED = "unassigned"
NO_PROGRESS = "no progress"
FALLING_BEHIND = "falling behind"

CAUSES: Mapping[str, str] = {
    TOPIC_GONE: "the topic or the partition does not exist any more",
    UNAVAILABLE: "the partition's offsets can't be read now; `error` says why",
    NO_OFFSET: "nothing is committed: where the group begins is its clients' choice",
    ABANDONED: "the group has members, and none subscribes to the topic: its lag grows until the offset expires",
    PAST_END: "the committed offset is after the log's end: the topic was recreated or its log truncated",
    BEFORE_START: "retention deleted records that the group had not read; `lost` counts their offsets",
    OPEN_TRANSACTION: "the group stands where a producer's open transaction begins; no member can read on",
    NO_MEMBERS: "the group has no members, and records wait for it",
    UNASSIGNED: "the group has members, and none of them has the partition",
    NO_PROGRESS: "records are unread, and the committed offset has not moved for a window",
    FALLING_BEHIND: "the lag's low point rose in several windows, and what was there a window ago is still unread",
}
"""The causes of a status, and what each means."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A partition's committed offset and log end at a time, from which rates are computed."""

    at_ms: int
    committed: int
    log_end: int


@dataclass(frozen=True, slots=True)
class Trend:
    """The memory of a partition from read to read.

    Attributes:
        last: The last read.
        window: The first read of the present window.
        before: The first read of the window before; None in the first window.
        moved_ms: The last read at which the committed offset had moved; None: it never did.
        stuck_since_ms: The first read at which records were unread at the present committed offset; None: none are.
        longest_pause_ms: The longest such time that ended with progress; a longer time ago counts less.
        low: The lowest lag of the present window.
        low_before: That of the window before.
        rises: The number of consecutive windows whose lowest lag was above the window's before.
    """

    last: Anchor
    window: Anchor
    before: Anchor | None
    moved_ms: int | None
    stuck_since_ms: int | None
    longest_pause_ms: int
    low: int
    low_before: int | None
    rises: int

    @classmethod
    def started(cls, now: Anchor, unread: int) -> Trend:
        """Return the trend of a first read."""
        return cls(now, now, None, None, now.at_ms if unread else None, 0, unread, None, 0)

    def with_read(self, now: Anchor, unread: int, window_ms: int) -> Trend:
        """Return the trend with another read. An offset or an end that went back begins a new trend."""
        if now.committed < self.last.committed or now.log_end < self.last.log_end or now.at_ms < self.last.at_ms:
            return Trend.started(now, unread)
        moved = now.committed != self.last.committed
        pause = now.at_ms - self.stuck_since_ms if moved and self.stuck_since_ms is not None else 0
        pause = min(pause, PAUSE_WINDOWS_MAX * window_ms)
        since = None if not unread else now.at_ms if moved or self.stuck_since_ms is None else self.stuck_since_ms
        ends_window = now.at_ms - self.window.at_ms >= window_ms
        low = min(self.low, unread)
        rises = self.rises
        if ends_window:
            rises = self.rises + 1 if self.low_before is not None and low > self.low_before else 0
        return Trend(
            last=now,
            window=now if ends_window else self.window,
            before=self.window if ends_window else self.before,
            moved_ms=now.at_ms if moved else self.moved_ms,
            stuck_since_ms=since,
            longest_pause_ms=max(pause, self.longest_pause_ms * 3 // 4) if moved else self.longest_pause_ms,
            low=unread if ends_window else low,
            low_before=low if ends_window else self.low_before,
            rises=rises,
        )

    @property
    def base(self) -> Anchor:
        """The read from which rates are computed: one to two windows ago, or the first read."""
        return self.before or self.window

    @property
    def stuck_ms(self) -> int:
        """How long records have been unread without progress."""
        return 0 if self.stuck_since_ms is None else self.last.at_ms - self.stuck_since_ms

    def is_stuck(self, window_ms: int) -> bool:
        """Return whether there was no progress for a window, and for twice the longest pause of this group."""
        return self.stuck_since_ms is not None and self.stuck_ms >= max(window_ms, 2 * self.longest_pause_ms)

    def is_falling_behind(self) -> bool:
        """Return whether lag rises window by window, and records are unread that were there a window ago.

        The second condition keeps a consumer `OK` that is never a window behind, however its small lag varies.
        """
        return self.rises >= RISES_MIN and self.before is not None and self.last.committed < self.before.log_end


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A group's position in a partition.

    Attributes:
        committed: The committed offset; None: none is committed.
        metadata: What the committer wrote beside it.
        owner: The member that has the partition; None: none has, or several of a share group have, or members are
            unknown.
        log_start: The partition's first offset; None if it is unavailable.
        log_end: The offset of the next record; read after `committed`, so that lag is never understated.
        oldest_ms: The timestamp of the oldest unread record, or a time before it (then `is_time_lag_exact` is false).
        time_lag_ms: The age of the oldest unread record; 0 if there is none, None if unknown.
        is_time_lag_exact: Whether that is the record's own timestamp. Else the time lag is at most so long.
        status: See `LagStatus`.
        cause: One of `CAUSES`; None if all is well.
        error: Why offsets are unavailable.
        trend: What the next evaluation needs; None if there is no committed offset.
        counted_lag: The lag that the coordinator of a share group counted; None: it follows from the offsets.
    """

    partition: TopicPartition
    committed: int | None = None
    metadata: str = ""
    owner: MemberDescription | None = None
    log_start: int | None = None
    log_end: int | None = None
    oldest_ms: int | None = None
    time_lag_ms: int | None = None
    is_time_lag_exact: bool = True
    status: LagStatus = LagStatus.OK
    cause: str | None = None
    error: str | None = None
    trend: Trend | None = None
    counted_lag: int | None = None

    @property
    def lag(self) -> int | None:
        """The offsets still to be read: end less the larger of committed and start; None: no offset is committed."""
        if self.committed is None or self.log_end is None or self.log_start is None:
            return None
        if self.counted_lag is not None:
            return self.counted_lag
        return max(0, self.log_end - max(self.committed, self.log_start))

    @property
    def position(self) -> str | None:
        """`past end` or `before start` if a consumer can't continue at the committed offset; else None.

        Such a consumer resets its position by its auto.offset.reset.
        """
        if self.committed is None or self.log_end is None or self.log_start is None:
            return None
        if self.committed > self.log_end:
            return PAST_END
        return BEFORE_START if self.committed < self.log_start else None

    @property
    def lost(self) -> int | None:
        """The offsets from `committed` on that retention deleted; None unless the position is `before start`."""
        if self.committed is None or self.log_start is None or self.position != BEFORE_START:
            return None
        return self.log_start - self.committed

    @property
    def consumed_per_s(self) -> float | None:
        """By how much the committed offset moved per second, over one to two windows; None in the first read."""
        return None if self.trend is None else _rate(self.trend, lambda anchor: anchor.committed)

    @property
    def produced_per_s(self) -> float | None:
        """By how much the log's end moved per second, over the same time."""
        return None if self.trend is None else _rate(self.trend, lambda anchor: anchor.log_end)

    @property
    def catch_up_s(self) -> float | None:
        """The time until nothing is unread at the present rates; None: unknown, or never."""
        consumed, produced = self.consumed_per_s, self.produced_per_s
        if self.lag == 0:
            return 0.0
        if self.lag is None or consumed is None or produced is None or consumed <= produced:
            return None
        return self.lag / (consumed - produced)


def _rate(trend: Trend, of: Callable[[Anchor], int]) -> float | None:
    span_ms = trend.last.at_ms - trend.base.at_ms
    return None if span_ms <= 0 else (of(trend.last) - of(trend.base)) * 1000 / span_ms


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group with the lag of its partitions.

    Sums and maxima leave abandoned topics out: no member can reduce their lag, and nobody wants it reduced. `batch` is
    the last batch that a Spark query finished, where its checkpoint was read; None for groups.
    """

    description: GroupDescription
    members_known: bool = True
    partitions: tuple[PartitionLag, ...] = ()
    batch: int | None = None
    known_partitions: list[PartitionLag] = field(init=False, repr=False, compare=False)
    """The partitions with a known lag that the group still reads."""

    def __post_init__(self) -> None:
        known = [part for part in self.partitions if part.lag is not None and part.cause != ABANDONED]
        object.__setattr__(self, "known_partitions", known)

    @property
    def sum_lag(self) -> int:
        """The sum of the lag over partitions: how many offsets the group has still to read."""
        return sum(part.lag or 0 for part in self.known_partitions)

    @property
    def max_lag(self) -> int:
        """The largest lag of a partition."""
        return max((part.lag or 0 for part in self.known_partitions), default=0)

    @property
    def max_time_lag_ms(self) -> int | None:
        """The largest time lag of a partition; None if none is known."""
        return max((part.time_lag_ms for part in self.known_partitions if part.time_lag_ms is not None), default=None)

    @property
    def skew(self) -> float | None:
        """The largest lag of a partition, divided by the mean: 1 is even. None if nothing is unread."""
        total = self.sum_lag
        return self.max_lag * len(self.known_partitions) / total if total else None

    @property
    def hot(self) -> list[PartitionLag]:
        """The partitions to which `HOT_FACTOR` times more is written than to the others in the mean.

        Each is read by one member, so that more members don't help. Not in share groups.
        """
        rates = {part.partition: part.produced_per_s for part in self.known_partitions}
        known = {tp: rate for tp, rate in rates.items() if rate is not None}
        if len(known) < 2 or self.description.type.lower() == "share":
            return []
        total, others = sum(known.values()), len(known) - 1
        hot = {tp for tp, rate in known.items() if rate > HOT_FACTOR * (total - rate) / others}
        return [part for part in self.known_partitions if part.partition in hot]

    @property
    def status(self) -> LagStatus:
        """The worst status of a partition."""
        return max((part.status for part in self.partitions), default=LagStatus.OK)

    @property
    def activity(self) -> str:
        """Return the group's activity in a word.

        `stopped`: it has no members, and records wait. `empty`: no members, none wait. `idle`: nothing is unread, and
        nothing was written or committed over the last window. `active`: otherwise. `unknown`: before the second read,
        or where members are unknown.
        """
        if not self.members_known:
            return "unknown"
        unread = any(part.lag and part.time_lag_ms != 0 for part in self.known_partitions)
        if not self.description.members and not any(_has_moved(part) for part in self.known_partitions):
            return "stopped" if unread else "empty"
        if unread or any(part.consumed_per_s or part.produced_per_s for part in self.known_partitions):
            return "active"
        return "idle" if all(part.consumed_per_s is not None for part in self.known_partitions) else "unknown"


def _has_moved(part: PartitionLag) -> bool:
    trend = part.trend
    return trend is not None and trend.moved_ms is not None and trend.moved_ms >= trend.base.at_ms


@dataclass(frozen=True, slots=True)
class LagReport:
    """The evaluation of a snapshot.

    Attributes:
        taken_ms: The time of the snapshot.
        groups: The groups by name, sorted.
        errors: Why a group could not be read, by name.
        bounds: The offsets of each partition whose offsets are known.
        failures: What else could not be read.
    """

    taken_ms: int
    groups: Mapping[str, GroupLag] = field(default_factory=dict)
    errors: Mapping[str, KafkaError] = field(default_factory=dict)
    bounds: Mapping[TopicPartition, PartitionBounds] = field(default_factory=dict)
    failures: tuple[ReadFailure, ...] = ()


def evaluate(snapshot: ClusterSnapshot, before: LagReport | None = None, window_ms: int = WINDOW_MS) -> LagReport:
    """Compute lag and status from a snapshot.

    Args:
        snapshot: The read.
        before: The report of the read before it; None: rates, `STALL` and `WARN` need another read.
        window_ms: How long there may be no progress, in milliseconds.
    """
    bounds = {tp: found for tp, found in snapshot.bounds.items() if isinstance(found, PartitionBounds)}
    context = _Context(snapshot, before, window_ms)
    groups = {name: context.group(reading) for name, reading in sorted(snapshot.groups.items())}
    return LagReport(snapshot.taken_ms, groups, snapshot.errors, bounds, snapshot.failures)


@dataclass(frozen=True, slots=True)
class _Context:
    """A snapshot of a cluster, with the report of the one before, while it is evaluated."""

    snapshot: ClusterSnapshot
    before: LagReport | None
    window_ms: int

    def group(self, reading: GroupReading) -> GroupLag:
        """Compute the lag and status of one group."""
        group = reading.description
        owners: dict[TopicPartition, list[MemberDescription]] = {}
        lacked = self._lacked_partitions(reading)
        for member in group.members:
            for tp in member.assignment or ():
                if tp not in lacked:
                    owners.setdefault(tp, []).append(member)
        earlier = None if self.before is None else self.before.groups.get(group.group_id)
        known = {} if earlier is None else {part.partition: part for part in earlier.partitions}
        left = abandoned_topics(reading, {tp.topic for tp in reading.committed})
        partitions = tuple(
            self._partition(
                _Place(reading, tp, _only(owners.get(tp, ())), tp in owners, tp.topic in left), known.get(tp)
            )
            for tp in sorted({*reading.committed, *reading.errors, *owners})
        )
        return GroupLag(group, reading.members_known, partitions, reading.batch)

    def _lacked_partitions(self, reading: GroupReading) -> set[TopicPartition]:
        """Return the partitions that tasks of a streams group have and their topics lack.

        A task reads the partitions of its number in several topics, and some have fewer than there are tasks.
        """
        if reading.description.type.lower() != "streams":
            return set()
        bounds = self.snapshot.bounds
        assigned = {tp for member in reading.description.members for tp in member.assignment or ()}
        missing = {
            tp
            for tp in assigned.difference(reading.committed, reading.errors)
            if isinstance(found := bounds.get(tp), KafkaError) and found.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        topics = {tp.topic for tp in missing}
        there = {tp.topic for tp, found in bounds.items() if tp.topic in topics and isinstance(found, PartitionBounds)}
        return {tp for tp in missing if tp.topic in there}

    def _partition(self, place: _Place, earlier: PartitionLag | None) -> PartitionLag:
        tp, offset = place.partition, place.reading.committed.get(place.partition)
        found = place.reading.errors.get(tp) or self.snapshot.bounds.get(tp)
        committed, metadata = (None, "") if offset is None else (offset.offset, offset.metadata)
        if not isinstance(found, PartitionBounds):
            return _unavailable(place, offset, found)
        if committed is None:
            return PartitionLag(
                tp, None, "", place.owner, found.log_start, found.log_end, is_time_lag_exact=False, cause=NO_OFFSET
            )
        counted, position = place.reading.lags.get(tp), max(committed, found.log_start)
        unread = max(0, found.log_end - position)
        oldest_ms, is_exact = self._oldest_ms(tp, position, found, earlier)
        if counted == 0:
            oldest_ms, is_exact = NO_RECORD, True
        elif counted is not None and counted < unread:
            is_exact = False  # the record at the start offset may be acknowledged
        time_lag_ms = None if oldest_ms is None else max(0, self.snapshot.taken_ms - oldest_ms)
        if oldest_ms == NO_RECORD:
            oldest_ms, time_lag_ms = None, 0
        if time_lag_ms == 0 and oldest_ms is None:
            unread = 0
        elif counted is not None:
            unread = counted
        now = Anchor(self.snapshot.taken_ms, committed, found.log_end)
        last = None if earlier is None else earlier.trend
        trend = Trend.started(now, unread) if last is None else last.with_read(now, unread, self.window_ms)
        status, cause = self._status(place, found, committed, trend)
        return PartitionLag(
            tp, committed, metadata, place.owner, found.log_start, found.log_end,
            oldest_ms, time_lag_ms, is_exact, status, cause, None, trend, counted,
        )  # fmt: skip

    def _oldest_ms(
        self, tp: TopicPartition, offset: int, bounds: PartitionBounds, earlier: PartitionLag | None
    ) -> tuple[int | None, bool]:
        """Return the time of the oldest record at or after an offset, and whether it is the record's own.

        Otherwise the record was appended after an older record, or after the end of an earlier read.
        """
        if offset >= bounds.log_end:
            return NO_RECORD, True
        read = self.snapshot.oldest.get((tp, offset))
        if read is not None:
            return (None, False) if read == UNDATED else (read, True)
        times = []
        if earlier is not None and earlier.oldest_ms is not None and (earlier.committed or 0) <= offset:
            times.append(earlier.oldest_ms)
        if self.before is not None and (then := self.before.bounds.get(tp)) and then.log_end <= offset:
            times.append(self.before.taken_ms)
        return max(times, default=None), False

    def _status(
        self, place: _Place, bounds: PartitionBounds, committed: int, trend: Trend
    ) -> tuple[LagStatus, str | None]:
        """Return status and cause of a partition with a committed offset; the first that applies."""
        group, is_stuck = place.reading.description, trend.is_stuck(self.window_ms)
        if place.is_abandoned:
            return LagStatus.OK, ABANDONED
        if committed > bounds.log_end:
            return LagStatus.ERR, PAST_END
        if committed < bounds.log_start:
            return LagStatus.ERR, BEFORE_START
        if trend.stuck_since_ms is None:
            return LagStatus.OK, None
        if committed == bounds.last_stable < bounds.log_end:
            return (LagStatus.WARN if trend.stuck_ms >= self.window_ms else LagStatus.OK), OPEN_TRANSACTION
        if place.reading.members_known and not group.members:
            # A consumer that assigns itself partitions commits without being a member.
            moves = trend.moved_ms is not None and trend.last.at_ms - trend.moved_ms < self.window_ms
            if not moves and (group.protocol_type or is_stuck):
                return LagStatus.STOP, NO_MEMBERS
        if is_stuck:
            missing = place.reading.members_known and group.members and not place.is_assigned
            return LagStatus.STALL, UNASSIGNED if missing else NO_PROGRESS
        if trend.is_falling_behind():
            return LagStatus.WARN, FALLING_BEHIND
        return LagStatus.OK, None


@dataclass(frozen=True, slots=True)
class _Place:
    """One partition of a group, while its lag is evaluated."""

    reading: GroupReading
    partition: TopicPartition
    owner: MemberDescription | None
    is_assigned: bool
    is_abandoned: bool


def _only(members: Sequence[MemberDescription]) -> MemberDescription | None:
    """Return the member of a partition; None: there is none, or there are several, as in share groups."""
    return members[0] if len(members) == 1 else None


def _unavailable(place: _Place, offset: OffsetAndMetadata | None, found: KafkaError | None) -> PartitionLag:
    gone = isinstance(found, KafkaError) and found.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return PartitionLag(
        place.partition,
        None if offset is None else offset.offset,
        "" if offset is None else offset.metadata,
        place.owner,
        is_time_lag_exact=False,
        status=LagStatus.ERR,
        cause=TOPIC_GONE if gone else UNAVAILABLE,
        error=str(found) if isinstance(found, KafkaError) else "the partition was not read",
    )


def abandoned_topics(reading: GroupReading, topics: set[str]) -> set[str]:
    """Return those of the topics that no member of the group subscribes to.

    Empty when that can't be known: without members, and for members whose protocol is not a consumer's. A coordinator
    leaves subscriptions out while a classic group rebalances.
    """
    members = reading.description.members
    if not reading.members_known or not members or any(member.subscription is None for member in members):
        return set()
    wanted = {topic for member in members for topic in member.subscription or ()}
    wanted |= {tp.topic for member in members for tp in (*(member.assignment or ()), *(member.target_assignment or ()))}
    patterns = {member.subscription_regex for member in members if member.subscription_regex}
    if not wanted and not patterns:
        return set()
    try:
        for pattern in patterns:
            wanted.update(matching_names(pattern, topics))
    except InvalidInputError:  # a pattern that this process can't match: a broker could
        return set()
    return topics - wanted
