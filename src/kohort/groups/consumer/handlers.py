"""The handlers of the KIP-848 protocol, whose groups may also have classic members."""

from __future__ import annotations

from typing import Final

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.groups.consumer import suspicion
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.consumer.membership import Refusal
from kohort.groups.effects import GroupType
from kohort.groups.handlers import ProtocolHandlers, method

CONSUMER: Final = ProtocolHandlers(
    name=GroupType.CONSUMER,
    membership=ConsumerGroup,
    protocol_type=lambda consumer: CONSUMER_PROTOCOL_TYPE,
    load=method("load"),
    member=lambda consumer, member_id: consumer.presences.get(member_id),
    detector=suspicion.DETECTOR_SETTINGS,
    usual_ms=method("heartbeat_interval_ms"),
    session_ms=lambda context, consumer, presence: consumer.session_timeout_ms(context, presence.session.subject),
    answer_held=method("answer_long_poll"),
    refuse_held=lambda context, event, error, message: Refusal(error, message or error.text).answer(context, event),
    may_commit=method("may_commit"),
    may_commit_in_transaction=method("may_commit_in_transaction"),
    committed=method("committed"),
    may_fetch=method("may_fetch"),
    describe_consumer=method("describe"),
)
