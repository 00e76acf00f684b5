"""Dead letters of queries of a region: rows that a sink can't take, and values that do not decode."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from tests.spark.conftest import SESSION_MS, Stage
from tests.support.waiting import LAST_RESORT

from kohort import Producer
from kohort.errors import InvalidInputError
from kohort.region import ParquetFolder, RowRefusedError, SqlTable
from kohort.region.sinks import Sink
from kohort.region.sinks.dead_letters import LETTERS
from kohort.region.staged import StagedKey
from kohort.spark import SparkRegion
from kohort.spark.region.query_factory import LETTER
from kohort.spark.region.query_spec import check_query_arguments
from kohort.spark.region.staging import QueryOutput, StagingTask

REGION = UUID(int=5)
SCHEMA = pa.schema([pa.field("n", pa.int64())])
SOURCE = {"subscribe": "t", "group.id": "g"}
TYPED = SOURCE | {"valueFormat": "json", "valueSchema": "id INT"}


def output(folder: Path, *, divides: bool = True) -> QueryOutput:
    sink = SqlTable(f"sqlite:///{folder}/out.db", "out", mode="update", keys=["n"]).bind("r", REGION)
    letters = ParquetFolder(folder / "bad").bind("r", REGION)
    sink.check(SCHEMA)
    letters.check(LETTERS)
    return QueryOutput(sink, letters, divides)


def staged(task: StagingTask, *batches: pa.RecordBatch) -> list[tuple[StagedKey, int]]:
    found = []
    for reported in task.stage_batches(iter(batches), attempt=2):
        key = StagedKey.parse(reported.column("key")[0].as_py())
        assert key is not None
        found.append((key, reported.column("letters")[0].as_py()))
    return found


def rows_in(folder: Path) -> list[int]:
    with sqlite3.connect(folder / "out.db") as connection:
        return [row[0] for row in connection.execute("SELECT n FROM out ORDER BY n")]


def values_in(folder: Path, column: str) -> Counter[Any]:
    files = folder.glob("sequence=*/*.parquet")
    return Counter(value for file in files for value in pq.ParquetFile(file).read().column(column).to_pylist())


def letters_in(folder: Path) -> list[dict[str, Any]]:
    files = folder.glob("sequence=*/*.parquet")
    found = [letter for file in files for letter in pq.ParquetFile(file).read().to_pylist()]
    return sorted(found, key=lambda letter: str(letter["value"]))


def test_a_task_stages_its_bad_rows_under_a_key_of_their_own(tmp_path: Path) -> None:
    into = output(tmp_path)
    rows = pa.record_batch({"n": pa.array([1, None, 3, None], pa.int64())})
    (key, none), (letter_key, count) = staged(StagingTask(into, SCHEMA, REGION, 4, "q"), rows)
    assert (none, count) == (0, 2) and key != letter_key
    assert into.letters is not None
    into.sink.publish(1, [key])
    into.letters.publish(1, [letter_key])
    assert rows_in(tmp_path) == [1, 3]
    assert {(letter["row"], letter["member"]) for letter in letters_in(tmp_path / "bad")} == {('{"n": null}', "q")}


def test_a_task_whose_rows_are_good_stages_no_letters(tmp_path: Path) -> None:
    [(_, none)] = staged(StagingTask(output(tmp_path), SCHEMA, REGION, 4, "q"), pa.record_batch({"n": [1, 2]}))
    assert none == 0


def test_a_bad_row_fails_the_task_where_it_is_to(tmp_path: Path) -> None:
    task = StagingTask(output(tmp_path, divides=False), SCHEMA, REGION, 4, "q")
    with pytest.raises(RowRefusedError, match="row 2 of 2"):
        staged(task, pa.record_batch({"n": pa.array([1, None], pa.int64())}))


def test_records_that_do_not_decode_are_letters_and_no_rows(tmp_path: Path) -> None:
    record = {"topic": "t", "partition": 3, "offset": 8, "timestamp": None, "key": b"k", "value": b"{", "reason": "no"}
    kind = pa.struct([pa.field(name, LETTERS.field(name).type) for name in record])
    batch = pa.record_batch({"n": pa.array([1, None], pa.int64()), LETTER: pa.array([None, record], kind)})
    into = output(tmp_path)
    (key, _), (letter_key, count) = staged(StagingTask(into, SCHEMA, REGION, 4, "q"), batch)
    assert count == 1 and into.letters is not None
    into.sink.publish(1, [key])
    into.letters.publish(1, [letter_key])
    assert rows_in(tmp_path) == [1]
    assert letters_in(tmp_path / "bad") == [record | {"row": None, "member": "q"}]


def rows(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("value.id AS id", "partition", "offset", "topic")


def declared(source: dict[str, str], **options: Any) -> Any:
    into: Sink = ParquetFolder("/out")
    return check_query_arguments("q", rows, source, into, options, ("127.0.0.1:1", {}))  # type: ignore[arg-type]


def test_a_source_gives_what_does_not_decode_only_where_the_query_has_a_place_for_it() -> None:
    there: dict[str, Any] = {"on_bad_record": "dead-letter", "dead_letters": ParquetFolder("/bad")}
    ((raw, _),) = declared(TYPED | {"columns": "value"}, **there).sources
    assert raw["onBadRecord"] == "column"
    assert raw["columns"] == "value,topic,partition,offset,timestamp,key,badValue,badReason"
    assert declared(TYPED | {"columns": "value"}, **there).undecoded == (("value",),)
    for source, options in (
        (TYPED, {}), (SOURCE, there), (TYPED | {"onBadRecord": "null"}, there), (TYPED | {"onBadRecord": "fail"}, there)
    ):  # fmt: skip
        found = declared(source, **options)
        assert found.undecoded == ((),) and found.sources[0][0].get("onBadRecord") == source.get("onBadRecord")


def test_dead_letters_without_a_place_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"dead_letters=.*ParquetFolder\(path\)"):
        declared(SOURCE, on_bad_record="dead-letter")


GOOD, BARE, TORN = 40, 7, 5
"""Records in all; every so-manyth has no id, or is no JSON."""


def value_of(number: int) -> bytes:
    if number % TORN == 0:
        return b'{"id": %d' % number
    return json.dumps({"id": None if number % BARE == 0 else number}).encode()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.spark
@LAST_RESORT
def test_queries_put_aside_what_can_not_be_decoded_or_taken(spark: Any, stage: Stage) -> None:
    """Two queries share a place of dead letters: one reads typed values, the other casts bytes by itself."""
    with Producer(stage.servers) as producer:
        for number in range(GOOD):
            producer.send(stage.topic, value_of(number), b"k%d" % number, partition=number % 4)

    def by_itself(frame: DataFrame) -> DataFrame:
        return frame.selectExpr(
            "TRY_CAST(GET_JSON_OBJECT(CAST(value AS STRING), '$.id') AS INT) AS id", "partition", "offset", "topic"
        )

    region = SparkRegion(
        spark, f"r-{stage.topic}", stage.servers, folder=stage.folder / "checkpoints", checkpoint_every="300ms"
    )
    database, bad = stage.folder / "out.db", stage.folder / "bad"
    typed = {"valueFormat": "json", "valueSchema": "id INT"}
    for query, build, more in (("typed", rows, typed), ("cast", by_itself, {})):
        region.query(
            query, build,
            source={"subscribe": stage.topic, "group.id": f"{stage.group}-{query}",
                    "kafka.session.timeout.ms": str(SESSION_MS)} | more,
            into=SqlTable(f"sqlite:///{database}", query, mode="update", keys=["id"]), start="beginning",
            on_bad_record="dead-letter", dead_letters=ParquetFolder(bad),
        )  # fmt: skip
    with region:
        region.start()
        stage.until(lambda: values_in(bad, "member").total() >= 2 * len(BAD), "all dead letters are there")
        stage.until(lambda: region.describe().sequence == region.describe().published, "all is published")
        stage.until(
            lambda: {member.name: member.dead_letters for member in region.describe().members} == DEAD, "they count"
        )
        counts = {name: sum(member.metrics.dead_letters for member in started.members)
                  for name, started in region._running.items()}  # fmt: skip
    assert counts == DEAD
    with sqlite3.connect(database) as connection:
        for query in ("typed", "cast"):
            found = [row[0] for row in connection.execute(f"SELECT id FROM {query} ORDER BY id")]
            assert found == [number for number in range(GOOD) if number not in BAD], query
    letters = letters_in(bad)
    for query in ("typed", "cast"):
        reported = {number_of(letter): letter for letter in letters if letter["member"] == query}
        assert sorted(reported) == sorted(BAD)
        for number, letter in reported.items():
            assert letter["topic"] == stage.topic
            if query == "typed" and number % TORN == 0:
                assert (letter["value"], letter["key"], letter["row"]) == (value_of(number), b"k%d" % number, None)
                assert letter["reason"].startswith("the value is not of the declared type: ") and letter["timestamp"]
            else:
                assert letter["reason"] == "Null in columns that may not be: id"
                assert json.loads(letter["row"])["id"] is None


BAD = frozenset(number for number in range(GOOD) if number % TORN == 0 or number % BARE == 0)
DEAD = {"typed": len(BAD), "cast": len(BAD)}


def number_of(letter: dict[str, Any]) -> int:
    """The record's number, by where it is."""
    return int(letter["offset"]) * 4 + int(letter["partition"])
