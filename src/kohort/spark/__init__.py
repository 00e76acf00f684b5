"""PySpark's side: `register(spark)` makes `format("kohort")` known to a session.

A streaming query is a member of its consumer group. `source.py` is what Spark calls; `query.py` decides what a batch
reads; `query_member.py` keeps the place in the group; `incarnations.py` knows its topics by their ids; `reading.py` is
all that runs in Spark's workers, and `workers.py` chooses the Python that they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("kohort")` known to a Spark session, classic or Connect.

    The workers of a local session are made to run the Python that runs this program: Spark would take the `python3` of
    the PATH, which need not have kohort. With any other master they run what PYSPARK_PYTHON said when the session was
    made, on Spark Connect what the server's PYSPARK_PYTHON says; a warning tells where kohort must be installed.
    """
    from kohort.spark.source import KohortDataSource
    from kohort.spark.workers import use_this_python

    use_this_python(spark)
    spark.dataSource.register(KohortDataSource)
