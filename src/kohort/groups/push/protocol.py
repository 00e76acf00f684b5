"""The push protocol's row."""

from __future__ import annotations

from typing import Final

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE, Subscription, write_assignment, write_subscription
from kohort.groups.context import Context
from kohort.groups.events import (
    ConsumerAnswered,
    OffsetsFound,
    OwnersMissing,
    PartitionsDivided,
    RegisterConsumer,
    ShowPushGroups,
)
from kohort.groups.liveness.deadlines import Deadline
from kohort.groups.outcome import DescribedGroup, DescribedMember
from kohort.groups.protocol import Protocol
from kohort.groups.push import asking, commits, invariants, registration, rounds, shown
from kohort.groups.push.state import PushGroup
from kohort.groups.records import PushMemberSaved

PUSH_PROTOCOL: Final = "push"
"""What DescribeGroups shows as the protocol that a push group has chosen."""


def describe(context: Context, push: PushGroup) -> DescribedGroup:
    """A group as of type classic, whose assignments every tool can read."""
    members = tuple(
        DescribedMember(
            member_id=member_id,
            instance_id=None,
            client_id=saved.client_id,
            client_host=saved.client_host,
            metadata=write_subscription(Subscription(1, topics_of(push, saved))),
            assignment=write_assignment(1, asking.named_pairs(context, push.owned_by(member_id))),
        )
        for member_id, saved in push.members.items()
    )
    protocol = PUSH_PROTOCOL if members else ""
    return DescribedGroup(push.group_id, push.group_state(), CONSUMER_PROTOCOL_TYPE, protocol, members)


def topics_of(push: PushGroup, saved: PushMemberSaved) -> tuple[str, ...]:
    """The topics that a member reads, as far as they are known."""
    if saved.regex is None:
        return tuple(topic for topic, _ in saved.topics)
    return tuple(sorted(push.matched.get((saved.regex, saved.excluding), ())))


PUSH: Final = Protocol(
    name=PUSH_PROTOCOL,
    listed_as="classic",
    membership=PushGroup,
    protocol_type=lambda push: CONSUMER_PROTOCOL_TYPE,
    load=registration.load,
    due={
        Deadline.SESSION: registration.on_session_end,
        Deadline.PING: asking.on_ping_due,
        Deadline.ATTEMPT: rounds.on_attempt_end,
        Deadline.BACKOFF: rounds.on_backoff_end,
    },
    connection_lost=registration.on_connection_lost,
    member=lambda push, member_id: push.present.get(member_id),
    topics_changed=rounds.on_image,
    may_commit=commits.may_commit,
    refused_offsets=commits.refused_offsets,
    may_commit_in_transaction=commits.may_commit_in_transaction,
    describe=describe,
    broken=invariants.broken_in,
    leave=registration.leave,
    events={
        RegisterConsumer: registration.register,
        ConsumerAnswered: asking.on_answered,
        PartitionsDivided: rounds.on_divided,
        OffsetsFound: asking.on_found,
        ShowPushGroups: shown.show,
        OwnersMissing: shown.on_owners_missing,
    },
)
