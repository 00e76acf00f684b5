"""Tables in a lake: rows a second beside Spark's own source and sinks, freshness, memory, cost of a commit, compaction.

Every writer does the same: partition, offset, timestamp and the value as text, into a new Delta or Iceberg table. The
clock of a run starts with the first batch, and stops when a reader sees all rows. Readers are delta-rs and pyiceberg.
After each run they read the whole table, which must have each record once.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from frameworks.builds import PROGRAMS, FrameworkUnavailable, python_environment
from rich.console import Console
from tests.region.lake_spark import SPARK_TABLE_JARS
from tests.support import maven
from tests.support.supervise import descendants

from bench.harness import Contender, Figure, NotHere, Options, Parts, RunFailed, Sample, compare, warmed
from bench.lake_tables import DELTA, ICEBERG, LOCAL_DISK, S3, Store, TableJob, TableReader, check_exact, stores
from bench.peers import Place, brokers, drop_topic, new_topic
from kohort import Producer
from kohort.region import ParquetFolder, Region
from kohort.region.staged import StagedKey

_RECORDS, _RECORDS_AT_ONCE = 4_000_000, 50_000
_FRESH_RATE, _FRESH_S, _FRESH_BEFORE_S, _FIRST_ROW_S = 1000, 10.0, 3.0, 30.0
_LOOK_S, _PATIENCE_S = 0.05, 120.0
_CHECKPOINTS = 20
_SMALL_FILES, _SMALL_ROWS = 500, 20_000
_JARS = {
    "lake-spark-kafka": (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.0",
    ),
    "lake-spark-tables": SPARK_TABLE_JARS,
}
_SPARK = "Spark's Kafka source"
_ONE, _TWO, _QUERY = "a Python member", "two Python members", "a Spark query of a region"
_SESSIONS = (_SPARK, _QUERY)
_COUNTS = {_ONE: 1, _TWO: 2}
_CONTENDERS = (_SPARK, _QUERY, _ONE, _TWO)
_MEMBERS_MAX = 8
_NAMES = {DELTA: "a Delta table", ICEBERG: "an Iceberg table"}


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """Rows a second and memory for each table and store; then freshness, checkpoints by members, compaction."""
    with ExitStack() as running:
        bench = Bench(running, options, console)
        yield from bench.throughput()
        yield from bench.freshness()
        yield from bench.checkpoints()
    yield from compaction(options, console)


# -- Writers: processes that take jobs and tell how far they are


class Writer:
    """A process that takes one job after the other as a line of JSON, and tells how many rows of it it has read.

    Attributes:
        began_s: when its first batch began, on time.monotonic()'s clock; 0: it has not.
        rows: how many rows of the job it has read.
        facts: other figures that it tells, by name.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.began_s, self.rows = 0.0, 0
        self.facts: dict[str, float] = {}
        self._stopped = False
        self._ready = False
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._errors: deque[str] = deque(maxlen=40)
        for work in (self._read_lines, self._read_errors):
            threading.Thread(target=work, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._changed:
                self.began_s = said.get("began", self.began_s)
                self.rows = said.get("rows", self.rows)
                self.facts |= said.get("facts", {})
                self._stopped = said.get("stopped", self._stopped)
                self._ready = self._ready or "ready" in said
                self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def say(self, line: str) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("it has ended") from None

    def start(self, job: dict[str, Any]) -> None:
        """Give it a job."""
        self.began_s, self.rows, self._stopped = 0.0, 0, False
        self.say(json.dumps(job))

    def stop(self) -> None:
        """End the job."""
        self.say("stop")
        self.wait_until_stopped()

    def wait_until_begun(self) -> None:
        """Wait until its first batch has begun."""
        self.wait_until(lambda: self.began_s > 0)

    def wait_until_stopped(self) -> None:
        """Wait until it has ended its job."""
        self.wait_until(lambda: self._stopped)

    def wait_until_ready(self) -> None:
        """Wait until it takes jobs."""
        self.wait_until(lambda: self._ready)

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Wait until something that it tells is so.

        Raises:
            RunFailed: it has ended, or takes too long.
        """
        until_s = time.monotonic() + _PATIENCE_S
        with self._changed:
            while not done():
                if self._process.poll() is not None:
                    raise self._failed(f"it ended with {self._process.returncode}")
                if time.monotonic() > until_s:
                    raise self._failed(f"nothing within {_PATIENCE_S:g} s")
                self._changed.wait(0.2)

    def check_alive(self) -> None:
        """Raise an error if it has ended.

        Raises:
            RunFailed: it has.
        """
        if self._process.poll() is not None:
            raise self._failed(f"it ended with {self._process.returncode}")

    def _failed(self, why: str) -> RunFailed:
        return RunFailed(f"{why}: {''.join(self._errors)[-1500:]}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def member() -> Writer:
    """Start a Python member, which takes one job."""
    return Writer([sys.executable, "-m", "bench.runners.lake"])


def query_session() -> Writer:
    """Start a Spark session for queries of a region."""
    return Writer([sys.executable, "-m", "bench.runners.lake_spark"])


def spark_session() -> Writer:
    """Start a Spark session with Spark's own source and sinks.

    Raises:
        NotHere: it can't be had on this machine.
    """
    try:
        python = python_environment("spark-lake")
        folders = [maven.jars(name, coordinates, transitive=False) for name, coordinates in _JARS.items()]
    except (FrameworkUnavailable, maven.MavenUnavailable) as error:
        raise NotHere(str(error)) from error
    jars = ",".join(str(jar) for folder in folders for jar in sorted(folder.glob("*.jar")))
    return Writer([str(python), str(PROGRAMS / "spark_lake_app.py"), jars])


class Sessions:
    """The writers that live through the whole benchmark: a JVM is started and warmed once."""

    def __init__(self, running: ExitStack) -> None:
        self._running = running
        self._writers: dict[str, Writer] = {}

    def get(self, name: str) -> Writer:
        """Return the session of a contender; start it if there is none, or if the last one has ended.

        Raises:
            NotHere: it can't be had on this machine.
            RunFailed: it does not start.
        """
        found = self._writers.get(name)
        if found is not None:
            with suppress(RunFailed):
                found.check_alive()
                return found
        writer = spark_session() if name == _SPARK else query_session()
        self._running.callback(writer.close)
        writer.wait_until_ready()
        self._writers[name] = writer
        return writer


def peak_mb(pid: int) -> float:
    """Return the highest resident memory of a process and of those below it, each at its own time."""
    total = 0
    for process in (pid, *descendants(pid)):
        with suppress(OSError):
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return total / 1024


# -- The figures


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a contender into a new table."""

    seconds: float
    peak_mb: float
    files: int


class Bench:
    """A broker, the stores and the sessions of one benchmark, and its figures."""

    def __init__(self, running: ExitStack, options: Options, console: Console) -> None:
        self._options, self._console, self._running = options, console, running
        self._count = options.records(_RECORDS)
        self._made: tuple[Place, list[Store]] | None = None
        self._sessions = Sessions(running)

    @property
    def _place(self) -> Place:
        return self._parts()[0]

    @property
    def _stores(self) -> list[Store]:
        return self._parts()[1]

    def _parts(self) -> tuple[Place, list[Store]]:
        """Start the broker and the S3 server, if a figure needs them: Apache Kafka where it can run."""
        if self._made is None:
            self._made = (self._running.enter_context(brokers())[-1], self._running.enter_context(stores()))
        return self._made

    def _compare(self, title: str, contenders: Sequence[Contender], **more: Any) -> Figure:
        return compare(title, contenders, rounds=self._options.rounds, console=self._console, **more)

    # -- rows a second, and memory

    def throughput(self) -> Iterator[Figure]:
        """Yield the figures of rows a second, and of the memory of the same runs."""
        titles = {
            (kind, where): f"a topic into {_NAMES[kind]}, {where}"
            for kind in (DELTA, ICEBERG)
            for where in (LOCAL_DISK, S3)
        }
        memory = "memory of a Python member while it writes"
        wanted = {at: title for at, title in titles.items() if self._options.only in title}
        if self._options.only in memory:
            wanted = titles
        if not wanted:
            return
        topic = self._filled_topic()
        members: list[Contender] = []
        for (kind, where), title in wanted.items():
            store = next((store for store in self._stores if store.name == where), None)
            if store is None:
                continue
            parts = {name: Parts(partial(self._run, name, kind, store, topic)) for name in _CONTENDERS}
            contenders = [Contender(name, part.showing(self._rate)) for name, part in parts.items()]
            if self._options.only in title:
                yield self._compare(title, [*warmed(contenders[:2]), *contenders[2:]], unit="rows/s")
            name = title.removeprefix("a topic into ")
            members.append(Contender(name, parts[_ONE].showing(_memory)))
            if self._options.only in title:
                ended = parts[_SPARK].showing(_memory)
                members.append(Contender(f"{_SPARK} (JVM and Python), {name}", ended))
        if self._options.only in memory:
            yield self._compare(memory, members, unit="MB of memory")
        drop_topic(self._place, topic)

    def _filled_topic(self) -> str:
        """Create a topic of JSON objects of about 90 bytes."""
        topic = new_topic(self._place)
        values = pa.array(
            [
                b'{"id":%d,"name":"name-%d","score":%d.%d,"ok":%s,"at":"2024-02-29T01:02:03.%03dZ","tags":["a","b"]}'
                % (number, number, number % 1000, number % 10, (b"true", b"false")[number % 2], number % 1000)
                for number in range(_RECORDS_AT_ONCE)
            ],
            pa.binary(),
        )
        with Producer(self._place.servers) as producer:
            for start in range(0, self._count, _RECORDS_AT_ONCE):
                part = values[: min(_RECORDS_AT_ONCE, self._count - start)]
                producer.send_arrow(topic, pa.record_batch({"value": part}))
        return topic

    def _rate(self, run: Run) -> Sample:
        return Sample(self._count, run.seconds, {"files": run.files, "peak MB": run.peak_mb})

    def _run(self, name: str, kind: str, store: Store, topic: str) -> Run:
        """Write the topic into a new table."""
        table = store.job(kind)
        with self._writing(name, table, topic, None if name == _SPARK else "5s") as writers:
            reader = table.reader()
            self._wait_for_rows(writers, reader)
            ended_s = time.monotonic()
            for writer in writers:
                if name != _TWO:  # the first of two may have read all
                    writer.wait_until_begun()
            began_s = min(writer.began_s for writer in writers if writer.began_s)
            peak = max(peak_mb(writer.pid) for writer in writers)
        check_exact(reader, self._count)
        files = len(table.reader().new_files())
        shutil.rmtree(table.folder, ignore_errors=True)
        return Run(ended_s - began_s, peak, files)

    def _wait_for_rows(self, writers: Sequence[Writer], reader: TableReader) -> None:
        """Wait until a reader sees all rows; ask for a checkpoint as soon as all are read.

        Raises:
            RunFailed: a writer has ended, or it takes too long.
        """
        until_s, asked_s = time.monotonic() + _PATIENCE_S, 0.0
        while reader.count() < self._count:
            for writer in writers:
                writer.check_alive()
            if sum(writer.rows for writer in writers) >= self._count and time.monotonic() - asked_s > 1:
                writers[0].say("checkpoint")
                asked_s = time.monotonic()
            if time.monotonic() > until_s:
                raise RunFailed(f"a reader saw {reader.count()} of {self._count} rows within {_PATIENCE_S:g} s")
            time.sleep(_LOOK_S)

    @contextmanager
    def _writing(self, name: str, table: TableJob, topic: str, every: str | None) -> Iterator[list[Writer]]:
        """Have a contender write a topic into a table, until the block ends."""
        job = {"servers": self._place.servers, "topic": topic, "every": every}
        if name in _SESSIONS:
            told = table.of_spark() if name == _SPARK else table.of_members()
            writer = self._sessions.get(name)
            writer.start({**told, **job})
            yield [writer]
            writer.stop()
            return
        with ExitStack() as running:
            writers = []
            for number in range(_COUNTS.get(name) or int(name.split()[0])):
                writers.append(member())
                running.callback(writers[-1].close)
                writers[-1].start({**table.of_members(), **job, "name": f"m{number}"})
            yield writers
            for writer in writers:
                writer.say("stop")
            for writer in writers:
                writer.wait_until_stopped()

    # -- freshness

    def freshness(self) -> Iterator[Figure]:
        """Yield figures of the time from a record's creation until a reader sees it."""
        for kind in (DELTA, ICEBERG):
            title = f"until a reader sees a record, checkpoints every second, {_NAMES[kind]}, {LOCAL_DISK}"
            if self._options.only in title:
                contenders = [Contender(name, partial(self._fresh, name, kind)) for name in (_SPARK, _ONE, _QUERY)]
                yield self._compare(title, contenders, unit="1/s")

    def _fresh(self, name: str, kind: str) -> Sample:
        """Produce at a steady rate, and return the 99th percentile of the records' ages when a reader saw them."""
        topic, table = new_topic(self._place), self._stores[0].job(kind)
        seconds = max(3.0, _FRESH_S * min(1.0, self._options.scale))
        every = "1 second" if name == _SPARK else "1s"
        with feeding(self._place, topic), self._writing(name, table, topic, every) as writers:
            for writer in writers:
                writer.wait_until_begun()
            ages_s = ages_seen(table.reader(), seconds)
        drop_topic(self._place, topic)
        p99_s = ages_s[len(ages_s) * 99 // 100]
        return Sample(1, p99_s, {"p50 s": statistics.median(ages_s), "p99 s": p99_s, "records": len(ages_s)})

    # -- checkpoints

    def checkpoints(self) -> Iterator[Figure]:
        """Yield figures of the duration of a checkpoint by the number of members, each in a process of its own."""
        for kind in (DELTA, ICEBERG):
            title = f"a checkpoint by number of members, {_NAMES[kind]}, {LOCAL_DISK}"
            if self._options.only in title:
                names = ["1 member", *(f"{count} members" for count in (2, 4, 8))]
                contenders = [Contender(name, partial(self._checkpoints, name, kind)) for name in names]
                yield self._compare(title, contenders, unit="checkpoints/s")

    def _checkpoints(self, name: str, kind: str) -> Sample:
        """Take checkpoints one after the other, and return the median of their durations."""
        topic, table = new_topic(self._place, _MEMBERS_MAX), self._stores[0].job(kind)
        took_ms, shown_ms = [], []
        with feeding(self._place, topic), self._writing(name, table, topic, None) as writers:
            for writer in writers:
                writer.wait_until_begun()
            region = Region(table.name, self._place.servers, checkpoint_every=None, serves=False)
            with region:
                for _ in range(max(3, int(_CHECKPOINTS * min(1.0, self._options.scale)))):
                    took, shown = checkpoint_ms(region)
                    took_ms.append(took)
                    shown_ms.append(shown)
        drop_topic(self._place, topic)
        p50_ms = statistics.median(took_ms)
        return Sample(1, p50_ms / 1000, {"p50 ms": p50_ms, "until shown, p50 ms": statistics.median(shown_ms)})


def _memory(run: Run) -> Sample:
    return Sample(run.peak_mb, 1.0)


def checkpoint_ms(region: Region) -> tuple[float, float]:
    """Take a checkpoint; return its duration, and the time from the request until its rows are in the table.

    Raises:
        RunFailed: it takes too long.
    """
    before, began_s = region.describe().sequence, time.monotonic()
    region.checkpoint()
    while (seen := region.describe()).published <= before:
        if time.monotonic() - began_s > _PATIENCE_S:
            raise RunFailed(f"no checkpoint within {_PATIENCE_S:g} s: {seen}")
        time.sleep(_LOOK_S / 4)
    shown_ms = (time.monotonic() - began_s) * 1000
    return seen.sequence_ms, shown_ms


@contextmanager
def feeding(place: Place, topic: str) -> Iterator[None]:
    """Produce at a steady rate into all partitions, until the block ends."""
    ended = threading.Event()

    def produce() -> None:
        with Producer(place.servers, linger_ms=0) as producer:
            partitions, number, began_s = producer.partitions_for(topic), 0, time.monotonic()
            while not ended.wait(0.01):
                until = int((time.monotonic() - began_s) * _FRESH_RATE)
                for at in range(number, until):
                    producer.send(topic, b'{"id":%d,"name":"name-%d"}' % (at, at), partition=at % len(partitions))
                number = until

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def ages_seen(reader: TableReader, seconds: float) -> list[float]:
    """Look for new rows for so long; return the age of each when it was seen, sorted, in seconds.

    Rows that were produced in the first seconds do not count. A slow writer gets more time for its first row.

    Raises:
        RunFailed: there were none.
    """
    reader.new_files()
    began_s, found = time.time(), list[float]()
    ends_s = began_s + _FRESH_BEFORE_S + seconds
    while (now_s := time.time()) < ends_s + (0.0 if found else _FIRST_ROW_S):
        files = reader.new_files()
        seen_s = time.time()
        for file in files:
            times = pq.read_table(file, columns=["timestamp"], partitioning=None).column("timestamp")
            stamps = times.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
            found += [
                seen_s - stamp / 1e6
                for stamp in stamps
                if stamp is not None and stamp / 1e6 > began_s + _FRESH_BEFORE_S
            ]
        time.sleep(max(0.0, _LOOK_S - (time.time() - now_s)))
    if not found:
        raise RunFailed("a reader saw no rows")
    return sorted(found)


# -- Compaction


def compaction(options: Options, console: Console) -> Iterator[Figure]:
    """Yield rows a second of the compaction of a folder with many small files, and the size of the files after it."""
    parts = Parts(partial(_compact, max(4, int(_SMALL_FILES * options.scale))))
    title = "kohort region compact, a folder of small files"
    figures = (
        (title, "rows/s", lambda run: Sample(run["rows"], run["seconds"], {"files": run["files"]})),
        (f"{title}: size of the full files after it", "MB", lambda run: Sample(run["mb"], 1.0)),
    )
    for name, unit, part in figures:
        if options.only in name:
            contenders = [Contender("ParquetFolder", parts.showing(part))]
            yield compare(name, contenders, rounds=options.rounds, unit=unit, console=console)


def _compact(count: int) -> dict[str, float]:
    """Publish one small file in each of many sequences, and compact the folder."""
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as name:
        region_id = uuid.uuid4()
        sink = ParquetFolder(Path(name) / "out").bind("bench", region_id)
        for sequence in range(1, count + 1):
            # Other values in each file: what repeats from file to file would be stored once after compaction.
            table = pa.table({"line": pa.array([os.urandom(20).hex() for _ in range(_SMALL_ROWS)])})
            if sequence == 1:
                sink.check(table.schema)
            key = StagedKey(region_id, 1, "m", sequence)
            sink.stage(key, table)
            sink.publish(sequence, [key])
        folder = ParquetFolder(Path(name) / "out")
        began_s = time.perf_counter()
        folder.compact()
        took_s = time.perf_counter() - began_s
        sizes = sorted(os.stat(file.path).st_size for file in folder.published_files())
    full = sizes[1:] or sizes
    rows = count * _SMALL_ROWS
    return {"rows": rows, "seconds": took_s, "files": len(sizes), "mb": statistics.median(full) / 2**20}
