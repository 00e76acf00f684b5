"""PySpark's side: `register(spark)` makes `format("kohort")` known to a session.

A streaming query is a member of its consumer group. `source.py` is what Spark calls; `query.py` decides how much a
batch reads, and its place (`place.py`) of what, from where, and what follows: `group_place.py`, with `starting.py`, for
a query that keeps its own offsets, as what `query_member.py` says; `region_place.py` for one whose region does, which
asks `region/seats.py` in the application. `incarnations.py` knows its topics by ids;
`reading.py` is all that runs in Spark's workers, and `workers.py` chooses the Python that they run. `listener.py`
hears in the application when a batch is done; `channel.py` carries that to the source's process, where `hearing.py`
takes it. `refused.py` says what a query is refused with, `sole.py` keeps two queries from one `load()`, and
`read_twice.py` keeps a query from a topic that it reads twice in one group. `changed.py` tells what a checkpoint does
not go with. `sink.py` has the writers, of which `writing.py` runs in the workers, and `tables.py` shows groups, lag and
topics. `region/` has queries that write exactly once: `SparkRegion`.
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
_HOMES = {"SparkRegion": "kohort.spark.region.spark_region", "write_region": "kohort.spark.region.spark_region"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kohort.spark' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def register(spark: SparkSession, *, in_place_of_kafka: bool = False) -> None:
    """Make `format("kohort")` known to a Spark session, classic or Connect.

    The application then listens to the session's queries, and tells a source at once when its sink is done with a
    batch (not on Spark Connect, where a source learns it at the query's next trigger).

    A thread that the program starts, as an executor's in a notebook or one in `foreachBatch`, calls this too before it
    writes with `format("kohort")`: Spark looks for the source in the thread's active session, and such a thread has
    none.

    The workers of a local session are made to run the Python that runs this program: Spark would take the `python3` of
    the PATH, which need not have kohort. With any other master they run what PYSPARK_PYTHON said when the session was
    made, on Spark Connect what the server's PYSPARK_PYTHON says; a warning tells where kohort must be installed.

    Args:
        spark: the session.
        in_place_of_kafka: code of this session that says `format("kafka")` runs on kohort too, without a change and
            without a jar; `in_place_of_kafka.py` lists what is done. It ends with the session.
    """
    from kohort.spark.driver_server import install
    from kohort.spark.source.source import KohortDataSource
    from kohort.spark.tasks.workers import use_this_python

    use_this_python(spark)
    with _active(spark):
        spark.dataSource.register(KohortDataSource.reaching(install(spark)))
    if in_place_of_kafka:
        from kohort.spark.in_place_of_kafka import cover

        cover(spark)


@contextlib.contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session the thread's active one for a while, and for good where the thread has none.

    Spark looks in the active session for a source of that name, and refuses one that another session has. A thread
    that the program starts has no active session, and finds no `format("kohort")` to write to until it has one.
    Nothing on Spark Connect.
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
