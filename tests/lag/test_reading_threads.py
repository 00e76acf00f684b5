"""The threads that read lag: requests and `close` that come just before a thread clears its event."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
from tests.support.waiting import until

from kohort.errors import ErrorCode, error_for
from kohort.lag import LagReader, LagReport, cluster_watch, scaler
from kohort.lag.cluster_watch import ClusterWatch
from kohort.lag.scaler import GroupScaling, ScaledGroup
from kohort.lag.scaling import ScalingTarget


class GapEvent(threading.Event):
    """An event that calls a function once, just before it is cleared."""

    before_clear: Callable[[], None] | None = None

    def clear(self) -> None:
        found, self.before_clear = self.before_clear, None
        if found is not None:
            found()
        super().clear()


class EmptyReader:
    """A lag reader of a cluster without groups."""

    def connect(self, timeout_ms: int) -> None:
        """Connect to nothing."""

    def read(self, groups: list[str] | None = None, timeout_ms: int = 0) -> LagReport:
        return LagReport(0, {}, {name: error_for(ErrorCode.GROUP_ID_NOT_FOUND, name) for name in groups or ()})

    def close(self) -> None:
        """Close nothing."""


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> LagReader:
    for module in (scaler, cluster_watch):
        use_gap_events(monkeypatch, module)
    return cast(LagReader, EmptyReader())


def use_gap_events(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    patched = SimpleNamespace(Event=GapEvent, Lock=threading.Lock, Thread=threading.Thread)
    monkeypatch.setattr(module, "threading", patched)


def test_first_request_for_a_group_before_the_event_is_cleared_is_read(reader: LagReader) -> None:
    wanted = ScaledGroup("g", ScalingTarget(1_000))
    with GroupScaling(reader, 3_600) as scaling:
        cast(GapEvent, scaling._news).before_clear = lambda: scaling.last_decision(wanted) and None
        scaling._news.set()
        until(lambda: wanted in scaling._watched, "the request has come")
        until(lambda: scaling._watched[wanted].decision is not None, "the group is decided", 10)


def test_scaler_ends_when_it_is_closed_before_the_event_is_cleared(reader: LagReader) -> None:
    with GroupScaling(reader, 3_600) as scaling:

        def begin_close() -> None:
            scaling._ended = True
            scaling._news.set()

        cast(GapEvent, scaling._news).before_clear = begin_close
        scaling._news.set()
        scaling._thread.join(10)
        is_ended = not scaling._thread.is_alive()
        scaling._news.set()  # ends a thread that waits after all
    assert is_ended


def test_watch_ends_when_it_is_closed_before_the_event_is_cleared(reader: LagReader) -> None:
    watch = ClusterWatch("c", reader, 3_600)

    def begin_close() -> None:
        watch._ended.set()
        watch._is_due.set()

    cast(GapEvent, watch._is_due).before_clear = begin_close
    watch._is_due.set()
    watch._thread.join(10)
    is_ended = not watch._thread.is_alive()
    watch.close()
    assert is_ended
