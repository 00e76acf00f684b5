"""The replacement of `format("kafka")` in PySpark jobs by kohort's source and sink, with the job unchanged.

`python -m kohort.spark job.py` does this for a whole program, and `register(spark, in_place_of_kafka=True)` for one
session, such as a notebook's. Spark refuses a Python source named "kafka" (DATA_SOURCE_ALREADY_EXISTS), so PySpark's
readers and writers are wrapped instead, classic and Connect. Only sessions that asked for it are affected, until they
end.

| in the job | what runs |
|---|---|
| `format("kafka")` of a reader or writer, or Spark's class | `format("kohort")`, registered with the first use |
| `spark.sql("CREATE TEMPORARY VIEW … USING kafka …")` | `USING kohort` |
| `create_sink(format="kafka")` of a pipeline | `format="kohort"` |
| `df.write.format("kafka").save()` without a mode | mode append: Spark refuses a Python sink without one |
| `outputMode("update")` into Kafka | `foreachBatch`: Spark refuses update mode to a Python sink |
| `asyncProgressTrackingEnabled` into Kafka | without it: Spark refuses it to a Python sink |
| `spark.jars.packages` with Spark's Kafka source | without it: no jar is needed |
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import logging
import os
import re
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kohort.spark.registration import activate_session_in_thread, register_source, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("kohort.spark")

KAFKA: Final = ("kafka", "org.apache.spark.sql.kafka010.kafkasourceprovider")
"""Names of Spark's Kafka source, in lower case: some jobs name its class."""
_CLASSES: Final = (
    ("pyspark.sql.readwriter", "DataFrameReader", "reader"),
    ("pyspark.sql.streaming.readwriter", "DataStreamReader", "reader"),
    ("pyspark.sql.readwriter", "DataFrameWriter", "writer"),
    ("pyspark.sql.streaming.readwriter", "DataStreamWriter", "stream writer"),
    ("pyspark.sql.connect.readwriter", "DataFrameReader", "reader"),
    ("pyspark.sql.connect.streaming.readwriter", "DataStreamReader", "reader"),
    ("pyspark.sql.connect.readwriter", "DataFrameWriter", "writer"),
    ("pyspark.sql.connect.streaming.readwriter", "DataStreamWriter", "stream writer"),
)
_SESSIONS: Final = ("pyspark.sql.session", "pyspark.sql.connect.session")
_STATEMENT: Final = re.compile(
    r"(?P<before>(?:\s|--[^\n]*\n|/\*.*?\*/)*CREATE\s[^'\"]*?\sUSING\s+)(?P<quote>`?)"
    rf"(?:{'|'.join(map(re.escape, KAFKA))})(?P=quote)(?=[\s(;]|$)",
    re.IGNORECASE | re.DOTALL,
)
"""A statement's beginning that creates a view or table of Spark's Kafka source; no text before `USING` is quoted."""
_PACKAGE: Final = re.compile(r"^org\.apache\.spark:spark-(sql|streaming)-kafka-")
_SAVE: Final = ("path", "format", "mode", "partitionBy")
_START: Final = ("path", "format", "outputMode", "partitionBy", "queryName")
_ASYNCHRONOUS: Final = "asyncProgressTrackingEnabled"
_WITHOUT_A_MODE: Final = (None, "error", "errorifexists", "default")
"""Modes in which Spark's own sink appends too."""


@dataclass(slots=True)
class JobChanges:
    """Counters of the changes made to a job, for the summary at its end.

    Attributes:
        counts: how often each change was made.
        groups: the groups of streaming queries, with the bootstrap servers of each.
        groupless: the bootstrap servers of streaming queries without a group.
        checkpoints: the checkpoint locations of streaming queries, each with the folder that it is if it is one of this
            machine, in the order of their starts.
        sessions: the sessions whose readers and writers are wrapped.
        registered: the sessions in which kohort's source is registered.
        everywhere: whether all sessions are wrapped.
    """

    counts: Counter[str] = field(default_factory=Counter)
    groups: dict[str, str] = field(default_factory=dict)
    groupless: set[str] = field(default_factory=set)
    checkpoints: dict[str, Path] = field(default_factory=dict)
    sessions: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    registered: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    everywhere: bool = False

    def is_covered_session(self, session: object) -> bool:
        """Return whether a session's code for `format("kafka")` runs on kohort."""
        return self.everywhere or session in self.sessions

    def count_change(self, what: str) -> None:
        """Count a change, and log the first of its kind."""
        if what not in self.counts:
            log.info("a query that names Spark's Kafka source or sink uses kohort's: %s", what)
        self.counts[what] += 1


CHANGES: Final = JobChanges()
"""The changes made in this process."""


@dataclass(slots=True)
class _GivenOptions:
    """The options and the mode that a job has set on one reader or writer."""

    is_kafka: bool = False
    mode: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


class BatchTopicWriter:
    """A function for `foreachBatch` that writes each batch of a query in update mode to its topic."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def __call__(self, batch: DataFrame, _number: int) -> None:
        """Append the rows of a micro-batch to the query's topic."""
        batch.write.format("kohort").options(**self._options).mode("append").save()


class CoveredBatchFunction:
    """A job's function for `foreachBatch`, whose "kafka" is kohort's also in the session that Spark clones for it.

    Spark Connect pickles the function for a process of the server, in which nothing is wrapped before the first call.
    """

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function = function

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Cover the session of the batch, a clone of one that knows kohort's source, and call the function."""
        replace_kafka_in(batch.sparkSession)
        self._function(batch, number)


def replace_kafka_in(session: SparkSession) -> None:
    """Run a session's jobs for "kafka" on kohort, whose source the session knows, until the session ends."""
    CHANGES.sessions.add(session)
    CHANGES.registered.add(session)
    wrap_pyspark_once()


def replace_kafka_everywhere() -> None:
    """Run every job for "kafka" in this process on kohort, and keep sessions from fetching Spark's own source.

    Raises:
        InvalidInputError: PySpark is missing in this Python, or too old.
    """
    require_pyspark()
    CHANGES.everywhere = True
    wrap_pyspark_once()
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS")
    if arguments:
        os.environ["PYSPARK_SUBMIT_ARGS"] = without_source_packages(arguments)
    from pyspark.sql import SparkSession

    _wrap(SparkSession.Builder, "getOrCreate", _builder_without_packages)


def without_source_packages(text: str) -> str:
    """Return submit arguments, or a list of packages, without the packages of Spark's own Kafka source."""

    def without_kafka_packages(word: str) -> str:
        kept = [package for package in word.split(",") if not _PACKAGE.match(package)]
        if len(kept) < word.count(",") + 1:
            CHANGES.count_change("left out the package of Spark's own Kafka source")
        return ",".join(kept)

    words = [without_kafka_packages(word) for word in text.split(" ")]
    for index in range(len(words) - 1, 0, -1):
        if words[index] == "" and words[index - 1] == "--packages":
            del words[index - 1 : index + 1]
    return " ".join(words)


@functools.cache
def wrap_pyspark_once() -> None:
    """Wrap PySpark's readers and writers once; calls of sessions that are not covered pass through."""
    for module, name, kind in _CLASSES:
        try:
            wrapped = getattr(importlib.import_module(module), name)
        except ImportError:  # Connect's classes need additional packages
            continue
        _wrap(wrapped, "format", _format)
        if kind == "reader":
            _wrap(wrapped, "option", _option)
            _wrap(wrapped, "options", _options)
            _wrap(wrapped, "load", _load_frame)
        elif kind == "writer":
            _wrap(wrapped, "mode", _mode)
            _wrap(wrapped, "save", _save)
        else:
            _wrap(wrapped, "option", _option)
            _wrap(wrapped, "options", _options)
            _wrap(wrapped, "outputMode", _mode)
            _wrap(wrapped, "foreachBatch", _foreach_batch)
            _wrap(wrapped, "start", _start)
            _wrap(wrapped, "toTable", _to_table)
    for module in _SESSIONS:
        with contextlib.suppress(ImportError):  # as above
            _wrap(importlib.import_module(module).SparkSession, "sql", _sql)
    with contextlib.suppress(ImportError):  # pipelines need Connect's packages, and PyYAML
        registry = importlib.import_module("pyspark.pipelines.spark_connect_graph_element_registry")
        _wrap(registry.SparkConnectGraphElementRegistry, "register_output", _register_output)


def _wrap(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def covered_method(end: Any, *args: Any, **given: Any) -> Any:
        return wrapper(end, original, *args, **given)

    setattr(owner, name, covered_method)


def _session(end: Any) -> Any:
    """Return the session of a reader or writer; PySpark stores it under one of three names."""
    return next((getattr(end, name) for name in ("_spark", "_session", "_client") if hasattr(end, name)), None)


def _options_set_on(end: Any) -> _GivenOptions:
    given_options = getattr(end, "_kohort_options", None)
    if given_options is None:
        given_options = end._kohort_options = _GivenOptions()
    return given_options


def _format(end: Any, original: Callable[..., Any], source: str) -> Any:
    session = _session(end)
    given_options = _options_set_on(end)
    given_options.is_kafka = isinstance(source, str) and source.lower() in KAFKA and CHANGES.is_covered_session(session)
    if not given_options.is_kafka:
        return original(end, source)
    _register(session)
    CHANGES.count_change(f'{type(end).__name__}.format("kafka") became format("kohort")')
    if hasattr(end, "_spark"):
        activate_session_in_thread(session)
    return original(end, "kohort")


def _register(session: Any) -> None:
    if session not in CHANGES.registered:
        register_source(session)
        CHANGES.registered.add(session)


def _sql(session: Any, original: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """Run a statement, which may be an argument by position or by name, with kohort's source for "kafka"."""
    query = args[0] if args else given.get("sqlQuery")
    if (
        not isinstance(query, str)
        or not CHANGES.is_covered_session(session)
        or (changed := replace_kafka_in_sql(query)) == query
    ):
        return original(session, *args, **given)
    _register(session)
    CHANGES.count_change("CREATE … USING kafka became USING kohort")
    return original(session, changed, *args[1:], **{name: value for name, value in given.items() if name != "sqlQuery"})


def replace_kafka_in_sql(query: str) -> str:
    """Return a statement of SQL; if it creates a view or table of Spark's Kafka source, with kohort's."""
    return (
        _STATEMENT.sub(lambda found: f"{found['before']}kohort", query, count=1) if _STATEMENT.match(query) else query
    )


def _register_output(registry: Any, original: Callable[..., Any], output: Any) -> Any:
    """Register kohort's source before a pipeline's first flow, where Spark refuses it, and replace the sink "kafka"."""
    if CHANGES.is_covered_session(registry._spark):
        _register(registry._spark)
        if type(output).__name__ == "Sink" and output.format.lower() in KAFKA:
            output = dataclasses.replace(output, format="kohort")
            CHANGES.count_change('create_sink(format="kafka") became format="kohort"')
    return original(registry, output)


def _foreach_batch(end: Any, original: Callable[..., Any], function: Callable[[DataFrame, int], None]) -> Any:
    """Wrap `foreachBatch` so that kohort also covers the cloned session that Spark passes with each batch."""
    session = _session(end)
    if not CHANGES.is_covered_session(session):
        return original(end, function)
    _register(session)
    return original(end, CoveredBatchFunction(function))


def _option(end: Any, original: Callable[..., Any], key: str, value: Any) -> Any:
    _options_set_on(end).options[key] = value
    return original(end, key, value)


def _options(end: Any, original: Callable[..., Any], **options: Any) -> Any:
    _options_set_on(end).options.update(options)
    return original(end, **options)


def _load_frame(end: Any, original: Callable[..., Any], *args: Any, **given: Any) -> Any:
    frame = original(end, *args, **given)
    given_options = _options_set_on(end)
    if given_options.is_kafka:
        options = {key.lower(): str(value) for key, value in {**given_options.options, **given}.items()}
        group = options.get("group.id") or options.get("kafka.group.id")
        servers = options.get("kafka.bootstrap.servers", "")
        if type(end).__name__ == "DataStreamReader" and group:
            CHANGES.groups[group] = servers
        elif type(end).__name__ == "DataStreamReader":
            CHANGES.groupless.add(servers)
    return frame


def _mode(end: Any, original: Callable[..., Any], mode: str | None) -> Any:
    if mode is not None:
        _options_set_on(end).mode = mode.lower()
    return original(end, mode)


def _save(end: Any, original: Callable[..., Any], *args: Any, **given: Any) -> Any:
    arguments = dict(zip(_SAVE, args, strict=False)) | given
    if (source := arguments.pop("format", None)) is not None:
        end.format(source)
    given_options, mode = _options_set_on(end), arguments.get("mode")
    if given_options.is_kafka and (mode.lower() if mode else given_options.mode) in _WITHOUT_A_MODE:
        arguments["mode"] = "append"
        CHANGES.count_change("a batch write without a mode appends")
    return original(end, **arguments)


def _start(end: Any, original: Callable[..., Any], *args: Any, **given: Any) -> Any:
    arguments = dict(zip(_START, args, strict=False)) | given
    if (source := arguments.pop("format", None)) is not None:
        end.format(source)
    if (mode := arguments.pop("outputMode", None)) is not None:
        end.outputMode(mode)
    given_options = _options_set_on(end)
    if given_options.is_kafka and given_options.mode == "update":
        more = {key: value for key, value in arguments.items() if key not in _START}
        end.foreachBatch(BatchTopicWriter(_of_the_sink(given_options.options | more)))
        CHANGES.count_change("update mode writes each batch by foreachBatch")
    _remember_checkpoint(end, arguments)
    if given_options.is_kafka and _is_asynchronous(given_options.options | arguments):
        arguments = {key: value for key, value in arguments.items() if key.lower() != _ASYNCHRONOUS.lower()}
        end.option(_ASYNCHRONOUS, False)
        CHANGES.count_change("progress is tracked with each batch, not asynchronously")
    return original(end, **arguments)


def _is_asynchronous(options: Mapping[str, Any]) -> bool:
    """Return whether a streaming write asks for Spark's asynchronous progress tracking, which logs offsets later."""
    given = {key.lower(): value for key, value in options.items()}
    return str(given.get(_ASYNCHRONOUS.lower())).strip().lower() == "true"


def _to_table(end: Any, original: Callable[..., Any], *args: Any, **given: Any) -> Any:
    _remember_checkpoint(end, given)
    return original(end, *args, **given)


def _remember_checkpoint(end: Any, given: Mapping[str, Any]) -> None:
    """Record the checkpoint location of a covered query, for the summary at the job's end."""
    options = {key.lower(): value for key, value in {**_options_set_on(end).options, **given}.items()}
    location = options.get("checkpointlocation")
    if location and CHANGES.is_covered_session(_session(end)):
        CHANGES.checkpoints[str(location)] = Path(str(location)).absolute()


def _of_the_sink(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options for kohort's sink, without those that Spark itself handles in a streaming query."""
    return {key: value for key, value in options.items() if key.lower() not in ("checkpointlocation", "queryname")}


def _builder_without_packages(builder: Any, original: Callable[..., Any]) -> Any:
    packages = builder._options.get("spark.jars.packages")
    if packages:
        kept = without_source_packages(packages)
        if kept:
            builder._options["spark.jars.packages"] = kept
        else:
            del builder._options["spark.jars.packages"]
    return original(builder)
