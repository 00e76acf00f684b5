"""Run by each Python process of the tests' Spark applications: forks do the work of those that would only import.

Spark starts a process for each streaming source, and a daemon for each step of planning. Every one imports PySpark,
PyArrow and kohort anew, for a second of processor time. Here such a process sends its standard files and its
environment to `tests/spark/runners.py`, which has imported them, and whose fork does the work. `make test-long`, and
programs that tests run as a user does, start without this.
"""

import os
import sys

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
DAEMON = "pyspark.daemon"
RUNNERS = "KOHORT_TEST_RUNNERS"
"""Environment variable with the address of the process that forks."""


def run_as_fork(path: str, function: str, arguments: list[str]) -> None:
    """Let a fork with this process's files do its work, and end as it ends; return where nobody forks.

    SIGTERM goes to the fork, which ends by SIGKILL when this process is killed.
    """
    import json
    import resource
    import signal
    import socket

    umask = os.umask(0)
    os.umask(umask)
    order = {
        "function": f"tests.spark.runners:{function}",
        "arguments": arguments,
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
        signal.signal(signal.SIGTERM, lambda number, _: connection.send(b"%d" % number))
        if function == "run_daemon":
            os.setpgid(0, 0)  # as the daemon does: who kills the application's group does not reach it
        os._exit(int(connection.recv(64) or b"1"))


if RUNNERS in os.environ:
    if sys.orig_argv[-1:] == [RUNNER]:
        run_as_fork(os.environ[RUNNERS], "run_source", [])
    elif DAEMON in sys.orig_argv:
        run_as_fork(os.environ[RUNNERS], "run_daemon", sys.orig_argv[sys.orig_argv.index(DAEMON) + 1 :])
