"""Applications with queries of a region as processes, a topic that is their input, and who watches them."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tests.region.test_kills import Reader, Where, rows_of
from tests.spark.region.query_process import Options
from tests.support.waiting import until

from kohort import Admin, Producer
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType
from kohort.demo.play import session_processes
from kohort.errors import KafkaError
from kohort.ids import TopicPartition
from kohort.region.region import Region

PARTITIONS, MORE = 6, 2
SESSION_S = 6.0
STILL_S = 180.0


class Application:
    """An application: its processes, one run after another."""

    def __init__(self, name: str, options: Options) -> None:
        self.name, self.options = name, options
        self.log = Path(options.folder) / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._said = 0

    def start(self, **changed: Any) -> None:
        options = replace(self.options, **changed)
        self._said = self.log.stat().st_size if self.log.exists() else 0
        machine = {}
        if options.machine:
            machine["TMPDIR"] = str(Path(options.folder) / options.machine)
            Path(machine["TMPDIR"]).mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.spark.region.query_process", options.to_json()],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"} | machine,
            )

    def signal(self, number: int) -> None:
        """To every process of its session: the JVM and its Python processes included."""
        assert self.process is not None
        for pid in session_processes(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        self.process = None

    def stop(self, *, wait: bool = True) -> int:
        """Have it end by itself; gives its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.ended() if wait else 0

    def ended(self) -> int:
        assert self.process is not None
        try:
            code = self.process.wait(STILL_S)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGABRT)  # what its threads do is in the log
            code = self.process.wait()
        self.signal(signal.SIGKILL)
        self.process = None
        return code

    def runs(self) -> bool:
        """Whether all of its queries have begun since it was started last."""
        said = self.log.read_bytes()[self._said :].decode()
        return all(f"[query {query}] started in its region's epoch" in said for query in self.options.queries)

    def check(self) -> None:
        code = None if self.process is None else self.process.poll()
        assert code is None, f"{self.name} ended by itself, with {code}: {self.log.read_text()[-4000:]}"


class Watch:
    """Sees that the group's committed offsets are those of the newest sequence."""

    PATIENCE_S = 5.0
    """On Apache Kafka the markers come after the commit, and a member that went back commits what was merged."""

    def __init__(self, servers: str, name: str) -> None:
        self.servers, self.name = servers, name
        self.looks = 0
        self.wrong: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with Admin(self.servers) as admin, Region(self.name, self.servers, serves=False) as region:
            since, before, different = time.monotonic(), -1, ""
            while not self._ended.wait(0.1):
                try:
                    sequence, now = self._difference(admin, region)
                except (KafkaError, OSError):
                    continue  # the control plane is somewhere else now
                self.looks += 1
                if sequence != before or now != different or not now:
                    since, before, different = time.monotonic(), sequence, now
                elif time.monotonic() > since + self.PATIENCE_S:
                    self.wrong.append(f"sequence {sequence}: {now}")
                    return

    def _difference(self, admin: Admin, region: Region) -> tuple[int, str]:
        seen = region.describe()
        at = {TopicPartition(position.topic, position.partition): position.offset for position in seen.positions}
        options = admin.list_consumer_group_offsets(self.name, list(at)).all()
        found = {tp: options[tp].offset if options.get(tp) is not None else 0 for tp in at}
        return seen.sequence, "" if found == at else f"the group has {found}, the sequence {at}"

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


class Trial:
    """A topic, its input, the applications and who watches."""

    def __init__(self, servers: str, folder: Path, protocol: str) -> None:
        self.servers, self.folder = servers, folder
        self.name = f"k-{uuid.uuid4().hex[:8]}"
        self.partitions = PARTITIONS
        self.asked = 0  # records that are sent, or about to be
        self.sent: dict[Where, str] = {}
        self.options = Options(servers, self.name, self.name, str(folder), [], protocol)
        self.apps: dict[str, Application] = {}
        (folder / "parquet").mkdir()
        self._prepare(protocol)
        self.reader, self.watch = Reader(folder / "parquet"), Watch(servers, self.name)

    def _prepare(self, protocol: str) -> None:
        with Admin(self.servers) as admin:
            admin.create_topics([NewTopic(self.name, PARTITIONS)]).all()
            if protocol == "consumer":
                resource = ConfigResource(ResourceType.GROUP, self.name)
                admin.incremental_alter_configs(
                    {resource: {"consumer.session.timeout.ms": f"{SESSION_S:.0f}000"}}
                ).all()

    def app(self, name: str, *queries: str, **options: Any) -> Application:
        self.apps[name] = Application(name, replace(self.options, queries=list(queries), **options))
        return self.apps[name]

    def send(self, count: int) -> None:
        first = len(self.sent)
        self.asked += count
        with Producer(self.servers) as producer:
            values = [f"v{number}" for number in range(first, first + count)]
            pieces = [
                (value, producer.send(self.name, value.encode(), partition=number % self.partitions))
                for number, value in enumerate(values, first)
            ]
            producer.flush()
            for value, delivery in pieces:
                at: Any = delivery.result()
                self.sent[at.partition, at.offset] = value

    def add_partitions(self) -> None:
        self.partitions += MORE
        with Admin(self.servers) as admin:
            admin.create_partitions({self.name: self.partitions}).all()

    def check(self) -> None:
        for app in self.apps.values():
            app.check()
        assert not self.watch.wrong, self.watch.wrong
        assert self.reader.rows <= self.asked, "more is published than was sent"

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            self.check()
            return condition()

        until(holds, what, STILL_S, lambda: {"rows": self.reader.rows, "sequences": len(self.reader.seen)})

    def proceed(self, what: str) -> None:
        before = self.reader.rows
        self.until(lambda: self.reader.rows > before, what)

    def all_run(self) -> None:
        running = [app for app in self.apps.values() if app.process is not None]
        self.until(lambda: all(app.runs() for app in running), "all queries run")

    def is_published(self) -> None:
        self.until(lambda: self.reader.rows == len(self.sent), "all that was sent is published")

    def ends_exactly(self) -> None:
        """All end by themselves; then the folder is the input."""
        self.is_published()
        running = [app for app in self.apps.values() if app.process is not None]
        for app in running:
            app.stop(wait=False)
        codes = {app.name: app.ended() for app in running}
        assert not any(codes.values()), (codes, [app.log.read_text()[-3000:] for app in running])
        self.close()
        assert not self.watch.wrong and self.watch.looks, self.watch.wrong
        values: dict[Where, str] = {}
        for sequence in sorted((self.folder / "parquet").glob("sequence=*")):
            assert rows_of(sequence) == self.reader.seen[sequence.name], f"{sequence.name} was seen before it was whole"
            for file in sequence.glob("*.parquet"):
                table: Any = pq.ParquetFile(file).read(["partition", "offset", "value"])
                for partition, offset, value in zip(*(column.to_pylist() for column in table.columns), strict=True):
                    assert (partition, offset) not in values, f"{sequence.name} has rows that another has"
                    values[partition, offset] = value
        assert values == self.sent

    def close(self) -> None:
        for app in self.apps.values():
            if app.process is not None:
                app.kill()
        self.reader.close()
        self.watch.close()


def rows_of_all_kinds(folder: Path) -> Iterator[tuple[int, int, str]]:
    import deltalake

    files = [str(file) for file in (folder / "parquet").glob("sequence=*/*.parquet")]
    if (folder / "delta" / "_delta_log").exists():
        files += deltalake.DeltaTable(folder / "delta").file_uris()
    for file in files:
        table: Any = pq.ParquetFile(file.removeprefix("file://")).read(["partition", "offset", "value"])
        yield from zip(*(column.to_pylist() for column in table.columns), strict=True)
    with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(folder / "flights.db") as database:
        yield from database.execute('SELECT "partition", "offset", "value" FROM flights')
