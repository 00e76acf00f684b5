"""A topic that was deleted and made again is another topic, whatever its name: its records are all new."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tests.spark.queries import Checkpoint, Place, Run, batch_reader, own_signals, place, values_of
from tests.support.waiting import LAST_RESORT

from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import OffsetError
from kohort.spark.source.batch_offset import CommitStamp
from kohort.wire.data import FetchRequest

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]

OLD, NEW = range(200), range(1000, 1500)
GROUPED = pytest.mark.parametrize("grouped", [True, False], ids=["group", "alone"])
STRICT = pytest.mark.parametrize("strict", [True, False], ids=["fail", "go on"])


def options(place: Place, grouped: bool, strict: bool, **more: Any) -> dict[str, str]:
    group = {} if grouped else {"group.id": None}
    return place.options(failOnDataLoss=str(strict).lower(), **(group | more))


def made_again(place: Place) -> str:
    """The topic once more, with other records; gives its new id."""
    place.delete()
    again = place.make()
    place.produce(NEW)
    return again


def refused(old: str, new: str) -> str:
    return rf"(?s)deleted and made again.*{old}.*{new}.*failOnDataLoss=false"


@GROUPED
@STRICT
def test_a_topic_made_again_while_the_query_was_down(
    place: Place, grouped: bool, strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    old, log = place.make(), Checkpoint()
    place.produce(OLD)
    with Run(options(place, grouped, strict), log) as run:
        assert run.read(200) == list(OLD)
    new = made_again(place)
    with Run(options(place, grouped, strict), log) as run:
        if strict:
            with pytest.raises(OffsetError, match=refused(old, new)):
                run.read(500)
            return
        assert run.read(500) == list(NEW)
    assert "deleted and made again" in caplog.text
    caplog.clear()
    with Run(options(place, grouped, True), log) as run:
        assert run.read(0) == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@GROUPED
@pytest.mark.parametrize("when", ["before it aims", "after it aimed"])
def test_a_topic_made_again_is_read_by_a_query_that_reads_what_is_there(place: Place, grouped: bool, when: str) -> None:
    """One that is made after the query has looked is none of what was there."""
    place.make()
    log = Checkpoint()
    place.produce(OLD)
    with Run(options(place, grouped, False), log, now=True) as run:
        assert run.read(200) == list(OLD)
        if when == "after it aimed":
            made_again(place)
            assert run.plan() is None
    if when == "before it aims":
        made_again(place)
    with Run(options(place, grouped, False), log, now=True) as run:
        assert run.read(500) == list(NEW)


@GROUPED
@STRICT
def test_a_topic_made_again_between_two_batches(place: Place, grouped: bool, strict: bool) -> None:
    old = place.make()
    place.produce(OLD)
    with Run(options(place, grouped, strict)) as run:
        assert run.read(200) == list(OLD)
        new = made_again(place)
        if strict:
            with pytest.raises(OffsetError, match=refused(old, new)):
                run.read(500)
        else:
            assert run.read(500) == list(NEW)


@GROUPED
@STRICT
@pytest.mark.parametrize("fetch", [FetchRequest.MAX_VERSION, 12], ids=["by id", "by name"])
def test_a_topic_made_again_inside_a_batch_never_reaches_the_sink(
    place: Place, grouped: bool, strict: bool, fetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FetchRequest, "MAX_VERSION", fetch)
    place.make()
    place.produce(OLD)
    with Run(options(place, grouped, strict, **{"kafka.request.timeout.ms": 20_000})) as run:
        planned = None
        while planned is None or not planned[1]:
            planned = run.plan()
        made_again(place)
        if strict:
            with pytest.raises(OffsetError, match="deleted and made again"):
                run.finish(planned)
            return
        assert run.finish(planned) == []
        assert run.read(500) == list(NEW)


@STRICT
def test_a_batch_that_failed_of_a_topic_made_again_is_replayed_without_it(place: Place, strict: bool) -> None:
    place.make()
    place.make("b")
    place.produce(OLD)
    place.produce(range(5), "b")
    log, both = Checkpoint(), f"{place.topic()},{place.topic('b')}"
    with Run(options(place, True, strict, subscribe=both), log) as run:
        while run.plan() is None:
            pass
    made_again(place)
    with Run(options(place, True, strict, subscribe=both), log) as run:
        if strict:
            with pytest.raises(OffsetError, match="deleted and made again"):
                run.read(505)
        else:
            assert run.read(505) == [*range(5), *NEW]


@pytest.mark.parametrize("grouped", [True, False])
def test_a_replay_does_not_take_the_earlier_topics_end_for_the_new_ones(place: Place, grouped: bool) -> None:
    """The batch that is run again is of the new topic; the one before it, which the checkpoint starts from, is not."""
    place.make()
    place.produce(OLD)
    log = Checkpoint()
    with Run(options(place, grouped, False), log) as run:
        while run.plan() is None:
            pass
    made_again(place)
    with Run(options(place, grouped, False), log) as run:
        while (planned := run.plan()) is None or log.finished == 0:
            if planned is not None:
                assert run.finish(planned) == []
    with Run(options(place, grouped, False), log) as run:
        assert run.read(500) == list(NEW)


@STRICT
def test_the_groups_offsets_of_an_earlier_topic_do_not_count(place: Place, strict: bool) -> None:
    """Where the broker keeps a group's offsets by the topic's name, the commit says of which topic it was."""
    new = place.make()
    place.produce(NEW)
    old = "00000000-0000-0000-0000-0000000000aa"
    stamp = CommitStamp("another query", 3, old).to_metadata()
    place.admin.alter_consumer_group_offsets(
        place.group, {tp: OffsetAndMetadata(100, stamp) for tp in place.partitions()}
    ).all()
    with Run(options(place, True, strict, startingOffsets="latest")) as run:
        if strict:
            with pytest.raises(OffsetError, match=refused(old, new)):
                run.read(500)
            assert place.committed() == {0: 100, 1: 100}
        else:
            assert run.read(500) == list(NEW)
            assert place.committed() == {0: 250, 1: 250}


@STRICT
def test_a_batch_read_of_a_topic_made_again_meanwhile(place: Place, strict: bool) -> None:
    place.make()
    place.produce(OLD)
    reader = batch_reader(options(place, False, strict))
    tasks = reader.partitions()
    made_again(place)
    if strict:
        with pytest.raises(OffsetError, match="deleted and made again"):
            values_of(reader, tasks)
    else:
        assert values_of(reader, tasks) == []


def test_a_topic_made_again_with_fewer_partitions(place: Place) -> None:
    place.make(count=4)
    place.produce(OLD, count=4)
    with Run(options(place, True, False)) as run:
        assert run.read(200) == list(OLD)
        place.delete()
        place.make(count=1)
        place.produce(NEW, count=1)
        assert run.read(500) == list(NEW)


def test_a_checkpoint_of_the_first_form_still_counts_and_learns_the_ids(place: Place) -> None:
    old, log = place.make(), Checkpoint()
    place.produce(OLD)
    with Run(options(place, False, True), log) as run:
        assert run.read(200) == list(OLD)
    last = json.loads(log.offsets[-1])
    first_form = {key: last[key] for key in ("query", "batch", "generation", "topics")} | {"kohort": 1}
    log.offsets[-1] = json.dumps(first_form)
    place.produce(range(200, 220))
    with Run(options(place, False, True), log) as run:
        assert run.read(20) == list(range(200, 220))
    assert json.loads(log.offsets[-1])["ids"] == {place.topic(): old}
