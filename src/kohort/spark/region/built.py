"""How a query is made anew for each run, and what is known of it before the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kohort.errors import InvalidInputError
from kohort.spark.region.operators import (
    has_watermark,
    refuse_mode,
    refuse_unreplayable,
    sources_of,
    stateful_operators,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Build = Callable[..., "DataFrame"]
BATCHES_KEPT_MIN = 10
"""Spark forgets batches: a sequence must be complete before the one that it ends with is gone."""
SEAT = "regionSeat"
"""The option by which a source knows where to ask."""
KEPT = "spark.sql.streaming.minBatchesToRetain"
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

    def run(self, sink: Callable[[DataFrame, int], None], checkpoint: str, seats: Sequence[str]) -> StreamingQuery:
        """Start it with a sink, from a checkpoint, its sources in these seats."""
        seated = [{**one, SEAT: seat} for one, seat in zip(self.options, seats, strict=True)]
        rows = built(self.spark, self.build, seated)
        writer = rows.writeStream.foreachBatch(sink).outputMode(self.mode)
        return writer.option("checkpointLocation", checkpoint).start()

    def is_over(self, error: BaseException) -> bool:
        """Whether Spark is gone from this process: no run of the query can be started any more."""
        from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

        return isinstance(error, Py4JNetworkError | ConnectionError) or self.spark.sparkContext._jsc is None


def built(spark: SparkSession, build: Build, options: Sequence[Mapping[str, str]]) -> DataFrame:
    """What the query computes, of fresh sources.

    Raises:
        InvalidInputError: that is no streaming DataFrame.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    frames = [spark.readStream.format("kohort").options(**one).load() for one in options]
    rows = build(*frames)
    if isinstance(rows, StreamingQuery):
        rows.stop()
    if not isinstance(rows, DataFrame) or not rows.isStreaming:
        found = "a DataFrame that does not stream" if isinstance(rows, DataFrame) else type(rows).__name__
        raise InvalidInputError(
            f"a query is built of its sources' DataFrames and gives what its sink is to take, not {found}: "
            "leave writeStream to the region"
        )
    return rows


def look(
    spark: SparkSession, build: Build, options: Sequence[Mapping[str, str]], mode: str, what: Sequence[Any]
) -> BuiltQuery:
    """Build a query once, and see what it is; nothing is connected for that.

    Args:
        spark: the session.
        build: gives the DataFrame of the sources'.
        options: of each source.
        mode: Spark's output mode.
        what: of each source, as text, what it reads.

    Raises:
        InvalidInputError: it can't be in a region.
        AnalysisException: Spark can't run it.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    kept = int(spark.conf.get(KEPT) or "100")
    if kept < BATCHES_KEPT_MIN:
        raise InvalidInputError(f"{KEPT}={kept}: a region needs {BATCHES_KEPT_MIN} at least to go back to a sequence")
    rows = built(spark, build, [{**one, SEAT: NOBODY} for one in options])
    refuse_unreplayable(rows)
    refuse_mode(rows, mode)
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
    )
