"""Run by each Python process of the tests' Spark session: Spark's daemons import early what their forks need.

Spark forks a process for each step of planning, and each fork imports PySpark, PyArrow and kohort anew. Forks of a
daemon that has imported them begin at once. Programs that tests start by themselves run as they do at a user's.
"""

import contextlib
import importlib
import os
import sys

IMPORTED = (
    "pyarrow",
    "pyspark.sql.datasource",
    "kohort.spark.data_source",
    "kohort.spark.source.query",
    "kohort.spark.source.readers",
    "kohort.spark.tasks.write",
)

if "pyspark.daemon" in sys.orig_argv:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads of NumPy's before a fork
    for name in (sys.orig_argv[-1], *IMPORTED):
        with contextlib.suppress(ImportError):  # Spark looks for data sources by a Python of its own choice
            importlib.import_module(name)
