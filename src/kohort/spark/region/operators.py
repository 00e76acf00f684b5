"""Which operators of a streaming plan keep state, told before anything runs: by the analyzed plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kohort.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
