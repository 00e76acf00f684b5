"""A cluster as the dashboard knows it without a request: the last read, the history, and the JSON made of them."""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from kohort.client.admin.values import MemberDescription
from kohort.errors import KafkaError, NotFoundError, RetriableError
from kohort.ids import TopicPartition, by_topic
from kohort.io.closing import ClosedOnExit
from kohort.lag import CAUSES, GroupChange, GroupLag, LagReader, LagReport, PartitionLag
from kohort.lag.cluster_watch import ClusterWatch, ReadListeners, WatchState
from kohort.lag.evaluation import ABANDONED
from kohort.lag.history_file import (
    PARTITIONS_MAX,
    READS_KEPT,
    HistoryWriter,
    LagMinute,
    LagValues,
    TimedChange,
)
from kohort.lag.snapshot import failure_reason_of
from kohort.lag.timeline import past_rebalances
from kohort.settings.config import did_you_mean

RESTORED_INTERVALS = 2 * READS_KEPT
"""A page shows reads of an earlier process that are at most so many intervals old: older ones would squeeze the new
ones together."""
PAST_POINTS = 300
"""The most points of a picture of a longer time: about as many as it has pixels."""
CHANGES_KEPT = 100
"""The last changes of a group that its timeline shows."""
CHANGES_MAX = 20_000
"""The most changes of all groups; beyond them the oldest go first."""
SPARKLINE_READS = 60
"""The reads in a sparkline of the overview: 10 minutes at an interval of 10 s."""
PARTITIONS_SHOWN = 1_000
"""The most partitions on a group's page: those with the worst status and the largest lag."""
MEMBERS_SHOWN = 1_000
"""The most members on a group's page."""
UNREAD = "UNREAD"
"""The status of a group that the last read could not read."""

K = TypeVar("K")
View = dict[str, Any]


# -- The last reads


class _Rings(Generic[K]):
    """Ring buffers of numbers, one for each key, of which all are written at the same slot; float32 to save memory."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._rings: dict[K, array[float]] = {}

    def write_values(self, slot: int, values: Mapping[K, int], gone: Iterable[K]) -> None:
        """Write the values of one read at a slot, NaN for keys without a value; drop the rings of `gone` keys."""
        for key in gone:
            self._rings.pop(key, None)
        for key, ring in self._rings.items():
            ring[slot] = values.get(key, math.nan)
        for key, value in values.items():
            if key not in self._rings and len(self._rings) < self._keys_max:
                ring = self._rings[key] = array("f", (math.nan,)) * READS_KEPT
                ring[slot] = value

    def ring_keys(self) -> list[K]:
        """Return the keys that have a ring."""
        return list(self._rings)

    def values(self, key: K, slots: Iterable[int]) -> list[int | None]:
        """Return a key's values at these slots, None where it had none; an empty list if the key has no ring."""
        ring = self._rings.get(key)
        return [] if ring is None else [None if math.isnan(value := ring[slot]) else int(value) for slot in slots]


class LagHistory:
    """The lag of groups and partitions in the last reads, and the last changes of groups, in memory."""

    def __init__(self) -> None:
        self._reads = 0
        self._has_report = False
        self._times = array("d", (0.0,)) * READS_KEPT
        self._lag: _Rings[str] = _Rings(PARTITIONS_MAX)
        self._time_lag: _Rings[str] = _Rings(PARTITIONS_MAX)
        self._partitions: _Rings[tuple[str, TopicPartition]] = _Rings(PARTITIONS_MAX)
        self._changes: deque[TimedChange] = deque(maxlen=CHANGES_MAX)

    def add_report(
        self, report: LagReport, latest: Iterable[tuple[str, GroupChange]] = ()
    ) -> tuple[LagValues, list[TimedChange]]:
        """Add a read; return its lag values, and the changes that were not known before, with their times.

        A group that could not be read has a gap; a group that is gone loses its history.
        """
        values = LagValues.of(report)
        groups = report.groups
        gone = [] if report.failures else [name for name in self._lag.ring_keys() if _is_gone(name, report)]
        here = {(name, part.partition) for name, group in groups.items() for part in group.partitions}
        left = [key for key in self._partitions.ring_keys() if key not in here and key[0] not in report.errors]
        self._put_values(values, gone, [] if report.failures else left)
        known: set[TimedChange] = set()
        if not self._has_report:
            latest = [(name, change) for name, group in groups.items() for change in past_rebalances(group)]
            known.update(self._changes)  # an earlier process has seen some of the rebalances
        self._has_report = True
        timed = [TimedChange(change.at_ms or report.taken_ms, name, change) for name, change in latest]
        added = [change for change in timed if change not in known]
        self._changes.extend(added)
        return values, added

    def restore_read(self, values: LagValues) -> None:
        """Add a read that an earlier process has stored; call it before `add_report`."""
        self._put_values(values, (), ())

    def restore_changes(self, changes: Iterable[TimedChange]) -> None:
        """Add changes that an earlier process has stored; call it before `add_report`."""
        self._changes.extend(changes)

    def _put_values(self, values: LagValues, gone: Iterable[str], left: Iterable[tuple[str, TopicPartition]]) -> None:
        slot = self._reads % READS_KEPT
        self._reads += 1
        self._times[slot] = values.at_ms
        self._lag.write_values(slot, values.lags, gone)
        self._time_lag.write_values(slot, values.time_lags_ms, gone)
        self._partitions.write_values(slot, values.partitions, left)

    def times_ms(self, last: int = READS_KEPT) -> list[int]:
        """Return the times of the last reads in ms since 1970, the oldest first."""
        return [int(self._times[slot]) for slot in self._slots(last)]

    def lag_of_group(self, name: str, last: int = READS_KEPT) -> list[int | None]:
        """Return a group's lag at each time of `times_ms`; None where it is not known."""
        return self._lag.values(name, self._slots(last))

    def time_lag_of_group(self, name: str, last: int = READS_KEPT) -> list[int | None]:
        """Return a group's time lag in ms at each time of `times_ms`; None where it is not known."""
        return self._time_lag.values(name, self._slots(last))

    def lag_of_partition(self, group: str, partition: TopicPartition, last: int = READS_KEPT) -> list[int | None]:
        """Return a group's lag in a partition at each time of `times_ms`; empty beyond `PARTITIONS_MAX` partitions."""
        return self._partitions.values((group, partition), self._slots(last))

    def changes_of_group(self, name: str) -> list[TimedChange]:
        """Return the last changes of a group, the newest first."""
        found = [change for change in reversed(self._changes) if change.group == name]
        return sorted(found, key=lambda change: -change.at_ms)[:CHANGES_KEPT]

    def _slots(self, last: int) -> list[int]:
        count = min(self._reads, last, READS_KEPT)
        return [number % READS_KEPT for number in range(self._reads - count, self._reads)]


def _is_gone(name: str, report: LagReport) -> bool:
    return name not in report.groups and name not in report.errors


# -- The observer


class ClusterObserver(ClosedOnExit):
    """The source of all dashboard answers about groups: it reads the cluster at an interval.

    Answers are from memory, except those of `lag_history`, which are from the history file.

    The overview is encoded once after each read, on the reading thread. So a page of any number of groups is sent as it
    is.

    Args:
        name: The cluster's name on the page.
        reader: Reads the cluster; closed with the observer.
        interval_ms: The time between two reads.
        file: Keeps the history across restarts; not closed with the observer. None: the history is in memory only.

    Attributes:
        listeners: Called after each read on the reading thread, and by `close`; open pages then get an event.
    """

    def __init__(self, name: str, reader: LagReader, interval_ms: float, file: HistoryWriter | None = None) -> None:
        self._name, self._reader, self._interval_ms, self._file = name, reader, interval_ms, file
        self._lock = threading.Lock()
        self._history = LagHistory()
        self._added: LagReport | None = None
        self._overview = msgspec.Raw(msgspec.json.encode(overview(None, self._history)))
        self.listeners = ReadListeners()
        self.version = 0
        self._watch = ClusterWatch(name, reader, interval_ms / 1000, self._on_read)

    def close(self) -> None:
        """Stop reading, and call the listeners; may be called again."""
        self._watch.close()
        self.listeners.call_all()

    def _on_read(self, state: WatchState) -> None:
        report = state.report
        if report is not None and report is not self._added:
            if self._added is None and self._file is not None:
                self._restore(report, self._file)
            with self._lock:
                self._added = report
                values, changes = self._history.add_report(report, state.latest_changes)
                self._overview = msgspec.Raw(msgspec.json.encode(overview(report, self._history)))
            if self._file is not None:
                self._file.add_report(report, self._reader.cluster_id, changes, values)
        with self._lock:
            self.version += 1
        self.listeners.call_all()

    def _restore(self, report: LagReport, file: HistoryWriter) -> None:
        """Load an earlier process's history from the file: the reads that a picture shows, and the last changes."""

        def restore_read(values: LagValues) -> None:
            with self._lock:
                self._history.restore_read(values)

        since_ms = report.taken_ms - round(RESTORED_INTERVALS * self._interval_ms)
        changes = file.restore(self._reader.cluster_id, since_ms, restore_read, CHANGES_MAX)
        with self._lock:
            self._history.restore_changes(changes)

    def cluster(self) -> View:
        """Return the status of the cluster and of the last read as a JSON object, with the last success's age."""
        state = self._watch.state
        age_ms = None if state.report is None else round((time.monotonic() - state.read_s) * 1000)
        return {
            **cluster_view(self._name, state, self._interval_ms),
            "age_ms": age_ms,
            "version": self.version,
            "history_error": "" if self._file is None else self._file.error,
        }

    def overview(self) -> View:
        """Return the cluster's present status, and all groups as of the last read, already encoded as JSON."""
        return {"cluster": self.cluster(), "overview": self._overview}

    def group(self, name: str) -> View:
        """Return a group as of the last read as a JSON object.

        Raises:
            NotFoundError: The last read has no such group.
            RetriableError: The cluster has not been read yet.
        """
        report = self._report()
        with self._lock:
            found = group_view(report, self._history, name)
        if found is None:
            raise NotFoundError(f"there is no group {name!r}{did_you_mean(name, report.groups)}")
        return {"cluster": self.cluster(), "group": found}

    def lag_history(self, name: str, last_ms: int) -> View:
        """Return a group's lag over the last `last_ms` as lists of points, from the history file.

        The lists are empty without a file. A point is None where nothing was read.

        Raises:
            KafkaError: The file can't be read.
        """
        points: list[LagMinute | None] = []
        if self._file is not None:
            with suppress(NotFoundError), self._file.reader() as reader:
                if reader.cluster_id in (None, self._reader.cluster_id):  # otherwise `history_error` says so
                    since_ms = round(time.time() * 1000) - last_ms
                    points = reader.chart_points(name, since_ms, PAST_POINTS, self._interval_ms)
        return {
            "is_kept": self._file is not None,
            "times_ms": [None if point is None else point.at_ms for point in points],
            "lags": [None if point is None else point.lag for point in points],
            "time_lags_ms": [None if point is None else point.time_lag_ms for point in points],
        }

    def readers(self) -> View:
        """Return for each topic the groups that read it, with their lag there; empty before the first read."""
        return dict(readers_of_topics(self._watch.state.report))

    def _report(self) -> LagReport:
        state = self._watch.state
        if state.report is None:
            why = f": {'; '.join(state.messages)}" if state.messages else ""
            raise RetriableError(f"the cluster has not been read yet{why}")
        return state.report


# -- Answers, as values for JSON


def cluster_view(name: str, state: WatchState, interval_ms: float) -> View:
    """Return the status of the cluster and of the last read as a JSON object."""
    report = state.report
    return {
        "cluster": name,
        "up": state.is_up,
        "reads": sum(state.reads.values()),
        "read_at_ms": None if report is None else report.taken_ms,
        "read_took_ms": round(state.read_ms),
        "interval_ms": round(interval_ms),
        "failures": dict(state.failures),
        "messages": list(state.messages),
    }


def overview(report: LagReport | None, history: LagHistory) -> View:
    """Return all groups as a JSON object, each with status, lag, time lag and sparkline."""
    if report is None:
        return {"groups": [], "times_ms": []}
    groups = [_group_row(group, history) for group in report.groups.values()]
    groups += [_unread_row(name, error, history) for name, error in report.errors.items()]
    return {"groups": groups, "times_ms": history.times_ms(SPARKLINE_READS)}


def _group_row(group: GroupLag, history: LagHistory) -> View:
    name, read = group.description.group_id, group.known_partitions
    return {
        "group": name,
        "state": group.description.state,
        "type": group.description.type,
        "members": len(group.description.members) if group.members_known else None,
        "status": group.status.name,
        "activity": group.activity,
        "causes": sorted({part.cause for part in group.partitions if part.cause and part.status is group.status}),
        "topics": sorted({part.partition.topic for part in group.partitions}),
        "partitions": len(group.partitions),
        "lag": group.sum_lag if read else None,
        "time_lag_ms": group.max_time_lag_ms,
        "exact": all(part.is_time_lag_exact for part in read),
        "consumed_per_s": _sum(part.consumed_per_s for part in read),
        "written_per_s": _sum(part.produced_per_s for part in read),
        "lags": history.lag_of_group(name, SPARKLINE_READS),
    }


def _unread_row(name: str, error: KafkaError, history: LagHistory) -> View:
    lags = history.lag_of_group(name, SPARKLINE_READS)
    return {"group": name, "status": UNREAD, "reason": failure_reason_of(error), "error": str(error), "lags": lags}


def group_view(report: LagReport, history: LagHistory, name: str) -> View | None:
    """Return a group with its partitions, members and timeline as a JSON object; None: the last read lacks it."""
    timeline = [
        {"at_ms": timed.at_ms, "kind": timed.change.kind, "text": timed.change.text}
        for timed in history.changes_of_group(name)
    ]
    over_time = {
        "times_ms": history.times_ms(),
        "lags": history.lag_of_group(name),
        "time_lags_ms": history.time_lag_of_group(name),
        "timeline": timeline,
    }
    group = report.groups.get(name)
    if group is None:
        error = report.errors.get(name)
        return None if error is None else {**_unread_row(name, error, history), **over_time}
    of = group.description
    shown = sorted(group.partitions, key=_from_worst)[:PARTITIONS_SHOWN]
    return {
        **_group_row(group, history),
        **over_time,
        "explained": {cause: CAUSES[cause] for cause in sorted({part.cause for part in shown if part.cause})},
        "protocol": of.protocol_type,
        "assignor": of.assignor,
        "coordinator": of.coordinator,
        "epoch": of.epoch,
        "partition_rows": [_partition_row(part, name, history) for part in shown],
        "partitions_left_out": len(group.partitions) - len(shown),
        "member_rows": [_member_row(member, group) for member in of.members[:MEMBERS_SHOWN]],
        "members_left_out": max(0, len(of.members) - MEMBERS_SHOWN),
    }


def _from_worst(part: PartitionLag) -> tuple[int, int, TopicPartition]:
    return -part.status, -(part.lag or 0), part.partition


def _partition_row(part: PartitionLag, group: str, history: LagHistory) -> View:
    owner = part.owner
    return {
        "topic": part.partition.topic,
        "partition": part.partition.partition,
        "committed": part.committed,
        "log_start": part.log_start,
        "log_end": part.log_end,
        "lag": part.lag,
        "time_lag_ms": part.time_lag_ms,
        "exact": part.is_time_lag_exact,
        "lost": part.lost_offsets,
        "status": part.status.name,
        "cause": part.cause,
        "error": part.error,
        "consumed_per_s": part.consumed_per_s,
        "written_per_s": part.produced_per_s,
        "catch_up_s": part.catch_up_s,
        "member": None if owner is None else owner.client_id or owner.member_id,
        "lags": history.lag_of_partition(group, part.partition),
    }


def _member_row(member: MemberDescription, group: GroupLag) -> View:
    owned = set(member.assignment or ())
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "host": member.host,
        "instance": member.group_instance_id,
        "epoch": member.epoch,
        "partitions": len(owned),
        "owns": {topic: sorted(numbers) for topic, numbers in sorted(by_topic(owned).items())},
        "subscription": sorted(member.subscription or ()),
        "lag": sum(part.lag or 0 for part in group.known_partitions if part.partition in owned),
    }


def readers_of_topics(report: LagReport | None) -> Mapping[str, list[View]]:
    """Return for each topic the groups that read it, with their lag there, in descending order of lag."""
    readers: dict[str, list[View]] = {}
    for name, group in ({} if report is None else report.groups).items():
        lags: dict[str, int] = {}
        for part in group.partitions:
            if part.cause != ABANDONED:
                lags[part.partition.topic] = lags.get(part.partition.topic, 0) + (part.lag or 0)
        for topic, lag in lags.items():
            readers.setdefault(topic, []).append({"group": name, "lag": lag, "status": group.status.name})
    return {topic: sorted(rows, key=lambda row: -row["lag"]) for topic, rows in readers.items()}


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
