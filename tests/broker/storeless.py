"""Two coordinators without a store in one process: groups are spread over them, journals have their own partitions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from kohort.broker.api.discovery import unknown_api_versions
from kohort.broker.config.settings import BrokerConfig
from kohort.broker.dispatch import Dispatcher, api_keys
from kohort.broker.endpoints import CoordinatorKind, Endpoint, Leader
from kohort.broker.host import GroupHost
from kohort.broker.routes import GROUP_ROUTES
from kohort.broker.security.listener_socket import bind_socket
from kohort.broker.server.connection import Connection
from kohort.broker.server.listener import Server
from kohort.broker.shards import java_hash
from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.groups.config import GroupConfig
from kohort.groups.events import Topic, TopicImage
from kohort.ids import TopicPartition
from kohort.journal.local import LogJournal
from kohort.log import OpenOptions, PartitionLog
from tests.log.making import small

T = TypeVar("T")
SHARDS = 4
TOPIC = "t"
PARTITIONS = 4
WAIT_S = 20.0


class FixedTopics:
    """Topics that were told to a process that keeps none."""

    sure = True

    def __init__(self, topics: Sequence[Topic]) -> None:
        self.by_name: Mapping[str, Topic] = {topic.name: topic for topic in topics}
        self.by_id: Mapping[UUID, Topic] = {topic.id: topic for topic in topics}

    def topic_image(self) -> TopicImage:
        return TopicImage(1, dict(self.by_name))

    def invalid_name_error(self, name: str) -> KafkaError | None:
        return None if name else InvalidInputError("no name", ErrorCode.INVALID_TOPIC_EXCEPTION)


class Map:
    """Which coordinator has which shard; data is led by a node that has no groups."""

    cluster_id = "spread"
    controller_id = 0

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        self.owners: dict[int, int] = {}

    def is_this_node(self, cluster_id: str, node_id: int) -> bool:
        """The map is that of all nodes: any of them will do."""
        return cluster_id == self.cluster_id and node_id in self.ports

    def nodes(self, connection: Connection) -> Sequence[Endpoint]:
        return [self._at(number, connection) for number in self.ports]

    def coordinator(self, kind: CoordinatorKind, key: str, connection: Connection) -> Endpoint | ErrorCode:
        owner = self.owners.get(java_hash(key) % SHARDS)
        if kind is not CoordinatorKind.GROUP or owner is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._at(owner, connection)

    def push_coordinators(
        self, group: str | None, connection: Connection
    ) -> tuple[Endpoint | ErrorCode, Sequence[Endpoint]]:
        return self.coordinator(CoordinatorKind.GROUP, group or "", connection), self.nodes(connection)

    def leaders(self, topic: str, partitions: range) -> Sequence[Leader]:
        return [(0, 3, [0], [0]) for _ in partitions]

    def _at(self, number: int, connection: Connection) -> Endpoint:
        return Endpoint(number, connection.local[0], self.ports[number])


class Coordinators:
    """Coordinators 0 and 1 on a loop of their own; the first has all shards."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self._config = GroupConfig(initial_rebalance_delay_ms=0, **settings)  # type: ignore[arg-type]
        self._logs = [
            PartitionLog.open(folder / f"journal-{index}", small(segment_bytes=1 << 20), OpenOptions())
            for index in range(SHARDS)
        ]
        self.map = Map()
        self.topics = FixedTopics([Topic(TOPIC, UUID(int=7), PARTITIONS)])
        self.hosts: list[GroupHost] = []
        self.servers: list[Server] = []
        self._terms = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="coordinators")
        self._thread.start()
        self.call(self._begin)

    def call(self, what: Callable[[], T]) -> T:
        """Have it done on the loop."""

        async def do() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(WAIT_S)

    def _begin(self) -> None:
        config = BrokerConfig()
        for number in range(2):
            host = GroupHost(
                self._loop, self._config, lambda _: self.topics, self.map, self._open_journal, api_keys(GROUP_ROUTES)
            )
            host.groups.count = SHARDS
            dispatcher = Dispatcher(host, GROUP_ROUTES, unknown_api_versions)
            server = Server(self._loop, config, 100, dispatcher.dispatch, host.on_client_disconnected)
            _, self.map.ports[number] = server.listen(bind_socket("127.0.0.1", 0))
            self.hosts.append(host)
            self.servers.append(server)
        for index in range(SHARDS):
            self._take(index, 0)

    def _open_journal(self, index: int) -> LogJournal:
        return LogJournal(self._logs[index])

    def _take(self, index: int, owner: int) -> None:
        self._terms += 1
        self.hosts[owner].groups.take_over_shard(index, self._terms)
        self.map.owners[index] = owner

    def move(self, group: str, owner: int) -> None:
        """Give a group's shard to the other coordinator."""

        def do() -> None:
            index = java_hash(group) % SHARDS
            self.hosts[self.map.owners[index]].groups.release_shard(index)
            self._take(index, owner)

        self.call(do)

    def address(self, number: int = 0) -> str:
        """Where a coordinator listens."""
        return f"127.0.0.1:{self.map.ports[number]}"

    def close(self) -> None:
        def end() -> None:
            for host, server in zip(self.hosts, self.servers, strict=True):
                host.answer_waiting_requests()
                server.close()
                host.close()

        self.call(end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for log in self._logs:
            log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def part(index: int) -> TopicPartition:
    """A partition of the topic."""
    return TopicPartition(TOPIC, index)
