"""Three real Spark applications in one group, held to the properties of the histories: `make spark-churn MINUTES=10`.

`python -m tests.spark.histories.real [--minutes 10] [--protocol classic] [--json]`. One joins late. In turn one is
killed by SIGKILL with its JVM, one is stopped, and one is paused with all its processes for 30 s. Ended queries return
with their checkpoints. Then everything is read and committed, and the checker looks at what the sinks took.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from tests.spark.histories.check import violations
from tests.spark.histories.engine import Log
from tests.spark.histories.life import COLUMNS, STORY
from tests.spark.histories.settings import Life
from tests.spark.histories.story import JOURNAL, Story, read_journal, read_story

from kohort import Admin, Broker, Producer
from kohort.client.admin.values import NewTopic
from kohort.demo.play import session_processes
from kohort.errors import KafkaError
from kohort.ids import TopicPartition
from kohort.spark.source.batch_offset import OffsetRange

NAMES = ("x", "y", "z")
PARTITIONS = 6
PAUSE_S, AWAY_S, BETWEEN_S, TRIGGER_MS = 30.0, 3.0, 8.0, 500
SETTLE_S = 300.0
"""How long all may take to be committed at the end."""
TOPIC, GROUP = "churned", "churn"
SETTLED_BROKER = {"offsets.topic.num.partitions": 1, "group.consumer.session.timeout.ms": 10_000}
SETTLED_BROKER |= {"group.consumer.min.session.timeout.ms": 6_000}


class Application:
    """One application: its processes, one run after another, with one checkpoint."""

    def __init__(self, name: str, folder: Path, options: dict[str, str]) -> None:
        self.name, self.folder, self._options = name, folder / name, options
        self.folder.mkdir()
        self.runs = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.runs += 1
        options = {**self._options, "kafka.client.id": f"{self.name}-{self.runs}"}
        life = Life(options, str(self.folder), 0, self.runs, interval_ms=TRIGGER_MS)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.spark.histories.application", life.to_json()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            )

    def signal(self, number: int) -> None:
        """To every process of its session, the JVM and its Python processes included."""
        assert self._process is not None
        for pid in session_processes(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._gone("kill")

    def stop(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
        self._gone("stop")

    def _gone(self, how: str) -> None:
        assert self._process is not None
        self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        reported = {"e": "ending", "at": time.time_ns(), "life": self.runs, "checkpoint": 0, "how": how}
        with (self.folder / STORY).open("a") as story:
            story.write(json.dumps(reported) + "\n")

    def begun(self) -> bool:
        """Whether its present run has."""
        file = self.folder / STORY
        said = map(json.loads, file.read_text().splitlines()) if file.exists() else iter(())
        return any(reported["e"] == "begin" and reported["life"] == self.runs for reported in said)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Return the query's story, with the offset log of Spark for each batch."""
        file = self.folder / STORY
        said = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        begins = [reported for reported in said if reported["e"] == "begin"]
        said = [reported for reported in said if reported["life"] in {start["life"] for start in begins}]
        checkpoint = self.folder / "checkpoint-0"
        commits, offsets = Log(checkpoint / "commits").written(), Log(checkpoint / "offsets")
        planned: dict[int, tuple[int, Any]] = {}
        for number, at in offsets.written().items():
            life = max((reported for reported in begins if reported["at"] <= at), key=lambda reported: reported["at"])
            end = json.loads(str(offsets.read(number)).splitlines()[-1])
            planned[number] = life["life"], end
            called = max(life["at"], commits.get(number - 1, 0))
            said.append(_batch("plan", at + 5_000_000, life["life"], called, number, end))
        for reported in [reported for reported in said if reported["e"] == "write"]:
            life, end = planned[reported["batch"]]
            if reported["life"] != life:
                began = next(start["at"] for start in begins if start["life"] == reported["life"])
                said.append(_batch("tasks", reported["at"] - 1, reported["life"], began, reported["batch"], end))
        order = {"begin": 0, "plan": 1, "tasks": 1}
        return iter(sorted(said, key=lambda reported: (reported["life"], order.get(reported["e"], 2), reported["at"])))


def _batch(event: str, at: int, life: int, called: int, number: int, end: Any) -> dict[str, Any]:
    return {"e": event, "at": at, "life": life, "checkpoint": 0, "batch": number, "called": called, "end": end}


class Churn:
    """The run: what befalls the applications, and what is produced meanwhile."""

    def __init__(self, servers: str, folder: Path, protocol: str, rate: float) -> None:
        options = {
            "kafka.bootstrap.servers": servers,
            "subscribe": TOPIC,
            "group.id": GROUP,
            "group.protocol": protocol,
            "startingOffsets": "earliest",
            "kafka.session.timeout.ms": "10000",
            "onRevocationTimeout": "release",
            "columns": COLUMNS,
        }
        self.servers, self.folder, self._rate = servers, folder, rate
        self.story = Story()
        self.events: list[str] = []
        self.applications = [Application(name, folder, options) for name in NAMES]
        self._ids = itertools.count()
        self._away: Application | None = None
        self._admin, self._producer = Admin(servers), Producer(servers)
        self._began = time.monotonic()

    def run(self, minutes: float) -> Story:
        """All of it; no process is left."""
        self._admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).all()
        self._began = time.monotonic()
        until = self._began + minutes * 60
        x, y, z = self.applications
        try:
            x.start()
            y.start()
            self._at_work((x, y))
            self._note("z joins")
            z.start()
            for turn in itertools.count():
                self._at_work(self.applications)
                self._produce(BETWEEN_S)
                if time.monotonic() > until and turn >= len(NAMES):
                    break
                self._befall(turn)
            self._settle()
        finally:
            for application in self.applications:
                if application.running:
                    application.stop()
            self._producer.close()
        for application in self.applications:
            read_story(self.story, application.name, application.folder, application.lines())
        span = OffsetRange(0, self._admin.list_offsets({JOURNAL: "latest"}).all()[JOURNAL].offset)
        read_journal(self.story, self.servers, GROUP, span, self.folder / "journal.txt")
        self._admin.close()
        return self.story

    def _at_work(self, applications: Iterable[Application]) -> None:
        """Produces until each has begun its present run: starting Spark takes seconds, or a minute."""
        until = time.monotonic() + SETTLE_S
        while not all(application.begun() for application in applications) and time.monotonic() < until:
            self._produce(1.0)

    def _note(self, text: str) -> None:
        self.events.append(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def _befall(self, turn: int) -> None:
        application = self.applications[(turn + turn // 3) % 3]
        what = ("kill", "stop", "pause")[turn % 3]
        self._note(f"{application.name}: {what}")
        if what == "pause":
            application.signal(signal.SIGSTOP)
            self._produce(PAUSE_S)
            application.signal(signal.SIGCONT)
            self._note(f"{application.name}: goes on")
            return
        getattr(application, what)()
        self._away = application
        self._produce(AWAY_S)
        self._away = None
        application.start()

    def _produce(self, seconds: float) -> None:
        """Records for so long; applications that failed come back."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sent = []
            for _ in range(max(1, int(self._rate / 5))):
                number = next(self._ids)
                delivery = self._producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
                sent.append((number, delivery))
            for number, delivery in sent:
                done = delivery.result()
                self.story.produced[number] = (TopicPartition(TOPIC, done.partition), done.offset)
            self._restart()
            time.sleep(0.2)

    def _restart(self) -> None:
        for application in self.applications:
            if application.runs and not application.running and application is not self._away:
                self._note(f"{application.name}: is started again, its query had failed")
                application.start()

    def _settle(self) -> None:
        places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until:
            self._restart()
            with contextlib.suppress(KafkaError):
                ends = self._admin.list_offsets(dict.fromkeys(places, "latest")).all()
                found = self._admin.list_consumer_group_offsets(GROUP, places).all()
                committed = {tp: position.offset for tp, position in found.items() if position is not None}
                if all(committed.get(tp, 0) == end.offset for tp, end in ends.items()):
                    return
            time.sleep(0.5)
        self.story.unsettled = f"not all is committed after {SETTLE_S:.0f} s"


def main() -> int:
    """Runs it; 1 when a property was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.histories.real", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10); one round of each at least")
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--rate", type=float, default=100.0, help="records per second")
    parser.add_argument("--folder", type=Path, help="keep stories, checkpoints and logs here")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    console = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        folder = asked.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kohort-spark-churn-")))
        folder.mkdir(parents=True, exist_ok=True)
        broker = stack.enter_context(Broker(folder / "broker", SETTLED_BROKER))
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        progress = stack.enter_context(Progress(*columns, console=console, disable=not console.is_terminal))
        progress.add_task(f"three applications for {asked.minutes:g} minutes")
        churn = Churn(broker.bootstrap_servers, folder, asked.protocol, asked.rate)
        story = churn.run(asked.minutes)
        found = violations(story)
    rows = sum(1 for write in story.writes for _ in write.ids())
    reported: dict[str, Any] = {
        "protocol": asked.protocol,
        "runs": len(story.runs),
        "batches": len(story.finished),
        "batches repeated": len({tasks.batch for tasks in story.tasks if tasks.repeated}),
        "records": len(story.produced),
        "rows repeated": rows - len({number for write in story.writes for _, _, number in write.ids()}),
        "commits": sum(map(len, story.commits.values())),
    }
    if asked.json:
        print(json.dumps({**reported, "events": churn.events, "violations": found}))
    else:
        print(*churn.events, *found, sep="\n")
        print(*(f"{name}: {value}" for name, value in reported.items()), f"{len(found)} violations", sep=", ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
