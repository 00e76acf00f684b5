"""Queries of several sources go back as a whole: a join of two topics, and other sources beside ours."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from tests.spark.region.in_process import Application, application, lines
from tests.spark.region.test_face import once
from tests.support.waiting import LAST_RESORT

from kohort import TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.region.consuming.member_thread import RegionStoppedError
from kohort.region.member import events
from kohort.region.region import Region
from kohort.spark import SparkRegion
from kohort.spark.region import query_run

__all__ = ["application"]
pytestmark = [
    LAST_RESORT,
    pytest.mark.skipif("KOHORT_SPARK_REGION" not in os.environ, reason="a long one: make spark-region"),
]


def joined(flights: DataFrame, gates: DataFrame) -> DataFrame:
    left = flights.selectExpr("CAST(value AS STRING) AS line")
    right = gates.selectExpr(
        "split(CAST(value AS STRING), ':')[0] AS key", "split(CAST(value AS STRING), ':')[1] AS gate"
    )
    return left.join(right, expr("line = key")).selectExpr("line", "gate")


def members_of(region: SparkRegion) -> list[query_run.SourceMemberThread]:
    return region._running["q"].members


def test_a_join_of_two_topics_is_exact_after_resets(application: Application) -> None:
    app, stage = application, application.stage
    gates = f"{stage.topic}-gates"
    stage.admin.create_topics([NewTopic(gates, 2)]).all()
    region = app.region()
    sources = [app.source(), app.source(topic=gates, group=f"{stage.group}-gates")]
    app.query(region, "q", joined, "out", source=sources)

    def pairs() -> Counter[tuple[str, str]]:
        return Counter((row["line"], row["gate"]) for row in app.rows("out"))

    def wanted(count: int, gate: str = "A") -> Counter[tuple[str, str]]:
        return Counter({(str(number), f"{gate}{number}"): 1 for number in range(count)})

    def send(numbers: range, *, both: bool = True) -> None:
        app.send(stage.topic, *(str(number) for number in numbers))
        if both:
            app.send(gates, *(f"{number}:A{number}" for number in numbers), partition=0)

    send(range(30))
    region.start()
    app.until(lambda: pairs() == wanted(30), "all have met")
    send(range(30, 50), both=False)  # halves that wait for theirs
    at = region.complete()
    app.until(lambda: region.complete() > at + 2, "the halves are in a sequence")

    region.reset("a trial")  # with others to come than those before it
    app.send(gates, *(f"{number}:A{number}" for number in range(30, 50)), partition=1)
    send(range(50, 70))
    app.until(lambda: pairs() == wanted(70), "the halves that waited have met after a reset")

    epoch = region.describe().epoch
    members_of(region)[1].post(events.ResetRequested("one of its members alone"))
    app.until(lambda: region.describe().epoch > epoch, "a reset")
    send(range(70, 80))
    app.until(lambda: pairs() == wanted(80), "all of the query went back")
    assert {member.epoch for member in region.describe().members} == {region.describe().epoch}
    region.close()
    last = app.region()
    app.query(last, "q", joined, "out", source=sources)
    send(range(80, 90))
    last.run(until="caught-up")
    assert pairs() == wanted(90)


def test_files_beside_a_topic_go_back_with_it(application: Application) -> None:
    app, stage = application, application.stage
    folder = stage.folder / "files"
    folder.mkdir()

    def with_files(frame: DataFrame) -> DataFrame:
        files = frame.sparkSession.readStream.schema("line string").json(str(folder))
        return lines(frame).select("line").union(files)

    def put(numbers: range) -> None:
        path = folder / f".{numbers.start}"
        path.write_text("".join(json.dumps({"line": str(number)}) + "\n" for number in numbers))
        path.rename(Path(folder, f"{numbers.start}.json"))

    region = app.region()
    app.query(region, "q", with_files, "out")
    stage.produce(20)
    put(range(100, 120))
    region.start()
    app.until(lambda: app.lines("out") == once(range(20), range(100, 120)), "both are read")
    region.reset("a trial")
    put(range(120, 130))
    stage.produce(10)
    app.until(lambda: app.lines("out") == once(range(30), range(100, 130)), "each once, after a reset")
    region.close()
    other = app.region()  # sequences without it do not make it read files again
    app.query(other, "other", lines, "other", source=app.source(group=f"{stage.group}-2"))
    other.start()
    app.until(lambda: sum(app.lines("other").values()) == 30, "another reads")
    other.close()
    again = app.region()
    app.query(again, "q", with_files, "out")
    put(range(130, 140))
    again.start()
    app.until(lambda: len(app.lines("out")) == 70, "the new file is read")
    at = again.complete()
    app.until(lambda: again.complete() > at + 2, "nothing follows")
    assert app.lines("out") == once(range(30), range(100, 140))


def test_back_to_the_beginning_with_sinks_emptied(application: Application) -> None:
    app, stage = application, application.stage
    region = app.region(checkpoint_every=None)
    app.query(region, "q", lines, "out")
    stage.produce(20)
    region.start()

    def after_checkpoint(count: int) -> bool:
        region.checkpoint()
        return app.lines("out") == once(range(count))

    app.until(lambda: after_checkpoint(20), "what was asked for is published")
    stage.produce(10)
    region.reset(to_initial=True, empty_sinks=True)
    app.until(lambda: after_checkpoint(30), "all comes again, once")


def test_records_that_are_gone_stop_the_region_unless_that_is_allowed(application: Application) -> None:
    """Retention deleted records before they were read: the error comes before a batch is made of the rest."""
    app, stage = application, application.stage

    def run(**source: str) -> None:
        region = app.region()
        app.query(region, "q", lines, "out", source=app.source(**source))
        region.run(until="caught-up")

    app.send(stage.topic, *(str(number) for number in range(10)), partition=0)
    run()
    app.send(stage.topic, *(str(number) for number in range(10, 30)), partition=0)
    stage.admin.delete_records({TopicPartition(stage.topic, 0): 15}).all()
    with pytest.raises(RegionStoppedError, match="records are gone.*failOnDataLoss=false"):
        run()
    assert app.lines("out") == once(range(10))
    with Region(app.name, stage.servers) as person:
        person.resume()
    run(failOnDataLoss="false")
    assert app.lines("out") == once(range(10), range(15, 30))
