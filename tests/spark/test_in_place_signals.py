"""The summary of `python -m kohort.spark job.py` when SIGTERM ends the job, which ends as it would alone."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import KOHORT
from tests.support.waiting import LAST_RESORT, until

from kohort import Admin, Broker, Producer
from kohort.client.admin.values import NewTopic

pytestmark = LAST_RESORT
WAITING = """
import signal, sys, time
{before}
print("runs", flush=True)
while True:
    time.sleep(0.05)
"""
FORKED = """
import os, signal, time
child = os.fork()
if child == 0:
    while True:
        time.sleep(0.05)
os.kill(child, signal.SIGTERM)
print("child", -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
STREAMING = """
import sys
from pyspark.sql import SparkSession

servers, folder = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
for topic, settings in (("orders", {"group.id": "etl"}), ("clicks", {})):
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    writer = stream.options(startingOffsets="earliest", **settings).load().writeStream.format("parquet")
    writer = writer.option("path", f"{folder}/rows of {topic}").option("checkpointLocation", f"checkpoint-{topic}")
    writer.start()
spark.streams.awaitAnyTermination()
"""
WORKERS = """
import multiprocessing, time

def work():
    print("runs", flush=True)
    time.sleep(3600)

context = multiprocessing.get_context("fork")
worker = context.Process(target=work)
worker.start()
worker.join()
print("worker", worker.exitcode, flush=True)
"""
UNREADABLE = """
from pathlib import Path
from kohort.spark.in_place_of_kafka import CHANGES

location = "x" * 300
CHANGES.count_change("a query")
CHANGES.groupless.add("127.0.0.1:9092")
CHANGES.checkpoints[location] = Path(location).absolute()
"""
SUMMARY = 'kohort: the job used no format("kafka"); nothing was changed\n'


Started = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Start a job in a session and a folder of its own, with arguments."""
    jobs: list[subprocess.Popen[str]] = []

    def start(job: str, *args: str) -> subprocess.Popen[str]:
        (tmp_path / "job.py").write_text(job)
        command = [sys.executable, "-m", "kohort.spark", str(tmp_path / "job.py"), *args]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        jobs.append(subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def ended(job: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGTERM to a job that runs; return its exit code and its standard error."""
    assert job.stdout is not None
    assert job.stdout.readline() == "runs\n"
    job.terminate()
    _, errors = job.communicate()
    return job.returncode, errors


def test_sigterm_prints_the_summary_and_ends_the_job_by_the_signal(started: Started) -> None:
    assert ended(started(WAITING.format(before=""))) == (-signal.SIGTERM, SUMMARY)


@pytest.mark.parametrize(
    ("before", "code"),
    [
        pytest.param("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", 7, id="handler"),
        pytest.param("signal.getsignal(signal.SIGTERM) is signal.SIG_DFL or sys.exit(9)", -15, id="default-is-seen"),
        pytest.param(
            "old = signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
            "assert old is signal.SIG_DFL\n"
            "signal.signal(signal.SIGTERM, old)",
            -15,
            id="handler-put-back",
        ),
        pytest.param(
            "import asyncio\n"
            "async def run():\n"
            "    loop = asyncio.get_running_loop()\n"
            "    ended = asyncio.Event()\n"
            "    loop.add_signal_handler(signal.SIGTERM, ended.set)\n"
            "    print('runs', flush=True)\n"
            "    await ended.wait()\n"
            "asyncio.run(run())\n"
            "sys.exit(8)",
            8,
            id="asyncio",
        ),
    ],
)
def test_a_handler_of_the_job_works_as_alone(started: Started, before: str, code: int) -> None:
    assert ended(started(WAITING.format(before=before))) == (code, SUMMARY)


def test_an_ignored_sigterm_stays_ignored(started: Started, tmp_path: Path) -> None:
    job = started("import signal\nprint(signal.getsignal(signal.SIGTERM).name)\n")
    assert job.communicate() == ("SIG_DFL\n", SUMMARY)
    command = f"trap '' TERM; exec {sys.executable} -m kohort.spark {tmp_path / 'job.py'}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "SIG_IGN\n"


def test_a_fork_of_the_job_ends_by_sigterm_without_a_summary(started: Started) -> None:
    job = started(FORKED)
    assert job.communicate() == (f"child {signal.SIGTERM.value}\n", SUMMARY)


def test_sigterm_to_a_job_and_its_workers_gives_one_summary(started: Started) -> None:
    """Systemd sends the signal to every process of a service."""
    job = started(WORKERS)
    assert job.stdout is not None and job.stdout.readline() == "runs\n"
    os.killpg(job.pid, signal.SIGTERM)
    out, errors = job.communicate()
    assert (job.returncode, errors) == (-signal.SIGTERM, SUMMARY)
    assert out in ("", "worker -15\n")


def test_the_first_process_of_a_container_ends_by_sigterm(tmp_path: Path) -> None:
    """Linux ignores SIGTERM there, unless a handler takes it."""
    contained = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*contained, "true"], check=False).returncode:
        pytest.skip("no process namespace can be made here")
    (tmp_path / "job.py").write_text(WAITING.format(before="import os\nassert os.getpid() == 1"))
    command = [*contained, sys.executable, "-m", "kohort.spark", str(tmp_path / "job.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as outside:
        assert outside.stdout is not None and outside.stdout.readline() == "runs\n"
        (first,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        assert outside.communicate() == ("", SUMMARY)
    assert outside.returncode == 128 + signal.SIGTERM


def test_a_summary_that_fails_leaves_the_job_its_exit_code(started: Started) -> None:
    """No file system has a name so long, and looking for the folder is an error."""
    job = started(UNREADABLE)
    errors = job.communicate()[1]
    assert job.returncode == 0, errors
    assert errors.startswith("kohort: no summary: OSError: "), errors


def test_sigterm_prints_the_offsets_of_streaming_queries_and_how_to_see_the_lag_of_one_without_a_group(
    started: Started, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint-clicks"
    with Broker() as broker, Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        for topic in ("orders", "clicks"):
            admin.create_topics([NewTopic(topic, 1)]).all()
            producer.send(topic, b"1")
        producer.flush()
        job = started(STREAMING, broker.bootstrap_servers, str(tmp_path))

        def committed() -> list[int]:
            offsets = admin.list_consumer_group_offsets("etl").all()
            return [offset.offset for offset in offsets.values() if offset is not None]

        def have_read() -> bool:
            assert job.poll() is None, job.communicate()[1]
            return committed() == [1] and (checkpoint / "commits" / "0").exists()

        until(have_read, "each query has read its record", timeout_s=900)  # a Spark starts, and shows nothing of it
        job.terminate()
        _, errors = job.communicate()
        assert job.returncode == -signal.SIGTERM
        assert committed() == [1]
        assert errors.count("kohort ran this job in place of") == 1
        # the group's offset follows Spark's report of a batch; a query without a group may be ahead of its report
        assert re.search("streaming queries read [12] records\n", errors)
        assert "group etl: orders-0 at 1" in errors
        assert "streaming queries without a group.id commit nothing" in errors
        (command,) = re.findall("to see their lag: (.+)", errors)
        words = shlex.split(command)
        assert words[-2:] == ["--spark-checkpoint", str(checkpoint)]
        done = subprocess.run([*KOHORT, *words[1:], "--json"], capture_output=True, text=True, check=True)
    found = {row["topic"]: (row["committed"], row["lag"]) for row in json.loads(done.stdout)}
    assert found["clicks"] == (1, 0)
