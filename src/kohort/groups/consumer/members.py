"""Operations on a consumer group's members of either protocol: move, rename, remove, and answer their requests."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kohort.errors import ErrorCode
from kohort.groups.consumer.group import ConsumerGroup, CurrentAssignment, Presence
from kohort.groups.consumer.reconcile import next_step
from kohort.groups.context import Context
from kohort.groups.effects import ConsumerGroupHeartbeatReply, JoinGroupReply
from kohort.groups.events import ConsumerGroupHeartbeat
from kohort.groups.pairs import Pairs, pack
from kohort.groups.records import Kind, MemberState, TargetAssigned, Tombstone


class Refusal(NamedTuple):
    """The reason why a request is refused."""

    error: ErrorCode
    message: str


def refuse(context: Context, event: ConsumerGroupHeartbeat, refusal: Refusal) -> None:
    """Answer a heartbeat with an error."""
    context.reply(event.request, ConsumerGroupHeartbeatReply(refusal.error, refusal.message))


def log_fenced(context: Context, consumer: ConsumerGroup, event: ConsumerGroupHeartbeat, refusal: Refusal) -> None:
    """Log that a member was fenced by its epoch, once until it is heard again."""
    presence = consumer.presences.get(event.member_id)
    if presence is None or presence.fenced or refusal.error is not ErrorCode.FENCED_MEMBER_EPOCH:
        return
    presence.fenced = True
    current = consumer.current_assignment(event.member_id)
    context.log(
        event.group_id,
        f"member {event.member_id} fenced: it sent epoch {event.member_epoch}, its epoch is {current.member_epoch}, "
        f"the previous one was {current.previous_epoch} ({last_seen(context, consumer, event.member_id)})",
    )


def last_seen(context: Context, consumer: ConsumerGroup, member_id: str) -> str:
    """Describe for the log who a member is, when it was last heard, and whether its connection ended."""
    member = consumer.members[member_id]
    return consumer.presences[member_id].last_seen(context, member.client_id, member.client_host)


def step(context: Context, consumer: ConsumerGroup, member_id: str, owned: Pairs | None) -> CurrentAssignment:
    """Move a member one step towards its target and bound the time of its revocation."""
    before = consumer.current_assignment(member_id)
    target = consumer.targets.get(member_id, frozenset())
    after = next_step(consumer, member_id, target, owned)
    if after == before and member_id in consumer.current:
        return after
    context.emit(after.record(consumer.group_id, member_id))
    record_downtime(context, consumer, before.assigned, after.assigned)
    member = consumer.members[member_id]
    presence = consumer.presence(member_id)
    if after.state is MemberState.UNREVOKED_PARTITIONS and member.classic_protocols is None:
        context.run(presence.revocation, member.rebalance_timeout_ms)
    else:
        presence.revocation.cancel()
    if after.is_reconciled_to(consumer.epoch) and not before.is_reconciled_to(consumer.epoch):
        report_if_settled(context, consumer)
    return after


def record_downtime(context: Context, consumer: ConsumerGroup, before: Pairs, after: Pairs) -> None:
    """Record the downtime of partitions that were taken from a member or assigned to one."""
    if before == after:
        return
    now_ms = context.now.mono_ms
    for pair in before - after:
        consumer.stopped[pair] = now_ms
    if consumer.stopped:
        for pair in after - before:
            since = consumer.stopped.pop(pair, None)
            if since is not None:
                consumer.still.append(now_ms - since)


def report_if_settled(context: Context, consumer: ConsumerGroup) -> None:
    """Report the rebalance as complete when the last member has reached its target."""
    if consumer.settling_epoch != consumer.epoch:
        consumer.settling, consumer.settling_epoch = list(consumer.members), consumer.epoch
    left = consumer.settling
    if not left:  # all members were reached before: one of them has rejoined
        return
    while left:
        awaited = left[-1] in consumer.members and left[-1] not in consumer.excluded
        if awaited and not consumer.current_assignment(left[-1]).is_reconciled_to(consumer.epoch):
            return
        left.pop()
    context.rebalanced(consumer.group_id, "consumer", consumer.began_ms, consumer.still, len(consumer.members))
    consumer.began_ms = None
    consumer.stopped.clear()
    consumer.still = []


def session_timeout_ms(context: Context, consumer: ConsumerGroup, member_id: str) -> int:
    """Return a member's session timeout."""
    member = consumer.members[member_id]
    if member.classic_protocols is not None:
        return member.classic_session_timeout_ms
    return consumer.settings.session_timeout_ms or context.config.consumer_session_timeout_ms


def heartbeat_interval_ms(context: Context, consumer: ConsumerGroup) -> int:
    """Return the heartbeat interval of settled members."""
    return consumer.settings.heartbeat_interval_ms or context.config.consumer_heartbeat_interval_ms


def preferred_assignor(context: Context, consumer: ConsumerGroup) -> str:
    """Return the assignor that most members prefer; the first configured one if none has a preference."""
    votes: dict[str, int] = {}
    for member in consumer.members.values():
        if member.server_assignor is not None:
            votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
    return max(votes, key=lambda name: votes[name]) if votes else context.config.consumer_assignors[0]


def heard(context: Context, consumer: ConsumerGroup, member_id: str, connection: int) -> Presence:
    """Record a request of a member: bind it to its connection and restart its session."""
    presence = consumer.presence(member_id)
    if presence.connection != connection:
        presence.bind(context, connection)
    presence.gone_ms = None
    alive(context, consumer, presence, member_id)
    return presence


def alive(context: Context, consumer: ConsumerGroup, presence: Presence, member_id: str) -> None:
    """Restart a member's session after a request on any connection."""
    presence.alive(context, session_timeout_ms(context, consumer, member_id))


def touch(context: Context, consumer: ConsumerGroup, presence: Presence, member_id: str) -> None:
    """Restart a member's session after a sign of life or a wait, unless its connection has ended."""
    presence.touch(context, session_timeout_ms(context, consumer, member_id))


def leave_for_a_while(context: Context, consumer: ConsumerGroup, member_id: str) -> None:
    """Write the temporary leave of a static member, which keeps its partitions for the rest of its session.

    Its waiting requests are refused: a later answer would move the member on, back into the group.
    """
    presence = consumer.presence(member_id)
    presence.expect_nothing()
    gone = Refusal(ErrorCode.FENCED_MEMBER_EPOCH, f"Member {member_id} has left the group for a while.")
    turn_away(context, consumer, presence, gone)
    context.emit(consumer.current_assignment(member_id).away().record(consumer.group_id, member_id))


def change_protocol(context: Context, consumer: ConsumerGroup, presence: Presence, member_id: str) -> None:
    """Refuse a member's waiting requests and stop its timers, because it speaks another protocol from now on."""
    presence.expect_nothing()
    elsewhere = Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} speaks another protocol.")
    turn_away(context, consumer, presence, elsewhere)


def rejoin(context: Context, consumer: ConsumerGroup, member_id: str) -> None:
    """Let a member that had left temporarily take its place again."""
    current = consumer.current_assignment(member_id)
    if current.is_away:
        context.emit(current.afresh().record(consumer.group_id, member_id))


def take_place(context: Context, consumer: ConsumerGroup, old_id: str, new_id: str) -> None:
    """Write that a static member continues under a new id, with the partitions of the old one."""
    old, target = consumer.members[old_id], consumer.targets.get(old_id)
    before = consumer.current_assignment(old_id)
    if old_id in consumer.excluded:
        consumer.excluded[new_id] = None
    dismiss(context, consumer, old_id, ErrorCode.FENCED_INSTANCE_ID)
    remove(context, consumer, old_id)
    context.emit(replace(old, member_id=new_id))
    if target is not None:
        context.emit(TargetAssigned(consumer.group_id, new_id, pack(target)))
    context.emit(before.afresh().record(consumer.group_id, new_id))


def remove(context: Context, consumer: ConsumerGroup, member_id: str) -> None:
    """Write that a member is gone."""
    dismiss(context, consumer, member_id)
    consumer.excluded.pop(member_id, None)
    if member_id in consumer.current:
        record_downtime(context, consumer, consumer.current[member_id].assigned, frozenset())
        context.emit(Tombstone((Kind.CURRENT, consumer.group_id, member_id)))
    if member_id in consumer.targets:
        context.emit(Tombstone((Kind.TARGET, consumer.group_id, member_id)))
    context.emit(Tombstone((Kind.MEMBER, consumer.group_id, member_id)))


def dismiss(
    context: Context, consumer: ConsumerGroup, member_id: str, error: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID
) -> None:
    """Stop a member's timers and refuse its waiting requests."""
    presence = consumer.presences.pop(member_id, None)
    if presence is not None:
        presence.cancel()
        presence.unbind(context)
        turn_away(context, consumer, presence, Refusal(error, f"Member {member_id} was removed."))


def turn_away(context: Context, consumer: ConsumerGroup, presence: Presence, refusal: Refusal) -> None:
    """Refuse all waiting requests of a member: it was removed or replaced."""
    if presence.waiting is not None:
        refuse(context, presence.waiting, refusal)
    context.held.refuse(context, consumer, presence, *refusal)
    if presence.joining is not None:
        is_new = refusal.error is ErrorCode.FENCED_MEMBER_EPOCH  # a code that classic clients do not know
        error = ErrorCode.UNKNOWN_MEMBER_ID if is_new else refusal.error
        context.reply(presence.joining.request, JoinGroupReply(error))
    presence.waiting = presence.joining = None
