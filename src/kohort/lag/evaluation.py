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

A read of 500 groups of 50 partitions makes 75,000 values. Those of a partition are not frozen, because to make a frozen
one takes five times as long. Nothing changes them nevertheless.
"""

from __future__ import annotations

from collections.abc import Mapping
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
TRENDS_PER_PARTITION = 8
"""The offsets of a partition at which groups share what is remembered."""
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


NO_RATES = (None, None)


@dataclass(slots=True)
class OffsetSample:
    """A partition's committed offset and log end at one time. Rates follow from two of them. Never changed once made.

    In a share group `committed` counts the acknowledged records after the start offset too.
    """

    at_ms: int
    committed: int
    log_end: int


@dataclass(slots=True)
class Trend:
    """The recent history of one partition's lag in a group, which each evaluation passes to the next.

    An object is never changed once made.

    Reads are divided into windows: the first read `window_ms` or more after a window began is the first of the next.

    Attributes:
        last: The last read.
        window: The first read of the present window.
        before: The first read of the window before; None in the first window.
        moved_ms: The time of the last read that saw the committed offset move; None: it never did.
        stuck_since_ms: The time of the first read that saw unread records at the present committed offset; None:
            nothing is unread.
        longest_pause_ms: The longest time without progress that ended with progress; older ones count less.
        low: The lowest lag of the present window.
        low_before: The lowest lag of the window before.
        rises: The number of consecutive windows whose lowest lag was above that of the window before.
    """

    last: OffsetSample
    window: OffsetSample
    before: OffsetSample | None
    moved_ms: int | None
    stuck_since_ms: int | None
    longest_pause_ms: int
    low: int
    low_before: int | None
    rises: int

    @classmethod
    def started(cls, now: OffsetSample, unread: int) -> Trend:
        """Return the trend of a partition that is read for the first time."""
        return cls(now, now, None, None, now.at_ms if unread else None, 0, unread, None, 0)

    def after_read(self, now: OffsetSample, unread: int, window_ms: int) -> Trend:
        """Return the trend after one more read.

        If the committed offset, the log's end or the clock went back, begin a new trend.
        """
        last, at_ms = self.last, now.at_ms
        if now.committed < last.committed or now.log_end < last.log_end or at_ms < last.at_ms:
            return Trend.started(now, unread)
        moved_ms, since_ms, longest_ms = self.moved_ms, self.stuck_since_ms, self.longest_pause_ms
        if now.committed != last.committed:
            pause_ms = 0 if since_ms is None else min(at_ms - since_ms, PAUSE_WINDOWS_MAX * window_ms)
            moved_ms, since_ms, longest_ms = at_ms, at_ms, max(pause_ms, longest_ms * 3 // 4)
        elif since_ms is None:
            since_ms = at_ms
        if not unread:
            since_ms = None
        low = min(self.low, unread)
        if at_ms - self.window.at_ms < window_ms:
            return Trend(
                now, self.window, self.before, moved_ms, since_ms, longest_ms, low, self.low_before, self.rises
            )
        rises = self.rises + 1 if self.low_before is not None and low > self.low_before else 0
        return Trend(now, now, self.window, moved_ms, since_ms, longest_ms, unread, low, rises)

    @property
    def base(self) -> OffsetSample:
        """The earlier read from which rates are computed: of one to two windows ago, or the first read."""
        return self.before or self.window

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """How far the committed offset and the log's end moved per second since `base`; None in the first read."""
        last, base = self.last, self.before or self.window
        span_ms = last.at_ms - base.at_ms
        if span_ms <= 0:
            return NO_RATES
        return (last.committed - base.committed) * 1000 / span_ms, (last.log_end - base.log_end) * 1000 / span_ms

    @property
    def stuck_ms(self) -> int:
        """The time in ms for which records have been unread without any progress of the committed offset."""
        return 0 if self.stuck_since_ms is None else self.last.at_ms - self.stuck_since_ms

    def is_stuck(self, window_ms: int) -> bool:
        """Return whether records are unread and the committed offset has not moved for too long.

        That is a window, or twice the longest pause of this group if that is longer.
        """
        return self.stuck_since_ms is not None and self.stuck_ms >= max(window_ms, 2 * self.longest_pause_ms)

    def is_falling_behind(self) -> bool:
        """Return whether the lowest lag rose in several windows in a row, and the group is over a window behind.

        The second condition keeps a consumer `OK` that is never a window behind, however its small lag varies.
        """
        return self.rises >= RISES_MIN and self.before is not None and self.last.committed < self.before.log_end


@dataclass(slots=True)
class PartitionLag:
    """A group's committed offset, lag and status in one partition. Never changed once made.

    Attributes:
        committed: The committed offset; None: none is committed.
        metadata: The metadata text of the commit.
        owner: The member that owns the partition; None: no member does, several members of a share group do, or members
            are unknown.
        log_start: The partition's first offset; None if it is unavailable.
        log_end: The offset of the next record; read after `committed`, so that lag is never understated.
        oldest_ms: The timestamp of the oldest unread record, or a time before it (then `is_time_lag_exact` is false).
        time_lag_ms: The age of the oldest unread record; 0 if there is none, None if unknown.
        is_time_lag_exact: Whether that is the record's own timestamp. Else the time lag is at most so long.
        status: See `LagStatus`.
        cause: One of `CAUSES`; None if all is well.
        error: The error for which the partition's offsets are unavailable; None: they are available.
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
        """The number of offsets still to be read; None: none is committed, or the log's offsets are unknown.

        These are the log's end less the committed offset, or less the log's start if that is larger. In a share group
        the coordinator counts them.
        """
        if self.committed is None or self.log_end is None or self.log_start is None:
            return None
        if self.counted_lag is not None:
            return self.counted_lag
        return max(0, self.log_end - max(self.committed, self.log_start))

    @property
    def position(self) -> str | None:
        """`past end` or `before start`: a consumer can't continue at the committed offset. None: it can, or is unknown.

        Such a consumer resets its position by its auto.offset.reset.
        """
        if self.committed is None or self.log_end is None or self.log_start is None:
            return None
        if self.committed > self.log_end:
            return PAST_END
        return BEFORE_START if self.committed < self.log_start else None

    @property
    def lost_offsets(self) -> int | None:
        """The number of offsets that retention deleted before the group read them; None: not `before start`."""
        if self.committed is None or self.log_start is None or self.position != BEFORE_START:
            return None
        return self.log_start - self.committed

    @property
    def consumed_per_s(self) -> float | None:
        """By how much the committed offset moved per second, over one to two windows; None in the first read."""
        return None if self.trend is None else self.trend.rates[0]

    @property
    def produced_per_s(self) -> float | None:
        """By how much the log's end moved per second, over one to two windows; None in the first read."""
        return None if self.trend is None else self.trend.rates[1]

    @property
    def catch_up_s(self) -> float | None:
        """The time in s until nothing is unread at the present rates; None: unknown, or never."""
        return _catch_up_s(self.lag, *(NO_RATES if self.trend is None else self.trend.rates))


def _catch_up_s(lag: int | None, consumed: float | None, produced: float | None) -> float | None:
    if lag == 0:
        return 0.0
    if lag is None or consumed is None or produced is None or consumed <= produced:
        return None
    return lag / (consumed - produced)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A consumer group with the lag of its partitions.

    Sums and maxima leave out abandoned topics, to which no member subscribes: no member can reduce their lag, and
    nobody wants it reduced. `batch` is the last batch that a Spark query finished, if this is a Spark checkpoint; None
    for groups.
    """

    description: GroupDescription
    members_known: bool = True
    partitions: tuple[PartitionLag, ...] = ()
    batch: int | None = None
    known_partitions: list[PartitionLag] = field(init=False, repr=False, compare=False)
    """The partitions with a known lag that the group still reads."""
    known_lags: list[int] = field(init=False, repr=False, compare=False)
    """The lag of each of them."""

    def __post_init__(self) -> None:
        known, lags = [], []
        for part in self.partitions:
            lag = part.lag
            if lag is not None and part.cause != ABANDONED:
                known.append(part)
                lags.append(lag)
        object.__setattr__(self, "known_partitions", known)
        object.__setattr__(self, "known_lags", lags)

    @property
    def sum_lag(self) -> int:
        """The lag of the group in all partitions together, in offsets."""
        return sum(self.known_lags)

    @property
    def max_lag(self) -> int:
        """The largest lag of the group in a partition, in offsets."""
        return max(self.known_lags, default=0)

    @property
    def max_time_lag_ms(self) -> int | None:
        """The largest time lag of the group in a partition, in ms; None: none is known."""
        return max((part.time_lag_ms for part in self.known_partitions if part.time_lag_ms is not None), default=None)

    @property
    def skew(self) -> float | None:
        """The largest lag in a partition, divided by the mean of all: 1 is even. None: nothing is unread."""
        total = self.sum_lag
        return self.max_lag * len(self.known_lags) / total if total else None

    @property
    def rates(self) -> list[tuple[float | None, float | None]]:
        """The offsets committed and written per second, for each partition in `known_partitions`; None: unknown."""
        return [NO_RATES if part.trend is None else part.trend.rates for part in self.known_partitions]

    @property
    def catch_up_s(self) -> float | None:
        """The time in s until nothing is unread in any partition at the present rates; None: unknown, or never."""
        times = [_catch_up_s(lag, *rates) for lag, rates in zip(self.known_lags, self.rates, strict=True)]
        known = [time_s for time_s in times if time_s is not None]
        return max(known, default=None) if len(known) == len(times) else None

    @property
    def hot(self) -> list[PartitionLag]:
        """The partitions that get over `HOT_FACTOR` times as many records as the mean of the group's other partitions.

        More members would not help, since each partition is read by one. Empty for share groups.
        """
        rates = [written for _, written in self.rates]
        known = [rate for rate in rates if rate is not None]
        if len(known) < 2 or self.description.type.lower() == "share":
            return []
        total, others = sum(known), len(known) - 1
        return [
            part
            for part, rate in zip(self.known_partitions, rates, strict=True)
            if rate is not None and rate > HOT_FACTOR * (total - rate) / others
        ]

    @property
    def status(self) -> LagStatus:
        """The group's status: the worst status of its partitions."""
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
    """The lag and status of all groups in one read of a cluster.

    Attributes:
        taken_ms: The time of the read, in milliseconds since 1970.
        groups: The groups by name, sorted.
        errors: Why a group could not be read, by name.
        bounds: The start and end offsets of each partition for which they are known.
        failures: The other parts of the read that failed.
    """

    taken_ms: int
    groups: Mapping[str, GroupLag] = field(default_factory=dict)
    errors: Mapping[str, KafkaError] = field(default_factory=dict)
    bounds: Mapping[TopicPartition, PartitionBounds] = field(default_factory=dict)
    failures: tuple[ReadFailure, ...] = ()


def evaluate(snapshot: ClusterSnapshot, before: LagReport | None = None, window_ms: int = WINDOW_MS) -> LagReport:
    """Compute the lag, status and cause of all groups' partitions from one read of the cluster.

    Args:
        snapshot: The read.
        before: The report of the read before it; None: rates, `STALL` and `WARN` need another read.
        window_ms: How long there may be no progress, in milliseconds.
    """
    bounds = {tp: found for tp, found in snapshot.bounds.items() if isinstance(found, PartitionBounds)}
    context = _Context(snapshot, before, window_ms)
    most = context.trends_max
    groups = {name: _GroupEvaluation(context, group, most).lag() for name, group in sorted(snapshot.groups.items())}
    return LagReport(snapshot.taken_ms, groups, snapshot.errors, bounds, snapshot.failures)


@dataclass(frozen=True, slots=True)
class _Context:
    """The inputs of one evaluation that all groups share."""

    snapshot: ClusterSnapshot
    before: LagReport | None
    window_ms: int
    trends: dict[tuple[TopicPartition, int], tuple[OffsetSample, Trend | None, int, Trend]] = field(
        default_factory=dict
    )
    """The last trend of a group at an offset of a partition: its offset sample, the trend before it, what is unread."""

    @property
    def trends_max(self) -> int:
        """The most trends to keep for groups at one offset to share; 0 if few groups read each partition."""
        places = sum(len(reading.committed) for reading in self.snapshot.groups.values())
        return TRENDS_PER_PARTITION * len(self.snapshot.bounds) if places > 2 * len(self.snapshot.bounds) else 0

    def missing_task_partitions(self, reading: GroupReading) -> set[TopicPartition]:
        """Return the partitions that a streams group's tasks would read but that their topics do not have.

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


class _GroupEvaluation:
    """The computation of lag and status for one group."""

    def __init__(self, context: _Context, reading: GroupReading, trends_max: int) -> None:
        self.reading, self.group = reading, reading.description
        self.is_share = self.group.type.lower() == "share"
        self.snapshot, self.before, self.window_ms = context.snapshot, context.before, context.window_ms
        self.trends, self.trends_max = context.trends, trends_max
        self.owners: dict[TopicPartition, list[MemberDescription]] = {}
        lacked = context.missing_task_partitions(reading)
        for member in self.group.members:
            for tp in member.assignment or ():
                if tp not in lacked:
                    self.owners.setdefault(tp, []).append(member)
        self.abandoned = abandoned_topics(reading)

    def lag(self) -> GroupLag:
        """Compute the lag and the status of all partitions of the group."""
        reading, before = self.reading, self.before
        earlier = None if before is None else before.groups.get(self.group.group_id)
        known = {} if earlier is None else {part.partition: part for part in earlier.partitions}
        found = sorted({*reading.committed, *reading.errors, *self.owners})
        partitions = tuple([self._partition(tp, known.get(tp)) for tp in found])
        return GroupLag(self.group, reading.members_known, partitions, reading.batch)

    def _partition(self, tp: TopicPartition, earlier: PartitionLag | None) -> PartitionLag:
        reading = self.reading
        owners, offset = self.owners.get(tp, ()), reading.committed.get(tp)
        owner = owners[0] if len(owners) == 1 else None  # several members of a share group may have a partition
        found = reading.errors.get(tp) or self.snapshot.bounds.get(tp)
        if not isinstance(found, PartitionBounds):
            return _unavailable(tp, owner, offset, found)
        log_start, log_end = found.log_start, found.log_end
        if offset is None:
            return PartitionLag(tp, None, "", owner, log_start, log_end, is_time_lag_exact=False, cause=NO_OFFSET)
        committed, counted, taken_ms = offset.offset, reading.lags.get(tp), self.snapshot.taken_ms
        position = max(log_start, committed)
        unread = log_end - position if log_end > position else 0
        oldest_ms: int | None = None
        time_lag_ms: int | None = 0
        is_exact = True
        if unread and counted != 0:
            oldest_ms, is_exact = self._oldest_ms(tp, position, earlier)
            if counted is not None and counted < unread:
                is_exact = False  # the record at the start offset may be acknowledged
            if oldest_ms == NO_RECORD:
                oldest_ms = None
            else:
                time_lag_ms = None if oldest_ms is None else max(0, taken_ms - oldest_ms)
                unread = unread if counted is None else counted
        if time_lag_ms == 0 and oldest_ms is None:
            unread = 0
        done = self._acknowledged(committed, counted, log_end, earlier) if self.is_share else committed
        trend = self._trend(tp, done, log_end, unread, None if earlier is None else earlier.trend)
        status, cause = self._status(tp, found, committed, trend)
        return PartitionLag(
            tp, committed, offset.metadata, owner, log_start, log_end,
            oldest_ms, time_lag_ms, is_exact, status, cause, None, trend, counted,
        )  # fmt: skip

    def _trend(self, tp: TopicPartition, done: int, log_end: int, unread: int, last: Trend | None) -> Trend:
        """Return the trend of a partition including this read.

        Groups at the same offset of a partition share one `OffsetSample` object, and one `Trend` object if they also
        came there in the same reads. So memory stays small when many groups are stopped or have read everything.
        """
        known = self.trends.get((tp, done))
        if known is not None and known[1] is last and known[2] == unread:
            return known[3]
        now = OffsetSample(self.snapshot.taken_ms, done, log_end) if known is None else known[0]
        trend = Trend.started(now, unread) if last is None else last.after_read(now, unread, self.window_ms)
        if len(self.trends) < self.trends_max:
            self.trends[tp, done] = now, last, unread, trend
        return trend

    @staticmethod
    def _acknowledged(start: int, counted: int | None, log_end: int, earlier: PartitionLag | None) -> int:
        """Return a share group's progress in a partition: its start offset plus the records acknowledged after it.

        One record that is read again and again holds the start offset, while members acknowledge those after it. The
        coordinator counted the lag after the read before this one had its end of the log. That end less the lag is
        what is acknowledged at least, so this never shows progress that there was not.
        """
        last = None if earlier is None else earlier.trend
        if last is None or earlier is None or start < (earlier.committed or 0) or log_end < last.last.log_end:
            return start if counted is None else max(start, log_end - counted)
        known = max(start, last.last.committed)
        return known if counted is None else max(known, last.last.log_end - counted)

    def _oldest_ms(self, tp: TopicPartition, offset: int, earlier: PartitionLag | None) -> tuple[int | None, bool]:
        """Return the timestamp of the oldest record at or after an offset, and True; or a time before it, and False.

        In the latter case the record was not fetched. The time is that of an older record or of an earlier read. None:
        it is unknown, or the record has no timestamp. `NO_RECORD`, and True: there is no such record.
        """
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
        self, tp: TopicPartition, bounds: PartitionBounds, committed: int, trend: Trend
    ) -> tuple[LagStatus, str | None]:
        """Return the status and the cause of a partition with a committed offset: of the first check that applies."""
        if tp.topic in self.abandoned:
            return LagStatus.OK, ABANDONED
        if committed > bounds.log_end:
            return LagStatus.ERR, PAST_END
        if committed < bounds.log_start:
            return LagStatus.ERR, BEFORE_START
        if trend.stuck_since_ms is None:
            return LagStatus.OK, None
        if committed == bounds.last_stable < bounds.log_end:
            return (LagStatus.WARN if trend.stuck_ms >= self.window_ms else LagStatus.OK), OPEN_TRANSACTION
        group, is_stuck = self.group, trend.is_stuck(self.window_ms)
        if self.reading.members_known and not group.members:
            # A consumer that assigns itself partitions commits without being a member.
            moves = trend.moved_ms is not None and trend.last.at_ms - trend.moved_ms < self.window_ms
            if not moves and (group.protocol_type or is_stuck):
                return LagStatus.STOP, NO_MEMBERS
        if is_stuck:
            missing = self.reading.members_known and group.members and tp not in self.owners
            return LagStatus.STALL, UNASSIGNED if missing else NO_PROGRESS
        if trend.is_falling_behind():
            return LagStatus.WARN, FALLING_BEHIND
        return LagStatus.OK, None


def _unavailable(
    tp: TopicPartition, owner: MemberDescription | None, offset: OffsetAndMetadata | None, found: KafkaError | None
) -> PartitionLag:
    gone = isinstance(found, KafkaError) and found.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return PartitionLag(
        tp,
        None if offset is None else offset.offset,
        "" if offset is None else offset.metadata,
        owner,
        is_time_lag_exact=False,
        status=LagStatus.ERR,
        cause=TOPIC_GONE if gone else UNAVAILABLE,
        error=str(found) if isinstance(found, KafkaError) else "the partition was not read",
    )


def abandoned_topics(reading: GroupReading) -> set[str]:
    """Return the topics with committed offsets that no member of the group subscribes to.

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
    topics = {tp.topic for tp in reading.committed}
    try:
        for pattern in patterns:
            wanted.update(matching_names(pattern, topics))
    except InvalidInputError:  # a pattern that this process can't match: a broker could
        return set()
    return topics - wanted
