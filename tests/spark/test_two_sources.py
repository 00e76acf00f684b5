"""A query with two sources: Spark plans one after the other, and asks for tasks when both have planned."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.spark.conftest import PARTITIONS, Sink, Stage
from tests.spark.queries import Place, declared, own_signals, place, values_of
from tests.support.waiting import LAST_RESORT, STILL_S, until

from kohort import Broker
from kohort.client.admin.values import NewTopic
from kohort.client.group.member import GroupMember
from kohort.client.producer.producer import Producer
from kohort.spark.data_source import KohortDataSource
from kohort.spark.source.read_twice import DoubleReads, find_double_reads
from kohort.spark.source.single_reader_lock import LoadCall, ReaderLock

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer", "push"])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with Kafka's own delay of a group's first rebalance."""
    with Broker(tmp_path_factory.mktemp("two-sources")) as broker:
        yield broker.bootstrap_servers


class AvailableNow:
    """A query of several sources with that trigger, by Spark's calls in Spark's order."""

    def __init__(self, sources: Sequence[dict[str, str]]) -> None:
        made = [KohortDataSource(options) for options in sources]
        self.readers: list[Any] = [source.streamReader(declared(source)) for source in made]
        self.values: list[int] = []

    def run(self) -> list[int]:
        """Until no source has anything new; what was read."""
        try:
            for reader in self.readers:
                reader.prepareForTriggerAvailableNow()
            starts = [json.dumps(reader.initialOffset()) for reader in self.readers]
            while True:
                ends = [
                    json.dumps(reader.latestOffset(json.loads(start), reader.getDefaultReadLimit()))
                    for reader, start in zip(self.readers, starts, strict=True)
                ]
                if ends == starts:
                    return sorted(self.values)
                self._batch(starts, ends)
                starts = ends
        finally:
            for reader in self.readers:
                reader.stop()

    def _batch(self, starts: Sequence[str], ends: Sequence[str]) -> None:
        for reader, start, end in zip(self.readers, starts, ends, strict=True):
            if start != end:
                tasks = reader.partitions(json.loads(start), json.loads(end))
                self.values += values_of(*pickle.loads(pickle.dumps((reader, tasks))))


def filled(place: Place, letters: str) -> list[int]:
    """Topics of two partitions with twenty records each; all values are others."""
    for number, letter in enumerate(letters):
        place.make(letter)
        place.produce(range(20 * number, 20 * number + 20), letter)
    return list(range(20 * len(letters)))


@PROTOCOLS
@pytest.mark.parametrize("limit", [None, 6], ids=["in one batch", "in small batches"])
def test_two_topics_in_one_group_are_read_whole(place: Place, protocol: str, limit: int | None) -> None:
    every = filled(place, "ab")
    common = {"group.protocol": protocol, "maxOffsetsPerTrigger": limit}
    query = AvailableNow([place.options(subscribe=place.topic(letter), **common) for letter in "ab"])
    assert query.run() == every
    assert [place.committed(letter) for letter in "ab"] == [{0: 10, 1: 10}] * 2


@PROTOCOLS
def test_one_topic_shared_by_two_sources_is_read_once(place: Place, protocol: str) -> None:
    """Where nobody can know that both are of one query, as on Spark Connect; a batch gives up what it has not read."""
    every = filled(place, "a")
    query = AvailableNow([place.options(**{"group.protocol": protocol}) for _ in "ab"])
    assert query.run() == every
    assert place.committed() == {0: 10, 1: 10}


@PROTOCOLS
def test_two_queries_with_the_same_two_groups_in_other_orders_do_not_wait_for_each_other(
    place: Place, protocol: str
) -> None:
    every = filled(place, "ab")
    sources = [
        place.options(subscribe=place.topic(letter), maxOffsetsPerTrigger=4)
        | {"group.id": f"{place.group}-{letter}", "group.protocol": protocol}
        for letter in "ab"
    ]
    begin = threading.Barrier(2)

    def run(order: Sequence[dict[str, str]]) -> list[int]:
        query = AvailableNow(order)
        begin.wait(STILL_S)
        return query.run()

    with ThreadPoolExecutor(2) as threads:
        read = [threads.submit(run, order) for order in (sources, sources[::-1])]
        assert sorted(value for query in read for value in query.result()) == every


@PROTOCOLS
def test_a_batch_that_was_released_leaves_to_others_what_is_theirs(place: Place, protocol: str) -> None:
    """Another member comes between a plan and its tasks, and nobody asks for these for as long as it waits."""
    every = filled(place, "a")
    settings = {"group.protocol": protocol, "plannedRanges": "all"}
    source = KohortDataSource(place.options(**settings))
    reader: Any = source.streamReader(declared(source))
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert [span["end"] for span in end["topics"][place.topic()].values()] == [10, 10]
        with GroupMember(
            place.servers, place.group, topics=[place.topic()], group_protocol=protocol, heartbeat_interval_ms=100
        ) as other:
            until(lambda: other.owns() and len(other.assignment().partitions) == 1, "it gets its share", STILL_S)
            (theirs,) = other.assignment().partitions
            mine = values_of(reader, reader.partitions(start, end))
            assert sorted(mine) == [value for value in every if value % 2 != theirs.partition]
            assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end, "its own share is read"
            assert place.committed()[1 - theirs.partition] == 10
            assert place.committed().get(theirs.partition, 0) == 0
        again = values_of(*_next(reader, end))
        assert sorted(mine + again) == every
    finally:
        reader.stop()


def _next(reader: Any, start: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The next batch, as soon as there is one."""
    found: list[Any] = []

    def planned() -> bool:
        found.append(reader.latestOffset(start, reader.getDefaultReadLimit()))
        return bool(found[-1] != start)

    until(planned, "a batch is planned", STILL_S)
    return reader, reader.partitions(start, found[-1])


HERE = {"kafka.bootstrap.servers": "a:1,b:2", "group.id": "g"}


@pytest.mark.parametrize(
    ("second", "twice"),
    [
        ({"subscribe": "t"}, True),
        ({"subscribe": "u, t"}, True),
        ({"subscribe": "u"}, False),
        ({"subscribePattern": "t.*"}, True),
        ({"subscribePattern": "u.*"}, False),
        ({"subscribe": "t", "group.id": "h"}, False),
        ({"subscribe": "t", "kafka.bootstrap.servers": "b:2,a:1"}, True),
        ({"subscribe": "t", "kafka.bootstrap.servers": "c:3"}, False),
        ({"subscribe": "t", "kafka.bootstrap.servers": "b:2"}, True),
        ({"assign": '{"t": [0]}'}, False),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "many"}, False),
    ],
)
def test_a_topic_that_two_loads_share_in_one_group_is_read_twice(second: dict[str, str], twice: bool) -> None:
    loads = [HERE | {"subscribe": "t"}, HERE | second, HERE | {"subscribe": "v"}]
    assert find_double_reads(loads) == (loads[:2] if twice else [])


@pytest.mark.parametrize(
    ("first", "second", "twice"),
    [
        ("orders.*", "^orders", True),
        ("^orders", "^orders-eu", True),
        ("^orders-us", "^orders-eu", False),
        (r"^a\.cdc", r"^b\.cdc", False),
        ("^ab*", "^ac", True),
        ("^a|b", "^b", True),
        (".*", "^b", True),
    ],
)
def test_two_patterns_of_one_group_are_apart_only_if_names_begin_otherwise(
    first: str, second: str, twice: bool
) -> None:
    loads = [HERE | {"subscribePattern": pattern} for pattern in (first, second)]
    assert bool(find_double_reads(loads)) == twice


def test_a_query_that_is_started_again_at_once_is_refused_again() -> None:
    """Spark tells of the end of the first run after the second one has started."""
    loads = [HERE | {"subscribe": "t", "group.id": "again"}] * 2
    name = f"twice-{LoadCall.from_options(loads[0]).likeness}"
    twice = DoubleReads()
    for run in ("first", "second"):
        twice.mark_run_sources(run, loads)
    twice.forget_run("first")
    assert ReaderLock.is_held(name)
    twice.forget_run("second")
    assert not ReaderLock.is_held(name)


@pytest.mark.spark
@pytest.mark.parametrize("form", ["two loads", "one load"])
def test_a_query_that_reads_a_topic_twice_in_one_group_is_refused(spark: Any, stage: Stage, form: str) -> None:
    """A self-union or a self-join, as written for Spark's own source: no row is read, nothing is committed."""
    stage.produce(8)
    first, second = (spark.readStream.format("kohort").options(**stage.options()).load() for _ in range(2))
    if form == "two loads":
        frame = first.union(second)
    else:
        frame = first.alias("l").join(first.alias("r"), "value").select("l.*")
    sink = Sink()
    query = start(stage, frame, sink)
    words = rf"(?s)reads {stage.topic} twice in the group {stage.group}.*a group.id of its own"
    with pytest.raises(Exception, match=words):
        stage.finished(query)
    assert sink.every == [] and stage.committed() == {}
    third = spark.readStream.format("kohort").options(**stage.options()).load()
    stage.finished(start(stage, third, sink))
    assert sink.values() == list(range(8)), "the options alone are no fault"


@pytest.mark.spark
def test_a_union_of_two_topics_in_one_group_is_read_whole(spark: Any, stage: Stage) -> None:
    stage.produce(8)
    other = f"{stage.topic}-other"
    stage.admin.create_topics([NewTopic(other, PARTITIONS)]).all()
    with Producer(stage.servers) as producer:
        for number in range(8, 16):
            producer.send(other, b"%d" % number, partition=number % PARTITIONS)
    topics = (stage.topic, other)
    loads = [spark.readStream.format("kohort").options(**stage.options(subscribe=topic)).load() for topic in topics]
    sink = Sink()
    stage.finished(start(stage, loads[0].union(loads[1]), sink))
    assert sink.values() == list(range(16))


def start(stage: Stage, frame: Any, sink: Sink) -> Any:
    """An AvailableNow query with a fresh checkpoint; again where the machine was too busy to start its sources."""
    from tests.spark.conftest import started
    from tests.support.waiting import ATTEMPTS, TOO_SLOW

    stage.signs["batches"] = lambda: len(sink.every)
    for number in range(ATTEMPTS):
        folder = stage.folder / f"checkpoint-{len(sink.every)}-{number}"
        query = (
            frame.writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(folder))
            .trigger(availableNow=True)
            .start()
        )
        stage.until(lambda query=query: started(query), "the query starts")
        if TOO_SLOW not in str(query.exception()):
            return query
    raise AssertionError("Spark's Python processes did not come up")
