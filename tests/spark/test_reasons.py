"""Messages of a query about its start and of what went wrong: the reason first, with the names that help."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from tests.spark.queries import Place, Run, batch_reader, declared, own_signals, place
from tests.support.waiting import LAST_RESORT

from kohort.errors import InvalidInputError, KafkaError
from kohort.spark.data_source import KohortDataSource

__all__ = ["own_signals", "place"]
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("own_signals"), LAST_RESORT]


@pytest.fixture
def read_once(place: Place) -> Place:
    """Ten records in two partitions, all of them read and committed by the group."""
    place.make()
    place.produce(range(10))
    with Run(place.options()) as run:
        assert run.read(10) == list(range(10))
    assert place.committed() == {0: 5, 1: 5}
    return place


def test_missing_topic_names_the_nearest_that_exists(place: Place) -> None:
    place.make("orders")
    misspelt = place.topic("ordres")
    with pytest.raises(KafkaError, match=f"no topic {misspelt} at .*; did you mean {place.topic('orders')}"):
        batch_reader(place.options(subscribe=misspelt, **{"group.id": None})).partitions()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "startingOffsets=earliest applies to no partition"),
        ({"startingOffsets": None}, "startingOffsets=latest, the default, applies to no partition"),
        ({"startingOffsets": None, "startingTimestamp": "0"}, "startingTimestamp=0 applies to no partition"),
        ({"startingOffsets": "committed"}, None),
        ({"group.id": "another"}, None),
    ],
    ids=["earliest", "default", "timestamp", "committed", "another group"],
)
def test_a_fresh_query_says_that_its_groups_offsets_count_before_its_start(
    read_once: Place, caplog: pytest.LogCaptureFixture, more: dict[str, Any], said: str | None
) -> None:
    caplog.clear()
    if "group.id" in more:
        more = {"group.id": f"{read_once.group}-2"}
    with Run(read_once.options(**more)) as run:
        assert run.read(10 if "group.id" in more else 0) == (list(range(10)) if "group.id" in more else [])
    notes = [record.getMessage() for record in caplog.records if "has committed offsets" in record.getMessage()]
    if said is None:
        assert notes == []
        return
    (note,) = notes
    topic, group = read_once.topic(), read_once.group
    assert (
        f": group {group} has committed offsets for all 2 partitions of {topic} that this query owns: {said}. " in note
    )
    assert "use a new group.id, or `kohort groups reset-offsets" in note


def test_a_query_that_continues_with_its_checkpoint_says_nothing_of_that(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.make()
    place.produce(range(10))
    with Run(place.options()) as run:
        run.read(10)
    caplog.clear()
    with Run(place.options(), run.checkpoint) as again:
        assert again.read(0) == []
    assert "has committed offsets" not in caplog.text


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
@pytest.mark.parametrize("group", [True, False], ids=["group", "alone"])
def test_offsets_of_what_is_not_read_are_refused(place: Place, option: str, group: bool) -> None:
    place.make()
    topic = place.topic()
    named = f'{{"{topic}": {{"0": 0, "1": 0, "7": 0}}, "another": {{"0": 0}}}}'
    given = place.options(**{"startingOffsets": None, option: named}, **({} if group else {"group.id": None}))
    words = f"{option} names another-0, {topic}-7, which is not read: .*{topic}-0, {topic}-1"
    with Run(given) as run, pytest.raises(InvalidInputError, match=words):
        run.read(1)
    if not group:
        with pytest.raises(InvalidInputError, match=words):
            batch_reader(given).partitions()
        ends = place.options(**{"endingOffsets": named, "group.id": None})
        with pytest.raises(InvalidInputError, match="endingOffsets names another-0"):
            batch_reader(ends).partitions()


def frames_of(error: KafkaError) -> list[str]:
    """The functions of this package in an error's traceback."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__) if "/kohort/" in frame.filename.lower()]


def test_an_error_on_purpose_has_no_frames_of_ours_before_its_reason(place: Place) -> None:
    given = place.options(**{"group.id": None})  # its topic does not exist
    with Run(given) as run, pytest.raises(KafkaError, match="no topic t-") as stream:
        run.plan()
    with pytest.raises(KafkaError, match="no topic t-") as batch:
        batch_reader(given).partitions()
    with pytest.raises(KafkaError, match="unknown option") as schema:
        KohortDataSource(given | {"startingoffset": "x"}).schema()
    source = KohortDataSource(given | {"endingoffsets": "latest"})
    reader: Any = source.streamReader(declared(KohortDataSource(given)))
    with pytest.raises(KafkaError, match="endingOffsets") as refused:
        reader.initialOffset()
    for caught in (stream, batch, schema):
        assert frames_of(caught.value) == ["call_with_plain_errors"] and caught.value.__suppress_context__
    assert frames_of(refused.value) == ["initialOffset", "_refuse"]


def test_a_row_for_a_partition_that_is_not_there_names_topic_and_number(place: Place) -> None:
    import pyarrow as pa

    place.make()
    schema = StructType([StructField("value", StringType()), StructField("partition", IntegerType())])
    source = KohortDataSource({"kafka.bootstrap.servers": place.servers, "topic": place.topic()})
    rows = pa.RecordBatch.from_pydict({"value": ["a", "b"], "partition": pa.array([1, 7], pa.int32())})
    words = f"topic {place.topic()}, of rows whose column `partition` says 1 to 7: row 1: no such partition; .* has 2"
    with pytest.raises(InvalidInputError, match=words):
        source.writer(schema, overwrite=False).write(iter([rows]))


def test_a_login_by_delegation_token_is_refused() -> None:
    jaas = 'x.ScramLoginModule required username="a" password="b" tokenauth="true";'
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "subscribe": "t",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": jaas,
    }
    with pytest.raises(InvalidInputError, match=r'kafka\.sasl\.jaas\.config has tokenauth="true"'):
        KohortDataSource(given).schema()
