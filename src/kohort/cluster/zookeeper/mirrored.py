"""What is known of push groups and of their nodes in ZooKeeper, and what is to be written of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from kohort.cluster.zookeeper.group_nodes import OFFSETS, OWNERS, node_name, parents
from kohort.cluster.zookeeper.session import Change
from kohort.groups.outcome import ShownPushGroup, ShowPushGroupsReply
from kohort.groups.records import OffsetCommitted
from kohort.ids import TopicPartition


@dataclass(slots=True)
class MirroredGroup:
    """One group, as far as is known of its nodes.

    Attributes:
        nodes: what the nodes under its two hold, by path; None: they have to be read.
        registered: the owners that were written last, None: not by this process.
        told: that owners were deleted; they are written again after the rebalance.
        written: the positions that were written.
        offset_paths: their nodes.
        came: while its shard was here: it had no nodes before that could have been deleted.
        shown: what its shard said last, None: it is gone.
    """

    name: str
    came: bool = False
    shown: ShownPushGroup | None = None
    nodes: dict[str, bytes] | None = None
    registered: dict[TopicPartition, str] | None = None
    told: bool = False
    written: Mapping[tuple[str, int], OffsetCommitted] = field(default_factory=dict)
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
class MirroredShard:
    """The groups of one shard.

    Attributes:
        due: the names of those that are to be looked at.
        looked: by name, when its owners' nodes were read, the oldest first.
        walked_s: when it said all of them.
        lost: it has said nothing yet, or an answer of its was lost: it is to say all.
    """

    groups: dict[str, MirroredGroup]
    due: dict[str, None] = field(default_factory=dict)
    looked: dict[str, float] = field(default_factory=dict)
    walked_s: float = 0.0
    lost: bool = True

    def take(self, reply: ShowPushGroupsReply, *, is_new: bool) -> None:
        """What the shard says; of one that is new here nothing was known."""
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

    def overdue(self, before_s: float) -> list[str]:
        """Groups whose owners' nodes were not read since then."""
        return list(takewhile(lambda name: self.looked[name] < before_s, self.looked))

    def look_again(self, names: list[str], now_s: float, every_s: float) -> None:
        """The owners' nodes of these have been read. Many at once are due again one after the other."""
        for later, name in zip(reversed(range(len(names))), names, strict=True):
            self.looked.pop(name, None)
            self.looked[name] = now_s - every_s * later / len(self.groups)

    def drop(self, name: str) -> None:
        """Nothing of a group is left."""
        del self.groups[name]
        self.looked.pop(name, None)

    def forget(self) -> None:
        """What is in the nodes of groups that are looked at is not known."""
        for name in self.due:
            self.groups[name].nodes = None


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
        again: those that are to be looked at again all the same.
    """

    creates: list[Change] = field(default_factory=list)
    sets: list[Change] = field(default_factory=list)
    deletes: list[Change] = field(default_factory=list)
    marks: list[Change] = field(default_factory=list)
    done: list[tuple[MirroredGroup, ShownPushGroup | None]] = field(default_factory=list)
    owners: list[tuple[MirroredGroup, ShownPushGroup]] = field(default_factory=list)
    again: set[str] = field(default_factory=set)

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
