"""Where a read starts and ends is checked before anything is claimed in the group or waited for."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.spark.queries import Place, Run, batch_reader, own_signals, place, values_of
from tests.support.waiting import LAST_RESORT, STILL_S, until

from kohort.client.group.member import GroupMember
from kohort.client.offsets import OffsetAndMetadata
from kohort.client.producer.producer import Producer
from kohort.errors import InvalidInputError, KafkaError, OffsetError

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]


def offsets(place: Place, first: int, second: int) -> str:
    return json.dumps({place.topic(): {"0": first, "1": second}})


@pytest.fixture
def filled(place: Place) -> Place:
    """Two partitions with ten records each."""
    place.make()
    place.produce(range(20))
    return place


def test_a_start_beyond_the_end_is_refused_and_leaves_the_group_as_it_was(filled: Place) -> None:
    beyond = filled.options(startingOffsets=offsets(filled, 3, 500))
    words = rf"offset 500 of {filled.topic()}-1.*0 to 10; failOnDataLoss=false starts at its end"
    with Run(beyond) as run, pytest.raises(InvalidInputError, match=words):
        run.read(1)
    assert filled.committed() == {}
    with Run(filled.options(startingOffsets=offsets(filled, 3, 10))) as run:
        assert run.read(7) == list(range(6, 20, 2))


@pytest.mark.parametrize("grouped", [True, False], ids=["in a group", "without"])
def test_a_lenient_query_whose_start_is_beyond_the_end_starts_at_the_end(filled: Place, *, grouped: bool) -> None:
    """Spark's own source does so with failOnDataLoss=false."""
    start = {"startingOffsets": offsets(filled, 3, 500), "failOnDataLoss": "false"}
    with Run(filled.options(**start, **({} if grouped else {"group.id": None}))) as run:
        assert run.read(7) == list(range(6, 20, 2))
        filled.produce(range(20, 24))
        assert run.read(4) == list(range(20, 24))


def test_a_start_below_the_beginning_is_refused_before_anything_is_claimed(filled: Place) -> None:
    filled.admin.delete_records(dict.fromkeys(filled.partitions(), 4)).all()
    early = filled.options(startingOffsets=offsets(filled, 2, 4))
    with Run(early) as run, pytest.raises(OffsetError, match=rf"(?s){filled.topic()}-0.*4 to 10.*failOnDataLoss"):
        run.read(1)
    assert filled.committed() == {}
    with Run(early | {"failOnDataLoss": "false"}) as run:
        assert run.read(12) == list(range(8, 20))


@pytest.mark.parametrize("grouped", [True, False], ids=["in a group", "without"])
def test_records_that_retention_takes_from_a_running_query_cost_no_batches(place: Place, *, grouped: bool) -> None:
    """Each batch is bounded, and there would be many without a record."""
    place.make()
    place.produce(range(400))
    given = place.options(maxOffsetsPerTrigger=10, failOnDataLoss="false", **({} if grouped else {"group.id": None}))
    with Run(given) as run:
        first = run.plan()
        assert first is not None and run.finish(first) == list(range(10))
        place.admin.delete_records(dict.fromkeys(place.partitions(), 190)).all()
        second = run.plan()
        assert second is not None and run.finish(second) == list(range(380, 390))
        assert run.read(10) == list(range(390, 400))


def test_an_offset_of_the_group_beyond_the_end_says_how_to_mend_it(filled: Place) -> None:
    filled.admin.alter_consumer_group_offsets(filled.group, {filled.partitions()[0]: OffsetAndMetadata(77)}).all()
    with Run(filled.options()) as run, pytest.raises(OffsetError, match=r"(?s)0 to 10.*77.*reset-offsets"):
        run.read(1)
    assert filled.committed() == {0: 77}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffsets": (3, 500)}, r"startingOffsets.*500 of .*-1.*0 to 10"),
        ({"endingOffsets": (10, 12)}, r"endingOffsets.*12 of .*-1.*0 to 10"),
        ({"startingOffsets": (8, 0), "endingOffsets": (5, 5)}, r"8 of .*-0.*5"),
        ({"startingOffsets": (-7, 0)}, r"startingOffsets.*-7"),
        ({"startingOffsetsByTimestamp": (-1, 0)}, r"startingOffsetsByTimestamp asks for the time -1 of .*-0"),
        ({"endingOffsetsByTimestamp": (0, -2)}, r"endingOffsetsByTimestamp asks for the time -2 of .*-1"),
    ],
)
def test_bounds_of_a_batch_read_that_can_not_be(filled: Place, given: dict[str, Any], words: str) -> None:
    said = {name: offsets(filled, *value) for name, value in given.items()}
    with pytest.raises(InvalidInputError, match=f"(?s){words}"):
        batch_reader(filled.options(**({"group.id": None} | said))).partitions()


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"startingOffsets": (8, 10), "endingOffsets": (12, 500)}, [16, 18]),
        ({"startingOffsets": (9, 500)}, [18]),
        ({"startingOffsets": (11, 11), "endingOffsets": (20, 30)}, []),
    ],
    ids=["end", "start", "both"],
)
def test_batch_read_beyond_the_end_reads_what_is_there_where_lost_records_are_no_error(
    filled: Place, given: dict[str, Any], values: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs that page through a topic ask for the next thousand offsets."""
    said = {name: offsets(filled, *value) for name, value in given.items()}
    reader = batch_reader(filled.options(**({"group.id": None, "failOnDataLoss": "false"} | said)))
    assert values_of(reader, reader.partitions()) == values
    assert "because of failOnDataLoss=false, the query reads what is there" in caplog.text


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"startingTimestamp": 8_000, "endingTimestamp": 3_000}, r"startingTimestamp .* endingTimestamp for 2"),
        ({"startingOffsets": [8, 9], "endingTimestamp": 3_000}, r"startingOffsets .* 8 of .*-0, endingTimestamp for 2"),
        (
            {"startingOffsetsByTimestamp": [8_000, 1_000], "endingOffsets": [3, 3]},
            r"startingOffsetsByTimestamp .* 4 of .*-0, endingOffsets for 3",
        ),
    ],
)
def test_a_start_behind_the_end_is_refused_and_not_read_as_nothing(
    place: Place, bounds: dict[str, Any], words: str
) -> None:
    """SPARK-52096: times that were mixed up gave an empty read, where Spark's source fails."""
    place.make()
    first_ms = int(time.time() * 1000) - 60_000
    with Producer(place.servers) as producer:
        for number in range(20):
            stamp = first_ms + number // 2 * 2_000
            producer.send(place.topic(), b"%d" % number, partition=number % 2, timestamp_ms=stamp)
    given = {
        name: offsets(place, *(first_ms * ("Timestamp" in name) + number for number in bound))
        if isinstance(bound, list)
        else first_ms + bound
        for name, bound in bounds.items()
    }
    with pytest.raises(InvalidInputError, match=f"the start of the read is behind its end: {words}"):
        batch_reader(place.options(**({"group.id": None} | given))).partitions()


@pytest.mark.parametrize("ends", [(3, 4), (4, 2), (9, 9)])
def test_a_range_that_retention_has_removed_is_an_error_of_a_batch_read_and_no_empty_one(
    filled: Place, ends: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """SPARK-18373, byzer-lang #1242: what was asked for and is gone is data loss, also if nothing of it is left."""
    filled.admin.delete_records(dict.fromkeys(filled.partitions(), 4)).all()
    bounds = {"startingOffsets": offsets(filled, 0, 0), "endingOffsets": offsets(filled, *ends)}
    given = filled.options(**({"group.id": None} | bounds))
    with pytest.raises(OffsetError, match=rf"(?s)offset 0 was asked for of {filled.topic()}-0.*4 to 10.*failOnDataL"):
        batch_reader(given).partitions()
    reader = batch_reader(given | {"failOnDataLoss": "false"})
    assert len(values_of(reader, reader.partitions())) == sum(max(0, end - 4) for end in ends)
    assert caplog.text.count("records may be lost") == 2


@pytest.mark.parametrize("word", [-2, "earliest"])
def test_a_read_from_the_beginning_to_an_offset_that_is_gone_is_empty(filled: Place, word: int | str) -> None:
    """A job that names its end and begins at the first record asks for no offset that contradicts it."""
    filled.admin.delete_records(dict.fromkeys(filled.partitions(), 4)).all()
    start = offsets(filled, -2, -2) if word == -2 else word
    bounds = {"startingOffsets": start, "endingOffsets": offsets(filled, 2, 6)}
    reader = batch_reader(filled.options(**({"group.id": None} | bounds)))
    assert len(values_of(reader, reader.partitions())) == 2


def test_a_range_without_offsets_loses_nothing(filled: Place) -> None:
    filled.admin.delete_records(dict.fromkeys(filled.partitions(), 4)).all()
    bounds = {"startingOffsets": offsets(filled, 2, 0), "endingOffsets": offsets(filled, 2, 0)}
    assert batch_reader(filled.options(**({"group.id": None} | bounds))).partitions() == []


def test_a_batch_read_from_an_offset_of_the_group_beyond_the_end(filled: Place) -> None:
    filled.admin.alter_consumer_group_offsets(filled.group, {filled.partitions()[0]: OffsetAndMetadata(77)}).all()
    with pytest.raises(OffsetError, match=r"(?s)77.*-0.*0 to 10"):
        batch_reader(filled.options(startingOffsets="committed")).partitions()


def test_a_batch_read_up_to_where_the_group_is(filled: Place) -> None:
    here = {tp: OffsetAndMetadata(6) for tp in filled.partitions()}
    filled.admin.alter_consumer_group_offsets(filled.group, here).all()
    reader = batch_reader(filled.options(endingOffsets="committed"))
    assert sorted(values_of(reader, reader.partitions())) == list(range(12))


@pytest.mark.parametrize("first", [True, False], ids=["a new query", "a restarted query"])
def test_assign_in_a_group_with_members_is_refused_before_the_first_batch(filled: Place, first: bool) -> None:
    assigned = filled.options(subscribe=None, assign=json.dumps({filled.topic(): [0, 1]}))
    log = Run(assigned).checkpoint
    if not first:
        with Run(assigned, log) as run:
            assert run.read(20) == list(range(20))
        filled.produce(range(20, 24))
    with GroupMember(filled.servers, filled.group, topics=[filled.topic()]) as member:
        until(lambda: member.assignment().partitions, "the member holds partitions", STILL_S)
        with Run(assigned, log) as run, pytest.raises(KafkaError, match=f"{filled.group}.*has members.*subscribe"):
            run.read(1)


def test_a_group_that_gets_a_member_while_assigned_partitions_are_read(filled: Place) -> None:
    assigned = filled.options(subscribe=None, assign=json.dumps({filled.topic(): [0, 1]}))
    with Run(assigned) as run:
        assert run.read(20) == list(range(20))
        with GroupMember(filled.servers, filled.group, topics=[filled.topic()]) as member:
            until(lambda: member.assignment().partitions, "the member holds partitions", STILL_S)
            filled.produce(range(20, 24))
            with pytest.raises(KafkaError, match=f"{filled.group}.*has members.*subscribe"):
                run.read(4)
