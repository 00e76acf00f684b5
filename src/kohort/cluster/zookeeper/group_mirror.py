"""Push groups in ZooKeeper: written behind the journal, which is what counts.

One coroutine looks, once an interval and when a rebalance is done: it asks each shard that is here what its groups own
and have committed, as who reads them is answered, and writes what differs from what it has written. So nothing waits in
a queue: what could not be written is made up for by the next look, with the values of then. What many groups have to
write is one list, cut into multis by bytes. Each multi checks what holds only as long as this process is the one to
write (`ZooKeeperDoor.guard`), taken before the shards were asked.

Owners are written when no rebalance is under way. Nodes of owners are read again when a group changes, when its shard
comes here or the connection is another one, and once a minute: where one that was written is not there, the group is
told, and rebalances. Offsets are repaired, and said nothing of.

Source: spec 4.2, 4.7, 4.8 ("Batch Updating ZK Offset").
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kohort.broker.host import GroupHost
from kohort.broker.metrics import MirrorMeter
from kohort.cluster.zookeeper.door import ZooKeeperDoor
from kohort.cluster.zookeeper.group_nodes import (
    OFFSETS,
    OWNERS,
    checksum,
    missing,
    name_of,
    node_name,
    parents,
    partition_of,
    partition_path,
)
from kohort.cluster.zookeeper.nodes import cut
from kohort.cluster.zookeeper.session import Change
from kohort.errors import ErrorCode, KafkaError
from kohort.groups.events import OwnersMissing, ShowPushGroups
from kohort.groups.outcome import ShownPushGroup, ShowPushGroupsReply
from kohort.groups.records import OffsetCommitted
from kohort.ids import TopicPartition

log = logging.getLogger("kohort.cluster")

INTERVAL_S = 1.0
"""Offsets are gathered for so long."""
AGAIN_S = 0.5
"""After a write that was refused or a connection that ended."""
OWNERS_LOOK_S = 60.0
"""Owners of a group that does not change are looked at so often."""
READS = 500
"""Sent at once."""
WINDOW = 4
"""Multis on their way at once, each of half a megabyte at most."""
NO_LEADER = -1


@dataclass(slots=True)
class MirroredGroup:
    """One group, as far as is known of its nodes.

    Attributes:
        nodes: what the nodes under its two hold, by path; None: they have to be read.
        registered: the owners that were written last, None: not by this process.
        told: that owners were deleted; they are written again after the rebalance.
        looked_s: when its owners' nodes were read.
        written: the positions that were written.
        offset_paths: their nodes.
    """

    name: str
    nodes: dict[str, bytes] | None = None
    registered: dict[TopicPartition, str] | None = None
    told: bool = False
    looked_s: float = 0.0
    written: dict[tuple[str, int], OffsetCommitted] = field(default_factory=dict)
    offset_paths: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def owners_path(self) -> str:
        """Above its owners."""
        return f"{OWNERS}/{node_name(self.name)}"

    @property
    def offsets_path(self) -> str:
        """Above its offsets."""
        return f"{OFFSETS}/{node_name(self.name)}"


@dataclass(slots=True)
class Plan:
    """What is to be written.

    Attributes:
        creates: nodes, those above others before them.
        sets: of nodes that are there.
        deletes: those below others before them.
        marks: that a group's owners are all there: after everything else.
        done: the groups that are written then, with what was; None: they are gone.
        owners: those whose owners are written then.
    """

    creates: list[Change] = field(default_factory=list)
    sets: list[Change] = field(default_factory=list)
    deletes: list[Change] = field(default_factory=list)
    marks: list[Change] = field(default_factory=list)
    done: list[tuple[MirroredGroup, ShownPushGroup | None]] = field(default_factory=list)
    owners: list[tuple[MirroredGroup, ShownPushGroup]] = field(default_factory=list)

    def put(self, group: MirroredGroup, path: str, data: bytes, top: str) -> None:
        """Have a node hold this, and those above it be there."""
        nodes = group.nodes
        assert nodes is not None
        for above in parents(path, top):
            if above not in nodes:
                self.creates.append(Change(above, b"", version=None))
                nodes[above] = b""
        known = nodes.get(path)
        if known is None:
            self.creates.append(Change(path, data, version=None))
        elif known != data:
            self.sets.append(Change(path, data))
        nodes[path] = data

    def mark(self, group: MirroredGroup, data: bytes) -> None:
        """Have the node above a group's owners say that they are all there, once they are."""
        assert group.nodes is not None
        top = group.owners_path
        known = group.nodes.get(top)
        if known is None:
            self.creates.append(Change(top, b"", version=None))
        if known != data:
            self.marks.append(Change(top, data))
        group.nodes[top] = data

    def delete(self, group: MirroredGroup, path: str) -> None:
        """Have a node be gone."""
        assert group.nodes is not None
        if group.nodes.pop(path, None) is not None:
            self.deletes.append(Change(path, delete=True))


class GroupMirror:
    """See the module's text."""

    def __init__(
        self,
        door: ZooKeeperDoor,
        host: GroupHost,
        interval_s: float = INTERVAL_S,
        now_s: Callable[[], float] = time.monotonic,
        owners_look_s: float = OWNERS_LOOK_S,
    ) -> None:
        """A mirror that has read nothing yet.

        Args:
            door: through which it writes.
            host: whose groups they are.
            interval_s: see `INTERVAL_S`.
            now_s: the clock by which owners are looked at.
            owners_look_s: owners of a group that does not change are looked at so often.
        """
        self._door = door
        self._host = host
        self._interval_s = interval_s
        self._now_s = now_s
        self._owners_look_s = owners_look_s
        self._news = asyncio.Event()
        self._known: dict[int, dict[str, MirroredGroup]] = {}
        self._connection = 0
        self._tops_due = self._names_due = True
        self.meter = MirrorMeter()

    def soon(self, *_: object) -> None:
        """A group changed: look before the interval is over."""
        self._news.set()

    async def watch(self) -> None:
        """Look again and again."""
        trouble = ""
        while True:
            try:
                await self.settle()
                wait_s, trouble = self._interval_s, ""
            except KafkaError as error:
                if error.message != trouble:
                    log.warning("groups in ZooKeeper are not up to date: %s", error)
                wait_s, trouble = AGAIN_S, error.message
                self.meter.failures += 1
            try:
                async with asyncio.timeout(wait_s):  # wait_for loses a cancel in the turn in which it is set
                    await self._news.wait()
            except TimeoutError:
                continue
            self._news.clear()

    async def settle(self) -> None:
        """Have ZooKeeper show what the journal holds now.

        Raises:
            KafkaError: not all of it: ZooKeeper is away, or refused something.
        """
        guard = self._door.guard()
        if guard is None:
            self._connection = 0  # another process may write meanwhile
            return
        began_s = time.monotonic()
        if self._connection != self._door.connections:  # what was seen before may be of another time
            self._connection, self._tops_due, self._names_due = self._door.connections, True, True
            for group in self._groups():
                group.nodes = None
        if self._tops_due:
            for top in (OWNERS, OFFSETS):
                await self._door.session.make_path(top)
            self._tops_due = False
        plan = Plan()
        here = {shard.index: shard for shard in self._host.groups if shard.loaded and shard.index in guard.shards}
        for index in self._known.keys() - here.keys():
            del self._known[index]
        there = await self._names() if self._names_due or here.keys() - self._known.keys() else {}
        if self._names_due:  # another process may have written of groups that are not here
            for index, known in self._known.items():
                known.update({name: MirroredGroup(name) for name in there.get(index, set()) - known.keys()})
            self._names_due = False
        for index, shard in here.items():
            is_new = index not in self._known
            known = self._known.get(index) or {name: MirroredGroup(name) for name in there.get(index, ())}
            if known or any(protocol == "push" for protocol, _ in shard.group_states()):
                await self._look_at(index, known, plan, is_new=is_new)
            self._known[index] = known
        await self._write(guard.changes, plan)
        self.meter.settled(began_s)

    def _groups(self) -> Iterator[MirroredGroup]:
        for known in self._known.values():
            yield from known.values()

    # -- what there is

    async def _names(self) -> dict[int, set[str]]:
        """Groups that have nodes, by shard."""
        found: dict[int, set[str]] = {}
        for top in (OWNERS, OFFSETS):
            for node in await self._door.session.children(top):
                name = name_of(node)
                found.setdefault(self._host.groups.index_of(name), set()).add(name)
        return found

    async def _shown(self, index: int) -> tuple[ShownPushGroup, ...] | None:
        """What a shard says, None: it does not serve here now."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def take(value: ShowPushGroupsReply | ErrorCode) -> None:
            if not answer.done():
                answer.set_result(value)

        self._host.groups.ask_at(index, ShowPushGroups(self._host.token()), take)
        value = await answer
        return None if isinstance(value, ErrorCode) else value.groups

    async def _read(self, top: str) -> dict[str, bytes]:
        """All nodes of a tree."""
        session, found = self._door.session, dict[str, bytes]()
        due = [top]
        while due:
            some, due = due[:READS], due[READS:]
            nodes = await asyncio.gather(*(session.read(path) for path in some))
            there = [path for path, node in zip(some, nodes, strict=True) if node is not None]
            found.update({path: node.data for path, node in zip(some, nodes, strict=True) if node is not None})
            inner = [path for path in there if path.count("/") < top.count("/") + 2]
            names = await asyncio.gather(*(session.children(path) for path in inner))
            due += [f"{path}/{name}" for path, each in zip(inner, names, strict=True) for name in each]
        return found

    # -- what is to be written

    async def _look_at(self, index: int, known: dict[str, MirroredGroup], plan: Plan, *, is_new: bool) -> None:
        groups = await self._shown(index)
        if groups is None:
            return
        for shown in groups:
            group = known.get(shown.group_id)
            came = group is None and not is_new  # of a shard that has been here: the group is a new one
            if group is None:
                group = known[shown.group_id] = MirroredGroup(shown.group_id)
            await self._plan(group, shown, plan, came=came)
        for name in known.keys() - {shown.group_id for shown in groups}:
            await self._plan_gone(known[name], plan)

    async def _plan_gone(self, group: MirroredGroup, plan: Plan) -> None:
        if group.nodes is None:
            group.nodes = {**await self._read(group.owners_path), **await self._read(group.offsets_path)}
        for path in sorted(group.nodes, reverse=True):
            plan.delete(group, path)
        plan.done.append((group, None))

    async def _plan(self, group: MirroredGroup, shown: ShownPushGroup, plan: Plan, *, came: bool) -> None:
        first, was_told = group.nodes is None, group.told
        now_s = self._now_s()
        is_due = now_s - group.looked_s > self._owners_look_s
        changed = shown.settled and not group.told and group.registered != shown.owners
        if group.nodes is None:
            group.nodes = {**await self._read(group.owners_path), **await self._read(group.offsets_path)}
            group.written.clear()
            group.offset_paths.clear()
        elif changed or is_due:
            before = [path for path in group.nodes if path.startswith(f"{group.owners_path}/")]
            for path in (*before, group.owners_path):
                group.nodes.pop(path, None)
            group.nodes.update(await self._read(group.owners_path))
        if first or changed or is_due:
            group.looked_s = now_s
            self._tell_missing(group, shown, came=came)
        if shown.settled and not group.told:
            self._plan_owners(group, shown, plan)
        self._plan_offsets(group, shown, plan)
        if was_told and shown.settled:  # the rebalance is done, or there was nothing to rebalance: they are written now
            group.told, group.registered = False, {}
            self.soon()
        plan.done.append((group, shown))

    def _tell_missing(self, group: MirroredGroup, shown: ShownPushGroup, *, came: bool) -> None:
        nodes, wanted = group.nodes or {}, shown.owners
        registered = group.registered
        if registered is None:
            note = nodes.get(group.owners_path)
            whole = not came and (note is None or note == checksum(wanted))
            registered = dict(wanted) if whole else {}
        owners = {path: data for path, data in nodes.items() if path.startswith(f"{group.owners_path}/")}
        lost = missing(registered, wanted, owners)
        if lost and not group.told:
            group.told = True
            self._host.groups.tell(group.name, OwnersMissing(group.name, lost))
            self.soon()

    def _plan_owners(self, group: MirroredGroup, shown: ShownPushGroup, plan: Plan) -> None:
        top, wanted = group.owners_path, dict[str, bytes]()
        for part, owner in shown.owners.items():
            wanted[partition_path(top, part, self._leader(part))] = owner.encode()
        assert group.nodes is not None
        for path in [path for path in group.nodes if path.startswith(f"{top}/") and path not in wanted]:
            if partition_of(path[len(top) :]) is not None and path.count("/") == top.count("/") + 2:
                plan.delete(group, path)
        for path, data in wanted.items():
            plan.put(group, path, data, OWNERS)
        plan.mark(group, checksum(shown.owners))
        plan.owners.append((group, shown))

    def _plan_offsets(self, group: MirroredGroup, shown: ShownPushGroup, plan: Plan) -> None:
        top = group.offsets_path
        assert group.nodes is not None
        is_first = not group.offset_paths
        for part, record in shown.offsets.items():
            if group.written.get(part) is record:
                continue
            path = partition_path(top, TopicPartition(*part), self._leader(TopicPartition(*part)))
            earlier = group.offset_paths.get(part)
            if earlier is not None and earlier != path:
                plan.delete(group, earlier)
            plan.put(group, path, str(record.offset).encode(), OFFSETS)
            group.offset_paths[part] = path
        for part in group.offset_paths.keys() - shown.offsets.keys():
            plan.delete(group, group.offset_paths.pop(part))
        if is_first:
            kept = set(group.offset_paths.values())
            for path in [path for path in group.nodes if path.startswith(f"{top}/") and path not in kept]:
                if path.count("/") == top.count("/") + 2:
                    plan.delete(group, path)

    def _leader(self, part: TopicPartition) -> int:
        leaders = self._host.places.leaders(part.topic, range(part.partition, part.partition + 1))
        return leaders[0][0] if leaders else NO_LEADER

    # -- writing

    async def _write(self, guard: tuple[Change, ...], plan: Plan) -> None:
        try:
            await self._send(guard, plan.creates, window=1)
            await self._send(guard, plan.sets, window=WINDOW)
            await self._send(guard, plan.deletes, window=1)
            await self._send(guard, plan.marks, window=WINDOW)
        except BaseException:
            self._tops_due = True
            for group, _ in plan.done:
                group.nodes = None  # what is there is not known
            raise
        for group, shown in plan.done:
            if shown is None:
                self._known.get(self._host.groups.index_of(group.name), {}).pop(group.name, None)
                continue
            group.written = dict(shown.offsets)
        for group, shown in plan.owners:
            group.registered = dict(shown.owners)

    async def _send(self, guard: tuple[Change, ...], changes: list[Change], window: int) -> None:
        """In multis, so many on their way at once.

        Raises:
            KafkaError: one was refused, or had no answer.
        """
        pieces = list(pieces_of(changes))
        for at in range(0, len(pieces), window):
            multis = [self._door.session.change(*guard, *piece) for piece in pieces[at : at + window]]
            taken = await asyncio.gather(*multis)
            self.meter.multis += len(taken)
            if not all(taken):
                self.meter.refused += len(taken) - sum(taken)
                self._door.look()
                raise KafkaError("a write was refused: another process is the one to write, or changed the nodes")
            self.meter.changes += sum(map(len, pieces[at : at + window]))


def pieces_of(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """The same changes in pieces, each within one request's bytes."""
    every = list(changes)
    at = 0
    for piece in cut((one.path, one.data) for one in every):
        yield every[at : at + len(piece)]
        at += len(piece)
