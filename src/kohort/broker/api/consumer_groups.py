"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the consumer protocol (KIP-848).

Versions: ConsumerGroupHeartbeat 1 brought member ids made by the member, and regular expressions;
ConsumerGroupDescribe 1 the member's type.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable

from kohort.broker.api.groups import client_of
from kohort.broker.api.permitted import ON_GROUP, permitted
from kohort.broker.host import GroupHost
from kohort.broker.regex import matcher
from kohort.broker.server.dispatch import Handled, handled
from kohort.broker.server.requests import Request
from kohort.errors import ErrorCode, InvalidInputError
from kohort.groups import events
from kohort.groups.effects import (
    ConsumerGroupDescribeReply,
    ConsumerGroupHeartbeatReply,
    DescribedConsumer,
    DescribedConsumerGroup,
    NamedPartitions,
)
from kohort.groups.records import TopicPartitions
from kohort.wire.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_Assignment = ConsumerGroupHeartbeatResponse.Assignment
_Describe = ConsumerGroupDescribeResponse


def consumer_group_heartbeat(
    host: GroupHost, request: Request[ConsumerGroupHeartbeatRequest]
) -> ConsumerGroupHeartbeatResponse | None:
    """Join, stay, take over, give up, leave: everything of a member of a consumer group."""
    message, version = request.message, request.version
    if version >= 1 and not message.member_id.strip():
        text = "MemberId can't be empty."
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=text)
    if version >= 1 and message.subscribed_topic_regex:
        try:
            matcher(message.subscribed_topic_regex)
        except InvalidInputError as error:
            return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
    event = _event(host, request)
    held = request.client.held

    def answer(value: ConsumerGroupHeartbeatReply | ErrorCode) -> None:
        held.pop(event.request, None)
        request.reply(_response(value))

    if event.hold_ms:
        held[event.request] = host.groups.index_of(message.group_id)
    host.groups.ask(request.client, event, answer)
    return None


def _event(host: GroupHost, request: Request[ConsumerGroupHeartbeatRequest]) -> events.ConsumerGroupHeartbeat:
    message = request.message
    names, owned = message.subscribed_topic_names, message.topic_partitions
    patience = request.client.patience(host.group_config.notify_at_once)
    return events.ConsumerGroupHeartbeat(
        request=host.token(),
        group_id=message.group_id,
        member_id=message.member_id,
        new_member_id="" if message.member_id else fresh_id(),
        member_epoch=message.member_epoch,
        client=client_of(request),
        instance_id=message.instance_id,
        rack_id=message.rack_id,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        subscribed_topics=None if names is None else tuple(names),
        subscribed_regex=message.subscribed_topic_regex if request.version >= 1 else None,
        server_assignor=message.server_assignor,
        owned=None
        if owned is None
        else tuple([TopicPartitions(each.topic_id, tuple(sorted(each.partitions))) for each in owned]),
        hold_ms=patience.hold_ms,
        short_interval=patience.short_interval,
        connection=request.client.number,
    )


def _response(value: ConsumerGroupHeartbeatReply | ErrorCode) -> ConsumerGroupHeartbeatResponse:
    if isinstance(value, ErrorCode):
        return ConsumerGroupHeartbeatResponse(error_code=value, error_message=value.text)
    make = ConsumerGroupHeartbeatResponse.TopicPartitions
    assignment = None
    if value.assignment is not None:
        parts = [make(topic_id=each.topic_id, partitions=list(each.partitions)) for each in value.assignment]
        assignment = _Assignment(topic_partitions=parts)
    return ConsumerGroupHeartbeatResponse(
        error_code=value.error,
        error_message=value.error_message or (value.error.text if value.error else None),
        member_id=value.member_id or None,
        member_epoch=value.member_epoch,
        heartbeat_interval_ms=value.heartbeat_interval_ms,
        assignment=assignment,
    )


def fresh_id() -> str:
    """A member id that no one had before, in the form of Kafka's ids."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "_")


def consumer_group_describe(host: GroupHost, request: Request[ConsumerGroupDescribeRequest]) -> None:
    """Epochs, assignor and members of each group asked for."""

    def entries(groups: tuple[str, ...], value: ConsumerGroupDescribeReply | ErrorCode) -> list[DescribedConsumerGroup]:
        if isinstance(value, ErrorCode):
            return [DescribedConsumerGroup(group, error=value, error_message=value.text) for group in groups]
        return list(value.groups)

    def answer(found: dict[str, DescribedConsumerGroup]) -> None:
        found[""] = DescribedConsumerGroup("", error=ErrorCode.INVALID_GROUP_ID)
        asked = request.message.include_authorized_operations
        groups = [_described(found[group], request.version, asked) for group in request.message.group_ids]
        request.reply(ConsumerGroupDescribeResponse(groups=groups))

    named = [group for group in request.message.group_ids if group]
    host.groups.ask_by_shard(named, events.ConsumerGroupDescribe, entries, answer)


def _described(group: DescribedConsumerGroup, version: int, operations_asked: bool) -> _Describe.DescribedGroup:
    return _Describe.DescribedGroup(
        error_code=group.error,
        error_message=group.error_message,
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=[_member(each, version) for each in group.members],
        authorized_operations=permitted(operations_asked and not group.error, ON_GROUP),
    )


def _member(member: DescribedConsumer, version: int) -> _Describe.DescribedGroup.Member:
    described = _Describe.DescribedGroup.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topics),
        subscribed_topic_regex=member.subscribed_regex or "",
        assignment=_named(member.assignment),
        target_assignment=_named(member.target),
    )
    if version >= 1:
        described.member_type = member.member_type
    return described


def _named(partitions: Iterable[NamedPartitions]) -> _Describe.DescribedGroup.Member.Assignment:
    make = _Describe.TopicPartitions
    return _Describe.Assignment(
        topic_partitions=[
            make(topic_id=each.topic_id, topic_name=each.topic, partitions=list(each.partitions)) for each in partitions
        ]
    )


HANDLERS: list[Handled[GroupHost]] = [
    handled(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, consumer_group_heartbeat),
    handled(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, consumer_group_describe),
]
