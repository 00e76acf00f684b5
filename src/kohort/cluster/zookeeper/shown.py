"""What a process shows in ZooKeeper, as long as it is the one to: topics, and its push groups. Source: spec 4.2, 4.8.

`BrokerInZooKeeper` is a broker's place there: it is the coordinator of all its groups, and shares the path with nobody.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import uuid
from collections.abc import Coroutine

from kohort.broker.host import GroupHost
from kohort.broker.run import RunningBroker
from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.retry import patiently
from kohort.cluster.zookeeper.group_mirror import OWNERS_LOOK_S, GroupMirror
from kohort.cluster.zookeeper.nodes import MirroredTopic
from kohort.cluster.zookeeper.service import SESSION_MS, ZooKeeperDoor
from kohort.errors import InvalidInputError, KafkaError

log = logging.getLogger("kohort.cluster")

TOPICS_S = 1.0
"""How often it is looked whether topics have changed."""
ALIVE_S = 0.1
"""How often the loop shows that it turns: a third of the shortest session is many times that."""
END_S = 2.0
"""A clean end waits so long for what is still to be written; the next one to write makes up for the rest."""


async def show_topics(door: ZooKeeperDoor, host: GroupHost) -> None:
    """Have ZooKeeper say which topics there are, as long as this one is in office."""
    shown = None
    while True:
        if not door.in_office:
            shown = None
        elif host.topics.image() is not shown:
            shown = host.topics.image()
            door.mirror_topics({name: _mirrored(host, name) for name in host.topics.by_name})
        await asyncio.sleep(TOPICS_S)


def _mirrored(host: GroupHost, name: str) -> MirroredTopic:
    topic = host.topics.by_name[name]
    leaders = host.places.leaders(name, range(topic.partitions))
    return MirroredTopic(topic.id, tuple(tuple(leader[2]) for leader in leaders))


class BrokerInZooKeeper:
    """See the module's text, and `broker.run.Beside`."""

    def __init__(self, address: str, session_ms: int = SESSION_MS, owners_look_s: float = OWNERS_LOOK_S) -> None:
        """Does nothing yet.

        Args:
            address: HOST:PORT[,HOST:PORT…][/PATH].
            session_ms: a broker silent for so long may be followed by another one.
            owners_look_s: see `GroupMirror`.

        Raises:
            InvalidInputError: no such address.
        """
        self._door = ZooKeeperDoor(address, session_ms, sole=True)
        self._owners_look_s = owners_look_s
        self._tasks: list[asyncio.Task[None]] = []
        self._mirror: GroupMirror | None = None

    async def open(self, broker: RunningBroker) -> None:
        """Register and be elected, then show topics and groups.

        Raises:
            KafkaError: another process has the path.
        """
        node = broker.node
        host, port = node.config.advertised_host or broker.serving.host, node.config.advertised_port or node.port
        me = Candidate(node.id, uuid.uuid4().hex, host, port, node.config.rack)
        self._beside(self._show_life(), "life of the loop")
        await patiently("ZooKeeper", lambda: self._door.open(me, node.groups.count))
        log.info("broker %d at %s is the coordinator", me.id, me.address)
        mirror = self._mirror = GroupMirror(self._door, node, owners_look_s=self._owners_look_s)
        node.metrics.mirror = mirror.meter
        node.on_rebalanced = mirror.soon
        self._door.listen(mirror.soon)
        self._beside(mirror.watch(), "groups in ZooKeeper")
        self._beside(show_topics(self._door, node), "topics in ZooKeeper")

    async def close(self) -> None:
        """Write what is still to be written, and leave."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            self._door.alive()
            try:
                await asyncio.wait_for(mirror.settle(), END_S)
            except (TimeoutError, KafkaError) as error:
                log.warning("ZooKeeper does not show the last changes of groups (%s)", error or "no answer")
            await self._door.close()

    async def _show_life(self) -> None:
        while True:
            self._door.alive()
            await asyncio.sleep(ALIVE_S)

    def _beside(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(_look_for_fault)
        self._tasks.append(task)


def _look_for_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        told = None if isinstance(fault, InvalidInputError) else fault
        log.error("this broker ends (%s): %s", task.get_name(), fault, exc_info=told)
        signal.raise_signal(signal.SIGTERM)
