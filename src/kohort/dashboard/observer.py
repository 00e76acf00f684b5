"""What the dashboard knows of a cluster: the last read, the history, and the answers that are made of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from kohort.dashboard.history import LagHistory
from kohort.dashboard.views import cluster_view, group_view, overview, readers_of_topics
from kohort.errors import NotFoundError, RetriableError
from kohort.io.closing import ClosedOnExit
from kohort.lag import LagReader, LagReport
from kohort.lag.cluster_watch import ClusterWatch, WatchState
from kohort.settings.config import did_you_mean

log = logging.getLogger("kohort.dashboard")

View = dict[str, Any]


class ClusterObserver(ClosedOnExit):
    """A watch of a cluster, with the answers that need no request to it.

    The overview is encoded once for each read, on the watch's thread: a page of any number of groups is sent as it is.

    Args:
        name: The cluster's name on the page.
        reader: Reads the cluster; closed with the observer.
        interval_ms: The time between two reads.
    """

    def __init__(self, name: str, reader: LagReader, interval_ms: float) -> None:
        self._name, self._interval_ms = name, interval_ms
        self._lock = threading.Lock()
        self._history = LagHistory()
        self._added: LagReport | None = None
        self._overview = msgspec.Raw(msgspec.json.encode(overview(None, self._history)))
        self._listeners: set[Callable[[], None]] = set()
        self.version = 0
        self._watch = ClusterWatch(name, reader, interval_ms / 1000, self._on_read)

    def close(self) -> None:
        """End the watch, and wake the listeners; may be called again."""
        self._watch.close()
        self.wake()

    def _on_read(self, state: WatchState) -> None:
        with self._lock:
            if state.report is not None and state.report is not self._added:
                self._added = state.report
                self._history.add_report(state.report, state.latest_changes)
                self._overview = msgspec.Raw(msgspec.json.encode(overview(state.report, self._history)))
            self.version += 1
        self.wake()

    def wake(self) -> None:
        """Call the listeners."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call a function after each read, on the watch's thread."""
        with self._lock:
            self._listeners.add(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Call a function no more."""
        with self._lock:
            self._listeners.discard(listener)

    def cluster(self) -> View:
        """Return how the cluster and the last read are; the read's age is by this machine's clock alone."""
        state = self._watch.state
        age_ms = None if state.report is None else round((time.monotonic() - state.read_s) * 1000)
        return {**cluster_view(self._name, state, self._interval_ms), "age_ms": age_ms, "version": self.version}

    def overview(self) -> View:
        """Return all groups."""
        return {"cluster": self.cluster(), "overview": self._overview}

    def group(self, name: str) -> View:
        """Return a group.

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

    def readers(self) -> View:
        """Return for each topic the groups that read it, as far as the cluster has been read."""
        return dict(readers_of_topics(self._watch.state.report))

    def _report(self) -> LagReport:
        state = self._watch.state
        if state.report is None:
            why = f": {'; '.join(state.messages)}" if state.messages else ""
            raise RetriableError(f"the cluster has not been read yet{why}")
        return state.report
