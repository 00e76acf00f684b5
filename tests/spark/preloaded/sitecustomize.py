"""Run by each Python process of the tests' Spark sessions: they import early, or not at all, what their forks need.

Spark forks a process for each step of planning, and each fork imports PySpark, PyArrow and kohort anew. Forks of a
daemon that has imported them begin at once. The process of a streaming source is no fork: `tests/spark/runners.py`
forks one in its place. Programs that tests run as a user does start without this.
"""

import contextlib
import importlib
import json
import os
import socket
import sys

IMPORTED = (
    "pyarrow",
    "pyspark.sql.datasource",
    "kohort.spark.data_source",
    "kohort.spark.source.query",
    "kohort.spark.source.readers",
    "kohort.spark.tasks.write",
)
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
RUNNERS = "KOHORT_TEST_RUNNERS"
"""Environment variable with the address of the process that forks sources."""


def run_as_fork(path: str) -> None:
    """Let a fork with this process's files do its work, and end as it ends; return where nobody forks."""
    import resource

    umask = os.umask(0)
    os.umask(umask)
    order = {
        "function": "tests.spark.runners:run_source",
        "arguments": [],
        "session": False,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(path)
            socket.send_fds(connection, [json.dumps(order).encode()], [0, 1, 2])
        except OSError:
            return
        os._exit(int(connection.recv(64) or b"1"))


if sys.orig_argv[-1:] == [RUNNER] and RUNNERS in os.environ:
    run_as_fork(os.environ[RUNNERS])
elif "pyspark.daemon" in sys.orig_argv:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads of NumPy's before a fork
    for name in (sys.orig_argv[-1], *IMPORTED):
        with contextlib.suppress(ImportError):  # Spark looks for data sources by a Python of its own choice
            importlib.import_module(name)
