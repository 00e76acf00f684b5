"""Drives the client's core without sockets or real time: a cluster whose answers a test writes down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kohort.client.net.cluster import Cluster
from kohort.client.net.connection import CloseConnection, OpenConnection, SendFrame
from kohort.client.net.metadata import NO_TOPIC_ID
from kohort.client.net.runtime import Task
from kohort.client.settings import ConsumerConfig, client_config
from kohort.wire import framing
from kohort.wire.discovery import ApiVersionsResponse, MetadataResponse
from kohort.wire.groups import FindCoordinatorResponse

Handler = Callable[[Any, int], Any]
PARK = object()
DROP = object()
GARBLE = object()


@dataclass
class Request:
    """A request that the client sent, and the means to answer it later."""

    link: int
    name: str
    message: Any
    version: int
    correlation_id: int
    at_ms: float


@dataclass
class VirtualCluster:
    """One broker at 127.0.0.1:9092 by default; handlers by API name give the answers.

    A handler returns the response, `PARK` (answered later by `answer`), `DROP` (the connection ends) or `GARBLE` (an
    answer that can't be read).
    """

    settings: dict[str, Any] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    ids: dict[str, UUID] = field(default_factory=dict)
    refuse: set[int] = field(default_factory=set)
    highest: dict[int, int] = field(default_factory=dict)
    lease_ms: int = 0
    cluster_id: str | None = None

    def __post_init__(self) -> None:
        config = client_config(ConsumerConfig, self.settings.pop("bootstrap_servers", "127.0.0.1:9092"), self.settings)
        self.config = config
        self.cluster = Cluster(config)
        self.cluster.connections.jitter = lambda: 0.5
        self.runtime = self.cluster.runtime
        self.handlers: dict[str, Handler] = {
            "ApiVersions": self._api_versions,
            "Metadata": self._metadata,
            "FindCoordinator": self._find_coordinator,
        }
        self.requests: list[Request] = []
        self.parked: list[Request] = []
        self.opened: list[OpenConnection] = []
        self.open_links: set[int] = set()

    # Time and events.

    def run(self, until_ms: float | None = None) -> None:
        """Carry out everything that is due at this time, or up to a later one, step by step."""
        self._settle()
        while until_ms is not None and self.runtime.now_ms < until_ms:
            deadline = self.runtime.next_deadline_ms()
            self.runtime.advance(until_ms if deadline is None else min(until_ms, max(deadline, self.runtime.now_ms)))
            self._settle()

    def finish(self, task: Task[Any], limit_ms: float = 600_000) -> Any:
        """Let time pass until the task is done, and give its result."""
        end = self.runtime.now_ms + limit_ms
        self._settle()
        while not task.done:
            deadline = self.runtime.next_deadline_ms()
            assert deadline is not None and deadline <= end, f"{task.name} waits for nothing that will come"
            self.runtime.advance(deadline)
            self._settle()
        return task.result()

    def call(self, coro: Any) -> Any:
        return self.finish(self.runtime.spawn(coro))

    def answer(self, request: Request, response: Any) -> None:
        """Answer a parked request."""
        self.parked.remove(request)
        self._send_back(request, response)
        self._settle()

    def parked_named(self, name: str) -> list[Request]:
        return [request for request in self.parked if request.name == name]

    def sent(self, name: str) -> list[Request]:
        return [request for request in self.requests if request.name == name]

    def port_of(self, link: int) -> int:
        """Of the broker that a connection leads to."""
        return next(connection.address.port for connection in self.opened if connection.link == link)

    def cut(self) -> None:
        """End every connection."""
        for link in sorted(self.open_links):
            self.cluster.connections.on_link_closed(link, "the connection was reset")
        self.open_links.clear()
        self.parked.clear()
        self._settle()

    def _settle(self) -> None:
        self.runtime.advance(self.runtime.now_ms)
        while commands := self.cluster.connections.take_commands():
            for command in commands:
                self._do(command)
            self.runtime.advance(self.runtime.now_ms)

    def _do(self, command: Any) -> None:
        if isinstance(command, OpenConnection):
            self.opened.append(command)
            if command.address.port in self.refuse:
                self.cluster.connections.on_link_closed(command.link, "connection refused")
            else:
                self.open_links.add(command.link)
                self.cluster.connections.on_link_opened(command.link)
        elif isinstance(command, CloseConnection):
            self.open_links.discard(command.link)
        elif isinstance(command, SendFrame) and command.link in self.open_links:
            self._receive(command.link, b"".join(bytes(part) for part in command.parts))

    def _receive(self, link: int, frame: bytes) -> None:
        header, body = framing.decode_request_header(frame[4:])
        api = framing.APIS[header.api_key]
        message = api.request.decode(body, header.api_version)
        request = Request(link, api.name, message, header.api_version, header.correlation_id, self.runtime.now_ms)
        self.requests.append(request)
        handler = self.handlers.get(api.name)
        response = PARK if handler is None else handler(message, header.api_version)
        if response is PARK:
            self.parked.append(request)
        elif response is DROP:
            self.open_links.discard(link)
            self.cluster.connections.on_link_closed(link, "the connection was reset")
        elif response is GARBLE:
            frame = request.correlation_id.to_bytes(4, "big") + b"\xff" * 3
            self.cluster.connections.on_frame_received(link, memoryview(frame))
        else:
            self._send_back(request, response)

    def _send_back(self, request: Request, response: Any) -> None:
        frame = b"".join(
            bytes(part) for part in framing.encode_response(response, request.version, request.correlation_id)
        )
        self.cluster.connections.on_frame_received(request.link, memoryview(frame[4:]))

    # Answers that every test needs.

    def _api_versions(self, message: Any, version: int) -> Any:
        keys = [
            ApiVersionsResponse.ApiVersion(
                api_key=api.key, min_version=api.min_version, max_version=self.highest.get(api.key, api.max_version)
            )
            for api in framing.APIS.values()
        ]
        return ApiVersionsResponse(api_keys=keys, lease_ms=self.lease_ms)

    def _metadata(self, message: Any, version: int) -> Any:
        topic_type = MetadataResponse.MetadataResponseTopic
        names = list(self.topics) if message.topics is None else [topic.name for topic in message.topics]
        topics = []
        for name in names:
            count = self.topics.get(name)
            if count is None:
                topics.append(topic_type(error_code=3, name=name))
                continue
            parts = [
                topic_type.MetadataResponsePartition(
                    partition_index=i, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
                )
                for i in range(count)
            ]
            topics.append(topic_type(name=name, topic_id=self.ids.get(name, NO_TOPIC_ID), partitions=parts))
        broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9092)
        return MetadataResponse(brokers=[broker], cluster_id=self.cluster_id, controller_id=1, topics=topics)

    def _find_coordinator(self, message: Any, version: int) -> Any:
        if version < 4:
            return FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=9092)
        entry = FindCoordinatorResponse.Coordinator(
            key=message.coordinator_keys[0], node_id=1, host="127.0.0.1", port=9092
        )
        return FindCoordinatorResponse(coordinators=[entry])
