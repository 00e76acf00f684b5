"""Where things are, as clients are told: the one source of Metadata, DescribeCluster and FindCoordinator."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from kohort.broker.config.live_settings import LiveSettings
from kohort.broker.server.connection import Connection
from kohort.errors import ErrorCode
from kohort.log import LogStore


class Coordinated(IntEnum):
    """What has a coordinator, by the numbers of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class Place(NamedTuple):
    """One node, at the address that one connection's client is to use."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


NOWHERE = Place(-1, "", -1)


Leader: TypeAlias = tuple[int, int, list[int], list[int]]
"""Who has a partition: the node that leads it, its epoch, and the nodes with replicas and with those in sync."""


class Places(Protocol):
    """Who does what in this cluster. An address is one that the asking connection's client can reach."""

    @property
    def cluster_id(self) -> str: ...
    @property
    def controller_id(self) -> int: ...

    def is_here(self, cluster_id: str, node_id: int) -> bool:
        """Whether this node is the one that a client wants to be connected to. Source: KIP-1242."""

    def nodes(self, connection: Connection) -> Sequence[Place]:
        """All nodes that clients are told of."""

    def coordinator(self, kind: Coordinated, key: str, connection: Connection) -> Place | ErrorCode:
        """Who coordinates a group or a transactional id, or why that can't be told."""

    def pushing(self, group: str | None, connection: Connection) -> tuple[Place | ErrorCode, Sequence[Place]]:
        """Who coordinates a group of the push protocol, None: those of who asks for no group; and all who do such."""

    def leaders(self, topic: str, partitions: range) -> Sequence[Leader]:
        """Who leads these partitions of a topic that is there."""


class OnePlace:
    """A broker by itself: it is all nodes, leads all partitions, and coordinates everything."""

    def __init__(self, live: LiveSettings, store: LogStore, port: int) -> None:
        """`port`: where it listens."""
        self._live = live
        self._store = store
        self._port = port
        self._me = [live.broker.node_id]

    @property
    def cluster_id(self) -> str:
        """The cluster's id, from the data folder."""
        return self._store.cluster_id

    @property
    def controller_id(self) -> int:
        """This broker."""
        return self._me[0]

    def is_here(self, cluster_id: str, node_id: int) -> bool:
        """Whether this is the broker of this id in the cluster of this id."""
        return (cluster_id, node_id) == (self.cluster_id, self._me[0])

    def nodes(self, connection: Connection) -> Sequence[Place]:
        """This broker."""
        return (self._place(connection),)

    def coordinator(self, kind: Coordinated, key: str, connection: Connection) -> Place:
        """This broker, for every group and transactional id."""
        return self._place(connection)

    def pushing(self, group: str | None, connection: Connection) -> tuple[Place, Sequence[Place]]:
        """This broker."""
        place = self._place(connection)
        return place, (place,)

    def leaders(self, topic: str, partitions: range) -> Sequence[Leader]:
        """This broker, in the epochs of the partitions' logs."""
        me, get = self._me, self._store.get
        node = me[0]
        found: list[Leader] = []
        for index in partitions:
            log = get(topic, index)
            found.append((node, 0 if log is None else log.leader_epoch, me, me))
        return found

    def _place(self, connection: Connection) -> Place:
        """At the address that is advertised, else the one that the client has reached."""
        config = self._live.broker
        host = config.advertised_host or connection.local[0]
        return Place(self._me[0], host, config.advertised_port or self._port, config.rack)
