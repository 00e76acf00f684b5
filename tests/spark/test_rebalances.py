"""The cost of rebalances to a query, in times that the test gives, and the query's progress about them."""

from __future__ import annotations

import json
import logging

import pytest

from kohort.client.offsets import Rebalance
from kohort.ids import TopicPartition
from kohort.spark.source.progress import MemberProgress, Rebalances
from kohort.spark.source.query import lag_report


def of(number: int, began_ms: float, ended_ms: float) -> Rebalance:
    return Rebalance(number, 7, "m-1", 2, 1, 3, began_ms, ended_ms)


def test_before_the_first_there_is_nothing_to_report() -> None:
    rebalances = Rebalances("etl")
    rebalances.record_rebalances([])
    assert (rebalances.count, rebalances.downtime_ms) == (0, None)


def test_the_last_one_counts_and_each_is_counted() -> None:
    rebalances = Rebalances("etl")
    rebalances.record_rebalances([of(1, 100, 350)])
    assert (rebalances.count, rebalances.downtime_ms) == (1, 250)
    rebalances.record_rebalances([of(2, 1_000, 1_500), of(3, 1_500, 1_530)])
    assert (rebalances.count, rebalances.downtime_ms) == (3, 30)
    rebalances.record_rebalances([])
    assert (rebalances.count, rebalances.downtime_ms) == (3, 30), "it is still the last one"
    rebalances.record_rebalances([of(24, 9_000, 9_001)])
    assert rebalances.count == 24, "some were not remembered"


@pytest.mark.parametrize(
    ("batches", "downtime_ms"),
    [
        ([], 1_000),
        ([(500, 900)], 1_000),
        ([(500, 1_000)], 1_000),
        ([(500, 1_600)], 400),
        ([(500, 2_500)], 0),
        ([(500, None)], 0),
        ([(1_300, None)], 300),
        ([(500, 1_100), (1_200, 1_500)], 600),
        ([(2_000, None)], 1_000),
    ],
    ids=[
        "idle",
        "a batch before it",
        "until it",
        "into it",
        "beyond its end",
        "still running",
        "begun in it, with what was looked up before",
        "two",
        "begun at its end",
    ],
)
def test_while_a_batch_runs_nothing_stands_still(batches: list[tuple[float, float | None]], downtime_ms: float) -> None:
    rebalances = Rebalances("etl")
    for since, until in batches:
        rebalances.batch_began(since)
        if until is not None:
            rebalances.batch_ended(until)
    rebalances.record_rebalances([of(2, 1_000, 2_000)])
    assert rebalances.downtime_ms == downtime_ms


def test_a_batch_ends_once() -> None:
    """`end` is called without a batch too, and after the batch that has ended."""
    rebalances = Rebalances("etl")
    rebalances.batch_ended(100)
    rebalances.batch_began(500)
    rebalances.batch_ended(1_200)
    rebalances.batch_ended(1_900)
    rebalances.record_rebalances([of(2, 1_000, 2_000)])
    assert rebalances.downtime_ms == 800


def test_each_has_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kohort.spark")
    rebalances = Rebalances("etl")
    rebalances.batch_began(900)
    rebalances.batch_ended(1_100)
    rebalances.record_rebalances([of(2, 1_000, 1_400), of(3, 1_400, 1_500)])
    assert [(record.levelname, record.name) for record in caplog.records] == [("INFO", "kohort.spark")] * 2
    place = "generation 7: 2 partitions owned, 1 gained, 3 lost"
    assert caplog.messages == [
        f"[group etl][member m-1] rebalance 2 completed, {place}; downtime 300 ms of 400",
        f"[group etl][member m-1] rebalance 3 completed, {place}; downtime 100 ms of 100",
    ]


def test_the_progress_is_plain_json() -> None:
    part = TopicPartition("flights", 0)
    reported = lag_report({part: 3}, {part: 5}, 7, "etl", MemberProgress("m-1", 4, 12.6), "Subscribe[flights]")
    assert json.loads(json.dumps(reported)) == {
        "group": "etl",
        "member": "m-1",
        "generation": 7,
        "rebalances": 4,
        "lastDowntimeMs": 13,
        "lag": 2,
        "chosen": "Subscribe[flights]",
        "topics": {"flights": {"0": {"position": 3, "end": 5, "lag": 2}}},
    }


def test_a_query_that_is_no_member_has_no_rebalances() -> None:
    reported = lag_report({}, {}, -1, None, MemberProgress())
    assert (reported["member"], reported["rebalances"], reported["lastDowntimeMs"]) == (None, 0, None)
