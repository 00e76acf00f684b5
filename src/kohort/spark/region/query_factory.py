"""The construction of a region's query, once for each run, and the checks of its plan before the first run."""

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


# -- The operators of a streaming plan that keep state, from the analyzed plan

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
"""Stateful operators by the name of Spark's class, with the name that users know. Tried with PySpark 4.3."""
RELATIONS = ("StreamingRelation", "StreamingRelationV2", "StreamingExecutionRelation")
UNREPLAYABLE = ("socket", "textsocket", "textsocketv2", "console")
WATERMARK = "EventTimeWatermark"
CLEANS, KEEPS = "cleansource", "off"
"""The option (in lower case) that makes a file source delete or move what it has read, and the value that does not."""


def stateful_operators(frame: DataFrame) -> tuple[str, ...]:
    """Return the names of the operators that keep state between batches, from the result down to the sources."""
    return tuple(name for node in _nodes(_plan(frame)) if (name := _name_of(node)))


def has_watermark(frame: DataFrame) -> bool:
    """Return whether the plan has a watermark, so that rows can be late."""
    return any(node.getClass().getSimpleName() == WATERMARK for node in _nodes(_plan(frame)))


def sources_outside_region(frame: DataFrame) -> tuple[str, ...]:
    """Return the names of the plan's streaming sources that are outside the region."""
    return tuple(
        str(node.sourceName())
        for node in _nodes(_plan(frame))
        if node.getClass().getSimpleName() in RELATIONS and not _has_session(node)
    )


def _has_session(relation: Any) -> bool:
    """Return whether a source in a plan belongs to the region, by an option that only the region sets."""
    with_options = relation.getClass().getSimpleName() == "StreamingRelationV2"
    return with_options and bool(relation.extraOptions().containsKey(SEAT))


def check_output_mode(frame: DataFrame, mode: str) -> None:
    """Check that Spark can run the plan in this output mode; Spark itself checks only when a query starts.

    Raises:
        AnalysisException: Spark can't.
    """
    jvm: Any = frame.sparkSession._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    output = modes.Update() if mode == "update" else modes.Append()
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(_plan(frame), output)


def refuse_unreplayable_sources(frame: DataFrame) -> None:
    """Refuse a plan with a source that can't be read again after a region reset.

    Raises:
        InvalidInputError: the plan has such a source, for example a socket, or files with cleanSource.
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
                f"the query reads from {node.sourceName()} with cleanSource={cleans}: a reset would "
                "have to read removed files again; leave cleanSource out, and remove files when no sequence needs them "
                "any more"
            )


def _options_of(relation: Any) -> dict[str, str]:
    """Return the options of a Spark V1 source, such as files, by their names in lower case."""
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
    """Yield the streaming nodes of a plan."""
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
"""Fewest batches that Spark must retain: a region checkpoint must be complete before Spark removes its last batch."""
SEAT = "regionSeat"
"""The option that tells a source its session in the application."""
KEPT = "spark.sql.streaming.minBatchesToRetain"
LETTER = "kohort_letter"
"""The column for records that do not decode, beside the query's own columns."""
_LETTER = (
    "struct<topic: string, partition: int, offset: bigint, timestamp: timestamp_ltz, key: binary, value: binary, "
    "reason: string>"
)
NOBODY = "0" * 32
"""A session id that no source has. A query that a user's function starts while the plan is built gets an error."""


@dataclass(frozen=True)
class BuiltQuery:
    """A query that can be started once for each run, and the properties of its plan.

    Attributes:
        spark: the session.
        build: makes the DataFrame of the query from those of its sources.
        options: the options of each source.
        mode: Spark's output mode.
        output: the columns of its rows, as Spark's JSON.
        schema: the Arrow schema of its rows, for the sink.
        operators: the names of its stateful operators.
        watermark: whether the plan has a watermark, so that rows can be late.
        sources: a text for each source, for messages and for comparison with a later program.
        batches_kept: how many batches Spark retains in the checkpoint.
        outside: the names of sources outside the region that the query also reads.
        undecoded: for each source, the columns to pass to `build` if its bad values become dead letters; empty if
            they don't: all columns are passed.
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
    outside: tuple[str, ...]
    undecoded: tuple[tuple[str, ...], ...] = ()

    @property
    def needs_last_checkpoint(self) -> bool:
        """Whether a run needs the checkpoint of the run before, for state or positions of sources outside the region.

        The positions of the region's own sources are in the region's checkpoints.
        """
        return bool(self.operators) or bool(self.outside)

    def run(self, sink: Callable[[DataFrame, int], None], checkpoint: str, sessions: Sequence[str]) -> StreamingQuery:
        """Start a run of the query with a sink, a local checkpoint folder, and these sessions of its sources."""
        seated = [{**source, SEAT: seat} for source, seat in zip(self.options, sessions, strict=True)]
        rows = add_bad_value_rows(*build_query(self.spark, self.build, seated, self.undecoded))
        writer = rows.writeStream.foreachBatch(sink).outputMode(self.mode)
        return writer.option("checkpointLocation", f"file://{checkpoint}").start()

    def has_spark_ended(self, error: BaseException) -> bool:
        """Return whether Spark has ended in this process, so that no run of the query can be started any more."""
        from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

        return isinstance(error, Py4JNetworkError | ConnectionError) or self.spark.sparkContext._jsc is None


def build_query(
    spark: SparkSession, build: Build, options: Sequence[Mapping[str, str]], undecoded: Sequence[Sequence[str]] = ()
) -> tuple[DataFrame, list[DataFrame]]:
    """Build a query's DataFrame from new readers of its sources.

    Returns:
        The rows for the sink. And the DataFrames of those sources whose bad values become dead letters.

    Raises:
        InvalidInputError: the result is not a streaming DataFrame.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    frames = [spark.readStream.format("kohort").options(**source).load() for source in options]
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
    """Return a source's records without those whose values are bad, with these columns; no columns: all, unchanged."""
    return frame.where(f"{BAD_VALUE} IS NULL").select(*columns) if columns else frame


def add_bad_value_rows(rows: DataFrame, bad: Sequence[DataFrame]) -> DataFrame:
    """Add the records whose values do not decode to a query's rows, as rows with nothing but the column `LETTER`.

    Staging tasks take them out again, as dead letters. `bad` are the sources' DataFrames; empty: no change.
    """
    if not bad:
        return rows
    from pyspark.sql import functions as f

    def record_column(name: str) -> Column:
        return f.col(BAD_VALUE if name == "value" else name).alias(name)

    reason = f.concat(f.lit("the value is not of the declared type: "), f.col(BAD_REASON)).alias("reason")
    letter = f.struct(*(record_column(name) for name in RECORD), reason)
    both = rows.select(*map(_column, rows.columns), f.lit(None).cast(_LETTER).alias(LETTER))
    for frame in bad:
        nothing = [f.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
        found = frame.where(f"{BAD_VALUE} IS NOT NULL").select(*nothing, letter.alias(LETTER))
        both = both.union(found)
    return both


def _column(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


def check_query_plan(
    spark: SparkSession,
    build: Build,
    options: Sequence[Mapping[str, str]],
    mode: str,
    what: Sequence[Any],
    undecoded: tuple[tuple[str, ...], ...] = (),
) -> BuiltQuery:
    """Build a query's DataFrame once to check its plan, without connecting to a broker.

    Args:
        spark: the session.
        build: makes the DataFrame of the query from those of its sources.
        options: the options of each source.
        mode: Spark's output mode.
        what: what each source reads, for text.
        undecoded: as in `BuiltQuery`.

    Raises:
        InvalidInputError: the query can't be in a region.
        AnalysisException: Spark can't run the query.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    kept = int(spark.conf.get(KEPT) or "100")
    if kept < BATCHES_KEPT_MIN:
        raise InvalidInputError(f"{KEPT}={kept}: a region needs {BATCHES_KEPT_MIN} at least to go back to a sequence")
    rows, bad = build_query(spark, build, [{**source, SEAT: NOBODY} for source in options], undecoded)
    refuse_unreplayable_sources(rows)
    check_output_mode(add_bad_value_rows(rows, bad), mode)
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
        sources_outside_region(rows),
        undecoded,
    )
