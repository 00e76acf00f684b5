"""The coordinator's end of push connections, on which the server sends requests: frames as the broker handles them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kohort.broker.api.push import FROM_BEGIN
from kohort.broker.host import Asks, decode_consumer_answer, encode_server_request
from kohort.errors import ErrorCode
from kohort.groups import events
from kohort.groups.effects import DisconnectConsumer, Push
from kohort.groups.events import PushRequestKind
from kohort.wire.push import (
    ClusterMetadataResponse,
    ErrorResponse,
    PushBroker,
    PushType,
    RegisterConsumerRequest,
    parse_topic_count,
    push_frame_type,
)
from simulation.harness.network import Connection
from simulation.harness.server import Server

Respond = Callable[[memoryview], None]


@dataclass
class Registered:
    """A registered consumer's connection, with the server's unanswered requests on it."""

    connection: Connection
    respond: Respond
    asked: deque[tuple[PushRequestKind, Asks]] = field(default_factory=deque)


class PushGate:
    """The part of the broker that handles the push protocol."""

    def __init__(self, server: Server, host: str, port: int) -> None:
        self._server = server
        self._me = PushBroker(1, host, port)
        self._turned: dict[int, Registered] = {}
        server.push = self.push
        server.on_shard_loaded = self.on_shard_loaded

    def takes(self, connection: Connection, data: memoryview) -> bool:
        """Return whether a frame belongs to the push protocol."""
        return connection.id in self._turned or push_frame_type(data) is not None

    def receive(self, connection: Connection, data: memoryview, respond: Respond) -> None:
        """Receive a frame from a client."""
        registered = self._turned.get(connection.id)
        if registered is not None:
            self._take_answer(registered, data)
        elif push_frame_type(data) == PushType.CLUSTER_METADATA:
            respond(memoryview(ClusterMetadataResponse(0, 1, (self._me,)).encode_frame()))
        else:
            self._register(connection, RegisterConsumerRequest.decode(data), respond)

    def _register(self, connection: Connection, asked: RegisterConsumerRequest, respond: Respond) -> None:
        self._turned[connection.id] = Registered(connection, respond)
        topics = parse_topic_count(asked.topic_count)
        event = events.RegisterConsumer(
            request=0,
            group_id=asked.group_id,
            member_id=asked.consumer_id,
            client=events.Client(connection.client, "/10.0.0.3", connection.process),
            topics=topics.topics,
            regex=topics.regex,
            excluding=topics.excluding,
            streams=topics.streams,
            auto_commit=asked.auto_commit,
            from_begin=FROM_BEGIN[asked.auto_offset_reset],
            session_timeout_ms=asked.session_timeout_ms,
            connection=connection.id,
        )

        def answer(value: Any) -> None:
            error = value if isinstance(value, ErrorCode) else value.error
            respond(memoryview(ErrorResponse(error).encode_frame()))

        self._server.receive(connection, event, answer)

    def _take_answer(self, registered: Registered, data: memoryview) -> None:
        shard, connection = self._server.shard, registered.connection
        if not registered.asked or shard is None:
            connection.break_()
            return
        asked, value = registered.asked.popleft()
        shard.queue_event(decode_consumer_answer(value, connection.id, asked, data))

    def push(self, push: Push) -> None:
        """Send a server request to a consumer."""
        registered = self._turned.get(push.connection)
        if registered is None:
            return
        value = push.value
        if isinstance(value, DisconnectConsumer):
            registered.connection.break_()
        else:
            asked, frame = encode_server_request(value, lambda topic, number: 1)
            registered.asked.append((asked, value))
            registered.respond(memoryview(frame))

    def on_shard_loaded(self) -> None:
        """Forget connections registered before the shard loaded: they get no more requests."""
        for registered in self._turned.values():
            registered.connection.break_()
            registered.asked.clear()
