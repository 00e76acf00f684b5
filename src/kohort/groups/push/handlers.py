"""The handlers of the push protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kohort.consumer_protocol import CONSUMER_PROTOCOL_TYPE, Subscription, write_assignment, write_subscription
from kohort.errors import ErrorCode
from kohort.groups.effects import DescribedGroup, DescribedMember, Level, ShownPushGroup, ShowPushGroupsReply
from kohort.groups.events import (
    ConsumerAnswered,
    OffsetCommit,
    OffsetsFound,
    OwnersMissing,
    PartitionsDivided,
    PushRequestKind,
    RegisterConsumer,
    ShowPushGroups,
    TxnOffsetCommit,
)
from kohort.groups.group import Partition
from kohort.groups.handlers import ProtocolHandlers
from kohort.groups.pairs import Pair, Pairs
from kohort.groups.push import rebalance, registration, requests
from kohort.groups.push.group import PushGroup, PushMember
from kohort.groups.records import PushMemberSaved
from kohort.groups.step import Context
from kohort.groups.timers import Deadline
from kohort.ids import TopicPartition

# -- Push groups as they are published outside the journal, in ZooKeeper. Source: spec 4.7

TOLD = 5
"""The number of partitions named in a log line."""


def show(context: Context, event: ShowPushGroups) -> None:
    """Return the push groups of the shard, either all of them or those that have changed."""
    ledger = context.ledger
    changed, ledger.changed = ledger.changed, {}
    names = None if event.whole else changed
    found, gone = [], []
    for group_id in ledger.groups if names is None else names:
        group = ledger.groups.get(group_id)
        push = None if group is None else group.under(PushGroup)
        if group is not None and push is not None:
            settled, offsets = not push.rebalancing, dict(group.offsets)
            found.append(ShownPushGroup(group_id, settled, owners(context, push), offsets, push.loaded))
        elif names is not None:
            gone.append(group_id)
    context.reply(event.request, ShowPushGroupsReply(tuple(found), names is None, tuple(gone)))


def owners(context: Context, push: PushGroup) -> Mapping[TopicPartition, str]:
    """Return each partition's owner as consumer and stream."""
    found: dict[TopicPartition, str] = {}
    for member_id, pairs in push.owned.items():
        found.update(streams(context, push.members[member_id], pairs))
    return found


def streams(context: Context, saved: PushMemberSaved, pairs: Pairs) -> Mapping[TopicPartition, str]:
    """Deal a consumer's partitions to its streams in order, as `rebalance.split` counts them."""
    of_topic = dict(saved.topics)
    dealt: dict[str, int] = {}
    found: dict[TopicPartition, str] = {}
    for part in requests.named_pairs(context, pairs):
        stream = dealt.get(part.topic, 0)
        dealt[part.topic] = stream + 1
        count = of_topic.get(part.topic, saved.streams if saved.regex is not None else 1)
        found[part] = f"{saved.member_id}-{stream % max(1, count)}"
    return found


def on_owners_missing(context: Context, event: OwnersMissing) -> None:
    """Rebalance because owner nodes were deleted: the owners of those partitions are stopped and started."""
    group = context.find(event.group_id)
    push = None if group is None else group.under(PushGroup)
    if push is None:
        return
    missing = {
        (topic.id, part.partition) for part in event.partitions if (topic := context.image.topics.get(part.topic))
    }
    found = [member_id for member_id, pairs in push.owned.items() if not pairs.isdisjoint(missing)]
    if found:
        push.unregistered.update(dict.fromkeys(found))
        names = ", ".join(f"{part.topic}-{part.partition}" for part in event.partitions[:TOLD])
        context.log(
            event.group_id, f"owners of {len(event.partitions)} partitions were deleted: {names}", Level.WARNING
        )
        rebalance.look(context, push, "the owners of partitions were deleted")


# -- Invariants of a push group between any two steps


def broken_in(push: PushGroup) -> Iterator[str]:
    """Yield the violated invariants of a push group."""
    if push.members.keys() != push.present.keys():
        yield "members are not those that are heard"
    for what, names in (("owns", push.owned.keys()), ("is to be started", push.moving.keys())):
        if not names <= push.members.keys():
            yield f"a stranger {what}"
    holders: dict[Pair, str] = {}
    for member_id, pairs in push.owned.items():
        for pair in pairs:
            if pair in holders:
                yield f"{pair} is owned by {holders[pair]} and {member_id}"
            holders[pair] = member_id
    if holders != push.holders:
        yield "holders differ from what members own"
    runs = push.attempts.due_ms is not None or push.backoff.due_ms is not None or push.dividing >= 0
    if push.rebalancing and not runs:
        yield "a rebalance is under way, and nothing ends it"
    if not push.rebalancing and (push.moving or push.dividing >= 0):
        yield "members are moved, and no rebalance is under way"
    if push.again and not push.rebalancing and push.backoff.due_ms is None:
        yield "it is marked to be looked at again, and nothing will"
    for member_id, member in push.present.items():
        yield from broken_asking(member_id, member)


def broken_asking(member_id: str, member: PushMember) -> Iterator[str]:
    """Yield contradictions between a member's unanswered requests and its timers."""
    if member.session.due_ms is None:
        yield f"no session of {member_id} runs"
    if (member.asked is None) != (member.out == 0):
        yield f"{member_id} was asked {member.asked}, and owes {member.out} answers"
    if member.out > 1 and member.asked is not PushRequestKind.PING:
        yield f"{member.asked} of {member_id} was repeated"
    if member.is_gone and (member.asked is not None or member.ping.due_ms is not None or member.claim is not None):
        yield f"{member_id} can't be reached, and is asked"
    if not member.is_gone and member.ping.due_ms is None:
        yield f"{member_id} is never asked again"


# -- Permission to commit manually in a push group
#
# A member may commit its own partitions until its Stop is answered. For other partitions a member may repeat the
# committed position with its own metadata. For a partition without an owner it may also commit a first offset. Neither
# moves another member.


def may_commit(context: Context, push: PushGroup, event: OffsetCommit) -> ErrorCode:
    """Return whether a commit is accepted: a member's, or anyone's if the group is empty."""
    if not push.members and event.generation < 0:
        return ErrorCode.NONE
    return ErrorCode.NONE if event.member_id in push.members else ErrorCode.UNKNOWN_MEMBER_ID


def refused_offsets(context: Context, push: PushGroup, event: OffsetCommit) -> Mapping[Partition, ErrorCode]:
    """Return the partitions of a commit that the member does not own or has revoked, if the commit would move them."""
    member = push.present.get(event.member_id)
    if member is None:
        return {}
    topics, holders = context.image.topics, push.holders
    known = context.ledger.groups[push.group_id].offsets
    refused = {}
    for offset in event.offsets:
        part = (offset.topic, offset.partition)
        topic, at = topics.get(offset.topic), known.get(part)
        if topic is None or offset.partition >= topic.partitions:
            refused[part] = ErrorCode.ILLEGAL_GENERATION
            continue
        holder = holders.get((topic.id, offset.partition))
        moves = holder is not None if at is None else at.offset != offset.offset
        if moves and (member.ending or holder != event.member_id):
            refused[part] = ErrorCode.ILLEGAL_GENERATION
    return refused


def may_commit_in_transaction(context: Context, push: PushGroup, event: TxnOffsetCommit) -> ErrorCode:
    """Refuse transactional commits in a group with members, which have no epoch to check the transaction by."""
    return ErrorCode.NONE if not push.members else ErrorCode.ILLEGAL_GENERATION


PUSH_PROTOCOL: Final = "push"
"""The chosen protocol that DescribeGroups shows for a push group."""


def describe(context: Context, push: PushGroup) -> DescribedGroup:
    """Describe a push group like a classic one, with assignments that every tool can read."""
    members = tuple(
        DescribedMember(
            member_id=member_id,
            instance_id=None,
            client_id=saved.client_id,
            client_host=saved.client_host,
            metadata=write_subscription(Subscription(1, topics_of(push, saved))),
            assignment=write_assignment(1, requests.named_pairs(context, push.owned_by(member_id))),
        )
        for member_id, saved in push.members.items()
    )
    protocol = PUSH_PROTOCOL if members else ""
    return DescribedGroup(push.group_id, push.group_state(), CONSUMER_PROTOCOL_TYPE, protocol, members)


def topics_of(push: PushGroup, saved: PushMemberSaved) -> tuple[str, ...]:
    """Return the topics that a member reads, as far as they are known."""
    if saved.regex is None:
        return tuple(topic for topic, _ in saved.topics)
    return tuple(sorted(push.matched.get((saved.regex, saved.excluding), ())))


PUSH: Final = ProtocolHandlers(
    name=PUSH_PROTOCOL,
    listed_as="classic",
    membership=PushGroup,
    protocol_type=lambda push: CONSUMER_PROTOCOL_TYPE,
    load=registration.load,
    due={
        Deadline.SESSION: registration.on_session_end,
        Deadline.PING: requests.on_ping_due,
        Deadline.ATTEMPT: rebalance.on_attempt_end,
        Deadline.BACKOFF: rebalance.on_backoff_end,
    },
    connection_lost=registration.on_connection_lost,
    member=lambda push, member_id: push.present.get(member_id),
    topics_changed=rebalance.on_image,
    may_commit=may_commit,
    refused_offsets=refused_offsets,
    may_commit_in_transaction=may_commit_in_transaction,
    describe=describe,
    broken=broken_in,
    leave=registration.leave,
    events={
        RegisterConsumer: registration.register,
        ConsumerAnswered: requests.on_answered,
        PartitionsDivided: rebalance.on_divided,
        OffsetsFound: requests.on_found,
        ShowPushGroups: show,
        OwnersMissing: on_owners_missing,
    },
)
