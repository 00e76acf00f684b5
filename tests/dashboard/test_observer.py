"""Lag over the last reads: values, gaps, bounds, and changes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kohort.client.admin.values import GroupDescription
from kohort.dashboard import observer
from kohort.dashboard.observer import CHANGES_KEPT, LagHistory
from kohort.errors import TimedOutError
from kohort.ids import TopicPartition
from kohort.lag import GroupChange, GroupLag, LagReport, PartitionLag, ReadFailure
from kohort.lag.history_file import READS_KEPT

AWAY = TimedOutError("no answer")


def report(at: int, lags: dict[str, Iterable[int | None]], **others: object) -> LagReport:
    """A read of groups with these lags by partition; None: the partition's end is not known."""
    groups = {
        name: GroupLag(
            GroupDescription(name, "Classic", "Stable", "consumer", "range", (), 1),
            True,
            tuple(
                PartitionLag(TopicPartition("t", number), 0, log_start=0, log_end=lag, time_lag_ms=lag)
                for number, lag in enumerate(values)
            ),
        )
        for name, values in lags.items()
    }
    return LagReport(at, groups, **others)  # type: ignore[arg-type]


def test_history_has_a_value_for_each_read() -> None:
    history = LagHistory()
    for at in range(3):
        history.add_report(report(at * 10, {"g": (at, 5)}))
    assert history.times_ms() == [0, 10, 20]
    assert history.lag_of_group("g") == [5, 6, 7]
    assert history.time_lag_of_group("g") == [5, 5, 5]
    assert history.lag_of_partition("g", TopicPartition("t", 0)) == [0, 1, 2]
    assert history.lag_of_group("g", 2) == [6, 7]
    assert history.lag_of_group("other") == []


def test_reads_that_failed_are_gaps_and_a_new_group_has_none_before() -> None:
    history = LagHistory()
    history.add_report(report(0, {"g": (1,)}))
    history.add_report(report(1, {"new": (3,)}, errors={"g": AWAY}))
    history.add_report(report(2, {"g": (None,), "new": (4,)}))
    history.add_report(report(3, {"g": (2,), "new": (4,)}))
    assert history.lag_of_group("g") == [1, None, None, 2]
    assert history.lag_of_partition("g", TopicPartition("t", 0)) == [1, None, None, 2]
    assert history.lag_of_group("new") == [None, 3, 4, 4]


def test_group_that_is_gone_loses_its_history_unless_the_read_is_incomplete() -> None:
    history = LagHistory()
    history.add_report(report(0, {"g": (1,)}))
    history.add_report(report(1, {}, failures=(ReadFailure("broker 2", "timed_out", "no answer"),)))
    assert history.lag_of_group("g") == [1, None]
    history.add_report(report(2, {}))
    assert history.lag_of_group("g") == []
    assert history.lag_of_partition("g", TopicPartition("t", 0)) == []


def test_history_keeps_the_last_reads() -> None:
    history = LagHistory()
    for at in range(READS_KEPT + 5):
        history.add_report(report(at, {"g": (at,)}))
    assert history.lag_of_group("g") == list(range(5, READS_KEPT + 5))
    assert history.times_ms()[0] == 5


def test_partitions_beyond_the_limit_have_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "PARTITIONS_MAX", 2)
    history = LagHistory()
    history.add_report(report(0, {"g": (1, 2, 3)}))
    assert [bool(history.lag_of_partition("g", TopicPartition("t", number))) for number in range(3)] == [
        True,
        True,
        False,
    ]
    history.add_report(report(1, {"g": (1,), "h": (7,)}))
    assert history.lag_of_partition("h", TopicPartition("t", 0)) == [None, 7], "what is gone makes room"


def test_changes_of_a_group_are_the_newest_first_and_bounded() -> None:
    history = LagHistory()
    for at in range(CHANGES_KEPT + 1):
        history.add_report(report(at, {}), [("g", GroupChange("joined", str(at))), ("h", GroupChange("left", ""))])
    found = history.changes_of_group("g")
    assert len(found) == CHANGES_KEPT
    assert (found[0].at_ms, found[0].change.text) == (CHANGES_KEPT, str(CHANGES_KEPT))
