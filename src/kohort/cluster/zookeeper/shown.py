"""The mirror of topics and push groups in ZooKeeper, written by the process that leads.

`BrokerInZooKeeper` registers a broker there. It is the coordinator of all its groups, and shares the path with nobody.

Source: spec 4.2, 4.8.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import uuid
from collections.abc import Coroutine, Mapping

from kohort.broker.host import GroupHost, KnownTopic
from kohort.broker.run import BrokerServer
from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.retry import retry_forever
from kohort.cluster.zookeeper.group_mirror import OWNERS_LOOK_S, GroupMirror
from kohort.cluster.zookeeper.nodes import MirroredTopic
from kohort.cluster.zookeeper.security import ZooKeeperAddress
from kohort.cluster.zookeeper.service import SESSION_MS, ZooKeeperCoordination
from kohort.errors import InvalidInputError, KafkaError

log = logging.getLogger("kohort.cluster")

TOPICS_S = 1.0
"""Interval between checks for changed topics."""
ALIVE_S = 0.1
"""Interval between reports that the event loop is alive, much shorter than a third of the shortest session."""
END_S = 2.0
"""Timeout of the last write at shutdown; the next process that leads writes what is still missing."""


async def mirror_leader_topics(coordination: ZooKeeperCoordination, host: GroupHost) -> None:
    """Mirror the topics in ZooKeeper for as long as this process leads."""
    shown: dict[str, MirroredTopic] | None = None
    made_of: Mapping[str, KnownTopic] = {}
    while True:
        if not coordination.is_leader:
            shown = None
        else:
            known, by_name = shown or {}, host.topics.by_name
            topics = {
                name: known[name] if name in known and made_of.get(name) is topic else _mirrored(host, name)
                for name, topic in by_name.items()  # an object in it is replaced whenever its topic changes
            }
            if topics != shown:
                coordination.mirror_topics(topics)
            shown, made_of = topics, dict(by_name)
        await asyncio.sleep(TOPICS_S)


def _mirrored(host: GroupHost, name: str) -> MirroredTopic:
    topic = host.topics.by_name[name]
    leaders = host.endpoints.leaders(name, range(topic.partitions))
    return MirroredTopic(topic.id, tuple(tuple(leader[2]) for leader in leaders))


class BrokerInZooKeeper:
    """A broker's registration and mirrors in ZooKeeper (a `broker.run.BrokerRegistrar`)."""

    def __init__(
        self, address: str | ZooKeeperAddress, session_ms: int = SESSION_MS, owners_look_s: float = OWNERS_LOOK_S
    ) -> None:
        """Create a closed registration; `open_before_clients` connects it.

        Args:
            address: HOST:PORT[,HOST:PORT…][/PATH], with the settings of connections where they are secure.
            session_ms: the session timeout, after which another broker may take the path.
            owners_look_s: interval between full checks of the owners' nodes (`GroupMirror`).

        Raises:
            InvalidInputError: the address is malformed.
        """
        self._coordination = ZooKeeperCoordination(address, session_ms, exclusive=True)
        self._owners_look_s = owners_look_s
        self._tasks: list[asyncio.Task[None]] = []
        self._mirror: GroupMirror | None = None

    async def open_before_clients(self, broker: BrokerServer) -> None:
        """Register, wait until elected, then mirror topics and groups.

        Raises:
            KafkaError: another process uses the path.
        """
        node = broker.node
        host, port = node.config.advertised_host or broker.serving.host, node.config.advertised_port or node.port
        me = Candidate(node.id, uuid.uuid4().hex, host, port, node.config.rack)
        self._run_in_background(self._keep_session_alive(), "keep-alive of the session")
        await retry_forever("ZooKeeper", lambda: self._coordination.open(me, node.groups.count))
        log.info("registered in ZooKeeper: broker %d at %s is the coordinator of all groups", me.id, me.address)
        mirror = self._mirror = GroupMirror(self._coordination, node, owners_look_s=self._owners_look_s)
        node.metrics.mirror = mirror.meter
        node.on_rebalanced = mirror.request_early_run
        self._coordination.on_changes(mirror.request_early_run)
        self._run_in_background(mirror.mirror_at_intervals(), "groups in ZooKeeper")
        self._run_in_background(mirror_leader_topics(self._coordination, node), "topics in ZooKeeper")

    async def close(self) -> None:
        """Write pending changes, and unregister."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            self._coordination.report_loop_alive()
            try:
                await asyncio.wait_for(mirror.update_zookeeper(), END_S)
            except (TimeoutError, KafkaError) as error:
                log.warning(
                    "closing: the last changes of groups were not written to ZooKeeper (%s)", error or "no answer"
                )
            await self._coordination.close()

    async def _keep_session_alive(self) -> None:
        while True:
            self._coordination.report_loop_alive()
            await asyncio.sleep(ALIVE_S)

    def _run_in_background(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        task.add_done_callback(_look_for_fault)
        self._tasks.append(task)


def _look_for_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        traceback = None if isinstance(fault, InvalidInputError) else fault
        log.error(
            "this broker shuts down: its background task %r failed: %s", task.get_name(), fault, exc_info=traceback
        )
        signal.raise_signal(signal.SIGTERM)
