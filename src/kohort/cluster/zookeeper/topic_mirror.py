"""Topics of Kafka in ZooKeeper: written by who is in office, watched by all.

Source: spec 4.8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kohort.cluster.zookeeper.nodes import TOPICS, MirroredTopic, cut, differences
from kohort.cluster.zookeeper.session import Change, ZooKeeperSession

_READS = 500
"""Sent at once: a cluster of 10,000 topics is read in 20 turns."""


class TopicMirror:
    """The mirror as one coordinator sees it; only what a watch told of is read again.

    Attributes:
        wanted: What it is to say; None: this one does not know.
        on_change: Called when what it says has changed; None: nobody asks.
    """

    def __init__(self, session: ZooKeeperSession, look: Callable[[], None]) -> None:
        """`look`: has `settle` called again."""
        self.wanted: Mapping[str, MirroredTopic] | None = None
        self.on_change: Callable[[], None] | None = None
        self._session = session
        self._look = look
        self._connection = 0
        self._seen: dict[str, bytes] = {}
        self._names_due = True
        self._due: set[str] = set()

    async def settle(self, guard: Change | None) -> None:
        """Reads what may have changed, and has it say what is wanted.

        Args:
            guard: What holds only while this one is in office; None: it is not.

        Raises:
            KafkaError: ZooKeeper is away, or refuses.
        """
        if self.on_change is None and (guard is None or self.wanted is None):
            return
        if self._connection != self._session.connections:  # the watches of the one before are gone
            self._connection = self._session.connections
            self._names_due = True
            self._due.update(self._seen)
        before = dict(self._seen)
        await self._read_names()
        while self._due:
            await self._read_topics(sorted(self._due)[:_READS])
        if before != self._seen and self.on_change is not None:
            self.on_change()
        if guard is not None and self.wanted is not None:
            await self._write(guard, self.wanted)

    def due(self, name: str | None) -> None:
        """A watch tells of a topic, or of their names (None)."""
        if name is None:
            self._names_due = True
        else:
            self._due.add(name)
        self._look()

    async def _read_names(self) -> None:
        if not self._names_due:
            return
        self._names_due = False
        try:
            names = set(await self._session.children(TOPICS, _Watch(self, None)))
        except BaseException:
            self._names_due = True
            raise
        for name in self._seen.keys() - names:
            del self._seen[name]
        self._due |= names - self._seen.keys()

    async def _read_topics(self, names: list[str]) -> None:
        self._due.difference_update(names)  # before they are read: a watch may tell of them meanwhile
        try:
            nodes = await asyncio.gather(
                *(self._session.read(f"{TOPICS}/{name}", _Watch(self, name)) for name in names)
            )
        except BaseException:
            self._due.update(names)
            raise
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                self._seen.pop(name, None)
            else:
                self._seen[name] = node.data

    async def _write(self, guard: Change, wanted: Mapping[str, MirroredTopic]) -> None:
        for piece in cut(differences(self._seen, wanted)):
            changes = [self._change(name, data) for name, data in piece]
            if not await self._session.change(guard, *changes):
                self._names_due = True
                self._due.update(self._seen)
                self._look()
                return
            for name, data in piece:
                if data is None:
                    self._seen.pop(name, None)
                else:
                    self._seen[name] = data

    def _change(self, name: str, data: bytes | None) -> Change:
        path = f"{TOPICS}/{name}"
        if data is None:
            return Change(path, delete=True)
        return Change(path, data, -1 if name in self._seen else None)


@dataclass(frozen=True, slots=True)
class _Watch:
    """Tells the mirror of a topic, or of their names."""

    mirror: TopicMirror
    name: str | None

    def __call__(self) -> None:
        self.mirror.due(self.name)
