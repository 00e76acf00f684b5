"""PySpark's side: `register(spark)` makes `format("kohort")` known to a session.

A streaming query is a member of its consumer group. `source.py` is what Spark calls; `query.py` decides what a batch
reads; `membership.py` keeps the place in the group; `reading.py` is all that runs in Spark's workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("kohort")` known to a Spark session, classic or Connect."""
    from kohort.spark.source import KohortDataSource

    spark.dataSource.register(KohortDataSource)
