"""The handlers of the push protocol."""

from __future__ import annotations

from typing import Final

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from kohort.groups.events import ShowPushGroups
from kohort.groups.handlers import ProtocolHandlers, method
from kohort.groups.push.group import PUSH_PROTOCOL, PushGroup, show

PUSH: Final = ProtocolHandlers(
    name=PUSH_PROTOCOL,
    listed_as="classic",
    membership=PushGroup,
    protocol_type=lambda push: CONSUMER_PROTOCOL_TYPE,
    load=method("load"),
    member=lambda push, member_id: push.present.get(member_id),
    may_commit=method("may_commit"),
    refused_offsets=method("refused_offsets"),
    may_commit_in_transaction=method("may_commit_in_transaction"),
    describe=method("describe"),
    events={ShowPushGroups: show},
)
