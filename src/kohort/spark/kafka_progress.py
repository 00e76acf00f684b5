"""The progress of kohort's queries in the form that Spark's own Kafka source gives it.

The JVM reports a Python source's offsets as the source's own JSON, and has no metrics for it. Monitors of Kafka queries
compute lag from `endOffset` and `latestOffset`, commit `endOffset` to a group, or read `avgOffsetsBehindLatest`. So
PySpark's classes of progress are wrapped, classic and Connect: `lastProgress`, `recentProgress` and listeners then give
kohort's queries as they give Spark's own. Other sources pass through. The JVM, with Spark's UI, keeps kohort's JSON.
"""

from __future__ import annotations

import functools
import json  # not msgspec: text of other programs, with NaN and integers of any size
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

Offsets: TypeAlias = dict[str, dict[str, int]]
"""Offsets by topic and partition, as Spark's own source writes them."""

_OFFSETS: Final = ("startOffset", "endOffset", "latestOffset")
_OF_THE_MEMBER: Final = ("group", "member", "generation", "rebalances", "lastDowntimeMs", "lag")
"""Fields of kohort's report that become metrics beside Spark's; those that are null are left out."""


def source_progress_in_kafka_form(source: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return one of `sources` of a query's progress in the form of Spark's Kafka source.

    Args:
        source: the entry as Spark's JSON has it. Its offsets are objects; for `lastProgress` on Spark Connect, text.

    Returns:
        The entry with another description, offsets and metrics, the offsets in the type that they had; None if another
        source's. Monitors find a query's Kafka sources by "KafkaV2" in their description.
    """
    start, end, report = (_decoded(source.get(name)) for name in _OFFSETS)
    if not _is_kohort(end):
        return None
    consumed = _ends(end)
    more: dict[str, Any] = {"startOffset": _ends(start) or None if _is_kohort(start) else start, "endOffset": consumed}
    if isinstance(report, dict) and "topics" in report:
        latest = {
            topic: {number: int(found["end"]) for number, found in partitions.items()}
            for topic, partitions in report["topics"].items()
        }
        more["latestOffset"] = latest
        metrics = {"metrics": dict(source.get("metrics") or {}) | _metrics(consumed, latest, report)}
        chosen = report.get("chosen")
    else:
        metrics, chosen = {}, ""
    if isinstance(source["endOffset"], str):
        more = {name: offset and json.dumps(offset, separators=(",", ":")) for name, offset in more.items()}
    chosen = chosen or f"Subscribe[{', '.join(consumed)}]"
    return {**source, "description": f"KafkaV2[{chosen}]", **more, **metrics}


def _decoded(offset: object) -> Any:
    """Return an offset in a query's progress as parsed JSON; other sources' text that is not JSON stays as it is."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return offset


def _is_kohort(offset: object) -> bool:
    return isinstance(offset, dict) and "kohort" in offset and isinstance(offset.get("topics"), dict)


def _ends(offset: Any) -> Offsets:
    """Return the end offset of each partition, by topic and number as text, from the JSON of a `BatchOffset`."""
    return {
        topic: {number: int(span["end"]) for number, span in partitions.items()}
        for topic, partitions in offset["topics"].items()
    }


def _metrics(consumed: Offsets, latest: Offsets, report: Mapping[str, Any]) -> dict[str, str]:
    """Return the lag of a query in the metrics of Spark's own Kafka source, and the query's membership."""
    behind = [
        max(0, end - consumed.get(topic, {}).get(number, end))
        for topic, partitions in latest.items()
        for number, end in partitions.items()
    ]
    own = {name: str(report[name]) for name in _OF_THE_MEMBER if report.get(name) is not None}
    if not behind:
        return own
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        **own,
    }


def progress_in_kafka_form(progress: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a query's progress with kohort's sources in Spark's form; None if it has no source of kohort's."""
    changed = [source_progress_in_kafka_form(source) for source in progress["sources"]]
    if not any(changed):
        return None
    return {**progress, "sources": [new or old for new, old in zip(changed, progress["sources"], strict=True)]}


@functools.cache
def wrap_progress() -> None:
    """Wrap PySpark's `StreamingQueryProgress` once, for all sessions of this process."""
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    progress: Any = StreamingQueryProgress
    progress.fromJson = classmethod(_from_json(progress.fromJson.__func__))
    progress.fromJObject = classmethod(_from_java(progress.fromJObject.__func__))


def _from_json(original: Callable[[Any, dict[str, Any]], Any]) -> Callable[[Any, dict[str, Any]], Any]:
    """Wrap `StreamingQueryProgress.fromJson` so that progress of kohort's sources has the form of Spark's Kafka source.

    Queries and Connect's listeners make progress objects by it.
    """

    @functools.wraps(original)
    def from_json(kind: Any, report: dict[str, Any]) -> Any:
        return original(kind, progress_in_kafka_form(report) or report)

    return from_json


def _from_java(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wrap `StreamingQueryProgress.fromJObject`, which classic listeners use, like `_from_json`."""

    @functools.wraps(original)
    def from_java(kind: Any, jprogress: Any) -> Any:
        progress = original(kind, jprogress)
        if not any('"kohort"' in source["endOffset"] for source in progress.sources):
            return progress
        report = progress_in_kafka_form(json.loads(progress.json))
        if report is not None:
            progress._jprogress, progress._jdict = None, report
            for source, found in zip(progress.sources, report["sources"], strict=True):
                _replace(source, found)
        return progress

    return from_java


def _replace(source: Any, found: dict[str, Any]) -> None:
    """Give a `SourceProgress` the offsets and metrics of an entry; an absent offset stays the text "None"."""
    source._jprogress, source._jdict = None, found
    source["description"] = found["description"]
    for name in _OFFSETS:
        if isinstance(found.get(name), dict):
            source[name] = json.dumps(found[name], separators=(",", ":"))
        elif found.get(name) is None:
            source[name] = str(None)
    source["metrics"] = dict(found.get("metrics") or {})
