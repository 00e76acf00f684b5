"""How a query is made anew for each run, and what is known of it before the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kohort.errors import InvalidInputError
from kohort.region.sinks.dead_letters import RECORD
from kohort.spark.schema import BAD_REASON, BAD_VALUE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


# -- Which operators of a streaming plan keep state, told before anything runs: by the analyzed plan

ALWAYS = {
    "Aggregate": "aggregation",
    "Distinct": "distinct",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "FlatMapGroupsWithState": "mapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
    "TransformWithStateInPandas": "transformWithState",
    "GlobalLimit": "limit",
}
"""Spark's operators by the name of their class, with the name that users know. Tried with PySpark 4.3."""
RELATIONS = ("StreamingRelation", "StreamingRelationV2", "StreamingExecutionRelation")
UNREPLAYABLE = ("socket", "textsocket", "textsocketv2", "console")
WATERMARK = "EventTimeWatermark"
CLEANS, KEEPS = "cleansource", "off"
"""The option by which a source of files deletes or moves what it has read, in lower case; the value that does not."""


def stateful_operators(frame: DataFrame) -> tuple[str, ...]:
    """Names of the operators that keep state between batches, from the result down to the sources."""
    return tuple(name for node in _nodes(_plan(frame)) if (name := _name_of(node)))


def has_watermark(frame: DataFrame) -> bool:
    """Whether rows can be late."""
    return any(node.getClass().getSimpleName() == WATERMARK for node in _nodes(_plan(frame)))


def sources_of(frame: DataFrame) -> int:
    """How many streaming sources it reads."""
    return sum(node.getClass().getSimpleName() in RELATIONS for node in _nodes(_plan(frame)))


def refuse_mode(frame: DataFrame, mode: str) -> None:
    """See that Spark can run the plan in this output mode, which it does itself no sooner than it starts.

    Raises:
        AnalysisException: it can't.
    """
    jvm: Any = frame.sparkSession._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    output = modes.Update() if mode == "update" else modes.Append()
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(_plan(frame), output)


def refuse_unreplayable(frame: DataFrame) -> None:
    """All sources of a query go back with it.

    Raises:
        InvalidInputError: one can't.
    """
    for node in _nodes(_plan(frame)):
        if node.getClass().getSimpleName() not in RELATIONS:
            continue
        if node.sourceName().lower() in UNREPLAYABLE:
            raise InvalidInputError(
                f"the query reads from a {node.sourceName()} source, which can't go back: what it gave is gone; bring "
                "its records into a topic"
            )
        cleans = _options_of(node).get(CLEANS, KEEPS)
        if cleans.lower() != KEEPS:
            raise InvalidInputError(
                f"the query reads from {node.sourceName()} with cleanSource={cleans}: files would be gone that a reset "
                "has it read again; leave cleanSource out, and remove files when no sequence needs them any more"
            )


def _options_of(relation: Any) -> dict[str, str]:
    """Of a source of Spark's first kind, as files are, by their names in lower case."""
    found: dict[str, str] = {}
    if relation.getClass().getSimpleName() == "StreamingRelation":
        options = relation.dataSource().options().iterator()
        while options.hasNext():
            option = options.next()
            found[option._1().lower()] = option._2()
    return found


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _nodes(node: Any) -> Iterator[Any]:
    """The parts of a plan that stream."""
    if not node.isStreaming():
        return
    yield node
    children = node.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def _name_of(node: Any) -> str:
    kind = node.getClass().getSimpleName()
    if kind == "Join":
        sides = node.children()
        return "join of streams" if all(sides.apply(number).isStreaming() for number in (0, 1)) else ""
    return ALWAYS.get(kind, "")


Build = Callable[..., "DataFrame"]
BATCHES_KEPT_MIN = 10
"""Spark forgets batches: a sequence must be complete before the one that it ends with is gone."""
SEAT = "regionSeat"
"""The option by which a source knows where to ask."""
KEPT = "spark.sql.streaming.minBatchesToRetain"
LETTER = "kohort_letter"
"""The column of what does not decode, beside those of the query's rows."""
_LETTER = (
    "struct<topic: string, partition: int, offset: bigint, timestamp: timestamp, key: binary, value: binary, "
    "reason: string>"
)
NOBODY = "0" * 32
"""A seat that nobody has: who starts a query of his own while one is built is refused by it."""


@dataclass(frozen=True)
class BuiltQuery:
    """See the module's text.

    Attributes:
        output: the columns of its rows, as Spark's JSON.
        schema: the same as the sink takes them.
        operators: of those that keep state.
        watermark: whether rows can be late.
        sources: the options of each, as text, for people and for the next program.
        batches_kept: of the checkpoint, by Spark.
        beside: it reads from sources beside the region's.
        undecoded: of each source, the columns that `build` is given where bad values become dead letters; empty: all.
    """

    spark: SparkSession
    build: Build
    options: tuple[Mapping[str, str], ...]
    mode: str
    output: str
    schema: pa.Schema
    operators: tuple[str, ...]
    watermark: bool
    sources: tuple[str, ...]
    batches_kept: int
    beside: bool
    undecoded: tuple[tuple[str, ...], ...] = ()

    def run(self, sink: Callable[[DataFrame, int], None], checkpoint: str, seats: Sequence[str]) -> StreamingQuery:
        """Start it with a sink, from a checkpoint, its sources in these seats."""
        seated = [{**one, SEAT: seat} for one, seat in zip(self.options, seats, strict=True)]
        rows = with_bad_values(*built(self.spark, self.build, seated, self.undecoded))
        writer = rows.writeStream.foreachBatch(sink).outputMode(self.mode)
        return writer.option("checkpointLocation", checkpoint).start()

    def is_over(self, error: BaseException) -> bool:
        """Whether Spark is gone from this process: no run of the query can be started any more."""
        from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

        return isinstance(error, Py4JNetworkError | ConnectionError) or self.spark.sparkContext._jsc is None


def built(
    spark: SparkSession, build: Build, options: Sequence[Mapping[str, str]], undecoded: Sequence[Sequence[str]] = ()
) -> tuple[DataFrame, list[DataFrame]]:
    """The rows of the query, of fresh sources, and the frames of sources whose values may not decode.

    Raises:
        InvalidInputError: that is no streaming DataFrame.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    frames = [spark.readStream.format("kohort").options(**one).load() for one in options]
    shown = [*undecoded, *([()] * len(frames))]
    bad = [frame for frame, columns in zip(frames, shown, strict=False) if columns]
    rows = build(*(_decoded(frame, columns) for frame, columns in zip(frames, shown, strict=False)))
    if isinstance(rows, StreamingQuery):
        rows.stop()
    if not isinstance(rows, DataFrame) or not rows.isStreaming:
        found = "a DataFrame that does not stream" if isinstance(rows, DataFrame) else type(rows).__name__
        raise InvalidInputError(
            f"a query is built of its sources' DataFrames and gives what its sink is to take, not {found}: "
            "leave writeStream to the region"
        )
    return rows, bad


def _decoded(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The records whose values are of their type, as `build` is to see them."""
    return frame.where(f"{BAD_VALUE} IS NULL").select(*columns) if columns else frame


def with_bad_values(rows: DataFrame, bad: Sequence[DataFrame]) -> DataFrame:
    """The rows of a query, and those of its sources' records that do not decode, in one column more.

    Spark reads a source that it finds in two places of a plan by one reader, once for each place.
    """
    if not bad:
        return rows
    from pyspark.sql import functions as f

    def record(name: str) -> Column:
        return f.col(BAD_VALUE if name == "value" else name).alias(name)

    reason = f.concat(f.lit("the value is not of the declared type: "), f.col(BAD_REASON)).alias("reason")
    letter = f.struct(*(record(name) for name in RECORD), reason)
    both = rows.select(*map(_named, rows.columns), f.lit(None).cast(_LETTER).alias(LETTER))
    for frame in bad:
        nothing = [f.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
        found = frame.where(f"{BAD_VALUE} IS NOT NULL").select(*nothing, letter.alias(LETTER))
        both = both.union(found)
    return both


def _named(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


def look(
    spark: SparkSession,
    build: Build,
    options: Sequence[Mapping[str, str]],
    mode: str,
    what: Sequence[Any],
    undecoded: tuple[tuple[str, ...], ...] = (),
) -> BuiltQuery:
    """Build a query once, and see what it is; nothing is connected for that.

    Args:
        spark: the session.
        build: gives the DataFrame of the sources'.
        options: of each source.
        mode: Spark's output mode.
        what: of each source, as text, what it reads.
        undecoded: as `BuiltQuery` has it.

    Raises:
        InvalidInputError: it can't be in a region.
        AnalysisException: Spark can't run it.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    kept = int(spark.conf.get(KEPT) or "100")
    if kept < BATCHES_KEPT_MIN:
        raise InvalidInputError(f"{KEPT}={kept}: a region needs {BATCHES_KEPT_MIN} at least to go back to a sequence")
    rows, bad = built(spark, build, [{**source, SEAT: NOBODY} for source in options], undecoded)
    refuse_unreplayable(rows)
    refuse_mode(with_bad_values(rows, bad), mode)
    return BuiltQuery(
        spark,
        build,
        tuple(options),
        mode,
        rows.schema.json(),
        to_arrow_schema(rows.schema, timezone="UTC"),
        stateful_operators(rows),
        has_watermark(rows),
        tuple(map(str, what)),
        kept,
        sources_of(rows) > len(options),
        undecoded,
    )
