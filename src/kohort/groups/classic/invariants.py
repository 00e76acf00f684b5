"""What must hold in a classic group between any two steps."""

from __future__ import annotations

from collections.abc import Iterator

from kohort.groups.classic.state import ClassicGroup
from kohort.groups.outcome import GroupState


def broken_in(classic: ClassicGroup) -> Iterator[str]:
    """What is wrong with a classic group."""
    members = classic.members.values()
    if classic.awaiting_join != sum(member.join_request is not None for member in members):
        yield f"awaiting_join is {classic.awaiting_join}"
    if classic.size != sum(member.size for member in members):
        yield f"size is {classic.size}"
    votes: dict[str, int] = {}
    for member in members:
        for name in dict.fromkeys([protocol.name for protocol in member.protocols]):
            votes[name] = votes.get(name, 0) + 1
    if {name: count for name, count in classic.votes.items() if count} != votes:
        yield f"votes are {classic.votes}"
    statics = {member.instance_id: member.member_id for member in members if member.instance_id is not None}
    if classic.static_ids != statics:
        yield f"static_ids are {classic.static_ids}"
    if classic.pending.keys() & classic.members.keys():
        yield "a member is pending too"
    if classic.members and classic.leader not in classic.members:
        yield f"the leader is {classic.leader}"
    if classic.state is GroupState.EMPTY and classic.members:
        yield "it is Empty with members"
    if classic.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE) and classic.protocol is None:
        yield f"it is {classic.state} without a protocol"
    if not classic.pending_sync.keys() <= classic.members.keys():
        yield "a stranger is awaited to sync"
    if classic.state is GroupState.STABLE and (classic.saved is None or classic.saved.generation != classic.generation):
        yield f"generation {classic.generation} is Stable without its record"
    gathering = classic.gathering
    if gathering is not None:
        if classic.state is not GroupState.PREPARING_REBALANCE or not gathering.awaited:
            yield f"it gathers while it is {classic.state} and awaits {list(gathering.awaited)}"
        for name in gathering.awaited:
            awaited = classic.members.get(name)
            if awaited is None or awaited.held is not None or awaited.join_request is not None:
                yield f"it gathers for {name}, who is held, has joined or is gone"
    holds = [member.member_id for member in members if member.held is not None]
    if holds and classic.state is not GroupState.STABLE and gathering is None:
        yield f"{holds} are held while it is {classic.state} and all are told"
    unwatched = [
        member.member_id
        for member in members
        if member.session.due_ms is None and member.join_request is None and member.sync_request is None
    ]
    if unwatched:
        yield f"no sessions of {unwatched} run"
    if classic.state is GroupState.PREPARING_REBALANCE and classic.join_phase.due_ms is None:
        yield "nothing ends its join phase"
    if classic.state is GroupState.COMPLETING_REBALANCE and classic.sync_phase.due_ms is None and classic.pending_sync:
        yield "nothing ends its sync phase"
    waiting = [member.member_id for member in members if member.sync_request is not None]
    if waiting and classic.state is not GroupState.COMPLETING_REBALANCE:
        yield f"{waiting} wait for a sync while it is {classic.state}"
