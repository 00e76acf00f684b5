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
- `region/` runs queries that write exactly once: `SparkRegion`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
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

    Call this also in a thread that the program starts, before the thread writes with `format("kohort")`. Examples are
    an executor's thread of a notebook, or one in `foreachBatch`. Spark looks for the source in the thread's active
    session, and such a thread has none.

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
    from kohort.spark.data_source import KohortDataSource
    from kohort.spark.driver_server import install
    from kohort.spark.tasks.workers import use_this_python

    use_this_python(spark)
    with _active(spark):
        spark.dataSource.register(KohortDataSource.reaching(install(spark)))
    if in_place_of_kafka:
        from kohort.spark.in_place_of_kafka import cover

        cover(spark)


@contextlib.contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session the thread's active session inside the block, and permanently if the thread had none.

    Spark looks up a data source in the active session, and does not find one that only another session has. A thread
    that the program starts has no active session, so it can't write to `format("kohort")`. On Spark Connect this does
    nothing.
    """
    try:
        jvm = spark.sparkContext._jvm
    except AttributeError:  # Spark Connect
        jvm = None
    if jvm is None:
        yield
        return
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
