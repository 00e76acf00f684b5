"""Who may commit in a classic group. Source: spec 1.1, KIP-447."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups.classic import gathering, rebalance
from kohort.groups.classic.requests import is_current, validate
from kohort.groups.classic.state import ClassicGroup
from kohort.groups.context import Context
from kohort.groups.events import NO_CONNECTION, OffsetCommit, TxnOffsetCommit
from kohort.groups.outcome import GroupState


def may_commit(context: Context, classic: ClassicGroup, event: OffsetCommit) -> ErrorCode:
    """Whether a member, or someone without group management, may commit now."""
    generation, is_empty = event.generation, classic.state is GroupState.EMPTY
    if generation < 0 and is_empty:
        return ErrorCode.NONE
    if generation < 0 and not event.member_id and event.instance_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if event.member_id not in classic.members or event.instance_id is not None:
        error = validate(classic, event.member_id, event.instance_id)
        if error is not ErrorCode.NONE:
            return error
    if not is_current(classic, generation):
        return ErrorCode.ILLEGAL_GENERATION
    if classic.state is GroupState.COMPLETING_REBALANCE or (classic.awaiting_join and has_given_up(classic, event)):
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def may_commit_in_transaction(context: Context, classic: ClassicGroup, event: TxnOffsetCommit) -> ErrorCode:
    """As `may_commit`; a producer that names no member is not asked for one, and no round holds it up."""
    if event.generation < 0 and classic.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if event.generation < 0 and not event.member_id and event.instance_id is None:
        return ErrorCode.NONE
    error = validate(classic, event.member_id, event.instance_id)
    if error is ErrorCode.NONE and not is_current(classic, event.generation):
        error = ErrorCode.ILLEGAL_GENERATION
    return error


def has_given_up(classic: ClassicGroup, event: OffsetCommit) -> bool:
    """Whether a commit comes behind its member's JoinGroup, before which an eager one gives up what it had.

    Kafka takes the requests of a connection one after the other, so that it looks at such a commit when the round is
    over, and refuses it. A process that slept while it waited to join can't commit here what others may have had since.
    """
    member = classic.members.get(event.member_id)
    if member is None or member.join_request is None or event.connection == NO_CONNECTION:
        return False
    return event.connection == member.connection and gathering.COOPERATIVE not in (classic.protocol or "")


def committed(context: Context, classic: ClassicGroup, event: OffsetCommit) -> None:
    """A member's commit is a sign of life."""
    member = classic.members.get(event.member_id)
    if member is not None and classic.state is not GroupState.COMPLETING_REBALANCE:
        rebalance.alive(context, member)
