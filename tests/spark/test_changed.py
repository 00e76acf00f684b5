"""A checkpoint that goes on in another group, or with other topics."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tests.spark.queries import Checkpoint, Place, Run, own_signals, place
from tests.support.waiting import LAST_RESORT, STILL_S, until

from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import InvalidInputError
from kohort.spark.options import parse_options
from kohort.spark.source.batch_offset import BatchOffset, OffsetRange
from kohort.spark.source.checkpoint_takeover import changed_option_warnings

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]


def group_of(place: Place, suffix: str) -> dict[str, Any]:
    return {"group.id": f"{place.group}-{suffix}"}


def warnings_of(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


def ten_read(place: Place) -> Checkpoint:
    """A query has read ten records of two partitions in its group, and ten more are there since."""
    place.make()
    place.produce(range(10))
    checkpoint = Checkpoint()
    with Run(place.options(), checkpoint) as run:
        assert run.read(10) == list(range(10))
        until(lambda: place.committed() == {0: 5, 1: 5}, "the group knows", STILL_S)
        report = run.reader.reportLatestOffset()
    assert (report["group"], list(report["topics"])) == (place.group, [place.topic()])
    assert json.loads(checkpoint.offsets[-1])["group"] == place.group
    place.produce(range(10, 20))
    return checkpoint


@pytest.mark.parametrize("to", ["a fresh group", "no group"])
def test_a_checkpoint_counts_in_a_group_that_has_read_nothing_and_says_so(
    place: Place, caplog: pytest.LogCaptureFixture, to: str
) -> None:
    checkpoint = ten_read(place)
    with Run(
        place.options(**(group_of(place, "b") if to == "a fresh group" else {"group.id": None})), checkpoint
    ) as run:
        assert run.read(10) == list(range(10, 20))
    assert (
        warnings_of(caplog).count(f"the checkpoint was written in the group {place.group}, and the query is in ") == 1
    )


@pytest.mark.parametrize("unfinished", [False, True], ids=["a finished batch", "an unfinished batch"])
def test_nothing_is_passed_over_that_another_group_has_read_and_the_checkpoint_has_not(
    place: Place, unfinished: bool
) -> None:
    checkpoint = ten_read(place)
    if unfinished:
        with Run(place.options(), checkpoint) as run:
            until(lambda: run.plan() is not None, "a batch is planned", STILL_S)
    other = group_of(place, "b")["group.id"]
    place.admin.alter_consumer_group_offsets(other, {place.partitions()[1]: OffsetAndMetadata(8)}).all()
    with Run(place.options(**{"group.id": other}), checkpoint) as run:
        with pytest.raises(
            InvalidInputError, match=rf"at offset 5 of {place.topic()}-1.*{other}.* at 8: .*fresh checkpoi"
        ):
            run.read(10)
    with Run(place.options(**{"group.id": other}), Checkpoint()) as run:
        assert run.read(12) == [*range(0, 16, 2), *range(16, 20)]


def test_nor_is_anything_of_a_first_batch_that_was_not_finished(place: Place) -> None:
    place.make()
    place.produce(range(10))
    checkpoint = Checkpoint()
    with Run(place.options(), checkpoint) as run:
        until(lambda: run.plan() is not None, "a batch is planned", STILL_S)
    other = group_of(place, "b")["group.id"]
    place.admin.alter_consumer_group_offsets(other, {place.partitions()[1]: OffsetAndMetadata(3)}).all()
    with Run(place.options(**{"group.id": other}), checkpoint) as run:
        with pytest.raises(InvalidInputError, match=rf"at offset 0 of {place.topic()}-1"):
            run.read(10)


def test_other_topics_are_reported(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = ten_read(place)
    place.make("b")
    place.produce([7], "b")
    with Run(place.options(subscribe=place.topic("b")), checkpoint) as run:
        assert run.read(1) == [7]
    assert f"the checkpoint has read {place.topic()}, which the options" in warnings_of(caplog)
    assert "has read none of the query's topics" in warnings_of(caplog)


def test_an_unchanged_subscription_is_not_reported() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    spans = {
        place: OffsetRange(0, 1) for place in parse_options(given | {"assign": '{"a": [0]}'}).assigned_partitions()
    }
    before = BatchOffset("q", 1, 1, spans, {}, "g")
    for more in ({"assign": '{"a": [0]}'}, {"subscribe": "a,b"}, {"subscribePattern": "."}):
        assert changed_option_warnings(parse_options(given | more), before) == []
        assert (
            changed_option_warnings(parse_options(given | more | {"group.id": "h"}), BatchOffset("q", 1, 1, spans))
            == []
        )
    assert len(changed_option_warnings(parse_options(given | {"subscribe": "b"}), before)) == 2
