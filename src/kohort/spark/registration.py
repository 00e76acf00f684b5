"""Makes the data source known to a Spark session, and to threads that have no active session."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from kohort.errors import InvalidInputError
from kohort.io.platforms import require_posix

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PYSPARK_MIN: Final = (4, 2)
"""The oldest PySpark whose interface of Python sources has what the source needs: read limits and Arrow writers."""


def require_pyspark() -> None:
    """Check that this Python has a PySpark that the source runs on.

    Raises:
        InvalidInputError: it has none, or an older one.
    """
    remedy = "pip install 'kohort[spark]'"
    try:
        version = str(importlib.import_module("pyspark").__version__)
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise InvalidInputError(f"PySpark is not installed in this Python: {remedy}") from None
    found = re.match(r"(\d+)\.(\d+)", version)  # a platform's own build may have any name
    if found is not None and tuple(map(int, found.groups())) < PYSPARK_MIN:
        least = ".".join(map(str, PYSPARK_MIN))
        raise InvalidInputError(
            f"kohort's Spark source needs PySpark {least} or newer, and this Python has {version}: "
            f"pip install --upgrade 'pyspark>={least}'; a cluster must run that version too"
        )


def register_source(spark: SparkSession) -> None:
    """Make `format("kohort")` known to a session and its listener known to Spark, as `kohort.spark.register` says."""
    require_posix("kohort's Spark source")
    require_pyspark()
    from kohort.spark import kafka_progress
    from kohort.spark.data_source import KohortDataSource
    from kohort.spark.driver_server import listen_to_queries
    from kohort.spark.tasks.workers import use_this_python

    use_this_python(spark)
    address = listen_to_queries(spark)
    if address is None:
        _wrap_connect_client()
    with _active(spark):
        spark.dataSource.register(KohortDataSource.with_channel_address(address))
    _wrap_writers()
    kafka_progress.wrap_progress()


@contextlib.contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session the thread's active session inside the block, and permanently if the thread had none.

    Spark looks up a data source in the active session, and does not find one that only another session has. On Spark
    Connect this does nothing.
    """
    sessions = _sessions_of(spark)
    if sessions is None:
        yield
        return
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())


def _sessions_of(spark: SparkSession) -> Any:
    """Return the class that holds the active session of each thread; None on Spark Connect."""
    try:
        jvm = spark.sparkContext._jvm
    except AttributeError:  # Spark Connect
        return None
    return None if jvm is None else jvm.org.apache.spark.sql.classic.SparkSession


_threads = threading.local()
"""`given`: whether this thread has its active session by `activate_session_in_thread`."""


def activate_session_in_thread(spark: SparkSession) -> None:
    """Make a session the active one of a thread that has none, so that Spark finds the sink of a write there."""
    sessions = _sessions_of(spark)
    if sessions is None:
        return
    if getattr(_threads, "given", False) or not sessions.getActiveSession().isDefined():
        sessions.setActiveSession(spark._jsparkSession)
        _threads.given = True


@functools.cache
def _wrap_writers() -> None:
    """Wrap `format` of DataFrameWriter and DataStreamWriter once, for threads without an active session."""
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    for kind in (DataFrameWriter, DataStreamWriter):
        kind.format = _in_thread(kind.format)


def _in_thread(original: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Return a writer's method `format` that makes the frame's session the active one of its thread."""

    @functools.wraps(original)
    def format_in_thread(writer: Any, source: str) -> Any:
        if isinstance(source, str) and source.lower() == "kohort":
            activate_session_in_thread(writer._spark)
        return original(writer, source)

    return format_in_thread


_ACCUMULATOR: Final = "__python_accumulator__"
"""The name by which a Connect server sends accumulators of Python workers, such as those of a Python source."""


@functools.cache
def _wrap_connect_client() -> None:
    """Keep accumulators of Python workers from what Connect's client hands on, once for all sessions of this process.

    The client itself has used them by then. The command `spark-pipelines` does not know them: it ends with the error
    UNKNOWN_RESPONSE and exit status 1, although its run has completed.
    """
    from pyspark.sql.connect.client.core import SparkConnectClient

    name = "_execute_and_fetch_as_iterator"
    if hasattr(SparkConnectClient, name):
        setattr(SparkConnectClient, name, _without_accumulators(getattr(SparkConnectClient, name)))


def _without_accumulators(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return a client's method that gives the answers of a request without accumulators of Python workers."""

    @functools.wraps(original)
    def answers(client: Any, *args: Any, **given: Any) -> Iterator[Any]:
        for answer in original(client, *args, **given):
            if getattr(answer, "name", None) != _ACCUMULATOR:
                yield answer

    return answers
