"""Push consumers on coordinators over Apache Kafka: started, shown in ZooKeeper, taken over. Source: spec 4.2, 4.11."""

from __future__ import annotations

import contextlib
import json
import uuid

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kohort import Admin
from kohort.client.admin.values import NewTopic
from kohort.cluster.zookeeper.nodes import OFFSETS, OWNERS
from kohort.zookeeper import ZooKeeper
from tests.broker.literal_consumer import LiteralConsumer, coordinator, eventually
from tests.cluster.running import CoordinatorProcess
from tests.cluster.test_coordinator import status
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import until

pytestmark = pytest.mark.kafka


def test_owners_and_offsets_of_two_coordinators(apache_kafka: ApacheKafka, zookeeper: ZooKeeper) -> None:
    """Each writes of its own shards; who takes them over goes on, and what was shown stays true."""
    name = uuid.uuid4().hex[:8]
    root, topic, group = f"/push-{name}", f"flights-{name}", f"group-{name}"
    with Admin(apache_kafka.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 4)]).all()
    settings = (
        *("--set", "journal.partitions=4", "--set", f"journal.topic=__groups-{name}"),
        *("--zookeeper", zookeeper.address + root, "--set", "push.min.session.timeout.ms=1000"),
    )
    look = KazooClient(zookeeper.address)
    look.start()

    def shown(top: str) -> list[str]:
        path = f"{root}{top}/{group}/{topic}"
        with contextlib.suppress(NoNodeError):
            return sorted(look.get(f"{path}/{node}")[0].decode() for node in look.get_children(path))
        return []

    one, two = (CoordinatorProcess(apache_kafka.bootstrap_servers, *settings) for _ in range(2))
    try:
        until(lambda: _shares(one) == [2, 2], "shared out")
        host, _, port = one.address.rpartition(":")
        error, place = coordinator(host, int(port), group)
        assert error == 0
        assert place is not None
        first, second = (one, two) if f"{place[0]}:{place[1]}" == one.address else (two, one)
        a = _registered(first, group, topic)
        a.until(lambda each: each.fetching and len(each.registry) == 4)
        eventually(lambda: (shown(OWNERS), shown(OFFSETS)) == (["a-0"] * 4, ["0"] * 4))
        a.read(3)
        eventually(lambda: shown(OFFSETS) == ["3"] * 4)
        first.kill()
        a.until(lambda each: each.ended)
        eventually(lambda: coordinator(*_place(second), group)[1] == _place(second))
        b = _registered(second, group, topic)
        b.until(lambda each: each.fetching and sorted(each.registry.values()) == [3] * 4)
        b.read(4)
        eventually(lambda: (shown(OWNERS), shown(OFFSETS)) == (["a-0"] * 4, ["7"] * 4))
        b.close()
        a.close()
    finally:
        for consumer in (one, two):
            consumer.close()
        look.stop()
        look.close()


def test_whose_shard_moves_hears_of_it(apache_kafka: ApacheKafka) -> None:
    """The coordinator closes the member's connection at once, because it would send nothing there any more."""
    name = uuid.uuid4().hex[:8]
    settings = (
        *("--set", "journal.partitions=4", "--set", f"journal.topic=__groups-{name}"),
        *("--set", f"placement.group=__placed-{name}", "--set", "push.min.session.timeout.ms=1000"),
    )
    one = CoordinatorProcess(apache_kafka.bootstrap_servers, *settings)
    try:
        members = {group: _registered(one, group, "none") for group in (f"{name}-{number}" for number in range(8))}
        two = CoordinatorProcess(apache_kafka.bootstrap_servers, *settings)
        try:
            until(
                lambda: sorted(entry["shards"] for entry in status(one.address)["coordinators"]) == [2, 2], "shared out"
            )
            moved = [group for group in members if coordinator(*_place(one), group)[1] == _place(two)]
            assert moved
            for group in moved:
                members[group].until(lambda each: each.ended)
            assert not any(member.ended for group, member in members.items() if group not in moved)
        finally:
            two.close()
        for member in members.values():
            member.close()
    finally:
        one.close()


def _shares(process: CoordinatorProcess) -> list[int]:
    """How many shards each coordinator has."""
    return sorted(entry["shards"] for entry in status(process.address)["coordinators"])


def _registered(process: CoordinatorProcess, group: str, topic: str) -> LiteralConsumer:
    """Register; while the groups load, the coordinator asks the member to retry."""
    made: list[LiteralConsumer] = []

    def is_in() -> bool:
        for earlier in made:
            earlier.close()
        count = json.dumps({topic: 1})
        made.append(LiteralConsumer(process.address, group, "a", count, session_timeout_ms=3000, of_group=True))
        return made[-1].error == 0

    eventually(is_in)
    return made[-1]


def _place(process: CoordinatorProcess) -> tuple[str, int]:
    host, _, port = process.address.rpartition(":")
    return host, int(port)
