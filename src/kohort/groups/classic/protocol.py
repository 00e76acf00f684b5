"""The classic protocol's row."""

from __future__ import annotations

from typing import Final

from kohort.groups.classic import commits, gathering, invariants, leader, lost, rebalance, requests
from kohort.groups.classic.state import ClassicGroup
from kohort.groups.context import Context
from kohort.groups.liveness.deadlines import Deadline
from kohort.groups.migration import arrivals
from kohort.groups.outcome import DescribedGroup, DescribedMember, GroupState, GroupType
from kohort.groups.protocol import Protocol


def describe(context: Context, classic: ClassicGroup) -> DescribedGroup:
    """A group with its members; metadata only while it is stable."""
    protocol = classic.protocol if classic.state is GroupState.STABLE else None
    members = tuple(
        DescribedMember(
            member.member_id,
            member.instance_id,
            member.client.id,
            member.client.host,
            member.metadata(protocol),
            member.assignment,
        )
        for member in classic.members.values()
    )
    return DescribedGroup(classic.group_id, classic.state, classic.protocol_type or "", protocol or "", members)


CLASSIC: Final = Protocol(
    name=GroupType.CLASSIC,
    membership=ClassicGroup,
    protocol_type=lambda classic: classic.protocol_type or "",
    load=requests.load,
    due={
        Deadline.SESSION: rebalance.on_session_end,
        Deadline.PENDING_MEMBER: requests.not_awaited,
        Deadline.JOIN_PHASE: rebalance.on_join_deadline,
        Deadline.SYNC_PHASE: rebalance.on_sync_deadline,
        Deadline.GATHERING: gathering.on_deadline,
    },
    connection_lost=lost.on_connection_lost,
    member=lambda classic, member_id: classic.members.get(member_id),
    pace=gathering.PACE,
    session_ms=lambda context, classic, member: member.session_timeout_ms,
    answer_held=gathering.answer_held,
    refuse_held=gathering.refuse_held,
    topics_changed=leader.on_image,
    may_commit=commits.may_commit,
    may_commit_in_transaction=commits.may_commit_in_transaction,
    committed=commits.committed,
    describe=describe,
    broken=invariants.broken_in,
    join=requests.join,
    sync=requests.sync,
    heartbeat=requests.heartbeat,
    leave=requests.leave,
    consumer_heartbeat=arrivals.refuse_consumer,
)
