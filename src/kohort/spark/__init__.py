"""The PySpark data source: `register(spark)` makes `format("kohort")` known to a session.

A streaming query is a member of its consumer group.

- `data_source.py` implements Spark's interface, and `source/readers.py` the readers that Spark calls.
- `source/query.py` decides how much a batch reads. `offset_coordinator.py` is the interface to whoever keeps the
  offsets: `group_offsets.py` for a query that keeps its own, `region_offsets.py` for a query of a region.
  `membership.py` is the member of the group. `single_reader_lock.py` and `read_twice.py` refuse queries that would read
  a topic twice in one group.
- `tasks/` runs in Spark's workers: `write.py` writes, `workers.py` chooses the Python that they run.
- `registration.py` makes the source known to a session.
- `driver_server.py` learns in the driver program when a batch is done, and `driver_channel.py` carries that to the
  source's process.
- `sink.py` is the sink; `tables.py` shows groups, lag and topics.
- `kafka_progress.py` gives the progress of queries Spark's form.
- `region/` runs queries that write exactly once: `SparkRegion`.
"""

from __future__ import annotations

import importlib
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

    Raises:
        InvalidInputError: PySpark is missing in this Python, or older than 4.2.
    """
    from kohort.spark.registration import register_source

    register_source(spark)
    if in_place_of_kafka:
        from kohort.spark.in_place_of_kafka import replace_kafka_in

        replace_kafka_in(spark)
