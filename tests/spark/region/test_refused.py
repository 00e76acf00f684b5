"""Queries that cannot be in a region: an error before the first batch says what is wrong, and what to do instead."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from tests.spark.conftest import Stage

from kohort import Consumer
from kohort.errors import InvalidInputError, KafkaError, NotAuthorizedError
from kohort.region.admission import Applicant
from kohort.region.region import Region
from kohort.region.sinks.parquet_folder import ParquetFolder
from kohort.spark import SparkRegion
from kohort.spark.region import spark_region

SOURCE = {"subscribe": "t", "group.id": "g"}
NOBODY = "127.0.0.1:1"
"""No broker: what is told here is told without one."""


def lines(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("CAST(value AS STRING) AS line")


def counted(frame: DataFrame) -> DataFrame:
    return lines(frame).groupBy("line").count()


def without_repeats(frame: DataFrame) -> DataFrame:
    return lines(frame).dropDuplicates(["line"])


@pytest.fixture
def region(spark: SparkSession, tmp_path: Path) -> Iterator[SparkRegion]:
    with SparkRegion(spark, "r", NOBODY, folder=tmp_path / "regions") as made:
        yield made


DECLARED: dict[str, tuple[dict[str, Any], str]] = {
    "complete mode": ({"output_mode": "complete"}, "no sequence can hold"),
    "a trigger": ({"trigger": {"availableNow": True}}, r"run\(until='caught-up'\)"),
    "available now": ({"available_now": True}, r"run\(until='caught-up'\)"),
    "once": ({"once": True}, r"run\(until='caught-up'\)"),
    "async progress tracking": ({"async_progress_tracking": True}, "logs"),
    "an unknown setting": ({"beginning": "end"}, "knows no beginning: it knows start"),
    "an unknown answer to a rebalance": ({"on_rebalance": "stop"}, "'checkpoint' or 'reset'"),
    "a start that can't be": ({"start": "offset 5"}, "start"),
    "region by hand": ({"source": SOURCE | {"region": "r"}}, "started by SparkRegion"),
    "regionSeat by hand": ({"source": SOURCE | {"regionSeat": "00"}}, "SparkRegion sets it"),
    "assign": ({"source": {"assign": '{"t": [0]}', "group.id": "g"}}, "subscribe"),
    "startingOffsets": ({"source": SOURCE | {"startingOffsets": "earliest"}}, "start="),
    "plannedRanges": ({"source": SOURCE | {"plannedRanges": "all"}}, "reset together"),
    "checkpointLocation": ({"source": SOURCE | {"checkpointLocation": "/c"}}, "folder"),
    "asynchronous logs": ({"source": SOURCE | {"asyncProgressTrackingEnabled": "true"}}, "logs"),
    "an unknown option": ({"source": SOURCE | {"maxOffsetPerTrigger": "5"}}, "did you mean maxOffsetsPerTrigger"),
    "no group": ({"source": {"subscribe": "t"}}, "group.id"),
    "no source": ({"source": []}, "no source"),
    "two sources in one group": ({"source": [SOURCE, SOURCE]}, "group.id of its own"),
    "no sink": ({"into": "/data"}, r"ParquetFolder\(path\)"),
    "no function": ({"build": "SELECT 1"}, "a function"),
    "pinned without names": ({"state": "pinned"}, "go together"),
    "pinned among others": ({"state": "pinned", "queries": ["a", "b"]}, "'q' is one of them"),
    "names without pinned": ({"queries": ["q"]}, "go together"),
    "another state": ({"state": "shared"}, "'partial' or 'pinned'"),
    "the push protocol": ({"source": SOURCE | {"group.protocol": "push"}}, "no epoch to commit under"),
    "pinned in the consumer protocol": (
        {"state": "pinned", "queries": ["q"], "source": SOURCE | {"group.protocol": "consumer"}},
        "group.protocol=classic",
    ),
    "a name that is no folder": ({"name": "a/b"}, "folder"),
    "a name that is another folder": ({"name": ".."}, "folder"),
    "a name of another's source": ({"name": "q#2"}, "#"),
}


@pytest.mark.parametrize("what", DECLARED)
def test_as_it_is_declared(region: SparkRegion, tmp_path: Path, what: str) -> None:
    reported, match = DECLARED[what]
    given: dict[str, Any] = {"name": "q", "build": lines, "source": SOURCE, "into": ParquetFolder(tmp_path / "out")}
    with pytest.raises(InvalidInputError, match=match):
        region.query(**given | reported)
    region.query(**given)  # the name is free


def test_a_name_twice(region: SparkRegion, tmp_path: Path) -> None:
    region.query("q", lines, source=SOURCE, into=ParquetFolder(tmp_path / "out"))
    with pytest.raises(InvalidInputError, match="a query 'q' already"):
        region.query("q", lines, source=SOURCE, into=ParquetFolder(tmp_path / "other"))


@pytest.mark.parametrize("folder", ["s3a://bucket/regions", "hdfs://name/regions", "abfss://c@a.example/regions"])
def test_a_folder_without_hard_links(spark: SparkSession, folder: str) -> None:
    with pytest.raises(InvalidInputError, match="hard links"):
        SparkRegion(spark, "r", NOBODY, folder=folder)


def test_spark_connect(tmp_path: Path) -> None:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    remote: Any = object.__new__(ConnectSession)  # a connection of no server: it is told by its kind
    with pytest.raises(InvalidInputError, match="run the program where the driver runs"):
        SparkRegion(remote, "r", NOBODY, folder=tmp_path)


def test_names_and_settings_of_a_region(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="a region's name"):
        SparkRegion(spark, "a/b", NOBODY, folder=tmp_path)
    with pytest.raises(InvalidInputError, match="chekpoint_every"):
        SparkRegion(spark, "r", NOBODY, folder=tmp_path, chekpoint_every="5s")  # type: ignore[call-arg]
    with pytest.raises(InvalidInputError, match="checkpoint_every"):
        SparkRegion(spark, "r", NOBODY, folder=tmp_path, checkpoint_every="often")
    with SparkRegion(spark, "r", NOBODY, folder=tmp_path) as region:
        with pytest.raises(InvalidInputError, match="no query"):
            region.start()
        with pytest.raises(InvalidInputError, match="caught-up"):
            region.run(until="done")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="closed"):
        region.start()


def starts_itself(frame: DataFrame) -> Any:
    return lines(frame).writeStream.format("noop").option("checkpointLocation", "/tmp/never").start()


def of_a_socket(frame: DataFrame) -> DataFrame:
    text = frame.sparkSession.readStream.format("socket").option("host", "127.0.0.1").option("port", 9).load()
    return lines(frame).union(text)


def of_files_that_go(how: str) -> Callable[[DataFrame], DataFrame]:
    def build(frame: DataFrame) -> DataFrame:
        with tempfile.TemporaryDirectory() as folder:
            files = frame.sparkSession.readStream.option("CLEANsource", how).option("sourceArchiveDir", "/archive")
            return lines(frame).union(files.text(folder))

    return build


def replacing(folder: Path, *keys: str) -> ParquetFolder:
    """A sink that says that it replaces rows."""
    sink: Any = ParquetFolder(folder)
    sink.mode, sink.keys = "update", keys
    return sink  # type: ignore[no-any-return]


LOOKED_AT: dict[str, tuple[Callable[[DataFrame], Any], dict[str, Any], type[Exception], str]] = {
    "no DataFrame": (lambda frame: 5, {}, InvalidInputError, "not int: leave writeStream"),
    "a writer": (lambda frame: frame.writeStream, {}, InvalidInputError, "not DataStreamWriter"),
    "a query that is started": (starts_itself, {}, InvalidInputError, "not StreamingQuery"),
    "a table": (lambda frame: frame.sparkSession.range(5), {}, InvalidInputError, "does not stream"),
    "a column that is not there": (lambda frame: frame.select("valeu"), {}, AnalysisException, "valeu"),
    "an aggregation in append mode": (counted, {}, AnalysisException, "[Aa]ppend"),
    "a source that can't go back": (of_a_socket, {}, InvalidInputError, "can't go back"),
    "files that are deleted": (of_files_that_go("delete"), {}, InvalidInputError, "cleanSource=delete"),
    "files that are moved": (of_files_that_go("Archive"), {}, InvalidInputError, "leave cleanSource out"),
    "update mode into a sink that adds": (counted, {"output_mode": "update"}, InvalidInputError, "keys="),
    "parts that can't be added up": (without_repeats, {"state": "partial"}, InvalidInputError, "dropDuplicates"),
}


@pytest.mark.parametrize("what", LOOKED_AT)
def test_when_it_is_looked_at(spark: SparkSession, region: SparkRegion, tmp_path: Path, what: str) -> None:
    build, reported, error, match = LOOKED_AT[what]
    region.query("first", lines, source=SOURCE | {"group.id": "f"}, into=ParquetFolder(tmp_path / "first"))
    region.query("q", build, source=SOURCE, into=ParquetFolder(tmp_path / "out"), **reported)
    with pytest.raises(error, match=match):
        region.start()
    assert not spark.streams.active
    assert not (tmp_path / "first").exists() and not (tmp_path / "out").exists()


def joined(frame: DataFrame) -> DataFrame:
    return lines(frame).join(lines(frame).withColumnRenamed("line", "other"), expr("line = other"))


def with_files(frame: DataFrame) -> DataFrame:
    return lines(frame).union(frame.sparkSession.readStream.text(str(Path(__file__).parent)))


def with_rates(frame: DataFrame) -> DataFrame:
    return lines(frame).union(frame.sparkSession.readStream.format("rate").load().selectExpr("CAST(value AS STRING)"))


def with_a_topic_of_its_own(frame: DataFrame) -> DataFrame:
    """Read by the same source, and not as the region's."""
    options = {"kafka.bootstrap.servers": NOBODY, "subscribe": "u", "group.id": "u"}
    return lines(frame).union(lines(frame.sparkSession.readStream.format("kohort").options(**options).load()))


WITHOUT_A_FOLDER: dict[str, tuple[Callable[[DataFrame], Any], dict[str, Any], str]] = {
    "dropDuplicates": (
        without_repeats,
        {},
        r"state \(dropDuplicates\).*give SparkRegion\(folder=.*mode='update'",
    ),
    "an aggregation": (counted, {"output_mode": "update", "state": "partial"}, r"keeps state \(aggregation\)"),
    "a join of streams": (joined, {}, r"keeps state \(join of streams\)"),
    "a limit": (lambda frame: lines(frame).limit(5), {}, r"keeps state \(limit\)"),
    "files": (with_files, {}, r"also reads FileSource.*give SparkRegion\(folder="),
    "rates": (with_rates, {}, "also reads rate"),
    "a topic outside the region": (with_a_topic_of_its_own, {}, "also reads kohort"),
}


@pytest.mark.parametrize("what", WITHOUT_A_FOLDER)
def test_what_only_its_checkpoint_has_without_a_folder_that_stays(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    build, reported, match = WITHOUT_A_FOLDER[what]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with SparkRegion(spark, "r", NOBODY) as region:
        sink = replacing(tmp_path / "out", "line") if "output_mode" in reported else ParquetFolder(tmp_path / "out")
        region.query("q", build, source=SOURCE, into=sink, **reported)
        with pytest.raises(InvalidInputError, match=match):
            region.start()
    assert not spark.streams.active and not (tmp_path / "out").exists()


WITHOUT_STATE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a projection": lines,
    "a union with itself": lambda frame: lines(frame).union(lines(frame)),
    "a watermark alone": lambda frame: lines(frame.withWatermark("timestamp", "1 minute")),
    "a join with a table": lambda frame: lines(frame).join(frame.sparkSession.range(5), expr("line = id")).drop("id"),
}


@pytest.mark.parametrize("what", WITHOUT_STATE)
def test_what_keeps_nothing_needs_no_folder(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(spark_region.SparkRegion, "_admit", lambda *given: (_ for _ in ()).throw(KeyError("admitted")))
    with SparkRegion(spark, "r", NOBODY) as region:
        region.query("q", WITHOUT_STATE[what], source=SOURCE, into=ParquetFolder(tmp_path / "out"))
        with pytest.raises(KeyError, match="admitted"):
            region.start()


def test_keys_that_are_no_columns(region: SparkRegion, tmp_path: Path) -> None:
    sink = replacing(tmp_path / "out", "line", "day")
    region.query("q", counted, source=SOURCE, into=sink, output_mode="update")
    with pytest.raises(InvalidInputError, match="gives no day: it gives line, count"):
        region.start()


def test_too_few_batches_that_spark_keeps(spark: SparkSession, region: SparkRegion, tmp_path: Path) -> None:
    kept = "spark.sql.streaming.minBatchesToRetain"
    region.query("q", lines, source=SOURCE, into=ParquetFolder(tmp_path / "out"))
    spark.conf.set(kept, "9")
    try:
        with pytest.raises(InvalidInputError, match=f"{kept}=9"):
            region.start()
    finally:
        spark.conf.unset(kept)


# -- what a broker is asked for


@pytest.fixture
def make(spark: SparkSession, stage: Stage) -> Iterator[Callable[[str], SparkRegion]]:
    every: list[SparkRegion] = []

    def made(name: str) -> SparkRegion:
        every.append(SparkRegion(spark, f"{name}-{stage.topic}", stage.servers, folder=stage.folder / "regions"))
        return every[-1]

    yield made
    for member in every:
        member.close()


def declare(region: SparkRegion, stage: Stage, name: str, group: str, folder: str) -> None:
    source = {"subscribe": stage.topic, "group.id": f"{stage.group}-{group}"}
    region.query(name, lines, source=source, into=ParquetFolder(stage.folder / folder))


def test_another_regions_group_and_folder_and_who_reads_in_the_group(
    make: Callable[[str], SparkRegion], stage: Stage, spark: SparkSession
) -> None:
    with Region(f"other-{stage.topic}", stage.servers) as other:
        _, bound, _ = other.admit(Applicant("m", f"{stage.group}-taken"), ParquetFolder(stage.folder / "taken"))
        assert bound is not None
        mine = make("group")
        declare(mine, stage, "q1", "free", "free")
        declare(mine, stage, "q2", "taken", "free2")
        with pytest.raises(InvalidInputError, match=f"belongs to region 'other-{stage.topic}'"):
            mine.start()

        import pyarrow as pa

        bound.check(pa.schema([("line", pa.string())]))
        mine = make("folder")
        declare(mine, stage, "q1", "free-2", "free")
        declare(mine, stage, "q2", "free-3", "taken")
        with pytest.raises(InvalidInputError, match="region"):
            mine.start()
    with Consumer(stage.servers, group_id=f"{stage.group}-read") as consumer:
        consumer.subscribe([stage.topic])
        stage.until(lambda: consumer.poll(100) is not None and consumer.assignment(), "the consumer is a member")
        mine = make("members")
        declare(mine, stage, "q1", "read", "read")
        with pytest.raises(InvalidInputError, match="stop them, or give the region a group of its own"):
            mine.start()
    assert not spark.streams.active
    described = stage.admin.describe_consumer_groups([f"{stage.group}-free"]).values
    assert not any(member.members for member in described.values()), "who could have started did not"


def test_a_right_that_is_missing(
    make: Callable[[str], SparkRegion], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's answer is tested in tests/region/test_rights.py; here, that `run` raises it and ends all queries."""

    def refused(self: Any, group: str) -> None:
        raise NotAuthorizedError("no right to write")

    mine = make("rights")
    declare(mine, stage, "q", "rights", "rights")
    monkeypatch.setattr("kohort.region.region_log.RegionLogView.claim_group", refused)
    with pytest.raises(KafkaError, match="Describe, Read and Write on topic"):
        mine.run()
    with pytest.raises(InvalidInputError, match="closed"):
        mine.start()


# -- planted faults: what tells them apart is seen above


def test_without_its_check_a_mode_is_found_no_sooner_than_spark_starts(
    spark: SparkSession, region: SparkRegion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kohort.spark.region.query_factory.check_output_mode", lambda frame, mode: None)
    monkeypatch.setattr(spark_region.SparkRegion, "_admit", lambda *given: (_ for _ in ()).throw(KeyError("admitted")))
    region.query("q", counted, source=SOURCE, into=ParquetFolder(tmp_path / "out"))
    with pytest.raises(KeyError, match="admitted"):
        region.start()
