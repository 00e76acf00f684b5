"""SparkRegion as programs use it: jobs that run now and then, faults of a program, what may change between runs."""

from __future__ import annotations

import urllib.request
from collections import Counter
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.functions import udf
from tests.spark.region.in_process import Application, application, lines
from tests.support.waiting import LAST_RESORT

from kohort.errors import InvalidInputError
from kohort.region.consuming.member_thread import RegionStoppedError
from kohort.region.region import Region
from kohort.region.sinks.delta_table import DeltaTable

__all__ = ["application"]
pytestmark = LAST_RESORT


def once(*numbers: range) -> Counter[str]:
    return Counter(str(number) for group in numbers for number in group)


def without_repeats(frame: DataFrame) -> DataFrame:
    return lines(frame).dropDuplicates(["line"])


def test_a_job_that_runs_now_and_then(application: Application) -> None:
    app, stage = application, application.stage
    for run, every in enumerate(("500ms", None)):
        stage.produce(100)
        region = app.region(checkpoint_every=every)
        app.query(region, "q", lines, "out")
        region.run(until="caught-up")
        assert app.lines("out") == once(range(100 * (run + 1)))
        assert {number: at for number, (at, _) in stage.committed().items()} == stage.ends()
        assert not app.spark.streams.active

    epochs = sorted(path.name for path in (stage.folder / "regions" / app.name / "q").iterdir())
    region = app.region()
    app.query(region, "q", lines, "out")
    region.run(until="caught-up")
    assert sorted(path.name for path in (stage.folder / "regions" / app.name / "q").iterdir()) == epochs, "it ran"

    changed = app.region()
    app.query(changed, "q", lambda frame: lines(frame).withColumn("more", frame["offset"]), "out")
    with pytest.raises(InvalidInputError, match="more"):
        changed.run()
    assert app.lines("out") == once(range(200))


def test_a_query_without_state_may_give_other_columns_into_another_place(application: Application) -> None:
    """The first place takes no other columns, see above; the new one has later rows, in another column order."""
    app, stage = application, application.stage

    def run(build: Any, into: str) -> None:
        region = app.region()
        app.query(region, "q", build, into)
        region.run(until="caught-up")

    def wider(frame: DataFrame) -> DataFrame:
        return lines(frame).withColumn("more", frame["offset"] * 2)

    stage.produce(20)
    run(lines, "out")
    app.send(stage.topic, *(str(number) for number in range(20, 40)))
    run(wider, "wide")
    app.send(stage.topic, *(str(number) for number in range(40, 50)))
    run(lambda frame: wider(frame).select("more", "offset", "line", "partition"), "wide")
    assert app.lines("out") == once(range(20)) and app.lines("wide") == once(range(20, 50))
    assert all(row["more"] == 2 * row["offset"] for row in app.rows("wide"))


@pytest.mark.parametrize("mode", ["append", "update"])
def test_a_query_without_state_may_get_a_column_where_the_place_takes_it(application: Application, mode: str) -> None:
    """The column is new in the second run, and left out in the third."""
    app, stage = application, application.stage
    keys = ["line"] if mode == "update" else []

    def wider(frame: DataFrame) -> DataFrame:
        return lines(frame).withColumn("more", frame["offset"] * 2)

    stage.produce(10)
    for run, build in enumerate((lines, wider, lines)):
        app.send(stage.topic, *(str(number) for number in range(10 * run + 10, 10 * run + 20)))
        region = app.region()
        into = DeltaTable(stage.folder / "delta", mode=mode, keys=keys, evolve="add")  # type: ignore[arg-type]
        app.query(region, "q", build, into, output_mode=mode)
        region.run(until="caught-up")
    found = deltalake.DeltaTable(stage.folder / "delta").to_pyarrow_table().to_pylist()
    assert Counter(row["line"] for row in found) == once(range(40))
    assert {int(row["line"]) for row in found if row["more"] is not None} == set(range(20, 30))
    assert all(row["more"] in (None, 2 * row["offset"]) for row in found)


def test_a_record_that_the_program_can_not_read(application: Application) -> None:
    app, stage = application, application.stage

    def refuses_thirteen(text: Any) -> Any:
        if text == "13":
            raise ValueError("no seat has the number thirteen")
        return text

    stage.produce(20)
    region = app.region()
    app.query(
        region,
        "q",
        lambda frame: lines(frame).withColumn("line", udf(lambda text: refuses_thirteen(text))("line")),  # noqa: PLW0108 - hints would count
        "out",
    )
    with pytest.raises(RegionStoppedError, match="ValueError: no seat has the number thirteen") as caught:
        region.run()
    text = str(caught.value)
    assert "5 times in a row" in text and f"kohort region resume {app.name} --execute" in text, text
    assert caught.value.__cause__ is not None and "thirteen" in str(caught.value.__cause__)
    assert not set(app.lines("out")) & {"13"} and not app.spark.streams.active

    with Region(app.name, stage.servers) as person:
        person.resume()
    last = app.region()
    app.query(last, "q", lines, "out")
    last.run(until="caught-up")
    assert app.lines("out") == once(range(20))


def test_a_query_with_state_is_alone_in_its_group_and_the_second_of_a_name_is_the_one(application: Application) -> None:
    app, stage = application, application.stage
    stage.produce(40)
    first = app.region(metrics_listen="127.0.0.1:0")
    app.query(first, "q", without_repeats, "out")
    first.start()
    app.until(lambda: sum(app.lines("out").values()) >= 40, "all lines are published")
    assert first.complete() >= 1
    with urllib.request.urlopen(f"http://{first.metrics_address}/metrics") as answer:
        shown = answer.read().decode()
    assert f'kohort_region_member_partitions{{member="q",region="{app.name}"}} 4.0' in shown

    newcomer = app.region()
    app.query(newcomer, "other", lines, "other")
    with pytest.raises(RegionStoppedError, match="the state of q does not move"):
        newcomer.run()
    assert not app.rows("other")

    second = app.region()
    app.query(second, "q", without_repeats, "out")
    second.start()
    with pytest.raises(RegionStoppedError, match="another member of region .* has registered as 'q'"):
        first.run()
    app.send(stage.topic, *(str(number) for number in range(30, 50)))
    second.run(until="caught-up")
    assert app.lines("out") == once(range(50))


def test_a_query_with_state_continues_as_it_was(application: Application) -> None:
    """Others' sequences do not end the state of one that is away; its columns can't change, how it reads can."""
    app, stage = application, application.stage
    stage.produce(30)

    def run(build: Any, **source: str) -> None:
        region = app.region()
        app.query(region, "q", build, "out", source=app.source(**source))
        region.run(until="caught-up")

    run(without_repeats)
    assert app.lines("out") == once(range(30))
    other = app.region()
    app.query(other, "other", lines, "other", source=app.source(group=f"{stage.group}-2"))
    other.start()
    app.until(lambda: sum(app.lines("other").values()) == 30, "the other has read all")
    at = other.complete()
    app.until(lambda: other.complete() > at + 3, "sequences come without the query that is away")
    other.close()

    app.send(stage.topic, *(str(number) for number in range(20, 40)))
    with pytest.raises(InvalidInputError, match="keeps state and has changed: the columns of its rows"):
        run(lambda frame: without_repeats(frame).drop("offset"))
    with pytest.raises(InvalidInputError, match="its stateful operators were dropDuplicates"):
        run(lines)
    run(without_repeats, maxOffsetsPerTrigger="5")
    assert app.lines("out") == once(range(40)), "its state was there"
