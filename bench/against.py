"""This checkout beside another one of the same project: `python -m bench.against FOLDER`.

The other checkout has its own environment (`make setup` there). Brokers of both run as processes of the same machine.
Every contender runs once in each round, so that the cost of a change is a ratio within a round. The clients that load
the brokers are this checkout's. For the figures of clients, both checkouts' clients use this one's broker.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.coordinator.comparisons import Scenario, play, scenarios
from bench.coordinator.places import SETTINGS, Coordinator
from bench.harness import Contender, Figure, Options, Sample, compare, show
from bench.peers import Place, filled_topic, python_client
from bench.produce import on_fresh_topic
from bench.request_cpu import REQUESTS, request_figure

HERE = Path(__file__).resolve().parent.parent
_COORDINATOR = (
    "commits of",
    "1,000 join at once",
    "heartbeat p99, 5,000 members in one group",
    "SIGKILL with 1,000 members",
)
_SIZE = 100
_CLIENTS = (
    ("produce", "kohort-send", 500_000),
    ("produce", "kohort-send-arrow", 8_000_000),
    ("consume", "kohort-arrow", 8_000_000),
    ("consume", "kohort-records", 2_000_000),
)
_BROKER_RECORDS = 8_000_000


class OtherBroker:
    """The broker of a checkout, as a process that can be killed and started again on its port and its data."""

    def __init__(self, checkout: Path, data: Path) -> None:
        self._checkout, self._data = checkout, data
        self.servers = "127.0.0.1:0"
        self.process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until clients can connect.

        Raises:
            RuntimeError: it ended before it was ready.
        """
        settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
        command = [str(self._checkout / ".venv/bin/kohort"), "broker", "--listen", self.servers]
        self.process = subprocess.Popen(
            [*command, "--data", str(self._data), *settings], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready "):
                self.servers = line.split()[1]
                return
        raise RuntimeError(f"the broker of {self._checkout} ended with {self.process.wait()}")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, by: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(by)
            self.process.wait(30)
            if self.process.stdout is not None:
                self.process.stdout.close()

    def pid(self) -> int:
        return self.process.pid if self.process is not None else os.getpid()


@contextmanager
def _brokers(other: Path) -> Iterator[dict[str, OtherBroker]]:
    """The other checkout's broker first: it is the baseline."""
    with ExitStack() as running:
        found: dict[str, OtherBroker] = {}
        for name, checkout in (("the other", other), ("this", HERE)):
            data = running.enter_context(tempfile.TemporaryDirectory(prefix="kohort-bench-"))
            found[name] = OtherBroker(checkout, Path(data))
            running.callback(found[name].stop)
        yield found


def _of_coordinators(other: Path, options: Options, console: Console) -> Iterator[Figure]:
    wanted = [candidate for candidate in scenarios() if any(part in candidate.title for part in _COORDINATOR)]
    for scenario in wanted:
        if options.only in scenario.title:
            with _brokers(other) as brokers:
                yield compare(
                    scenario.title,
                    [Contender(name, _played(scenario, name, broker)) for name, broker in brokers.items()],
                    rounds=options.rounds,
                    unit=scenario.unit,
                    console=console,
                )


def _played(scenario: Scenario, name: str, broker: OtherBroker) -> Callable[[], Sample]:
    return partial(play, scenario, _place(name, broker))


def _of_requests(other: Path, options: Options, console: Console) -> Iterator[Figure]:
    for title in REQUESTS:
        if options.only in title:
            with _brokers(other) as brokers:
                places = [_place(name, broker) for name, broker in brokers.items()]
                yield request_figure(title, places, options, console)


def _place(name: str, broker: OtherBroker) -> Coordinator:
    return Coordinator(name, broker.servers, broker.kill, broker.start, broker.pid)


def _of_brokers(other: Path, options: Options, console: Console) -> Iterator[Figure]:
    records = options.records(_BROKER_RECORDS)
    for title, job in (
        ("produce into the broker, kohort send_arrow", _sent),
        ("fetch from the broker, receiving without decoding", _fetched),
    ):
        if options.only in title:
            with _brokers(other) as brokers:
                places = [Place(name, broker.servers) for name, broker in brokers.items()]
                contenders = [Contender(place.name, job(place, records)) for place in places]
                yield compare(title, contenders, rounds=options.rounds, console=console)


def _sent(place: Place, records: int) -> Callable[[], Sample]:
    return on_fresh_topic(
        place, lambda topic: python_client("produce", "kohort-send-arrow", place, topic, records, str(_SIZE))
    )


def _fetched(place: Place, records: int) -> Callable[[], Sample]:
    return partial(python_client, "consume", "raw-receive", place, filled_topic(place, records, _SIZE), records)


def _of_clients(other: Path, options: Options, console: Console) -> Iterator[Figure]:
    for job, client, count in _CLIENTS:
        title, records = f"{job} with {client}", options.records(count)
        if options.only not in title:
            continue
        with _brokers(other) as brokers:
            place = Place("this", brokers["this"].servers)
            topic = filled_topic(place, records, _SIZE) if job == "consume" else ""
            contenders = [
                Contender(name, _client_of(checkout, job, client, place, topic, records))
                for name, checkout in (("the other", other), ("this", HERE))
            ]
            yield compare(title, contenders, rounds=options.rounds, console=console)


def _client_of(checkout: Path, job: str, client: str, place: Place, topic: str, records: int) -> Callable[[], Sample]:
    def run(name: str) -> Sample:
        more = [str(_SIZE)] if job == "produce" else []
        command = [str(checkout / ".venv/bin/python"), "-m", f"bench.runners.{job}", client, place.servers, name]
        done = subprocess.run(
            [*command, str(records), *more], cwd=checkout, capture_output=True, text=True, timeout=600, check=True
        )
        result = json.loads(done.stdout.splitlines()[-1])
        return Sample(result["amount"], result["seconds"], {"cpu_s": result["cpu_s"]} if "cpu_s" in result else {})

    return on_fresh_topic(place, run) if not topic else partial(run, topic)


def main() -> int:
    """Runs every figure, or those whose titles have the text asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.against", description=__doc__)
    parser.add_argument("folder", type=Path, help="the other checkout, set up")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender runs")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the records of every run")
    parser.add_argument("--only", default="", help="only figures whose titles have this text")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    other = asked.folder.resolve()
    if not (other / ".venv/bin/kohort").exists():
        parser.error(f"{other} has no environment: run `make setup` there")
    options = Options(asked.rounds, asked.scale, asked.only)
    console, progress = Console(width=None if sys.stdout.isatty() else 140), Console(stderr=True)
    found = []
    for measurements in (_of_coordinators, _of_requests, _of_brokers, _of_clients):
        for figure in measurements(other, options, progress):
            found.append(figure.to_json())
            if not asked.json:
                show(figure, console)
    if asked.json:
        print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
