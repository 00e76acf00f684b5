"""A broker in a real ZooKeeper: its node, its topics, owners and offsets of push groups. Source: spec 4.2, 4.7, 4.8."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kohort import Admin
from kohort.cluster.zookeeper.nodes import COORDINATOR, EPOCH, IDS, OFFSETS, OWNERS, TOPICS, Election
from kohort.ids import TopicPartition
from kohort.zookeeper import ZooKeeper, free_port
from tests.broker.literal_consumer import LiteralConsumer, eventually
from tests.broker.raw import RawClient, create_topic
from tests.cluster.running import READY_S, ServingProcess
from tests.support.processes import KOHORT

_ROOTS = itertools.count()
SETTINGS = ("--set", "push.min.session.timeout.ms=300", "--set", "log.retention.ms=-1")


class BrokerProcess(ServingProcess):
    """`kohort broker`, as a user runs it."""

    def __init__(self, data: Path, zookeeper: str, *args: str, listen: str = "127.0.0.1:0", wait: bool = True) -> None:
        command = [*KOHORT, "broker", "--listen", listen, "--data", str(data), "--zookeeper", zookeeper]
        super().__init__([*command, *SETTINGS, *args], wait)


Run = Callable[..., BrokerProcess]


@pytest.fixture
def run() -> Iterator[Run]:
    """Starts brokers, and ends them."""
    made: list[BrokerProcess] = []

    def start(*args: object, **more: object) -> BrokerProcess:
        made.append(BrokerProcess(*args, **more))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for coordinator in made:
        coordinator.close()


class Look:
    """A client of ZooKeeper's that sees what is under one path."""

    def __init__(self, server: ZooKeeper) -> None:
        self.root = f"/broker-{next(_ROOTS)}"
        self.address = server.address + self.root
        self.client = KazooClient(server.address)
        self.client.start()

    def data(self, path: str) -> bytes | None:
        with contextlib.suppress(NoNodeError):
            found: bytes = self.client.get(self.root + path)[0]
            return found
        return None

    def tree(self, path: str) -> dict[str, str]:
        """Return the nodes of a group's partitions, by topic and node."""
        found: dict[str, str] = {}
        top = self.root + path
        with contextlib.suppress(NoNodeError):
            for topic in self.client.get_children(top):
                for node in self.client.get_children(f"{top}/{topic}"):
                    found[f"{topic}/{node}"] = self.client.get(f"{top}/{topic}/{node}")[0].decode()
        return found

    def close(self) -> None:
        self.client.stop()
        self.client.close()


@pytest.fixture
def look(zookeeper: ZooKeeper) -> Iterator[Look]:
    found = Look(zookeeper)
    yield found
    found.close()


def consumer(broker: BrokerProcess, group: str, name: str, topic: str = "t", **more: object) -> LiteralConsumer:
    return LiteralConsumer(broker.address, group, name, json.dumps({topic: 1}), **more)


def make_topic(broker: BrokerProcess, name: str = "t", partitions: int = 4) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, name, partitions)


def test_nodes_owners_and_offsets(run: Run, look: Look, tmp_path: Path) -> None:
    """Kafka's own JSON, persistent ownership, offsets as they are committed; what is gone goes."""
    broker = run(tmp_path, look.address)
    number = look.data(COORDINATOR)
    assert number is not None
    node = json.loads(look.data(f"{IDS}/{number.decode()}") or b"")
    assert f"{node['host']}:{node['port']}" == broker.address
    assert Election.from_bytes(look.data(EPOCH) or b"").epoch == 1
    make_topic(broker)
    eventually(lambda: look.data(f"{TOPICS}/t") is not None)
    assert json.loads(look.data(f"{TOPICS}/t") or b"")["partitions"] == {str(part): [int(number)] for part in range(4)}
    a = consumer(broker, "g/1", "a")
    owners, offsets = f"{OWNERS}/g%2F1", f"{OFFSETS}/g%2F1"
    eventually(lambda: set(look.tree(owners).values()) == {"a-0"} and len(look.tree(owners)) == 4)
    assert look.client.get(f"{look.root}{owners}/t/{number.decode()}-0")[1].ephemeralOwner == 0
    eventually(lambda: set(look.tree(offsets).values()) == {"0"})
    a.read(7)
    eventually(lambda: set(look.tree(offsets).values()) == {"7"})
    b = consumer(broker, "g/1", "b")
    eventually(lambda: sorted(look.tree(owners).values()) == ["a-0", "a-0", "b-0", "b-0"])
    for coordinator in (a, b):
        coordinator.close()
    eventually(lambda: not look.tree(owners))
    assert set(look.tree(offsets).values()) == {"7"}
    with Admin(broker.address) as admin:
        admin.delete_consumer_groups(["g/1"])
    eventually(lambda: look.data(owners) is None and look.data(offsets) is None)
    assert look.client.exists(f"{look.root}/consumers/groups/ids") is None
    broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(30) == 0
    assert look.data(COORDINATOR) is None
    assert look.data(f"{IDS}/{number.decode()}") is None


def test_deleted_owner_causes_a_rebalance(run: Run, look: Look, tmp_path: Path) -> None:
    """At the next change; who owned it is stopped and started, and it is written again."""
    broker = run(tmp_path, look.address)
    make_topic(broker)
    a, b = consumer(broker, "g", "a"), consumer(broker, "g", "b")
    eventually(lambda: sorted(look.tree(f"{OWNERS}/g").values()) == ["a-0", "a-0", "b-0", "b-0"])
    mine = next(node for node, owner in look.tree(f"{OWNERS}/g").items() if owner == "a-0")
    before = a.asked.count("start")
    look.client.delete(f"{look.root}{OWNERS}/g/{mine}")
    make_topic(broker, "u")
    c = LiteralConsumer(broker.address, "g", "c", json.dumps({"u": 1}))
    eventually(lambda: look.tree(f"{OWNERS}/g").get(mine) == "a-0")
    assert a.asked.count("start") > before, "its owner is stopped and started"
    for coordinator in (a, b, c):
        coordinator.close()


def test_a_path_has_one_broker_and_no_old_kafka(run: Run, look: Look, tmp_path: Path) -> None:
    """Both are refused, with what to do."""
    first = run(tmp_path / "1", look.address)
    second = run(tmp_path / "2", look.address, "--set", "node.id=7", wait=False)
    assert second.process.wait(READY_S) == 1
    second.close()
    text = "".join(second.lines)
    assert f"at {first.address} has this path" in text
    assert "/other" in text
    assert look.data(COORDINATOR) is not None
    look.client.create(f"{look.root}/kafka/controller", b"{}", makepath=True)
    third = run(tmp_path / "3", f"{look.address}/kafka", wait=False)
    assert third.process.wait(READY_S) == 1
    third.close()
    assert "a Kafka keeps its topics here" in "".join(third.lines)


def test_killed_and_started_repairs(run: Run, look: Look, tmp_path: Path) -> None:
    """Nodes that were changed or are missing are written again; a deleted owner is a rebalance at the takeover."""
    broker = run(tmp_path, look.address)
    make_topic(broker)
    a = consumer(broker, "g", "a")
    eventually(lambda: set(look.tree(f"{OFFSETS}/g").values()) == {"0"} and len(look.tree(f"{OWNERS}/g")) == 4)
    eventually(lambda: bool(look.data(f"{OWNERS}/g")))  # the checksum, without which no deletion can be noticed
    broker.kill()
    a.close()
    gone, kept = sorted(look.tree(f"{OFFSETS}/g"))[:2]
    look.client.delete(f"{look.root}{OFFSETS}/g/{gone}")
    look.client.set(f"{look.root}{OFFSETS}/g/{kept}", b"999")
    look.client.create(f"{look.root}{OWNERS}/nobody/t/1-0", b"x-0", makepath=True)
    look.client.delete(f"{look.root}{OWNERS}/g/{gone}")
    again = run(tmp_path, look.address, listen=broker.address)
    back = consumer(again, "g", "a")
    eventually(lambda: set(look.tree(f"{OFFSETS}/g").values()) == {"0"} and len(look.tree(f"{OWNERS}/g")) == 4)
    eventually(lambda: look.data(f"{OWNERS}/nobody") is None)
    eventually(lambda: "group g: owners of 1 partitions were deleted: t-0" in again.log)
    eventually(lambda: "start" in back.asked)  # with a Stop before it, unless the Start was on its way already
    assert Election.from_bytes(look.data(EPOCH) or b"").epoch == 2
    back.close()


def java_bytes(seed: int, count: int) -> bytes:
    """Return the bytes of Java's `new Random(seed).nextBytes`, for a multiple of four."""
    state, found = (seed ^ 0x5DEECE66D) & ((1 << 48) - 1), b""
    while len(found) < count:
        state = (state * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        found += (state >> 16).to_bytes(4, "little")
    return found


def expire(look: Look, session: int) -> None:
    """End a session of somebody else's: its password follows from its id in ZooKeeper's own server."""
    unsigned = session & ((1 << 64) - 1)
    thief = KazooClient(look.address.partition("/")[0], client_id=(session, java_bytes(unsigned ^ 0xB3415C00, 16)))
    thief.start()
    assert thief.client_id[0] == session, "it is that session, not a new one"
    thief.stop()
    thief.close()


def session_of(look: Look, path: str) -> int | None:
    found = look.client.exists(look.root + path)
    return None if found is None else int(found.ephemeralOwner)


def test_an_expired_session_is_followed_by_another_and_groups_continue(run: Run, look: Look, tmp_path: Path) -> None:
    """The broker registers and is elected again, and repairs nodes that changed or were spoiled meanwhile."""
    broker = run(tmp_path, look.address)
    make_topic(broker)
    a, b = consumer(broker, "g", "a"), consumer(broker, "g", "b")
    owners, offsets = f"{OWNERS}/g", f"{OFFSETS}/g"
    eventually(lambda: sorted(look.tree(owners).values()) == ["a-0", "a-0", "b-0", "b-0"])
    eventually(lambda: len(look.tree(offsets)) == 4)
    number = (look.data(COORDINATOR) or b"").decode()
    session = session_of(look, COORDINATOR)
    assert session
    assert session == session_of(look, f"{IDS}/{number}")
    epoch = Election.from_bytes(look.data(EPOCH) or b"").epoch
    topic, spoiled = min(b.registry)
    look.client.set(f"{look.root}{offsets}/{topic}/{spoiled}", b"77")  # it is not looked at as long as nothing changes
    expire(look, session)
    a.read(5)
    c = consumer(broker, "g", "c")
    for path in (COORDINATOR, f"{IDS}/{number}"):
        eventually(lambda path=path: session_of(look, path) not in (None, session))  # type: ignore[misc]
    assert Election.from_bytes(look.data(EPOCH) or b"").epoch == epoch + 1
    c.until(lambda each: each.fetching and len(each.registry) == 1)

    def owned() -> dict[str, str]:
        return {f"{topic}/{part}": f"{entry.name}-0" for entry in (a, b, c) for topic, part in entry.registry}

    eventually(lambda: len(owned()) == 4 and look.tree(owners) == owned())

    def committed() -> dict[str, str]:
        with Admin(broker.address) as admin:
            found = admin.list_consumer_group_offsets("g", [TopicPartition("t", part) for part in range(4)])
        return {f"t/{number}-{part.partition}": str(at.offset) for part, at in found.values.items() if at is not None}

    eventually(lambda: sorted(committed().values()) == ["0", "0", "5", "5"] and look.tree(offsets) == committed())
    assert not any(entry.ended for entry in (a, b, c)), "consumers heard nothing of it"
    assert broker.process.poll() is None
    for member in (a, b, c):
        member.close()


def test_zookeeper_gone(run: Run, tmp_path: Path) -> None:
    """At the start it is waited for and said so; later groups go on, and what was not written is made up for."""
    port = free_port()
    waiting = run(tmp_path / "data", f"127.0.0.1:{port}/gone", wait=False)
    eventually(lambda: any("is it up?" in line for line in waiting.lines))
    folder = tmp_path / "zookeeper"
    with ZooKeeper(port=port, data_dir=folder) as server:
        waiting.wait_ready()
        make_topic(waiting)
        a = consumer(waiting, "g", "a")
        a.until(lambda each: len(each.registry) == 4)
        client = KazooClient(server.address)
        client.start()
        eventually(lambda: _owners(client, "/gone") == ["a-0"] * 4)
        client.stop()
        client.close()
    b = consumer(waiting, "g", "b")
    b.until(lambda each: len(each.registry) == 2)
    b.read(5)
    eventually(lambda: b.asked.count("ping") > 1)
    with ZooKeeper(port=port, data_dir=folder) as server:
        client = KazooClient(server.address)
        client.start()
        try:
            eventually(lambda: sorted(_owners(client, "/gone")) == ["a-0", "a-0", "b-0", "b-0"])
        finally:
            client.stop()
            client.close()
    a.close()
    b.close()


def _owners(client: KazooClient, root: str) -> list[str]:
    top = f"{root}{OWNERS}/g/t"
    with contextlib.suppress(NoNodeError):
        return [client.get(f"{top}/{node}")[0].decode() for node in client.get_children(top)]
    return []
