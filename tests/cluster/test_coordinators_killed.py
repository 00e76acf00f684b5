"""Three coordinators that are killed, stopped, ended and started again at random, under groups of both protocols.

`KOHORT_COORDINATORS_EVENTS` says how often something happens to them: a few times in `make test`.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kohort import Admin, Consumer, TopicPartition
from kohort.errors import KafkaError
from kohort.zookeeper import free_ports
from tests.cluster.running import CoordinatorProcess
from tests.cluster.test_coordinator import Place, status
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(7_200)]

EVENTS = int(os.environ.get("KOHORT_COORDINATORS_EVENTS", "4"))
BETWEEN = 30
"""Commits of each group that are acknowledged between two events."""
PACE_S = 0.05
"""Between two records of a member: a group that nothing happens to must not come to the end meanwhile."""
PATIENCE_S = 120.0


class Commits:
    """What was acknowledged to the members of one group, by partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.newest: dict[TopicPartition, int] = {}
        self.count = 0
        self.taken_back: list[str] = []

    def floor(self, at: TopicPartition) -> int:
        with self._lock:
            return self.newest.get(at, 0)

    def acknowledged(self, at: TopicPartition, offset: int, floor: int) -> None:
        """`floor`: what had been acknowledged before the commit left."""
        with self._lock:
            if offset < floor:
                self.taken_back.append(f"{at}: {offset} was taken after {floor}")
            self.newest[at] = max(self.newest.get(at, 0), offset)
            self.count += 1


class Member(threading.Thread):
    """Reads and commits record by record until it is told to end."""

    def __init__(self, servers: str, place: Place, protocol: str, commits: Commits) -> None:
        super().__init__(daemon=True)
        self.servers, self.topic, self.commits = servers, place.topic, commits
        self.group, self.protocol = f"{place.group}-{protocol}", protocol
        self.ending = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Consumer(
                self.servers,
                group_id=self.group,
                group_protocol=self.protocol,
                auto_offset_reset="earliest",
                max_poll_records=1,
            ) as consumer:
                consumer.subscribe([self.topic])
                while not self.ending.is_set():
                    for record in consumer.poll(timeout_ms=100):
                        self.commit(consumer, TopicPartition(record.topic, record.partition), record.offset + 1)
                        self.ending.wait(PACE_S)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def commit(self, consumer: Consumer, at: TopicPartition, offset: int) -> None:
        floor = self.commits.floor(at)
        try:
            consumer.commit({at: offset})
        except KafkaError:
            return
        self.commits.acknowledged(at, offset, floor)


class Crowd:
    """The coordinators, each at an address of its own."""

    def __init__(self, place: Place, stack: ExitStack) -> None:
        self.place, self._stack = place, stack
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        self.running = [self.start(address) for address in self.addresses]

    @property
    def servers(self) -> str:
        return ",".join(self.addresses)

    def start(self, address: str) -> CoordinatorProcess:
        args = (*self.place.settings, "--set", "group.min.session.timeout.ms=6000")
        return self._stack.enter_context(CoordinatorProcess(self.place.kafka.bootstrap_servers, *args, listen=address))

    def disturb(self, chance: random.Random, go_on: object) -> str:
        """One thing that happens to one of them; `go_on` waits until both groups have committed meanwhile."""
        assert callable(go_on)
        number = chance.randrange(3)
        victim, kind = self.running[number], chance.choice(("kill", "stop", "pause"))
        if kind == "pause":
            victim.process.send_signal(signal.SIGSTOP)
            go_on()
            victim.process.send_signal(signal.SIGCONT)
        else:
            victim.kill() if kind == "kill" else victim.stop()
            go_on()
            self.running[number] = self.start(self.addresses[number])
        return f"{kind} {number}"


@pytest.fixture
def crowd(apache_kafka: ApacheKafka) -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(Place(apache_kafka), stack)


def test_no_acknowledged_commit_is_lost_and_no_partition_is_committed_by_two(crowd: Crowd) -> None:
    seed = int(os.environ.get("KOHORT_COORDINATORS_SEED", "17"))
    chance, place = random.Random(seed), crowd.place
    place.produce(8_000 + 4_000 * EVENTS)
    commits = {protocol: Commits() for protocol in ("classic", "consumer")}
    members = [Member(crowd.servers, place, protocol, of) for protocol, of in commits.items() for _ in range(2)]
    for member in members:
        member.start()
    happened: list[str] = []

    def go_on() -> None:
        wanted = {protocol: of.count + BETWEEN for protocol, of in commits.items()}

        def done() -> bool:
            failed = next((member.error for member in members if member.error is not None), None)
            if failed is not None:
                raise failed
            return all(of.count >= wanted[protocol] for protocol, of in commits.items())

        until(done, f"both groups commit on after {happened}", PATIENCE_S)

    go_on()
    for _ in range(EVENTS):
        happened.append(crowd.disturb(chance, go_on))
        go_on()
    until(lambda: sum(each["shards"] for each in status(crowd.servers)["coordinators"]) == 4, "all shards are given")
    for member in members:
        member.ending.set()
    for member in members:
        member.join(PATIENCE_S)
        assert member.error is None, (happened, member.error)
    for protocol, of in commits.items():
        assert not of.taken_back, happened
        with Admin(crowd.servers) as admin:
            found = admin.list_consumer_group_offsets(f"{place.group}-{protocol}").values
        kept = {at: each.offset for at, each in found.items() if each}
        assert all(kept.get(at, 0) >= offset for at, offset in of.newest.items()), (happened, kept, of.newest)
