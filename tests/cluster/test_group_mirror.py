"""The mirror of push groups in a real ZooKeeper: who may write, in which order, in requests of what size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient

from kohort.cluster.zookeeper.group_mirror import OWNERS_LOOK_S, GroupMirror, MirrorPlan
from kohort.cluster.zookeeper.nodes import COORDINATOR, IDS, OFFSETS, OWNERS
from kohort.cluster.zookeeper.service import WriteGuard, ZooKeeperCoordination
from kohort.cluster.zookeeper.session import Change, ZooKeeperSession, ZooKeeperUnavailable
from kohort.errors import KafkaError
from kohort.groups.effects import DescribePushGroupsReply, MirroredPushGroup
from kohort.groups.events import DescribePushGroups, OwnerNodesDeleted
from kohort.groups.records import OffsetCommitted
from kohort.ids import TopicPartition
from kohort.zookeeper import ZooKeeper
from tests.cluster.coordination_services import SESSION_MS, SHARDS, candidate, until

PART = TopicPartition("t", 0)
ROOTS = iter(range(1_000))


class Shards:
    """All groups in the shard 0, with what a test says of them.

    Attributes:
        asked: for all of them or not.
        silent: it answers nothing.
    """

    def __init__(self) -> None:
        self.shown: dict[str, MirroredPushGroup] = {}
        self.reported: list[OwnerNodesDeleted] = []
        self.asked: list[bool] = []
        self.silent = False
        self._before: dict[str, MirroredPushGroup] | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter([SimpleNamespace(index=0, is_loaded=True, has_unpublished_push_groups=self._before != self.shown)])

    def load(self) -> None:
        """The shard is loaded anew."""
        self._before = None

    def shard_index_of(self, group: str) -> int:
        return 0

    def ask_shard(
        self, index: int, event: DescribePushGroups, answer: Callable[[DescribePushGroupsReply], None]
    ) -> None:
        self.asked.append(event.whole)
        before, self._before = self._before, dict(self.shown)
        if self.silent:
            return
        if before is None or event.whole:
            answer(DescribePushGroupsReply(tuple(self.shown.values())))
            return
        changed = tuple(node for name, node in self.shown.items() if before.get(name) != node)
        answer(DescribePushGroupsReply(changed, whole=False, gone=tuple(before.keys() - self.shown.keys())))

    def queue_event(self, group: str, event: OwnerNodesDeleted) -> None:
        self.reported.append(event)

    def show(self, offset: int, owner: str = "a-0", *, group: str = "g", **more: bool) -> None:
        record = OffsetCommitted(group, *PART, offset, -1, "", 0)
        owners = {PART: owner} if owner else {}
        said = {"settled": True, "loaded": True} | more
        self.shown[group] = MirroredPushGroup(group, owners=owners, offsets={PART: record}, **said)


class Mirrors:
    """Brokers under one path, one after the other, and a client that looks.

    Attributes:
        leader: of all partitions.
        topics: those that there are.
    """

    def __init__(self, address: str) -> None:
        self.topics: dict[str, Any] = {}
        self.lead(1)
        self.root = f"/mirror-{next(ROOTS)}"
        self.address = address + self.root
        self.look = KazooClient(address)
        self.services: list[ZooKeeperCoordination] = []

    async def enter(
        self, number: int, now_s: Callable[[], float] = time.monotonic
    ) -> tuple[ZooKeeperCoordination, GroupMirror, Shards]:
        service = ZooKeeperCoordination(self.address, SESSION_MS, exclusive=True)
        self.services.append(service)
        await service.open(candidate(number), SHARDS)
        shards = Shards()
        leaders = SimpleNamespace(leaders=lambda topic, parts: [(self.leader, 0, [1], [1])])
        topics = SimpleNamespace(by_name=self.topics)
        host: Any = SimpleNamespace(groups=shards, endpoints=leaders, topics=topics, next_request_id=lambda: 1)
        return service, GroupMirror(service, host, now_s=now_s), shards

    def lead(self, leader: int) -> None:
        """All partitions have this leader now."""
        self.leader = leader
        self.topics["t"] = SimpleNamespace(partitions=1)

    def data(self, path: str) -> str:
        return str(self.look.get(self.root + path)[0].decode())

    async def turn(self) -> None:
        while True:
            for service in self.services:
                service.report_loop_alive()
            await asyncio.sleep(0.05)


def play(zookeeper: ZooKeeper, story: Callable[[Mirrors], Awaitable[None]]) -> None:
    async def run() -> None:
        mirrors = Mirrors(zookeeper.address)
        await asyncio.to_thread(mirrors.look.start)
        turning = asyncio.create_task(mirrors.turn())
        try:
            await story(mirrors)
        finally:
            turning.cancel()
            for service in mirrors.services:
                await service.close()
            await asyncio.to_thread(mirrors.look.stop)
            await asyncio.to_thread(mirrors.look.close)

    asyncio.run(run())


OFFSET, OWNER = f"{OFFSETS}/g/t/1-0", f"{OWNERS}/g/t/1-0"


def _deposed_story(zookeeper: ZooKeeper) -> None:
    """A broker that another one followed writes nothing any more, though it knows of nothing."""

    async def story(mirrors: Mirrors) -> None:
        service, earlier, old = await mirrors.enter(1)
        old.show(5)
        for _ in range(3):  # at the first look there are no owners, which is told
            await earlier.update_zookeeper()
        assert (mirrors.data(OFFSET), mirrors.data(OWNER)) == ("5", "a-0")
        keeper = service._keeper
        assert keeper is not None
        keeper.cancel()
        await asyncio.wait([keeper])
        for path in (COORDINATOR, f"{IDS}/1"):  # as its session's end does
            mirrors.look.delete(mirrors.root + path)
        _, later, new = await mirrors.enter(2)
        new.show(9, "b-0")
        await later.update_zookeeper()
        old.show(6)
        with pytest.raises(KafkaError, match="refused"):
            await earlier.update_zookeeper()
        assert mirrors.data(OFFSET) == "9", "a deposed writer has taken an offset back"
        assert earlier.meter.refused == 1

    play(zookeeper, story)


def test_a_deposed_writer_is_refused(zookeeper: ZooKeeper) -> None:
    """The refused write of `_deposed_story`."""
    _deposed_story(zookeeper)


def test_planted_fault_write_without_the_epoch(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check detects a writer without epoch checks."""
    guard = ZooKeeperCoordination.write_guard

    def unchecked(self: ZooKeeperCoordination) -> WriteGuard | None:
        found = guard(self)
        return None if found is None else WriteGuard((), found.shards)

    monkeypatch.setattr(ZooKeeperCoordination, "write_guard", unchecked)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        _deposed_story(zookeeper)


def _away_story(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed writes are repeated with the values of then: an offset never goes backwards."""

    async def story(mirrors: Mirrors) -> None:
        _, mirror, shards = await mirrors.enter(1)
        shards.show(5)
        await mirror.update_zookeeper()
        seen: list[int] = []
        mirrors.look.DataWatch(mirrors.root + OFFSET, lambda data, _: seen.append(int(data)))
        change = ZooKeeperSession.change

        async def away(self: ZooKeeperSession, *changes: Change) -> bool:
            raise ZooKeeperUnavailable("no connection")

        monkeypatch.setattr(ZooKeeperSession, "change", away)
        shards.show(6)
        with pytest.raises(ZooKeeperUnavailable):
            await mirror.update_zookeeper()
        monkeypatch.setattr(ZooKeeperSession, "change", change)
        shards.show(7)
        await mirror.update_zookeeper()
        shards.show(8)
        await mirror.update_zookeeper()
        await until(lambda: seen[-1] == 8 or int(mirrors.data(OFFSET)) != 8, "the last one is seen")
        assert seen == sorted(seen), "an offset went backwards"
        assert mirrors.data(OFFSET) == "8", "an offset went backwards"

    play(zookeeper, story)


def test_what_was_missed_is_made_up_for(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repeated writes of `_away_story`."""
    _away_story(zookeeper, monkeypatch)


def test_planted_fault_offset_that_goes_backwards(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check detects a mirror that writes an old failed value over a newer one."""
    write, kept = GroupMirror._write_plan, list[MirrorPlan]()

    async def again(self: GroupMirror, guard: tuple[Change, ...], plan: MirrorPlan) -> None:
        try:
            await write(self, guard, plan)
        except KafkaError:
            kept.append(plan)
            raise
        for earlier in kept:
            await self._send_changes(guard, earlier.sets, 1)

    monkeypatch.setattr(GroupMirror, "_write_plan", again)
    with pytest.raises(AssertionError, match="backwards"):
        _away_story(zookeeper, monkeypatch)


def test_deleted_owners_are_logged_once_and_written_after_the_rebalance(zookeeper: ZooKeeper) -> None:
    """At the next look at the group, by who wrote them and by who comes after it."""

    async def story(mirrors: Mirrors) -> None:
        service, mirror, shards = await mirrors.enter(1)
        shards.show(1, group="new")
        shards.show(1)
        await mirror.update_zookeeper()
        assert [event.group_id for event in shards.reported] == ["new", "g"], "of a first look, none is registered"
        for settled in (False, True, True):
            shards.show(1, settled=settled)
            shards.show(1, settled=settled, group="new")
            await mirror.update_zookeeper()
        assert mirrors.data(OWNER) == "a-0"
        shards.reported.clear()
        shards.show(1, group="late")
        await mirror.update_zookeeper()
        assert not shards.reported, "a group that came later had nothing that could be deleted"
        mirrors.look.delete(mirrors.root + OWNER)
        await mirror.update_zookeeper()
        assert not shards.reported, "a group that does not change is looked at once a minute"
        await service.close()
        _, after, shards = await mirrors.enter(1)
        for group in ("g", "new", "late"):
            shards.show(1, group=group)
        await after.update_zookeeper()
        assert shards.reported == [OwnerNodesDeleted("g", (PART,))]
        shards.show(1, settled=False)
        await after.update_zookeeper()
        assert mirrors.look.exists(mirrors.root + OWNER) is None, "it is written when the rebalance is done"
        shards.show(1, "b-0")
        await after.update_zookeeper()
        await after.update_zookeeper()
        assert mirrors.data(OWNER) == "b-0"
        assert len(shards.reported) == 1

    play(zookeeper, story)


def test_owners_that_were_deleted_are_found_once_a_minute(zookeeper: ZooKeeper) -> None:
    """Also of a group that does not change, and those that another process wrote over."""

    async def story(mirrors: Mirrors) -> None:
        clock = [1_000.0]
        _, mirror, shards = await mirrors.enter(1, lambda: clock[0])
        for settled in (True, False, True, True):
            shards.show(1, settled=settled)
            await mirror.update_zookeeper()
        assert mirrors.data(OWNER) == "a-0"
        spoil = (
            lambda: mirrors.look.delete(mirrors.root + OWNER),
            lambda: mirrors.look.set(mirrors.root + OWNER, b"x"),
        )
        for spoiled in spoil:
            shards.reported.clear()
            spoiled()
            clock[0] += OWNERS_LOOK_S
            await mirror.update_zookeeper()
            assert not shards.reported, "the minute is not over"
            clock[0] += 1
            await mirror.update_zookeeper()
            assert shards.reported == [OwnerNodesDeleted("g", (PART,))]
            clock[0] += 2 * OWNERS_LOOK_S
            shards.show(1, settled=False)
            await mirror.update_zookeeper()
            assert len(shards.reported) == 1, "it was told, and rebalances"
            for _ in range(2):
                shards.show(1)
                await mirror.update_zookeeper()
            assert mirrors.data(OWNER) == "a-0", "it is written again after the rebalance"
        clock[0] += 2 * OWNERS_LOOK_S
        await mirror.update_zookeeper()
        assert len(shards.reported) == 1, "what is there causes nothing"

    play(zookeeper, story)


def test_a_write_that_fails_after_the_rebalance_is_no_reason_for_another_one(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that could not be written is absent in ZooKeeper, but nobody deleted it."""

    async def story(mirrors: Mirrors) -> None:
        _, mirror, shards = await mirrors.enter(1)
        change = ZooKeeperSession.change

        async def away(self: ZooKeeperSession, *changes: Change) -> bool:
            raise ZooKeeperUnavailable("no connection")

        shards.show(1)
        await mirror.update_zookeeper()
        assert shards.reported == [OwnerNodesDeleted("g", (PART,))], "of a first look, none is registered"
        await mirror.update_zookeeper()  # the rebalance is done
        monkeypatch.setattr(ZooKeeperSession, "change", away)
        for _ in range(3):
            with pytest.raises(ZooKeeperUnavailable):
                await mirror.update_zookeeper()
        monkeypatch.setattr(ZooKeeperSession, "change", change)
        await mirror.update_zookeeper()
        assert len(shards.reported) == 1
        assert mirrors.data(OWNER) == "a-0"
        mirror._owners_look_s = 0
        mirrors.look.delete(mirrors.root + OWNER)
        await mirror.update_zookeeper()
        assert len(shards.reported) == 2, "this one was deleted"

    play(zookeeper, story)


def test_what_another_one_wrote_meanwhile_is_repaired(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was not the one to write reads again what is there, on the same connection too."""

    async def story(mirrors: Mirrors) -> None:
        _, mirror, shards = await mirrors.enter(1)
        shards.show(5)
        for _ in range(3):
            await mirror.update_zookeeper()
        with monkeypatch.context() as patched:
            patched.setattr(ZooKeeperCoordination, "write_guard", lambda _: None)
            await mirror.update_zookeeper()
        mirrors.look.set(mirrors.root + OFFSET, b"999")
        mirrors.look.create(f"{mirrors.root}{OFFSETS}/theirs/t/1-0", b"1", makepath=True)
        for _ in range(2):
            await mirror.update_zookeeper()
        assert mirrors.data(OFFSET) == "5"
        assert mirrors.look.exists(f"{mirrors.root}{OFFSETS}/theirs") is None

    play(zookeeper, story)


def test_only_groups_that_changed_are_looked_at(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has not changed costs nothing, until the minute is over; one that is gone is deleted when it goes."""

    async def story(mirrors: Mirrors) -> None:
        clock = [1_000.0]
        _, mirror, shards = await mirrors.enter(1, lambda: clock[0])
        names = [f"g{number}" for number in range(20)]
        for settled in (True, False, True, True):
            for name in names:
                shards.show(1, group=name, settled=settled)
            await mirror.update_zookeeper()
        await mirror.update_zookeeper()
        assert mirrors.data(f"{OWNERS}/g19/t/1-0") == "a-0"
        shards.asked.clear()

        async def looked_at() -> int:
            before = mirror.meter.looked
            await mirror.update_zookeeper()
            return mirror.meter.looked - before

        assert (await looked_at(), shards.asked) == (0, []), "the shard has no news, and is not asked"
        shards.show(2, group="g7")
        assert (await looked_at(), shards.asked) == (1, [False])
        assert mirrors.data(f"{OFFSETS}/g7/t/1-0") == "2"
        del shards.shown["g3"]
        assert await looked_at() == 1
        assert mirrors.look.exists(f"{mirrors.root}{OFFSETS}/g3") is None
        assert mirrors.look.exists(f"{mirrors.root}{OWNERS}/g3") is None
        assert len(mirrors.look.get_children(f"{mirrors.root}{OFFSETS}")) == 19, "absent is not gone"
        shards.asked.clear()
        clock[0] += OWNERS_LOOK_S + 1
        assert (await looked_at(), shards.asked) == (19, [True])
        del shards.shown["g4"]
        shards.load()
        assert (await looked_at(), shards.asked) == (19, [True, False]), "who loads says everything, and who is gone"
        assert len(mirrors.look.get_children(f"{mirrors.root}{OFFSETS}")) == 18
        assert await looked_at() == 0
        read = mirror._read_tree
        tops: list[str] = []

        async def counted(top: str) -> dict[str, bytes]:
            tops.append(top)
            return await read(top)

        monkeypatch.setattr(mirror, "_read_tree", counted)
        clock[0] += OWNERS_LOOK_S / 2
        assert await looked_at() == len(tops) == 8, "each has its moment within the minute"
        clock[0] += OWNERS_LOOK_S / 2 + 1
        await mirror.update_zookeeper()
        assert len(set(tops)) == len(tops) == 18
        mirrors.lead(2)
        assert await looked_at() == 18
        assert mirrors.look.get_children(f"{mirrors.root}{OWNERS}/g7/t") == ["2-0"]
        assert not mirror._known[0].due

    play(zookeeper, story)


def test_an_answer_that_is_lost_is_made_up_for(zookeeper: ZooKeeper) -> None:
    """A look that is given up, as at the end, may have asked for changes that nobody has seen."""

    async def story(mirrors: Mirrors) -> None:
        _, mirror, shards = await mirrors.enter(1)
        shards.show(5)
        for _ in range(3):
            await mirror.update_zookeeper()
        shards.show(6)
        shards.silent = True
        looking = asyncio.create_task(mirror.update_zookeeper())
        await until(lambda: len(shards.asked) == 2, "it is asked")
        looking.cancel()
        await asyncio.wait([looking])
        shards.silent = False
        await mirror.update_zookeeper()
        assert mirrors.data(OFFSET) == "6"

    play(zookeeper, story)


def test_a_read_that_fails_keeps_no_other_group_from_being_written(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror does not take the write planned before the read for done."""

    async def story(mirrors: Mirrors) -> None:
        _, mirror, shards = await mirrors.enter(1)
        shards.show(5)
        for _ in range(3):
            await mirror.update_zookeeper()
        read = GroupMirror._read_tree

        async def away(self: GroupMirror, top: str) -> dict[str, bytes]:
            if "late" in top:
                raise ZooKeeperUnavailable("no connection")
            return await read(self, top)

        monkeypatch.setattr(GroupMirror, "_read_tree", away)
        shards.show(6)
        shards.show(1, group="late")
        with pytest.raises(ZooKeeperUnavailable):
            await mirror.update_zookeeper()
        monkeypatch.setattr(GroupMirror, "_read_tree", read)
        await mirror.update_zookeeper()
        assert mirrors.data(OFFSET) == "6"
        assert not shards.reported[1:], "it came later, and had nothing that could be deleted"

    play(zookeeper, story)


def test_nothing_is_logged_of_a_new_group_that_rebalances(zookeeper: ZooKeeper) -> None:
    """A group's first consumer does the same: its owners are written when the rebalance ends, and none was deleted."""

    async def story(mirrors: Mirrors) -> None:
        _, mirror, shards = await mirrors.enter(1)
        await mirror.update_zookeeper()
        shards.show(1, settled=False)
        await mirror.update_zookeeper()
        shards.show(1)
        await mirror.update_zookeeper()
        assert not shards.reported
        assert mirrors.data(OWNER) == "a-0"

    play(zookeeper, story)


def test_nothing_is_logged_of_a_group_that_came_between_the_load_and_the_first_look(zookeeper: ZooKeeper) -> None:
    """Nobody can have written its owners; one that was loaded had them, or comes from a time without ZooKeeper."""

    async def story(mirrors: Mirrors) -> None:
        _, mirror, shards = await mirrors.enter(1)
        shards.show(1, loaded=False)
        shards.show(1, group="loaded")
        await mirror.update_zookeeper()
        assert [event.group_id for event in shards.reported] == ["loaded"]
        assert mirrors.data(OWNER) == "a-0"

    play(zookeeper, story)


def test_multis_are_cut_by_bytes(zookeeper: ZooKeeper) -> None:
    """More than a frame of ZooKeeper's holds; groups that are gone are deleted whole."""

    async def story(mirrors: Mirrors) -> None:
        _, mirror, shards = await mirrors.enter(1)
        names = [f"{number:0240}" for number in range(3_000)]
        records = {(name, 0): OffsetCommitted("g", name, 0, 4, -1, "", 0) for name in names}
        shards.shown["g"] = MirroredPushGroup("g", True, {}, records, loaded=True)
        await mirror.update_zookeeper()
        assert set(mirrors.look.get_children(f"{mirrors.root}{OFFSETS}/g")) == set(names)
        assert mirror.meter.multis > 3
        assert mirror.meter.lag_s() < 60
        shards.shown.clear()
        await mirror.update_zookeeper()
        assert mirrors.look.exists(f"{mirrors.root}{OFFSETS}/g") is None
        assert mirrors.look.exists(f"{mirrors.root}{OWNERS}/g") is None

    play(zookeeper, story)


def test_watching_ends_in_the_turn_in_which_a_group_changes() -> None:
    """The cancel is not lost by that: a process that ends would wait for ever."""

    async def run() -> None:
        service: Any = SimpleNamespace(write_guard=lambda: None)
        mirror = GroupMirror(service, SimpleNamespace())  # type: ignore[arg-type]
        watching = asyncio.create_task(mirror.mirror_at_intervals())
        await asyncio.sleep(0.01)
        mirror.request_early_run()
        watching.cancel()
        await asyncio.wait([watching], timeout=5)
        assert watching.cancelled()

    asyncio.run(run())
