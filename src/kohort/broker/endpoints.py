"""Endpoints: the nodes, leaders and coordinators in the responses to Metadata, DescribeCluster and FindCoordinator."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from kohort.broker.config.live_settings import LiveSettings
from kohort.broker.server.connection import Connection
from kohort.errors import ErrorCode
from kohort.log import LogStore


class CoordinatorKind(IntEnum):
    """Kinds of coordinators, with the key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class Endpoint(NamedTuple):
    """One node, with the address that a particular client connection must use."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


NOWHERE = Endpoint(-1, "", -1)


Leader: TypeAlias = tuple[int, int, list[int], list[int]]
"""A partition's leader: node id, leader epoch, replicas and in-sync replicas."""


class Endpoints(Protocol):
    """The roles of the nodes in this cluster. Addresses are reachable from the client of the given connection."""

    @property
    def cluster_id(self) -> str: ...
    @property
    def controller_id(self) -> int: ...

    def is_this_node(self, cluster_id: str, node_id: int) -> bool:
        """Return whether these ids, which a client expects, are those of this cluster and this node.

        Source: KIP-1242.
        """

    def nodes(self, connection: Connection) -> Sequence[Endpoint]:
        """Return all nodes that clients should know."""

    def coordinator(self, kind: CoordinatorKind, key: str, connection: Connection) -> Endpoint | ErrorCode:
        """Return the coordinator of a group or transactional id, or an error code if it can't be determined."""

    def push_coordinators(
        self, group: str | None, connection: Connection
    ) -> tuple[Endpoint | ErrorCode, Sequence[Endpoint]]:
        """Return the coordinator of a push group, and all coordinators of push groups.

        Args:
            group: the group's id; None: any coordinator of push groups.
            connection: the client's connection.
        """

    def leaders(self, topic: str, partitions: range) -> Sequence[Leader]:
        """Return the leaders of an existing topic's partitions."""


class SingleBrokerEndpoints:
    """The endpoints of a single broker, which leads all partitions and coordinates everything."""

    def __init__(self, live: LiveSettings, store: LogStore, port: int) -> None:
        """Create the endpoints. `port` is the listening port."""
        self._live = live
        self._store = store
        self._port = port
        self._me = [live.broker.node_id]

    @property
    def cluster_id(self) -> str:
        """The cluster's id, as stored in the data folder."""
        return self._store.cluster_id

    @property
    def controller_id(self) -> int:
        """The id of this broker."""
        return self._me[0]

    def is_this_node(self, cluster_id: str, node_id: int) -> bool:
        """Return whether these are the ids of this cluster and this broker."""
        return (cluster_id, node_id) == (self.cluster_id, self._me[0])

    def nodes(self, connection: Connection) -> Sequence[Endpoint]:
        """Return this broker as the only node."""
        return (self._place(connection),)

    def coordinator(self, kind: CoordinatorKind, key: str, connection: Connection) -> Endpoint:
        """Return this broker, which coordinates every group and transactional id."""
        return self._place(connection)

    def push_coordinators(self, group: str | None, connection: Connection) -> tuple[Endpoint, Sequence[Endpoint]]:
        """Return this broker as the coordinator of the group, and as the only coordinator of push groups."""
        place = self._place(connection)
        return place, (place,)

    def leaders(self, topic: str, partitions: range) -> Sequence[Leader]:
        """Return this broker as leader, with the epochs of the partitions' logs."""
        me, get = self._me, self._store.get
        node = me[0]
        leaders: list[Leader] = []
        for index in partitions:
            log = get(topic, index)
            leaders.append((node, 0 if log is None else log.leader_epoch, me, me))
        return leaders

    def _place(self, connection: Connection) -> Endpoint:
        """Return this broker's id with the address that this client must use.

        That is the advertised address of the client's listener; without one, the address that the client connected to.
        """
        config, listener = self._live.broker, connection.client.listener
        host, port = config.advertised_host, config.advertised_port or self._port
        if listener is not None:
            host, port = listener.advertised_host or host, listener.advertised_port or config.advertised_port or 0
            port = port or connection.local[1]
        return Endpoint(self._me[0], host or connection.local[0], port, config.rack)
