"""A broker's session with a real ZooKeeper expires: groups go on, and then ZooKeeper shows what the journal holds.

Source: spec 4.2 (`handleNewSession`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kohort import Admin, Broker
from kohort.cluster.zookeeper.nodes import COORDINATOR, EPOCH, IDS, OFFSETS, OWNERS, TOPICS, Election
from kohort.zookeeper import ZooKeeper
from tests.broker.literal_consumer import LiteralConsumer, eventually
from tests.broker.raw import RawClient, create_topic
from tests.cluster.broker_here import BrokerHere
from tests.cluster.test_broker_zookeeper import Look
from tests.support.relay import Relay

SESSION_MS = 2_000
PARTITIONS = 4


@pytest.fixture
def look(zookeeper: ZooKeeper) -> Iterator[Look]:
    found = Look(zookeeper)
    yield found
    found.close()


@pytest.fixture
def relay(zookeeper: ZooKeeper) -> Iterator[Relay]:
    with Relay(zookeeper.address) as relay:
        yield relay


def consumer(broker: BrokerHere, group: str, name: str, topic: str = "t") -> LiteralConsumer:
    return LiteralConsumer(broker.address, group, name, json.dumps({topic: 1}))


def make_topic(broker: BrokerHere, name: str = "t") -> None:
    with RawClient(broker.address) as client:
        create_topic(client, name, PARTITIONS)


def started(count: int) -> Callable[[LiteralConsumer], bool]:
    return lambda each: each.fetching and len(each.registry) == count


def kept_session(broker: BrokerHere) -> tuple[int, bytes]:
    """Id and password of the broker's session."""
    kept: tuple[int, bytes] = broker.beside._coordination.session._client.client_id
    return kept


def expire(look: Look, kept: tuple[int, bytes]) -> None:
    """Another client takes the session and closes it: to whoever had it, it has expired."""
    server = look.address.partition("/")[0]
    thief = KazooClient(server, client_id=kept)
    thief.start()
    assert thief.client_id[0] == kept[0]
    thief.stop()
    thief.close()


def session_of(look: Look, path: str) -> int | None:
    stat = look.client.exists(look.root + path)
    return None if stat is None else int(stat.ephemeralOwner)


def epoch(look: Look) -> int:
    return Election.from_bytes(look.data(EPOCH) or b"").epoch


Shown = tuple[dict[str, str], dict[str, str]]


def shown(look: Look, group: str) -> Shown:
    """Owners and offsets by topic and partition, as ZooKeeper says."""

    def tree(top: str) -> dict[str, str]:
        found = look.tree(f"{top}/{group}").items()
        return {f"{path.partition('/')[0]}-{path.rpartition('-')[2]}": text for path, text in found}

    return tree(OWNERS), tree(OFFSETS)


def held(address: str, group: str) -> Shown:
    """Return the partitions of each member, equal to those that the group's coordinator reports from its journal."""
    with Admin(address) as admin:
        (described,) = admin.describe_consumer_groups([group]).values.values()
        owners = {str(part): f"{member.member_id}-0" for member in described.members for part in member.assignment}
        found = admin.list_consumer_group_offsets(group).values
    return owners, {str(part): str(value.offset) for part, value in found.items() if value is not None}


def test_a_session_that_expires_is_followed_by_one_that_registers_and_is_elected(look: Look, tmp_path: Path) -> None:
    """Both ephemeral nodes are the new session's; no consumer is stopped, and what comes then is shown."""
    with BrokerHere(tmp_path, look.address, session_ms=SESSION_MS) as broker:
        make_topic(broker)
        a = consumer(broker, "g", "a")
        eventually(lambda: len(shown(look, "g")[0]) == PARTITIONS)
        eventually(lambda: shown(look, "g") == held(broker.address, "g"))
        kept, stops = kept_session(broker), a.asked.count("stop")
        expire(look, kept)
        number = (look.data(COORDINATOR) or b"0").decode()
        eventually(lambda: session_of(look, COORDINATOR) not in (None, kept[0]))
        eventually(lambda: session_of(look, f"{IDS}/1") not in (None, kept[0]))
        assert number in ("0", "1"), "nobody is, or it is again"
        assert session_of(look, COORDINATOR) == session_of(look, f"{IDS}/1") == kept_session(broker)[0]
        assert epoch(look) == 2
        a.read(5)
        eventually(lambda: set(shown(look, "g")[1].values()) == {"5"})
        make_topic(broker, "u")
        eventually(lambda: look.data(f"{TOPICS}/u") is not None)
        assert a.asked.count("stop") == stops, "an owner that nobody deleted is no reason for a rebalance"
        assert shown(look, "g") == held(broker.address, "g")
        a.close()


def test_what_came_while_the_session_was_over_is_made_up_for(look: Look, relay: Relay, tmp_path: Path) -> None:
    """Groups go on meanwhile: consumers come and go, a group and a topic begin, one of each ends, offsets move."""
    with BrokerHere(tmp_path, relay.address + look.root, session_ms=SESSION_MS) as broker:
        for topic in ("t", "gone"):
            make_topic(broker, topic)
        a, x, y = consumer(broker, "g", "a"), consumer(broker, "ended", "x"), consumer(broker, "of-gone", "y", "gone")
        for group in ("g", "ended", "of-gone"):
            eventually(lambda group=group: len(shown(look, group)[0]) == PARTITIONS)
            eventually(lambda group=group: shown(look, group) == held(broker.address, group))
        kept = kept_session(broker)
        relay.cut()
        expire(look, kept)
        assert look.data(COORDINATOR) is None
        assert look.data(f"{IDS}/1") is None
        b = consumer(broker, "g", "b")
        for entry in (a, b):
            entry.until(started(2))
            entry.read(7)
        c = consumer(broker, "new", "c")
        c.until(started(PARTITIONS))
        x.close()
        y.close()
        with Admin(broker.address) as admin:
            for group in ("ended", "of-gone"):
                admin.remove_members_from_consumer_group(group)
            admin.delete_consumer_groups(["ended"])
            admin.delete_topics(["gone"])
        make_topic(broker, "u")
        eventually(lambda: set(held(broker.address, "g")[1].values()) == {"7"})
        spoilt = sorted(look.tree(f"{OFFSETS}/g"))
        look.client.set(f"{look.root}{OFFSETS}/g/{spoilt[0]}", b"999")
        look.client.delete(f"{look.root}{OFFSETS}/g/{spoilt[1]}")
        look.client.create(f"{look.root}{OWNERS}/nobody/t/1-0", b"z-0", makepath=True)
        relay.mend()
        eventually(lambda: session_of(look, COORDINATOR) not in (None, kept[0]))
        for group in ("g", "new"):
            eventually(lambda group=group: len(shown(look, group)[0]) == PARTITIONS)
            eventually(lambda group=group: shown(look, group) == held(broker.address, group))
        assert sorted(shown(look, "g")[0].values()) == ["a-0", "a-0", "b-0", "b-0"]
        for group in ("ended", "of-gone", "nobody"):
            eventually(lambda group=group: not any(shown(look, group)))
        eventually(lambda: look.data(f"{OWNERS}/nobody") is None and look.data(f"{OWNERS}/ended") is None)
        eventually(lambda: look.data(f"{TOPICS}/u") is not None and look.data(f"{TOPICS}/gone") is None)
        assert epoch(look) == 2
        for coordinator in (a, b, c):
            coordinator.close()
    in_zookeeper = {group: shown(look, group)[1] for group in ("g", "new")}
    with Broker(tmp_path) as again:
        for group, offsets in in_zookeeper.items():
            assert held(again.bootstrap_servers, group)[1] == offsets, "as the journal is read anew"


@pytest.mark.parametrize(
    ("number", "said"), [(7, "7 at {} has this path"), (1, "the id 1 is taken by the coordinator at {}")]
)
def test_a_path_that_another_broker_took_meanwhile(
    look: Look, relay: Relay, tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, said: str
) -> None:
    """The returning broker says so and writes nothing; groups go on. It is elected once the other has left."""
    with BrokerHere(tmp_path / "1", relay.address + look.root, session_ms=SESSION_MS) as broker:
        make_topic(broker)
        a = consumer(broker, "g", "a")
        eventually(lambda: len(shown(look, "g")[0]) == PARTITIONS)
        kept = kept_session(broker)
        relay.cut()
        expire(look, kept)
        with BrokerHere(tmp_path / "2", look.address, session_ms=SESSION_MS, node_id=number) as other:
            make_topic(other)
            x = consumer(other, "theirs", "x")
            eventually(lambda: len(shown(look, "theirs")[0]) == PARTITIONS)
            relay.mend()
            a.read(3)
            b = consumer(broker, "g", "b")
            for entry in (a, b):
                entry.until(started(2))
            eventually(lambda: any(said.format(other.address) in line for line in caplog.messages))
            eventually(lambda: set(held(broker.address, "g")[1].values()) == {"3"})
            assert look.data(COORDINATOR) == str(number).encode()
            assert not any(shown(look, "g")), "its groups are not the other's"
            assert shown(look, "theirs") == held(other.address, "theirs")
            x.close()
        eventually(lambda: session_of(look, COORDINATOR) == kept_session(broker)[0])
        eventually(lambda: shown(look, "g") == held(broker.address, "g"))
        assert sorted(shown(look, "g")[0].values()) == ["a-0", "a-0", "b-0", "b-0"]
        eventually(lambda: not any(shown(look, "theirs")))
        assert epoch(look) == 3
        for coordinator in (a, b):
            coordinator.close()
