"""The mirror of push groups in ZooKeeper, written after the journal, which is authoritative.

One coroutine runs once an interval and after each rebalance. It asks each changed shard for the owners and committed
offsets of its changed groups, as a client would read them. It writes the differences from what it wrote before. Nothing
waits in a queue: the next run catches up on a failed write, with the values of then.

The changes of all groups form one list, split into multis by bytes. Each multi checks that this process may still write
(`ZooKeeperCoordination.write_guard`); the guard is taken before the shards are asked.

| a group is checked | action |
|---|---|
| when it has changed or was deleted, until that is written | its nodes are written or deleted |
| when a partition that it owns has another leader | the node with the leader in its name is recreated |
| with its whole shard, when the shard comes here, and once a minute | a group missing from the answer is deleted |
| once a minute, spread over the groups of a shard | its owners' nodes are read again |
| with all groups, after a reconnect | its nodes are read again |

Owners are written when no rebalance is under way. Their nodes are read again before that. If a node that was written is
missing, the group is informed and rebalances. Offsets are repaired silently.

Source: spec 4.2, 4.7, 4.8 ("Batch Updating ZK Offset").
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from kohort.broker.host import GroupHost, KnownTopic
from kohort.broker.metrics import ZooKeeperMirrorMetrics
from kohort.cluster.zookeeper.nodes import (
    OFFSETS,
    OWNERS,
    decode_node_name,
    encode_node_name,
    owners_checksum,
    parent_paths,
    partition_in_path,
    partition_path,
    partitions_missing_owner_nodes,
    split_changes,
)
from kohort.cluster.zookeeper.service import ZooKeeperCoordination
from kohort.cluster.zookeeper.session import Change
from kohort.coordinator.shard import Shard
from kohort.errors import ErrorCode, KafkaError
from kohort.groups.effects import DescribePushGroupsReply, MirroredPushGroup
from kohort.groups.events import DescribePushGroups, OwnerNodesDeleted
from kohort.groups.records import OffsetCommitted
from kohort.ids import TopicPartition

# -- Push groups, the known content of their nodes in ZooKeeper, and the changes to write


@dataclass(slots=True)
class MirroredGroup:
    """One push group in ZooKeeper's mirror, with the known content of its nodes.

    Attributes:
        name: the group's id.
        came: whether it was created while its shard was here, so that it had no nodes before that could be deleted.
        shown: the group in its shard's last answer; None: the group was deleted.
        nodes: the content of the nodes below the group's two nodes, by path; None: they must be read first.
        registered: the owners that this process wrote last; None: it has written none.
        reported: whether the group knows that owners' nodes were deleted; they are written again after the rebalance.
        written: the offsets that were written.
        offset_paths: the paths of the offsets' nodes.
    """

    name: str
    came: bool = False
    shown: MirroredPushGroup | None = None
    nodes: dict[str, bytes] | None = None
    registered: dict[TopicPartition, str] | None = None
    reported: bool = False
    written: Mapping[tuple[str, int], OffsetCommitted] = field(default_factory=dict)
    offset_paths: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def owners_path(self) -> str:
        """The path below which the group's owner nodes are."""
        return f"{OWNERS}/{encode_node_name(self.name)}"

    @property
    def offsets_path(self) -> str:
        """The path below which the group's offset nodes are."""
        return f"{OFFSETS}/{encode_node_name(self.name)}"


@dataclass(slots=True)
class MirroredShard:
    """The push groups of one shard, and what the mirror knows of their nodes in ZooKeeper.

    Attributes:
        groups: the groups by name.
        due: the names of the groups to check.
        looked: the time when a group's owners' nodes were read, by name, the oldest first.
        walked_s: the time in s of the last answer that listed all groups of the shard.
        lost: whether all groups have to be asked for, because there was no answer yet or one was lost.
    """

    groups: dict[str, MirroredGroup]
    due: dict[str, None] = field(default_factory=dict)
    looked: dict[str, float] = field(default_factory=dict)
    walked_s: float = 0.0
    lost: bool = True

    def record_answer(self, reply: DescribePushGroupsReply, *, is_new: bool) -> None:
        """Record a shard's answer to `DescribePushGroups`.

        `is_new`: the shard was taken over a moment ago, so nothing was known of its groups.
        """
        for shown in reply.groups:
            group = self.groups.get(shown.group_id)
            if group is None:
                came = not (is_new and shown.loaded)
                group = self.groups[shown.group_id] = MirroredGroup(shown.group_id, came)
            group.shown = shown
            self.due[shown.group_id] = None
        there = {shown.group_id for shown in reply.groups}
        for name in self.groups.keys() - there if reply.whole else self.groups.keys() & set(reply.gone):
            self.groups[name].shown = None
            self.due[name] = None

    def overdue_groups(self, before_s: float) -> list[str]:
        """Return the groups whose owners' nodes in ZooKeeper were last read before a time."""
        return list(takewhile(lambda name: self.looked[name] < before_s, self.looked))

    def record_owner_reads(self, names: list[str], now_s: float, every_s: float) -> None:
        """Record that these groups' owners' nodes were read. Groups read at once become due one after the other."""
        for later, name in zip(reversed(range(len(names))), names, strict=True):
            self.looked.pop(name, None)
            self.looked[name] = now_s - every_s * later / len(self.groups)

    def forget_group(self, name: str) -> None:
        """Forget a deleted group after all of its nodes in ZooKeeper were deleted."""
        del self.groups[name]
        self.looked.pop(name, None)

    def forget_node_contents(self) -> None:
        """Forget the known content of the due groups' nodes, so that it is read from ZooKeeper again."""
        for name in self.due:
            self.groups[name].nodes = None


@dataclass(slots=True)
class MirrorPlan:
    """The changes to write to ZooKeeper in one run, and what is known of the groups after them.

    Attributes:
        creates: nodes to create, parents first.
        sets: nodes to change.
        deletes: nodes to delete, children first.
        marks: nodes that confirm that a group's owners are complete; written last.
        done: the groups that are up to date then, with the written answer; None: deleted.
        owners: the groups whose owners are up to date then.
        again: the groups to check in the next run too.
    """

    creates: list[Change] = field(default_factory=list)
    sets: list[Change] = field(default_factory=list)
    deletes: list[Change] = field(default_factory=list)
    marks: list[Change] = field(default_factory=list)
    done: list[tuple[MirroredGroup, MirroredPushGroup | None]] = field(default_factory=list)
    owners: list[tuple[MirroredGroup, MirroredPushGroup]] = field(default_factory=list)
    again: set[str] = field(default_factory=set)

    def plan_node(self, group: MirroredGroup, path: str, data: bytes, top: str) -> None:
        """Plan to create or change a node so that it has this content, and to create missing nodes above it."""
        nodes = group.nodes
        assert nodes is not None
        for above in parent_paths(path, top):
            if above not in nodes:
                self.creates.append(Change(above, b"", version=None))
                nodes[above] = b""
        known = nodes.get(path)
        if known is None:
            self.creates.append(Change(path, data, version=None))
        elif known != data:
            self.sets.append(Change(path, data))
        nodes[path] = data

    def plan_owners_checksum(self, group: MirroredGroup, data: bytes) -> None:
        """Plan the checksum in the node above a group's owner nodes; it is written after these are complete."""
        assert group.nodes is not None
        top = group.owners_path
        known = group.nodes.get(top)
        if known is None:
            self.creates.append(Change(top, b"", version=None))
        if known != data:
            self.marks.append(Change(top, data))
        group.nodes[top] = data

    def delete(self, group: MirroredGroup, path: str) -> None:
        """Plan the deletion of one of a group's nodes."""
        assert group.nodes is not None
        if group.nodes.pop(path, None) is not None:
            self.deletes.append(Change(path, delete=True))


log = logging.getLogger("kohort.cluster")

INTERVAL_S = 1.0
"""Interval at which offsets are written to ZooKeeper: they are collected for this long."""
AGAIN_S = 0.5
"""Retry delay after a refused write or a lost connection."""
OWNERS_LOOK_S = 60.0
"""Interval between full checks, which include groups that have not changed."""
READS = 500
"""Concurrent reads."""
WINDOW = 4
"""Concurrent multis, each of at most half a megabyte."""
NO_LEADER = -1


class GroupMirror:
    """The coroutine that mirrors the push groups of a host in ZooKeeper."""

    def __init__(
        self,
        coordination: ZooKeeperCoordination,
        host: GroupHost,
        now_s: Callable[[], float] = time.monotonic,
        owners_look_s: float = OWNERS_LOOK_S,
    ) -> None:
        """Create a mirror that has read nothing yet.

        Args:
            coordination: the coordination service, through whose session the groups are written to ZooKeeper.
            host: the host of the groups.
            now_s: the clock of the full checks.
            owners_look_s: the interval between full checks (`OWNERS_LOOK_S`).
        """
        self._coordination = coordination
        self._host = host
        self._now_s = now_s
        self._owners_look_s = owners_look_s
        self._news = asyncio.Event()
        self._known: dict[int, MirroredShard] = {}
        self._leaders: dict[str, tuple[KnownTopic, list[int]]] = {}
        self._connection = 0
        self._tops_due = self._names_due = True
        self.meter = ZooKeeperMirrorMetrics()

    def request_early_run(self, *_: object) -> None:
        """Let the mirror run before its interval is over, because a group has changed."""
        self._news.set()

    async def mirror_at_intervals(self) -> None:
        """Mirror changed groups in ZooKeeper at each interval, until cancelled."""
        trouble = ""
        while True:
            try:
                await self.update_zookeeper()
                wait_s, trouble = INTERVAL_S, ""
            except KafkaError as error:
                if error.message != trouble:  # by text: logged once
                    log.warning("groups in ZooKeeper could not be updated, retrying: %s", error)
                wait_s, trouble = AGAIN_S, error.message
                self.meter.failures += 1
            try:
                async with asyncio.timeout(wait_s):  # wait_for loses a cancel in the turn in which it is set
                    await self._news.wait()
            except TimeoutError:
                continue
            self._news.clear()

    async def update_zookeeper(self) -> None:
        """Write the changes of push groups since the last run to ZooKeeper.

        Raises:
            KafkaError: not everything was written, because ZooKeeper is unavailable or refused a write.
        """
        guard = self._coordination.write_guard()
        if guard is None:
            self._connection = 0  # another process may write meanwhile
            return
        began_s = time.monotonic()
        if self._connection != self._coordination.connections:  # nodes may have changed since the last connection
            self._connection, self._tops_due, self._names_due = self._coordination.connections, True, True
            for view in self._known.values():
                view.due.update(dict.fromkeys(view.groups))
                view.forget_node_contents()
        if self._tops_due:
            for top in (OWNERS, OFFSETS):
                await self._coordination.session.create_path(top)
            self._tops_due = False
        here = {shard.index: shard for shard in self._host.groups if shard.is_loaded and shard.index in guard.shards}
        for index in self._known.keys() - here.keys():
            del self._known[index]
        there = await self._names() if self._names_due or here.keys() - self._known.keys() else {}
        if self._names_due:  # another process may have written of groups that are not here
            for index, view in self._known.items():
                strangers = {name: MirroredGroup(name) for name in there.get(index, set()) - view.groups.keys()}
                view.groups.update(strangers)
                view.due.update(dict.fromkeys(strangers))
            self._names_due = False
        self._look_at_leaders()
        plan = MirrorPlan()
        try:
            for shard in here.values():
                await self._look_at(shard, there.get(shard.index, set()), plan)
            await self._write_plan(guard.changes, plan)
        except BaseException:
            self._tops_due = True
            for view in self._known.values():
                view.forget_node_contents()
            raise
        self.meter.record_mirror_written(began_s)

    def _look_at_leaders(self) -> None:
        """Mark groups as due if partition leaders have changed, because the names of owner nodes contain the leader.

        A topic's object in `by_name` is replaced whenever the topic changes.
        """
        by_name = self._host.topics.by_name
        changed = {name: known for name, known in self._leaders.items() if by_name.get(name) is not known[0]}
        for name in changed:
            del self._leaders[name]
        moved = {name for name, (_, leaders) in changed.items() if self._leaders_of(name) != leaders}
        for view in self._known.values() if moved else ():
            for name, group in view.groups.items():
                if group.shown is not None and not moved.isdisjoint(part.topic for part in group.shown.owners):
                    view.due[name] = None

    # -- present state

    async def _names(self) -> dict[int, set[str]]:
        """Read the names of all groups with nodes in ZooKeeper, and return them by shard."""
        found: dict[int, set[str]] = {}
        for top in (OWNERS, OFFSETS):
            for node in await self._coordination.session.children(top):
                name = decode_node_name(node)
                found.setdefault(self._host.groups.shard_index_of(name), set()).add(name)
        return found

    async def _shown(self, index: int, *, whole: bool) -> DescribePushGroupsReply | None:
        """Request the push groups of a shard with owners and offsets; None: the shard does not serve here now."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def take_shard_answer(value: DescribePushGroupsReply | ErrorCode) -> None:
            if not answer.done():
                answer.set_result(value)

        self._host.groups.ask_shard(index, DescribePushGroups(self._host.next_request_id(), whole), take_shard_answer)
        value = await answer
        return None if isinstance(value, ErrorCode) else value

    async def _read_tree(self, top: str) -> dict[str, bytes]:
        """Read a ZooKeeper node and the nodes up to two levels below it; return their data by path."""
        session, found = self._coordination.session, dict[str, bytes]()
        due = [top]
        while due:
            some, due = due[:READS], due[READS:]
            nodes = await asyncio.gather(*(session.read(path) for path in some))
            there = [path for path, node in zip(some, nodes, strict=True) if node is not None]
            found.update({path: node.data for path, node in zip(some, nodes, strict=True) if node is not None})
            inner = [path for path in there if path.count("/") < top.count("/") + 2]
            names = await asyncio.gather(*(session.children(path) for path in inner))
            due += [f"{path}/{name}" for path, below in zip(inner, names, strict=True) for name in below]
        return found

    # -- planning of changes

    async def _look_at(self, shard: Shard, names: Iterable[str], plan: MirrorPlan) -> None:
        """Ask a shard for its changed push groups, and plan the ZooKeeper changes of all of its groups that are due.

        `names` are the groups that have nodes in ZooKeeper, in case the shard is new here.
        """
        view = self._known.get(shard.index)
        is_new = view is None
        if view is None:
            view = MirroredShard({name: MirroredGroup(name) for name in names})
        now_s, every_s = self._now_s(), self._owners_look_s
        whole = view.lost or (bool(view.groups) and now_s - view.walked_s > every_s)
        if whole or shard.has_unpublished_push_groups:
            view.lost = True
            reply = await self._shown(shard.index, whole=whole)
            if reply is None:
                return
            view.lost = False
            if reply.whole:
                view.walked_s = now_s
            view.record_answer(reply, is_new=is_new)
        self._known[shard.index] = view
        overdue, read = dict.fromkeys(view.overdue_groups(now_s - every_s)), list[str]()
        view.due.update(overdue)
        for name in [*view.due]:
            group = view.groups[name]
            self.meter.looked += 1
            if group.shown is None:
                await self._plan_gone(group, plan)
            elif await self._plan(group, group.shown, plan, is_due=name in overdue):
                read.append(name)
        view.record_owner_reads(read, now_s, every_s)

    async def _plan_gone(self, group: MirroredGroup, plan: MirrorPlan) -> None:
        if group.nodes is None:
            group.nodes = {**await self._read_tree(group.owners_path), **await self._read_tree(group.offsets_path)}
        for path in sorted(group.nodes, reverse=True):
            plan.delete(group, path)
        plan.done.append((group, None))

    async def _plan(self, group: MirroredGroup, shown: MirroredPushGroup, plan: MirrorPlan, *, is_due: bool) -> bool:
        """Plan the ZooKeeper changes of a group; return whether its owner nodes were read from ZooKeeper first."""
        first, was_told = group.nodes is None, group.reported
        changed = shown.settled and not group.reported and group.registered != shown.owners
        if group.nodes is None:
            group.nodes = {**await self._read_tree(group.owners_path), **await self._read_tree(group.offsets_path)}
            group.written = {}
            group.offset_paths.clear()
        elif changed or is_due:
            before = [path for path in group.nodes if path.startswith(f"{group.owners_path}/")]
            for path in (*before, group.owners_path):
                group.nodes.pop(path, None)
            group.nodes.update(await self._read_tree(group.owners_path))
        is_read = first or changed or is_due
        if is_read:
            self._report_missing(group, shown)
        if shown.settled and not group.reported:
            self._plan_owners(group, shown, plan)
        self._plan_offsets(group, shown, plan)
        if was_told and shown.settled:  # the rebalance is done, or none was needed: owners are written now
            group.reported, group.registered = False, {}
            self.request_early_run()
        if was_told or group.reported:
            plan.again.add(group.name)
        plan.done.append((group, shown))
        return is_read

    def _report_missing(self, group: MirroredGroup, shown: MirroredPushGroup) -> None:
        nodes, wanted = group.nodes or {}, shown.owners
        registered = group.registered
        if registered is None:
            mark = nodes.get(group.owners_path)
            is_complete = not group.came and (mark is None or mark == owners_checksum(wanted))
            registered = dict(wanted) if is_complete else {}
        owners = {path: data for path, data in nodes.items() if path.startswith(f"{group.owners_path}/")}
        lost = partitions_missing_owner_nodes(registered, wanted, owners)
        if lost and not group.reported:
            group.reported = True
            self._host.groups.queue_event(group.name, OwnerNodesDeleted(group.name, lost))
            self.request_early_run()

    def _plan_owners(self, group: MirroredGroup, shown: MirroredPushGroup, plan: MirrorPlan) -> None:
        top, wanted = group.owners_path, dict[str, bytes]()
        for part, owner in shown.owners.items():
            wanted[partition_path(top, part, self._leader(part))] = owner.encode()
        assert group.nodes is not None
        for path in [path for path in group.nodes if path.startswith(f"{top}/") and path not in wanted]:
            if partition_in_path(path[len(top) :]) is not None and path.count("/") == top.count("/") + 2:
                plan.delete(group, path)
        for path, data in wanted.items():
            plan.plan_node(group, path, data, OWNERS)
        plan.plan_owners_checksum(group, owners_checksum(shown.owners))
        plan.owners.append((group, shown))

    def _plan_offsets(self, group: MirroredGroup, shown: MirroredPushGroup, plan: MirrorPlan) -> None:
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
            plan.plan_node(group, path, str(record.offset).encode(), OFFSETS)
            group.offset_paths[part] = path
        for part in group.offset_paths.keys() - shown.offsets.keys():
            plan.delete(group, group.offset_paths.pop(part))
        if is_first:
            kept = set(group.offset_paths.values())
            for path in [path for path in group.nodes if path.startswith(f"{top}/") and path not in kept]:
                if path.count("/") == top.count("/") + 2:
                    plan.delete(group, path)

    def _leader(self, part: TopicPartition) -> int:
        leaders = self._leaders_of(part.topic)
        return leaders[part.partition] if part.partition < len(leaders) else NO_LEADER

    def _leaders_of(self, name: str) -> list[int]:
        """Return the leaders of a topic's partitions, looked up once; none for a deleted topic."""
        known = self._leaders.get(name)
        if known is not None:
            return known[1]
        topic = self._host.topics.by_name.get(name)
        if topic is None:
            return []
        found = self._host.endpoints.leaders(name, range(topic.partitions))
        leaders = [leader[0] for leader in found]
        self._leaders[name] = topic, leaders
        return leaders

    # -- writing

    async def _write_plan(self, guard: tuple[Change, ...], plan: MirrorPlan) -> None:
        await self._send_changes(guard, plan.creates, window=1)
        await self._send_changes(guard, plan.sets, window=WINDOW)
        await self._send_changes(guard, plan.deletes, window=1)
        await self._send_changes(guard, plan.marks, window=WINDOW)
        for group, shown in plan.done:
            view = self._known[self._host.groups.shard_index_of(group.name)]
            if group.name not in plan.again:
                del view.due[group.name]
            if shown is None:
                view.forget_group(group.name)
            else:
                group.written = shown.offsets
        for group, shown in plan.owners:
            group.registered = dict(shown.owners)

    async def _send_changes(self, guard: tuple[Change, ...], changes: list[Change], window: int) -> None:
        """Send changes in multis, at most `window` of them at once.

        Raises:
            KafkaError: a multi was refused, or had no answer.
        """
        pieces = list(split_into_requests(changes))
        for at in range(0, len(pieces), window):
            multis = [self._coordination.session.change(*guard, *piece) for piece in pieces[at : at + window]]
            accepted = await asyncio.gather(*multis)
            self.meter.multis += len(accepted)
            if not all(accepted):
                self.meter.refused += len(accepted) - sum(accepted)
                self._coordination.reread_all_nodes()
                raise KafkaError("a write was refused: another process is the one to write, or changed the nodes")
            self.meter.changes += sum(map(len, pieces[at : at + window]))


def split_into_requests(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Split a plan's ZooKeeper changes into pieces that each fit one request."""
    every = list(changes)
    at = 0
    for piece in split_changes((change.path, change.data) for change in every):
        yield every[at : at + len(piece)]
        at += len(piece)
