"""Admission: who is let into a group, and why not.

Every way into a group asks three questions here. Is the request valid (`check_join`, `check_heartbeat`,
`check_registration`)? May the shard have another group (`check_group`)? Has the group a place for the member, and its
records room (`check_place`, `check_record`)? The ways are a JoinGroup, a ConsumerGroupHeartbeat, a RegisterConsumer
and a conversion. The groups count their members and bytes themselves; the limits and the verdicts are here.

Whether a member may return under its id is up to its protocol, as are the protocols that its strategies must have in
common with the others'.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kohort.errors import ErrorCode
from kohort.groups import sizes
from kohort.groups.config import GroupConfig
from kohort.groups.effects import ConsumerGroupHeartbeatReply
from kohort.groups.events import ConsumerGroupHeartbeat, JoinGroup, RegisterConsumer
from kohort.groups.records import OfferedProtocol
from kohort.groups.step import Step

LEAVES: Final = -1
"""The epoch of a heartbeat with which a member leaves."""
LEFT_FOR_A_WHILE: Final = -2
"""The epoch of a heartbeat with which a static member leaves for a while."""


class Refusal(NamedTuple):
    """The reason why a request is refused."""

    error: ErrorCode
    message: str

    def answer(self, step: Step, event: ConsumerGroupHeartbeat) -> None:
        """Answer a heartbeat with the error."""
        step.reply(event.request, ConsumerGroupHeartbeatReply(self.error, self.message))


# -- May the shard have another group?


def check_group(config: GroupConfig, groups: int) -> bool:
    """Return whether the shard may have another group beside so many (`group.coordinator.max.groups`)."""
    return groups < config.groups_max


# -- Has the group a place, and its records room?


def check_place(limit: int, taken: int, *, has_place: bool = False) -> ErrorCode:
    """Return whether a group has a place for a member.

    Args:
        limit: the most members of the group, `group.max.size` or `group.consumer.max.size`.
        taken: the places that are taken.
        has_place: the member has one of them, or takes over another's.
    """
    return ErrorCode.NONE if has_place or taken < limit else ErrorCode.GROUP_MAX_SIZE_REACHED


def check_record(config: GroupConfig, size: int) -> ErrorCode:
    """Return whether a record of this many bytes can be written (`group.record.max.bytes`)."""
    return ErrorCode.NONE if size <= config.group_record_bytes_max else ErrorCode.GROUP_MAX_SIZE_REACHED


def protocols_bytes(protocols: Iterable[OfferedProtocol]) -> int:
    """Return the bytes that a classic member's protocols take in its record of a consumer group.

    A classic group stores only the chosen one.
    """
    return sum(len(protocol.metadata) for protocol in protocols)


# -- Is the request valid?


def check_join(config: GroupConfig, event: JoinGroup) -> ErrorCode:
    """Return the error in a JoinGroup itself: names that no record holds, or a session timeout out of bounds."""
    if not event.group_id or not sizes.fits(event.group_id):
        return ErrorCode.INVALID_GROUP_ID
    names = (event.new_member_id, event.instance_id, event.protocol_type, *(offer.name for offer in event.protocols))
    if not sizes.fits(*names):
        return ErrorCode.INVALID_REQUEST
    if not config.min_session_timeout_ms <= event.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def check_registration(config: GroupConfig, event: RegisterConsumer) -> ErrorCode:
    """Return the error in a registration itself, whatever the group."""
    if "push" not in config.rebalance_protocols:
        return ErrorCode.UNSUPPORTED_VERSION
    if not event.group_id or not sizes.fits(event.group_id):
        return ErrorCode.INVALID_GROUP_ID
    if not event.member_id or not sizes.fits(event.member_id, event.regex, *event.topics):
        return ErrorCode.INVALID_REQUEST
    if not config.push_min_session_timeout_ms <= event.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def check_heartbeat(config: GroupConfig, event: ConsumerGroupHeartbeat) -> Refusal | None:
    """Return the error in a request itself, None if there is none."""
    message = None
    if "consumer" not in config.rebalance_protocols:
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, "The consumer protocol is switched off.")
    if (event.member_epoch > 0 or event.member_epoch == LEAVES) and is_blank(event.member_id):
        message = "MemberId can't be empty."
    elif is_blank(event.group_id):
        message = "GroupId can't be empty."
    elif is_blank(event.instance_id):
        message = "InstanceId can't be empty."
    elif is_blank(event.rack_id):
        message = "RackId can't be empty."
    elif event.member_epoch == 0:
        message = first_heartbeat_fault(event)
    elif event.member_epoch == LEFT_FOR_A_WHILE and event.instance_id is None:
        message = "InstanceId can't be null."
    elif event.member_epoch < LEFT_FOR_A_WHILE:
        message = "MemberEpoch is invalid."
    if message is None and (event.member_epoch == 0 or event.subscribed_topics or event.subscribed_regex):
        message = heartbeat_size_fault(config, event)
    if message is not None:
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    if event.server_assignor is not None and event.server_assignor not in config.consumer_assignors:
        offered = ", ".join(config.consumer_assignors)
        text = f"ServerAssignor {event.server_assignor} is not supported. Supported assignors: {offered}."
        return Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, text)
    return None


def is_blank(name: str | None) -> bool:
    """Return whether a name is given but blank."""
    return name is not None and not name.strip()


def heartbeat_size_fault(config: GroupConfig, event: ConsumerGroupHeartbeat) -> str | None:
    """Return why no record could hold the request's texts, None if one can."""
    if not sizes.fits(event.group_id):
        return f"GroupId can't be longer than {sizes.NAME_BYTES_MAX} bytes."
    if not sizes.fits(event.member_id, event.new_member_id, event.instance_id, event.rack_id, event.subscribed_regex):
        return f"No id, rack or regular expression can be longer than {sizes.NAME_BYTES_MAX} bytes."
    limit = config.group_record_bytes_max
    if event.subscribed_topics and sum(map(len, event.subscribed_topics)) > limit:
        return f"The subscription takes more than {limit} bytes (group.record.max.bytes)."
    return None


def first_heartbeat_fault(event: ConsumerGroupHeartbeat) -> str | None:
    """Return why a join is incomplete, None if it is complete."""
    if event.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if event.owned is None or event.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if event.subscribed_topics is None and event.subscribed_regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return None
