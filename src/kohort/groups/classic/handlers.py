"""The handlers of the classic protocol."""

from __future__ import annotations

from typing import Final

from kohort.groups.classic import deferred_notification
from kohort.groups.classic.group import ClassicGroup
from kohort.groups.effects import GroupType, HeartbeatReply
from kohort.groups.handlers import ProtocolHandlers, method

CLASSIC: Final = ProtocolHandlers(
    name=GroupType.CLASSIC,
    membership=ClassicGroup,
    protocol_type=lambda classic: classic.protocol_type or "",
    load=method("load"),
    member=lambda classic, member_id: classic.members.get(member_id),
    detector=deferred_notification.DETECTOR_SETTINGS,
    session_ms=lambda context, classic, member: member.session_timeout_ms,
    answer_held=method("answer_long_poll"),
    refuse_held=lambda context, event, error, message: context.reply(event.request, HeartbeatReply(error)),
    may_commit=method("may_commit"),
    may_commit_in_transaction=method("may_commit_in_transaction"),
    committed=method("committed"),
    describe=method("describe"),
)
