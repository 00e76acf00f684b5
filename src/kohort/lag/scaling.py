"""How many members a group needs to keep its time lag under a target. Pure: a function of reports, with its memory.

The number follows from rates, not from lag: what is written per second, and what a busy member reads per second. So it
rises before lag does, and does not fall again because lag is gone. Lag counts as far as members can reduce it: a
partition behind an open transaction, or whose offset does not move, asks for no member. A partition is read by one
member, so it asks for one at most, however much is written to it.

A change costs a rebalance, so there is a band without a change. The number goes up when members would be busy for
more than `BUSY_UP` of their time. They are busy for `BUSY_WANTED` at the new one. The number goes down when fewer
would be busy for less than `BUSY_DOWN`, for `DOWN_AFTER_MS`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.lag.evaluation import NO_PROGRESS, OPEN_TRANSACTION, UNAVAILABLE, GroupLag, PartitionLag

BUSY_UP, BUSY_WANTED, BUSY_DOWN = 0.9, 0.75, 0.6
"""The part of their time that members work: above the first there is no reserve, the second leaves some for peaks, and
the third is so far below that the number does not rise again at once."""
MEASURE_MS = 20_000
"""The shortest time over which rates are measured: several of the usual commits, which come every 5 s."""
MEASURE_MAX_MS = 60_000
"""The longest one: its older half is left behind then, so that it follows a change."""
SETTLE_MS = 30_000
"""The shortest pause after a change of members, while the new ones begin to read."""
START_MS = 180_000
"""How long wanted members may take to join, before others are wanted."""
DOWN_AFTER_MS = 300_000
"""How long fewer members must have been enough: as long as the Horizontal Pod Autoscaler's stabilization window
unless that is set."""
DRAIN_MIN_MS = 120_000
"""A backlog above the target is to be read within this time, or twice the target if that is longer."""
BUSY_LAG_MS = 10_000
"""A member with an older record unread is busy: its commits alone make lags of 5 s."""
REBALANCES_LOOKED_AT = 5
"""The last rebalances whose downtime is the usual one."""
RELIEF = 1.5
"""A late partition gets a member of its own if that reads its backlog by this much faster."""
NAMED_PARTITIONS = 3
MEASURING = "rates are being measured"


_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 24 * 3_600_000}
MAX_LAG_MAX_MS = 7 * 24 * 3_600_000
"""The longest target: a week."""


def parse_duration_ms(text: str, longest_ms: int = MAX_LAG_MAX_MS) -> int:
    """Parse a duration such as `500ms`, `30s`, `5m`, `1h` or `7d`, and return it in milliseconds.

    Raises:
        InvalidInputError: The text is no such duration, or the duration is zero or longer than `longest_ms`.
    """
    found = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", text.strip())
    length_ms = int(found[1]) * _UNITS_MS[found[2]] if found else 0
    if not 0 < length_ms <= longest_ms:
        raise InvalidInputError(f"give a number with ms, s, m, h or d, as in 30s, up to {longest_ms // 3_600_000}h")
    return length_ms


@dataclass(frozen=True, slots=True)
class ScalingTarget:
    """The target by which a group is scaled: its largest time lag, and bounds for its number of members.

    Raises:
        InvalidInputError: The bounds contradict each other.

    Attributes:
        max_lag_ms: The time lag that is not to be exceeded.
        min_members: The fewest members; 0: none are needed while nothing is unread and nothing is written.
        max_members: The most members; None: as many as there are partitions.
    """

    max_lag_ms: int
    min_members: int = 1
    max_members: int | None = None

    def __post_init__(self) -> None:
        if self.min_members < 0 or (self.max_members is not None and self.max_members < max(1, self.min_members)):
            raise InvalidInputError("the most members must be at least 1, and at least as many as the fewest")


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The number of members that a group should have, with the reason and the measured rates.

    Attributes:
        group: The group's name.
        members: The number of members that the group has.
        wanted: The number of members that it should have.
        needed: The number that would be enough for the rates measured now; None: nothing could be measured yet.
        why: The reason in a sentence.
        written_per_s: The records per second that are written to its partitions; None: not measured yet.
        read_per_s: The records per second that the group reads; None: not measured yet.
        member_per_s: The records per second that a busy member reads; None: not known yet.
        time_lag_ms: The largest time lag of partitions whose lag members can reduce; None: unknown.
        downtime_ms: The usual downtime of a rebalance; None: unknown.
        blocked: The partitions whose lag no member can reduce.
    """

    group: str
    members: int
    wanted: int
    needed: int | None
    why: str
    written_per_s: float | None = None
    read_per_s: float | None = None
    member_per_s: float | None = None
    time_lag_ms: int | None = None
    downtime_ms: int | None = None
    blocked: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ScalingState:
    """The measurements and the last decision that `decide_member_count` needs at the next read.

    Attributes:
        wanted: The number of members in the last decision.
        members: The ids of the members at the last decision.
        changed_ms: When the wanted number or the members changed last.
        since_ms: The time from which rates are measured.
        offsets: The committed offset and the log's end of each partition at that time.
        later_ms: The time from which the next measurement runs; it replaces `since_ms` when that is long ago.
        later_offsets: The committed offset and the log's end of each partition at `later_ms`.
        member_per_s: The records per second that a busy member reads, or the most that one was seen to read; None: not
            known yet.
        is_limit: Whether `member_per_s` was measured on a busy member, so that a member can't read more.
        loads: Time and demand (records per second) of each measurement of the last `DOWN_AFTER_MS`.
        busy: The ids of members that had old records unread at the last read. Only two such reads in a row count: a
            partition that gets stuck shows such records for a moment while its offset still moved.
    """

    wanted: int
    members: frozenset[str]
    changed_ms: int
    since_ms: int
    offsets: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    member_per_s: float | None = None
    loads: tuple[tuple[int, float], ...] = ()
    later_ms: int = 0
    later_offsets: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()
    is_limit: bool = False


def decide_member_count(
    group: GroupLag, now_ms: int, target: ScalingTarget, before: ScalingState | None = None
) -> tuple[ScalingDecision, ScalingState]:
    """Decide how many members a group should have; return the decision and the state for the next one.

    Args:
        group: The group at its last read.
        now_ms: The time of that read.
        target: The largest time lag, and the bounds of the number of members.
        before: The state that the last call returned; None: this is the first one.
    """
    return _Scaling(group, now_ms, target, before or _first_state(group, now_ms, target)).decide_member_count()


def unavailable_partitions(group: GroupLag) -> list[PartitionLag]:
    """Return the partitions whose offsets can't be read now, such as those without a leader."""
    return [part for part in group.partitions if part.cause == UNAVAILABLE]


def unknown_lag_reason(group: GroupLag) -> str:
    """Return why no lag of a group is known.

    The offsets of its partitions are unavailable, or it has committed none. Or its committed offsets are of topics that
    are gone, or to which no member subscribes.

    Args:
        group: A group without `known_partitions`.
    """
    if unavailable := unavailable_partitions(group):
        return f"the offsets of {_partition_list(unavailable)} are unavailable: {unavailable[0].error}"
    if any(part.committed is not None for part in group.partitions):
        return "its committed offsets are of topics that are gone, or that no member subscribes to"
    return "the group has no committed offsets yet"


def _first_state(group: GroupLag, now_ms: int, target: ScalingTarget) -> ScalingState:
    members = frozenset(member.member_id for member in group.description.members)
    wanted = min(max(len(members), target.min_members), _most(group, target))
    return ScalingState(wanted, members, now_ms - START_MS, now_ms, _offsets(group))


def _offsets(group: GroupLag) -> dict[TopicPartition, tuple[int, int]]:
    return {
        part.partition: (_read_to(part), part.log_end) for part in group.known_partitions if part.log_end is not None
    }


def _read_to(part: PartitionLag) -> int:
    """Return a partition's committed offset; for a share group, with the records acknowledged after it."""
    if part.counted_lag is not None and part.trend is not None:
        return part.trend.last.committed
    return part.committed or 0


def _most(group: GroupLag, target: ScalingTarget) -> int:
    """Return the most members to want: those of the target, and except in share groups one for each partition.

    Unavailable partitions count: an outage of their leader leaves their members without work only for a while.
    """
    most = target.max_members
    if group.description.type.lower() != "share":
        partitions = max(1, len(group.known_partitions) + len(unavailable_partitions(group)))
        most = partitions if most is None else min(most, partitions)
    return 1_000_000 if most is None else max(most, target.min_members)


@dataclass(frozen=True, slots=True)
class _Load:
    """The measured rates of one partition, in records per second.

    Attributes:
        part: The partition.
        written: The records written per second.
        read: The records read per second.
        is_blocked: Whether no member can reduce its lag.
        is_read_on: Whether the committed offset has moved recently, as usual for it. Otherwise more members would not
            help: `STALL` shows that only later.
    """

    part: PartitionLag
    written: float
    read: float
    is_blocked: bool
    is_read_on: bool


class _Scaling:
    """The computation of one scaling decision."""

    def __init__(self, group: GroupLag, now_ms: int, target: ScalingTarget, before: ScalingState) -> None:
        if before.offsets:  # a partition that gets its first commit counts from now on
            before = replace(before, offsets={**_offsets(group), **before.offsets})
        self.group, self.now_ms, self.target, self.before = group, now_ms, target, before
        self.members = frozenset(member.member_id for member in group.description.members)
        self.is_share = group.description.type.lower() == "share"
        self.most = _most(group, target)
        self.partitions = max(1, len(group.known_partitions))
        self.is_partly_unavailable = bool(unavailable_partitions(group))
        self.downtime_ms = median_downtime_ms(group)
        self.span_ms = now_ms - before.since_ms
        self.loads = [self._partition_load(part) for part in group.known_partitions] if self.span_ms > 0 else []
        self.free = [load for load in self.loads if not load.is_blocked]
        lags = [load.part.time_lag_ms for load in self.free if load.part.time_lag_ms is not None]
        self.time_lag_ms = max(lags, default=None)
        self.busy, self.is_limit = self._busy(), before.is_limit

    def decide_member_count(self) -> tuple[ScalingDecision, ScalingState]:
        """Return the decision and the next state."""
        before = self.before
        if self.members != before.members:
            moved = ScalingState(
                before.wanted,
                self.members,
                self.now_ms,
                self.now_ms,
                _offsets(self.group),
                before.member_per_s,
                is_limit=before.is_limit,
            )
            return self._hold(moved, "members have just joined or left: their rates are not known yet")
        if not before.offsets:  # nothing was committed when the measurement began
            return self._hold(replace(before, since_ms=self.now_ms, offsets=_offsets(self.group)), MEASURING)
        if self.span_ms < self._measure_ms():
            if not self.members and before.wanted == 0 and self.group.sum_lag:
                return self._changed(1, None, "records wait, and there are no members", before.loads)
            return self._hold(replace(before, busy=self.busy), MEASURING)
        member_per_s = self._member_per_s()
        if not member_per_s:
            return self._without_rates()
        most_per_s = math.inf if self.is_share else member_per_s  # a partition of others has one reader
        demand = sum(min(self._demand(load), most_per_s) for load in self.free)
        kept = tuple(load for load in before.loads if load[0] >= self.now_ms - DOWN_AFTER_MS)
        if self.is_partly_unavailable:  # demand is only partly known: `DOWN_AFTER_MS` begins again
            kept = ()
        return self._compared(member_per_s, demand, (*kept, (self.now_ms, demand)))

    def _partition_load(self, part: PartitionLag) -> _Load:
        read_to = _read_to(part)
        before, log_end = self.before.offsets.get(part.partition, (read_to, part.log_end or 0))
        per_s = 1000 / self.span_ms
        written, read = ((part.log_end or 0) - log_end) * per_s, (read_to - before) * per_s
        is_blocked = part.cause == OPEN_TRANSACTION or (part.cause == NO_PROGRESS and bool(self.members))
        trend = part.trend
        moves = trend is None or trend.stuck_ms <= max(BUSY_LAG_MS, trend.longest_pause_ms)
        return _Load(part, max(0.0, written), max(0.0, read), is_blocked, read > 0 and moves)

    def _measure_ms(self) -> int:
        """Return the time in ms over which rates are measured: several commits, even of a group that commits rarely.

        A member that reads its partitions in turn commits as often as the one that pauses least.
        """
        pauses_ms: dict[object, int] = {}
        for part in self.group.known_partitions:
            if part.trend is not None and part.trend.longest_pause_ms:
                reader = part.partition if part.owner is None else part.owner.member_id
                pause_ms = part.trend.longest_pause_ms
                pauses_ms[reader] = min(pause_ms, pauses_ms.get(reader, pause_ms))
        return max(MEASURE_MS, min(2 * max(pauses_ms.values(), default=0), MEASURE_MAX_MS))

    def _busy(self) -> frozenset[str]:
        """Return the ids of members that have old records unread although their committed offset has just moved."""
        busy_ms = min(BUSY_LAG_MS, self.target.max_lag_ms // 2)
        late = [
            part
            for part in self.group.known_partitions
            if (part.time_lag_ms or 0) > busy_ms and (part.trend is None or not part.trend.stuck_ms)
        ]
        if self.is_share:  # any member may read what is late
            return self.members if late else frozenset()
        return frozenset(part.owner.member_id for part in late if part.owner is not None)

    def _member_per_s(self) -> float | None:
        """Return the records per second that a member reads when it is busy; None: not known.

        If no member is busy, this is the most that one was seen to read: it may be able to read more.
        """
        rates: dict[str, float] = {}
        if self.is_share:
            each = sum(load.read for load in self.loads) / max(1, len(self.members))
            rates = dict.fromkeys(self.members, each)
        for load in self.loads:
            if load.part.owner is not None and not self.is_share:
                member = load.part.owner.member_id
                rates[member] = rates.get(member, 0.0) + load.read
        measured = [rates[member] for member in self.busy & self.before.busy if rates.get(member)]
        known = self.before.member_per_s
        if measured:
            self.is_limit = True
            return (known + median(measured)) / 2 if known is not None and self.before.is_limit else median(measured)
        return max([known or 0.0, *rates.values()]) or None

    def _demand(self, load: _Load) -> float:
        """Return the records per second to read from a partition: those written, and part of a late backlog."""
        lag = load.part.lag or 0
        is_late = self.time_lag_ms is not None and self.time_lag_ms > self.target.max_lag_ms
        if not is_late or not load.is_read_on:
            return load.written
        allowed = load.written * self.target.max_lag_ms / 2000
        return load.written + max(0.0, lag - allowed) * 1000 / self._drain_ms()

    def _drain_ms(self) -> int:
        return max(DRAIN_MIN_MS, 2 * self.target.max_lag_ms)

    def _share(self, members: int) -> float:
        """Return which part (0 to 1) of all partitions the busiest of `members` members would have."""
        if self.is_share:
            return 1 / members
        return math.ceil(self.partitions / members) / self.partitions

    def _fits(self, members: int, demand: float, member_per_s: float, busy: float) -> bool:
        return members > 0 and self._share(members) * demand <= busy * member_per_s

    def _enough(self, demand: float, member_per_s: float, busy: float) -> int:
        """Return the fewest members that can read the demand and are not busy for more than a part of their time.

        If no number is enough, return the most that can have work. Without demand and lag, return `min_members`.

        Args:
            demand: The records per second to read.
            member_per_s: The records per second that a busy member reads.
            busy: The largest part (0 to 1) of its time for which a member may be busy.
        """
        if not demand and not self.group.sum_lag:
            return self.target.min_members
        fewest = max(1, self.target.min_members)
        most = min(self.most, 10_000 if self.is_share else self.partitions)
        fitting = (number for number in range(fewest, most) if self._fits(number, demand, member_per_s, busy))
        return next(fitting, max(fewest, most))

    # The decision.

    def _without_rates(self) -> tuple[ScalingDecision, ScalingState]:
        """Decide while a member's rate is unknown: want a member if records wait without one; else keep the number.

        Without unread or new records the number goes to 0, if the target permits that.
        """
        if self.group.sum_lag and not self.members:
            wanted = max(1, self.before.wanted)
            return self._changed(wanted, None, "records wait, and there are no members", self.before.loads)
        if self.group.sum_lag:
            return self._hold(self._measured(None), "nothing is read, so that no number of members is known to help")
        is_quiet = not self.is_partly_unavailable and not any(load.written for load in self.loads)
        if self.target.min_members == 0 and is_quiet:
            return self._changed(0, 0, "nothing is unread, and nothing is written", self.before.loads)
        return self._hold(self._measured(None), "nothing has been read yet")

    def _compared(
        self, member_per_s: float, demand: float, loads: tuple[tuple[int, float], ...]
    ) -> tuple[ScalingDecision, ScalingState]:
        base, before = self.before.wanted, self.before
        relieves = self._relieves_late(member_per_s)
        needed = self.most if relieves else self._enough(demand, member_per_s, BUSY_WANTED)
        written = sum(load.written for load in self.loads)
        rates = f"{written:.0f} records are written and a member reads {member_per_s:.0f} per second"
        measured = self._measured(member_per_s, loads)
        waited_ms = self.now_ms - before.changed_ms
        if len(self.members) != base and waited_ms < START_MS:
            return self._hold(measured, f"{base} members are wanted, and {len(self.members)} are there", needed)
        if waited_ms < max(SETTLE_MS, 2 * (self.downtime_ms or 0)):
            return self._hold(measured, "the last change is still taking effect", needed)
        if needed > base and (relieves or not self._fits(base, demand, member_per_s, BUSY_UP)):
            if not self.is_limit and not relieves:
                why = "the members keep up, and none of them is busy: how much one could read is not known"
                return self._hold(measured, why, base)
            if self._is_read_soon(member_per_s, base):
                return self._hold(measured, "the backlog is read sooner than another rebalance would end", needed)
            why = f"{rates}; a backlog is read faster by a member of its own" if relieves else rates
            return self._changed(needed, needed, why, loads, member_per_s)
        lowest = max((self._enough(load, member_per_s, BUSY_DOWN) for _, load in loads), default=base)
        lasts = waited_ms >= DOWN_AFTER_MS and loads[0][0] <= self.now_ms - DOWN_AFTER_MS * 9 // 10
        if lowest < base and lasts:
            if (self.downtime_ms or 0) >= self.target.max_lag_ms and lowest > base // 2:
                still = _seconds(self.downtime_ms)
                why = f"fewer would do, but a rebalance has a downtime of {still}, as long as the target"
                return self._hold(measured, why, needed)
            wanted = max(self._enough(load, member_per_s, BUSY_WANTED) for _, load in loads)
            return self._changed(wanted, needed, f"{rates}, for {_seconds(DOWN_AFTER_MS)}", (), member_per_s)
        return self._hold(measured, self._why_enough(base, rates, demand, member_per_s), needed)

    def _relieves_late(self, member_per_s: float) -> bool:
        """Return whether a partition above the lag target would be read much faster by a member of its own.

        An example is the backlog behind a transaction that has ended, which the other partitions do not have.
        """
        is_late = self.time_lag_ms is not None and self.time_lag_ms > self.target.max_lag_ms
        if self.is_share or not is_late or self.most < self.partitions:
            return False
        written: dict[str, float] = {}
        for load in self.loads:
            if load.part.owner is not None:
                member = load.part.owner.member_id
                written[member] = written.get(member, 0.0) + load.written
        for load in self.free:
            part, owner = load.part, load.part.owner
            if owner is None or not load.is_read_on or (part.time_lag_ms or 0) <= self.target.max_lag_ms:
                continue
            spare, alone = member_per_s - written[owner.member_id], member_per_s - load.written
            if alone > 0 and alone >= RELIEF * spare and (part.lag or 0) * 1000 > max(0.0, spare) * self._drain_ms():
                return True
        return False

    def _is_read_soon(self, member_per_s: float, base: int) -> bool:
        """Return whether the present members will read the backlog in less time than a rebalance would take."""
        spare = len(self.members) * member_per_s * BUSY_UP - sum(load.written for load in self.free)
        lag = sum(load.part.lag or 0 for load in self.free)
        return len(self.members) >= base and spare > 0 and lag / spare * 1000 <= (self.downtime_ms or 0)

    def _why_enough(self, base: int, rates: str, demand: float, member_per_s: float) -> str:
        """Return the reason why the number of members stays: first what lag no member can reduce, else the rates."""
        blocked = [load.part for load in self.loads if load.is_blocked]
        if blocked:
            causes = sorted({part.cause or "" for part in blocked})
            return f"no member can reduce the lag of {_partition_list(blocked)}: {', '.join(causes)}"
        hot = [load.part for load in self.free if self._demand(load) > member_per_s]
        if hot and base > 1 and not self.is_share:
            parts = _partition_list(hot)
            return f"{parts} alone has more than a member reads, {member_per_s:.0f} per second: others can't help"
        if base >= self.most and not self._fits(base, demand, member_per_s, BUSY_UP):
            return f"{base} members are the most that can have work"
        return rates

    def _measured(self, member_per_s: float | None, loads: tuple[tuple[int, float], ...] | None = None) -> ScalingState:
        """Return the state after this measurement, which goes on. When it is long enough, its older half is dropped."""
        before, now, offsets = self.before, self.now_ms, _offsets(self.group)
        since_ms, since, later_ms, later = before.since_ms, before.offsets, before.later_ms, before.later_offsets
        if later_ms <= since_ms and self.span_ms >= MEASURE_MAX_MS // 2:
            later_ms, later = now, offsets
        elif self.span_ms >= MEASURE_MAX_MS and later_ms > since_ms:
            since_ms, since, later_ms, later = later_ms, later, now, offsets
        return ScalingState(
            before.wanted,
            self.members,
            before.changed_ms,
            since_ms,
            since,
            before.member_per_s if member_per_s is None else member_per_s,
            before.loads if loads is None else loads,
            later_ms,
            later,
            self.busy,
            self.is_limit,
        )

    def _hold(self, state: ScalingState, why: str, needed: int | None = None) -> tuple[ScalingDecision, ScalingState]:
        return self._decision(state.wanted, needed, why, state.member_per_s), state

    def _changed(
        self,
        wanted: int,
        needed: int | None,
        why: str,
        loads: tuple[tuple[int, float], ...],
        member_per_s: float | None = None,
    ) -> tuple[ScalingDecision, ScalingState]:
        wanted = max(self.target.min_members, min(wanted, self.most))
        state = ScalingState(
            wanted,
            self.members,
            self.now_ms,
            self.now_ms,
            _offsets(self.group),
            self.before.member_per_s if member_per_s is None else member_per_s,
            loads,
            is_limit=self.is_limit,
        )
        return self._decision(wanted, needed, why, state.member_per_s), state

    def _decision(self, wanted: int, needed: int | None, why: str, member_per_s: float | None) -> ScalingDecision:
        is_measured = bool(self.loads) and self.span_ms >= MEASURE_MS
        return ScalingDecision(
            self.group.description.group_id,
            len(self.members),
            wanted,
            needed,
            why,
            sum(load.written for load in self.loads) if is_measured else None,
            sum(load.read for load in self.loads) if is_measured else None,
            member_per_s,
            self.time_lag_ms,
            self.downtime_ms,
            tuple(load.part.partition for load in self.loads if load.is_blocked),
        )


def median_downtime_ms(group: GroupLag) -> int | None:
    """Return the median downtime of the last rebalances with one, as the coordinator recorded them; None: unknown."""
    recorded = [found.downtime_ms for found in group.description.rebalances or () if found.downtime_ms]
    return round(median(recorded[-REBALANCES_LOOKED_AT:])) if recorded else None


def _partition_list(parts: list[PartitionLag]) -> str:
    named = ", ".join(str(part.partition) for part in parts[:NAMED_PARTITIONS])
    return named if len(parts) <= NAMED_PARTITIONS else f"{named} and {len(parts) - NAMED_PARTITIONS} more"


def _seconds(milliseconds: int | None) -> str:
    return f"{(milliseconds or 0) / 1000:.0f} s"
