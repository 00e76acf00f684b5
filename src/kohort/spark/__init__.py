"""The PySpark data source: `register(spark)` makes `format("kohort")` known to a session.

A streaming query is a member of its consumer group.

- `source/` is what Spark calls. `source.py` implements Spark's interface, and `query.py` decides how much a batch
  reads. `offset_coordinator.py` is the interface to whoever keeps the offsets: `group_offsets.py` for a query that
  keeps its own, `region_offsets.py` for a query of a region. `membership.py` is the member of the group.
- `tasks/` runs in Spark's workers: `read.py` reads, `write.py` writes, `workers.py` chooses the Python that they run.
- `driver_server.py` learns in the driver program when a batch is done, and `driver_channel.py` carries that to the
  source's process.
- `single_reader_lock.py` and `read_twice.py` refuse queries that would read a topic twice in one group.
- `sink.py` is the sink; `tables.py` shows groups, lag and topics.
- `kafka_progress.py` gives the progress of queries Spark's form.
- `region/` runs queries that write exactly once: `SparkRegion`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.spark.region.spark_region import SparkRegion as SparkRegion
    from kohort.spark.region.spark_region import write_region as write_region

__all__ = ["SparkRegion", "register", "write_region"]
_MODULES = {"SparkRegion": "kohort.spark.region.spark_region", "write_region": "kohort.spark.region.spark_region"}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'kohort.spark' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def register(spark: SparkSession, *, in_place_of_kafka: bool = False) -> None:
    """Make `format("kohort")` known to a Spark session, classic or Connect.

    The driver program then listens to the session's queries. It tells a source at once when its sink has completed a
    batch. On Spark Connect a source learns that at the query's next trigger instead.

    Spark looks for a sink in the active session of the thread that writes, and a thread that the program starts has
    none. So a writer's `format("kohort")` makes the frame's session the active one of such a thread.

    The progress of queries has the form that Spark's own Kafka source gives it, for `lastProgress` and for listeners.

    In a local session the workers run the Python that runs this program: Spark would take the `python3` of the PATH,
    which may not have kohort. With any other master the workers run the PYSPARK_PYTHON of the time when the session was
    made. On Spark Connect they run the server's PYSPARK_PYTHON. A warning says where kohort must be installed.

    Args:
        spark: the session.
        in_place_of_kafka: run code of this session that uses `format("kafka")` on kohort too, unchanged and without a
            jar, until the session ends; `in_place_of_kafka.py` lists what is replaced.
    """
    from kohort.io.platforms import require_posix

    require_posix("kohort's Spark source")
    from kohort.spark import kafka_progress
    from kohort.spark.data_source import KohortDataSource
    from kohort.spark.driver_server import install
    from kohort.spark.tasks.workers import use_this_python

    use_this_python(spark)
    with _active(spark):
        spark.dataSource.register(KohortDataSource.reaching(install(spark)))
    _wrap_writers()
    kafka_progress.wrap_progress()
    if in_place_of_kafka:
        from kohort.spark.in_place_of_kafka import cover

        cover(spark)


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
"""`given`: whether this thread has its active session by `use_in_thread`."""


def use_in_thread(spark: SparkSession) -> None:
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
            use_in_thread(writer._spark)
        return original(writer, source)

    return format_in_thread
