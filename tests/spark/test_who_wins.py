"""Which source of truth decides where a partition starts to be read: the lines of docs/who-wins.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.spark.queries import Checkpoint, Place, Run, batch_reader, own_signals, values_of
from tests.support.waiting import LAST_RESORT, STILL_S, until

from kohort import Admin, Broker, TopicPartition
from kohort.cli.app import run as kohort
from kohort.client.consumer.range_reader import RangeReader, When
from kohort.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
from kohort.client.producer.producer import Producer
from kohort.errors import InvalidInputError, KafkaError, OffsetError
from kohort.spark.source.batch_offset import CommitStamp

__all__ = ["own_signals"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]

FIRST_MS = 1_700_000_000_000
"""The time of the record 0; each later one is a second younger."""


@pytest.fixture
def servers(our_broker: Broker) -> str:
    """Start one server: the behaviour tested here is the same on every broker (tests/peers)."""
    return our_broker.bootstrap_servers


@pytest.fixture(params=["classic", "push"])
def place(servers: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    """The place of queries that are members by this protocol."""
    with Admin(servers) as admin:
        yield Place(servers, admin, request.param)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kohort.spark.source.group_offsets.PARTITIONS_REFRESH_S", 0.1)


def stamped(place: Place, values: range, letter: str = "a", count: int = 2) -> None:
    """The values, dealt to the partitions in turn, a second apart."""
    with Producer(place.servers) as producer:
        for value in values:
            at = FIRST_MS + value * 1000
            producer.send(place.topic(letter), b"%d" % value, partition=value % count, timestamp_ms=at)


def by_partition(place: Place, first: int, second: int) -> str:
    return json.dumps({place.topic(): {"0": first, "1": second}})


def commit(place: Place, first: int, second: int, metadata: str = "") -> None:
    """Commit like an administrator, or like another member that has ended."""
    at = zip(place.partitions(), (first, second), strict=True)
    place.admin.alter_consumer_group_offsets(
        place.group, {tp: OffsetAndMetadata(offset, metadata) for tp, offset in at}
    ).all()


def grow(place: Place, count: int, letter: str = "a") -> None:
    place.admin.create_partitions({place.topic(letter): count}).all()


def assigned(place: Place) -> dict[str, Any]:
    return {"subscribe": None, "assign": json.dumps({place.topic(): [0, 1]})}


def unfinished(options: dict[str, str], log: Checkpoint) -> None:
    """A query plans a batch, and is killed in it."""
    with Run(options, log) as run:
        until(lambda: run.plan() is not None, "a batch is planned", STILL_S)


@pytest.fixture
def filled(place: Place) -> Place:
    """Two partitions with ten records each: the even values, and the odd ones."""
    place.make()
    stamped(place, range(20))
    return place


@pytest.fixture
def halfway(filled: Place) -> Checkpoint:
    """A query has read the twenty records, and has stopped; twenty more are there."""
    log = Checkpoint()
    with Run(filled.options(), log) as run:
        assert run.read(20) == list(range(20))
    assert filled.committed() == {0: 10, 1: 10}
    stamped(filled, range(20, 40))
    return log


def test_a_restart_continues_where_group_and_checkpoint_agree(filled: Place, halfway: Checkpoint) -> None:
    with Run(filled.options(), halfway) as run:
        assert run.read(20) == list(range(20, 40))
    assert filled.committed() == {0: 20, 1: 20}


def test_a_batch_whose_commit_was_cut_off_is_not_read_again(filled: Place) -> None:
    log = Checkpoint()
    unfinished(filled.options(), log)
    log.finished += 1  # Spark's commit log was written, and the process killed
    assert filled.committed() == {0: 0, 1: 0}
    stamped(filled, range(20, 24))
    with Run(filled.options(), log) as run:
        assert run.read(4) == list(range(20, 24))


def test_an_unfinished_batch_is_read_again_in_its_own_range(filled: Place) -> None:
    log = Checkpoint()
    unfinished(filled.options(), log)
    stamped(filled, range(20, 24))
    with Run(filled.options(), log) as run:
        again: list[Any] = []
        until(lambda: again or again.append(run.plan()) or again[0], "it is planned again", STILL_S)
        assert run.finish(again[0]) == list(range(20))
        assert run.read(4) == list(range(20, 24))


def test_what_another_member_has_read_meanwhile_is_not_read(filled: Place, halfway: Checkpoint) -> None:
    with Run(filled.options(maxOffsetsPerTrigger=6)) as other:
        assert other.read(20) == list(range(20, 40))
    stamped(filled, range(40, 44))
    with Run(filled.options(), halfway) as run:
        assert run.read(4) == list(range(40, 44))


@pytest.mark.parametrize("gone", ["offsets", "group"])
def test_without_the_groups_offsets_the_checkpoint_counts(filled: Place, halfway: Checkpoint, gone: str) -> None:
    if gone == "offsets":
        filled.admin.delete_consumer_group_offsets(filled.group, filled.partitions()).all()
    else:
        filled.admin.delete_consumer_groups([filled.group]).all()
    assert filled.committed() == {}
    with Run(filled.options(startingOffsets="latest"), halfway) as run:
        assert run.read(20) == list(range(20, 40))


def test_a_partition_that_neither_knows_is_read_from_its_beginning(filled: Place) -> None:
    """The other query had it, and the group's offsets are gone."""
    log = Checkpoint()
    with Run(filled.options(), Checkpoint()) as other:
        assert other.read(20) == list(range(20))
        with Run(filled.options(), log) as run:
            until(lambda: other.plan() is run.plan() is None and shares(filled) == [1, 1], "they share", STILL_S)
            stamped(filled, range(20, 40))
            mine = set(run.read(10))
    filled.admin.delete_consumer_group_offsets(filled.group, filled.partitions()).all()
    with Run(filled.options(startingOffsets="latest"), log) as run:
        assert set(run.read(20)) == {value for value in range(40) if value % 2 != min(mine) % 2}


def shares(place: Place) -> list[int]:
    described = place.admin.describe_consumer_groups([place.group]).values[place.group]
    return [len(member.assignment or ()) for member in described.members]


def test_an_older_checkpoint_put_back_does_not_take_the_group_back(filled: Place, halfway: Checkpoint) -> None:
    old = Checkpoint([*halfway.offsets], halfway.finished)
    with Run(filled.options(), halfway) as run:
        assert run.read(20) == list(range(20, 40))
    stamped(filled, range(40, 44))
    with Run(filled.options(), old) as run:
        assert run.read(4) == list(range(40, 44))


FORMS: dict[str, Callable[[Place], dict[str, Any]]] = {
    "nothing said": lambda _: {"startingOffsets": None},
    "earliest": lambda _: {"startingOffsets": "earliest"},
    "latest": lambda _: {"startingOffsets": "latest"},
    "offsets": lambda place: {"startingOffsets": by_partition(place, 4, 7)},
    "earliest and latest by partition": lambda place: {"startingOffsets": by_partition(place, -2, -1)},
    "a time": lambda _: {"startingOffsets": None, "startingTimestamp": FIRST_MS + 6_000},
    "a time, and offsets": lambda _: {"startingOffsets": "earliest", "startingTimestamp": FIRST_MS + 6_000},
    "times by partition": lambda place: {
        "startingOffsets": None,
        "startingOffsetsByTimestamp": by_partition(place, FIRST_MS + 6_000, FIRST_MS + 9_000),
    },
    "a time after the last record": lambda _: {
        "startingOffsets": None,
        "startingTimestamp": FIRST_MS + 3_600_000,
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "committed": lambda _: {"startingOffsets": "committed"},
    "committed, with a reset": lambda _: {"startingOffsets": "committed", "kafka.auto.offset.reset": "earliest"},
}
STARTS = {
    "nothing said": (10, 10),
    "earliest": (0, 0),
    "latest": (10, 10),
    "offsets": (4, 7),
    "earliest and latest by partition": (0, 10),
    "a time": (3, 3),
    "a time, and offsets": (3, 3),
    "times by partition": (3, 4),
    "a time after the last record": (10, 10),
    "committed": (10, 10),
    "committed, with a reset": (0, 0),
}
"""Where each form starts in the two partitions, of which each has ten records."""


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_starting_offsets_counts_where_the_group_has_no_offset(filled: Place, form: str) -> None:
    with Run(filled.options(**FORMS[form](filled))) as run:
        until(lambda: run.plan() is not None or filled.committed(), "it has its partitions", STILL_S)
        assert tuple(filled.committed().values()) == STARTS[form]


@pytest.mark.parametrize("form", ["earliest", "latest", "offsets", "a time", "times by partition", "committed"])
def test_no_form_of_starting_offsets_counts_where_the_group_has_one(filled: Place, form: str) -> None:
    commit(filled, 2, 8)
    with Run(filled.options(**FORMS[form](filled))) as run:
        assert run.read(10) == [*range(4, 17, 2), 17, 18, 19]


def test_a_time_without_a_younger_record_is_an_error_unless_the_strategy_says_otherwise(filled: Place) -> None:
    late = filled.options(startingOffsets=None, startingTimestamp=FIRST_MS + 3_600_000)
    with Run(late) as run, pytest.raises(OffsetError, match="startingOffsetsByTimestampStrategy"):
        run.read(1)
    assert filled.committed() == {}


def test_each_partition_is_decided_by_itself(filled: Place) -> None:
    one = filled.partitions()[0]
    filled.admin.alter_consumer_group_offsets(filled.group, {one: OffsetAndMetadata(8)}).all()
    with Run(filled.options(startingOffsets="earliest")) as run:
        assert run.read(12) == sorted([16, 18, *range(1, 20, 2)])


def test_after_a_lost_checkpoint_the_groups_offsets_count(filled: Place, halfway: Checkpoint) -> None:
    del halfway
    with Run(filled.options(startingOffsets="earliest"), Checkpoint()) as run:
        assert run.read(20) == list(range(20, 40))


def test_a_checkpoint_lost_with_a_batch_under_way_reads_that_batch_again(filled: Place, halfway: Checkpoint) -> None:
    unfinished(filled.options(maxOffsetsPerTrigger=6), halfway)
    with Run(filled.options(startingOffsets="latest"), Checkpoint()) as run:
        assert run.read(20) == list(range(20, 40))


def test_to_begin_anew_takes_a_fresh_checkpoint_and_a_group_without_offsets(filled: Place, halfway: Checkpoint) -> None:
    del halfway
    filled.admin.delete_consumer_groups([filled.group]).all()
    with Run(filled.options(startingOffsets="earliest"), Checkpoint()) as run:
        assert run.read(40) == list(range(40))


@pytest.mark.parametrize(("to", "left"), [("--to-earliest", range(40)), ("--to-latest", range(40, 44))])
def test_a_reset_while_the_query_is_down_counts(
    filled: Place, halfway: Checkpoint, to: str, left: range, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--topic", filled.topic(), "--bootstrap-server", filled.servers]
    assert kohort(["groups", "reset-offsets", filled.group, to, "--execute", *where]) == 0, capsys.readouterr().err
    if to == "--to-latest":
        stamped(filled, left)
    with Run(filled.options(), halfway) as run:
        assert run.read(len(left)) == list(left)


@pytest.mark.parametrize("planned", ["owned", "none"])
@pytest.mark.parametrize(("to", "left"), [(3, range(6, 40)), (15, range(30, 40))], ids=["back", "forward"])
def test_a_reset_counts_before_an_unfinished_batch(
    filled: Place, halfway: Checkpoint, planned: str, to: int, left: range
) -> None:
    unfinished(filled.options(maxOffsetsPerTrigger=6), halfway)
    commit(filled, to, to)
    with Run(filled.options(plannedRanges=planned), halfway) as run:
        assert run.read(len(left)) == list(left)


@pytest.mark.parametrize(
    ("to", "read"),
    [
        (3, sorted([*range(20, 26), *range(6, 40)])),
        (12, [*range(20, 40)]),
        (15, sorted([*range(20, 26), *range(30, 40)])),
    ],
    ids=["back", "into the batch", "forward"],
)
def test_all_planned_ranges_are_read_again_and_then_a_reset_counts(
    filled: Place, halfway: Checkpoint, to: int, read: list[int]
) -> None:
    unfinished(filled.options(maxOffsetsPerTrigger=6), halfway)
    commit(filled, to, to)
    with Run(filled.options(plannedRanges="all"), halfway) as run:
        assert run.read(len(read)) == read


def test_offsets_that_were_saved_and_put_back_count(filled: Place, halfway: Checkpoint) -> None:
    """The administrator's copy carries the query's own stamp, of the batch before last."""
    saved = filled.admin.list_consumer_group_offsets(filled.group, filled.partitions()).all()
    with Run(filled.options(maxOffsetsPerTrigger=6), halfway) as run:
        assert run.read(20) == list(range(20, 40))
    back = {tp: position for tp, position in saved.items() if position is not None}
    assert {CommitStamp.from_metadata(position.metadata) is not None for position in back.values()} == {True}
    filled.admin.alter_consumer_group_offsets(filled.group, back).all()
    with Run(filled.options(), halfway) as run:
        assert run.read(20) == list(range(20, 40))


@pytest.mark.parametrize(("metadata", "left"), [("kept", 0), ("", 20)], ids=["with", "without"])
def test_saved_offsets_of_just_before_the_last_batch_count_without_their_metadata(
    filled: Place, halfway: Checkpoint, metadata: str, left: int
) -> None:
    saved = filled.admin.list_consumer_group_offsets(filled.group, filled.partitions()).all()
    with Run(filled.options(), halfway) as run:
        assert run.read(20) == list(range(20, 40))
    kept = {position.metadata for position in saved.values() if position is not None}
    commit(filled, 10, 10, kept.pop() if metadata else "")
    with Run(filled.options(), halfway) as run:
        assert len(run.read(left)) == left
    assert filled.committed() == {0: 20, 1: 20}


@pytest.mark.parametrize("place", ["classic", "consumer", "push"], indirect=True)
def test_a_reset_while_members_run_is_refused(filled: Place) -> None:
    with Run(filled.options()) as run:
        assert run.read(20) == list(range(20))
        with pytest.raises(KafkaError):
            commit(filled, 0, 0)
        with pytest.raises(KafkaError):
            filled.admin.delete_consumer_group_offsets(filled.group, filled.partitions()).all()
        assert filled.committed() == {0: 10, 1: 10}
        stamped(filled, range(20, 24))
        assert run.read(4) == list(range(20, 24))


def test_a_reset_while_assigned_partitions_are_read_is_overwritten(filled: Place) -> None:
    with Run(filled.options(**assigned(filled))) as run:
        assert run.read(20) == list(range(20))
        commit(filled, 0, 0)
        stamped(filled, range(20, 24))
        assert run.read(4) == list(range(20, 24))
    assert filled.committed() == {0: 12, 1: 12}


@pytest.mark.parametrize("strict", [True, False], ids=["fail", "go on"])
@pytest.mark.parametrize("why", ["retention", "a reset beyond the end"])
def test_an_offset_without_records_is_data_loss(filled: Place, halfway: Checkpoint, strict: bool, why: str) -> None:
    """Retention took what was not read yet, or the group was set beyond the end."""
    if why == "retention":
        filled.admin.delete_records(dict.fromkeys(filled.partitions(), 15)).all()
    else:
        commit(filled, 77, 77)
    with Run(filled.options(failOnDataLoss=str(strict).lower()), halfway) as run:
        if strict:
            with pytest.raises(OffsetError, match="failOnDataLoss=false goes on at"):
                run.read(1)
        elif why == "retention":
            assert run.read(10) == list(range(30, 40))
        else:
            assert run.read(0) == []
            assert filled.committed() == {0: 20, 1: 20}, "the ends"
            stamped(filled, range(40, 44))
            assert run.read(4) == list(range(40, 44))


@pytest.mark.parametrize("strict", [True, False], ids=["fail", "go on"])
def test_a_leader_that_was_paused_takes_no_records_away(
    filled: Place, halfway: Checkpoint, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    """The old leader wakes as if still leader, and its log ends before records read from its successor."""
    stale, real = iter(range(3)), RangeReader.current_offsets

    def asleep(self: RangeReader, wanted: Mapping[TopicPartition, When]) -> dict[TopicPartition, OffsetAndTimestamp]:
        found = real(self, wanted)
        if set(wanted.values()) == {"latest"} and next(stale, None) is not None:
            found = {tp: replace(at, offset=3) for tp, at in found.items()}
        return found

    monkeypatch.setattr(RangeReader, "current_offsets", asleep)
    with Run(filled.options(failOnDataLoss=str(strict).lower()), halfway) as run:
        assert run.read(20) == list(range(20, 40))
    assert next(stale, None) is None


GROUPED = pytest.mark.parametrize("grouped", [True, False], ids=["group", "alone"])
START = pytest.mark.parametrize("start", ["latest", "offsets"])


def starting(place: Place, grouped: bool, start: str) -> dict[str, Any]:
    return FORMS[start](place) | ({} if grouped else {"group.id": None})


def has_started(run: Run, place: Place, grouped: bool) -> list[int]:
    """Triggers until the query has its partitions; gives what it read."""
    values: list[int] = []

    def done() -> bool:
        planned = run.plan()
        if planned is not None:
            values.extend(run.finish(planned))
        return planned is None and bool(place.committed() if grouped else run.checkpoint.finished)

    until(done, "it has its partitions", STILL_S)
    return values


@GROUPED
@START
@pytest.mark.parametrize("down", [False, True], ids=["running", "down"])
def test_a_new_partition_is_read_from_its_beginning(filled: Place, grouped: bool, start: str, down: bool) -> None:
    log, options = Checkpoint(), filled.options(**starting(filled, grouped, start))
    with Run(options, log) as run:
        has_started(run, filled, grouped)
        if not down:
            grow(filled, 3)
            only_third(filled, range(100, 106))
            assert run.read(6) == list(range(100, 106))
            return
        if not log.finished:
            filled.produce([20, 21])
            run.read(2)
    grow(filled, 3)
    only_third(filled, range(100, 106))
    with Run(options, log) as run:
        assert run.read(6) == list(range(100, 106))


def only_third(place: Place, values: range) -> None:
    with Producer(place.servers) as producer:
        for value in values:
            producer.send(place.topic(), b"%d" % value, partition=2)


@GROUPED
@pytest.mark.parametrize("down", [False, True], ids=["running", "down"])
def test_a_new_topic_of_the_pattern_is_read_from_its_beginning(filled: Place, grouped: bool, down: bool) -> None:
    pattern = {"subscribe": None, "subscribePattern": f"t-{filled.name}-.*"}
    log, options = Checkpoint(), filled.options(**(starting(filled, grouped, "latest") | pattern))
    with Run(options, log) as run:
        assert has_started(run, filled, grouped) == []
        if not down:
            filled.make("b")
            filled.produce(range(6), "b")
            assert run.read(6) == list(range(6))
            return
        filled.produce([20, 21])
        assert run.read(2) == [20, 21]
    filled.make("b")
    filled.produce(range(6), "b")
    with Run(options, log) as run:
        assert run.read(6) == list(range(6))


@GROUPED
@pytest.mark.parametrize("down", [False, True], ids=["running", "down"])
def test_the_first_topic_of_a_pattern_that_matched_nothing_is_read_from_its_beginning(
    place: Place, grouped: bool, down: bool
) -> None:
    pattern = {"subscribe": None, "subscribePattern": f"t-{place.name}-.*"}
    log, options = Checkpoint(), place.options(**(starting(place, grouped, "latest") | pattern))
    with Run(options, log) as run:
        until(lambda: run.plan() is not None, "an empty batch notes that nothing was there", STILL_S)
        log.finished += 1
        if not down:
            place.make()
            place.produce(range(6))
            assert run.read(6) == list(range(6))
            return
    place.make()
    place.produce(range(6))
    with Run(options, log) as run:
        assert run.read(6) == list(range(6))


def test_a_new_partition_and_a_lost_checkpoint_start_where_the_options_say(filled: Place, halfway: Checkpoint) -> None:
    del halfway
    grow(filled, 3)
    only_third(filled, range(100, 106))
    with Run(filled.options(startingOffsets="latest"), Checkpoint()) as run:
        assert run.read(20) == list(range(20, 40))
        only_third(filled, range(106, 108))
        assert run.read(2) == [106, 107]


def test_assigned_partitions_with_a_group_follow_the_group(filled: Place) -> None:
    log, options = Checkpoint(), filled.options(**assigned(filled))
    with Run(options, log) as run:
        assert run.read(20) == list(range(20))
    commit(filled, 5, 10)
    with Run(options, log) as run:
        assert run.read(5) == list(range(10, 20, 2))
    with Run(options, Checkpoint()) as run:
        filled.produce([20, 21])
        assert run.read(2) == [20, 21]


@pytest.mark.parametrize("chosen", ["subscribe", "assign"])
def test_without_a_group_only_the_checkpoint_counts(filled: Place, chosen: str) -> None:
    commit(filled, 3, 3)
    more = assigned(filled) if chosen == "assign" else {}
    log, options = Checkpoint(), filled.options(**({"group.id": None} | more))
    with Run(options, log) as run:
        assert run.read(20) == list(range(20))
    stamped(filled, range(20, 24))
    with Run(options, log) as run:
        assert run.read(4) == list(range(20, 24))
    with Run(options, Checkpoint()) as run:
        assert run.read(24) == list(range(24))
    assert filled.committed() == {0: 3, 1: 3}


def test_a_query_without_a_group_notes_where_it_started(filled: Place) -> None:
    log, options = Checkpoint(), filled.options(**{"group.id": None, "startingOffsets": "latest"})
    with Run(options, log) as run:
        until(lambda: run.plan() is not None, "an empty batch is noted", STILL_S)
        log.finished += 1
    stamped(filled, range(20, 24))
    with Run(options, log) as run:
        assert run.read(4) == list(range(20, 24))


def test_committed_with_no_reset_needs_offsets(filled: Place) -> None:
    options = filled.options(**{"startingOffsets": "committed", "kafka.auto.offset.reset": "none"})
    with Run(options) as run, pytest.raises(OffsetError, match="has no offset for"):
        run.read(1)


def test_committed_needs_a_group(filled: Place) -> None:
    with (
        Run(filled.options(**{"group.id": None, "startingOffsets": "committed"})) as run,
        pytest.raises(InvalidInputError, match="committed with a group.id"),
    ):
        run.read(1)


def test_available_now_shares_with_a_continuous_query_of_its_group(filled: Place) -> None:
    """The query ends with its own share read; the other query has the rest."""
    with Run(filled.options()) as continuous:
        assert continuous.read(20) == list(range(20))
        stamped(filled, range(20, 40))
        log = Checkpoint()
        with Run(filled.options(), log, now=True) as now:
            stamped(filled, range(40, 44))
            share = now.read(10)
        assert share in (list(range(20, 40, 2)), list(range(21, 40, 2)))
        rest = continuous.read(14)
        assert sorted(share + rest) == list(range(20, 44))
        stamped(filled, range(44, 46))
        assert continuous.read(2) == [44, 45]
        stamped(filled, range(46, 48))
        with Run(filled.options(), log, now=True) as now:
            share = now.read(1)
        assert sorted(share + continuous.read(1)) == [46, 47]


@pytest.mark.parametrize(("start", "values"), [(None, range(20)), ("committed", range(6, 20))])
def test_a_batch_read_asks_the_group_only_for_committed(filled: Place, start: str | None, values: range) -> None:
    commit(filled, 3, 3)
    reader = batch_reader(filled.options(startingOffsets=start))
    assert sorted(values_of(reader, reader.partitions())) == list(values)
    assert filled.committed() == {0: 3, 1: 3}


@pytest.mark.parametrize(("reset", "count"), [(None, 0), ("earliest", 20)])
def test_a_batch_read_from_committed_without_offsets(filled: Place, reset: str | None, count: int) -> None:
    more = {"startingOffsets": "committed"} | ({"kafka.auto.offset.reset": reset} if reset else {})
    reader = batch_reader(filled.options(**more))
    assert sorted(values_of(reader, reader.partitions())) == list(range(count))
