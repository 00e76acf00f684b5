"""Coordination by a real ZooKeeper: nodes, sessions that end, nodes that outlive them, watches.

Promises of every service are in test_coordination.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from uuid import UUID

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from kohort.cluster.zookeeper import service as zookeeper_door
from kohort.cluster.zookeeper import session as session_module
from kohort.cluster.zookeeper.nodes import (
    COORDINATOR,
    EPOCH,
    IDS,
    PLACEMENT,
    TOPICS,
    Election,
    MirroredTopic,
    Registration,
)
from kohort.cluster.zookeeper.service import ZooKeeperCoordination
from kohort.cluster.zookeeper.session import Change, ZNode, ZooKeeperSession
from kohort.errors import InvalidInputError, KafkaError, NotAuthorizedError
from kohort.zookeeper import ZooKeeper
from tests.cluster.coordination_services import SHARDS, ZooKeeperServices, candidate, run, until


def test_the_nodes_of_the_leader(zookeeper: ZooKeeper) -> None:
    """Each election raises the epoch; who retires is there until its shards are another's."""

    async def story(services: ZooKeeperServices) -> None:
        for number in (1, 2):
            await services.enter(candidate(number))
        await services.agreed(1, 2)
        assert services.data(COORDINATOR) == b"1"
        assert services.owner(COORDINATOR) == services.owner(f"{IDS}/1") != 0
        assert Election.from_bytes(services.data(EPOCH)).epoch == 1
        before = services.open[2].placement
        assert before is not None
        one = before.candidate(1)
        assert one is not None
        await services.end_without_leaving(1)
        services.open[2].remove_dead_candidate(one)
        await services.agreed(2)
        assert Election.from_bytes(services.data(EPOCH)).epoch == 2
        await services.enter(candidate(3))
        await services.agreed(2, 3)
        retiring = services.open.pop(2)
        there: list[bool] = []

        def look() -> None:
            if retiring.placement is not None and not retiring.placement.shards_of(2):
                there.append(services.owner(f"{IDS}/2") is not None)

        retiring.on_changes(look)
        await retiring.hand_over_and_leave()
        await services.agreed(3)
        assert there[0], "its shards were given while it was there still"

    run(ZooKeeperServices(zookeeper.address), story)


def _owned_story(zookeeper: ZooKeeper) -> None:
    """Nodes of an earlier session hold just what ours would: they are made anew, before that session's end."""

    async def story(services: ZooKeeperServices) -> None:
        me = candidate(1)
        earlier = KazooClient(zookeeper.address, timeout=20)
        await asyncio.to_thread(earlier.start)
        try:
            for path, data in ((f"{IDS}/1", Registration(me).to_bytes()), (COORDINATOR, b"1")):
                earlier.create(services.root + path, data, ephemeral=True, makepath=True)
            await services.enter(me)
            await services.agreed(1)
            session = services.open[1].session.id
            assert services.owner(f"{IDS}/1") == session, "an earlier session's node was taken for its own"
            assert services.owner(COORDINATOR) == session, "an earlier session's office was taken for its own"
        finally:
            await asyncio.to_thread(earlier.stop)
            await asyncio.to_thread(earlier.close)

    run(ZooKeeperServices(zookeeper.address), story)


def test_nodes_of_an_earlier_session(zookeeper: ZooKeeper) -> None:
    """Nodes of an earlier session are replaced: `_earlier_session_story`."""
    _owned_story(zookeeper)


def test_planted_fault_earlier_session(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check detects a candidate that trusts a node's content instead of its owner."""

    def by_content(node: ZNode, session: int) -> bool:
        return node.owner == session or node.data.startswith(b"{")

    monkeypatch.setattr(zookeeper_door, "is_of_session", by_content)
    with pytest.raises(AssertionError, match="earlier session"):
        _owned_story(zookeeper)


def test_session_that_expires(zookeeper: ZooKeeper) -> None:
    """A new session registers and stands again, while the map goes on to say what it said."""

    async def story(services: ZooKeeperServices) -> None:
        await services.enter(candidate(1))
        await services.enter(candidate(2))
        await services.agreed(1, 2)
        before, session = services.open[1].placement, services.owner(f"{IDS}/1")
        kazoo = services.open[1].session._client
        kept = kazoo.client_id
        # Another client takes the session and closes it: for the service's own it is over, as after an expiry.
        thief = KazooClient(zookeeper.address, client_id=kept)
        await asyncio.to_thread(thief.start)
        await asyncio.to_thread(thief.stop)
        await asyncio.to_thread(thief.close)
        await until(lambda: services.owner(f"{IDS}/1") not in (None, session), "registered in another session")
        await services.agreed(1, 2)
        after = services.open[1].placement
        assert before is not None
        assert after is not None
        assert after.candidate(1) == before.candidate(1)

    run(ZooKeeperServices(zookeeper.address), story)


def test_loop_that_hangs(zookeeper: ZooKeeper) -> None:
    """The candidate loses its place although kazoo's threads live, and takes it again when the loop resumes."""

    async def story(services: ZooKeeperServices) -> None:
        await services.enter(candidate(1))
        session = services.owner(f"{IDS}/1")
        deadline = time.monotonic() + 30
        while services.owner(f"{IDS}/1") == session and time.monotonic() < deadline:
            time.sleep(0.05)  # noqa: ASYNC251 - the loop hangs here
        assert services.owner(f"{IDS}/1") is None
        await until(lambda: services.owner(f"{IDS}/1") is not None, "registered again")
        await services.agreed(1)

    run(ZooKeeperServices(zookeeper.address), story)


def test_session_that_closes_late_after_the_loop_hung(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old session's end is told after the new one's beginning: a busy machine takes longer than the limit."""

    async def story(services: ZooKeeperServices) -> None:
        for number in (1, 2):
            await services.enter(candidate(number))
        await services.agreed(1, 2)
        session, before = services.open[1].session, services.open[1].session.connections
        monkeypatch.setattr(session_module, "_stop", _stop_later)
        time.sleep(services.open[1]._session_ms / 1000 * 1.5)  # noqa: ASYNC251 - the loop hangs here
        await until(lambda: session.connections > before, "the new session is seen")
        await services.agreed(1, 2)
        await until(lambda: services.owner(f"{IDS}/1") == session.id, "it is registered with the new session")

    run(ZooKeeperServices(zookeeper.address), story)


def _stop_later(client: KazooClient) -> None:
    """Close a session after the time that is allowed for it."""
    threading.Timer(1.0, lambda: (client.stop(), client.close())).start()


def test_id_that_a_later_process_took_at_the_same_address(zookeeper: ZooKeeper) -> None:
    """The earlier one lives, whatever for, and does not take the id back: the two would do so for ever."""

    async def story(services: ZooKeeperServices) -> None:
        earlier = await services.enter(candidate(1))
        later = await services.enter(candidate(1))
        await services.agreed(1)
        session = later.session.id
        await until(lambda: earlier._taken_by == later._require_mine().candidate, "the earlier one knows")
        assert services.owner(f"{IDS}/1") == session

    run(ZooKeeperServices(zookeeper.address), story)


def test_id_that_another_took_meanwhile(zookeeper: ZooKeeper) -> None:
    """A leader that lost its id resigns and follows the other's placement. It returns when the id is free."""

    async def story(services: ZooKeeperServices) -> None:
        me = candidate(1)
        await services.enter(me)
        await services.enter(candidate(2))
        await services.agreed(1, 2)
        other, path = candidate(1, port=9777), f"{services.root}{IDS}/1"
        taking = services.look.transaction()
        taking.delete(path)
        taking.create(path, Registration(other).to_bytes(), ephemeral=True)
        assert not [result for result in taking.commit() if isinstance(result, Exception)]
        await until(lambda: services.open[2].is_leader, "the office is another's")
        await until(
            lambda: other in getattr(services.open[1].placement, "candidates", ()), "the map names the other one"
        )
        assert not services.open[1].is_leader
        assert services.owner(f"{IDS}/1") != services.open[1].session.id
        services.look.delete(path)
        await until(lambda: me in getattr(services.open[2].placement, "candidates", ()), "it has its place again")
        await services.agreed(1, 2)

    run(ZooKeeperServices(zookeeper.address), story)


@pytest.mark.parametrize("path", ["/controller", "/cluster/id"])
def test_path_of_a_kafka(zookeeper: ZooKeeper, path: str) -> None:
    """The topics there are a Kafka's: nothing is written."""

    async def story(services: ZooKeeperServices) -> None:
        services.look.create(services.root + path, b"{}", makepath=True)
        with pytest.raises(KafkaError, match=r"so a Kafka keeps its topics here.*/kohort"):
            await services.enter(candidate(1))
        assert services.owner(IDS) is None

    run(ZooKeeperServices(zookeeper.address), story)


def _deposed_story(zookeeper: ZooKeeper) -> None:
    async def story(services: ZooKeeperServices) -> None:
        service = await services.enter(candidate(1))
        await services.agreed(1)
        session, mine, keeper = service.session.id, service._mine, service._keeper
        assert session is not None
        assert mine is not None
        assert keeper is not None
        keeper.cancel()
        await asyncio.wait([keeper])
        services.look.set(services.root + EPOCH, Election(9, 7, 1).to_bytes())
        before = services.data(PLACEMENT)
        service._shards = SHARDS + 1
        await service._place(mine)
        assert services.data(PLACEMENT) == before, "one that was deposed has written the map"
        services.look.set(services.root + EPOCH, Election(10, 1, session).to_bytes())
        await service._elect(session, mine)
        await service._place(mine)
        assert services.data(PLACEMENT) != before

    run(ZooKeeperServices(zookeeper.address), story)


def test_deposed_writes_nothing(zookeeper: ZooKeeper) -> None:
    """The epoch that another raised refuses the map of the one before."""
    _deposed_story(zookeeper)


def test_planted_fault_no_guard(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check detects a writer that does not look at the epoch."""
    change = ZooKeeperSession.change

    async def unguarded(self: ZooKeeperSession, *changes: Change) -> bool:
        return await change(self, *(entry for entry in changes if entry.data is not None or entry.delete))

    monkeypatch.setattr(ZooKeeperSession, "change", unguarded)
    with pytest.raises(AssertionError, match="has written the map"):
        _deposed_story(zookeeper)


def test_map_that_cannot_be_read(zookeeper: ZooKeeper) -> None:
    """The leader creates the placement anew."""

    async def story(services: ZooKeeperServices) -> None:
        await services.enter(candidate(1))
        await services.agreed(1)
        services.look.set(services.root + PLACEMENT, b"what?")
        await until(lambda: services.data(PLACEMENT) != b"what?", "another map")
        await services.agreed(1)

    run(ZooKeeperServices(zookeeper.address), story)


def topic(number: int, partitions: int = 1) -> MirroredTopic:
    return MirroredTopic(UUID(int=number), tuple((1, 2) for _ in range(partitions)))


def _mirror_story(zookeeper: ZooKeeper) -> None:
    """The leader mirrors topics and the others follow: a new one, one that grows, twice, one that is deleted."""

    async def story(services: ZooKeeperServices) -> None:
        await services.enter(candidate(1))
        await services.enter(candidate(2))
        heard: list[int] = []
        services.open[2].on_topics_changed(lambda: heard.append(1))
        services.open[2].mirror_topics({"of-a-stranger": topic(9)})
        steps = [{"a": topic(1)}, {"a": topic(1, 2)}, {"a": topic(1, 3), "b": topic(2)}, {"b": topic(2)}, {}]
        for wanted in steps:
            before = len(heard)
            services.open[1].mirror_topics(wanted)
            await until(lambda before=before: len(heard) > before, f"a watch that tells of {wanted}")
            there = {
                name: services.data(f"{TOPICS}/{name}") for name in services.look.get_children(services.root + TOPICS)
            }
            assert there == {name: data.to_bytes() for name, data in wanted.items()}

    run(ZooKeeperServices(zookeeper.address), story)


def test_topics_are_mirrored(zookeeper: ZooKeeper) -> None:
    """All candidates see the topics of `_mirror_story`."""
    _mirror_story(zookeeper)


def test_planted_fault_watch_not_set_again(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check detects a candidate that sets each watch once only."""
    seen: set[tuple[object, str]] = set()
    read, names = ZooKeeperSession.read, ZooKeeperSession.children

    async def once(self: ZooKeeperSession, path: str, watch: Callable[[], None] | None = None) -> ZNode | None:
        again = (self, path) in seen
        seen.add((self, path))
        return await read(self, path, None if again else watch)

    async def names_once(self: ZooKeeperSession, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        again = (self, path) in seen
        seen.add((self, path))
        return await names(self, path, None if again else watch)

    monkeypatch.setattr(ZooKeeperSession, "read", once)
    monkeypatch.setattr(ZooKeeperSession, "children", names_once)
    monkeypatch.setattr("tests.cluster.test_zookeeper_coordination.until", _until_soon)
    with pytest.raises(AssertionError, match="a watch that tells of"):
        _mirror_story(zookeeper)


async def _until_soon(condition: Callable[[], object], what: str) -> None:
    for _ in range(150):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"did not happen: {what}")


def test_many_topics_are_written_in_pieces(zookeeper: ZooKeeper) -> None:
    """More than one frame of ZooKeeper holds."""

    async def story(services: ZooKeeperServices) -> None:
        await services.enter(candidate(1))
        wanted = {f"topic-{number:04}-{'x' * 100}": topic(number, 60) for number in range(1500)}
        assert sum(len(data.to_bytes()) for data in wanted.values()) > 1024 * 1024
        services.open[1].mirror_topics(wanted)
        await until(lambda: len(services.look.get_children(services.root + TOPICS)) == len(wanted), "all topics")

    run(ZooKeeperServices(zookeeper.address), story)


@pytest.mark.parametrize("address", ["", "host", "host:0", "host:1,", "host:1//a", "/path", "host:1,:2"])
def test_addresses_that_are_none(address: str) -> None:
    """Says what is wanted."""
    with pytest.raises(InvalidInputError, match="HOST:PORT"):
        ZooKeeperCoordination(address)


def test_path_that_may_not_be_written(zookeeper: ZooKeeper) -> None:
    """Says at once that a right is missing."""

    async def story(services: ZooKeeperServices) -> None:
        services.look.ensure_path(services.root.rpartition("/")[0])
        services.look.create(services.root, acl=[make_acl("world", "anyone", read=True)])
        with pytest.raises(NotAuthorizedError, match="may not change what is there"):
            await services.enter(candidate(1))

    run(ZooKeeperServices(zookeeper.address), story)


def test_map_that_may_not_be_written(zookeeper: ZooKeeper) -> None:
    """One node belongs to another user; the leader reports it in the same way."""

    async def story(services: ZooKeeperServices) -> None:
        services.look.ensure_path(services.root + PLACEMENT.rpartition("/")[0])
        services.look.create(services.root + PLACEMENT, acl=[make_acl("world", "anyone", read=True)])
        with pytest.raises(NotAuthorizedError, match="may not change what is there"):
            await services.enter(candidate(1))

    run(ZooKeeperServices(zookeeper.address), story)
