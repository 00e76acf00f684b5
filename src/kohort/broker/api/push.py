"""ClusterMetadata and RegisterConsumer of the push protocol: what its consumers ask, each once on a connection.

These have no correlation id and no version. An error that the answer can hold is told, then the connection is closed,
with a line in the log. Source: spec 4.3, 4.4.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kohort.broker.host import GroupHost
from kohort.broker.net.connection import Connection
from kohort.broker.net.framing import BadFrame, Frame
from kohort.broker.net.sending import Parts
from kohort.broker.regex import matcher
from kohort.errors import ErrorCode, InvalidInputError
from kohort.groups import events
from kohort.groups.outcome import RegisterConsumerReply
from kohort.wire.push import (
    COORDINATOR_ID_MAX,
    ClusterMetadataRequest,
    ClusterMetadataResponse,
    ErrorResponse,
    PushBroker,
    PushType,
    RegisterConsumerRequest,
    TopicCount,
    framed,
    push_type,
    read_topic_count,
)
from kohort.wire.schema import WireError

log = logging.getLogger("kohort.broker")

FROM_BEGIN = {"smallest": True, "largest": False}
"""What `auto_offset_reset` says. Source: spec 4, RegisterConsumerRequest."""


class Owed:
    """The place of an answer in its connection's order."""

    __slots__ = ("_connection", "parts")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.parts: Parts | None = None
        connection.pending.append(self)

    def answer(self, body: bytes) -> None:
        """Send it."""
        self.parts = [framed(body)]
        self._connection.ready(self)

    def refuse(self, body: bytes, why: str) -> None:
        """Send it, and end the connection."""
        log.warning("closing the connection from %s: %s", self._connection.name, why)
        self.answer(body)
        self._connection.finish()


def take(host: GroupHost, connection: Connection, frame: Frame) -> None:
    """Handle one frame whose first two bytes are 20480 or more. Raises BadFrame."""
    kind = push_type(frame)
    if kind == PushType.CLUSTER_METADATA:
        cluster_metadata(host, connection, frame)
    elif kind == PushType.REGISTER_CONSUMER:
        register_consumer(host, connection, frame)
    else:
        raise BadFrame(f"a request of type {kind}: consumers ask ClusterMetadata (20480) and RegisterConsumer (20481)")


def cluster_metadata(host: GroupHost, connection: Connection, frame: Frame) -> None:
    """Who coordinates, and which brokers there are."""
    owed = Owed(connection)
    try:
        asked = ClusterMetadataRequest.decode(frame)
    except WireError as error:
        owed.refuse(ClusterMetadataResponse(ErrorCode.INVALID_REQUEST).encode(), str(error))
        return
    found, nodes = host.places.pushing(asked.group_id, connection)
    brokers = tuple(PushBroker(each.node_id, each.host, each.port) for each in nodes)
    if isinstance(found, ErrorCode):
        owed.answer(ClusterMetadataResponse(found, brokers=brokers).encode())
    elif found.node_id > COORDINATOR_ID_MAX:
        log.error("node.id %d: push consumers are told ids up to %d only", found.node_id, COORDINATOR_ID_MAX)
        owed.answer(ClusterMetadataResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, brokers=brokers).encode())
    else:
        owed.answer(ClusterMetadataResponse(ErrorCode.NONE, found.node_id, brokers).encode())


def register_consumer(host: GroupHost, connection: Connection, frame: Frame) -> None:
    """A consumer registers: from now on its frames are answers."""
    owed = Owed(connection)
    try:
        asked = RegisterConsumerRequest.decode(frame)
        topics = read_topic_count(asked.topic_count)
        if topics.regex is not None:
            matcher(topics.regex)
        if asked.auto_offset_reset not in FROM_BEGIN:
            raise WireError(f"auto_offset_reset {asked.auto_offset_reset[:100]!r} is not smallest or largest")
    except (WireError, InvalidInputError) as error:
        owed.refuse(ErrorResponse(ErrorCode.INVALID_REQUEST).encode(), f"RegisterConsumer: {error}")
        return
    host.consumers.turn(connection, asked.group_id)
    host.groups.ask(
        connection.client, event_of(host, connection, asked, topics), answer_to(host, connection, owed, asked)
    )


def event_of(
    host: GroupHost, connection: Connection, asked: RegisterConsumerRequest, topics: TopicCount
) -> events.RegisterConsumer:
    """The group coordinator's event."""
    client = connection.client
    return events.RegisterConsumer(
        request=host.token(),
        group_id=asked.group_id,
        member_id=asked.consumer_id,
        client=events.Client(client.client_id, "/" + client.host, client.process),
        topics=topics.topics,
        regex=topics.regex,
        excluding=topics.excluding,
        streams=topics.streams,
        auto_commit=asked.auto_commit,
        from_begin=FROM_BEGIN[asked.auto_offset_reset],
        session_timeout_ms=asked.session_timeout_ms,
        connection=client.number,
    )


def answer_to(
    host: GroupHost, connection: Connection, owed: Owed, asked: RegisterConsumerRequest
) -> Callable[[RegisterConsumerReply | ErrorCode], None]:
    """Takes the reply; an error ends the connection."""

    def answer(value: RegisterConsumerReply | ErrorCode) -> None:
        error = value if isinstance(value, ErrorCode) else value.error
        body = ErrorResponse(error).encode()
        if error is ErrorCode.NONE:
            owed.answer(body)
            return
        why = f"group {asked.group_id[:200]}: {asked.consumer_id[:200]} is refused with {error.name}: {error.text}"
        if error is ErrorCode.NOT_COORDINATOR:
            place, _ = host.places.pushing(asked.group_id, connection)
            why += "" if isinstance(place, ErrorCode) else f"; its coordinator is at {place.host}:{place.port}"
        owed.refuse(body, why)

    return answer
