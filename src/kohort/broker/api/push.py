"""ClusterMetadata and RegisterConsumer: the requests of push consumers, each sent once on a connection.

They have no correlation id and no version. An error is sent if the response has an error field; then the connection is
closed with a log line. Source: spec 4.3, 4.4.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kohort.broker.authorization import PUSH_NEEDS, PushAuthorization
from kohort.broker.framing import BadFrame, Frame
from kohort.broker.host import GroupHost
from kohort.broker.server.connection import Connection
from kohort.broker.server.requests import PushRequest
from kohort.errors import ErrorCode, InvalidInputError
from kohort.groups import events
from kohort.groups.effects import RegisterConsumerReply
from kohort.name_patterns import full_match_function
from kohort.wire.push import (
    COORDINATOR_ID_MAX,
    ClusterMetadataRequest,
    ClusterMetadataResponse,
    ErrorResponse,
    PushBroker,
    PushType,
    RegisterConsumerRequest,
    TopicCount,
    parse_topic_count,
    push_frame_type,
)
from kohort.wire.schema import WireError

log = logging.getLogger("kohort.broker")

FROM_BEGIN = {"smallest": True, "largest": False, "none": None}
"""Values of `auto_offset_reset`. Source: spec 4, RegisterConsumerRequest; `none` is an addition."""


def handle_frame(host: GroupHost, connection: Connection, frame: Frame) -> None:
    """Handle one frame of the push protocol, whose type (its first two bytes) is 20480 or more.

    Raises:
        BadFrame: the frame is no request of a push consumer.
    """
    number = push_frame_type(frame)
    kind = PushType(number) if number in PUSH_NEEDS else None
    if kind is PushType.CLUSTER_METADATA:
        cluster_metadata(host, PushRequest(connection, kind), frame)
    elif kind is PushType.REGISTER_CONSUMER:
        register_consumer(host, PushRequest(connection, kind), frame)
    else:
        raise BadFrame(
            f"a request of type {number}: consumers ask ClusterMetadata (20480) and RegisterConsumer (20481)"
        )


def handle_push_request(
    host: GroupHost,
    request: PushRequest,
    asked: ClusterMetadataRequest | RegisterConsumerRequest,
    run: Callable[[PushAuthorization | None], None],
) -> None:
    """Count a decoded push request, check its authorization, apply fault rules, and call `run` unless it is refused."""
    request.record_request(asked, host.metrics.apis[request.kind])
    right = PushAuthorization(host.authorizer, request) if host.authorizer is not None else None
    if right is not None and (refused := right.current_error()):
        request.fail(refused, f"group {(asked.group_id or '')[:200]}: {refused.name}: {refused.text}")
    elif not (host.faults.active and host.faults.apply_rules(request, lambda: run(right))):
        run(right)


def cluster_metadata(host: GroupHost, request: PushRequest, frame: Frame) -> None:
    """Answer ClusterMetadata: the coordinator of a push group, and the brokers."""
    try:
        asked = ClusterMetadataRequest.decode(frame)
    except WireError as error:
        request.send_error_and_close(ClusterMetadataResponse(ErrorCode.INVALID_REQUEST).encode_frame(), str(error))
        return
    handle_push_request(host, request, asked, lambda _: reply_with_coordinator(host, request, asked))


def reply_with_coordinator(host: GroupHost, request: PushRequest, asked: ClusterMetadataRequest) -> None:
    """Answer ClusterMetadata with the group's coordinator and the brokers."""
    found, nodes = host.endpoints.push_coordinators(asked.group_id, request.connection)
    brokers = tuple(PushBroker(node.node_id, node.host, node.port) for node in nodes)
    if isinstance(found, ErrorCode):
        request.send_response(ClusterMetadataResponse(found, brokers=brokers).encode_frame())
    elif found.node_id > COORDINATOR_ID_MAX:
        log.error(
            "node.id %d exceeds %d, the largest id of the push protocol: push consumers are refused until the broker "
            "has a smaller one",
            found.node_id,
            COORDINATOR_ID_MAX,
        )
        request.send_response(
            ClusterMetadataResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, brokers=brokers).encode_frame()
        )
    else:
        request.send_response(ClusterMetadataResponse(ErrorCode.NONE, found.node_id, brokers).encode_frame())


def register_consumer(host: GroupHost, request: PushRequest, frame: Frame) -> None:
    """Handle RegisterConsumer: if it succeeds, later frames from the client are answers to the broker's requests."""
    try:
        asked = RegisterConsumerRequest.decode(frame)
        topics = parse_topic_count(asked.topic_count)
        if topics.regex is not None:
            full_match_function(topics.regex)
        if asked.auto_offset_reset not in FROM_BEGIN:
            raise WireError(f"auto_offset_reset {asked.auto_offset_reset[:100]!r} is not smallest, largest or none")
    except (WireError, InvalidInputError) as error:
        request.send_error_and_close(
            ErrorResponse(ErrorCode.INVALID_REQUEST).encode_frame(), f"RegisterConsumer: {error}"
        )
        return
    handle_push_request(host, request, asked, lambda right: register(host, request, asked, topics, right))


def register(
    host: GroupHost,
    request: PushRequest,
    asked: RegisterConsumerRequest,
    topics: TopicCount,
    right: PushAuthorization | None,
) -> None:
    """Send a registration to its group's shard; from now on the broker sends the requests on this connection."""
    connection = request.connection
    if connection.closed:  # a fault rule delayed the request
        return
    host.consumers.register_consumer(connection, asked.group_id, right)
    if connection.client.login is not None:
        connection.client.login.close_at_login_expiry(host.loop)
    host.groups.ask(
        connection.client, registration_event(host, connection, asked, topics), reply_callback(host, request, asked)
    )


def rejection_text(asked: RegisterConsumerRequest, error: ErrorCode) -> str:
    """Return the log text for a RegisterConsumer request that was rejected with this error."""
    return f"group {asked.group_id[:200]}: {asked.consumer_id[:200]} is refused with {error.name}: {error.text}"


def registration_event(
    host: GroupHost, connection: Connection, asked: RegisterConsumerRequest, topics: TopicCount
) -> events.RegisterConsumer:
    """Return the coordinator event for a RegisterConsumer request."""
    client = connection.client
    return events.RegisterConsumer(
        request=host.next_request_id(),
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


def reply_callback(
    host: GroupHost, request: PushRequest, asked: RegisterConsumerRequest
) -> Callable[[RegisterConsumerReply | ErrorCode], None]:
    """Return the callback for the coordinator's reply. An error closes the connection."""

    def send_response(value: RegisterConsumerReply | ErrorCode) -> None:
        error = value if isinstance(value, ErrorCode) else value.error
        body = ErrorResponse(error).encode_frame()
        if error is ErrorCode.NONE:
            request.send_response(body)
            return
        why = rejection_text(asked, error)
        if error is ErrorCode.NOT_COORDINATOR:
            place, _ = host.endpoints.push_coordinators(asked.group_id, request.connection)
            why += "" if isinstance(place, ErrorCode) else f"; its coordinator is at {place.host}:{place.port}"
        request.send_error_and_close(body, why)

    return send_response
