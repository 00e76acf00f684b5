"""Coordinators over a real Apache Kafka, as processes, and our clients on them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kohort import Admin, AsyncConsumer, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.errors import InvalidInputError, KafkaError
from tests.cluster.running import CoordinatorProcess
from tests.support.apache_kafka import ApacheKafka
from tests.support.nursery import run_command
from tests.support.processes import KOHORT
from tests.support.waiting import until

pytestmark = pytest.mark.kafka

QUICK = ("--set", "group.initial.rebalance.delay.ms=0", "--set", "journal.partitions=4")


class Place:
    """A topic, a journal and a placement group of the test's own."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self.kafka = kafka
        name = uuid.uuid4().hex[:8]
        self.topic, self.group = f"flights-{name}", f"group-{name}"
        self.settings = (
            *QUICK, "--set", f"journal.topic=__groups-{name}", "--set", f"placement.group=__coordinators-{name}",
        )  # fmt: skip
        with Admin(kafka.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(self.topic, 4)]).all()

    def start(self, *args: str) -> CoordinatorProcess:
        return CoordinatorProcess(self.kafka.bootstrap_servers, *self.settings, *args)

    def produce(self, count: int) -> None:
        with Producer(self.kafka.bootstrap_servers) as producer:
            for number in range(count):
                producer.send(self.topic, str(number).encode(), partition=number % 4)

    def parts(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in range(4)]


@pytest.fixture
def place(apache_kafka: ApacheKafka) -> Place:
    return Place(apache_kafka)


@pytest.fixture
def one(place: Place) -> Iterator[CoordinatorProcess]:
    with place.start() as process:
        yield process


def first_transaction(place: Place, address: str) -> None:
    with Producer(address, transactional_id=f"{place.group}-tx") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(place.topic, b"0", partition=0)
        producer.commit_transaction()


def first_idempotent_record(place: Place, address: str) -> None:
    with Producer(address) as producer:
        producer.send(place.topic, b"0").result()


def first_look_at_a_transaction(place: Place, address: str) -> None:
    with Admin(address) as admin:
        assert list(admin.describe_transactions(["nobody"])) == ["nobody"]


def first_fence(place: Place, address: str) -> None:
    with Admin(address) as admin:
        assert admin.fence_producers([f"{place.group}-fenced"]).all()


def first_topic(place: Place, address: str) -> None:
    with Admin(address) as admin:
        admin.create_topics([NewTopic(f"{place.topic}-first", 1)]).all()


def first_look_at_offsets(place: Place, address: str) -> None:
    with Consumer(address) as consumer:
        assert consumer.end_offsets([TopicPartition(place.topic, 0)])


def first_commit(place: Place, address: str) -> None:
    with Consumer(address, group_id=f"{place.group}-first") as consumer:
        consumer.commit({TopicPartition(place.topic, 0): 1})
        assert consumer.committed([TopicPartition(place.topic, 0)])


FIRST: list[Callable[[Place, str], None]] = [
    first_transaction,
    first_idempotent_record,
    first_look_at_a_transaction,
    first_fence,
    first_topic,
    first_look_at_offsets,
    first_commit,
]
"""First requests of a new client at a coordinator's address, with nothing known of brokers."""


@pytest.mark.parametrize("ask", FIRST)
def test_first_request_at_a_coordinators_address_gets_its_answer(
    place: Place, one: CoordinatorProcess, ask: Callable[[Place, str], None]
) -> None:
    place.produce(1)
    ask(place, one.address)


def test_offsets_of_a_group_at_coordinators_are_refused_by_its_bare_name(place: Place, one: CoordinatorProcess) -> None:
    place.produce(4)
    with (
        Consumer(one.address, group_id=place.group, auto_offset_reset="earliest") as consumer,
        Producer(place.kafka.bootstrap_servers, transactional_id=f"{place.group}-copier") as producer,
    ):
        consumer.subscribe([place.topic])
        until(lambda: bool(consumer.poll(300)), "the group reads", 60)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(place.topic, b"9", partition=0).result()
        with pytest.raises(InvalidInputError, match=r"at kohort's coordinators: give consumer.group_metadata\(\)"):
            producer.send_offsets_to_transaction(consumer.positions(), place.group)
        producer.abort_transaction()
    with Admin(place.kafka.bootstrap_servers) as admin:
        assert admin.list_consumer_group_offsets(place.group).all() == {}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_reads_and_commits_and_continues_where_it_was(
    place: Place, one: CoordinatorProcess, protocol: str
) -> None:
    place.produce(40)
    settings = {"group_id": place.group, "group_protocol": protocol, "auto_offset_reset": "earliest"}
    with Consumer(one.address, **settings) as consumer:
        consumer.subscribe([place.topic])
        seen = 0

        def read() -> bool:
            nonlocal seen
            seen += len(list(consumer.poll(timeout_ms=200)))
            return seen == 40

        until(read, "all records are read", 60)
        consumer.commit()
        assert sum(offset.offset for offset in consumer.committed(place.parts()).values() if offset) == 40
    with Admin(one.address) as admin:
        assert place.group in {group.group_id for group in admin.list_groups()}
        assert admin.describe_consumer_groups([place.group]).result(place.group).state == "Empty"
    with Admin(place.kafka.bootstrap_servers) as admin:
        assert place.group not in {group.group_id for group in admin.list_groups()}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_asyncio_share_a_group_with_others(place: Place, one: CoordinatorProcess, protocol: str) -> None:
    place.produce(8_000)
    member = Committing(one.address, place, protocol)
    member.start()
    member.more(5)

    async def run() -> int:
        settings = {"group_id": place.group, "group_protocol": protocol, "auto_offset_reset": "earliest"}
        async with AsyncConsumer(one.address, **settings) as consumer:
            consumer.subscribe([place.topic])
            while not len(list(await consumer.poll(timeout_ms=200))):
                pass
            await consumer.commit()
            return len(consumer.assignment())

    assert asyncio.run(asyncio.wait_for(run(), 60)) == 2
    member.end()


def status(address: str) -> dict[str, Any]:
    """Return the output of `kohort coordinator status`."""
    done = run_command([*KOHORT, "coordinator", "status", "--bootstrap-server", address, "--json"])
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Committing(threading.Thread):
    """A member that reads and commits one record at a time, and remembers what was acknowledged."""

    def __init__(self, address: str, place: Place, protocol: str) -> None:
        super().__init__(daemon=True)
        self.settings = {
            "group_id": place.group,
            "group_protocol": protocol,
            "auto_offset_reset": "earliest",
            "max_poll_records": 1,
        }
        self.address, self.place = address, place
        self.acknowledged: dict[TopicPartition, int] = {}
        self.commits = self.refused = 0
        self.longest_s = 0.0
        self.ending = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Consumer(self.address, **self.settings) as consumer:
                consumer.subscribe([self.place.topic])
                while not self.ending.is_set():
                    self.turn(consumer)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def turn(self, consumer: Consumer) -> None:
        for record in consumer.poll(timeout_ms=100):
            at = TopicPartition(record.topic, record.partition)
            began = time.monotonic()
            try:
                consumer.commit({at: record.offset + 1})
            except KafkaError:
                self.refused += 1
                continue
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.acknowledged[at] = record.offset + 1
            self.commits += 1

    def more(self, count: int) -> None:
        """Until so many more commits are acknowledged."""
        wanted = self.commits + count
        until(lambda: self.error is not None or self.commits >= wanted, f"{count} more commits", 90)
        self.check()

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        self.ending.set()
        self.join(60)
        self.check()


@contextlib.contextmanager
def two(place: Place) -> Iterator[tuple[CoordinatorProcess, CoordinatorProcess]]:
    with place.start() as first, place.start() as second:
        until(
            lambda: sorted(coordinator["shards"] for coordinator in status(first.address)["coordinators"]) == [2, 2],
            "shared out",
        )
        yield first, second


def has_group(place: Place, address: str) -> bool:
    """Whether the coordinator at an address has the group's shard."""
    with Admin(address) as admin:
        node = admin.describe_consumer_groups([place.group]).result(place.group).coordinator
    seen = next(coordinator for coordinator in status(address)["coordinators"] if coordinator["id"] == node)
    return bool(seen["address"] == address)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_continues_when_its_coordinator_is_killed(place: Place, protocol: str) -> None:
    place.produce(4_000)
    with two(place) as both:
        member = Committing(",".join(coordinator.address for coordinator in both), place, protocol)
        member.start()
        member.more(50)
        of_group, other = both if has_group(place, both[0].address) else reversed(both)
        member.longest_s = 0.0
        of_group.kill()
        member.more(50)
        member.end()
        print(f"the longest commit took {member.longest_s * 1000:.0f} ms, {member.refused} were refused")
        with Consumer(other.address, group_id=place.group) as consumer:
            committed = consumer.committed([*member.acknowledged])
        assert {at: found.offset for at, found in committed.items() if found} == member.acknowledged
        assert [coordinator["shards"] for coordinator in status(other.address)["coordinators"]] == [4]


def test_a_clean_stop_hands_over_first(place: Place) -> None:
    place.produce(4_000)
    with two(place) as both:
        member = Committing(",".join(coordinator.address for coordinator in both), place, "classic")
        member.start()
        member.more(50)
        of_group, other = both if has_group(place, both[0].address) else reversed(both)
        member.longest_s = 0.0
        assert of_group.stop() == 0
        member.more(50)
        member.end()
        assert member.refused == 0
        print(f"the longest commit took {member.longest_s * 1000:.0f} ms")
        assert "could not be handed over" not in of_group.log
        assert "is suspected" not in other.log


def test_a_paused_coordinator_that_wakes_answers_nothing(place: Place) -> None:
    """The coordinator serves no shard until the placement assigns it one, and its log says how it learned that.

    A refused append says so, or the placement. Where the placement is first, the refused append is no error.
    """
    place.produce(4_000)
    with two(place) as both:
        member = Committing(",".join(coordinator.address for coordinator in both), place, "classic")
        member.start()
        member.more(20)
        of_group, other = both if has_group(place, both[0].address) else reversed(both)
        of_group.process.send_signal(19)
        until(lambda: [e["shards"] for e in status(other.address)["coordinators"]] == [4], "the other has all", 60)
        member.more(20)
        before = len(of_group.lines)
        of_group.process.send_signal(18)
        told = ("another coordinator has taken over", " 2 revoked, 0 owned now")
        until(lambda: any(text in line for line in of_group.lines[before:] for text in told), "it knows", 60)
        member.more(20)
        member.end()
        with Consumer(other.address, group_id=place.group) as consumer:
            committed = consumer.committed([*member.acknowledged])
        assert {at: found.offset for at, found in committed.items() if found} == member.acknowledged


def test_status_and_metrics(place: Place) -> None:
    place.produce(40)
    with place.start("--metrics-listen", "127.0.0.1:0", "--id", "700", "--set", "broker.rack=east") as one:
        member = Committing(one.address, place, "classic")
        member.start()
        member.more(5)
        seen = status(one.address)
        member.end()
        assert [
            (coordinator["id"], coordinator["elected"], coordinator["rack"], coordinator["shards"])
            for coordinator in seen["coordinators"]
        ] == [(700, True, "east", 4)]
        assert {shard["phase"] for shard in seen["shards"]} == {"serving"}
        assert all(shard["term"] >= 0 and shard["load_ms"] >= 0 for shard in seen["shards"])
        of_group = [shard for shard in seen["shards"] if shard["groups"]]
        assert len(of_group) == 1 and of_group[0]["appends"] >= 5 and of_group[0]["proof_age_ms"] is not None
        where = next(line.split(" served on ")[1] for line in one.lines if "metrics for Prometheus" in line).strip()
        with urllib.request.urlopen(where, timeout=30) as answer:
            text = answer.read().decode()
        index = of_group[0]["shard"]
        assert f'kohort_shard_serving{{coordinator="700",shard="{index}"}} 1.0' in text
        assert "kohort_shard_proof_age_seconds" in text


def test_status_of_a_broker_says_that_it_is_none(apache_kafka: ApacheKafka) -> None:
    done = run_command([*KOHORT, "coordinator", "status", "--bootstrap-server", apache_kafka.bootstrap_servers])
    assert done.returncode == 1
    assert "is no coordinator of kohort's" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--id", "1"), "--id 1 is one of Kafka's brokers"),
        (("--set", "journal.topic=flights-plain"), "message.timestamp.type"),
    ],
)
def test_what_only_a_person_can_change_ends_it(place: Place, args: tuple[str, ...], said: str) -> None:
    with Admin(place.kafka.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("flights-plain", 1)])
    with CoordinatorProcess(place.kafka.bootstrap_servers, *place.settings, *args, wait=False) as process:
        assert process.process.wait(60) == 1
        until(lambda: said in process.log, said, 10)


def test_an_unknown_setting_names_the_nearest() -> None:
    done = run_command([*KOHORT, "coordinator", "--kafka", "127.0.0.1:1", "--set", "journal.partition=3"])
    assert done.returncode == 2
    assert "did you mean journal.partitions?" in done.stderr


def test_the_commands_of_groups_work_at_coordinators(place: Place) -> None:
    place.produce(400)

    def kohort(*args: str) -> str:
        done = run_command([*KOHORT, *args, "--bootstrap-server", address])
        assert done.returncode == 0, done.stderr
        return done.stdout

    with two(place) as both:
        address = both[0].address
        member = Committing(address, place, "consumer")
        member.start()
        member.more(20)
        member.end()
        assert place.group in kohort("groups", "list")
        assert place.topic in kohort("groups", "lag", place.group)
        moved = ("groups", "reset-offsets", place.group, "--all-topics", "--to-earliest", "--execute")
        kohort(*moved)
        with Admin(both[1].address) as admin:
            offsets = admin.list_consumer_group_offsets(place.group).values
        assert {found.offset for found in offsets.values() if found} == {0}
        kohort("groups", "delete", place.group, "--execute")
        assert place.group not in kohort("groups", "list")
