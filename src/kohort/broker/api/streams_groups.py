"""StreamsGroupHeartbeat, which is refused: there are no streams groups (KIP-1071).

Kafka answers so when its streams protocol is off. The API is advertised nevertheless. Kafka Streams would otherwise
fail without having sent anything, and this broker's log could not name the setting to change.
"""

from __future__ import annotations

import logging

from kohort.broker.dispatch import ApiHandler, api_handler
from kohort.broker.node import Node
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode
from kohort.wire.streams_groups import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse

log = logging.getLogger("kohort.broker")


def streams_group_heartbeat(
    node: Node, request: Request[StreamsGroupHeartbeatRequest]
) -> StreamsGroupHeartbeatResponse:
    """Refuse the heartbeat with UNSUPPORTED_VERSION, and log once for each group which setting to change."""
    group = request.message.group_id
    if node.streams_refusals.count_event(group):
        log.warning(
            "[group %s] heartbeat refused: %s from %s asks for a streams group, which this broker does not have; "
            "set group.protocol=classic in the settings of Kafka Streams",
            group,
            request.client_id or "a client",
            request.host,
        )
    text = "This broker has no streams groups; set group.protocol=classic."
    return StreamsGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=text)


HANDLERS: list[ApiHandler[Node]] = [
    api_handler(StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse, streams_group_heartbeat)
]
