"""A thread that reads a cluster's lag again and again, for the exporter and for the dashboard."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kohort.errors import KafkaError
from kohort.lag.evaluation import LagReport
from kohort.lag.exporter_shares import ExporterShares, share_number_of
from kohort.lag.reading import LagReader
from kohort.lag.snapshot import failure_reason_of
from kohort.lag.timeline import GroupChange, changes_between

log = logging.getLogger("kohort.lag")

READ_TIMEOUT_MS = 10_000
"""The limit of a read. A cluster that answers more slowly is reported as timed out, and read again."""
STALE_INTERVALS = 3
"""A read counts for this many intervals. Then its lag is left out: a number that stands still looks like a fact."""
STALE_MIN_S = 60.0
"""The shortest time that a read counts: two reads that time out are no outage."""
LOGGED_FAILURES_MAX = 10
"""The most failures of a read that are logged."""
NAMED_FAILURES_MAX = 100
"""The most failures of a read that its state names."""


@dataclass(frozen=True, slots=True)
class WatchState:
    """The results of a `ClusterWatch` after its last read of the cluster.

    Attributes:
        is_up: Whether the last read succeeded.
        report: The last successful read.
        read_s: The time at which that read ended, in s on the monotonic clock.
        failures: How many parts of the last read failed, by reason.
        messages: The parts of the last read that failed and why, at most `NAMED_FAILURES_MAX`.
        read_ms: How long the last read took.
        reads: The number of reads since the watch began, by outcome: whole, partial, failed.
        changes: The number of changes by group and kind, without a group's first appearance. A group that a successful
            read lacks begins again at 0.
        latest_changes: The changes between the last two successful reads, by group; none after a read that failed.
        shares: The exporter shares that this process owned when the last successful read began, each with its term.
    """

    is_up: bool = False
    report: LagReport | None = None
    read_s: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    read_ms: float = 0.0
    reads: Mapping[str, int] = field(default_factory=dict)
    changes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    latest_changes: tuple[tuple[str, GroupChange], ...] = ()
    shares: Mapping[int, int] = field(default_factory=dict)


class ReadListeners:
    """A set of functions to be called after each read of a cluster. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[Callable[[], None]] = set()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Register a function to be called after each read, on the thread that reads."""
        with self._lock:
            self._listeners.add(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Unregister a function; do nothing if it is not registered."""
        with self._lock:
            self._listeners.discard(listener)

    def call_all(self) -> None:
        """Call all registered functions on this thread."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


class ClusterWatch:
    """A thread that reads a cluster's lag at an interval until it is closed.

    A failed read is repeated after the interval.

    Args:
        name: The cluster's name.
        reader: Reads the cluster; closed with the watch.
        interval_s: The time from the beginning of a read to the next one.
        on_read: Called on the watch's thread after each read, with the new state.
        shares: The shares of the cluster's groups that this exporter reads; closed with the watch. None: it reads all
            groups.

    Attributes:
        name: The cluster's name; the label `cluster_name` of metrics.
        state: The results of the last read; replaced, never changed.
    """

    def __init__(
        self,
        name: str,
        reader: LagReader,
        interval_s: float,
        on_read: Callable[[WatchState], None] = lambda state: None,
        shares: ExporterShares | None = None,
    ) -> None:
        self.name, self.state, self.shares = name, WatchState(), shares
        self._reader, self._interval_s, self._on_read = reader, interval_s, on_read
        self._ended = threading.Event()
        self._is_due = threading.Event()
        self._begun: Mapping[int, int] = {}
        if shares is not None:
            shares.on_look = self._read_new_shares
        self._said: frozenset[str] = frozenset()
        self._thread = threading.Thread(target=self._run, name=f"kohort-lag {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, close the reader, and give this exporter's shares to other exporters."""
        self._ended.set()
        self._is_due.set()
        self._reader.close()
        self._thread.join()
        if self.shares is not None:
            self.shares.close()

    @property
    def current_report(self) -> LagReport | None:
        """The last successful lag report; None if there is none, or if it is too old (`STALE_INTERVALS`)."""
        report = self.state.report
        if report is None:
            return None
        return report if time.monotonic() - self.state.read_s <= self._stale_s else None

    @property
    def _stale_s(self) -> float:
        """The time in s for which a lag report is shown after its read ended."""
        return max(STALE_MIN_S, STALE_INTERVALS * self._interval_s)

    @property
    def current_owned_shares(self) -> frozenset[int] | None:
        """The shares whose groups may be shown: those owned without a break since the last successful read began.

        None: this process reads all groups.
        """
        if self.shares is None:
            return None
        return frozenset(
            share for share, term in self.shares.owned_shares().items() if self.state.shares.get(share) == term
        )

    def _run(self) -> None:
        while not self._ended.is_set():
            started = time.monotonic()
            self._is_due.clear()
            if self._ended.is_set():
                return  # the event that `close` set may be cleared again
            self._read_cluster()
            self._is_due.wait(max(0.0, started + self._interval_s - time.monotonic()))

    def _read_new_shares(self) -> None:
        """Begin the next read at once if this exporter has been assigned shares since the last read began."""
        if self.shares is not None and self.shares.owned_shares().items() - self._begun.items():
            self._is_due.set()

    def _read_cluster(self) -> None:
        before, started = self.state, time.monotonic()
        try:
            owned = self._begin_shares()
            report = self._read_report()
            self.state = self._after_read(before, report, owned, (time.monotonic() - started) * 1000)
        except Exception as error:  # a bug must not end the thread: the lag would stand still
            if self._ended.is_set():
                return
            is_known = isinstance(error, KafkaError)
            text = str(error) if is_known else f"unexpected error {type(error).__name__}: {error}"
            failure = f"cluster: {text}"
            if not is_known and failure not in self._said:
                log.error(
                    "[cluster %s] unexpected error while reading the lag; retrying at the next interval",
                    self.name,
                    exc_info=error,
                )
            self._log({failure})
            self.state = replace(
                before,
                is_up=False,
                failures={failure_reason_of(error) if isinstance(error, KafkaError) else "refused": 1},
                messages=(text,),
                read_ms=(time.monotonic() - started) * 1000,
                reads=_added(before.reads, ["failed"]),
                latest_changes=(),
            )
        try:
            self._on_read(self.state)
        except Exception:  # the thread goes on here too
            log.exception(
                "[cluster %s] unexpected error while using the lag that was read; the next read follows as usual",
                self.name,
            )

    def _read_report(self) -> LagReport:
        """Read the cluster's lag.

        Tell the exporter shares whether the read worked: after failures they leave the group.
        """
        try:
            report = self._reader.read(timeout_ms=READ_TIMEOUT_MS)
        except Exception:
            if self.shares is not None:
                self.shares.record_read_failure(self._stale_s)
            raise
        if self.shares is not None:
            if reached_no_group(report, self._reader.listing or ()):
                self.shares.record_read_failure(self._stale_s)
            else:
                self.shares.record_read_success(of_shares=bool(self._begun))
        return report

    def _begin_shares(self) -> Mapping[int, int]:
        """Make the next read cover only the groups of this exporter's shares; return these shares with their terms.

        Raises:
            KafkaError: The exporters' group can't be joined, or has not taken this exporter in for `JOIN_S`.
        """
        if self.shares is None:
            return {}
        self.shares.check()
        owned = self._begun = self.shares.owned_shares()
        self._reader.is_read = lambda name: share_number_of(name) in owned
        return owned

    def _after_read(
        self, before: WatchState, report: LagReport, shares: Mapping[int, int], read_ms: float
    ) -> WatchState:
        reasons = [failure.reason for failure in report.failures] + [
            failure_reason_of(e) for e in report.errors.values()
        ]
        messages = {f"{failure.part}: {failure.text}" for failure in report.failures}
        messages |= {f"group {name}: {error}" for name, error in report.errors.items()}
        self._log(messages)
        latest = () if before.report is None else tuple(changes_between(before.report, report))
        return WatchState(
            True,
            report,
            time.monotonic(),
            Counter(reasons),
            tuple(sorted(messages)[:NAMED_FAILURES_MAX]),
            read_ms,
            _added(before.reads, ["partial" if reasons else "whole"]),
            _counted(before, report, latest),
            latest,
            shares,
        )

    def _log(self, failures: set[str]) -> None:
        """Log failures that the previous read did not have, and the first read without failures."""
        new = sorted(failures - self._said)
        for failure in new[:LOGGED_FAILURES_MAX]:
            log.warning("[cluster %s] lag could not be read: %s; retrying at the next interval", self.name, failure)
        if len(new) > LOGGED_FAILURES_MAX:
            left = len(new) - LOGGED_FAILURES_MAX
            log.warning(
                "[cluster %s] lag could not be read for %d more reasons, which are not logged; retrying at the next "
                "interval",
                self.name,
                left,
            )
        if self._said and not failures:
            log.info("[cluster %s] lag is read again: the last read had no failures", self.name)
        self._said = frozenset(failures)


def reached_no_group(report: LagReport, listing: Collection[str]) -> bool:
    """Return whether a read reached none of its groups, only because brokers were unreachable or too slow.

    Another exporter may reach them, so this one should give up its shares.

    Args:
        report: The read.
        listing: The names of the cluster's groups. Other names in the report are of Spark checkpoints, which no broker
            answers for.
    """
    reasons = {failure_reason_of(error) for name, error in report.errors.items() if name in listing}
    is_any_read = any(name in listing for name in report.groups)
    return bool(reasons) and not is_any_read and reasons <= {"unreachable", "timed_out"}


def _added(counts: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(counts) + Counter(names))


def _counted(
    before: WatchState, report: LagReport, latest: Iterable[tuple[str, GroupChange]]
) -> dict[tuple[str, str], int]:
    """Return the numbers of changes by group and kind, with the latest ones added and without groups that are gone."""
    counts = Counter({key: count for key, count in before.changes.items() if key[0] in report.groups})
    known = {} if before.report is None else before.report.groups
    counts.update((name, change.kind) for name, change in latest if name in known and name in report.groups)
    return dict(counts)
